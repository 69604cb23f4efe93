//! Replicas that cannot be served while the broker is well: the controller is asked to do without them, so that another replica
//! leads and nobody waits for ours (C-18). What is to be said is seen from the metadata, so nothing is lost with a request. What
//! a life begins with is said before the controller lets the broker in, so that no such replica is elected.

use std::sync::Arc;
use std::time::Duration;

use epoka_proto::error::ErrorCode;
use epoka_proto::ids::{BrokerEpoch, BrokerId, PartitionId, TopicPartition};
use epoka_proto::metadata::{Assignment, Image};
use epoka_proto::v1::event::Kind;
use epoka_proto::v1::{Note, WithdrawRequest, Withdrawal};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::Node;

/// How often failed replicas are looked for, besides at once when one fails: a metadata change may have given one a role again.
const CHECK: Duration = Duration::from_secs(1);

/// Partitions that are named in a sentence; more are counted.
const NAMED: usize = 5;

/// Withdraws failed replicas until `stop`.
pub async fn run(node: Arc<Node>, stop: CancellationToken) {
    let mut applied = node.membership.watch_applied();
    let rounds = async {
        loop {
            applied.mark_unchanged();
            let settled = match current_life(&node) {
                Some(epoch) => settle(&node, epoch).await,
                None => false,
            };
            tokio::select! {
                () = node.failures.notified() => {}
                () = sleep(CHECK) => {}
                Ok(()) = applied.changed(), if !settled => {}
            }
        }
    };
    stop.run_until_cancelled(rounds).await;
}

/// The broker epoch, once the metadata that was current at its registration has been taken up.
fn current_life(node: &Node) -> Option<BrokerEpoch> {
    let epoch = node.membership.registered()?;
    let applied = node.membership.applied()?;
    (applied >= epoch.0).then_some(epoch)
}

/// Tells the controller of all that it does not know yet. False: to be tried again.
async fn settle(node: &Node, epoch: BrokerEpoch) -> bool {
    let begins = node.membership.vetted() != Some(epoch);
    let mut withdrawals = failed(node);
    if begins {
        withdrawals.extend(lost(node));
    }
    if !withdrawals.is_empty() && !withdraw(node, epoch, withdrawals).await {
        return false;
    }
    if begins {
        tell_of_absent(node);
        // What is fetched from now on is not lost.
        node.absent.lock().clear();
        node.membership.set_vetted(epoch);
    }
    true
}

/// The failed replicas that the controller does not know of.
fn failed(node: &Node) -> Vec<Withdrawal> {
    let (image, me) = (node.image(), node.me());
    let failed = node.partitions.all().into_iter().filter_map(|p| {
        let assignment = image.assignment(p.id)?;
        let news = is_news(assignment, me) && p.has_failed();
        news.then(|| withdrawal(p.id, assignment, false))
    });
    failed.collect()
}

/// Whether the controller takes this broker's replica for one that can serve.
fn is_news(assignment: &Assignment, me: BrokerId) -> bool {
    assignment.replicas.contains(&me) && !assignment.offline.contains(&me)
}

/// The replicas that are expected to hold records, and had no files when this process began.
fn lost(node: &Node) -> Vec<Withdrawal> {
    let (image, me) = (node.image(), node.me());
    let absent = node.absent.lock();
    let lost = absent.iter().filter_map(|&id| {
        let assignment = image.assignment(id)?;
        counts(assignment, me).then(|| withdrawal(id, assignment, true))
    });
    lost.collect()
}

/// Says that replicas had no files when this process began: usually a directory that was lost, or replaced by an empty one.
fn tell_of_absent(node: &Node) {
    let (image, me) = (node.image(), node.me());
    let absent = node.absent.lock();
    let absent: Vec<_> = absent.iter().copied().collect();
    let Some(text) = of_absent(me, &image, &absent) else {
        return;
    };
    tracing::warn!("{text}");
    node.events().push(Kind::Note(Note { text }));
}

/// What is to be said of replicas without files, if there are any.
fn of_absent(me: BrokerId, image: &Image, absent: &[PartitionId]) -> Option<String> {
    let known = absent.iter().filter_map(|&id| {
        let name = &image.topics.get(&id.topic)?.name;
        let assignment = image.assignment(id)?;
        Some((TopicPartition::new(&**name, id.partition), assignment))
    });
    // Nobody else can stand in: it is waited for.
    let (waiting, copied): (Vec<_>, Vec<_>) =
        known.partition(|(_, a)| a.leader.is_none() && counts(a, me));
    let named = |partitions: &[(TopicPartition, &Arc<Assignment>)]| {
        let names = partitions
            .iter()
            .take(NAMED)
            .map(|(name, _)| name.to_string());
        let names = names.collect::<Vec<_>>().join(", ");
        match partitions.len().saturating_sub(NAMED) {
            0 => names,
            more => format!("{names} and {more} more"),
        }
    };
    let mut told = Vec::new();
    if !copied.is_empty() {
        told.push(format!(
            "has no files of {}: its directory is new or was lost; they are copied from their leaders",
            named(&copied)
        ));
    }
    if !waiting.is_empty() {
        told.push(format!(
            "has no files of {}, and nobody else holds all that was acknowledged there: stop this broker, put its directory \
             back and start it, or accept the loss with an unclean election (kafka-leader-election.sh --election-type unclean)",
            named(&waiting)
        ));
    }
    (!told.is_empty()).then(|| told.join("; "))
}

