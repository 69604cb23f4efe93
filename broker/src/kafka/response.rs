//! Encoded responses: pieces of memory that go to the socket one after the other, so that fetched records are never copied
//! into one large buffer.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use kafka_protocol::protocol::{Encodable, HeaderVersion, Message};

use super::request::{Call, Refused};

/// One response, ready to be written.
#[derive(Debug, Default)]
pub(super) struct Response(Vec<Bytes>);

impl Response {
    /// Encodes a response that holds no records.
    pub(super) fn encode<M>(call: &Call, body: &M) -> Result<Self, Refused>
    where
        M: Message + Encodable + HeaderVersion,
    {
        let unencodable = |error: anyhow::Error| Refused::Unencodable {
            api: call.api,
            why: error.to_string(),
        };
        let size = body.compute_size(call.version).map_err(unencodable)?;
        let mut pieces = Pieces::new(call.correlation_id, M::header_version(call.version), size);
        body.encode(pieces.head(), call.version)
            .map_err(unencodable)?;
        Ok(pieces.finish())
    }

    #[cfg(test)]
    pub(super) fn to_bytes(&self) -> Bytes {
        self.0.concat().into()
    }
}

/// Builds a response out of encoded fields and slices of records.
pub(super) struct Pieces {
    done: Vec<BytesMut>,
    /// Records go between the pieces of encoded fields: one behind each of `done`.
    records: Vec<Bytes>,
    head: BytesMut,
}

/// Slices shorter than this are cheaper to copy than to hand to the kernel separately.
const WORTH_A_PIECE: usize = 512;

impl Pieces {
    /// Begins with the length, still open, and the response header.
    pub(super) fn new(correlation_id: i32, header_version: i16, capacity: usize) -> Self {
        let mut head = BytesMut::with_capacity(capacity + 9);
        head.put_i32(0);
        head.put_i32(correlation_id);
        if header_version >= 1 {
            head.put_u8(0); // no tagged fields
        }
        Self {
            done: Vec::new(),
            records: Vec::new(),
            head,
        }
    }

    /// Where fields are encoded to.
    pub(super) fn head(&mut self) -> &mut BytesMut {
        &mut self.head
    }

    /// Puts bytes here as they are, without copying them when they are many.
    pub(super) fn put_records(&mut self, records: Bytes) {
        if records.len() < WORTH_A_PIECE {
            self.head.put_slice(&records);
        } else {
            self.done.push(self.head.split());
            self.records.push(records);
        }
    }

    /// Closes the length.
    pub(super) fn finish(mut self) -> Response {
        self.done.push(self.head);
        let total: usize = self.done.iter().map(BytesMut::len).sum::<usize>()
            + self.records.iter().map(Bytes::len).sum::<usize>();
        let length = i32::try_from(total - 4).expect("responses are limited far below 2 GiB");
        self.done[0][..4].copy_from_slice(&length.to_be_bytes());
        let mut records = self.records.into_iter();
        let mut pieces = Vec::with_capacity(2 * self.done.len());
        for fields in self.done {
            pieces.push(fields.freeze());
            pieces.extend(records.next());
        }
        Response(pieces)
    }
}

/// Responses waiting to be written, as one buffer.
#[derive(Default)]
pub(super) struct Outgoing {
    pieces: VecDeque<Bytes>,
    len: usize,
}

impl Outgoing {
    /// Adds a response behind the others.
    pub(super) fn push(&mut self, response: Response) {
        for piece in response.0.into_iter().filter(|p| !p.is_empty()) {
            self.len += piece.len();
            self.pieces.push_back(piece);
        }
    }
}

impl Buf for Outgoing {
    fn remaining(&self) -> usize {
        self.len
    }

    fn chunk(&self) -> &[u8] {
        self.pieces.front().map_or(&[], |p| p)
    }

    fn chunks_vectored<'a>(&'a self, out: &mut [IoSlice<'a>]) -> usize {
        let pieces = self.pieces.iter().zip(out.iter_mut());
        pieces
            .map(|(piece, slot)| *slot = IoSlice::new(piece))
            .count()
    }

    fn advance(&mut self, mut count: usize) {
        assert!(count <= self.len, "advance beyond the end");
        self.len -= count;
        while count > 0 {
            let front = self.pieces.front_mut().expect("there are bytes left");
            let step = count.min(front.len());
            front.advance(step);
            count -= step;
            if front.is_empty() {
                self.pieces.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_add_up_to_one_frame_with_its_length() {
        let large = Bytes::from(vec![7; 1000]);
        let mut pieces = Pieces::new(9, 1, 0);
        pieces.head().put_u16(1);
        pieces.put_records(large.clone());
        pieces.put_records(Bytes::from_static(b"small"));
        pieces.head().put_u16(2);
        pieces.put_records(large.clone());
        let response = pieces.finish();
        // The large slices are handed on, not copied.
        assert_eq!(response.0[1].as_ptr(), large.as_ptr());
        let mut outgoing = Outgoing::default();
        outgoing.push(response);
        let mut wire = Vec::new();
        while outgoing.has_remaining() {
            let step = 333.min(outgoing.chunk().len());
            wire.extend_from_slice(&outgoing.chunk()[..step]);
            outgoing.advance(step);
        }
        assert_eq!(wire[..4], (wire.len() as i32 - 4).to_be_bytes());
        assert_eq!(wire[4..11], [0, 0, 0, 9, 0, 0, 1]);
        assert_eq!(wire.len(), 11 + 1000 + 5 + 2 + 1000);
    }
}
