//! What the cluster looks like to a client: brokers, topics, leaders. A picture is never replaced by an older one,
//! whichever broker it came from.

use std::collections::BTreeMap;

use epoka_proto::ids::{
    BrokerEpoch, BrokerId, LeaderEpoch, PartitionEpoch, TopicId, TopicPartition,
};
use epoka_proto::v1;

use crate::connections::Target;
use crate::error::{Error, Result};

/// The cluster at one metadata offset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// The cluster's id; empty before the first answer.
    pub cluster_id: String,
    /// How much of the metadata log this picture includes.
    pub offset: i64,
    /// The registered brokers.
    pub brokers: BTreeMap<BrokerId, Broker>,
    /// The topics by name.
    pub topics: BTreeMap<String, Topic>,
}

/// A broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broker {
    /// Names this uptime of its process.
    pub epoch: BrokerEpoch,
    /// Where Kafka clients reach it: `host:port` of its first listener.
    pub kafka: String,
    /// Where this SDK reaches it: `host:port`.
    pub grpc: String,
    /// Leads nothing and is in no ISR.
    pub fenced: bool,
    /// Being drained before a clean stop.
    pub shutting_down: bool,
}

/// A topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topic {
    /// Its identity.
    pub id: TopicId,
    /// Its partitions, by number.
    pub partitions: BTreeMap<i32, Partition>,
    /// The configuration values that differ from the defaults.
    pub configs: BTreeMap<String, String>,
}

/// A partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Who leads, if anyone can.
    pub leader: Option<BrokerId>,
    /// Counts leaders.
    pub leader_epoch: LeaderEpoch,
    /// Counts changes of the assignment.
    pub partition_epoch: PartitionEpoch,
    /// The brokers that hold it, the preferred leader first.
    pub replicas: Vec<BrokerId>,
    /// Those known to hold everything committed.
    pub isr: Vec<BrokerId>,
    /// Those that left the ISR below the minimum and still hold everything committed.
    pub elr: Vec<BrokerId>,
    /// How many must be in the ISR for an acks=all write to be taken.
    pub min_isr: usize,
}

impl Partition {
    /// Has a leader and enough replicas in the ISR to take acks=all writes.
    pub fn is_writable(&self) -> bool {
        self.leader.is_some() && self.isr.len() >= self.min_isr
    }

    /// Has a leader, and every replica is in the ISR.
    pub fn is_whole(&self) -> bool {
        self.leader.is_some() && self.isr.len() == self.replicas.len()
    }
}

/// Where to send what concerns a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Leader {
    pub broker: BrokerId,
    pub epoch: LeaderEpoch,
    pub address: String,
}

impl From<&Leader> for Target {
    fn from(leader: &Leader) -> Self {
        Self::broker(leader.broker, leader.address.as_str())
    }
}

impl Metadata {
    /// A partition by name.
    ///
    /// # Errors
    /// [`Error::UnknownTopic`], [`Error::UnknownPartition`].
    pub fn partition(&self, name: &TopicPartition) -> Result<&Partition> {
        let topic = self.topic(&name.topic)?;
        topic
            .partitions
            .get(&name.partition)
            .ok_or_else(|| Error::UnknownPartition {
                partition: name.clone(),
                count: topic.partitions.len(),
            })
    }

    /// A topic by name.
    ///
    /// # Errors
    /// [`Error::UnknownTopic`].
    pub fn topic(&self, name: &str) -> Result<&Topic> {
        self.topics.get(name).ok_or_else(|| Error::UnknownTopic {
            topic: name.to_owned(),
        })
    }

    /// Every partition, by topic name and number.
    pub fn partitions(&self) -> impl Iterator<Item = (TopicPartition, &Partition)> {
        self.topics.iter().flat_map(|(name, topic)| {
            topic
                .partitions
                .iter()
                .map(|(&number, p)| (TopicPartition::new(name.as_str(), number), p))
        })
    }

    /// The leader of a partition and its address, if it has one that is known.
    pub(crate) fn leader(&self, name: &TopicPartition) -> Option<Leader> {
        let partition = self.partition(name).ok()?;
        let broker = partition.leader?;
        Some(Leader {
            broker,
            epoch: partition.leader_epoch,
            address: self.brokers.get(&broker)?.grpc.clone(),
        })
    }
}

impl From<v1::DescribeResponse> for Metadata {
    fn from(answer: v1::DescribeResponse) -> Self {
        Self {
            cluster_id: answer.cluster_id,
            offset: answer.metadata_offset,
            brokers: answer
                .brokers
                .into_iter()
                .map(|b| (BrokerId(b.id), Broker::from(b)))
                .collect(),
            topics: answer
                .topics
                .into_iter()
                .filter_map(|t| Some((t.name.clone(), Topic::read(t)?)))
                .collect(),
        }
    }
}

impl From<v1::BrokerInfo> for Broker {
    fn from(info: v1::BrokerInfo) -> Self {
        let kafka = info.listeners.first();
        Self {
            epoch: BrokerEpoch(info.epoch),
            kafka: kafka.map_or_else(String::new, |l| format!("{}:{}", l.host, l.port)),
            grpc: info.grpc_address,
            fenced: info.fenced,
            shutting_down: info.shutting_down,
        }
    }
}

impl Topic {
    /// `None` when the identity is not 16 bytes, which no broker sends.
    fn read(info: v1::TopicInfo) -> Option<Self> {
        Some(Self {
            id: TopicId::from_bytes(&info.topic_id)?,
            partitions: info
                .partitions
                .into_iter()
                .map(|p| (p.partition, Partition::from(p)))
                .collect(),
            configs: info.configs.into_iter().collect(),
        })
    }
}

impl From<v1::PartitionInfo> for Partition {
    fn from(info: v1::PartitionInfo) -> Self {
        let ids = |list: Vec<i32>| list.into_iter().map(BrokerId).collect();
        Self {
            leader: info.leader.map(BrokerId),
            leader_epoch: LeaderEpoch(info.leader_epoch),
            partition_epoch: PartitionEpoch(info.partition_epoch),
            replicas: ids(info.replicas),
            isr: ids(info.isr),
            elr: ids(info.elr),
            min_isr: usize::try_from(info.min_isr).unwrap_or(0),
        }
    }
}
