//! Keeps the books of what was sent and what was acknowledged, and compares them with what the log holds in the end.
//! Pure: it neither sends nor reads; `demo` and whoever else breaks clusters on purpose feed it.
//!
//! Every record carries a stamp: the run, its partition and its number in that partition. An acknowledged record must be in
//! the log exactly once, at the offset that was acknowledged, and numbers must grow with offsets. A record whose fate was
//! never learned may be there or not, but at most once and in its place.

use std::collections::BTreeMap;
use std::fmt;

use epoka_proto::ids::{Offset, TopicPartition};

/// Findings of one kind that are kept in detail; the others are only counted.
const DETAILED: usize = 20;

/// The books of one run.
#[derive(Debug)]
pub struct Audit {
    run: String,
    partitions: BTreeMap<TopicPartition, Vec<Fate>>,
}

/// What the producer knows of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Under way, or failed: it may have been written.
    Unknown,
    /// Acknowledged at this offset.
    Acked(Offset),
}

/// One record's entry in the books.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamp {
    partition: TopicPartition,
    number: usize,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Acknowledged, and not in the log.
    Lost {
        /// Where it should be.
        partition: TopicPartition,
        /// Which record of the partition, from 0.
        number: usize,
        /// The acknowledged offset.
        offset: Offset,
    },
    /// Acknowledged at one offset, found at another.
    Moved {
        /// The partition.
        partition: TopicPartition,
        /// Which record of the partition, from 0.
        number: usize,
        /// The acknowledged offset.
        acked: Offset,
        /// Where it is.
        found: Offset,
    },
    /// In the log twice.
    Duplicated {
        /// The partition.
        partition: TopicPartition,
        /// Which record of the partition, from 0.
        number: usize,
        /// Where it is first.
        first: Offset,
        /// Where it is again.
        again: Offset,
    },
    /// Behind a record that was sent later.
    Reordered {
        /// The partition.
        partition: TopicPartition,
        /// Which record of the partition, from 0.
        number: usize,
        /// Where it is.
        offset: Offset,
    },
    /// Bears this run's stamp but was never sent, or not to this partition.
    Strange {
        /// The partition it was found in.
        partition: TopicPartition,
        /// Where it is.
        offset: Offset,
    },
}

/// The comparison of the books with the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Records acknowledged.
    pub acked: usize,
    /// Records whose fate was never learned.
    pub unknown: usize,
    /// How many of those are in the log.
    pub unknown_present: usize,
    /// Acknowledged records that are missing or elsewhere.
    pub lost: usize,
    /// Extra copies.
    pub duplicated: usize,
    /// Records behind a later one.
    pub reordered: usize,
    /// Records nobody sent.
    pub strange: usize,
    /// The first findings of each kind, in detail.
    pub findings: Vec<Finding>,
}

impl Audit {
    /// Opens the books of a run; the name keeps its records apart from those of other runs in the same topic.
    pub fn new(run: impl Into<String>) -> Self {
        Self {
            run: run.into(),
            partitions: BTreeMap::new(),
        }
    }

    /// Enters a record that is about to be sent, and gives the value it must carry.
    pub fn enter(&mut self, partition: &TopicPartition) -> (Stamp, String) {
        let fates = self.partitions.entry(partition.clone()).or_default();
        let stamp = Stamp {
            partition: partition.clone(),
            number: fates.len(),
        };
        fates.push(Fate::Unknown);
        let value = format!("{} {} {}", self.run, partition, stamp.number);
        (stamp, value)
    }

    /// The record was acknowledged at this offset.
    pub fn acked(&mut self, stamp: &Stamp, offset: Offset) {
        let fates = self.partitions.get_mut(&stamp.partition);
        let fate = fates.and_then(|f| f.get_mut(stamp.number));
        *fate.expect("stamps come from `enter`") = Fate::Acked(offset);
    }

    /// How many records were acknowledged so far.
    pub fn acked_so_far(&self) -> usize {
        let fates = self.partitions.values().flatten();
        fates.filter(|f| matches!(f, Fate::Acked(_))).count()
    }

    /// How many records were entered so far.
    pub fn entered_so_far(&self) -> usize {
        self.partitions.values().map(Vec::len).sum()
    }

    /// Whether the fate of some record of the partition is not known.
    pub fn has_unknown(&self, partition: &TopicPartition) -> bool {
        let fates = self.partitions.get(partition).into_iter().flatten();
        fates.copied().any(|f| f == Fate::Unknown)
    }

