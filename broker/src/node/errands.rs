//! Runs what partitions ask of the node: ISR proposals to the controller, following leaders, making logs durable.

use std::sync::Arc;
use std::time::Duration;

use epoka_proto::error::ErrorCode;
use epoka_proto::ids::{BrokerEpoch, BrokerId, LeaderEpoch, PartitionEpoch, PartitionId};
use epoka_proto::v1::{AlterPartitionItem, AlterPartitionRequest, AlterPartitionResult, IsrMember};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::Node;
use crate::partition::{Errand, Partition};
use crate::replica::{Event, IsrAnswer};

/// Pause before a proposal whose outcome is unknown is made again.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// Runs errands until every partition is gone.
pub async fn run(node: Arc<Node>, mut errands: mpsc::UnboundedReceiver<(PartitionId, Errand)>) {
    while let Some(first) = errands.recv().await {
        let mut proposals = Vec::new();
        let mut next = Some(first);
        // What is waiting goes together: many partitions often propose at once.
        while let Some((id, errand)) = next {
            match errand {
                Errand::AskIsr {
                    leader_epoch,
                    partition_epoch,
                    isr,
                    recovering,
                } => proposals.push(Proposal {
                    id,
                    leader_epoch,
                    partition_epoch,
                    isr,
                    recovering,
                }),
                other => run_one(&node, id, other),
            }
            next = errands.try_recv().ok();
        }
        if !proposals.is_empty() {
            tokio::spawn(propose(node.clone(), proposals));
        }
    }
}

fn run_one(node: &Arc<Node>, id: PartitionId, errand: Errand) {
    let partition = node.partitions.get(id);
    match errand {
        Errand::Follow { leader } => {
            if let Some(partition) = partition {
                node.fetchers.follow(partition, leader);
            }
        }
        Errand::Unfollow => node.fetchers.unfollow(id),
        Errand::AskBounds {
            leader,
            leader_epoch,
        } => {
            if let Some(partition) = partition {
                node.fetchers.ask_bounds(partition, leader, leader_epoch);
            }
        }
        Errand::Flush => {
            if let Some(partition) = partition {
                tokio::task::spawn_blocking(move || partition.flush());
            }
        }
        Errand::Withdraw => {
            node.failures.notify_one();
            // What was not written may have been acknowledged.
            let unwritten = |p: &Arc<Partition>| p.offline().is_some_and(|o| !o.unreadable);
            if partition.is_some_and(|p| unwritten(&p)) {
                let node = node.clone();
                tokio::task::spawn_blocking(move || node.logs.forget_epoch());
            }
        }
        Errand::AskIsr { .. } => unreachable!("proposals are collected by the caller"),
    }
}

struct Proposal {
    id: PartitionId,
    leader_epoch: LeaderEpoch,
    partition_epoch: PartitionEpoch,
    isr: Vec<(BrokerId, Option<BrokerEpoch>)>,
    recovering: bool,
}

async fn propose(node: Arc<Node>, proposals: Vec<Proposal>) {
    let request = AlterPartitionRequest {
        broker_id: node.membership.me.0,
        broker_epoch: node.membership.epoch().0,
        partitions: proposals.iter().map(item).collect(),
    };
    let answer = node.controller.alter_partition(request).await;
    let results = match &answer {
        Ok(answer) if answer.error == 0 && answer.partitions.len() == proposals.len() => {
            Some(&answer.partitions)
        }
        Ok(answer) => {
            let error = ErrorCode::from_wire(answer.error as i16).err();
            tracing::debug!(?error, "ISR proposals were not taken up");
            None
        }
        Err(status) => {
            tracing::debug!(%status, "ISR proposals got no answer");
            None
        }
    };
    if results.is_none() {
        sleep(RETRY_PAUSE).await;
    }
    for (index, proposal) in proposals.iter().enumerate() {
        let answer = results.map_or(IsrAnswer::Unknown, |r| read(&r[index]));
        if let Some(partition) = node.partitions.get(proposal.id) {
            tell(&partition, proposal, answer, &node);
        }
    }
}

fn tell(partition: &Partition, proposal: &Proposal, answer: IsrAnswer, node: &Node) {
    partition.handle(Event::Isr {
        leader_epoch: proposal.leader_epoch,
        partition_epoch: proposal.partition_epoch,
        answer,
        now: node.membership.clock.now(),
    });
}

fn item(proposal: &Proposal) -> AlterPartitionItem {
    let member = |(id, epoch): &(BrokerId, Option<BrokerEpoch>)| IsrMember {
        broker_id: id.0,
        broker_epoch: BrokerEpoch::to_wire(*epoch),
    };
    AlterPartitionItem {
        topic_id: proposal.id.topic.to_bytes(),
        partition: proposal.id.partition,
        leader_epoch: proposal.leader_epoch.0,
        partition_epoch: proposal.partition_epoch.0,
        new_isr: proposal.isr.iter().map(member).collect(),
        recovering: proposal.recovering,
    }
}

fn read(result: &AlterPartitionResult) -> IsrAnswer {
    match ErrorCode::from_wire(result.error as i16) {
        Err(error) => IsrAnswer::Refused(error),
        Ok(()) => IsrAnswer::Committed {
            leader_epoch: LeaderEpoch(result.leader_epoch),
            partition_epoch: PartitionEpoch(result.partition_epoch),
            isr: result.isr.iter().copied().map(BrokerId).collect(),
        },
    }
}
