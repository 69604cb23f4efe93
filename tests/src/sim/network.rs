//! Links and their faults. A message is lost, doubled or late by chance; a cut link carries nothing in its direction, neither
//! what is sent while it is cut nor what would arrive.

use epoka_proto::ids::Millis;
use rand::Rng;
use rand::rngs::SmallRng;

use super::message::{Item, Message, Node};
use super::plan::Plan;
use super::world::World;

pub(super) struct Network {
    /// `cut[from][to]`; the controller comes after the brokers.
    cut: Vec<Vec<bool>>,
    /// No faults any more.
    pub(super) calm: bool,
}

impl Network {
    pub(super) fn new(brokers: usize) -> Self {
        Self {
            cut: vec![vec![false; brokers + 1]; brokers + 1],
            calm: false,
        }
    }

    fn index(&self, node: Node) -> Option<usize> {
        match node {
            Node::Broker(broker) => Some(broker),
            Node::Controller => Some(self.cut.len() - 1),
            Node::Client => None,
        }
    }

    pub(super) fn carries(&self, from: Node, to: Node) -> bool {
        match (self.index(from), self.index(to)) {
            (Some(from), Some(to)) => !self.cut[from][to],
            _ => true,
        }
    }

    pub(super) fn set_cut(&mut self, from: Node, to: Node, cut: bool) {
        if let (Some(from), Some(to)) = (self.index(from), self.index(to)) {
            self.cut[from][to] = cut;
        }
    }

    pub(super) fn heal(&mut self) {
        self.cut.iter_mut().flatten().for_each(|c| *c = false);
    }

    fn delay(&self, rng: &mut SmallRng, plan: &Plan) -> Millis {
        if self.calm {
            return rng.random_range(1..4);
        }
        if rng.random_bool(plan.late) {
            return rng.random_range(50..plan.session_ms * 3);
        }
        match rng.random_range(0..100) {
            0..90 => rng.random_range(0..4),
            90..98 => rng.random_range(4..40),
            _ => rng.random_range(40..300),
        }
    }
}

impl World {
    pub(super) fn send(&mut self, from: Node, to: Node, message: Message) {
        let calm = self.network.calm;
        if !self.network.carries(from, to) || (!calm && self.rng.random_bool(self.plan.loss)) {
            return;
        }
        if !calm && self.rng.random_bool(self.plan.duplicate) {
            let delay = self.network.delay(&mut self.rng, &self.plan);
            self.schedule(
                delay,
                Item::Deliver {
                    from,
                    to,
                    message: message.clone(),
                },
            );
        }
        let delay = self.network.delay(&mut self.rng, &self.plan);
        self.schedule(delay, Item::Deliver { from, to, message });
    }
}
