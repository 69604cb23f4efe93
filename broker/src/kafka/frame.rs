//! Cuts a byte stream into Kafka request frames: a length of four bytes, then as many bytes. Memory follows the bytes that
//! have arrived, never the length that was claimed, and what large frames need is taken from a budget that all connections
//! share; an impossible length ends the stream with a guess at what is talking.

use std::io;
use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures::future::BoxFuture;
use kafka_protocol::messages::ApiKey;
use tokio::io::{AsyncRead, AsyncReadExt};

use super::budget::{Budget, Grant};
use super::pace::Seen;

/// Frames up to about this size are read through one shared buffer; larger ones get an allocation of their own, so that
/// the records in them stay where they arrived.
const SMALL: usize = 16 * 1024;

/// Every connection may hold this much of a frame without asking: heartbeats and their like pass however scarce memory is.
const FREE: usize = 64 * 1024;

/// A connection that has sent a frame of some size before gets as much at once, up to here; otherwise, and beyond, a frame's
/// buffer doubles as bytes arrive.
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
    budget: Arc<Budget>,
    small: BytesMut,
    large: Option<Large>,
    /// The largest frame that came whole so far, `AT_ONCE` at most.
    proven: usize,
    /// How many frames came whole.
    taken: u64,
}

/// A frame under way in its own buffer.
struct Large {
    body: Vec<u8>,
    len: usize,
    huge: bool,
    /// Covers all of the frame, or the capacity of `body` when it is huge; beyond `FREE`.
    grant: Grant,
    /// A grant on its way. Kept here so that a cancelled wait keeps its place in the line.
    awaited: Option<BoxFuture<'static, Grant>>,
}

impl Large {
    /// A frame of `len` bytes of which these have arrived.
    fn begin(arrived: &[u8], len: usize, proven: usize, budget: &Budget) -> Self {
        let huge = budget.is_huge(len);
        let mut capacity = len.min(FREE);
        let mut grant = Grant::default();
        let trusted = len.min(proven);
        let bytes = if huge { trusted } else { len };
        if trusted > FREE
            && let Some(given) = budget.try_take(bytes - FREE, huge)
        {
            (capacity, grant) = (trusted, given);
        }
        let mut body = Vec::with_capacity(capacity);
        body.extend_from_slice(arrived);
        Self {
            body,
            len,
            huge,
            grant,
            awaited: None,
        }
    }

    /// What must be granted before the buffer may have this capacity, in bytes.
    fn missing_grant(&self, larger: usize) -> usize {
        if self.grant.is_exception() {
            0
        } else if self.huge {
            larger.saturating_sub(FREE) - self.body.capacity().saturating_sub(FREE)
        } else if self.grant.is_empty() {
            self.len.saturating_sub(FREE)
        } else {
            0
        }
    }

    /// Makes room for more of the frame, once there is memory for it.
    async fn grow(&mut self, budget: &Arc<Budget>) {
        let larger = self.len.min(self.body.capacity() * 2);
        let bytes = self.missing_grant(larger);
        if bytes > 0 {
            let huge = self.huge;
            let at_once = match self.awaited {
                None => budget.try_take(bytes, huge),
                Some(_) => None,
            };
            let given = match at_once {
                Some(given) => given,
                None => {
                    let awaited = self.awaited.get_or_insert_with(|| budget.take(bytes, huge));
                    awaited.await
                }
            };
            self.awaited = None;
            self.grant.add(given);
        }
        self.body.reserve_exact(larger - self.body.len());
    }

    /// Bytes of the budget that it holds.
    fn held(&self) -> usize {
        match (self.grant.is_empty(), self.huge) {
            (true, _) => 0,
            (false, true) => self.body.capacity().saturating_sub(FREE),
            (false, false) => self.len - FREE,
        }
    }

    /// The whole frame. The last who refers to it gives its memory back.
    fn finish(self) -> Bytes {
        if self.grant.is_empty() {
            return self.body.into();
        }
        Bytes::from_owner(Granted {
            body: self.body,
            _grant: self.grant,
        })
    }
}

/// A frame and the memory it was granted.
struct Granted {
    body: Vec<u8>,
    _grant: Grant,
}

impl AsRef<[u8]> for Granted {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// Reads frames of at most `limit` bytes, large ones with memory from `budget`.
    pub(super) fn new(stream: R, limit: usize, budget: Arc<Budget>) -> Self {
        Self {
            stream,
            limit,
            budget,
            small: BytesMut::new(),
            large: None,
            proven: 0,
            taken: 0,
        }
    }

    /// The next frame if all of it has been read. Never waits.
    pub(super) fn take(&mut self) -> Result<Option<Bytes>, FrameError> {
        if let Some(large) = self.large.take_if(|large| large.body.len() == large.len) {
            self.taken += 1;
            self.proven = self.proven.max(large.len.min(AT_ONCE));
            return Ok(Some(large.finish()));
        }
        if self.large.is_some() {
            return Ok(None);
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
            self.taken += 1;
            return Ok(Some(self.small.split_to(len).freeze()));
        }
        if 4 + len > SMALL {
            let large = Large::begin(&self.small[4..], len, self.proven, &self.budget);
            self.large = Some(large);
            self.small.clear();
        }
        Ok(None)
    }

