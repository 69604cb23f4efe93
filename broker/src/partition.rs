//! The shell around one `Replica` and one `PartitionLog`: takes an event, steps, runs the effects in order. `run_disk` and
//! `run_effect` are the only places where effects meet the disk, callers and the rest of the node. One short lock, held for
//! one step; replies and wake-ups go out after it is released, and it is never held across an await.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use epoka_log::{LogView, PartitionLog, ProducerVerdict};
use epoka_proto::batch::{self, BatchHeader, TimestampType};
use epoka_proto::config::TopicConfig;
use epoka_proto::epochs::EpochEnd;
use epoka_proto::error::ErrorCode;
use epoka_proto::events::EventLog;
use epoka_proto::ids::{BrokerEpoch, BrokerId, LeaderEpoch, Millis, Offset, PartitionEpoch, PartitionId, TopicPartition};
use epoka_proto::metadata::Assignment;
use epoka_proto::v1::event::Kind;
use epoka_proto::v1::{self, ReplicaInfo};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use crate::clock::{Clock, wall_clock_ms};
use crate::replica::{
    Acks, Answer, ClientBatch, Effect, Event, FetchPosition, LogState, Notice, Produced, ReadAnswer, ReadGrant,
    ReadRequest, Replica, ReplyId, Sequence,
};
use crate::waiter::{Interest, ReadWaiter, Waiters};

/// What a partition asks of the rest of the node.
#[derive(Debug)]
pub enum Errand {
    /// Propose an ISR to the controller; answer with `Event::Isr`.
    AskIsr {
        /// The proposer's leader epoch.
        leader_epoch: LeaderEpoch,
        /// The partition epoch the proposal is computed on.
        partition_epoch: PartitionEpoch,
        /// Members, with the broker epochs seen in their fetches.
        isr: Vec<(BrokerId, Option<BrokerEpoch>)>,
        /// See C-37.
        recovering: bool,
    },
    /// Fetch this partition from that leader.
    Follow {
        /// The leader.
        leader: BrokerId,
    },
    /// Fetch this partition no more.
    Unfollow,
    /// Ask the leader for its bounds; answer with `Event::Bounds`.
    AskBounds {
        /// The leader.
        leader: BrokerId,
        /// Fences the question.
        leader_epoch: LeaderEpoch,
    },
    /// A segment was rolled, or enough was appended: make the log durable up to its end.
    Flush,
}

/// What every partition of a node shares.
#[derive(Clone)]
pub struct Surroundings {
    /// This broker.
    pub me: BrokerId,
    /// The node's clock.
    pub clock: Clock,
    /// The node's record of events.
    pub events: EventLog,
    /// Where errands go.
    pub errands: mpsc::UnboundedSender<(PartitionId, Errand)>,
    /// See `replica.lag.time.max.ms`.
    pub replica_lag_time_max_ms: Millis,
}

/// A successful read.
#[derive(Clone, Debug)]
pub enum Read {
    /// Whole batches (perhaps none), and the bounds to answer.
    Data {
        /// The bounds.
        grant: ReadGrant,
        /// The batches.
        bytes: Bytes,
    },
    /// The reader's log has parted from ours.
    Diverging(EpochEnd),
}

/// A produce on its way: appended or refused already, perhaps waiting for its commit.
#[must_use = "the outcome of the produce is in here"]
pub struct Pending(oneshot::Receiver<Result<Produced, ErrorCode>>);

impl Pending {
    /// Waits for the outcome. The replica answers every produce, at its deadline at the latest.
    pub async fn outcome(self) -> Result<Produced, ErrorCode> {
        self.0.await.unwrap_or(Err(ErrorCode::NotLeaderOrFollower))
    }
}

/// One partition on this broker.
pub struct Partition {
    /// Its identity.
    pub id: PartitionId,
    /// Its name.
    pub name: TopicPartition,
    around: Surroundings,
    state: Mutex<State>,
}

struct State {
    replica: Replica,
    /// Absent when the replica is offline, or was closed.
    log: Option<PartitionLog>,
    offline: Option<String>,
    config: Arc<TopicConfig>,
    callers: BTreeMap<ReplyId, oneshot::Sender<Result<Produced, ErrorCode>>>,
    next_reply: u64,
    waiters: Waiters,
    scratch: Scratch,
}

