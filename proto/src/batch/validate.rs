//! What a leader checks of a batch that a client sent, before it gets an offset (L-10.4). Compressed records are opened only
//! where the topic forces it.

use std::ops::RangeInclusive;

use bytes::Bytes;

use super::records::RawRecord;
use super::varint::Cursor;
use super::{
    Attributes, BatchError, BatchHeader, CRC_AT, CRC_FROM, HEADER_LEN, TimestampType, crc_is_valid,
    crc32c, records,
};
use crate::compression::Compression;
use crate::ids::Millis;

/// What a topic accepts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limits {
    /// `max.message.bytes`: the size of a batch, as sent.
    pub max_message_bytes: usize,
    /// `segment.bytes`.
    pub segment_bytes: usize,
    /// Compacted: every record must have a key.
    pub keys_required: bool,
    /// Record timestamps accepted (`message.timestamp.before.max.ms` and `.after.max.ms` around now). Records without a
    /// timestamp pass.
    pub timestamps: RangeInclusive<Millis>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_message_bytes: (1 << 20) + 12,
            segment_bytes: 1 << 30,
            keys_required: false,
            timestamps: Millis::MIN..=Millis::MAX,
        }
    }
}

/// What records carry that have no timestamp.
const NO_TIMESTAMP: Millis = -1;

/// Checks that `bytes` are exactly one batch that a client may append to a topic with these limits, and returns its header.
pub fn check_client_batch(bytes: &[u8], limits: &Limits) -> Result<BatchHeader, BatchError> {
    if bytes.is_empty() {
        return Err(BatchError::NotOne);
    }
    let header = BatchHeader::parse(bytes)?;
    if header.size > bytes.len() {
        return Err(BatchError::Incomplete {
            needed: header.size,
            present: bytes.len(),
        });
    }
    if header.size < bytes.len() {
        return Err(BatchError::NotOne);
    }
    if header.size > limits.max_message_bytes {
        return Err(BatchError::TooLarge {
            size: header.size,
            limit: limits.max_message_bytes,
        });
    }
    if header.size > limits.segment_bytes {
        return Err(BatchError::LargerThanSegment {
            size: header.size,
            limit: limits.segment_bytes,
        });
    }
    if !crc_is_valid(bytes) {
        return Err(BatchError::Checksum);
    }
    check_header(&header, limits)?;
    if header.compression()? == Compression::None {
        walk(&header, &bytes[HEADER_LEN..], limits)?;
    } else if limits.keys_required {
        open(bytes, &header, limits)?;
    }
    Ok(header)
}

fn check_header(header: &BatchHeader, limits: &Limits) -> Result<(), BatchError> {
    let refuse = |what| Err(BatchError::Header(what));
    if header.base_offset.0 != 0 {
        return refuse("the base offset of a new batch must be 0");
    }
    if header.records_count < 1 {
        return refuse("there must be a record");
    }
    if i64::from(header.records_count) != header.offsets() {
        return refuse("the record count and the last offset delta disagree");
    }
    if header.is_control() {
        return refuse("clients may not write control batches");
    }
    if header.producer_id.is_some() && header.base_sequence < 0 {
        return refuse("a producer id needs a base sequence");
    }
    if header.is_transactional() && header.producer_id.is_none() {
        return refuse("a transaction needs a producer id");
    }
    if header.attributes.timestamp_type() == TimestampType::LogAppendTime {
        return Err(BatchError::Timestamp(header.max_timestamp));
    }
    check_timestamp(header.base_timestamp, limits)?;
    check_timestamp(header.max_timestamp, limits)
}

fn check_timestamp(timestamp: Millis, limits: &Limits) -> Result<(), BatchError> {
    if timestamp == NO_TIMESTAMP || limits.timestamps.contains(&timestamp) {
        Ok(())
    } else {
        Err(BatchError::Timestamp(timestamp))
    }
}

/// Walks uncompressed records without keeping anything: count, lengths, deltas 0..n-1, timestamps, keys.
fn walk(header: &BatchHeader, payload: &[u8], limits: &Limits) -> Result<(), BatchError> {
    let mut cursor = Cursor(payload);
    for index in 0..header.records_count {
        let bad = |what| BatchError::Record { index, what };
        let length = cursor.varint().ok_or(bad("its length is no varint"))?;
        let body = usize::try_from(length)
            .ok()
            .and_then(|length| cursor.take(length))
            .ok_or(bad("ends after the batch does"))?;
        let record = RawRecord::parse(body).map_err(bad)?;
        if record.offset_delta != index {
            return Err(bad("its offset is out of line"));
        }
        let timestamp = header.base_timestamp.checked_add(record.timestamp_delta);
        check_timestamp(timestamp.ok_or(bad("timestamp overflows"))?, limits)?;
        if limits.keys_required && record.key.is_none() {
            return Err(BatchError::NoKey { index });
        }
    }
    if cursor.0.is_empty() {
        Ok(())
    } else {
        Err(BatchError::Header("there are bytes after the last record"))
    }
}

/// Opens compressed records, because the topic requires to know their keys.
fn open(bytes: &[u8], header: &BatchHeader, limits: &Limits) -> Result<(), BatchError> {
    for (index, record) in (0..).zip(records(bytes)?) {
        let record = record?;
        if record.offset != header.base_offset + i64::from(index) {
            let what = "its offset is out of line";
            return Err(BatchError::Record { index, what });
        }
        check_timestamp(record.timestamp, limits)?;
        if record.key.is_none() {
            return Err(BatchError::NoKey { index });
        }
    }
    Ok(())
}

/// The batch with the leader's time instead of the producer's, for topics with `message.timestamp.type=LogAppendTime`. Copies,
/// because these fields lie inside the CRC (L-10.5). Expects a whole, valid batch.
pub fn with_append_time(batch: &[u8], now: Millis) -> Bytes {
    assert!(batch.len() >= HEADER_LEN, "a whole batch");
    let mut copy = batch.to_vec();
    let attributes = i16::from_be_bytes([copy[21], copy[22]]) | Attributes::LOG_APPEND_TIME;
    copy[21..23].copy_from_slice(&attributes.to_be_bytes());
    copy[35..43].copy_from_slice(&now.to_be_bytes());
    let crc = crc32c(&copy[CRC_FROM..]);
    copy[CRC_AT..CRC_FROM].copy_from_slice(&crc.to_be_bytes());
    copy.into()
}
