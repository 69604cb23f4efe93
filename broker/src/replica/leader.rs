//! One term of leadership (section 2 of the replication protocol): appends, parked produces, followers' positions, the high
//! watermark, reads and their fencing. A `Leader` is made anew for every leader epoch; which replicas are in sync is decided
//! in `isr.rs`.

use std::collections::VecDeque;

use epoka_proto::error::ErrorCode;
use epoka_proto::ids::{BrokerEpoch, BrokerId, LeaderEpoch, Millis, Offset, PartitionEpoch};
use epoka_proto::metadata::Assignment;

use super::core::Core;
use super::isr::{Isr, IsrView, Remote, Term};
use super::{
    Acks, ClientBatch, Effect, IsrAnswer, News, Notice, Produced, ReadAnswer, ReadGrant,
    ReadRequest, Reader, ReplyId, Sequence, produced,
};

/// A leader during one leader epoch.
#[derive(Debug)]
pub(super) struct Leader {
    term: Term,
    isr: Isr,
    /// The other replicas.
    remotes: Vec<Remote>,
    /// Produces waiting for commit, by the offset they need (L-40). They belong to this term and end with it (L-41).
    waiting: VecDeque<Waiting>,
    disk: Disk,
    wrote: bool,
    watermark_back: bool,
}

/// What the disk is doing for the leader.
#[derive(Debug)]
enum Disk {
    Ready,
    StartingEpoch,
    Appending(Acks, Waiting),
}

/// A produce that waits for the high watermark.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// Answered once the high watermark is here.
    required: Offset,
    reply: ReplyId,
    base_offset: Offset,
    deadline: Millis,
}

impl Leader {
    /// A new term over this log. Nothing is known of the followers but who is in the ISR: what they reported in an earlier term
    /// they must report again (L-3 ⚑, H-16).
    pub(super) fn new(core: &Core, assignment: &Assignment, now: Millis) -> Self {
        let others = assignment.replicas.iter().filter(|&&b| b != core.me);
        Self {
            term: Term {
                epoch: assignment.leader_epoch,
                start: core.log.end,
                min_isr: assignment.min_isr,
            },
            isr: Isr::new(assignment, now + core.settings.replica_lag_time_max_ms / 2),
            remotes: others
                .map(|&b| Remote::new(b, assignment.isr.contains(&b).then_some(now)))
                .collect(),
            waiting: VecDeque::new(),
            disk: Disk::StartingEpoch,
            wrote: false,
            watermark_back: false,
        }
    }

    /// A newer word of the controller in the same term: the ISR or the replicas changed. Positions and the epoch's start stay
    /// (L-4, H-80); a proposal on the older partition epoch can no longer be committed, so it is forgotten (H-39).
    pub(super) fn refresh(
        &mut self,
        core: &mut Core,
        assignment: &Assignment,
        now: Millis,
        effects: &mut Vec<Effect>,
    ) {
        assert_eq!(
            assignment.leader,
            Some(core.me),
            "I-3: one leader in epoch {}",
            self.term.epoch
        );
        self.term.min_isr = assignment.min_isr;
        self.isr.replace(assignment);
        self.remotes
            .retain(|r| assignment.replicas.contains(&r.broker));
        // What an offline replica once had, it may not have when it returns; and nobody waits for it.
        for remote in &mut self.remotes {
            if assignment.offline.contains(&remote.broker) {
                *remote = Remote::new(remote.broker, None);
            }
        }
        for &broker in &assignment.replicas {
            if broker != core.me && !self.remotes.iter().any(|r| r.broker == broker) {
                self.remotes.push(Remote::new(broker, None));
            }
        }
        self.advance(core, now, effects);
    }

    pub(super) fn epoch(&self) -> LeaderEpoch {
        self.term.epoch
    }

    pub(super) fn epoch_start(&self) -> Offset {
        self.term.start
    }

    pub(super) fn remotes(&self) -> &[Remote] {
        &self.remotes
    }

    pub(super) fn silent_members(&self, patience: Millis, now: Millis) -> Vec<BrokerId> {
        self.isr.silent(&self.remotes, patience, now)
    }

    pub(super) fn isr_view(&self) -> IsrView {
        self.isr.view(self.term.min_isr)
    }

    /// A producer's batch (L-10). Everything about the bytes was checked before; here the cluster's state decides.
    #[allow(clippy::too_many_arguments)] // the fields of the event, unpacked once on the hot path
    pub(super) fn produce(
        &mut self,
        core: &mut Core,
        reply: ReplyId,
        acks: Acks,
        batch: ClientBatch,
        deadline: Millis,
        now: Millis,
        effects: &mut Vec<Effect>,
    ) {
        if acks == Acks::All && self.isr.committed().len() < self.term.min_isr {
            effects.push(produced(reply, Err(ErrorCode::NotEnoughReplicas)));
            return;
        }
        match batch.sequence {
            Sequence::Refused(error) => effects.push(produced(reply, Err(error))),
            Sequence::Duplicate { base, end } => {
                assert!(
                    end <= core.log.end,
                    "a duplicate ends at {end}, the log at {}",
                    core.log.end
                );
                let original = Waiting {
                    required: end,
                    reply,
                    base_offset: base,
                    deadline,
                };
                self.appended(core, acks, original, now, effects);
            }
            Sequence::Next => {
                assert!(batch.records > 0, "a batch without records");
                let base_offset = core.log.end;
                let append = Waiting {
                    required: base_offset + batch.records,
                    reply,
                    base_offset,
                    deadline,
                };
                self.disk = Disk::Appending(acks, append);
                let effect = Effect::Append {
                    base_offset,
                    leader_epoch: self.term.epoch,
                    bytes: batch.bytes,
                };
                core.disk(effect, effects);
            }
        }
    }

