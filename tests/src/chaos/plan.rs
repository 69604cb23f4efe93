//! What a seed makes go wrong, as plain data: the same seed gives the same plan. A step breaks one broker or one link at
//! most, so that a majority is always up and connected, but for the step that kills everything.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};

use crate::harness;

/// A silent broker is fenced after this long.
pub const SESSION: Duration = Duration::from_millis(1500);
/// A follower that was not caught up for this long leaves the ISR.
pub const LAG: Duration = Duration::from_millis(1000);
/// Brokers of the cluster.
pub const BROKERS: i32 = 3;
/// Partitions of each topic.
pub const PARTITIONS: i32 = 3;

/// Which broker a fault concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broker {
    /// The one with this id.
    Id(i32),
    /// Whoever leads this partition of the audited topic when the fault begins.
    LeaderOf(i32),
}

/// How long a broker is affected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lasting {
    /// This long.
    For(Duration),
    /// Until the controller has fenced it.
    UntilFenced,
}

/// Which of the two directions between two nodes is affected: who can no longer connect to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ways {
    /// From the first to the second.
    There,
    /// From the second to the first.
    Back,
    /// Both.
    Both,
}

/// Something that goes wrong, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// SIGKILL.
    Kill(Broker, Lasting),
    /// SIGTERM. The time counts from the end of the process.
    Stop(Broker, Lasting),
    /// SIGSTOP, then SIGCONT.
    Pause(Broker, Lasting),
    /// No connection to or from any other node.
    Isolate(Broker, harness::Fault, Lasting),
    /// Between a broker and the one `next` after it in the circle of ids: 1 or 2.
    CutBrokers {
        /// One end.
        broker: Broker,
        /// How far the other end is.
        next: i32,
        /// From the broker, to it, or both.
        ways: Ways,
        /// What happens to connections.
        kind: harness::Fault,
        /// How long.
        lasts: Duration,
    },
    /// Between a broker and all controllers.
    CutFromControllers {
        /// The broker.
        broker: Broker,
        /// From the broker, to it, or both.
        ways: Ways,
        /// What happens to connections.
        kind: harness::Fault,
        /// How long.
        lasts: Duration,
    },
    /// SIGKILL for the active controller.
    KillController(Duration),
    /// SIGSTOP and SIGCONT for the active controller.
    PauseController(Duration),
    /// SIGKILL for every node.
    KillAll,
}

/// What is awaited between two faults, when everything is there again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settle {
    /// Every replica in the ISR.
    Whole,
    /// A few acknowledgements.
    Progress,
    /// Nothing: the next fault meets a cluster that is still recovering.
    Nothing,
}

/// One step of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// What goes wrong.
    pub fault: Fault,
    /// Whether the active controller is killed just before, and comes back with the fault's end.
    pub and_controller: bool,
    /// What follows.
    pub settle: Settle,
}

/// The steps, without end.
#[derive(Clone, Debug)]
pub struct Plan {
    rng: SmallRng,
    controllers: i32,
}

impl Plan {
    /// The plan of a seed.
    pub fn new(seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let controllers = if rng.random_bool(0.5) { 3 } else { 1 };
        Self { rng, controllers }
    }

    /// Controllers of the cluster: 1 or 3.
    pub fn controllers(&self) -> i32 {
        self.controllers
    }

    fn fault(&mut self) -> Fault {
        match self.rng.random_range(0..100) {
            0..25 => Fault::Kill(self.broker(), self.lasting()),
            25..35 => Fault::Stop(self.broker(), self.lasting()),
            35..50 => Fault::Pause(self.broker(), self.lasting()),
            50..60 => Fault::Isolate(self.broker(), self.kind(), self.lasting()),
            60..73 => Fault::CutBrokers {
                broker: self.broker(),
                next: self.rng.random_range(1..BROKERS),
                ways: self.ways(),
                kind: self.kind(),
                lasts: self.up_to(LAG * 3),
            },
            73..81 => Fault::CutFromControllers {
                broker: self.broker(),
                ways: self.ways(),
                kind: self.kind(),
                lasts: self.up_to(SESSION * 2),
            },
            81..90 => Fault::KillController(self.up_to(SESSION * 2)),
            90..95 => Fault::PauseController(self.up_to(SESSION * 2)),
            _ => Fault::KillAll,
        }
    }

