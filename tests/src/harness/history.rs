//! The audit: what was written and acknowledged, compared with what was read. Pure, and named as Jepsen names what it
//! looks for. It knows nothing of clusters; a history made by hand is as good as a recorded one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

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
    /// inconsistent-offsets: an offset that holds one record for one observer and another for the next.
    InconsistentOffsets(i32, i64, BTreeSet<WriteId>),
    /// nonmonotonic-poll: a reader was given an offset at or below the one before.
    NonmonotonicPoll(i32, i64, i64),
    /// poll-skip: a reader was never given what lies between two offsets.
    PollSkip(i32, i64, i64),
    /// nonmonotonic-send: two records of one writer in the wrong order.
    NonmonotonicSend(i32, WriteId, WriteId),
    /// A record that nobody sent.
    Unwritten(Seen),
}

impl Anomaly {
    /// Its name among Jepsen's.
    pub fn name(&self) -> &'static str {
        match self {
            Self::LostWrite(_) => "lost-write",
            Self::Unseen(_) => "unseen",
            Self::Duplicate(..) => "duplicate",
            Self::InconsistentOffsets(..) => "inconsistent-offsets",
            Self::NonmonotonicPoll(..) => "nonmonotonic-poll",
            Self::PollSkip(..) => "poll-skip",
            Self::NonmonotonicSend(..) => "nonmonotonic-send",
            Self::Unwritten(_) => "unwritten",
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

/// `acked 1000 of 1000 sent, found 1000; lost-write 2, duplicate 1`
impl fmt::Display for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "acked {} of {} sent, found {}; ",
            self.acked, self.sent, self.found
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

impl History {
    /// Compares what was read with what was written.
    pub fn audit(&self) -> Audit {
        let acked = self
            .writes
            .iter()
            .filter(|w| matches!(w.outcome, Outcome::Acked(_)));
        let mut anomalies = Vec::new();
        self.check_acked(&mut anomalies);
        self.check_final_log(&mut anomalies);
        self.check_offsets(&mut anomalies);
        for reader in self.readers.iter().chain([&self.finally]) {
            check_polls(reader, &mut anomalies);
        }
        Audit {
            sent: self.writes.len(),
            acked: acked.count(),
            found: self.finally.len(),
            anomalies,
        }
    }

    fn check_acked(&self, anomalies: &mut Vec<Anomaly>) {
        let log: BTreeMap<_, _> = self
            .finally
            .iter()
            .map(|s| ((s.partition, s.offset), s.id))
            .collect();
        let found: BTreeSet<_> = self.finally.iter().map(|s| (s.partition, s.id)).collect();
        for write in &self.writes {
            let Outcome::Acked(offset) = write.outcome else {
                continue;
            };
            let id = Some(write.id);
            let there = match offset {
                Some(offset) => log.get(&(write.partition, offset)) == Some(&id),
                None => found.contains(&(write.partition, id)),
            };
            if there {
                continue;
            }
            let from = (write.partition, offset.unwrap_or(0));
            anomalies.push(match log.range(from..=(write.partition, i64::MAX)).next() {
                Some(_) => Anomaly::LostWrite(write.clone()),
                None => Anomaly::Unseen(write.clone()),
            });
        }
    }

    fn check_final_log(&self, anomalies: &mut Vec<Anomaly>) {
        let sent: BTreeSet<_> = self.writes.iter().map(|w| (w.partition, w.id)).collect();
        let mut places = BTreeMap::<_, BTreeSet<_>>::new();
        let mut newest = BTreeMap::<_, WriteId>::new();
        for seen in &self.finally {
            let Some(id) = seen.id.filter(|id| sent.contains(&(seen.partition, *id))) else {
                anomalies.push(Anomaly::Unwritten(*seen));
                continue;
            };
            let known = places.entry(id).or_default();
            known.insert((seen.partition, seen.offset));
            let repeated = known.len() > 1;
            let before = newest.entry((seen.partition, id.writer)).or_insert(id);
            if *before > id && !repeated {
                anomalies.push(Anomaly::NonmonotonicSend(seen.partition, *before, id));
            }
            *before = id.max(*before);
        }
        let repeated = places.into_iter().filter(|(_, places)| places.len() > 1);
        anomalies.extend(repeated.map(|(id, places)| Anomaly::Duplicate(id, places)));
    }

    fn check_offsets(&self, anomalies: &mut Vec<Anomaly>) {
        let mut observed = BTreeMap::<_, BTreeSet<_>>::new();
        for seen in self.readers.iter().flatten().chain(&self.finally) {
            observed
                .entry((seen.partition, seen.offset))
                .or_default()
                .extend(seen.id);
        }
        for write in &self.writes {
            if let Outcome::Acked(Some(offset)) = write.outcome {
                observed
                    .entry((write.partition, offset))
                    .or_default()
                    .insert(write.id);
            }
        }
        let different = observed.into_iter().filter(|(_, ids)| ids.len() > 1);
        anomalies.extend(different.map(|((partition, offset), ids)| {
            Anomaly::InconsistentOffsets(partition, offset, ids)
        }));
    }
}

/// A partition's offsets come without gaps as long as it is neither compacted nor written by transactions.
fn check_polls(reader: &[Seen], anomalies: &mut Vec<Anomaly>) {
    let mut position = BTreeMap::new();
    for seen in reader {
        let before = position.insert(seen.partition, seen.offset).unwrap_or(-1);
        if seen.offset <= before {
            anomalies.push(Anomaly::NonmonotonicPoll(
                seen.partition,
                before,
                seen.offset,
            ));
        } else if seen.offset > before + 1 {
            anomalies.push(Anomaly::PollSkip(seen.partition, before, seen.offset));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> WriteId {
        WriteId { writer: 1, number }
    }

    fn acked(number: u64, offset: i64) -> Write {
        Write {
            id: id(number),
            partition: 0,
            outcome: Outcome::Acked(Some(offset)),
        }
    }

    fn unknown(number: u64) -> Write {
        Write {
            id: id(number),
            partition: 0,
            outcome: Outcome::Unknown("timed out".into()),
        }
    }

    fn log(numbers: &[u64]) -> Vec<Seen> {
        let seen = |(offset, number): (i64, &u64)| Seen {
            partition: 0,
            offset,
            id: Some(id(*number)),
        };
        (0..).zip(numbers).map(seen).collect()
    }

    fn names(history: &History) -> Vec<&'static str> {
        history
            .audit()
            .anomalies
            .iter()
            .map(Anomaly::name)
            .collect()
    }

    #[test]
    fn a_value_reads_back_whatever_its_padding() {
        for bytes in [0, 100] {
            assert_eq!(
                WriteId::from_value(id(77).to_value(bytes).as_bytes()),
                Some(id(77))
            );
        }
        assert_eq!(id(1).to_value(100).len(), 100);
        assert_eq!(WriteId::from_value(b"hello"), None);
    }

    #[test]
    fn a_history_without_faults_is_clean() {
        let history = History {
            writes: vec![acked(0, 0), unknown(1), acked(2, 1), unknown(3)],
            readers: vec![log(&[0]), log(&[0, 2, 3])],
            finally: log(&[0, 2, 3]),
        };
        history.audit().assert_clean();
        assert_eq!(
            history.audit().to_string(),
            "acked 2 of 4 sent, found 3; no anomaly"
        );
    }

    #[test]
    fn each_anomaly_is_found_and_named() {
        let writes = vec![acked(0, 0), acked(1, 1), acked(2, 2)];
        let with = |finally: Vec<Seen>| History {
            writes: writes.clone(),
            readers: vec![],
            finally,
        };
        let read = |reader: Vec<Seen>| History {
            readers: vec![reader],
            ..with(log(&[0, 1, 2]))
        };

        assert_eq!(names(&with(log(&[0, 1]))), ["unseen"]);
        let hole: Vec<_> = log(&[0, 1, 2])
            .into_iter()
            .filter(|s| s.offset != 1)
            .collect();
        assert_eq!(names(&with(hole)), ["lost-write", "poll-skip"]);
        assert_eq!(
            names(&with(log(&[0, 2, 1]))),
            [
                "lost-write",
                "lost-write",
                "nonmonotonic-send",
                "inconsistent-offsets",
                "inconsistent-offsets"
            ]
        );
        assert_eq!(names(&with(log(&[0, 1, 2, 1]))), ["duplicate"]);
        assert_eq!(names(&with(log(&[0, 1, 2, 9]))), ["unwritten"]);

        let mut again = log(&[0, 1]);
        again.extend(log(&[0, 1, 2]));
        assert_eq!(names(&read(again)), ["nonmonotonic-poll"]);
        let skipped: Vec<_> = log(&[0, 1, 2])
            .into_iter()
            .filter(|s| s.offset != 1)
            .collect();
        assert_eq!(names(&read(skipped)), ["poll-skip"]);
        assert_eq!(names(&read(log(&[0, 2]))), ["inconsistent-offsets"]);
    }

    #[test]
    fn a_write_acknowledged_without_an_offset_must_be_somewhere() {
        let somewhere = Write {
            outcome: Outcome::Acked(None),
            ..unknown(1)
        };
        let with = |finally| History {
            writes: vec![acked(0, 0), somewhere.clone()],
            readers: vec![],
            finally,
        };
        assert_eq!(names(&with(log(&[0, 1]))), [""; 0]);
        assert_eq!(names(&with(log(&[0]))), ["lost-write"]);
    }

    #[test]
    #[should_panic(expected = "nothing was acknowledged")]
    fn an_audit_of_nothing_is_not_clean() {
        History::default().audit().assert_clean();
    }
}
