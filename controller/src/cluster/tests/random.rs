//! Random commands, sensible and senseless, against the invariants, which `World::run` checks after each.

use super::*;
use epoka_proto::ids::{LeaderEpoch, PartitionEpoch, TopicPartition};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Register {
        broker: i32,
        clean: bool,
    },
    Fence(i32),
    Unfence(i32),
    BeginShutdown(i32),
    Unregister(i32),
    /// On the current partition epoch, or off by a little.
    Withdraw(i32, usize, Fault, i32),
    /// From the leader, or from anyone; on the current epochs, or off by a little.
    Alter {
        partition: usize,
        sender: Option<i32>,
        leader_epoch: i32,
        partition_epoch: i32,
        isr: Vec<i32>,
        recovering: bool,
    },
    Create {
        name: u8,
        partitions: i32,
        factor: i32,
    },
    Delete(u8),
    Grow(u8, i32),
    MinIsr(Option<u8>, Option<u8>),
    Unclean(u8, bool),
    Elect(ElectionKind, Option<u8>),
    Balance,
    Retry,
}

const BROKERS: std::ops::RangeInclusive<i32> = 1..=4;

fn step() -> impl Strategy<Value = Step> {
    let off = || prop_oneof![8 => Just(0), 1 => Just(-1), 1 => Just(1)];
    let kind = prop_oneof![Just(ElectionKind::Preferred), Just(ElectionKind::Unclean)];
    let fault = prop_oneof![3 => Just(Fault::Offline), 1 => Just(Fault::Lost)];
    let alter = (
        0usize..8,
        prop::option::weighted(0.1, BROKERS),
        off(),
        off(),
        prop::collection::vec(BROKERS, 0..4),
        any::<bool>(),
    );
    prop_oneof![
        4 => (BROKERS, any::<bool>()).prop_map(|(broker, clean)| Step::Register { broker, clean }),
        6 => BROKERS.prop_map(Step::Fence),
        8 => BROKERS.prop_map(Step::Unfence),
        2 => BROKERS.prop_map(Step::BeginShutdown),
        1 => BROKERS.prop_map(Step::Unregister),
        3 => (BROKERS, 0usize..8, fault, off()).prop_map(|(broker, partition, fault, off)| Step::Withdraw(broker, partition, fault, off)),
        12 => alter.prop_map(|(partition, sender, leader_epoch, partition_epoch, isr, recovering)| Step::Alter {
            partition, sender, leader_epoch, partition_epoch, isr, recovering
        }),
        3 => (0u8..3, 1..3, 1..4).prop_map(|(name, partitions, factor)| Step::Create { name, partitions, factor }),
        1 => (0u8..3).prop_map(Step::Delete),
        1 => (0u8..3, 1..4).prop_map(|(name, count)| Step::Grow(name, count)),
        2 => (prop::option::of(0u8..3), prop::option::of(1u8..4)).prop_map(|(name, n)| Step::MinIsr(name, n)),
        1 => (0u8..3, any::<bool>()).prop_map(|(name, on)| Step::Unclean(name, on)),
        1 => (kind, prop::option::of(0u8..3)).prop_map(|(kind, name)| Step::Elect(kind, name)),
        1 => Just(Step::Balance),
        1 => Just(Step::Retry),
    ]
}

fn name(n: u8) -> String {
    format!("topic-{n}")
}

impl World {
    fn known_epoch(&self, id: i32) -> BrokerEpoch {
        let known = self.cluster.image().brokers.get(&BrokerId(id));
        known.map_or(BrokerEpoch(-7), |b| b.epoch)
    }

