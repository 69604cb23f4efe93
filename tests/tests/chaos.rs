//! Faults drawn from a seed, on a cluster of real processes, with an audit of what was acknowledged and read (see
//! `epoka_tests::chaos`).
//!
//! `EPOKA_CHAOS_SEED=7` repeats a plan, `EPOKA_CHAOS_SECONDS=180` makes it longer. Every run draws a new seed otherwise, and
//! prints it.

use std::time::Duration;

use epoka_tests::chaos::{self, Settings};

const EPOKA: &str = env!("CARGO_BIN_EXE_epoka-under-test");
/// How long faults happen when nothing else is asked for.
const SECONDS: u64 = 20;

fn number(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    let number = value.parse();
    Some(number.unwrap_or_else(|_| panic!("{variable} must be a number, not '{value}'")))
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_acknowledged_is_lost_repeated_or_reordered_whatever_breaks() {
    let settings = Settings {
        seed: number("EPOKA_CHAOS_SEED").unwrap_or_else(|| u64::from(rand::random::<u16>())),
        lasts: Duration::from_secs(number("EPOKA_CHAOS_SECONDS").unwrap_or(SECONDS)),
    };
    chaos::run(EPOKA, settings).await;
}
