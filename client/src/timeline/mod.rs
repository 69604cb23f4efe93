//! What happened, told in plain words with relative times. `teller` turns events into lines and is pure; gathering the
//! events is the business of [`crate::events`], printing the lines the caller's.

mod teller;
mod words;

pub use teller::{Line, Teller};

use std::time::Duration;

use epoka_proto::v1::Event;
use tokio::time::timeout;

use crate::events::Collector;

/// Events that arrive within this time of each other are told together.
const TOGETHER: Duration = Duration::from_millis(15);

/// The next event and those that come with it. Cancel-safe up to the first event.
pub async fn next_events(collector: &mut Collector) -> Option<Vec<Event>> {
    let mut events = vec![collector.next().await?];
    while let Ok(Some(event)) = timeout(TOGETHER, collector.next()).await {
        events.push(event);
        if events.len() >= 512 {
            break;
        }
    }
    Some(events)
}
