//! Raft's messages between controllers: openraft's own types as JSON inside one gRPC message. Each peer has its own
//! connection, used for nothing else, so that nothing large can delay a heartbeat of the quorum.

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Duration;

use epoka_proto::destination::{self, Destination};
use epoka_proto::dial::Dial;
use epoka_proto::v1::RaftMessage;
use epoka_proto::v1::quorum_client::QuorumClient;
use openraft::BasicNode;
use openraft::error::{
    InstallSnapshotError, NetworkError, RPCError, RaftError, RemoteError, Unreachable,
};
use openraft::network::{Backoff, RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse,
    VoteRequest, VoteResponse,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};

use super::Types;
use crate::metadata::Metadata;

/// Largest message between controllers: a chunk of a snapshot, or many commands.
pub(crate) const MAX_MESSAGE: usize = 64 << 20;

/// How long connecting may take.
const CONNECT: Duration = Duration::from_millis(500);

/// How soon a peer that could not be reached is asked for its vote again.
const VOTE_RETRY: Duration = Duration::from_millis(10);

/// Connects to the other voters.
pub(super) struct Network {
    addresses: BTreeMap<u64, String>,
    metadata: Metadata,
}

impl Network {
    pub(super) fn new(addresses: BTreeMap<u64, String>, metadata: Metadata) -> Self {
        Self {
            addresses,
            metadata,
        }
    }
}

impl RaftNetworkFactory<Types> for Network {
    type Network = Peer;

    async fn new_client(&mut self, target: u64, node: &BasicNode) -> Peer {
        let address = self.addresses.get(&target).unwrap_or(&node.addr);
        let endpoint = endpoint(address);
        let client = endpoint.as_ref().ok().map(connect);
        Peer {
            target,
            endpoint,
            client,
            metadata: self.metadata.clone(),
        }
    }
}

fn endpoint(address: &str) -> Result<Endpoint, tonic::transport::Error> {
    Ok(Endpoint::from_shared(format!("http://{address}"))?
        .http2_keep_alive_interval(Duration::from_secs(5))
        .keep_alive_timeout(Duration::from_secs(5)))
}

fn connect(endpoint: &Endpoint) -> QuorumClient<Channel> {
    QuorumClient::new(endpoint.connect_with_connector_lazy(Dial::within(CONNECT)))
        .max_decoding_message_size(MAX_MESSAGE)
        .max_encoding_message_size(MAX_MESSAGE)
}

/// One other voter.
pub(super) struct Peer {
    target: u64,
    endpoint: Result<Endpoint, tonic::transport::Error>,
    client: Option<QuorumClient<Channel>>,
    metadata: Metadata,
}

type CallError<E> = RPCError<u64, BasicNode, E>;

impl Peer {
    fn client(&mut self) -> Result<QuorumClient<Channel>, Unreachable> {
        let endpoint = self.endpoint.as_ref().map_err(Unreachable::new)?;
        Ok(self.client.get_or_insert_with(|| connect(endpoint)).clone())
    }

    /// A message for this voter and for nobody else who may be at its address by now: one voter's answer must not count as
    /// another's.
    fn request<T: Serialize>(&self, message: &T, option: &RPCOption) -> Request<RaftMessage> {
        let mut request = Request::new(encode(message));
        request.set_timeout(option.hard_ttl());
        let cluster = self.metadata.cluster_id();
        let node = destination::controller(self.target);
        let destination = Destination {
            node: Some(&node),
            cluster: cluster.as_deref(),
        };
        destination.write(request.metadata_mut());
        request
    }

    /// Makes sense of an answer: what the peer's Raft said, or why nothing was heard of it.
    #[allow(clippy::result_large_err)] // the error is openraft's, as large as it is
    fn answer<A, E>(
        &mut self,
        answer: Result<Response<RaftMessage>, Status>,
    ) -> Result<A, CallError<E>>
    where
        A: DeserializeOwned,
        E: Error + DeserializeOwned,
    {
        // However an exchange fails (refused, reset, late), the next one waits a little: without that pause Raft would ask a
        // dead peer again as fast as its connections break.
        let message = answer.map_err(|status| {
            if destination::is_misrouted(status.metadata()) {
                self.client = None;
            }
            RPCError::Unreachable(Unreachable::new(&status))
        })?;
        let decoded: Result<A, E> =
            decode(&message.get_ref().payload).map_err(|e| NetworkError::new(&e))?;
        decoded.map_err(|e| RPCError::RemoteError(RemoteError::new(self.target, e)))
    }
}