    /// The partitions that were written to.
    pub fn partitions(&self) -> impl Iterator<Item = &TopicPartition> {
        self.partitions.keys()
    }

    /// Compares the books with what each partition's log holds: offsets and values in order. Records without this run's
    /// stamp are passed over. A partition without an entry in `logs` counts as empty.
    pub fn check<'a, L>(&self, mut logs: impl FnMut(&TopicPartition) -> L) -> Report
    where
        L: IntoIterator<Item = (Offset, &'a [u8])>,
    {
        let mut report = Report::default();
        for (partition, fates) in &self.partitions {
            let mut found: Vec<Option<Offset>> = vec![None; fates.len()];
            let mut newest: Option<usize> = None;
            for (offset, value) in logs(partition) {
                let Some(claim) = self.read_stamp(value) else {
                    continue;
                };
                let number = claim.filter(|c| c.partition == *partition && c.number < fates.len());
                let Some(Stamp { number, .. }) = number else {
                    report.strange(partition, offset);
                    continue;
                };
                if let Some(first) = found[number] {
                    report.duplicated(partition, number, first, offset);
                    continue;
                }
                found[number] = Some(offset);
                if newest.is_some_and(|newest| number < newest) {
                    report.reordered(partition, number, offset);
                }
                newest = newest.max(Some(number));
            }
            for (number, (fate, found)) in fates.iter().zip(found).enumerate() {
                report.settle(partition, number, *fate, found);
            }
        }
        report
    }

    /// `None`: not of this run. `Some(None)`: of this run, but not a stamp that `enter` gives.
    fn read_stamp(&self, value: &[u8]) -> Option<Option<Stamp>> {
        let rest = value
            .strip_prefix(self.run.as_bytes())?
            .strip_prefix(b" ")?;
        let read = || {
            let (partition, number) = std::str::from_utf8(rest).ok()?.split_once(' ')?;
            let number = number.split(' ').next()?;
            Some(Stamp {
                partition: TopicPartition::parse(partition)?,
                number: number.parse().ok()?,
            })
        };
        Some(read())
    }
}

impl Report {
    /// Nothing was lost, duplicated, reordered or invented.
    pub fn is_clean(&self) -> bool {
        self.lost + self.duplicated + self.reordered + self.strange == 0
    }

    fn settle(
        &mut self,
        partition: &TopicPartition,
        number: usize,
        fate: Fate,
        found: Option<Offset>,
    ) {
        let Fate::Acked(acked) = fate else {
            self.unknown += 1;
            self.unknown_present += usize::from(found.is_some());
            return;
        };
        self.acked += 1;
        if found == Some(acked) {
            return;
        }
        self.lost += 1;
        let partition = partition.clone();
        let finding = match found {
            None => Finding::Lost {
                partition,
                number,
                offset: acked,
            },
            Some(found) => Finding::Moved {
                partition,
                number,
                acked,
                found,
            },
        };
        self.keep(self.lost, finding);
    }

    fn strange(&mut self, partition: &TopicPartition, offset: Offset) {
        self.strange += 1;
        let partition = partition.clone();
        self.keep(self.strange, Finding::Strange { partition, offset });
    }

    fn duplicated(
        &mut self,
        partition: &TopicPartition,
        number: usize,
        first: Offset,
        again: Offset,
    ) {
        self.duplicated += 1;
        let finding = Finding::Duplicated {
            partition: partition.clone(),
            number,
            first,
            again,
        };
        self.keep(self.duplicated, finding);
    }

    fn reordered(&mut self, partition: &TopicPartition, number: usize, offset: Offset) {
        self.reordered += 1;
        let finding = Finding::Reordered {
            partition: partition.clone(),
            number,
            offset,
        };
        self.keep(self.reordered, finding);
    }

