//! The audit: what was written and acknowledged, compared with what was read. Pure, and named as Jepsen names what it
//! looks for. It knows nothing of clusters; a history made by hand is as good as a recorded one.

use std::collections::BTreeSet;
use std::fmt;

mod checks;
#[cfg(test)]
mod tests;

/// Who wrote a record, and which of its records it was: every record of a history is different.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriteId {
    /// The writer.
    pub writer: u32,
    /// Counts the writer's records, in the order in which it sent them.
    pub number: u64,
}

impl WriteId {
    /// As a record's value, padded to at least this many bytes.
    pub fn to_value(self, bytes: usize) -> String {
        format!("{:width$}", self.to_string(), width = bytes)
    }

    /// Reads a record's value.
    pub fn from_value(value: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(value).ok()?.trim_end();
        let (writer, number) = text.strip_prefix('w')?.split_once('-')?;
        Some(Self {
            writer: writer.parse().ok()?,
            number: number.parse().ok()?,
        })
    }
}

impl fmt::Display for WriteId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "w{}-{}", self.writer, self.number)
    }
}

/// What the writer was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Written, at this offset; a client that had its acknowledgement from a later record's does not know where.
    Acked(Option<i64>),
    /// Not known to be written: it may turn up or not.
    Unknown(String),
    /// Known not to be written: never sent, or refused by everyone it was sent to.
    Refused(String),
}

/// One record sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// Which.
    pub id: WriteId,
    /// Where to.
    pub partition: i32,
    /// What came of it.
    pub outcome: Outcome,
}

/// One record read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// In this partition.
    pub partition: i32,
    /// At this offset.
    pub offset: i64,
    /// Which it was; `None`: none of ours.
    pub id: Option<WriteId>,
}

/// What was done and seen, on one topic.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Every record sent, in the order of each writer.
    pub writes: Vec<Write>,
    /// What each reader was given while faults happened, in its order.
    pub readers: Vec<Vec<Seen>>,
    /// The whole topic, read once all was calm.
    pub finally: Vec<Seen>,
    /// What writers and readers could not go on from, in their clients' words.
    pub failures: Vec<String>,
}

/// Something that must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Anomaly {
    /// lost-write: acknowledged, and at its offset the final log holds something else or nothing, while it holds later ones.
    LostWrite(Write),
    /// unseen: acknowledged, but the final log ends before it.
    Unseen(Write),
    /// duplicate: one record at several offsets.
    Duplicate(WriteId, BTreeSet<(i32, i64)>),
    /// inconsistent-offsets: an offset that holds one record for one observer and another, or none (`None`), for the next.
    InconsistentOffsets(i32, i64, BTreeSet<Option<WriteId>>),
    /// G1a: a record was read though its write was refused.
    RefusedRead(Seen),
    /// nonmonotonic-poll: a reader was given an offset at or below the one before.
    NonmonotonicPoll(i32, i64, i64),
    /// poll-skip: a reader was never given what lies between two offsets.
    PollSkip(i32, i64, i64),
    /// nonmonotonic-send: two records of one writer in the wrong order.
    NonmonotonicSend(i32, WriteId, WriteId),
    /// A record that nobody sent.
    Unwritten(Seen),
    /// A client could not go on: what it was answered made no sense of what it had been answered before.
    ClientFailed(String),
}

impl Anomaly {
    /// Its name among Jepsen's.
    pub fn name(&self) -> &'static str {
        match self {
            Self::LostWrite(_) => "lost-write",
            Self::Unseen(_) => "unseen",
            Self::Duplicate(..) => "duplicate",
            Self::InconsistentOffsets(..) => "inconsistent-offsets",
            Self::RefusedRead(_) => "G1a",
            Self::NonmonotonicPoll(..) => "nonmonotonic-poll",
            Self::PollSkip(..) => "poll-skip",
            Self::NonmonotonicSend(..) => "nonmonotonic-send",
            Self::Unwritten(_) => "unwritten",
            Self::ClientFailed(_) => "client-error",
        }
    }
}

/// What the audit found.
#[derive(Clone, Debug, Default)]
pub struct Audit {
    /// Records sent.
    pub sent: usize,
    /// Records acknowledged.
    pub acked: usize,
    /// Records refused.
    pub refused: usize,
    /// Records in the final log.
    pub found: usize,
    /// What must not be.
    pub anomalies: Vec<Anomaly>,
}

impl Audit {
    /// How many anomalies have this name.
    pub fn count(&self, name: &str) -> usize {
        self.anomalies.iter().filter(|a| a.name() == name).count()
    }

    /// Demands that nothing was wrong and something was done.
    ///
    /// # Panics
    /// With the first anomalies, otherwise.
    pub fn assert_clean(&self) {
        assert!(
            self.acked > 0,
            "nothing was acknowledged, so nothing was audited: {self}"
        );
        let first = &self.anomalies[..self.anomalies.len().min(10)];
        assert!(self.anomalies.is_empty(), "{self}; the first: {first:#?}");
    }
}

/// `acked 1000 of 1000 sent, 0 refused, found 1000; lost-write 2, duplicate 1`
impl fmt::Display for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "acked {} of {} sent, {} refused, found {}; ",
            self.acked, self.sent, self.refused, self.found
        )?;
        let names: BTreeSet<_> = self.anomalies.iter().map(Anomaly::name).collect();
        if names.is_empty() {
            return f.write_str("no anomaly");
        }
        let counts: Vec<_> = names
            .into_iter()
            .map(|n| format!("{n} {}", self.count(n)))
            .collect();
        f.write_str(&counts.join(", "))
    }
}
