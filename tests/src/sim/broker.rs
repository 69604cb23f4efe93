//! A simulated broker: what its disks hold, and the process that runs while it lives. Starting, registering, leases and
//! metadata are here; what happens to one partition is in `shell.rs`.

use std::collections::BTreeMap;

use epoka_broker::replica::{Acks, Event, ReadRequest, Replica, ReplyId, Settings};
use epoka_controller::cluster::Registration;
use epoka_proto::ids::{
    BrokerEpoch, BrokerId, Incarnation, LeaderEpoch, Millis, Offset, PartitionEpoch, PartitionId,
};
use epoka_proto::metadata::{Assignment, Image, Record};
use rand::Rng;

use super::message::{Asked, Home, Item, Message, Node};
use super::world::World;
use crate::model::ModelLog;

pub(super) struct Broker {
    pub(super) id: BrokerId,
    /// By partition; survives the process.
    pub(super) disks: Vec<Disk>,
    /// The clean-shutdown marker (D-12).
    pub(super) clean_epoch: Option<BrokerEpoch>,
    pub(super) process: Option<Process>,
    /// Dies after so many more disk effects, in the midst of a step.
    pub(super) dies_after: Option<u32>,
    /// Stopped by a signal until then; what comes for it waits.
    pub(super) paused_until: Millis,
}

#[derive(Default)]
pub(super) struct Disk {
    pub(super) log: ModelLog,
    /// The high watermark last written down, and the term it was learnt in.
    pub(super) checkpoint: (Offset, LeaderEpoch),
    /// Up to here the log equals what is committed.
    pub(super) matched: Offset,
    /// By which writing of it.
    pub(super) rewritten: u32,
}

impl Disk {
    /// A watermark written down must not outlive the records it spoke of: others may take their place.
    pub(super) fn lower_checkpoint(&mut self) {
        self.checkpoint.0 = self.checkpoint.0.min(self.log.end());
    }
}

pub(super) struct Process {
    pub(super) life: u64,
    pub(super) incarnation: Incarnation,
    pub(super) previous_epoch: Option<BrokerEpoch>,
    pub(super) epoch: Option<BrokerEpoch>,
    pub(super) image: Image,
    pub(super) applied: i64,
    pub(super) leaving: bool,
    pub(super) partitions: Vec<Option<Partition>>,
}

impl Process {
    /// Acts on metadata only from its own registration on: anything older speaks of an earlier life.
    pub(super) fn is_ready(&self) -> bool {
        self.epoch.is_some_and(|e| self.applied >= e.0)
    }
}

/// The shell around one replica.
pub(super) struct Partition {
    pub(super) replica: Replica,
    pub(super) waiters: BTreeMap<ReplyId, Waiter>,
    /// The fetch on its way.
    pub(super) fetch: Option<u64>,
    pub(super) bounds: Option<u64>,
    pub(super) ask: Option<Ask>,
    /// When the follower is to be looked after again.
    pub(super) fetch_again: Millis,
    /// The term in which the high watermark was last set.
    pub(super) watermark_term: LeaderEpoch,
}

/// A proposal on its way to the controller.
#[derive(Clone, Copy)]
pub(super) struct Ask {
    pub(super) rpc: u64,
    pub(super) leader_epoch: LeaderEpoch,
    pub(super) partition_epoch: PartitionEpoch,
}

/// Who waits for an answer of a replica.
#[derive(Clone, Debug)]
pub(super) enum Waiter {
    Follower {
        home: Home,
        rpc: u64,
        asked: Asked,
        request: ReadRequest,
        deadline: Millis,
    },
    Producer {
        client: usize,
        attempt: u64,
        acks: Acks,
        records: i64,
        term: Option<LeaderEpoch>,
    },
    Consumer {
        partition: usize,
    },
}

impl Waiter {
    pub(super) fn is_follower(&self) -> bool {
        matches!(self, Self::Follower { .. })
    }
}

const HEARTBEAT_MS: Millis = 150;
const TICK_MS: Millis = 100;

impl World {
    pub(super) fn start(&mut self, b: usize) {
        let gone_for_good = self.network.calm && self.plan.stays_away == Some(b);
        if self.brokers[b].process.is_some() || gone_for_good {
            return;
        }
        let life = self.next_id();
        let broker = &mut self.brokers[b];
        broker.paused_until = 0;
        broker.dies_after = None;
        broker.process = Some(Process {
            life,
            incarnation: Incarnation(uuid(life)),
            previous_epoch: broker.clean_epoch.take(), // D-13: read once, and gone
            epoch: None,
            image: Image::default(),
            applied: -1,
            leaving: false,
            partitions: (0..self.plan.partitions).map(|_| None).collect(),
        });
        self.trace
            .line(self.now, || format!("b{b} starts, life {life}"));
        self.schedule(0, Item::RegisterAgain { broker: b, life });
        self.schedule(1, Item::Tick { broker: b, life });
    }

