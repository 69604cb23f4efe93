//! A data directory: its lock and identity, the partitions in it, its checkpoint files and its clean-shutdown marker, and where
//! a partition's files go when the partition leaves. What is inside a partition's directory is `PartitionLog`'s.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use epoka_proto::ids::{BrokerEpoch, BrokerId, Millis, Offset, TopicId, TopicPartition};
use uuid::Uuid;

use crate::config::LogConfig;
use crate::dir_state::{DirState, Place};
use crate::files::{self, Context, StorageError};
use crate::meta::{self, META_PROPERTIES, MetaProperties, PartitionMetadata};
use crate::partition_log::PartitionLog;
use crate::recover::{self, OpenError, Repair};
use crate::segment;
use crate::survived::Survived;

/// The folder of a data directory that keeps damaged partitions.
pub const QUARANTINE_DIR: &str = "quarantine";

/// Why a data directory cannot be used, or something in it not be done.
#[derive(Debug, thiserror::Error)]
pub enum LogDirError {
    /// A file operation failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// Another process has it open.
    #[error("{} is in use by another process (its .lock is held)", .0.display())]
    InUse(PathBuf),
    /// Its `meta.properties` cannot be understood.
    #[error("{} cannot be understood", .0.display())]
    Malformed(PathBuf),
    /// It is another node's.
    #[error("{} belongs to node {found}, not {expected}", path.display())]
    OtherNode {
        /// The directory.
        path: PathBuf,
        /// Whose it is.
        found: BrokerId,
        /// Who asks.
        expected: BrokerId,
    },
    /// It is another cluster's.
    #[error("{} belongs to cluster {found}, not {expected}", path.display())]
    OtherCluster {
        /// The directory.
        path: PathBuf,
        /// Whose it is.
        found: String,
        /// Who asks.
        expected: String,
    },
    /// The clean-shutdown marker would be a lie.
    #[error("not a clean shutdown: {0}")]
    NotClean(String),
}

/// What was found when a data directory was opened.
#[derive(Debug)]
pub struct Opened {
    /// The directory's own id.
    pub directory_id: TopicId,
    /// Whether it was shut down cleanly.
    pub clean_shutdown: bool,
    /// The broker epoch that it was shut down under, when it was cleanly.
    pub clean_epoch: Option<BrokerEpoch>,
    /// The partitions in it, with their topic's identity if that can be read.
    pub partitions: Vec<(TopicPartition, Option<TopicId>)>,
    /// Directories of logs deleted before, still to be removed: it may take a while.
    pub leftovers: files::Doomed,
}

/// One data directory, locked for this process.
#[derive(Debug)]
pub struct LogDir {
    state: Arc<DirState>,
    meta: Mutex<MetaProperties>,
    /// Holds the lock as long as it is open.
    _lock: File,
}

impl LogDir {
    /// Locks and reads a data directory; makes it when it is not there. Reads and removes the clean-shutdown marker (D-13).
    pub fn open(
        path: &Path,
        node_id: BrokerId,
        cluster_id: Option<&str>,
    ) -> Result<(Self, Opened), LogDirError> {
        fs::create_dir_all(path).context("create", path)?;
        let lock = take_lock(path)?;
        let meta = identify(path, node_id, cluster_id)?;
        let marker = meta::take_clean_shutdown(path)?;
        let (partitions, leftovers) = look_around(path)?;
        let known = partitions.iter().filter(|(_, topic)| topic.is_some());
        let known = known.map(|(partition, _)| partition.clone());
        let state = Arc::new(DirState::load(path.to_owned(), marker.is_some(), known));
        let opened = Opened {
            directory_id: meta.directory_id,
            clean_shutdown: marker.is_some(),
            clean_epoch: marker.flatten(),
            partitions,
            leftovers,
        };
        let dir = Self {
            state,
            meta: Mutex::new(meta),
            _lock: lock,
        };
        Ok((dir, opened))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.state.root
    }

    /// The directory's own id.
    pub fn directory_id(&self) -> TopicId {
        self.meta().directory_id
    }

    /// The cluster it belongs to, once known.
    pub fn cluster_id(&self) -> Option<String> {
        self.meta().cluster_id.clone()
    }

    fn meta(&self) -> std::sync::MutexGuard<'_, MetaProperties> {
        self.meta.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the cluster it belongs to, durably. An error when it belongs to another.
    pub fn set_cluster_id(&self, cluster_id: &str) -> Result<(), LogDirError> {
        let mut meta = self.meta();
        match &meta.cluster_id {
            Some(found) if found == cluster_id => Ok(()),
            Some(found) => Err(LogDirError::OtherCluster {
                path: self.path().to_owned(),
                found: found.clone(),
                expected: cluster_id.to_owned(),
            }),
            None => {
                meta.cluster_id = Some(cluster_id.to_owned());
                Ok(meta.store(self.path())?)
            }
        }
    }

