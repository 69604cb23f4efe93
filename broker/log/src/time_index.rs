//! The time index of a segment (`.timeindex`): a sparse list of (timestamp, offset), both growing, which says that no record at or
//! before the offset has a larger timestamp. Kafka's file format and entry rules (D-36, D-38).

use std::io;
use std::path::{Path, PathBuf};

use epoka_proto::ids::{Millis, Offset};

use crate::index_file::{IndexFile, IndexWriter};

/// Bytes of an entry: 64-bit timestamp, 32-bit offset relative to the segment's base, both big-endian.
const ENTRY: usize = 12;

/// One entry. The pair is one value: a timestamp never travels without the offset it was read at (KAFKA-12981).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TimeEntry {
    /// The largest timestamp so far, in milliseconds.
    pub timestamp: Millis,
    /// The last offset of the first batch that holds it.
    pub offset: Offset,
}

impl TimeEntry {
    fn encode(self, base: Offset) -> [u8; ENTRY] {
        let relative = u32::try_from(self.offset - base).expect("a segment spans 32-bit offsets");
        let mut bytes = [0; ENTRY];
        bytes[..8].copy_from_slice(&self.timestamp.to_be_bytes());
        bytes[8..].copy_from_slice(&relative.to_be_bytes());
        bytes
    }

    fn decode(bytes: [u8; ENTRY], base: Offset) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = bytes;
        Self {
            timestamp: i64::from_be_bytes([a, b, c, d, e, f, g, h]),
            offset: base + i64::from(i32::from_be_bytes([i, j, k, l])),
        }
    }
}

/// The time index of one segment.
#[derive(Debug)]
pub(crate) struct TimeIndex {
    base: Offset,
    max_entries: usize,
    file: IndexFile<ENTRY>,
}

impl TimeIndex {
    /// An index of exactly these entries, written over any old file.
    pub fn create(
        path: PathBuf,
        base: Offset,
        entries: &[TimeEntry],
        max_bytes: usize,
    ) -> io::Result<Self> {
        let entries: Vec<_> = entries.iter().map(|e| e.encode(base)).collect();
        let file = IndexFile::create_with(path, &entries, max_bytes)?;
        Ok(Self::new(base, file, max_bytes))
    }

