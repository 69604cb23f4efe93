//! Opening a log: what is trusted, what is read again, what is mended, and what is refused (D-20 to D-27, E-6).
//!
//! After a clean shutdown only file sizes, index ends and the tail of the newest segment are looked at, and the CRCs of the first
//! some megabytes of the directory, since a person may have been at the files. After an unclean one every
//! segment that reaches to the recovery point or beyond is read whole and its indexes are made anew. What is not right is judged by
//! this table; "below" means: an offset below the recovery point, so it had been made durable.
//!
//! | where the first bad byte lies        | below       | at or above                                          |
//! |--------------------------------------|-------------|------------------------------------------------------|
//! | newest segment, or its missing end   | damaged     | cut there, the rest kept under `truncated/`          |
//! | closed segment, a write cut short    | damaged     | cut there, and the segments after it, all kept aside |
//! | closed segment, anything else        | damaged     | damaged                                              |
//!
//! That is for a machine that may have lost its power. Where more is known to have survived ([`Survived`]), nothing but a write
//! under way can be missing, and it is the last thing in the log: a fault in a closed segment, a missing segment, a good batch
//! behind a bad one, a first segment above the noted log start, or an end below what is noted as committed or written is damage, too. So is a batch whose bytes are all there and
//! whose CRC does not match, if everything written survived: a process that dies leaves the first bytes of its last write.
//!
//! A damaged log is not opened: nothing of it is lost, and the broker can set it aside and fetch it anew from the leader.

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};

use arc_swap::ArcSwap;
use epoka_proto::epochs::{EpochHistory, EpochStart};
use epoka_proto::ids::{Millis, Offset, TopicId};

use crate::append::Active;
use crate::archive::{Archive, CutReason};
use crate::checkpoint::CheckpointError;
use crate::config::LogConfig;
use crate::dir_state::Place;
use crate::end_note::EndNote;
use crate::epoch_file;
use crate::files::{self, Context, StorageError};
use crate::flush::FlushState;
use crate::partition_log::{PartitionLog, Shared};
use crate::recover_segments::{self, Known, Loaded};
use crate::replay;
use crate::segment::{Segment, segment_path};
use crate::snapshot;
use crate::survived::Survived;
use crate::truncate::Truncation;

/// Why a log cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A file operation failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// A file that must be whole is not. Set the partition aside and fetch it anew from its leader.
    #[error(transparent)]
    Damaged(Damage),
    /// The directory is of another topic that had the same name (D-2).
    #[error("the directory belongs to topic {found}: a stray log")]
    OtherTopic {
        /// Whose it is.
        found: TopicId,
    },
    /// `partition.metadata` cannot be understood, so nobody knows whose the data is.
    #[error("its partition.metadata cannot be understood")]
    Unidentified,
}

/// Where a log is damaged.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{} is damaged at byte {position}: {what}; the log can be read up to offset {readable}", file.display())]
pub struct Damage {
    /// The file.
    pub file: PathBuf,
    /// The first bad byte.
    pub position: u64,
    /// What lies there.
    pub what: String,
    /// The offset after the last good batch before it.
    pub readable: Offset,
}

/// Something that was mended when a log was opened. Displays as a sentence for the timeline.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Repair {
    /// The end was not whole, and was cut.
    CutTail {
        /// The segment's log file.
        file: PathBuf,
        /// What was wrong with it.
        what: String,
        /// How many bytes went.
        bytes: u64,
        /// The log end now.
        end: Offset,
        /// Where they are kept.
        kept: Option<PathBuf>,
    },
    /// An index was missing, or could not be of its segment, and was made anew.
    Reindexed {
        /// The segment's log file.
        file: PathBuf,
        /// Why.
        why: String,
    },
    /// The leader-epoch file was missing or wrong, and was made anew from the batches.
    EpochsRebuilt {
        /// Why.
        why: String,
    },
    /// The whole log ended below its noted start, and was dropped (D-24).
    Emptied {
        /// Where it had ended.
        end: Offset,
        /// Where it starts now.
        start: Offset,
        /// Where what it held is kept.
        kept: Option<PathBuf>,
    },
}

impl fmt::Display for Repair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |file: &PathBuf| {
            file.file_name()
                .map(|n| n.to_string_lossy().into_owned())
                .unwrap_or_default()
        };
        match self {
            Self::CutTail {
                file,
                what,
                bytes,
                end,
                kept,
            } => {
                write!(
                    f,
                    "cut {bytes} bytes ({what}) from the end of {}; the log ends at {end}",
                    name(file)
                )?;
                match kept {
                    Some(path) => write!(f, "; they are kept in {}", path.display()),
                    None => Ok(()),
                }
            }
            Self::Reindexed { file, why } => {
                write!(f, "rebuilt the indexes of {}: {why}", name(file))
            }
            Self::EpochsRebuilt { why } => {
                write!(f, "rebuilt the leader-epoch file from the batches: {why}")
            }
            Self::Emptied { end, start, kept } => {
                write!(
                    f,
                    "emptied the log: it ended at {end}, below its noted start {start}"
                )?;
                match kept {
                    Some(path) => write!(f, "; what it held is kept in {}", path.display()),
                    None => Ok(()),
                }
            }
        }
    }
}

