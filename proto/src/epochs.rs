//! The leader-epoch history of one replica: which leader epoch began at which offset. A pure value; the log persists it,
//! the replica asks it where two logs part. Rules E-1 to E-5 and section 3.4 of the replication protocol.

use crate::ids::{LeaderEpoch, Offset};

/// One entry: the first offset written, or allowed, in a leader epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EpochStart {
    /// The leader epoch.
    pub epoch: LeaderEpoch,
    /// Its first offset.
    pub start: Offset,
}

/// Where a leader epoch ends in some log: the answer to "what is the end of epoch x at yours?" (KIP-101, KIP-279).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EpochEnd {
    /// The largest epoch at or below the one asked about.
    pub epoch: LeaderEpoch,
    /// The offset after its last record.
    pub end: Offset,
}

/// Leader epochs and their first offsets. Both columns are strictly increasing (I-14).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct EpochHistory {
    entries: Vec<EpochStart>,
}

impl EpochHistory {
    /// A history from entries, or `None` when they are not strictly increasing.
    pub fn from_entries(entries: Vec<EpochStart>) -> Option<Self> {
        let sorted = entries
            .windows(2)
            .all(|w| w[0].epoch < w[1].epoch && w[0].start < w[1].start);
        let natural = entries.iter().all(|e| e.epoch.0 >= 0 && e.start.0 >= 0);
        (sorted && natural).then_some(Self { entries })
    }

    /// The entries, oldest first.
    pub fn entries(&self) -> &[EpochStart] {
        &self.entries
    }

    /// The newest epoch, which may hold no record (a leader that wrote nothing).
    pub fn latest(&self) -> Option<LeaderEpoch> {
        self.entries.last().map(|e| e.epoch)
    }

    /// Notes that `epoch` begins at `start` (E-1). Entries that contradict it leave the tail. Says whether anything changed.
    pub fn assign(&mut self, epoch: LeaderEpoch, start: Offset) -> bool {
        assert!(epoch.0 >= 0 && start.0 >= 0, "epoch {epoch} at {start}");
        if let Some(last) = self.entries.last()
            && last.epoch == epoch
            && start >= last.start
        {
            return false;
        }
        while let Some(last) = self.entries.last()
            && (last.epoch >= epoch || last.start >= start)
        {
            self.entries.pop();
        }
        self.entries.push(EpochStart { epoch, start });
        true
    }

    /// Forgets epochs that begin at or after `end` (E-2). Says whether anything changed.
    pub fn truncate_from_end(&mut self, end: Offset) -> bool {
        let before = self.entries.len();
        while self.entries.last().is_some_and(|e| e.start >= end) {
            self.entries.pop();
        }
        self.entries.len() != before
    }

    /// Forgets epochs that ended at or before `start`; the one that covers it now begins there (E-3). Says whether anything
    /// changed.
    pub fn truncate_from_start(&mut self, start: Offset) -> bool {
        let covering = self.entries.iter().rposition(|e| e.start <= start);
        let Some(index) = covering else { return false };
        if index == 0 && self.entries[0].start == start {
            return false;
        }
        self.entries.drain(..index);
        self.entries[0].start = start;
        true
    }

    /// The epoch that covers `offset`, if the history reaches back that far.
    pub fn epoch_at(&self, offset: Offset) -> Option<LeaderEpoch> {
        self.entries
            .iter()
            .rfind(|e| e.start <= offset)
            .map(|e| e.epoch)
    }

