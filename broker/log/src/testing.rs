//! Batches and files for this crate's tests.

use std::fs::File;

use epoka_proto::batch::BatchBuilder;
use epoka_proto::compression::Compression;
use epoka_proto::ids::{LeaderEpoch, Offset};

/// A batch as a leader appended it: `records` records of `value_size` bytes, the first at time 1000 + `base`.
pub(crate) fn batch(base: i64, epoch: i32, records: i64, value_size: usize) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Compression::None);
    let value = vec![b'v'; value_size];
    for i in 0..records {
        builder.append(1000 + base + i, Some(b"key"), Some(&value), &[]);
    }
    let builder = builder
        .base_offset(Offset(base))
        .leader_epoch(LeaderEpoch(epoch));
    builder.finish().to_vec()
}

/// A file with this content.
pub(crate) fn file_of(bytes: &[u8]) -> File {
    use std::io::Write;
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}
