//! The cluster's metadata: the records the controller commits and the image they add up to. Controllers and brokers build
//! their images with the same `Image::apply`, so one applied offset means one state everywhere (I-17).
//! On the wire and in the quorum's log a record is JSON, readable with any log dump tool.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ids::{
    BrokerEpoch, BrokerId, Incarnation, LeaderEpoch, PartitionEpoch, PartitionId, TopicId,
};

/// An address at which clients reach a broker.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Endpoint {
    /// The listener's name, such as `PLAINTEXT`.
    pub name: String,
    /// Host name or address.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

/// One broker as the controller knows it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BrokerRegistration {
    /// Its id.
    pub id: BrokerId,
    /// The metadata offset of this registration: names this uptime of the process (C-10).
    pub epoch: BrokerEpoch,
    /// The process that registered.
    pub incarnation: Incarnation,
    /// Where Kafka clients reach it.
    pub listeners: Vec<Endpoint>,
    /// Where other nodes reach its gRPC services: `host:port`.
    pub grpc_address: String,
    /// Ids of its log directories.
    pub log_dirs: Vec<TopicId>,
    /// Its rack, if told.
    pub rack: Option<String>,
    /// A fenced broker leads nothing and joins no ISR; born fenced.
    pub fenced: bool,
    /// Being drained before a clean stop.
    pub shutting_down: bool,
}

impl BrokerRegistration {
    /// May lead and be in an ISR (C-15).
    pub fn is_active(&self) -> bool {
        !self.fenced && !self.shutting_down
    }
}

/// Whether a leader elected uncleanly has settled its state yet (C-37).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Recovery {
    /// Nothing to settle.
    #[default]
    Recovered,
    /// Elected uncleanly; may not widen its ISR before it said `Recovered`.
    Recovering,
}

/// Everything the controller says of a partition (section 1.1). Shipped whole at every change.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Assignment {
    /// The brokers that hold the partition; the first is the preferred leader.
    pub replicas: Vec<BrokerId>,
    /// Replicas known to hold everything committed.
    pub isr: Vec<BrokerId>,
    /// Replicas that left the ISR while it was below the minimum and still hold everything committed (KIP-966).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub elr: Vec<BrokerId>,
    /// The last leader before ISR and ELR became empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub last_known_elr: Vec<BrokerId>,
    /// Replicas that cannot serve although their broker is alive, because a write failed or their files are damaged. No rule elects
    /// them. A replica is taken off when it is in the ISR again, for then it holds everything, or when a new life of its broker
    /// begins, which says before it is unfenced what it still cannot serve. Never in the ISR.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub offline: Vec<BrokerId>,
    /// Replicas being added by a reassignment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub adding: Vec<BrokerId>,
    /// Replicas being removed by a reassignment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removing: Vec<BrokerId>,
    /// Who leads, if anyone can.
    pub leader: Option<BrokerId>,
    /// Counts leaders.
    pub leader_epoch: LeaderEpoch,
    /// Counts changes.
    pub partition_epoch: PartitionEpoch,
    /// Whether an unclean election is still to be settled.
    #[serde(default)]
    pub recovery: Recovery,
    /// The effective minimum ISR, computed once here for leader and controller alike (C-36).
    pub min_isr: usize,
}

/// A change of the metadata.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Record {
    /// The cluster got its id (once, first).
    Cluster {
        /// 22 characters, as in `meta.properties`.
        cluster_id: String,
        /// Added to the position in the quorum's log it gives a metadata offset. Not 0 where the metadata was lost and rebuilt:
        /// so the offsets, and with them the broker epochs, are above those of the lost history.
        #[serde(default, skip_serializing_if = "is_zero")]
        offset_base: i64,
    },
    /// A topic exists.
    Topic {
        /// Its name.
        name: Arc<str>,
        /// Its identity.
        id: TopicId,
    },
    /// A topic and its partitions are gone.
    RemoveTopic {
        /// Its identity.
        id: TopicId,
    },
    /// A partition's assignment is now this.
    Partition {
        /// The partition.
        id: PartitionId,
        /// All of its state.
        assignment: Assignment,
    },
    /// A configuration value was set, or fell back to its default.
    Config {
        /// The topic's name; `None` is the cluster-wide default.
        topic: Option<Arc<str>>,
        /// Kafka's key.
        key: String,
        /// `None`: the default again.
        value: Option<String>,
    },
    /// A broker's registration is now this.
    Broker(BrokerRegistration),
    /// A broker was removed for good.
    RemoveBroker {
        /// Its id.
        id: BrokerId,
    },
    /// Producer ids below this one were handed out.
    ProducerIds {
        /// The first id not yet handed out.
        next: i64,
    },
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields so")]
fn is_zero(number: &i64) -> bool {
    *number == 0
}

