//! A broker's life: load logs, register, take up the metadata, get unfenced, serve; and the way back (D-10).

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use epoka_proto::destination;
use epoka_proto::error::ErrorCode;
use epoka_proto::events::EventLog;
use epoka_proto::ids::{BrokerEpoch, Incarnation};
use epoka_proto::v1::{self, RegisterRequest};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::controller::{ActiveController, ControllerClient};
use super::heartbeat::{Heartbeats, Lease};
use super::logs::Logs;
use super::pause::Pause;
use super::producer_ids::ProducerIds;
use super::self_check::check_advertised;
use super::{Node, background, errands, metadata, services, withdraw};
use crate::clock::Clock;
use crate::config::BrokerConfig;
use crate::kafka;
use crate::listeners;
use crate::membership::Membership;
use crate::partition::Surroundings;
use crate::partitions::Partitions;
use crate::replication::Fetchers;

/// Pauses between attempts to register: short at first, because a successor usually waits for the end of a life that has ended
/// already.
const REGISTER_PAUSES: RangeInclusive<Duration> =
    Duration::from_millis(10)..=Duration::from_millis(200);
/// How many refusals by a controller of another cluster are taken for a matter of addresses that are changing hands: about two
/// seconds of them.
const MAY_BE_PASSING: u32 = 15;
/// gRPC connections of a listener that may wait to be taken.
const GUESTS: usize = 64;
/// How long after a new registration heartbeats may still speak of the old one.
const REGISTRATION_SETTLES: Duration = Duration::from_secs(1);

/// A running broker.
pub struct Broker {
    node: Arc<Node>,
    kafka_addresses: Vec<SocketAddr>,
    grpc_address: SocketAddr,
    lease: watch::Receiver<Lease>,
    want_shutdown: watch::Sender<bool>,
    /// Ends what clients and followers use.
    serving: CancellationToken,
    /// Ends what the controller sees.
    belonging: CancellationToken,
    /// The life in the cluster; absent once it is known how it ended.
    belongs: Option<JoinHandle<anyhow::Result<()>>>,
    tasks: Vec<JoinHandle<()>>,
}

/// Starts a broker: returns once its logs are loaded and its ports are bound; it then registers by itself.
pub async fn start(config: BrokerConfig) -> anyhow::Result<Broker> {
    let events = EventLog::new(destination::broker(config.node_id));
    let mut doors = Vec::new();
    for listener in &config.listeners {
        doors.push(Door::open(listener).await?);
    }
    let grpc = bind("epoka.grpc.listener", config.grpc_listen).await?;
    let grpc_address = grpc.local_addr()?;
    let endpoints: Vec<_> = doors.iter().map(|d| d.endpoint.clone()).collect();
    let kafka_addresses = doors.iter().map(|d| d.bound).collect();
    let (paths, me, record) = (config.log_dirs.clone(), config.node_id, events.clone());
    let logs = tokio::task::spawn_blocking(move || Logs::load(&paths, me, record)).await??;

    let clock = Clock::start();
    let membership = Arc::new(Membership::new(me, clock));
    let active = Arc::new(ActiveController::new(config.controllers.clone()));
    let (serving, belonging) = (CancellationToken::new(), CancellationToken::new());
    let (errand_sender, errand_receiver) = mpsc::unbounded_channel();
    let around = Surroundings {
        me,
        clock,
        events: events.clone(),
        errands: errand_sender,
        replica_lag_time_max_ms: config.replica_lag_time_max_ms,
    };
    let node = Arc::new(Node {
        membership: membership.clone(),
        partitions: Arc::new(Partitions::default()),
        around,
        logs,
        fetchers: Fetchers::new(membership.clone(), serving.clone()),
        controller: ControllerClient::new(active.clone()),
        active: active.clone(),
        producer_ids: ProducerIds::default(),
        failures: Notify::new(),
        absent: Mutex::default(),
        config,
    });
    let (lease_sender, lease) = watch::channel(Lease::INITIAL);
    let (want_shutdown, shutdown_wanted) = watch::channel(false);

    let grpc_server = services::serve_nodes(&node, grpc, serving.clone());
    let registrar = Registrar {
        node: node.clone(),
        incarnation: Incarnation(uuid::Uuid::new_v4()),
        endpoints,
        grpc_address,
    };
    let heartbeats = Heartbeats {
        membership,
        active,
        interval: node.config.heartbeat_interval,
        want_shutdown: shutdown_wanted,
        lease: lease_sender,
        events: node.events().clone(),
    };
    let belongs = tokio::spawn(belong(
        registrar,
        heartbeats,
        lease.clone(),
        Serving {
            doors,
            stop: serving.clone(),
        },
        belonging.clone(),
    ));
    let tasks = vec![
        tokio::spawn(grpc_server),
        tokio::spawn(errands::run(node.clone(), errand_receiver)),
        tokio::spawn(background::tick(node.clone(), serving.clone())),
        tokio::spawn(background::checkpoint(node.clone(), serving.clone())),
        tokio::spawn(background::expire_producers(node.clone(), serving.clone())),
        tokio::spawn(withdraw::run(node.clone(), serving.clone())),
    ];
    Ok(Broker {
        node,
        kafka_addresses,
        grpc_address,
        lease,
        want_shutdown,
        serving,
        belonging,
        belongs: Some(belongs),
        tasks,
    })
}