    /// The outcome of the disk effect asked for last, or a log start raised by retention.
    pub(super) fn log_changed(&mut self, core: &mut Core, now: Millis, effects: &mut Vec<Effect>) {
        match std::mem::replace(&mut self.disk, Disk::Ready) {
            Disk::Ready => {}
            Disk::StartingEpoch => {
                assert_eq!(
                    core.log.epochs.latest(),
                    Some(self.term.epoch),
                    "L-3: the epoch's start is in the history"
                );
                assert_eq!(
                    core.log.end, self.term.start,
                    "nothing was appended meanwhile"
                );
                self.advance(core, now, effects);
                self.note_watermark(core, effects);
            }
            Disk::Appending(acks, append) => {
                assert_eq!(
                    core.log.end, append.required,
                    "the whole batch was appended"
                );
                effects.push(Effect::WakeReaders(News::Appended));
                self.appended(core, acks, append, now, effects);
            }
        }
    }

    /// A batch is in the log: answer its producer, now or once it is committed (L-40).
    fn appended(
        &mut self,
        core: &mut Core,
        acks: Acks,
        batch: Waiting,
        now: Millis,
        effects: &mut Vec<Effect>,
    ) {
        match acks {
            Acks::None | Acks::Leader => {
                self.acknowledge(core, batch, effects);
                self.advance(core, now, effects);
            }
            Acks::All => {
                // New batches go to the back; the original of a duplicate may lie anywhere.
                let at = self
                    .waiting
                    .partition_point(|w| w.required <= batch.required);
                self.waiting.insert(at, batch);
                self.advance(core, now, effects);
                self.complete(core, effects);
            }
        }
    }

    fn acknowledge(&mut self, core: &Core, batch: Waiting, effects: &mut Vec<Effect>) {
        let Waiting {
            reply, base_offset, ..
        } = batch;
        let log_start = core.log.start;
        effects.push(produced(
            reply,
            Ok(Produced {
                base_offset,
                log_start,
            }),
        ));
        if !std::mem::replace(&mut self.wrote, true) {
            let leader_epoch = self.term.epoch;
            effects.push(Effect::Notice(Notice::FirstWrite {
                leader_epoch,
                offset: base_offset,
            }));
        }
    }

    /// Lifts the high watermark to the least log end over the maximal ISR, and over replicas about to join it (L-21, L-22).
    /// Below the minimum ISR it stands still, for acks=1 as well (H-19). Never lowered within a term.
    pub(super) fn advance(&mut self, core: &mut Core, now: Millis, effects: &mut Vec<Effect>) {
        if matches!(self.disk, Disk::StartingEpoch)
            || self.isr.committed().len() < self.term.min_isr
        {
            return;
        }
        let mut new = core.log.end;
        for remote in &self.remotes {
            let counts = self.isr.may_hold(remote.broker)
                || (remote.is_caught_up(core, now) && remote.is_eligible(core)); // without the second half: H-40
            if counts {
                match remote.log_end {
                    Some(end) => new = new.min(end),
                    None => return, // not heard of in this term
                }
            }
        }
        if new > core.high_watermark {
            core.set_high_watermark(new, effects);
            effects.push(Effect::WakeReaders(News::Committed));
            self.complete(core, effects);
            self.note_watermark(core, effects);
        }
    }

    /// Answers the produces that are committed now.
    fn complete(&mut self, core: &Core, effects: &mut Vec<Effect>) {
        while let Some(&batch) = self.waiting.front()
            && batch.required <= core.high_watermark
        {
            // So NOT_ENOUGH_REPLICAS_AFTER_APPEND is never answered: below the minimum the watermark stands, and they wait.
            assert!(
                self.isr.committed().len() >= self.term.min_isr,
                "I-13: {:?}",
                self.isr
            );
            self.waiting.pop_front();
            self.acknowledge(core, batch, effects);
        }
    }

    fn note_watermark(&mut self, core: &Core, effects: &mut Vec<Effect>) {
        if !self.watermark_back && core.high_watermark >= self.term.start {
            self.watermark_back = true;
            effects.push(Effect::Notice(Notice::WatermarkBack {
                leader_epoch: self.term.epoch,
                high_watermark: core.high_watermark,
                writable: self.isr.committed().len() >= self.term.min_isr,
            }));
        }
    }

