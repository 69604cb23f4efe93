//! A file of fixed-size big-endian entries: what the offset index and the time index have in common. One writer appends,
//! any number of readers look entries up through a memory map without a lock.
//!
//! The file is never longer than its entries. Kafka preallocates an active segment's indexes and trims them on close, so a
//! killed broker leaves zero padding that reads as entries (H-68). Here entries are appended with `pwrite` and read through a map
//! that reaches beyond the end of the file: the system makes each new page of a shared file map readable as the file grows, and
//! readers never touch an entry before its number was published. Nothing has to be trimmed, a killed broker's index is as valid as
//! a closed one, and an idle partition's index takes neither memory nor a file descriptor.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use memmap2::{MmapOptions, MmapRaw};

/// Entries of `N` bytes each.
#[derive(Debug)]
pub(crate) struct IndexFile<const N: usize> {
    path: PathBuf,
    /// How many entries the map has room for; fixed when the file is opened.
    capacity: usize,
    /// How many entries are complete. Stored after the bytes are in the file.
    count: AtomicUsize,
    /// Made at the first append or lookup.
    map: OnceLock<MmapRaw>,
}

/// The writer's side: the open file, from the first append on.
#[derive(Debug, Default)]
pub(crate) struct IndexWriter {
    file: Option<File>,
}

impl<const N: usize> IndexFile<N> {
    /// Writes a file of exactly these entries, over any old one.
    pub fn create_with(path: PathBuf, entries: &[[u8; N]], max_bytes: usize) -> io::Result<Self> {
        std::fs::write(&path, entries.as_flattened())?;
        Ok(Self::with_entries(path, entries.len(), max_bytes))
    }

    /// Opens a file. Only its length is looked at: `InvalidData` when it is no multiple of the entry size.
    pub fn open(path: PathBuf, max_bytes: usize) -> io::Result<Self> {
        let length = usize::try_from(std::fs::metadata(&path)?.len()).map_err(io::Error::other)?;
        if !length.is_multiple_of(N) {
            let text = format!("its length {length} is no multiple of {N}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        Ok(Self::with_entries(path, length / N, max_bytes))
    }

    fn with_entries(path: PathBuf, count: usize, max_bytes: usize) -> Self {
        Self {
            path,
            // One more than fits: a time index gets a last entry when its segment is closed.
            capacity: (max_bytes / N).max(count) + 1,
            count: AtomicUsize::new(count),
            map: OnceLock::new(),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Adds an entry; readers see it once it is whole. For the only writer.
    pub fn append(&self, writer: &mut IndexWriter, entry: [u8; N]) -> io::Result<()> {
        let count = self.count.load(Ordering::Relaxed);
        if count >= self.capacity {
            return Err(io::Error::other("the index is full"));
        }
        let file = match &mut writer.file {
            Some(file) => file,
            none => {
                let file = OpenOptions::new().read(true).write(true).open(&self.path)?;
                self.map_once(&file)?;
                none.insert(file)
            }
        };
        file.write_all_at(&entry, (count * N) as u64)?;
        self.count.store(count + 1, Ordering::Release);
        Ok(())
    }

    /// Entry number `index`, which must be below a `len` seen before.
    pub fn entry(&self, index: usize) -> io::Result<[u8; N]> {
        debug_assert!(index < self.len());
        let map = match self.map.get() {
            Some(map) => map,
            None => self.map_once(&File::open(&self.path)?)?,
        };
        let mut entry = [0; N];
        assert!((index + 1) * N <= map.len(), "the map covers every entry");
        // SAFETY: the map is at least (index + 1) * N bytes long (asserted), and that range lies within the file: an entry is
        // counted only after `write_all_at` extended the file over it, and an index file is never shortened while it is open
        // (truncation writes a new file, see `truncate`). Counted entries are never written again, so no write races with this
        // read; the bytes are copied out through a raw pointer, no reference into the map is made.
        unsafe {
            map.as_ptr()
                .add(index * N)
                .copy_to_nonoverlapping(entry.as_mut_ptr(), N);
        }
        Ok(entry)
    }

    /// The last entry.
    pub fn last(&self) -> io::Result<Option<[u8; N]>> {
        match self.len() {
            0 => Ok(None),
            n => self.entry(n - 1).map(Some),
        }
    }

    /// How many leading entries satisfy `before`, which must hold for a prefix of them.
    pub fn partition_point(&self, mut before: impl FnMut([u8; N]) -> bool) -> io::Result<usize> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if before(self.entry(middle)?) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }

    /// The first `count` entries.
    pub fn head(&self, count: usize) -> io::Result<Vec<[u8; N]>> {
        (0..count).map(|i| self.entry(i)).collect()
    }

    /// Makes the entries durable.
    pub fn sync(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_data()
    }

    fn map_once(&self, file: &File) -> io::Result<&MmapRaw> {
        if let Some(map) = self.map.get() {
            return Ok(map);
        }
        // Two readers may both map; one map is dropped again.
        let map = MmapOptions::new()
            .len(self.capacity * N)
            .map_raw_read_only(file)?;
        Ok(self.map.get_or_init(|| map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_readable_while_the_file_grows_and_the_file_is_never_padded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.index");
        let index = IndexFile::<8>::create_with(path.clone(), &[], 1 << 20).unwrap();
        let mut writer = IndexWriter::default();
        assert_eq!(index.last().unwrap(), None);
        for i in 0..5000_u64 {
            index.append(&mut writer, i.to_be_bytes()).unwrap();
            assert_eq!(index.last().unwrap(), Some(i.to_be_bytes()));
            if i % 500 == 0 {
                assert_eq!(std::fs::metadata(&path).unwrap().len(), (i + 1) * 8);
            }
        }
        let below = index.partition_point(|e| u64::from_be_bytes(e) < 1234);
        assert_eq!(below.unwrap(), 1234);
        let again = IndexFile::<8>::open(path, 0).unwrap();
        assert_eq!(again.len(), 5000);
        assert_eq!(again.entry(4999).unwrap(), 4999_u64.to_be_bytes());
    }

    #[test]
    fn readers_on_other_threads_see_only_whole_entries() {
        let dir = tempfile::tempdir().unwrap();
        let index = IndexFile::<8>::create_with(dir.path().join("x.index"), &[], 1 << 20).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while index.len() < 20_000 {
                        if let Some(last) = index.len().checked_sub(1) {
                            let entry = index.entry(last).unwrap();
                            assert_eq!(u64::from_be_bytes(entry), last as u64 + 1);
                        }
                    }
                });
            }
            let mut writer = IndexWriter::default();
            for i in 1..=20_000_u64 {
                index.append(&mut writer, i.to_be_bytes()).unwrap();
            }
        });
    }

    #[test]
    fn a_length_that_is_no_multiple_of_the_entry_size_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.index");
        std::fs::write(&path, [0; 13]).unwrap();
        let error = IndexFile::<8>::open(path, 0).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_full_index_refuses_entries() {
        let dir = tempfile::tempdir().unwrap();
        let index = IndexFile::<8>::create_with(dir.path().join("x.index"), &[], 8).unwrap();
        let mut writer = IndexWriter::default();
        index.append(&mut writer, [1; 8]).unwrap();
        index.append(&mut writer, [2; 8]).unwrap();
        assert!(index.append(&mut writer, [3; 8]).is_err());
    }
}
