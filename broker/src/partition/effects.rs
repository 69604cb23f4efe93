//! Where effects meet the disk, callers and the rest of the node. What leaves the partition is collected in an `Outbox` and
//! sent once the lock is released (H-36).

use std::sync::Weak;

use epoka_proto::error::ErrorCode;
use epoka_proto::v1;
use epoka_proto::v1::event::Kind;

use super::{Caller, Errand, Offline, Partition, Scratch, State, log_state};
use crate::clock::wall_clock_ms;
use crate::replica::{Answer, Effect, Event, LogState, News, Notice, Produced, ReadAnswer};
use crate::waiter::{Interest, ReadWaiter};

/// What is to be done once the lock is released.
#[derive(Default)]
pub(super) struct Outbox {
    replies: Vec<(Caller, Result<Produced, ErrorCode>)>,
    woken: Vec<(Weak<ReadWaiter>, usize)>,
    errands: Vec<Errand>,
    events: Vec<Kind>,
    pub(super) read: Option<Result<ReadAnswer, ErrorCode>>,
}

/// Ends the process if a step does not come to its end. A failed assert in the middle of it leaves replica and log in disagreement,
/// and whoever locked the partition next would serve from that; another replica will lead instead.
struct WholeStep;

impl Drop for WholeStep {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!("an invariant of a partition is broken: the broker ends here");
            std::process::abort();
        }
    }
}

impl Partition {
    pub(super) fn step(&self, state: &mut State, event: Event, outbox: &mut Outbox) {
        let _whole = WholeStep;
        let Scratch {
            mut effects,
            mut queue,
        } = std::mem::take(&mut state.scratch);
        state.replica.step(event, &mut effects);
        queue.extend(effects.drain(..));
        while let Some(effect) = queue.pop_front() {
            if let Some(consequence) = self.run_effect(state, effect, outbox) {
                state.replica.step(consequence, &mut effects);
                queue.extend(effects.drain(..));
            }
        }
        state.scratch = Scratch { effects, queue };
    }

    /// Carries out one effect; a disk effect returns the event that tells the replica of its end.
    fn run_effect(&self, state: &mut State, effect: Effect, outbox: &mut Outbox) -> Option<Event> {
        match effect {
            // Readers ask the replica for it; `WakeReaders` follows where there is more to read.
            Effect::Publish { .. } => None,
            Effect::WakeReaders(news) => {
                let interests: &[Interest] = match news {
                    News::Appended => &[Interest::LogEnd],
                    News::Committed => &[Interest::HighWatermark],
                    News::Role => &[Interest::LogEnd, Interest::HighWatermark],
                };
                for &interest in interests {
                    state.waiters.wake(interest, &mut outbox.woken);
                }
                None
            }
            Effect::Reply { to, answer } => {
                match answer {
                    Answer::Read(answer) => outbox.read = Some(answer),
                    Answer::Produced(outcome) => {
                        let caller = state.callers.remove(&to);
                        outbox.replies.extend(caller.map(|c| (c, outcome)));
                    }
                }
                None
            }
            Effect::AskIsr {
                leader_epoch,
                partition_epoch,
                isr,
                recovering,
            } => {
                outbox.errands.push(Errand::AskIsr {
                    leader_epoch,
                    partition_epoch,
                    isr,
                    recovering,
                });
                None
            }
            Effect::Follow { leader } => {
                outbox.errands.push(Errand::Follow { leader });
                None
            }
            Effect::Unfollow => {
                outbox.errands.push(Errand::Unfollow);
                None
            }
            Effect::AskBounds {
                leader,
                leader_epoch,
            } => {
                outbox.errands.push(Errand::AskBounds {
                    leader,
                    leader_epoch,
                });
                None
            }
            Effect::Notice(notice) => {
                if let Notice::Failed { reason } = &notice {
                    state.offline = Some(Offline {
                        reason: reason.clone(),
                        unreadable: false,
                    });
                    outbox.errands.push(Errand::Withdraw);
                }
                outbox.events.extend(self.event(notice));
                None
            }
            disk => {
                let now = self.around.clock.now();
                Some(match self.run_disk(state, disk, outbox) {
                    Ok(log) => Event::LogChanged { log, now },
                    Err(reason) => {
                        tracing::error!(partition = %self.name, reason, "the replica goes offline");
                        Event::LogFailed { reason }
                    }
                })
            }
        }
    }

