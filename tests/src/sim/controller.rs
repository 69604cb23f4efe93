//! The simulated controller: the real `Cluster` behind a log of commands. What is proposed is committed a little later, in
//! order; a failover loses the soft state and some of what was proposed, and nobody is told which.

use std::collections::VecDeque;

use epoka_broker::replica::IsrAnswer;
use epoka_controller::cluster::{
    Cluster, Command, ConfigChange, ElectionKind, NewTopic, Notice, Registration, Reply,
    broken_invariants,
};
use epoka_proto::error::ErrorCode;
use epoka_proto::ids::{BrokerEpoch, BrokerId, Millis};
use epoka_proto::metadata::Record;
use rand::Rng;

use super::message::{Home, Item, Message, Node};
use super::world::World;

pub(super) struct Controller {
    pub(super) cluster: Cluster,
    /// The records of each command, by offset.
    pub(super) log: Vec<Vec<Record>>,
    proposed: VecDeque<(Command, Caller)>,
    term: u64,
    active: bool,
    /// Last contact by broker: soft state (C-14).
    heard: Vec<Millis>,
    /// The process behind a broker's registration is known to have ended.
    broken: Vec<bool>,
}

/// Who is to be told of a command's outcome.
#[derive(Clone, Debug)]
enum Caller {
    Nobody,
    Registering { broker: usize, life: u64 },
    Leader { home: Home, rpc: u64 },
}

pub(super) const TOPIC: &str = "t";

impl Controller {
    pub(super) fn new(brokers: usize) -> Self {
        Self {
            cluster: Cluster::default(),
            log: Vec::new(),
            proposed: VecDeque::new(),
            term: 1,
            active: true,
            heard: vec![0; brokers],
            broken: vec![false; brokers],
        }
    }
}

impl World {
    fn propose(&mut self, command: Command, caller: Caller) {
        if self.controller.active {
            self.controller.proposed.push_back((command, caller));
            let delay = self.rng.random_range(1..4);
            let term = self.controller.term;
            self.schedule(delay, Item::Commit { term });
        }
    }

    pub(super) fn command(&mut self, command: Command) {
        self.propose(command, Caller::Nobody);
    }

    pub(super) fn commit(&mut self, term: u64) {
        if term == self.controller.term
            && let Some((command, caller)) = self.controller.proposed.pop_front()
        {
            self.apply(command, caller);
        }
    }

    /// Loses the soft state; of what was proposed, a prefix survives without anyone hearing of it.
    pub(super) fn fail_over(&mut self) {
        let survive = self.rng.random_range(0..=self.controller.proposed.len());
        let proposed = std::mem::take(&mut self.controller.proposed);
        self.trace.line(self.now, || {
            format!(
                "controller fails over, {survive} of {} survive",
                proposed.len()
            )
        });
        self.controller.active = false;
        self.controller.term += 1;
        for (command, _) in proposed.into_iter().take(survive) {
            self.apply(command, Caller::Nobody);
        }
        let delay = self.rng.random_range(1..400);
        self.schedule(
            delay,
            Item::ControllerUp {
                term: self.controller.term,
            },
        );
    }

    pub(super) fn controller_up(&mut self, term: u64) {
        if term == self.controller.term {
            self.controller.active = true;
            self.controller.heard = vec![self.now; self.brokers.len()];
            self.controller.broken = vec![false; self.brokers.len()];
        }
    }

    fn apply(&mut self, command: Command, caller: Caller) {
        let before = self.controller.cluster.image().clone();
        let offset = self.controller.log.len() as i64;
        let outcome = self.controller.cluster.apply(offset, &command);
        let broken = broken_invariants(&before, self.controller.cluster.image());
        assert!(broken.is_empty(), "{broken:?} after {command:?}");
        self.trace.line(self.now, || {
            format!("@{offset} {command:?} -> {:?}", outcome.notices)
        });
        self.trace.fold(&[offset, outcome.records.len() as i64]);
        for notice in &outcome.notices {
            if let Notice::Elected {
                partition,
                new_epoch,
                unclean: true,
                ..
            } = notice
            {
                self.ghost
                    .unclean_election(partition.partition as usize, *new_epoch);
                self.report.unclean += 1;
            }
        }
        let partitions = self.plan.partitions;
        let changed = !outcome.records.is_empty();
        self.controller.log.push(outcome.records);
        self.answer(caller, outcome.reply);
        if changed {
            (0..partitions).for_each(|p| self.mark(p));
            for b in 0..self.brokers.len() {
                self.ship_metadata(b);
            }
        }
    }

    fn answer(&mut self, caller: Caller, reply: Reply) {
        match (caller, reply) {
            (Caller::Registering { broker, life }, Reply::Registered(Ok(epoch))) => {
                self.controller.heard[broker] = self.now;
                self.controller.broken[broker] = false;
                let message = Message::Registered {
                    to: broker,
                    life,
                    epoch,
                };
                self.send(Node::Controller, Node::Broker(broker), message);
            }
            (Caller::Leader { home, rpc }, Reply::Isr(result)) => {
                let result = result.and_then(|mut each| each.pop().expect("one was asked"));
                let answer = match result {
                    Ok(state) => {
                        self.report.isr_changes += 1;
                        IsrAnswer::Committed {
                            leader_epoch: state.leader_epoch,
                            partition_epoch: state.partition_epoch,
                            isr: state.isr,
                        }
                    }
                    Err(error) => IsrAnswer::Refused(error),
                };
                self.answer_leader(home, rpc, answer);
            }
            _ => {}
        }
    }

