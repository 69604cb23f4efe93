//! Ports that stay a node's own for the life of the cluster. A reservation is a socket that is bound but never listens: the
//! node can bind and listen beside it (both allow address reuse), while the system gives the port to nobody else, and no
//! client that keeps calling a dead node can end up connected to itself.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::TcpSocket;

use crate::failure::{Failure, Outcome};

/// A port of 127.0.0.1, reserved until dropped.
pub struct Reservation {
    address: SocketAddr,
    _socket: TcpSocket,
}

impl Reservation {
    /// Any free port.
    ///
    /// # Errors
    /// There is none.
    pub fn any() -> Outcome<Self> {
        Self::bind(0).map_err(|e| Failure::wrong(format!("no free port on 127.0.0.1: {e}")))
    }

    /// This port, for the node with this title.
    ///
    /// # Errors
    /// It is taken, or may not be used.
    pub fn of(port: u16, title: &str) -> Outcome<Self> {
        Self::bind(port).map_err(|e| {
            let why = match e.kind() {
                std::io::ErrorKind::AddrInUse => "is taken".to_owned(),
                _ => format!("cannot be used: {e}"),
            };
            Failure::wrong(format!(
                "port {port} for {title} {why}; free it, choose others with --port, or let epoka choose with --port 0"
            ))
        })
    }

    /// The port last used if it is still free, else any.
    ///
    /// # Errors
    /// There is no free port.
    pub fn again(address: Option<&str>) -> Outcome<Self> {
        let port = address.and_then(|a| a.rsplit_once(':')?.1.parse().ok());
        let again = port.and_then(|port| Self::bind(port).ok());
        again.map_or_else(Self::any, Ok)
    }

    fn bind(port: u16) -> std::io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        socket.bind((Ipv4Addr::LOCALHOST, port).into())?;
        Ok(Self {
            address: socket.local_addr()?,
            _socket: socket,
        })
    }

    /// `127.0.0.1:port`.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_node_can_listen_on_its_reserved_port_again_and_again() {
        let reserved = Reservation::any().expect("a free port");
        for _ in 0..3 {
            let listener = TcpListener::bind(reserved.address()).expect("reserved for us");
            let client = TcpStream::connect(reserved.address()).expect("listening");
            let (server, _) = listener.accept().expect("connected");
            drop((server, client, listener)); // leaves a connection in TIME_WAIT behind
        }
    }

    #[test]
    fn nobody_connects_to_a_dead_node() {
        let reserved = Reservation::any().expect("a free port");
        for _ in 0..100 {
            TcpStream::connect(reserved.address()).expect_err("nobody listens");
        }
    }

    #[test]
    fn reserved_ports_differ() {
        let reserved: Vec<_> = (0..200)
            .map(|_| Reservation::any().expect("a free port"))
            .collect();
        let ports: HashSet<_> = reserved.iter().map(|r| r.address().port()).collect();
        assert_eq!(ports.len(), reserved.len());
    }

    #[test]
    fn a_taken_port_is_named_with_the_way_out() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let error = Reservation::of(port, "broker 2")
            .err()
            .expect("taken")
            .to_string();
        assert!(
            error.contains(&format!("port {port} for broker 2 is taken")),
            "{error}"
        );
        assert!(error.contains("--port 0"), "{error}");
    }
}
