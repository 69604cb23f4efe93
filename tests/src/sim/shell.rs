//! The simulated shell of one partition: the same bargain with the real replica as the product's. An event, its effects in
//! order, `LogChanged` after each disk effect; then whoever waits.

use std::collections::VecDeque;

use epoka_broker::replica::{
    Acks, Answer, ClientBatch, Effect, Event, FetchAnswer, IsrAnswer, News, Notice, ReadAnswer,
    ReadGrant, ReadRequest, Reader, ReplyId, Sequence,
};
use epoka_controller::cluster::{Command, IsrProposal};
use epoka_proto::error::ErrorCode;
use epoka_proto::ids::{BrokerEpoch, LeaderEpoch, Millis, Offset};
use rand::Rng;

use super::broker::{Ask, Partition, Waiter};
use super::message::{Asked, Home, Item, Message, Node};
use super::world::World;
use crate::model::{Batch, client_batch, encode};

const FETCH_WAIT_MS: Millis = 250;
const FETCH_TIMEOUT_MS: Millis = 600;
const RPC_TIMEOUT_MS: Millis = 500;

impl World {
    pub(super) fn home(&mut self, home: Home) -> Option<&mut Partition> {
        self.alive(home.broker, home.life)?.partitions[home.partition].as_mut()
    }

    /// A step of a partition in a given life of its broker; nothing when that is over.
    pub(super) fn step_in(&mut self, b: usize, life: u64, p: usize, event: Event) {
        self.step(
            Home {
                broker: b,
                life,
                partition: p,
            },
            event,
        );
    }

    pub(super) fn step(&mut self, home: Home, event: Event) {
        let (now, b, p) = (self.now, home.broker, home.partition);
        if self.trace.is_verbose()
            && self.home(home).is_some()
            && !matches!(event, Event::Tick { .. })
        {
            self.trace.line(now, || format!("b{b}/{p} {event:?}"));
        }
        let Some(partition) = self.home(home) else {
            return;
        };
        let mut out = Vec::new();
        partition.replica.step(event, &mut out);
        let mut effects = VecDeque::from(out);
        let (mut wake, mut cut, mut folded) = (false, false, 0);
        while let Some(effect) = effects.pop_front() {
            folded += 1;
            if self.trace.is_verbose() {
                self.trace.line(now, || format!("b{b}/{p}   {effect:?}"));
            }
            if self.run_disk(home, &effect) {
                if self.dies_now(b) {
                    return;
                }
                cut = matches!(effect, Effect::Truncate { .. });
                let log = self.brokers[b].disks[p].log.state();
                let Some(partition) = self.home(home) else {
                    return;
                };
                let mut out = Vec::new();
                partition
                    .replica
                    .step(Event::LogChanged { log, now }, &mut out);
                effects.extend(out);
            } else if matches!(effect, Effect::Publish { .. }) {
                if !std::mem::take(&mut cut) {
                    self.published(home);
                }
            } else {
                self.perform(home, effect, &mut wake);
            }
        }
        self.observe(home, folded);
        if wake {
            self.retry_parked(home);
        }
        self.maybe_fetch(home);
    }

    fn dies_now(&mut self, b: usize) -> bool {
        match &mut self.brokers[b].dies_after {
            None => false,
            Some(0) => {
                self.brokers[b].dies_after = None;
                let power = self.rng.random_bool(0.5);
                self.kill(b, power);
                let delay = self.rng.random_range(10..2000);
                self.schedule(delay, Item::Start { broker: b });
                true
            }
            Some(effects) => {
                *effects -= 1;
                false
            }
        }
    }

