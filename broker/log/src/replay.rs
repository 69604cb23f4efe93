//! Rebuilding what is derived from batches: the producers' state from a snapshot and the batches after it, the leader-epoch
//! history from batch headers.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use epoka_proto::epochs::EpochHistory;
use epoka_proto::ids::Offset;

use crate::files::{self, Context, StorageError};
use crate::producers::ProducerStates;
use crate::scan::Scanned;
use crate::segment::Segment;
use crate::snapshot::{self, SnapshotError};

/// After every offset.
const END: Offset = Offset(i64::MAX);

/// How far back, in bytes, batches are looked for that a snapshot does not hold.
const LOOK_BACK: u64 = 16 << 20;

/// Calls `visit` for every batch that begins in this range.
pub(crate) fn for_each_batch(
    segments: &[Arc<Segment>],
    range: Range<Offset>,
    mut visit: impl FnMut(&Scanned),
) -> Result<(), StorageError> {
    let first = segments
        .partition_point(|s| s.base() <= range.start)
        .saturating_sub(1);
    for segment in &segments[first..] {
        if segment.base() >= range.end {
            break;
        }
        let mut scanner = segment.scan_before(range.start)?;
        while let Some(batch) = scanner.batch().context("read", segment.path())? {
            if batch.header.base_offset >= range.end {
                break;
            }
            if batch.header.base_offset >= range.start {
                visit(&batch);
            }
        }
    }
    Ok(())
}

/// The producers' state at `end`: the newest readable snapshot at or below it, then the batches from there. Damaged snapshots
/// are deleted (D-30). Also says which snapshot it began with.
pub(crate) fn producers(
    dir: &Path,
    segments: &[Arc<Segment>],
    end: Offset,
) -> Result<(ProducerStates, Option<Offset>), StorageError> {
    let mut states = ProducerStates::default();
    let mut from = None;
    let offsets = snapshot::list_snapshots(dir)?;
    for offset in offsets.into_iter().rev().filter(|o| *o <= end) {
        let path = snapshot::snapshot_path(dir, offset);
        match snapshot::read_snapshot(&path) {
            Ok(read) => {
                states = read;
                from = Some(offset);
                break;
            }
            Err(SnapshotError::Storage(error)) => return Err(error),
            Err(SnapshotError::Damaged(what)) => {
                tracing::warn!(path = %path.display(), what, "damaged producer snapshot, deleted");
                files::remove_if_present(&path)?;
            }
        }
    }
    if let Some(snapshot) = from {
        look_back(segments, snapshot, &mut states);
    }
    for_each_batch(segments, from.unwrap_or_default()..END, |batch| {
        states.note(&batch.header)
    })?;
    Ok((states, from))
}

/// A snapshot holds the newest batch of each producer, but a producer may ask for any of the five it had under way. The others
/// are in the log right before the snapshot; where that cannot be read, they stay forgotten.
fn look_back(segments: &[Arc<Segment>], snapshot: Offset, states: &mut ProducerStates) {
    if states.is_empty() {
        return;
    }
    let mut earlier = ProducerStates::default();
    let range = back_from(segments, snapshot)..snapshot;
    match for_each_batch(segments, range, |batch| earlier.note(&batch.header)) {
        Ok(()) => states.recall(&earlier),
        Err(error) => tracing::debug!(%error, "no batches before a producer snapshot"),
    }
}

/// An offset about `LOOK_BACK` bytes before `at`.
fn back_from(segments: &[Arc<Segment>], at: Offset) -> Offset {
    let mut left = LOOK_BACK;
    for segment in segments.iter().rev().filter(|s| s.base() < at) {
        let end = segment.floor(at).map_or(0, |e| e.position.into());
        if end > left {
            return segment.offset_at(end - left);
        }
        left -= end;
    }
    segments.first().map_or(Offset::ZERO, |s| s.base())
}

/// The leader epochs that batch headers tell of. An epoch without a batch is not among them (E-6).
pub(crate) fn epochs(segments: &[Arc<Segment>]) -> Result<EpochHistory, StorageError> {
    let mut history = EpochHistory::default();
    for_each_batch(segments, Offset::ZERO..END, |batch| {
        if let Some(epoch) = batch.header.epoch()
            && history.latest() != Some(epoch)
        {
            history.assign(epoch, batch.header.base_offset);
        }
    })?;
    Ok(history)
}