    /// Opens an index file and looks whether it can be one of a segment that ends at `end` (D-38). `InvalidData`: rebuild it.
    pub fn open(path: PathBuf, base: Offset, max_bytes: usize, end: Offset) -> io::Result<Self> {
        let index = Self::new(base, IndexFile::open(path, max_bytes)?, max_bytes);
        let [first, last] = [index.entry(0)?, index.last()?];
        if let (Some(first), Some(last)) = (first, last) {
            let sorted = index.len() == 1
                || (first.timestamp < last.timestamp && first.offset < last.offset);
            let within = first.offset >= base && last.offset < end;
            if !(sorted && within) {
                let text = format!("its entries {first:?} to {last:?} cannot be of this segment");
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
        }
        Ok(index)
    }

    fn new(base: Offset, file: IndexFile<ENTRY>, max_bytes: usize) -> Self {
        Self {
            base,
            max_entries: max_bytes / ENTRY,
            file,
        }
    }

    pub fn path(&self) -> &Path {
        self.file.path()
    }

    pub fn len(&self) -> usize {
        self.file.len()
    }

    /// Whether the segment must be closed because of this index; one slot is kept for the entry that closing adds.
    pub fn is_full(&self) -> bool {
        self.room() == 0
    }

    /// How many entries fit besides the one that closing adds.
    pub fn room(&self) -> usize {
        self.max_entries.saturating_sub(self.len() + 1)
    }

    /// Adds an entry if it tells more than the last one.
    pub fn maybe_append(&self, writer: &mut IndexWriter, entry: TimeEntry) -> io::Result<()> {
        let last = self.last()?;
        // Records without a timestamp say -1.
        if entry.timestamp > last.map_or(-1, |l| l.timestamp) {
            self.file.append(writer, entry.encode(self.base))?;
        }
        Ok(())
    }

    fn entry(&self, index: usize) -> io::Result<Option<TimeEntry>> {
        (index < self.len())
            .then(|| {
                self.file
                    .entry(index)
                    .map(|e| TimeEntry::decode(e, self.base))
            })
            .transpose()
    }

    pub fn last(&self) -> io::Result<Option<TimeEntry>> {
        Ok(self.file.last()?.map(|e| TimeEntry::decode(e, self.base)))
    }

    /// The entry with the largest timestamp at or below `timestamp`.
    pub fn floor(&self, timestamp: Millis) -> io::Result<Option<TimeEntry>> {
        let before = |e| TimeEntry::decode(e, self.base).timestamp <= timestamp;
        match self.file.partition_point(before)? {
            0 => Ok(None),
            n => self.entry(n - 1),
        }
    }

    /// The entries of offsets below `end`: what stays when the log is cut there.
    pub fn entries_before(&self, end: Offset) -> io::Result<Vec<TimeEntry>> {
        let before = |e| TimeEntry::decode(e, self.base).offset < end;
        let count = self.file.partition_point(before)?;
        let head = self.file.head(count)?;
        Ok(head
            .into_iter()
            .map(|e| TimeEntry::decode(e, self.base))
            .collect())
    }

    pub fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(timestamp: i64, offset: i64) -> TimeEntry {
        TimeEntry {
            timestamp,
            offset: Offset(offset),
        }
    }

    #[test]
    fn an_entry_is_twelve_big_endian_bytes_d_36() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.timeindex");
        TimeIndex::create(path.clone(), Offset(1000), &[entry(0x0102, 1258)], 120).unwrap();
        assert_eq!(
            std::fs::read(path).unwrap(),
            [0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 1, 2]
        );
    }

    #[test]
    fn only_a_larger_timestamp_makes_an_entry() {
        let dir = tempfile::tempdir().unwrap();
        let index = TimeIndex::create(dir.path().join("x.timeindex"), Offset(0), &[], 120).unwrap();
        let mut writer = IndexWriter::default();
        for (timestamp, offset, entries) in
            [(-1, 3, 0), (10, 5, 1), (10, 8, 1), (9, 9, 1), (11, 12, 2)]
        {
            index
                .maybe_append(&mut writer, entry(timestamp, offset))
                .unwrap();
            assert_eq!(index.len(), entries, "{timestamp}");
        }
        for (timestamp, floor) in [
            (9, None),
            (10, Some(entry(10, 5))),
            (99, Some(entry(11, 12))),
        ] {
            assert_eq!(index.floor(timestamp).unwrap(), floor);
        }
        assert_eq!(index.entries_before(Offset(12)).unwrap(), [entry(10, 5)]);
    }

    #[test]
    fn one_slot_is_kept_for_the_closing_entry_d_36() {
        let dir = tempfile::tempdir().unwrap();
        let index = TimeIndex::create(dir.path().join("x.timeindex"), Offset(0), &[], 36).unwrap();
        let mut writer = IndexWriter::default();
        index.maybe_append(&mut writer, entry(1, 1)).unwrap();
        assert!(!index.is_full());
        index.maybe_append(&mut writer, entry(2, 2)).unwrap();
        assert!(index.is_full());
        index.maybe_append(&mut writer, entry(3, 3)).unwrap();
    }

    #[test]
    fn an_index_that_cannot_belong_to_the_segment_is_refused_d_38() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.timeindex");
        let good = entry(5, 110).encode(Offset(100));
        let open = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            TimeIndex::open(path.clone(), Offset(100), 120, Offset(111)).map(|i| i.len())
        };
        assert_eq!(open(&good).unwrap(), 1);
        assert!(
            open(&[good, [0; 12]].concat()).is_err(),
            "zero-padded (H-68)"
        );
        assert!(open(&good[..7]).is_err(), "torn");
        assert!(
            open(&entry(5, 111).encode(Offset(100))).is_err(),
            "beyond the log"
        );
    }
}
