//! One client's connection: frames in, responses out, in the order of the requests. A request begins as soon as it has been
//! read, so that several produces may wait for their commit at once; everything else runs when its turn to be answered
//! comes, as if there were only one request at a time.

use std::collections::VecDeque;
use std::io;
use std::pin::{Pin, pin};
use std::time::Duration;

use bytes::{Buf, Bytes};
use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::frame::{FrameError, FrameReader, is_produce};
use super::pace::{PATIENCE, Pace, Seen};
use super::request::Refused;
use super::response::{Outgoing, Response};

/// The answer to one request, on its way; `None` when the client wants none.
pub(super) type Reply = BoxFuture<'static, Result<Option<Response>, Refused>>;

/// Requests of one connection that may be under way at once. More are left in the socket.
const MAX_UNDER_WAY: usize = 256;

/// A connection without a request, or a client that takes no bytes, for this long is closed (Kafka's
/// `connections.max.idle.ms`).
const MAX_IDLE: Duration = Duration::from_secs(600);

/// How long answers may still take once the broker stops.
const DRAIN: Duration = Duration::from_millis(250);

/// Bytes of requests that wait for their turn, beyond which no more are read. Produces, which do not keep their bytes, are
/// not counted.
const MAX_PARKED: usize = 256 * 1024;

/// How often a frame under way is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// Why a connection was closed by us.
#[derive(Debug, thiserror::Error)]
pub(super) enum Closed {
    /// The connection failed, which is its client's or the network's business.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The bytes are no frames.
    #[error(transparent)]
    Frame(FrameError),
    /// A frame comes so slowly that it only takes up memory.
    #[error("the rest of a request did not come, or too slowly")]
    Slow,
    /// A frame waited too long for memory.
    #[error("there was no memory for its request in time (queued.max.request.bytes)")]
    Crowded,
    /// A frame is no request that is served here.
    #[error(transparent)]
    Refused(#[from] Refused),
}

impl From<FrameError> for Closed {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::Io(error) => Self::Io(error),
            length => Self::Frame(length),
        }
    }
}

/// Serves one connection until the client leaves, sends nonsense, or the broker stops.
pub(super) async fn run<R, W>(
    mut frames: FrameReader<R>,
    mut writer: W,
    mut begin: impl FnMut(Bytes) -> Result<Reply, Refused>,
    shutdown: &CancellationToken,
) -> Result<(), Closed>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut under_way: VecDeque<UnderWay> = VecDeque::new();
    let mut parked = 0;
    let mut outgoing = Outgoing::default();
    let mut alarm = pin!(sleep(MAX_IDLE));
    let mut look = pin!(sleep(LOOK));
    let mut looking = false;
    let mut pace = Pace::default();
    let mut heard = false;
    let mut stopping = false;
    loop {
        while !stopping && under_way.len() < MAX_UNDER_WAY && parked < MAX_PARKED {
            let Some(frame) = frames.take()? else { break };
            let keeps = if is_produce(&frame) { 0 } else { frame.len() };
            parked += keeps;
            under_way.push_back(UnderWay {
                reply: begin(frame)?,
                keeps,
            });
            heard = true;
        }
        while let Some(next) = under_way.front_mut() {
            let std::task::Poll::Ready(response) = futures::poll!(&mut next.reply) else {
                break;
            };
            parked -= next.keeps;
            under_way.pop_front();
            outgoing.push(response?.unwrap_or_default());
        }
        if outgoing.has_remaining() {
            // Memory that others may need is not held for a client that takes no answers.
            let patience = if frames.is_large() {
                PATIENCE
            } else {
                MAX_IDLE
            };
            write(&mut writer, &mut outgoing, patience).await?;
            continue;
        }
        if stopping && under_way.is_empty() {
            return Ok(());
        }
        // A large request that keeps its bytes until its turn comes is not read before.
        let may_read = !stopping
            && under_way.len() < MAX_UNDER_WAY
            && parked < MAX_PARKED
            && (parked == 0 || !frames.is_large_and_kept());
        if frames.is_amid_a_frame() && !looking {
            looking = true;
            look.as_mut().reset(Instant::now() + LOOK);
        }
        tokio::select! {
            // A frame is judged only when nothing of it is there to be read.
            biased;
            () = shutdown.cancelled(), if !stopping => {
                stopping = true;
                alarm.as_mut().reset(Instant::now() + DRAIN);
            }
            response = front(&mut under_way), if !under_way.is_empty() => {
                if let Some(answered) = under_way.pop_front() {
                    parked -= answered.keeps;
                }
                outgoing.push(response?.unwrap_or_default());
            }
            more = frames.fill(), if may_read => {
                if !more? {
                    return Ok(());
                }
            }
            () = &mut look, if looking => {
                looking = false;
                let seen = frames.under_way().filter(|_| may_read);
                if pace.is_too_slow(Instant::now(), seen) {
                    return Err(match seen {
                        Some(Seen { waits: true, .. }) => Closed::Crowded,
                        _ => Closed::Slow,
                    });
                }
            }
            () = &mut alarm => {
                let idle = !heard && under_way.is_empty();
                if stopping || idle {
                    return Ok(());
                }
                heard = false;
                alarm.as_mut().reset(Instant::now() + MAX_IDLE);
            }
        }
    }
}

