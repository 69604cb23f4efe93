//! What must be true, whatever the nodes believe: the committed records of each partition as an observer saw them become
//! committed, every batch ever written, and who led when.
//!
//! Where each invariant of the replication document (section 9) is checked, and when:
//!
//! | invariant | where | when |
//! |---|---|---|
//! | I-1, I-2 (controller), I-18 | `cluster::broken_invariants` | each command |
//! | I-2 (brokers), I-12, I-15 (own epoch) | `World::observe` | each step of a replica |
//! | I-3 | `starts_epoch`, `appended_by_leader` | each term, each append |
//! | I-4 | `appended` | each append, also of fetched batches |
//! | I-5 | `watermark` | each step with effects, each new life |
//! | I-6 | `leads` | each term; during it I-7 speaks of the leader too |
//! | I-7, I-10, I-21 | `World::judge` | each command, disk effect and commit |
//! | I-8 | `World::judge_leader` | as I-7 |
//! | I-9 | `truncated` | each cut; with I-5 also of what is below one's own high watermark |
//! | I-11 | `consumed` | each read of a consumer |
//! | I-13 | the replies in `serve.rs` | each success with acks=all |
//! | I-14 | `check_history`, `appended` | each disk effect |
//! | I-15 (order), I-16 | `ModelLog::append` | each append |
//! | I-17 | by construction: brokers apply a prefix of the controller's one log | |
//! | L-54 | `latest_told` | each read of a consumer |
//!
//! An unclean election may lose committed records on purpose. From the moment it is decided until its leader begins, the
//! partition is not judged; then what the new leader holds is what is committed. The document asks I-6, I-7, I-9 and I-11 of
//! clean histories only.

use std::collections::{BTreeMap, HashMap};

use epoka_proto::ids::{LeaderEpoch, Offset};

use super::broker::Disk;
use super::message::Home;
use crate::model::{Batch, ModelLog};

pub(super) struct Ghost {
    partitions: Vec<History>,
}

/// A base offset and the epoch of the batch there.
type Place = (Offset, LeaderEpoch);

struct Written {
    payload: u64,
    end: Offset,
    /// The batch before it, where the log reaches back that far.
    before: Option<Place>,
}

#[derive(Default)]
struct History {
    committed: Vec<Batch>,
    /// I-3: which life of which broker leads a term.
    leaders: BTreeMap<LeaderEpoch, (usize, u64)>,
    /// I-4: what was ever written at an (offset, epoch), and what stood before it. Only looked up.
    written: HashMap<Place, Written>,
    /// Watermarks of older terms prove nothing any more.
    judged_from: LeaderEpoch,
    /// Decided uncleanly, and not begun yet.
    unsettled: bool,
    /// The highest log start of any replica: before it, logs may differ (I-4), since a leader can tell no one how its own began.
    start: Offset,
    /// How often an unclean election has changed what is committed.
    rewritten: u32,
}

impl History {
    fn end(&self) -> Offset {
        self.committed.last().map_or(self.start, |b| b.end)
    }

    fn at(&self, offset: Offset) -> Option<&Batch> {
        let index = self.committed.partition_point(|b| b.end <= offset);
        self.committed.get(index)
    }
}

impl Ghost {
    pub(super) fn new(partitions: usize) -> Self {
        Self {
            partitions: (0..partitions).map(|_| History::default()).collect(),
        }
    }

    /// The end of what is committed.
    pub(super) fn end(&self, p: usize) -> Offset {
        self.partitions[p].end()
    }

    pub(super) fn is_unsettled(&self, p: usize) -> bool {
        self.partitions[p].unsettled
    }

    pub(super) fn judges(&self, p: usize, term: LeaderEpoch) -> bool {
        !self.partitions[p].unsettled && term >= self.partitions[p].judged_from
    }

    pub(super) fn unclean_election(&mut self, p: usize, epoch: LeaderEpoch) {
        self.partitions[p].unsettled = true;
        self.partitions[p].judged_from = epoch;
    }

