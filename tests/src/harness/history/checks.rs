//! The comparisons themselves, one function for each thing that is compared.

use std::collections::{BTreeMap, BTreeSet};

use super::{Anomaly, Audit, History, Outcome, Seen, WriteId};

/// What an acknowledgement says.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Promise {
    /// The record is committed.
    Committed,
    /// The leader of that moment has the record.
    LeaderHasIt,
}

impl History {
    /// Compares what was read with what was written by writers that waited for the commit (acks=all) and number their
    /// records (idempotence).
    pub fn audit(&self) -> Audit {
        self.audit_of(Promise::Committed)
    }

    /// The same for writers that are content with the leader's word (acks=1) and send no record twice. An acknowledged record
    /// may be lost; nothing may be there twice. No order is promised: without sequence numbers a client that changes leaders
    /// may send records it had queued in another order (librdkafka puts a later one into a request of its own, ahead of the
    /// others).
    pub fn audit_leader_only(&self) -> Audit {
        self.audit_of(Promise::LeaderHasIt)
    }

    fn audit_of(&self, promise: Promise) -> Audit {
        let failed = self.failures.iter().cloned();
        let mut anomalies: Vec<_> = failed.map(Anomaly::ClientFailed).collect();
        if promise == Promise::Committed {
            self.check_acked(&mut anomalies);
        }
        self.check_final_log(promise, &mut anomalies);
        self.check_offsets(promise, &mut anomalies);
        self.check_origin(&mut anomalies);
        for reader in self.readers.iter().chain([&self.finally]) {
            check_polls(reader, &mut anomalies);
        }
        let count =
            |told: fn(&Outcome) -> bool| self.writes.iter().filter(|w| told(&w.outcome)).count();
        Audit {
            sent: self.writes.len(),
            acked: count(|o| matches!(o, Outcome::Acked(_))),
            refused: count(|o| matches!(o, Outcome::Refused(_))),
            found: self.finally.len(),
            anomalies,
        }
    }

    fn all_seen(&self) -> impl Iterator<Item = &Seen> {
        self.readers.iter().flatten().chain(&self.finally)
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

    /// Each record once, and each writer's in the order of sending if it numbers them.
    fn check_final_log(&self, promise: Promise, anomalies: &mut Vec<Anomaly>) {
        let mut places = BTreeMap::<_, BTreeSet<_>>::new();
        let mut newest = BTreeMap::<_, WriteId>::new();
        for seen in &self.finally {
            let Some(id) = seen.id else {
                continue;
            };
            let known = places.entry(id).or_default();
            known.insert((seen.partition, seen.offset));
            if known.len() > 1 || promise == Promise::LeaderHasIt {
                continue;
            }
            let before = newest.entry((seen.partition, id.writer)).or_insert(id);
            if *before > id {
                anomalies.push(Anomaly::NonmonotonicSend(seen.partition, *before, id));
            }
            *before = id.max(*before);
        }
        let repeated = places.into_iter().filter(|(_, places)| places.len() > 1);
        anomalies.extend(repeated.map(|(id, places)| Anomaly::Duplicate(id, places)));
    }

    /// An offset is one record's, whoever looks and whenever.
    fn check_offsets(&self, promise: Promise, anomalies: &mut Vec<Anomaly>) {
        let mut observed = BTreeMap::<_, BTreeSet<_>>::new();
        let mut observe =
            |partition, offset, id| observed.entry((partition, offset)).or_default().insert(id);
        for seen in self.all_seen() {
            observe(seen.partition, seen.offset, seen.id);
        }
        for write in &self.writes {
            if let (Promise::Committed, Outcome::Acked(Some(offset))) = (promise, &write.outcome) {
                observe(write.partition, *offset, Some(write.id));
            }
        }
        // What a reader was given was committed, and stays.
        let stayed: BTreeSet<_> = self
            .finally
            .iter()
            .map(|s| (s.partition, s.offset))
            .collect();
        for seen in self.readers.iter().flatten() {
            if !stayed.contains(&(seen.partition, seen.offset)) {
                observe(seen.partition, seen.offset, None);
            }
        }
        let different = observed.into_iter().filter(|(_, ids)| ids.len() > 1);
        anomalies.extend(different.map(|((partition, offset), ids)| {
            Anomaly::InconsistentOffsets(partition, offset, ids)
        }));
    }

    /// Only what was sent can be read, and only where it was sent, and nothing that was refused.
    fn check_origin(&self, anomalies: &mut Vec<Anomaly>) {
        let sent: BTreeMap<_, _> = self
            .writes
            .iter()
            .map(|w| ((w.partition, Some(w.id)), &w.outcome))
            .collect();
        let mut told = BTreeSet::new();
        for seen in self.all_seen() {
            let anomaly = match sent.get(&(seen.partition, seen.id)) {
                None => Anomaly::Unwritten(*seen),
                Some(Outcome::Refused(_)) => Anomaly::RefusedRead(*seen),
                Some(_) => continue,
            };
            if told.insert((seen.partition, seen.offset, seen.id)) {
                anomalies.push(anomaly);
            }
        }
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
