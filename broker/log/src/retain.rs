//! The other end of a log: raising its start, and starting over at another offset.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use epoka_proto::epochs::EpochHistory;
use epoka_proto::ids::{Millis, Offset};

use crate::append::Active;
use crate::clock;
use crate::files::{self, StorageError};
use crate::partition_log::{LogError, PartitionLog};
use crate::segment::{Segment, segment_path};
use crate::snapshot;

impl PartitionLog {
    /// Moves the log start up to `to`, at most to the log end, and lets go of the segments that lie below it as a whole; they
    /// are unlinked with the next flush (D-51, D-53). A start at or below the present one changes nothing.
    pub fn raise_start(&mut self, to: Offset) -> Result<(), LogError> {
        let to = to.min(self.end());
        if to <= self.start() {
            return Ok(());
        }
        self.changing(|log| Ok(log.raise(to)?))
    }

    fn raise(&mut self, to: Offset) -> Result<(), StorageError> {
        // First the start, then the segments: no reader may be granted what is gone (KAFKA-16073).
        self.publish_start(to);
        let mut epochs = EpochHistory::clone(&self.epochs);
        if epochs.truncate_from_start(to) {
            self.store_epochs(epochs)?;
        }
        let segments = self.shared.segments.load_full();
        // The newest segment stays, even when the log is empty now.
        let gone = segments[1..]
            .iter()
            .take_while(|next| next.base() <= to)
            .count();
        if gone > 0 {
            // Noted first: a log that begins later than it is noted to has lost a segment.
            self.note_start(segments[gone].base())?;
            self.publish_segments(segments[gone..].to_vec());
            for segment in &segments[..gone] {
                segment.doom(&self.place.dir, &mut self.flush.doomed)?;
            }
        }
        Ok(())
    }

    /// Notes that the log begins at `start` or later, durably.
    fn note_start(&self, start: Offset) -> Result<(), StorageError> {
        let noted = self.place.state.log_start(&self.place.partition);
        let entry = (self.place.partition.clone(), start.max(noted));
        self.place.state.write_log_starts(&[entry])
    }

    /// Drops everything and begins again, empty, at `at` (F-20). Epochs and producers are forgotten with it.
    pub fn start_over(&mut self, at: Offset) -> Result<(), LogError> {
        self.changing(|log| Ok(log.restart_at(at, clock::now_ms())?))
    }

    pub(crate) fn restart_at(&mut self, at: Offset, now_ms: Millis) -> Result<(), StorageError> {
        self.shared.cuts.fetch_add(1, Ordering::AcqRel);
        let result = self.restart(at, now_ms);
        self.shared.cuts.fetch_add(1, Ordering::AcqRel);
        result
    }

    fn restart(&mut self, at: Offset, now_ms: Millis) -> Result<(), StorageError> {
        self.place.state.lower(&self.place.partition, at, at)?;
        self.end_note.clear()?;
        self.note_start(at)?;
        self.recovery_point = at;
        let dir = &self.place.dir;
        for segment in self.shared.segments.load().iter().rev() {
            segment.doom(dir, &mut self.flush.doomed)?;
        }
        for offset in snapshot::list_snapshots(dir)? {
            files::remove_if_present(&segment_path(dir, offset, "snapshot"))?;
        }
        let segment = Arc::new(Segment::create(dir, at, &self.config)?);
        self.publish_segments(vec![segment.clone()]);
        self.publish_end(at);
        self.publish_start(at);
        self.active = Active::new(segment, &self.config, now_ms);
        self.producers.clear();
        self.flush.note_new_files();
        self.store_epochs(EpochHistory::default())
    }
}