/// A Raft message as it travels.
pub(crate) fn encode<T: Serialize>(message: &T) -> RaftMessage {
    let payload = serde_json::to_vec(message).expect("Raft messages are plain data");
    RaftMessage {
        payload: payload.into(),
    }
}

/// Reads what `encode` wrote.
pub(crate) fn decode<T: DeserializeOwned>(payload: &[u8]) -> Result<T, serde_json::Error> {
    serde_json::from_slice(payload)
}

impl RaftNetwork<Types> for Peer {
    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, CallError<RaftError<u64>>> {
        let request = self.request(&rpc, &option);
        let answer = self.client()?.append_entries(request).await;
        self.answer(answer)
    }

    async fn install_snapshot(
        &mut self,
        rpc: InstallSnapshotRequest<Types>,
        option: RPCOption,
    ) -> Result<InstallSnapshotResponse<u64>, CallError<RaftError<u64, InstallSnapshotError>>> {
        let request = self.request(&rpc, &option);
        let answer = self.client()?.install_snapshot(request).await;
        self.answer(answer)
    }

    /// A peer that cannot be reached may be starting, as all of them are at the quorum's first election: it is tried again
    /// for as long as its vote would still count.
    async fn vote(
        &mut self,
        rpc: VoteRequest<u64>,
        option: RPCOption,
    ) -> Result<VoteResponse<u64>, CallError<RaftError<u64>>> {
        let deadline = Instant::now() + option.soft_ttl();
        loop {
            let request = self.request(&rpc, &option);
            let answer = self.client()?.vote(request).await;
            match self.answer(answer) {
                Err(RPCError::Unreachable(_)) if Instant::now() < deadline => {
                    tokio::time::sleep(VOTE_RETRY).await;
                }
                answer => return answer,
            }
        }
    }

    /// A restarted peer is on this machine or near: try again soon.
    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(Duration::from_millis(100)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use epoka_proto::v1::quorum_server::{Quorum, QuorumServer};
    use futures::StreamExt as _;
    use openraft::Vote;
    use tokio::net::TcpListener;
    use tokio_stream::wrappers::TcpListenerStream;
    use tonic::service::InterceptorLayer;
    use tonic::transport::Server;

    use super::*;

    /// Grants every vote.
    struct Generous;

    #[tonic::async_trait]
    impl Quorum for Generous {
        async fn append_entries(
            &self,
            _: Request<RaftMessage>,
        ) -> Result<Response<RaftMessage>, Status> {
            Err(Status::unimplemented("not asked here"))
        }

        async fn vote(&self, _: Request<RaftMessage>) -> Result<Response<RaftMessage>, Status> {
            let granted = VoteResponse::new(Vote::new(1, 1), None, true);
            Ok(Response::new(encode(&Ok::<_, RaftError<u64>>(granted))))
        }

        async fn install_snapshot(
            &self,
            _: Request<RaftMessage>,
        ) -> Result<Response<RaftMessage>, Status> {
            Err(Status::unimplemented("not asked here"))
        }
    }

    /// Asks controller 2 for its vote at the address where controller `at` is. Also says how many connections that took.
    async fn vote_of_2(at: u64) -> (Result<VoteResponse<u64>, CallError<RaftError<u64>>>, usize) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let accepted = Arc::new(AtomicUsize::new(0));
        let counted = accepted.clone();
        let incoming = TcpListenerStream::new(listener).inspect(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
        });
        let check = destination::checked(destination::controller(at), || None);
        let server = Server::builder()
            .layer(InterceptorLayer::new(check))
            .add_service(QuorumServer::new(Generous));
        let server = tokio::spawn(server.serve_with_incoming(incoming));
        let mut network = Network::new(BTreeMap::from([(2, address)]), Metadata::new());
        let mut peer = network.new_client(2, &BasicNode::default()).await;
        let option = RPCOption::new(Duration::from_millis(200));
        let answer = peer
            .vote(VoteRequest::new(Vote::new(1, 1), None), option)
            .await;
        server.abort();
        (answer, accepted.load(Ordering::Relaxed))
    }

    #[tokio::test]
    async fn a_voter_does_not_answer_for_another_one() {
        let (answer, connections) = vote_of_2(2).await;
        assert!(answer.expect("an answer").vote_granted);
        assert_eq!(connections, 1);
        // The address may be the right voter's by the next time it is connected to.
        let (answer, connections) = vote_of_2(3).await;
        assert!(
            matches!(answer, Err(RPCError::Unreachable(_))),
            "{answer:?}"
        );
        assert!(connections > 1, "{connections}");
    }
}
