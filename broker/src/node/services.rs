//! The gRPC services of a broker: for other nodes at an address of their own, for clients of the SDK and the command line at
//! every listener.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use epoka_proto::destination;
use epoka_proto::v1::events_server::EventsServer;
use epoka_proto::v1::log_server::LogServer;
use epoka_proto::v1::replica_server::ReplicaServer;
use futures::StreamExt as _;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::service::{Interceptor, InterceptorLayer};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

use super::Node;
use super::event_service::EventService;
use super::log_service::LogService;
use crate::kafka::Guest;
use crate::replication::{FRAME_SIZE, MESSAGE_LIMIT, ReplicaService, WINDOW};

/// Calls under way on one connection. A consumer follows every partition with one of its own; beyond the limit it would wait,
/// without a word, for the end of others that never end.
const MAX_STREAMS: u32 = 100_000;
/// How long a peer may be silent before it is asked for a sign of life, and how long that may take.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// Refuses calls that are meant for another node.
fn only_ours(node: &Arc<Node>) -> InterceptorLayer<impl Interceptor + Clone + use<>> {
    let (name, node) = (destination::broker(node.membership.me), node.clone());
    InterceptorLayer::new(destination::checked(name, move || {
        let known = node.image().known_cluster_id().map(str::to_owned);
        known.or_else(|| node.logs.cluster_id())
    }))
}

fn server() -> Server {
    Server::builder()
        .max_frame_size(FRAME_SIZE)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_concurrent_streams(MAX_STREAMS)
        // A peer that vanished without a word leaves nothing behind.
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE))
}

/// Serves the nodes of the cluster until `stop`.
pub(super) fn serve_nodes(
    node: &Arc<Node>,
    listener: TcpListener,
    stop: CancellationToken,
) -> impl Future<Output = ()> + use<> {
    let replica = ReplicaServer::new(ReplicaService::new(node.partitions.clone()))
        .max_decoding_message_size(MESSAGE_LIMIT)
        .max_encoding_message_size(MESSAGE_LIMIT);
    let log = LogServer::new(LogService::new(node.clone(), None))
        .max_decoding_message_size(MESSAGE_LIMIT);
    let server = server()
        .layer(only_ours(node))
        .add_service(replica)
        .add_service(log)
        .add_service(EventsServer::new(EventService::new(node)));
    // Without this an answer waits for the acknowledgement of the one before, up to 40 ms; the server's own setting does not
    // reach connections that it did not accept itself.
    let connections = TcpIncoming::from(listener).with_nodelay(Some(true));
    until(stop, server.serve_with_incoming(connections))
}

/// Serves the clients that came through the listener of this name, until `stop`.
pub(super) fn serve_guests(
    node: &Arc<Node>,
    listener: Arc<str>,
    guests: mpsc::Receiver<Guest>,
    stop: CancellationToken,
) -> impl Future<Output = ()> + use<> {
    let limit = node.config.request_max_bytes;
    let log = LogServer::new(LogService::new(node.clone(), Some(listener)))
        .max_decoding_message_size(limit);
    let server = server()
        .layer(only_ours(node))
        .add_service(log)
        .add_service(EventsServer::new(EventService::new(node)));
    let guests = ReceiverStream::new(guests).map(Ok::<_, io::Error>);
    until(stop, server.serve_with_incoming(guests))
}

/// Long-lived streams do not end by themselves, so the stop is not a graceful one.
async fn until(
    stop: CancellationToken,
    serving: impl Future<Output = Result<(), tonic::transport::Error>>,
) {
    if let Some(Err(error)) = stop.run_until_cancelled(serving).await {
        tracing::error!(%error, "the gRPC services ended");
    }
}
