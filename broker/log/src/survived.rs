//! What the last stop can have taken from the files of a data directory. Only its user knows; recovery is as strict as that allows.

use std::fs;
use std::io;
use std::sync::atomic::{AtomicU8, Ordering};

/// What of a log's bytes survived a stop that was not clean, at least.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Survived {
    /// What had been made durable. Of the rest anything may be missing or wrong: the machine may have lost its power.
    #[default]
    Durable,
    /// Everything but the last write, because every write was made durable before the next one began.
    AllButLastWrite,
    /// Everything that was written, and the first bytes of a write under way: only the process ended, the machine went on.
    Written,
}

const ALL: [Survived; 3] = [
    Survived::Durable,
    Survived::AllButLastWrite,
    Survived::Written,
];

/// A value that is set once, before logs are opened, and read by those that open them.
#[derive(Debug, Default)]
pub(crate) struct SurvivedCell(AtomicU8);

impl SurvivedCell {
    pub fn set(&self, value: Survived) {
        self.0.store(value as u8, Ordering::Relaxed);
    }

    pub fn get(&self) -> Survived {
        ALL[usize::from(self.0.load(Ordering::Relaxed))]
    }
}

/// Names the time since the machine was started: two starts have different ones. An error where the system does not say.
pub fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?
        .trim()
        .to_owned())
}
