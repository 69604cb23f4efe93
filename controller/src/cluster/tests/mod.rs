//! A small cluster to try commands on, and what the tests of each theme share.

mod alter_partition;
mod brokers;
mod random;
mod restore;
mod topics;
mod withdraw;

use std::collections::BTreeMap;

use epoka_proto::error::ErrorCode;
use epoka_proto::ids::{BrokerEpoch, BrokerId, Incarnation, PartitionId, TopicId};
use epoka_proto::metadata::Assignment;
use uuid::Uuid;

use super::*;

/// Applies commands at growing offsets and holds every outcome to the invariants.
struct World {
    cluster: Cluster,
    next_offset: i64,
    drawn: u128,
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            cluster: Cluster::default(),
            next_offset: 0,
            drawn: 0,
        };
        world.run(Command::Initialize {
            cluster_id: "abc".into(),
            configs: BTreeMap::new(),
        });
        world
    }

    /// With brokers 1 to `n`, unfenced.
    fn with_brokers(n: i32) -> Self {
        let mut world = Self::new();
        for id in 1..=n {
            world.join(id);
        }
        world
    }

    fn run(&mut self, command: Command) -> Outcome {
        let json = serde_json::to_vec(&command).expect("a command is JSON");
        let command: Command = serde_json::from_slice(&json).expect("a command is JSON");
        let before = self.cluster.clone();
        let outcome = self.cluster.apply(self.next_offset, &command);
        let broken = broken_invariants(before.image(), self.cluster.image());
        assert!(broken.is_empty(), "{command:?}: {broken:#?}");
        let mut rebuilt = before.image().clone();
        outcome.records.iter().for_each(|r| rebuilt.apply(r));
        assert_eq!(
            &rebuilt,
            self.cluster.image(),
            "records and image agree (I-17)"
        );
        self.next_offset += 1;
        outcome
    }

    fn draw(&mut self) -> Uuid {
        self.drawn += 1;
        Uuid::from_u128(self.drawn)
    }

    fn registration(&mut self, id: i32, previous_epoch: Option<BrokerEpoch>) -> Registration {
        Registration {
            broker: BrokerId(id),
            cluster_id: Some("abc".into()),
            incarnation: Incarnation(self.draw()),
            listeners: vec![],
            grpc_address: format!("host-{id}:1"),
            log_dirs: vec![],
            previous_epoch,
            rack: None,
        }
    }

    fn register(&mut self, registration: Registration) -> BrokerEpoch {
        match self.run(Command::Register(registration)).reply {
            Reply::Registered(Ok(epoch)) => epoch,
            other => panic!("{other:?}"),
        }
    }

    /// A process without a past, unfenced.
    fn join(&mut self, id: i32) -> BrokerEpoch {
        let registration = self.registration(id, None);
        let epoch = self.register(registration);
        self.unfence(id);
        epoch
    }

    fn epoch(&self, id: i32) -> BrokerEpoch {
        self.cluster.image().brokers[&BrokerId(id)].epoch
    }

    fn fence(&mut self, id: i32) -> Outcome {
        self.run(Command::Fence {
            broker: BrokerId(id),
            epoch: self.epoch(id),
        })
    }

    fn unfence(&mut self, id: i32) -> Outcome {
        self.run(Command::Unfence {
            broker: BrokerId(id),
            epoch: self.epoch(id),
        })
    }

    /// A withdrawal computed on what a partition is now.
    fn withdrawal(&self, partition: PartitionId, fault: Fault) -> Withdrawal {
        let assignment = self.cluster.image().assignment(partition);
        Withdrawal {
            partition,
            partition_epoch: assignment.expect("a partition").partition_epoch,
            fault,
        }
    }

    fn create(&mut self, topic: NewTopic) -> Result<(), ErrorCode> {
        let command = Command::CreateTopics {
            topics: vec![topic],
        };
        only(self.run(command))
    }

    fn new_topic(&mut self, name: &str) -> NewTopic {
        NewTopic {
            name: name.into(),
            id: TopicId(self.draw()),
            partitions: None,
            replication_factor: None,
            assignments: vec![],
            configs: BTreeMap::new(),
        }
    }

    /// Creates `orders` with one partition on these brokers and this minimum ISR.
    fn orders(&mut self, replicas: &[i32], min_isr: usize) -> TopicId {
        let topic = NewTopic {
            assignments: vec![(0, ids(replicas))],
            configs: BTreeMap::from([("min.insync.replicas".into(), min_isr.to_string())]),
            ..self.new_topic("orders")
        };
        let id = topic.id;
        self.create(topic).expect("created");
        id
    }

    fn assignment(&self, topic: &str, partition: i32) -> Assignment {
        let topic = self.cluster.image().topic(topic).expect("a topic");
        (*topic.partitions[&partition]).clone()
    }

    fn configure(
        &mut self,
        topic: Option<&str>,
        key: &str,
        value: Option<&str>,
    ) -> Result<(), ErrorCode> {
        only(self.run(Command::AlterConfigs {
            changes: vec![ConfigChange {
                topic: topic.map(Into::into),
                key: key.into(),
                value: value.map(Into::into),
            }],
        }))
    }
}

/// The result for the only topic asked about.
fn only(outcome: Outcome) -> Result<(), ErrorCode> {
    match outcome.reply {
        Reply::Topics(replies) if replies.len() == 1 => {
            replies[0].result.clone().map_err(|refusal| refusal.error)
        }
        other => panic!("{other:?}"),
    }
}

fn ids(numbers: &[i32]) -> Vec<BrokerId> {
    numbers.iter().map(|&n| BrokerId(n)).collect()
}
