//! A cluster of containers of the local Docker engine, in a network of its own. Made with `testcontainers`; what that cannot
//! do to a container (kill it, see why it ended) is asked of the engine.

mod cleanup;
mod engine;
mod environment;
mod readiness;

use std::collections::BTreeMap;
use std::net::TcpListener;

use epoka_client::events::Collector;
use epoka_client::{Client, ClientConfig};
use epoka_proto::events::EventLog;
use epoka_proto::v1::ProcessChange;
use epoka_proto::v1::event::Kind as EventKind;
use epoka_proto::v1::events_server::EventsServer;
use epoka_proto::v1::process_change::Kind as ChangeKind;
use futures::future::join_all;
use testcontainers::bollard::models::PortBinding;
use testcontainers::core::{ExecCommand, IntoContainerPort as _};
use testcontainers::runners::AsyncRunner as _;
use testcontainers::{ContainerAsync, ContainerRequest, GenericImage, ImageExt as _};
use tonic::transport::server::TcpIncoming;

use crate::action::{Action, State};
use crate::builder::Builder;
use crate::error::{Error, Result};
use crate::target::Node;
use crate::timeline::WINDOW;
use engine::Engine;
use environment::{HOST_PORT, Names};

/// The image, when nobody names one.
const IMAGE: (&str, &str) = ("epoka", "latest");
/// The variable that names it.
const VARIABLE: &str = "EPOKA_IMAGE";
/// How long a clean stop may take before the engine kills.
const GRACE_SECONDS: i32 = 30;
/// What a node is asked for its health, and what it says then.
const HEALTH: ([&str; 3], &str) = (["/epoka", "health", "controller"], "ready");

/// A running cluster.
pub struct Containers {
    names: Names,
    engine: Engine,
    nodes: Vec<NodeContainer>,
    bootstrap: String,
    /// What was done to the containers, served as the supervisor of local processes does.
    done: EventLog,
}

struct NodeContainer {
    node: Node,
    container: ContainerAsync<GenericImage>,
}

impl Containers {
    /// Starts a cluster and waits until it is ready.
    ///
    /// # Errors
    /// There is no engine or no image; the cluster does not become ready.
    pub async fn launch(plan: &Builder) -> Result<Self> {
        let engine = Engine::connect().await?;
        let (name, tag) = image(plan);
        engine.find_image(&name, &tag).await?;
        cleanup::sweep(engine.docker()).await;

        let unique = uuid::Uuid::new_v4().simple().to_string();
        let network = format!("epoka-{}", &unique[..8]);
        let names = Names { network };
        let ports = free_ports(plan.brokers)?;
        let addresses = ports.values().map(|port| format!("127.0.0.1:{port}"));
        let bootstrap = addresses.collect::<Vec<_>>().join(",");
        let controllers = (1..=plan.controllers).map(Node::Controller);
        let brokers = (1..=plan.brokers).map(Node::Broker);
        let all = controllers.clone().chain(brokers.clone());
        cleanup::register(&names.network, all.map(|node| names.of(node)).collect());
        let mut cluster = Self {
            names,
            engine,
            nodes: Vec::new(),
            bootstrap,
            done: EventLog::new("supervisor"),
        };
        // Controllers first: their names mean something only once they exist.
        let image = GenericImage::new(name, tag);
        cluster.create(plan, &image, controllers, &ports).await?;
        cluster.create(plan, &image, brokers, &ports).await?;
        cluster.until_ready(plan).await?;
        Ok(cluster)
    }

    async fn create(
        &mut self,
        plan: &Builder,
        image: &GenericImage,
        nodes: impl Iterator<Item = Node>,
        ports: &BTreeMap<i32, u16>,
    ) -> Result<()> {
        let requests = nodes.map(|node| {
            let request = self.request(plan, image.clone(), node, ports);
            // Told before it is done: it registers faster than the engine answers.
            self.tell(node, ChangeKind::Started);
            async move { (node, request.start().await) }
        });
        let mut refused = None;
        for (node, started) in join_all(requests.collect::<Vec<_>>()).await {
            match started {
                Ok(container) => self.nodes.push(NodeContainer { node, container }),
                Err(error) => refused = Some((node, error.to_string())),
            }
        }
        match refused {
            None => Ok(()),
            Some((node, why)) => Err(Error::Docker {
                what: format!("start {node}"),
                why,
            }),
        }
    }