    /// Leaders more often than not: they have more to lose.
    fn broker(&mut self) -> Broker {
        if self.rng.random_bool(0.6) {
            Broker::LeaderOf(self.rng.random_range(0..PARTITIONS))
        } else {
            Broker::Id(self.rng.random_range(1..=BROKERS))
        }
    }

    fn lasting(&mut self) -> Lasting {
        if self.rng.random_bool(0.5) {
            Lasting::UntilFenced
        } else {
            Lasting::For(self.up_to(SESSION * 2 / 3))
        }
    }

    fn kind(&mut self) -> harness::Fault {
        if self.rng.random_bool(0.5) {
            harness::Fault::Cut
        } else {
            harness::Fault::Silent
        }
    }

    fn ways(&mut self) -> Ways {
        [Ways::There, Ways::Back, Ways::Both][self.rng.random_range(0..3)]
    }

    fn up_to(&mut self, most: Duration) -> Duration {
        let most = u64::try_from(most.as_millis()).expect("seconds");
        Duration::from_millis(self.rng.random_range(0..most))
    }
}

impl Iterator for Plan {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        let fault = self.fault();
        // Without its only controller a cluster notices nothing that happens to a broker.
        let can_spare = self.controllers > 1 && !fault.is_of_controllers();
        let and_controller = self.rng.random_bool(0.15) && can_spare;
        let settle = match self.rng.random_range(0..100) {
            0..65 => Settle::Whole,
            65..85 => Settle::Progress,
            _ => Settle::Nothing,
        };
        Some(Step {
            fault,
            and_controller,
            settle,
        })
    }
}

impl Fault {
    fn is_of_controllers(&self) -> bool {
        matches!(
            self,
            Self::KillController(_) | Self::PauseController(_) | Self::KillAll
        )
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashSet};
    use std::mem::discriminant;

    use super::*;

    fn steps(seed: u64) -> Vec<Step> {
        Plan::new(seed).take(50).collect()
    }

    fn faults() -> Vec<Fault> {
        (0..20).flat_map(steps).map(|s| s.fault).collect()
    }

    #[test]
    fn a_seed_gives_its_plan_again_and_another_seed_another() {
        assert_eq!(steps(1), steps(1));
        assert_ne!(steps(1), steps(2));
    }

    #[test]
    fn every_kind_of_fault_comes_and_both_sizes_of_quorum() {
        let kinds: HashSet<_> = faults().iter().map(discriminant).collect();
        assert_eq!(kinds.len(), 9);
        let quorums: BTreeSet<_> = (0..20).map(|seed| Plan::new(seed).controllers()).collect();
        assert_eq!(quorums, BTreeSet::from([1, 3]));
    }

    #[test]
    fn the_only_controller_is_never_killed_together_with_a_broker() {
        let mut both = 0;
        for seed in 0..20 {
            let plan = Plan::new(seed);
            let alone = plan.controllers() == 1;
            let killed = plan.take(50).filter(|step| step.and_controller).count();
            assert!(!alone || killed == 0, "seed {seed}");
            both += killed;
        }
        assert!(both > 0, "three controllers can spare one");
    }

    #[test]
    fn a_pause_is_shorter_than_a_session_or_outlasts_it() {
        let brief = |f: &Fault| matches!(f, Fault::Pause(_, Lasting::For(time)) if *time < SESSION);
        let long = |f: &Fault| matches!(f, Fault::Pause(_, Lasting::UntilFenced));
        let faults = faults();
        assert!(faults.iter().any(brief) && faults.iter().any(long));
    }
}
