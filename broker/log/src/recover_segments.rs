//! The segments' part of opening a log: which are read whole, and what becomes of bytes that are no batch. The table that decides
//! is in `recover`.

use std::fs::File;
use std::io;
use std::path::PathBuf;

use epoka_proto::epochs::EpochStart;
use epoka_proto::ids::Offset;

use crate::archive::{Archive, CutReason};
use crate::config::LogConfig;
use crate::dir_state::Place;
use crate::files::{self, Context, StorageError};
use crate::offset_index::OffsetEntry;
use crate::recover::{Damage, OpenError, Repair};
use crate::scan::{BatchScanner, Fault, FaultKind, Step, is_torn, later_batch};
use crate::segment::{Segment, list_segments, segment_path};
use crate::survived::Survived;
use crate::time_index::TimeEntry;
use crate::truncate::Truncation;

/// The segments of a log, whole and in order.
pub(crate) struct Loaded {
    pub segments: Vec<Segment>,
    /// The log end.
    pub end: Offset,
    /// Where the leader epoch changed, in the batches that were read.
    pub transitions: Vec<EpochStart>,
}

/// What is known of a log before it is looked at.
#[derive(Clone, Copy)]
pub(crate) struct Known {
    /// It was closed cleanly, or is new.
    pub clean: bool,
    /// Everything below had been made durable.
    pub recovery_point: Offset,
    /// Everything below had been written and is not to be missing; at least the recovery point.
    pub reached: Offset,
}

/// What a walk over one segment found.
struct Walk {
    offsets: Vec<OffsetEntry>,
    times: Vec<TimeEntry>,
    transitions: Vec<EpochStart>,
    /// Bytes of good batches from the start of the file.
    good: u64,
    /// The offset after them.
    end: Offset,
    fault: Option<Fault>,
}

/// Loads every segment of a partition's directory.
pub(crate) fn load(
    place: &Place,
    config: &LogConfig,
    known: Known,
    repairs: &mut Vec<Repair>,
) -> Result<Loaded, OpenError> {
    let bases = list_segments(&place.dir)?;
    let mut loader = Loader {
        place,
        config,
        known,
        repairs,
        loaded: Loaded {
            segments: Vec::new(),
            end: bases.first().copied().unwrap_or_default(),
            transitions: Vec::new(),
        },
    };
    for (index, base) in bases.iter().enumerate() {
        let rest = &bases[index..];
        if *base != loader.loaded.end {
            loader.bridge(rest)?;
            break;
        }
        if !loader.load_segment(rest)? {
            break;
        }
    }
    Ok(loader.loaded)
}

struct Loader<'a> {
    place: &'a Place,
    config: &'a LogConfig,
    known: Known,
    repairs: &'a mut Vec<Repair>,
    loaded: Loaded,
}

