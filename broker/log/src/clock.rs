//! The wall clock, for the few places that nobody hands a time to. Nothing that decides anything about data reads it.

use std::time::{SystemTime, UNIX_EPOCH};

use epoka_proto::ids::Millis;

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> Millis {
    let since_1970 = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Millis::try_from(since_1970.as_millis()).unwrap_or(Millis::MAX)
}
