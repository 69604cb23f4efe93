//! Opening what a crash, a bit flip or a careless hand left behind (D-20 to D-27, E-6; H-61 to H-69, I-24). The table in the module
//! `recover` is tested row by row.

mod common;

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;

use common::*;
use epoka_log::{Damage, EPOCH_FILE, LogConfig, LogDir, OpenError, ReadError, Repair};
use epoka_proto::ids::{BrokerId, Offset};
use proptest::prelude::*;

/// How an opening ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    /// Opened; the log ends here.
    End(i64),
    /// Refused as damaged; readable to here.
    Damaged(i64),
}

#[test]
fn every_row_of_the_recovery_table() {
    use Harm::*;
    use Outcome::*;
    // Durable batches: 0 = nothing, 4 = segment 0, 8 = segments 0 and 1, 12 = everything.
    for (durable, segment, what, outcome) in [
        // Newest segment, at or above the recovery point: cut.
        (8, 2, Torn, End(22)),
        (8, 2, Short, End(18)),
        (8, 2, Zeroed, End(18)),
        (8, 2, Flipped, End(18)),
        (8, 2, FlippedLast, End(22)),
        (0, 2, Torn, End(22)),
        // Newest segment, below it: damaged.
        (12, 2, Torn, Damaged(22)),
        (12, 2, Short, Damaged(18)),
        (12, 2, Zeroed, Damaged(18)),
        (12, 2, Flipped, Damaged(18)),
        // Closed segment, at or above, cut short: it and the later ones are cut.
        (4, 1, Torn, End(14)),
        (4, 1, Short, End(10)),
        (4, 1, Zeroed, End(10)),
        (0, 0, Torn, End(6)),
        (0, 0, Short, End(2)),
        // Closed segment, anything else: damaged.
        (4, 1, Flipped, Damaged(10)),
        (4, 1, FlippedLast, Damaged(14)),
        (0, 0, Flipped, Damaged(2)),
        // Closed segment, below: damaged, however it looks.
        (8, 1, Torn, Damaged(14)),
        (8, 1, Short, Damaged(10)),
        (8, 0, Torn, Damaged(6)),
        (8, 0, Flipped, Damaged(2)),
        (12, 1, FlippedLast, Damaged(14)),
    ] {
        let case = format!("{what:?} in segment {segment}, {durable} batches durable");
        let (mut disk, log) = twelve_batches(durable);
        let before = read_all(&log.view(), Offset(0), 1 << 20);
        disk.kill(log);
        harm(&disk.files("log")[segment], what);
        match (disk.try_open(), outcome) {
            (Ok((mut log, repairs)), End(end)) => {
                assert_eq!(log.end(), Offset(end), "{case}");
                // A newest segment that ends with a whole batch shows no trace of what it lost.
                let silent = segment == 2 && matches!(what, Short);
                let reported = matches!(repairs[..], [Repair::CutTail { .. }]);
                assert!(
                    reported || silent && repairs.is_empty(),
                    "{case}: {repairs:?}"
                );
                let after = read_all(&log.view(), Offset(0), 1 << 20);
                assert_eq!(before[..after.len()], after, "{case}");
                assert!(
                    log.recovery_point().0 <= durable as i64 * 2,
                    "H-62: not moved without a sync"
                );
                fill(&mut log, 3, 5);
                assert_eq!(epochs(&log), [(1, 0), (3, end)], "{case}");
            }
            (Err(OpenError::Damaged(Damage { readable, .. })), Damaged(offset)) => {
                assert_eq!(readable, Offset(offset), "{case}");
                // Nothing was lost, and the partition can be set aside and begun anew.
                assert_eq!(disk.files("log").len(), 3, "{case}");
                let kept = disk.dir().quarantine(&orders()).unwrap();
                assert_eq!(files(&kept, "log").len(), 3, "{case}");
                let log = disk.open();
                assert_eq!(log.end(), Offset(0), "{case}");
                disk.stop(log);
            }
            (result, _) => panic!("{case}: {result:?} instead of {outcome:?}"),
        }
    }
}

#[test]
fn what_is_cut_at_start_is_kept_aside() {
    let (mut disk, log) = twelve_batches(4);
    disk.kill(log);
    harm(&disk.files("log")[1], Harm::Torn);
    let (_, repairs) = disk.try_open().unwrap();
    let Repair::CutTail {
        kept: Some(kept),
        bytes,
        ..
    } = &repairs[0]
    else {
        panic!("{repairs:?}")
    };
    let archived: u64 = files(kept, "log")
        .iter()
        .map(|p| p.metadata().unwrap().len())
        .sum();
    assert_eq!(archived, *bytes);
    let sentence = repairs[0].to_string();
    assert!(
        sentence.starts_with("cut ") && sentence.contains("the log ends at 14; they are kept in "),
        "{sentence}"
    );
}

