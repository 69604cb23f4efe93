//! Raft's messages between controllers: openraft's own types as JSON inside one gRPC message. Each peer has its own
//! connection, used for nothing else, so that nothing large can delay a heartbeat of the quorum.

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Duration;

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

/// Largest message between controllers: a chunk of a snapshot, or many commands.
pub(crate) const MAX_MESSAGE: usize = 64 << 20;

/// How soon a peer that could not be reached is asked for its vote again.
const VOTE_RETRY: Duration = Duration::from_millis(10);

/// Connects to the other voters.
pub(super) struct Network {
    addresses: BTreeMap<u64, String>,
}

impl Network {
    pub(super) fn new(addresses: BTreeMap<u64, String>) -> Self {
        Self { addresses }
    }
}

impl RaftNetworkFactory<Types> for Network {
    type Network = Peer;

    async fn new_client(&mut self, target: u64, node: &BasicNode) -> Peer {
        let address = self.addresses.get(&target).unwrap_or(&node.addr);
        let client = endpoint(address).map(|e| {
            QuorumClient::new(e.connect_lazy())
                .max_decoding_message_size(MAX_MESSAGE)
                .max_encoding_message_size(MAX_MESSAGE)
        });
        Peer { target, client }
    }
}

fn endpoint(address: &str) -> Result<Endpoint, tonic::transport::Error> {
    Ok(Endpoint::from_shared(format!("http://{address}"))?
        .tcp_nodelay(true)
        .connect_timeout(Duration::from_millis(500))
        .http2_keep_alive_interval(Duration::from_secs(5))
        .keep_alive_timeout(Duration::from_secs(5)))
}

/// One other voter.
pub(super) struct Peer {
    target: u64,
    client: Result<QuorumClient<Channel>, tonic::transport::Error>,
}

type CallError<E> = RPCError<u64, BasicNode, E>;

impl Peer {
    fn client(&self) -> Result<QuorumClient<Channel>, Unreachable> {
        let client = self.client.as_ref();
        client.cloned().map_err(Unreachable::new)
    }

    /// Makes sense of an answer: what the peer's Raft said, or why nothing was heard of it.
    #[allow(clippy::result_large_err)] // the error is openraft's, as large as it is
    fn answer<A, E>(&self, answer: Result<Response<RaftMessage>, Status>) -> Result<A, CallError<E>>
    where
        A: DeserializeOwned,
        E: Error + DeserializeOwned,
    {
        // However an exchange fails (refused, reset, late), the next one waits a little: without that pause Raft would ask a
        // dead peer again as fast as its connections break.
        let message = answer.map_err(|status| RPCError::Unreachable(Unreachable::new(&status)))?;
        let decoded: Result<A, E> =
            decode(&message.get_ref().payload).map_err(|e| NetworkError::new(&e))?;
        decoded.map_err(|e| RPCError::RemoteError(RemoteError::new(self.target, e)))
    }
}

fn request<T: Serialize>(message: &T, option: &RPCOption) -> Request<RaftMessage> {
    let mut request = Request::new(encode(message));
    request.set_timeout(option.hard_ttl());
    request
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
        let answer = self.client()?.append_entries(request(&rpc, &option)).await;
        self.answer(answer)
    }

    async fn install_snapshot(
        &mut self,
        rpc: InstallSnapshotRequest<Types>,
        option: RPCOption,
    ) -> Result<InstallSnapshotResponse<u64>, CallError<RaftError<u64, InstallSnapshotError>>> {
        let answer = self
            .client()?
            .install_snapshot(request(&rpc, &option))
            .await;
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
            let answer = self.client()?.vote(request(&rpc, &option)).await;
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
