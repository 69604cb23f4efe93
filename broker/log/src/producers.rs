//! What a log knows of its idempotent producers: for each the last five batches, which tells a retry from a gap. A pure value;
//! the leader asks it for a verdict before an append, and every replica updates it in the same way after one (P-1 to P-6).

use std::collections::HashMap;

use epoka_proto::batch::BatchHeader;
use epoka_proto::error::ErrorCode;
use epoka_proto::ids::{Millis, Offset, ProducerEpoch, ProducerId};

/// How many batches of a producer are remembered: as many as it may have in flight.
const REMEMBERED: usize = 5;

/// What the leader must do with a producer's batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProducerVerdict {
    /// Not from an idempotent producer, or the sequence expected: append it.
    Next,
    /// A retry of a batch in the log: answer with the old offsets, once they are committed (P-1a, L-40).
    Duplicate {
        /// Its base offset.
        base: Offset,
        /// The offset after its last record.
        end: Offset,
    },
    /// Refused: out of order, or of a fenced producer.
    Refused(ErrorCode),
}

/// A batch in the log, as its producer counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProducerBatch {
    /// The sequence of its last record.
    pub last_sequence: i32,
    /// The offset of its last record.
    pub last_offset: Offset,
    /// Its last offset less its first.
    pub offset_delta: i32,
    /// Its largest record timestamp.
    pub timestamp: Millis,
}

impl ProducerBatch {
    /// The sequence of its first record; before 0 comes 2^31-1.
    fn first_sequence(&self) -> i32 {
        let first = i64::from(self.last_sequence) - i64::from(self.offset_delta);
        if first < 0 {
            (first + i64::from(i32::MAX) + 1) as i32
        } else {
            first as i32
        }
    }

    fn first_offset(&self) -> Offset {
        self.last_offset + -i64::from(self.offset_delta)
    }
}

/// One producer's state in one partition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProducerEntry {
    /// The newest epoch seen; `None` before the first batch.
    epoch: Option<ProducerEpoch>,
    /// The last batches of that epoch, oldest first; the first `count` are meaningful.
    batches: [Option<ProducerBatch>; REMEMBERED],
    /// Epoch of the coordinator that wrote the last transaction marker.
    coordinator_epoch: Option<i32>,
    /// When the producer was last heard of, by its records' timestamps.
    last_timestamp: Millis,
    /// Where its open transaction begins here.
    transaction_start: Option<Offset>,
}

impl ProducerEntry {
    fn new() -> Self {
        Self {
            epoch: None,
            batches: [None; REMEMBERED],
            coordinator_epoch: None,
            last_timestamp: -1,
            transaction_start: None,
        }
    }

    /// An entry as a snapshot keeps it: with the newest batch only.
    pub(crate) fn restored(
        epoch: Option<ProducerEpoch>,
        newest: Option<ProducerBatch>,
        coordinator_epoch: Option<i32>,
        last_timestamp: Millis,
        transaction_start: Option<Offset>,
    ) -> Self {
        let mut entry = Self::new();
        entry.epoch = epoch;
        entry.batches[0] = newest;
        entry.coordinator_epoch = coordinator_epoch;
        entry.last_timestamp = last_timestamp;
        entry.transaction_start = transaction_start;
        entry
    }

    /// The newest epoch seen.
    pub fn epoch(&self) -> Option<ProducerEpoch> {
        self.epoch
    }

    /// The newest batch of that epoch.
    pub fn newest(&self) -> Option<ProducerBatch> {
        self.batches.iter().flatten().last().copied()
    }

    /// When the producer was last heard of, by its records' timestamps.
    pub fn last_timestamp(&self) -> Millis {
        self.last_timestamp
    }

    /// Epoch of the coordinator that wrote the last transaction marker.
    pub fn coordinator_epoch(&self) -> Option<i32> {
        self.coordinator_epoch
    }

    /// Where its open transaction begins here.
    pub fn transaction_start(&self) -> Option<Offset> {
        self.transaction_start
    }

    fn enter_epoch(&mut self, epoch: ProducerEpoch) {
        if self.epoch != Some(epoch) {
            self.epoch = Some(epoch);
            self.batches = [None; REMEMBERED];
        }
    }

    fn push(&mut self, batch: ProducerBatch) {
        let free = self.batches.iter().position(Option::is_none);
        let slot = free.unwrap_or_else(|| {
            self.batches.rotate_left(1);
            REMEMBERED - 1
        });
        self.batches[slot] = Some(batch);
    }

    fn duplicate(&self, header: &BatchHeader) -> Option<&ProducerBatch> {
        let range = (header.base_sequence, header.last_sequence());
        self.batches
            .iter()
            .flatten()
            .find(|b| (b.first_sequence(), b.last_sequence) == range)
    }
}

/// The producers of one partition.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ProducerStates {
    entries: HashMap<ProducerId, ProducerEntry>,
}

