//! Appending, rolling, reading, looking up, and the data directory around it.

mod common;

use common::*;
use epoka_log::{AppendError, LogConfig, LogDir, LogDirError, OpenError, ProducerVerdict};
use epoka_proto::batch::{self, BatchHeader};
use epoka_proto::error::ErrorCode;
use epoka_proto::ids::{BrokerEpoch, BrokerId, LeaderEpoch, Offset, TopicId, TopicPartition};

#[test]
fn a_leaders_batch_gets_its_offset_and_epoch_and_keeps_every_other_byte() {
    let mut disk = Disk::new(LogConfig::default());
    let mut log = disk.open();
    let sent = client_batch(3, 50, 1000);
    append(&mut log, 4, &sent);
    append(&mut log, 4, &sent);
    let stored = std::fs::read(&disk.files("log")[0]).unwrap();
    let second = &stored[sent.len()..];
    let header = BatchHeader::parse(second).unwrap();
    assert_eq!(
        (header.base_offset, header.epoch()),
        (Offset(3), Some(LeaderEpoch(4)))
    );
    assert_eq!(second[16..], sent[16..]);
    assert!(batch::crc_is_valid(second));
    assert_eq!(log.end(), Offset(6));
    assert_eq!(epochs(&log), [(4, 0)]);
}

#[test]
fn reads_return_whole_batches_and_at_least_one_l_53() {
    let mut disk = Disk::new(small(1 << 20));
    let mut log = disk.open();
    fill(&mut log, 0, 50); // offsets 0-99, two a batch
    append(&mut log, 0, &client_batch(1, 300_000, 2000)); // 100
    append(&mut log, 0, &client_batch(2, 10, 2000)); // 101, 102
    let view = log.view();
    let size = client_batch(2, 100, 1000).len();
    let end = view.end();
    for (from, bound, max, one, expected) in [
        (0, end, size * 3, true, vec![0, 2, 4]),
        (0, end, size * 3 + 1, true, vec![0, 2, 4]),
        (5, end, size * 2, true, vec![4, 6]), // begins with the batch that holds 5
        (6, Offset(10), 1 << 20, true, vec![6, 8]),
        (6, Offset(9), 1 << 20, true, vec![6]), // a bound within a batch shows nothing of it
        (6, end, 10, true, vec![6]),
        (6, end, 10, false, vec![]),
        (6, end, 0, false, vec![]),
        (98, end, size, true, vec![98]),
        (100, end, size, true, vec![100]), // larger than was asked for
        (99, end, size * 2, true, vec![98]),
        (102, end, size, true, vec![101]),
        (103, end, size, true, vec![]),
        (50, Offset(50), size, true, vec![]),
    ] {
        let bytes = view.read(Offset(from), bound, max, one).unwrap();
        assert_eq!(
            bases(&bytes),
            expected,
            "from {from} to {bound}, {max} bytes"
        );
    }
    assert_eq!(read_all(&view, Offset(0), size).len() as u64, view.size());
}

#[test]
fn a_log_rolls_by_size_and_an_oversized_batch_gets_a_segment_of_its_own_d_40() {
    let mut disk = Disk::new(small(1000));
    let mut log = disk.open();
    fill(&mut log, 0, 3); // about 290 bytes each: three fit
    append(&mut log, 0, &client_batch(1, 5000, 1000));
    append(&mut log, 0, &client_batch(1, 10, 1000));
    let names: Vec<_> = disk
        .files("log")
        .iter()
        .map(|p| p.file_stem().unwrap().to_owned())
        .collect();
    assert_eq!(
        names,
        [
            "00000000000000000000",
            "00000000000000000006",
            "00000000000000000007"
        ]
    );
    assert_eq!(
        bases(&read_all(&log.view(), Offset(0), 400)),
        [0, 2, 4, 6, 7]
    );
    // A roll leaves a producer snapshot for the new base, and both indexes (D-30, section 0).
    assert_eq!(disk.files("snapshot").len(), 2);
    assert_eq!(disk.files("index").len(), 3);
    assert_eq!(disk.files("timeindex").len(), 3);
}

