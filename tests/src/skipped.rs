//! What a test says that cannot do its work here. A test harness keeps what a passing test prints to itself, so this goes past it.

use std::fmt::Display;
use std::io::Write as _;

/// Says, under the name of the test, what it skips and why.
pub fn skipped(why: impl Display) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    // With nobody to tell it stays unsaid.
    drop(writeln!(std::io::stderr(), "skipped {test}: {why}"));
}
