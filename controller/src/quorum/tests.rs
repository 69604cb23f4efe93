//! The stores, held to openraft's own suite, and what must survive a reopening.

use std::collections::{BTreeMap, BTreeSet};

use openraft::storage::{
    RaftLogReader as _, RaftLogStorage, RaftLogStorageExt as _, RaftStateMachine,
};
use openraft::testing::{StoreBuilder, Suite};
use openraft::{
    CommittedLeaderId, EntryPayload, Membership, RaftSnapshotBuilder as _, StorageError,
};
use tempfile::TempDir;

use epoka_proto::events::EventLog;

use super::*;

fn machine_in(
    dir: &std::path::Path,
) -> impl Future<Output = std::io::Result<StateMachine>> + use<> {
    let timeline = Timeline::new(EventLog::new("controller-1"));
    StateMachine::open(dir.to_owned(), Metadata::new(), timeline)
}

fn log_in(dir: &std::path::Path) -> LogStore {
    let (disk, entries) = Disk::open(dir, 1).expect("opens");
    LogStore::new(disk, entries)
}

struct Fresh;

impl StoreBuilder<Types, LogStore, StateMachine, TempDir> for Fresh {
    async fn build(&self) -> Result<(TempDir, LogStore, StateMachine), StorageError<u64>> {
        let dir = tempfile::tempdir().expect("tempdir");
        let machine = machine_in(dir.path()).await.expect("opens");
        let log = log_in(dir.path());
        Ok((dir, log, machine))
    }
}

#[test]
fn openraft_finds_no_fault_with_the_stores() {
    if let Err(error) = Suite::test_all(Fresh) {
        panic!("{error}");
    }
}

fn log_id(term: u64, index: u64) -> LogId {
    LogId::new(CommittedLeaderId::new(term, 1), index)
}

fn command(n: u64) -> Command {
    Command::Initialize {
        cluster_id: format!("cluster-{n}"),
        configs: BTreeMap::new(),
    }
}

fn entry(term: u64, index: u64) -> Entry {
    Entry {
        log_id: log_id(term, index),
        payload: EntryPayload::Normal(command(index)),
    }
}

async fn ids(log: &mut LogStore) -> Vec<(u64, u64)> {
    let entries = log.try_get_log_entries(0..1000).await.expect("reads");
    let id = |e: &Entry| (e.log_id.leader_id.term, e.log_id.index);
    entries.iter().map(id).collect()
}

#[tokio::test]
async fn log_vote_and_purge_survive_a_reopening() {
    let dir = tempfile::tempdir().expect("tempdir");
    {
        let mut log = log_in(dir.path());
        log.save_vote(&Vote::new_committed(3, 1))
            .await
            .expect("saved");
        log.blocking_append((0..10).map(|i| entry(1, i)))
            .await
            .expect("appended");
        log.truncate(log_id(1, 7)).await.expect("cut");
        log.blocking_append((7..9).map(|i| entry(3, i)))
            .await
            .expect("appended");
        log.purge(log_id(1, 4)).await.expect("purged");
    }
    let mut log = log_in(dir.path());
    assert_eq!(
        log.read_vote().await.expect("reads"),
        Some(Vote::new_committed(3, 1))
    );
    assert_eq!(ids(&mut log).await, [(1, 5), (1, 6), (3, 7), (3, 8)]);
    let state = log.get_log_state().await.expect("state");
    assert_eq!(state.last_purged_log_id, Some(log_id(1, 4)));
    assert_eq!(state.last_log_id, Some(log_id(3, 8)));
    log.blocking_append([entry(3, 9)]).await.expect("goes on");
}

#[tokio::test]
async fn a_log_that_a_snapshot_outran_goes_on_behind_it() {
    let dir = tempfile::tempdir().expect("tempdir");
    {
        let mut log = log_in(dir.path());
        log.blocking_append((0..3).map(|i| entry(1, i)))
            .await
            .expect("appended");
        log.purge(log_id(2, 100))
            .await
            .expect("purged beyond the end");
        assert_eq!(ids(&mut log).await, []);
        log.blocking_append([entry(2, 101)])
            .await
            .expect("appended");
    }
    let mut log = log_in(dir.path());
    assert_eq!(ids(&mut log).await, [(2, 101)]);
    let state = log.get_log_state().await.expect("state");
    assert_eq!(state.last_purged_log_id, Some(log_id(2, 100)));
}

