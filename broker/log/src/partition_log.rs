//! The log of one partition: a row of segments, the leader-epoch history, the producers' state. Synchronous, with one writer,
//! and without roles: it appends what it is given, cuts where it is told. This file holds the value and its plain questions;
//! `append`, `truncate`, `retain`, `flush` hold what changes it, `recover` what makes it, `view` what reads it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use epoka_proto::batch::BatchHeader;
use epoka_proto::epochs::EpochHistory;
use epoka_proto::ids::{LeaderEpoch, Millis, Offset, TopicPartition};

use crate::append::Active;
use crate::config::LogConfig;
use crate::dir_state::Place;
use crate::end_note::EndNote;
use crate::epoch_file;
use crate::files::StorageError;
use crate::flush::FlushState;
use crate::producers::{ProducerStates, ProducerVerdict};
use crate::segment::Segment;
use crate::view::LogView;

/// What the writer shares with readers.
#[derive(Debug)]
pub(crate) struct Shared {
    pub partition: TopicPartition,
    /// By base offset, ascending; never empty. The last one is being appended to.
    pub segments: ArcSwap<Vec<Arc<Segment>>>,
    /// Odd while the log is being cut; another number after it was. A reader that sees it change read nothing it may use.
    pub cuts: AtomicU64,
    pub start: AtomicI64,
    pub end: AtomicI64,
    /// A write or a sync failed: what the files hold is not known any more, and nothing may be written behind it.
    pub failed: AtomicBool,
}

impl Shared {
    pub fn start(&self) -> Offset {
        Offset(self.start.load(Ordering::Acquire))
    }

    pub fn end(&self) -> Offset {
        Offset(self.end.load(Ordering::Acquire))
    }
}

/// Why an operation on a log failed.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// A file operation failed. The log refuses to be written to from now on (KAFKA-10778).
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// One failed before.
    #[error("an earlier write failed")]
    Failed,
}

/// The log of one partition. One writer; readers use [`Self::view`].
#[derive(Debug)]
pub struct PartitionLog {
    pub(crate) place: Place,
    pub(crate) config: LogConfig,
    pub(crate) shared: Arc<Shared>,
    pub(crate) active: Active,
    pub(crate) epochs: Arc<EpochHistory>,
    pub(crate) producers: ProducerStates,
    pub(crate) recovery_point: Offset,
    pub(crate) flush: FlushState,
    pub(crate) end_note: EndNote,
}

impl PartitionLog {
    /// Whose log it is.
    pub fn partition(&self) -> &TopicPartition {
        &self.place.partition
    }

    /// The first offset kept.
    pub fn start(&self) -> Offset {
        self.shared.start()
    }

    /// The next offset to be written.
    pub fn end(&self) -> Offset {
        self.shared.end()
    }

    /// Everything below it is durable.
    pub fn recovery_point(&self) -> Offset {
        self.recovery_point
    }

    /// Which leader epoch began where.
    pub fn epochs(&self) -> Arc<EpochHistory> {
        self.epochs.clone()
    }

    /// What is known of idempotent producers.
    pub fn producers(&self) -> &ProducerStates {
        &self.producers
    }

    /// The settings in use.
    pub fn config(&self) -> &LogConfig {
        &self.config
    }

    /// Takes other settings into use, from the next append on.
    pub fn set_config(&mut self, config: LogConfig) {
        self.config = config;
    }

    /// Bytes of all segments.
    pub fn size(&self) -> u64 {
        self.shared.segments.load().iter().map(|s| s.size()).sum()
    }

    /// A handle for readers: cheap to clone, never blocks the writer or is blocked by it, always sees the newest end.
    pub fn view(&self) -> LogView {
        LogView::new(self.shared.clone())
    }

    /// What a leader must do with a client's batch, by its producer's sequence (P-1).
    pub fn check_producer(&self, header: &BatchHeader) -> ProducerVerdict {
        self.producers.check(header)
    }

    /// Forgets producers that were silent for too long (P-4). Says how many.
    pub fn expire_producers(&mut self, now_ms: Millis) -> usize {
        self.producers
            .expire(now_ms, self.config.producer_id_expiration_ms)
    }

    /// Notes durably that `epoch` begins at `start`, even before any record (E-1, L-3).
    pub fn start_epoch(&mut self, epoch: LeaderEpoch, start: Offset) -> Result<(), LogError> {
        self.changing(|log| Ok(log.assign_epoch(epoch, start)?))
    }

    pub(crate) fn assign_epoch(
        &mut self,
        epoch: LeaderEpoch,
        start: Offset,
    ) -> Result<(), StorageError> {
        if self
            .epochs
            .entries()
            .last()
            .is_some_and(|l| l.epoch == epoch && l.start <= start)
        {
            return Ok(());
        }
        let mut epochs = EpochHistory::clone(&self.epochs);
        if epochs.assign(epoch, start) {
            self.store_epochs(epochs)?;
        }
        Ok(())
    }

    pub(crate) fn store_epochs(&mut self, epochs: EpochHistory) -> Result<(), StorageError> {
        epoch_file::write_epochs(&self.place.dir, &epochs)?;
        self.epochs = Arc::new(epochs);
        Ok(())
    }

    /// Runs a change. After one that failed half-way nothing may be written any more: the next append could hide a torn one
    /// (L-10, KAFKA-10778).
    pub(crate) fn changing<T, E: From<LogError> + IsStorage>(
        &mut self,
        change: impl FnOnce(&mut Self) -> Result<T, E>,
    ) -> Result<T, E> {
        if self.shared.failed.load(Ordering::Acquire) {
            return Err(LogError::Failed.into());
        }
        let result = change(self);
        if result.as_ref().is_err_and(IsStorage::is_storage) {
            self.shared.failed.store(true, Ordering::Release);
            self.place.state.fail();
        }
        result
    }

    pub(crate) fn publish_segments(&self, segments: Vec<Arc<Segment>>) {
        self.shared.segments.store(Arc::new(segments));
    }

    pub(crate) fn publish_end(&self, end: Offset) {
        // A note that says too little does no harm.
        drop(self.end_note.set(end));
        self.shared.end.store(end.0, Ordering::Release);
    }

    pub(crate) fn publish_start(&self, start: Offset) {
        self.shared.start.store(start.0, Ordering::Release);
    }
}

/// Whether an error came from the disk, as opposed to a refusal that changed nothing.
pub(crate) trait IsStorage {
    fn is_storage(&self) -> bool;
}

impl IsStorage for LogError {
    fn is_storage(&self) -> bool {
        matches!(self, Self::Storage(_))
    }
}