#[test]
fn a_torn_tail_appended_by_hand_is_repaired() {
    let (mut disk, log) = twelve_batches(12);
    disk.kill(log);
    let newest = disk.files("log").pop().unwrap();
    let mut file = OpenOptions::new().append(true).open(newest).unwrap();
    file.write_all(&stamped(24, 1, 2, 100)[..150]).unwrap();
    let (log, repairs) = disk.try_open().unwrap();
    assert_eq!((log.end(), repairs.len()), (Offset(24), 1));
}

#[test]
fn a_kill_without_harm_repairs_nothing_and_loses_nothing() {
    let (mut disk, log) = twelve_batches(3);
    let before = read_all(&log.view(), Offset(0), 1 << 20);
    disk.kill(log);
    let (log, repairs) = disk.try_open().unwrap();
    assert!(repairs.is_empty());
    assert_eq!(read_all(&log.view(), Offset(0), 1 << 20), before);
    assert!(disk.archives().is_empty());
}

#[test]
fn bad_indexes_are_made_anew_never_trusted_d_38_h_68_h_69() {
    for clean in [true, false] {
        for segment in [0, 2] {
            for (extension, what) in [
                ("index", "padded"),
                ("index", "gone"),
                ("index", "torn"),
                ("timeindex", "padded"),
                ("timeindex", "gone"),
            ] {
                let (mut disk, log) = twelve_batches(12);
                let expected = disk
                    .files(extension)
                    .iter()
                    .map(|f| fs::read(f).unwrap())
                    .collect::<Vec<_>>();
                match clean {
                    true => disk.stop(log),
                    false => disk.kill(log),
                }
                let path = &disk.files(extension)[segment];
                let bytes = fs::read(path).unwrap();
                match what {
                    "padded" => fs::write(path, [bytes, vec![0; 240]].concat()).unwrap(),
                    "torn" => fs::write(path, &bytes[..bytes.len() - 3]).unwrap(),
                    _ => fs::remove_file(path).unwrap(),
                }
                let case = format!("{what} {extension} of segment {segment}, clean: {clean}");
                let (log, _) = disk.try_open().unwrap();
                assert_eq!(
                    bases(&read_all(&log.view(), Offset(0), 1)).len(),
                    12,
                    "{case}"
                );
                let rebuilt = fs::read(&disk.files(extension)[segment]).unwrap();
                assert!(rebuilt.starts_with(&expected[segment]), "{case}");
                assert!(rebuilt.len() <= expected[segment].len() + 12, "{case}");
            }
        }
    }
}

#[test]
fn a_missing_or_wrong_epoch_file_is_made_anew_from_the_batches_e_6_h_64_h_6f() {
    for clean in [true, false] {
        for content in [
            None,
            Some(""),
            Some("0\n1\n1 0\n"),
            Some("0\n2\n1 0\n9 3\n"),
            Some("0\n3\n1 0\n5 6\n8 24\n"),
        ] {
            let mut disk = Disk::new(small(1200));
            let mut log = disk.open();
            fill(&mut log, 1, 3);
            fill(&mut log, 5, 6);
            match clean {
                true => disk.stop(log),
                false => disk.kill(log),
            }
            let path = disk.partition_dir().join(EPOCH_FILE);
            match content {
                Some(text) => fs::write(&path, text).unwrap(),
                None => fs::remove_file(&path).unwrap(),
            }
            // After a clean stop a well-formed file is believed: nothing is read to contradict it.
            let believed =
                clean && content.is_some_and(|c| c.starts_with("0\n1") || c.starts_with("0\n2"));
            if !believed {
                let log = disk.open();
                assert_eq!(epochs(&log), [(1, 0), (5, 6)], "clean {clean}, {content:?}");
                assert_eq!(fs::read_to_string(&path).unwrap(), "0\n2\n1 0\n5 6\n");
            }
        }
    }
}

#[test]
fn damaged_and_missing_snapshots_only_cost_time_d_30() {
    for remove in [false, true] {
        let mut disk = Disk::new(small(700));
        let mut log = disk.open();
        for sequence in 0..9 {
            append(&mut log, 0, &idempotent(7, 0, sequence, 1, 100));
        }
        disk.stop(log);
        for file in disk.files("snapshot") {
            match remove {
                true => fs::remove_file(file).unwrap(),
                false => fs::write(file, b"\0\x01garbage").unwrap(),
            }
        }
        let log = disk.open();
        let newest = log.producers().sorted()[0].1.newest().unwrap();
        assert_eq!((newest.last_sequence, newest.last_offset), (8, Offset(8)));
    }
}

#[test]
fn a_log_that_ends_below_its_noted_start_is_dropped_d_24() {
    let (mut disk, log) = twelve_batches(0);
    disk.dir()
        .write_log_starts(&[(orders(), Offset(30))])
        .unwrap();
    disk.kill(log);
    let (mut log, repairs) = disk.try_open().unwrap();
    assert_eq!((log.start(), log.end()), (Offset(30), Offset(30)));
    assert!(matches!(repairs[..], [Repair::Emptied { .. }]));
    fill(&mut log, 2, 1);
    disk.kill(log);
    assert_eq!(disk.open().end(), Offset(32));
}

