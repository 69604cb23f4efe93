//! Follows the controller's metadata and has the partitions take it up, in order (C-50, C-51).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use epoka_proto::config::TopicConfig;
use epoka_proto::ids::{BrokerId, PartitionId, TopicPartition};
use epoka_proto::metadata::{Assignment, Image, Record};
use epoka_proto::v1::{MetadataRequest, MetadataUpdate};
use futures::StreamExt as _;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::Node;
use crate::membership::Membership;
use crate::partition::{Partition, log_config};
use crate::replica::Event;

const RECONNECT_PAUSE: Duration = Duration::from_millis(10);

/// Follows the metadata until `stop`. Ends early, with the reason, when this broker cannot belong to the cluster.
pub async fn follow(node: Arc<Node>, stop: CancellationToken) -> anyhow::Result<()> {
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            outcome = stream(&node) => match outcome {
                Err(Trouble::Foreign(error)) => return Err(error),
                Err(Trouble::Broke(error)) => tracing::debug!(%error, "the metadata stream broke"),
                Ok(()) => {}
            },
        }
        sleep(RECONNECT_PAUSE).await;
    }
}

enum Trouble {
    Broke(Status),
    Foreign(anyhow::Error),
}

impl From<Status> for Trouble {
    fn from(status: Status) -> Self {
        Self::Broke(status)
    }
}

async fn stream(node: &Arc<Node>) -> Result<(), Trouble> {
    let (address, mut client) = node.active.connect().await?;
    let request = MetadataRequest {
        after_offset: node.membership.applied(),
    };
    let failed = |status: Status| {
        node.active.failed(&address, &status);
        status
    };
    let mut updates = client.metadata(request).await.map_err(failed)?.into_inner();
    while let Some(update) = updates.next().await {
        let update = update.map_err(failed)?;
        let node = node.clone();
        tokio::task::spawn_blocking(move || apply(&node, &update))
            .await
            .map_err(|e| Status::internal(e.to_string()))?
            .map_err(Trouble::Foreign)?;
    }
    Ok(())
}

/// What an update touches.
#[derive(Default)]
struct Touched {
    partitions: BTreeSet<PartitionId>,
    brokers: BTreeSet<BrokerId>,
    /// Topics whose configuration changed; `None` is the cluster-wide default.
    configs: BTreeSet<Option<Arc<str>>>,
}

fn apply(node: &Arc<Node>, update: &MetadataUpdate) -> anyhow::Result<()> {
    let before = node.membership.image();
    let mut after = if update.snapshot {
        Image::default()
    } else {
        (*before).clone()
    };
    let mut touched = Touched::default();
    for bytes in &update.records {
        let record = Record::decode(bytes)?;
        note(&record, &before, &mut touched);
        after.apply(&record);
    }
    if update.snapshot {
        // What the snapshot no longer holds is touched too.
        touched
            .partitions
            .extend(before.partitions().map(|(id, _, _)| id));
        touched.brokers.extend(before.brokers.keys());
        touched.configs.extend(before.configs.keys().cloned());
    }
    if before.cluster_id != after.cluster_id {
        node.logs.set_cluster_id(&after.cluster_id)?;
    }
    node.membership.set_image(after);
    take_up(node, &node.membership.image(), &touched);
    if update.snapshot && before.cluster_id.is_empty() {
        let image = node.membership.image();
        let me = node.membership.me;
        node.logs.set_strays_aside(|id| {
            image
                .assignment(id)
                .is_some_and(|a| a.replicas.contains(&me))
        });
    }
    node.membership.set_applied(update.offset);
    Ok(())
}

fn note(record: &Record, before: &Image, touched: &mut Touched) {
    match record {
        Record::Partition { id, .. } => {
            touched.partitions.insert(*id);
        }
        Record::RemoveTopic { id } => {
            let gone = before
                .topics
                .get(id)
                .into_iter()
                .flat_map(|t| t.partitions.keys());
            touched
                .partitions
                .extend(gone.map(|&partition| PartitionId {
                    topic: *id,
                    partition,
                }));
        }
        Record::Broker(broker) => {
            touched.brokers.insert(broker.id);
        }
        Record::RemoveBroker { id } => {
            touched.brokers.insert(*id);
        }
        Record::Config { topic, .. } => {
            touched.configs.insert(topic.clone());
        }
        Record::Cluster { .. } | Record::Topic { .. } | Record::ProducerIds { .. } => {}
    }
}

/// Deletes first, then leaders, then followers (C-51).
fn take_up(node: &Arc<Node>, image: &Image, touched: &Touched) {
    let me = node.membership.me;
    let mut leaders = Vec::new();
    let mut followers = Vec::new();
    for &id in &touched.partitions {
        let assignment = image.assignment(id).filter(|a| a.replicas.contains(&me));
        match assignment {
            None => {
                if let Some(partition) = node.partitions.remove(id) {
                    drop(partition.close());
                    node.logs.delete(id);
                }
            }
            Some(a) if a.leader == Some(me) => leaders.push((id, a)),
            Some(a) => followers.push((id, a)),
        }
    }
    for (id, assignment) in leaders.into_iter().chain(followers) {
        let Some(partition) = find_or_open(node, image, id, assignment) else {
            continue;
        };
        partition.assign(assignment.clone(), Membership::eligible(image, assignment));
    }
    for partition in node.partitions.all() {
        let name = &partition.name.topic;
        if touched.configs.contains(&None) || touched.configs.contains(&Some(name.clone())) {
            partition.configure(Arc::new(TopicConfig::from_image(image, name)));
        }
        let Some(assignment) = image.assignment(partition.id) else {
            continue;
        };
        if !touched.partitions.contains(&partition.id)
            && assignment
                .replicas
                .iter()
                .any(|r| touched.brokers.contains(r))
        {
            let brokers = Membership::eligible(image, assignment);
            partition.handle(Event::Eligible {
                brokers,
                now: node.membership.clock.now(),
            });
        }
    }
}

/// A partition's shell: the one at work, or a new one over its log. An offline one is tried again when somebody else leads.
fn find_or_open(
    node: &Arc<Node>,
    image: &Image,
    id: PartitionId,
    assignment: &Arc<Assignment>,
) -> Option<Arc<Partition>> {
    let elsewhere = assignment
        .leader
        .is_some_and(|leader| leader != node.membership.me);
    if let Some(partition) = node.partitions.get(id)
        && (partition.offline().is_none() || !elsewhere || !node.logs.was_found_damaged(id))
    {
        return Some(partition);
    }
    let topic = image.topics.get(&id.topic)?;
    let name = TopicPartition::new(topic.name.clone(), id.partition);
    let config = Arc::new(TopicConfig::from_image(image, &topic.name));
    let (log, high_watermark) = node.logs.take(id, &name, log_config(&config), elsewhere);
    let partition = Arc::new(Partition::new(
        id,
        name,
        node.around.clone(),
        config,
        log,
        high_watermark,
    ));
    node.partitions.insert(partition.clone());
    Some(partition)
}
