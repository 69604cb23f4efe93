//! The end of a run: faults stop, everyone returns (in some runs all but one), clients finish, and then everything must come
//! right (liveness under eventual calm, section 9).

use epoka_broker::replica::IsrView;
use epoka_proto::ids::{BrokerId, LeaderEpoch, Millis, Offset};
use epoka_proto::metadata::{Assignment, Image};

use super::message::Item;
use super::world::World;

/// Clients go on for this long in the calm.
const LAST_ORDERS_MS: Millis = 1500;

impl World {
    pub(super) fn calm_down(&mut self) {
        self.trace.line(self.now, || "-- calm".into());
        self.network.heal();
        self.network.calm = true;
        if let Some(lost) = self.plan.stays_away {
            self.kill(lost, false);
        }
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
            if self.plan.stays_away != Some(b) {
                let id = self.brokers[b].id;
                let back = is_active(&image, id) && self.is_current(b);
                assert!(back, "liveness: broker {id} is not back");
            }
        }
        for p in 0..self.plan.partitions {
            let assignment = image.assignment(self.partition_id(p));
            self.check_partition(&image, p, assignment.expect("the topic exists"));
        }
    }

    fn check_partition(&self, image: &Image, p: usize, assignment: &Assignment) {
        let live = |b: &BrokerId| is_active(image, *b);
        let Some(leader) = assignment.leader else {
            // Only for want of one that holds everything, or, where none is known to, of the last leader (C-34).
            let mut holders: Vec<BrokerId> = assignment
                .isr
                .iter()
                .chain(&assignment.elr)
                .copied()
                .collect();
            if holders.is_empty() {
                holders.clone_from(&assignment.last_known_elr);
            }
            let hopeless = self.plan.stays_away.is_some() && !holders.iter().any(live);
            assert!(hopeless, "liveness: {p} has no leader: {assignment:?}");
            return;
        };
        let replicas: Vec<BrokerId> = assignment.replicas.iter().copied().filter(live).collect();
        let all_in_sync = assignment.isr.len() == replicas.len();
        assert!(
            all_in_sync,
            "liveness: {p} has ISR {assignment:?}, live are {replicas:?}"
        );
        let seen = self.view(leader, p);
        assert_eq!(
            seen.leading,
            Some(assignment.leader_epoch),
            "liveness: the leader of {p} leads"
        );
        let isr = seen.isr.expect("it leads");
        assert!(
            isr.proposed.is_none(),
            "liveness: {p} still proposes {isr:?}"
        );
        assert_eq!(
            seen.waiting, 0,
            "liveness: every produce of {p} was answered"
        );
        let may_commit = replicas.len() >= assignment.min_isr;
        assert!(
            seen.watermark == seen.end || !may_commit,
            "liveness: {p} is committed to {}",
            seen.watermark
        );
        for replica in replicas {
            let other = self.view(replica, p);
            let there = (other.end, other.watermark) == (seen.end, seen.watermark);
            assert!(
                there,
                "liveness: replica {replica} of {p} is at {}",
                other.end
            );
        }
        self.check_payloads_are_unique(self.index(leader), p);
    }

    fn view(&self, id: BrokerId, p: usize) -> View {
        let process = self.brokers[self.index(id)]
            .process
            .as_ref()
            .expect("it is back");
        let partition = process.partitions[p].as_ref().expect("it has a replica");
        let waiting = partition.waiters.values().filter(|w| !w.is_follower());
        let replica = &partition.replica;
        View {
            end: replica.log().end,
            watermark: replica.high_watermark(),
            leading: replica.leading(),
            isr: replica.isr(),
            waiting: waiting.count(),
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

struct View {
    end: Offset,
    watermark: Offset,
    leading: Option<LeaderEpoch>,
    isr: Option<IsrView>,
    waiting: usize,
}

fn is_active(image: &Image, broker: BrokerId) -> bool {
    image.brokers.get(&broker).is_some_and(|b| b.is_active())
}
