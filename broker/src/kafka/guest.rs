//! Connections that do not speak Kafka's protocol but gRPC: both are served at the same address, so that whoever reaches a
//! broker as a Kafka client reaches it with the SDK and the command line too. An HTTP/2 connection opens with a preface that, as
//! a Kafka frame, would announce 1.3 GB.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};
use tonic::transport::server::{Connected, TcpConnectInfo};

use super::admission::Admitted;

/// How an HTTP/2 connection begins.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// How much of it is enough to tell.
const TELLING: usize = 4;
/// How long the rest may take. Once it is there the server watches over the connection.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Pause before a connection that has sent less than that is looked at again; none does, on purpose.
const PIECEMEAL: Duration = Duration::from_millis(10);

/// Whether the connection opens as HTTP/2 does. Waits for its first bytes and leaves them to be read.
///
/// # Errors
/// The connection failed.
pub(super) async fn speaks_grpc(stream: &TcpStream) -> io::Result<bool> {
    begins_with(stream, &PREFACE[..TELLING]).await
}

/// Whether the whole preface comes, in time.
///
/// # Errors
/// The connection failed.
pub(super) async fn completes_preface(stream: &TcpStream) -> io::Result<bool> {
    begins_with(stream, PREFACE).await
}

/// Whether the connection begins so. Its first byte is waited for, the others only for a while.
async fn begins_with(stream: &TcpStream, expected: &[u8]) -> io::Result<bool> {
    let mut seen = [0; PREFACE.len()];
    let seen = &mut seen[..expected.len()];
    let mut deadline = None;
    loop {
        let count = stream.peek(seen).await?;
        if count == expected.len() || count == 0 || !expected.starts_with(&seen[..count]) {
            return Ok(seen == expected);
        }
        // Whether more will come is not told by looking at what is there.
        let now = Instant::now();
        if now >= *deadline.get_or_insert(now + HANDSHAKE) {
            return Ok(false);
        }
        sleep(PIECEMEAL).await;
    }
}

/// A gRPC connection that was accepted by a listener, and counts among its connections until it ends.
pub struct Guest {
    stream: TcpStream,
    _admitted: Admitted,
}

impl Guest {
    pub(super) fn new(stream: TcpStream, admitted: Admitted) -> Self {
        Self {
            stream,
            _admitted: admitted,
        }
    }
}

impl Connected for Guest {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for Guest {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Guest {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn the_first_bytes_tell_and_stay_to_be_read() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = listener.local_addr().expect("bound");
        for (sent, grpc) in [
            (&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], true),
            (b"\0\0\0\x08\0\x12\0\0\0\0\0\x01", false),
            (b"POST / HTTP/1.1\r\n", false),
            (b"PRx", false),
            (b"", false),
        ] {
            let mut client = TcpStream::connect(address).await.expect("connected");
            let (mut server, _) = listener.accept().await.expect("accepted");
            client.write_all(sent).await.expect("sent");
            client.shutdown().await.expect("ended");
            assert_eq!(
                speaks_grpc(&server).await.expect("readable"),
                grpc,
                "{sent:?}"
            );
            let mut read = Vec::new();
            server.read_to_end(&mut read).await.expect("read");
            assert_eq!(read, sent);
        }
        let mut client = TcpStream::connect(address).await.expect("connected");
        let (server, _) = listener.accept().await.expect("accepted");
        client.write_all(b"PR").await.expect("sent");
        let later = async {
            client.write_all(b"I *").await.expect("sent");
            client
        };
        let (told, mut client) = tokio::join!(speaks_grpc(&server), later);
        assert!(told.expect("readable"));
        client.write_all(&PREFACE[5..]).await.expect("sent");
        assert!(completes_preface(&server).await.expect("readable"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_beginning_that_goes_no_further_is_not_waited_for() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = listener.local_addr().expect("bound");
        for (sent, grpc) in [(&b"PR"[..], false), (b"PRI * HTTP/2.0\r\n", true)] {
            let mut client = TcpStream::connect(address).await.expect("connected");
            let (server, _) = listener.accept().await.expect("accepted");
            client.write_all(sent).await.expect("sent");
            assert_eq!(speaks_grpc(&server).await.expect("readable"), grpc);
            assert!(!completes_preface(&server).await.expect("readable"));
        }
    }
}