    fn partition_dir(&self, partition: &TopicPartition) -> PathBuf {
        self.path().join(partition.to_string())
    }

    /// Says what the last stop can have taken, if it was not clean. Call it before logs are opened; until then the worst is
    /// assumed, which forgives most.
    pub fn set_survived(&self, survived: Survived) {
        self.state.survived.set(survived);
    }

    /// Opens a partition's log, recovering it as far as needed, or makes a new one. The repairs say what had to be mended.
    pub fn open_log(
        &self,
        partition: &TopicPartition,
        topic_id: TopicId,
        config: LogConfig,
        now_ms: Millis,
    ) -> Result<(PartitionLog, Vec<Repair>), OpenError> {
        let place = Place {
            state: self.state.clone(),
            partition: partition.clone(),
            topic_id,
            dir: self.partition_dir(partition),
        };
        let new = self.settle(&place)?;
        self.state.opening(partition);
        recover::open(place, config, self.state.clean || new, now_ms)
    }

    /// Makes sure that the partition's directory exists and is of this topic. Says whether it is new.
    fn settle(&self, place: &Place) -> Result<bool, OpenError> {
        let new = !place.dir.is_dir();
        if new {
            // Checkpoints of a former topic of that name mean nothing to this one.
            self.state.forget(&place.partition)?;
            fs::create_dir(&place.dir).context("create", &place.dir)?;
        }
        match meta::read_partition_metadata(&place.dir)? {
            PartitionMetadata::Topic(found) if found == place.topic_id => {}
            PartitionMetadata::Topic(found) => return Err(OpenError::OtherTopic { found }),
            PartitionMetadata::Missing => {
                meta::write_partition_metadata(&place.dir, place.topic_id)?
            }
            // Of an empty log it does not matter: the file was being written when the power went.
            PartitionMetadata::Malformed if is_empty(&place.dir)? => {
                meta::write_partition_metadata(&place.dir, place.topic_id)?
            }
            PartitionMetadata::Malformed => return Err(OpenError::Unidentified),
        }
        Ok(new)
    }

    /// Moves a damaged partition's files to `quarantine/`, so that an empty log can take its place. Drop its log before.
    pub fn quarantine(&self, partition: &TopicPartition) -> Result<PathBuf, LogDirError> {
        let kept = self.path().join(QUARANTINE_DIR);
        fs::create_dir_all(&kept).context("create", &kept)?;
        let random = Uuid::new_v4().as_fields().0;
        self.move_out(partition, kept.join(format!("{partition}.{random:08x}")))
    }

    /// Renames a partition's directory out of the way; the caller removes it once nobody reads it any more. Drop its log before.
    pub fn delete_log(&self, partition: &TopicPartition) -> Result<PathBuf, LogDirError> {
        self.move_out(partition, self.suffixed(partition, "delete"))
    }

    /// Renames a directory that the metadata does not give to this broker (D-2). It stays until someone looks at it.
    pub fn set_stray_aside(&self, partition: &TopicPartition) -> Result<PathBuf, LogDirError> {
        self.move_out(partition, self.suffixed(partition, "stray"))
    }

    /// `<partition>.<uuid>-<suffix>` (D-4).
    fn suffixed(&self, partition: &TopicPartition, suffix: &str) -> PathBuf {
        let random = Uuid::new_v4().simple();
        self.path().join(format!("{partition}.{random}-{suffix}"))
    }

    fn move_out(&self, partition: &TopicPartition, to: PathBuf) -> Result<PathBuf, LogDirError> {
        let from = self.partition_dir(partition);
        fs::rename(&from, &to).context("rename", &from)?;
        files::sync_dir(self.path())?;
        self.state.forget(partition)?;
        Ok(to)
    }

    /// The high watermark noted for a partition. The log may have lost its end since, or moved its start.
    pub fn high_watermark(&self, partition: &TopicPartition) -> Option<Offset> {
        self.state.high_watermark(partition)
    }

    /// How far a partition's log had come for certain before this start, as noted here. Zero: nothing is noted, or nothing was
    /// in it.
    pub fn noted_end(&self, partition: &TopicPartition) -> Result<Offset, LogDirError> {
        let committed = self.state.high_watermark(partition).unwrap_or_default();
        Ok(committed.max(self.state.reached(partition)?))
    }

    /// Takes back what is noted of a partition whose files are gone.
    pub fn forget(&self, partition: &TopicPartition) -> Result<(), LogDirError> {
        Ok(self.state.forget(partition)?)
    }

