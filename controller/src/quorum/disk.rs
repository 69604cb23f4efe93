//! The Raft log on disk: a Kafka log like any other, `__cluster_metadata-0`, so that the same tools read it. One entry is one
//! batch with the entry's JSON as the only record's value; the offset is the Raft index, the leader epoch the Raft term.
//! Beside it a small guarded file with the vote and the last purged entry. Every write is synced before it returns.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use epoka_log::{LogConfig, LogDir, PartitionLog, Survived, boot_id};
use epoka_proto::batch::{self, BatchBuilder};
use epoka_proto::compression::Compression;
use epoka_proto::ids::{BrokerId, LeaderEpoch, Offset, TopicId, TopicPartition};
use serde::{Deserialize, Serialize};

use super::{Entry, LogId, Vote, guarded};

/// The log's topic, and the identity Kafka gives it.
const TOPIC: &str = "__cluster_metadata";
const TOPIC_ID: TopicId = TopicId(uuid::Uuid::from_u128(1));
/// How much of the log is read at once when it is loaded.
const READ_BYTES: usize = 1 << 20;

/// Why the log cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub(super) enum DiskError {
    /// The directory or the log in it cannot be used.
    #[error("the metadata log in {dir}: {reason}")]
    Log {
        /// The controller's directory.
        dir: PathBuf,
        /// What went wrong.
        reason: String,
    },
    /// The small file beside it.
    #[error("{path}: {source}")]
    State {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: std::io::Error,
    },
}

/// What Raft must not forget besides its log.
#[derive(Clone, Default, Serialize, Deserialize)]
struct HardState {
    vote: Option<Vote>,
    /// The last entry that a snapshot made superfluous.
    purged: Option<LogId>,
    /// The boot of the machine on which the log was last written.
    #[serde(default)]
    boot: Option<String>,
}

/// The files of one voter. Locked for this process.
pub(super) struct Disk {
    dir: LogDir,
    log: PartitionLog,
    state: HardState,
    state_path: PathBuf,
}

impl Disk {
    /// Opens the files, recovering the log as far as needed, and reads the entries not purged.
    pub(super) fn open(path: &Path, id: u64) -> Result<(Self, Vec<Entry>), DiskError> {
        let failed = |reason: String| DiskError::Log {
            dir: path.to_owned(),
            reason,
        };
        let node = BrokerId(i32::try_from(id).map_err(|e| failed(e.to_string()))?);
        let (dir, _) = LogDir::open(path, node, None).map_err(|e| failed(e.to_string()))?;
        let state_path = path.join("quorum-state");
        let state = read_state(&state_path)?;
        let boot = boot_id().ok();
        // Committed entries lie anywhere in it: whatever is not the end of a last write must not be cut.
        dir.set_survived(if boot.is_some() && boot == state.boot {
            Survived::Written
        } else {
            Survived::AllButLastWrite
        });
        let config = LogConfig {
            segment_bytes: 16 << 20,
            segment_index_bytes: 256 << 10,
            ..LogConfig::default()
        };
        let opened = dir.open_log(&partition(), TOPIC_ID, config, now_ms());
        let (log, repairs) = opened.map_err(|e| failed(e.to_string()))?;
        for repair in repairs {
            tracing::warn!("metadata log: {repair}");
        }
        let mut disk = Self {
            dir,
            log,
            state,
            state_path,
        };
        let first = disk.first();
        if disk.log.end() < first {
            // A snapshot was installed, and the process died before the log was moved behind it.
            disk.start_over(first)?;
        }
        let entries = disk.load()?;
        disk.save(HardState {
            boot,
            ..disk.state.clone()
        })?;
        Ok((disk, entries))
    }

    pub(super) fn vote(&self) -> Option<Vote> {
        self.state.vote
    }

    pub(super) fn purged(&self) -> Option<LogId> {
        self.state.purged
    }

    pub(super) fn save_vote(&mut self, vote: Vote) -> Result<(), DiskError> {
        self.save(HardState {
            vote: Some(vote),
            ..self.state.clone()
        })
    }