#[test]
fn a_log_rolls_by_record_time_d_41() {
    let config = LogConfig {
        segment_ms: 1000,
        ..LogConfig::default()
    };
    let mut disk = Disk::new(config);
    let mut log = disk.open();
    for (timestamp, segments) in [(5000, 1), (6000, 1), (6001, 2), (5500, 2)] {
        append(&mut log, 0, &client_batch(1, 10, timestamp));
        assert_eq!(disk.files("log").len(), segments, "{timestamp}");
    }
    // Records without a timestamp leave the wall clock to decide.
    let mut disk = Disk::new(disk.config.clone());
    let mut log = disk.open();
    for (now, segments) in [(NOW, 1), (NOW + 1000, 1), (NOW + 1001, 2)] {
        let batch = client_batch(1, 10, -1);
        log.append_as_leader(&batch, log.end(), LeaderEpoch(0), now)
            .unwrap();
        assert_eq!(disk.files("log").len(), segments, "{now}");
    }
}

#[test]
fn a_log_rolls_when_an_index_is_full_even_one_without_room_at_all_h_67() {
    for (index_bytes, segments) in [(36, 7), (8, 20), (4, 20)] {
        let config = LogConfig {
            segment_index_bytes: index_bytes,
            ..small(1 << 20)
        };
        let mut disk = Disk::new(config);
        let mut log = disk.open();
        fill(&mut log, 0, 10);
        let fetched: Vec<u8> = (0..10).flat_map(|i| stamped(20 + i, 0, 1, 100)).collect();
        log.append_as_follower(&fetched, NOW).unwrap();
        assert_eq!(disk.files("log").len(), segments, "{index_bytes}");
        assert_eq!(headers(&read_all(&log.view(), Offset(0), 4000)).len(), 20);
    }
}

#[test]
fn a_follower_appends_what_it_is_given_or_nothing_l_11() {
    let mut disk = Disk::new(small(700));
    let mut log = disk.open();
    let run: Vec<u8> = [(0, 1, 3), (3, 1, 2), (5, 2, 4), (9, 4, 1)]
        .iter()
        .flat_map(|&(base, epoch, records)| stamped(base, epoch, records, 100))
        .collect();
    log.append_as_follower(&run, NOW).unwrap();
    assert_eq!(read_all(&log.view(), Offset(0), 1 << 20), run);
    assert_eq!(epochs(&log), [(1, 0), (2, 5), (4, 9)]);
    assert!(disk.files("log").len() > 1);

    let gap = [stamped(10, 4, 1, 10), stamped(12, 4, 1, 10)].concat();
    assert!(matches!(
        log.append_as_follower(&gap, NOW),
        Err(AppendError::NotContiguous {
            expected: Offset(11),
            found: Offset(12)
        })
    ));
    let old = stamped(10, 3, 1, 10);
    assert!(matches!(
        log.append_as_follower(&old, NOW),
        Err(AppendError::OlderEpoch { .. })
    ));
    let torn = &stamped(10, 4, 1, 10)[..70];
    assert!(matches!(
        log.append_as_follower(torn, NOW),
        Err(AppendError::Malformed(_))
    ));
    let unstamped = client_batch(1, 10, 0);
    assert!(log.append_as_follower(&unstamped, NOW).is_err());
    assert_eq!(
        log.end(),
        Offset(10),
        "a refusal writes nothing, and the log goes on"
    );
    log.append_as_follower(&stamped(10, 4, 1, 10), NOW).unwrap();
}

#[test]
fn an_empty_follower_may_begin_within_a_batch_f_22_h_26() {
    let mut disk = Disk::new(LogConfig::default());
    let mut log = disk.open();
    log.start_over(Offset(42)).unwrap();
    log.append_as_follower(&stamped(40, 1, 5, 10), NOW).unwrap();
    assert_eq!((log.start(), log.end()), (Offset(40), Offset(45)));
    log.raise_start(Offset(42)).unwrap();
    assert_eq!(epochs(&log), [(1, 42)]);
    assert_eq!(
        bases(&log.view().read(Offset(42), log.end(), 1000, true).unwrap()),
        [40]
    );
    // In any other case a batch below the end is an error.
    assert!(log.append_as_follower(&stamped(44, 1, 5, 10), NOW).is_err());
}