    /// I-3, at the start of a term.
    pub(super) fn starts_epoch(&mut self, p: usize, epoch: LeaderEpoch, home: Home) {
        let before = self.partitions[p]
            .leaders
            .insert(epoch, (home.broker, home.life));
        assert!(
            before.is_none(),
            "I-3: {home:?} leads epoch {epoch} after {before:?}"
        );
    }

    /// I-3, at every append.
    pub(super) fn appended_by_leader(&mut self, p: usize, epoch: LeaderEpoch, home: Home) {
        let leader = self.partitions[p].leaders.get(&epoch);
        assert_eq!(
            leader,
            Some(&(home.broker, home.life)),
            "I-3: append in epoch {epoch} by {home:?}"
        );
    }

    /// A leader begins: it holds everything committed (I-6), or defines it after an unclean election: what was and it has, and
    /// what it will show at once.
    pub(super) fn leads(
        &mut self,
        p: usize,
        epoch: LeaderEpoch,
        watermark: Offset,
        disk: &mut Disk,
    ) {
        let history = &mut self.partitions[p];
        follow(history, disk);
        if history.unsettled && epoch >= history.judged_from {
            history.start = disk.log.start();
            history.rewritten += 1;
            follow(history, disk);
            let shown = disk.matched.max(watermark);
            history.committed = disk.log.read(history.start, shown, usize::MAX).to_vec();
            history.unsettled = false;
            history.judged_from = epoch;
            follow(history, disk);
        }
        if !history.unsettled && epoch >= history.judged_from {
            history.start = history.start.max(disk.log.start());
        }
        // One that learns only now of its election may have been followed by others already.
        let newest = history
            .leaders
            .last_key_value()
            .is_some_and(|(&last, _)| last == epoch);
        if !history.unsettled && epoch >= history.judged_from && newest {
            assert!(
                disk.matched >= history.end(),
                "I-6: the leader of epoch {epoch} matches to {}, committed is {}: {:?} {:?}",
                disk.matched,
                history.end(),
                history.at(disk.matched),
                disk.log
            );
        }
    }

    /// I-4, I-14: batches were appended from an index on.
    pub(super) fn appended(&mut self, p: usize, log: &ModelLog, from: usize) {
        let history = &mut self.partitions[p];
        let batches = log.batches();
        for (index, batch) in batches.iter().enumerate().skip(from) {
            let before = index
                .checked_sub(1)
                .map(|i| (batches[i].base, batches[i].epoch));
            let covering = log.epochs().epoch_at(batch.base.max(log.start()));
            assert_eq!(
                covering,
                Some(batch.epoch),
                "I-14: {batch:?} in {:?}",
                log.epochs()
            );
            let entry = history.written.entry((batch.base, batch.epoch));
            let known = entry.or_insert(Written {
                payload: batch.payload,
                end: batch.end,
                before,
            });
            let same = (known.payload, known.end) == (batch.payload, batch.end);
            assert!(same, "I-4: another batch where {batch:?} is");
            if let (Some(then), Some(now)) = (known.before, before) {
                let deleted = batch.base <= history.start;
                assert!(
                    then == now || deleted,
                    "I-4: {then:?} and {now:?} before {batch:?}"
                );
            }
        }
    }

    /// A follower's log begins no later than it did or than its leader's: it would lack what lies between.
    pub(super) fn begins_no_later(&self, p: usize, term: LeaderEpoch, before: Offset, now: Offset) {
        let allowed = self.partitions[p].start.max(before);
        assert!(
            !self.judges(p, term) || now <= allowed,
            "a follower begins at {now}, no leader after {allowed}"
        );
    }

    /// A replica forgot what is before an offset, on the word of a term.
    pub(super) fn starts_at(&mut self, p: usize, term: LeaderEpoch, start: Offset) {
        if !self.judges(p, term) {
            return;
        }
        let history = &mut self.partitions[p];
        history.start = history.start.max(start);
    }