    pub(super) fn alive(&mut self, b: usize, life: u64) -> Option<&mut Process> {
        self.brokers[b].process.as_mut().filter(|p| p.life == life)
    }

    pub(super) fn register_again(&mut self, b: usize, life: u64) {
        let id = self.brokers[b].id;
        let Some(process) = self.alive(b, life).filter(|p| p.epoch.is_none()) else {
            return;
        };
        let registration = Registration {
            broker: id,
            cluster_id: None,
            incarnation: process.incarnation,
            listeners: Vec::new(),
            grpc_address: String::new(),
            log_dirs: Vec::new(),
            previous_epoch: process.previous_epoch,
            rack: None,
        };
        self.send(
            Node::Broker(b),
            Node::Controller,
            Message::Register {
                from: b,
                life,
                registration,
            },
        );
        self.schedule(250, Item::RegisterAgain { broker: b, life });
    }

    pub(super) fn registered(&mut self, b: usize, life: u64, epoch: BrokerEpoch) {
        let Some(process) = self.alive(b, life).filter(|p| p.epoch.is_none()) else {
            return;
        };
        process.epoch = Some(epoch);
        self.trace
            .line(self.now, || format!("b{b} registered, epoch {epoch}"));
        self.schedule(1, Item::Heartbeat { broker: b, life });
        self.become_ready(b);
    }

    pub(super) fn heartbeat(&mut self, b: usize, life: u64) {
        let Some(process) = self.alive(b, life) else {
            return;
        };
        let Some(epoch) = process.epoch else { return };
        let (applied, leaving) = (process.applied, process.leaving);
        let message = Message::Heartbeat {
            from: b,
            life,
            epoch,
            applied,
            leaving,
        };
        self.send(Node::Broker(b), Node::Controller, message);
        self.schedule(HEARTBEAT_MS, Item::Heartbeat { broker: b, life });
    }

    pub(super) fn heartbeat_answered(&mut self, b: usize, life: u64, stale: bool, upto: i64) {
        if self.alive(b, life).is_none() {
            return;
        }
        if stale {
            self.trace.line(self.now, || {
                format!("b{b} is told that its epoch is stale, and ends")
            });
            self.kill(b, false);
            self.schedule(50, Item::Start { broker: b });
            return;
        }
        self.apply_metadata(b, life, upto);
    }

    pub(super) fn tick(&mut self, b: usize, life: u64) {
        if self.alive(b, life).is_none() {
            return;
        }
        for p in 0..self.plan.partitions {
            self.step_in(b, life, p, Event::Tick { now: self.now });
            let flush = self.rng.random_bool(0.1);
            let checkpoint = self.rng.random_bool(0.05);
            if checkpoint {
                self.checkpoint(b, p);
            }
            if flush {
                self.brokers[b].disks[p].log.flush();
            }
        }
        self.schedule(TICK_MS, Item::Tick { broker: b, life });
    }

    fn checkpoint(&mut self, b: usize, p: usize) {
        let broker = &mut self.brokers[b];
        if let Some(process) = &broker.process
            && let Some(partition) = &process.partitions[p]
        {
            broker.disks[p].checkpoint =
                (partition.replica.high_watermark(), partition.watermark_term);
        }
    }

    /// The process is gone from one moment to the next; with the power, so is what was not flushed.
    pub(super) fn kill(&mut self, b: usize, power: bool) {
        if self.brokers[b].process.take().is_none() {
            return;
        }
        self.trace.line(self.now, || {
            format!("b{b} {}", if power { "loses power" } else { "is killed" })
        });
        if power {
            for p in 0..self.plan.partitions {
                let disk = &mut self.brokers[b].disks[p];
                let lost = self.rng.random_range(0..=disk.log.unflushed());
                disk.log.lose(lost);
                disk.matched = disk.matched.min(disk.log.end());
                disk.lower_checkpoint();
                if lost > 0 {
                    self.trace
                        .line(self.now, || format!("b{b}/{p} lost {lost} batches"));
                }
            }
        }
    }