#[test]
fn records_are_found_by_time() {
    let mut disk = Disk::new(small(700));
    let mut log = disk.open();
    // Two records a batch, one millisecond apart; one batch is late, one is early.
    for timestamp in [1000, 1010, 1020, 1500, 1030, 1040, 1050, 900, 1060] {
        append(&mut log, 0, &client_batch(2, 100, timestamp));
    }
    assert!(disk.files("log").len() > 2);
    let view = log.view();
    let end = view.end();
    for (timestamp, bound, found) in [
        (0, end, Some((0, 1000))),
        (1001, end, Some((1, 1001))),
        (1002, end, Some((2, 1010))),
        (1021, end, Some((5, 1021))),
        (1022, end, Some((6, 1500))),
        (1501, end, Some((7, 1501))),
        (1502, end, None),
        (1022, Offset(6), None),
        (1021, Offset(6), Some((5, 1021))),
    ] {
        let expected = found.map(|(offset, timestamp)| (Offset(offset), timestamp));
        assert_eq!(
            view.find_timestamp(timestamp, bound).unwrap(),
            expected,
            "{timestamp} below {bound}"
        );
    }
    assert_eq!(view.max_timestamp(end).unwrap(), Some((Offset(7), 1501)));
    assert_eq!(
        view.max_timestamp(Offset(6)).unwrap(),
        Some((Offset(5), 1021))
    );
    assert_eq!(view.max_timestamp(Offset(0)).unwrap(), None);
    log.raise_start(Offset(8)).unwrap();
    assert_eq!(
        view.find_timestamp(0, end).unwrap(),
        Some((Offset(8), 1030))
    );
}

#[test]
fn raising_the_start_lets_go_of_whole_segments_d_51_d_53() {
    let mut disk = Disk::new(small(700));
    let mut log = disk.open();
    fill(&mut log, 0, 3);
    fill(&mut log, 2, 7); // offsets to 20, two batches a segment
    let view = log.view();
    log.raise_start(Offset(9)).unwrap();
    assert_eq!((log.start(), view.start()), (Offset(9), Offset(9)));
    assert_eq!(epochs(&log), [(2, 9)]);
    assert!(log.flush_is_due(NOW), "files wait to be unlinked");
    assert!(!log.flush_is_due(NOW), "said once");
    assert_eq!(
        disk.files("deleted").len(),
        2 * 4 - 1,
        "the first segment has no snapshot"
    );
    log.flush_work().run().unwrap();
    assert_eq!(disk.files("deleted").len(), 0);
    assert_eq!(
        bases(&view.read(Offset(9), view.end(), 1, true).unwrap()),
        [8]
    );
    assert!(
        view.read(Offset(3), view.end(), 1, true)
            .unwrap()
            .is_empty(),
        "gone"
    );
    // To the end: the newest segment stays, and appending goes on.
    log.raise_start(Offset(99)).unwrap();
    assert_eq!((log.start(), log.end()), (Offset(20), Offset(20)));
    fill(&mut log, 2, 1);
    assert_eq!(bases(&read_all(&view, Offset(20), 1)), [20]);
}

#[test]
fn starting_over_forgets_everything_f_20_h_29() {
    let mut disk = Disk::new(small(700));
    let mut log = disk.open();
    fill(&mut log, 3, 9);
    append(&mut log, 3, &idempotent(7, 0, 0, 1, 10));
    log.start_over(Offset(500)).unwrap();
    assert_eq!(
        (log.start(), log.end(), log.recovery_point()),
        (Offset(500), Offset(500), Offset(500))
    );
    assert!(epochs(&log).is_empty() && log.producers().is_empty());
    assert_eq!(disk.files("log").len(), 1);
    fill(&mut log, 5, 1);
    disk.kill(log);
    let log = disk.open();
    assert_eq!((log.start(), log.end()), (Offset(500), Offset(502)));
    assert_eq!(epochs(&log), [(5, 500)]);
}

