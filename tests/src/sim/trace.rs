//! The record of a run: a hash of everything, and on demand the lines themselves.

use epoka_proto::ids::Millis;

pub(super) struct Trace {
    hash: u64,
    verbose: bool,
}

impl Trace {
    pub(super) fn new(verbose: bool) -> Self {
        Self {
            hash: 0xcbf2_9ce4_8422_2325,
            verbose,
        }
    }

    /// Takes numbers that identify what happened into the hash.
    pub(super) fn fold(&mut self, numbers: &[i64]) {
        for &number in numbers {
            self.hash = (self.hash ^ number as u64)
                .wrapping_mul(0x0000_0100_0000_01b3)
                .rotate_left(23);
        }
    }

    /// A line for a person, made only when someone reads it.
    pub(super) fn line(&self, now: Millis, text: impl FnOnce() -> String) {
        if self.verbose {
            eprintln!("{now:>7} {}", text());
        }
    }

    pub(super) fn is_verbose(&self) -> bool {
        self.verbose
    }

    pub(super) fn hash(&self) -> u64 {
        self.hash
    }
}
