//! The compose cluster of `deploy/compose.yaml`, started for one test and taken down after it.

use std::io::Write as _;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A running cluster.
pub struct Cluster {
    compose: Vec<&'static str>,
    project: String,
    ports: [u16; 3],
    topics: String,
}

impl Cluster {
    /// Starts it with these topics and waits until clients can write. `None`, with the reason, where there is no Docker;
    /// with `EPOKA_REQUIRE_DOCKER=1` that is a failure.
    pub fn up(topics: &str) -> Option<Self> {
        let compose = match find() {
            Ok(compose) => compose,
            Err(why) => {
                let required = std::env::var("EPOKA_REQUIRE_DOCKER").is_ok_and(|v| v == "1");
                assert!(!required, "EPOKA_REQUIRE_DOCKER=1, but {why}");
                // Past the test harness, which keeps to itself what a passing test prints.
                let test = std::thread::current();
                let test = test.name().unwrap_or("a test");
                drop(writeln!(std::io::stderr(), "skipped {test}: {why}"));
                return None;
            }
        };
        // All three are bound before any is given back, so they differ.
        let listeners = [0; 3].map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port"));
        let ports = listeners
            .each_ref()
            .map(|l| l.local_addr().expect("bound").port());
        drop(listeners);
        let cluster = Self {
            compose,
            project: format!("epokaexample{:08x}", rand::random::<u32>()),
            ports,
            topics: topics.to_owned(),
        };
        cluster.compose(&["up", "-d"]);
        cluster.await_healthy();
        Some(cluster)
    }

    /// For any Kafka client on this machine.
    pub fn bootstrap(&self) -> String {
        self.ports.map(|port| format!("127.0.0.1:{port}")).join(",")
    }

    /// Does something to a broker: `kill`, `start`, `pause`, `unpause`.
    pub fn broker(&self, action: &str, id: i32) {
        self.compose(&[action, &format!("broker-{id}")]);
    }

    fn await_healthy(&self) {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let project = format!("label=com.docker.compose.project={}", self.project);
        loop {
            let list = [
                "ps",
                "--filter",
                &project,
                "--format",
                "{{.Names}} {{.Status}}",
            ];
            let list = run(&["docker"], &list).expect("docker lists");
            if list
                .lines()
                .filter(|line| line.contains("(healthy)"))
                .count()
                == 4
            {
                return;
            }
            assert!(std::time::Instant::now() < deadline, "not healthy:\n{list}");
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
    }

    fn compose(&self, arguments: &[&str]) {
        self.try_compose(arguments)
            .unwrap_or_else(|why| panic!("{why}"));
    }

    fn try_compose(&self, arguments: &[&str]) -> Result<String, String> {
        let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../compose.yaml");
        let mut command = Command::new(self.compose[0]);
        command.args(&self.compose[1..]).arg("-f").arg(file);
        command.args(["-p", &self.project]).args(arguments);
        command.env("EPOKA_TOPICS", &self.topics);
        for (number, port) in (1..).zip(self.ports) {
            command.env(format!("EPOKA_PORT_{number}"), port.to_string());
        }
        finish(command)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        drop(self.try_compose(&["down", "--volumes", "--timeout", "0"]));
    }
}

/// The compose command, where there is all that a cluster needs.
fn find() -> Result<Vec<&'static str>, String> {
    run(&["docker"], &["version", "--format", "{{.Server.Version}}"])
        .map_err(|_| "no Docker daemon answers")?;
    let image = std::env::var("EPOKA_IMAGE").unwrap_or_else(|_| "epoka:latest".to_owned());
    run(&["docker"], &["image", "inspect", &image])
        .map_err(|_| format!("there is no image {image}: build it with deploy/image"))?;
    [vec!["docker-compose"], vec!["docker", "compose"]]
        .into_iter()
        .find(|words| run(words, &["version"]).is_ok())
        .ok_or_else(|| "there is neither docker-compose nor docker compose".to_owned())
}

fn run(program: &[&str], arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new(program[0]);
    command.args(&program[1..]).args(arguments);
    finish(command)
}

fn finish(mut command: Command) -> Result<String, String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|e| format!("{command:?} cannot be run: {e}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        let said = String::from_utf8_lossy(&output.stderr);
        Err(format!("{command:?}: {}: {}", output.status, said.trim()))
    }
}
