//! How much memory the large requests of all connections may take together, from their first bytes until nothing refers to
//! them any more. Whoever needs more than is left waits, first come first served; nothing is decided here about who is too
//! slow to be waited for.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Frames up to this size take their memory at once, and from a part of the budget that larger ones do not touch: Kafka's
/// producers send up to 1 MiB (`max.request.size`).
const USUAL: usize = 2 << 20;

/// A number of bytes, shared by the connections of a listener.
///
/// Huge frames take memory step by step, as their bytes arrive, so all of it may be in the hands of frames that need more:
/// then none could end. That is what the exception is for: the one who has waited longest gets it, reads on without asking
/// for any more, and gives it back with its memory. The exception is part of the total.
pub(super) struct Budget {
    usual: Pool,
    huge: Pool,
    exception: Arc<Semaphore>,
    /// The largest frame that takes its memory at once.
    at_once: usize,
}

/// What frames of one kind share.
struct Pool {
    bytes: Arc<Semaphore>,
    /// How many wait for a part of it.
    waiting: AtomicUsize,
}

impl Pool {
    fn new(bytes: usize) -> Self {
        Self {
            bytes: Arc::new(Semaphore::new(bytes.min(Semaphore::MAX_PERMITS))),
            waiting: AtomicUsize::new(0),
        }
    }
}

impl Budget {
    /// A budget of `total` bytes for requests of at most `largest` bytes.
    pub(super) fn new(total: usize, largest: usize) -> Self {
        let half = total.saturating_sub(largest) / 2;
        Self {
            usual: Pool::new(half),
            huge: Pool::new(half),
            exception: Arc::new(Semaphore::new(1)),
            at_once: half.min(USUAL),
        }
    }

    /// Whether a frame of `len` bytes takes memory step by step.
    pub(super) fn is_huge(&self, len: usize) -> bool {
        len > self.at_once
    }

    fn pool(&self, huge: bool) -> &Pool {
        if huge { &self.huge } else { &self.usual }
    }

    /// Takes `bytes` for a frame, huge or not, if they are left and nobody waits. Never waits, takes no lock.
    pub(super) fn try_take(&self, bytes: usize, huge: bool) -> Option<Grant> {
        let pool = self.pool(huge).bytes.clone();
        Some(Grant {
            bytes: Some(pool.try_acquire_many_owned(permits(bytes)).ok()?),
            exception: None,
        })
    }

    /// Waits for `bytes`, or for the exception.
    pub(super) fn take(self: &Arc<Self>, bytes: usize, huge: bool) -> BoxFuture<'static, Grant> {
        let waiting = Waiting::new(self.clone(), huge);
        async move {
            let budget = &waiting.budget;
            let pool = budget.pool(huge).bytes.clone();
            let ordinary = pool.acquire_many_owned(permits(bytes));
            let exception = async {
                match huge {
                    true => budget.exception.clone().acquire_owned().await,
                    false => std::future::pending().await,
                }
            };
            // No semaphore is ever closed.
            tokio::select! {
                biased;
                permit = ordinary => Grant { bytes: permit.ok(), exception: None },
                permit = exception => Grant { bytes: None, exception: permit.ok() },
            }
        }
        .boxed()
    }

    /// Whether somebody waits for memory for a frame of this kind.
    pub(super) fn is_scarce(&self, huge: bool) -> bool {
        self.pool(huge).waiting.load(Ordering::Relaxed) > 0
    }

    /// Bytes that nobody has; the exception is not among them.
    #[cfg(test)]
    pub(super) fn left(&self) -> usize {
        self.usual.bytes.available_permits() + self.huge.bytes.available_permits()
    }
}

fn permits(bytes: usize) -> u32 {
    // A frame's length is an i32.
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Counts one who waits, until it has what it waits for or gives up.
struct Waiting {
    budget: Arc<Budget>,
    huge: bool,
}

impl Waiting {
    fn new(budget: Arc<Budget>, huge: bool) -> Self {
        budget.pool(huge).waiting.fetch_add(1, Ordering::Relaxed);
        Self { budget, huge }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let pool = self.budget.pool(self.huge);
        pool.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Memory that was taken; given back when dropped.
#[derive(Default)]
pub(super) struct Grant {
    bytes: Option<OwnedSemaphorePermit>,
    exception: Option<OwnedSemaphorePermit>,
}

impl Grant {
    /// Adds what another grant holds.
    pub(super) fn add(&mut self, more: Self) {
        match (&mut self.bytes, more.bytes) {
            (Some(bytes), Some(more)) => bytes.merge(more),
            (bytes @ None, more) => *bytes = more,
            (Some(_), None) => {}
        }
        if self.exception.is_none() {
            self.exception = more.exception;
        }
    }

    /// Whether nothing was taken.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_none() && self.exception.is_none()
    }

    /// Whether its holder need not ask for more.
    pub(super) fn is_exception(&self) -> bool {
        self.exception.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(total: usize, largest: usize) -> Arc<Budget> {
        Arc::new(Budget::new(total, largest))
    }

    #[test]
    fn what_is_taken_comes_back_when_dropped() {
        let budget = budget(500, 100);
        let mut grant = budget.try_take(120, true).expect("left");
        grant.add(budget.try_take(80, true).expect("left"));
        assert!(budget.try_take(1, true).is_none());
        let usual = budget.try_take(200, false).expect("the other half");
        assert_eq!(budget.left(), 0);
        drop((grant, usual));
        assert_eq!(budget.left(), 400);
    }

    #[tokio::test]
    async fn one_who_waits_gets_the_exception_and_the_next_waits_for_either() {
        let budget = budget(500, 100);
        let all = budget.try_take(200, true).expect("left");
        let exception = budget.take(50, true).await;
        assert!(exception.is_exception() && !budget.is_scarce(true));
        let mut second = budget.take(50, true);
        assert!((&mut second).now_or_never().is_none());
        assert!(budget.is_scarce(true) && !budget.is_scarce(false));
        let mut third = budget.take(50, true);
        assert!((&mut third).now_or_never().is_none());
        drop(exception);
        assert!(second.await.is_exception());
        drop(all);
        assert!(!third.await.is_exception());
        assert!(!budget.is_scarce(true));
        assert_eq!(budget.left(), 400);
    }

    #[tokio::test]
    async fn nobody_overtakes_one_who_waits_for_much() {
        let budget = budget(500, 100);
        let most = budget.try_take(150, false).expect("left");
        let mut much = budget.take(100, false);
        assert!((&mut much).now_or_never().is_none());
        let little = budget.try_take(10, false);
        assert!(little.is_none(), "50 are left, but spoken for");
        drop(most);
        assert!(!much.await.is_empty());
    }

    #[test]
    fn one_who_gives_up_waits_no_more() {
        let budget = budget(100, 100);
        let mut wait = budget.take(10, false);
        assert!((&mut wait).now_or_never().is_none());
        assert!(budget.is_scarce(false));
        drop(wait);
        assert!(!budget.is_scarce(false));
    }
}
