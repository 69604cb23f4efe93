//! Directories, logs and batches for the tests of this crate.
#![allow(dead_code, reason = "each test file uses some of it")]

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use epoka_log::{LogConfig, LogDir, LogView, OpenError, PartitionLog, Repair};
use epoka_proto::batch::{BatchBuilder, BatchHeader, batches};
use epoka_proto::compression::Compression;
use epoka_proto::ids::{
    BrokerEpoch, BrokerId, LeaderEpoch, Offset, ProducerEpoch, ProducerId, TopicId, TopicPartition,
};

/// The time of every test: later than every record, and not by a day.
pub const NOW: i64 = 100_000;

/// A data directory with one partition, `orders-0`.
pub struct Disk {
    pub root: tempfile::TempDir,
    pub topic: TopicId,
    pub config: LogConfig,
    pub dir: Option<LogDir>,
}

impl Disk {
    pub fn new(config: LogConfig) -> Self {
        Self {
            root: tempfile::tempdir().unwrap(),
            topic: TopicId::random(),
            config,
            dir: None,
        }
    }

    /// Opens the directory, as a process that starts.
    pub fn start(&mut self) -> bool {
        let (dir, opened) = LogDir::open(self.root.path(), BrokerId(1), Some("test")).unwrap();
        opened.leftovers.unlink().unwrap();
        self.dir = Some(dir);
        opened.clean_shutdown
    }

    pub fn dir(&self) -> &LogDir {
        self.dir.as_ref().expect("started")
    }

    /// Opens the log; starts first if need be.
    pub fn try_open(&mut self) -> Result<(PartitionLog, Vec<Repair>), OpenError> {
        if self.dir.is_none() {
            self.start();
        }
        self.dir()
            .open_log(&orders(), self.topic, self.config.clone(), NOW)
    }

    pub fn open(&mut self) -> PartitionLog {
        self.try_open().unwrap().0
    }

    /// Ends the process with everything closed.
    pub fn stop(&mut self, log: PartitionLog) {
        log.close().unwrap();
        self.dir().mark_clean_shutdown(BrokerEpoch(7)).unwrap();
        self.dir = None;
    }

    /// Ends the process as SIGKILL does.
    pub fn kill(&mut self, log: PartitionLog) {
        drop(log);
        self.dir = None;
    }

    pub fn partition_dir(&self) -> PathBuf {
        self.root.path().join("orders-0")
    }

    /// The files of the partition with this extension, by name.
    pub fn files(&self, extension: &str) -> Vec<PathBuf> {
        files(&self.partition_dir(), extension)
    }

    /// The archives under `truncated/`.
    pub fn archives(&self) -> Vec<PathBuf> {
        let Ok(entries) = std::fs::read_dir(self.root.path().join("truncated")) else {
            return Vec::new();
        };
        entries.map(|e| e.unwrap().path()).collect()
    }
}

pub fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
    let mut files: Vec<_> = entries
        .filter(|p| p.extension().is_some_and(|e| e == extension))
        .collect();
    files.sort_unstable();
    files
}

pub fn orders() -> TopicPartition {
    TopicPartition::new("orders", 0)
}

/// A configuration whose segments hold about `bytes`, with an index entry every 100 bytes.
pub fn small(bytes: u64) -> LogConfig {
    LogConfig {
        segment_bytes: bytes,
        index_interval_bytes: 100,
        ..LogConfig::default()
    }
}

/// A batch as a client sends it: `records` records of `size` bytes, the first at `timestamp`, a millisecond apart.
pub fn client_batch(records: i64, size: usize, timestamp: i64) -> Vec<u8> {
    filled(records, size, timestamp).finish().to_vec()
}

/// A batch as an idempotent client sends it.
pub fn idempotent(producer: i64, epoch: i16, sequence: i32, records: i64, size: usize) -> Vec<u8> {
    filled(records, size, 5000)
        .producer(ProducerId(producer), ProducerEpoch(epoch), sequence)
        .finish()
        .to_vec()
}

fn filled(records: i64, size: usize, timestamp: i64) -> BatchBuilder {
    let mut builder = BatchBuilder::new(Compression::None);
    for i in 0..records {
        builder.append(timestamp + i, Some(b"key"), Some(&vec![b'v'; size]), &[]);
    }
    builder
}