/// Opens the log of a directory that exists. `clean`: it was closed cleanly, or is new.
pub(crate) fn open(
    place: Place,
    config: LogConfig,
    clean: bool,
    now_ms: Millis,
) -> Result<(PartitionLog, Vec<Repair>), OpenError> {
    sweep(&place)?;
    let mut repairs = Vec::new();
    let recovery_point = place.state.recovery_point(&place.partition);
    let survived = place.state.survived.get();
    let reached = match clean {
        true => recovery_point,
        false => place.state.reached(&place.partition)?,
    };
    let known = Known {
        clean,
        recovery_point,
        reached,
    };
    let mut loaded = recover_segments::load(&place, &config, known, &mut repairs)?;
    let noted_start = place.state.log_start(&place.partition);
    let ended = match clean {
        true => Some(loaded.end),
        false => place.state.written(&place.partition)?,
    };
    if loaded.end < noted_start && ended.is_some_and(|end| end < noted_start) {
        return Err(OpenError::Damaged(overtaken(&place, &loaded, noted_start)));
    }
    if clean || survived != Survived::Durable {
        check_first(&loaded, noted_start).map_err(OpenError::Damaged)?;
    }
    if loaded.end < reached && loaded.end >= noted_start {
        return Err(OpenError::Damaged(cut_short(&place, &loaded, reached)));
    }
    if loaded.end < noted_start || loaded.segments.is_empty() {
        loaded = empty(&place, &config, loaded, noted_start, &mut repairs)?;
    }
    let Loaded {
        segments,
        end,
        transitions,
    } = loaded;
    let segments: Vec<Arc<Segment>> = segments.into_iter().map(Arc::new).collect();
    let start = noted_start.max(segments[0].base());
    let epochs = load_epochs(&place, &segments, &transitions, start, end, &mut repairs)?;
    let producers = load_producers(&place, &config, &segments, end, now_ms)?;
    let newest = segments.last().expect("a log has a segment").clone();
    let (active, active_end) = Active::resume(newest, &config, now_ms)?;
    assert_eq!(
        active_end, end,
        "two walks over the newest segment end alike"
    );
    let end_note = EndNote::open(&place.state.root, &place.partition, end)?;
    let log = PartitionLog {
        shared: Arc::new(Shared {
            partition: place.partition.clone(),
            segments: ArcSwap::from_pointee(segments),
            cuts: AtomicU64::new(0),
            start: AtomicI64::new(start.0),
            end: AtomicI64::new(end.0),
            failed: AtomicBool::new(false),
        }),
        place,
        config,
        active,
        epochs: Arc::new(epochs),
        producers,
        // Never moved up without a sync: a second crash would find bytes that were never written (KAFKA-10101).
        recovery_point: if clean { end } else { recovery_point.min(end) },
        flush: FlushState::opened(),
        end_note,
    };
    Ok((log, repairs))
}

/// A log whose start is noted behind its end, where nothing of it can be missing: one of the two is wrong.
fn overtaken(place: &Place, loaded: &Loaded, noted_start: Offset) -> Damage {
    let what = format!("it ends here, below offset {noted_start}, which is noted as its start");
    Damage {
        what,
        ..cut_short(place, loaded, noted_start)
    }
}

/// A log that begins after its noted start has lost its first segments: the start is noted before segments go.
fn check_first(loaded: &Loaded, noted_start: Offset) -> Result<(), Damage> {
    match loaded.segments.first() {
        Some(first) if first.base() > noted_start => Err(Damage {
            file: first.path().to_owned(),
            position: 0,
            what: format!(
                "the log begins here, and what came before, from offset {noted_start} on, is missing"
            ),
            readable: noted_start,
        }),
        _ => Ok(()),
    }
}

/// A log that ends before what it had reached for certain has lost data, though what there is of it is whole.
fn cut_short(place: &Place, loaded: &Loaded, reached: Offset) -> Damage {
    let newest = loaded.segments.last();
    Damage {
        file: newest.map_or_else(|| place.dir.clone(), |s| s.path().to_owned()),
        position: newest.map_or(0, Segment::size),
        what: format!("it ends here, though the log had reached offset {reached} for certain"),
        readable: loaded.end,
    }
}

/// Removes what earlier lives left behind: files renamed for deletion, temporary files, indexes without their log (D-20, D-21).
fn sweep(place: &Place) -> Result<(), StorageError> {
    for entry in fs::read_dir(&place.dir).context("list", &place.dir)? {
        let path = entry.context("list", &place.dir)?.path();
        let extension = path
            .extension()
            .and_then(|e| e.to_str())
            .unwrap_or_default();
        let orphan =
            matches!(extension, "index" | "timeindex") && !path.with_extension("log").exists();
        if matches!(extension, "deleted" | "tmp") || orphan {
            files::remove_if_present(&path)?;
        }
    }
    Ok(())
}