impl ProducerStates {
    /// How many producers are known.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether none is known.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// One producer's entry.
    pub fn get(&self, id: ProducerId) -> Option<&ProducerEntry> {
        self.entries.get(&id)
    }

    /// All entries by id.
    pub fn sorted(&self) -> Vec<(ProducerId, &ProducerEntry)> {
        let mut entries: Vec<_> = self
            .entries
            .iter()
            .map(|(id, entry)| (*id, entry))
            .collect();
        entries.sort_unstable_by_key(|(id, _)| *id);
        entries
    }

    pub(crate) fn insert(&mut self, id: ProducerId, entry: ProducerEntry) {
        self.entries.insert(id, entry);
    }

    /// What a leader must do with a client's data batch (P-1 a, c, d, e, f).
    pub fn check(&self, header: &BatchHeader) -> ProducerVerdict {
        let Some(entry) = header.producer_id.and_then(|id| self.entries.get(&id)) else {
            // An unknown producer may start anywhere: its state may have gone with the log's head.
            return ProducerVerdict::Next;
        };
        let Some(epoch) = entry.epoch else {
            return ProducerVerdict::Next;
        };
        if header.producer_epoch < epoch {
            return ProducerVerdict::Refused(ErrorCode::InvalidProducerEpoch);
        }
        if header.producer_epoch > epoch {
            return match header.base_sequence {
                0 => ProducerVerdict::Next,
                _ => ProducerVerdict::Refused(ErrorCode::OutOfOrderSequenceNumber),
            };
        }
        if let Some(batch) = entry.duplicate(header) {
            return ProducerVerdict::Duplicate {
                base: batch.first_offset(),
                end: batch.last_offset + 1,
            };
        }
        let expected = match entry.newest().map(|b| b.last_sequence) {
            None | Some(i32::MAX) => 0,
            Some(last) => last + 1,
        };
        if header.base_sequence != expected {
            return ProducerVerdict::Refused(ErrorCode::OutOfOrderSequenceNumber);
        }
        if entry.transaction_start.is_some() && !header.is_transactional() {
            return ProducerVerdict::Refused(ErrorCode::InvalidTxnState);
        }
        ProducerVerdict::Next
    }

    /// Notes a batch that is in the log now. Never refuses: what is in the log was decided by its leader (P-2, KAFKA-9144).
    pub fn note(&mut self, header: &BatchHeader) {
        let Some(id) = header.producer_id else { return };
        let entry = self.entries.entry(id).or_insert_with(ProducerEntry::new);
        entry.enter_epoch(header.producer_epoch);
        entry.last_timestamp = header.max_timestamp;
        if header.is_control() {
            entry.transaction_start = None;
            return;
        }
        entry.push(ProducerBatch {
            last_sequence: header.last_sequence(),
            last_offset: header.last_offset(),
            offset_delta: header.last_offset_delta,
            timestamp: header.max_timestamp,
        });
        if header.is_transactional() && entry.transaction_start.is_none() {
            entry.transaction_start = Some(header.base_offset);
        }
    }

    /// Takes over the batches before each producer's newest from states that end at the same newest batch.
    pub(crate) fn recall(&mut self, earlier: &Self) {
        let newest =
            |entry: &ProducerEntry| entry.newest().map(|b| (b.last_sequence, b.last_offset));
        for (id, entry) in &mut self.entries {
            let known = earlier.get(*id);
            if let Some(known) =
                known.filter(|k| k.epoch == entry.epoch && newest(k) == newest(entry))
            {
                entry.batches = known.batches;
            }
        }
    }

    /// Forgets producers that were silent for `expiration_ms` and have no open transaction (P-4). Says how many.
    pub fn expire(&mut self, now: Millis, expiration_ms: Millis) -> usize {
        let before = self.entries.len();
        self.entries.retain(|_, entry| {
            let silent = now.saturating_sub(entry.last_timestamp);
            entry.transaction_start.is_some() || silent < expiration_ms
        });
        before - self.entries.len()
    }

