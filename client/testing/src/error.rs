//! What can go wrong, said so that whoever reads a failed test knows what to do.

use std::path::{Path, PathBuf};

use crate::target::{Node, Target};

/// The result of an operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no program to start.
    #[error(
        "the program `epoka` is not in {looked}: build it with `cargo build --package epoka`, install it with \
         `cargo install --path client/cli`, or say where it is with EPOKA_BIN or Builder::binary"
    )]
    NoBinary {
        /// Where it was looked for.
        looked: String,
    },
    /// The program exists but does not run.
    #[error("{} cannot be run: {source}; is it the epoka program of this machine?", path.display())]
    NotRun {
        /// What was run.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The builder was asked for what no cluster can have.
    #[error("{0}")]
    Shape(String),
    /// The cluster did not become ready.
    #[error("the cluster did not become ready: {why}{}", logs(directory.as_deref()))]
    NotReady {
        /// What it said last.
        why: String,
        /// Its directory, which was kept; containers have none.
        directory: Option<PathBuf>,
    },
    /// The cluster ended by itself.
    #[error("the cluster is not running any more: {why}")]
    Ended {
        /// What it said last.
        why: String,
    },
    /// Nobody plays that part.
    #[error("there is no process that is {target}: {why}; name one, such as {example}")]
    NoTarget {
        /// Who was meant.
        target: Target,
        /// Why there is none.
        why: String,
        /// How to name one.
        example: &'static str,
    },
    /// The process is in no state for it.
    #[error("{node} was not {done}: {why}")]
    Refused {
        /// Which process.
        node: Node,
        /// What was to be done to it, in the past tense.
        done: &'static str,
        /// Why it was not.
        why: String,
    },
    /// A process was started and has ended.
    #[error("{node} was started and has ended: {why}")]
    Died {
        /// Which process.
        node: Node,
        /// Its last words.
        why: String,
    },
    /// What was waited for did not happen in time.
    #[error(
        "waited {waited_ms} ms for {what}; last seen: {seen}. Builder::patience sets how long is waited"
    )]
    TimedOut {
        /// What was waited for.
        what: String,
        /// How long.
        waited_ms: u128,
        /// What was there instead.
        seen: String,
    },
    /// The SDK's client failed.
    #[error(transparent)]
    Client(#[from] epoka_client::Error),
    /// The system refuses a directory, a port or a thread.
    #[error("the system refuses {what}: {source}")]
    System {
        /// What was asked of it.
        what: &'static str,
        /// Its answer.
        source: std::io::Error,
    },
    /// There is no Docker engine, or it has no image.
    #[cfg(feature = "containers")]
    #[error("{why}")]
    NoDocker {
        /// What is missing, and what to do.
        why: String,
    },
    /// The Docker engine refuses.
    #[cfg(feature = "containers")]
    #[error("Docker could not {what}: {why}")]
    Docker {
        /// What was asked of it.
        what: String,
        /// Its answer.
        why: String,
    },
}

fn logs(directory: Option<&Path>) -> String {
    let logs = |path: &Path| format!(" (its logs are in {})", path.display());
    directory.map(logs).unwrap_or_default()
}

impl Error {
    pub(crate) fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::System { what, source }
    }
}
