//! Kafka V2 record batches as bytes: header view, validation, CRC-32C, record iteration, builder. Nothing here does I/O or
//! re-encodes a batch that a client sent: a batch stays the bytes it is, and only its first 16 bytes are ever patched.
//!
//! Layout (all big-endian): base_offset i64, batch_length i32 (bytes after this field), leader_epoch i32, magic i8 = 2,
//! crc u32 (CRC-32C of everything after it), attributes i16, last_offset_delta i32, base_timestamp i64, max_timestamp i64,
//! producer_id i64, producer_epoch i16, base_sequence i32, records_count i32, records.

mod builder;
mod header;
mod records;
mod validate;
mod varint;

pub use builder::BatchBuilder;
pub use header::{Attributes, BatchHeader, Batches, TimestampType, batches};
pub use records::{Record, Records, records};
pub use validate::{Limits, check_client_batch, with_append_time};

use crate::compression::Compression;
use crate::error::ErrorCode;
use crate::ids::{LeaderEpoch, Millis, Offset};

/// Bytes of a batch header.
pub const HEADER_LEN: usize = 61;

/// Bytes in front of what `batch_length` counts: base offset and the length itself.
pub const LOG_OVERHEAD: usize = 12;

/// Where the CRC field lies.
const CRC_AT: usize = 17;

/// What the CRC covers: everything from the attributes on.
const CRC_FROM: usize = 21;

/// Why bytes are not the batch they should be.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BatchError {
    /// The bytes end before the header or the batch does.
    #[error("a batch of {needed} bytes, of which {present} are here")]
    Incomplete {
        /// Bytes of the whole header or batch.
        needed: usize,
        /// Bytes there are.
        present: usize,
    },
    /// Not a V2 batch.
    #[error("magic {0} instead of 2")]
    Magic(i8),
    /// A length that no batch can have.
    #[error("batch length {0}")]
    Length(i32),
    /// The CRC does not match.
    #[error("the CRC does not match")]
    Checksum,
    /// Not exactly one batch where one is required.
    #[error("not exactly one batch")]
    NotOne,
    /// A header field that contradicts the rules of L-10.
    #[error("batch header: {0}")]
    Header(&'static str),
    /// Records that cannot be read or contradict the header.
    #[error("record {index}: {what}")]
    Record {
        /// Which record, from 0.
        index: i32,
        /// What is wrong.
        what: &'static str,
    },
    /// A record without a key in a compacted topic.
    #[error("record {index} has no key, which a compacted topic requires")]
    NoKey {
        /// Which record, from 0.
        index: i32,
    },
    /// Larger than `max.message.bytes`.
    #[error("{size} bytes where max.message.bytes is {limit}")]
    TooLarge {
        /// Size of the batch.
        size: usize,
        /// The limit.
        limit: usize,
    },
    /// Larger than a segment can be.
    #[error("{size} bytes where segment.bytes is {limit}")]
    LargerThanSegment {
        /// Size of the batch.
        size: usize,
        /// The limit.
        limit: usize,
    },
    /// A codec id that means nothing.
    #[error("unknown compression codec {0}")]
    Codec(u8),
    /// Compressed records that cannot be read.
    #[error("cannot decompress with {codec}: {why}")]
    Decompression {
        /// The codec.
        codec: Compression,
        /// What it says.
        why: String,
    },
    /// A timestamp outside of what the topic accepts.
    #[error("timestamp {0} is outside of what the topic accepts")]
    Timestamp(Millis),
}

impl BatchError {
    /// The error a Kafka broker would answer.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Incomplete { .. }
            | Self::Length(_)
            | Self::Checksum
            | Self::Decompression { .. } => ErrorCode::CorruptMessage,
            Self::Magic(_)
            | Self::NotOne
            | Self::Header(_)
            | Self::Record { .. }
            | Self::NoKey { .. } => ErrorCode::InvalidRecord,
            Self::TooLarge { .. } => ErrorCode::MessageTooLarge,
            Self::LargerThanSegment { .. } => ErrorCode::RecordListTooLarge,
            Self::Codec(_) => ErrorCode::UnsupportedCompressionType,
            Self::Timestamp(_) => ErrorCode::InvalidTimestamp,
        }
    }
}

/// CRC-32C (Castagnoli), by the processor's own instructions where it has them.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// Whether the CRC field of a whole batch is right. `false` for bytes too short to hold one.
pub fn crc_is_valid(batch: &[u8]) -> bool {
    batch.len() >= HEADER_LEN
        && crc32c(&batch[CRC_FROM..]).to_be_bytes() == batch[CRC_AT..CRC_AT + 4]
}

/// The first 16 bytes of a batch as they go to disk: base offset, length, leader epoch. They lie outside of the CRC, which is
/// why a leader can stamp them without touching the rest (L-10.5).
pub fn patched_prefix(
    base_offset: Offset,
    batch_length: i32,
    leader_epoch: LeaderEpoch,
) -> [u8; 16] {
    let mut prefix = [0; 16];
    prefix[..8].copy_from_slice(&base_offset.0.to_be_bytes());
    prefix[8..12].copy_from_slice(&batch_length.to_be_bytes());
    prefix[12..].copy_from_slice(&leader_epoch.0.to_be_bytes());
    prefix
}

#[cfg(test)]
mod tests;
