//! Producer ids, handed out from blocks that the controller allocates.

use std::ops::Range;

use epoka_proto::error::ErrorCode;
use epoka_proto::ids::ProducerId;
use epoka_proto::v1::AllocateProducerIdsRequest;
use tokio::sync::Mutex;

use super::controller::{ControllerClient, unanswered};
use crate::membership::Membership;

/// What is left of the current block. The lock is held while a new block is on its way, so that one is asked for, not many.
#[derive(Default)]
pub struct ProducerIds(Mutex<Range<i64>>);

impl ProducerIds {
    /// The next id.
    pub async fn next(
        &self,
        controller: &ControllerClient,
        membership: &Membership,
    ) -> Result<ProducerId, ErrorCode> {
        let mut block = self.0.lock().await;
        if let Some(id) = block.next() {
            return Ok(ProducerId(id));
        }
        let request = AllocateProducerIdsRequest {
            broker_id: membership.me.0,
            broker_epoch: membership.epoch().0,
        };
        let answer = controller.allocate_producer_ids(request).await;
        let answer = answer.map_err(|status| match unanswered(&status) {
            // Clients retry this one.
            ErrorCode::NotController => ErrorCode::CoordinatorNotAvailable,
            other => other,
        })?;
        ErrorCode::from_wire(answer.error as i16)
            .map_err(|_| ErrorCode::CoordinatorNotAvailable)?;
        *block = answer.first..answer.first + i64::from(answer.count);
        block
            .next()
            .map(ProducerId)
            .ok_or(ErrorCode::CoordinatorNotAvailable)
    }
}
