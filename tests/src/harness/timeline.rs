//! What happened, as every node of a cluster tells it and as the test did it, in one list.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use epoka_client::Connections;
use epoka_client::events::Collector;
use epoka_client::timeline::Teller;
use epoka_proto::v1::event::Kind;
use epoka_proto::v1::{Event, Note};
use tokio::task::JoinHandle;

use super::wait::until;

/// Events that nodes report within this time come out in order of their clocks.
const WINDOW: Duration = Duration::from_millis(50);

/// The collected events of a cluster. They are followed as long as this value lives.
#[derive(Debug)]
pub struct Timeline {
    events: Arc<Mutex<Vec<Event>>>,
    collecting: JoinHandle<()>,
}

impl Timeline {
    /// Follows the nodes at these addresses, down or up.
    pub fn follow(addresses: Vec<String>) -> Self {
        let events = Arc::<Mutex<Vec<Event>>>::default();
        let kept = events.clone();
        let collecting = tokio::spawn(async move {
            let mut collector = Collector::new(&Connections::default(), addresses, WINDOW);
            while let Some(event) = collector.next().await {
                kept.lock().expect("nothing panics under it").push(event);
            }
        });
        Self { events, collecting }
    }

    /// Adds what the test did.
    pub fn note(&self, text: String) {
        let unix_micros = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |d| d.as_micros() as i64);
        let kind = Some(Kind::Note(Note { text }));
        let event = Event {
            sequence: 0,
            unix_micros,
            node: "test".into(),
            kind,
            ..Event::default()
        };
        self.events
            .lock()
            .expect("nothing panics under it")
            .push(event);
    }

    /// Everything so far, oldest first.
    pub fn events(&self) -> Vec<Event> {
        let mut events = self.events.lock().expect("nothing panics under it").clone();
        events.sort_by_key(|e| e.unix_micros);
        events
    }

    /// What `look` makes of the first event it accepts, now or later.
    ///
    /// # Panics
    /// When there is none within that time.
    pub async fn find<T>(
        &self,
        what: &str,
        within: Duration,
        mut look: impl FnMut(&Event) -> Option<T>,
    ) -> T {
        let mut find = || {
            self.events()
                .iter()
                .find_map(&mut look)
                .ok_or("no such event")
        };
        until(what, within, &mut find).await
    }

    /// In the product's own words, with times since the first event.
    pub fn text(&self) -> String {
        let events = self.events();
        let start_ms = events.first().map_or(0, |e| e.unix_micros / 1000);
        let lines = Teller::new().tell(&events);
        lines
            .iter()
            .map(|line| format!("{:>6} ms {line}\n", line.unix_ms - start_ms))
            .collect()
    }
}

impl Drop for Timeline {
    fn drop(&mut self) {
        self.collecting.abort();
    }
}
