//! The shell around one `Replica` and one `PartitionLog`: takes an event, steps, runs the effects in order. `run_disk` and
//! `run_effect` are the only places where effects meet the disk, callers and the rest of the node. One short lock, held for
//! one step; replies and wake-ups go out after it is released, and it is never held across an await.

mod effects;
mod queries;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use epoka_log::{LogView, PartitionLog, ProducerVerdict};
use epoka_proto::batch::{self, BatchHeader, TimestampType};
use epoka_proto::config::TopicConfig;
use epoka_proto::epochs::EpochEnd;
use epoka_proto::error::ErrorCode;
use epoka_proto::events::EventLog;
use epoka_proto::ids::{
    BrokerEpoch, BrokerId, LeaderEpoch, Millis, Offset, PartitionEpoch, PartitionId, TopicPartition,
};
use epoka_proto::metadata::Assignment;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use self::effects::Outbox;
use crate::clock::{Clock, wall_clock_ms};
use crate::replica::{
    Acks, ClientBatch, Effect, Event, LogState, Produced, ReadAnswer, ReadGrant, ReadRequest,
    Replica, ReplyId, Sequence,
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
    /// The replica has failed: have somebody else lead.
    Withdraw,
}

/// The largest batch taken, whatever a topic allows: it must fit into a message between brokers.
pub const LARGEST_BATCH: usize = 112 << 20;

/// Why a replica does not serve.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Offline {
    /// In a sentence.
    pub reason: String,
    /// What is in its files cannot be read, but others may be written in their place: once another replica leads, the
    /// partition is fetched from it anew. Where writing failed, only an operator can help.
    pub unreadable: bool,
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
    /// Absent when the log could not be opened, or was closed.
    log: Option<PartitionLog>,
    offline: Option<Offline>,
    config: Arc<TopicConfig>,
    callers: BTreeMap<ReplyId, Caller>,
    next_reply: u64,
    waiters: Waiters,
    scratch: Scratch,
}

/// Who waits for the outcome of a produce.
type Caller = oneshot::Sender<Result<Produced, ErrorCode>>;

/// Buffers of `step`, kept to spare allocations.
#[derive(Default)]
struct Scratch {
    effects: Vec<Effect>,
    queue: VecDeque<Effect>,
}

impl Partition {
    /// A partition over an open log, or over none when the log could not be opened (`offline` says why).
    pub fn new(
        id: PartitionId,
        name: TopicPartition,
        around: Surroundings,
        config: Arc<TopicConfig>,
        log: Result<PartitionLog, Offline>,
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
        if let Some(offline) = &offline {
            let reason = offline.reason.clone();
            // Nobody waits for a replica that was never anything else.
            replica.step(Event::LogFailed { reason }, &mut Vec::new());
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
            Err(error) => {
                let _ = answer.send(Err(error)); // a caller that left does not want to know
            }
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
        answer: Caller,
    ) {
        let mut outbox = Outbox::default();
        {
            let mut state = self.state.lock();
            let verdict = state.log.as_ref().map(|log| log.check_producer(&header));
            let sequence = match verdict {
                // Without a log the replica does not lead, and refuses.
                None | Some(ProducerVerdict::Next) => Sequence::Next,
                Some(ProducerVerdict::Duplicate { base, end }) => Sequence::Duplicate { base, end },
                Some(ProducerVerdict::Refused(error)) => Sequence::Refused(error),
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
    pub fn read(
        &self,
        request: ReadRequest,
        max_bytes: usize,
        at_least_one: bool,
    ) -> Result<Read, ErrorCode> {
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
        let answer = outbox
            .read
            .take()
            .expect("a read is answered in its own step");
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
        view.read(grant.from, grant.bound, max_bytes, at_least_one)
            .map_err(|error| {
                let reason = format!(
                    "{}: cannot read at offset {}: {error}",
                    self.name, grant.from
                );
                self.fail(reason, true);
                ErrorCode::KafkaStorageError
            })
    }

    /// Takes the replica out of service because of what happened outside a step. A replica that has left already has nothing
    /// to lose.
    fn fail(&self, reason: String, unreadable: bool) {
        let mut outbox = Outbox::default();
        {
            let mut state = self.state.lock();
            if state.log.is_none() || state.offline.is_some() {
                return;
            }
            tracing::error!(partition = %self.name, reason, "the replica goes offline");
            self.step(&mut state, Event::LogFailed { reason }, &mut outbox);
            if let Some(offline) = &mut state.offline {
                offline.unreadable = unreadable;
            }
        }
        self.send(outbox);
    }

    /// Asks to be woken once, with `tag`, when there may be more to read. Register first, then look again (L-43).
    pub fn watch(&self, waiter: &Arc<ReadWaiter>, tag: usize, interest: Interest) {
        self.state.lock().waiters.add(waiter, tag, interest);
    }

    /// Runs `work` on the log between two steps; `None` when the replica has no log.
    pub fn with_log<R>(&self, work: impl FnOnce(&mut PartitionLog) -> R) -> Option<R> {
        self.state.lock().log.as_mut().map(work)
    }

    /// What the clock asks of a partition: replica timers, and `flush.ms`.
    pub fn tick(&self) {
        let now = self.around.clock.now();
        self.handle(Event::Tick { now });
        if self.with_log(|log| log.flush_is_due(wall_clock_ms())) == Some(true) {
            let _ = self.around.errands.send((self.id, Errand::Flush)); // fails when the node is stopping
        }
    }

    /// Makes the log durable up to its end (D-28). The lock is not held while the disk works.
    pub fn flush(&self) {
        let Some(work) = self.with_log(|log| log.flush_work()) else {
            return;
        };
        match work.run() {
            Ok(point) => drop(self.with_log(|log| log.flushed_to(point))),
            Err(error) => {
                let reason = format!("{}: cannot make the log durable: {error}", self.name);
                self.fail(reason, false);
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
        segment_bytes: config.segment_bytes,
        segment_ms: config.segment_ms,
        segment_jitter_ms: config.segment_jitter_ms,
        segment_index_bytes: config.segment_index_bytes,
        index_interval_bytes: config.index_interval_bytes,
        flush_messages: config.flush_messages,
        flush_ms: config.flush_ms,
        preallocate: config.preallocate,
        ..epoka_log::LogConfig::default()
    }
}

/// Checks a client's batch (L-10 step 4); topics with LogAppendTime get their time stamped.
fn check(batch: Bytes, config: &TopicConfig) -> Result<(BatchHeader, Bytes), ErrorCode> {
    if batch.len() > LARGEST_BATCH {
        return Err(ErrorCode::MessageTooLarge);
    }
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

#[cfg(test)]
mod tests;
