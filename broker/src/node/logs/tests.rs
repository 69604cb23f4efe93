use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use epoka_log::QUARANTINE_DIR;
use epoka_proto::batch::BatchBuilder;
use epoka_proto::compression::Compression;
use epoka_proto::config::TopicConfig;
use epoka_proto::ids::{LeaderEpoch, Millis};
use tokio::sync::mpsc;

use super::*;
use crate::clock::Clock;
use crate::partition::{Partition, Surroundings};

const EPOCH: BrokerEpoch = BrokerEpoch(42);

fn load(dir: &Path) -> Logs {
    let events = EventLog::new("broker-1");
    Logs::load(&[dir.to_owned()], BrokerId(1), events).expect("loaded")
}

fn orders() -> (PartitionId, TopicPartition) {
    let id = PartitionId {
        topic: TopicId::random(),
        partition: 0,
    };
    (id, TopicPartition::new("orders", 0))
}

/// Takes a log that is there or new, appends one record, and makes a partition of it.
fn partition(logs: &Logs, id: PartitionId, name: &TopicPartition) -> Arc<Partition> {
    let (log, high_watermark) = logs.take(id, name, LogConfig::default());
    let mut log = log.expect("a log");
    let mut batch = BatchBuilder::new(Compression::None);
    batch.append(0, None, Some(b"value"), &[]);
    log.append_as_leader(&batch.finish(), log.end(), LeaderEpoch(0), 0)
        .expect("appended");
    let around = Surroundings {
        me: BrokerId(1),
        clock: Clock::start(),
        events: EventLog::new("broker-1"),
        errands: mpsc::unbounded_channel().0,
        replica_lag_time_max_ms: 30_000 as Millis,
    };
    let config = Arc::new(TopicConfig::default());
    let name = name.clone();
    Arc::new(Partition::new(
        id,
        name,
        around,
        config,
        Ok(log),
        high_watermark,
    ))
}

/// Makes the next start look like one on another boot of the machine: only the clean-shutdown marker may be claimed.
fn reboot(dir: &Path) {
    boot::forget_epoch(dir).expect("forgotten");
}

#[test]
fn a_clean_stop_may_be_claimed_once_d_10_d_13() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let (id, name) = orders();
    {
        let logs = load(dir.path());
        assert_eq!(logs.previous_epoch(), None);
        let partition = partition(&logs, id, &name);
        logs.close(&[partition], Some(EPOCH));
    }
    {
        // It stops again before any metadata came: its logs are closed all the same, under the same claim.
        let logs = load(dir.path());
        assert_eq!(logs.previous_epoch(), Some(EPOCH));
        logs.close(&[], logs.previous_epoch());
    }
    {
        let logs = load(dir.path());
        assert_eq!(logs.previous_epoch(), Some(EPOCH));
        let (log, _) = logs.take(id, &name, LogConfig::default());
        assert_eq!(log.expect("a log").end(), Offset(1));
    }
    // It was not closed.
    assert_eq!(load(dir.path()).previous_epoch(), None);
}

#[test]
fn a_kill_may_be_claimed_on_the_same_boot_unless_a_write_failed_c_13() {
    let dir = tempfile::tempdir().expect("temporary directory");
    load(dir.path()).note_epoch(EPOCH);
    {
        let logs = load(dir.path());
        assert_eq!(logs.previous_epoch(), Some(EPOCH));
        logs.forget_epoch();
        logs.note_epoch(BrokerEpoch(43)); // registered again
    }
    assert_eq!(load(dir.path()).previous_epoch(), None);
}

#[test]
fn a_damaged_log_costs_the_others_neither_claim_nor_place_c_13() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let (damaged, name) = orders();
    let (whole, other) = (orders().0, TopicPartition::new("payments", 0));
    {
        let logs = load(dir.path());
        logs.note_epoch(EPOCH);
        let partitions = [
            partition(&logs, damaged, &name),
            partition(&logs, whole, &other),
        ];
        partitions.iter().for_each(|p| p.flush());
        logs.save_recovery_points(&partitions);
    }
    // What had been made durable is gone.
    let segment = dir.path().join("orders-0/00000000000000000000.log");
    fs::write(segment, b"").expect("writable");
    let logs = load(dir.path());
    assert_eq!(logs.previous_epoch(), Some(EPOCH));
    assert!(logs.has_found(damaged) && logs.has_found(whole));
    let (offline, _) = logs.take(damaged, &name, LogConfig::default());
    assert!(offline.is_err_and(|o| o.unreadable));
    let (log, _) = logs.take(whole, &other, LogConfig::default());
    assert_eq!(log.expect("a log").end(), Offset(1));
    assert!(!logs.has_found(orders().0), "a partition without files");
}