    fn run_disk(
        &self,
        state: &mut State,
        effect: Effect,
        outbox: &mut Outbox,
    ) -> Result<LogState, String> {
        let log = state.log.as_mut().ok_or("the log is closed")?;
        let describe =
            |what: &str, error: &dyn std::fmt::Display| format!("{}: {what}: {error}", self.name);
        let wall = wall_clock_ms();
        match effect {
            Effect::Append {
                base_offset,
                leader_epoch,
                bytes,
            } => log
                .append_as_leader(&bytes, base_offset, leader_epoch, wall)
                .map_err(|e| describe("append failed", &e))?,
            Effect::AppendFetched { bytes } => log
                .append_as_follower(&bytes, wall)
                .map_err(|e| describe("append of fetched batches failed", &e))?,
            Effect::StartEpoch { epoch, start } => log
                .start_epoch(epoch, start)
                .map_err(|e| describe("cannot note the start of a leader epoch", &e))?,
            Effect::Truncate { to } => {
                let high_watermark = state.replica.high_watermark();
                let cut = log
                    .truncate_to(to)
                    .map_err(|e| describe("truncation failed", &e))?;
                if cut.from > cut.to {
                    outbox.events.push(Kind::Truncated(v1::Truncated {
                        topic: self.name.topic.to_string(),
                        partition: self.name.partition,
                        from_offset: cut.from.0,
                        to_offset: cut.to.0,
                        batches: cut.batches as u32,
                        epochs: cut.epochs.iter().map(|e| e.0).collect(),
                        archived: cut
                            .archived
                            .map(|p| p.display().to_string())
                            .unwrap_or_default(),
                        high_watermark: high_watermark.0,
                    }));
                }
            }
            Effect::StartOver { at } => log
                .start_over(at)
                .map_err(|e| describe("starting over failed", &e))?,
            Effect::RaiseLogStart { to } => {
                log.raise_start(to)
                    .map_err(|e| describe("cannot raise the log start", &e))?;
            }
            other => unreachable!("{other:?} is not a disk effect"),
        }
        if log.flush_is_due(wall) {
            if log.config().flush_messages.is_some() {
                // The topic asks for durability before anybody hears of the append, so here the lock waits for the disk.
                let flushed = tokio::task::block_in_place(|| log.flush_work().run());
                let point = flushed.map_err(|e| describe("cannot make the log durable", &e))?;
                log.flushed_to(point);
            } else {
                outbox.errands.push(Errand::Flush);
            }
        }
        Ok(log_state(log))
    }

    fn event(&self, notice: Notice) -> Option<Kind> {
        let (topic, partition) = (self.name.topic.to_string(), self.name.partition);
        match notice {
            // The cut itself reports more: batches, epochs, where the suffix is kept.
            Notice::Diverged { .. } => None,
            Notice::FirstWrite {
                leader_epoch,
                offset,
            } => Some(Kind::FirstWrite(v1::FirstWrite {
                topic,
                partition,
                leader_epoch: leader_epoch.0,
                offset: offset.0,
            })),
            Notice::WatermarkBack {
                leader_epoch,
                high_watermark,
                writable,
            } => Some(Kind::WatermarkBack(v1::WatermarkBack {
                topic,
                partition,
                leader_epoch: leader_epoch.0,
                high_watermark: high_watermark.0,
                writable,
            })),
            Notice::Failed { reason } => Some(Kind::ReplicaOffline(v1::ReplicaOffline {
                topic,
                partition,
                reason,
            })),
        }
    }

    pub(super) fn send(&self, outbox: Outbox) {
        for (caller, outcome) in outbox.replies {
            let _ = caller.send(outcome); // a caller that left does not want to know
        }
        for (waiter, tag) in outbox.woken {
            if let Some(waiter) = waiter.upgrade() {
                waiter.wake(tag);
            }
        }
        for errand in outbox.errands {
            let _ = self.around.errands.send((self.id, errand)); // fails when the node is stopping
        }
        for kind in outbox.events {
            self.around.events.push(kind);
        }
    }
}
