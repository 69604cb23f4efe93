//! The quorum's own messages, and what anyone may know about it.

use std::sync::Arc;

use epoka_proto::v1::quorum_server::Quorum;
use epoka_proto::v1::{DescribeQuorumResponse, QuorumVoter, RaftMessage};
use tonic::{Request, Response, Status};

use crate::quorum::{decode, encode};
use crate::shared::{Role, Shared};

/// The `Quorum` service.
#[derive(Clone)]
pub(crate) struct QuorumService {
    shared: Arc<Shared>,
}

impl QuorumService {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }
}

fn unreadable(error: serde_json::Error) -> Status {
    Status::invalid_argument(format!("not a message of our quorum: {error}"))
}

#[tonic::async_trait]
impl Quorum for QuorumService {
    async fn append_entries(
        &self,
        request: Request<RaftMessage>,
    ) -> Result<Response<RaftMessage>, Status> {
        let message = decode(&request.get_ref().payload).map_err(unreadable)?;
        let answer = self.shared.quorum.raft.append_entries(message).await;
        Ok(Response::new(encode(&answer)))
    }

    async fn vote(&self, request: Request<RaftMessage>) -> Result<Response<RaftMessage>, Status> {
        let message = decode(&request.get_ref().payload).map_err(unreadable)?;
        let answer = self.shared.quorum.raft.vote(message).await;
        Ok(Response::new(encode(&answer)))
    }

    async fn install_snapshot(
        &self,
        request: Request<RaftMessage>,
    ) -> Result<Response<RaftMessage>, Status> {
        let message = decode(&request.get_ref().payload).map_err(unreadable)?;
        let answer = self.shared.quorum.raft.install_snapshot(message).await;
        Ok(Response::new(encode(&answer)))
    }
}

pub(super) fn describe(shared: &Shared) -> DescribeQuorumResponse {
    let raft = shared.quorum.raft.metrics().borrow().clone();
    let active = match *shared.role.borrow() {
        Role::Active => Some(shared.quorum.id),
        Role::Passive { active } => active,
        Role::Stopping => None,
    };
    let base = shared.metadata.read(|c| c.image().offset_base);
    let end = |index: Option<u64>| index.map(|i| base + i as i64 + 1);
    let log_end = |id: u64| {
        if id == shared.quorum.id {
            return end(raft.last_log_index);
        }
        let matched = raft.replication.as_ref()?.get(&id)?;
        end(matched.map(|m| m.index))
    };
    let voters = shared.quorum.voters.iter();
    DescribeQuorumResponse {
        cluster_id: shared.metadata.read(|c| c.image().cluster_id.clone()),
        controller_id: shared.config.id,
        active_id: active.map(|id| id as i32),
        active_address: active
            .and_then(|id| shared.quorum.voters.get(&id).cloned())
            .unwrap_or_default(),
        term: raft.current_term,
        committed_offset: shared.metadata.applied().unwrap_or(-1),
        voters: voters
            .map(|(&id, address)| QuorumVoter {
                id: id as i32,
                address: address.clone(),
                log_end: log_end(id),
            })
            .collect(),
    }
}
