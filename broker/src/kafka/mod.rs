//! The Kafka wire protocol: connections, framing, and one file for each API. Nothing is decided here: requests become calls
//! of partitions, of the metadata image and of the controller, and what those say becomes a response.

mod admission;
mod api_versions;
mod budget;
mod cluster;
mod complaints;
mod configs;
mod connection;
mod dispatch;
mod elect_leaders;
mod fetch;
mod find_coordinator;
mod frame;
mod guest;
mod init_producer_id;
mod list_offsets;
mod lookup;
mod metadata;
mod offset_for_leader_epoch;
mod pace;
mod partitions;
mod produce;
mod request;
mod response;
mod shape;
mod topics;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::node::Node;
use admission::{Admission, Admitted};
use budget::Budget;
use complaints::Complaints;
use connection::Closed;
use frame::FrameReader;
pub use guest::Guest;
use guest::{completes_preface, speaks_grpc};

/// Pause after a failed accept: the process is out of file descriptors, and other connections must end first.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A connection that says nothing at all for this long is closed (Kafka's `connections.max.idle.ms`).
const SILENCE: Duration = Duration::from_secs(600);

/// How long connections get to answer what they have once the broker stops; they themselves drain for less.
const STOP_GRACE: Duration = Duration::from_secs(1);

/// A bound listener.
pub struct Listener {
    /// Its name, by which registrations say where its clients reach brokers.
    pub name: Arc<str>,
    /// Where connections come from.
    pub socket: TcpListener,
    /// Takes those that speak gRPC.
    pub guests: mpsc::Sender<Guest>,
}

/// Serves clients of these listeners until `shutdown`: no new connections then, and the open ones end once they have answered
/// what they can. Dropping the future ends all of them at once.
pub async fn serve(listeners: Vec<Listener>, node: Arc<Node>, shutdown: CancellationToken) {
    let config = node.config();
    let common = Arc::new(Common {
        complaints: Complaints::default(),
        admission: Admission::new(config.max_connections, config.max_connections_per_ip),
        memory: Arc::new(Budget::new(
            config.queued_max_request_bytes,
            config.request_max_bytes,
        )),
        node,
        shutdown,
    });
    let each = listeners.into_iter().map(|l| listen(l, common.clone()));
    join_all(each).await;
}

/// What the connections of all listeners share.
struct Common {
    node: Arc<Node>,
    complaints: Complaints,
    admission: Admission,
    memory: Arc<Budget>,
    shutdown: CancellationToken,
}

async fn listen(listener: Listener, common: Arc<Common>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = common.shutdown.cancelled() => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.socket.accept() => match accepted {
                Ok((stream, peer)) => match common.admission.admit(peer.ip()) {
                    Ok(admitted) => {
                        let connection = Accepted {
                            stream,
                            admitted,
                            name: listener.name.clone(),
                            guests: listener.guests.clone(),
                            common: common.clone(),
                        };
                        connections.spawn(connection.run(peer));
                    }
                    Err(why) => common.complaints.about(peer, &why),
                },
                Err(error) if is_the_peers(&error) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot accept connections for now");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
    drop(listener);
    let all_ended = async { while connections.join_next().await.is_some() {} };
    // Those that do not end in time are aborted with the set.
    drop(timeout(STOP_GRACE, all_ended).await);
}

/// A connection whose protocol is not known yet.
struct Accepted {
    stream: TcpStream,
    admitted: Admitted,
    name: Arc<str>,
    guests: mpsc::Sender<Guest>,
    common: Arc<Common>,
}

impl Accepted {
    async fn run(self, peer: SocketAddr) {
        let common = self.common.clone();
        match self.converse().await {
            Ok(()) => {}
            Err(Closed::Io(error)) => tracing::debug!(%peer, %error, "a connection failed"),
            Err(why) => common.complaints.about(peer, &why),
        }
    }

    async fn converse(self) -> Result<(), Closed> {
        let Self {
            mut stream,
            admitted,
            name,
            guests,
            common,
        } = self;
        stream.set_nodelay(true)?;
        let speaks_grpc = tokio::select! {
            () = common.shutdown.cancelled() => return Ok(()),
            told = timeout(SILENCE, speaks_grpc(&stream)) => match told {
                Ok(told) => told?,
                Err(_) => return Ok(()),
            },
        };
        if speaks_grpc {
            if !completes_preface(&stream).await? {
                return Err(Closed::Slow);
            }
            // Nobody takes guests only when the broker is stopping.
            drop(guests.send(Guest::new(stream, admitted)).await);
            return Ok(());
        }
        let node = &common.node;
        let (reader, writer) = stream.split();
        let frames = FrameReader::new(
            reader,
            node.config().request_max_bytes,
            common.memory.clone(),
        );
        connection::run(
            frames,
            writer,
            |frame| dispatch::begin(node, &name, frame),
            &common.shutdown,
        )
        .await
    }
}

/// Whether an accept failed because of the one connection it would have been.
fn is_the_peers(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(
        error.kind(),
        ConnectionAborted | ConnectionReset | Interrupted
    )
}