    fn run_disk(&mut self, home: Home, effect: &Effect) -> bool {
        let (b, p) = (home.broker, home.partition);
        let replica = &self.home(home).expect("it runs").replica;
        let (watermark, term) = (
            replica.high_watermark(),
            replica
                .leader_epoch()
                .expect("only assigned replicas write"),
        );
        let disk = &mut self.brokers[b].disks[p];
        let (before, start) = (disk.log.batches().len(), disk.log.start());
        if !disk.log.run(effect) {
            return false;
        }
        match effect {
            Effect::Append { leader_epoch, .. } => {
                self.ghost.appended_by_leader(p, *leader_epoch, home);
                self.ghost.appended(p, &disk.log, before);
            }
            Effect::AppendFetched { .. } => self.ghost.appended(p, &disk.log, before),
            Effect::StartEpoch { epoch, .. } => {
                self.report.terms += 1;
                self.ghost.starts_epoch(p, *epoch, home);
                self.ghost.leads(p, *epoch, watermark, disk);
            }
            Effect::Truncate { .. } => {
                self.report.truncations += 1;
                disk.lower_checkpoint();
                self.ghost.truncated(p, disk);
            }
            Effect::StartOver { at } => {
                self.report.restarts_over += 1;
                disk.lower_checkpoint();
                disk.matched = *at;
                self.ghost.begins_no_later(p, term, start, *at);
            }
            Effect::RaiseLogStart { to } => self.ghost.begins_no_later(p, term, start, *to),
            _ => {}
        }
        let disk = &mut self.brokers[b].disks[p];
        self.ghost.check_history(&disk.log);
        self.mark(p);
        true
    }

    /// The high watermark was set by a leader of this term: ourselves, or the one followed. (A cut only lowers what an earlier
    /// one had set.)
    fn published(&mut self, home: Home) {
        let partition = self.home(home).expect("it runs");
        partition.watermark_term = partition.replica.leader_epoch().expect("assigned");
    }

    fn perform(&mut self, home: Home, effect: Effect, wake: &mut bool) {
        let me = Node::Broker(home.broker);
        match effect {
            // Only followers park here.
            Effect::WakeReaders(news) => *wake |= news != News::Committed,
            Effect::Reply { to, answer } => self.reply(home, to, answer),
            Effect::AskIsr {
                leader_epoch,
                partition_epoch,
                isr,
                recovering,
            } => {
                let id = self.partition_id(home.partition);
                let proposal = IsrProposal {
                    partition: id,
                    leader_epoch,
                    partition_epoch,
                    isr,
                    recovering,
                };
                let rpc = self.next_id();
                let process = self.alive(home.broker, home.life).expect("it runs");
                let epoch = process.epoch.expect("a leader is registered");
                let ask = Ask {
                    rpc,
                    leader_epoch,
                    partition_epoch,
                };
                self.home(home).expect("it runs").ask = Some(ask);
                self.send(
                    me,
                    Node::Controller,
                    Message::AlterPartition {
                        from: home,
                        rpc,
                        epoch,
                        proposal,
                    },
                );
                self.schedule(RPC_TIMEOUT_MS, Item::IsrTimeout { home, rpc });
            }
            Effect::AskBounds {
                leader,
                leader_epoch,
            } => {
                let rpc = self.next_id();
                self.home(home).expect("it runs").bounds = Some(rpc);
                let to = Node::Broker(self.index(leader));
                self.send(
                    me,
                    to,
                    Message::Bounds {
                        from: home,
                        rpc,
                        leader_epoch,
                    },
                );
                self.schedule(
                    RPC_TIMEOUT_MS,
                    Item::BoundsTimeout {
                        home,
                        rpc,
                        leader_epoch,
                    },
                );
            }
            Effect::Follow { .. } | Effect::Unfollow => {
                self.home(home).expect("it runs").fetch = None
            }
            Effect::Notice(Notice::Failed { reason }) => panic!("nothing fails here: {reason}"),
            Effect::Notice(_) => {}
            disk => unreachable!("{disk:?} was run"),
        }
    }

    // ---- answers of the replica ----

