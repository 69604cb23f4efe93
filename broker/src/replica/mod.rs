//! The replica: the pure state machine of one partition on one broker. `step(event) -> effects`; no I/O, no clock, no async.
//! A refusal is an effect; a broken invariant is an assert, on in production. What the log holds is told to it
//! (`Event::LogChanged`), what to do with the log it says (`Effect`). Rules L-*, F-* of the replication protocol.
//!
//! The shell's side of the bargain: one event at a time; after a step it runs the effects in order, and feeds `LogChanged` (or
//! `LogFailed`) back after each disk effect, before any other event. A step asks for one disk effect at most; what follows it
//! comes out of the `LogChanged`.

mod core;
mod event;
mod follower;
mod isr;
mod leader;

use std::sync::Arc;

use epoka_proto::epochs::EpochEnd;
use epoka_proto::error::ErrorCode;
use epoka_proto::ids::{BrokerEpoch, BrokerId, LeaderEpoch, Millis, Offset, PartitionEpoch};
use epoka_proto::metadata::Assignment;

use self::core::Core;
pub use self::event::*;
use self::follower::Follower;
pub use self::isr::IsrView;
use self::leader::Leader;

/// What an operator may set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// A follower that has not been at the leader's log end for this long leaves the ISR (`replica.lag.time.max.ms`).
    pub replica_lag_time_max_ms: Millis,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            replica_lag_time_max_ms: 30_000,
        }
    }
}

/// One partition on one broker.
#[derive(Debug)]
pub struct Replica {
    core: Core,
    role: Role,
}

/// What this broker is to the partition. State that means something in one role only lives in that role, and dies with it: a
/// parked produce cannot outlive its term (L-41), nor a follower's position the leadership it was reported to (L-3).
#[derive(Debug)]
enum Role {
    /// Neither leads nor follows: nothing assigned yet, nobody leads (L-61), or the partition moved away.
    Idle,
    Leader(Leader),
    Follower(Follower),
    /// The disk failed: nothing is written or served any more.
    Failed,
}

impl Replica {
    /// A replica over a log that was just opened, with the last high watermark known of it (L-2).
    pub fn new(me: BrokerId, settings: Settings, log: LogState, high_watermark: Offset) -> Self {
        Self {
            core: Core::new(me, settings, log, high_watermark),
            role: Role::Idle,
        }
    }

    /// Takes one event and appends what must be done about it, in order.
    pub fn step(&mut self, event: Event, effects: &mut Vec<Effect>) {
        assert!(
            !self.core.disk_busy
                || matches!(event, Event::LogChanged { .. } | Event::LogFailed { .. }),
            "the disk effect asked for last has no outcome yet, but {event:?}"
        );
        match event {
            Event::Produce {
                reply,
                acks,
                batch,
                deadline,
                now,
            } => match &mut self.role {
                Role::Leader(leader) => {
                    leader.produce(&mut self.core, reply, acks, batch, deadline, now, effects)
                }
                _ => {
                    let error = self.refusal();
                    effects.push(produced(reply, Err(error)));
                }
            },
            Event::Read {
                reply,
                request,
                now,
            } => {
                let answer = self.read(&request, now, effects);
                let answer = Answer::Read(answer);
                effects.push(Effect::Reply { to: reply, answer });
            }
            Event::LogChanged { log, now } => self.log_changed(log, now, effects),
            Event::Fetched {
                leader_epoch,
                fetch_offset,
                last_fetched_epoch,
                answer,
                now,
            } => {
                let asked = (leader_epoch, fetch_offset, last_fetched_epoch);
                if let Role::Follower(follower) = &mut self.role
                    && follower.asks(&self.core) == Some(asked)
                {
                    follower.fetched(&mut self.core, answer, now, effects);
                }
            }
            Event::Bounds {
                leader_epoch,
                answer,
                now,
            } => {
                if let Role::Follower(follower) = &mut self.role
                    && self.core.leader_epoch() == Some(leader_epoch)
                {
                    follower.bounds(&mut self.core, answer, now, effects);
                }
            }
            Event::Isr {
                leader_epoch,
                partition_epoch,
                answer,
                now,
            } => {
                if let Role::Leader(leader) = &mut self.role
                    && leader.epoch() == leader_epoch
                {
                    leader.isr_answered(&mut self.core, partition_epoch, answer, now, effects);
                }
            }
            Event::Assigned {
                assignment,
                eligible,
                now,
            } => {
                self.core.eligible = eligible;
                self.assigned(&assignment, now, effects);
            }
            Event::Eligible { brokers, now } => {
                self.core.eligible = brokers;
                if let Role::Leader(leader) = &mut self.role {
                    leader.brokers_changed(&mut self.core, now, effects);
                }
            }
            Event::Tick { now } => {
                if let Role::Leader(leader) = &mut self.role {
                    leader.tick(&mut self.core, now, effects);
                }
            }
            Event::LogFailed { reason } => {
                self.core.disk_busy = false;
                self.leave(Role::Failed, ErrorCode::KafkaStorageError, effects);
                effects.push(Effect::Notice(Notice::Failed { reason }));
            }
            Event::Removed => self.leave(Role::Idle, ErrorCode::NotLeaderOrFollower, effects),
        }
    }

