//! Warnings about peers that send nonsense, at most one in a while: a port scanner must not fill the disk with our log.

use std::fmt::Display;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The shortest time between two warnings.
const PERIOD: Duration = Duration::from_secs(10);

/// Counts what was not said. Shared by the connections of a listener.
#[derive(Default)]
pub(super) struct Complaints(Mutex<State>);

#[derive(Default)]
struct State {
    last: Option<Instant>,
    unsaid: u64,
}

impl Complaints {
    /// Warns that this peer's connection is closed, and why, unless there was a warning just now.
    pub(super) fn about(&self, peer: SocketAddr, why: &dyn Display) {
        if let Some(unsaid) = self.0.lock().may_speak(Instant::now()) {
            tracing::warn!(%peer, unsaid, "closed a Kafka connection: {why}");
        }
    }
}

impl State {
    /// How many complaints went unsaid since the last one, if it is time for another.
    fn may_speak(&mut self, now: Instant) -> Option<u64> {
        if self
            .last
            .is_some_and(|last| now.duration_since(last) < PERIOD)
        {
            self.unsaid += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_complaint_in_a_period_and_the_next_counts_the_unsaid() {
        let mut state = State::default();
        let start = Instant::now();
        assert_eq!(state.may_speak(start), Some(0));
        assert_eq!(state.may_speak(start + PERIOD / 2), None);
        assert_eq!(state.may_speak(start + PERIOD / 2), None);
        assert_eq!(state.may_speak(start + PERIOD), Some(2));
        assert_eq!(state.may_speak(start + 2 * PERIOD), Some(0));
    }
}