    /// Notes recovery points, durably; partitions not named keep theirs.
    pub fn write_recovery_points(
        &self,
        entries: &[(TopicPartition, Offset)],
    ) -> Result<(), LogDirError> {
        Ok(self.state.write_recovery_points(entries)?)
    }

    /// Notes high watermarks, durably; partitions not named keep theirs.
    pub fn write_high_watermarks(
        &self,
        entries: &[(TopicPartition, Offset)],
    ) -> Result<(), LogDirError> {
        Ok(self.state.write_high_watermarks(entries)?)
    }

    /// Notes log starts, durably; partitions not named keep theirs.
    pub fn write_log_starts(
        &self,
        entries: &[(TopicPartition, Offset)],
    ) -> Result<(), LogDirError> {
        Ok(self.state.write_log_starts(entries)?)
    }

    /// Whether a write to one of its logs failed: it must not be marked clean, and better not be written to.
    pub fn has_failed(&self) -> bool {
        self.state.has_failed()
    }

    /// Writes the clean-shutdown marker, after every log was closed. Refused when one was not, or a write failed (D-11).
    pub fn mark_clean_shutdown(&self, broker_epoch: BrokerEpoch) -> Result<(), LogDirError> {
        if self.has_failed() {
            return Err(LogDirError::NotClean("a write failed".into()));
        }
        if let Some(partition) = self.state.first_unclean() {
            return Err(LogDirError::NotClean(format!(
                "the log of {partition} was not closed"
            )));
        }
        self.state.write_recovery_points(&[])?;
        self.state.write_log_starts(&[])?;
        Ok(meta::write_clean_shutdown(self.path(), broker_epoch)?)
    }
}

/// Whether no log file in a partition's directory holds anything.
fn is_empty(dir: &Path) -> Result<bool, StorageError> {
    for base in segment::list_segments(dir)? {
        let path = segment::segment_path(dir, base, "log");
        if fs::metadata(&path).context("stat", &path)?.len() > 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

fn take_lock(dir: &Path) -> Result<File, LogDirError> {
    let path = dir.join(".lock");
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .context("open", &path)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(LogDirError::InUse(dir.to_owned())),
        Err(TryLockError::Error(error)) => Ok(Err(error).context("lock", &path)?),
    }
}

/// Reads `meta.properties`, or writes a first one, and compares it with who asks.
fn identify(
    dir: &Path,
    node_id: BrokerId,
    cluster_id: Option<&str>,
) -> Result<MetaProperties, LogDirError> {
    let path = dir.join(META_PROPERTIES);
    let Some(content) = files::read_if_present(&path)? else {
        let meta = MetaProperties {
            node_id,
            directory_id: TopicId::random(),
            cluster_id: cluster_id.map(str::to_owned),
        };
        meta.store(dir)?;
        return Ok(meta);
    };
    let parsed = std::str::from_utf8(&content)
        .ok()
        .and_then(MetaProperties::parse);
    let mut meta = parsed.ok_or(LogDirError::Malformed(path))?;
    if meta.node_id != node_id {
        return Err(LogDirError::OtherNode {
            path: dir.to_owned(),
            found: meta.node_id,
            expected: node_id,
        });
    }
    match (&meta.cluster_id, cluster_id) {
        (Some(found), Some(expected)) if found != expected => Err(LogDirError::OtherCluster {
            path: dir.to_owned(),
            found: found.clone(),
            expected: expected.to_owned(),
        }),
        (None, Some(id)) => {
            meta.cluster_id = Some(id.to_owned());
            meta.store(dir)?;
            Ok(meta)
        }
        _ => Ok(meta),
    }
}

/// Lists the partitions of a data directory and what is left of deleted ones. Anything else is nobody's business and stays.
#[expect(clippy::type_complexity, reason = "as `Opened` has it")]
fn look_around(
    dir: &Path,
) -> Result<(Vec<(TopicPartition, Option<TopicId>)>, files::Doomed), StorageError> {
    let mut partitions = Vec::new();
    let mut leftovers = files::Doomed::default();
    for entry in fs::read_dir(dir).context("list", dir)? {
        let path = entry.context("list", dir)?.path();
        let Some(name) = path
            .file_name()
            .and_then(|n| n.to_str())
            .filter(|_| path.is_dir())
        else {
            continue;
        };
        if name.ends_with("-delete") {
            leftovers.push(path);
        } else if let Some(partition) = TopicPartition::parse(name) {
            let topic = match meta::read_partition_metadata(&path)? {
                PartitionMetadata::Topic(topic) => Some(topic),
                PartitionMetadata::Missing | PartitionMetadata::Malformed => None,
            };
            partitions.push((partition, topic));
        }
    }
    partitions.sort_unstable();
    Ok((partitions, leftovers))
}
