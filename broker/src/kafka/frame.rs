//! Cuts a byte stream into Kafka request frames: a length of four bytes, then as many bytes. Memory follows the bytes that
//! have arrived, never the length that was claimed; an impossible length ends the stream with a guess at what is talking.

use std::io;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

/// Frames up to about this size are read through one shared buffer; larger ones get an allocation of their own, so that
/// the records in them stay where they arrived.
const SMALL: usize = 16 * 1024;

/// A frame is given its whole size at once up to here; beyond, its buffer doubles as bytes arrive.
const AT_ONCE: usize = 4 << 20;

/// The shortest request: API key, version, correlation id.
const SHORTEST: usize = 8;

/// Why a stream cannot be cut any further.
#[derive(Debug, thiserror::Error)]
pub(super) enum FrameError {
    /// The connection failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A length that no request can have.
    #[error("{guess} (as a request length it would be {claimed} bytes, the limit is {limit})")]
    Length {
        claimed: i32,
        limit: usize,
        guess: &'static str,
    },
}

/// Reads frames. Every method can be cancelled between bytes without losing any.
pub(super) struct FrameReader<R> {
    stream: R,
    limit: usize,
    small: BytesMut,
    large: Option<Large>,
}

/// A frame under way in its own buffer.
struct Large {
    body: BytesMut,
    len: usize,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// Reads frames of at most `limit` bytes.
    pub(super) fn new(stream: R, limit: usize) -> Self {
        Self {
            stream,
            limit,
            small: BytesMut::new(),
            large: None,
        }
    }

    /// The next frame if all of it has been read. Never waits.
    pub(super) fn take(&mut self) -> Result<Option<Bytes>, FrameError> {
        if let Some(large) = &self.large {
            return Ok((large.body.len() == large.len)
                .then(|| self.large.take().map(|l| l.body.freeze()))
                .flatten());
        }
        let Some(prefix) = self.small.first_chunk::<4>() else {
            return Ok(None);
        };
        let claimed = i32::from_be_bytes(*prefix);
        let len = usize::try_from(claimed)
            .ok()
            .filter(|len| (SHORTEST..=self.limit).contains(len))
            .ok_or_else(|| FrameError::Length {
                claimed,
                limit: self.limit,
                guess: guess(*prefix),
            })?;
        if self.small.len() >= 4 + len {
            self.small.advance(4);
            return Ok(Some(self.small.split_to(len).freeze()));
        }
        if 4 + len > SMALL {
            let mut body = BytesMut::with_capacity(len.min(AT_ONCE));
            body.extend_from_slice(&self.small[4..]);
            self.small.clear();
            self.large = Some(Large { body, len });
        }
        Ok(None)
    }

    /// Waits for more bytes. `false`: there will be none.
    pub(super) async fn fill(&mut self) -> io::Result<bool> {
        let count = match &mut self.large {
            Some(Large { body, len }) => {
                let missing = *len - body.len();
                if body.len() == body.capacity() {
                    body.reserve(missing.min(body.len()));
                }
                // Not a byte beyond this frame: the next one must not lie in the same allocation.
                self.stream.read_buf(&mut body.limit(missing)).await?
            }
            None => {
                if self.small.capacity() - self.small.len() < SMALL / 4 {
                    self.small.reserve(SMALL);
                }
                self.stream.read_buf(&mut self.small).await?
            }
        };
        Ok(count > 0)
    }
}

/// What is likely to be talking, from the first bytes that are no length.
fn guess(prefix: [u8; 4]) -> &'static str {
    match &prefix {
        b"GET " | b"POST" | b"HEAD" | b"PUT " | b"DELE" | b"OPTI" | b"PATC" | b"CONN" | b"TRAC" => {
            "this looks like HTTP, but the listener speaks the Kafka protocol"
        }
        b"PRI " => "this looks like HTTP/2 or gRPC, but the listener speaks the Kafka protocol",
        b"SSH-" => "this looks like SSH, but the listener speaks the Kafka protocol",
        [0x16, 0x03, 0..=4, _] => "this looks like a TLS hello, but the listener is PLAINTEXT",
        _ => "this is not the Kafka protocol",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    async fn next<R: AsyncRead + Unpin>(
        frames: &mut FrameReader<R>,
    ) -> Result<Option<Bytes>, FrameError> {
        loop {
            if let Some(frame) = frames.take()? {
                return Ok(Some(frame));
            }
            if !frames.fill().await? {
                return Ok(None);
            }
        }
    }

    fn framed(body: &[u8]) -> Vec<u8> {
        let mut out = (body.len() as u32).to_be_bytes().to_vec();
        out.extend_from_slice(body);
        out
    }

    #[tokio::test]
    async fn garbage_is_refused_with_a_guess() {
        for (bytes, says) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], "HTTP"),
            (b"PRI * HTTP/2.0\r\n", "gRPC"),
            (&[0x16, 0x03, 0x01, 0x02, 0x00, 0x01], "TLS"),
            (&[0xff; 16], "not the Kafka protocol"),
            (&[0, 0, 0, 3, 1, 2, 3], "not the Kafka protocol"),
            (&[0x7f, 0xff, 0xff, 0xff], "limit is 1000"),
        ] {
            let error = next(&mut FrameReader::new(bytes, 1000))
                .await
                .expect_err(says);
            assert!(error.to_string().contains(says), "{error}");
        }
    }

    #[tokio::test]
    async fn a_claimed_length_costs_nothing_before_its_bytes_arrive() {
        let mut claim = (90u32 << 20).to_be_bytes().to_vec();
        claim.extend_from_slice(&[7; 100]);
        let mut frames = FrameReader::new(&claim[..], 100 << 20);
        assert!(next(&mut frames).await.expect("plausible").is_none());
        let large = frames.large.expect("begun");
        assert_eq!(large.body.len(), 100);
        assert!(large.body.capacity() <= AT_ONCE + 100);
    }

    proptest! {
        #[test]
        fn frames_come_out_as_they_went_in_however_they_are_cut(
            sizes in prop::collection::vec(prop_oneof![8usize..200, 10_000usize..40_000], 1..8),
            cut in 1usize..20_000,
        ) {
            let bodies: Vec<Vec<u8>> = sizes.iter().zip(0u8..).map(|(&n, i)| vec![i; n]).collect();
            let wire: Vec<u8> = bodies.iter().flat_map(|b| framed(b)).collect();
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
            let got: Vec<Bytes> = runtime.block_on(async {
                let (mut sender, receiver) = tokio::io::duplex(cut);
                let send = async move {
                    use tokio::io::AsyncWriteExt as _;
                    sender.write_all(&wire).await.expect("sent");
                };
                let receive = async move {
                    let mut frames = FrameReader::new(receiver, 1 << 20);
                    let mut got = Vec::new();
                    while let Some(frame) = next(&mut frames).await.expect("well formed") {
                        got.push(frame);
                    }
                    got
                };
                tokio::join!(send, receive).1
            });
            prop_assert_eq!(got, bodies);
        }
    }
}