/// A log without a segment gets one at its noted start; one that ends below that start is dropped first (D-24, KAFKA-10101).
fn empty(
    place: &Place,
    config: &LogConfig,
    loaded: Loaded,
    start: Offset,
    repairs: &mut Vec<Repair>,
) -> Result<Loaded, StorageError> {
    if !loaded.segments.is_empty() {
        let held = loaded.segments.iter().any(|s| s.size() > 0);
        let kept = held.then(|| keep_all(place, &loaded)).transpose()?;
        repairs.push(Repair::Emptied {
            end: loaded.end,
            start,
            kept,
        });
    }
    let mut doomed = files::Doomed::default();
    for segment in loaded.segments.iter().rev() {
        segment.doom(&place.dir, &mut doomed)?;
    }
    doomed.unlink()?;
    Ok(Loaded {
        segments: vec![Segment::create(&place.dir, start, config)?],
        end: start,
        transitions: Vec::new(),
    })
}

/// Copies all of a log to `truncated/`. The note of its start may be the thing that is wrong.
fn keep_all(place: &Place, loaded: &Loaded) -> Result<PathBuf, StorageError> {
    let (end, partition) = (loaded.end, &place.partition);
    let start = loaded.segments.first().map_or(end, Segment::base);
    let mut archive = Archive::begin(&place.state.root, partition, end, start)?;
    for segment in &loaded.segments {
        archive.copy_tail(segment.path(), 0, segment.size(), segment.base())?;
    }
    let cut = Truncation::nothing(end);
    archive.finish(partition, place.topic_id, CutReason::BelowStart, &cut)
}

/// Reads the leader-epoch file, and mends it by what the batches say (E-6, H-63, H-64, H-6F).
fn load_epochs(
    place: &Place,
    segments: &[Arc<Segment>],
    transitions: &[EpochStart],
    start: Offset,
    end: Offset,
    repairs: &mut Vec<Repair>,
) -> Result<EpochHistory, OpenError> {
    let read = match epoch_file::read_epochs(&place.dir) {
        Ok(Some(history)) => Ok(history),
        Ok(None) => Err("there was none".to_owned()),
        Err(CheckpointError::Storage(error)) => return Err(error.into()),
        Err(error) => Err(error.to_string()),
    };
    let stored = read.as_ref().ok().cloned();
    let holds_batches = segments.iter().any(|s| s.size() > 0);
    let mut history = match read {
        Ok(history) => {
            complete(history, transitions).ok_or("it contradicted the batches".to_owned())
        }
        Err(why) => Err(why),
    }
    .or_else(|why| {
        if holds_batches {
            repairs.push(Repair::EpochsRebuilt { why });
        }
        replay::epochs(segments).map_err(|error| unreadable(error, start))
    })?;
    // An empty log keeps the epoch that begins at its end: it is all it knows of what was there.
    history.truncate_from_end(if start < end { end } else { end + 1 });
    history.truncate_from_start(start);
    if stored.as_ref() != Some(&history) && (stored.is_some() || holds_batches) {
        epoch_file::write_epochs(&place.dir, &history)?;
    }
    Ok(history)
}

/// Adds the epochs of batches that were read. `None` when an entry contradicts a batch (I-14).
fn complete(mut history: EpochHistory, transitions: &[EpochStart]) -> Option<EpochHistory> {
    for batch in transitions {
        if history.latest().is_none_or(|latest| batch.epoch > latest) {
            history.assign(batch.epoch, batch.start);
        }
    }
    let agrees = |batch: &EpochStart| history.epoch_at(batch.start) == Some(batch.epoch);
    transitions.iter().all(agrees).then_some(history)
}

/// The producers' state at the end, from the newest snapshot and the batches after it; snapshots that belong to nothing go.
fn load_producers(
    place: &Place,
    config: &LogConfig,
    segments: &[Arc<Segment>],
    end: Offset,
    now_ms: Millis,
) -> Result<crate::producers::ProducerStates, OpenError> {
    let dir = &place.dir;
    let remove = |offset: Offset| files::remove_if_present(&segment_path(dir, offset, "snapshot"));
    for offset in snapshot::list_snapshots(dir)?
        .into_iter()
        .filter(|o| *o > end)
    {
        remove(offset)?;
    }
    let replayed = replay::producers(dir, segments, end).map_err(|error| unreadable(error, end));
    let (mut states, newest) = replayed?;
    states.expire(now_ms, config.producer_id_expiration_ms);
    for offset in snapshot::list_snapshots(dir)? {
        let of_segment = segments.iter().any(|s| s.base() == offset);
        if !of_segment && Some(offset) != newest {
            remove(offset)?;
        }
    }
    if newest.is_none_or(|offset| offset < end) && !states.is_empty() {
        snapshot::write_snapshot(dir, end, &states)?;
    }
    Ok(states)
}

/// A walk over segments that were not read whole met bytes that are no batch: that is damage, not a failing disk.
fn unreadable(error: StorageError, readable: Offset) -> OpenError {
    if error.source.kind() != std::io::ErrorKind::InvalidData {
        return OpenError::Storage(error);
    }
    OpenError::Damaged(Damage {
        what: error.source.to_string(),
        file: error.path,
        position: 0,
        readable,
    })
}