    /// A clean stop: everything flushed, watermarks and the marker written (D-10).
    pub(super) fn stop(&mut self, b: usize, life: u64) {
        let Some(process) = self.alive(b, life) else {
            return;
        };
        let epoch = process.epoch;
        for p in 0..self.plan.partitions {
            self.step_in(b, life, p, Event::Removed);
            self.checkpoint(b, p);
            self.brokers[b].disks[p].log.flush();
        }
        self.trace.line(self.now, || format!("b{b} stops cleanly"));
        self.brokers[b].process = None;
        self.brokers[b].clean_epoch = epoch;
        let back = self.rng.random_range(10..2000);
        self.schedule(back, Item::Start { broker: b });
    }

    /// Takes the metadata up to an offset into account, however many changes that is at once (C-50).
    pub(super) fn apply_metadata(&mut self, b: usize, life: u64, upto: i64) {
        let Some(process) = self.brokers[b].process.as_mut().filter(|p| p.life == life) else {
            return;
        };
        if upto <= process.applied {
            return;
        }
        let was_ready = process.is_ready();
        let mut changed = vec![false; self.plan.partitions];
        let mut brokers_changed = false;
        let first = (process.applied + 1) as usize;
        for record in self.controller.log[first..=upto as usize].iter().flatten() {
            process.image.apply(record);
            match record {
                Record::Partition { id, .. } => changed[id.partition as usize] = true,
                Record::Broker(_) | Record::RemoveBroker { .. } => brokers_changed = true,
                _ => {}
            }
        }
        process.applied = upto;
        if !was_ready {
            self.become_ready(b);
            return;
        }
        for (p, changed) in changed.into_iter().enumerate() {
            if changed {
                self.assign(b, life, p);
            } else if brokers_changed {
                self.tell_eligible(b, life, p);
            }
        }
    }

    fn become_ready(&mut self, b: usize) {
        let Some(process) = self.brokers[b].process.as_ref().filter(|p| p.is_ready()) else {
            return;
        };
        let life = process.life;
        for p in 0..self.plan.partitions {
            self.assign(b, life, p);
        }
    }

    fn assign(&mut self, b: usize, life: u64, p: usize) {
        let id = self.brokers[b].id;
        let partition = self.partition_id(p);
        let lag = self.plan.lag_ms;
        let broker = &mut self.brokers[b];
        let Some(process) = broker.process.as_mut().filter(|p| p.life == life) else {
            return;
        };
        let Some(assignment) = process.image.assignment(partition).cloned() else {
            return;
        };
        if !assignment.replicas.contains(&id) {
            return;
        }
        let eligible = eligible(&process.image, &assignment);
        process.partitions[p].get_or_insert_with(|| {
            let disk = &broker.disks[p];
            let (checkpoint, watermark_term) = disk.checkpoint;
            let settings = Settings {
                replica_lag_time_max_ms: lag,
            };
            Partition {
                replica: Replica::new(id, settings, disk.log.state(), checkpoint),
                waiters: BTreeMap::new(),
                fetch: None,
                bounds: None,
                ask: None,
                fetch_again: -1,
                watermark_term,
            }
        });
        self.step_in(
            b,
            life,
            p,
            Event::Assigned {
                assignment,
                eligible,
                now: self.now,
            },
        );
    }

    fn tell_eligible(&mut self, b: usize, life: u64, p: usize) {
        let partition = self.partition_id(p);
        let Some(process) = self.alive(b, life) else {
            return;
        };
        let Some(assignment) = process.image.assignment(partition) else {
            return;
        };
        let brokers = eligible(&process.image, assignment);
        self.step_in(
            b,
            life,
            p,
            Event::Eligible {
                brokers,
                now: self.now,
            },
        );
    }

    pub(super) fn partition_id(&self, p: usize) -> PartitionId {
        PartitionId {
            topic: self.topic,
            partition: p as i32,
        }
    }
}

fn eligible(image: &Image, assignment: &Assignment) -> BTreeMap<BrokerId, BrokerEpoch> {
    let registrations = assignment
        .replicas
        .iter()
        .filter_map(|r| image.brokers.get(r));
    registrations
        .filter(|b| b.is_active())
        .map(|b| (b.id, b.epoch))
        .collect()
}

/// A made-up identity.
pub(super) fn uuid(number: u64) -> uuid::Uuid {
    uuid::Uuid::from_u128(0xE90C_A000_0000_0000_0000_0000_0000_0000 | u128::from(number))
}
