//! The change builder: from what a partition is and what it should become, to its next assignment with the right epochs.
//! Section 1.3 of the replication protocol, in its order: reassignment, eligible replicas, election, epochs. Eligible leader
//! replicas (KIP-966) are always on. Pure; knows one partition and nothing else.

use epoka_proto::ids::BrokerId;
use epoka_proto::metadata::{Assignment, Recovery};

/// How a leader may be chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Keeps the leader if it can lead, else the first replica that can (C-31).
    Online,
    /// As `Online`, and rather a replica that lacks committed records than none.
    Unclean,
    /// The first replica, if it can lead (C-32).
    Preferred,
}

/// The next assignment of a partition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Changed {
    pub(super) assignment: Assignment,
    /// The leader may lack committed records.
    pub(super) unclean: bool,
}

/// A change being prepared. Without edits it still elects a leader where one is missing.
pub(super) struct Change<'a> {
    old: &'a Assignment,
    /// May replicas on this broker lead and be in the ISR (C-15)?
    acceptable: &'a dyn Fn(BrokerId) -> bool,
    kind: Kind,
    /// The broker that may have lost acknowledged records (C-13).
    unclean_restart: Option<BrokerId>,
    /// What is to become; election and reassignment edit it further.
    next: Assignment,
}

impl<'a> Change<'a> {
    pub(super) fn new(
        old: &'a Assignment,
        min_isr: usize,
        acceptable: &'a dyn Fn(BrokerId) -> bool,
    ) -> Self {
        let next = Assignment {
            min_isr,
            ..old.clone()
        };
        Self {
            old,
            acceptable,
            kind: Kind::Online,
            unclean_restart: None,
            next,
        }
    }

    pub(super) fn kind(self, kind: Kind) -> Self {
        Self { kind, ..self }
    }

    /// The ISR wanted. Members are kept in the order of the replicas, so that equal sets are equal lists.
    pub(super) fn isr(mut self, isr: &[BrokerId]) -> Self {
        self.next.isr = self.next.replicas.clone();
        self.next.isr.retain(|r| isr.contains(r));
        self
    }

    /// The ISR without this broker.
    pub(super) fn without(mut self, broker: BrokerId) -> Self {
        self.next.isr.retain(|&r| r != broker);
        self
    }

    /// This broker may have lost acknowledged records: it is eligible no longer.
    pub(super) fn unclean_restart(self, broker: BrokerId) -> Self {
        Self {
            unclean_restart: Some(broker),
            ..self
        }
    }

    /// This broker's replica cannot serve: out of the ISR, and no election chooses it.
    pub(super) fn offline(mut self, broker: BrokerId) -> Self {
        let known = std::mem::take(&mut self.next.offline);
        self.next.offline = self.next.replicas.clone();
        let is_offline = |r: &BrokerId| *r == broker || known.contains(r);
        self.next.offline.retain(is_offline);
        self.without(broker)
    }

    /// This broker's replica may be able to serve again.
    pub(super) fn online(mut self, broker: BrokerId) -> Self {
        self.next.offline.retain(|&r| r != broker);
        self
    }

    /// What this broker's replica held is gone: that it led last says nothing of it any more.
    pub(super) fn lost(mut self, broker: BrokerId) -> Self {
        self.next.last_known_elr.retain(|&r| r != broker);
        self.without(broker)
    }

    pub(super) fn recovery(mut self, recovery: Recovery) -> Self {
        self.next.recovery = recovery;
        self
    }

    /// The assignment that results, or `None` when it is the one there is.
    pub(super) fn build(mut self) -> Option<Changed> {
        self.complete_reassignment();
        self.update_offline_replicas();
        self.update_eligible_replicas();
        let election = self.elect();
        self.settle(election);
        self.remember_last_leader();

        let old = self.old;
        let replica_left = old.replicas.iter().any(|r| !self.next.replicas.contains(r));
        // C-3: the leader epoch grows iff the leader is written, which a departed replica forces (step 4).
        let leader_written = self.next.leader != old.leader || replica_left || election.unclean;
        if !leader_written && self.next == *old {
            return None;
        }
        if leader_written {
            self.next.leader_epoch = old.leader_epoch.next();
        }
        self.next.partition_epoch = old.partition_epoch.next();
        Some(Changed {
            assignment: self.next,
            unclean: election.unclean,
        })
    }

