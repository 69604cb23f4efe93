//! Cutting the end off a log, in place and at a batch boundary (F-40, F-41). What is cut is kept aside.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use epoka_proto::epochs::EpochHistory;
use epoka_proto::ids::{LeaderEpoch, Offset};

use crate::append::Active;
use crate::archive::{Archive, CutReason};
use crate::clock;
use crate::files::{self, Context, StorageError};
use crate::partition_log::{LogError, PartitionLog};
use crate::segment::{Segment, segment_path};
use crate::snapshot;

/// What a cut did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Truncation {
    /// The log end before.
    pub from: Offset,
    /// The log end now: the end of the last batch kept.
    pub to: Offset,
    /// How many batches went.
    pub batches: usize,
    /// The leader epochs that had appended them, ascending.
    pub epochs: Vec<LeaderEpoch>,
    /// Where they are kept. `None`: nothing was cut, or it could not be kept.
    pub archived: Option<PathBuf>,
}

impl Truncation {
    pub(crate) fn nothing(at: Offset) -> Self {
        Self {
            from: at,
            to: at,
            batches: 0,
            epochs: Vec::new(),
            archived: None,
        }
    }
}

/// Where to cut: within which segment, at which byte.
struct Cut {
    segment: usize,
    position: u64,
}

impl PartitionLog {
    /// Cuts every batch that reaches to `to` or beyond. The log then ends with the last batch kept, which is below `to` when `to`
    /// lies within a batch: no hole is left that would never be fetched (F-41). Epochs that begin at or after `to` are
    /// forgotten even when there is nothing to cut (F-11).
    pub fn truncate_to(&mut self, to: Offset) -> Result<Truncation, LogError> {
        self.changing(|log| Ok(log.truncate(to)?))
    }

    fn truncate(&mut self, to: Offset) -> Result<Truncation, StorageError> {
        let from = self.end();
        if to >= from {
            self.forget_epochs_from(to)?;
            return Ok(Truncation::nothing(from));
        }
        let segments = self.shared.segments.load_full();
        let first = segments[0].base();
        let (cut, mut done) = self.find_cut(&segments, to)?;
        // Below the first segment nothing stays, and the log begins anew where it was told to.
        done.to = if to < first { to } else { done.to };
        let start = self.start().min(done.to);

        // From here to the end readers are told to come back later.
        self.shared.cuts.fetch_add(1, Ordering::AcqRel);
        let result = self.cut(&segments, &cut, &mut done, start);
        self.shared.cuts.fetch_add(1, Ordering::AcqRel);
        result.map(|()| done)
    }

    /// Finds the first batch that reaches to `to`, and counts what lies from there on.
    fn find_cut(
        &self,
        segments: &[Arc<Segment>],
        to: Offset,
    ) -> Result<(Cut, Truncation), StorageError> {
        let index = segments
            .partition_point(|s| s.base() <= to)
            .saturating_sub(1);
        let mut cut = None;
        let mut done = Truncation::nothing(self.end());
        done.to = segments[index].base();
        for (number, segment) in segments.iter().enumerate().skip(index) {
            let mut scanner = match number == index {
                true => segment.scan_before(to)?,
                false => segment.scan(0),
            };
            while let Some(batch) = scanner.batch().context("read", segment.path())? {
                let header = &batch.header;
                if header.last_offset() < to {
                    done.to = header.next_offset();
                    continue;
                }
                cut.get_or_insert_with(|| {
                    done.to = header.base_offset;
                    Cut {
                        segment: number,
                        position: batch.position,
                    }
                });
                done.batches += 1;
                if header.epoch() > done.epochs.last().copied() {
                    done.epochs.extend(header.epoch());
                }
            }
        }
        let nothing_read = Cut {
            segment: index,
            position: segments[index].size(),
        };
        Ok((cut.unwrap_or(nothing_read), done))
    }

