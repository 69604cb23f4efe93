//! Administration: topics, partitions, configuration, elections, and what each broker's replicas hold.

use std::collections::BTreeMap;
use std::time::Duration;

use epoka_proto::error::ErrorCode;
use epoka_proto::ids::{BrokerId, LeaderEpoch, Offset, TopicId, TopicPartition};
use epoka_proto::v1;

use crate::client::Client;
use crate::connections::{Connection, Target};
use crate::error::{Error, Result, code_of, reason};

/// Whether clients can write at a broker, and what it misses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Readiness {
    /// What it waits for before writes with acks=all succeed on everything it leads, each in a few words; nothing when they do.
    pub waiting_for: Vec<String>,
    /// For how long no controller has answered it, when that is longer than usual.
    pub controller_silent: Option<Duration>,
}

/// A topic to be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTopic {
    /// Its name.
    pub name: String,
    /// How many partitions; `None` takes the cluster's default.
    pub partitions: Option<i32>,
    /// How many brokers hold each partition; `None` takes the cluster's default.
    pub replication_factor: Option<i32>,
    /// Configuration values that differ from the defaults, by Kafka's names.
    pub configs: BTreeMap<String, String>,
}

impl NewTopic {
    /// A topic of this shape with the default configuration.
    pub fn new(name: impl Into<String>, partitions: i32, replication_factor: i32) -> Self {
        Self {
            name: name.into(),
            partitions: Some(partitions),
            replication_factor: Some(replication_factor),
            configs: BTreeMap::new(),
        }
    }

    /// The same topic with one more configuration value.
    #[must_use]
    pub fn config(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.configs.insert(key.into(), value.into());
        self
    }
}

impl From<NewTopic> for v1::NewTopic {
    fn from(topic: NewTopic) -> Self {
        Self {
            name: topic.name,
            partitions: topic.partitions.unwrap_or(-1),
            replication_factor: topic.replication_factor.unwrap_or(-1),
            assignments: Vec::new(),
            configs: topic.configs.into_iter().collect(),
        }
    }
}

/// A topic as it was created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatedTopic {
    /// Its identity.
    pub id: Option<TopicId>,
    /// How many partitions it has.
    pub partitions: i32,
    /// How many brokers hold each.
    pub replication_factor: i32,
}

/// What one broker's replica of a partition holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaState {
    /// The partition.
    pub partition: TopicPartition,
    /// Whether this replica leads.
    pub leading: bool,
    /// The leader epoch the replica is in.
    pub leader_epoch: LeaderEpoch,
    /// Its first offset.
    pub log_start: Offset,
    /// The next offset it will write.
    pub log_end: Offset,
    /// Everything below is committed, as far as this replica knows.
    pub high_watermark: Offset,
    /// Why it does not serve, if it does not.
    pub offline: Option<String>,
}

/// Administration of a cluster.
pub struct Admin {
    client: Client,
}

impl Admin {
    pub(crate) fn new(client: Client) -> Self {
        Self { client }
    }

    /// Creates a topic. It exists when this returns; its leaders may still be taking over.
    ///
    /// # Errors
    /// [`Error::Refused`] with the controller's reason; [`Error::Unreachable`].
    pub async fn create_topic(&self, topic: &NewTopic) -> Result<CreatedTopic> {
        let request = v1::CreateTopicsRequest {
            topics: vec![topic.clone().into()],
            validate_only: false,
        };
        let result = self
            .on_topic(&format!("creating topic {}", topic.name), |mut log| {
                let request = request.clone();
                async move { log.create_topics(request).await }
            })
            .await?;
        Ok(CreatedTopic {
            id: TopicId::from_bytes(&result.topic_id),
            partitions: result.partitions,
            replication_factor: result.replication_factor,
        })
    }

    /// Deletes a topic and its records.
    ///
    /// # Errors
    /// [`Error::Refused`] when there is no such topic; [`Error::Unreachable`].
    pub async fn delete_topic(&self, name: &str) -> Result<()> {
        let request = v1::DeleteTopicsRequest {
            topics: vec![v1::TopicName {
                name: name.to_owned(),
                ..Default::default()
            }],
        };
        self.on_topic(&format!("deleting topic {name}"), |mut log| {
            let request = request.clone();
            async move { log.delete_topics(request).await }
        })
        .await
        .map(drop)
    }

    /// Gives a topic more partitions: `count` is the new total.
    ///
    /// # Errors
    /// [`Error::Refused`] when it has as many already; [`Error::Unreachable`].
    pub async fn grow_topic(&self, name: &str, count: i32) -> Result<()> {
        let request = v1::CreatePartitionsRequest {
            topics: vec![v1::NewPartitions {
                name: name.to_owned(),
                count,
                assignments: Vec::new(),
            }],
            validate_only: false,
        };
        let what = format!("growing topic {name} to {count} partitions");
        self.on_topic(&what, |mut log| {
            let request = request.clone();
            async move { log.create_partitions(request).await }
        })
        .await
        .map(drop)
    }

