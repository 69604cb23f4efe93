//! Thousands of small clusters, each with its own seed and its own bad luck (see `epoka_tests::sim`).
//!
//! `EPOKA_SEEDS=10000` runs so many, `EPOKA_SEED=7` runs that one and prints its trace.

use std::panic::{AssertUnwindSafe, catch_unwind};

use epoka_tests::sim::{self, Report};

fn number(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(
        value
            .parse()
            .unwrap_or_else(|_| panic!("{variable} must be a number, not '{value}'")),
    )
}

/// Runs a seed; the error says what broke.
fn run(seed: u64) -> Result<Report, String> {
    catch_unwind(AssertUnwindSafe(|| sim::run(seed, false))).map_err(|panic| {
        match panic.downcast::<String>() {
            Ok(text) => *text,
            Err(panic) => panic
                .downcast::<&str>()
                .map_or_else(|_| "a panic".into(), |text| (*text).into()),
        }
    })
}

#[test]
fn invariants_hold_through_kills_power_loss_isolation_and_late_messages() {
    if let Some(seed) = number("EPOKA_SEED") {
        println!("{:?}", sim::run(seed, true));
        return;
    }
    let seeds = number("EPOKA_SEEDS").unwrap_or(1000);
    let mut sum = Report::default();
    let mut failures = Vec::new();
    for seed in 0..seeds {
        match run(seed) {
            Ok(report) => sum += report,
            Err(what) => {
                let failure = format!("EPOKA_SEED={seed} {what}");
                println!("{failure}");
                failures.push(failure);
            }
        }
    }
    println!("{seeds} seeds: {sum:?}");
    failures.truncate(10);
    assert!(
        failures.is_empty(),
        "to replay a seed with its trace, set EPOKA_SEED:\n{}",
        failures.join("\n")
    );
    // A storm that never hit anything would prove nothing.
    let busy = sum.acked > seeds * 10 && sum.terms > seeds * 3 && sum.truncations > seeds / 10;
    assert!(seeds < 100 || busy, "{sum:?}");
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in [1, 2, 3] {
        assert_eq!(sim::run(seed, false), sim::run(seed, false), "seed {seed}");
    }
    assert_ne!(sim::run(1, false).trace, sim::run(2, false).trace);
}
