//! How a parked fetch learns that it is worth looking again: it registers a waiter with each partition it reads, and is
//! told which of them changed. Registrations serve once.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// What a parked fetch waits for. Role changes wake both kinds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interest {
    /// Followers: something was appended.
    LogEnd,
    /// Consumers: something was committed.
    HighWatermark,
}

/// One parked fetch.
#[derive(Default)]
pub struct ReadWaiter {
    changed: Mutex<Vec<usize>>,
    notify: Notify,
}

impl ReadWaiter {
    /// A waiter with no registration yet.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Waits until a registration is used up; returns the tags of those that were, in order of change. Cancel safe.
    pub async fn changed(&self) -> Vec<usize> {
        loop {
            let tags = std::mem::take(&mut *self.changed.lock());
            if !tags.is_empty() {
                return tags;
            }
            self.notify.notified().await;
        }
    }

    pub(crate) fn wake(&self, tag: usize) {
        self.changed.lock().push(tag);
        self.notify.notify_one();
    }
}

/// The registrations at one partition.
#[derive(Default)]
pub(crate) struct Waiters(Vec<(Interest, Weak<ReadWaiter>, usize)>);

impl Waiters {
    pub(crate) fn add(&mut self, waiter: &Arc<ReadWaiter>, tag: usize, interest: Interest) {
        // Fetches that ended without being woken left a dead entry.
        self.0.retain(|(_, w, _)| w.strong_count() > 0);
        self.0.push((interest, Arc::downgrade(waiter), tag));
    }

    /// Moves the registrations with this interest to `woken`, for waking after the partition's lock is released.
    pub(crate) fn wake(&mut self, interest: Interest, woken: &mut Vec<(Weak<ReadWaiter>, usize)>) {
        let used = self.0.extract_if(.., |(i, _, _)| *i == interest);
        woken.extend(used.map(|(_, waiter, tag)| (waiter, tag)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_registration_wakes_once_and_only_for_its_interest() {
        let waiter = ReadWaiter::new();
        let mut waiters = Waiters::default();
        waiters.add(&waiter, 7, Interest::LogEnd);
        waiters.add(&waiter, 8, Interest::HighWatermark);
        let mut woken = Vec::new();
        waiters.wake(Interest::LogEnd, &mut woken);
        waiters.wake(Interest::LogEnd, &mut woken);
        assert_eq!(woken.len(), 1);
        for (waiter, tag) in woken {
            waiter.upgrade().expect("still parked").wake(tag);
        }
        assert_eq!(waiter.changed().await, [7]);
    }

    #[test]
    fn a_fetch_that_left_is_forgotten() {
        let mut waiters = Waiters::default();
        waiters.add(&ReadWaiter::new(), 1, Interest::LogEnd);
        let live = ReadWaiter::new();
        waiters.add(&live, 2, Interest::LogEnd);
        assert_eq!(waiters.0.len(), 1);
    }
}