impl Loader<'_> {
    /// Loads the first of the remaining segments. `false`: it was cut, and the others are gone.
    fn load_segment(&mut self, rest: &[Offset]) -> Result<bool, OpenError> {
        let next = rest.get(1).copied();
        let durable = next.is_some_and(|next| next <= self.known.recovery_point);
        if !self.known.clean && !durable {
            return self.load_whole(rest);
        }
        match self.open_trusting(rest[0], next)? {
            Ok((segment, end)) => {
                let verified = segment.size() > 0 && self.place.state.may_verify(segment.size());
                if verified && !self.known.clean {
                    return self.load_whole(rest);
                }
                if verified {
                    self.verify(rest, segment.size())?;
                }
                self.loaded.segments.push(segment);
                self.loaded.end = end;
                Ok(true)
            }
            // Not as a clean shutdown or a flush left it: read it, and see.
            Err(why) => {
                self.repairs.push(Repair::Reindexed {
                    file: segment_path(&self.place.dir, rest[0], "log"),
                    why,
                });
                self.load_whole(rest)
            }
        }
    }

    /// Opens a segment by its indexes, and walks from the last index entry to the end, which must be where the next segment
    /// begins. `Ok(Err(why))`: it is not as it should be.
    fn open_trusting(
        &self,
        base: Offset,
        next: Option<Offset>,
    ) -> Result<Result<(Segment, Offset), String>, StorageError> {
        let segment = match Segment::open(&self.place.dir, base, next, self.config) {
            Ok(segment) => segment,
            Err(error)
                if matches!(
                    error.source.kind(),
                    io::ErrorKind::InvalidData | io::ErrorKind::NotFound
                ) =>
            {
                return Ok(Err(error.to_string()));
            }
            Err(error) => return Err(error),
        };
        let last = segment
            .offsets
            .last()
            .context("read", segment.offsets.path())?;
        let mut scanner = segment.scan(last.map_or(0, |e| u64::from(e.position)));
        let mut end = base;
        let mut indexed = last.map(|e| e.last_offset);
        loop {
            match scanner.step().context("read", segment.path())? {
                Step::Batch(batch) => {
                    end = batch.header.next_offset();
                    if indexed
                        .take()
                        .is_some_and(|offset| offset != batch.header.last_offset())
                    {
                        return Ok(Err("its last entry names another batch".into()));
                    }
                }
                Step::Fault(fault) => {
                    return Ok(Err(format!("{} at byte {}", fault.kind, fault.position)));
                }
                Step::End => break,
            }
        }
        let times = segment.times.last().context("read", segment.times.path())?;
        if times.is_some_and(|t| t.offset >= end) {
            return Ok(Err("its time index reaches beyond its end".into()));
        }
        match next {
            Some(next) if next != end => Ok(Err(format!(
                "it ends at {end}, the next one begins at {next}"
            ))),
            _ => Ok(Ok((segment, end))),
        }
    }

    /// Reads a segment whole, to find damage.
    fn verify(&self, rest: &[Offset], size: u64) -> Result<(), OpenError> {
        let path = segment_path(&self.place.dir, rest[0], "log");
        let file = File::open(&path).context("open", &path)?;
        let walk = walk(&file, rest[0], size, self.config).context("read", &path)?;
        match &walk.fault {
            Some(fault) => self.judge(rest, fault, walk.end, size),
            None => Ok(()),
        }
    }

    /// Reads a segment whole and makes its indexes anew (D-22). `false`: it was cut, and the others are gone.
    fn load_whole(&mut self, rest: &[Offset]) -> Result<bool, OpenError> {
        let base = rest[0];
        let path = segment_path(&self.place.dir, base, "log");
        let file = File::open(&path).context("open", &path)?;
        let size = file.metadata().context("stat", &path)?.len();
        let walk = walk(&file, base, size, self.config).context("read", &path)?;
        drop(file);
        if let Some(fault) = &walk.fault {
            self.judge(rest, fault, walk.end, size)?;
        }
        let fault = walk.fault.clone();
        if let Some(fault) = &fault {
            self.cut(rest, fault, walk.end, size)?;
        }
        let dir = &self.place.dir;
        let segment = Segment::reindexed(
            dir,
            base,
            walk.good,
            &walk.offsets,
            &walk.times,
            self.config,
        )?;
        if fault.is_some() || size > walk.good {
            segment.trim().context("truncate", &path)?;
        }
        self.loaded.segments.push(segment);
        self.loaded.end = walk.end;
        self.loaded.transitions.extend(walk.transitions);
        Ok(fault.is_none())
    }

    /// The table of `recover`: may the log be cut here?
    fn judge(
        &self,
        rest: &[Offset],
        fault: &Fault,
        readable: Offset,
        size: u64,
    ) -> Result<(), OpenError> {
        let path = segment_path(&self.place.dir, rest[0], "log");
        let newest = rest.len() == 1;
        let file = File::open(&path).context("open", &path)?;
        let may_be_cut = match self.survived() {
            _ if readable < self.known.reached => false,
            Survived::Durable => newest || is_torn(&file, size, fault).context("read", &path)?,
            // A batch whose bytes are all there was written whole.
            Survived::Written if fault.kind == FaultKind::Checksum => false,
            Survived::AllButLastWrite | Survived::Written => {
                let later = || later_batch(&file, size, fault, readable).context("read", &path);
                newest && later()?.is_none()
            }
        };
        if may_be_cut {
            return Ok(());
        }
        Err(self.damaged(path, fault.position, fault.kind.to_string(), readable))
    }

    fn survived(&self) -> Survived {
        self.place.state.survived.get()
    }

    fn damaged(&self, file: PathBuf, position: u64, what: String, readable: Offset) -> OpenError {
        OpenError::Damaged(Damage {
            file,
            position,
            what,
            readable,
        })
    }

    /// A segment does not begin where the one before it ended. If it began later, and nothing there was durable, the end of the
    /// earlier one never reached the disk, and what follows is of no use.
    fn bridge(&mut self, rest: &[Offset]) -> Result<(), OpenError> {
        let (end, base) = (self.loaded.end, rest[0]);
        let path = segment_path(&self.place.dir, base, "log");
        let durable_only = self.survived() == Survived::Durable;
        if self.known.clean || base < end || end < self.known.reached || !durable_only {
            let what = format!("the segment before it ends at offset {end}");
            return Err(self.damaged(path, 0, what, end));
        }
        let what = format!("the segment before {base} ends at {end}");
        let bytes = sizes(&self.place.dir, rest)?;
        let kept = self.keep(rest, None, end)?;
        self.drop_segments(rest)?;
        self.repairs.push(Repair::CutTail {
            file: path,
            what,
            bytes,
            end,
            kept,
        });
        Ok(())
    }

    /// Keeps aside what is about to be cut, drops the later segments, and reports. The segment itself is shortened by the caller.
    fn cut(
        &mut self,
        rest: &[Offset],
        fault: &Fault,
        end: Offset,
        size: u64,
    ) -> Result<(), OpenError> {
        let path = segment_path(&self.place.dir, rest[0], "log");
        let later = sizes(&self.place.dir, &rest[1..])?;
        if later == 0 && is_zero(&path, fault.position).context("read", &path)? {
            // Preallocated, or extended but never written: nothing to keep, nothing to tell.
            return Ok(self.drop_segments(&rest[1..])?);
        }
        let kept = self.keep(rest, Some((fault.position, size)), end)?;
        self.drop_segments(&rest[1..])?;
        self.repairs.push(Repair::CutTail {
            file: path,
            what: fault.kind.to_string(),
            bytes: size - fault.position + later,
            end,
            kept,
        });
        Ok(())
    }

    /// Copies the end of the first of these segments (all of it without `tail`) and the others whole to `truncated/`.
    fn keep(
        &self,
        rest: &[Offset],
        tail: Option<(u64, u64)>,
        end: Offset,
    ) -> Result<Option<PathBuf>, StorageError> {
        let place = self.place;
        let keep = || {
            let mut archive = Archive::begin(&place.state.root, &place.partition, end, end)?;
            for (index, base) in rest.iter().enumerate() {
                let path = segment_path(&place.dir, *base, "log");
                let (position, name) = match tail {
                    Some((position, _)) if index == 0 => (position, end),
                    _ => (0, *base),
                };
                let size = std::fs::metadata(&path).context("stat", &path)?.len();
                archive.copy_tail(&path, position, size, name)?;
            }
            let cut = Truncation::nothing(end);
            archive.finish(&place.partition, place.topic_id, CutReason::Torn, &cut)
        };
        Ok(keep()
            .inspect_err(|error| tracing::warn!(partition = %place.partition, %error, "the cut tail cannot be kept"))
            .ok())
    }

    /// Removes whole segments, newest first.
    fn drop_segments(&self, bases: &[Offset]) -> Result<(), StorageError> {
        for base in bases.iter().rev() {
            for extension in ["log", "index", "timeindex", "snapshot"] {
                files::remove_if_present(&segment_path(&self.place.dir, *base, extension))?;
            }
        }
        Ok(())
    }
}

