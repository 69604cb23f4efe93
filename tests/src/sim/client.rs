//! Simulated clients: producers that send one batch at a time and try again until they know, and consumers that read on from
//! where they are. They believe what some broker's metadata says, which may be old.

use epoka_broker::replica::{Acks, Produced};
use epoka_proto::error::ErrorCode;
use epoka_proto::ids::{LeaderEpoch, Offset};
use rand::Rng;

use super::message::{Item, Message, Node};
use super::world::World;

pub(super) struct Producer {
    partition: usize,
    /// `None`: drawn for each batch.
    acks: Option<Acks>,
    sequence: u64,
    /// The batch not yet known to be written.
    pending: Option<Pending>,
    /// The try whose answer is awaited.
    attempt: u64,
}

struct Pending {
    payload: u64,
    records: i64,
    acks: Acks,
}

#[derive(Default)]
pub(super) struct Consumer {
    position: Offset,
}

pub(super) fn producers(partitions: usize) -> Vec<Producer> {
    let kinds = (0..partitions).flat_map(|p| [(p, Some(Acks::All)), (p, None)]);
    kinds
        .map(|(partition, acks)| Producer {
            partition,
            acks,
            sequence: 0,
            pending: None,
            attempt: 0,
        })
        .collect()
}

impl World {
    /// Whom a client takes for the leader, and in which term.
    fn believed_leader(&mut self, p: usize) -> (usize, Option<LeaderEpoch>) {
        let id = self.partition_id(p);
        let asked = self.rng.random_range(0..self.brokers.len());
        let old = self.rng.random_bool(0.3);
        let image = match &self.brokers[asked].process {
            Some(process) if old => &process.image,
            _ => self.controller.cluster.image(),
        };
        match image.assignment(id).map(|a| (a.leader, a.leader_epoch)) {
            Some((Some(leader), epoch)) => (self.index(leader), Some(epoch)),
            _ => (asked, None),
        }
    }

    pub(super) fn produce_next(&mut self, client: usize) {
        if self.clients_done {
            return;
        }
        let producer = &mut self.producers[client];
        if producer.pending.is_none() {
            producer.sequence += 1;
            let drawn = [Acks::None, Acks::Leader, Acks::All][self.rng.random_range(0..3)];
            producer.pending = Some(Pending {
                payload: (client as u64) << 32 | producer.sequence,
                records: self.rng.random_range(1..=3),
                acks: producer.acks.unwrap_or(drawn),
            });
        }
        let attempt = self.next_id();
        let producer = &mut self.producers[client];
        producer.attempt = attempt;
        let Pending {
            payload,
            records,
            acks,
        } = *producer.pending.as_ref().expect("set above");
        let partition = producer.partition;
        let (leader, _) = self.believed_leader(partition);
        let message = Message::Produce {
            partition,
            client,
            attempt,
            payload,
            records,
            acks,
        };
        self.send(Node::Client, Node::Broker(leader), message);
        self.schedule(1000, Item::ProduceTimeout { client, attempt });
        if acks == Acks::None {
            self.batch_over(client);
        }
    }

    fn batch_over(&mut self, client: usize) {
        let producer = &mut self.producers[client];
        producer.pending = None;
        producer.attempt = 0;
        let pause = self.rng.random_range(1..self.plan.produce_every_ms * 2);
        self.schedule(pause, Item::ProduceNext { client });
    }

    pub(super) fn produced(
        &mut self,
        client: usize,
        attempt: u64,
        outcome: Result<Produced, ErrorCode>,
    ) {
        let producer = &mut self.producers[client];
        if producer.attempt != attempt {
            return;
        }
        match outcome {
            Ok(_) => self.batch_over(client),
            // Never to succeed: a later batch of ours is in the log.
            Err(ErrorCode::OutOfOrderSequenceNumber) => self.batch_over(client),
            Err(_) => {
                producer.attempt = 0;
                let gives_up = producer.acks.is_none() && self.rng.random_bool(0.3);
                if gives_up {
                    self.batch_over(client);
                } else {
                    let pause = self.rng.random_range(5..60);
                    self.schedule(pause, Item::ProduceNext { client });
                }
            }
        }
    }

    pub(super) fn produce_timed_out(&mut self, client: usize, attempt: u64) {
        if self.producers[client].attempt == attempt {
            self.produce_next(client);
        }
    }

    pub(super) fn consume_next(&mut self, p: usize) {
        if self.clients_done {
            return;
        }
        let (leader, epoch) = self.believed_leader(p);
        let epoch = epoch.filter(|_| self.rng.random_bool(0.7));
        let offset = self.consumers[p].position;
        self.send(
            Node::Client,
            Node::Broker(leader),
            Message::Consume {
                partition: p,
                epoch,
                offset,
            },
        );
        let pause = self.rng.random_range(20..120);
        self.schedule(pause, Item::ConsumeNext { partition: p });
    }

    pub(super) fn consumed(&mut self, p: usize, outcome: Result<Offset, ErrorCode>) {
        let consumer = &mut self.consumers[p];
        match outcome {
            Ok(next) => consumer.position = consumer.position.max(next),
            Err(ErrorCode::OffsetOutOfRange) => consumer.position = self.ghost.end(p),
            Err(_) => {}
        }
    }
}
