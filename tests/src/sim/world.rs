//! The whole simulated cluster and its agenda: takes the earliest entry, lets it happen, checks what must hold.

use std::collections::BinaryHeap;
use std::sync::Arc;

use epoka_broker::replica::IsrAnswer;
use epoka_proto::error::ErrorCode;
use epoka_proto::ids::{BrokerId, LeaderEpoch, Millis, Offset, PartitionEpoch, TopicId};
use epoka_proto::metadata::Assignment;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::Report;
use super::broker::{Broker, Disk, uuid};
use super::chaos::Act;
use super::client::{Consumer, Producer, producers};
use super::controller::Controller;
use super::ghost::Ghost;
use super::message::{Home, Item, Message, Node, Scheduled};
use super::network::Network;
use super::plan::Plan;
use super::trace::Trace;

pub(super) struct World {
    pub(super) rng: SmallRng,
    pub(super) plan: Plan,
    pub(super) now: Millis,
    pub(super) topic: TopicId,
    pub(super) brokers: Vec<Broker>,
    pub(super) controller: Controller,
    pub(super) network: Network,
    pub(super) producers: Vec<Producer>,
    pub(super) consumers: Vec<Consumer>,
    pub(super) ghost: Ghost,
    pub(super) trace: Trace,
    pub(super) report: Report,
    pub(super) clients_done: bool,
    pub(super) last_orders: Millis,
    pub(super) ends: Millis,
    agenda: BinaryHeap<Scheduled>,
    order: u64,
    ids: u64,
    /// Partitions to be judged after this step.
    marked: Vec<bool>,
    /// What each replica was last seen at.
    seen: Vec<Vec<Seen>>,
}

#[derive(Clone, Copy, Default)]
struct Seen {
    life: u64,
    leader_epoch: Option<LeaderEpoch>,
    partition_epoch: Option<PartitionEpoch>,
    /// The term led, and the high watermark in it.
    led: Option<(LeaderEpoch, Offset)>,
}

