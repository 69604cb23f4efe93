//! What happened, told in plain words with relative times. `teller` turns events into lines and is pure; gathering the
//! events is the business of [`crate::events`], printing the lines the caller's.

mod teller;
mod words;

pub use teller::{Line, Teller};

use std::time::Duration;

use epoka_proto::v1::Event;

use crate::events::Collector;

/// Events that arrive within this time of each other are told together.
const TOGETHER: Duration = Duration::from_millis(15);
/// Events told together, at most.
const MOST: usize = 512;

/// The next event and those that come with it. Cancel-safe.
pub async fn next_events(collector: &mut Collector) -> Option<Vec<Event>> {
    collector.next_together(TOGETHER, MOST).await
}
