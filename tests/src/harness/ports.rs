//! Ports that stay one test's own: a node that was killed must find its port free when it starts again, however many
//! other tests run at the same time.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};

use rand::Rng as _;

/// Below the range from which systems draw the ports of outgoing connections, so that none of those is in the way.
const RANGE: std::ops::Range<u16> = 10_000..30_000;
const TRIES: usize = 1000;

/// A TCP port of 127.0.0.1 reserved among all tests on this machine. The reservation is the UDP port of the same number,
/// held as long as this value lives; the TCP port is left to the node.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _reservation: UdpSocket,
}

impl Port {
    /// Reserves a port that nobody uses.
    ///
    /// # Panics
    /// When there is none.
    pub fn reserve() -> Self {
        let mut rng = rand::rng();
        (0..TRIES)
            .find_map(|_| Self::try_reserve(rng.random_range(RANGE)))
            .expect("some port is free")
    }

    fn try_reserve(number: u16) -> Option<Self> {
        let reservation = UdpSocket::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
        let _free = TcpListener::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
        Some(Self {
            number,
            _reservation: reservation,
        })
    }

    /// Its number.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// `127.0.0.1:NUMBER`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserved_port_is_not_given_twice_and_its_tcp_side_is_free() {
        let port = Port::reserve();
        assert!(Port::try_reserve(port.number()).is_none());
        TcpListener::bind(port.address()).expect("left to the node");
    }
}
