//! One cluster of `deploy/compose.yaml`, under a project name and ports of its own.

use std::process::Stdio;
use std::time::{Duration, Instant};

use epoka_client::{Client, Metadata};
use epoka_proto::ids::{BrokerId, TopicPartition};
use tokio::process::Command;

use super::image::root;
use super::{Docker, docker, finish};
use crate::harness::ports::Port;
use crate::harness::wait::poll;

/// How long anything that containers do may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A compose command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    /// `docker-compose`, version 1.
    Standalone,
    /// `docker compose`, version 2.
    Plugin,
}

impl Tool {
    fn words(self) -> &'static [&'static str] {
        match self {
            Self::Standalone => &["docker-compose"],
            Self::Plugin => &["docker", "compose"],
        }
    }

    fn command(self) -> Command {
        let mut command = Command::new(self.words()[0]);
        command.args(&self.words()[1..]);
        command
    }

    /// Those that are installed.
    pub(super) async fn find_all() -> Vec<Self> {
        let mut found = Vec::new();
        for tool in [Self::Standalone, Self::Plugin] {
            let mut command = tool.command();
            command.arg("version");
            if finish(command).await.is_ok() {
                found.push(tool);
            }
        }
        found
    }
}

/// What kind of cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shape {
    /// One controller.
    #[default]
    Single,
    /// Three controllers.
    Quorum,
}

/// A cluster in containers. It is taken down with its volumes when this is dropped.
pub struct Compose {
    tool: Tool,
    image: String,
    shape: Shape,
    project: String,
    ports: [Port; 3],
    client: Client,
    /// From the command until every service was healthy.
    pub took: Duration,
}

impl Compose {
    /// Starts it and waits until every service is healthy.
    ///
    /// # Panics
    /// When it does not come up.
    pub async fn up(docker: &Docker, tool: Tool, shape: Shape) -> Self {
        let ports = [Port::reserve(), Port::reserve(), Port::reserve()];
        let bootstrap: Vec<_> = ports.iter().map(Port::address).collect();
        let mut cluster = Self {
            tool,
            image: docker.image.clone(),
            shape,
            project: format!("epokatest{:08x}", rand::random::<u32>()),
            ports,
            client: Client::new(bootstrap, Default::default()),
            took: Duration::ZERO,
        };
        let begun = Instant::now();
        cluster.compose(&["up", "-d"]).await;
        cluster.await_healthy().await;
        cluster.took = begun.elapsed();
        cluster
    }

    fn command(&self) -> Command {
        let file = root().join("deploy/compose.yaml");
        let mut command = self.tool.command();
        if self.shape == Shape::Quorum {
            command
                .arg("--env-file")
                .arg(root().join("deploy/quorum.env"));
        }
        command.arg("-p").arg(&self.project).arg("-f").arg(file);
        command.env("EPOKA_IMAGE", &self.image);
        for (number, port) in (1..).zip(&self.ports) {
            command.env(format!("EPOKA_PORT_{number}"), port.number().to_string());
        }
        command
    }

    /// Runs the compose command to a good end; what it printed.
    ///
    /// # Panics
    /// When it fails.
    pub async fn compose(&self, arguments: &[&str]) -> String {
        self.compose_with(&[], arguments).await
    }

    /// The same with variables that the file asks for.
    ///
    /// # Panics
    /// When it fails.
    pub async fn compose_with(&self, variables: &[(&str, &str)], arguments: &[&str]) -> String {
        let mut command = self.command();
        command.args(arguments).envs(variables.iter().copied());
        finish(command).await.unwrap_or_else(|why| panic!("{why}"))
    }

    /// Where Kafka clients of this machine connect.
    pub fn bootstrap(&self) -> String {
        let addresses: Vec<_> = self.ports.iter().map(Port::address).collect();
        addresses.join(",")
    }

    /// The network of its containers.
    pub fn network(&self) -> String {
        format!("{}_default", self.project)
    }

    /// The volume of a service.
    pub fn volume(&self, service: &str) -> String {
        format!("{}_{service}", self.project)
    }

