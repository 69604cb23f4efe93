//! Topics: creation, deletion, more partitions. What Kafka refuses is refused here with Kafka's error; a topic is made whole
//! or not at all. Rule C-1.

use std::collections::BTreeSet;
use std::sync::Arc;

use epoka_proto::error::ErrorCode;
use epoka_proto::ids::{BrokerId, LeaderEpoch, PartitionEpoch, PartitionId, TopicId};
use epoka_proto::metadata::{Assignment, Record, Recovery};

use super::commands::{NewPartitions, NewTopic, Refusal, TopicRef, TopicReply};
use super::placement::Placement;
use super::work::Work;
use super::{configs, names};

/// How many partitions one command may create: a bound on what a single request can make us hold.
const MAX_PARTITIONS_AT_ONCE: usize = 10_000;

impl Work<'_> {
    pub(super) fn create_topics(&mut self, topics: &[NewTopic]) -> Vec<TopicReply> {
        let repeated = repeated(topics.iter().map(|t| t.name.as_str()));
        let mut budget = MAX_PARTITIONS_AT_ONCE;
        let create = |topic: &NewTopic| {
            let result = if repeated.contains(topic.name.as_str()) {
                Err(named_twice())
            } else {
                self.create_topic(topic, &mut budget)
            };
            match result {
                Ok(()) => self.topic_reply(&topic.name, Ok(())),
                Err(refusal) => refused(&topic.name, refusal),
            }
        };
        topics.iter().map(create).collect()
    }

    fn create_topic(&mut self, topic: &NewTopic, budget: &mut usize) -> Result<(), Refusal> {
        names::check(&topic.name).map_err(|m| Refusal::new(ErrorCode::InvalidTopic, m))?;
        if self.image().topic(&topic.name).is_some() {
            let message = format!("Topic '{}' already exists.", topic.name);
            return Err(Refusal::new(ErrorCode::TopicAlreadyExists, message));
        }
        if let Some(other) = names::colliding(self.image(), &topic.name) {
            let message = format!(
                "Topic '{}' collides with existing topic: {other}",
                topic.name
            );
            return Err(Refusal::new(ErrorCode::InvalidTopic, message));
        }
        for (key, value) in &topic.configs {
            configs::check(Some(&topic.name), key, value)?;
        }
        let replicas = self.replicas_of_new_topic(topic)?;
        spend(budget, replicas.len())?;

        let name: Arc<str> = topic.name.as_str().into();
        self.write(Record::Topic {
            name: name.clone(),
            id: topic.id,
        });
        for (key, value) in &topic.configs {
            self.write_config(Some(&name), key, Some(value));
        }
        for (partition, replicas) in (0..).zip(replicas) {
            self.create_partition(&name, topic.id, partition, replicas);
        }
        Ok(())
    }

    fn replicas_of_new_topic(&self, topic: &NewTopic) -> Result<Vec<Vec<BrokerId>>, Refusal> {
        if !topic.assignments.is_empty() {
            if topic.partitions.is_some() || topic.replication_factor.is_some() {
                return Err(Refusal::new(
                    ErrorCode::InvalidRequest,
                    "A manual partition assignment was specified together with a number of partitions or a replication factor.",
                ));
            }
            let mut sorted = topic.assignments.clone();
            sorted.sort_by_key(|(partition, _)| *partition);
            if (0..).zip(&sorted).any(|(expected, (p, _))| expected != *p) {
                return Err(Refusal::new(
                    ErrorCode::InvalidReplicaAssignment,
                    "partitions should be a consecutive 0-based integer sequence",
                ));
            }
            let lists: Vec<_> = sorted.into_iter().map(|(_, replicas)| replicas).collect();
            self.check_manual(&lists, lists[0].len(), 0)?;
            return Ok(lists);
        }
        let count = match topic.partitions {
            None => configs::default_partitions(self.image()),
            Some(n) => positive(n).ok_or_else(|| {
                let message = "Number of partitions was set to an invalid non-positive value.";
                Refusal::new(ErrorCode::InvalidPartitions, message)
            })?,
        };
        let factor = match topic.replication_factor {
            None => configs::default_replication_factor(self.image()),
            Some(n) => positive(n).ok_or_else(|| {
                let message =
                    "Replication factor must be larger than 0, or -1 to use the default value.";
                Refusal::new(ErrorCode::InvalidReplicationFactor, message)
            })?,
        };
        self.place(count, factor)
    }

    fn place(&self, count: usize, factor: usize) -> Result<Vec<Vec<BrokerId>>, Refusal> {
        if count > MAX_PARTITIONS_AT_ONCE {
            return Err(too_many());
        }
        let placement = Placement::new(self.image());
        placement.check(factor)?;
        Ok((0..count).map(|i| placement.replicas(i, factor)).collect())
    }

    /// Refuses a manual assignment that Kafka would refuse. `first` is the number of its first partition.
    fn check_manual(
        &self,
        lists: &[Vec<BrokerId>],
        factor: usize,
        first: usize,
    ) -> Result<(), Refusal> {
        for (partition, replicas) in (first..).zip(lists) {
            let distinct: BTreeSet<_> = replicas.iter().collect();
            let unknown = replicas
                .iter()
                .find(|r| !self.image().brokers.contains_key(r));
            let message = if replicas.is_empty() {
                "The manual partition assignment includes an empty replica list.".to_owned()
            } else if distinct.len() != replicas.len() {
                format!(
                    "The manual partition assignment of partition {partition} names a broker more than once."
                )
            } else if let Some(unknown) = unknown {
                format!(
                    "The manual partition assignment includes broker {unknown}, but no such broker is registered."
                )
            } else if replicas.len() != factor {
                format!(
                    "The manual partition assignment includes a partition with {} replica(s), but this is not consistent \
                     with other partitions, which have {factor} replica(s).",
                    replicas.len()
                )
            } else if !replicas.iter().any(|r| self.acceptable(*r)) {
                format!(
                    "All brokers specified in the manual partition assignment for partition {partition} are fenced or in \
                     controlled shutdown."
                )
            } else {
                continue;
            };
            return Err(Refusal::new(ErrorCode::InvalidReplicaAssignment, message));
        }
        Ok(())
    }

    /// C-1: leader is the first live replica, the ISR all live ones, both epochs begin at 0.
    fn create_partition(
        &mut self,
        topic: &str,
        id: TopicId,
        partition: i32,
        replicas: Vec<BrokerId>,
    ) {
        let live = |r: &&BrokerId| self.acceptable(**r);
        let isr: Vec<BrokerId> = replicas.iter().filter(live).copied().collect();
        let mut assignment = Assignment {
            leader: isr.first().copied(),
            replicas,
            isr,
            elr: Vec::new(),
            last_known_elr: Vec::new(),
            offline: Vec::new(),
            adding: Vec::new(),
            removing: Vec::new(),
            leader_epoch: LeaderEpoch(0),
            partition_epoch: PartitionEpoch(0),
            recovery: Recovery::Recovered,
            min_isr: 1,
        };
        assignment.min_isr = configs::effective_min_isr(self.image(), topic, &assignment);
        self.write(Record::Partition {
            id: PartitionId {
                topic: id,
                partition,
            },
            assignment,
        });
    }

    pub(super) fn delete_topics(&mut self, topics: &[TopicRef]) -> Vec<TopicReply> {
        topics.iter().map(|t| self.delete_topic(t)).collect()
    }

    fn delete_topic(&mut self, topic: &TopicRef) -> TopicReply {
        let (id, name, error) = match topic {
            TopicRef::Name(name) => (
                self.image().topic_ids.get(name.as_str()).copied(),
                name.clone(),
                ErrorCode::UnknownTopicOrPartition,
            ),
            TopicRef::Id(id) => {
                let known = self.image().topics.get(id);
                let name = known.map(|t| t.name.to_string());
                let id = known.map(|t| t.id);
                (id, name.unwrap_or_default(), ErrorCode::UnknownTopicId)
            }
        };
        let Some(id) = id else {
            let message = match topic {
                TopicRef::Name(name) => format!("there is no topic '{name}'"),
                TopicRef::Id(id) => format!("there is no topic with id {id}"),
            };
            return refused(&name, Refusal::new(error, message));
        };
        let reply = self.topic_reply(&name, Ok(()));
        self.write(Record::RemoveTopic { id });
        reply
    }

    pub(super) fn create_partitions(&mut self, topics: &[NewPartitions]) -> Vec<TopicReply> {
        let repeated = repeated(topics.iter().map(|t| t.topic.as_str()));
        let mut budget = MAX_PARTITIONS_AT_ONCE;
        let grow = |new: &NewPartitions| {
            let result = if repeated.contains(new.topic.as_str()) {
                Err(named_twice())
            } else {
                self.grow_topic(new, &mut budget)
            };
            self.topic_reply(&new.topic, result)
        };
        topics.iter().map(grow).collect()
    }

    fn grow_topic(&mut self, new: &NewPartitions, budget: &mut usize) -> Result<(), Refusal> {
        let Some(topic) = self.image().topic(&new.topic).cloned() else {
            let message = format!("there is no topic '{}'", new.topic);
            return Err(Refusal::new(ErrorCode::UnknownTopicOrPartition, message));
        };
        let now = topic.partitions.len();
        let wanted = usize::try_from(new.count).unwrap_or(0);
        if wanted <= now {
            let message = if wanted == now {
                format!("Topic already has {now} partition(s).")
            } else {
                format!(
                    "The topic {} currently has {now} partition(s); {} would not be an increase.",
                    new.topic, new.count
                )
            };
            return Err(Refusal::new(ErrorCode::InvalidPartitions, message));
        }
        let added = wanted - now;
        let factor = topic.partitions.get(&0).map_or(1, |a| a.replicas.len());
        let lists = if new.assignments.is_empty() {
            self.place(added, factor)?
        } else if new.assignments.len() != added {
            let message = format!(
                "Attempted to add {added} additional partition(s), but only {} assignment(s) were specified.",
                new.assignments.len()
            );
            return Err(Refusal::new(ErrorCode::InvalidReplicaAssignment, message));
        } else {
            self.check_manual(&new.assignments, factor, now)?;
            new.assignments.clone()
        };
        spend(budget, added)?;
        for (partition, replicas) in (now as i32..).zip(lists) {
            self.create_partition(&topic.name, topic.id, partition, replicas);
        }
        Ok(())
    }
}

fn positive(n: i32) -> Option<usize> {
    usize::try_from(n).ok().filter(|&n| n > 0)
}

fn spend(budget: &mut usize, partitions: usize) -> Result<(), Refusal> {
    *budget = budget.checked_sub(partitions).ok_or_else(too_many)?;
    Ok(())
}

fn too_many() -> Refusal {
    Refusal::new(
        ErrorCode::PolicyViolation,
        format!(
            "Excessively large number of partitions per request: more than {MAX_PARTITIONS_AT_ONCE}."
        ),
    )
}

fn named_twice() -> Refusal {
    Refusal::new(ErrorCode::InvalidRequest, "Duplicate topic name.")
}

/// The names that occur more than once.
fn repeated<'a>(names: impl Iterator<Item = &'a str>) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    names.filter(|name| !seen.insert(*name)).collect()
}

/// The answer about a topic that this request did not create or find.
fn refused(name: &str, refusal: Refusal) -> TopicReply {
    TopicReply {
        name: name.to_owned(),
        id: None,
        result: Err(refusal),
        partitions: 0,
        replication_factor: 0,
    }
}