    fn request(
        &self,
        plan: &Builder,
        image: GenericImage,
        node: Node,
        ports: &BTreeMap<i32, u16>,
    ) -> ContainerRequest<GenericImage> {
        let mut published = None;
        let variables = match node {
            Node::Controller(id) => self.names.controller(plan, id),
            Node::Broker(id) => {
                let port = ports[&id];
                published = Some(port);
                self.names.broker(plan, id, port)
            }
        };
        let mut request = image
            .with_exposed_port(HOST_PORT.tcp())
            .with_cmd([node.kind()])
            .with_container_name(self.names.of(node))
            .with_network(&self.names.network)
            .with_label(cleanup::NETWORK, &self.names.network)
            .with_startup_timeout(plan.patience)
            .with_host_config_modifier(move |host| {
                // Only what a broker has for the host, and for this machine only.
                host.publish_all_ports = Some(false);
                host.port_bindings = published.map(|port| {
                    let binding = PortBinding {
                        host_ip: Some("127.0.0.1".to_owned()),
                        host_port: Some(port.to_string()),
                    };
                    [(format!("{HOST_PORT}/tcp"), Some(vec![binding]))].into()
                });
            });
        if let Some(owner) = cleanup::owner() {
            request = request.with_label(cleanup::OWNER, owner);
        }
        for (name, value) in variables {
            request = request.with_env_var(name, value);
        }
        request
    }

    /// The brokers' Kafka addresses on this machine.
    pub fn bootstrap(&self) -> &str {
        &self.bootstrap
    }

    /// Where the SDK reaches the brokers: their Kafka port serves it too.
    pub fn brokers(&self) -> Vec<String> {
        self.bootstrap.split(',').map(str::to_owned).collect()
    }

    /// The network, and the brokers' addresses in it.
    pub fn network(&self) -> (&str, String) {
        let brokers = self.nodes.iter().map(|n| n.node);
        let addresses = brokers.filter_map(|node| match node {
            Node::Broker(_) => Some(self.names.address(node)),
            Node::Controller(_) => None,
        });
        let bootstrap = addresses.collect::<Vec<_>>().join(",");
        (&self.names.network, bootstrap)
    }

    /// The source of everything that happens: the brokers, through them the controllers, and what was done to the containers.
    pub fn events(&self) -> impl Future<Output = Collector> + Send + use<> {
        let done = self.done.clone();
        let client = Client::new(self.brokers(), ClientConfig::default());
        async move {
            let own = serve(done);
            // Whom there is to follow. With no answer that is asked again.
            let _ = client.refresh().await;
            Collector::of_cluster_and(&client, own, WINDOW)
        }
    }

    /// Does something to a container, and waits until it shows.
    ///
    /// # Errors
    /// The container is in no state for it; the engine refuses.
    pub async fn act(&self, action: Action, node: Node) -> Result<()> {
        let found = self.nodes.iter().find(|n| n.node == node);
        let done = action.past();
        let Some(found) = found else {
            let why = format!("there is no {node}");
            return Err(Error::Refused { node, done, why });
        };
        let name = self.names.of(node);
        let state = self.engine.state(&name).await?;
        let wakes = matches!(action, Action::Kill | Action::Stop) && state == State::Paused;
        if !action.suits(state) && !wakes {
            let is = match state {
                State::Running => "running",
                State::Paused => "paused",
                State::Down => "down",
            };
            let why = format!("it is {is}");
            return Err(Error::Refused { node, done, why });
        }
        let container = &found.container;
        let refused = |error: testcontainers::TestcontainersError| Error::Docker {
            what: format!("have {node} {done}"),
            why: error.to_string(),
        };
        match action {
            Action::Kill => {
                // Told before it is done: its consequences are noticed faster than its end.
                self.tell(node, ChangeKind::Killed);
                self.engine.kill(&name).await
            }
            Action::Stop => {
                if wakes {
                    container.unpause().await.map_err(refused)?;
                }
                let stopped = container.stop_with_timeout(Some(GRACE_SECONDS)).await;
                stopped.map_err(refused)?;
                self.tell(node, ChangeKind::Stopped);
                Ok(())
            }
            Action::Start => {
                self.tell(node, ChangeKind::Started);
                container.start().await.map_err(refused)
            }
            Action::Pause => {
                container.pause().await.map_err(refused)?;
                self.tell(node, ChangeKind::Paused);
                Ok(())
            }
            Action::Resume => {
                container.unpause().await.map_err(refused)?;
                self.tell(node, ChangeKind::Resumed);
                Ok(())
            }
        }
    }