#[test]
fn a_noted_start_within_a_segment_is_kept_d_26() {
    let (mut disk, mut log) = twelve_batches(0);
    log.raise_start(Offset(11)).unwrap();
    disk.dir()
        .write_log_starts(&[(orders(), log.start())])
        .unwrap();
    disk.kill(log);
    let log = disk.open();
    assert_eq!((log.start(), log.end()), (Offset(11), Offset(24)));
    assert_eq!(epochs(&log), [(1, 11)]);
    assert_eq!(disk.files("deleted").len(), 0);
}

#[test]
fn preallocated_space_is_no_data_d_39() {
    let config = LogConfig {
        preallocate: true,
        ..small(4000)
    };
    let mut disk = Disk::new(config);
    let mut log = disk.open();
    fill(&mut log, 0, 3);
    assert_eq!(disk.files("log")[0].metadata().unwrap().len(), 4000);
    disk.kill(log);
    let (mut log, repairs) = disk.try_open().unwrap();
    assert!(repairs.is_empty() && log.end() == Offset(6));
    fill(&mut log, 0, 20);
    disk.stop(log);
    let log = disk.open();
    assert_eq!(log.end(), Offset(46));
    let sizes: u64 = disk
        .files("log")
        .iter()
        .map(|f| f.metadata().unwrap().len())
        .sum();
    assert_eq!(sizes, log.size(), "trimmed when closed");
}

#[test]
fn a_scrub_and_a_read_find_what_nobody_looked_for() {
    let (disk, log) = twelve_batches(12);
    let view = log.view();
    let scrubbed = view.scrub().unwrap().unwrap();
    assert_eq!((scrubbed.batches, scrubbed.bytes), (12, log.size()));
    harm(&disk.files("log")[0], Harm::Flipped);
    assert!(matches!(view.scrub(), Some(Err(ReadError::Damaged { .. }))));
    // A flipped bit in records is the reader's to find, by the CRC; a header is checked here.
    let file = OpenOptions::new()
        .write(true)
        .open(&disk.files("log")[1])
        .unwrap();
    file.write_all_at(&[9], 16).unwrap();
    let error = view.read(Offset(8), log.end(), 100, true).unwrap_err();
    assert!(
        error.to_string().contains("is damaged at byte 0: magic 9"),
        "{error}"
    );
}

#[test]
fn a_directory_marked_clean_is_not_read_again() {
    let (mut disk, log) = twelve_batches(12);
    disk.stop(log);
    assert!(disk.start());
    let log = disk.open();
    assert_eq!((log.end(), log.recovery_point()), (Offset(24), Offset(24)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever a few bytes of whichever file become: a log that opens is a prefix of what there was, with everything durable; one
    /// that does not says so. Nothing panics.
    #[test]
    fn any_damage_is_either_found_or_harmless(
        durable in 0..13_usize,
        clean in any::<bool>(),
        harms in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>(), any::<bool>()), 1..4),
    ) {
        let (mut disk, log) = twelve_batches(durable);
        let before = read_all(&log.view(), Offset(0), 1 << 20);
        let size = stamped(0, 1, 2, 100).len();
        match clean {
            true => disk.stop(log),
            false => disk.kill(log),
        }
        let mut files: Vec<_> = fs::read_dir(disk.partition_dir()).unwrap().map(|e| e.unwrap().path()).collect();
        files.extend(fs::read_dir(disk.root.path()).unwrap().map(|e| e.unwrap().path()).filter(|p| p.is_file()));
        files.sort_unstable();
        for (file, at, bits, cut) in harms {
            let path = file.get(&files);
            let mut bytes = fs::read(path).unwrap();
            if bytes.is_empty() {
                continue;
            }
            let at = at.index(bytes.len());
            // Kafka's format guards every byte of a batch but its leader epoch, by CRC or by the offsets around it.
            if path.extension().is_some_and(|e| e == "log") && (12..16).contains(&(at % size)) {
                continue;
            }
            match cut {
                true => bytes.truncate(at),
                false => bytes[at] ^= bits,
            }
            fs::write(path, bytes).unwrap();
        }
        let Ok((dir, _)) = LogDir::open(disk.root.path(), BrokerId(1), None) else { return Ok(()) };
        if let Ok((log, _)) = dir.open_log(&orders(), disk.topic, disk.config.clone(), NOW) {
            let view = log.view();
            prop_assert!(view.start() <= view.end());
            // After a clean stop closed segments are not read again: a reader, or a scrub, may find what is wrong with them.
            let whole = view.scrub().expect("nobody cuts").is_ok();
            prop_assert!(whole || clean);
            if whole && view.start() == Offset(0) {
                let after = read_all(&view, Offset(0), 1 << 20);
                prop_assert_eq!(&before[..after.len()], &after[..]);
            }
        }
    }
}
