//! The 61 bytes in front of a batch's records, and the walk over batches that lie back to back. Trusts nothing it reads.

use super::{BatchError, HEADER_LEN, LOG_OVERHEAD};
use crate::compression::Compression;
use crate::ids::{LeaderEpoch, Millis, Offset, ProducerEpoch, ProducerId};

/// Where a record's timestamp comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimestampType {
    /// The producer's clock.
    CreateTime,
    /// The leader's clock at append: all records carry the batch's max timestamp.
    LogAppendTime,
}

/// A batch's attribute bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Attributes(pub i16);

impl Attributes {
    const CODEC: i16 = 0b111;
    pub(super) const LOG_APPEND_TIME: i16 = 1 << 3;
    pub(super) const TRANSACTIONAL: i16 = 1 << 4;
    pub(super) const CONTROL: i16 = 1 << 5;
    const DELETE_HORIZON: i16 = 1 << 6;

    /// The codec of the records.
    pub fn compression(self) -> Result<Compression, BatchError> {
        let id = (self.0 & Self::CODEC) as u8;
        Compression::from_id(id).ok_or(BatchError::Codec(id))
    }

    /// Whose clock the timestamps are of.
    pub fn timestamp_type(self) -> TimestampType {
        if self.0 & Self::LOG_APPEND_TIME == 0 {
            TimestampType::CreateTime
        } else {
            TimestampType::LogAppendTime
        }
    }

    /// Part of a transaction.
    pub fn is_transactional(self) -> bool {
        self.0 & Self::TRANSACTIONAL != 0
    }

    /// Written by brokers for brokers and clients, such as a transaction's end marker.
    pub fn is_control(self) -> bool {
        self.0 & Self::CONTROL != 0
    }

    /// The base timestamp is the time from which tombstones may go (compaction).
    pub fn has_delete_horizon(self) -> bool {
        self.0 & Self::DELETE_HORIZON != 0
    }
}

/// A batch's header, decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchHeader {
    /// Offset of the first record (before compaction).
    pub base_offset: Offset,
    /// The whole batch in bytes, header included.
    pub size: usize,
    /// The epoch of the leader that appended it; -1 as long as none did. See [`Self::epoch`].
    pub leader_epoch: i32,
    /// CRC-32C of everything after this field.
    pub crc: u32,
    /// Codec and flags.
    pub attributes: Attributes,
    /// The last record's offset, relative to the base.
    pub last_offset_delta: i32,
    /// What record timestamps are relative to: the first record's, in milliseconds.
    pub base_timestamp: Millis,
    /// The largest record timestamp, in milliseconds; -1 when records carry none.
    pub max_timestamp: Millis,
    /// Who produced it, if idempotent.
    pub producer_id: Option<ProducerId>,
    /// The producer's epoch; meaningful with a producer id.
    pub producer_epoch: ProducerEpoch,
    /// The first record's sequence number; meaningful with a producer id.
    pub base_sequence: i32,
    /// How many records follow. After compaction fewer than the offsets covered.
    pub records_count: i32,
}

impl BatchHeader {
    /// Reads the header at the front of `bytes`, which need not hold the whole batch. Checks the magic and that the length is
    /// one a batch can have.
    pub fn parse(bytes: &[u8]) -> Result<Self, BatchError> {
        let Some(raw) = bytes.first_chunk::<HEADER_LEN>() else {
            return Err(BatchError::Incomplete {
                needed: HEADER_LEN,
                present: bytes.len(),
            });
        };
        let magic = i8_at(raw);
        if magic != 2 {
            return Err(BatchError::Magic(magic));
        }
        let length = i32_at(raw, 8);
        let size = usize::try_from(length).map_or(0, |l| l + LOG_OVERHEAD);
        if size < HEADER_LEN {
            return Err(BatchError::Length(length));
        }
        Ok(Self {
            base_offset: Offset(i64_at(raw, 0)),
            size,
            leader_epoch: i32_at(raw, 12),
            crc: i32_at(raw, 17) as u32,
            attributes: Attributes(i16_at(raw, 21)),
            last_offset_delta: i32_at(raw, 23),
            base_timestamp: i64_at(raw, 27),
            max_timestamp: i64_at(raw, 35),
            producer_id: ProducerId::from_wire(i64_at(raw, 43)),
            producer_epoch: ProducerEpoch(i16_at(raw, 51)),
            base_sequence: i32_at(raw, 53),
            records_count: i32_at(raw, 57),
        })
    }

    /// Offset of the last record.
    pub fn last_offset(&self) -> Offset {
        Offset(
            self.base_offset
                .0
                .saturating_add(i64::from(self.last_offset_delta)),
        )
    }

    /// The offset after the last record.
    pub fn next_offset(&self) -> Offset {
        Offset(self.last_offset().0.saturating_add(1))
    }

    /// How many offsets the batch takes.
    pub fn offsets(&self) -> i64 {
        i64::from(self.last_offset_delta) + 1
    }

    /// The last record's sequence number: after 2^31-1 comes 0 (KAFKA-7692).
    pub fn last_sequence(&self) -> i32 {
        let last = i64::from(self.base_sequence) + i64::from(self.last_offset_delta);
        if last > i64::from(i32::MAX) {
            (last - i64::from(i32::MAX) - 1) as i32
        } else {
            last as i32
        }
    }

    /// The epoch of the leader that appended the batch, once one did.
    pub fn epoch(&self) -> Option<LeaderEpoch> {
        LeaderEpoch::from_wire(self.leader_epoch)
    }

    /// The batch length field: bytes after it.
    pub fn batch_length(&self) -> i32 {
        (self.size - LOG_OVERHEAD) as i32
    }

    /// Written by brokers for brokers and clients.
    pub fn is_control(&self) -> bool {
        self.attributes.is_control()
    }

    /// Part of a transaction.
    pub fn is_transactional(&self) -> bool {
        self.attributes.is_transactional()
    }

    /// The codec of the records.
    pub fn compression(&self) -> Result<Compression, BatchError> {
        self.attributes.compression()
    }
}

fn i8_at(raw: &[u8; HEADER_LEN]) -> i8 {
    raw[16] as i8
}

fn i16_at(raw: &[u8; HEADER_LEN], at: usize) -> i16 {
    i16::from_be_bytes([raw[at], raw[at + 1]])
}

fn i32_at(raw: &[u8; HEADER_LEN], at: usize) -> i32 {
    i32::from_be_bytes(raw[at..at + 4].try_into().expect("four bytes"))
}

fn i64_at(raw: &[u8; HEADER_LEN], at: usize) -> i64 {
    i64::from_be_bytes(raw[at..at + 8].try_into().expect("eight bytes"))
}

/// Whole batches that lie back to back, each with its header. Ends after the last byte, or after the first error: what follows
/// damage cannot be found.
pub fn batches(bytes: &[u8]) -> Batches<'_> {
    Batches { rest: bytes }
}

/// See [`batches`].
#[derive(Clone, Debug)]
pub struct Batches<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Batches<'a> {
    type Item = Result<(BatchHeader, &'a [u8]), BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let item = BatchHeader::parse(self.rest).and_then(|header| {
            let (batch, rest) =
                self.rest
                    .split_at_checked(header.size)
                    .ok_or(BatchError::Incomplete {
                        needed: header.size,
                        present: self.rest.len(),
                    })?;
            self.rest = rest;
            Ok((header, batch))
        });
        if item.is_err() {
            self.rest = &[];
        }
        Some(item)
    }
}