impl World {
    pub(super) fn new(seed: u64, verbose: bool) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let plan = Plan::draw(&mut rng, Act::ALL.len());
        let (n, partitions) = (plan.brokers, plan.partitions);
        let broker = |b| Broker {
            id: BrokerId(b as i32 + 1),
            disks: (0..partitions).map(|_| Disk::default()).collect(),
            clean_epoch: None,
            process: None,
            dies_after: None,
            paused_until: 0,
        };
        let mut world = Self {
            now: 0,
            topic: TopicId(uuid(seed)),
            brokers: (0..n).map(broker).collect(),
            controller: Controller::new(n),
            network: Network::new(n),
            producers: producers(partitions),
            consumers: (0..partitions).map(|_| Consumer::default()).collect(),
            ghost: Ghost::new(partitions),
            trace: Trace::new(verbose),
            report: Report::default(),
            clients_done: false,
            last_orders: Millis::MAX,
            ends: Millis::MAX,
            agenda: BinaryHeap::new(),
            order: 0,
            ids: 0,
            marked: vec![false; partitions],
            seen: vec![vec![Seen::default(); partitions]; n],
            rng,
            plan,
        };
        world.trace.line(0, || format!("{:?}", world.plan));
        world.found_cluster();
        for b in 0..n {
            world.start(b);
        }
        world
    }

    pub(super) fn run(mut self) -> Report {
        self.schedule(0, Item::ControllerTick);
        while self
            .controller
            .cluster
            .image()
            .brokers
            .values()
            .filter(|b| b.is_active())
            .count()
            < self.brokers.len()
        {
            self.next();
            assert!(self.now < 60_000, "liveness: the cluster does not come up");
        }
        self.create_topic();
        self.plan.chaos_ms += self.now;
        for client in 0..self.producers.len() {
            self.schedule(5, Item::ProduceNext { client });
        }
        for partition in 0..self.plan.partitions {
            self.schedule(5, Item::ConsumeNext { partition });
        }
        self.schedule(10, Item::Chaos);
        while self.now < self.ends {
            self.next();
            self.clients_done |= self.now > self.last_orders;
        }
        self.check_calm();
        self.report.trace = self.trace.hash();
        self.report
    }

    pub(super) fn schedule(&mut self, delay: Millis, item: Item) {
        self.order += 1;
        self.agenda.push(Scheduled {
            at: self.now + delay.max(0),
            order: self.order,
            item,
        });
    }

    pub(super) fn next_id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }

    fn next(&mut self) {
        let Scheduled { at, order, item } = self.agenda.pop().expect("someone always waits");
        self.now = at;
        if let Some(until) = self.paused(&item) {
            self.schedule(until - at, item);
            return;
        }
        self.report.steps += 1;
        self.trace.fold(&[at, order as i64]);
        self.happen(item);
        for p in 0..self.plan.partitions {
            if std::mem::take(&mut self.marked[p]) {
                self.judge(p);
            }
        }
    }

    /// Until when the process concerned is paused. The power and the operator do not wait.
    fn paused(&self, item: &Item) -> Option<Millis> {
        let b = match item {
            Item::Deliver {
                to: Node::Broker(b),
                ..
            } => *b,
            Item::FetchTimeout { home, .. }
            | Item::FetchAgain { home }
            | Item::ParkedLongEnough { home, .. }
            | Item::BoundsTimeout { home, .. }
            | Item::IsrTimeout { home, .. } => home.broker,
            Item::Tick { broker, .. }
            | Item::Heartbeat { broker, .. }
            | Item::RegisterAgain { broker, .. }
            | Item::Stop { broker, .. } => *broker,
            _ => return None,
        };
        let broker = &self.brokers[b];
        (broker.process.is_some() && broker.paused_until > self.now).then_some(broker.paused_until)
    }

    fn happen(&mut self, item: Item) {
        match item {
            Item::Deliver { from, to, message } => {
                if self.network.carries(from, to) {
                    self.deliver(to, message);
                }
            }
            Item::FetchTimeout { home, rpc } => self.fetch_timed_out(home, rpc),
            Item::FetchAgain { home } => self.maybe_fetch(home),
            Item::ParkedLongEnough { home, reply } => self.parked_long_enough(home, reply),
            Item::BoundsTimeout {
                home,
                rpc,
                leader_epoch,
            } => {
                self.bounds_answered(home, rpc, leader_epoch, Err(ErrorCode::RequestTimedOut));
            }
            Item::IsrTimeout { home, rpc } => self.isr_answered(home, rpc, IsrAnswer::Unknown),
            Item::Tick { broker, life } => self.tick(broker, life),
            Item::Heartbeat { broker, life } => self.heartbeat(broker, life),
            Item::RegisterAgain { broker, life } => self.register_again(broker, life),
            Item::Start { broker } => self.start(broker),
            Item::Stop { broker, life } => self.stop(broker, life),
            Item::Commit { term } => self.commit(term),
            Item::ControllerTick => self.controller_tick(),
            Item::ControllerUp { term } => self.controller_up(term),
            Item::ProduceNext { client } => self.produce_next(client),
            Item::ProduceTimeout { client, attempt } => self.produce_timed_out(client, attempt),
            Item::ConsumeNext { partition } => self.consume_next(partition),
            Item::Chaos => self.chaos(),
        }
    }

    fn deliver(&mut self, to: Node, message: Message) {
        match (to, message) {
            (Node::Broker(b), Message::Fetch { from, rpc, request }) => {
                self.fetch_arrives(b, from, rpc, request)
            }
            (
                _,
                Message::Fetched {
                    to,
                    rpc,
                    asked,
                    answer,
                },
            ) => self.fetched(to, rpc, asked, answer),
            (
                Node::Broker(b),
                Message::Bounds {
                    from,
                    rpc,
                    leader_epoch,
                },
            ) => {
                self.bounds_arrive(b, from, rpc, leader_epoch);
            }
            (
                _,
                Message::BoundsAnswer {
                    to,
                    rpc,
                    leader_epoch,
                    answer,
                },
            ) => {
                self.bounds_answered(to, rpc, leader_epoch, answer);
            }
            (
                _,
                Message::AlterPartition {
                    from,
                    rpc,
                    epoch,
                    proposal,
                },
            ) => {
                self.alter_partition_arrives(from, rpc, epoch, proposal);
            }
            (_, Message::IsrAnswer { to, rpc, answer }) => self.isr_answered(to, rpc, answer),
            (
                _,
                Message::Register {
                    from,
                    life,
                    registration,
                },
            ) => self.register(from, life, registration),
            (_, Message::Registered { to, life, epoch }) => self.registered(to, life, epoch),
            (
                _,
                Message::Heartbeat {
                    from,
                    life,
                    epoch,
                    applied,
                    leaving,
                },
            ) => {
                self.heard_from(from, life, epoch, applied, leaving);
            }
            (
                _,
                Message::HeartbeatAnswer {
                    to,
                    life,
                    stale,
                    upto,
                },
            ) => self.heartbeat_answered(to, life, stale, upto),
            (_, Message::Metadata { to, life, upto }) => self.apply_metadata(to, life, upto),
            (
                Node::Broker(b),
                Message::Produce {
                    partition,
                    client,
                    attempt,
                    payload,
                    records,
                    acks,
                },
            ) => {
                self.produce_arrives(b, partition, (client, attempt), payload, records, acks);
            }
            (
                _,
                Message::Produced {
                    client,
                    attempt,
                    outcome,
                },
            ) => self.produced(client, attempt, outcome),
            (
                Node::Broker(b),
                Message::Consume {
                    partition,
                    epoch,
                    offset,
                },
            ) => {
                self.consume_arrives(b, partition, epoch, offset);
            }
            (_, Message::Consumed { partition, outcome }) => self.consumed(partition, outcome),
            (to, message) => unreachable!("{message:?} for {to:?}"),
        }
    }

    /// Judges a partition after this step.
    pub(super) fn mark(&mut self, p: usize) {
        self.marked[p] = true;
    }

    pub(super) fn controller_assignment(&self, p: usize) -> Option<Arc<Assignment>> {
        self.controller
            .cluster
            .image()
            .assignment(self.partition_id(p))
            .cloned()
    }

    /// What one replica shows after a step: I-2, I-12, I-15, and its part in I-5.
    pub(super) fn observe(&mut self, home: Home, effects: i64) {
        let Home {
            broker: b,
            life,
            partition: p,
        } = home;
        let Some(partition) = self.home(home) else {
            return;
        };
        let replica = &partition.replica;
        let (watermark, term) = (replica.high_watermark(), partition.watermark_term);
        let now = Seen {
            life,
            leader_epoch: replica.leader_epoch(),
            partition_epoch: replica.partition_epoch(),
            led: replica.leading().map(|t| (t, watermark)),
        };
        let log = replica.log().clone();
        assert!(
            log.start <= watermark && watermark <= log.end,
            "I-12: {watermark} in {log:?}"
        );
        assert_eq!(
            log,
            self.brokers[b].disks[p].log.state(),
            "the replica knows its log"
        );
        assert!(
            log.epochs.latest() <= now.leader_epoch,
            "I-15: {:?} in a log of {home:?}, which knows of {:?}",
            log.epochs,
            now.leader_epoch
        );
        let before = std::mem::replace(&mut self.seen[b][p], now);
        if before.life == life {
            let older = now.leader_epoch < before.leader_epoch
                || now.partition_epoch < before.partition_epoch;
            assert!(!older, "I-2: epochs of {home:?} fell");
            if let (Some((then, low)), Some((term, high))) = (before.led, now.led) {
                assert!(
                    then != term || low <= high,
                    "I-12: a leader's high watermark fell from {low} to {high}"
                );
            }
        }
        if effects > 0 || before.life != life {
            let disk = &mut self.brokers[b].disks[p];
            let before = self.ghost.end(p);
            self.ghost
                .watermark(p, term, now.led.is_some(), watermark, disk);
            if self.ghost.end(p) != before {
                self.mark(p);
            }
        }
        self.trace.fold(&[
            b as i64,
            p as i64,
            effects,
            watermark.0,
            now.leader_epoch.map_or(-1, |e| e.0.into()),
        ]);
    }

    /// What several nodes must agree on: I-7, I-8, I-10, I-21.
    fn judge(&mut self, p: usize) {
        let Some(assignment) = self.controller_assignment(p) else {
            return;
        };
        if self.ghost.is_unsettled(p) {
            return;
        }
        let mut holders = 0;
        for &id in &assignment.replicas {
            let b = self.index(id);
            let complete = self.ghost.is_complete(p, &mut self.brokers[b].disks[p]);
            holders += usize::from(complete);
            let member = assignment.isr.contains(&id) || assignment.elr.contains(&id);
            if member && self.is_current(b) {
                assert!(
                    complete,
                    "I-7, I-10: replica {id} of {p} is in ISR {:?} or ELR {:?}, matches to {}, committed is {}",
                    assignment.isr,
                    assignment.elr,
                    self.brokers[b].disks[p].matched,
                    self.ghost.end(p)
                );
            }
        }
        let hopeless = assignment.isr.is_empty() && assignment.elr.is_empty();
        assert!(
            holders > 0 || hopeless || self.all_may_have_lost(&assignment),
            "I-21: nobody holds what is committed of {p}"
        );
        self.judge_leader(p, &assignment);
    }

    /// Every member has lost power since it registered, and the controller has not heard of it yet.
    fn all_may_have_lost(&self, assignment: &Assignment) -> bool {
        let members = assignment.isr.iter().chain(&assignment.elr);
        members
            .into_iter()
            .all(|&m| !self.is_current(self.index(m)))
    }

    /// I-8: nobody can be elected whom the leader's high watermark does not wait for.
    fn judge_leader(&self, p: usize, assignment: &Assignment) {
        let Some(leader) = assignment.leader.map(|l| self.index(l)) else {
            return;
        };
        let Some(process) = &self.brokers[leader].process else {
            return;
        };
        let Some(partition) = &process.partitions[p] else {
            return;
        };
        if partition.replica.leading() != Some(assignment.leader_epoch)
            || assignment.isr.len() < assignment.min_isr
        {
            return;
        }
        let isr = partition.replica.isr().expect("it leads");
        let members = assignment.isr.iter().chain(&assignment.elr);
        for member in members {
            assert!(
                isr.maximal.contains(member),
                "I-8: {assignment:?} while the leader waits for {isr:?}"
            );
        }
    }
}