/// Buffers of `step`, kept to spare allocations.
#[derive(Default)]
struct Scratch {
    effects: Vec<Effect>,
    queue: VecDeque<Effect>,
}

/// What is to be done once the lock is released.
#[derive(Default)]
struct Outbox {
    replies: Vec<(oneshot::Sender<Result<Produced, ErrorCode>>, Result<Produced, ErrorCode>)>,
    woken: Vec<(Weak<ReadWaiter>, usize)>,
    errands: Vec<Errand>,
    events: Vec<Kind>,
    read: Option<Result<ReadAnswer, ErrorCode>>,
}

impl Partition {
    /// A partition over an open log, or over none when the log could not be opened (`offline` says why).
    pub fn new(
        id: PartitionId,
        name: TopicPartition,
        around: Surroundings,
        config: Arc<TopicConfig>,
        log: Result<PartitionLog, String>,
        high_watermark: Offset,
    ) -> Self {
        let (log, offline) = match log {
            Ok(log) => (Some(log), None),
            Err(reason) => (None, Some(reason)),
        };
        let nothing = || LogState {
            start: Offset::ZERO,
            end: Offset::ZERO,
            epochs: Arc::default(),
        };
        let log_state = log.as_ref().map_or_else(nothing, log_state);
        let settings = crate::replica::Settings {
            replica_lag_time_max_ms: around.replica_lag_time_max_ms,
        };
        let mut replica = Replica::new(around.me, settings, log_state, high_watermark);
        if let Some(reason) = &offline {
            replica.step(Event::LogFailed { reason: reason.clone() }, &mut Vec::new());
        }
        let state = State {
            replica,
            log,
            offline,
            config,
            callers: BTreeMap::new(),
            next_reply: 0,
            waiters: Waiters::default(),
            scratch: Scratch::default(),
        };
        Self {
            id,
            name,
            around,
            state: Mutex::new(state),
        }
    }

    /// The controller's word on this partition. May write to disk durably: call it where blocking is allowed.
    pub fn assign(&self, assignment: Arc<Assignment>, eligible: BTreeMap<BrokerId, BrokerEpoch>) {
        let now = self.around.clock.now();
        self.handle(Event::Assigned {
            assignment,
            eligible,
            now,
        });
    }

    /// Takes one event through the replica and carries out what it asks for.
    pub fn handle(&self, event: Event) {
        let mut outbox = Outbox::default();
        self.step(&mut self.state.lock(), event, &mut outbox);
        self.send(outbox);
    }

    /// Appends a client's batch, or refuses it, before returning; the commit is awaited through what is returned. Calls
    /// append in the order they are made.
    pub fn begin_produce(&self, batch: Bytes, acks: Acks, timeout: Duration) -> Pending {
        let (answer, pending) = oneshot::channel();
        let config = self.state.lock().config.clone();
        match check(batch, &config) {
            Err(error) => drop(answer.send(Err(error))),
            Ok((header, bytes)) => self.append(header, bytes, acks, timeout, answer),
        }
        Pending(pending)
    }

    fn append(
        &self,
        header: BatchHeader,
        bytes: Bytes,
        acks: Acks,
        timeout: Duration,
        answer: oneshot::Sender<Result<Produced, ErrorCode>>,
    ) {
        let mut outbox = Outbox::default();
        {
            let mut state = self.state.lock();
            let Some(log) = &state.log else {
                drop(answer.send(Err(ErrorCode::KafkaStorageError)));
                return;
            };
            let sequence = match log.check_producer(&header) {
                ProducerVerdict::Next => Sequence::Next,
                ProducerVerdict::Duplicate { base, end } => Sequence::Duplicate { base, end },
                ProducerVerdict::Refused(error) => Sequence::Refused(error),
            };
            let reply = ReplyId(state.next_reply);
            state.next_reply += 1;
            state.callers.insert(reply, answer);
            let now = self.around.clock.now();
            let event = Event::Produce {
                reply,
                acks,
                batch: ClientBatch {
                    bytes,
                    records: i64::from(header.last_offset_delta) + 1,
                    sequence,
                },
                deadline: now.saturating_add(timeout.as_millis() as Millis),
                now,
            };
            self.step(&mut state, event, &mut outbox);
        }
        self.send(outbox);
    }

