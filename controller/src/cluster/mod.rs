//! The cluster's decisions: a pure value with one `apply`. Commands go in, metadata records and a reply come out; the same
//! commands at the same offsets give the same records on every controller. No clock, no randomness, no I/O, and nothing here
//! knows that commands are replicated. Rules C-1 to C-41 of the replication protocol.

mod alter_partition;
mod brokers;
mod change;
mod commands;
mod configs;
mod elections;
mod invariants;
mod names;
mod notices;
mod placement;
mod producer_ids;
mod restore;
mod topics;
mod work;

use epoka_proto::metadata::{Image, Record};
use serde::{Deserialize, Serialize};

pub use commands::{
    Command, ConfigChange, ElectionKind, ElectionReply, Fault, IsrProposal, NewPartitions,
    NewTopic, Refusal, Registration, Reply, Restoration, RestoredPartition, RestoredTopic,
    TopicRef, TopicReply, Withdrawal,
};
pub use invariants::broken_invariants;
pub use names::check as check_topic_name;
pub use notices::Notice;
pub use restore::{Holding, Offer, Offers, Reach, is_vacant};

use work::Work;

/// The state of the cluster as of some metadata offset, and all that may change it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Cluster {
    image: Image,
}

/// What a command did.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// The changes, in order; one atomic batch. Empty: nothing changed.
    pub records: Vec<Record>,
    /// The answer to whoever sent the command.
    pub reply: Reply,
    /// What the records mean to a person who watches.
    pub notices: Vec<Notice>,
}

impl Cluster {
    /// The cluster that an image describes: from a snapshot.
    pub fn new(image: Image) -> Self {
        Self { image }
    }

    /// What every broker comes to know.
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// Carries out a command that stands at `offset` of the metadata log. A registration's broker epoch is that offset, so
    /// offsets must never repeat. The records are in the image when this returns.
    pub fn apply(&mut self, offset: i64, command: &Command) -> Outcome {
        let mut work = Work::new(&mut self.image, offset);
        let reply = match command {
            Command::Initialize {
                cluster_id,
                configs,
            } => work.initialize(cluster_id, configs),
            Command::Restore(restoration) => Reply::Done(work.restore(restoration)),
            Command::Register(registration) => Reply::Registered(work.register(registration)),
            Command::Fence { broker, epoch } => Reply::Done(work.fence(*broker, *epoch)),
            Command::Unfence { broker, epoch } => Reply::Done(work.unfence(*broker, *epoch)),
            Command::BeginShutdown { broker, epoch } => {
                Reply::Done(work.begin_shutdown(*broker, *epoch))
            }
            Command::Unregister { broker } => Reply::Done(work.unregister(*broker)),
            Command::AlterPartition {
                broker,
                epoch,
                partitions,
            } => Reply::Isr(work.alter_partitions(*broker, *epoch, partitions)),
            Command::Withdraw {
                broker,
                epoch,
                partitions,
            } => Reply::Done(work.withdraw(*broker, *epoch, partitions)),
            Command::CreateTopics { topics } => Reply::Topics(work.create_topics(topics)),
            Command::DeleteTopics { topics } => Reply::Topics(work.delete_topics(topics)),
            Command::CreatePartitions { topics } => Reply::Topics(work.create_partitions(topics)),
            Command::AlterConfigs { changes } => Reply::Topics(work.alter_configs(changes)),
            Command::ElectLeaders { kind, partitions } => {
                Reply::Elections(work.elect_leaders(*kind, partitions.as_deref()))
            }
            Command::BalanceLeaders { at_most } => {
                work.balance_leaders(*at_most);
                Reply::Done(Ok(()))
            }
            Command::RetryElections => {
                work.retry_elections();
                Reply::Done(Ok(()))
            }
            Command::AllocateProducerIds { broker, epoch } => {
                Reply::ProducerIds(work.allocate_producer_ids(*broker, *epoch))
            }
        };
        work.finish(reply)
    }
}

#[cfg(test)]
mod tests;
