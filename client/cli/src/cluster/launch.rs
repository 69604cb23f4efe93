//! Brings a local cluster up: takes the directory, chooses ports, writes `cluster.json`, starts every process at once.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use epoka_client::{Client, ClientConfig, NewTopic};
use epoka_proto::events::EventLog;
use epoka_proto::v1::events_server::EventsServer;
use epoka_proto::v1::supervisor_server::SupervisorServer;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tonic::transport::server::TcpIncoming;

use super::description::{Description, NodeDescription};
use super::directory::Directory;
use super::ports::Reservation;
use super::process::Process;
use super::readiness;
use super::service::SupervisorService;
use super::shape::Shape;
use super::supervisor::Supervisor;
use crate::failure::{Failure, Outcome};
use crate::node;
use crate::target::Kind;

/// Settings that the supervisor gives each node itself.
const OWN_SETTINGS: [&str; 8] = [
    "node.id",
    "log.dirs",
    "listeners",
    "advertised.listeners",
    "epoka.grpc.listener",
    "epoka.grpc.advertised",
    "controller.quorum.voters",
    "controller.quorum.bootstrap.servers",
];

/// The cluster that is wanted.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Its directory.
    pub directory: PathBuf,
    /// How many brokers; `None`: as many as there were, or 3.
    pub brokers: Option<i32>,
    /// How many controllers; `None`: as many as there were, or 1.
    pub controllers: Option<i32>,
    /// The first broker's Kafka port; 0 picks free ones.
    pub port: u16,
    /// Begin with nothing.
    pub fresh: bool,
    /// Settings for every node that knows them.
    pub set: Vec<(String, String)>,
    /// How the nodes write their logs: `text` or `json`.
    pub log_format: String,
}

/// A running local cluster, owned by this process: it ends with it.
pub struct LocalCluster {
    directory: Directory,
    description: Description,
    supervisor: Arc<Supervisor>,
    client: Client,
    /// What `fresh` deleted.
    deleted: Vec<String>,
    server: JoinHandle<()>,
    /// Kept so that nobody else takes the ports of a node that is down.
    _ports: Vec<Reservation>,
}

impl LocalCluster {
    /// Starts every process. They are not ready yet.
    ///
    /// # Errors
    /// The directory is in use, a port is taken, a setting is wrong, a process cannot be started.
    pub async fn launch(plan: &Plan) -> Outcome<Self> {
        let (for_controllers, for_brokers) = settings(&plan.set)?;
        let directory = Directory::take(&plan.directory)?;
        let shape = match Shape::find(&directory, plan) {
            Ok(shape) => shape,
            Err(failure) => {
                directory.undo();
                return Err(failure);
            }
        };
        let Shape {
            before,
            controllers,
            brokers,
            kafka,
        } = shape;
        let deleted = if plan.fresh {
            directory.clear()?
        } else {
            Vec::new()
        };

        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let mut ports = Vec::new();
        let mut nodes = Vec::new();
        let mut node = |kind: Kind, id: i32, kafka: Option<String>| -> Outcome<NodeDescription> {
            let old = before
                .as_ref()
                .and_then(|b| b.nodes_of(kind).find(|n| n.id == id));
            let grpc = Reservation::again(old.map(|n| n.grpc.as_str()))?;
            let described = describe(
                directory.path(),
                kind,
                id,
                kafka,
                grpc.address().to_string(),
            )?;
            ports.push(grpc);
            Ok(described)
        };
        for id in 1..=controllers {
            nodes.push(node(Kind::Controller, id, None)?);
        }
        for (id, port) in (1..=brokers).zip(&kafka) {
            nodes.push(node(Kind::Broker, id, Some(port.address().to_string()))?);
        }
        let bootstrap: Vec<_> = kafka.iter().map(|p| p.address().to_string()).collect();
        ports.extend(kafka);
        let description = Description {
            supervisor_pid: std::process::id(),
            supervisor: listener.local_addr()?.to_string(),
            bootstrap: bootstrap.join(","),
            nodes,
        };

        let events = EventLog::new("supervisor");
        let program = program()?;
        let process = |node: &NodeDescription| {
            let mut arguments = match node.kind {
                Kind::Controller => controller_arguments(node, &description, &for_controllers),
                Kind::Broker => broker_arguments(node, &description, &for_brokers),
            };
            arguments.extend(["--log-format".to_owned(), plan.log_format.clone()]);
            Arc::new(Process::new(
                node.clone(),
                program.clone(),
                arguments,
                events.clone(),
            ))
        };
        let processes = description.nodes.iter().map(process).collect();
        let supervisor = Arc::new(Supervisor::new(processes, events));
        let server = serve(listener, supervisor.clone());
        description.write(directory.path())?;
        supervisor.start_all().await.map_err(Failure::wrong)?;
        Ok(Self {
            client: Client::new(description.brokers_grpc(), ClientConfig::default()),
            directory,
            description,
            supervisor,
            deleted,
            server,
            _ports: ports,
        })
    }

