//! The offset index of a segment (`.index`): a sparse, sorted list of (offset, file position) that brings a lookup to within
//! `index.interval.bytes` of any offset. Kafka's file format and entry rules (D-35, D-38).

use std::io;
use std::path::{Path, PathBuf};

use epoka_proto::ids::Offset;

use crate::index_file::{IndexFile, IndexWriter};

/// Bytes of an entry: offset relative to the segment's base, then file position, both big-endian 32-bit.
const ENTRY: usize = 8;

/// One entry: the batch that begins at `position` ends with `last_offset`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OffsetEntry {
    /// The last offset of the batch.
    pub last_offset: Offset,
    /// Where the batch begins in the `.log` file.
    pub position: u32,
}

impl OffsetEntry {
    fn encode(self, base: Offset) -> [u8; ENTRY] {
        let relative =
            u32::try_from(self.last_offset - base).expect("a segment spans 32-bit offsets");
        let mut bytes = [0; ENTRY];
        bytes[..4].copy_from_slice(&relative.to_be_bytes());
        bytes[4..].copy_from_slice(&self.position.to_be_bytes());
        bytes
    }

    fn decode(bytes: [u8; ENTRY], base: Offset) -> Self {
        let [a, b, c, d, e, f, g, h] = bytes;
        Self {
            last_offset: base + i64::from(i32::from_be_bytes([a, b, c, d])),
            position: u32::from_be_bytes([e, f, g, h]),
        }
    }
}

/// The offset index of one segment.
#[derive(Debug)]
pub(crate) struct OffsetIndex {
    base: Offset,
    /// `segment.index.bytes` in entries: at this many the segment is closed.
    max_entries: usize,
    file: IndexFile<ENTRY>,
}

impl OffsetIndex {
    /// An index of exactly these entries, written over any old file.
    pub fn create(
        path: PathBuf,
        base: Offset,
        entries: &[OffsetEntry],
        max_bytes: usize,
    ) -> io::Result<Self> {
        let entries: Vec<_> = entries.iter().map(|e| e.encode(base)).collect();
        let file = IndexFile::create_with(path, &entries, max_bytes)?;
        Ok(Self::new(base, file, max_bytes))
    }

    /// Opens an index file and looks whether it can be one of a log of `log_size` bytes (D-38). `InvalidData`: rebuild it.
    pub fn open(path: PathBuf, base: Offset, max_bytes: usize, log_size: u64) -> io::Result<Self> {
        let index = Self::new(base, IndexFile::open(path, max_bytes)?, max_bytes);
        let [first, last] = [index.entry(0)?, index.last()?];
        if let (Some(first), Some(last)) = (first, last) {
            let sorted = index.len() == 1
                || (first.last_offset < last.last_offset && first.position < last.position);
            let within = first.last_offset >= base && u64::from(last.position) < log_size;
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

    /// Whether the segment must be closed because of this index.
    pub fn is_full(&self) -> bool {
        self.room() == 0
    }

    /// How many entries fit.
    pub fn room(&self) -> usize {
        self.max_entries.saturating_sub(self.len())
    }

    /// Adds an entry above all others.
    pub fn append(&self, writer: &mut IndexWriter, entry: OffsetEntry) -> io::Result<()> {
        self.file.append(writer, entry.encode(self.base))
    }

    fn entry(&self, index: usize) -> io::Result<Option<OffsetEntry>> {
        (index < self.len())
            .then(|| {
                self.file
                    .entry(index)
                    .map(|e| OffsetEntry::decode(e, self.base))
            })
            .transpose()
    }

    pub fn last(&self) -> io::Result<Option<OffsetEntry>> {
        Ok(self.file.last()?.map(|e| OffsetEntry::decode(e, self.base)))
    }

    /// The entry with the largest offset at or below `offset`: a forward walk for it begins there, or at 0.
    pub fn floor(&self, offset: Offset) -> io::Result<Option<OffsetEntry>> {
        let before = |e| OffsetEntry::decode(e, self.base).last_offset <= offset;
        match self.file.partition_point(before)? {
            0 => Ok(None),
            n => self.entry(n - 1),
        }
    }

    /// The last entry of a batch that begins before `position`.
    pub fn before(&self, position: u64) -> io::Result<Option<OffsetEntry>> {
        let before = |e| u64::from(OffsetEntry::decode(e, self.base).position) < position;
        match self.file.partition_point(before)? {
            0 => Ok(None),
            n => self.entry(n - 1),
        }
    }

    /// The entries of batches that begin before `position`: what stays when the log is cut there.
    pub fn entries_before(&self, position: u64) -> io::Result<Vec<OffsetEntry>> {
        let before = |e| u64::from(OffsetEntry::decode(e, self.base).position) < position;
        let count = self.file.partition_point(before)?;
        let head = self.file.head(count)?;
        Ok(head
            .into_iter()
            .map(|e| OffsetEntry::decode(e, self.base))
            .collect())
    }

    pub fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(last_offset: i64, position: u32) -> OffsetEntry {
        OffsetEntry {
            last_offset: Offset(last_offset),
            position,
        }
    }

    #[test]
    fn an_entry_is_eight_big_endian_bytes_d_35() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.index");
        OffsetIndex::create(path.clone(), Offset(1000), &[entry(1258, 4098)], 80).unwrap();
        assert_eq!(std::fs::read(path).unwrap(), [0, 0, 1, 2, 0, 0, 16, 2]);
    }

    #[test]
    fn floor_finds_where_to_scan_from() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.index");
        let index =
            OffsetIndex::create(path, Offset(100), &[entry(110, 50), entry(120, 90)], 80).unwrap();
        for (offset, position) in [
            (100, 0),
            (109, 0),
            (110, 50),
            (119, 50),
            (120, 90),
            (500, 90),
        ] {
            let floor = index.floor(Offset(offset)).unwrap();
            assert_eq!(floor.map_or(0, |e| e.position), position, "{offset}");
        }
        assert_eq!(index.entries_before(90).unwrap(), [entry(110, 50)]);
        assert_eq!(index.entries_before(91).unwrap().len(), 2);
    }

    #[test]
    fn an_index_that_cannot_belong_to_the_segment_is_refused_d_38() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.index");
        let zero = [0_u8; 8];
        let good = entry(110, 50).encode(Offset(100));
        let open = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            OffsetIndex::open(path.clone(), Offset(100), 80, 60).map(|i| i.len())
        };
        assert_eq!(open(&[]).unwrap(), 0);
        assert_eq!(open(&good).unwrap(), 1);
        assert!(open(&[good, zero].concat()).is_err(), "zero-padded (H-68)");
        assert!(open(&good[..7]).is_err(), "torn");
        assert!(
            open(&entry(110, 60).encode(Offset(100))).is_err(),
            "beyond the log"
        );
        assert!(open(&[0xff; 8]).is_err(), "below the base");
    }

    #[test]
    fn it_is_full_at_segment_index_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let index = OffsetIndex::create(dir.path().join("x.index"), Offset(0), &[], 17).unwrap();
        let mut writer = IndexWriter::default();
        index.append(&mut writer, entry(1, 1)).unwrap();
        assert!(!index.is_full());
        index.append(&mut writer, entry(2, 2)).unwrap();
        assert!(index.is_full());
    }
}