    fn reply(&mut self, home: Home, to: ReplyId, answer: Answer) {
        let waiter = self.home(home).expect("it runs").waiters.remove(&to);
        let waiter = waiter.expect("each reply once, to someone who waits");
        match (waiter, answer) {
            (
                Waiter::Producer {
                    client,
                    attempt,
                    acks,
                    records,
                    term,
                },
                Answer::Produced(outcome),
            ) => {
                if let Ok(produced) = outcome
                    && acks == Acks::All
                {
                    let partition = self.home(home).expect("it runs");
                    let (led, committed) = (
                        partition.replica.leading(),
                        partition.replica.high_watermark(),
                    );
                    let isr = partition.replica.isr().expect("it leads");
                    assert!(
                        led.is_some() && led == term && committed >= produced.base_offset + records,
                        "I-13: acked {produced:?} + {records} of {term:?} at {committed} in {led:?}"
                    );
                    assert!(
                        isr.committed.len() >= isr.min_isr,
                        "I-13: acked with {isr:?}"
                    );
                    self.report.acked += 1;
                }
                if acks != Acks::None || outcome.is_err() {
                    let message = Message::Produced {
                        client,
                        attempt,
                        outcome,
                    };
                    self.send(Node::Broker(home.broker), Node::Client, message);
                }
            }
            (Waiter::Consumer { partition }, Answer::Read(outcome)) => {
                self.serve_consumer(home, partition, outcome)
            }
            (
                Waiter::Follower {
                    home: follower,
                    rpc,
                    asked,
                    request,
                    deadline,
                },
                Answer::Read(outcome),
            ) => {
                let empty = matches!(outcome, Ok(ReadAnswer::Grant(g)) if g.bound <= g.from);
                if empty && self.now < deadline {
                    let request = ReadRequest {
                        again: true,
                        ..request
                    };
                    let waiter = Waiter::Follower {
                        home: follower,
                        rpc,
                        asked,
                        request,
                        deadline,
                    };
                    self.home(home).expect("it runs").waiters.insert(to, waiter);
                    self.schedule(
                        deadline - self.now,
                        Item::ParkedLongEnough { home, reply: to },
                    );
                    return;
                }
                let answer = match outcome {
                    Ok(ReadAnswer::Grant(grant)) => self.read(home, grant),
                    Ok(ReadAnswer::Diverging(end)) => FetchAnswer::Diverging(end),
                    Err(error) => FetchAnswer::Refused(error),
                };
                let message = Message::Fetched {
                    to: follower,
                    rpc,
                    asked,
                    answer,
                };
                self.send(
                    Node::Broker(home.broker),
                    Node::Broker(follower.broker),
                    message,
                );
            }
            (waiter, answer) => panic!("{answer:?} for {waiter:?}"),
        }
    }

    fn read(&mut self, home: Home, grant: ReadGrant) -> FetchAnswer {
        let at_most = self.rng.random_range(1..=5);
        let corrupt = !self.network.calm && self.rng.random_bool(0.01);
        let log = &self.brokers[home.broker].disks[home.partition].log;
        let (mut batches, bytes) = encode(log.read(grant.from, grant.bound, at_most));
        if corrupt && let Some(size) = batches.len().checked_sub(1) {
            batches.truncate(size); // the last batch does not pass its checksum
        }
        FetchAnswer::Data {
            high_watermark: grant.high_watermark,
            log_start: grant.log_start,
            batches,
            bytes,
        }
    }

    fn serve_consumer(&mut self, home: Home, p: usize, outcome: Result<ReadAnswer, ErrorCode>) {
        let outcome = match outcome {
            Ok(ReadAnswer::Grant(grant)) => {
                let log = &self.brokers[home.broker].disks[home.partition].log;
                let batches: Vec<Batch> = log.read(grant.from, grant.bound, 10).to_vec();
                self.ghost.consumed(p, grant.leader_epoch, &batches);
                Ok(batches.last().map_or(grant.from, |b| b.end))
            }
            Ok(ReadAnswer::Diverging(end)) => Ok(end.end),
            Err(error) => Err(error),
        };
        let partition = self.home(home).expect("it runs");
        if let (Ok(latest), Some(term)) = (
            partition.replica.latest_for_consumer(),
            partition.replica.leading(),
        ) {
            let newest = self
                .controller_assignment(p)
                .is_some_and(|a| a.leader_epoch == term);
            self.ghost.latest_told(p, term, newest, latest);
        }
        self.send(
            Node::Broker(home.broker),
            Node::Client,
            Message::Consumed {
                partition: p,
                outcome,
            },
        );
    }

    fn retry_parked(&mut self, home: Home) {
        let now = self.now;
        let Some(partition) = self.home(home) else {
            return;
        };
        let parked: Vec<(ReplyId, ReadRequest)> = partition
            .waiters
            .iter()
            .filter_map(|(&reply, waiter)| match waiter {
                Waiter::Follower { request, .. } if request.again => Some((reply, request.clone())),
                _ => None,
            })
            .collect();
        for (reply, request) in parked {
            self.step(
                home,
                Event::Read {
                    reply,
                    request,
                    now,
                },
            );
        }
    }

    pub(super) fn parked_long_enough(&mut self, home: Home, reply: ReplyId) {
        let now = self.now;
        let Some(partition) = self.home(home) else {
            return;
        };
        if let Some(Waiter::Follower { request, .. }) = partition.waiters.get(&reply) {
            let request = request.clone();
            self.step(
                home,
                Event::Read {
                    reply,
                    request,
                    now,
                },
            );
        }
    }

