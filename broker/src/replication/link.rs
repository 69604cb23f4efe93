//! The connection of a fetch loop to its leader, and whether the leader is still there behind it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use epoka_proto::destination::{self, Destination};
use epoka_proto::dial::Dial;
use epoka_proto::ids::BrokerId;
use epoka_proto::v1::PingRequest;
use epoka_proto::v1::replica_client::ReplicaClient;
use futures::future::join_all;
use parking_lot::Mutex;
use tokio::time::timeout;
use tonic::Request;
use tonic::transport::{Channel, Endpoint};

use super::{FRAME_SIZE, Fetchers, WINDOW};
use crate::membership::Membership;

/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(1);

/// Connects to a broker's gRPC services.
pub(super) async fn connect(address: &str) -> Result<Channel, tonic::transport::Error> {
    Endpoint::from_shared(format!("http://{address}"))?
        .max_frame_size(FRAME_SIZE)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .http2_keep_alive_interval(Duration::from_secs(3))
        .keep_alive_timeout(Duration::from_secs(3))
        .connect_with_connector(Dial::within(CONNECT))
        .await
}

/// A message for this broker of our cluster and for nobody else who may be at its address by now.
pub(super) fn for_leader<T>(message: T, peers: &Membership, leader: BrokerId) -> Request<T> {
    let mut request = Request::new(message);
    let image = peers.image();
    let destination = Destination {
        node: Some(&destination::broker(leader)),
        cluster: image.known_cluster_id(),
    };
    destination.write(request.metadata_mut());
    request
}

/// One loop's connection.
#[derive(Default)]
pub(super) struct Link {
    channel: Mutex<Option<Channel>>,
    /// The leader let a ping go unanswered, and has said nothing since.
    silent: AtomicBool,
}

impl Link {
    /// The connection stands.
    pub fn opened(&self, channel: Channel) {
        *self.channel.lock() = Some(channel);
        self.heard();
    }

    /// The connection broke.
    pub fn closed(&self) {
        *self.channel.lock() = None;
    }

    /// There is a connection.
    pub fn is_open(&self) -> bool {
        self.channel.lock().is_some()
    }

    /// The leader said something.
    pub fn heard(&self) {
        self.silent.store(false, Ordering::Relaxed);
    }

    /// Hears from the leader, if there is a connection to it; else makes it suspect. A leader that is silent already is not
    /// waited for again.
    async fn ping(&self, peers: &Membership, leader: BrokerId, patience: Duration) {
        let channel = self.channel.lock().clone();
        let Some(channel) = channel.filter(|_| !self.silent.load(Ordering::Relaxed)) else {
            return;
        };
        let mut client = ReplicaClient::new(channel);
        let ping = client.ping(for_leader(PingRequest {}, peers, leader));
        match timeout(patience, ping).await {
            Ok(Ok(_)) => {}
            Ok(Err(_)) => peers.lost(leader),
            Err(_) => self.silent.store(true, Ordering::Relaxed),
        }
    }
}

impl Fetchers {
    /// Hears from each of these leaders that is followed here, so that a process that has just died is noticed before anybody is
    /// sent to it: when a process is killed, the system closes its connections one after the other, and a client's may be the
    /// first. Takes a round trip, or at most `patience`.
    pub async fn hear(&self, leaders: BTreeSet<BrokerId>, patience: Duration) {
        let loops = self.loops_of(leaders);
        let pings = loops
            .iter()
            .map(|(leader, fetch_loop)| fetch_loop.link.ping(&self.peers, *leader, patience));
        join_all(pings).await;
    }
}
