//! Tables of the replica's rules, tagged as in the replication protocol. A `Bench` is one replica over a log of three numbers a
//! batch; stories of several replicas are told in `tests/scenarios`.

mod follower;
mod isr;
mod leader;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use epoka_proto::epochs::{EpochHistory, EpochStart};
use epoka_proto::metadata::Recovery;

use super::*;

const ME: BrokerId = BrokerId(1);
const LAG_MS: Millis = 1000;

/// A batch: base offset, end, epoch.
type Batch = (i64, i64, i32);

fn history(entries: &[(i32, i64)]) -> EpochHistory {
    let entries = entries.iter().map(|&(epoch, start)| EpochStart {
        epoch: LeaderEpoch(epoch),
        start: Offset(start),
    });
    EpochHistory::from_entries(entries.collect()).expect("sorted")
}

fn ids(numbers: &[i32]) -> Vec<BrokerId> {
    numbers.iter().map(|&n| BrokerId(n)).collect()
}

/// Replicas 1, 2, 3, all in sync; minimum ISR 1.
fn assignment(leader: Option<i32>, leader_epoch: i32, partition_epoch: i32) -> Assignment {
    Assignment {
        replicas: ids(&[1, 2, 3]),
        isr: ids(&[1, 2, 3]),
        elr: Vec::new(),
        last_known_elr: Vec::new(),
        offline: Vec::new(),
        adding: Vec::new(),
        removing: Vec::new(),
        leader: leader.map(BrokerId),
        leader_epoch: LeaderEpoch(leader_epoch),
        partition_epoch: PartitionEpoch(partition_epoch),
        recovery: Recovery::Recovered,
        min_isr: 1,
    }
}

struct Bench {
    replica: Replica,
    log: LogState,
    batches: Vec<Batch>,
    now: Millis,
    /// Active brokers and their epochs; broker n has epoch 10 n to begin with.
    eligible: BTreeMap<BrokerId, BrokerEpoch>,
    next_reply: u64,
}

impl Bench {
    /// A replica over a log of one-record batches with this history, its high watermark at `high_watermark`.
    fn over(epochs: &[(i32, i64)], end: i64, high_watermark: i64) -> Self {
        let epochs = history(epochs);
        let start = epochs.entries().first().map_or(0, |e| e.start.0);
        let epoch_at = |o| epochs.epoch_at(Offset(o)).expect("covered").0;
        let batches = (start..end).map(|o| (o, o + 1, epoch_at(o))).collect();
        let log = LogState {
            start: Offset(start),
            end: Offset(end),
            epochs: Arc::new(epochs),
        };
        let settings = Settings {
            replica_lag_time_max_ms: LAG_MS,
        };
        Self {
            replica: Replica::new(ME, settings, log.clone(), Offset(high_watermark)),
            log,
            batches,
            now: 0,
            eligible: (1..=3)
                .map(|n| (BrokerId(n), BrokerEpoch(i64::from(n) * 10)))
                .collect(),
            next_reply: 0,
        }
    }

    /// A leader of epoch 1 over an empty log.
    fn leader() -> Self {
        let mut bench = Self::over(&[], 0, 0);
        bench.assign(assignment(Some(1), 1, 1));
        bench
    }

    /// A follower of broker 2 in `leader_epoch`.
    fn follower(epochs: &[(i32, i64)], end: i64, high_watermark: i64, leader_epoch: i32) -> Self {
        let mut bench = Self::over(epochs, end, high_watermark);
        bench.assign(assignment(Some(2), leader_epoch, 1));
        bench
    }

    /// One event, its effects carried out; says all of them, in order.
    fn step(&mut self, event: Event) -> Vec<Effect> {
        let mut out = Vec::new();
        self.replica.step(event, &mut out);
        let mut effects = VecDeque::from(out);
        let mut said = Vec::new();
        while let Some(effect) = effects.pop_front() {
            if self.disk(&effect) {
                let mut out = Vec::new();
                let (log, now) = (self.log.clone(), self.now);
                self.replica.step(Event::LogChanged { log, now }, &mut out);
                effects.extend(out);
            }
            said.push(effect);
        }
        said
    }

    fn disk(&mut self, effect: &Effect) -> bool {
        let log = &mut self.log;
        match effect {
            Effect::Append {
                base_offset,
                leader_epoch,
                bytes,
            } => {
                let records = (&bytes[..]).get_i64();
                self.append((base_offset.0, base_offset.0 + records, leader_epoch.0));
            }
            Effect::AppendFetched { bytes } => {
                let mut bytes = &bytes[..];
                while bytes.has_remaining() {
                    let batch = (bytes.get_i64(), bytes.get_i64(), bytes.get_i32());
                    self.append(batch);
                }
            }
            Effect::StartEpoch { epoch, start } => {
                Arc::make_mut(&mut log.epochs).assign(*epoch, *start);
            }
            Effect::Truncate { to } => {
                self.batches.retain(|b| b.1 <= to.0);
                let end = self.batches.last().map_or(log.start.0, |b| b.1);
                log.end = Offset(end);
                Arc::make_mut(&mut log.epochs).truncate_from_end(*to.min(&log.end));
            }
            Effect::StartOver { at } => {
                self.batches.clear();
                (log.start, log.end, log.epochs) = (*at, *at, Arc::default());
            }
            Effect::RaiseLogStart { to } => {
                self.batches.retain(|b| b.1 > to.0);
                log.start = *to;
                Arc::make_mut(&mut log.epochs).truncate_from_start(*to);
            }
            _ => return false,
        }
        true
    }