    /// Takes the controller's word (L-1 to L-6, L-60, L-61, F-2).
    fn assigned(&mut self, new: &Arc<Assignment>, now: Millis, effects: &mut Vec<Effect>) {
        let new_term = match self.core.known {
            None => true,
            Some(known) if new.partition_epoch <= known.partition_epoch => {
                // An older word changes nothing (L-1), nor does the same one again: a proposal may be waiting for its answer
                // on this very epoch, and taking the ISR anew would forget the member it adds (C-52, H-11).
                assert!(
                    new.partition_epoch < known.partition_epoch
                        || new.leader_epoch == known.leader_epoch,
                    "I-2: {new:?} after {known:?}"
                );
                if let Role::Leader(leader) = &mut self.role {
                    leader.advance(&mut self.core, now, effects);
                }
                return;
            }
            Some(known) => {
                assert!(
                    new.leader_epoch >= known.leader_epoch,
                    "I-2: {new:?} after {known:?}"
                );
                new.leader_epoch > known.leader_epoch
            }
        };
        self.core.learn(new);
        let member = new.replicas.contains(&self.core.me);
        match (&mut self.role, new.leader.filter(|_| member)) {
            (Role::Failed, _) => {}
            (_, None) => self.leave(Role::Idle, ErrorCode::NotLeaderOrFollower, effects),
            (Role::Leader(leader), Some(_)) if !new_term => {
                leader.refresh(&mut self.core, new, now, effects)
            }
            (Role::Follower(_), Some(_)) if !new_term => {}
            (_, Some(leader)) if leader != self.core.me => {
                self.leave(
                    Role::Follower(Follower::new(leader)),
                    ErrorCode::NotLeaderOrFollower,
                    effects,
                );
            }
            (_, Some(_)) if new_term => self.lead(new, now, effects),
            (_, Some(_)) => {} // refused before
        }
    }

    /// Begins a term as leader (L-3).
    fn lead(&mut self, new: &Assignment, now: Millis, effects: &mut Vec<Effect>) {
        let in_log = self.core.log.epochs.latest();
        if in_log >= Some(new.leader_epoch) {
            // Someone led this epoch or a later one already, perhaps an earlier life of this broker: the word is old, and
            // appending under it would give one (offset, epoch) two contents (I-3, I-4). A newer one is on its way.
            self.leave(Role::Idle, ErrorCode::NotLeaderOrFollower, effects);
            return;
        }
        let leader = Leader::new(&self.core, new, now);
        self.leave(
            Role::Leader(leader),
            ErrorCode::NotLeaderOrFollower,
            effects,
        );
        let start_epoch = Effect::StartEpoch {
            epoch: new.leader_epoch,
            start: self.core.log.end,
        };
        self.core.disk(start_epoch, effects);
    }

    /// Ends the current role: parked callers hear `error`, fetching stops or changes over (L-60).
    fn leave(&mut self, next: Role, error: ErrorCode, effects: &mut Vec<Effect>) {
        let follow = match &next {
            Role::Follower(follower) => Some(follower.leader()),
            _ => None,
        };
        match std::mem::replace(&mut self.role, next) {
            Role::Leader(leader) => leader.dismiss(error, effects),
            Role::Follower(_) if follow.is_none() => effects.push(Effect::Unfollow),
            Role::Follower(_) | Role::Idle | Role::Failed => {}
        }
        effects.push(Effect::WakeReaders(News::Role));
        effects.extend(follow.map(|leader| Effect::Follow { leader }));
    }

    fn log_changed(&mut self, log: LogState, now: Millis, effects: &mut Vec<Effect>) {
        self.core.log_changed(log, effects);
        match &mut self.role {
            Role::Leader(leader) => leader.log_changed(&mut self.core, now, effects),
            Role::Follower(follower) => follower.log_changed(&mut self.core, now, effects),
            Role::Idle | Role::Failed => {}
        }
    }

    fn read(
        &mut self,
        request: &ReadRequest,
        now: Millis,
        effects: &mut Vec<Effect>,
    ) -> Result<ReadAnswer, ErrorCode> {
        self.check_leader(request.current_leader_epoch)?;
        match &mut self.role {
            Role::Leader(leader) => leader.read(&mut self.core, request, now, effects),
            _ => unreachable!("checked above"),
        }
    }

