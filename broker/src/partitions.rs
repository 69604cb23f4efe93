//! The partitions this broker holds, by identity.

use std::collections::BTreeMap;
use std::sync::Arc;

use epoka_proto::error::ErrorCode;
use epoka_proto::ids::{PartitionId, TopicId};
use parking_lot::RwLock;

use crate::partition::Partition;

/// A registry of partitions; lookups share a lock held only for a map access.
#[derive(Default)]
pub struct Partitions(RwLock<BTreeMap<PartitionId, Arc<Partition>>>);

impl Partitions {
    /// A partition, if this broker holds it.
    pub fn get(&self, id: PartitionId) -> Option<Arc<Partition>> {
        self.0.read().get(&id).cloned()
    }

    /// A partition by what a gRPC message says of it.
    pub fn find(&self, topic_id: &[u8], partition: i32) -> Result<Arc<Partition>, ErrorCode> {
        let topic = TopicId::from_bytes(topic_id).ok_or(ErrorCode::InvalidRequest)?;
        self.get(PartitionId { topic, partition })
            .ok_or(ErrorCode::UnknownTopicOrPartition)
    }

    /// All partitions, in order of identity.
    pub fn all(&self) -> Vec<Arc<Partition>> {
        self.0.read().values().cloned().collect()
    }

    pub(crate) fn insert(&self, partition: Arc<Partition>) {
        self.0.write().insert(partition.id, partition);
    }

    pub(crate) fn remove(&self, id: PartitionId) -> Option<Arc<Partition>> {
        self.0.write().remove(&id)
    }
}