    /// Reads whole batches for a follower or a consumer. With `at_least_one`, the first batch comes whole even when it is
    /// larger than `max_bytes`.
    pub fn read(&self, request: ReadRequest, max_bytes: usize, at_least_one: bool) -> Result<Read, ErrorCode> {
        let mut outbox = Outbox::default();
        let view = {
            let mut state = self.state.lock();
            let reply = ReplyId(state.next_reply);
            state.next_reply += 1;
            let event = Event::Read {
                reply,
                request,
                now: self.around.clock.now(),
            };
            self.step(&mut state, event, &mut outbox);
            state.log.as_ref().map(PartitionLog::view)
        };
        let answer = outbox.read.take().expect("a read is answered in its own step");
        self.send(outbox);
        let grant = match answer? {
            ReadAnswer::Diverging(end) => return Ok(Read::Diverging(end)),
            ReadAnswer::Grant(grant) => grant,
        };
        let bytes = if grant.from < grant.bound && (max_bytes > 0 || at_least_one) {
            let view = view.ok_or(ErrorCode::KafkaStorageError)?;
            self.read_bytes(&view, grant, max_bytes, at_least_one)?
        } else {
            Bytes::new()
        };
        Ok(Read::Data { grant, bytes })
    }

    fn read_bytes(
        &self,
        view: &LogView,
        grant: ReadGrant,
        max_bytes: usize,
        at_least_one: bool,
    ) -> Result<Bytes, ErrorCode> {
        view.read(grant.from, grant.bound, max_bytes, at_least_one).map_err(|error| {
            let reason = format!("{}: cannot read at offset {}: {error}", self.name, grant.from);
            self.handle(Event::LogFailed { reason });
            ErrorCode::KafkaStorageError
        })
    }

    /// Asks to be woken once, with `tag`, when there may be more to read. Register first, then look again (L-43).
    pub fn watch(&self, waiter: &Arc<ReadWaiter>, tag: usize, interest: Interest) {
        self.state.lock().waiters.add(waiter, tag, interest);
    }

    /// Where this follower fetches next; `None` when it does not follow.
    pub fn fetch_position(&self) -> Option<FetchPosition> {
        self.state.lock().replica.fetch_position()
    }

    /// The leader's log start and log end, fenced by its epoch: for followers and for the replica service.
    pub fn bounds(&self, leader_epoch: Option<LeaderEpoch>) -> Result<(Offset, Offset), ErrorCode> {
        let state = self.state.lock();
        state.replica.check_leader(leader_epoch)?;
        let log = state.replica.log();
        Ok((log.start, log.end))
    }

    /// The first offset kept, for a consumer (ListOffsets -2).
    pub fn earliest(&self, leader_epoch: Option<LeaderEpoch>) -> Result<(Offset, Option<LeaderEpoch>), ErrorCode> {
        let state = self.state.lock();
        state.replica.check_leader(leader_epoch)?;
        let log = state.replica.log();
        Ok((log.start, log.epochs.epoch_at(log.start)))
    }

    /// The end of what a consumer may read (ListOffsets -1), with the leader's epoch. OFFSET_NOT_AVAILABLE while a new
    /// leader does not know it yet (L-54).
    pub fn latest(&self, leader_epoch: Option<LeaderEpoch>) -> Result<(Offset, LeaderEpoch), ErrorCode> {
        let state = self.state.lock();
        let epoch = state.replica.check_leader(leader_epoch)?;
        Ok((state.replica.latest_for_consumer()?, epoch))
    }

    /// The first record at or after a timestamp, below what a consumer may read: offset, its timestamp, its leader epoch.
    pub fn find_timestamp(
        &self,
        leader_epoch: Option<LeaderEpoch>,
        timestamp: Millis,
    ) -> Result<Option<(Offset, Millis, Option<LeaderEpoch>)>, ErrorCode> {
        self.search(leader_epoch, |view, bound| view.find_timestamp(timestamp, bound))
    }

    /// The record with the largest timestamp below what a consumer may read (ListOffsets -3).
    pub fn max_timestamp(
        &self,
        leader_epoch: Option<LeaderEpoch>,
    ) -> Result<Option<(Offset, Millis, Option<LeaderEpoch>)>, ErrorCode> {
        self.search(leader_epoch, LogView::max_timestamp)
    }

