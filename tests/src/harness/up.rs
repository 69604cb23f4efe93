//! The product as a person runs it: `epoka up` in a directory of its own, and any other command beside it.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use super::process::{Process, tail};
use super::wait::until;

/// How long `up` may take on a busy machine, and any single command.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running `epoka up`.
pub struct Up {
    binary: String,
    dir: TempDir,
    process: Option<Process>,
    bootstrap: String,
}

impl Up {
    /// Runs `epoka up --port 0` with these further arguments in a new directory, and waits until it says it is ready.
    ///
    /// # Panics
    /// When it does not.
    pub async fn start(binary: &str, arguments: &[&str]) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("epoka-up-")
            .tempdir()
            .expect("a temporary directory");
        let mut up = Self {
            binary: binary.into(),
            dir,
            process: None,
            bootstrap: String::new(),
        };
        up.again(arguments).await;
        up
    }

    /// Runs `epoka up` once more on the same data, after it has ended.
    ///
    /// # Panics
    /// When it is still running or does not get ready.
    pub async fn again(&mut self, arguments: &[&str]) {
        assert!(self.process.is_none(), "`up` is still running");
        let output = self.dir.path().join("up.out");
        let _none_before = std::fs::remove_file(&output);
        let mut command = Command::new(&self.binary);
        command
            .args(["up", "--port", "0"])
            .args(arguments)
            .current_dir(self.dir.path());
        let process = self.process.insert(Process::start("up", command, &output));
        let ready = until("`up` to be ready", PATIENCE, || {
            let text = std::fs::read_to_string(&output).unwrap_or_default();
            let line = text
                .lines()
                .find(|l| l.starts_with("ready in "))
                .map(str::to_owned);
            assert!(
                line.is_some() || process.ended().is_none(),
                "`up` has ended: {text}"
            );
            line.ok_or(text)
        })
        .await;
        let servers = ready
            .split("bootstrap ")
            .nth(1)
            .expect("the line names the bootstrap servers");
        self.bootstrap = servers.trim().to_owned();
    }

    /// Bootstrap servers, as the line says them.
    pub fn bootstrap(&self) -> &str {
        &self.bootstrap
    }

    /// Where it runs.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Where its cluster keeps its data.
    pub fn data_dir(&self) -> PathBuf {
        self.dir().join(".epoka")
    }

    /// What `epoka watch` prints within this time.
    ///
    /// # Panics
    /// When it cannot be run.
    pub async fn watched(&self, time: Duration) -> String {
        let mut command = tokio::process::Command::new(&self.binary);
        command
            .arg("watch")
            .current_dir(self.dir())
            .stdout(std::process::Stdio::piped())
            .kill_on_drop(true);
        let mut watch = command.spawn().expect("the program exists");
        tokio::time::sleep(time).await;
        watch.start_kill().expect("its own child");
        let output = watch.wait_with_output().await.expect("it was killed");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// What it has printed.
    pub fn output(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("up.out")).unwrap_or_default()
    }

    /// Runs another command in the same directory.
    ///
    /// # Panics
    /// When it does not end in time.
    pub async fn epoka(&self, arguments: &[&str]) -> Output {
        run(&self.binary, self.dir.path(), arguments).await
    }

    /// Runs another command that must succeed; returns what it printed.
    ///
    /// # Panics
    /// When it fails.
    pub async fn succeed(&self, arguments: &[&str]) -> String {
        let output = self.epoka(arguments).await;
        assert!(output.status.success(), "epoka {arguments:?}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// `epoka status --json`.
    ///
    /// # Panics
    /// When it fails or prints no JSON.
    pub async fn status(&self) -> Value {
        let text = self.succeed(&["status", "--json"]).await;
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("not JSON ({e}): {text}"))
    }

    /// Ctrl-C, and waits for the end.
    ///
    /// # Panics
    /// When it does not end in time.
    pub async fn interrupt(&mut self) -> ExitStatus {
        let mut process = self.process.take().expect("running");
        process.interrupt();
        process.exited(PATIENCE).await
    }

    /// SIGKILL for `up` itself; its children are its own business.
    pub fn kill(&mut self) {
        self.process = None;
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            // A clean end takes the children along; a killed supervisor's children end by themselves.
            process.interrupt();
            let deadline = Instant::now() + Duration::from_secs(5);
            while process.ended().is_none() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        if std::thread::panicking() {
            println!("---- up\n{}", tail(&self.dir.path().join("up.out")));
        }
    }
}

/// Runs a command to its end in a directory.
///
/// # Panics
/// When it does not end in time.
pub async fn run(binary: &str, dir: &Path, arguments: &[&str]) -> Output {
    let mut command = tokio::process::Command::new(binary);
    command
        .args(arguments)
        .current_dir(dir)
        .stdin(std::process::Stdio::null())
        .kill_on_drop(true);
    let output = tokio::time::timeout(PATIENCE, command.output()).await;
    let output =
        output.unwrap_or_else(|_| panic!("epoka {arguments:?} did not end within {PATIENCE:?}"));
    output.expect("the program exists")
}