    fn command(&mut self, step: Step) -> Command {
        let of = |world: &Self, id| (BrokerId(id), world.known_epoch(id));
        match step {
            Step::Register { broker, clean } => {
                let previous = clean.then(|| self.known_epoch(broker));
                Command::Register(self.registration(broker, previous))
            }
            Step::Fence(id) => {
                let (broker, epoch) = of(self, id);
                Command::Fence { broker, epoch }
            }
            Step::Unfence(id) => {
                let (broker, epoch) = of(self, id);
                Command::Unfence { broker, epoch }
            }
            Step::BeginShutdown(id) => {
                let (broker, epoch) = of(self, id);
                Command::BeginShutdown { broker, epoch }
            }
            Step::Unregister(id) => Command::Unregister {
                broker: BrokerId(id),
            },
            Step::Withdraw(id, partition, fault, off) => {
                let (broker, epoch) = of(self, id);
                let all: Vec<_> = self
                    .cluster
                    .image()
                    .partitions()
                    .map(|(id, ..)| id)
                    .collect();
                let asked = all.get(partition % all.len().max(1));
                Command::Withdraw {
                    broker,
                    epoch,
                    partitions: asked
                        .map(|&asked| {
                            let now = self.withdrawal(asked, fault);
                            Withdrawal {
                                partition_epoch: PartitionEpoch(now.partition_epoch.0 + off),
                                ..now
                            }
                        })
                        .into_iter()
                        .collect(),
                }
            }
            Step::Alter {
                partition,
                sender,
                leader_epoch,
                partition_epoch,
                isr,
                recovering,
            } => {
                let all: Vec<_> = self.cluster.image().partitions().collect();
                let (id, leader, epochs) = match all.get(partition % all.len().max(1)) {
                    Some((id, _, a)) => (*id, a.leader, (a.leader_epoch.0, a.partition_epoch.0)),
                    None => (
                        PartitionId {
                            topic: TopicId(Uuid::nil()),
                            partition: 0,
                        },
                        None,
                        (0, 0),
                    ),
                };
                let sender = sender.map(BrokerId).or(leader).unwrap_or(BrokerId(1));
                let member = |r: i32| (BrokerId(r), Some(self.known_epoch(r)));
                let leader_first = std::iter::once((sender, None));
                let others = isr
                    .into_iter()
                    .filter(|r| BrokerId(*r) != sender)
                    .map(member);
                Command::AlterPartition {
                    broker: sender,
                    epoch: self.known_epoch(sender.0),
                    partitions: vec![IsrProposal {
                        partition: id,
                        leader_epoch: LeaderEpoch(epochs.0 + leader_epoch),
                        partition_epoch: PartitionEpoch(epochs.1 + partition_epoch),
                        isr: leader_first.chain(others).collect(),
                        recovering,
                    }],
                }
            }
            Step::Create {
                name: n,
                partitions,
                factor,
            } => Command::CreateTopics {
                topics: vec![NewTopic {
                    partitions: Some(partitions),
                    replication_factor: Some(factor),
                    ..self.new_topic(&name(n))
                }],
            },
            Step::Delete(n) => Command::DeleteTopics {
                topics: vec![TopicRef::Name(name(n))],
            },
            Step::Grow(n, count) => Command::CreatePartitions {
                topics: vec![NewPartitions {
                    topic: name(n),
                    count,
                    assignments: vec![],
                }],
            },
            Step::MinIsr(n, value) => Command::AlterConfigs {
                changes: vec![ConfigChange {
                    topic: n.map(name),
                    key: "min.insync.replicas".into(),
                    value: value.map(|v| v.to_string()),
                }],
            },
            Step::Unclean(n, on) => Command::AlterConfigs {
                changes: vec![ConfigChange {
                    topic: Some(name(n)),
                    key: "unclean.leader.election.enable".into(),
                    value: Some(on.to_string()),
                }],
            },
            Step::Elect(kind, n) => Command::ElectLeaders {
                kind,
                partitions: n.map(|n| vec![TopicPartition::new(name(n), 0)]),
            },
            Step::Balance => Command::BalanceLeaders { at_most: 3 },
            Step::Retry => Command::RetryElections,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, max_shrink_iters: 4096, ..ProptestConfig::default() })]

    #[test]
    fn random_commands_keep_i_1_i_2_i_18_and_snapshots_are_faithful(steps in prop::collection::vec(step(), 1..120)) {
        let mut world = World::with_brokers(3);
        let mut twin = Cluster::default();
        for step in steps {
            let command = world.command(step);
            world.run(command);
        }
        for record in world.cluster.image().to_records() {
            twin.image.apply(&record);
        }
        prop_assert_eq!(twin, world.cluster);
    }
}
