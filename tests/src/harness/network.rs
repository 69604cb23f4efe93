//! The network between nodes, in the test's hands. In front of every node's gRPC port stands a proxy, and its address is
//! the one the other nodes are told. A proxied connection is known by the pair of nodes it joins, so any node can be cut
//! off from any other while Kafka clients, which use no proxy, still reach both. No privileges are needed.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::owners::{Owner, Owners};

/// Bytes moved at a time.
const CHUNK: usize = 64 << 10;

/// A node of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Node {
    /// The broker with this id.
    Broker(i32),
    /// The controller with this id.
    Controller(i32),
}

impl Node {
    /// Its id, unique among the nodes of its kind.
    pub fn id(self) -> i32 {
        let (Self::Broker(id) | Self::Controller(id)) = self;
        id
    }

    /// The subcommand that runs it.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Broker(_) => "broker",
            Self::Controller(_) => "controller",
        }
    }
}

/// As events name it: `broker-1`.
impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.kind(), self.id())
    }
}

/// What is wrong with the way from one node to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Connections break, and new ones are closed at once.
    Cut,
    /// Connections stay open and new ones are accepted, but nothing comes through until the fault is gone.
    Silent,
}

type Faults = BTreeMap<(Node, Node), Fault>;

/// All proxies of one cluster.
#[derive(Debug)]
pub struct Network {
    shared: Arc<Shared>,
    proxies: Mutex<JoinSet<()>>,
}

#[derive(Debug)]
struct Shared {
    owners: Owners,
    faults: watch::Sender<Faults>,
    /// Where each node really listens.
    targets: Mutex<BTreeMap<Node, String>>,
    /// Nodes whose address leads to another one's process, and how many connections went astray.
    astray: watch::Sender<BTreeMap<Node, (String, usize)>>,
}

impl Default for Network {
    fn default() -> Self {
        let shared = Shared {
            owners: Owners::default(),
            faults: watch::Sender::new(Faults::new()),
            targets: Mutex::default(),
            astray: watch::Sender::default(),
        };
        Self {
            shared: Arc::new(shared),
            proxies: Mutex::default(),
        }
    }
}

impl Network {
    /// Puts a proxy in front of a node that will listen at `target`; returns the proxy's address.
    ///
    /// # Panics
    /// When no port can be bound.
    pub async fn proxy(&self, to: Node, target: String) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let shared = self.shared.clone();
        shared.targets().insert(to, target.clone());
        let proxy = async move {
            let mut connections = JoinSet::new();
            while let Ok((inbound, peer)) = listener.accept().await {
                let target = shared.astray(to).unwrap_or_else(|| target.clone());
                connections.spawn(carry(shared.clone(), inbound, peer, to, target));
                while connections.try_join_next().is_some() {}
            }
        };
        self.proxies
            .lock()
            .expect("nothing panics under it")
            .spawn(proxy);
        address.to_string()
    }

    /// Tells whose process this is from now on.
    pub fn started(&self, node: Node, pid: u32) {
        self.shared.owners.started(node, pid);
    }

    /// Breaks, or mends, the way by which `from` reaches `to`.
    pub fn set(&self, from: Node, to: Node, fault: Option<Fault>) {
        self.shared.faults.send_modify(|faults| {
            match fault {
                Some(fault) => faults.insert((from, to), fault),
                None => faults.remove(&(from, to)),
            };
        });
    }

    /// New connections to `node` reach `other` instead, as when an address passes to another node, until [`Self::heal`]. Those
    /// that went astray by then stay.
    ///
    /// # Panics
    /// When there is no `other`.
    pub fn mislead(&self, node: Node, other: Node) {
        let target = self.shared.targets()[&other].clone();
        let mislead = |astray: &mut BTreeMap<_, _>| drop(astray.insert(node, (target, 0)));
        self.shared.astray.send_modify(mislead);
    }

    /// Waits until so many connections to `node` have gone astray.
    pub async fn await_astray(&self, node: Node, count: usize) {
        let mut astray = self.shared.astray.subscribe();
        let enough = |astray: &BTreeMap<Node, (String, usize)>| {
            astray.get(&node).is_some_and(|(_, n)| *n >= count)
        };
        let _ = astray.wait_for(enough).await; // the sender lives as long as `self`
    }

    /// Mends everything.
    pub fn heal(&self) {
        self.shared.faults.send_modify(BTreeMap::clear);
        self.shared.astray.send_modify(BTreeMap::clear);
    }
}

impl Shared {
    fn targets(&self) -> MutexGuard<'_, BTreeMap<Node, String>> {
        self.targets.lock().expect("nothing panics under it")
    }

    /// Where a new connection to the node goes astray to, if it does.
    fn astray(&self, node: Node) -> Option<String> {
        let mut target = None;
        self.astray.send_if_modified(|astray| {
            let misled = astray.get_mut(&node);
            target = misled.map(|(target, count)| {
                *count += 1;
                target.clone()
            });
            target.is_some()
        });
        target
    }
}

