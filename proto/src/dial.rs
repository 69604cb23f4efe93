//! How nodes and clients connect to each other: by TCP, within a time that includes looking the name up. A lookup may hang for
//! seconds where names come and go, as those of containers do, and the next one may be answered at once.

use std::io;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::codegen::{Service, StdError, http::Uri};

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
        let (within, connecting) = (self.within, self.tcp.call(uri));
        async move {
            let late = |_| {
                let reason = format!("no connection within {} ms", within.as_millis());
                io::Error::new(io::ErrorKind::TimedOut, reason)
            };
            Ok(timeout(within, connecting).await.map_err(late)??)
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn a_connection_is_made_or_given_up_in_time() {
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
        // No time at all is not enough even for this.
        let late = Dial::within(Duration::ZERO).call(uri("localhost:1")).await;
        let late = late.expect_err("late").to_string();
        assert_eq!(late, "no connection within 0 ms");
    }
}