    fn search<E: std::fmt::Display>(
        &self,
        leader_epoch: Option<LeaderEpoch>,
        look: impl FnOnce(&LogView, Offset) -> Result<Option<(Offset, Millis)>, E>,
    ) -> Result<Option<(Offset, Millis, Option<LeaderEpoch>)>, ErrorCode> {
        let (view, bound, epochs) = {
            let state = self.state.lock();
            state.replica.check_leader(leader_epoch)?;
            let bound = state.replica.latest_for_consumer()?;
            let log = state.log.as_ref().ok_or(ErrorCode::KafkaStorageError)?;
            (log.view(), bound, log.epochs())
        };
        let found = look(&view, bound).map_err(|error| {
            tracing::error!(partition = %self.name, %error, "timestamp lookup failed");
            ErrorCode::KafkaStorageError
        })?;
        Ok(found.map(|(offset, timestamp)| (offset, timestamp, epochs.epoch_at(offset))))
    }

    /// Where a leader epoch ends here (L-55); `Ok(None)`: unknown.
    pub fn end_offset_for(
        &self,
        leader_epoch: Option<LeaderEpoch>,
        epoch: LeaderEpoch,
    ) -> Result<Option<EpochEnd>, ErrorCode> {
        let state = self.state.lock();
        state.replica.check_leader(leader_epoch)?;
        Ok(state.replica.end_offset_for(epoch))
    }

    /// The high watermark.
    pub fn high_watermark(&self) -> Offset {
        self.state.lock().replica.high_watermark()
    }

    /// What `status` shows of this replica.
    pub fn describe(&self) -> ReplicaInfo {
        let state = self.state.lock();
        let log = state.replica.log();
        ReplicaInfo {
            topic: self.name.topic.to_string(),
            topic_id: self.id.topic.to_bytes(),
            partition: self.name.partition,
            leading: state.replica.leading().is_some(),
            leader_epoch: LeaderEpoch::to_wire(state.replica.leader_epoch()),
            log_start: log.start.0,
            log_end: log.end.0,
            high_watermark: state.replica.high_watermark().0,
            offline: state.offline.clone().unwrap_or_default(),
        }
    }

    /// Why the replica does not serve, if it does not.
    pub fn offline(&self) -> Option<String> {
        self.state.lock().offline.clone()
    }

    /// Runs `work` on the log between two steps; `None` when the replica has no log.
    pub fn with_log<R>(&self, work: impl FnOnce(&mut PartitionLog) -> R) -> Option<R> {
        self.state.lock().log.as_mut().map(work)
    }

    /// Makes the log durable up to its end (D-28). The lock is not held while the disk works.
    pub fn flush(&self) {
        let Some(work) = self.with_log(|log| log.flush_work()) else { return };
        match work.run() {
            Ok(point) => drop(self.with_log(|log| log.flushed_to(point))),
            Err(error) => {
                let reason = format!("{}: cannot make the log durable: {error}", self.name);
                self.handle(Event::LogFailed { reason });
            }
        }
    }

    /// Takes a topic's changed configuration into use.
    pub fn configure(&self, config: Arc<TopicConfig>) {
        let mut state = self.state.lock();
        if let Some(log) = &mut state.log {
            log.set_config(log_config(&config));
        }
        state.config = config;
    }

    /// Ends the partition's service here and hands over its log. Callers are answered NOT_LEADER_OR_FOLLOWER.
    pub fn close(&self) -> Option<PartitionLog> {
        let mut outbox = Outbox::default();
        let log = {
            let mut state = self.state.lock();
            self.step(&mut state, Event::Removed, &mut outbox);
            state.log.take()
        };
        self.send(outbox);
        log
    }

