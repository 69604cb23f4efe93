//! Rebuilding what is derived from batches: the producers' state from a snapshot and the batches after it, the leader-epoch
//! history from batch headers.

use std::path::Path;
use std::sync::Arc;

use epoka_proto::epochs::EpochHistory;
use epoka_proto::ids::Offset;

use crate::files::{self, Context, StorageError};
use crate::producers::ProducerStates;
use crate::scan::Scanned;
use crate::segment::Segment;
use crate::snapshot::{self, SnapshotError};

/// Calls `visit` for every batch that begins at `from` or later.
pub(crate) fn for_each_batch(
    segments: &[Arc<Segment>],
    from: Offset,
    mut visit: impl FnMut(&Scanned),
) -> Result<(), StorageError> {
    let first = segments
        .partition_point(|s| s.base() <= from)
        .saturating_sub(1);
    for segment in &segments[first..] {
        let mut scanner = segment.scan_before(from)?;
        while let Some(batch) = scanner.batch().context("read", segment.path())? {
            if batch.header.base_offset >= from {
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
    for_each_batch(segments, from.unwrap_or_default(), |batch| {
        states.note(&batch.header)
    })?;
    Ok((states, from))
}

/// The leader epochs that batch headers tell of. An epoch without a batch is not among them (E-6).
pub(crate) fn epochs(segments: &[Arc<Segment>]) -> Result<EpochHistory, StorageError> {
    let mut history = EpochHistory::default();
    for_each_batch(segments, Offset::ZERO, |batch| {
        if let Some(epoch) = batch.header.epoch()
            && history.latest() != Some(epoch)
        {
            history.assign(epoch, batch.header.base_offset);
        }
    })?;
    Ok(history)
}