/// Whether this broker's replica might be elected for what it holds.
fn counts(assignment: &Assignment, me: BrokerId) -> bool {
    assignment.elr.contains(&me) || assignment.last_known_elr.contains(&me)
}

fn withdrawal(id: PartitionId, assignment: &Assignment, lost: bool) -> Withdrawal {
    Withdrawal {
        topic_id: id.topic.to_bytes(),
        partition: id.partition,
        partition_epoch: assignment.partition_epoch.0,
        lost,
    }
}

async fn withdraw(node: &Node, epoch: BrokerEpoch, partitions: Vec<Withdrawal>) -> bool {
    let count = partitions.len();
    let request = WithdrawRequest {
        broker_id: node.me().0,
        broker_epoch: epoch.0,
        partitions,
    };
    match node.controller.withdraw(request).await {
        Ok(answer) => match ErrorCode::from_wire(answer.error as i16) {
            Ok(()) => {
                tracing::warn!(count, "withdrew replicas that cannot be served");
                return true;
            }
            Err(error) => tracing::warn!(count, %error, "cannot withdraw failed replicas yet"),
        },
        Err(status) => tracing::warn!(count, %status, "cannot withdraw failed replicas yet"),
    }
    false
}

#[cfg(test)]
mod tests {
    use epoka_proto::ids::{LeaderEpoch, PartitionEpoch, TopicId};
    use epoka_proto::metadata::{Recovery, Topic};

    use super::*;

    fn assignment(isr: &[i32], elr: &[i32], last: &[i32], offline: &[i32]) -> Assignment {
        let ids = |ids: &[i32]| ids.iter().map(|&id| BrokerId(id)).collect::<Vec<_>>();
        Assignment {
            replicas: ids(&[1, 2, 3]),
            isr: ids(isr),
            elr: ids(elr),
            last_known_elr: ids(last),
            offline: ids(offline),
            adding: vec![],
            removing: vec![],
            leader: None,
            leader_epoch: LeaderEpoch(0),
            partition_epoch: PartitionEpoch(0),
            recovery: Recovery::Recovered,
            min_isr: 1,
        }
    }

    #[test]
    fn a_failed_replica_is_news_until_the_controller_knows() {
        for (offline, who, expected) in [
            (&[][..], 1, true),
            (&[2], 1, true),
            (&[1, 2], 1, false),
            (&[], 4, false),
        ] {
            let found = is_news(&assignment(&[2], &[], &[], offline), BrokerId(who));
            assert_eq!(found, expected, "broker {who}, offline {offline:?}");
        }
    }

    #[test]
    fn what_has_no_files_is_told_with_what_comes_of_it() {
        let led = Assignment {
            leader: Some(BrokerId(2)),
            ..assignment(&[2], &[], &[], &[])
        };
        let topic = Topic {
            id: TopicId::random(),
            name: "orders".into(),
            partitions: (0..)
                .zip([led.clone(), assignment(&[], &[1], &[], &[]), led])
                .map(|(n, a)| (n, Arc::new(a)))
                .collect(),
        };
        let ids: Vec<_> = [0, 1, 2]
            .map(|partition| PartitionId {
                topic: topic.id,
                partition,
            })
            .into();
        let image = Image {
            topics: [(topic.id, Arc::new(topic))].into(),
            ..Image::default()
        };
        assert_eq!(of_absent(BrokerId(1), &image, &[]), None);
        let told = of_absent(BrokerId(1), &image, &ids).expect("something to tell");
        assert!(
            told.starts_with("has no files of orders-0, orders-2: "),
            "{told}"
        );
        assert!(
            told.contains("has no files of orders-1, and nobody else"),
            "{told}"
        );
    }

    #[test]
    fn a_replica_without_files_matters_where_it_might_be_elected_for_them() {
        for (elr, last, expected) in [
            (&[][..], &[][..], false),
            (&[2], &[2], false),
            (&[1, 2], &[2], true),
            (&[], &[1], true),
        ] {
            let found = counts(&assignment(&[], elr, last, &[]), BrokerId(1));
            assert_eq!(found, expected, "eligible {elr:?}, last leader {last:?}");
        }
    }
}
