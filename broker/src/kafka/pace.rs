//! Whether a frame that has begun comes fast enough to be waited for. A frame in no hurry does no harm as long as there is
//! memory; once others wait for memory, one that holds much of it must bring much.

use std::time::Duration;

use tokio::time::Instant;

/// How long a frame may take for a step: by then its client, with Kafka's `request.timeout.ms`, has given it up.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// How long a frame that holds memory others wait for may take for a step.
pub(super) const PATIENCE_WHEN_SCARCE: Duration = Duration::from_secs(3);

/// How long a frame may hold memory and wait for more of it.
pub(super) const PATIENCE_FOR_MORE: Duration = Duration::from_secs(10);

/// The least a step brings, in bytes.
const STEP: usize = 64 * 1024;

/// While memory is scarce, a step brings this part of what the frame holds: so none holds it for long.
const SCARCE_STEP: usize = 4;

/// A frame under way, as its reader sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Seen {
    /// Tells this frame from those before it on the same connection.
    pub(super) frame: u64,
    /// Bytes that have arrived.
    pub(super) received: usize,
    /// Bytes of the budget it holds.
    pub(super) held: usize,
    /// It waits for more of the budget.
    pub(super) waits: bool,
    /// Others wait for memory such as it holds.
    pub(super) scarce: bool,
}

/// Follows the frames of one connection.
#[derive(Default)]
pub(super) struct Pace {
    /// The last step: which frame it was, how many bytes it had, and when.
    step: Option<(Seen, Instant)>,
}

impl Pace {
    /// Looks at the frame under way, every second or so; `None` when nothing is expected of the client. Returns whether the
    /// frame is too slow.
    pub(super) fn is_too_slow(&mut self, now: Instant, seen: Option<Seen>) -> bool {
        let Some(seen) = seen else {
            self.step = None;
            return false;
        };
        let (enough, patience) = match (seen.waits, seen.held > 0) {
            (true, true) => (STEP, PATIENCE_FOR_MORE),
            (false, true) if seen.scarce => {
                (STEP.max(seen.held / SCARCE_STEP), PATIENCE_WHEN_SCARCE)
            }
            _ => (STEP, PATIENCE),
        };
        match self.step {
            Some((last, since))
                if last.frame == seen.frame
                    && last.waits == seen.waits
                    && seen.received < last.received + enough =>
            {
                now.duration_since(since) >= patience
            }
            _ => {
                self.step = Some((seen, now));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn seen(frame: u64, received: usize, held: usize) -> Option<Seen> {
        Some(Seen {
            frame,
            received,
            held,
            waits: false,
            scarce: false,
        })
    }

    /// The second at which a frame of this speed (bytes a second) is given up, within two minutes.
    fn given_up(speed: usize, held: usize, scarce: bool) -> Option<usize> {
        let mut pace = Pace::default();
        let start = Instant::now();
        (0..120).find(|&second| {
            let now = start + SECOND * u32::try_from(second).expect("small");
            let seen = seen(1, second * speed, held);
            pace.is_too_slow(now, seen.map(|seen| Seen { scarce, ..seen }))
        })
    }

    #[test]
    fn a_drip_is_given_up_and_a_slow_line_is_not() {
        assert_eq!(given_up(10, 0, false), Some(30));
        assert_eq!(given_up(10, 1 << 20, false), Some(30));
        assert_eq!(given_up(5_000, 1 << 20, false), None);
    }

    #[test]
    fn one_that_holds_what_others_need_must_bring_much() {
        assert_eq!(given_up(10, 1 << 20, true), Some(3));
        assert_eq!(given_up(1 << 20, 64 << 20, true), Some(3));
        assert_eq!(given_up(8 << 20, 64 << 20, true), None);
        assert_eq!(given_up(10, 0, true), Some(30), "it holds nothing");
    }

    #[test]
    fn one_that_holds_memory_waits_for_more_only_for_a_while() {
        let start = Instant::now();
        let waiting = |held| {
            seen(1, 1 << 20, held).map(|seen| Seen {
                waits: true,
                ..seen
            })
        };
        for (held, seconds) in [(0, 30), (1 << 20, 10)] {
            let mut pace = Pace::default();
            assert!(!pace.is_too_slow(start, seen(1, 1 << 20, held)));
            let begun = start + SECOND;
            assert!(!pace.is_too_slow(begun, waiting(held)));
            assert!(!pace.is_too_slow(begun + (seconds - 1) * SECOND, waiting(held)));
            assert!(pace.is_too_slow(begun + seconds * SECOND, waiting(held)));
        }
    }

    #[test]
    fn another_frame_and_a_pause_of_our_own_begin_anew() {
        let mut pace = Pace::default();
        let start = Instant::now();
        assert!(!pace.is_too_slow(start, seen(1, 0, 0)));
        assert!(!pace.is_too_slow(start + 29 * SECOND, seen(2, 0, 0)));
        assert!(!pace.is_too_slow(start + 58 * SECOND, seen(2, 0, 0)));
        assert!(!pace.is_too_slow(start + 59 * SECOND, None));
        assert!(!pace.is_too_slow(start + 60 * SECOND, seen(2, 0, 0)));
        assert!(pace.is_too_slow(start + 90 * SECOND, seen(2, 0, 0)));
    }
}