    /// Forgets everything: the log starts over.
    pub fn clear(&mut self) {
        self.entries.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ProducerVerdict::{Duplicate, Next, Refused};
    use epoka_proto::batch::Attributes;

    fn header(epoch: i16, base_sequence: i32, records: i32, base_offset: i64) -> BatchHeader {
        BatchHeader {
            base_offset: Offset(base_offset),
            size: 100,
            leader_epoch: 0,
            crc: 0,
            attributes: Attributes(0),
            last_offset_delta: records - 1,
            base_timestamp: 1000,
            max_timestamp: 1000,
            producer_id: Some(ProducerId(7)),
            producer_epoch: ProducerEpoch(epoch),
            base_sequence,
            records_count: records,
        }
    }

    #[test]
    fn verdicts_on_a_producers_batch_p_1() {
        // Six batches of two records, sequences 0-11, at offsets 100-111; the first of them is forgotten.
        let mut states = ProducerStates::default();
        for i in 0..6 {
            let next = header(3, i * 2, 2, 100 + i64::from(i) * 2);
            assert_eq!(states.check(&next), Next);
            states.note(&next);
        }
        let duplicate = |base| Duplicate {
            base: Offset(base),
            end: Offset(base + 2),
        };
        let out_of_order = Refused(ErrorCode::OutOfOrderSequenceNumber);
        for (rule, epoch, sequence, records, verdict) in [
            ("e: the next one", 3, 12, 5, Next),
            ("a: the last one again", 3, 10, 2, duplicate(110)),
            ("a: five back", 3, 2, 2, duplicate(102)),
            ("a: six back is forgotten", 3, 0, 2, out_of_order),
            ("a: an overlap is no duplicate", 3, 10, 3, out_of_order),
            ("a: part of a batch is no duplicate", 3, 10, 1, out_of_order),
            ("e: a gap", 3, 13, 1, out_of_order),
            (
                "c: an older epoch",
                2,
                12,
                1,
                Refused(ErrorCode::InvalidProducerEpoch),
            ),
            ("d: a newer epoch begins at 0", 4, 0, 1, Next),
            ("d: and nowhere else", 4, 12, 1, out_of_order),
        ] {
            assert_eq!(
                states.check(&header(epoch, sequence, records, 0)),
                verdict,
                "{rule}"
            );
        }
        let mut stranger = header(9, 44, 1, 0);
        stranger.producer_id = Some(ProducerId(8));
        assert_eq!(
            states.check(&stranger),
            Next,
            "d: an unknown producer starts anywhere"
        );
        stranger.producer_id = None;
        assert_eq!(states.check(&stranger), Next, "no producer at all");
    }

    #[test]
    fn after_sequence_2_31_minus_1_comes_0_h_74() {
        let mut states = ProducerStates::default();
        states.note(&header(0, i32::MAX - 1, 2, 0));
        assert_eq!(states.check(&header(0, 0, 1, 2)), Next);
        // A batch across the wrap: sequences 2^31-1, 0, 1.
        let mut states = ProducerStates::default();
        states.note(&header(0, i32::MAX, 3, 10));
        let again = Duplicate {
            base: Offset(10),
            end: Offset(13),
        };
        assert_eq!(states.check(&header(0, i32::MAX, 3, 0)), again);
        assert_eq!(states.check(&header(0, 2, 1, 0)), Next);
    }

    #[test]
    fn a_new_epoch_forgets_the_batches_of_the_old_one() {
        let mut states = ProducerStates::default();
        states.note(&header(0, 0, 1, 0));
        states.note(&header(1, 0, 1, 1));
        let entry = states.get(ProducerId(7)).unwrap();
        assert_eq!(entry.epoch(), Some(ProducerEpoch(1)));
        assert_eq!(entry.batches.iter().flatten().count(), 1);
    }

    #[test]
    fn a_follower_notes_what_a_leader_would_refuse_h_75() {
        let mut states = ProducerStates::default();
        states.note(&header(5, 0, 1, 0));
        states.note(&header(4, 77, 1, 1)); // of an older epoch, out of order
        let entry = states.get(ProducerId(7)).unwrap();
        assert_eq!(entry.epoch(), Some(ProducerEpoch(4)));
        assert_eq!(entry.newest().unwrap().last_sequence, 77);
    }

    #[test]
    fn a_transaction_opens_with_its_first_batch_and_ends_with_its_marker() {
        let mut states = ProducerStates::default();
        let mut data = header(0, 0, 1, 10);
        data.attributes = Attributes(1 << 4);
        states.note(&data);
        assert_eq!(
            states.get(ProducerId(7)).unwrap().transaction_start(),
            Some(Offset(10))
        );
        let plain = header(0, 1, 1, 11);
        assert_eq!(
            states.check(&plain),
            Refused(ErrorCode::InvalidTxnState),
            "P-1f"
        );
        assert_eq!(
            states.expire(i64::MAX, 1),
            0,
            "an open transaction never expires (P-4)"
        );
        let mut marker = header(0, -1, 1, 11);
        marker.attributes = Attributes(1 << 4 | 1 << 5);
        states.note(&marker);
        let entry = states.get(ProducerId(7)).unwrap();
        assert_eq!(entry.transaction_start(), None);
        assert_eq!(entry.newest().unwrap().last_sequence, 0, "batches stay");
    }

    #[test]
    fn silent_producers_expire_p_4() {
        let mut states = ProducerStates::default();
        states.note(&header(0, 0, 1, 0)); // at time 1000
        assert_eq!(states.expire(1099, 100), 0);
        assert_eq!(states.expire(1100, 100), 1);
        assert!(states.is_empty());
    }
}
