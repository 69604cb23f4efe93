//! Walking the batches of a segment file from a position on, with or without their checksums. Reads a window at a time, so the
//! memory it takes does not depend on any length field.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crc_fast::{CrcAlgorithm, Digest};
use epoka_proto::batch::{self, BatchError, BatchHeader, HEADER_LEN};
use epoka_proto::ids::{LeaderEpoch, Offset};

/// A batch and where it begins in the file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scanned {
    pub header: BatchHeader,
    pub position: u64,
}

/// Why the walk cannot go on: what lies at `position` is no batch that belongs there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Fault {
    pub position: u64,
    pub kind: FaultKind,
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum FaultKind {
    /// Fewer bytes than the header or its length says: the shape of a write cut short.
    #[error("an incomplete batch")]
    Incomplete,
    #[error("no batch header ({0})")]
    Header(BatchError),
    #[error("a batch whose CRC does not match")]
    Checksum,
    #[error("a batch that begins at offset {found} instead of {expected}")]
    Offset { expected: Offset, found: Offset },
    #[error("a batch whose offsets the segment cannot hold")]
    Span,
    #[error("a batch of an older leader epoch than the one before it")]
    Epoch,
}

/// One step of the walk.
#[derive(Debug)]
pub(crate) enum Step {
    Batch(Scanned),
    End,
    Fault(Fault),
}

/// How much to read at once when every byte is wanted, and when only headers are.
const WHOLE_WINDOW: usize = 256 * 1024;
const HEADER_WINDOW: usize = 64 * 1024;
const SPARSE_WINDOW: usize = 4 * 1024;

/// Walks the batches of one segment file.
pub(crate) struct BatchScanner<'a> {
    file: &'a File,
    base: Offset,
    position: u64,
    end: u64,
    checksums: bool,
    /// The offset the next batch must begin with, once known. Without compaction a log has no holes (I-16).
    next_offset: Option<Offset>,
    epoch: Option<LeaderEpoch>,
    window: Vec<u8>,
    window_at: u64,
    window_size: usize,
}

impl<'a> BatchScanner<'a> {
    /// Walks the bytes from `position` to `end` of the segment with this base offset.
    pub fn new(file: &'a File, base: Offset, position: u64, end: u64) -> Self {
        Self {
            file,
            base,
            position,
            end,
            checksums: false,
            next_offset: (position == 0).then_some(base),
            epoch: None,
            window: Vec::new(),
            window_at: 0,
            window_size: HEADER_WINDOW,
        }
    }

    /// Also reads every batch whole and compares its CRC.
    pub fn with_checksums(mut self) -> Self {
        self.checksums = true;
        self.window_size = WHOLE_WINDOW;
        self
    }

    /// The next batch. After a fault the walk stays where it is.
    pub fn step(&mut self) -> io::Result<Step> {
        if self.position >= self.end {
            return Ok(Step::End);
        }
        let position = self.position;
        let fault = |kind| Ok(Step::Fault(Fault { position, kind }));
        let header = match BatchHeader::parse(self.fill(position, HEADER_LEN)?) {
            Ok(header) => header,
            Err(BatchError::Incomplete { .. }) => return fault(FaultKind::Incomplete),
            Err(error) => return fault(FaultKind::Header(error)),
        };
        if header.size as u64 > self.end - position {
            return fault(FaultKind::Incomplete);
        }
        if let Some(kind) = self.misplaced(&header) {
            return fault(kind);
        }
        if self.checksums && !self.checksum_is_valid(&header)? {
            return fault(FaultKind::Checksum);
        }
        if !self.checksums {
            let sparse = header.size > HEADER_WINDOW / 2;
            self.window_size = if sparse { SPARSE_WINDOW } else { HEADER_WINDOW };
        }
        self.position += header.size as u64;
        self.next_offset = Some(header.next_offset());
        self.epoch = header.epoch();
        Ok(Step::Batch(Scanned { header, position }))
    }

    /// The next batch, or `None` at the end. A fault is an error of kind `InvalidData`: for walks over what was found good before.
    pub fn batch(&mut self) -> io::Result<Option<Scanned>> {
        match self.step()? {
            Step::Batch(batch) => Ok(Some(batch)),
            Step::End => Ok(None),
            Step::Fault(fault) => {
                let text = format!("{} at byte {}", fault.kind, fault.position);
                Err(io::Error::new(io::ErrorKind::InvalidData, text))
            }
        }
    }

