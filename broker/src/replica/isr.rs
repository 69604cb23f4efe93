//! Who is in sync: the leader's picture of each follower, and the ISR with the one proposal that may be on its way to the
//! controller (sections 2.4 and 2.5). While a proposal is open, the high watermark waits for every replica that may be in the
//! ISR: the maximal ISR. Nothing here touches the watermark itself.

use epoka_proto::error::ErrorCode;
use epoka_proto::ids::{BrokerEpoch, BrokerId, LeaderEpoch, Millis, Offset, PartitionEpoch};
use epoka_proto::metadata::Assignment;

use super::core::Core;
use super::{Effect, IsrAnswer};

/// How long to wait before asking the controller again after it did not answer, or refused.
const RETRY_MS: Millis = 100;

/// The term a leader leads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Term {
    pub(super) epoch: LeaderEpoch,
    /// The log end at election (L-3).
    pub(super) start: Offset,
    /// Effective minimum ISR, as the controller computed it (C-36).
    pub(super) min_isr: usize,
}

/// What the leader knows of another replica, from its fetches in this term.
#[derive(Debug)]
pub(super) struct Remote {
    pub(super) broker: BrokerId,
    /// Everything before this is on it.
    pub(super) log_end: Option<Offset>,
    /// The life of it that fetched last.
    pub(super) broker_epoch: Option<BrokerEpoch>,
    /// When it fetched last, and where our log ended then.
    last_fetch: Option<(Millis, Offset)>,
    /// When it was last known to have been at our log end.
    last_caught_up: Option<Millis>,
}

impl Remote {
    pub(super) fn new(broker: BrokerId, last_caught_up: Option<Millis>) -> Self {
        Self {
            broker,
            log_end: None,
            broker_epoch: None,
            last_fetch: None,
            last_caught_up,
        }
    }

    /// Takes a valid fetch into account (L-30). A follower that has reached where our log ended at its previous fetch was caught
    /// up then: a steady stream of small appends must not make it look behind (H-48).
    pub(super) fn fetched(
        &mut self,
        epoch: BrokerEpoch,
        offset: Offset,
        leader_end: Offset,
        now: Millis,
    ) {
        let caught_up = match self.last_fetch {
            _ if offset >= leader_end => Some(now),
            Some((time, end)) if offset >= end => Some(time),
            _ => None,
        };
        self.last_caught_up = self.last_caught_up.max(caught_up);
        let seen = self
            .last_fetch
            .map_or(leader_end, |(_, end)| end.max(leader_end));
        self.last_fetch = Some((now, seen));
        self.log_end = Some(offset);
        self.broker_epoch = Some(epoch);
    }

    /// At our log end now, or not long ago (L-23). An idle follower at the end never falls behind.
    pub(super) fn is_caught_up(&self, core: &Core, now: Millis) -> bool {
        let recently = |then| now - then <= core.settings.replica_lag_time_max_ms;
        self.log_end == Some(core.log.end) || self.last_caught_up.is_some_and(recently)
    }

    /// Has not fetched for so long, in milliseconds, though followers at the end ask again and again.
    fn is_silent(&self, patience: Millis, now: Millis) -> bool {
        let fetched = self.last_fetch.map(|(time, _)| time);
        let heard = fetched.max(self.last_caught_up);
        heard.is_none_or(|heard| now - heard > patience)
    }

    /// Active, and the life that fetched is the one registered (L-24).
    pub(super) fn is_eligible(&self, core: &Core) -> bool {
        self.broker_epoch.is_some() && core.eligible.get(&self.broker).copied() == self.broker_epoch
    }
}

/// The ISR as a leader sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IsrView {
    /// The members the controller has committed.
    pub committed: Vec<BrokerId>,
    /// The members proposed to it, if an answer is awaited.
    pub proposed: Option<Vec<BrokerId>>,
    /// Every replica that may be a member: what the high watermark waits for.
    pub maximal: Vec<BrokerId>,
    /// The minimum for acks=all to succeed.
    pub min_isr: usize,
}

