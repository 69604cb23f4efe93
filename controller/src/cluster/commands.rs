//! Commands and replies: everything that may be asked of the cluster, as plain data. A command carries all its inputs,
//! random ids included, and is stored as JSON in the quorum's log. Nothing here decides anything.

use std::collections::BTreeMap;
use std::ops::Range;

use epoka_proto::error::ErrorCode;
use epoka_proto::ids::{
    BrokerEpoch, BrokerId, Incarnation, LeaderEpoch, PartitionEpoch, PartitionId, TopicId,
    TopicPartition,
};
use epoka_proto::metadata::{Assignment, Endpoint};
use serde::{Deserialize, Serialize};

/// Something asked of the cluster.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub enum Command {
    /// The first command: gives the cluster its id and its first cluster-wide configuration. Does nothing to a cluster that
    /// has an id.
    Initialize {
        /// The id.
        cluster_id: String,
        /// Cluster-wide configuration values.
        configs: BTreeMap<String, String>,
    },
    /// The metadata of a cluster that lost it, as its brokers' data has it. Refused where there is any metadata.
    Restore(Restoration),
    /// A broker process introduces itself (C-10). That the old session is dead is for the sender to know.
    Register(Registration),
    /// A broker is taken to be dead: out of every ISR and leadership (C-18). An epoch that is not current does nothing.
    Fence {
        /// Who.
        broker: BrokerId,
        /// Which life of it.
        epoch: BrokerEpoch,
    },
    /// A broker may lead and be in ISRs again.
    Unfence {
        /// Who.
        broker: BrokerId,
        /// Which life of it.
        epoch: BrokerEpoch,
    },
    /// A broker wants to stop: moves its leaderships away and takes it out of every ISR.
    BeginShutdown {
        /// Who.
        broker: BrokerId,
        /// Which life of it.
        epoch: BrokerEpoch,
    },
    /// A broker is gone for good.
    Unregister {
        /// Who.
        broker: BrokerId,
    },
    /// A leader proposes ISRs (C-40, C-41).
    AlterPartition {
        /// The leader.
        broker: BrokerId,
        /// Which life of it.
        epoch: BrokerEpoch,
        /// One proposal a partition.
        partitions: Vec<IsrProposal>,
    },
    /// A broker's replicas of some partitions have failed: out of their ISRs, and no longer electable (C-18). Those of partitions
    /// that changed meanwhile are left as they are, and the answer is INVALID_UPDATE_VERSION.
    Withdraw {
        /// Whose replicas.
        broker: BrokerId,
        /// Which life of it.
        epoch: BrokerEpoch,
        /// Which partitions.
        partitions: Vec<Withdrawal>,
    },
    /// New topics.
    CreateTopics {
        /// Which; each succeeds or fails by itself.
        topics: Vec<NewTopic>,
    },
    /// Topics to delete.
    DeleteTopics {
        /// Which; each succeeds or fails by itself.
        topics: Vec<TopicRef>,
    },
    /// Topics to get more partitions.
    CreatePartitions {
        /// Which; each succeeds or fails by itself.
        topics: Vec<NewPartitions>,
    },
    /// Configuration values to set or to return to their defaults.
    AlterConfigs {
        /// Which; the changes of one topic succeed or fail together.
        changes: Vec<ConfigChange>,
    },
    /// An operator asks for elections (C-32, C-35).
    ElectLeaders {
        /// Of which kind.
        kind: ElectionKind,
        /// Where; `None`: wherever one is needed.
        partitions: Option<Vec<TopicPartition>>,
    },
    /// Moves leaderships back to preferred leaders that can take them (the periodic part of C-32).
    BalanceLeaders {
        /// A bound on the partitions changed at once.
        at_most: usize,
    },
    /// Tries again to elect leaders of leaderless partitions (the periodic part of C-35).
    RetryElections,
    /// A broker needs a block of producer ids.
    AllocateProducerIds {
        /// Who.
        broker: BrokerId,
        /// Which life of it.
        epoch: BrokerEpoch,
    },
}

/// Metadata rebuilt from what brokers hold.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Restoration {
    /// The cluster that the data belongs to.
    pub cluster_id: String,
    /// Cluster-wide configuration values, as for a new cluster.
    pub configs: BTreeMap<String, String>,
    /// The topics found.
    pub topics: Vec<RestoredTopic>,
    /// Added to positions in the quorum's log, it gives metadata offsets that were never used before.
    pub offset_base: i64,
    /// The first producer id that nobody can have been given before.
    pub next_producer_id: i64,
}

/// A topic that brokers hold.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RestoredTopic {
    /// Its name.
    pub name: String,
    /// Its identity.
    pub id: TopicId,
    /// Its partitions, from number 0 on.
    pub partitions: Vec<RestoredPartition>,
}

