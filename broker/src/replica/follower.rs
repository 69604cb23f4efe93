//! Following one leader during one leader epoch (section 3 of the replication protocol): where to fetch, what to do with the
//! answer, where to cut when the logs have parted. The log's own history is the only memory of what was fetched, so nothing
//! here can disagree with it (H-9).

use bytes::Bytes;
use epoka_proto::epochs::EpochEnd;
use epoka_proto::error::ErrorCode;
use epoka_proto::ids::{BrokerId, LeaderEpoch, Millis, Offset};

use super::core::Core;
use super::{Effect, FetchAnswer, FetchPosition, FetchedBatch, Notice};

/// Waiting times after a refusal or a broken connection: doubled from the first to the last. Short at first, because a new
/// leader is often heard of before it has heard of itself.
const BACK_OFF_MS: (Millis, Millis) = (10, 1000);

/// How often the leader may call an offset out of range that lies within its bounds before we start over (F-21, H-24).
const FRUITLESS_ROUNDS: u32 = 3;

/// A follower of one leader during one leader epoch.
#[derive(Debug)]
pub(super) struct Follower {
    leader: BrokerId,
    state: State,
    /// Failures in a row.
    failures: u32,
    /// Out-of-range rounds in a row that led nowhere.
    fruitless: u32,
}

/// What the follower is about. `Fetched` is heard in `Fetching` only, `Bounds` in `AskingBounds` only; the others wait for the
/// disk.
#[derive(Debug)]
enum State {
    Fetching {
        not_before: Millis,
    },
    /// Fenced by a leader of a newer epoch: nothing to do before the metadata catches up (F-23).
    Fenced,
    /// Asking where the leader's log begins and ends (F-20); whatever the end, nothing of ours is of use when `start_over`.
    AskingBounds {
        start_over: bool,
    },
    Appending {
        until: Offset,
        bounds: LeaderBounds,
    },
    Truncating {
        from: Offset,
        latest: Option<LeaderEpoch>,
        to: Offset,
    },
    StartingOver {
        at: Offset,
        then: Option<Refill>,
    },
    RaisingStart,
}

/// What the leader said of its log with an answer.
#[derive(Clone, Copy, Debug)]
struct LeaderBounds {
    high_watermark: Offset,
    log_start: Offset,
}

/// Batches to append to the emptied log (F-22).
#[derive(Debug)]
struct Refill {
    bytes: Bytes,
    until: Offset,
    bounds: LeaderBounds,
}

impl Follower {
    pub(super) fn new(leader: BrokerId) -> Self {
        Self {
            leader,
            state: State::Fetching {
                not_before: Millis::MIN,
            },
            failures: 0,
            fruitless: 0,
        }
    }

    pub(super) fn leader(&self) -> BrokerId {
        self.leader
    }

    /// Where to fetch next (F-3): the log's end, and the newest epoch it knows, which may hold no record (F-4).
    pub(super) fn position(&self, core: &Core) -> Option<FetchPosition> {
        let State::Fetching { not_before } = self.state else {
            return None;
        };
        Some(FetchPosition {
            leader: self.leader,
            leader_epoch: core.leader_epoch().expect("a follower was assigned"),
            offset: core.log.end,
            last_fetched_epoch: core.log.epochs.latest(),
            log_start: core.log.start,
            not_before,
        })
    }

    /// The question whose answer is heard now (F-5): an answer to anything else is late (H-20).
    pub(super) fn asks(&self, core: &Core) -> Option<(LeaderEpoch, Offset, Option<LeaderEpoch>)> {
        let position = self.position(core)?;
        Some((
            position.leader_epoch,
            position.offset,
            position.last_fetched_epoch,
        ))
    }

    /// The leader's answer to the question asked last.
    pub(super) fn fetched(
        &mut self,
        core: &mut Core,
        answer: FetchAnswer,
        now: Millis,
        effects: &mut Vec<Effect>,
    ) {
        match answer {
            FetchAnswer::Data {
                high_watermark,
                log_start,
                batches,
                bytes,
            } => {
                let bounds = LeaderBounds {
                    high_watermark,
                    log_start,
                };
                self.data(core, bounds, &batches, bytes, now, effects);
            }
            FetchAnswer::Diverging(theirs) => self.diverging(core, theirs, now, effects),
            FetchAnswer::Refused(ErrorCode::FencedLeaderEpoch) => self.state = State::Fenced,
            FetchAnswer::Refused(ErrorCode::OffsetOutOfRange) => {
                self.ask_bounds(core, false, effects)
            }
            // The metadata or the leader will correct it.
            FetchAnswer::Refused(_) | FetchAnswer::Unreachable => self.back_off(now),
        }
    }

