//! Whether this broker is reached at the addresses it advertises, as far as it can tell: a name that nobody knows, or a port that
//! does not answer, is said in its own log, and not only found out by clients that hang.

use std::time::Duration;

use epoka_proto::v1::Listener;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long an address may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Tries every advertised address and warns of those that do not answer. A loopback address says nothing: its clients may be on
/// the other side of a published port.
pub(super) async fn check_advertised(listeners: Vec<Listener>) {
    for listener in listeners.iter().filter(|l| !is_loopback(&l.host)) {
        let (host, port) = (&listener.host, listener.port);
        let port = u16::try_from(port).unwrap_or_default();
        let tried = timeout(PATIENCE, TcpStream::connect((host.as_str(), port))).await;
        let why = match tried {
            Ok(Ok(_)) => continue,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer".to_owned(),
        };
        tracing::warn!(
            "clients of listener {} are told {host}:{port}, which does not answer from here ({why}); if it does not answer from \
             where they are either, correct advertised.listeners",
            listener.name
        );
    }
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
    host == "localhost" || address.is_ok_and(|a| a.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_told_from_the_rest() {
        for (host, loopback) in [
            ("127.0.0.1", true),
            ("[::1]", true),
            ("localhost", true),
            ("10.0.0.1", false),
            ("broker-1", false),
        ] {
            assert_eq!(is_loopback(host), loopback, "{host}");
        }
    }
}
