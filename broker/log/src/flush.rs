//! Durability: what has to be synced, handed out so that it can be done away from the partition's lock, and what closing leaves
//! behind (D-10, D-28). Appending never syncs.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use epoka_proto::ids::{Millis, Offset};

use crate::dir_state::DirState;
use crate::files::{self, Context, Doomed, StorageError};
use crate::partition_log::{LogError, PartitionLog, Shared};
use crate::segment::Segment;
use crate::snapshot;

/// What the log remembers for its next flush.
#[derive(Debug, Default)]
pub(crate) struct FlushState {
    /// A segment was closed since the last flush.
    rolled: bool,
    /// Files were made whose directory entries are not durable.
    new_files: bool,
    /// Nor, perhaps, is the entry of the partition's own directory.
    new_dir: bool,
    /// When the oldest byte that is not durable was appended.
    waiting_since: Option<Millis>,
    /// `flush_is_due` said so, and no work was fetched since.
    announced: bool,
    /// Files to unlink with the next flush.
    pub doomed: Doomed,
}

impl FlushState {
    /// The state of a log just opened; its files may be new.
    pub fn opened() -> Self {
        Self {
            new_files: true,
            new_dir: true,
            ..Self::default()
        }
    }

    pub fn note_append(&mut self, now_ms: Millis) {
        self.waiting_since.get_or_insert(now_ms);
    }

    pub fn note_roll(&mut self) {
        self.rolled = true;
        self.new_files = true;
    }

    pub fn note_new_files(&mut self) {
        self.new_files = true;
    }
}

/// Work for a thread that may block: makes a log durable up to where it ended when this was taken.
#[must_use = "run it, then tell the log with `flushed_to`"]
#[derive(Debug)]
pub struct FlushWork {
    shared: Arc<Shared>,
    state: Arc<DirState>,
    segments: Vec<Arc<Segment>>,
    /// The directories whose entries changed.
    dirs: Vec<PathBuf>,
    point: FlushPoint,
    doomed: Doomed,
}

/// How far a finished flush reaches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlushPoint {
    upto: Offset,
    /// How often the log had been cut: a flush of bytes that were cut since says nothing of those that took their place.
    cuts: u64,
}

impl FlushPoint {
    /// Everything below it was made durable.
    pub fn upto(&self) -> Offset {
        self.upto
    }
}

impl FlushWork {
    /// Syncs the files, and unlinks what retention and truncation renamed away. Blocks. After a failed sync nobody knows what
    /// is on the disk, whatever a later one says: the log refuses to be written to, and cannot be closed cleanly.
    pub fn run(self) -> Result<FlushPoint, StorageError> {
        self.sync().inspect_err(|_| {
            self.shared.failed.store(true, Ordering::Release);
            self.state.fail();
        })?;
        self.doomed.unlink()?;
        Ok(self.point)
    }

    fn sync(&self) -> Result<(), StorageError> {
        for segment in &self.segments {
            ignore_missing(segment.sync())?;
        }
        for dir in &self.dirs {
            // The log may have been deleted, and its directory renamed, in the meantime (H-6E).
            ignore_missing(files::sync_dir(dir))?;
        }
        Ok(())
    }
}

fn ignore_missing(result: Result<(), StorageError>) -> Result<(), StorageError> {
    match result {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}

impl PartitionLog {
    /// Whether to flush now: a segment was closed, files wait to be unlinked, or `flush.messages` or `flush.ms` say so. Says
    /// so once, until the work is fetched.
    pub fn flush_is_due(&mut self, now_ms: Millis) -> bool {
        let unflushed = self.end() - self.recovery_point;
        let many = self
            .config
            .flush_messages
            .is_some_and(|n| unflushed.unsigned_abs() >= n.max(1));
        let long = match (self.config.flush_ms, self.flush.waiting_since) {
            (Some(limit), Some(since)) => now_ms - since >= limit,
            _ => false,
        };
        let due = self.flush.rolled || !self.flush.doomed.paths().is_empty() || many || long;
        due && !std::mem::replace(&mut self.flush.announced, due)
    }

    /// What has to be done to make the log durable up to its end.
    pub fn flush_work(&mut self) -> FlushWork {
        let upto = self.end();
        let segments = self.shared.segments.load();
        let first = segments
            .partition_point(|s| s.base() <= self.recovery_point)
            .saturating_sub(1);
        let dirty = if self.recovery_point < upto {
            &segments[first..]
        } else {
            &[]
        };
        self.flush.announced = false;
        self.flush.rolled = false;
        self.flush.waiting_since = None;
        let dirs = [
            std::mem::take(&mut self.flush.new_files).then(|| self.place.dir.clone()),
            std::mem::take(&mut self.flush.new_dir).then(|| self.place.state.root.clone()),
        ];
        FlushWork {
            shared: self.shared.clone(),
            state: self.place.state.clone(),
            segments: dirty.to_vec(),
            dirs: dirs.into_iter().flatten().collect(),
            point: FlushPoint {
                upto,
                cuts: self.shared.cuts.load(Ordering::Relaxed),
            },
            doomed: std::mem::take(&mut self.flush.doomed),
        }
    }

    /// Notes that a flush is done: the recovery point moves up, unless the log was cut meanwhile. Returns the recovery point.
    pub fn flushed_to(&mut self, point: FlushPoint) -> Offset {
        if point.cuts == self.shared.cuts.load(Ordering::Relaxed) {
            self.recovery_point = self.recovery_point.max(point.upto);
        }
        self.recovery_point
    }

    /// Closes the log for a clean shutdown (D-10): last time-index entry, producer snapshot at the end, everything durable.
    /// Its recovery point and log start are noted in the directory's checkpoints, which `mark_clean_shutdown` writes.
    pub fn close(mut self) -> Result<(), LogError> {
        self.changing(|log| Ok::<_, LogError>(log.settle()?))?;
        self.place
            .state
            .closed(&self.place.partition, self.start(), self.end());
        Ok(())
    }

    fn settle(&mut self) -> Result<(), StorageError> {
        let segment = self.active.segment.clone();
        self.active
            .index_largest()
            .context("append to the index of", segment.path())?;
        if self.config.preallocate {
            segment.trim().context("trim", segment.path())?;
        }
        let dir = self.place.dir.clone();
        let path = snapshot::write_snapshot(&dir, self.end(), &self.producers)?;
        std::fs::File::open(&path)
            .and_then(|f| f.sync_all())
            .context("sync", &path)?;
        self.flush.note_new_files();
        let work = self.flush_work();
        // Empty or flushed already, it may still have a new last time-index entry.
        segment.sync()?;
        let point = work.run()?;
        self.flushed_to(point);
        Ok(())
    }
}
