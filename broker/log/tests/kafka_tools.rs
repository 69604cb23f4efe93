//! Apache Kafka's own `DumpLogSegments` reads every file we write, and finds nothing to complain about: of a running log, of a killed
//! one, after cuts, restarts and raised starts. Needs `java`, and `KAFKA_LIBS` to name a directory with the jars of
//! `org.apache.kafka:kafka-tools` and what it depends on; says so and does nothing otherwise.

mod common;

use std::path::PathBuf;
use std::process::Command;

use common::*;
use epoka_log::LogConfig;
use epoka_proto::ids::{LeaderEpoch, Offset};

/// Runs the tool on some files. Returns what it printed; `None` when it is not here.
fn dump(files: &[PathBuf], options: &[&str]) -> Option<String> {
    let Ok(libs) = std::env::var("KAFKA_LIBS") else {
        eprintln!("skipped: KAFKA_LIBS does not name a directory of Kafka's jars");
        return None;
    };
    let names: Vec<_> = files.iter().map(|f| f.to_str().unwrap()).collect();
    let output = Command::new("java")
        .args([
            "-cp",
            &format!("{libs}/*"),
            "org.apache.kafka.tools.DumpLogSegments",
            "--files",
            &names.join(","),
        ])
        .args(options)
        .output();
    let output = match output {
        Ok(output) => output,
        Err(error) => {
            eprintln!("skipped: java cannot be run: {error}");
            return None;
        }
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}{errors}");
    for complaint in [
        "Mismatches",
        "Found timestamp mismatch",
        "out of order",
        "not found",
        "isvalid: false",
        "Corrupt",
        "Exception",
    ] {
        assert!(
            !text.contains(complaint) && !errors.contains(complaint),
            "{complaint}: {text}{errors}"
        );
    }
    // The tool expects offset 0 at the front of every file, its own as well.
    let holes = |l: &&str| l.contains("is followed by") && !l.trim().starts_with("-1 ");
    assert_eq!(errors.lines().chain(text.lines()).find(holes), None);
    Some(text)
}

/// Reads every file of the partition, in each of the tool's ways. `false` when the tool is not here.
fn check(disk: &Disk) -> bool {
    let logs = disk.files("log");
    let indexes = [disk.files("index"), disk.files("timeindex")].concat();
    let Some(text) = dump(&logs, &["--deep-iteration"]) else {
        return false;
    };
    let bytes: u64 = logs.iter().map(|f| f.metadata().unwrap().len()).sum();
    let read: u64 = text
        .lines()
        .filter(|l| l.starts_with("baseOffset:"))
        .map(|l| {
            let (_, rest) = l.split_once(" size: ").unwrap();
            rest.split(' ').next().unwrap().parse::<u64>().unwrap()
        })
        .sum();
    assert_eq!(read, bytes, "every byte belongs to a batch");
    dump(&indexes, &[]);
    let sane = dump(&indexes, &["--index-sanity-check"]).expect("it was here before");
    let passed = sane.matches("passed sanity check").count() + sane.matches("is empty").count();
    assert_eq!(passed, indexes.len(), "{sane}");
    let snapshots = disk.files("snapshot");
    if !snapshots.is_empty() {
        let text = dump(&snapshots, &[]).expect("it was here before");
        assert_eq!(text.matches("Dumping").count(), snapshots.len());
    }
    true
}

#[test]
fn kafkas_tool_reads_everything_without_complaint() {
    let mut disk = Disk::new(small(6000));
    let mut log = disk.open();
    if !check(&disk) {
        return;
    }
    for sequence in 0..20 {
        append(&mut log, 0, &idempotent(7, 0, sequence * 3, 3, 100));
        append(
            &mut log,
            0,
            &client_batch(2, 60, 7000 + i64::from(sequence) * 13 % 70),
        );
    }
    let end = log.end().0;
    let fetched: Vec<u8> = (0..40)
        .flat_map(|i| stamped(end + i * 2, 2, 2, 80))
        .collect();
    log.append_as_follower(&fetched, NOW).unwrap();
    check(&disk); // running
    disk.kill(log);
    check(&disk); // killed
    let mut log = disk.open();
    check(&disk); // recovered
    log.truncate_to(Offset(end + 31)).unwrap();
    log.start_epoch(LeaderEpoch(5), log.end()).unwrap();
    check(&disk); // cut
    fill(&mut log, 6, 30);
    log.raise_start(Offset(50)).unwrap();
    disk.stop(log);
    check(&disk); // closed
    let mut log = disk.open();
    log.set_config(LogConfig {
        preallocate: true,
        ..disk.config.clone()
    });
    fill(&mut log, 6, 30);
    disk.stop(log);
    check(&disk);
}