    /// I-9: a cut takes no record that is committed. After an unclean election, a follower that has not heard of it may still
    /// cut on the word of a leader from before, whose history has been given up: the document asks I-9 of clean ones.
    pub(super) fn truncated(&mut self, p: usize, term: LeaderEpoch, disk: &mut Disk) {
        let obsolete = !self.judges(p, term);
        let history = &self.partitions[p];
        assert!(
            disk.matched <= disk.log.end().max(history.start)
                || disk.rewritten != history.rewritten
                || obsolete,
            "I-9: cut to {}, although committed and equal up to {}",
            disk.log.end(),
            disk.matched
        );
        disk.matched = disk.matched.min(disk.log.end());
    }

    /// I-14: the history lies within the log.
    pub(super) fn check_history(&self, log: &ModelLog) {
        let entries = log.epochs().entries();
        let sorted = entries
            .windows(2)
            .all(|w| w[0].epoch < w[1].epoch && w[0].start < w[1].start);
        let within = entries.first().is_none_or(|e| e.start >= log.start())
            && entries.last().is_none_or(|e| e.start <= log.end());
        assert!(
            sorted && within,
            "I-14: {entries:?} in a log {}..{}",
            log.start(),
            log.end()
        );
    }

    /// A replica's high watermark after a step. A leader's makes records committed; anyone else's must be among them (I-5).
    pub(super) fn watermark(
        &mut self,
        p: usize,
        term: LeaderEpoch,
        leads: bool,
        watermark: Offset,
        disk: &mut Disk,
    ) {
        let history = &mut self.partitions[p];
        if history.unsettled || term < history.judged_from {
            return;
        }
        follow(history, disk);
        if disk.matched >= watermark {
            return;
        }
        assert_eq!(
            disk.matched,
            history
                .end()
                .max(disk.log.start())
                .max(history.start.min(disk.log.end())),
            "I-5: below its high watermark {watermark} a log differs from what is committed at {:?}: {:?}",
            history.at(disk.matched),
            disk.log
        );
        assert!(
            leads,
            "I-5: a follower is at {watermark}, committed is {}",
            history.end()
        );
        history
            .committed
            .extend(disk.log.read(disk.matched, watermark, usize::MAX));
        assert_eq!(
            history.end(),
            watermark,
            "a high watermark is a batch boundary"
        );
        disk.matched = watermark;
    }

    /// Whether a replica holds everything committed (I-7, I-10).
    pub(super) fn is_complete(&self, p: usize, disk: &mut Disk) -> bool {
        let history = &self.partitions[p];
        follow(history, disk);
        disk.matched >= history.end()
    }

    /// I-11: what a consumer is served is what is committed.
    pub(super) fn consumed(&self, p: usize, term: LeaderEpoch, batches: &[Batch]) {
        if !self.judges(p, term) {
            return;
        }
        for batch in batches {
            let committed = self.partitions[p].at(batch.base);
            assert_eq!(committed, Some(batch), "I-11: served in epoch {term}");
        }
    }

    /// L-54: the newest leader never tells a latest offset before what was already committed (KIP-207).
    pub(super) fn latest_told(&self, p: usize, term: LeaderEpoch, newest: bool, latest: Offset) {
        let end = self.end(p);
        let stale = !newest || !self.judges(p, term);
        assert!(
            stale || latest >= end,
            "L-54: latest is {latest}, committed is {end}"
        );
    }
}

/// Moves the mark up to which a log equals what is committed.
fn follow(history: &History, disk: &mut Disk) {
    if disk.rewritten != history.rewritten {
        disk.rewritten = history.rewritten;
        disk.matched = disk.log.start();
    }
    let known = disk.log.start().max(history.start.min(disk.log.end()));
    disk.matched = disk.matched.min(history.end()).max(known);
    while disk.matched < history.end() && disk.matched < disk.log.end() {
        let ours = disk.log.read(disk.matched, disk.log.end(), 1).first();
        match (ours, history.at(disk.matched)) {
            (Some(ours), Some(committed)) if ours == committed => disk.matched = ours.end,
            _ => return,
        }
    }
}
