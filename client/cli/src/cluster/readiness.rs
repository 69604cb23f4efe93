//! When a cluster is ready: all brokers serve, and every topic asked for has a leader and its minimum ISR, as every broker
//! sees it. Learned as any client would learn it.

use std::time::Duration;

use epoka_client::{Client, Error, Metadata, NewTopic};
use epoka_proto::error::ErrorCode;
use futures::future::join_all;
use tokio::time::{Instant, sleep};

use super::description::Description;
use crate::failure::{Failure, Outcome};

/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(3);
/// After this long without becoming ready, say what is missing, and again.
const PATIENCE: Duration = Duration::from_secs(3);

pub async fn until_ready(
    client: &Client,
    cluster: &Description,
    topics: &[NewTopic],
    default: &NewTopic,
) -> Outcome {
    let brokers = cluster.brokers_grpc();
    let mut progress = Progress::new();
    let metadata = loop {
        let views = look(client, &brokers).await;
        let newest = views.iter().flatten().max_by_key(|m| m.offset);
        match newest.map(|m| unserving(m, brokers.len())) {
            Some(None) => break newest.cloned().unwrap_or_default(),
            Some(Some(missing)) => progress.waiting_for(&missing),
            None => progress.waiting_for("no broker answers yet"),
        }
        sleep(PAUSE).await;
    };

    let mut wanted: Vec<&NewTopic> = topics.iter().collect();
    if topics.is_empty() && metadata.topics.is_empty() {
        wanted.push(default);
    }
    let new = wanted
        .iter()
        .filter(|t| !metadata.topics.contains_key(&t.name));
    for created in join_all(new.map(|topic| create(client, topic))).await {
        created?;
    }
    let names: Vec<&str> = match wanted.as_slice() {
        [] => metadata.topics.keys().map(String::as_str).collect(),
        wanted => wanted.iter().map(|t| t.name.as_str()).collect(),
    };
    loop {
        let views = look(client, &brokers).await;
        let missing = views
            .iter()
            .enumerate()
            .find_map(|(index, view)| match view {
                Some(view) => unready(view, &names),
                None => Some(format!("broker {} does not answer", index + 1)),
            });
        match missing {
            None => return Ok(()),
            Some(missing) if progress.is_due() => {
                let why = out_of_service(client, &brokers, &names).await;
                progress.waiting_for(&[vec![missing], why].concat().join("; "));
            }
            Some(_) => {}
        }
        sleep(PAUSE).await;
    }
}

/// What each broker knows of the cluster.
async fn look(client: &Client, brokers: &[String]) -> Vec<Option<Metadata>> {
    let views = brokers
        .iter()
        .map(|address| client.describe(address.clone()));
    join_all(views).await.into_iter().map(Result::ok).collect()
}

/// The replicas of these topics that cannot be served, and why, in their brokers' words.
async fn out_of_service(client: &Client, brokers: &[String], topics: &[&str]) -> Vec<String> {
    let admin = client.admin();
    let states = brokers.iter().map(|address| admin.replicas_at(address));
    let mut told = Vec::new();
    for (index, states) in join_all(states).await.into_iter().enumerate() {
        let ours = states.unwrap_or_default().into_iter();
        let reasons = ours
            .filter(|r| topics.contains(&r.partition.topic.as_ref()))
            .filter_map(|r| r.offline);
        told.extend(reasons.map(|reason| format!("broker {}: {reason}", index + 1)));
    }
    told
}

/// Which broker does not serve yet.
fn unserving(metadata: &Metadata, expected: usize) -> Option<String> {
    if let Some((id, _)) = metadata
        .brokers
        .iter()
        .find(|(_, b)| b.fenced || b.shutting_down)
    {
        return Some(format!("broker {id} is fenced"));
    }
    let registered = metadata.brokers.len();
    (registered < expected).then(|| format!("{registered} of {expected} brokers are registered"))
}

/// Which partition cannot take writes yet.
fn unready(metadata: &Metadata, topics: &[&str]) -> Option<String> {
    topics.iter().find_map(|name| {
        let Some(topic) = metadata.topics.get(*name) else {
            return Some(format!("topic {name} is not known everywhere"));
        };
        let unready = topic.partitions.iter().find(|(_, p)| !p.is_writable());
        let waiting = unready.map(|(number, p)| match p.leader {
            None => format!("{name}-{number} has no leader"),
            Some(_) => format!(
                "{name}-{number} has {} of {} in-sync replicas",
                p.isr.len(),
                p.min_isr
            ),
        });
        waiting.or_else(|| {
            topic
                .partitions
                .is_empty()
                .then(|| format!("topic {name} has no partition yet"))
        })
    })
}

async fn create(client: &Client, topic: &NewTopic) -> Outcome {
    loop {
        match client.admin().create_topic(topic).await {
            Ok(_) => return Ok(()),
            Err(Error::Refused {
                code: ErrorCode::TopicAlreadyExists,
                ..
            }) => return Ok(()),
            Err(Error::Refused { code, .. }) if code.is_retriable() => sleep(PAUSE).await,
            Err(Error::Unreachable { .. }) => sleep(PAUSE).await,
            Err(error) => return Err(Failure::from(error)),
        }
    }
}

/// Tells a person what is being waited for, if it takes long.
struct Progress {
    next: Instant,
}

impl Progress {
    fn new() -> Self {
        Self {
            next: Instant::now() + PATIENCE,
        }
    }

    fn is_due(&self) -> bool {
        Instant::now() >= self.next
    }

    fn waiting_for(&mut self, missing: &str) {
        if self.is_due() {
            eprintln!("still waiting: {missing}");
            self.next = Instant::now() + PATIENCE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use epoka_client::{Partition, Topic};
    use epoka_proto::ids::{BrokerId, LeaderEpoch, PartitionEpoch, TopicId};

    fn metadata(leader: Option<i32>, isr: &[i32]) -> Metadata {
        let partition = Partition {
            leader: leader.map(BrokerId),
            leader_epoch: LeaderEpoch(0),
            partition_epoch: PartitionEpoch(0),
            replicas: [1, 2, 3].map(BrokerId).to_vec(),
            isr: isr.iter().copied().map(BrokerId).collect(),
            elr: vec![],
            min_isr: 2,
        };
        let topic = Topic {
            id: TopicId::random(),
            partitions: [(0, partition)].into(),
            configs: Default::default(),
        };
        Metadata {
            topics: [("orders".to_owned(), topic)].into(),
            ..Metadata::default()
        }
    }

    #[test]
    fn a_topic_is_ready_with_a_leader_and_its_minimum_isr() {
        let cases = [
            (metadata(Some(1), &[1, 2]), None),
            (
                metadata(Some(1), &[1]),
                Some("orders-0 has 1 of 2 in-sync replicas"),
            ),
            (metadata(None, &[1, 2]), Some("orders-0 has no leader")),
        ];
        for (metadata, expected) in cases {
            assert_eq!(unready(&metadata, &["orders"]).as_deref(), expected);
        }
        let missing = unready(&Metadata::default(), &["orders"]);
        assert_eq!(
            missing.as_deref(),
            Some("topic orders is not known everywhere")
        );
    }
}
