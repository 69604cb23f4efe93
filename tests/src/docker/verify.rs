//! `epoka verify` in a container of the cluster's network: the load that everything is broken under, and its audit.

use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::{Compose, docker, try_docker};

/// How long the audit may take once the load is over.
const AUDIT: Duration = Duration::from_secs(90);

/// A load under way.
pub struct Verify {
    name: String,
    child: Child,
    timeline: JoinHandle<Vec<String>>,
}

/// What came of a load.
#[derive(Debug)]
pub struct Outcome {
    /// The report, as `--json` prints it.
    pub report: Value,
    /// The timeline.
    pub timeline: Vec<String>,
    /// Its exit code.
    pub code: Option<i32>,
}

impl Verify {
    /// Starts it and waits until it writes.
    ///
    /// # Panics
    /// When it does not.
    pub async fn start(cluster: &Compose, image: &str) -> Self {
        let name = format!("epokaverify{:08x}", rand::random::<u32>());
        let mut command = Command::new("docker");
        command.args(["run", "--rm", "--name", &name]);
        command.args(["--network", &cluster.network(), image, "verify", "--json"]);
        command.args(["--for", "10min", "--rate", "100", "--bootstrap"]);
        command.arg("broker-1:19092,broker-2:19092,broker-3:19092");
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("docker runs");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let first = lines.next_line().await.expect("text");
        let first = first.expect("it says what it does");
        assert!(first.starts_with("writing"), "{first}");
        let timeline = tokio::spawn(async move {
            let mut told = Vec::new();
            while let Ok(Some(line)) = lines.next_line().await {
                told.push(line);
            }
            told
        });
        Self {
            name,
            child,
            timeline,
        }
    }

    /// Ends the load and waits for the audit.
    ///
    /// # Panics
    /// When there is none.
    pub async fn finish(mut self) -> Outcome {
        docker(&["kill", "--signal", "INT", &self.name]).await;
        let mut report = String::new();
        let mut stdout = self.child.stdout.take().expect("piped");
        let end = async {
            let read = stdout.read_to_string(&mut report).await;
            read.expect("text");
            self.child.wait().await.expect("waited for")
        };
        let Ok(status) = timeout(AUDIT, end).await else {
            drop(try_docker(&["rm", "-f", &self.name]).await);
            panic!("no audit within {AUDIT:?}");
        };
        let timeline = self.timeline.await.expect("it only reads");
        let report = serde_json::from_str(&report);
        Outcome {
            report: report.unwrap_or_else(|e| panic!("no report: {e}; it said {timeline:#?}")),
            timeline,
            code: status.code(),
        }
    }
}

impl Outcome {
    /// Nothing acknowledged was lost, duplicated or reordered, and something was acknowledged.
    ///
    /// # Panics
    /// Otherwise, with everything that is known.
    pub fn assert_clean(&self) {
        let acked = self.report["acked"].as_u64().unwrap_or(0);
        assert!(self.code == Some(0) && acked > 0, "{self:#?}");
    }

    /// The longest time that any partition went without an acknowledgement, in milliseconds.
    pub fn longest_silence_ms(&self) -> u64 {
        let each = self.report["longest_without_acknowledgement_ms"].as_array();
        let each = each.into_iter().flatten();
        each.filter_map(|s| s["ms"].as_u64()).max().unwrap_or(0)
    }
}
