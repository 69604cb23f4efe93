//! A cluster whose controllers lost their metadata: rebuilt from what its brokers hold. Brokers offer their logs, and from the
//! offers come topics, replicas, and who may lead without loss. What is not in any log, such as the configuration of topics,
//! does not come back.

use std::cmp::Reverse;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use epoka_proto::error::ErrorCode;
use epoka_proto::ids::{BrokerId, LeaderEpoch, Offset, PartitionEpoch, PartitionId, TopicId};
use epoka_proto::metadata::{Assignment, Image, Record, Recovery};

use super::commands::{Refusal, Restoration, RestoredPartition, RestoredTopic};
use super::work::Work;
use super::{configs, names};

/// Added to the newest leader epoch found. The lost controllers may have counted on without a leader that lived to write its
/// epoch down; clients may have heard of those epochs, and do not believe metadata that seems older.
const EPOCH_MARGIN: i32 = 1000;
/// A leader epoch that no cluster comes to.
const EPOCH_LIMIT: i32 = i32::MAX / 2;
/// How many partitions that nobody holds may lie below those that are held: more of them are no partitions.
const MAX_UNHELD: usize = 10_000;

/// What one broker holds, and of which cluster it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Offer {
    /// The cluster.
    pub cluster_id: String,
    /// Its replicas.
    pub holdings: Vec<Holding>,
    /// Above every producer id in its logs.
    pub next_producer_id: i64,
}

/// One broker's replica of one partition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holding {
    /// The topic's name.
    pub topic: String,
    /// The partition.
    pub partition: PartitionId,
    /// How far the log reaches; `None`: it cannot be read, so nobody knows.
    pub reach: Option<Reach>,
}

/// How far a log reaches. Of two logs of a partition the greater one holds everything committed that the other holds: it is
/// Raft's rule for votes. A leader writes its epoch into its history before anything else, and begins with all that was
/// committed before; others get the epoch with its first records, and then agree with their leader up to there. So a log with a
/// newer epoch holds what was committed in older ones, and of two logs with the same newest epoch the shorter one is a part of
/// the longer. Every member of the last ISR held everything committed; hence so does the greatest of all logs, as long as one
/// such member is among them, and no incomplete leader was ever elected.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Reach {
    /// The newest leader epoch in its history.
    pub last_epoch: Option<LeaderEpoch>,
    /// Where it ends.
    pub log_end: Offset,
}

/// Whether there is no metadata to lose: no topic, no broker, no producer id was ever given out.
pub fn is_vacant(image: &Image) -> bool {
    image.topics.is_empty() && image.brokers.is_empty() && image.next_producer_id == 0
}

/// What brokers have offered so far.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Offers {
    from: BTreeMap<BrokerId, Offer>,
}

impl Offers {
    /// Takes a broker's offer in place of an earlier one, and says whether it is news. Refused when it is of another cluster
    /// than the offers of the others.
    pub fn take(&mut self, broker: BrokerId, offer: Offer) -> Result<bool, Refusal> {
        let others = || self.from.iter().filter(|(id, _)| **id != broker);
        if let Some((other, theirs)) = others().find(|(_, o)| o.cluster_id != offer.cluster_id) {
            let message = format!(
                "broker {broker} belongs to cluster {}, but broker {other}, from which the controller is to rebuild its \
                 metadata, belongs to cluster {}: start only the brokers of one cluster, and the controller again",
                offer.cluster_id, theirs.cluster_id,
            );
            return Err(Refusal::new(ErrorCode::InconsistentClusterId, message));
        }
        let news = self.from.get(&broker) != Some(&offer);
        self.from.insert(broker, offer);
        Ok(news)
    }

    /// A broker has come back without data: what it offered is gone.
    pub fn withdraw(&mut self, broker: BrokerId) {
        self.from.remove(&broker);
    }

    /// Who has offered.
    pub fn brokers(&self) -> Vec<BrokerId> {
        self.from.keys().copied().collect()
    }

    /// The metadata that these offers add up to, with the cluster-wide configuration the controller was told and producer ids
    /// from `producer_id` on, or higher. The error is a sentence that names what the brokers do not agree on.
    pub fn rebuild(
        &self,
        configs: &BTreeMap<String, String>,
        producer_id: i64,
    ) -> Result<Restoration, String> {
        let first = self.from.values().next().ok_or("no broker has offered")?;
        let reported = self.from.values().map(|o| o.next_producer_id).max();
        Ok(Restoration {
            cluster_id: first.cluster_id.clone(),
            configs: configs.clone(),
            topics: rebuild_topics(&self.from)?,
            next_producer_id: producer_id.max(reported.unwrap_or(0)).max(1),
        })
    }
}

/// Who holds a partition, and how much of it.
type Holders = BTreeMap<BrokerId, Option<Reach>>;
/// A topic's partitions by number.
type Held = BTreeMap<i32, Holders>;

fn rebuild_topics(offers: &BTreeMap<BrokerId, Offer>) -> Result<Vec<RestoredTopic>, String> {
    let mut topics: BTreeMap<(&str, TopicId), Held> = BTreeMap::new();
    for (broker, offer) in offers {
        for holding in &offer.holdings {
            names::check(&holding.topic).map_err(|e| format!("broker {broker}: {e}"))?;
            let topic = (holding.topic.as_str(), holding.partition.topic);
            let partitions = topics.entry(topic).or_default();
            let holders = partitions.entry(holding.partition.partition).or_default();
            match holders.entry(*broker) {
                Entry::Vacant(first) => {
                    first.insert(holding.reach);
                }
                // Told twice: nobody knows which it is.
                Entry::Occupied(mut told) => *told.get_mut() = None,
            }
        }
    }
    check_identities(&topics)?;
    let mut unheld = MAX_UNHELD;
    let rebuilt = topics.into_iter().map(|((name, id), held)| {
        let partitions = rebuild_partitions(name, &held, &mut unheld)?;
        Ok(RestoredTopic {
            name: name.to_owned(),
            id,
            partitions,
        })
    });
    rebuilt.collect()
}