    /// Appends entries, which follow one another. What they overlap is cut first; where they leave a gap, the log begins anew
    /// with them: Raft leaves one only behind a snapshot that covers what came before.
    pub(super) fn append(&mut self, entries: &[Entry]) -> Result<(), DiskError> {
        let Some(first) = entries.first() else {
            return Ok(());
        };
        let first = offset(first.log_id.index);
        if first < self.log.end() {
            self.log.truncate_to(first).map_err(|e| self.failed(e))?;
        } else if first > self.log.end() {
            self.log.start_over(first).map_err(|e| self.failed(e))?;
        }
        let now = now_ms();
        let mut bytes = Vec::new();
        for entry in entries {
            let term = entry.log_id.leader_id.term;
            let term = i32::try_from(term).map_err(|e| self.failed(e))?;
            let value = serde_json::to_vec(entry).map_err(|e| self.failed(e))?;
            let mut builder = BatchBuilder::new(Compression::None)
                .base_offset(offset(entry.log_id.index))
                .leader_epoch(LeaderEpoch(term));
            builder.append(now, None, Some(&value), &[]);
            bytes.extend_from_slice(&builder.finish());
        }
        let appended = self.log.append_as_follower(&bytes, now);
        appended.map_err(|e| self.failed(e))?;
        self.flush()
    }

    /// Cuts the log from this entry on.
    pub(super) fn truncate(&mut self, index: u64) -> Result<(), DiskError> {
        let cut = self.log.truncate_to(offset(index));
        cut.map_err(|e| self.failed(e))?;
        self.flush()
    }

    /// Forgets entries up to this one, which a snapshot covers. It may lie beyond the end of the log.
    pub(super) fn purge(&mut self, upto: LogId) -> Result<(), DiskError> {
        self.save(HardState {
            purged: Some(upto),
            ..self.state.clone()
        })?;
        let first = self.first();
        if self.log.end() < first {
            return self.start_over(first);
        }
        let raised = self.log.raise_start(first);
        raised.map_err(|e| self.failed(e))?;
        self.flush()?;
        let noted = self.dir.write_log_starts(&[(partition(), first)]);
        noted.map_err(|e| self.failed(e))
    }

    fn start_over(&mut self, at: Offset) -> Result<(), DiskError> {
        let restarted = self.log.start_over(at);
        restarted.map_err(|e| self.failed(e))?;
        self.flush()
    }

    /// The offset of the first entry not purged.
    fn first(&self) -> Offset {
        self.state
            .purged
            .map_or(Offset::ZERO, |p| offset(p.index) + 1)
    }

    fn load(&self) -> Result<Vec<Entry>, DiskError> {
        let view = self.log.view();
        let end = self.log.end();
        let mut at = self.first();
        let mut entries = Vec::new();
        while at < end {
            let read = view.read(at, end, READ_BYTES, true);
            let bytes = read.map_err(|e| self.failed(e))?;
            let before = at;
            for batch in batch::batches(&bytes) {
                let (header, bytes) = batch.map_err(|e| self.failed(e))?;
                for record in batch::records(bytes).map_err(|e| self.failed(e))? {
                    let value = record.map_err(|e| self.failed(e))?.value;
                    let entry = serde_json::from_slice(&value.unwrap_or_default());
                    entries.push(entry.map_err(|e| self.failed(e))?);
                }
                at = header.next_offset();
            }
            if at == before {
                return Err(self.failed(format!("nothing can be read at offset {at}")));
            }
        }
        Ok(entries)
    }

    fn flush(&mut self) -> Result<(), DiskError> {
        let flushed = self.log.flush_work().run();
        let point = flushed.map_err(|e| self.failed(e))?;
        self.log.flushed_to(point);
        Ok(())
    }

    fn save(&mut self, state: HardState) -> Result<(), DiskError> {
        let json = serde_json::to_vec(&state).expect("plain data");
        guarded::write(&self.state_path, &json).map_err(|source| DiskError::State {
            path: self.state_path.clone(),
            source,
        })?;
        self.state = state;
        Ok(())
    }

    /// As a restart of the machine would.
    #[cfg(test)]
    pub(super) fn forget_boot(&mut self) -> Result<(), DiskError> {
        self.save(HardState {
            boot: None,
            ..self.state.clone()
        })
    }

    fn failed(&self, reason: impl ToString) -> DiskError {
        DiskError::Log {
            dir: self.dir.path().to_owned(),
            reason: reason.to_string(),
        }
    }
}

fn read_state(path: &Path) -> Result<HardState, DiskError> {
    let read = guarded::read(path).and_then(|content| match content {
        Some(json) => Ok(serde_json::from_slice(&json)?),
        None => Ok(HardState::default()),
    });
    read.map_err(|source| DiskError::State {
        path: path.to_owned(),
        source,
    })
}

fn partition() -> TopicPartition {
    TopicPartition::new(TOPIC, 0)
}

fn offset(index: u64) -> Offset {
    Offset(i64::try_from(index).expect("a log of 2^63 entries fits no disk"))
}

fn now_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |d| d.as_millis() as i64)
}