/// The committed ISR and the proposal on its way.
#[derive(Debug)]
pub(super) struct Isr {
    committed: Vec<BrokerId>,
    pending: Option<Proposal>,
    /// Replicas that proposals on this partition epoch would have added and that went unanswered: a copy may still be on its
    /// way to the controller and be committed there, even after a later copy was refused.
    at_large: Vec<BrokerId>,
    next_lag_check: Millis,
    /// No new proposal before this: the last one was refused.
    not_before: Millis,
}

/// A proposal whose outcome is not known. The same words are sent again when the answer is lost (L-34, H-10).
#[derive(Debug)]
struct Proposal {
    partition_epoch: PartitionEpoch,
    isr: Vec<(BrokerId, Option<BrokerEpoch>)>,
    sent: Sent,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sent {
    /// An answer, or newer metadata, will come.
    Awaited,
    /// To be sent again at this time.
    Again(Millis),
}

impl Isr {
    pub(super) fn new(assignment: &Assignment, next_lag_check: Millis) -> Self {
        Self {
            committed: assignment.isr.clone(),
            pending: None,
            at_large: Vec::new(),
            next_lag_check,
            not_before: Millis::MIN,
        }
    }

    /// The controller's newer word.
    pub(super) fn replace(&mut self, assignment: &Assignment) {
        self.committed.clone_from(&assignment.isr);
        self.pending = None;
        self.at_large.clear();
    }

    pub(super) fn committed(&self) -> &[BrokerId] {
        &self.committed
    }

    /// Whether a replica is in the maximal ISR: committed, or proposed to join. One that is proposed to leave stays until that
    /// is committed (L-31, H-18).
    pub(super) fn may_hold(&self, broker: BrokerId) -> bool {
        self.committed.contains(&broker)
            || self.pending.as_ref().is_some_and(|p| p.names(broker))
            || self.at_large.contains(&broker)
    }

    /// Members that have not fetched for so long: what is written waits for them.
    pub(super) fn silent(
        &self,
        remotes: &[Remote],
        patience: Millis,
        now: Millis,
    ) -> Vec<BrokerId> {
        let members = remotes
            .iter()
            .filter(|r| self.committed.contains(&r.broker));
        let silent = members.filter(|r| r.is_silent(patience, now));
        silent.map(|r| r.broker).collect()
    }

    pub(super) fn view(&self, min_isr: usize) -> IsrView {
        let proposed = self
            .pending
            .as_ref()
            .map(|p| p.isr.iter().map(|&(b, _)| b).collect::<Vec<_>>());
        let mut maximal = self.committed.clone();
        for &broker in proposed.iter().flatten().chain(&self.at_large) {
            if !maximal.contains(&broker) {
                maximal.push(broker);
            }
        }
        IsrView {
            committed: self.committed.clone(),
            proposed,
            maximal,
            min_isr,
        }
    }

    /// Proposes a follower that has just fetched (L-32): it is past the high watermark *and* past the start of this term, since
    /// a new leader's high watermark may lie behind what is committed (H-12). Below the minimum ISR the watermark stands still
    /// and says little, so there it must also be caught up (H-43).
    pub(super) fn maybe_expand(
        &mut self,
        core: &Core,
        term: Term,
        remotes: &[Remote],
        joiner: BrokerId,
        now: Millis,
        effects: &mut Vec<Effect>,
    ) {
        if self.pending.is_some() || now < self.not_before || self.committed.contains(&joiner) {
            return;
        }
        let Some(remote) = remotes.iter().find(|r| r.broker == joiner) else {
            return;
        };
        let holds_committed = |end| end >= core.high_watermark && end >= term.start;
        let settled = self.committed.len() >= term.min_isr || remote.is_caught_up(core, now);
        if remote.log_end.is_some_and(holds_committed) && remote.is_eligible(core) && settled {
            let members = self.committed.iter().copied().chain([joiner]).collect();
            self.propose(core, term, remotes, members, effects);
        }
    }

