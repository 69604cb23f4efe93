//! The two clocks of a node. Pure code is told the time; everything else asks here.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use epoka_proto::ids::Millis;

/// The node's monotonic clock: milliseconds since it was made.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// A clock that starts at zero now.
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Milliseconds since the start.
    pub fn now(self) -> Millis {
        self.0.elapsed().as_millis() as Millis
    }
}

/// Wall-clock milliseconds since the Unix epoch, for record timestamps and files.
pub fn wall_clock_ms() -> Millis {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |d| d.as_millis() as Millis)
}