    /// What every container is doing.
    ///
    /// # Errors
    /// The engine does not say.
    pub async fn states(&self) -> Result<Vec<(Node, State)>> {
        let states = self.nodes.iter().map(|n| async {
            let state = self.engine.state(&self.names.of(n.node)).await?;
            Ok((n.node, state))
        });
        join_all(states).await.into_iter().collect()
    }

    /// Whether a controller answers, and knows who is active.
    pub async fn controller_serves(&self, node: Node) -> bool {
        let (question, healthy) = HEALTH;
        let Some(found) = self.nodes.iter().find(|n| n.node == node) else {
            return false;
        };
        let Ok(mut asked) = found.container.exec(ExecCommand::new(question)).await else {
            return false;
        };
        let said = asked.stdout_to_vec().await.unwrap_or_default();
        String::from_utf8_lossy(&said).trim() == healthy
    }

    /// What a node said last.
    pub async fn last_words(&self, node: Node) -> String {
        let said = self.engine.output(&self.names.of(node)).await;
        let last = said.trim().lines().last().unwrap_or("it said nothing");
        last.strip_prefix("epoka: ").unwrap_or(last).to_owned()
    }

    fn tell(&self, node: Node, kind: ChangeKind) {
        self.done.push(EventKind::Process(ProcessChange {
            process: node.name(),
            kind: kind.into(),
            detail: String::new(),
        }));
    }
}

impl Drop for Containers {
    fn drop(&mut self) {
        let held = self.nodes.drain(..).map(|node| node.container);
        cleanup::remove(&self.names.network, held.collect());
    }
}

/// The image that was asked for, else what EPOKA_IMAGE names, else the usual one.
fn image(plan: &Builder) -> (String, String) {
    let variable = || std::env::var(VARIABLE).ok().filter(|v| !v.is_empty());
    let named = || {
        variable().map(|image| {
            // A colon before the last slash belongs to the registry's address.
            match image.rsplit_once(':').filter(|(_, tag)| !tag.contains('/')) {
                Some((name, tag)) => (name.to_owned(), tag.to_owned()),
                None => (image, IMAGE.1.to_owned()),
            }
        })
    };
    let asked = plan.image.clone().or_else(named);
    asked.unwrap_or_else(|| (IMAGE.0.to_owned(), IMAGE.1.to_owned()))
}

/// A port of this machine for each broker. They are free now; the engine takes them a moment later.
fn free_ports(brokers: i32) -> Result<BTreeMap<i32, u16>> {
    let refused = Error::system;
    let mut taken = Vec::new();
    let mut ports = BTreeMap::new();
    for id in 1..=brokers {
        let listener = TcpListener::bind("127.0.0.1:0").map_err(refused("a free port"))?;
        let address = listener.local_addr().map_err(refused("a free port"))?;
        ports.insert(id, address.port());
        taken.push(listener);
    }
    Ok(ports)
}

/// Serves these events on this machine; returns where, if there is a port.
fn serve(events: EventLog) -> Option<String> {
    let listener = TcpListener::bind("127.0.0.1:0").ok()?;
    let address = listener.local_addr().ok()?;
    listener.set_nonblocking(true).ok()?;
    let listener = tokio::net::TcpListener::from_std(listener).ok()?;
    let server = tonic::transport::Server::builder().add_service(EventsServer::new(events));
    // Ends with the runtime of whoever follows.
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    Some(address.to_string())
}
