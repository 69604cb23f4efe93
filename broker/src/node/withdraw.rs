//! Replicas that failed while the broker goes on: the controller is asked to do without them, so that another replica leads and
//! nobody waits for ours (C-18). What is to be said is seen from the metadata, so nothing is lost with a request.

use std::sync::Arc;
use std::time::Duration;

use epoka_proto::error::ErrorCode;
use epoka_proto::ids::BrokerId;
use epoka_proto::metadata::Assignment;
use epoka_proto::v1::{PartitionRef, WithdrawRequest};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::Node;

/// How often failed replicas are looked for, besides at once when one fails: a metadata change may have given one a role again.
const CHECK: Duration = Duration::from_secs(1);

/// Withdraws failed replicas until `stop`.
pub async fn run(node: Arc<Node>, stop: CancellationToken) {
    let rounds = async {
        loop {
            tokio::select! {
                () = node.failures.notified() => {}
                () = sleep(CHECK) => {}
            }
            let failed = failed(&node);
            if !failed.is_empty() {
                withdraw(&node, failed).await;
            }
        }
    };
    stop.run_until_cancelled(rounds).await;
}

/// The failed replicas that still count for something.
fn failed(node: &Node) -> Vec<PartitionRef> {
    let (image, me) = (node.image(), node.me());
    let failed = node.partitions.all().into_iter().filter(|p| {
        let assignment = image.assignment(p.id);
        assignment.is_some_and(|a| is_replaceable(a, me)) && p.has_failed()
    });
    failed
        .map(|p| PartitionRef {
            topic_id: p.id.topic.to_bytes(),
            partition: p.id.partition,
        })
        .collect()
}

/// Whether this broker counts among those that hold what is committed, and is not the only one: then the controller would leave
/// it in its place.
fn is_replaceable(assignment: &Assignment, me: BrokerId) -> bool {
    let holders = || assignment.isr.iter().chain(&assignment.elr);
    holders().any(|b| *b == me) && holders().any(|b| *b != me)
}

async fn withdraw(node: &Node, partitions: Vec<PartitionRef>) {
    let count = partitions.len();
    let request = WithdrawRequest {
        broker_id: node.me().0,
        broker_epoch: node.membership.epoch().0,
        partitions,
    };
    match node.controller.withdraw(request).await {
        Ok(answer) => match ErrorCode::from_wire(answer.error as i16) {
            Ok(()) => tracing::warn!(count, "withdrew failed replicas"),
            Err(error) => tracing::warn!(count, %error, "cannot withdraw failed replicas yet"),
        },
        Err(status) => tracing::warn!(count, %status, "cannot withdraw failed replicas yet"),
    }
}

#[cfg(test)]
mod tests {
    use epoka_proto::ids::{LeaderEpoch, PartitionEpoch};
    use epoka_proto::metadata::Recovery;

    use super::*;

    #[test]
    fn only_a_replica_that_counts_and_can_be_replaced_is_withdrawn() {
        let ids = |ids: &[i32]| ids.iter().map(|&id| BrokerId(id)).collect::<Vec<_>>();
        for (isr, elr, expected) in [
            (&[1, 2][..], &[][..], true),
            (&[1], &[2], true),
            (&[2], &[1], true),
            (&[1], &[], false),
            (&[2, 3], &[], false),
            (&[], &[1], false),
        ] {
            let assignment = Assignment {
                replicas: ids(&[1, 2, 3]),
                isr: ids(isr),
                elr: ids(elr),
                last_known_elr: vec![],
                adding: vec![],
                removing: vec![],
                leader: None,
                leader_epoch: LeaderEpoch(0),
                partition_epoch: PartitionEpoch(0),
                recovery: Recovery::Recovered,
                min_isr: 1,
            };
            let found = is_replaceable(&assignment, BrokerId(1));
            assert_eq!(found, expected, "ISR {isr:?}, eligible {elr:?}");
        }
    }
}
