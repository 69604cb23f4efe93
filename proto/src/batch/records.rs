//! The records inside a batch. Compressed ones are decompressed as they are read, so memory follows one record, not the batch,
//! and never a length that the bytes claim.

use std::io::Read;

use bytes::Bytes;

use super::varint::Cursor;
use super::{BatchError, BatchHeader, HEADER_LEN, TimestampType};
use crate::compression::Compression;
use crate::ids::{Millis, Offset};

/// No record is larger than this, whatever its batch decompresses to.
pub(super) const MAX_RECORD: usize = 256 << 20;

/// One record of a batch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// Its position in the partition.
    pub offset: Offset,
    /// Its timestamp in milliseconds; -1: it carries none.
    pub timestamp: Millis,
    /// Its key.
    pub key: Option<Bytes>,
    /// Its value; none is a tombstone in a compacted topic.
    pub value: Option<Bytes>,
    /// Its headers in order; a key may repeat.
    pub headers: Vec<(Bytes, Option<Bytes>)>,
}

/// One record as it lies in memory.
pub(super) struct RawRecord<'a> {
    pub(super) offset_delta: i32,
    pub(super) timestamp_delta: i64,
    pub(super) key: Option<&'a [u8]>,
    value: Option<&'a [u8]>,
    headers: i32,
    header_bytes: Cursor<'a>,
}

impl<'a> RawRecord<'a> {
    /// Reads what follows a record's length. Every byte must belong to it.
    pub(super) fn parse(body: &'a [u8]) -> Result<Self, &'static str> {
        let mut cursor = Cursor(body);
        let record = Self::fields(&mut cursor).ok_or("ends before its fields do")?;
        let mut rest = record.header_bytes;
        for _ in 0..record.headers {
            header(&mut rest).ok_or("ends before its headers do")?;
        }
        if rest.0.is_empty() {
            Ok(record)
        } else {
            Err("has bytes after its headers")
        }
    }

    fn fields(cursor: &mut Cursor<'a>) -> Option<Self> {
        let _attributes = cursor.u8()?;
        let timestamp_delta = cursor.varlong()?;
        let offset_delta = cursor.varint()?;
        let key = cursor.nullable_bytes()?;
        let value = cursor.nullable_bytes()?;
        let headers = cursor.varint().filter(|&n| n >= 0)?;
        Some(Self {
            offset_delta,
            timestamp_delta,
            key,
            value,
            headers,
            header_bytes: *cursor,
        })
    }
}

fn header<'a>(cursor: &mut Cursor<'a>) -> Option<(&'a [u8], Option<&'a [u8]>)> {
    let key = cursor.nullable_bytes()??;
    Some((key, cursor.nullable_bytes()?))
}

/// Iterates over the records of one whole batch. The CRC is not checked here.
pub fn records(batch: &[u8]) -> Result<Records<'_>, BatchError> {
    let header = BatchHeader::parse(batch)?;
    let Some(payload) = batch.get(HEADER_LEN..header.size) else {
        return Err(BatchError::Incomplete {
            needed: header.size,
            present: batch.len(),
        });
    };
    if header.records_count < 0 {
        return Err(BatchError::Header("negative record count"));
    }
    let codec = header.compression()?;
    let source = codec
        .reader(payload)
        .map_err(|e| decompression(codec, &e))?;
    Ok(Records {
        header,
        codec,
        source,
        index: 0,
    })
}

/// See [`records`]. Ends after the count of records the header gives, or after the first error.
pub struct Records<'a> {
    header: BatchHeader,
    codec: Compression,
    source: Box<dyn Read + Send + 'a>,
    index: i32,
}

impl Records<'_> {
    /// The header of the batch.
    pub fn header(&self) -> &BatchHeader {
        &self.header
    }

    fn read_next(&mut self) -> Result<Record, BatchError> {
        let body = self.read_body()?;
        let raw = RawRecord::parse(&body).map_err(|what| self.bad(what))?;
        let timestamp = match self.header.attributes.timestamp_type() {
            TimestampType::LogAppendTime => self.header.max_timestamp,
            TimestampType::CreateTime => self
                .header
                .base_timestamp
                .checked_add(raw.timestamp_delta)
                .ok_or_else(|| self.bad("timestamp overflows"))?,
        };
        let offset = self
            .header
            .base_offset
            .0
            .checked_add(i64::from(raw.offset_delta))
            .ok_or_else(|| self.bad("offset overflows"))?;
        let owned = |part: &[u8]| body.slice_ref(part);
        let mut rest = raw.header_bytes;
        let headers = std::iter::from_fn(|| header(&mut rest))
            .map(|(key, value)| (owned(key), value.map(owned)))
            .collect();
        Ok(Record {
            offset: Offset(offset),
            timestamp,
            key: raw.key.map(owned),
            value: raw.value.map(owned),
            headers,
        })
    }

    /// One record's bytes without its length.
    fn read_body(&mut self) -> Result<Bytes, BatchError> {
        let mut prefix = [0u8; 5];
        let mut len = 0;
        loop {
            if len == prefix.len() {
                return Err(self.bad("its length is no varint"));
            }
            prefix[len] = self.read_byte()?;
            len += 1;
            if prefix[len - 1] < 0x80 {
                break;
            }
        }
        let claimed = Cursor(&prefix[..len])
            .varint()
            .and_then(|l| usize::try_from(l).ok())
            .filter(|&l| l <= MAX_RECORD)
            .ok_or_else(|| self.bad("impossible length"))?;
        // `read_to_end` grows with what arrives, so an absurd claim costs nothing.
        let mut body = Vec::new();
        let read = (&mut self.source)
            .take(claimed as u64)
            .read_to_end(&mut body)
            .map_err(|e| decompression(self.codec, &e))?;
        if read < claimed {
            return Err(self.bad("ends too early"));
        }
        Ok(body.into())
    }

    fn read_byte(&mut self) -> Result<u8, BatchError> {
        let mut byte = [0];
        match self.source.read_exact(&mut byte) {
            Ok(()) => Ok(byte[0]),
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => Err(self.bad("is missing")),
            Err(e) => Err(decompression(self.codec, &e)),
        }
    }

    fn bad(&self, what: &'static str) -> BatchError {
        BatchError::Record {
            index: self.index,
            what,
        }
    }
}

impl Iterator for Records<'_> {
    type Item = Result<Record, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.index >= self.header.records_count {
            return None;
        }
        let item = self.read_next();
        self.index = if item.is_ok() {
            self.index + 1
        } else {
            self.header.records_count
        };
        Some(item)
    }
}

fn decompression(codec: Compression, error: &std::io::Error) -> BatchError {
    BatchError::Decompression {
        codec,
        why: error.to_string(),
    }
}