/// Carries one connection until an end closes it or it is cut.
async fn carry(
    shared: Arc<Shared>,
    inbound: TcpStream,
    peer: SocketAddr,
    to: Node,
    target: String,
) {
    let Ok(here) = inbound.local_addr() else {
        return; // closed already
    };
    let from = match shared.owners.of(peer, here).await {
        Owner::Node(from) => from,
        // A client of the test: no pair of nodes, so no fault concerns it.
        Owner::Stranger => return join(inbound, &target, None).await,
        Owner::Nobody => return,
    };
    let mut way = Way {
        from,
        to,
        faults: shared.faults.subscribe(),
    };
    let mut carried = way.clone();
    tokio::select! {
        () = way.cut() => {}
        () = async {
            carried.open().await;
            join(inbound, &target, Some(carried)).await;
        } => {}
    }
}

async fn join(inbound: TcpStream, target: &str, way: Option<Way>) {
    let Ok(outbound) = TcpStream::connect(target).await else {
        return;
    };
    let _ = (inbound.set_nodelay(true), outbound.set_nodelay(true));
    let (from_client, to_client) = inbound.into_split();
    let (from_server, to_server) = outbound.into_split();
    // HTTP/2 has no use for half-closed connections: when one direction ends, both do.
    tokio::select! {
        _ = pump(from_client, to_server, way.clone()) => {}
        _ = pump(from_server, to_client, way) => {}
    }
}

async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut way: Option<Way>,
) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    loop {
        let read = from.read(&mut chunk).await?;
        if read == 0 {
            return Ok(());
        }
        if let Some(way) = &mut way {
            way.open().await;
        }
        to.write_all(&chunk[..read]).await?;
    }
}

/// The way from one node to another, as it changes.
#[derive(Clone)]
struct Way {
    from: Node,
    to: Node,
    faults: watch::Receiver<Faults>,
}

impl Way {
    /// Ready while there is no fault.
    async fn open(&mut self) {
        self.wait_for(|fault| fault.is_none()).await;
    }

    /// Ready once it is cut.
    async fn cut(&mut self) {
        self.wait_for(|fault| fault == Some(Fault::Cut)).await;
    }

    async fn wait_for(&mut self, mut wanted: impl FnMut(Option<Fault>) -> bool) {
        let pair = (self.from, self.to);
        let ended = self
            .faults
            .wait_for(|faults| wanted(faults.get(&pair).copied()))
            .await
            .is_err();
        if ended {
            std::future::pending().await // the network is going away and takes this task with it
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    const A: Node = Node::Broker(1);
    const B: Node = Node::Broker(2);

    /// A server that sends back what it gets, and a proxy in front of it; this process plays node A.
    async fn echo() -> (Network, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let target = listener.local_addr().expect("bound").to_string();
        tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut from, mut to) = socket.split();
                    tokio::io::copy(&mut from, &mut to).await
                });
            }
        });
        let network = Network::default();
        network.started(A, std::process::id());
        let proxy = network.proxy(B, target).await;
        (network, proxy)
    }

    async fn echoes(connection: &mut TcpStream) -> io::Result<()> {
        connection.write_all(b"x").await?;
        connection.read_exact(&mut [0]).await.map(drop)
    }

    #[tokio::test]
    async fn a_cut_way_breaks_connections_until_it_is_mended() {
        let (network, proxy) = echo().await;
        let mut connection = TcpStream::connect(&proxy).await.expect("the proxy");
        echoes(&mut connection).await.expect("carried");
        network.set(A, B, Some(Fault::Cut));
        assert!(echoes(&mut connection).await.is_err());
        let mut second = TcpStream::connect(&proxy).await.expect("the proxy");
        assert!(echoes(&mut second).await.is_err());
        network.set(A, B, None);
        let mut third = TcpStream::connect(&proxy).await.expect("the proxy");
        echoes(&mut third).await.expect("mended");
    }

    #[tokio::test]
    async fn a_silent_way_holds_bytes_back_and_loses_none() {
        let (network, proxy) = echo().await;
        let mut connection = TcpStream::connect(&proxy).await.expect("the proxy");
        echoes(&mut connection).await.expect("carried");
        network.set(A, B, Some(Fault::Silent));
        let start = Instant::now();
        let waited = tokio::time::timeout(Duration::from_millis(50), echoes(&mut connection)).await;
        assert!(waited.is_err() && start.elapsed() >= Duration::from_millis(50));
        network.heal();
        connection
            .read_exact(&mut [0])
            .await
            .expect("the byte sent before");
    }

    #[tokio::test]
    async fn a_fault_concerns_one_direction_of_one_pair() {
        let (network, proxy) = echo().await;
        network.set(B, A, Some(Fault::Cut));
        network.set(Node::Controller(1), B, Some(Fault::Cut));
        let mut connection = TcpStream::connect(&proxy).await.expect("the proxy");
        echoes(&mut connection).await.expect("not concerned");
    }
}
