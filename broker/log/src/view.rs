//! Reading a log without a lock: whole batches from an offset on, as bytes nobody parses further than their headers. A reader
//! works on the segments as they were when it began; the writer only ever adds to them, or replaces them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use epoka_proto::batch::{BatchError, BatchHeader, HEADER_LEN};
use epoka_proto::ids::{Offset, TopicPartition};

use crate::files::{Context, StorageError};
use crate::partition_log::Shared;
use crate::segment::Segment;

/// How much more than asked for is read, so that the walk from an index entry to the first wanted batch costs no second read.
const LEAD_IN: u64 = 8 * 1024;

/// Why a read failed.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The disk failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// What lies where a batch should begin is none.
    #[error("{} is damaged at byte {position}: {what}", file.display())]
    Damaged {
        /// The segment's log file.
        file: std::path::PathBuf,
        /// Where in it.
        position: u64,
        /// What is wrong.
        what: String,
    },
}

/// A reader's handle on a log.
#[derive(Clone, Debug)]
pub struct LogView {
    shared: Arc<Shared>,
}

impl LogView {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Whose log it is.
    pub fn partition(&self) -> &TopicPartition {
        &self.shared.partition
    }

    /// The first offset kept, at this moment.
    pub fn start(&self) -> Offset {
        self.shared.start()
    }

    /// The next offset to be written, at this moment.
    pub fn end(&self) -> Offset {
        self.shared.end()
    }

    /// Bytes of all segments, at this moment.
    pub fn size(&self) -> u64 {
        self.segments().iter().map(|s| s.size()).sum()
    }

    pub(crate) fn segments(&self) -> Arc<Vec<Arc<Segment>>> {
        self.shared.segments.load_full()
    }

    /// Runs a read on the segments as they are, and keeps its result only if the log was not cut meanwhile: the bytes could be
    /// some of the old batches and some of those that took their place.
    pub(crate) fn undisturbed<T, E>(
        &self,
        read: impl FnOnce(&[Arc<Segment>]) -> Result<T, E>,
    ) -> Option<Result<T, E>> {
        let before = self.shared.cuts.load(Ordering::Acquire);
        if before % 2 == 1 {
            return None;
        }
        let result = read(&self.segments());
        std::sync::atomic::fence(Ordering::Acquire);
        (self.shared.cuts.load(Ordering::Relaxed) == before).then_some(result)
    }

    /// Reads whole batches from the one that holds `from` up to `bound`, which is a batch boundary: at most `max_bytes` of
    /// them, but with `at_least_one` never less than one batch, whatever its size. The first batch may begin before `from`.
    ///
    /// Empty when there is nothing to read at `from` (any more): it is at or beyond `bound`, or the log was cut, or its start
    /// raised, since the caller was allowed to read. Asking again tells which.
    pub fn read(
        &self,
        from: Offset,
        bound: Offset,
        max_bytes: usize,
        at_least_one: bool,
    ) -> Result<Bytes, ReadError> {
        if from >= bound {
            return Ok(Bytes::new());
        }
        let read = self.undisturbed(|segments| {
            let index = segments.partition_point(|s| s.base() <= from);
            match index.checked_sub(1) {
                Some(index) => read_segment(&segments[index], from, bound, max_bytes, at_least_one),
                None => Ok(Bytes::new()),
            }
        });
        read.unwrap_or_else(|| Ok(Bytes::new()))
    }
}

/// Reads one chunk that begins at the index entry below `from`, and cuts from it what was asked for.
fn read_segment(
    segment: &Segment,
    from: Offset,
    bound: Offset,
    max_bytes: usize,
    at_least_one: bool,
) -> Result<Bytes, ReadError> {
    let entry = segment.floor(from);
    let first = entry.map_or(0, |e| u64::from(e.position));
    let walk = Walk {
        segment,
        from,
        bound,
        max_bytes,
        at_least_one,
    };
    match walk.read(first, entry.map(|e| e.last_offset)) {
        // Perhaps only the index is wrong.
        Err(ReadError::Damaged { position, .. }) if position == first && first > 0 => {
            walk.read(0, None)
        }
        result => result,
    }
}

