//! Opening a log whose bytes are known to have survived the last stop: only a write under way can be missing, and everything else
//! is damage, not a reason to cut (`Survived`).

mod common;

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;

use common::*;
use epoka_log::{Damage, OpenError, Repair, Survived};
use epoka_proto::ids::Offset;

/// How an opening ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    /// Opened; the log ends here.
    End(i64),
    /// Refused as damaged; readable to here.
    Damaged(i64),
}

fn outcome(disk: &mut Disk, survived: Survived) -> Outcome {
    disk.start();
    disk.dir().set_survived(survived);
    let opened = disk.try_open();
    disk.dir = None;
    match opened {
        Ok((log, _)) => Outcome::End(log.end().0),
        Err(OpenError::Damaged(Damage { readable, .. })) => Outcome::Damaged(readable.0),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn what_cannot_be_the_end_of_a_write_is_damage() {
    use Harm::*;
    use Outcome::*;
    use Survived::{AllButLastWrite, Written};
    // Nothing is known to be durable: all of it is above the recovery point.
    for (survived, segment, what, expected) in [
        // The newest segment ends within a batch: the write under way, unless it is known to have ended.
        (Written, 2, Torn, Damaged(22)),
        (Written, 2, Short, Damaged(18)),
        (AllButLastWrite, 2, Torn, End(22)),
        // A batch is bad, and good ones follow.
        (Written, 2, Flipped, Damaged(18)),
        (AllButLastWrite, 2, Flipped, Damaged(18)),
        // The last batch is whole, but wrong: no process leaves that behind, but a machine that lost its power does.
        (Written, 2, FlippedLast, Damaged(22)),
        (AllButLastWrite, 2, FlippedLast, End(22)),
        // A closed segment has no write under way.
        (Written, 1, Torn, Damaged(14)),
        (Written, 1, Short, Damaged(10)),
        (Written, 1, Zeroed, Damaged(10)),
        (Written, 1, FlippedLast, Damaged(14)),
        (AllButLastWrite, 1, Torn, Damaged(14)),
        (AllButLastWrite, 0, Short, Damaged(2)),
    ] {
        let (mut disk, log) = twelve_batches(0);
        disk.kill(log);
        harm(&disk.files("log")[segment], what);
        let case = format!("{what:?} in segment {segment}, {survived:?}");
        assert_eq!(outcome(&mut disk, survived), expected, "{case}");
        assert!(
            disk.archives().len() <= 1 && disk.files("log").len() == 3,
            "{case}"
        );
    }
}

#[test]
fn a_missing_segment_is_damage() {
    for survived in [Survived::Written, Survived::AllButLastWrite] {
        let (mut disk, log) = twelve_batches(0);
        disk.kill(log);
        fs::remove_file(&disk.files("log")[1]).unwrap();
        assert_eq!(outcome(&mut disk, survived), Outcome::Damaged(8));
        assert_eq!(disk.files("log").len(), 2, "nothing was dropped");
    }
}

#[test]
fn a_missing_first_segment_is_damage_and_a_raised_start_is_not() {
    let (mut disk, log) = twelve_batches(0);
    disk.kill(log);
    fs::remove_file(&disk.files("log")[0]).unwrap();
    assert_eq!(outcome(&mut disk, Survived::Written), Outcome::Damaged(0));
    assert_eq!(outcome(&mut disk, Survived::Durable), Outcome::End(24));

    let (mut disk, mut log) = twelve_batches(0);
    log.raise_start(Offset(9)).unwrap();
    flush(&disk, &mut log);
    assert_eq!(disk.files("log").len(), 2);
    disk.kill(log);
    assert_eq!(outcome(&mut disk, Survived::Written), Outcome::End(24));

    let (mut disk, mut log) = twelve_batches(0);
    log.start_over(Offset(500)).unwrap();
    disk.kill(log);
    assert_eq!(outcome(&mut disk, Survived::Written), Outcome::End(500));
}

#[test]
fn a_missing_first_segment_is_damage_after_a_clean_stop() {
    let (mut disk, log) = twelve_batches(0);
    disk.stop(log);
    fs::remove_file(&disk.files("log")[0]).unwrap();
    assert_eq!(outcome(&mut disk, Survived::Durable), Outcome::Damaged(0));
}

#[test]
fn a_flipped_byte_is_damage_after_a_clean_stop_too() {
    for (segment, what, readable) in [
        (0, Harm::Flipped, 2),
        (2, Harm::Flipped, 18),
        (2, Harm::FlippedLast, 22),
    ] {
        let (mut disk, log) = twelve_batches(0);
        disk.stop(log);
        harm(&disk.files("log")[segment], what);
        let found = outcome(&mut disk, Survived::Durable);
        assert_eq!(
            found,
            Outcome::Damaged(readable),
            "{what:?} in segment {segment}"
        );
    }
}

#[test]
fn a_log_that_ends_below_what_was_committed_is_damaged() {
    for (survived, expected) in [
        (Survived::Written, Outcome::Damaged(16)),
        (Survived::Durable, Outcome::End(16)),
    ] {
        let (mut disk, log) = twelve_batches(0);
        disk.dir()
            .write_high_watermarks(&[(orders(), Offset(20))])
            .unwrap();
        disk.kill(log);
        fs::remove_file(&disk.files("log")[2]).unwrap();
        fs::remove_dir_all(disk.root.path().join(".ends")).unwrap();
        assert_eq!(outcome(&mut disk, survived), expected);
    }
}

#[test]
fn a_cut_below_what_was_committed_lowers_its_note() {
    let (mut disk, mut log) = twelve_batches(0);
    disk.dir()
        .write_high_watermarks(&[(orders(), Offset(20))])
        .unwrap();
    log.truncate_to(Offset(10)).unwrap();
    disk.kill(log);
    assert_eq!(outcome(&mut disk, Survived::Written), Outcome::End(10));
}

#[test]
fn a_log_that_ends_below_what_was_written_is_damaged() {
    let header_of_the_last = |disk: &Disk| {
        let mut bytes = fs::read(&disk.files("log")[2]).unwrap();
        let at = bytes.len() - stamped(22, 1, 2, 100).len() + 16;
        bytes[at] ^= 0x40;
        fs::write(&disk.files("log")[2], bytes).unwrap();
    };
    let newest = |disk: &Disk| fs::remove_file(&disk.files("log")[2]).unwrap();
    type Harming = fn(&Disk);
    let harms: [(Harming, i64); 2] = [(header_of_the_last, 22), (newest, 16)];
    for (harm, readable) in harms {
        let (mut disk, log) = twelve_batches(0);
        disk.kill(log);
        harm(&disk);
        let before: Vec<_> = disk
            .files("log")
            .iter()
            .map(|f| fs::read(f).unwrap())
            .collect();
        for _ in 0..2 {
            assert_eq!(
                outcome(&mut disk, Survived::Written),
                Outcome::Damaged(readable)
            );
        }
        let after: Vec<_> = disk
            .files("log")
            .iter()
            .map(|f| fs::read(f).unwrap())
            .collect();
        assert_eq!(before, after, "left as it is");
        assert_eq!(
            outcome(&mut disk, Survived::Durable),
            Outcome::End(readable)
        );
    }
}

#[test]
fn a_noted_start_beyond_the_end_is_damage_unless_the_log_was_being_replaced() {
    let (mut disk, log) = twelve_batches(0);
    disk.dir()
        .write_log_starts(&[(orders(), Offset(1000))])
        .unwrap();
    disk.kill(log);
    assert_eq!(outcome(&mut disk, Survived::Written), Outcome::Damaged(24));
    fs::write(disk.root.path().join(".ends/orders-0"), [0; 8]).unwrap();
    assert_eq!(outcome(&mut disk, Survived::Written), Outcome::End(1000));
}

#[test]
fn rubbish_at_the_end_is_cut() {
    let append = |path: &Path, bytes: &[u8]| {
        let mut file = OpenOptions::new().append(true).open(path).unwrap();
        file.write_all(bytes).unwrap();
    };
    let whole = stamped(24, 1, 2, 100);
    for tail in [
        &[0; 5000][..],
        b"not a batch, and long enough to hold a header: 0123456789 0123456789",
        &whole[..70],
    ] {
        for survived in [Survived::Written, Survived::AllButLastWrite] {
            let (mut disk, log) = twelve_batches(0);
            disk.kill(log);
            append(&disk.files("log")[2], tail);
            assert_eq!(outcome(&mut disk, survived), Outcome::End(24));
        }
    }
}

#[test]
fn a_log_below_its_noted_start_is_kept_aside() {
    let (mut disk, log) = twelve_batches(0);
    let before: Vec<u8> = disk
        .files("log")
        .iter()
        .flat_map(|f| fs::read(f).unwrap())
        .collect();
    disk.kill(log);
    disk.start();
    disk.dir()
        .write_log_starts(&[(orders(), Offset(1000))])
        .unwrap();
    let (log, repairs) = disk.try_open().unwrap();
    assert_eq!((log.start(), log.end()), (Offset(1000), Offset(1000)));
    let kept = repairs.iter().find_map(|r| match r {
        Repair::Emptied { kept, .. } => kept.clone(),
        _ => None,
    });
    let kept: Vec<u8> = files(&kept.expect("kept"), "log")
        .iter()
        .flat_map(|f| fs::read(f).unwrap())
        .collect();
    assert_eq!(kept, before);
}