    /// Waits for more bytes, first for memory to put them in. `false`: there will be none.
    pub(super) async fn fill(&mut self) -> io::Result<bool> {
        let count = match &mut self.large {
            Some(large) => {
                if large.body.len() == large.body.capacity() {
                    large.grow(&self.budget).await;
                }
                let missing = large.len - large.body.len();
                // Not a byte beyond this frame: the next one must not lie in the same allocation.
                let mut room = (&mut large.body).limit(missing);
                self.stream.read_buf(&mut room).await?
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

    /// The frame that has begun, if one has.
    pub(super) fn under_way(&self) -> Option<Seen> {
        let frame = self.taken;
        match &self.large {
            Some(large) => Some(Seen {
                frame,
                received: large.body.len(),
                held: large.held(),
                waits: large.awaited.is_some(),
                scarce: self.budget.is_scarce(large.huge),
            }),
            None if self.small.is_empty() => None,
            None => Some(Seen {
                frame,
                received: self.small.len(),
                held: 0,
                waits: false,
                scarce: false,
            }),
        }
    }

    /// Whether a frame has begun and the rest of it has not been read.
    pub(super) fn is_amid_a_frame(&self) -> bool {
        self.large.is_some() || !self.small.is_empty()
    }

    /// Whether the frame under way holds, or waits for, memory of the budget.
    pub(super) fn is_large(&self) -> bool {
        self.large.as_ref().is_some_and(|large| large.len > FREE)
    }

    /// Whether the frame under way is large, and no Produce.
    pub(super) fn is_large_and_kept(&self) -> bool {
        let other = |body: &[u8]| body.len() >= 2 && !is_produce(body);
        self.is_large() && self.large.as_ref().is_some_and(|l| other(&l.body))
    }
}

/// Whether a frame is a Produce request, whose records are appended as soon as it begins: its bytes are not kept.
pub(super) fn is_produce(frame: &[u8]) -> bool {
    frame.starts_with(&(ApiKey::Produce as i16).to_be_bytes())
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

    fn budget(total: usize) -> Arc<Budget> {
        Arc::new(Budget::new(2 * total, 0))
    }

    fn reader<R: AsyncRead + Unpin>(stream: R, limit: usize) -> FrameReader<R> {
        FrameReader::new(stream, limit, budget(1 << 30))
    }

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
            let error = next(&mut reader(bytes, 1000)).await.expect_err(says);
            assert!(error.to_string().contains(says), "{error}");
        }
    }

    #[tokio::test]
    async fn a_claimed_length_costs_nothing_before_its_bytes_arrive() {
        let mut claim = (90u32 << 20).to_be_bytes().to_vec();
        claim.extend_from_slice(&[7; 100]);
        let mut frames = reader(&claim[..], 100 << 20);
        assert!(next(&mut frames).await.expect("plausible").is_none());
        assert_eq!(frames.budget.left(), 2 << 30);
        let large = frames.large.expect("begun");
        assert_eq!(large.body.len(), 100);
        assert!(large.body.capacity() <= FREE);
    }

    #[tokio::test]
    async fn a_large_frame_holds_its_memory_until_nobody_refers_to_it() {
        let wire = [framed(&[7; 200 << 10]), framed(&[8; 200 << 10])].concat();
        let mut frames = FrameReader::new(&wire[..], 1 << 20, budget(1 << 20));
        let frame = next(&mut frames).await.expect("whole").expect("one");
        let part = frame.slice(10..20);
        drop(frame);
        assert_eq!(frames.budget.left(), (2 << 20) - (200 << 10) + FREE);
        drop(part);
        assert_eq!(frames.budget.left(), 2 << 20);

        // The second of its size gets all of it at once.
        assert!(frames.fill().await.expect("there"));
        assert!(frames.take().expect("plausible").is_none());
        let large = frames.large.as_ref().expect("begun");
        assert_eq!(large.body.capacity(), 200 << 10);
        let frame = next(&mut frames).await.expect("whole").expect("another");
        assert_eq!(frame, vec![8; 200 << 10]);
    }

    #[tokio::test]
    async fn frames_that_have_all_memory_between_them_all_end() {
        const FRAMES: u8 = 20;
        let budget = Arc::new(Budget::new(700 << 10, 300 << 10));
        assert!(budget.is_huge(300 << 10));
        let read = (0..FRAMES).map(|i| {
            let (mut sender, receiver) = tokio::io::duplex(8 << 10);
            let mut frames = FrameReader::new(receiver, 300 << 10, budget.clone());
            async move {
                use tokio::io::AsyncWriteExt as _;
                let wire = framed(&vec![i; 300 << 10]);
                let send = sender.write_all(&wire);
                let (sent, frame) = tokio::join!(send, next(&mut frames));
                sent.expect("sent");
                let frame = frame.expect("whole").expect("one");
                frame.len() == 300 << 10 && frame.iter().all(|&b| b == i)
            }
        });
        let whole = futures::future::join_all(read).await;
        assert!(whole.into_iter().all(|whole| whole));
        assert!(!budget.is_scarce(true));
        assert_eq!(budget.left(), 400 << 10);
    }

    #[tokio::test]
    async fn small_frames_pass_when_all_memory_is_taken() {
        let budget = Arc::new(Budget::new(200 << 10, 200 << 10));
        let big = framed(&[1; 150 << 10]);
        let mut first = FrameReader::new(&big[..], 200 << 10, budget.clone());
        let held = next(&mut first).await.expect("whole");
        let mut second = FrameReader::new(&big[..], 200 << 10, budget.clone());
        let waits = next(&mut second);
        tokio::pin!(waits);
        assert!(futures::poll!(&mut waits).is_pending());
        assert!(budget.is_scarce(true));
        for len in [8, 1000, 20_000, FREE] {
            let small = framed(&vec![2; len]);
            let mut frames = FrameReader::new(&small[..], 200 << 10, budget.clone());
            let frame = next(&mut frames).await.expect("whole").expect("one");
            assert_eq!(frame.len(), len);
        }
        drop(held);
        assert!(waits.await.expect("whole").is_some());
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
                    let mut frames = reader(receiver, 1 << 20);
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