    // ---- what arrives at a leader ----

    /// The partition on a broker, whichever life it is in.
    fn here(&self, b: usize, p: usize) -> Option<Home> {
        let process = self.brokers[b].process.as_ref()?;
        process.partitions[p].as_ref()?;
        Some(Home {
            broker: b,
            life: process.life,
            partition: p,
        })
    }

    pub(super) fn fetch_arrives(&mut self, b: usize, from: Home, rpc: u64, request: ReadRequest) {
        let asked: Asked = (
            request.current_leader_epoch.expect("stated"),
            request.offset,
            request.last_fetched_epoch,
        );
        let Some(home) = self.here(b, from.partition) else {
            let answer = FetchAnswer::Refused(ErrorCode::UnknownTopicId);
            self.send(
                Node::Broker(b),
                Node::Broker(from.broker),
                Message::Fetched {
                    to: from,
                    rpc,
                    asked,
                    answer,
                },
            );
            return;
        };
        let reply = ReplyId(self.next_id());
        let deadline = self.now + FETCH_WAIT_MS;
        let waiter = Waiter::Follower {
            home: from,
            rpc,
            asked,
            request: request.clone(),
            deadline,
        };
        self.home(home)
            .expect("it is here")
            .waiters
            .insert(reply, waiter);
        self.step(
            home,
            Event::Read {
                reply,
                request,
                now: self.now,
            },
        );
    }

    pub(super) fn bounds_arrive(
        &mut self,
        b: usize,
        from: Home,
        rpc: u64,
        leader_epoch: LeaderEpoch,
    ) {
        let answer = match self.here(b, from.partition) {
            None => Err(ErrorCode::UnknownTopicId),
            Some(home) => {
                let replica = &self.home(home).expect("it is here").replica;
                let log = replica.log();
                replica
                    .check_leader(Some(leader_epoch))
                    .map(|_| (log.start, log.end))
            }
        };
        let message = Message::BoundsAnswer {
            to: from,
            rpc,
            leader_epoch,
            answer,
        };
        self.send(Node::Broker(b), Node::Broker(from.broker), message);
    }

    pub(super) fn produce_arrives(
        &mut self,
        b: usize,
        p: usize,
        (client, attempt): (usize, u64),
        payload: u64,
        records: i64,
        acks: Acks,
    ) {
        let Some(home) = self.here(b, p) else {
            let outcome = Err(ErrorCode::UnknownTopicOrPartition);
            self.send(
                Node::Broker(b),
                Node::Client,
                Message::Produced {
                    client,
                    attempt,
                    outcome,
                },
            );
            return;
        };
        let log = &self.brokers[b].disks[p].log;
        let last = log
            .batches()
            .iter()
            .rev()
            .find(|l| l.payload >> 32 == payload >> 32);
        let sequence = match (log.find(payload), last) {
            (Some(original), _) => Sequence::Duplicate {
                base: original.base,
                end: original.end,
            },
            (None, Some(last)) if last.payload > payload => {
                Sequence::Refused(ErrorCode::OutOfOrderSequenceNumber)
            }
            (None, _) => Sequence::Next,
        };
        let reply = ReplyId(self.next_id());
        let now = self.now;
        let partition = self.home(home).expect("it is here");
        let term = partition.replica.leading();
        partition.waiters.insert(
            reply,
            Waiter::Producer {
                client,
                attempt,
                acks,
                records,
                term,
            },
        );
        let batch = ClientBatch {
            bytes: client_batch(payload, records),
            records,
            sequence,
        };
        self.step(
            home,
            Event::Produce {
                reply,
                acks,
                batch,
                deadline: now + 800,
                now,
            },
        );
    }

    pub(super) fn consume_arrives(
        &mut self,
        b: usize,
        p: usize,
        epoch: Option<LeaderEpoch>,
        offset: Offset,
    ) {
        let Some(home) = self.here(b, p) else {
            let outcome = Err(ErrorCode::UnknownTopicOrPartition);
            self.send(
                Node::Broker(b),
                Node::Client,
                Message::Consumed {
                    partition: p,
                    outcome,
                },
            );
            return;
        };
        let reply = ReplyId(self.next_id());
        self.home(home)
            .expect("it is here")
            .waiters
            .insert(reply, Waiter::Consumer { partition: p });
        let request = ReadRequest {
            reader: Reader::Consumer,
            current_leader_epoch: epoch,
            offset,
            last_fetched_epoch: None,
            again: false,
        };
        self.step(
            home,
            Event::Read {
                reply,
                request,
                now: self.now,
            },
        );
    }