    /// Appends what is valid of an answer (F-6).
    fn data(
        &mut self,
        core: &mut Core,
        bounds: LeaderBounds,
        batches: &[FetchedBatch],
        bytes: Bytes,
        now: Millis,
        effects: &mut Vec<Effect>,
    ) {
        // The leader's log may start in the middle of a batch. We take that batch whole if nothing here is worth keeping: the log
        // is empty, or the leader has deleted all that we hold (F-22).
        let expendable = core.log.start == core.log.end || core.log.end <= bounds.log_start;
        let refill = batches
            .first()
            .filter(|b| expendable && b.base < core.log.end && core.log.end < b.end);
        let begin = refill.map_or(core.log.end, |b| b.base);
        let (until, size) = valid_prefix(core, begin, batches);
        let bytes_valid = bytes.slice(..size);
        if size == 0 && !bytes.is_empty() {
            self.back_off(now); // corrupt on the way, or of a newer term than ours
            return;
        }
        self.failures = 0;
        self.fruitless = 0;
        if size == 0 {
            self.settle(core, bounds, effects);
        } else if refill.is_some() {
            let then = Some(Refill {
                bytes: bytes_valid,
                until,
                bounds,
            });
            self.start_over(core, begin, then, effects);
        } else {
            self.state = State::Appending { until, bounds };
            core.disk(Effect::AppendFetched { bytes: bytes_valid }, effects);
        }
    }

    /// Takes over the leader's bounds: the high watermark is assigned and may go down, since a new leader's may lag (F-6); the
    /// log start may rise, up to the watermark (H-28).
    fn settle(&mut self, core: &mut Core, bounds: LeaderBounds, effects: &mut Vec<Effect>) {
        self.state = State::Fetching {
            not_before: Millis::MIN,
        };
        let within = bounds.high_watermark.clamp(core.log.start, core.log.end);
        core.set_high_watermark(within, effects);
        let start = bounds.log_start.min(core.high_watermark);
        if start > core.log.start {
            self.state = State::RaisingStart;
            core.disk(Effect::RaiseLogStart { to: start }, effects);
        }
    }

    /// Our log has parted from the leader's: cut it where the histories part (F-7, section 3.3). Neither the high watermark nor
    /// the log start of the leader is heeded here (H-8).
    fn diverging(
        &mut self,
        core: &mut Core,
        theirs: EpochEnd,
        now: Millis,
        effects: &mut Vec<Effect>,
    ) {
        if core.log.epochs.latest() <= Some(theirs.epoch) && core.log.end <= theirs.end {
            self.back_off(now); // does not contradict our log: no answer to what we ask
            return;
        }
        let to = truncation_point(core, theirs);
        self.cut(core, to, effects);
    }

    /// The leader's answer to `AskBounds` (F-20).
    pub(super) fn bounds(
        &mut self,
        core: &mut Core,
        answer: Result<(Offset, Offset), ErrorCode>,
        now: Millis,
        effects: &mut Vec<Effect>,
    ) {
        let State::AskingBounds { start_over } = self.state else {
            return;
        };
        match answer {
            Err(ErrorCode::FencedLeaderEpoch) => self.state = State::Fenced,
            Err(_) => self.back_off(now),
            Ok((start, end)) if start_over || end < core.log.start => {
                self.note_divergence(core, start, effects);
                self.start_over(core, start, None, effects);
            }
            Ok((_, end)) if end < core.log.end => self.cut(core, end, effects),
            Ok((start, _)) if start > core.log.end => self.start_over(core, start, None, effects),
            Ok((start, _)) if self.fruitless >= FRUITLESS_ROUNDS => {
                self.note_divergence(core, start, effects);
                self.start_over(core, start, None, effects);
            }
            Ok(_) => {
                self.fruitless += 1;
                self.back_off(now);
            }
        }
    }

    fn ask_bounds(&mut self, core: &Core, start_over: bool, effects: &mut Vec<Effect>) {
        self.state = State::AskingBounds { start_over };
        let leader_epoch = core.leader_epoch().expect("a follower was assigned");
        effects.push(Effect::AskBounds {
            leader: self.leader,
            leader_epoch,
        });
    }

