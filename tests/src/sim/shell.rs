//! The simulated shell of one partition: the same bargain with the real replica as the product's. An event, its effects in
//! order, `LogChanged` after each disk effect; then whoever waits.

use std::collections::VecDeque;

use epoka_broker::replica::{Effect, Event, IsrAnswer, News, Notice};
use epoka_controller::cluster::{Command, IsrProposal};
use epoka_proto::ids::{BrokerEpoch, Millis};
use rand::Rng;

use super::broker::{Ask, Partition};
use super::message::{Home, Item, Message, Node};
use super::world::World;

/// How long an answer of the controller or of a leader's bounds is waited for.
const RPC_TIMEOUT_MS: Millis = 500;

impl World {
    pub(super) fn home(&mut self, home: Home) -> Option<&mut Partition> {
        self.alive(home.broker, home.life)?.partitions[home.partition].as_mut()
    }

    /// A step of a partition in a given life of its broker; nothing when that is over.
    pub(super) fn step_in(&mut self, b: usize, life: u64, p: usize, event: Event) {
        self.step(
            Home {
                broker: b,
                life,
                partition: p,
            },
            event,
        );
    }

    pub(super) fn step(&mut self, home: Home, event: Event) {
        let (now, b, p) = (self.now, home.broker, home.partition);
        if self.trace.is_verbose()
            && self.home(home).is_some()
            && !matches!(event, Event::Tick { .. })
        {
            self.trace.line(now, || format!("b{b}/{p} {event:?}"));
        }
        let Some(partition) = self.home(home) else {
            return;
        };
        let mut out = Vec::new();
        partition.replica.step(event, &mut out);
        let mut effects = VecDeque::from(out);
        let (mut wake, mut cut, mut folded) = (false, false, 0);
        while let Some(effect) = effects.pop_front() {
            folded += 1;
            if self.trace.is_verbose() {
                self.trace.line(now, || format!("b{b}/{p}   {effect:?}"));
            }
            if self.run_disk(home, &effect) {
                if self.dies_now(b) {
                    return;
                }
                cut = matches!(effect, Effect::Truncate { .. });
                let log = self.brokers[b].disks[p].log.state();
                let Some(partition) = self.home(home) else {
                    return;
                };
                let mut out = Vec::new();
                partition
                    .replica
                    .step(Event::LogChanged { log, now }, &mut out);
                effects.extend(out);
            } else if matches!(effect, Effect::Publish { .. }) {
                if !std::mem::take(&mut cut) {
                    self.published(home);
                }
            } else {
                self.perform(home, effect, &mut wake);
            }
        }
        self.observe(home, folded);
        if wake {
            self.retry_parked(home);
        }
        self.maybe_fetch(home);
    }

    fn dies_now(&mut self, b: usize) -> bool {
        match &mut self.brokers[b].dies_after {
            None => false,
            Some(0) => {
                self.brokers[b].dies_after = None;
                let power = self.rng.random_bool(0.5);
                self.kill(b, power);
                let delay = self.rng.random_range(10..2000);
                self.schedule(delay, Item::Start { broker: b });
                true
            }
            Some(effects) => {
                *effects -= 1;
                false
            }
        }
    }

    fn run_disk(&mut self, home: Home, effect: &Effect) -> bool {
        let (b, p) = (home.broker, home.partition);
        let replica = &self.home(home).expect("it runs").replica;
        let (watermark, term) = (
            replica.high_watermark(),
            replica
                .leader_epoch()
                .expect("only assigned replicas write"),
        );
        let disk = &mut self.brokers[b].disks[p];
        let (before, start) = (disk.log.batches().len(), disk.log.start());
        if !disk.log.run(effect) {
            return false;
        }
        match effect {
            Effect::Append { leader_epoch, .. } => {
                self.ghost.appended_by_leader(p, *leader_epoch, home);
                self.ghost.appended(p, &disk.log, before);
            }
            Effect::AppendFetched { .. } => self.ghost.appended(p, &disk.log, before),
            Effect::StartEpoch { epoch, .. } => {
                self.report.terms += 1;
                self.ghost.starts_epoch(p, *epoch, home);
                self.ghost.leads(p, *epoch, watermark, disk);
            }
            Effect::Truncate { .. } => {
                self.report.truncations += 1;
                disk.lower_checkpoint();
                self.ghost.truncated(p, term, disk);
            }
            Effect::StartOver { at } => {
                self.report.restarts_over += 1;
                disk.lower_checkpoint();
                disk.matched = *at;
                self.ghost.begins_no_later(p, term, start, *at);
            }
            Effect::RaiseLogStart { to } => self.ghost.begins_no_later(p, term, start, *to),
            _ => {}
        }
        let disk = &mut self.brokers[b].disks[p];
        self.ghost.check_history(&disk.log);
        self.mark(p);
        true
    }