    fn keep(&mut self, nth: usize, finding: Finding) {
        if nth <= DETAILED {
            self.findings.push(finding);
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "acked {}, lost {}, duplicated {}, reordered {}",
            self.acked, self.lost, self.duplicated, self.reordered
        )?;
        if self.strange > 0 {
            write!(f, ", never sent {}", self.strange)?;
        }
        if self.unknown > 0 {
            write!(
                f,
                "; {} not acknowledged, of which {} were written",
                self.unknown, self.unknown_present
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost {
                partition,
                number,
                offset,
            } => {
                write!(
                    f,
                    "{partition}: record {number}, acknowledged at offset {offset}, is not in the log"
                )
            }
            Self::Moved {
                partition,
                number,
                acked,
                found,
            } => {
                write!(
                    f,
                    "{partition}: record {number}, acknowledged at offset {acked}, is at offset {found}"
                )
            }
            Self::Duplicated {
                partition,
                number,
                first,
                again,
            } => {
                write!(
                    f,
                    "{partition}: record {number} is at offset {first} and again at offset {again}"
                )
            }
            Self::Reordered {
                partition,
                number,
                offset,
            } => {
                write!(
                    f,
                    "{partition}: record {number} at offset {offset} is behind a record that was sent later"
                )
            }
            Self::Strange { partition, offset } => {
                write!(
                    f,
                    "{partition}: the record at offset {offset} was never sent to this partition"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn orders(partition: i32) -> TopicPartition {
        TopicPartition::new("orders", partition)
    }

    /// The books after sending `acked.len()` records to orders-0, with the offsets that were acknowledged.
    fn books(acked: &[Option<i64>]) -> (Audit, Vec<String>) {
        let mut audit = Audit::new("run");
        let mut values = Vec::new();
        for offset in acked {
            let (stamp, value) = audit.enter(&orders(0));
            values.push(value);
            if let Some(offset) = offset {
                audit.acked(&stamp, Offset(*offset));
            }
        }
        (audit, values)
    }

    fn check(audit: &Audit, log: &[(i64, &str)]) -> Report {
        audit.check(|_| log.iter().map(|(o, v)| (Offset(*o), v.as_bytes())))
    }

    #[test]
    fn every_kind_of_damage_is_found() {
        let (audit, v) = books(&[Some(0), Some(1), Some(2)]);
        let [a, b, c] = [v[0].as_str(), v[1].as_str(), v[2].as_str()];
        // log, (lost, duplicated, reordered, strange)
        type Row<'a> = (&'a [(i64, &'a str)], [usize; 4]);
        let table: &[Row] = &[
            (&[(0, a), (1, b), (2, c)], [0, 0, 0, 0]),
            (&[(0, a), (1, b)], [1, 0, 0, 0]),
            (&[], [3, 0, 0, 0]),
            (&[(0, a), (1, b), (2, c), (3, b)], [0, 1, 0, 0]),
            (&[(0, a), (1, c), (2, b)], [2, 0, 1, 0]),
            (
                &[(0, a), (1, b), (2, c), (3, "run orders-0 99")],
                [0, 0, 0, 1],
            ),
            (
                &[(0, a), (1, b), (2, c), (3, "run orders-1 0")],
                [0, 0, 0, 1],
            ),
            (&[(0, a), (1, b), (2, c), (3, "run garbage")], [0, 0, 0, 1]),
            (
                &[(0, a), (1, b), (2, c), (3, "somebody else's")],
                [0, 0, 0, 0],
            ),
        ];
        for (log, expected) in table {
            let r = check(&audit, log);
            assert_eq!(
                [r.lost, r.duplicated, r.reordered, r.strange],
                *expected,
                "{log:?}"
            );
            assert_eq!(r.is_clean(), *expected == [0; 4]);
            assert_eq!(r.findings.len(), expected.iter().sum::<usize>());
        }
    }

    #[test]
    fn a_record_of_unknown_fate_may_be_there_once_or_not_at_all() {
        let (audit, v) = books(&[Some(0), None, Some(1)]);
        let without = check(&audit, &[(0, &v[0]), (1, &v[2])]);
        assert!(without.is_clean());
        assert_eq!(
            (without.acked, without.unknown, without.unknown_present),
            (2, 1, 0)
        );

        let (audit, v) = books(&[Some(0), None, Some(2)]);
        let with = check(&audit, &[(0, &v[0]), (1, &v[1]), (2, &v[2])]);
        assert!(with.is_clean());
        assert_eq!(with.unknown_present, 1);

        let twice = check(&audit, &[(0, &v[0]), (1, &v[1]), (2, &v[2]), (3, &v[1])]);
        assert_eq!(twice.duplicated, 1);
    }

    #[test]
    fn the_report_reads_as_a_sentence() {
        let (audit, v) = books(&[Some(0), None]);
        assert_eq!(
            check(&audit, &[(0, &v[0])]).to_string(),
            "acked 1, lost 0, duplicated 0, reordered 0; 1 not acknowledged, of which 0 were written"
        );
    }

    #[test]
    fn a_value_may_be_padded_behind_its_stamp() {
        let (audit, v) = books(&[Some(0)]);
        let padded = format!("{} xxxxx", v[0]);
        assert!(check(&audit, &[(0, &padded)]).is_clean());
    }
}
