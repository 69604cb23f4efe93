//! Whose process holds the other end of a connection, as the kernel tells it. One thread looks for everybody who asks, so
//! that a storm of connections costs no more than one look at a time, and none of it on the threads that carry bytes.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use tokio::sync::oneshot;

use super::network::Node;

/// How often a known socket's process is looked for: it may have been started this very moment.
const PROCESS_TRIES: usize = 5;
/// How often the kernel's table is read at most, before a connection counts as gone.
const TABLE_TRIES: usize = 100;
/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(10);

/// Who holds the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A node's process.
    Node(Node),
    /// A process that is none of them.
    Stranger,
    /// Nobody: the other end was closed before its owner was found.
    Nobody,
}

/// Asks the kernel. The thread that does ends with this value.
#[derive(Debug)]
pub struct Owners {
    processes: Processes,
    requests: mpsc::Sender<Request>,
}

/// Whose process has which id.
type Processes = Arc<Mutex<HashMap<u32, Node>>>;

impl Default for Owners {
    fn default() -> Self {
        let processes = Processes::default();
        let (requests, asked) = mpsc::channel();
        let known = processes.clone();
        std::thread::spawn(move || look_for_all(&asked, &known));
        Self {
            processes,
            requests,
        }
    }
}

impl Owners {
    /// Tells whose process this is from now on.
    pub fn started(&self, node: Node, pid: u32) {
        let mut processes = lock(&self.processes);
        processes.retain(|_, n| *n != node);
        processes.insert(pid, node);
    }

    /// Who connected from `peer` to `here`.
    pub async fn of(&self, peer: SocketAddr, here: SocketAddr) -> Owner {
        let (answer, found) = oneshot::channel();
        let request = Request {
            socket: in_table(peer).zip(in_table(here)),
            table_tries: 0,
            process_tries: 0,
            answer,
        };
        let _ended = self.requests.send(request);
        found.await.unwrap_or(Owner::Nobody)
    }
}

fn lock(processes: &Processes) -> std::sync::MutexGuard<'_, HashMap<u32, Node>> {
    processes.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connection whose owner is wanted.
struct Request {
    /// Both ends, the owner's first. Both are compared: a port is used again while an earlier connection from it, to
    /// somewhere else, still lingers in the table.
    socket: Option<(String, String)>,
    table_tries: usize,
    process_tries: usize,
    answer: oneshot::Sender<Owner>,
}

fn look_for_all(asked: &mpsc::Receiver<Request>, processes: &Processes) {
    let mut open = Vec::new();
    loop {
        if open.is_empty() {
            let Ok(request) = asked.recv() else {
                return;
            };
            open.push(request);
        }
        open.extend(asked.try_iter());
        let (table, holders) = (table(), holders(&lock(processes).clone()));
        let waiting = std::mem::take(&mut open).into_iter();
        open.extend(waiting.filter_map(|request| request.look(&table, &holders)));
        if !open.is_empty() {
            std::thread::sleep(PAUSE);
        }
    }
}

impl Request {
    /// Answers, or comes back to be looked at again.
    fn look(
        mut self,
        table: &HashMap<(String, String), String>,
        holders: &HashMap<String, Node>,
    ) -> Option<Self> {
        let inode = self.socket.as_ref().and_then(|socket| table.get(socket));
        let owner = match inode {
            // The table is not read in one moment: while sockets come and go it may leave out one that is there.
            None => {
                self.table_tries += 1;
                (self.table_tries == TABLE_TRIES).then_some(Owner::Nobody)
            }
            // A socket that its process has closed lingers under no name.
            Some(inode) if inode == "0" => Some(Owner::Nobody),
            Some(inode) => {
                self.process_tries += 1;
                let found = holders.get(inode).map(|node| Owner::Node(*node));
                found.or((self.process_tries == PROCESS_TRIES).then_some(Owner::Stranger))
            }
        };
        match owner {
            Some(owner) => {
                let _gone = self.answer.send(owner);
                None
            }
            None => Some(self),
        }
    }
}

/// The kernel's names of all sockets, by their own address and the other end's.
fn table() -> HashMap<(String, String), String> {
    let text = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    let sockets = text.lines().skip(1).filter_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let ends = (fields.next()?.to_owned(), fields.next()?.to_owned());
        Some((ends, fields.nth(6)?.to_owned()))
    });
    sockets.collect()
}

/// An address as the kernel's table writes it.
fn in_table(address: SocketAddr) -> Option<String> {
    let SocketAddr::V4(address) = address else {
        return None;
    };
    let ip = u32::from(*address.ip()).swap_bytes();
    Some(format!("{ip:08X}:{:04X}", address.port()))
}

/// The sockets that the nodes' processes hold, by the kernel's names.
fn holders(processes: &HashMap<u32, Node>) -> HashMap<String, Node> {
    let mut holders = HashMap::new();
    for (pid, node) in processes {
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter();
        for file in files.flatten().flatten() {
            let link = std::fs::read_link(file.path()).unwrap_or_default();
            let link = link.to_string_lossy();
            let inode = link
                .strip_prefix("socket:[")
                .and_then(|l| l.strip_suffix(']'));
            holders.extend(inode.map(|inode| (inode.to_owned(), *node)));
        }
    }
    holders
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    const NODE: Node = Node::Broker(1);

    /// Both ends of a connection within this process, which plays a node if `known`: the owner's end first.
    async fn connected(known: bool) -> (Owners, TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let (owned, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let owners = Owners::default();
        if known {
            owners.started(NODE, std::process::id());
        }
        (
            owners,
            owned.expect("connected"),
            accepted.expect("connected").0,
        )
    }

    async fn owner(owners: &Owners, accepted: &TcpStream) -> Owner {
        let peer = accepted.peer_addr().expect("connected");
        owners
            .of(peer, accepted.local_addr().expect("connected"))
            .await
    }

    #[tokio::test]
    async fn a_nodes_connection_is_its_own_and_anybody_elses_is_a_strangers() {
        for (known, expected) in [(true, Owner::Node(NODE)), (false, Owner::Stranger)] {
            let (owners, _owned, accepted) = connected(known).await;
            assert_eq!(owner(&owners, &accepted).await, expected);
        }
    }

    /// Nodes that give up on a slow connection come again: whoever went on looking for those that are gone would be slower
    /// and slower, for good.
    #[tokio::test]
    async fn a_connection_that_was_closed_is_given_up_at_once() {
        let (owners, owned, accepted) = connected(true).await;
        let peer = accepted.peer_addr().expect("connected");
        let here = accepted.local_addr().expect("connected");
        drop(owned);
        let begun = Instant::now();
        let asked = (0..200).map(|_| owners.of(peer, here));
        let answers = futures::future::join_all(asked).await;
        assert!(answers.iter().all(|a| *a == Owner::Nobody), "{answers:?}");
        let most = PAUSE * u32::try_from(TABLE_TRIES).expect("few") / 2;
        assert!(begun.elapsed() < most, "took {:?}", begun.elapsed());
    }
}
