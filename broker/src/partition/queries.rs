//! What may be asked of a partition without changing it: bounds, lookups, status.

use epoka_log::LogView;
use epoka_proto::epochs::EpochEnd;
use epoka_proto::error::ErrorCode;
use epoka_proto::ids::{BrokerId, LeaderEpoch, Millis, Offset};
use epoka_proto::v1::ReplicaInfo;

use super::{Offline, Partition};
use crate::replica::FetchPosition;

impl Partition {
    /// Where this follower fetches next; `None` when it does not follow.
    pub fn fetch_position(&self) -> Option<FetchPosition> {
        self.state.lock().replica.fetch_position()
    }

    /// The leader's log start and log end, fenced by its epoch: for followers and for the replica service.
    pub fn bounds(&self, leader_epoch: Option<LeaderEpoch>) -> Result<(Offset, Offset), ErrorCode> {
        let state = self.state.lock();
        state.replica.check_leader(leader_epoch)?;
        let log = state.replica.log();
        Ok((log.start, log.end))
    }

    /// The first offset kept, for a consumer (ListOffsets -2).
    pub fn earliest(
        &self,
        leader_epoch: Option<LeaderEpoch>,
    ) -> Result<(Offset, Option<LeaderEpoch>), ErrorCode> {
        let state = self.state.lock();
        state.replica.check_leader(leader_epoch)?;
        let log = state.replica.log();
        Ok((log.start, log.epochs.epoch_at(log.start)))
    }

    /// The end of what a consumer may read (ListOffsets -1), with the leader's epoch. OFFSET_NOT_AVAILABLE while a new
    /// leader does not know it yet (L-54).
    pub fn latest(
        &self,
        leader_epoch: Option<LeaderEpoch>,
    ) -> Result<(Offset, LeaderEpoch), ErrorCode> {
        let state = self.state.lock();
        let epoch = state.replica.check_leader(leader_epoch)?;
        Ok((state.replica.latest_for_consumer()?, epoch))
    }

    /// The first record at or after a timestamp, below what a consumer may read: offset, its timestamp, its leader epoch.
    pub fn find_timestamp(
        &self,
        leader_epoch: Option<LeaderEpoch>,
        timestamp: Millis,
    ) -> Result<Option<(Offset, Millis, Option<LeaderEpoch>)>, ErrorCode> {
        self.search(leader_epoch, |view, bound| {
            view.find_timestamp(timestamp, bound)
        })
    }

    /// The record with the largest timestamp below what a consumer may read (ListOffsets -3).
    pub fn max_timestamp(
        &self,
        leader_epoch: Option<LeaderEpoch>,
    ) -> Result<Option<(Offset, Millis, Option<LeaderEpoch>)>, ErrorCode> {
        self.search(leader_epoch, LogView::max_timestamp)
    }

    fn search<E: std::fmt::Display>(
        &self,
        leader_epoch: Option<LeaderEpoch>,
        look: impl FnOnce(&LogView, Offset) -> Result<Option<(Offset, Millis)>, E>,
    ) -> Result<Option<(Offset, Millis, Option<LeaderEpoch>)>, ErrorCode> {
        let (view, bound, epochs) = {
            let state = self.state.lock();
            state.replica.check_leader(leader_epoch)?;
            let bound = state.replica.latest_for_consumer()?;
            let log = state.log.as_ref().ok_or(ErrorCode::KafkaStorageError)?;
            (log.view(), bound, log.epochs())
        };
        let found = look(&view, bound).map_err(|error| {
            tracing::error!(partition = %self.name, %error, "timestamp lookup failed");
            ErrorCode::KafkaStorageError
        })?;
        Ok(found.map(|(offset, timestamp)| (offset, timestamp, epochs.epoch_at(offset))))
    }

    /// Where a leader epoch ends here (L-55); `Ok(None)`: unknown.
    pub fn end_offset_for(
        &self,
        leader_epoch: Option<LeaderEpoch>,
        epoch: LeaderEpoch,
    ) -> Result<Option<EpochEnd>, ErrorCode> {
        let state = self.state.lock();
        state.replica.check_leader(leader_epoch)?;
        Ok(state.replica.end_offset_for(epoch))
    }

    /// The high watermark.
    pub fn high_watermark(&self) -> Offset {
        self.state.lock().replica.high_watermark()
    }

    /// What `status` shows of this replica.
    pub fn describe(&self) -> ReplicaInfo {
        let state = self.state.lock();
        let log = state.replica.log();
        ReplicaInfo {
            topic: self.name.topic.to_string(),
            topic_id: self.id.topic.to_bytes(),
            partition: self.name.partition,
            leading: state.replica.leading().is_some(),
            leader_epoch: LeaderEpoch::to_wire(state.replica.leader_epoch()),
            log_start: log.start.0,
            log_end: log.end.0,
            high_watermark: state.replica.high_watermark().0,
            offline: state
                .offline
                .as_ref()
                .map(|o| o.reason.clone())
                .unwrap_or_default(),
        }
    }

    /// See `Replica::silent_members`.
    pub fn silent_members(&self, patience: Millis, now: Millis) -> Vec<BrokerId> {
        self.state.lock().replica.silent_members(patience, now)
    }

    /// Why the replica does not serve, if it does not.
    pub fn offline(&self) -> Option<Offline> {
        self.state.lock().offline.clone()
    }

    /// Whether the replica does not serve.
    pub fn has_failed(&self) -> bool {
        self.state.lock().offline.is_some()
    }
}
