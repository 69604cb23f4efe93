//! The state machine as openraft sees it: hands committed commands to the metadata, reports what they meant to the timeline,
//! and makes and takes snapshots. Decides nothing.

use std::io::{self, Cursor};
use std::path::PathBuf;
use std::sync::Arc;

use openraft::storage::{RaftSnapshotBuilder, RaftStateMachine, Snapshot};
use openraft::{
    AnyError, BasicNode, EntryPayload, OptionalSend, StorageError, StorageIOError, StoredMembership,
};
use parking_lot::Mutex;

use super::snapshot::{self, Meta, Stored};
use super::{Entry, LogId, Types};
use crate::cluster::Outcome;
use crate::metadata::Metadata;
use crate::timeline::Timeline;

pub(super) struct StateMachine {
    metadata: Metadata,
    timeline: Timeline,
    last_applied: Option<LogId>,
    membership: StoredMembership<u64, BasicNode>,
    files: Arc<Files>,
}

/// The current snapshot, on disk and in memory.
struct Files {
    data_dir: PathBuf,
    current: Mutex<Option<Stored>>,
}

impl StateMachine {
    pub(super) async fn open(
        data_dir: PathBuf,
        metadata: Metadata,
        timeline: Timeline,
    ) -> io::Result<Self> {
        let files = Files {
            current: Mutex::new(Stored::read(&data_dir)?),
            data_dir,
        };
        let mut machine = Self {
            metadata,
            timeline,
            last_applied: None,
            membership: StoredMembership::default(),
            files: Arc::new(files),
        };
        let stored = machine.files.current.lock().clone();
        if let Some(stored) = stored {
            machine.take(&stored)?;
        }
        Ok(machine)
    }

    /// Makes a snapshot the state of this machine.
    fn take(&mut self, stored: &Stored) -> io::Result<()> {
        let image = snapshot::decode(&stored.data)?;
        self.last_applied = stored.meta.last_log_id;
        self.membership = stored.meta.last_membership.clone();
        if let Some(last) = self.last_applied {
            self.metadata.install(image, offset(&last));
        }
        Ok(())
    }

    fn apply_entry(&mut self, entry: Entry) -> Option<Outcome> {
        let at = offset(&entry.log_id);
        self.last_applied = Some(entry.log_id);
        let outcome = match entry.payload {
            EntryPayload::Normal(command) => Some(self.metadata.apply(at, &command)),
            EntryPayload::Membership(membership) => {
                self.membership = StoredMembership::new(Some(entry.log_id), membership);
                None
            }
            EntryPayload::Blank => None,
        };
        match &outcome {
            Some(outcome) => self.timeline.note(&outcome.notices),
            None => self.metadata.skip(at),
        }
        outcome
    }
}

/// A log index as a metadata offset.
fn offset(log_id: &LogId) -> i64 {
    i64::try_from(log_id.index).expect("a log of 2^63 entries fits no disk")
}

impl Files {
    /// Stores a snapshot, off the runtime.
    async fn store(self: Arc<Self>, stored: Stored) -> io::Result<()> {
        let write = move || {
            stored.write(&self.data_dir)?;
            *self.current.lock() = Some(stored);
            Ok(())
        };
        tokio::task::spawn_blocking(write)
            .await
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
    }
}

fn failed(meta: &Meta, error: &io::Error) -> StorageError<u64> {
    StorageIOError::write_snapshot(Some(meta.signature()), AnyError::new(error)).into()
}

impl RaftStateMachine<Types> for StateMachine {
    type SnapshotBuilder = Builder;

    async fn applied_state(
        &mut self,
    ) -> Result<(Option<LogId>, StoredMembership<u64, BasicNode>), StorageError<u64>> {
        Ok((self.last_applied, self.membership.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<Option<Outcome>>, StorageError<u64>>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        Ok(entries.into_iter().map(|e| self.apply_entry(e)).collect())
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        let snapshot_id = match &self.last_applied {
            Some(last) => format!("{}-{}", last.leader_id, last.index),
            None => "empty".to_owned(),
        };
        Builder {
            meta: Meta {
                last_log_id: self.last_applied,
                last_membership: self.membership.clone(),
                snapshot_id,
            },
            image: self.metadata.read(|cluster| cluster.image().clone()),
            files: self.files.clone(),
        }
    }

    async fn begin_receiving_snapshot(
        &mut self,
    ) -> Result<Box<Cursor<Vec<u8>>>, StorageError<u64>> {
        Ok(Box::default())
    }

    async fn install_snapshot(
        &mut self,
        meta: &Meta,
        snapshot: Box<Cursor<Vec<u8>>>,
    ) -> Result<(), StorageError<u64>> {
        let stored = Stored {
            meta: meta.clone(),
            data: snapshot.into_inner(),
        };
        self.take(&stored).map_err(|e| failed(meta, &e))?;
        let store = self.files.clone().store(stored);
        store.await.map_err(|e| failed(meta, &e))
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<Types>>, StorageError<u64>> {
        let current = self.files.current.lock().clone();
        Ok(current.map(to_raft))
    }
}

fn to_raft(stored: Stored) -> Snapshot<Types> {
    Snapshot {
        meta: stored.meta,
        snapshot: Box::new(Cursor::new(stored.data)),
    }
}

/// Builds one snapshot from the state as it was when it was asked for.
pub(super) struct Builder {
    meta: Meta,
    image: epoka_proto::metadata::Image,
    files: Arc<Files>,
}

impl RaftSnapshotBuilder<Types> for Builder {
    async fn build_snapshot(&mut self) -> Result<Snapshot<Types>, StorageError<u64>> {
        let stored = Stored {
            meta: self.meta.clone(),
            data: snapshot::encode(&self.image),
        };
        let store = self.files.clone().store(stored.clone());
        store.await.map_err(|e| failed(&self.meta, &e))?;
        Ok(to_raft(stored))
    }
}