    /// Where `epoch` ends in a log with this history and this log end (section 3.4). `None`: the epoch is newer than anything
    /// known here.
    pub fn end_offset_for(&self, epoch: LeaderEpoch, log_end: Offset) -> Option<EpochEnd> {
        if self.latest() == Some(epoch) {
            return Some(EpochEnd {
                epoch,
                end: log_end,
            });
        }
        let above = self.entries.iter().find(|e| e.epoch > epoch)?;
        let floor = self.entries.iter().rfind(|e| e.epoch <= epoch);
        Some(EpochEnd {
            epoch: floor.map_or(epoch, |e| e.epoch),
            end: above.start,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(entries: &[(i32, i64)]) -> EpochHistory {
        let entries = entries
            .iter()
            .map(|&(epoch, start)| EpochStart {
                epoch: LeaderEpoch(epoch),
                start: Offset(start),
            })
            .collect();
        EpochHistory::from_entries(entries).expect("sorted")
    }

    #[test]
    fn assign_removes_what_contradicts_it_e_1() {
        for (before, (epoch, start), after) in [
            (&[][..], (0, 0), &[(0, 0)][..]), // H-63: epoch 0 is an epoch
            (&[(1, 0)], (1, 5), &[(1, 0)]),
            (&[(1, 0)], (2, 5), &[(1, 0), (2, 5)]),
            (&[(1, 0), (2, 5)], (3, 5), &[(1, 0), (3, 5)]), // an empty epoch is replaced
            (&[(1, 0), (2, 5), (4, 9)], (3, 7), &[(1, 0), (2, 5), (3, 7)]),
            (&[(1, 0), (2, 5)], (2, 3), &[(1, 0), (2, 3)]),
        ] {
            let mut h = history(before);
            h.assign(LeaderEpoch(epoch), Offset(start));
            assert_eq!(h, history(after), "{before:?} + {epoch}@{start}");
        }
    }

    #[test]
    fn truncation_from_either_end_e_2_e_3() {
        let mut h = history(&[(1, 0), (3, 4), (5, 10)]);
        assert!(h.truncate_from_end(Offset(10))); // H-6: an empty tail epoch goes even when no byte does
        assert_eq!(h, history(&[(1, 0), (3, 4)]));
        assert!(!h.truncate_from_end(Offset(10)));
        for (start, after) in [
            (0, &[(1, 0), (3, 4), (5, 10)][..]),
            (2, &[(1, 2), (3, 4), (5, 10)]),
            (4, &[(3, 4), (5, 10)]),
            (7, &[(3, 7), (5, 10)]),
            (12, &[(5, 12)]),
        ] {
            let mut h = history(&[(1, 0), (3, 4), (5, 10)]);
            h.truncate_from_start(Offset(start));
            assert_eq!(h, history(after), "from {start}");
        }
        let mut h = history(&[(3, 4)]);
        assert!(!h.truncate_from_start(Offset(2)));
        assert_eq!(h, history(&[(3, 4)]));
    }

    #[test]
    fn end_offset_for_follows_section_3_4() {
        let h = history(&[(1, 2), (3, 4), (6, 8)]);
        let end = Offset(11);
        for (asked, answer) in [
            (6, Some((6, 11))), // the latest epoch ends at the log end
            (7, None),          // newer than anything known
            (0, Some((0, 2))),  // older than the retained log
            (1, Some((1, 4))),
            (2, Some((1, 4))), // the floor
            (5, Some((3, 8))),
        ] {
            let got = h
                .end_offset_for(LeaderEpoch(asked), end)
                .map(|e| (e.epoch.0, e.end.0));
            assert_eq!(got, answer, "epoch {asked}");
        }
        assert_eq!(
            EpochHistory::default().end_offset_for(LeaderEpoch(0), end),
            None
        );
    }

    #[test]
    fn unsorted_entries_are_refused() {
        let entry = |epoch, start| EpochStart {
            epoch: LeaderEpoch(epoch),
            start: Offset(start),
        };
        assert!(EpochHistory::from_entries(vec![entry(2, 0), entry(1, 4)]).is_none());
        assert!(EpochHistory::from_entries(vec![entry(1, 4), entry(2, 4)]).is_none());
        assert!(EpochHistory::from_entries(vec![entry(-1, 0)]).is_none());
    }
}
