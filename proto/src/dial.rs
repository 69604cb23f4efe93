//! How nodes and clients connect to each other: by TCP, within a time that includes looking the name up. A lookup may hang for
//! seconds where names come and go, as those of containers do, and an attempt at an address that is nobody's any more may hang
//! until its time is up, while the node is at another already. So an attempt that takes long is joined by another, which looks
//! the name up anew; the first connection counts.

use std::io;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::codegen::{Service, StdError, http::Uri};

/// How long an attempt goes on alone.
const ANOTHER: Duration = Duration::from_millis(100);

/// A connector for `Endpoint::connect_with_connector`. Connections send small messages at once (`TCP_NODELAY`).
#[derive(Clone, Debug)]
pub struct Dial {
    within: Duration,
    tcp: HttpConnector,
}

impl Dial {
    /// Gives up after this time.
    pub fn within(within: Duration) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        // Shared among the addresses of a name, so that one that is silent leaves time for the next.
        tcp.set_connect_timeout(Some(within));
        Self { within, tcp }
    }
}

impl Service<Uri> for Dial {
    type Response = TokioIo<TcpStream>;
    type Error = StdError;
    type Future = BoxFuture<'static, Result<Self::Response, StdError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), StdError>> {
        self.tcp.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (within, tcp) = (self.within, self.tcp.clone());
        async move {
            let late = |_| {
                let reason = format!("no connection within {} ms", within.as_millis());
                io::Error::new(io::ErrorKind::TimedOut, reason)
            };
            timeout(within, first_of_many(tcp, uri))
                .await
                .map_err(late)?
        }
        .boxed()
    }
}

/// The first connection that an attempt makes; an error once every attempt under way has failed.
async fn first_of_many(mut tcp: HttpConnector, uri: Uri) -> Result<TokioIo<TcpStream>, StdError> {
    let mut attempts = FuturesUnordered::from_iter([tcp.call(uri.clone())]);
    loop {
        match timeout(ANOTHER, attempts.next()).await {
            Err(_) => attempts.push(tcp.call(uri.clone())),
            Ok(Some(Err(error))) if attempts.is_empty() => return Err(error.into()),
            Ok(Some(Err(_)) | None) => {}
            Ok(Some(Ok(connection))) => return Ok(connection),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::{TcpListener, TcpSocket};

    #[tokio::test]
    async fn a_connection_is_made_or_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let uri = |address: &str| format!("http://{address}").parse::<Uri>().expect("a URI");
        let mut dial = Dial::within(Duration::from_secs(10));
        let connected = dial.call(uri(&address.to_string())).await;
        let connected = connected.expect("connected").into_inner();
        assert!(connected.nodelay().expect("a socket"));

        drop((connected, listener));
        let refused = dial.call(uri(&address.to_string())).await;
        assert!(refused.is_err());
    }

    #[tokio::test]
    async fn an_attempt_that_hangs_is_overtaken() {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket
            .bind("127.0.0.1:0".parse().expect("an address"))
            .expect("a port");
        let listener = socket.listen(1).expect("listening");
        let address = listener.local_addr().expect("bound");
        // Once the queue of those that wait to be taken is full, attempts get no answer, and are made again after a second.
        let mut waiting = Vec::new();
        let patience = Duration::from_millis(200);
        while let Ok(connected) = timeout(patience, TcpStream::connect(address)).await {
            waiting.push(connected.expect("connected"));
        }
        let uri: Uri = format!("http://{address}").parse().expect("a URI");
        let late = Dial::within(ANOTHER / 2).call(uri.clone());
        let late = timeout(ANOTHER * 5, late).await.expect("given up in time");
        assert!(late.is_err());
        let mut connecting = Dial::within(Duration::from_secs(10)).call(uri);
        let hangs = timeout(ANOTHER / 2, &mut connecting).await;
        assert!(hangs.is_err(), "the queue is full");
        for _ in waiting {
            listener.accept().await.expect("waiting");
        }
        let overtaken = timeout(ANOTHER * 5, connecting).await;
        overtaken.expect("soon").expect("connected");
    }
}
