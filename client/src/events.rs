//! What happened in a cluster, as its nodes tell it: each node's stream of events, followed across restarts, and the
//! streams of many nodes merged in order of time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use epoka_proto::v1::{Event, WatchRequest};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::client::Client;
use crate::connections::{Connections, Target};
use crate::error::Error;

/// Pause between two tries to reach a node.
const RETRY: Duration = Duration::from_millis(100);
/// How often brokers that have joined are looked for.
const LOOK: Duration = Duration::from_secs(1);
/// Events that may wait between a node and the merge.
const QUEUE: usize = 1024;

/// The events of several nodes in order of time, for as long as it is held.
pub struct Collector {
    incoming: mpsc::Receiver<Event>,
    /// Events held back until every node has had its chance to report an earlier one.
    held: BinaryHeap<Reverse<Held>>,
    window: Duration,
    /// What `next_together` has gathered so far.
    gathered: Vec<Event>,
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
        Self::of(window, |listener, followers| {
            for address in addresses {
                let source = Source::node(connections.clone(), (&address).into());
                followers.spawn(source.follow(listener.clone()));
            }
        })
    }

    /// Follows every broker of a cluster, those that join later too, and through them the controllers. Needs nothing but a way
    /// to some brokers.
    pub fn of_cluster(client: &Client, window: Duration) -> Self {
        Self::of_cluster_and(client, [], window)
    }

    /// As [`Self::of_cluster`], and whoever else has events to tell at these addresses.
    pub fn of_cluster_and(
        client: &Client,
        others: impl IntoIterator<Item = String>,
        window: Duration,
    ) -> Self {
        Self::of(window, |listener, followers| {
            for address in others {
                let source = Source::node(client.connections().clone(), (&address).into());
                followers.spawn(source.follow(listener.clone()));
            }
            followers.spawn(follow_cluster(client.clone(), listener));
        })
    }

    fn of(window: Duration, start: impl FnOnce(Listener, &mut JoinSet<()>)) -> Self {
        let (events, incoming) = mpsc::channel(QUEUE);
        let mut followers = JoinSet::new();
        let listener = Listener {
            events,
            seen: Arc::default(),
        };
        start(listener, &mut followers);
        Self {
            incoming,
            held: BinaryHeap::new(),
            window,
            gathered: Vec::new(),
            _followers: followers,
        }
    }

    /// The next event. Cancel-safe. `None` when there is no node to follow, or no longer, as another cluster took the place of the
    /// one that was followed.
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

    /// The next event and those that come within `pause` of each other, up to a number. Cancel-safe: what was gathered is kept for
    /// the next call. `None` as in [`Self::next`].
    pub async fn next_together(&mut self, pause: Duration, most: usize) -> Option<Vec<Event>> {
        if self.gathered.is_empty() {
            let first = self.next().await?;
            self.gathered.push(first);
        }
        while self.gathered.len() < most
            && let Ok(Some(event)) = timeout(pause, self.next()).await
        {
            self.gathered.push(event);
        }
        Some(std::mem::take(&mut self.gathered))
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

/// Follows the brokers of a cluster as they come.
async fn follow_cluster(client: Client, listener: Listener) {
    let mut followers = JoinSet::new();
    let mut known: BTreeMap<_, [AbortHandle; 2]> = BTreeMap::new();
    loop {
        let metadata = client.metadata();
        // Who moved is followed to the new address, and not looked for at the old one, where somebody else may be.
        known.retain(|(id, address), followed: &mut [AbortHandle; 2]| {
            let stays = metadata.brokers.get(id).is_some_and(|b| b.grpc == *address);
            if !stays {
                followed.iter().for_each(AbortHandle::abort);
            }
            stays
        });
        for (id, broker) in &metadata.brokers {
            let name = (*id, broker.grpc.clone());
            if !broker.grpc.is_empty() && !known.contains_key(&name) {
                let target = Target::broker(*id, &broker.grpc);
                let node = Source::node(client.connections().clone(), target);
                let controllers = Source {
                    of_controllers: true,
                    ..node.clone()
                };
                let followed = [node, controllers]
                    .map(|source| followers.spawn(source.follow(listener.clone())));
                known.insert(name, followed);
            }
        }
        sleep(LOOK).await;
        // With no broker to ask there is nobody to follow, for now; a cluster that gave way to another does not come back.
        if let Err(Error::OtherCluster { .. }) = client.refresh().await {
            return;
        }
    }
}

/// Where events come from.
#[derive(Clone)]
struct Source {
    connections: Connections,
    target: Target,
    of_controllers: bool,
}

impl Source {
    fn node(connections: Connections, target: Target) -> Self {
        Self {
            connections,
            target,
            of_controllers: false,
        }
    }

    /// Passes on every event once, until nobody listens.
    async fn follow(self, listener: Listener) {
        while !listener.events.is_closed() {
            // A restarted process counts from 1 again, so everything kept is asked for and what was seen is skipped.
            let request = WatchRequest {
                after_sequence: 0,
                of_controllers: self.of_controllers,
            };
            if let Ok(mut node) = self.connections.events(self.target.clone())
                && let Ok(stream) = node.watch(request).await
            {
                let mut stream = stream.into_inner();
                while let Ok(Some(event)) = stream.message().await {
                    if listener.has_not_seen(&event) && listener.events.send(event).await.is_err() {
                        return;
                    }
                }
            }
            sleep(RETRY).await;
        }
    }
}

/// Who is told, and how far. The same event may come on several ways.
#[derive(Clone)]
struct Listener {
    events: mpsc::Sender<Event>,
    seen: Arc<Mutex<Seen>>,
}

impl Listener {
    fn has_not_seen(&self, event: &Event) -> bool {
        let mut seen = self.seen.lock().expect("nothing panics under it");
        seen.is_new(event)
    }
}

/// The last event of every process that was passed on.
#[derive(Default)]
struct Seen {
    last: HashMap<(String, i64), u64>,
}

impl Seen {
    /// Whether the event is new. Every way tells the events of a process in order.
    fn is_new(&mut self, event: &Event) -> bool {
        let process = (event.node.clone(), event.since_unix_micros);
        let last = self.last.entry(process).or_default();
        let new = event.sequence > *last;
        *last = event.sequence.max(*last);
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
            ..Event::default()
        }
    }

    #[test]
    fn events_that_come_again_or_on_two_ways_are_told_once() {
        let mut seen = Seen::default();
        let process = |since, sequence| Event {
            since_unix_micros: since,
            ..event("broker-1", sequence, 100)
        };
        let new: Vec<_> = [
            process(50, 1),
            process(50, 2),
            process(50, 1), // reconnected, or another way: everything again
            process(50, 2),
            process(50, 3),
            process(800, 1), // a new process
            process(50, 3),  // a slower way still tells of the old one
            process(800, 2),
            event("broker-2", 1, 100),
        ]
        .iter()
        .map(|e| seen.is_new(e))
        .collect();
        assert_eq!(
            new,
            [true, true, false, false, true, true, false, true, true]
        );
    }

    fn collector(incoming: mpsc::Receiver<Event>) -> Collector {
        Collector {
            incoming,
            held: BinaryHeap::new(),
            window: Duration::from_millis(50),
            gathered: Vec::new(),
            _followers: JoinSet::new(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_gathered_survives_an_interruption() {
        let (sender, incoming) = mpsc::channel(10);
        let mut collector = collector(incoming);
        sender.send(event("a", 1, 100)).await.expect("room");
        let pause = Duration::from_millis(15);
        // Given up while it waits for more, as by a redraw of a screen.
        let first = timeout(Duration::from_millis(55), collector.next_together(pause, 9)).await;
        assert!(first.is_err() && !collector.gathered.is_empty());
        sender.send(event("b", 1, 200)).await.expect("room");
        let told = collector
            .next_together(pause * 10, 9)
            .await
            .expect("events");
        let nodes: Vec<_> = told.into_iter().map(|e| e.node).collect();
        assert_eq!(nodes, ["a", "b"]);
    }

    #[tokio::test(start_paused = true)]
    async fn events_of_several_nodes_come_out_in_order_of_time() {
        let (sender, incoming) = mpsc::channel(10);
        let mut collector = collector(incoming);
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
