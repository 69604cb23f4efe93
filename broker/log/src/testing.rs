//! Batches and files for this crate's tests.

use std::fs::File;

use epoka_proto::batch::BatchBuilder;
use epoka_proto::compression::Compression;
use epoka_proto::ids::{LeaderEpoch, Offset, ProducerEpoch, ProducerId};

/// A batch as a leader appended it: `records` records of `value_size` bytes, the first at time 1000 + `base`.
pub(crate) fn batch(base: i64, epoch: i32, records: i64, value_size: usize) -> Vec<u8> {
    stamped(base, epoch, records, value_size, 1000 + base)
}

/// A batch whose records are at `timestamp`, one millisecond apart.
pub(crate) fn stamped(
    base: i64,
    epoch: i32,
    records: i64,
    value_size: usize,
    timestamp: i64,
) -> Vec<u8> {
    fill(
        BatchBuilder::new(Compression::None),
        records,
        value_size,
        timestamp,
    )
    .base_offset(Offset(base))
    .leader_epoch(LeaderEpoch(epoch))
    .finish()
    .to_vec()
}

/// A batch as a client sends it.
pub(crate) fn client_batch(records: i64, value_size: usize, timestamp: i64) -> Vec<u8> {
    fill(
        BatchBuilder::new(Compression::None),
        records,
        value_size,
        timestamp,
    )
    .finish()
    .to_vec()
}

/// A batch as an idempotent client sends it.
pub(crate) fn idempotent_batch(producer: i64, epoch: i16, sequence: i32, records: i64) -> Vec<u8> {
    fill(BatchBuilder::new(Compression::None), records, 10, 5000)
        .producer(ProducerId(producer), ProducerEpoch(epoch), sequence)
        .finish()
        .to_vec()
}

fn fill(
    mut builder: BatchBuilder,
    records: i64,
    value_size: usize,
    timestamp: i64,
) -> BatchBuilder {
    let value = vec![b'v'; value_size];
    for i in 0..records {
        builder.append(timestamp + i, Some(b"key"), Some(&value), &[]);
    }
    builder
}

/// A file with this content.
pub(crate) fn file_of(bytes: &[u8]) -> File {
    use std::io::Write;
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}
