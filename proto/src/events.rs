//! A node's own record of what happened to it: the most recent events in memory, and the gRPC service that lets others
//! follow them. The timeline is made of these by whoever watches.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::sync::watch;
use tokio_stream::Stream;
use tonic::{Request, Response, Status};

use crate::v1::event::Kind;
use crate::v1::events_server::Events;
use crate::v1::{Event, WatchRequest};

/// How many events a node keeps.
const KEPT: usize = 10_000;

/// The events of one node. Clones share one record.
#[derive(Clone)]
pub struct EventLog {
    shared: Arc<Shared>,
}

struct Shared {
    node: String,
    since_unix_micros: i64,
    events: Mutex<VecDeque<Event>>,
    newest: watch::Sender<u64>,
}

impl EventLog {
    /// An empty record of the node with this name, such as `broker-1`.
    pub fn new(node: impl Into<String>) -> Self {
        Self {
            shared: Arc::new(Shared {
                node: node.into(),
                since_unix_micros: now_unix_micros(),
                events: Mutex::default(),
                newest: watch::Sender::new(0),
            }),
        }
    }

    /// Notes that something happened now.
    pub fn push(&self, kind: Kind) {
        self.push_at(now_unix_micros(), kind);
    }

    /// Notes that something happened at this time, in microseconds since the Unix epoch: a moment ago, for what is told only once
    /// it is certain.
    pub fn push_at(&self, unix_micros: i64, kind: Kind) {
        let mut events = self
            .shared
            .events
            .lock()
            .expect("never poisoned: nothing panics under it");
        let sequence = events.back().map_or(0, |e| e.sequence) + 1;
        if events.len() == KEPT {
            events.pop_front();
        }
        events.push_back(Event {
            sequence,
            unix_micros,
            node: self.shared.node.clone(),
            since_unix_micros: self.shared.since_unix_micros,
            kind: Some(kind),
        });
        self.shared.newest.send_replace(sequence);
    }

    /// The kept events newer than `sequence`, oldest first.
    pub fn after(&self, sequence: u64) -> Vec<Event> {
        let events = self
            .shared
            .events
            .lock()
            .expect("never poisoned: nothing panics under it");
        let newer = events.partition_point(|e| e.sequence <= sequence);
        events.range(newer..).cloned().collect()
    }

    /// Follows the record: the kept events newer than `sequence`, then new ones as they happen.
    pub fn follow(&self, sequence: u64) -> impl Stream<Item = Event> + Send + use<> {
        let log = self.clone();
        let newest = log.shared.newest.subscribe();
        let start = (log, newest, sequence, VecDeque::new());
        futures::stream::unfold(start, |(log, mut newest, mut at, mut ready)| async move {
            while ready.is_empty() {
                newest.borrow_and_update();
                ready.extend(log.after(at));
                if ready.is_empty() {
                    newest.changed().await.ok()?;
                }
            }
            let event: Event = ready.pop_front()?;
            at = event.sequence;
            Some((event, (log, newest, at, ready)))
        })
    }
}

/// The wall clock in microseconds since the Unix epoch.
pub fn now_unix_micros() -> i64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    since_epoch.map_or(0, |d| d.as_micros() as i64)
}

#[tonic::async_trait]
impl Events for EventLog {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<Event, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        use futures::StreamExt as _;
        if request.get_ref().of_controllers {
            return Err(Status::unimplemented(
                "only brokers pass on the events of controllers",
            ));
        }
        let events = self.follow(request.into_inner().after_sequence).map(Ok);
        Ok(Response::new(Box::pin(events)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::Note;
    use futures::StreamExt as _;

    fn note(text: &str) -> Kind {
        Kind::Note(Note { text: text.into() })
    }

    #[tokio::test]
    async fn a_follower_sees_kept_events_then_new_ones_in_order() {
        let log = EventLog::new("broker-1");
        log.push(note("a"));
        log.push(note("b"));
        let mut seen = Box::pin(log.follow(1));
        assert_eq!(seen.next().await.map(|e| e.sequence), Some(2));
        log.push(note("c"));
        let third = seen.next().await.expect("an event");
        assert_eq!((third.sequence, third.node.as_str()), (3, "broker-1"));
    }

    #[test]
    fn old_events_make_room_for_new_ones() {
        let log = EventLog::new("broker-1");
        for _ in 0..KEPT + 5 {
            log.push(note("x"));
        }
        let kept = log.after(0);
        assert_eq!(kept.len(), KEPT);
        assert_eq!(kept[0].sequence, 6);
    }
}
