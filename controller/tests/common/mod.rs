//! A broker as the controller sees one: registers, follows the metadata, keeps a lease. And controllers in this process.

#![allow(dead_code)] // Each test file uses its own part.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::time::Duration;

use epoka_controller::{Controller, ControllerConfig};
use epoka_proto::ids::BrokerId;
use epoka_proto::metadata::{Image, Record};
use epoka_proto::v1::controller_client::ControllerClient;
use epoka_proto::v1::*;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

pub const PATIENCE: Duration = Duration::from_secs(20);

pub fn localhost(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// Ports that were free a moment ago.
pub fn free_ports(count: usize) -> Vec<u16> {
    let listeners: Vec<_> = (0..count)
        .map(|_| TcpListener::bind(localhost(0)).expect("a free port"))
        .collect();
    let port = |l: &TcpListener| l.local_addr().expect("bound").port();
    listeners.iter().map(port).collect()
}

pub fn config(id: i32, port: u16, dir: &Path) -> ControllerConfig {
    ControllerConfig {
        initial_configs: [("min.insync.replicas".to_owned(), "2".to_owned())].into(),
        ..ControllerConfig::new(id, localhost(port), dir.join(format!("controller-{id}")))
    }
}

pub async fn client(address: SocketAddr) -> ControllerClient<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
    ControllerClient::new(endpoint.tcp_nodelay(true).connect_lazy())
}

pub async fn start(config: ControllerConfig) -> Controller {
    epoka_controller::start(config).await.expect("starts")
}

/// Waits for something, and fails the test when it does not come.
pub async fn patiently<T>(what: &str, wait: impl Future<Output = T>) -> T {
    let waited = tokio::time::timeout(PATIENCE, wait).await;
    waited.unwrap_or_else(|_| panic!("waited in vain for {what}"))
}

pub struct Broker {
    pub id: i32,
    pub epoch: i64,
    pub incarnation: u128,
    pub image: Image,
    pub offset: i64,
    pub client: ControllerClient<Channel>,
    metadata: Streaming<MetadataUpdate>,
    beats: mpsc::Sender<HeartbeatRequest>,
    answers: Streaming<HeartbeatResponse>,
}

pub fn register_request(id: i32, incarnation: u128, previous: Option<i64>) -> RegisterRequest {
    RegisterRequest {
        broker_id: id,
        incarnation: incarnation.to_be_bytes().to_vec().into(),
        listeners: vec![Listener {
            name: "PLAINTEXT".into(),
            host: "localhost".into(),
            port: 9000 + id as u32,
        }],
        grpc_address: format!("localhost:{}", 7000 + id),
        previous_broker_epoch: previous,
        ..RegisterRequest::default()
    }
}

impl Broker {
    /// A broker that has joined and is not fenced.
    pub async fn join(address: SocketAddr, id: i32, incarnation: u128) -> Self {
        let mut client = client(address).await;
        let request = register_request(id, incarnation, None);
        let registered = client.register(request).await.expect("registers");
        let registered = registered.into_inner();
        assert_eq!(registered.error, 0, "{}", registered.message);
        Self::attach(client, id, incarnation, registered.broker_epoch).await
    }

    /// A broker with this epoch, at this controller: what one does that changes controllers.
    pub async fn attach(
        mut client: ControllerClient<Channel>,
        id: i32,
        incarnation: u128,
        epoch: i64,
    ) -> Self {
        let request = MetadataRequest {
            after_offset: None,
            broker_id: id,
            broker_epoch: Some(epoch),
        };
        let metadata = client.metadata(request).await.expect("metadata");
        let (beats, receiver) = mpsc::channel(4);
        let answers = client.heartbeat(ReceiverStream::new(receiver)).await;
        let mut broker = Self {
            id,
            epoch,
            incarnation,
            image: Image::default(),
            offset: -1,
            client,
            metadata: metadata.into_inner(),
            beats,
            answers: answers.expect("heartbeat").into_inner(),
        };
        broker.follow_until(|b| b.offset >= epoch).await;
        assert!(!broker.beat(false, false).await.expect("answer").is_fenced);
        broker
    }

    pub async fn beat(
        &mut self,
        want_fence: bool,
        want_shutdown: bool,
    ) -> Result<HeartbeatResponse, Status> {
        self.send_beat(want_fence, want_shutdown).await;
        self.answer().await
    }

    pub async fn send_beat(&mut self, want_fence: bool, want_shutdown: bool) {
        let request = HeartbeatRequest {
            broker_id: self.id,
            broker_epoch: self.epoch,
            metadata_offset: self.offset,
            want_fence,
            want_shutdown,
            offline_log_dirs: vec![],
        };
        self.beats.send(request).await.expect("the stream is open");
    }

    pub async fn answer(&mut self) -> Result<HeartbeatResponse, Status> {
        let answer = patiently("an answer to a heartbeat", self.answers.message()).await?;
        answer.ok_or_else(|| Status::cancelled("the stream is at its end"))
    }

    /// Applies metadata until a condition holds.
    pub async fn follow_until(&mut self, condition: impl Fn(&Self) -> bool) {
        while !condition(self) {
            let update = patiently("metadata", self.metadata.message()).await;
            let update = update
                .expect("the stream is alive")
                .expect("the stream goes on");
            if update.snapshot {
                self.image = Image::default();
            }
            for record in &update.records {
                self.image.apply(&Record::decode(record).expect("a record"));
            }
            assert!(update.offset > self.offset || update.snapshot, "in order");
            self.offset = update.offset;
        }
    }

    /// The end of the metadata stream.
    pub async fn stream_end(&mut self) -> Status {
        loop {
            match patiently("the end of the stream", self.metadata.message()).await {
                Ok(Some(_)) => {}
                Ok(None) => return Status::cancelled("ended without a reason"),
                Err(status) => return status,
            }
        }
    }

    pub fn leader_of(&self, topic: &str, partition: i32) -> Option<BrokerId> {
        self.image.topic(topic)?.partitions.get(&partition)?.leader
    }
}

pub fn new_topic(name: &str, partitions: i32, replication_factor: i32) -> CreateTopicsRequest {
    CreateTopicsRequest {
        topics: vec![NewTopic {
            name: name.into(),
            partitions,
            replication_factor,
            ..NewTopic::default()
        }],
        validate_only: false,
    }
}
