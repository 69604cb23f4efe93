//! Batches built here, read back, and broken on purpose.

use bytes::Bytes;

use super::*;
use crate::ids::{ProducerEpoch, ProducerId};
use proptest::prelude::*;

fn sample(codec: Compression) -> Vec<u8> {
    let mut builder = BatchBuilder::new(codec).producer(ProducerId(7), ProducerEpoch(2), 40);
    builder.append(1000, Some(b"k"), Some(b"one"), &[]);
    builder.append(1005, Some(b"k"), None, &[(b"h", Some(b"v")), (b"h", None)]);
    builder.append(990, Some(b""), Some(&[0; 300]), &[]);
    builder.finish().to_vec()
}

/// Recomputes the CRC after a test has changed something under it.
fn sealed(mut batch: Vec<u8>) -> Vec<u8> {
    let crc = crc32c(&batch[CRC_FROM..]);
    batch[CRC_AT..CRC_FROM].copy_from_slice(&crc.to_be_bytes());
    batch
}

fn patched(at: usize, with: &[u8]) -> Vec<u8> {
    let mut batch = sample(Compression::None);
    batch[at..at + with.len()].copy_from_slice(with);
    sealed(batch)
}

#[test]
fn the_checksum_is_castagnoli() {
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
}

#[test]
fn a_batch_is_the_bytes_the_format_says() {
    let mut builder = BatchBuilder::new(Compression::None);
    builder.append(0, None, Some(b"x"), &[]);
    let batch = builder.finish();
    let golden = [
        &[0; 8][..],                   // base offset
        &[0, 0, 0, 57],                // length
        &[0xff; 4],                    // leader epoch
        &[2],                          // magic
        &batch[CRC_AT..CRC_FROM],      // checked below
        &[0, 0],                       // attributes
        &[0; 4],                       // last offset delta
        &[0; 16],                      // base and max timestamp
        &[0xff; 8],                    // producer id
        &[0xff; 2],                    // producer epoch
        &[0xff; 4],                    // base sequence
        &[0, 0, 0, 1],                 // count
        &[14, 0, 0, 0, 1, 2, b'x', 0], // length 7, attributes, deltas, null key, value, no headers
    ]
    .concat();
    assert_eq!(batch, golden);
    assert!(crc_is_valid(&batch));
}

#[test]
fn records_come_back_from_every_codec() {
    for codec in Compression::ALL {
        let batch = sample(codec);
        let header = check_client_batch(&batch, &Limits::default()).expect("valid");
        assert_eq!(header.compression(), Ok(codec));
        assert_eq!((header.base_timestamp, header.max_timestamp), (1000, 1005));
        assert_eq!(header.last_sequence(), 42);
        let all: Vec<_> = records(&batch)
            .expect("header")
            .map(|r| r.expect("record"))
            .collect();
        assert_eq!(all.len(), 3);
        assert_eq!(all[1].offset, Offset(1));
        assert_eq!(all[1].timestamp, 1005);
        assert_eq!(all[1].value, None);
        let header: (Bytes, Option<Bytes>) = (Bytes::from("h"), Some(Bytes::from("v")));
        assert_eq!(all[1].headers, [header, (Bytes::from("h"), None)]);
        assert_eq!(all[2].value.as_ref().map(|v| v.len()), Some(300));
    }
}

