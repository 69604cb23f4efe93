//! The end of a run: faults stop, everyone returns, clients finish, and then everything must come right (liveness under
//! eventual calm, section 9).

use epoka_proto::ids::Millis;

use super::message::Item;
use super::world::World;

/// Clients go on for this long in the calm.
const LAST_ORDERS_MS: Millis = 1500;

impl World {
    pub(super) fn calm_down(&mut self) {
        self.trace.line(self.now, || "-- calm".into());
        self.network.heal();
        self.network.calm = true;
        for b in 0..self.brokers.len() {
            self.brokers[b].dies_after = None;
            self.brokers[b].paused_until = 0;
            self.schedule(1, Item::Start { broker: b });
        }
        self.last_orders = self.now + LAST_ORDERS_MS;
        // Messages of the storm may be late by three sessions, a broker may be told to stop and come back meanwhile.
        self.ends = self.last_orders + self.plan.session_ms * 4 + self.plan.lag_ms * 2 + 6000;
    }

    pub(super) fn check_calm(&mut self) {
        let image = self.controller.cluster.image().clone();
        for b in 0..self.brokers.len() {
            let id = self.brokers[b].id;
            let fenced = image.brokers.get(&id).is_none_or(|r| !r.is_active());
            assert!(
                !fenced && self.is_current(b),
                "liveness: broker {id} is not back"
            );
        }
        for p in 0..self.plan.partitions {
            let assignment = image
                .assignment(self.partition_id(p))
                .expect("the topic exists")
                .clone();
            let leader = assignment
                .leader
                .unwrap_or_else(|| panic!("liveness: {p} has no leader: {assignment:?}"));
            assert_eq!(
                assignment.isr.len(),
                assignment.replicas.len(),
                "liveness: {p} has ISR {assignment:?}"
            );
            let leader = self.index(leader);
            let view = |world: &Self, b: usize| {
                let process = world.brokers[b].process.as_ref().expect("it is back");
                let partition = process.partitions[p].as_ref().expect("it has a replica");
                let waiting = partition
                    .waiters
                    .values()
                    .filter(|w| !w.is_follower())
                    .count();
                let replica = &partition.replica;
                (
                    replica.log().end,
                    replica.high_watermark(),
                    replica.leading(),
                    replica.isr(),
                    waiting,
                )
            };
            let (end, watermark, leading, isr, waiting) = view(self, leader);
            assert_eq!(
                leading,
                Some(assignment.leader_epoch),
                "liveness: the leader of {p} leads"
            );
            assert_eq!(watermark, end, "liveness: everything in {p} is committed");
            let isr = isr.expect("it leads");
            assert!(
                isr.proposed.is_none(),
                "liveness: {p} still proposes {isr:?}"
            );
            assert_eq!(waiting, 0, "liveness: every produce of {p} was answered");
            for replica in &assignment.replicas {
                let (other_end, other_watermark, ..) = view(self, self.index(*replica));
                assert_eq!(
                    (other_end, other_watermark),
                    (end, end),
                    "liveness: replica {replica} of {p} caught up"
                );
            }
            self.check_payloads_are_unique(leader, p);
        }
    }

    /// I-22 as far as it goes here: a producer that tries again leaves no second copy.
    fn check_payloads_are_unique(&self, b: usize, p: usize) {
        let log = &self.brokers[b].disks[p].log;
        let mut payloads: Vec<u64> = log.batches().iter().map(|l| l.payload).collect();
        payloads.sort_unstable();
        let count = payloads.len();
        payloads.dedup();
        assert_eq!(payloads.len(), count, "I-22: a batch is in {p} twice");
    }
}
