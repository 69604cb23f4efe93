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
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::node::Node;
use admission::Admission;
use budget::Budget;
use complaints::Complaints;
use connection::Closed;
use frame::FrameReader;

/// Pause after a failed accept: the process is out of file descriptors, and other connections must end first.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long connections get to answer what they have once the broker stops; they themselves drain for less.
const STOP_GRACE: Duration = Duration::from_secs(1);

/// Serves Kafka clients until `shutdown`: no new connections then, and the open ones end once they have answered what they
/// can. Dropping the future ends all of them at once.
pub async fn serve(listener: TcpListener, node: Arc<Node>, shutdown: CancellationToken) {
    let complaints = Arc::new(Complaints::default());
    let config = node.config();
    let admission = Admission::new(config.max_connections, config.max_connections_per_ip);
    let memory = Arc::new(Budget::new(
        config.queued_max_request_bytes,
        config.request_max_bytes,
    ));
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = shutdown.cancelled() => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    let admitted = match admission.admit(peer.ip()) {
                        Ok(admitted) => admitted,
                        Err(why) => {
                            complaints.about(peer, &why);
                            continue;
                        }
                    };
                    let (node, shutdown, complaints) = (node.clone(), shutdown.clone(), complaints.clone());
                    let memory = memory.clone();
                    connections.spawn(async move {
                        let _admitted = admitted;
                        match converse(stream, &node, memory, &shutdown).await {
                            Ok(()) => {}
                            Err(Closed::Io(error)) => tracing::debug!(%peer, %error, "a connection failed"),
                            Err(why) => complaints.about(peer, &why),
                        }
                    });
                }
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

/// Whether an accept failed because of the one connection it would have been.
fn is_the_peers(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(
        error.kind(),
        ConnectionAborted | ConnectionReset | Interrupted
    )
}

async fn converse(
    mut stream: TcpStream,
    node: &Arc<Node>,
    memory: Arc<Budget>,
    shutdown: &CancellationToken,
) -> Result<(), Closed> {
    stream.set_nodelay(true)?;
    let (reader, writer) = stream.split();
    let frames = FrameReader::new(reader, node.config().request_max_bytes, memory);
    connection::run(
        frames,
        writer,
        |frame| dispatch::begin(node, frame),
        shutdown,
    )
    .await
}