    fn step(&self, state: &mut State, event: Event, outbox: &mut Outbox) {
        let Scratch { mut effects, mut queue } = std::mem::take(&mut state.scratch);
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
            Effect::WakeReaders => {
                state.waiters.wake(Interest::LogEnd, &mut outbox.woken);
                state.waiters.wake(Interest::HighWatermark, &mut outbox.woken);
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
            Effect::AskBounds { leader, leader_epoch } => {
                outbox.errands.push(Errand::AskBounds { leader, leader_epoch });
                None
            }
            Effect::Notice(notice) => {
                if let Notice::Failed { reason } = &notice {
                    state.offline = Some(reason.clone());
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

    fn run_disk(&self, state: &mut State, effect: Effect, outbox: &mut Outbox) -> Result<LogState, String> {
        let log = state.log.as_mut().ok_or("the log is closed")?;
        let describe = |what: &str, error: &dyn std::fmt::Display| format!("{}: {what}: {error}", self.name);
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
                let cut = log.truncate_to(to).map_err(|e| describe("truncation failed", &e))?;
                if cut.from > cut.to {
                    outbox.events.push(Kind::Truncated(v1::Truncated {
                        topic: self.name.topic.to_string(),
                        partition: self.name.partition,
                        from_offset: cut.from.0,
                        to_offset: cut.to.0,
                        batches: cut.batches as u32,
                        epochs: cut.epochs.iter().map(|e| e.0).collect(),
                        archived: cut.archived.map(|p| p.display().to_string()).unwrap_or_default(),
                        high_watermark: high_watermark.0,
                    }));
                }
            }
            Effect::StartOver { at } => log.start_over(at).map_err(|e| describe("starting over failed", &e))?,
            Effect::RaiseLogStart { to } => {
                log.raise_start(to).map_err(|e| describe("cannot raise the log start", &e))?;
            }
            other => unreachable!("{other:?} is not a disk effect"),
        }
        if log.flush_is_due(wall) {
            outbox.errands.push(Errand::Flush);
        }
        Ok(log_state(log))
    }

    fn event(&self, notice: Notice) -> Option<Kind> {
        let (topic, partition) = (self.name.topic.to_string(), self.name.partition);
        match notice {
            // The cut itself reports more: batches, epochs, where the suffix is kept.
            Notice::Diverged { .. } => None,
            Notice::FirstWrite { leader_epoch, offset } => Some(Kind::FirstWrite(v1::FirstWrite {
                topic,
                partition,
                leader_epoch: leader_epoch.0,
                offset: offset.0,
            })),
            Notice::WatermarkBack {
                leader_epoch,
                high_watermark,
            } => Some(Kind::WatermarkBack(v1::WatermarkBack {
                topic,
                partition,
                leader_epoch: leader_epoch.0,
                high_watermark: high_watermark.0,
            })),
            Notice::Failed { reason } => Some(Kind::ReplicaOffline(v1::ReplicaOffline {
                topic,
                partition,
                reason,
            })),
        }
    }

    fn send(&self, outbox: Outbox) {
        for (caller, outcome) in outbox.replies {
            drop(caller.send(outcome)); // a caller that left does not want to know
        }
        for (waiter, tag) in outbox.woken {
            if let Some(waiter) = waiter.upgrade() {
                waiter.wake(tag);
            }
        }
        for errand in outbox.errands {
            drop(self.around.errands.send((self.id, errand))); // the node is stopping
        }
        for kind in outbox.events {
            self.around.events.push(kind);
        }
    }
}

fn log_state(log: &PartitionLog) -> LogState {
    LogState {
        start: log.start(),
        end: log.end(),
        epochs: log.epochs(),
    }
}

/// The part of a topic's configuration that its logs need.
pub fn log_config(config: &TopicConfig) -> epoka_log::LogConfig {
    epoka_log::LogConfig {
        segment_bytes: config.segment_bytes as u64,
        segment_ms: config.segment_ms,
        segment_jitter_ms: config.segment_jitter_ms,
        segment_index_bytes: config.segment_index_bytes as usize,
        index_interval_bytes: config.index_interval_bytes as usize,
        ..epoka_log::LogConfig::default()
    }
}

/// Checks a client's batch (L-10 step 4); topics with LogAppendTime get their time stamped.
fn check(batch: Bytes, config: &TopicConfig) -> Result<(BatchHeader, Bytes), ErrorCode> {
    let now = wall_clock_ms();
    let header = batch::check_client_batch(&batch, &config.limits(now)).map_err(|e| e.code())?;
    match config.message_timestamp_type {
        TimestampType::CreateTime => Ok((header, batch)),
        TimestampType::LogAppendTime => {
            let stamped = batch::with_append_time(&batch, now);
            let header = BatchHeader::parse(&stamped).map_err(|e| e.code())?;
            Ok((header, stamped))
        }
    }
}