/// A request that has begun.
struct UnderWay {
    reply: Reply,
    /// Bytes of its frame that it keeps until it is answered.
    keeps: usize,
}

/// Waits for the oldest reply.
async fn front(under_way: &mut VecDeque<UnderWay>) -> Result<Option<Response>, Refused> {
    match under_way.front_mut() {
        Some(oldest) => Pin::new(&mut oldest.reply).await,
        None => std::future::pending().await,
    }
}

async fn write<W: AsyncWrite + Unpin>(
    writer: &mut W,
    outgoing: &mut Outgoing,
    patience: Duration,
) -> Result<(), Closed> {
    let written = timeout(patience, writer.write_all_buf(outgoing)).await;
    Ok(written.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::FutureExt as _;
    use kafka_protocol::messages::ApiKey;
    use parking_lot::Mutex;
    use tokio::io::{AsyncReadExt, DuplexStream};
    use tokio::sync::oneshot;

    use super::*;
    use crate::kafka::budget::Budget;
    use crate::kafka::response::Pieces;

    fn frames<R: AsyncRead + Unpin>(reader: R) -> FrameReader<R> {
        FrameReader::new(reader, 1000, Arc::new(Budget::new(1 << 20, 1000)))
    }

    fn response(number: i32) -> Response {
        Pieces::new(number, 0, 0).finish()
    }

    fn frame(number: i32) -> Vec<u8> {
        let mut frame = 8u32.to_be_bytes().to_vec();
        frame.extend_from_slice(&[0; 4]);
        frame.extend_from_slice(&number.to_be_bytes());
        frame
    }

    fn number(frame: &Bytes) -> i32 {
        i32::from_be_bytes(frame[4..8].try_into().expect("four bytes"))
    }

    async fn answered(client: &mut DuplexStream) -> i32 {
        let mut wire = [0; 8];
        client.read_exact(&mut wire).await.expect("an answer");
        assert_eq!(wire[..4], [0, 0, 0, 4]);
        i32::from_be_bytes(wire[4..].try_into().expect("four bytes"))
    }

    #[tokio::test]
    async fn answers_come_in_the_order_of_requests_and_all_begin_at_once() {
        let (mut client, server) = tokio::io::duplex(1 << 16);
        let (reader, writer) = tokio::io::split(server);
        let parked: Arc<Mutex<Vec<oneshot::Sender<()>>>> = Arc::default();
        let begun = parked.clone();
        let begin = move |frame: Bytes| -> Result<Reply, Refused> {
            let (release, released) = oneshot::channel();
            begun.lock().push(release);
            Ok(async move {
                released.await.expect("released");
                Ok(Some(response(number(&frame))))
            }
            .boxed())
        };
        let stop = CancellationToken::new();
        let connection = run(frames(reader), writer, begin, &stop);
        let conversation = async {
            for number in 1..=3 {
                client.write_all(&frame(number)).await.expect("sent");
            }
            while parked.lock().len() < 3 {
                tokio::task::yield_now().await;
            }
            let releases = std::mem::take(&mut *parked.lock());
            for release in releases.into_iter().rev() {
                release.send(()).expect("waiting");
            }
            for number in 1..=3 {
                assert_eq!(answered(&mut client).await, number);
            }
            drop(client);
        };
        let (closed, ()) = tokio::join!(connection, conversation);
        assert!(closed.is_ok());
    }

    #[tokio::test]
    async fn a_refused_request_closes_the_connection() {
        let (mut client, server) = tokio::io::duplex(1 << 16);
        let (reader, writer) = tokio::io::split(server);
        let begin = |_: Bytes| Err::<Reply, _>(Refused::UnknownApi(77));
        let stop = CancellationToken::new();
        client.write_all(&frame(1)).await.expect("sent");
        let closed = run(frames(reader), writer, begin, &stop).await;
        assert!(matches!(
            closed,
            Err(Closed::Refused(Refused::UnknownApi(77)))
        ));
    }

    #[tokio::test]
    async fn a_stop_lets_what_is_under_way_end_and_reads_no_more() {
        let (mut client, server) = tokio::io::duplex(1 << 16);
        let (reader, writer) = tokio::io::split(server);
        let stop = CancellationToken::new();
        let begin = |frame: Bytes| -> Result<Reply, Refused> {
            let stop = stop.clone();
            Ok(async move {
                stop.cancelled().await;
                Ok(Some(response(number(&frame))))
            }
            .boxed())
        };
        client.write_all(&frame(5)).await.expect("sent");
        let connection = run(frames(reader), writer, begin, &stop);
        let conversation = async {
            tokio::task::yield_now().await;
            stop.cancel();
            assert_eq!(answered(&mut client).await, 5);
        };
        let (closed, ()) = tokio::join!(connection, conversation);
        assert!(closed.is_ok());
    }

    #[tokio::test]
    async fn a_request_without_an_answer_leaves_no_trace_and_no_gap() {
        let (mut client, server) = tokio::io::duplex(1 << 16);
        let (reader, writer) = tokio::io::split(server);
        let begin = |frame: Bytes| -> Result<Reply, Refused> {
            let number = number(&frame);
            Ok(async move { Ok((number % 2 == 0).then(|| response(number))) }.boxed())
        };
        let stop = CancellationToken::new();
        let connection = run(frames(reader), writer, begin, &stop);
        let conversation = async {
            for number in 1..=4 {
                client.write_all(&frame(number)).await.expect("sent");
            }
            assert_eq!(answered(&mut client).await, 2);
            assert_eq!(answered(&mut client).await, 4);
            drop(client);
        };
        assert!(tokio::join!(connection, conversation).0.is_ok());
    }

    proptest::proptest! {
        #[test]
        fn random_bytes_end_a_connection_and_nothing_else(
            garbage in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200),
            plausible in proptest::prelude::any::<bool>(),
            api in 0i16..80,
            version in 0i16..20,
        ) {
            let mut wire = garbage.clone();
            if plausible {
                // A frame that passes for a request until its body is looked at.
                wire = (garbage.len() as u32 + 10).to_be_bytes().to_vec();
                wire.extend_from_slice(&api.to_be_bytes());
                wire.extend_from_slice(&version.to_be_bytes());
                wire.extend_from_slice(&[0, 0, 0, 1, 0xff, 0xff]);
                wire.extend_from_slice(&garbage);
            }
            let begin = |frame: Bytes| -> Result<Reply, Refused> {
                crate::kafka::request::open(frame)?;
                Err(Refused::Unencodable { api: ApiKey::Produce, why: "enough".into() })
            };
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("runtime");
            let stop = CancellationToken::new();
            let closed = runtime.block_on(run(frames(&wire[..]), tokio::io::sink(), begin, &stop));
            // At the end of the bytes at the latest; within a frame that is no error.
            drop(closed);
        }
    }
}
