//! Builds batches record by record: for the SDK, for control records, and for tests. The produce path of a broker never does.

use bytes::Bytes;

use super::varint::{put_varint, put_varlong, varlong_len};
use super::{Attributes, CRC_AT, CRC_FROM, HEADER_LEN, LOG_OVERHEAD, crc32c};
use crate::compression::Compression;
use crate::ids::{LeaderEpoch, Millis, Offset, ProducerEpoch, ProducerId};

/// Collects records into one batch. Without further setters the batch is what a plain client sends: base offset 0, no leader
/// epoch, no producer.
#[derive(Clone, Debug)]
pub struct BatchBuilder {
    compression: Compression,
    flags: i16,
    base_offset: Offset,
    leader_epoch: Option<LeaderEpoch>,
    producer: Option<(ProducerId, ProducerEpoch, i32)>,
    base_timestamp: Millis,
    max_timestamp: Millis,
    count: i32,
    records: Vec<u8>,
}

impl BatchBuilder {
    /// An empty batch.
    pub fn new(compression: Compression) -> Self {
        Self {
            compression,
            flags: 0,
            base_offset: Offset::ZERO,
            leader_epoch: None,
            producer: None,
            base_timestamp: -1,
            max_timestamp: -1,
            count: 0,
            records: Vec::new(),
        }
    }

    /// Sets the offset of the first record.
    pub fn base_offset(mut self, offset: Offset) -> Self {
        self.base_offset = offset;
        self
    }

    /// Sets the leader epoch.
    pub fn leader_epoch(mut self, epoch: LeaderEpoch) -> Self {
        self.leader_epoch = Some(epoch);
        self
    }

    /// Makes it a batch of an idempotent producer.
    pub fn producer(mut self, id: ProducerId, epoch: ProducerEpoch, base_sequence: i32) -> Self {
        self.producer = Some((id, epoch, base_sequence));
        self
    }

    /// Makes it part of a transaction.
    pub fn transactional(mut self) -> Self {
        self.flags |= Attributes::TRANSACTIONAL;
        self
    }

    /// Makes it a control batch.
    pub fn control(mut self) -> Self {
        self.flags |= Attributes::CONTROL;
        self
    }

    /// Adds a record. Timestamps are milliseconds; -1 for none.
    pub fn append(
        &mut self,
        timestamp: Millis,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[(&[u8], Option<&[u8]>)],
    ) {
        if self.count == 0 {
            self.base_timestamp = timestamp;
        }
        self.max_timestamp = self.max_timestamp.max(timestamp);
        let timestamp_delta = timestamp - self.base_timestamp;
        let header_len: usize = headers
            .iter()
            .map(|(k, v)| field_len(Some(k)) + field_len(*v))
            .sum();
        let len = 1
            + varlong_len(timestamp_delta)
            + varlong_len(i64::from(self.count))
            + field_len(key)
            + field_len(value)
            + varlong_len(headers.len() as i64)
            + header_len;
        let out = &mut self.records;
        put_varlong(out, len as i64);
        out.push(0);
        put_varlong(out, timestamp_delta);
        put_varint(out, self.count);
        put_field(out, key);
        put_field(out, value);
        put_varlong(out, headers.len() as i64);
        for (key, value) in headers {
            put_field(out, Some(key));
            put_field(out, *value);
        }
        self.count += 1;
    }

    /// How many records there are.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there is no record yet.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Size of the batch in bytes, before compression.
    pub fn size(&self) -> usize {
        HEADER_LEN + self.records.len()
    }

    /// The finished batch. There must be a record.
    pub fn finish(self) -> Bytes {
        assert!(self.count > 0, "a batch holds at least one record");
        let packed = match self.compression {
            Compression::None => self.records,
            codec => codec.compress(&self.records),
        };
        let size = HEADER_LEN + packed.len();
        let length = i32::try_from(size - LOG_OVERHEAD).expect("a batch stays below 2 GiB");
        let (id, epoch, sequence) = self
            .producer
            .map_or((-1, -1, -1), |(id, epoch, seq)| (id.0, epoch.0, seq));
        let mut out = Vec::with_capacity(size);
        out.extend_from_slice(&self.base_offset.0.to_be_bytes());
        out.extend_from_slice(&length.to_be_bytes());
        out.extend_from_slice(&LeaderEpoch::to_wire(self.leader_epoch).to_be_bytes());
        out.push(2);
        out.extend_from_slice(&[0; 4]);
        let attributes = self.flags | i16::from(self.compression.id());
        out.extend_from_slice(&attributes.to_be_bytes());
        out.extend_from_slice(&(self.count - 1).to_be_bytes());
        out.extend_from_slice(&self.base_timestamp.to_be_bytes());
        out.extend_from_slice(&self.max_timestamp.to_be_bytes());
        out.extend_from_slice(&id.to_be_bytes());
        out.extend_from_slice(&epoch.to_be_bytes());
        out.extend_from_slice(&sequence.to_be_bytes());
        out.extend_from_slice(&self.count.to_be_bytes());
        debug_assert_eq!(out.len(), HEADER_LEN);
        out.extend_from_slice(&packed);
        let crc = crc32c(&out[CRC_FROM..]);
        out[CRC_AT..CRC_FROM].copy_from_slice(&crc.to_be_bytes());
        out.into()
    }
}

fn field_len(field: Option<&[u8]>) -> usize {
    field.map_or(1, |f| varlong_len(f.len() as i64) + f.len())
}

fn put_field(out: &mut Vec<u8>, field: Option<&[u8]>) {
    match field {
        None => put_varint(out, -1),
        Some(bytes) => {
            put_varlong(out, bytes.len() as i64);
            out.extend_from_slice(bytes);
        }
    }
}