    fn cut(
        &mut self,
        segments: &[Arc<Segment>],
        cut: &Cut,
        done: &mut Truncation,
        start: Offset,
    ) -> Result<(), StorageError> {
        // No checkpoint may claim what is about to go: written first, it can only claim too little.
        self.place
            .state
            .lower(&self.place.partition, start, done.to)?;
        self.end_note.set(done.to)?;
        self.recovery_point = self.recovery_point.min(done.to);
        done.archived = self.archive(segments, cut, done).unwrap_or_else(|error| {
            tracing::warn!(partition = %self.place.partition, %error, "the cut suffix cannot be kept");
            None
        });
        // Newest first, so that a crash in between leaves a log without a hole.
        for segment in segments[cut.segment + 1..].iter().rev() {
            segment.doom(&self.place.dir, &mut self.flush.doomed)?;
        }
        files::sync_dir(&self.place.dir)?;
        let last = self.cut_segment(&segments[cut.segment], cut.position, done.to)?;
        let mut kept = segments[..cut.segment].to_vec();
        kept.push(last.clone());
        self.publish_segments(kept);
        self.publish_end(done.to);
        self.publish_start(start);
        let (active, end) = Active::resume(last, &self.config, clock::now_ms())?;
        assert_eq!(end, done.to, "the log ends where it was cut");
        self.active = active;
        self.flush.note_new_files();
        self.forget_epochs_from(done.to)?;
        self.reload_producers()
    }

    /// Copies what is about to be cut to `truncated/`.
    fn archive(
        &self,
        segments: &[Arc<Segment>],
        cut: &Cut,
        done: &Truncation,
    ) -> Result<Option<PathBuf>, StorageError> {
        let place = &self.place;
        let mut archive = Archive::begin(&place.state.root, &place.partition, done.from, done.to)?;
        for (number, segment) in segments.iter().enumerate().skip(cut.segment) {
            let (position, base) = match number == cut.segment {
                true => (cut.position, segment.base().max(done.to)),
                false => (0, segment.base()),
            };
            if position < segment.size() {
                archive.copy_tail(segment.path(), position, segment.size(), base)?;
            }
        }
        archive
            .finish(&place.partition, place.topic_id, CutReason::Diverged, done)
            .map(Some)
    }

    /// Shortens one segment. Its indexes become new files: readers may hold maps of the old ones.
    fn cut_segment(
        &mut self,
        segment: &Segment,
        position: u64,
        end: Offset,
    ) -> Result<Arc<Segment>, StorageError> {
        let dir = &self.place.dir;
        if end < segment.base() {
            segment.doom(dir, &mut self.flush.doomed)?;
            return Segment::create(dir, end, &self.config).map(Arc::new);
        }
        let path = segment.path();
        let offsets = segment
            .offsets
            .entries_before(position)
            .context("read the index of", path)?;
        let times = segment
            .times
            .entries_before(end)
            .context("read the index of", path)?;
        // Durable before the epoch file forgets what is cut: else a power loss could bring the bytes back without their epoch.
        segment
            .file()
            .set_len(position)
            .and_then(|()| segment.file().sync_all())
            .context("truncate", path)?;
        let cut = Segment::reindexed(
            dir,
            segment.base(),
            position,
            &offsets,
            &times,
            &self.config,
        )?;
        Ok(Arc::new(cut))
    }

    fn forget_epochs_from(&mut self, end: Offset) -> Result<(), StorageError> {
        let mut epochs = EpochHistory::clone(&self.epochs);
        if epochs.truncate_from_end(end) {
            self.store_epochs(epochs)?;
        }
        Ok(())
    }

    /// Brings the producers' state to what the log holds now: from the newest snapshot still valid, and the batches after it
    /// (P-6).
    fn reload_producers(&mut self) -> Result<(), StorageError> {
        let dir = &self.place.dir;
        let end = self.end();
        for offset in snapshot::list_snapshots(dir)?
            .into_iter()
            .filter(|o| *o > end)
        {
            files::remove_if_present(&segment_path(dir, offset, "snapshot"))?;
        }
        self.producers = crate::replay::producers(dir, &self.shared.segments.load(), end)?.0;
        Ok(())
    }
}
