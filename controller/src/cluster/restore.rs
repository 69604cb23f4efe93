//! A cluster whose controllers lost their metadata: rebuilt from what its brokers hold. Brokers offer their logs, and from the
//! offers come topics, replicas, and who may lead without loss. What is not in any log, such as the configuration of topics,
//! does not come back.

use std::cmp::Reverse;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use epoka_proto::epochs::EpochHistory;
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
    /// Above the broker epoch its data was last served under, as far as it knows.
    pub next_broker_epoch: i64,
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

/// How far a log reaches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reach {
    /// Its leader epochs.
    pub history: EpochHistory,
    /// Where it ends.
    pub log_end: Offset,
    /// What lies below was committed.
    pub high_watermark: Offset,
}

impl Reach {
    /// The newest leader epoch, then the log end: of all logs of a partition the greatest holds everything committed.
    ///
    /// A leader writes its epoch into its history before anything else. So the newest epoch of all is that of the last leader,
    /// which was elected with all that was committed before, and what was committed since is in its log. Others get the epoch
    /// with its first records, and then agree with that leader as far as they reach; who reaches as far holds as much. This is
    /// Raft's rule for votes, with one difference: it needs all logs, the last leader's among them. A majority would not do,
    /// for a leader may commit records of older epochs without a record of its own, of which the other logs then tell nothing.
    /// It also needs that no incomplete leader was ever elected.
    fn rank(&self) -> (Option<LeaderEpoch>, Offset) {
        (self.history.latest(), self.log_end)
    }

    /// Whether this log has, at the end of what the other one knows to be committed, the same record; as far as both tell.
    fn agrees_with(&self, other: &Self) -> bool {
        let committed = other.high_watermark;
        if committed <= Offset::ZERO {
            return true;
        }
        let last = |of: &Self| {
            let held = Some(Offset(committed.0 - 1)).filter(|at| *at < of.log_end);
            held.and_then(|at| of.history.epoch_at(at))
        };
        let same = match (last(self), last(other)) {
            (Some(here), Some(there)) => here == there,
            // One of them does not have it: taken by retention, or lost.
            _ => true,
        };
        same && committed <= self.log_end
    }
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

    /// The metadata that these offers add up to, with the cluster-wide configuration the controller was told.
    ///
    /// Metadata offsets, and with them broker epochs, and producer ids begin at `beginning` or higher. It should be the
    /// milliseconds since 1970: not every number that the lost controllers gave out is known to a broker, but no cluster gives
    /// out one in each millisecond. A producer id given out again would have one producer's records taken for another's
    /// repetitions; an offset that went back would have clients take the new metadata for old.
    ///
    /// # Errors
    /// A sentence that names what the brokers do not agree on.
    pub fn rebuild(
        &self,
        configs: &BTreeMap<String, String>,
        beginning: i64,
    ) -> Result<Restoration, String> {
        let first = self.from.values().next().ok_or("no broker has offered")?;
        let greatest = |of: fn(&Offer) -> i64| self.from.values().map(of).max().unwrap_or(0);
        Ok(Restoration {
            cluster_id: first.cluster_id.clone(),
            configs: configs.clone(),
            topics: rebuild_topics(&self.from)?,
            offset_base: beginning.max(greatest(|o| o.next_broker_epoch)),
            next_producer_id: beginning.max(greatest(|o| o.next_producer_id)).max(1),
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
                    first.insert(holding.reach.clone());
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
    let epochs = holders
        .values()
        .flatten()
        .filter_map(|r| r.history.latest());
    let newest = epochs.max().map_or(0, |e| e.0);
    if newest > EPOCH_LIMIT {
        return None;
    }
    let mut replicas: Vec<BrokerId> = holders.keys().copied().collect();
    // Leaderships of equals are spread over them; whoever holds more comes first, should an incomplete leader be asked for.
    let turn = usize::try_from(number).unwrap_or(0) % replicas.len().max(1);
    replicas.rotate_left(turn);
    let rank = |r: &BrokerId| holders[r].as_ref().map(Reach::rank);
    replicas.sort_by_key(|r| Reverse(rank(r)));
    let greatest = replicas.first().and_then(rank);
    // One that cannot be read may be the greatest; and that one of the logs knows more to be committed than the greatest has
    // shows that the last leader's is not among them.
    let is_greatest = |r: &&BrokerId| rank(r) == greatest;
    let is_sure = |r: &&BrokerId| {
        let mut others = holders.values();
        let reach = holders[r].as_ref();
        reach.is_some_and(|r| others.all(|o| o.as_ref().is_some_and(|o| r.agrees_with(o))))
    };
    let eligible = replicas.iter().filter(is_greatest).filter(is_sure);
    Some(RestoredPartition {
        eligible: eligible.copied().collect(),
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
            offset_base: restoration.offset_base,
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