#[test]
fn what_a_client_may_not_send_is_refused_with_kafkas_error_l_10_4() {
    let whole = sample(Compression::None);
    let twice = [whole.clone(), whole.clone()].concat();
    let mut flipped = whole.clone();
    *flipped.last_mut().expect("bytes") ^= 1;
    let mut padded = whole.clone();
    padded.push(0);
    let length = i32::try_from(padded.len() - LOG_OVERHEAD).expect("small");
    padded[8..12].copy_from_slice(&length.to_be_bytes());
    for (what, batch, code) in [
        ("nothing", vec![], ErrorCode::InvalidRecord),
        ("two batches", twice, ErrorCode::InvalidRecord),
        ("cut short", whole[..80].to_vec(), ErrorCode::CorruptMessage),
        (
            "half a header",
            whole[..60].to_vec(),
            ErrorCode::CorruptMessage,
        ),
        ("flipped bit", flipped, ErrorCode::CorruptMessage),
        ("magic 1", patched(16, &[1]), ErrorCode::InvalidRecord),
        (
            "length 5",
            patched(8, &[0, 0, 0, 5]),
            ErrorCode::CorruptMessage,
        ),
        (
            "negative length",
            patched(8, &[0xff; 4]),
            ErrorCode::CorruptMessage,
        ),
        ("base offset 1", patched(7, &[1]), ErrorCode::InvalidRecord),
        ("control", patched(22, &[0x20]), ErrorCode::InvalidRecord),
        (
            "codec 5",
            patched(22, &[5]),
            ErrorCode::UnsupportedCompressionType,
        ),
        (
            "append time",
            patched(22, &[8]),
            ErrorCode::InvalidTimestamp,
        ),
        (
            "no sequence",
            patched(53, &[0xff; 4]),
            ErrorCode::InvalidRecord,
        ),
        ("no records", patched(57, &[0; 4]), ErrorCode::InvalidRecord),
        (
            "count 4",
            patched(57, &[0, 0, 0, 4]),
            ErrorCode::InvalidRecord,
        ),
        (
            "delta 3",
            patched(23, &[0, 0, 0, 3]),
            ErrorCode::InvalidRecord,
        ),
        (
            "both 4",
            {
                let mut batch = patched(57, &[0, 0, 0, 4]);
                batch[26] = 3;
                sealed(batch)
            },
            ErrorCode::InvalidRecord,
        ),
        (
            "second record misnumbered",
            {
                // First record: length, attributes, deltas, key "k", value "one", no headers.
                let second = HEADER_LEN + 1 + 10;
                let mut batch = whole.clone();
                assert_eq!(batch[second + 4], 2, "zig-zag of delta 1");
                batch[second + 4] = 4;
                sealed(batch)
            },
            ErrorCode::InvalidRecord,
        ),
        (
            "bytes after the last record",
            sealed(padded),
            ErrorCode::InvalidRecord,
        ),
    ] {
        let error = check_client_batch(&batch, &Limits::default()).expect_err(what);
        assert_eq!(error.code(), code, "{what}: {error}");
    }
}

#[test]
fn limits_are_the_topics() {
    let limits = Limits::default();
    for codec in Compression::ALL {
        let batch = sample(codec);
        let size = batch.len();
        let refused = |limits: &Limits| check_client_batch(&batch, limits).map_err(|e| e.code());
        let small = Limits {
            max_message_bytes: size - 1,
            ..limits.clone()
        };
        assert_eq!(refused(&small), Err(ErrorCode::MessageTooLarge));
        let small = Limits {
            segment_bytes: size - 1,
            ..limits.clone()
        };
        assert_eq!(refused(&small), Err(ErrorCode::RecordListTooLarge));
        let old = Limits {
            timestamps: 0..=1004,
            ..limits.clone()
        };
        assert_eq!(refused(&old), Err(ErrorCode::InvalidTimestamp));
        let keyed = Limits {
            keys_required: true,
            ..limits.clone()
        };
        assert!(refused(&keyed).is_ok());
        let mut builder = BatchBuilder::new(codec);
        builder.append(-1, Some(b"k"), None, &[]);
        builder.append(-1, None, Some(b"v"), &[]);
        let batch = builder.finish();
        let error = check_client_batch(&batch, &keyed).expect_err("no key");
        assert_eq!(error, BatchError::NoKey { index: 1 });
        assert!(check_client_batch(&batch, &limits).is_ok());
    }
}

#[test]
fn batches_end_cleanly_or_at_the_first_damage() {
    let whole = sample(Compression::Lz4);
    let log = [whole.clone(), whole.clone()].concat();
    let sizes: Vec<_> = batches(&log)
        .map(|b| b.map(|(h, b)| (h.size, b.len())))
        .collect();
    assert_eq!(sizes, vec![Ok((whole.len(), whole.len())); 2]);
    let mut torn = batches(&log[..log.len() - 1]);
    assert!(torn.next().expect("first").is_ok());
    let error = torn.next().expect("second").expect_err("torn");
    assert_eq!(
        error,
        BatchError::Incomplete {
            needed: whole.len(),
            present: whole.len() - 1
        }
    );
    assert!(torn.next().is_none());
}

#[test]
fn the_patched_prefix_leaves_the_checksum_valid_l_10_5() {
    let mut batch = sample(Compression::None);
    let header = BatchHeader::parse(&batch).expect("header");
    let prefix = patched_prefix(Offset(1 << 40), header.batch_length(), LeaderEpoch(9));
    batch[..16].copy_from_slice(&prefix);
    let header = BatchHeader::parse(&batch).expect("header");
    assert_eq!(header.next_offset(), Offset((1 << 40) + 3));
    assert_eq!(header.epoch(), Some(LeaderEpoch(9)));
    assert!(crc_is_valid(&batch));
}