    /// Changes configuration values of a topic, or of the cluster-wide defaults (`None`); a value of `None` goes back to
    /// the default. All of them change, or none.
    ///
    /// # Errors
    /// [`Error::Refused`] for an unknown key or a bad value; [`Error::Unreachable`].
    pub async fn alter_configs(
        &self,
        topic: Option<&str>,
        changes: &[(String, Option<String>)],
    ) -> Result<()> {
        let request = v1::AlterConfigsRequest {
            changes: changes
                .iter()
                .map(|(key, value)| v1::ConfigChange {
                    topic: topic.unwrap_or_default().to_owned(),
                    key: key.clone(),
                    value: value.clone(),
                })
                .collect(),
            validate_only: false,
        };
        let whose = topic.map_or("the cluster-wide configuration".into(), |t| {
            format!("the configuration of topic {t}")
        });
        let what = format!("changing {whose}");
        let answer = self
            .client
            .call_any(|mut log| {
                let request = request.clone();
                async move { log.alter_configs(request).await }
            })
            .await?;
        check_all(&what, &answer)
    }

    /// Moves leadership of the named partitions (all, when none is named) to their preferred leaders.
    ///
    /// # Errors
    /// [`Error::Refused`] for the first partition that could not be moved; one that needed no move is not an error.
    pub async fn elect_preferred_leaders(&self, partitions: &[TopicPartition]) -> Result<()> {
        let request = v1::ElectLeadersRequest {
            unclean: false,
            partitions: partitions
                .iter()
                .map(|p| v1::PartitionName {
                    topic: p.topic.to_string(),
                    partition: p.partition,
                })
                .collect(),
        };
        let answer = self
            .client
            .call_any(|mut log| {
                let request = request.clone();
                async move { log.elect_leaders(request).await }
            })
            .await?;
        for result in answer.partitions {
            if code_of(result.error) != Err(ErrorCode::ElectionNotNeeded) {
                let name = TopicPartition::new(result.topic, result.partition);
                let what = || format!("electing the preferred leader of {name}");
                Error::check(what, result.error, &result.message)?;
            }
        }
        Ok(())
    }

    /// What the replicas on one broker hold.
    ///
    /// # Errors
    /// [`Error::Unreachable`], also when the broker is not registered.
    pub async fn replicas(&self, broker: BrokerId) -> Result<Vec<ReplicaState>> {
        let metadata = self.client.metadata();
        let address = metadata.brokers.get(&broker).map(|b| b.grpc.clone());
        let address = address.ok_or_else(|| Error::Unreachable {
            addresses: format!("broker {broker}"),
            reason: "it is not registered".into(),
        })?;
        self.replicas_at(Target::broker(broker, address)).await
    }

    /// What the replicas on the broker there hold.
    ///
    /// # Errors
    /// [`Error::Unreachable`].
    pub async fn replicas_at(&self, target: impl Into<Target>) -> Result<Vec<ReplicaState>> {
        let answer = self
            .client
            .call(target, async move |mut log| {
                log.describe_replicas(v1::DescribeReplicasRequest {}).await
            })
            .await?;
        Ok(answer.replicas.into_iter().map(Into::into).collect())
    }

    /// Whether clients can write at the broker there.
    ///
    /// # Errors
    /// [`Error::Unreachable`].
    pub async fn readiness_at(&self, target: impl Into<Target>) -> Result<Readiness> {
        let answer = self
            .client
            .call(target, async move |mut log| {
                log.readiness(v1::ReadinessRequest {}).await
            })
            .await?;
        let silent = Duration::from_millis(answer.controller_silent_ms);
        Ok(Readiness {
            waiting_for: answer.waiting_for,
            controller_silent: (!silent.is_zero()).then_some(silent),
        })
    }

    async fn on_topic<F>(
        &self,
        what: &str,
        question: impl FnMut(v1::log_client::LogClient<Connection>) -> F,
    ) -> Result<v1::TopicResult>
    where
        F: Future<Output = Result<tonic::Response<v1::TopicResults>, tonic::Status>>,
    {
        let answer = self.client.call_any(question).await?;
        check_all(what, &answer)?;
        answer
            .topics
            .into_iter()
            .next()
            .ok_or_else(|| Error::Refused {
                what: what.to_owned(),
                code: ErrorCode::UnknownServerError,
                reason: "the answer does not mention it".into(),
            })
    }
}

/// The first error among the results.
fn check_all(what: &str, answer: &v1::TopicResults) -> Result<()> {
    for result in &answer.topics {
        code_of(result.error).map_err(|code| Error::Refused {
            what: what.to_owned(),
            code,
            reason: reason(code, &result.message),
        })?;
    }
    Ok(())
}

impl From<v1::ReplicaInfo> for ReplicaState {
    fn from(info: v1::ReplicaInfo) -> Self {
        Self {
            partition: TopicPartition::new(info.topic, info.partition),
            leading: info.leading,
            leader_epoch: LeaderEpoch(info.leader_epoch),
            log_start: Offset(info.log_start),
            log_end: Offset(info.log_end),
            high_watermark: Offset(info.high_watermark),
            offline: (!info.offline.is_empty()).then_some(info.offline),
        }
    }
}
