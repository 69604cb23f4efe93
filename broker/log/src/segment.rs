//! A segment: one `.log` file of whole batches, named by the offset it begins with, and its two indexes. Shared by the writer
//! and any number of readers; what only the writer needs to know of its newest segment is in `append`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use epoka_proto::batch::{BatchHeader, HEADER_LEN};
use epoka_proto::ids::Offset;
use nix::sys::uio::pwritev;

use crate::config::LogConfig;
use crate::files::{self, Context, StorageError};
use crate::offset_index::{OffsetEntry, OffsetIndex};
use crate::scan::BatchScanner;
use crate::snapshot::offset_of;
use crate::time_index::{TimeEntry, TimeIndex};

/// Where a file of a segment lies: twenty digits and an extension (D-4).
pub(crate) fn segment_path(dir: &Path, base: Offset, extension: &str) -> PathBuf {
    dir.join(format!("{:020}.{extension}", base.0))
}

/// The base offsets of the segments in a partition's directory, ascending.
pub(crate) fn list_segments(dir: &Path) -> Result<Vec<Offset>, StorageError> {
    let mut bases = Vec::new();
    for entry in fs::read_dir(dir).context("list", dir)? {
        let name = entry.context("list", dir)?.file_name();
        bases.extend(
            name.to_str()
                .and_then(|n| offset_of(n.strip_suffix(".log")?)),
        );
    }
    bases.sort_unstable();
    Ok(bases)
}

/// One segment of a log.
#[derive(Debug)]
pub(crate) struct Segment {
    base: Offset,
    path: PathBuf,
    file: File,
    /// Bytes of whole batches. The file may be longer: preallocated (D-39).
    size: AtomicU64,
    pub offsets: OffsetIndex,
    pub times: TimeIndex,
}