/// A batch as a leader has it on disk.
pub fn stamped(base: i64, epoch: i32, records: i64, size: usize) -> Vec<u8> {
    filled(records, size, 1000 + base)
        .base_offset(Offset(base))
        .leader_epoch(LeaderEpoch(epoch))
        .finish()
        .to_vec()
}

/// Appends as a leader in `epoch`, at the end.
pub fn append(log: &mut PartitionLog, epoch: i32, batch: &[u8]) {
    log.append_as_leader(batch, log.end(), LeaderEpoch(epoch), NOW)
        .unwrap();
}

/// Fills a log with `count` batches of two 100-byte records, in `epoch`.
pub fn fill(log: &mut PartitionLog, epoch: i32, count: usize) {
    for _ in 0..count {
        let timestamp = 1000 + log.end().0;
        append(log, epoch, &client_batch(2, 100, timestamp));
    }
}

/// Makes everything appended so far durable, and notes the recovery point.
pub fn flush(disk: &Disk, log: &mut PartitionLog) {
    let point = log.flush_work().run().unwrap();
    let recovery_point = log.flushed_to(point);
    disk.dir()
        .write_recovery_points(&[(orders(), recovery_point)])
        .unwrap();
}

/// Reads everything from `from` on, in reads of `max_bytes`.
pub fn read_all(view: &LogView, from: Offset, max_bytes: usize) -> Vec<u8> {
    let mut all = Vec::new();
    let mut at = from;
    while at < view.end() {
        let bytes = view.read(at, view.end(), max_bytes, true).unwrap();
        assert!(!bytes.is_empty(), "nothing to read at {at}");
        at = headers(&bytes).last().unwrap().next_offset();
        all.extend_from_slice(&bytes);
    }
    all
}

pub fn headers(bytes: &[u8]) -> Vec<BatchHeader> {
    batches(bytes).map(|item| item.unwrap().0).collect()
}

/// Base offsets of the batches.
pub fn bases(bytes: &[u8]) -> Vec<i64> {
    headers(bytes).iter().map(|h| h.base_offset.0).collect()
}

/// The epoch history as plain numbers.
pub fn epochs(log: &PartitionLog) -> Vec<(i32, i64)> {
    log.epochs()
        .entries()
        .iter()
        .map(|e| (e.epoch.0, e.start.0))
        .collect()
}

/// Twelve batches of two records: segments 0-7, 8-15, 16-23; everything below `durable` flushed.
pub fn twelve_batches(durable: usize) -> (Disk, PartitionLog) {
    let mut disk = Disk::new(small(1200));
    let mut log = disk.open();
    fill(&mut log, 1, durable);
    flush(&disk, &mut log);
    fill(&mut log, 1, 12 - durable);
    assert_eq!(disk.files("log").len(), 3);
    (disk, log)
}

/// What is done to a log file.
#[derive(Clone, Copy, Debug)]
pub enum Harm {
    /// Cut so that the last batch is not whole.
    Torn,
    /// Cut exactly after the first batch.
    Short,
    /// The last blocks read as zeros.
    Zeroed,
    /// A byte of the second batch's records flipped.
    Flipped,
    /// A byte of the last batch's records flipped.
    FlippedLast,
}

pub fn harm(file: &Path, harm: Harm) {
    let bytes = std::fs::read(file).unwrap();
    let batch = stamped(0, 1, 2, 100).len();
    let file = std::fs::OpenOptions::new().write(true).open(file).unwrap();
    let flip = |at: usize| file.write_all_at(&[bytes[at] ^ 0x40], at as u64).unwrap();
    match harm {
        Harm::Torn => file.set_len(bytes.len() as u64 - 33).unwrap(),
        Harm::Short => file.set_len(batch as u64).unwrap(),
        Harm::Zeroed => {
            let from = (bytes.len() - 200) / 512 * 512;
            file.write_all_at(&vec![0; bytes.len() - from], from as u64)
                .unwrap();
        }
        Harm::Flipped => flip(batch + 80),
        Harm::FlippedLast => flip(bytes.len() - 20),
    }
}
