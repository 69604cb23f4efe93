//! Finding records by time (KIP-79, KIP-734): the time index narrows a search down to a few batches, whose headers narrow it down
//! to one, whose records are then looked at.

use std::sync::Arc;

use epoka_proto::batch::{self, BatchHeader};
use epoka_proto::ids::{Millis, Offset};

use crate::files::Context;
use crate::scan::Scanned;
use crate::segment::Segment;
use crate::view::{LogView, ReadError};

/// A record's offset and timestamp.
type Found = Option<(Offset, Millis)>;

impl LogView {
    /// The first record below `bound` with this timestamp or a later one: its offset and timestamp.
    pub fn find_timestamp(&self, timestamp: Millis, bound: Offset) -> Result<Found, ReadError> {
        let start = self.start();
        let found = self.undisturbed(|segments| {
            for (index, segment) in segments.iter().enumerate() {
                // A closed segment's last time entry holds its largest timestamp.
                let closed = index + 1 < segments.len();
                let last = segment
                    .times
                    .last()
                    .context("read the time index of", segment.path())?;
                if closed && last.is_none_or(|l| l.timestamp < timestamp) {
                    continue;
                }
                let wanted = |header: &BatchHeader| {
                    header.max_timestamp >= timestamp && header.last_offset() >= start
                };
                let found = search(segment, timestamp, bound, wanted, |record| {
                    record.1 >= timestamp && record.0 >= start
                })?;
                if found.is_some() {
                    return Ok(found);
                }
            }
            Ok(None)
        });
        found.unwrap_or(Ok(None))
    }

    /// The first record below `bound` with the largest timestamp of all: its offset and timestamp.
    pub fn max_timestamp(&self, bound: Offset) -> Result<Found, ReadError> {
        let found = self.undisturbed(|segments| {
            let mut largest: Option<(Millis, &Arc<Segment>)> = None;
            for segment in segments.iter().take_while(|s| s.base() < bound) {
                let found = largest_in(segment, bound)?;
                if found.is_some_and(|t| largest.is_none_or(|(best, _)| t > best)) {
                    largest = found.map(|t| (t, segment));
                }
            }
            match largest {
                Some((timestamp, segment)) => {
                    let wanted = |header: &BatchHeader| header.max_timestamp >= timestamp;
                    search(segment, timestamp, bound, wanted, |record| {
                        record.1 >= timestamp
                    })
                }
                None => Ok(None),
            }
        });
        found.unwrap_or(Ok(None))
    }
}

/// The largest timestamp in a segment below `bound`.
fn largest_in(segment: &Segment, bound: Offset) -> Result<Option<Millis>, ReadError> {
    let entries = segment
        .times
        .entries_before(bound)
        .context("read the time index of", segment.path())?;
    let known = entries.last().copied();
    let mut largest = known.map(|e| e.timestamp);
    walk(segment, known.map(|e| e.offset), bound, |batch| {
        let timestamp = batch.header.max_timestamp;
        if timestamp >= 0 && largest.is_none_or(|l| timestamp > l) {
            largest = Some(timestamp);
        }
        Ok(None)
    })?;
    Ok(largest)
}

/// The first record that is `right`, in the batches that are `wanted`; from where the time index says it can be.
fn search(
    segment: &Segment,
    timestamp: Millis,
    bound: Offset,
    wanted: impl Fn(&BatchHeader) -> bool,
    right: impl Fn((Offset, Millis)) -> bool,
) -> Result<Found, ReadError> {
    let floor = segment
        .times
        .floor(timestamp)
        .context("read the time index of", segment.path())?;
    walk(segment, floor.map(|e| e.offset), bound, |found| {
        if !wanted(&found.header) {
            return Ok(None);
        }
        let mut bytes = vec![0; found.header.size];
        segment
            .read(&mut bytes, found.position)
            .context("read", segment.path())?;
        let damaged = |error: batch::BatchError| ReadError::Damaged {
            file: segment.path().to_owned(),
            position: found.position,
            what: error.to_string(),
        };
        for record in batch::records(&bytes).map_err(damaged)? {
            let record = record.map_err(damaged)?;
            if right((record.offset, record.timestamp)) {
                return Ok(Some((record.offset, record.timestamp)));
            }
        }
        Ok(None)
    })
}

/// Visits the batches below `bound`, from the index entry below `from` on, until one gives an answer.
fn walk(
    segment: &Segment,
    from: Option<Offset>,
    bound: Offset,
    mut visit: impl FnMut(&Scanned) -> Result<Found, ReadError>,
) -> Result<Found, ReadError> {
    let mut scanner = match from {
        Some(from) => segment.scan_before(from)?,
        None => segment.scan(0),
    };
    while let Some(batch) = scanner.batch().context("read", segment.path())? {
        if batch.header.next_offset() > bound {
            break;
        }
        let found = visit(&batch)?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}
