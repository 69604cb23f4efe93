//! The node: everything that makes one broker of many partitions. It registers with the controller, keeps its lease, follows
//! the metadata, runs errands of partitions, and stops in order.

mod background;
mod boot;
mod controller;
mod errands;
mod event_service;
mod heartbeat;
mod log_service;
mod logs;
mod metadata;
mod pause;
mod producer_ids;
mod readiness;
mod self_check;
mod services;
mod start;
mod withdraw;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

pub use controller::{ActiveController, ControllerClient, unanswered};
use epoka_proto::error::ErrorCode;
use epoka_proto::events::EventLog;
use epoka_proto::ids::{BrokerId, PartitionId, ProducerId};
use epoka_proto::metadata::{BrokerRegistration, Image};
use parking_lot::Mutex;
pub use start::{Broker, start};
use tokio::sync::Notify;

use crate::config::BrokerConfig;
use crate::membership::Membership;
use crate::partition::{Partition, Surroundings};
use crate::partitions::Partitions;
use crate::replication::Fetchers;
use logs::Logs;
use producer_ids::ProducerIds;

/// One broker.
pub struct Node {
    config: BrokerConfig,
    membership: Arc<Membership>,
    partitions: Arc<Partitions>,
    around: Surroundings,
    logs: Logs,
    fetchers: Fetchers,
    active: Arc<ActiveController>,
    controller: ControllerClient,
    producer_ids: ProducerIds,
    /// Told when a replica fails.
    failures: Notify,
    /// Replicas without any files when this process began.
    absent: Mutex<BTreeSet<PartitionId>>,
}

impl Node {
    /// This broker's id.
    pub fn me(&self) -> BrokerId {
        self.membership.me
    }

    /// Its settings.
    pub fn config(&self) -> &BrokerConfig {
        &self.config
    }

    /// The newest metadata. Cheap; do not hold it for long.
    pub fn image(&self) -> Arc<Image> {
        self.membership.image()
    }

    /// Whether a broker is likely to have died a moment ago; see `Membership::is_suspect`.
    pub fn is_suspect(&self, broker: BrokerId) -> bool {
        self.membership.is_suspect(broker)
    }

    /// Hears from leaders followed here; see `Fetchers::hear`.
    pub async fn hear(&self, leaders: BTreeSet<BrokerId>, patience: Duration) {
        self.fetchers.hear(leaders, patience).await;
    }

    /// The newest metadata, after it has become calm; see `Membership::settled`.
    pub async fn settled(
        &self,
        patience: Duration,
        doubtful: impl Fn(&Image) -> bool,
    ) -> Arc<Image> {
        self.membership.settled(patience, doubtful).await
    }

    /// Whether clients are told of this broker; see `Membership::is_listed`.
    pub fn is_listed(&self, broker: &BrokerRegistration) -> bool {
        self.membership.is_listed(broker)
    }

    /// The metadata offset that all partitions have taken up; `None` before the first.
    pub fn metadata_offset(&self) -> Option<i64> {
        self.membership.applied()
    }

    /// Waits until the metadata at this offset has been taken up here.
    pub async fn applied(&self, offset: i64) {
        let mut applied = self.membership.watch_applied();
        // The sender lives as long as the node.
        drop(applied.wait_for(|a| a.is_some_and(|a| a >= offset)).await);
    }

    /// Follows `metadata_offset`.
    pub fn watch_metadata(&self) -> tokio::sync::watch::Receiver<Option<i64>> {
        self.membership.watch_applied()
    }

    /// A partition by identity, if this broker holds it.
    pub fn partition(&self, id: PartitionId) -> Option<Arc<Partition>> {
        self.partitions.get(id)
    }

    /// A partition by topic name. The error is what a client should be told when this broker does not hold it.
    pub fn partition_by_name(
        &self,
        topic: &str,
        partition: i32,
    ) -> Result<Arc<Partition>, ErrorCode> {
        let image = self.image();
        let topic = image
            .topic(topic)
            .ok_or(ErrorCode::UnknownTopicOrPartition)?;
        if !topic.partitions.contains_key(&partition) {
            return Err(ErrorCode::UnknownTopicOrPartition);
        }
        let id = PartitionId {
            topic: topic.id,
            partition,
        };
        self.partition(id).ok_or(ErrorCode::NotLeaderOrFollower)
    }

    /// The partitions this broker holds.
    pub fn partitions(&self) -> Vec<Arc<Partition>> {
        self.partitions.all()
    }

    /// Calls to the active controller.
    pub fn controller(&self) -> &ControllerClient {
        &self.controller
    }

    /// The node's record of events.
    pub fn events(&self) -> &EventLog {
        &self.around.events
    }

    /// What keeps clients from writing here; see `readiness`.
    pub(crate) fn waiting_for(&self) -> Vec<String> {
        let pending = self.membership.topics_pending();
        let refused = self.membership.refused();
        let mut waiting =
            readiness::waiting_for(self.me(), &self.image(), refused, pending.as_deref());
        let now = self.membership.clock.now();
        let silent = self.partitions.all().into_iter().flat_map(|partition| {
            let silent = partition.silent_members(readiness::SILENT_MS, now);
            silent
                .into_iter()
                .map(move |broker| (partition.name.clone(), broker))
        });
        waiting.extend(readiness::stalled(silent));
        if let Some(silent) = self.misses_controller() {
            waiting.extend(readiness::alone(silent, &self.fetchers.out_of_reach()));
        }
        waiting
    }

    /// For how long no controller has answered a heartbeat, when that is longer than it should be.
    pub(crate) fn misses_controller(&self) -> Option<Duration> {
        let silent = self.membership.controller_silent();
        (silent > heartbeat::patience(self.config.heartbeat_interval)).then_some(silent)
    }

    /// A producer id nobody was given before.
    pub async fn producer_id(&self) -> Result<ProducerId, ErrorCode> {
        self.producer_ids
            .next(&self.controller, &self.membership)
            .await
    }
}