    /// A client on this machine.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The services: controllers, then brokers.
    pub fn services(&self) -> Vec<String> {
        let controllers = match self.shape {
            Shape::Single => 1,
            Shape::Quorum => 3,
        };
        let controllers = (1..=controllers).map(|n| format!("controller-{n}"));
        let brokers = (1..=3).map(|n| format!("broker-{n}"));
        controllers.chain(brokers).collect()
    }

    /// The container of a service.
    ///
    /// # Panics
    /// When it has none.
    pub async fn container(&self, service: &str) -> String {
        let label = |key: &str, value: &str| format!("label=com.docker.compose.{key}={value}");
        let project = label("project", &self.project);
        let named = label("service", service);
        let id = docker(&["ps", "-aq", "--filter", &project, "--filter", &named]).await;
        assert!(!id.is_empty(), "{service} has no container");
        id
    }

    /// Does something to the container of a service: `kill`, `start`, `pause` ...
    pub async fn act(&self, action: &[&str], service: &str) {
        let container = self.container(service).await;
        docker(&[action, &[&container]].concat()).await;
    }

    /// A field of what `docker inspect` knows of a service.
    pub async fn inspect(&self, service: &str, format: &str) -> String {
        let container = self.container(service).await;
        docker(&["inspect", "--format", format, &container]).await
    }

    /// What a service has said.
    pub async fn logs(&self, service: &str) -> String {
        let container = self.container(service).await;
        let mut command = Command::new("sh");
        // Its words are on standard error.
        command.args(["-c", "docker logs \"$0\" 2>&1", &container]);
        finish(command).await.unwrap_or_else(|why| panic!("{why}"))
    }

    /// Waits until every service is healthy.
    ///
    /// # Panics
    /// When one never is.
    pub async fn await_healthy(&self) {
        let healthy = poll(PATIENCE, async || {
            for service in self.services() {
                let status = self.inspect(&service, "{{.State.Health.Status}}").await;
                if status != "healthy" {
                    return Err(format!("{service} is {status}"));
                }
            }
            Ok(())
        });
        healthy
            .await
            .unwrap_or_else(|seen| panic!("waited for health: {seen}"));
    }

    /// Waits until all brokers serve and every ISR is whole; the picture then.
    ///
    /// # Panics
    /// When that never happens.
    pub async fn await_whole(&self) -> Metadata {
        let whole = |m: &Metadata| {
            let serving = m.brokers.len() == 3 && m.brokers.values().all(|b| !b.fenced);
            let whole = !m.topics.is_empty() && m.partitions().all(|(_, p)| p.is_whole());
            (serving && whole).then(|| m.clone())
        };
        let waited = self
            .client
            .wait_until("a whole ISR everywhere", PATIENCE, whole);
        waited.await.unwrap_or_else(|e| panic!("{e}"))
    }

    /// Waits until a broker is fenced, as the others see it.
    ///
    /// # Panics
    /// When it never is.
    pub async fn await_fenced(&self, broker: i32) {
        let fenced = |m: &Metadata| m.brokers.get(&BrokerId(broker))?.fenced.then_some(());
        let waited = self
            .client
            .wait_until("the broker to be fenced", PATIENCE, fenced);
        waited.await.unwrap_or_else(|e| panic!("{e}"));
    }

    /// The broker that leads a partition.
    ///
    /// # Panics
    /// When none does.
    pub async fn leader(&self, topic: &str, partition: i32) -> i32 {
        let name = TopicPartition::new(topic, partition);
        let leads = |m: &Metadata| m.partition(&name).ok()?.leader;
        let waited = self.client.wait_until("a leader", PATIENCE, leads);
        waited.await.unwrap_or_else(|e| panic!("{e}")).0
    }
}

impl Drop for Compose {
    fn drop(&mut self) {
        let run = |arguments: &[&str], show: bool| {
            let mut command = self.command().into_std();
            command.args(arguments).stdin(Stdio::null());
            if !show {
                command.stdout(Stdio::null()).stderr(Stdio::null());
            }
            drop(command.status());
        };
        if std::thread::panicking() {
            run(&["ps"], true);
            run(&["logs", "--no-color", "--tail", "30"], true);
        }
        run(&["down", "--volumes", "--timeout", "0"], false);
    }
}
