//! How much memory the large requests of all connections may take together, from their first bytes until nothing refers to
//! them any more. Whoever needs more than is left waits, first come first served; nothing is decided here about who is too
//! slow to be waited for.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A number of bytes, shared by the connections of a listener.
///
/// Frames take memory step by step, as their bytes arrive, so all of it may be in the hands of frames that need more: then
/// none could end. That is what the exception is for: the one who has waited longest gets it, reads on without asking for
/// any more, and gives it back with its memory. The exception is part of the total.
pub(super) struct Budget {
    bytes: Arc<Semaphore>,
    exception: Arc<Semaphore>,
    waiting: AtomicUsize,
}

impl Budget {
    /// A budget of `total` bytes for requests of at most `largest` bytes.
    pub(super) fn new(total: usize, largest: usize) -> Self {
        let ordinary = total.saturating_sub(largest).min(Semaphore::MAX_PERMITS);
        Self {
            bytes: Arc::new(Semaphore::new(ordinary)),
            exception: Arc::new(Semaphore::new(1)),
            waiting: AtomicUsize::new(0),
        }
    }

    /// Takes `bytes` if they are left and nobody waits. Never waits, takes no lock.
    pub(super) fn try_take(&self, bytes: usize) -> Option<Grant> {
        let permit = self.bytes.clone().try_acquire_many_owned(permits(bytes));
        Some(Grant {
            bytes: Some(permit.ok()?),
            exception: None,
        })
    }

    /// Waits for `bytes`, or for the exception.
    pub(super) fn take(self: &Arc<Self>, bytes: usize) -> BoxFuture<'static, Grant> {
        let waiting = Waiting::new(self.clone());
        async move {
            let budget = &waiting.0;
            let ordinary = budget.bytes.clone().acquire_many_owned(permits(bytes));
            let exception = budget.exception.clone().acquire_owned();
            // Neither semaphore is ever closed.
            tokio::select! {
                biased;
                permit = ordinary => Grant { bytes: permit.ok(), exception: None },
                permit = exception => Grant { bytes: None, exception: permit.ok() },
            }
        }
        .boxed()
    }

    /// Whether somebody waits for memory.
    pub(super) fn is_scarce(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Bytes that nobody has; the exception is not among them.
    #[cfg(test)]
    pub(super) fn left(&self) -> usize {
        self.bytes.available_permits()
    }
}

fn permits(bytes: usize) -> u32 {
    // A frame's length is an i32.
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Counts one who waits, until it has what it waits for or gives up.
struct Waiting(Arc<Budget>);

impl Waiting {
    fn new(budget: Arc<Budget>) -> Self {
        budget.waiting.fetch_add(1, Ordering::Relaxed);
        Self(budget)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
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
        let budget = budget(300, 100);
        let mut grant = budget.try_take(120).expect("left");
        grant.add(budget.try_take(80).expect("left"));
        assert_eq!(budget.left(), 0);
        assert!(budget.try_take(1).is_none());
        drop(grant);
        assert_eq!(budget.left(), 200);
    }

    #[tokio::test]
    async fn one_who_waits_gets_the_exception_and_the_next_waits_for_either() {
        let budget = budget(300, 100);
        let all = budget.try_take(200).expect("left");
        let exception = budget.take(50).await;
        assert!(exception.is_exception() && !budget.is_scarce());
        let mut second = budget.take(50);
        assert!((&mut second).now_or_never().is_none());
        assert!(budget.is_scarce());
        let mut third = budget.take(50);
        assert!((&mut third).now_or_never().is_none());
        drop(exception);
        assert!(second.await.is_exception());
        drop(all);
        assert!(!third.await.is_exception());
        assert!(!budget.is_scarce());
        assert_eq!(budget.left(), 200);
    }

    #[tokio::test]
    async fn nobody_overtakes_one_who_waits_for_much() {
        let budget = budget(300, 100);
        let most = budget.try_take(150).expect("left");
        let exception = budget.exception.clone().acquire_owned().await;
        let mut much = budget.take(100);
        assert!((&mut much).now_or_never().is_none());
        assert!(budget.try_take(10).is_none(), "50 are left, but spoken for");
        drop(most);
        assert!(!much.await.is_exception());
        drop(exception);
    }

    #[test]
    fn one_who_gives_up_waits_no_more() {
        let budget = budget(100, 100);
        let _exception = budget.exception.clone().try_acquire_owned();
        let mut wait = budget.take(10);
        assert!((&mut wait).now_or_never().is_none());
        drop(wait);
        assert!(!budget.is_scarce());
    }
}