/// What is wanted of one segment.
struct Walk<'a> {
    segment: &'a Segment,
    from: Offset,
    bound: Offset,
    max_bytes: usize,
    at_least_one: bool,
}

impl Walk<'_> {
    /// Walks from the batch at `position`, whose last offset is `named` if an index says so.
    fn read(&self, mut position: u64, mut named: Option<Offset>) -> Result<Bytes, ReadError> {
        let segment = self.segment;
        let size = segment.size();
        let chunk = Chunk::read(segment, position, size, self.max_bytes as u64 + LEAD_IN)?;
        // Where the wanted batches begin in the chunk, and how many bytes they are.
        let mut begin = None;
        let mut length = 0;
        let mut next_offset = None;
        while position < size {
            let Some(header) = chunk.header(segment, position, size)? else {
                break;
            };
            let expected = match (named.take(), next_offset) {
                (Some(last), _) => header.last_offset() == last,
                (None, Some(next)) => header.base_offset == next,
                (None, None) => header.base_offset == segment.base(),
            };
            if !expected || header.size as u64 > size - position {
                if begin.is_some() {
                    break;
                }
                let what = format!("no batch of offset {} or before it", self.from);
                return Err(damaged(segment, position, &what));
            }
            next_offset = Some(header.next_offset());
            if header.next_offset() > self.bound {
                break;
            }
            if header.next_offset() > self.from {
                let start = *begin.get_or_insert(position);
                let fits = length + header.size <= self.max_bytes;
                if !fits && (length > 0 || !self.at_least_one) {
                    break;
                }
                length += header.size;
                if !fits {
                    return Ok(chunk.cut(segment, start, length)?);
                }
            }
            position += header.size as u64;
        }
        match begin {
            Some(start) if length > 0 => Ok(chunk.cut(segment, start, length)?),
            _ => Ok(Bytes::new()),
        }
    }
}

fn damaged(segment: &Segment, position: u64, what: &str) -> ReadError {
    ReadError::Damaged {
        file: segment.path().to_owned(),
        position,
        what: what.to_owned(),
    }
}

/// Part of a segment in memory.
struct Chunk {
    at: u64,
    bytes: Bytes,
}

impl Chunk {
    fn read(segment: &Segment, at: u64, end: u64, wanted: u64) -> Result<Self, StorageError> {
        let length = (end - at.min(end)).min(wanted) as usize;
        let mut bytes = vec![0; length];
        segment
            .read(&mut bytes, at)
            .context("read", segment.path())?;
        Ok(Self {
            at,
            bytes: bytes.into(),
        })
    }

    /// The header at a position. One that lies beyond the chunk, because the batches before it are large, is read by itself;
    /// `None` when the chunk ends within it.
    fn header(
        &self,
        segment: &Segment,
        position: u64,
        end: u64,
    ) -> Result<Option<BatchHeader>, ReadError> {
        let offset = usize::try_from(position - self.at).unwrap_or(usize::MAX);
        let mut alone = [0; HEADER_LEN];
        let bytes = match self.bytes.get(offset..) {
            Some(rest) if rest.len() >= HEADER_LEN => rest,
            _ if end - position >= HEADER_LEN as u64 => {
                segment
                    .read(&mut alone, position)
                    .context("read", segment.path())?;
                &alone
            }
            _ => &[],
        };
        match BatchHeader::parse(bytes) {
            Ok(header) => Ok(Some(header)),
            Err(BatchError::Incomplete { .. }) => Ok(None),
            Err(error) => Err(damaged(segment, position, &error.to_string())),
        }
    }

    /// Bytes of the chunk, or of the file where they reach beyond it.
    fn cut(self, segment: &Segment, position: u64, length: usize) -> Result<Bytes, StorageError> {
        let offset = usize::try_from(position - self.at).unwrap_or(usize::MAX);
        if offset
            .checked_add(length)
            .is_some_and(|end| end <= self.bytes.len())
        {
            return Ok(self.bytes.slice(offset..offset + length));
        }
        let end = position + length as u64;
        Ok(Self::read(segment, position, end, length as u64)?.bytes)
    }
}
