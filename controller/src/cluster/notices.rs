//! What changes mean to a person who watches the cluster: the raw material of the timeline. Derived from the change itself,
//! never consulted by any decision.

use epoka_proto::ids::{BrokerEpoch, BrokerId, LeaderEpoch, TopicPartition};
use epoka_proto::metadata::{Assignment, BrokerRegistration};
use serde::{Deserialize, Serialize};

/// Something worth a line in the timeline.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Notice {
    /// A new life of a broker is known.
    Registered {
        /// Who.
        broker: BrokerId,
        /// The new epoch.
        epoch: BrokerEpoch,
    },
    /// A broker lost the right to lead and to be in ISRs.
    Fenced {
        /// Who.
        broker: BrokerId,
    },
    /// A broker may lead and be in ISRs.
    Unfenced {
        /// Who.
        broker: BrokerId,
    },
    /// A broker is being drained.
    ShuttingDown {
        /// Who.
        broker: BrokerId,
    },
    /// A partition has a new leader, or the same in a new epoch.
    Elected {
        /// The partition.
        partition: TopicPartition,
        /// Leader before.
        old_leader: Option<BrokerId>,
        /// Leader now.
        new_leader: Option<BrokerId>,
        /// Leader epoch before.
        old_epoch: LeaderEpoch,
        /// Leader epoch now.
        new_epoch: LeaderEpoch,
        /// Whether committed records may be missing from the new leader's log.
        unclean: bool,
    },
    /// A partition's ISR changed.
    IsrChanged {
        /// The partition.
        partition: TopicPartition,
        /// Members before.
        old: Vec<BrokerId>,
        /// Members now.
        new: Vec<BrokerId>,
        /// How many acks=all writes need.
        min_isr: usize,
    },
}

/// Notices of a partition that changed.
pub(super) fn of_partition(
    partition: &TopicPartition,
    old: &Assignment,
    new: &Assignment,
    unclean: bool,
) -> impl Iterator<Item = Notice> + use<> {
    let elected = (old.leader_epoch != new.leader_epoch).then(|| Notice::Elected {
        partition: partition.clone(),
        old_leader: old.leader,
        new_leader: new.leader,
        old_epoch: old.leader_epoch,
        new_epoch: new.leader_epoch,
        unclean,
    });
    let isr = (old.isr != new.isr).then(|| Notice::IsrChanged {
        partition: partition.clone(),
        old: old.isr.clone(),
        new: new.isr.clone(),
        min_isr: new.min_isr,
    });
    elected.into_iter().chain(isr)
}

/// Notices of a broker whose registration changed.
pub(super) fn of_broker(
    old: Option<&BrokerRegistration>,
    new: &BrokerRegistration,
) -> impl Iterator<Item = Notice> + use<> {
    let broker = new.id;
    let was_unfenced = old.is_some_and(|o| !o.fenced);
    let was_shutting_down = old.is_some_and(|o| o.shutting_down);
    let fenced = (was_unfenced && new.fenced).then_some(Notice::Fenced { broker });
    let registered = (old.map(|o| o.epoch) != Some(new.epoch)).then_some(Notice::Registered {
        broker,
        epoch: new.epoch,
    });
    let unfenced = (!was_unfenced && !new.fenced).then_some(Notice::Unfenced { broker });
    let draining =
        (!was_shutting_down && new.shutting_down).then_some(Notice::ShuttingDown { broker });
    let all = [fenced, registered, unfenced, draining];
    all.into_iter().flatten()
}
