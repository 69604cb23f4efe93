//! The Raft log as openraft sees it: entries not yet purged are held in memory as well, since snapshots keep them few, and
//! every write goes to the disk, off the runtime, before it is acknowledged.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use openraft::storage::{LogFlushed, LogState, RaftLogReader, RaftLogStorage};
use openraft::{OptionalSend, StorageError, StorageIOError};
use parking_lot::Mutex;

use super::disk::{Disk, DiskError};
use super::{Entry, LogId, Types, Vote};

/// The log. Clones share it.
#[derive(Clone)]
pub(super) struct LogStore {
    disk: Arc<Mutex<Disk>>,
    entries: Arc<Mutex<BTreeMap<u64, Entry>>>,
}

impl LogStore {
    pub(super) fn new(disk: Disk, entries: Vec<Entry>) -> Self {
        let entries = entries.into_iter().map(|e| (e.log_id.index, e)).collect();
        Self {
            disk: Arc::new(Mutex::new(disk)),
            entries: Arc::new(Mutex::new(entries)),
        }
    }

    /// Runs a disk operation where it may block.
    async fn on_disk<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&mut Disk) -> Result<T, DiskError> + Send + 'static,
    ) -> Result<T, DiskError> {
        let disk = self.disk.clone();
        tokio::task::spawn_blocking(move || operation(&mut disk.lock()))
            .await
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
    }
}

fn write_failed(error: DiskError) -> StorageError<u64> {
    StorageIOError::write_logs(&error).into()
}

impl RaftLogReader<Types> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry>, StorageError<u64>> {
        let empty = match (range.start_bound(), range.end_bound()) {
            (Bound::Included(start), Bound::Excluded(end)) => start >= end,
            _ => false,
        };
        if empty {
            return Ok(Vec::new());
        }
        let entries = self.entries.lock();
        Ok(entries.range(range).map(|(_, e)| e.clone()).collect())
    }
}

impl RaftLogStorage<Types> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, StorageError<u64>> {
        let last_purged_log_id = self.disk.lock().purged();
        let entries = self.entries.lock();
        let last = entries.last_key_value().map(|(_, e)| e.log_id);
        Ok(LogState {
            last_purged_log_id,
            last_log_id: last.or(last_purged_log_id),
        })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), StorageError<u64>> {
        let vote = *vote;
        let saved = self.on_disk(move |disk| disk.save_vote(vote)).await;
        saved.map_err(|e| StorageIOError::write_vote(&e).into())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, StorageError<u64>> {
        Ok(self.disk.lock().vote())
    }

    async fn append<I>(
        &mut self,
        entries: I,
        callback: LogFlushed<Types>,
    ) -> Result<(), StorageError<u64>>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let new: Vec<Entry> = entries.into_iter().collect();
        if let Some(first) = new.first() {
            let mut entries = self.entries.lock();
            entries.split_off(&first.log_id.index);
            let last = entries.last_key_value().map(|(index, _)| *index);
            if last.is_some_and(|last| last + 1 < first.log_id.index) {
                entries.clear();
            }
            entries.extend(new.iter().map(|e| (e.log_id.index, e.clone())));
        }
        match self.on_disk(move |disk| disk.append(&new)).await {
            Ok(()) => callback.log_io_completed(Ok(())),
            Err(error) => callback.log_io_completed(Err(std::io::Error::other(error))),
        }
        Ok(())
    }

    async fn truncate(&mut self, log_id: LogId) -> Result<(), StorageError<u64>> {
        self.entries.lock().split_off(&log_id.index);
        let cut = self.on_disk(move |disk| disk.truncate(log_id.index));
        cut.await.map_err(write_failed)
    }

    async fn purge(&mut self, log_id: LogId) -> Result<(), StorageError<u64>> {
        {
            let mut entries = self.entries.lock();
            *entries = entries.split_off(&(log_id.index + 1));
        }
        let purged = self.on_disk(move |disk| disk.purge(log_id));
        purged.await.map_err(write_failed)
    }
}