    /// Creates the topics that do not exist yet and waits until each has a leader and its minimum ISR, as every broker sees
    /// it. With no topic asked for, a new cluster gets `default`, and an old one is ready when all its topics are. Says on
    /// standard error what it waits for when that takes long.
    ///
    /// # Errors
    /// A process gives up, a topic is refused.
    pub async fn ready(&self, topics: &[NewTopic], default: &NewTopic) -> Outcome {
        tokio::select! {
            ready = readiness::until_ready(&self.client, &self.description, topics, default) => ready,
            why = self.supervisor.somebody_gave_up() => Err(Failure::wrong(why)),
        }
    }

    /// The cluster's directory, absolute.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The node directories that were deleted to begin with nothing.
    pub fn deleted(&self) -> &[String] {
        &self.deleted
    }

    /// Where everything is.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// The processes.
    pub fn supervisor(&self) -> &Arc<Supervisor> {
        &self.supervisor
    }

    /// A client of the cluster.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Stops everything cleanly.
    pub async fn stop(&self) {
        self.supervisor.stop_all().await;
    }

    /// Kills everything.
    pub async fn kill(&self) {
        self.supervisor.kill_all().await;
    }
}

impl Drop for LocalCluster {
    fn drop(&mut self) {
        self.server.abort();
        // Whoever did not stop the cluster leaves no process behind.
        for process in self.supervisor.processes() {
            let _ = process.kill();
        }
    }
}

/// The program that is running, which is every node's program too.
fn program() -> Outcome<PathBuf> {
    let path = std::env::current_exe().map_err(|e| {
        Failure::wrong(format!(
            "cannot find this program to start its processes: {e}"
        ))
    })?;
    // A rebuild replaces the file under a running process; the kernel still has it.
    let kept = PathBuf::from("/proc/self/exe");
    Ok(if path.exists() { path } else { kept })
}

fn describe(
    directory: &Path,
    kind: Kind,
    id: i32,
    kafka: Option<String>,
    grpc: String,
) -> Outcome<NodeDescription> {
    let name = format!("{kind}-{id}");
    let data = directory.join(&name);
    std::fs::create_dir_all(&data)
        .map_err(|e| Failure::wrong(format!("{} cannot be created: {e}", data.display())))?;
    Ok(NodeDescription {
        kind,
        id,
        kafka,
        grpc,
        output: directory.join("logs").join(format!("{name}.log")),
        log_dirs: vec![data],
    })
}

fn controller_arguments(
    node: &NodeDescription,
    cluster: &Description,
    set: &[(String, String)],
) -> Vec<String> {
    let voters: Vec<_> = cluster
        .nodes_of(Kind::Controller)
        .map(|c| format!("{}@{}", c.id, c.grpc))
        .collect();
    let brokers = cluster.nodes_of(Kind::Broker).count();
    // Safe to kill: with three brokers, an acknowledged write is on two of them.
    let min_isr = if brokers >= 3 { 2 } else { 1 };
    let mut arguments = vec!["controller".to_owned()];
    let mut give =
        |key: &str, value: String| arguments.extend(["--set".to_owned(), format!("{key}={value}")]);
    give("min.insync.replicas", min_isr.to_string());
    for (key, value) in set {
        give(key, value.clone());
    }
    give("node.id", node.id.to_string());
    give("listeners", format!("CONTROLLER://{}", node.grpc));
    give("controller.quorum.voters", voters.join(","));
    give("log.dirs", dirs(node));
    arguments
}

