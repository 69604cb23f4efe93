//! Waiting for a condition instead of for a while: tests poll what they can observe, up to a deadline, and say what they
//! last saw when it never came.

use std::fmt::Debug;
use std::time::{Duration, Instant};

/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(10);

/// Looks until `look` finds what it wants.
///
/// # Errors
/// After `within`: what the last look saw instead.
pub async fn poll<T, E>(
    within: Duration,
    mut look: impl AsyncFnMut() -> Result<T, E>,
) -> Result<T, E> {
    let deadline = Instant::now() + within;
    loop {
        match look().await {
            Ok(found) => return Ok(found),
            Err(seen) if Instant::now() >= deadline => return Err(seen),
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// As [`poll`], for something that is looked at without waiting.
///
/// # Panics
/// After `within`, naming what was waited for and what was seen instead.
pub async fn until<T, E: Debug>(
    what: &str,
    within: Duration,
    mut look: impl FnMut() -> Result<T, E>,
) -> T {
    let found = poll(within, async || look()).await;
    found.unwrap_or_else(|seen| panic!("waited {within:?} for {what}; last seen: {seen:?}"))
}