    /// The high watermark was set by a leader of this term: ourselves, or the one followed. (A cut only lowers what an earlier
    /// one had set.)
    fn published(&mut self, home: Home) {
        let partition = self.home(home).expect("it runs");
        partition.watermark_term = partition.replica.leader_epoch().expect("assigned");
    }

    fn perform(&mut self, home: Home, effect: Effect, wake: &mut bool) {
        let me = Node::Broker(home.broker);
        match effect {
            // Only followers park here.
            Effect::WakeReaders(news) => *wake |= news != News::Committed,
            Effect::Reply { to, answer } => self.reply(home, to, answer),
            Effect::AskIsr {
                leader_epoch,
                partition_epoch,
                isr,
                recovering,
            } => {
                let id = self.partition_id(home.partition);
                let proposal = IsrProposal {
                    partition: id,
                    leader_epoch,
                    partition_epoch,
                    isr,
                    recovering,
                };
                let rpc = self.next_id();
                let process = self.alive(home.broker, home.life).expect("it runs");
                let epoch = process.epoch.expect("a leader is registered");
                let ask = Ask {
                    rpc,
                    leader_epoch,
                    partition_epoch,
                };
                self.home(home).expect("it runs").ask = Some(ask);
                self.send(
                    me,
                    Node::Controller,
                    Message::AlterPartition {
                        from: home,
                        rpc,
                        epoch,
                        proposal,
                    },
                );
                self.schedule(RPC_TIMEOUT_MS, Item::IsrTimeout { home, rpc });
            }
            Effect::AskBounds {
                leader,
                leader_epoch,
            } => {
                let rpc = self.next_id();
                self.home(home).expect("it runs").bounds = Some(rpc);
                let to = Node::Broker(self.index(leader));
                self.send(
                    me,
                    to,
                    Message::Bounds {
                        from: home,
                        rpc,
                        leader_epoch,
                    },
                );
                self.schedule(
                    RPC_TIMEOUT_MS,
                    Item::BoundsTimeout {
                        home,
                        rpc,
                        leader_epoch,
                    },
                );
            }
            Effect::Follow { .. } | Effect::Unfollow => {
                self.home(home).expect("it runs").fetch = None
            }
            Effect::Notice(Notice::Failed { reason }) => panic!("nothing fails here: {reason}"),
            Effect::Notice(_) => {}
            disk => unreachable!("{disk:?} was run"),
        }
    }

    pub(super) fn alter_partition_arrives(
        &mut self,
        from: Home,
        rpc: u64,
        epoch: BrokerEpoch,
        proposal: IsrProposal,
    ) {
        let broker = self.brokers[from.broker].id;
        self.alter_partition(
            from,
            rpc,
            Command::AlterPartition {
                broker,
                epoch,
                partitions: vec![proposal],
            },
        );
    }

    /// The answer to a proposal; each proposal gets one, if only that there was none.
    pub(super) fn isr_answered(&mut self, home: Home, rpc: u64, answer: IsrAnswer) {
        let now = self.now;
        let Some(partition) = self.home(home) else {
            return;
        };
        if let Some(Ask {
            leader_epoch,
            partition_epoch,
            ..
        }) = partition.ask.take_if(|a| a.rpc == rpc)
        {
            self.step(
                home,
                Event::Isr {
                    leader_epoch,
                    partition_epoch,
                    answer,
                    now,
                },
            );
        }
    }
}
