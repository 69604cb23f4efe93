//! What arrives at a simulated broker that leads: fetches of followers and consumers, batches of producers, questions about
//! its bounds, and how they are answered. A fetch with nothing to read waits here until there is news.

use epoka_broker::replica::{
    Acks, Answer, ClientBatch, Event, FetchAnswer, ReadAnswer, ReadGrant, ReadRequest, Reader,
    ReplyId, Sequence,
};
use epoka_proto::error::ErrorCode;
use epoka_proto::ids::{LeaderEpoch, Millis, Offset};
use rand::Rng;

use super::broker::Waiter;
use super::message::{Asked, Home, Item, Message, Node};
use super::world::World;
use crate::model::{Batch, client_batch, encode};

/// How long a fetch with nothing to read is parked.
const FETCH_WAIT_MS: Millis = 250;

impl World {
    /// The replica answers someone who waits.
    pub(super) fn reply(&mut self, home: Home, to: ReplyId, answer: Answer) {
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

    /// There is news: parked fetches try again.
    pub(super) fn retry_parked(&mut self, home: Home) {
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
}