#[test]
fn append_time_replaces_the_producers_time() {
    let batch = with_append_time(&sample(Compression::Zstd), 5_000);
    assert!(crc_is_valid(&batch));
    let times: Vec<_> = records(&batch)
        .expect("header")
        .map(|r| r.expect("record").timestamp)
        .collect();
    assert_eq!(times, [5_000; 3]);
}

#[test]
fn sequences_wrap_after_the_largest_kafka_7692() {
    let header = BatchHeader::parse(&patched(53, &i32::MAX.to_be_bytes())).expect("header");
    assert_eq!(header.last_sequence(), 1);
}

type RecordParts = (
    i64,
    Option<Vec<u8>>,
    Option<Vec<u8>>,
    Vec<(Vec<u8>, Option<Vec<u8>>)>,
);

fn record_parts() -> impl Strategy<Value = RecordParts> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..40);
    let headers = prop::collection::vec((bytes(), prop::option::of(bytes())), 0..3);
    (
        -1i64..1 << 42,
        prop::option::of(bytes()),
        prop::option::of(bytes()),
        headers,
    )
}

proptest! {
    #[test]
    fn every_batch_built_is_valid_and_reads_back(
        parts in prop::collection::vec(record_parts(), 1..30),
        codec in prop::sample::select(Compression::ALL.to_vec()),
        base in 0i64..1 << 50,
    ) {
        let mut builder = BatchBuilder::new(codec);
        for (timestamp, key, value, headers) in &parts {
            let headers: Vec<_> = headers.iter().map(|(k, v)| (&k[..], v.as_deref())).collect();
            builder.append(*timestamp, key.as_deref(), value.as_deref(), &headers);
        }
        prop_assert!(check_client_batch(&builder.clone().finish(), &Limits::default()).is_ok());
        let batch = builder.base_offset(Offset(base)).finish();
        let read: Vec<_> = records(&batch).expect("header").map(|r| r.expect("record")).collect();
        prop_assert_eq!(read.len(), parts.len());
        for (i, (record, (timestamp, key, value, headers))) in (0i64..).zip(read.iter().zip(&parts)) {
            prop_assert_eq!(record.offset, Offset(base + i));
            prop_assert_eq!(record.timestamp, *timestamp);
            prop_assert_eq!(record.key.as_deref(), key.as_deref());
            prop_assert_eq!(record.value.as_deref(), value.as_deref());
            let read: Vec<_> = record.headers.iter().map(|(k, v)| (k.to_vec(), v.as_ref().map(|v| v.to_vec()))).collect();
            prop_assert_eq!(&read, headers);
        }
    }

    #[test]
    fn garbage_never_panics(
        mut bytes in prop::collection::vec(any::<u8>(), 0..200),
        codec in 0u8..8,
        framed in any::<bool>(),
    ) {
        if framed && bytes.len() >= HEADER_LEN {
            // Past the first gates, so that the deeper ones are reached.
            bytes[..8].fill(0);
            let length = (bytes.len() - LOG_OVERHEAD) as i32;
            bytes[8..12].copy_from_slice(&length.to_be_bytes());
            bytes[16] = 2;
            bytes[21] = 0;
            bytes[22] = codec;
            bytes[23..27].copy_from_slice(&4i32.to_be_bytes());
            bytes[57..61].copy_from_slice(&5i32.to_be_bytes());
            bytes = sealed(bytes);
        }
        let keyed = Limits { keys_required: true, ..Limits::default() };
        let _ = check_client_batch(&bytes, &keyed);
        let _ = crc_is_valid(&bytes);
        for batch in batches(&bytes) {
            if let Ok((_, batch)) = batch && let Ok(records) = records(batch) {
                let _ = records.count();
            }
        }
    }

    #[test]
    fn one_changed_byte_under_the_checksum_is_noticed(at in CRC_FROM..HEADER_LEN + 300, with in 1u8..) {
        let mut batch = sample(Compression::None);
        let at = at.min(batch.len() - 1);
        batch[at] ^= with;
        prop_assert!(check_client_batch(&batch, &Limits::default()).is_err());
    }
}