/// A name stands for one topic, and a topic has one name.
fn check_identities(topics: &BTreeMap<(&str, TopicId), Held>) -> Result<(), String> {
    let mut names = BTreeMap::new();
    let mut ids = BTreeMap::new();
    for ((name, id), held) in topics {
        if let Some((other, theirs)) = names.insert(*name, (*id, held)) {
            return Err(format!(
                "there are two topics {name}: {other} on {} and {id} on {}. One was deleted, and the metadata that knew which \
                 is lost: stop the brokers that hold the one to be given up, move its directories out of their log \
                 directories, and start them again",
                brokers(theirs),
                brokers(held),
            ));
        }
        if let Some(other) = ids.insert(*id, *name) {
            return Err(format!("topic {id} has two names: {other} and {name}"));
        }
    }
    Ok(())
}

/// The brokers that hold anything of a topic, in words.
fn brokers(held: &Held) -> String {
    let all: BTreeSet<_> = held.values().flat_map(Holders::keys).collect();
    let all: Vec<_> = all.into_iter().map(|id| format!("broker {id}")).collect();
    all.join(", ")
}

fn rebuild_partitions(
    name: &str,
    held: &Held,
    unheld: &mut usize,
) -> Result<Vec<RestoredPartition>, String> {
    let mut partitions: Vec<RestoredPartition> = Vec::new();
    for (&number, holders) in held {
        let rebuilt = rebuild_partition(number, holders).ok_or_else(|| {
            format!("{name}-{number} has a leader epoch that no cluster comes to")
        })?;
        let at = usize::try_from(number).map_err(|_| format!("{name}-{number} is no partition"))?;
        *unheld = unheld.checked_sub(at - partitions.len()).ok_or_else(|| {
            format!("{name}-{number} is held, but too many partitions below it are not")
        })?;
        // Some number below is held by nobody here. Created as if it had always been empty it would be a silent loss; so
        // nobody may lead it until a person says that a leader without its records will do.
        let lost = RestoredPartition {
            eligible: Vec::new(),
            ..rebuilt.clone()
        };
        partitions.resize(at, lost);
        partitions.push(rebuilt);
    }
    Ok(partitions)
}

/// `None`: the epoch found is none.
fn rebuild_partition(number: i32, holders: &Holders) -> Option<RestoredPartition> {
    let epochs = holders.values().flatten().filter_map(|r| r.last_epoch);
    let newest = epochs.max().map_or(0, |e| e.0);
    if newest > EPOCH_LIMIT {
        return None;
    }
    let mut replicas: Vec<BrokerId> = holders.keys().copied().collect();
    // Leaderships of equals are spread over them; whoever holds more comes first, should an incomplete leader be asked for.
    let turn = usize::try_from(number).unwrap_or(0) % replicas.len().max(1);
    replicas.rotate_left(turn);
    replicas.sort_by_key(|r| Reverse(holders[r]));
    let greatest = holders.values().max().copied().flatten();
    // A log that cannot be read may be the greatest.
    let all_known = holders.values().all(Option::is_some);
    let is_greatest = |r: &&BrokerId| all_known && holders[r] == greatest;
    Some(RestoredPartition {
        eligible: replicas.iter().filter(is_greatest).copied().collect(),
        replicas,
        leader_epoch: LeaderEpoch(newest + EPOCH_MARGIN),
    })
}

impl Work<'_> {
    /// Fills a cluster in which there is nothing yet. Nobody leads and the ISRs are empty until brokers are unfenced; those
    /// whose logs are the greatest are eligible leaders, as if the ISR had just run empty (KIP-966).
    pub(super) fn restore(&mut self, restoration: &Restoration) -> Result<(), ErrorCode> {
        if !is_vacant(self.image()) {
            return Err(ErrorCode::InvalidRequest);
        }
        self.write(Record::Cluster {
            cluster_id: restoration.cluster_id.clone(),
        });
        for (key, value) in &restoration.configs {
            self.write_config(None, key, Some(value));
        }
        for topic in &restoration.topics {
            self.write(Record::Topic {
                name: topic.name.as_str().into(),
                id: topic.id,
            });
            for (partition, found) in (0..).zip(&topic.partitions) {
                let id = PartitionId {
                    topic: topic.id,
                    partition,
                };
                let assignment = self.restored(&topic.name, found);
                self.write(Record::Partition { id, assignment });
            }
        }
        self.write(Record::ProducerIds {
            next: restoration.next_producer_id,
        });
        Ok(())
    }

    fn restored(&self, topic: &str, found: &RestoredPartition) -> Assignment {
        let mut assignment = Assignment {
            replicas: found.replicas.clone(),
            isr: Vec::new(),
            elr: found.eligible.clone(),
            last_known_elr: Vec::new(),
            offline: Vec::new(),
            adding: Vec::new(),
            removing: Vec::new(),
            leader: None,
            leader_epoch: found.leader_epoch,
            partition_epoch: PartitionEpoch(found.leader_epoch.0),
            recovery: Recovery::Recovered,
            min_isr: 1,
        };
        assignment.min_isr = configs::effective_min_isr(self.image(), topic, &assignment);
        assignment
    }
}