    fn misplaced(&self, header: &BatchHeader) -> Option<FaultKind> {
        let found = header.base_offset;
        if let Some(expected) = self.next_offset
            && found != expected
        {
            return Some(FaultKind::Offset { expected, found });
        }
        let fits = header.last_offset_delta >= 0
            && found >= self.base
            && header
                .last_offset()
                .0
                .checked_sub(self.base.0)
                .is_some_and(|r| r <= i64::from(i32::MAX));
        if !fits {
            return Some(FaultKind::Span);
        }
        (header.epoch() < self.epoch).then_some(FaultKind::Epoch)
    }

    fn checksum_is_valid(&mut self, header: &BatchHeader) -> io::Result<bool> {
        let position = self.position;
        if header.size <= WHOLE_WINDOW {
            let size = header.size;
            let bytes = self.fill(position, size)?;
            return Ok(bytes.len() >= size && batch::crc_is_valid(&bytes[..size]));
        }
        let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
        let end = position + header.size as u64;
        let mut at = position + 21;
        while at < end {
            let wanted = WHOLE_WINDOW.min((end - at) as usize);
            let bytes = self.fill(at, wanted)?;
            if bytes.len() < wanted {
                return Ok(false);
            }
            digest.update(&bytes[..wanted]);
            at += wanted as u64;
        }
        Ok(digest.finalize() == u64::from(header.crc))
    }

    /// The bytes from `at` on: at least `wanted` of them unless the file ends before.
    fn fill(&mut self, at: u64, wanted: usize) -> io::Result<&[u8]> {
        let covered =
            at >= self.window_at && at + wanted as u64 <= self.window_at + self.window.len() as u64;
        if !covered {
            let size = wanted.max(self.window_size).min((self.end - at) as usize);
            self.window.resize(size, 0);
            self.window_at = at;
            let mut filled = 0;
            while filled < size {
                match self
                    .file
                    .read_at(&mut self.window[filled..], at + filled as u64)
                {
                    Ok(0) => break,
                    Ok(n) => filled += n,
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(e),
                }
            }
            self.window.truncate(filled);
        }
        Ok(&self.window[(at - self.window_at) as usize..])
    }
}

/// Whether the file from `fault` on looks like a write that never reached the disk whole, as a power loss leaves it: it ends
/// within a batch, or in blocks that were never written and read as zeros. A batch that is whole but wrong, or has a good
/// successor, is damage instead.
pub(crate) fn is_torn(file: &File, end: u64, fault: &Fault) -> io::Result<bool> {
    if fault.kind == FaultKind::Incomplete {
        return Ok(true);
    }
    let rest = end - fault.position;
    let mut header = [0; HEADER_LEN];
    if rest >= HEADER_LEN as u64 {
        file.read_exact_at(&mut header, fault.position)?;
    }
    if let Ok(bad) = BatchHeader::parse(&header)
        && bad.size as u64 + HEADER_LEN as u64 <= rest
    {
        file.read_exact_at(&mut header, fault.position + bad.size as u64)?;
        if BatchHeader::parse(&header).is_ok() {
            return Ok(false);
        }
    }
    // Disks write in blocks: the last one, or where that is too short to tell, the last two.
    let block = (end - 1) / 512 * 512;
    let from = if end - block < 16 {
        block.saturating_sub(512)
    } else {
        block
    };
    let from = from.max(fault.position);
    let mut tail = vec![0; (end - from) as usize];
    file.read_exact_at(&mut tail, from)?;
    Ok(tail.iter().all(|b| *b == 0))
}

/// How many bytes `later_batch` reads again to compare checksums: what only looks like a batch must not cost much.
const RESYNC_BUDGET: u64 = 256 << 20;

/// Looks behind a fault for a batch of this log: one at or above offset `end` whose checksum is right. Where it begins.
pub(crate) fn later_batch(
    file: &File,
    size: u64,
    fault: &Fault,
    end: Offset,
) -> io::Result<Option<u64>> {
    const STEP: usize = 1 << 20;
    let mut budget = RESYNC_BUDGET;
    let mut window = vec![0; STEP + HEADER_LEN];
    let mut at = fault.position + 1;
    while at + HEADER_LEN as u64 <= size {
        let filled = (size - at).min(window.len() as u64) as usize;
        file.read_exact_at(&mut window[..filled], at)?;
        for (index, bytes) in window[..filled].windows(HEADER_LEN).enumerate().take(STEP) {
            let Some(header) = plausible(bytes, end) else {
                continue;
            };
            let position = at + index as u64;
            let length = header.size as u64;
            if length > size - position || length > budget {
                continue;
            }
            budget = budget.saturating_sub(length.max(HEADER_WINDOW as u64));
            let mut scanner = BatchScanner::new(file, header.base_offset, position, size);
            scanner.checksums = true;
            if matches!(scanner.step()?, Step::Batch(_)) {
                return Ok(Some(position));
            }
        }
        at += STEP as u64;
    }
    Ok(None)
}