    // ---- what a follower does ----

    pub(super) fn maybe_fetch(&mut self, home: Home) {
        let now = self.now;
        let Some(process) = self.alive(home.broker, home.life) else {
            return;
        };
        let Some(epoch) = process.epoch else { return };
        let Some(partition) = process.partitions[home.partition].as_mut() else {
            return;
        };
        if partition.fetch.is_some() {
            return;
        }
        let Some(position) = partition.replica.fetch_position() else {
            return;
        };
        if position.not_before > now {
            if partition.fetch_again != position.not_before {
                partition.fetch_again = position.not_before;
                self.schedule(position.not_before - now, Item::FetchAgain { home });
            }
            return;
        }
        let rpc = self.next_id();
        self.home(home).expect("it is here").fetch = Some(rpc);
        let request = ReadRequest {
            reader: Reader::Follower {
                broker: self.brokers[home.broker].id,
                epoch,
            },
            current_leader_epoch: Some(position.leader_epoch),
            offset: position.offset,
            last_fetched_epoch: position.last_fetched_epoch,
            again: false,
        };
        let to = Node::Broker(self.index(position.leader));
        self.send(
            Node::Broker(home.broker),
            to,
            Message::Fetch {
                from: home,
                rpc,
                request,
            },
        );
        self.schedule(FETCH_TIMEOUT_MS, Item::FetchTimeout { home, rpc });
    }

    /// An answer, perhaps late or twice: the replica judges by its echo (F-5).
    pub(super) fn fetched(&mut self, home: Home, rpc: u64, asked: Asked, answer: FetchAnswer) {
        let now = self.now;
        let Some(partition) = self.home(home) else {
            return;
        };
        if partition.fetch == Some(rpc) {
            partition.fetch = None;
        }
        let (leader_epoch, fetch_offset, last_fetched_epoch) = asked;
        self.step(
            home,
            Event::Fetched {
                leader_epoch,
                fetch_offset,
                last_fetched_epoch,
                answer,
                now,
            },
        );
    }

    pub(super) fn fetch_timed_out(&mut self, home: Home, rpc: u64) {
        let now = self.now;
        let Some(partition) = self.home(home) else {
            return;
        };
        if partition.fetch != Some(rpc) {
            return;
        }
        partition.fetch = None;
        if let Some(position) = partition.replica.fetch_position() {
            self.step(
                home,
                Event::Fetched {
                    leader_epoch: position.leader_epoch,
                    fetch_offset: position.offset,
                    last_fetched_epoch: position.last_fetched_epoch,
                    answer: FetchAnswer::Unreachable,
                    now,
                },
            );
        }
    }

    pub(super) fn bounds_answered(
        &mut self,
        home: Home,
        rpc: u64,
        leader_epoch: LeaderEpoch,
        answer: Result<(Offset, Offset), ErrorCode>,
    ) {
        let now = self.now;
        let Some(partition) = self.home(home) else {
            return;
        };
        if partition.bounds == Some(rpc) {
            partition.bounds = None;
            self.step(
                home,
                Event::Bounds {
                    leader_epoch,
                    answer,
                    now,
                },
            );
        }
    }

    // ---- a leader and the controller ----

    pub(super) fn alter_partition_arrives(
        &mut self,
        from: Home,
        rpc: u64,
        epoch: BrokerEpoch,
        proposal: IsrProposal,
    ) {
        let broker = self.brokers[from.broker].id;
        self.alter_partition(
            from,
            rpc,
            Command::AlterPartition {
                broker,
                epoch,
                partitions: vec![proposal],
            },
        );
    }

    /// The answer to a proposal; each proposal gets one, if only that there was none.
    pub(super) fn isr_answered(&mut self, home: Home, rpc: u64, answer: IsrAnswer) {
        let now = self.now;
        let Some(partition) = self.home(home) else {
            return;
        };
        if let Some(Ask {
            leader_epoch,
            partition_epoch,
            ..
        }) = partition.ask.take_if(|a| a.rpc == rpc)
        {
            self.step(
                home,
                Event::Isr {
                    leader_epoch,
                    partition_epoch,
                    answer,
                    now,
                },
            );
        }
    }
}