    fn append(&mut self, batch: Batch) {
        self.batches.push(batch);
        self.log.end = Offset(batch.1);
        Arc::make_mut(&mut self.log.epochs).assign(LeaderEpoch(batch.2), Offset(batch.0));
    }

    fn assign(&mut self, assignment: Assignment) -> Vec<Effect> {
        let (eligible, now) = (self.eligible.clone(), self.now);
        let assignment = Arc::new(assignment);
        self.step(Event::Assigned {
            assignment,
            eligible,
            now,
        })
    }

    fn tick(&mut self, now: Millis) -> Vec<Effect> {
        self.now = now;
        self.step(Event::Tick { now })
    }

    /// A batch of some records; says the effects, and whom they answer.
    fn produce(&mut self, acks: Acks, records: i64, sequence: Sequence) -> (ReplyId, Vec<Effect>) {
        self.next_reply += 1;
        let reply = ReplyId(self.next_reply);
        let mut bytes = BytesMut::new();
        bytes.put_i64(records);
        let batch = ClientBatch {
            bytes: bytes.freeze(),
            records,
            sequence,
        };
        let (deadline, now) = (self.now + 500, self.now);
        (
            reply,
            self.step(Event::Produce {
                reply,
                acks,
                batch,
                deadline,
                now,
            }),
        )
    }

    fn read(&mut self, request: ReadRequest) -> (Result<ReadAnswer, ErrorCode>, Vec<Effect>) {
        self.next_reply += 1;
        let reply = ReplyId(self.next_reply);
        let now = self.now;
        let effects = self.step(Event::Read {
            reply,
            request,
            now,
        });
        let answer = effects.iter().find_map(|e| match e {
            Effect::Reply {
                to,
                answer: Answer::Read(answer),
            } if *to == reply => Some(*answer),
            _ => None,
        });
        (answer.expect("answered in the same step"), effects)
    }

    /// A fetch of a follower in the leader's own epoch.
    fn fetch(&mut self, broker: i32, offset: i64) -> Vec<Effect> {
        let epoch = self.replica.leading();
        let request = follower_read(broker, offset, epoch.map(|e| e.0), None);
        self.read(request).1
    }

    /// The answer to what this follower asks now.
    fn fetched(&mut self, answer: FetchAnswer) -> Vec<Effect> {
        let asked = self.replica.fetch_position().expect("it fetches");
        self.step(Event::Fetched {
            leader_epoch: asked.leader_epoch,
            fetch_offset: asked.offset,
            last_fetched_epoch: asked.last_fetched_epoch,
            answer,
            now: self.now,
        })
    }

    /// Start, end and history of the log.
    fn state(&self) -> (i64, i64, Vec<(i32, i64)>) {
        let entries = self.log.epochs.entries().iter();
        let entries = entries.map(|e| (e.epoch.0, e.start.0)).collect();
        (self.log.start.0, self.log.end.0, entries)
    }

    fn high_watermark(&self) -> i64 {
        self.replica.high_watermark().0
    }
}

fn follower_read(broker: i32, offset: i64, epoch: Option<i32>, last: Option<i32>) -> ReadRequest {
    ReadRequest {
        reader: Reader::Follower {
            broker: BrokerId(broker),
            epoch: BrokerEpoch(i64::from(broker) * 10),
        },
        current_leader_epoch: epoch.map(LeaderEpoch),
        offset: Offset(offset),
        last_fetched_epoch: last.map(LeaderEpoch),
        again: false,
    }
}

fn consumer_read(offset: i64, epoch: Option<i32>) -> ReadRequest {
    ReadRequest {
        reader: Reader::Consumer,
        ..follower_read(0, offset, epoch, None)
    }
}

fn data(high_watermark: i64, log_start: i64, batches: &[Batch]) -> FetchAnswer {
    let mut bytes = BytesMut::new();
    let mut headers = Vec::new();
    for &(base, end, epoch) in batches {
        bytes.put_i64(base);
        bytes.put_i64(end);
        bytes.put_i32(epoch);
        headers.push(FetchedBatch {
            base: Offset(base),
            end: Offset(end),
            epoch: LeaderEpoch(epoch),
            size: 20,
        });
    }
    FetchAnswer::Data {
        high_watermark: Offset(high_watermark),
        log_start: Offset(log_start),
        batches: headers,
        bytes: bytes.freeze(),
    }
}

/// The answers to produces among effects: whom, and the base offset or the error.
fn answers(effects: &[Effect]) -> Vec<(ReplyId, Result<i64, ErrorCode>)> {
    let answer = |e: &Effect| match e {
        Effect::Reply {
            to,
            answer: Answer::Produced(outcome),
        } => Some((*to, outcome.map(|p| p.base_offset.0))),
        _ => None,
    };
    effects.iter().filter_map(answer).collect()
}

/// The ISR proposed among effects.
fn proposed(effects: &[Effect]) -> Option<Vec<i32>> {
    effects.iter().find_map(|e| match e {
        Effect::AskIsr { isr, .. } => Some(isr.iter().map(|(b, _)| b.0).collect()),
        _ => None,
    })
}

fn empty() -> Bytes {
    Bytes::new()
}