fn broker_arguments(
    node: &NodeDescription,
    cluster: &Description,
    set: &[(String, String)],
) -> Vec<String> {
    let controllers: Vec<_> = cluster
        .nodes_of(Kind::Controller)
        .map(|c| c.grpc.clone())
        .collect();
    let kafka = node.kafka.clone().unwrap_or_default();
    let mut arguments = vec!["broker".to_owned()];
    let mut give =
        |key: &str, value: String| arguments.extend(["--set".to_owned(), format!("{key}={value}")]);
    for (key, value) in set {
        give(key, value.clone());
    }
    give("node.id", node.id.to_string());
    give("log.dirs", dirs(node));
    give("listeners", format!("PLAINTEXT://{kafka}"));
    give("advertised.listeners", format!("PLAINTEXT://{kafka}"));
    give("epoka.grpc.listener", node.grpc.clone());
    give("epoka.grpc.advertised", node.grpc.clone());
    give("controller.quorum.bootstrap.servers", controllers.join(","));
    arguments
}

fn dirs(node: &NodeDescription) -> String {
    let dirs: Vec<_> = node
        .log_dirs
        .iter()
        .map(|d| d.display().to_string())
        .collect();
    dirs.join(",")
}

type Settings = Vec<(String, String)>;

/// Sorts settings by who understands them: controllers, brokers, or both.
fn settings(set: &[(String, String)]) -> Outcome<(Settings, Settings)> {
    let broker_keys = epoka_broker::config::KEYS.iter().map(|k| k.name);
    let (mut controllers, mut brokers) = (Settings::new(), Settings::new());
    for (key, value) in set {
        if OWN_SETTINGS.contains(&key.as_str()) {
            return Err(Failure::usage(format!(
                "{key} is chosen by `up` for each node and cannot be set"
            )));
        }
        let controller = node::controller::names().any(|n| n == key);
        let broker = broker_keys.clone().any(|n| n == key);
        if !controller && !broker {
            let names = node::controller::names().chain(broker_keys.clone());
            let near = epoka_proto::config::nearest(key, names);
            let hint = near
                .map(|n| format!("; did you mean `{n}`?"))
                .unwrap_or_default();
            return Err(Failure::usage(format!(
                "`{key}` is no setting of a broker or a controller{hint}"
            )));
        }
        let pair = || (key.clone(), value.clone());
        controllers.extend(controller.then(pair));
        brokers.extend(broker.then(pair));
    }
    Ok((controllers, brokers))
}

fn serve(listener: TcpListener, supervisor: Arc<Supervisor>) -> JoinHandle<()> {
    let events = EventsServer::new(supervisor.events().clone());
    let service = SupervisorServer::new(SupervisorService(supervisor));
    let server = tonic::transport::Server::builder()
        .add_service(service)
        .add_service(events);
    tokio::spawn(async move {
        let connections = TcpIncoming::from(listener).with_nodelay(Some(true));
        if let Err(error) = server.serve_with_incoming(connections).await {
            tracing::error!(%error, "the supervisor's service ended");
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(key: &str, value: &str) -> (String, String) {
        (key.to_owned(), value.to_owned())
    }

    #[test]
    fn settings_go_to_those_who_know_them() {
        let set = [
            pair("replica.lag.time.max.ms", "500"),
            pair("broker.session.timeout.ms", "1000"),
            pair("min.insync.replicas", "1"),
        ];
        let (controllers, brokers) = settings(&set).expect("known");
        assert_eq!(controllers, set[1..]);
        assert_eq!(brokers, set[..1]);
        let unknown = settings(&[pair("replica.lag.time.ms", "1")]).expect_err("unknown");
        assert!(
            unknown
                .to_string()
                .contains("did you mean `replica.lag.time.max.ms`"),
            "{unknown}"
        );
        let own = settings(&[pair("node.id", "1")]).expect_err("ours");
        assert!(own.to_string().contains("cannot be set"), "{own}");
    }
}
