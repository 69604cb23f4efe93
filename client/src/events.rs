//! What happened in a cluster, as its nodes tell it: each node's stream of events, followed across restarts, and the
//! streams of many nodes merged in order of time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use epoka_proto::v1::{Event, WatchRequest};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

use crate::connections::Connections;

/// Pause between two tries to reach a node.
const RETRY: Duration = Duration::from_millis(100);
/// Events that may wait between a node and the merge.
const QUEUE: usize = 1024;

/// The events of several nodes in order of time, for as long as it is held.
pub struct Collector {
    incoming: mpsc::Receiver<Event>,
    /// Events held back until every node has had its chance to report an earlier one.
    held: BinaryHeap<Reverse<Held>>,
    window: Duration,
    _followers: JoinSet<()>,
}

impl Collector {
    /// Follows the nodes at these addresses. An event is passed on `window` after it arrived: events that nodes report
    /// within that time come out in order of their clocks. Nodes that are down are tried again until they are up.
    pub fn new(
        connections: &Connections,
        addresses: impl IntoIterator<Item = String>,
        window: Duration,
    ) -> Self {
        let (sender, incoming) = mpsc::channel(QUEUE);
        let mut followers = JoinSet::new();
        for address in addresses {
            followers.spawn(follow(connections.clone(), address, sender.clone()));
        }
        Self {
            incoming,
            held: BinaryHeap::new(),
            window,
            _followers: followers,
        }
    }

    /// The next event. Cancel-safe. `None` when there is no node to follow.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            let Some(Reverse(oldest)) = self.held.peek() else {
                let event = self.incoming.recv().await?;
                self.hold(event);
                continue;
            };
            match timeout_at(oldest.due, self.incoming.recv()).await {
                Ok(Some(event)) => self.hold(event),
                Ok(None) | Err(_) => return self.held.pop().map(|Reverse(held)| held.event),
            }
        }
    }

    fn hold(&mut self, event: Event) {
        let due = Instant::now() + self.window;
        self.held.push(Reverse(Held { due, event }));
    }
}

/// Ordered by the node's clock, then by node and sequence.
struct Held {
    due: Instant,
    event: Event,
}

impl Held {
    fn key(&self) -> (i64, &str, u64) {
        (
            self.event.unix_micros,
            &self.event.node,
            self.event.sequence,
        )
    }
}

impl PartialEq for Held {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Held {}

impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Held {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

/// Passes on every event of one node once, until nobody listens.
async fn follow(connections: Connections, address: String, listener: mpsc::Sender<Event>) {
    let mut seen = Seen::default();
    while !listener.is_closed() {
        // A restarted process counts from 1 again, so everything kept is asked for and what was seen is skipped.
        let request = WatchRequest { after_sequence: 0 };
        if let Ok(mut node) = connections.events(&address)
            && let Ok(stream) = node.watch(request).await
        {
            let mut stream = stream.into_inner();
            while let Ok(Some(event)) = stream.message().await {
                if seen.is_new(&event) && listener.send(event).await.is_err() {
                    return;
                }
            }
        }
        sleep(RETRY).await;
    }
}

/// How far a node's events were passed on.
#[derive(Default)]
struct Seen {
    /// The last event's.
    sequence: u64,
    /// The latest of all events.
    unix_micros: i64,
}

impl Seen {
    /// Whether the event is new. Sequences grow within a process, clocks from one process to the next.
    fn is_new(&mut self, event: &Event) -> bool {
        let new = event.sequence > self.sequence || event.unix_micros > self.unix_micros;
        if new {
            self.sequence = event.sequence;
            self.unix_micros = self.unix_micros.max(event.unix_micros);
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(node: &str, sequence: u64, unix_micros: i64) -> Event {
        Event {
            sequence,
            unix_micros,
            node: node.into(),
            kind: None,
        }
    }

    #[test]
    fn a_restarted_node_is_followed_without_repeats() {
        let mut seen = Seen::default();
        let new: Vec<_> = [
            event("broker-1", 1, 100),
            event("broker-1", 2, 100),
            event("broker-1", 1, 100), // reconnected: everything again
            event("broker-1", 2, 100),
            event("broker-1", 3, 150),
            event("broker-1", 1, 900), // a new process
        ]
        .iter()
        .map(|e| seen.is_new(e))
        .collect();
        assert_eq!(new, [true, true, false, false, true, true]);
    }

    #[tokio::test(start_paused = true)]
    async fn events_of_several_nodes_come_out_in_order_of_time() {
        let (sender, incoming) = mpsc::channel(10);
        let mut collector = Collector {
            incoming,
            held: BinaryHeap::new(),
            window: Duration::from_millis(50),
            _followers: JoinSet::new(),
        };
        for event in [event("b", 1, 300), event("a", 1, 100), event("c", 1, 200)] {
            sender.send(event).await.expect("room");
        }
        let mut order = Vec::new();
        for _ in 0..3 {
            order.push(collector.next().await.expect("an event").node);
        }
        assert_eq!(order, ["a", "c", "b"]);
    }
}