#[test]
fn a_directory_that_is_gone_is_missed_and_begun_anew_only_when_told() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let (id, name) = orders();
    {
        let logs = load(dir.path());
        logs.note_epoch(EPOCH);
        let partition = partition(&logs, id, &name);
        partition.flush();
        logs.save_recovery_points(&[partition]);
    }
    fs::remove_dir_all(dir.path().join("orders-0")).expect("removed");
    let logs = load(dir.path());
    let (offline, _) = logs.take(id, &name, LogConfig::default());
    assert!(offline.is_err_and(|o| o.unreadable && o.reason.contains("is gone")));
    let anew = logs.begin_anew(id, &name, LogConfig::default());
    assert_eq!(anew.expect("a log").end(), Offset(0));
    drop(logs);
    let logs = load(dir.path());
    let (log, _) = logs.take(id, &name, LogConfig::default());
    assert_eq!(log.expect("nothing is noted any more").end(), Offset(0));
}

#[test]
fn files_whose_owner_cannot_be_told_are_set_aside_when_told_to_begin_anew() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let (id, name) = orders();
    {
        let logs = load(dir.path());
        logs.note_epoch(EPOCH);
        partition(&logs, id, &name);
    }
    let metadata = dir.path().join("orders-0/partition.metadata");
    fs::write(metadata, "rubbish").expect("writable");
    let logs = load(dir.path());
    let (offline, _) = logs.take(id, &name, LogConfig::default());
    assert!(offline.is_err_and(|o| o.unreadable));
    let anew = logs.begin_anew(id, &name, LogConfig::default());
    assert_eq!(anew.expect("a log").end(), Offset(0));
    assert_eq!(
        fs::read_dir(dir.path().join(QUARANTINE_DIR))
            .expect("kept")
            .count(),
        1
    );
}

#[test]
fn a_replica_out_of_service_is_not_called_clean_d_11() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let (id, name) = orders();
    {
        let logs = load(dir.path());
        let partition = partition(&logs, id, &name);
        partition.handle(crate::replica::Event::LogFailed {
            reason: "the disk is full".into(),
        });
        logs.close(&[partition], Some(EPOCH));
    }
    reboot(dir.path());
    assert_eq!(load(dir.path()).previous_epoch(), None);
}

#[test]
fn unreadable_files_make_room_for_an_empty_log_and_are_kept() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let (id, name) = orders();
    let logs = load(dir.path());
    drop(partition(&logs, id, &name).close());
    let log = logs.begin_anew(id, &name, LogConfig::default());
    let log = log.expect("an empty log");
    assert_eq!((log.start(), log.end()), (Offset::ZERO, Offset::ZERO));
    let kept = fs::read_dir(dir.path().join(QUARANTINE_DIR)).expect("kept");
    assert_eq!(kept.count(), 1);
}

#[test]
fn a_topic_made_anew_while_we_were_away_gets_a_log_once_the_old_one_is_set_aside_d_2() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let ((old, name), (new, _)) = (orders(), orders());
    drop(partition(&load(dir.path()), old, &name).close());

    let logs = load(dir.path());
    logs.set_strays_aside(|id| id == new);
    let (log, high_watermark) = logs.take(new, &name, LogConfig::default());
    assert_eq!(log.expect("a new log").end(), Offset::ZERO);
    assert_eq!(high_watermark, Offset::ZERO);
    let names = fs::read_dir(dir.path()).expect("listed");
    let stray = |e: io::Result<fs::DirEntry>| {
        let name = e.expect("an entry").file_name();
        name.to_string_lossy().ends_with("-stray")
    };
    assert_eq!(names.filter_map(|e| stray(e).then_some(())).count(), 1);
}