    /// Time passed: drop who fell behind (L-31), send a lost proposal again.
    pub(super) fn tick(
        &mut self,
        core: &Core,
        term: Term,
        remotes: &[Remote],
        now: Millis,
        effects: &mut Vec<Effect>,
    ) {
        if let Some(pending) = &mut self.pending
            && let Sent::Again(time) = pending.sent
            && time <= now
        {
            pending.sent = Sent::Awaited;
            effects.push(pending.ask(term.epoch));
        }
        if self.pending.is_none() && now >= self.not_before && !self.at_large.is_empty() {
            // Proposing what is committed moves the partition epoch, and with it every copy at large into the past.
            self.propose(core, term, remotes, self.committed.clone(), effects);
        }
        if now < self.next_lag_check {
            return;
        }
        self.next_lag_check = now + core.settings.replica_lag_time_max_ms / 2;
        if self.pending.is_some() || now < self.not_before {
            return;
        }
        let keeps_up = |b: BrokerId| {
            b == core.me
                || remotes
                    .iter()
                    .any(|r| r.broker == b && r.is_caught_up(core, now))
        };
        let stay: Vec<_> = self
            .committed
            .iter()
            .copied()
            .filter(|&b| keeps_up(b))
            .collect();
        if stay.len() < self.committed.len() {
            self.propose(core, term, remotes, stay, effects);
        }
    }

    fn propose(
        &mut self,
        core: &Core,
        term: Term,
        remotes: &[Remote],
        members: Vec<BrokerId>,
        effects: &mut Vec<Effect>,
    ) {
        let life = |b: BrokerId| match remotes.iter().find(|r| r.broker == b) {
            Some(remote) => remote.broker_epoch,
            None => core.eligible.get(&b).copied(), // ourselves
        };
        let proposal = Proposal {
            partition_epoch: core.known.expect("a leader was assigned").partition_epoch,
            isr: members.into_iter().map(|b| (b, life(b))).collect(),
            sent: Sent::Awaited,
        };
        effects.push(proposal.ask(term.epoch));
        self.pending = Some(proposal);
    }

    /// The controller's answer (L-34). Only what is certain moves us off the maximal ISR: going back on an unknown outcome is
    /// the classic mistake, because the change may have been committed (H-10).
    pub(super) fn answered(
        &mut self,
        core: &mut Core,
        term: Term,
        partition_epoch: PartitionEpoch,
        answer: IsrAnswer,
        now: Millis,
    ) {
        let Some(pending) = self
            .pending
            .as_mut()
            .filter(|p| p.partition_epoch == partition_epoch)
        else {
            return;
        };
        match answer {
            IsrAnswer::Committed {
                leader_epoch,
                partition_epoch,
                isr,
            } => {
                let known = core.known.as_mut().expect("a leader was assigned");
                if leader_epoch == term.epoch && partition_epoch >= known.partition_epoch {
                    if partition_epoch > known.partition_epoch {
                        self.at_large.clear();
                    }
                    known.partition_epoch = partition_epoch;
                    self.committed = isr;
                    self.pending = None;
                }
            }
            // Certainly not applied: this copy of it.
            IsrAnswer::Refused(ErrorCode::IneligibleReplica) => {
                self.pending = None;
                self.not_before = now + RETRY_MS;
            }
            // We are behind, or deposed: the metadata will say.
            IsrAnswer::Refused(
                ErrorCode::FencedLeaderEpoch
                | ErrorCode::InvalidUpdateVersion
                | ErrorCode::InvalidRequest
                | ErrorCode::UnknownTopicId
                | ErrorCode::UnknownTopicOrPartition
                | ErrorCode::NewLeaderElected,
            ) => {}
            IsrAnswer::Refused(_) | IsrAnswer::Unknown => {
                let joins = pending.isr.iter().map(|&(b, _)| b);
                let joins =
                    joins.filter(|b| !self.committed.contains(b) && !self.at_large.contains(b));
                self.at_large.extend(joins.collect::<Vec<_>>());
                pending.sent = Sent::Again(now + RETRY_MS);
            }
        }
    }
}

impl Proposal {
    fn names(&self, broker: BrokerId) -> bool {
        self.isr.iter().any(|&(b, _)| b == broker)
    }

    fn ask(&self, leader_epoch: LeaderEpoch) -> Effect {
        Effect::AskIsr {
            leader_epoch,
            partition_epoch: self.partition_epoch,
            isr: self.isr.clone(),
            recovering: false, // a new leader has recovered when it leads (C-37)
        }
    }
}