async fn bind(property: &str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| {
        format!(
            "{property}: cannot listen on {address}; choose another port, or port 0 for a free one"
        )
    })
}

/// A bound listener, and what its clients are told.
struct Door {
    endpoint: v1::Listener,
    bound: SocketAddr,
    socket: TcpListener,
}

impl Door {
    async fn open(listener: &listeners::Listener) -> anyhow::Result<Self> {
        let socket = bind("listeners", listener.listen).await?;
        let bound = socket.local_addr()?;
        let told = listener.advertised.clone();
        let (host, port) = told.unwrap_or_else(|| (bound.ip().to_string(), bound.port()));
        let endpoint = v1::Listener {
            name: listener.name.clone(),
            host,
            port: port.into(),
        };
        Ok(Self {
            endpoint,
            bound,
            socket,
        })
    }
}

/// What is served once the broker belongs to the cluster.
struct Serving {
    doors: Vec<Door>,
    stop: CancellationToken,
}

impl Serving {
    /// Serves clients until the stop. Those of the SDK are let go at once, with their streams that never end by themselves.
    async fn run(self, node: Arc<Node>) {
        let mut guests = JoinSet::new();
        let told = self.doors.iter().map(|d| d.endpoint.clone()).collect();
        guests.spawn(check_advertised(told));
        let open = |door: Door| {
            let name: Arc<str> = door.endpoint.name.into();
            let (sender, receiver) = mpsc::channel(GUESTS);
            guests.spawn(services::serve_guests(
                &node,
                name.clone(),
                receiver,
                self.stop.clone(),
            ));
            kafka::Listener {
                name,
                socket: door.socket,
                guests: sender,
            }
        };
        let listeners = self.doors.into_iter().map(open).collect();
        kafka::serve(listeners, node.clone(), self.stop.clone()).await;
    }
}

/// Registers, then keeps the lease and follows the metadata until `stop`.
async fn belong(
    registrar: Registrar,
    heartbeats: Heartbeats,
    mut lease: watch::Receiver<Lease>,
    serving: Serving,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let node = registrar.node.clone();
    tokio::select! {
        () = stop.cancelled() => return Ok(()),
        registered = registrar.register() => registered?,
    }
    let beating = tokio::spawn(heartbeats.run(stop.clone()));
    let clients = tokio::spawn({
        let node = node.clone();
        async move {
            let stop = serving.stop.clone();
            if stop
                .run_until_cancelled(node.applied(node.membership.epoch().0))
                .await
                .is_some()
            {
                serving.run(node).await;
            }
        }
    });
    // A controller that lost track of this registration gets it again, unchanged (H-44).
    let again = async {
        loop {
            // The sender lives in the heartbeats, which outlive this.
            drop(lease.wait_for(|l| l.stale).await);
            registrar.register().await?;
            drop(timeout(REGISTRATION_SETTLES, lease.wait_for(|l| !l.stale)).await);
        }
    };
    let outcome = tokio::select! {
        outcome = metadata::follow(node, stop.clone()) => outcome,
        refused = again => refused,
    };
    beating.abort();
    if stop.is_cancelled() {
        // They answer what they have, and end by themselves.
        drop(clients.await);
    } else {
        clients.abort();
    }
    outcome
}

struct Registrar {
    node: Arc<Node>,
    incarnation: Incarnation,
    endpoints: Vec<v1::Listener>,
    grpc_address: SocketAddr,
}