/// A header as a batch at or above this offset could have it.
fn plausible(bytes: &[u8], end: Offset) -> Option<BatchHeader> {
    const MAGIC: usize = 16;
    if bytes[MAGIC] != 2 {
        return None;
    }
    let header = BatchHeader::parse(bytes).ok()?;
    let near = end.0..end.0.saturating_add(i64::from(i32::MAX));
    near.contains(&header.base_offset.0).then_some(header)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{batch, file_of};

    fn walk(file: &File, checksums: bool) -> (usize, Option<Fault>) {
        let end = file.metadata().unwrap().len();
        let mut scanner = BatchScanner::new(file, Offset(0), 0, end);
        if checksums {
            scanner = scanner.with_checksums();
        }
        let mut batches = 0;
        loop {
            match scanner.step().unwrap() {
                Step::Batch(_) => batches += 1,
                Step::End => return (batches, None),
                Step::Fault(fault) => return (batches, Some(fault)),
            }
        }
    }

    #[test]
    fn small_and_huge_batches_are_walked() {
        let batches = [
            batch(0, 0, 3, 10),
            batch(3, 0, 1, 700_000),
            batch(4, 1, 2, 90_000),
            batch(6, 1, 1, 10),
        ];
        let file = file_of(&batches.concat());
        assert_eq!(walk(&file, false), (4, None));
        assert_eq!(walk(&file, true), (4, None));
    }

    #[test]
    fn what_stops_the_walk_d_22() {
        let good = [batch(0, 1, 3, 10), batch(3, 1, 2, 10)];
        let size = good[0].len() as u64;
        let second = |bytes: Vec<u8>| file_of(&[good[0].clone(), bytes].concat());
        let mut flipped = good[1].clone();
        *flipped.last_mut().unwrap() ^= 1;
        let mut magic = good[1].clone();
        magic[16] = 1;
        let mut endless = good[1].clone();
        endless[8..12].copy_from_slice(&i32::MAX.to_be_bytes());
        let mut short = good[1].clone();
        short[8..12].copy_from_slice(&3_i32.to_be_bytes());
        for (bytes, kind) in [
            (good[1][..40].to_vec(), FaultKind::Incomplete),
            (good[1][..65].to_vec(), FaultKind::Incomplete),
            (endless, FaultKind::Incomplete),
            (short, FaultKind::Header(BatchError::Length(3))),
            (magic, FaultKind::Header(BatchError::Magic(1))),
            (vec![0; 100], FaultKind::Header(BatchError::Magic(0))),
            (flipped, FaultKind::Checksum),
            (
                batch(4, 1, 2, 10),
                FaultKind::Offset {
                    expected: Offset(3),
                    found: Offset(4),
                },
            ),
            (batch(3, 0, 2, 10), FaultKind::Epoch),
        ] {
            let (batches, fault) = walk(&second(bytes), true);
            let expected = Fault {
                position: size,
                kind,
            };
            assert_eq!((batches, fault), (1, Some(expected)));
        }
    }

    #[test]
    fn a_torn_end_is_told_from_a_flipped_byte() {
        let [a, b, c] = [
            batch(0, 1, 3, 2000),
            batch(3, 1, 2, 2000),
            batch(5, 1, 1, 2000),
        ];
        let mut flipped = b.clone();
        flipped[100] ^= 1;
        let mut half_zero = b.clone();
        half_zero[1000..].fill(0);
        for (bytes, torn) in [
            ([&a[..], &b[..900]].concat(), true),
            ([&a[..], &half_zero].concat(), true),
            ([&a[..], &[0; 5000]].concat(), true),
            ([&a[..], &flipped].concat(), false),
            ([&a[..], &flipped, &c].concat(), false),
            ([&a[..], &half_zero, &c].concat(), false),
        ] {
            let file = file_of(&bytes);
            let (_, fault) = walk(&file, true);
            assert_eq!(
                is_torn(&file, bytes.len() as u64, &fault.unwrap()).unwrap(),
                torn
            );
        }
    }
}
