//! What a data directory and the open logs in it share: the checkpoint files, which partitions are not cleanly closed, and
//! whether writing has failed. A log that is cut must lower its checkpoints before it writes again; that is why it holds this.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use epoka_proto::ids::{Offset, TopicId, TopicPartition};

use crate::checkpoint::OffsetCheckpoint;
use crate::end_note;
use crate::files::StorageError;
use crate::survived::{Survived, SurvivedCell};

/// After an unclean stop, how many bytes below the recovery points are read to look for damage, over all logs of the directory.
/// They were fsynced, so a crash cannot have damaged them; the rest is the scrub's.
const VERIFY_BUDGET: u64 = 256 << 20;

/// The same after a clean stop: what is read in a few hundredths of a second.
const VERIFY_BUDGET_WHEN_CLEAN: u64 = 64 << 20;

/// The shared part of a data directory.
#[derive(Debug)]
pub(crate) struct DirState {
    pub root: PathBuf,
    /// Whether the directory was shut down cleanly before this start.
    pub clean: bool,
    /// What the stop before this start left, if it was not clean.
    pub survived: SurvivedCell,
    recovery_points: Mutex<OffsetCheckpoint>,
    high_watermarks: Mutex<OffsetCheckpoint>,
    log_starts: Mutex<OffsetCheckpoint>,
    /// Partitions whose files are not as a clean shutdown leaves them.
    unclean: Mutex<BTreeSet<TopicPartition>>,
    verify_budget: AtomicU64,
    failed: AtomicBool,
}

/// The value within, also after a thread panicked with it: each is valid at every step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl DirState {
    /// Reads the checkpoints. `partitions` are those found in the directory.
    pub fn load(
        root: PathBuf,
        clean: bool,
        partitions: impl Iterator<Item = TopicPartition>,
    ) -> Self {
        let checkpoint = |name| Mutex::new(OffsetCheckpoint::load(root.join(name)));
        let unclean = if clean {
            BTreeSet::new()
        } else {
            partitions.collect()
        };
        Self {
            recovery_points: checkpoint("recovery-point-offset-checkpoint"),
            high_watermarks: checkpoint("replication-offset-checkpoint"),
            log_starts: checkpoint("log-start-offset-checkpoint"),
            unclean: Mutex::new(unclean),
            verify_budget: AtomicU64::new(match clean {
                true => VERIFY_BUDGET_WHEN_CLEAN,
                false => VERIFY_BUDGET,
            }),
            failed: AtomicBool::new(false),
            root,
            clean,
            survived: SurvivedCell::default(),
        }
    }

    pub fn recovery_point(&self, partition: &TopicPartition) -> Offset {
        lock(&self.recovery_points)
            .get(partition)
            .unwrap_or_default()
    }

    pub fn high_watermark(&self, partition: &TopicPartition) -> Option<Offset> {
        lock(&self.high_watermarks).get(partition)
    }

    /// How far a log had come for certain when the last process ended. Zero: nothing is known.
    pub fn reached(&self, partition: &TopicPartition) -> Result<Offset, StorageError> {
        let durable = self.recovery_point(partition);
        if !self.is_all_there() {
            return Ok(durable);
        }
        let committed = self.high_watermark(partition).unwrap_or_default();
        let written = self.written(partition)?.unwrap_or_default();
        Ok(durable.max(committed).max(written))
    }

    /// Where a log ended when the last process ended, if that is noted.
    pub fn written(&self, partition: &TopicPartition) -> Result<Option<Offset>, StorageError> {
        match self.is_all_there() {
            true => end_note::read(&self.root, partition),
            false => Ok(None),
        }
    }

    /// Whether everything that was written is in the files, though nobody closed them.
    fn is_all_there(&self) -> bool {
        !self.clean && self.survived.get() == Survived::Written
    }

    pub fn log_start(&self, partition: &TopicPartition) -> Offset {
        lock(&self.log_starts).get(partition).unwrap_or_default()
    }

    pub fn write_recovery_points(
        &self,
        entries: &[(TopicPartition, Offset)],
    ) -> Result<(), StorageError> {
        write(&self.recovery_points, entries)
    }

    pub fn write_high_watermarks(
        &self,
        entries: &[(TopicPartition, Offset)],
    ) -> Result<(), StorageError> {
        write(&self.high_watermarks, entries)
    }

    pub fn write_log_starts(
        &self,
        entries: &[(TopicPartition, Offset)],
    ) -> Result<(), StorageError> {
        write(&self.log_starts, entries)
    }

    /// A log was cut: no checkpoint may claim more than there is (F-40).
    pub fn lower(
        &self,
        partition: &TopicPartition,
        start: Offset,
        end: Offset,
    ) -> Result<(), StorageError> {
        for (checkpoint, bound) in [
            (&self.recovery_points, end),
            (&self.high_watermarks, end),
            (&self.log_starts, start),
        ] {
            let mut checkpoint = lock(checkpoint);
            if checkpoint.lower(partition, bound) {
                checkpoint.store()?;
            }
        }
        Ok(())
    }

    /// A log is being opened: from now on its files may be in any state.
    pub fn opening(&self, partition: &TopicPartition) {
        lock(&self.unclean).insert(partition.clone());
    }

    /// A log was closed with everything durable.
    pub fn closed(&self, partition: &TopicPartition, start: Offset, end: Offset) {
        lock(&self.recovery_points).set(partition, end);
        lock(&self.log_starts).set(partition, start);
        lock(&self.unclean).remove(partition);
    }

    /// A partition left the directory.
    pub fn forget(&self, partition: &TopicPartition) -> Result<(), StorageError> {
        end_note::remove(&self.root, partition)?;
        lock(&self.unclean).remove(partition);
        for checkpoint in [
            &self.recovery_points,
            &self.high_watermarks,
            &self.log_starts,
        ] {
            let mut checkpoint = lock(checkpoint);
            checkpoint.forget(partition);
            checkpoint.store()?;
        }
        Ok(())
    }

    /// The first partition that stands in the way of a clean shutdown, if any.
    pub fn first_unclean(&self) -> Option<TopicPartition> {
        lock(&self.unclean).first().cloned()
    }

    /// Takes `bytes` from what may be read to look for damage. `false`: too much.
    pub fn may_verify(&self, bytes: u64) -> bool {
        let take = |left: u64| left.checked_sub(bytes);
        self.verify_budget
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .is_ok()
    }

    /// Writing failed: the directory is not in a known state any more (KAFKA-10778).
    pub fn fail(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }

    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }
}

fn write(
    checkpoint: &Mutex<OffsetCheckpoint>,
    entries: &[(TopicPartition, Offset)],
) -> Result<(), StorageError> {
    let mut checkpoint = lock(checkpoint);
    for (partition, offset) in entries {
        checkpoint.set(partition, *offset);
    }
    checkpoint.store()
}

/// Where one partition's log lives, and whose it is.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub state: std::sync::Arc<DirState>,
    pub partition: TopicPartition,
    pub topic_id: TopicId,
    /// The partition's own directory.
    pub dir: PathBuf,
}