/// A topic in the image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Topic {
    /// Its name.
    pub name: Arc<str>,
    /// Its identity.
    pub id: TopicId,
    /// Its partitions by number.
    pub partitions: BTreeMap<i32, Arc<Assignment>>,
}

/// What the records up to some offset add up to. Cheap to clone: topics and brokers are shared.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Image {
    /// The cluster's id, once known.
    pub cluster_id: String,
    /// What metadata offsets have above positions in the quorum's log.
    pub offset_base: i64,
    /// Registered brokers.
    pub brokers: BTreeMap<BrokerId, Arc<BrokerRegistration>>,
    /// Topics by identity.
    pub topics: BTreeMap<TopicId, Arc<Topic>>,
    /// Identities by name.
    pub topic_ids: BTreeMap<Arc<str>, TopicId>,
    /// Overrides by topic, or of the cluster-wide defaults (`None`).
    pub configs: BTreeMap<Option<Arc<str>>, BTreeMap<String, String>>,
    /// The first producer id not yet handed out.
    pub next_producer_id: i64,
}

impl Image {
    /// The cluster's id; `None` before the first record that tells it.
    pub fn known_cluster_id(&self) -> Option<&str> {
        Some(self.cluster_id.as_str()).filter(|id| !id.is_empty())
    }

    /// Takes one record into account.
    pub fn apply(&mut self, record: &Record) {
        match record {
            Record::Cluster {
                cluster_id,
                offset_base,
            } => {
                self.cluster_id.clone_from(cluster_id);
                self.offset_base = *offset_base;
            }
            Record::Topic { name, id } => {
                let topic = Topic {
                    name: name.clone(),
                    id: *id,
                    partitions: BTreeMap::new(),
                };
                self.topics.insert(*id, Arc::new(topic));
                self.topic_ids.insert(name.clone(), *id);
            }
            Record::RemoveTopic { id } => {
                if let Some(topic) = self.topics.remove(id) {
                    self.topic_ids.remove(&topic.name);
                    self.configs.remove(&Some(topic.name.clone()));
                }
            }
            Record::Partition { id, assignment } => {
                if let Some(topic) = self.topics.get_mut(&id.topic) {
                    Arc::make_mut(topic)
                        .partitions
                        .insert(id.partition, Arc::new(assignment.clone()));
                }
            }
            Record::Config { topic, key, value } => {
                let values = self.configs.entry(topic.clone()).or_default();
                match value {
                    Some(value) => values.insert(key.clone(), value.clone()),
                    None => values.remove(key),
                };
                if values.is_empty() {
                    self.configs.remove(topic);
                }
            }
            Record::Broker(registration) => {
                self.brokers
                    .insert(registration.id, Arc::new(registration.clone()));
            }
            Record::RemoveBroker { id } => {
                self.brokers.remove(id);
            }
            Record::ProducerIds { next } => self.next_producer_id = *next,
        }
    }

    /// The records that rebuild this image from nothing: a snapshot.
    pub fn to_records(&self) -> Vec<Record> {
        let mut records = vec![Record::Cluster {
            cluster_id: self.cluster_id.clone(),
            offset_base: self.offset_base,
        }];
        records.extend(self.brokers.values().map(|b| Record::Broker((**b).clone())));
        for topic in self.topics.values() {
            records.push(Record::Topic {
                name: topic.name.clone(),
                id: topic.id,
            });
            records.extend(
                topic
                    .partitions
                    .iter()
                    .map(|(&partition, a)| Record::Partition {
                        id: PartitionId {
                            topic: topic.id,
                            partition,
                        },
                        assignment: (**a).clone(),
                    }),
            );
        }
        for (topic, values) in &self.configs {
            records.extend(values.iter().map(|(key, value)| Record::Config {
                topic: topic.clone(),
                key: key.clone(),
                value: Some(value.clone()),
            }));
        }
        records.push(Record::ProducerIds {
            next: self.next_producer_id,
        });
        records
    }