    /// Why a request that only a leader can serve is refused here.
    fn refusal(&self) -> ErrorCode {
        match self.role {
            Role::Failed => ErrorCode::KafkaStorageError,
            _ => ErrorCode::NotLeaderOrFollower,
        }
    }

    /// Whether this replica leads, in the term the caller believes in when it states one (L-50: the epoch is compared first, so
    /// that a caller with old metadata learns that, whatever the role). Errors: `FENCED_LEADER_EPOCH` (the caller is behind),
    /// `UNKNOWN_LEADER_EPOCH` (this broker is), `NOT_LEADER_OR_FOLLOWER`, `KAFKA_STORAGE_ERROR`.
    pub fn check_leader(
        &self,
        current_leader_epoch: Option<LeaderEpoch>,
    ) -> Result<LeaderEpoch, ErrorCode> {
        let mine = self.core.leader_epoch();
        if let Some(asked) = current_leader_epoch {
            match Some(asked).cmp(&mine) {
                std::cmp::Ordering::Less => return Err(ErrorCode::FencedLeaderEpoch),
                std::cmp::Ordering::Greater => return Err(ErrorCode::UnknownLeaderEpoch),
                std::cmp::Ordering::Equal => {}
            }
        }
        self.leading().ok_or(self.refusal())
    }

    /// The offset before which everything is committed, as far as this replica knows.
    pub fn high_watermark(&self) -> Offset {
        self.core.high_watermark
    }

    /// The log, as last told.
    pub fn log(&self) -> &LogState {
        &self.core.log
    }

    /// The leader epoch of the last assignment; `None` before the first.
    pub fn leader_epoch(&self) -> Option<LeaderEpoch> {
        self.core.leader_epoch()
    }

    /// The partition epoch of the last assignment or committed ISR change; `None` before the first.
    pub fn partition_epoch(&self) -> Option<PartitionEpoch> {
        self.core.known.map(|k| k.partition_epoch)
    }

    /// The term in which this replica leads, if it does.
    pub fn leading(&self) -> Option<LeaderEpoch> {
        match &self.role {
            Role::Leader(leader) => Some(leader.epoch()),
            _ => None,
        }
    }

    /// Where a follower fetches next; `None`: not a follower, or not to fetch now.
    pub fn fetch_position(&self) -> Option<FetchPosition> {
        match &self.role {
            Role::Follower(follower) => follower.position(&self.core),
            _ => None,
        }
    }

    /// Whether the disk failed under this replica.
    pub fn has_failed(&self) -> bool {
        matches!(self.role, Role::Failed)
    }

    /// The latest offset to tell a consumer: the high watermark, once it is sure not to lie behind what an earlier leader has
    /// shown (L-54, KIP-207). Errors: `OFFSET_NOT_AVAILABLE`, or as `check_leader`.
    pub fn latest_for_consumer(&self) -> Result<Offset, ErrorCode> {
        match &self.role {
            Role::Leader(leader) if leader.epoch_start() > self.core.high_watermark => {
                Err(ErrorCode::OffsetNotAvailable)
            }
            Role::Leader(_) => Ok(self.core.high_watermark),
            _ => Err(self.refusal()),
        }
    }

    /// Where a leader epoch ends in this log (L-55). `None`: the epoch is newer than anything known here.
    pub fn end_offset_for(&self, epoch: LeaderEpoch) -> Option<EpochEnd> {
        self.core
            .log
            .epochs
            .end_offset_for(epoch, self.core.log.end)
    }

    /// The leader's view of its followers; `None` when not leading.
    pub fn isr(&self) -> Option<IsrView> {
        match &self.role {
            Role::Leader(leader) => Some(leader.isr_view()),
            _ => None,
        }
    }

    /// Members of a leader's ISR that have not fetched for so long, in milliseconds: what is written now waits for them. Nobody when
    /// not leading.
    pub fn silent_members(&self, patience: Millis, now: Millis) -> Vec<BrokerId> {
        match &self.role {
            Role::Leader(leader) => leader.silent_members(patience, now),
            _ => Vec::new(),
        }
    }

    /// What a leader knows of each follower, in no particular order: its log end and the life it fetched from.
    pub fn followers(
        &self,
    ) -> impl Iterator<Item = (BrokerId, Option<Offset>, Option<BrokerEpoch>)> {
        let remotes = match &self.role {
            Role::Leader(leader) => leader.remotes(),
            _ => &[],
        };
        remotes
            .iter()
            .map(|r| (r.broker, r.log_end, r.broker_epoch))
    }
}

/// The answer to a produce.
fn produced(to: ReplyId, outcome: Result<Produced, ErrorCode>) -> Effect {
    Effect::Reply {
        to,
        answer: Answer::Produced(outcome),
    }
}

#[cfg(test)]
mod tests;