    /// A fetch whose epoch has been checked (L-50). Divergence and range are judged before anything is recorded of the
    /// follower (L-20, L-52, H-13).
    pub(super) fn read(
        &mut self,
        core: &mut Core,
        request: &ReadRequest,
        now: Millis,
        effects: &mut Vec<Effect>,
    ) -> Result<ReadAnswer, ErrorCode> {
        if let Reader::Follower { broker, epoch } = request.reader {
            self.check_follower(core, request.current_leader_epoch, broker, epoch)?;
        }
        if request.offset < core.log.start {
            return Err(ErrorCode::OffsetOutOfRange); // before any divergence, H-25
        }
        if let Some(last) = request.last_fetched_epoch {
            let history = &core.log.epochs;
            let ours = history.end_offset_for(last, core.log.end);
            let ours = ours.ok_or(ErrorCode::OffsetOutOfRange)?;
            if ours.epoch < last || ours.end < request.offset {
                return Ok(ReadAnswer::Diverging(ours));
            }
        }
        if request.offset > core.log.end {
            return Err(ErrorCode::OffsetOutOfRange);
        }
        let bound = match request.reader {
            Reader::Consumer => core.high_watermark,
            Reader::Follower { broker, epoch } => {
                if !request.again {
                    self.follower_is_at(core, broker, epoch, request.offset, now, effects);
                }
                core.log.end
            }
        };
        Ok(ReadAnswer::Grant(ReadGrant {
            from: request.offset,
            bound,
            high_watermark: core.high_watermark,
            log_start: core.log.start,
            leader_epoch: self.term.epoch,
        }))
    }

    /// Whether a follower's fetch may be heard: it states its epoch (H-7), is one of our replicas, and comes from its newest
    /// life (L-30, H-15).
    fn check_follower(
        &self,
        core: &Core,
        stated: Option<LeaderEpoch>,
        broker: BrokerId,
        epoch: BrokerEpoch,
    ) -> Result<(), ErrorCode> {
        let remote = self.remotes.iter().find(|r| r.broker == broker);
        let remote = remote
            .filter(|_| stated.is_some())
            .ok_or(ErrorCode::UnknownLeaderEpoch)?;
        let newest = remote.broker_epoch.max(core.eligible.get(&broker).copied());
        if Some(epoch) < newest {
            return Err(ErrorCode::NotLeaderOrFollower);
        }
        Ok(())
    }

    /// A follower's fetch acknowledges everything before its offset (L-20).
    fn follower_is_at(
        &mut self,
        core: &mut Core,
        broker: BrokerId,
        epoch: BrokerEpoch,
        offset: Offset,
        now: Millis,
        effects: &mut Vec<Effect>,
    ) {
        let remote = self.remotes.iter_mut().find(|r| r.broker == broker);
        let remote = remote.expect("checked before");
        remote.fetched(epoch, offset, core.log.end, now);
        self.isr
            .maybe_expand(core, self.term, &self.remotes, broker, now, effects);
        self.advance(core, now, effects);
    }

    /// Brokers came or went. A follower that was in order but for its broker's standing is proposed now: its next fetch may be
    /// half a second away, parked here.
    pub(super) fn brokers_changed(
        &mut self,
        core: &mut Core,
        now: Millis,
        effects: &mut Vec<Effect>,
    ) {
        for remote in &self.remotes {
            let joiner = remote.broker;
            self.isr
                .maybe_expand(core, self.term, &self.remotes, joiner, now, effects);
        }
        self.advance(core, now, effects);
    }

    /// The controller answered a proposal (L-34). The high watermark is computed anew, or it would wait for the next fetch
    /// (H-47).
    pub(super) fn isr_answered(
        &mut self,
        core: &mut Core,
        partition_epoch: PartitionEpoch,
        answer: IsrAnswer,
        now: Millis,
        effects: &mut Vec<Effect>,
    ) {
        self.isr
            .answered(core, self.term, partition_epoch, answer, now);
        self.advance(core, now, effects);
    }

    /// Time passed: produces run out of it, followers may have fallen behind, a lost proposal is sent again.
    pub(super) fn tick(&mut self, core: &mut Core, now: Millis, effects: &mut Vec<Effect>) {
        self.waiting.retain(|w| {
            let expired = w.deadline <= now;
            if expired {
                effects.push(produced(w.reply, Err(ErrorCode::RequestTimedOut)));
            }
            !expired
        });
        self.isr.tick(core, self.term, &self.remotes, now, effects);
        self.advance(core, now, effects);
    }

    /// The term is over: nobody who waited is told of success (L-41, L-60).
    pub(super) fn dismiss(self, error: ErrorCode, effects: &mut Vec<Effect>) {
        let appending = match self.disk {
            Disk::Appending(_, batch) => Some(batch),
            Disk::Ready | Disk::StartingEpoch => None,
        };
        for batch in self.waiting.into_iter().chain(appending) {
            effects.push(produced(batch.reply, Err(error)));
        }
    }
}
