//! Finding what requests name: topics, partitions, and where a partition's leader is to be found now.

use std::sync::Arc;

use epoka_proto::error::ErrorCode;
use epoka_proto::ids::{BrokerId, LeaderEpoch, PartitionId};
use epoka_proto::metadata::{BrokerRegistration, Endpoint, Image, Topic};
use kafka_protocol::protocol::StrBytes;
use tonic::Status;
use uuid::Uuid;

use crate::node::{Node, unanswered};
use crate::partition::Partition;

/// A topic as a request names it.
#[derive(Clone, Copy)]
pub(super) enum TopicRef<'a> {
    /// In older versions.
    Name(&'a str),
    /// In newer ones.
    Id(Uuid),
}

impl TopicRef<'_> {
    /// The topic, or the error for one that does not exist.
    pub(super) fn find(self, image: &Image) -> Result<&Arc<Topic>, ErrorCode> {
        match self {
            Self::Name(name) => image.topic(name).ok_or(ErrorCode::UnknownTopicOrPartition),
            Self::Id(id) => image
                .topics
                .get(&epoka_proto::ids::TopicId(id))
                .ok_or(ErrorCode::UnknownTopicId),
        }
    }
}

/// The partition of a topic, if this broker holds it.
pub(super) fn partition(
    node: &Node,
    topic: &Topic,
    number: i32,
) -> Result<Arc<Partition>, ErrorCode> {
    if !topic.partitions.contains_key(&number) {
        return Err(ErrorCode::UnknownTopicOrPartition);
    }
    let id = PartitionId {
        topic: topic.id,
        partition: number,
    };
    node.partition(id).ok_or(ErrorCode::NotLeaderOrFollower)
}

/// Where the leader is, told with errors that say "not here" so that clients need not ask again (KIP-951).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LeaderHint {
    /// Its id.
    pub(super) id: BrokerId,
    /// Its epoch.
    pub(super) epoch: LeaderEpoch,
}

/// The hint that belongs with this error, if there is one.
pub(super) fn leader_hint(
    image: &Image,
    topic: TopicRef<'_>,
    number: i32,
    error: ErrorCode,
) -> Option<LeaderHint> {
    if !matches!(
        error,
        ErrorCode::NotLeaderOrFollower | ErrorCode::FencedLeaderEpoch
    ) {
        return None;
    }
    let assignment = topic.find(image).ok()?.partitions.get(&number)?;
    Some(LeaderHint {
        id: assignment.leader?,
        epoch: assignment.leader_epoch,
    })
}

/// Brokers that hints name, each once, with their addresses for clients of this listener.
pub(super) fn hinted<'a>(
    image: &'a Image,
    listener: &str,
    hints: impl Iterator<Item = LeaderHint>,
) -> Vec<(&'a BrokerRegistration, &'a Endpoint)> {
    let mut ids: Vec<BrokerId> = hints.map(|h| h.id).collect();
    ids.sort_unstable();
    ids.dedup();
    ids.iter()
        .filter_map(|id| image.brokers.get(id))
        .filter_map(|broker| Some((&**broker, endpoint(broker, listener)?)))
        .collect()
}

/// Where clients of the listener of this name reach a broker; one without such a listener is out of their reach.
pub(super) fn endpoint<'a>(broker: &'a BrokerRegistration, listener: &str) -> Option<&'a Endpoint> {
    broker.listeners.iter().find(|l| l.name == listener)
}

/// The broker that clients shall send administrative requests to. Any can pass them on; the one with the lowest id that is
/// up is as good as another, and the same wherever one asks.
pub(super) fn admin_broker(image: &Image) -> Option<BrokerId> {
    let mut up = image.brokers.values().filter(|b| !b.fenced);
    up.next().map(|b| b.id)
}

/// A string as the wire carries it, cut where it would not fit into older encodings.
pub(super) fn text(content: &str) -> StrBytes {
    const LONGEST: usize = 4096;
    let mut end = content.len().min(LONGEST);
    while !content.is_char_boundary(end) {
        end -= 1;
    }
    StrBytes::from_string(content[..end].to_owned())
}

/// A message that says something, or none.
pub(super) fn message(content: &str) -> Option<StrBytes> {
    (!content.is_empty()).then(|| text(content))
}

/// What to answer when the controller could not be asked.
pub(super) fn no_controller(status: &Status) -> (ErrorCode, String) {
    (
        unanswered(status),
        format!("the controller did not answer: {}", status.message()),
    )
}