#[test]
fn flushing_moves_the_recovery_point_unless_the_log_was_cut_meanwhile_d_28() {
    let mut disk = Disk::new(small(700));
    let mut log = disk.open();
    assert!(!log.flush_is_due(NOW));
    fill(&mut log, 0, 3);
    assert!(log.flush_is_due(NOW), "a segment was closed");
    let point = log.flush_work().run().unwrap();
    assert_eq!(log.flushed_to(point), Offset(6));
    let work = log.flush_work();
    log.truncate_to(Offset(2)).unwrap();
    fill(&mut log, 1, 1);
    let point = work.run().unwrap();
    assert_eq!(log.flushed_to(point), Offset(2));
    // flush.messages and flush.ms
    log.set_config(LogConfig {
        flush_messages: Some(4),
        flush_ms: Some(500),
        ..LogConfig::default()
    });
    let point = log.flush_work().run().unwrap();
    log.flushed_to(point);
    fill(&mut log, 1, 1);
    assert!(!log.flush_is_due(NOW + 499));
    assert!(log.flush_is_due(NOW + 500));
    let point = log.flush_work().run().unwrap();
    log.flushed_to(point);
    fill(&mut log, 1, 2);
    assert!(log.flush_is_due(NOW));
}

#[test]
fn sequences_survive_a_restart_and_a_kill_p_1() {
    let mut disk = Disk::new(small(700));
    let mut log = disk.open();
    for sequence in 0..8 {
        append(&mut log, 0, &idempotent(7, 1, sequence * 2, 2, 100));
    }
    // Any of the five batches that a producer may have under way, across segments.
    let recent: Vec<_> = (3..8)
        .map(|n| BatchHeader::parse(&idempotent(7, 1, n * 2, 2, 100)).unwrap())
        .collect();
    let next = BatchHeader::parse(&idempotent(7, 1, 16, 1, 100)).unwrap();
    let gap = BatchHeader::parse(&idempotent(7, 1, 17, 1, 100)).unwrap();
    let check = |log: &epoka_log::PartitionLog| {
        for header in &recent {
            let base = Offset(i64::from(header.base_sequence));
            let duplicate = ProducerVerdict::Duplicate {
                base,
                end: base + 2,
            };
            assert_eq!(log.check_producer(header), duplicate);
        }
        assert_eq!(log.check_producer(&next), ProducerVerdict::Next);
        let refused = ProducerVerdict::Refused(ErrorCode::OutOfOrderSequenceNumber);
        assert_eq!(log.check_producer(&gap), refused);
    };
    check(&log);
    for clean in [false, false, true, true] {
        match clean {
            true => disk.stop(log),
            false => disk.kill(log),
        }
        log = disk.open();
        check(&log);
    }
    // After a cut the batches before it are still known.
    log.truncate_to(Offset(14)).unwrap();
    let last = recent.last().expect("five");
    assert_eq!(log.check_producer(last), ProducerVerdict::Next);
    assert!(matches!(
        log.check_producer(&recent[0]),
        ProducerVerdict::Duplicate { .. }
    ));
}