impl Segment {
    /// Makes a new, empty segment. Left-over index files of that base are replaced; a log file that holds anything is an error
    /// (D-42).
    pub fn create(dir: &Path, base: Offset, config: &LogConfig) -> Result<Self, StorageError> {
        let path = segment_path(dir, base, "log");
        let old = fs::metadata(&path).map_or(0, |m| m.len());
        if old > 0 {
            let text = format!("it already holds {old} bytes");
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, text))
                .context("create", &path);
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .context("create", &path)?;
        if config.preallocate {
            file.set_len(config.segment_bytes)
                .context("preallocate", &path)?;
        }
        Self::with_indexes(dir, base, path, file, 0, &[], &[], config)
    }

    /// A segment over an existing log file of which `size` bytes are whole batches, with new index files of these entries.
    #[expect(clippy::too_many_arguments, reason = "the parts of a segment")]
    fn with_indexes(
        dir: &Path,
        base: Offset,
        path: PathBuf,
        file: File,
        size: u64,
        offsets: &[OffsetEntry],
        times: &[TimeEntry],
        config: &LogConfig,
    ) -> Result<Self, StorageError> {
        // Written beside and renamed over: readers may still hold a map of the old index file, which must not shrink under them.
        let max = config.segment_index_bytes;
        let [index, index_new] = [
            segment_path(dir, base, "index"),
            segment_path(dir, base, "index.tmp"),
        ];
        let [time, time_new] = [
            segment_path(dir, base, "timeindex"),
            segment_path(dir, base, "timeindex.tmp"),
        ];
        OffsetIndex::create(index_new.clone(), base, offsets, max).context("write", &index_new)?;
        TimeIndex::create(time_new.clone(), base, times, max).context("write", &time_new)?;
        fs::rename(&index_new, &index).context("rename a new index to", &index)?;
        fs::rename(&time_new, &time).context("rename a new index to", &time)?;
        let end = Offset(i64::MAX);
        Ok(Self {
            base,
            path,
            file,
            size: AtomicU64::new(size),
            offsets: OffsetIndex::open(index.clone(), base, max, u64::MAX)
                .context("open", &index)?,
            times: TimeIndex::open(time.clone(), base, max, end).context("open", &time)?,
        })
    }

    /// Opens the log file and replaces its index files by these entries.
    pub fn reindexed(
        dir: &Path,
        base: Offset,
        size: u64,
        offsets: &[OffsetEntry],
        times: &[TimeEntry],
        config: &LogConfig,
    ) -> Result<Self, StorageError> {
        let (path, file) = open_log(dir, base)?;
        Self::with_indexes(dir, base, path, file, size, offsets, times, config)
    }

    /// Opens the log file with the index files as they are. `InvalidData` when an index cannot be of this segment (D-38), which
    /// ends at `end`, as far as that is known.
    pub fn open(
        dir: &Path,
        base: Offset,
        end: Option<Offset>,
        config: &LogConfig,
    ) -> Result<Self, StorageError> {
        let (path, file) = open_log(dir, base)?;
        let size = file.metadata().context("stat", &path)?.len();
        let max = config.segment_index_bytes;
        let [index, time] = [
            segment_path(dir, base, "index"),
            segment_path(dir, base, "timeindex"),
        ];
        let end = end.unwrap_or(Offset(i64::MAX));
        Ok(Self {
            base,
            path,
            file,
            size: AtomicU64::new(size),
            offsets: OffsetIndex::open(index.clone(), base, max, size).context("open", &index)?,
            times: TimeIndex::open(time.clone(), base, max, end).context("open", &time)?,
        })
    }

    pub fn base(&self) -> Offset {
        self.base
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    /// Bytes of whole batches.
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Writes at the end, without moving it. For the only writer.
    pub fn write(&self, mut parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        let mut at = self.size.load(Ordering::Relaxed);
        while !parts.is_empty() {
            match pwritev(&self.file, parts, at as i64) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    at += n as u64;
                    IoSlice::advance_slices(&mut parts, n);
                }
                Err(nix::Error::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Moves the end over bytes just written: readers see them from now on.
    pub fn advance(&self, bytes: u64) {
        let size = self.size.load(Ordering::Relaxed);
        self.size.store(size + bytes, Ordering::Release);
    }

    /// Cuts whatever the file holds behind the end: preallocated space, or part of a failed write.
    pub fn trim(&self) -> io::Result<()> {
        self.file.set_len(self.size())
    }

    /// Reads `buffer.len()` bytes at a position.
    pub fn read(&self, buffer: &mut [u8], position: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, position)
    }

    /// The offset-index entry at or below `offset`. An index is no more than a hint: one that cannot be read, because retention
    /// renamed it just now, costs a longer walk.
    pub fn floor(&self, offset: Offset) -> Option<OffsetEntry> {
        self.offsets.floor(offset).unwrap_or_else(|error| {
            tracing::debug!(path = %self.offsets.path().display(), %error, "an index cannot be read");
            None
        })
    }

    /// An offset whose batch begins at or before `position`; the base where the index knows none. A hint, as `floor`.
    pub fn offset_at(&self, position: u64) -> Offset {
        let known = self.offsets.before(position).unwrap_or_default();
        known.map_or(self.base, |entry| entry.last_offset)
    }

    /// Walks the batches from one that begins at or below `offset`. An index entry that does not name the batch it points to is
    /// not followed.
    pub fn scan_before(&self, offset: Offset) -> Result<BatchScanner<'_>, StorageError> {
        let Some(entry) = self.floor(offset) else {
            return Ok(self.scan(0));
        };
        let position = u64::from(entry.position);
        let mut header = [0; HEADER_LEN];
        if position + HEADER_LEN as u64 <= self.size() {
            self.read(&mut header, position)
                .context("read", &self.path)?;
        }
        let named = BatchHeader::parse(&header).is_ok_and(|h| h.last_offset() == entry.last_offset);
        Ok(self.scan(if named { position } else { 0 }))
    }

    /// Walks the batches from a position on.
    pub fn scan(&self, position: u64) -> BatchScanner<'_> {
        BatchScanner::new(&self.file, self.base, position, self.size())
    }

    /// Makes log and indexes durable.
    pub fn sync(&self) -> Result<(), StorageError> {
        self.file.sync_data().context("sync", &self.path)?;
        self.offsets.sync().context("sync", self.offsets.path())?;
        self.times.sync().context("sync", self.times.path())
    }

    /// Renames the files to `.deleted`, so that no restart takes them for data, and hands them over for unlinking (D-53).
    pub fn doom(&self, dir: &Path, doomed: &mut files::Doomed) -> Result<(), StorageError> {
        for extension in ["log", "index", "timeindex", "snapshot"] {
            let path = segment_path(dir, self.base, extension);
            let deleted = segment_path(dir, self.base, &format!("{extension}.deleted"));
            if files::rename_if_present(&path, &deleted)? {
                doomed.push(deleted);
            }
        }
        Ok(())
    }
}

fn open_log(dir: &Path, base: Offset) -> Result<(PathBuf, File), StorageError> {
    let path = segment_path(dir, base, "log");
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .context("open", &path)?;
    Ok((path, file))
}