#[tokio::test]
async fn a_torn_last_entry_is_cut_and_the_rest_is_kept() {
    let dir = tempfile::tempdir().expect("tempdir");
    {
        let mut log = log_in(dir.path());
        log.blocking_append((0..5).map(|i| entry(1, i)))
            .await
            .expect("appended");
    }
    // No process tears what it wrote before; a machine does.
    let mut disk = Disk::open(dir.path(), 1).expect("opens").0;
    disk.forget_boot().expect("saved");
    drop(disk);
    let file = dir
        .path()
        .join("__cluster_metadata-0/00000000000000000000.log");
    let bytes = std::fs::read(&file).expect("the log file");
    std::fs::write(&file, &bytes[..bytes.len() - 3]).expect("torn");
    let mut log = log_in(dir.path());
    assert_eq!(ids(&mut log).await, [(1, 0), (1, 1), (1, 2), (1, 3)]);
    log.blocking_append([entry(2, 4)]).await.expect("goes on");
}

#[tokio::test]
async fn a_damaged_log_is_refused_whole_and_left_as_it_is() {
    for (entries_before, boot) in [(2, "this"), (4, "this"), (2, "another")] {
        let dir = tempfile::tempdir().expect("tempdir");
        let segment = "__cluster_metadata-0/00000000000000000000.log";
        let file = dir.path().join(segment);
        let size_of = || std::fs::metadata(&file).expect("the log file").len() as usize;
        let mut flipped = 0;
        {
            let mut log = log_in(dir.path());
            for i in 0..5 {
                if i == entries_before {
                    flipped = size_of() + 80; // in the records of the next entry
                }
                let appended = log.blocking_append([entry(1, i)]).await;
                appended.expect("appended");
            }
        }
        if boot == "another" {
            let mut disk = Disk::open(dir.path(), 1).expect("opens").0;
            disk.forget_boot().expect("saved");
        }
        let mut bytes = std::fs::read(&file).expect("the log file");
        bytes[flipped] ^= 1;
        std::fs::write(&file, &bytes).expect("written");
        let Err(error) = Disk::open(dir.path(), 1) else {
            panic!("entry {entries_before} is damaged, and the log was opened");
        };
        let said = error.to_string();
        assert!(said.contains(segment) && said.contains("damaged"), "{said}");
        assert_eq!(std::fs::read(&file).expect("the log file"), bytes);
    }
}

#[tokio::test]
async fn the_directory_belongs_to_one_process() {
    let dir = tempfile::tempdir().expect("tempdir");
    let _log = log_in(dir.path());
    assert!(Disk::open(dir.path(), 1).is_err());
}

#[tokio::test]
async fn a_snapshot_restores_the_metadata_after_a_restart_and_on_another_controller() {
    let dir = tempfile::tempdir().expect("tempdir");
    let mut machine = machine_in(dir.path()).await.expect("opens");
    let membership = Membership::new(vec![BTreeSet::from([1])], None);
    let entries = [
        Entry {
            log_id: log_id(1, 0),
            payload: EntryPayload::Membership(membership),
        },
        entry(1, 1),
    ];
    machine.apply(entries).await.expect("applies");
    let applied = machine.applied_state().await.expect("state");
    let mut builder = machine.get_snapshot_builder().await;
    let snapshot = builder.build_snapshot().await.expect("builds");

    let mut again = machine_in(dir.path()).await.expect("opens");
    assert_eq!(again.applied_state().await.expect("state"), applied);
    let current = again
        .get_current_snapshot()
        .await
        .expect("reads")
        .expect("kept");
    assert_eq!(current.meta, snapshot.meta);

    let elsewhere = tempfile::tempdir().expect("tempdir");
    let metadata = Metadata::new();
    let timeline = Timeline::new(EventLog::new("controller-2"));
    let opened = StateMachine::open(elsewhere.path().to_owned(), metadata.clone(), timeline);
    let mut other = opened.await.expect("opens");
    let sent = other.install_snapshot(&snapshot.meta, snapshot.snapshot);
    sent.await.expect("installs");
    assert_eq!(metadata.cluster().image().cluster_id, "cluster-1");
    assert_eq!(metadata.applied(), Some(1));
}
