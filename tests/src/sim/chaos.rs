//! What goes wrong: one act at a time, drawn by the weights of the plan.

use epoka_broker::replica::Event;
use epoka_controller::cluster::{Command, ElectionKind};
use rand::Rng;

use super::message::{Home, Item, Node};
use super::world::World;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Act {
    Kill,
    LosePower,
    /// Everybody at once, as when a fuse blows.
    LosePowerEverywhere,
    /// In the midst of a step, after some disk effects.
    DieAtDisk,
    StopCleanly,
    Pause,
    Isolate,
    CutOneWay,
    CutFromController,
    Heal,
    FailOver,
    Retention,
    Flush,
    Balance,
    ElectUncleanly,
    ChangeMinIsr,
}

impl Act {
    pub(super) const ALL: &[Self] = &[
        Self::Kill,
        Self::LosePower,
        Self::LosePowerEverywhere,
        Self::DieAtDisk,
        Self::StopCleanly,
        Self::Pause,
        Self::Isolate,
        Self::CutOneWay,
        Self::CutFromController,
        Self::Heal,
        Self::FailOver,
        Self::Retention,
        Self::Flush,
        Self::Balance,
        Self::ElectUncleanly,
        Self::ChangeMinIsr,
    ];
}

impl World {
    pub(super) fn chaos(&mut self) {
        if self.now >= self.plan.chaos_ms {
            self.calm_down();
            return;
        }
        let pause = self.rng.random_range(1..self.plan.chaos_every_ms * 2);
        self.schedule(pause, Item::Chaos);
        let total: u32 = self.plan.weights.iter().sum();
        if total == 0 {
            return;
        }
        let mut at = self.rng.random_range(0..total);
        let drawn = self.plan.weights.iter().position(|&w| {
            let hit = at < w;
            at = at.saturating_sub(w);
            hit
        });
        self.act(Act::ALL[drawn.expect("below the total")]);
    }

    fn act(&mut self, act: Act) {
        let b = self.rng.random_range(0..self.brokers.len());
        let p = self.rng.random_range(0..self.plan.partitions);
        self.trace.line(self.now, || format!("-- {act:?} b{b}"));
        let back = self.rng.random_range(10..3000);
        match act {
            Act::Kill => self.kill_for(b, false, back),
            Act::LosePower => self.kill_for(b, true, back),
            Act::LosePowerEverywhere => {
                if self.rng.random_bool(0.2) {
                    for b in 0..self.brokers.len() {
                        let back = self.rng.random_range(10..1500);
                        self.kill_for(b, true, back);
                    }
                }
            }
            Act::DieAtDisk => self.brokers[b].dies_after = Some(self.rng.random_range(0..4)),
            Act::StopCleanly => {
                if let Some(process) = &mut self.brokers[b].process {
                    process.leaving = true;
                    let life = process.life;
                    let delay = self.rng.random_range(1..1500);
                    self.schedule(delay, Item::Stop { broker: b, life });
                }
            }
            Act::Pause => self.brokers[b].paused_until = self.now + back,
            Act::Isolate => {
                for other in self.others(b) {
                    self.network.set_cut(Node::Broker(b), other, true);
                    self.network.set_cut(other, Node::Broker(b), true);
                }
            }
            Act::CutOneWay => {
                let others = self.others(b);
                let other = others[self.rng.random_range(0..others.len())];
                self.network.set_cut(Node::Broker(b), other, true);
            }
            Act::CutFromController => {
                self.network
                    .set_cut(Node::Broker(b), Node::Controller, true);
                self.network
                    .set_cut(Node::Controller, Node::Broker(b), true);
            }
            Act::Heal => self.network.heal(),
            Act::FailOver => self.fail_over(),
            Act::Retention => self.retention(b, p),
            Act::Flush => self.brokers[b].disks[p].log.flush(),
            Act::Balance => self.command(Command::BalanceLeaders { at_most: 10 }),
            Act::ElectUncleanly => {
                if self.plan.unclean {
                    self.elect(ElectionKind::Unclean);
                }
            }
            Act::ChangeMinIsr => {
                let min_isr = self.rng.random_range(1..=2);
                self.set_min_isr(min_isr);
            }
        }
    }

    fn others(&self, b: usize) -> Vec<Node> {
        let brokers = (0..self.brokers.len())
            .filter(|&o| o != b)
            .map(Node::Broker);
        brokers.chain([Node::Controller]).collect()
    }

    fn kill_for(&mut self, b: usize, power: bool, back: i64) {
        self.kill(b, power);
        self.schedule(back, Item::Start { broker: b });
    }

    /// A broker forgets old records of a partition: up to its high watermark, at times within a batch.
    fn retention(&mut self, b: usize, p: usize) {
        let Some(life) = self.brokers[b].process.as_ref().map(|pr| pr.life) else {
            return;
        };
        let home = Home {
            broker: b,
            life,
            partition: p,
        };
        let Some(partition) = self.home(home) else {
            return;
        };
        let replica = &partition.replica;
        let (committed, term) = (
            replica.high_watermark(),
            replica.leading().unwrap_or(partition.watermark_term),
        );
        let log = &self.brokers[b].disks[p].log;
        let eligible: Vec<_> = log
            .batches()
            .iter()
            .filter(|l| l.end <= committed && l.end > log.start())
            .collect();
        if eligible.is_empty() {
            return;
        }
        let batch = *eligible[self.rng.random_range(0..eligible.len())];
        let within =
            self.rng.random_bool(0.2) && batch.end - batch.base > 1 && batch.end + -1 > log.start();
        let to = if within { batch.end + -1 } else { batch.end };
        let disk = &mut self.brokers[b].disks[p];
        disk.log.raise_start(to);
        disk.matched = disk.matched.max(to);
        self.ghost.starts_at(p, term, to);
        let (log, now) = (disk.log.state(), self.now);
        self.step(home, Event::LogChanged { log, now });
    }
}