    fn answer_leader(&mut self, home: Home, rpc: u64, answer: IsrAnswer) {
        let message = Message::IsrAnswer {
            to: home,
            rpc,
            answer,
        };
        self.send(Node::Controller, Node::Broker(home.broker), message);
    }

    fn ship_metadata(&mut self, b: usize) {
        let upto = self.controller.log.len() as i64 - 1;
        if let Some(process) = &self.brokers[b].process {
            let message = Message::Metadata {
                to: b,
                life: process.life,
                upto,
            };
            self.send(Node::Controller, Node::Broker(b), message);
        }
    }

    pub(super) fn register(&mut self, from: usize, life: u64, registration: Registration) {
        let known = self
            .controller
            .cluster
            .image()
            .brokers
            .get(&registration.broker);
        let other_life =
            known.is_some_and(|k| k.incarnation != registration.incarnation && !k.fenced);
        let leased = self.now - self.controller.heard[from] <= self.plan.session_ms
            && !self.controller.broken[from];
        if other_life && leased && self.rng.random_bool(0.7) {
            return; // DUPLICATE_BROKER_REGISTRATION: it asks again; at times the lease is not looked at (H-82)
        }
        self.propose(
            Command::Register(registration),
            Caller::Registering { broker: from, life },
        );
    }

    pub(super) fn heard_from(
        &mut self,
        b: usize,
        life: u64,
        epoch: BrokerEpoch,
        applied: i64,
        leaving: bool,
    ) {
        if !self.controller.active {
            return;
        }
        let upto = self.controller.log.len() as i64 - 1;
        let known = self
            .controller
            .cluster
            .image()
            .brokers
            .get(&self.brokers[b].id)
            .cloned();
        let known = known.filter(|k| k.epoch == epoch);
        let answer = Message::HeartbeatAnswer {
            to: b,
            life,
            stale: known.is_none(),
            upto,
        };
        self.send(Node::Controller, Node::Broker(b), answer);
        let Some(known) = known else { return };
        self.controller.heard[b] = self.now;
        let broker = known.id;
        if leaving && !known.shutting_down {
            self.command(Command::BeginShutdown { broker, epoch });
        } else if !leaving && known.fenced && applied >= epoch.0 {
            self.command(Command::Unfence { broker, epoch });
        }
    }

    pub(super) fn alter_partition(&mut self, from: Home, rpc: u64, command: Command) {
        if self.controller.active {
            self.propose(command, Caller::Leader { home: from, rpc });
        } else {
            self.answer_leader(from, rpc, IsrAnswer::Refused(ErrorCode::NotController));
        }
    }

    /// Fences the silent, one at a time, and now and then those whose process is known to be gone.
    pub(super) fn controller_tick(&mut self) {
        self.schedule(50, Item::ControllerTick);
        if !self.controller.active {
            return;
        }
        for b in 0..self.brokers.len() {
            let id = self.brokers[b].id;
            let known = self.controller.cluster.image().brokers.get(&id);
            let Some(known) = known.filter(|k| !k.fenced).cloned() else {
                continue;
            };
            let gone = self.brokers[b]
                .process
                .as_ref()
                .is_none_or(|p| p.incarnation != known.incarnation);
            if gone && self.rng.random_bool(0.3) {
                self.controller.broken[b] = true; // the heartbeat stream broke
            }
            let silent = self.now - self.controller.heard[b] > self.plan.session_ms;
            if silent || self.controller.broken[b] {
                self.command(Command::Fence {
                    broker: id,
                    epoch: known.epoch,
                });
                break;
            }
        }
        if self.rng.random_bool(0.05) {
            self.command(Command::RetryElections);
        }
    }

    /// The first commands: a cluster, and once every broker is there, its topic.
    pub(super) fn found_cluster(&mut self) {
        let initialize = Command::Initialize {
            cluster_id: "sim".into(),
            configs: Default::default(),
        };
        self.apply(initialize, Caller::Nobody);
    }

    pub(super) fn create_topic(&mut self) {
        let unclean = if self.plan.unclean { "true" } else { "false" };
        let configs = [
            ("min.insync.replicas", self.plan.min_isr.to_string()),
            ("unclean.leader.election.enable", unclean.to_string()),
        ];
        let topic = NewTopic {
            name: TOPIC.into(),
            id: self.topic,
            partitions: Some(self.plan.partitions as i32),
            replication_factor: Some(self.plan.replication_factor),
            assignments: Vec::new(),
            configs: configs.map(|(k, v)| (k.to_owned(), v)).into(),
        };
        self.apply(
            Command::CreateTopics {
                topics: vec![topic],
            },
            Caller::Nobody,
        );
        let created = self.controller.cluster.image().topic(TOPIC).is_some();
        assert!(created, "the topic was created");
    }

    pub(super) fn elect(&mut self, kind: ElectionKind) {
        self.command(Command::ElectLeaders {
            kind,
            partitions: None,
        });
    }

    pub(super) fn set_min_isr(&mut self, min_isr: usize) {
        let change = ConfigChange {
            topic: Some(TOPIC.into()),
            key: "min.insync.replicas".into(),
            value: Some(min_isr.to_string()),
        };
        self.command(Command::AlterConfigs {
            changes: vec![change],
        });
    }

    /// Whether a broker is registered, in this life, and may lead.
    pub(super) fn is_current(&self, b: usize) -> bool {
        let Some(process) = &self.brokers[b].process else {
            return false;
        };
        let known = self
            .controller
            .cluster
            .image()
            .brokers
            .get(&self.brokers[b].id);
        known
            .is_some_and(|k| k.incarnation == process.incarnation && Some(k.epoch) == process.epoch)
    }

    pub(super) fn index(&self, id: BrokerId) -> usize {
        (id.0 - 1) as usize
    }
}