/// A partition that brokers hold, or should.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RestoredPartition {
    /// The brokers that hold it, or where nobody does, that are to.
    pub replicas: Vec<BrokerId>,
    /// Those that hold everything committed; none where that is not certain.
    pub eligible: Vec<BrokerId>,
    /// Above every epoch that any leader had.
    pub leader_epoch: LeaderEpoch,
}

/// A broker's introduction.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Registration {
    /// Its id.
    pub broker: BrokerId,
    /// The cluster it believes to belong to; `None`: it is new.
    pub cluster_id: Option<String>,
    /// The process.
    pub incarnation: Incarnation,
    /// Where Kafka clients reach it.
    pub listeners: Vec<Endpoint>,
    /// Where other nodes reach its gRPC services.
    pub grpc_address: String,
    /// Ids of its log directories.
    pub log_dirs: Vec<TopicId>,
    /// The epoch under which its data was last served, when nothing acknowledged can have been lost since (C-13).
    pub previous_epoch: Option<BrokerEpoch>,
    /// Its rack, if told.
    pub rack: Option<String>,
}

/// The ISR a leader proposes for one partition.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct IsrProposal {
    /// The partition.
    pub partition: PartitionId,
    /// The leader's epoch.
    pub leader_epoch: LeaderEpoch,
    /// The partition epoch the proposal was computed on.
    pub partition_epoch: PartitionEpoch,
    /// The proposed members, with the broker epochs the leader saw them fetch under.
    pub isr: Vec<(BrokerId, Option<BrokerEpoch>)>,
    /// The leader has not settled its unclean election yet (C-37).
    pub recovering: bool,
}

/// A replica that its broker cannot serve.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Withdrawal {
    /// The partition.
    pub partition: PartitionId,
    /// The partition epoch at which the broker looked: a request that comes late must not take out a replica that has been
    /// made whole since.
    pub partition_epoch: PartitionEpoch,
    /// What is wrong with it.
    pub fault: Fault,
}

/// What is wrong with a replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// It cannot serve.
    Offline,
    /// It can serve, but what it held is gone.
    Lost,
}

/// A topic to be created.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NewTopic {
    /// Its name.
    pub name: String,
    /// Its identity, drawn at random by the sender.
    pub id: TopicId,
    /// How many partitions; `None`: the cluster's default.
    pub partitions: Option<i32>,
    /// How many replicas each; `None`: the cluster's default.
    pub replication_factor: Option<i32>,
    /// Partition numbers and their replicas, instead of the two counts.
    pub assignments: Vec<(i32, Vec<BrokerId>)>,
    /// Configuration overrides.
    pub configs: BTreeMap<String, String>,
}

/// A topic by name or by identity.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TopicRef {
    /// By name.
    Name(String),
    /// By identity.
    Id(TopicId),
}

/// More partitions of a topic.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NewPartitions {
    /// The topic.
    pub topic: String,
    /// The new total.
    pub count: i32,
    /// Replicas of the added partitions, in order; empty: placed by the controller.
    pub assignments: Vec<Vec<BrokerId>>,
}

/// One configuration value.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ConfigChange {
    /// The topic; `None` is the cluster-wide default.
    pub topic: Option<String>,
    /// Kafka's key.
    pub key: String,
    /// `None`: back to the default.
    pub value: Option<String>,
}

/// What an operator's election aims at.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ElectionKind {
    /// The first replica, if it can lead without loss.
    Preferred,
    /// Any live replica for a partition without leader, at the price of what it lacks.
    Unclean,
}

/// Why something was refused.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("{error}: {message}")]
pub struct Refusal {
    /// What a Kafka client is told.
    pub error: ErrorCode,
    /// A sentence for a person.
    pub message: String,
}

impl Refusal {
    /// A refusal with a reason.
    pub fn new(error: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            error,
            message: message.into(),
        }
    }
}

/// The answer to a command. Each command has one kind of answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// To a command whose effect is all there is to know.
    Done(Result<(), ErrorCode>),
    /// To `Register`: the broker epoch.
    Registered(Result<BrokerEpoch, Refusal>),
    /// To `AlterPartition`: per partition, in the order asked, its state now.
    Isr(Result<Vec<Result<Assignment, ErrorCode>>, ErrorCode>),
    /// To the topic and configuration commands, in the order asked.
    Topics(Vec<TopicReply>),
    /// To `ElectLeaders`. Asked for all partitions: those where an election was needed.
    Elections(Vec<ElectionReply>),
    /// To `AllocateProducerIds`: the block.
    ProducerIds(Result<Range<i64>, ErrorCode>),
}

/// What became of one topic.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TopicReply {
    /// Its name, as far as known.
    pub name: String,
    /// Its identity, as far as known.
    pub id: Option<TopicId>,
    /// Whether it was done.
    pub result: Result<(), Refusal>,
    /// Its partitions now.
    pub partitions: i32,
    /// The replicas of its first partition.
    pub replication_factor: i32,
}

/// What became of one election.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ElectionReply {
    /// The partition.
    pub partition: TopicPartition,
    /// Whether a leader was elected.
    pub result: Result<(), Refusal>,
}
