//! Cutting a log (F-11, F-40, F-41, H-6, H-30, H-6D).

mod common;

use common::*;
use epoka_log::{CutReason, read_manifest};
use epoka_proto::ids::{LeaderEpoch, Offset};

/// Ten batches of two records in three segments of 0-7, 8-15, 16-19; epochs 1@0, 2@6, 4@14.
fn ten_batches() -> (Disk, epoka_log::PartitionLog) {
    let mut disk = Disk::new(small(1200));
    let mut log = disk.open();
    fill(&mut log, 1, 3);
    fill(&mut log, 2, 4);
    fill(&mut log, 4, 3);
    assert_eq!(disk.files("log").len(), 3);
    (disk, log)
}

#[test]
fn the_cut_removes_whole_batches_and_leaves_no_hole() {
    for (rule, to, end, batches, cut_epochs, kept_epochs) in [
        (
            "at a batch boundary",
            18,
            18,
            1,
            vec![4],
            vec![(1, 0), (2, 6), (4, 14)],
        ),
        (
            "F-41: within a batch",
            17,
            16,
            2,
            vec![4],
            vec![(1, 0), (2, 6), (4, 14)],
        ),
        (
            "H-6D: at a segment base",
            16,
            16,
            2,
            vec![4],
            vec![(1, 0), (2, 6), (4, 14)],
        ),
        (
            "H-6D: at an older segment base",
            8,
            8,
            6,
            vec![2, 4],
            vec![(1, 0), (2, 6)],
        ),
        (
            "across segments and epochs",
            5,
            4,
            8,
            vec![1, 2, 4],
            vec![(1, 0)],
        ),
        ("everything", 0, 0, 10, vec![1, 2, 4], vec![]),
        (
            "F-11: nothing to cut, but an epoch",
            14,
            14,
            3,
            vec![4],
            vec![(1, 0), (2, 6)],
        ),
    ] {
        let (mut disk, mut log) = ten_batches();
        let before = read_all(&log.view(), Offset(0), 1 << 20);
        let cut = log.truncate_to(Offset(to)).unwrap();
        assert_eq!(
            (cut.from, cut.to, cut.batches),
            (Offset(20), Offset(end), batches),
            "{rule}"
        );
        let numbers: Vec<_> = cut.epochs.iter().map(|e| e.0).collect();
        assert_eq!(numbers, cut_epochs, "{rule}");
        assert_eq!(epochs(&log), kept_epochs, "{rule}");
        assert_eq!(log.end(), Offset(end), "{rule}");

        // What was cut is kept, byte for byte.
        let archive = cut.archived.unwrap();
        let manifest = read_manifest(&archive).unwrap();
        assert_eq!(
            (manifest.reason, manifest.from, manifest.to),
            (CutReason::Diverged, Offset(20), Offset(end))
        );
        let kept: Vec<u8> = manifest
            .files
            .iter()
            .flat_map(|f| std::fs::read(archive.join(f)).unwrap())
            .collect();
        let after = read_all(&log.view(), Offset(0), 1 << 20);
        assert_eq!([after, kept].concat(), before, "{rule}");

        // The log goes on, and a restart of either kind finds what it wrote.
        fill(&mut log, 6, 2);
        let all = read_all(&log.view(), Offset(0), 300);
        disk.kill(log);
        let log = disk.open();
        assert_eq!(read_all(&log.view(), Offset(0), 300), all, "{rule}");
        disk.stop(log);
        assert_eq!(read_all(&disk.open().view(), Offset(0), 300), all, "{rule}");
    }
}

#[test]
fn an_empty_epoch_at_the_end_goes_though_no_byte_does_f_11_h_6() {
    let (_disk, mut log) = ten_batches();
    log.start_epoch(LeaderEpoch(5), Offset(20)).unwrap();
    let cut = log.truncate_to(Offset(20)).unwrap();
    assert_eq!(
        (cut.from, cut.to, cut.archived),
        (Offset(20), Offset(20), None)
    );
    assert_eq!(epochs(&log), [(1, 0), (2, 6), (4, 14)]);
}

#[test]
fn a_cut_below_the_first_segment_starts_the_log_over_where_it_was_told_f_40() {
    let (disk, mut log) = ten_batches();
    log.raise_start(Offset(17)).unwrap();
    log.flush_work().run().unwrap();
    let cut = log.truncate_to(Offset(3)).unwrap();
    assert_eq!((cut.to, cut.batches), (Offset(3), 2));
    assert_eq!((log.start(), log.end()), (Offset(3), Offset(3)));
    assert!(epochs(&log).is_empty());
    fill(&mut log, 7, 1);
    assert_eq!(bases(&read_all(&log.view(), Offset(3), 1)), [3]);
    assert_eq!(disk.files("log").len(), 1);
}

#[test]
fn a_cut_lowers_the_checkpoints_before_anything_is_written_again_f_40() {
    let (mut disk, mut log) = ten_batches();
    flush(&disk, &mut log);
    log.raise_start(Offset(18)).unwrap();
    disk.dir()
        .write_log_starts(&[(orders(), Offset(18))])
        .unwrap();
    log.truncate_to(Offset(17)).unwrap();
    assert_eq!(
        (log.start(), log.end(), log.recovery_point()),
        (Offset(16), Offset(16), Offset(16))
    );
    let text = |name: &str| std::fs::read_to_string(disk.root.path().join(name)).unwrap();
    assert_eq!(
        text("recovery-point-offset-checkpoint"),
        "0\n1\norders 0 16\n"
    );
    assert_eq!(text("log-start-offset-checkpoint"), "0\n1\norders 0 16\n");
    disk.kill(log);
    assert_eq!(disk.open().end(), Offset(16));
}

#[test]
fn producers_that_only_wrote_what_was_cut_are_forgotten_p_6() {
    let mut disk = Disk::new(small(700));
    let mut log = disk.open();
    append(&mut log, 1, &idempotent(7, 0, 0, 1, 100)); // 0
    append(&mut log, 1, &idempotent(7, 0, 1, 1, 100)); // 1
    append(&mut log, 1, &idempotent(8, 0, 0, 1, 100)); // 2
    append(&mut log, 1, &idempotent(7, 0, 2, 1, 100)); // 3
    log.truncate_to(Offset(2)).unwrap();
    let known: Vec<_> = log
        .producers()
        .sorted()
        .iter()
        .map(|(id, _)| id.0)
        .collect();
    assert_eq!(known, [7]);
    let newest = log.producers().sorted()[0].1.newest().unwrap();
    assert_eq!((newest.last_sequence, newest.last_offset), (1, Offset(1)));
}