#[test]
fn a_data_directory_knows_its_node_cluster_and_partitions_d_3() {
    let root = tempfile::tempdir().unwrap();
    let (carts, id) = (TopicPartition::new("carts", 3), TopicId::random());
    let (dir, opened) = LogDir::open(root.path(), BrokerId(1), None).unwrap();
    assert!(!opened.clean_shutdown && opened.partitions.is_empty());
    assert!(matches!(
        LogDir::open(root.path(), BrokerId(1), None),
        Err(LogDirError::InUse(_))
    ));
    assert_eq!(dir.cluster_id(), None);
    dir.set_cluster_id("here").unwrap();
    assert!(matches!(
        dir.set_cluster_id("there"),
        Err(LogDirError::OtherCluster { .. })
    ));
    let (log, _) = dir.open_log(&carts, id, LogConfig::default(), NOW).unwrap();
    let refused = dir
        .mark_clean_shutdown(BrokerEpoch(5))
        .unwrap_err()
        .to_string();
    assert_eq!(
        refused,
        "not a clean shutdown: the log of carts-3 was not closed"
    );
    log.close().unwrap();
    dir.write_high_watermarks(&[(carts.clone(), Offset(9))])
        .unwrap();
    dir.mark_clean_shutdown(BrokerEpoch(5)).unwrap();
    std::fs::create_dir(root.path().join("something-else")).unwrap();
    std::fs::create_dir(root.path().join("gone-0.0123-delete")).unwrap();
    drop(dir);

    assert!(matches!(
        LogDir::open(root.path(), BrokerId(2), None),
        Err(LogDirError::OtherNode { .. })
    ));
    let (dir, opened) = LogDir::open(root.path(), BrokerId(1), Some("here")).unwrap();
    assert_eq!(
        (opened.clean_shutdown, opened.clean_epoch),
        (true, Some(BrokerEpoch(5)))
    );
    assert_eq!(opened.partitions, [(carts.clone(), Some(id))]);
    assert_eq!(opened.leftovers.paths().len(), 1);
    assert_eq!(dir.high_watermark(&carts), Some(Offset(9)));
    // D-2: another topic of that name does not get these files.
    let other = dir.open_log(&carts, TopicId::random(), LogConfig::default(), NOW);
    assert!(matches!(other, Err(OpenError::OtherTopic { found }) if found == id));
    let stray = dir.set_stray_aside(&carts).unwrap();
    assert!(stray.to_string_lossy().ends_with("-stray"));
    assert_eq!(
        dir.high_watermark(&carts),
        None,
        "its checkpoints went with it"
    );
    drop(dir);
    let (_, opened) = LogDir::open(root.path(), BrokerId(1), None).unwrap();
    assert!(!opened.clean_shutdown, "the marker is read once (D-13)");
    assert!(opened.partitions.is_empty());
}

#[test]
fn a_deleted_log_stays_readable_for_those_who_read_it() {
    let mut disk = Disk::new(LogConfig::default());
    let mut log = disk.open();
    fill(&mut log, 0, 3);
    let view = log.view();
    let work = log.flush_work();
    drop(log);
    let renamed = disk.dir().delete_log(&orders()).unwrap();
    assert_eq!(bases(&read_all(&view, Offset(0), 1)), [0, 2, 4]);
    work.run().unwrap(); // H-6E: its directory has moved
    std::fs::remove_dir_all(renamed).unwrap();
    let log = disk.open();
    assert_eq!(log.end(), Offset(0), "a new log of that name is empty");
}

#[test]
fn readers_follow_a_writer_that_rolls_and_cuts() {
    let mut disk = Disk::new(small(3000));
    let mut log = disk.open();
    fill(&mut log, 0, 2);
    let view = log.view();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut reads = 0;
                while !done.load(std::sync::atomic::Ordering::Relaxed) || reads == 0 {
                    let end = view.end();
                    let bytes = view.read(Offset(end.0 / 2), end, 2000, true).unwrap();
                    for item in batch::batches(&bytes) {
                        let (_, whole) = item.unwrap();
                        assert!(batch::crc_is_valid(whole));
                    }
                    reads += 1;
                }
            });
        }
        for epoch in 1..60 {
            fill(&mut log, epoch, 20);
            log.truncate_to(Offset(log.end().0 - 17)).unwrap();
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn an_unreadable_partition_metadata_matters_only_to_a_log_that_holds_something() {
    let mut disk = Disk::new(LogConfig::default());
    let log = disk.open();
    let path = disk.partition_dir().join("partition.metadata");
    disk.kill(log);
    std::fs::write(&path, "").unwrap();
    let mut log = disk.open();
    assert_eq!(std::fs::read(&path).unwrap().len(), 43);
    fill(&mut log, 0, 1);
    disk.kill(log);
    std::fs::write(&path, "").unwrap();
    assert!(matches!(disk.try_open(), Err(OpenError::Unidentified)));
}
