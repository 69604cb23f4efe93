//! The timeline of one cluster: a thread of its own follows everybody who has events to tell, so that nothing is missed while
//! the test does something else, and nothing is lost when it panics.

use std::fmt;
use std::thread::JoinHandle;
use std::time::Duration;

use epoka_client::events::Collector;
use epoka_client::timeline::{Line, Teller, next_events};
use epoka_proto::v1::Event;
use epoka_proto::v1::broker_change::Kind as BrokerKind;
use epoka_proto::v1::event::Kind;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout_at};

use crate::error::{Error, Result};

/// How long an event is held back for an earlier one from another node.
pub(crate) const WINDOW: Duration = Duration::from_millis(50);
/// With nothing new for this long, nothing is on its way any more.
const QUIET: Duration = Duration::from_millis(150);
/// A cluster that always has something to tell is not waited for any longer.
const SETTLED: Duration = Duration::from_secs(2);

/// What happened in a cluster, in order of time. Displays as lines of plain words.
///
/// ```text
/// +0 ms broker 2 killed
/// +3 ms heartbeat stream closed
/// +61 ms broker 2 fenced, orders-0 leader 2 -> 3, epoch 4 -> 5
/// +61 ms broker 2 left ISR of orders-0: 1,2,3 -> 1,3
/// +70 ms first accepted write to orders-0: unavailable 70 ms
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// The lines. Times count from the last thing that went wrong.
    pub lines: Vec<Line>,
}

impl Timeline {
    /// How long partitions took no writes, in milliseconds: a number for each outage that has ended. An outage ends with the
    /// first write after it, so only partitions that are written to have any.
    pub fn unavailable_ms(&self) -> impl Iterator<Item = i64> {
        self.lines.iter().filter_map(|line| line.unavailable_ms)
    }
}

impl fmt::Display for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

/// The events of a cluster, told as they happen for as long as this is held.
pub(crate) struct Following {
    told: watch::Receiver<Told>,
    /// Dropped to end it.
    over: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What was told so far.
#[derive(Default)]
struct Told {
    lines: Vec<Line>,
    /// The controller that became active last.
    active_controller: Option<i32>,
}

impl Following {
    /// Follows this source, which is made on a runtime of its own.
    pub fn start(source: impl Future<Output = Collector> + Send + 'static) -> Result<Self> {
        let refused = Error::system("a thread for the timeline");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.map_err(refused)?;
        let (sender, told) = watch::channel(Told::default());
        let (over, ended) = oneshot::channel();
        let thread = std::thread::Builder::new().name("epoka-timeline".to_owned());
        let thread = thread.spawn(move || {
            runtime.block_on(async move {
                tokio::select! {
                    () = async { follow(source.await, &sender).await } => {}
                    _ = ended => {}
                }
            });
        });
        Ok(Self {
            told,
            over: Some(over),
            thread: Some(thread.map_err(Error::system("a thread for the timeline"))?),
        })
    }

    /// Everything so far, and what is on its way.
    pub async fn settled(&self) -> Timeline {
        let mut told = self.told.clone();
        told.mark_unchanged();
        let limit = Instant::now() + SETTLED;
        let next = || limit.min(Instant::now() + QUIET);
        while let Ok(Ok(())) = timeout_at(next(), told.changed()).await {}
        self.so_far()
    }

    /// As [`Self::settled`], where nothing can be awaited: while a test panics.
    pub fn settled_blocking(&self) -> Timeline {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build();
        let Ok(runtime) = runtime else {
            return self.so_far();
        };
        // Not on the caller's thread, which may be a runtime's.
        std::thread::scope(|scope| {
            let settled = scope.spawn(|| runtime.block_on(self.settled()));
            settled.join().unwrap_or_else(|_| self.so_far())
        })
    }

    fn so_far(&self) -> Timeline {
        let lines = self.told.borrow().lines.clone();
        Timeline { lines }
    }

    /// The controller that became active last, as far as anybody has told.
    #[cfg(feature = "containers")]
    pub fn active_controller(&self) -> Option<i32> {
        self.told.borrow().active_controller
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        drop(self.over.take());
        if let Some(thread) = self.thread.take() {
            // It has told whatever it had to tell; a panic of it has been printed.
            let _ = thread.join();
        }
    }
}

async fn follow(mut collector: Collector, told: &watch::Sender<Told>) {
    let mut teller = Teller::new();
    while let Some(events) = next_events(&mut collector).await {
        let lines = teller.tell(&events);
        let active = events.iter().rev().find_map(became_active);
        told.send_modify(|told| {
            told.lines.extend(lines);
            told.active_controller = active.or(told.active_controller);
        });
    }
}

fn became_active(event: &Event) -> Option<i32> {
    match &event.kind {
        Some(Kind::Broker(change)) if change.kind() == BrokerKind::ControllerActive => {
            Some(change.broker_id)
        }
        _ => None,
    }
}