    /// A topic by name.
    pub fn topic(&self, name: &str) -> Option<&Arc<Topic>> {
        self.topics.get(self.topic_ids.get(name)?)
    }

    /// A partition's assignment.
    pub fn assignment(&self, id: PartitionId) -> Option<&Arc<Assignment>> {
        self.topics.get(&id.topic)?.partitions.get(&id.partition)
    }

    /// The value of a topic's configuration key: its override, else the cluster-wide override, else `None`.
    pub fn config(&self, topic: &str, key: &str) -> Option<&str> {
        let of = |scope: Option<Arc<str>>| self.configs.get(&scope).and_then(|c| c.get(key));
        of(Some(topic.into()))
            .or_else(|| of(None))
            .map(String::as_str)
    }

    /// Every partition, in order of topic id and number.
    pub fn partitions(&self) -> impl Iterator<Item = (PartitionId, &Arc<Topic>, &Arc<Assignment>)> {
        self.topics.values().flat_map(|topic| {
            topic.partitions.iter().map(move |(&partition, a)| {
                let id = PartitionId {
                    topic: topic.id,
                    partition,
                };
                (id, topic, a)
            })
        })
    }
}

impl Record {
    /// The record as JSON bytes.
    pub fn encode(&self) -> bytes::Bytes {
        serde_json::to_vec(self)
            .expect("records hold only strings, numbers and lists")
            .into()
    }

    /// Reads what `encode` wrote.
    pub fn decode(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<Record> {
        let id = TopicId(uuid::Uuid::from_u128(7));
        let assignment = Assignment {
            replicas: vec![BrokerId(1), BrokerId(2)],
            isr: vec![BrokerId(1)],
            elr: vec![],
            last_known_elr: vec![],
            offline: vec![],
            adding: vec![],
            removing: vec![],
            leader: Some(BrokerId(1)),
            leader_epoch: LeaderEpoch(3),
            partition_epoch: PartitionEpoch(5),
            recovery: Recovery::Recovered,
            min_isr: 1,
        };
        vec![
            Record::Cluster {
                cluster_id: "abc".into(),
                offset_base: 7,
            },
            Record::Topic {
                name: "orders".into(),
                id,
            },
            Record::Partition {
                id: PartitionId {
                    topic: id,
                    partition: 0,
                },
                assignment,
            },
            Record::Config {
                topic: Some("orders".into()),
                key: "min.insync.replicas".into(),
                value: Some("2".into()),
            },
            Record::Config {
                topic: None,
                key: "retention.ms".into(),
                value: Some("5".into()),
            },
            Record::ProducerIds { next: 1000 },
        ]
    }

    #[test]
    fn a_snapshot_rebuilds_the_image_and_records_survive_json() {
        let mut image = Image::default();
        for record in sample() {
            image.apply(&Record::decode(&record.encode()).expect("json"));
        }
        let mut again = Image::default();
        for record in image.to_records() {
            again.apply(&record);
        }
        assert_eq!(again, image);
        assert_eq!(image.config("orders", "min.insync.replicas"), Some("2"));
        assert_eq!(image.config("orders", "retention.ms"), Some("5"));
        assert_eq!(image.config("other", "min.insync.replicas"), None);
    }

    #[test]
    fn removing_a_topic_removes_its_partitions_name_and_configs() {
        let mut image = Image::default();
        for record in sample() {
            image.apply(&record);
        }
        let id = image.topic_ids["orders"];
        image.apply(&Record::RemoveTopic { id });
        assert!(image.topic("orders").is_none());
        assert_eq!(image.partitions().count(), 0);
        assert_eq!(image.config("orders", "min.insync.replicas"), None);
    }
}