    /// Step 1: ends a reassignment once every replica that stays is in sync and enough of them are (C-42).
    fn complete_reassignment(&mut self) {
        let next = &mut self.next;
        if next.adding.is_empty() && next.removing.is_empty() {
            return;
        }
        let staying = |list: &[BrokerId]| -> Vec<BrokerId> {
            let stays = |r: &&BrokerId| !next.removing.contains(r);
            list.iter().filter(stays).copied().collect()
        };
        let (replicas, isr) = (staying(&next.replicas), staying(&next.isr));
        let in_sync = !replicas.is_empty() && replicas.iter().all(|r| isr.contains(r));
        if in_sync && isr.len() >= next.min_isr.min(replicas.len()) {
            next.min_isr = next.min_isr.min(replicas.len());
            next.replicas = replicas;
            next.isr = isr;
            next.adding.clear();
            next.removing.clear();
        }
    }

    /// A replica that its leader has found to hold everything is in order again.
    fn update_offline_replicas(&mut self) {
        let Assignment {
            replicas,
            isr,
            offline,
            ..
        } = &mut self.next;
        offline.retain(|r| replicas.contains(r) && !isr.contains(r));
    }

    /// Step 2: who left the ISR while it is below the minimum still holds everything committed, because the leader lets
    /// nothing more be committed meanwhile (L-21).
    fn update_eligible_replicas(&mut self) {
        let next = &mut self.next;
        if next.isr.len() >= next.min_isr {
            next.elr.clear();
            next.last_known_elr.clear();
            return;
        }
        let candidate = |r: &BrokerId| self.old.elr.contains(r) || self.old.isr.contains(r);
        let in_order = next.replicas.iter().copied();
        next.elr = in_order
            .filter(|r| candidate(r) && !next.isr.contains(r) && self.unclean_restart != Some(*r))
            .collect();
    }

    /// Whether this replica can lead without loss (C-30).
    fn valid(&self, replica: BrokerId) -> bool {
        let holds_all = self.next.isr.contains(&replica)
            || (self.next.isr.is_empty() && self.next.elr.contains(&replica));
        holds_all && self.can_serve(replica)
    }

    /// Whether this replica can lead at all: its broker can, and it is not offline (C-15).
    fn can_serve(&self, replica: BrokerId) -> bool {
        !self.next.offline.contains(&replica) && (self.acceptable)(replica)
    }

    /// Step 3.
    fn elect(&self) -> Election {
        let replicas = || self.next.replicas.iter().copied();
        let preferred = replicas().next().filter(|_| self.kind == Kind::Preferred);
        let current = self.next.leader;
        let mut clean = preferred.into_iter().chain(current).chain(replicas());
        if let Some(leader) = clean.find(|&r| self.valid(r)) {
            return Election {
                leader: Some(leader),
                unclean: false,
            };
        }
        let last_known = self.last_known_leader();
        let any = || replicas().find(|&r| self.can_serve(r));
        let leader = last_known.or_else(|| (self.kind == Kind::Unclean).then(any).flatten());
        Election {
            leader,
            unclean: leader.is_some(),
        }
    }

    /// The last leader before ISR and eligible replicas ran empty, if it is back (C-34, H-14).
    fn last_known_leader(&self) -> Option<BrokerId> {
        let next = &self.next;
        match next.last_known_elr[..] {
            [last]
                if next.isr.is_empty()
                    && next.elr.is_empty()
                    && next.replicas.contains(&last)
                    && self.can_serve(last) =>
            {
                Some(last)
            }
            _ => None,
        }
    }

    /// What an election means for ISR and eligible replicas (C-33, C-35).
    fn settle(&mut self, election: Election) {
        let next = &mut self.next;
        next.leader = election.leader;
        let Some(leader) = election.leader else {
            return;
        };
        if election.unclean {
            next.isr = vec![leader];
            next.elr.clear();
            next.last_known_elr.clear();
            next.recovery = Recovery::Recovering;
        } else if next.isr.is_empty() {
            next.isr = vec![leader];
            next.elr.retain(|&r| r != leader);
        }
        // A minimum lowered while nobody was in sync: the leader alone may commit now, so nobody else stays eligible (H-46).
        if next.isr.len() >= next.min_isr {
            next.elr.clear();
        }
    }

    /// Step 7: one id, the last leader, is remembered while there is none.
    fn remember_last_leader(&mut self) {
        let next = &mut self.next;
        if next.leader.is_some() {
            next.last_known_elr.clear();
        } else if next.isr.is_empty()
            && let Some(last) = self.old.leader
        {
            next.last_known_elr = vec![last];
        }
    }
}

#[derive(Clone, Copy)]
struct Election {
    leader: Option<BrokerId>,
    unclean: bool,
}

#[cfg(test)]
mod tests;