/// The sizes of these segments' log files.
fn sizes(dir: &std::path::Path, bases: &[Offset]) -> Result<u64, StorageError> {
    let size = |base: &Offset| {
        let path = segment_path(dir, *base, "log");
        Ok(std::fs::metadata(&path).context("stat", &path)?.len())
    };
    bases.iter().map(size).sum()
}

/// Whether a file holds only zeros from `position` on.
fn is_zero(path: &std::path::Path, position: u64) -> io::Result<bool> {
    use std::io::{Read, Seek, SeekFrom};
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(position))?;
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(true),
            n if buffer[..n].iter().any(|b| *b != 0) => return Ok(false),
            _ => {}
        }
    }
}

/// Reads all batches of a segment, checksums included, and derives what its indexes should hold.
fn walk(file: &File, base: Offset, size: u64, config: &LogConfig) -> io::Result<Walk> {
    let mut scanner = BatchScanner::new(file, base, 0, size).with_checksums();
    let mut walk = Walk {
        offsets: Vec::new(),
        times: Vec::new(),
        transitions: Vec::new(),
        good: 0,
        end: base,
        fault: None,
    };
    let mut largest: Option<TimeEntry> = None;
    let mut last_indexed = 0;
    loop {
        match scanner.step()? {
            Step::Batch(batch) => {
                let header = &batch.header;
                if largest.is_none_or(|l| header.max_timestamp > l.timestamp) {
                    largest = Some(TimeEntry {
                        timestamp: header.max_timestamp,
                        offset: header.last_offset(),
                    });
                }
                let position = u32::try_from(batch.position);
                let Some(position) = position.ok().filter(|p| *p <= i32::MAX as u32) else {
                    let (position, kind) = (batch.position, FaultKind::Span);
                    walk.fault = Some(Fault { position, kind });
                    return Ok(walk);
                };
                if batch.position - last_indexed > config.index_interval_bytes as u64 {
                    walk.offsets.push(OffsetEntry {
                        last_offset: header.last_offset(),
                        position,
                    });
                    last_indexed = batch.position;
                    add_time(&mut walk.times, largest);
                }
                if let Some(epoch) = header.epoch()
                    && walk.transitions.last().is_none_or(|t| t.epoch != epoch)
                {
                    walk.transitions.push(EpochStart {
                        epoch,
                        start: header.base_offset,
                    });
                }
                walk.good = batch.position + header.size as u64;
                walk.end = header.next_offset();
            }
            Step::End => break,
            Step::Fault(fault) => {
                walk.fault = Some(fault);
                break;
            }
        }
    }
    add_time(&mut walk.times, largest);
    Ok(walk)
}

fn add_time(times: &mut Vec<TimeEntry>, largest: Option<TimeEntry>) {
    if let Some(largest) = largest
        && largest.timestamp > times.last().map_or(-1, |t| t.timestamp)
    {
        times.push(largest);
    }
}
