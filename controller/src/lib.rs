//! The controller: registers brokers, fences the dead, elects leaders, keeps topics and configurations, and ships all of it
//! to the brokers as one ordered metadata log. `cluster` decides and knows nothing of replication, clocks or sockets; `quorum`
//! replicates its commands; `liveness` knows who was heard when; `service` answers calls. No record data ever passes through.

mod active;
pub mod cluster;
mod config;
mod declared;
pub mod liveness;
pub mod metadata;
mod quorum;
mod service;
mod shared;
mod timeline;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use epoka_proto::destination;
use epoka_proto::events::EventLog;
use epoka_proto::v1::controller_server::ControllerServer;
use epoka_proto::v1::events_server::EventsServer;
use epoka_proto::v1::quorum_server::QuorumServer;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::service::InterceptorLayer;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

pub use config::ControllerConfig;
pub use shared::ACTIVE_HINT;

use declared::Declared;
use liveness::Liveness;
use metadata::Metadata;
use quorum::Quorum;
use service::{ControllerService, QuorumService};
use shared::{Role, Shared};
use timeline::Timeline;

/// How long a stopping controller waits for calls under way.
const DRAIN: Duration = Duration::from_secs(1);

/// A running controller.
pub struct Controller {
    shared: Arc<Shared>,
    local_addr: SocketAddr,
    stop: CancellationToken,
    server: JoinHandle<Result<(), tonic::transport::Error>>,
    background: TaskTracker,
}

/// Starts a controller and returns once it listens; `wait_active` says when it, if alone, answers.
pub async fn start(config: ControllerConfig) -> anyhow::Result<Controller> {
    let listener = TcpListener::bind(config.listen)
        .await
        .with_context(|| format!("the controller cannot listen on {}", config.listen))?;
    let local_addr = listener.local_addr()?;
    let voters = voters(&config, local_addr)?;
    let id = u64::try_from(config.id).context("a controller's id is not negative")?;
    let timeline = Timeline::new(EventLog::new(destination::controller(config.id)));
    let metadata = Metadata::new();
    let data_dir = config.data_dir.clone();
    let quorum = Quorum::open(id, voters, data_dir, metadata.clone(), timeline.clone()).await?;
    let shared = Arc::new(Shared {
        declared: Declared::new(config.topics.clone()),
        liveness: Mutex::new(Liveness::new(config.session_timeout.as_millis() as i64)),
        config,
        quorum: Arc::new(quorum),
        metadata,
        offers: Mutex::default(),
        timeline,
        role: watch::Sender::new(Role::Passive { active: None }),
        progress: watch::Sender::new(0),
        started: Instant::now(),
    });
    let stop = CancellationToken::new();
    let server = serve(shared.clone(), listener, stop.clone());
    let background = TaskTracker::new();
    let until_stopped = |task: BoxFuture<'static, ()>| stop.clone().run_until_cancelled_owned(task);
    for task in [
        active::follow_quorum(shared.clone()).boxed(),
        active::expire_sessions(shared.clone()).boxed(),
        active::balance(shared.clone()).boxed(),
        declared::make(shared.clone()).boxed(),
    ] {
        background.spawn(until_stopped(task));
    }
    shared.quorum.start().await?;
    Ok(Controller {
        shared,
        local_addr,
        stop,
        server,
        background,
    })
}

/// The quorum's addresses; a controller alone is its own quorum.
fn voters(config: &ControllerConfig, local: SocketAddr) -> anyhow::Result<BTreeMap<u64, String>> {
    let mut voters = BTreeMap::new();
    for (id, address) in &config.voters {
        let id = u64::try_from(*id).context("a voter's id is not negative")?;
        anyhow::ensure!(
            voters.insert(id, address.clone()).is_none(),
            "voter {id} is named twice"
        );
    }
    if voters.is_empty() {
        voters.insert(u64::try_from(config.id)?, local.to_string());
    }
    anyhow::ensure!(
        voters.contains_key(&u64::try_from(config.id)?),
        "controller {} is not among the voters; add {}@{local} to controller.quorum.voters",
        config.id,
        config.id,
    );
    Ok(voters)
}

fn serve(
    shared: Arc<Shared>,
    listener: TcpListener,
    stop: CancellationToken,
) -> JoinHandle<Result<(), tonic::transport::Error>> {
    let max = quorum::MAX_MESSAGE;
    let quorum = QuorumServer::new(QuorumService::new(shared.clone()))
        .max_decoding_message_size(max)
        .max_encoding_message_size(max);
    let controller = ControllerServer::new(ControllerService::new(shared.clone()))
        .max_decoding_message_size(max)
        .max_encoding_message_size(usize::MAX);
    let events = EventsServer::new(shared.timeline.events());
    let metadata = shared.metadata.clone();
    let only_ours = destination::checked(destination::controller(shared.config.id), move || {
        metadata.cluster_id()
    });
    let server = Server::builder()
        .layer(InterceptorLayer::new(only_ours))
        .http2_keepalive_interval(Some(Duration::from_secs(10)))
        .http2_keepalive_timeout(Some(Duration::from_secs(10)))
        .add_service(controller)
        .add_service(quorum)
        .add_service(events)
        .serve_with_incoming_shutdown(
            TcpIncoming::from(listener).with_nodelay(Some(true)),
            async move { stop.cancelled().await },
        );
    tokio::spawn(server)
}

impl Controller {
    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// What happened here.
    pub fn events(&self) -> EventLog {
        self.shared.timeline.events()
    }

    /// The committed metadata as this controller knows it.
    pub fn metadata(&self) -> Metadata {
        self.shared.metadata.clone()
    }

    /// Whether this controller is the active one.
    pub fn is_active(&self) -> bool {
        self.shared.is_active()
    }

    /// Waits until this controller is the active one.
    pub async fn wait_active(&self) {
        let mut role = self.shared.role.subscribe();
        // The sender lives as long as `self`.
        let _ = role.wait_for(|r| *r == Role::Active).await;
    }

    /// Stops: ends its streams, leaves the quorum, lets calls under way finish, closes its files.
    pub async fn shutdown(self) {
        self.shared.set_role(Role::Stopping);
        if let Err(error) = self.shared.quorum.raft.shutdown().await {
            tracing::warn!(%error, "the quorum did not stop cleanly");
        }
        self.stop.cancel();
        self.background.close();
        self.background.wait().await;
        let abort = self.server.abort_handle();
        if tokio::time::timeout(DRAIN, self.server).await.is_err() {
            abort.abort();
        }
    }
}