impl Registrar {
    /// Tries until the controller admits this broker; an error when it never will.
    async fn register(&self) -> anyhow::Result<()> {
        let mut pause = Pause::new(REGISTER_PAUSES);
        let mut told = String::new();
        let mut strangers = 0;
        let request = self.request();
        loop {
            let answer = self.node.controller.register(request.clone()).await;
            if answer.is_ok() {
                self.node.membership.hear_controller();
            }
            let why = match answer {
                Ok(answer) => match ErrorCode::from_wire(answer.error as i16) {
                    Ok(()) => {
                        let epoch = BrokerEpoch(answer.broker_epoch);
                        self.node.membership.set_epoch(epoch);
                        tokio::task::block_in_place(|| self.node.logs.note_epoch(epoch));
                        return Ok(());
                    }
                    // A controller of another cluster may be at the address for a moment only.
                    Err(ErrorCode::InconsistentClusterId) if strangers < MAY_BE_PASSING => {
                        strangers += 1;
                        self.node.controller.disconnect();
                        answer.message
                    }
                    Err(ErrorCode::InconsistentClusterId | ErrorCode::StaleBrokerEpoch) => {
                        anyhow::bail!(
                            "the controller at {} cannot take the data in {}: {}. Nothing was changed here",
                            self.node.active.address(),
                            self.node.logs.paths().join(", "),
                            answer.message
                        );
                    }
                    // The old life of this broker still has its lease: it runs out.
                    Err(error) => format!("{error}: {}", answer.message),
                },
                Err(status) => status.message().to_owned(),
            };
            if told != why {
                tracing::warn!(%why, "not admitted to the cluster yet");
                self.node.membership.set_refused(&why);
                told = why;
            }
            pause.wait().await;
        }
    }

    fn request(&self) -> RegisterRequest {
        let config = &self.node.config;
        let holdings = self.node.logs.holdings();
        RegisterRequest {
            broker_id: self.node.me().0,
            cluster_id: self.node.logs.cluster_id().unwrap_or_default(),
            incarnation: bytes::Bytes::copy_from_slice(self.incarnation.0.as_bytes()),
            listeners: self.endpoints.clone(),
            grpc_address: config
                .grpc_advertised
                .clone()
                .unwrap_or_else(|| self.grpc_address.to_string()),
            log_dirs: self
                .node
                .logs
                .directory_ids()
                .iter()
                .map(|id| id.to_bytes())
                .collect(),
            previous_broker_epoch: self.node.logs.previous_epoch().map(|e| e.0),
            rack: config.rack.clone().unwrap_or_default(),
            registered_epoch: self.node.membership.registered().map(|e| e.0),
            holdings: holdings.logs,
            next_producer_id: holdings.next_producer_id,
        }
    }
}

impl Broker {
    /// Where clients connect: each listener's address.
    pub fn kafka_addresses(&self) -> &[SocketAddr] {
        &self.kafka_addresses
    }

    /// Where the gRPC services are.
    pub fn grpc_address(&self) -> SocketAddr {
        self.grpc_address
    }

    /// The broker's record of events.
    pub fn events(&self) -> EventLog {
        self.node.events().clone()
    }

    /// Waits until the controller lets this broker lead and join ISRs.
    pub async fn unfenced(&self) {
        let mut lease = self.lease.clone();
        // The sender lives as long as the broker does.
        drop(lease.wait_for(|l| !l.fenced).await);
    }

    /// Waits until the broker cannot go on by itself, and says why. Pends while it is well.
    pub async fn failed(&mut self) -> anyhow::Error {
        let Some(belongs) = &mut self.belongs else {
            return std::future::pending().await; // it was told already
        };
        let ended = belongs.await;
        self.belongs = None;
        match ended {
            Ok(Err(error)) => error,
            Ok(Ok(())) => anyhow::anyhow!("the broker was stopped"),
            Err(error) => error.into(),
        }
    }

    /// Stops in order: leadership moves away first, then clients and followers are let go, then the logs are closed
    /// cleanly (D-10). Gives up waiting for the controller after `controlled.shutdown.deadline.ms`.
    pub async fn shutdown(self) {
        let joined = self.node.membership.registered().is_some();
        self.want_shutdown.send_replace(true);
        let mut lease = self.lease.clone();
        let let_go = lease.wait_for(|l| l.may_stop || l.stale);
        // Nobody has to let go of a broker that was never in the cluster, or is out of it.
        if self.belongs.is_some()
            && joined
            && timeout(self.node.config.shutdown_deadline, let_go)
                .await
                .is_err()
        {
            tracing::warn!("the controller did not let this broker go in time; stopping anyway");
        }
        self.serving.cancel();
        self.belonging.cancel();
        if let Some(belongs) = self.belongs {
            drop(belongs.await); // what it has to say is of no interest any more
        }
        let node = self.node;
        let closing = tokio::task::spawn_blocking(move || {
            let epoch = node.membership.registered();
            let epoch = epoch.or(node.logs.previous_epoch());
            node.logs.close(&node.partitions.all(), epoch);
        });
        if let Err(error) = closing.await {
            tracing::error!(%error, "closing the logs failed");
        }
        for task in self.tasks {
            task.abort();
        }
    }
}