    /// Cuts the log. Even when no record goes, a stale entry of the history does (F-11, H-6). When all records would go, the
    /// log begins again where the leader's begins: emptied at the cut, it would never hold what lies before.
    fn cut(&mut self, core: &mut Core, to: Offset, effects: &mut Vec<Effect>) {
        if to < core.log.start {
            self.ask_bounds(core, true, effects);
            return;
        }
        self.note_divergence(core, to, effects);
        self.state = State::Truncating {
            from: core.log.end,
            latest: core.log.epochs.latest(),
            to,
        };
        core.disk(Effect::Truncate { to }, effects);
    }

    fn note_divergence(&self, core: &Core, to: Offset, effects: &mut Vec<Effect>) {
        if to < core.log.end {
            let (from, high_watermark) = (core.log.end, core.high_watermark);
            effects.push(Effect::Notice(Notice::Diverged {
                from,
                to,
                high_watermark,
            }));
        }
    }

    fn start_over(
        &mut self,
        core: &mut Core,
        at: Offset,
        then: Option<Refill>,
        effects: &mut Vec<Effect>,
    ) {
        self.fruitless = 0;
        self.state = State::StartingOver { at, then };
        core.disk(Effect::StartOver { at }, effects);
    }

    /// The outcome of the disk effect asked for last.
    pub(super) fn log_changed(&mut self, core: &mut Core, _now: Millis, effects: &mut Vec<Effect>) {
        let fetching = State::Fetching {
            not_before: Millis::MIN,
        };
        match std::mem::replace(&mut self.state, fetching) {
            State::Appending { until, bounds } => {
                assert_eq!(core.log.end, until, "all fetched batches were appended");
                self.settle(core, bounds, effects);
            }
            State::Truncating { from, latest, to } => {
                assert!(
                    core.log.end <= to.min(from),
                    "cut to {to}, but the log ends at {}",
                    core.log.end
                );
                let shorter = core.log.end < from || core.log.epochs.latest() < latest;
                assert!(
                    shorter,
                    "F-9: a cut to {to} changed nothing in {:?}",
                    core.log
                );
            }
            State::StartingOver { at, then } => {
                assert_eq!(
                    (core.log.start, core.log.end),
                    (at, at),
                    "the log was emptied"
                );
                if let Some(Refill {
                    bytes,
                    until,
                    bounds,
                }) = then
                {
                    self.state = State::Appending { until, bounds };
                    core.disk(Effect::AppendFetched { bytes }, effects);
                }
            }
            State::RaisingStart => {}
            waiting @ (State::Fetching { .. } | State::Fenced | State::AskingBounds { .. }) => {
                self.state = waiting
            }
        }
    }

    fn back_off(&mut self, now: Millis) {
        let (first, last) = BACK_OFF_MS;
        let delay = last.min(first << self.failures.min(16));
        self.failures += 1;
        self.state = State::Fetching {
            not_before: now + delay,
        };
    }
}

/// The batches that continue the log at `begin`: contiguous, of epochs that do not fall and do not exceed the term (F-6, H-21).
/// Says where they end and how many bytes they are.
fn valid_prefix(core: &Core, begin: Offset, batches: &[FetchedBatch]) -> (Offset, usize) {
    let term = core.leader_epoch();
    let (mut end, mut size, mut epoch) = (begin, 0, core.log.epochs.epoch_at(begin));
    for batch in batches {
        let fits = batch.base == end && batch.end > batch.base;
        if !fits || Some(batch.epoch) > term || Some(batch.epoch) < epoch {
            break;
        }
        (end, size, epoch) = (batch.end, size + batch.size, Some(batch.epoch));
    }
    (end, size)
}

/// Where to cut, given the end of the leader's largest epoch at or below our newest (section 3.3). When that epoch is unknown
/// here, the cut is where ours begins to be newer, and the next answer goes on from there (H-3).
fn truncation_point(core: &Core, theirs: EpochEnd) -> Offset {
    let end = core.log.end;
    match core.log.epochs.end_offset_for(theirs.epoch, end) {
        None => theirs.end.min(end),
        Some(ours) if ours.epoch == theirs.epoch => ours.end.min(theirs.end).min(end),
        Some(ours) => ours.end.min(end),
    }
}
