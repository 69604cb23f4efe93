//! Follows the controller's metadata and has the partitions take it up, in order (C-50, C-51).

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use epoka_proto::config::TopicConfig;
use epoka_proto::ids::{BrokerId, Offset, PartitionId, TopicPartition};
use epoka_proto::metadata::{Assignment, Image, Record};
use epoka_proto::v1::{MetadataRequest, MetadataUpdate};
use futures::StreamExt as _;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

use super::Node;
use super::pause::Pause;
use crate::membership::Membership;
use crate::partition::{Partition, log_config};
use crate::replica::Event;

/// Pauses before the stream is opened again: short at first, for a controller that has only changed places.
const RECONNECT_PAUSES: RangeInclusive<Duration> =
    Duration::from_millis(10)..=Duration::from_millis(100);

/// Follows the metadata until `stop`. Ends early, with the reason, when this broker cannot belong to the cluster.
pub async fn follow(node: Arc<Node>, stop: CancellationToken) -> anyhow::Result<()> {
    let mut pause = Pause::new(RECONNECT_PAUSES);
    loop {
        // Only waiting is cut short by `stop`: what is being taken up is finished, so that no log is opened behind the back of
        // whoever closes them.
        let outcome = match stop.run_until_cancelled(open(&node)).await {
            None => return Ok(()),
            Some(Err(status)) => Err(Trouble::Broke(status)),
            Some(Ok((address, updates))) => {
                let outcome = take_all(&node, &address, updates, &stop, &mut pause).await;
                if stop.is_cancelled() {
                    return Ok(());
                }
                outcome
            }
        };
        match outcome {
            Err(Trouble::Foreign(error)) => return Err(error),
            Err(Trouble::Broke(error)) => tracing::debug!(%error, "the metadata stream broke"),
            Err(Trouble::Behind { applied }) => {
                tracing::warn!(
                    applied,
                    "a controller offers older metadata than was applied; trying another one"
                );
                stop.run_until_cancelled(sleep(BEHIND_PAUSE)).await;
            }
            Ok(()) => {}
        }
        if stop.run_until_cancelled(pause.wait()).await.is_none() {
            return Ok(());
        }
    }
}

/// Pause after a controller that is behind: nothing good comes of asking it often.
const BEHIND_PAUSE: Duration = Duration::from_secs(1);

enum Trouble {
    /// To be tried again.
    Broke(Status),
    /// The controller knows less than this broker has applied: deposed without having noticed, or it lost its state. What it
    /// does not know of, it would have us delete (I-17).
    Behind { applied: i64 },
    /// This broker cannot belong to the cluster.
    Foreign(anyhow::Error),
}

impl From<anyhow::Error> for Trouble {
    fn from(error: anyhow::Error) -> Self {
        Self::Foreign(error)
    }
}

impl From<Status> for Trouble {
    fn from(status: Status) -> Self {
        Self::Broke(status)
    }
}

async fn open(node: &Node) -> Result<(String, Streaming<MetadataUpdate>), Status> {
    let (address, mut client) = node.active.connect().await?;
    let request = MetadataRequest {
        after_offset: node.membership.applied(),
        broker_id: node.me().0,
        broker_epoch: node.membership.registered().map(|e| e.0),
    };
    match client.metadata(request).await {
        Ok(updates) => Ok((address, updates.into_inner())),
        Err(status) => {
            node.active.failed(&address, &status);
            Err(status)
        }
    }
}

/// Takes up one update after the other, until the stream breaks or `stop`.
async fn take_all(
    node: &Arc<Node>,
    address: &str,
    mut updates: Streaming<MetadataUpdate>,
    stop: &CancellationToken,
    pause: &mut Pause,
) -> Result<(), Trouble> {
    while let Some(update) = stop.run_until_cancelled(updates.next()).await.flatten() {
        let update = update.inspect_err(|status| node.active.failed(address, status))?;
        pause.reset();
        let offset = update.offset;
        let taken = tokio::task::spawn_blocking({
            let node = node.clone();
            move || apply(&node, &update)
        });
        let taken = taken.await.map_err(anyhow::Error::from)?;
        if let Err(Trouble::Behind { applied }) = taken {
            let status = Status::failed_precondition(format!(
                "its metadata ends at {offset}, but {applied} has been applied here"
            ));
            node.active.failed(address, &status);
        }
        taken?;
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

fn apply(node: &Arc<Node>, update: &MetadataUpdate) -> Result<(), Trouble> {
    let before = node.membership.image();
    let mut after = if update.snapshot {
        Image::default()
    } else {
        (*before).clone()
    };
    let mut touched = Touched::default();
    for bytes in &update.records {
        let record = Record::decode(bytes).map_err(anyhow::Error::from)?;
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
    if let Some(applied) = node.membership.applied().filter(|a| update.offset < *a) {
        return Err(Trouble::Behind { applied });
    }
    if node.membership.applied().is_none() {
        // Before anything is opened: a topic may have been deleted and made anew, with the same directory names, while we
        // were away.
        let me = node.membership.me;
        let is_ours = |id| {
            let assignment = after.assignment(id);
            assignment.is_some_and(|a| a.replicas.contains(&me))
        };
        node.logs.set_strays_aside(is_ours);
        let ours = after.partitions().map(|(id, _, _)| id);
        let absent = ours.filter(|id| is_ours(*id) && !node.logs.has_found(*id));
        *node.absent.lock() = absent.collect();
    }
    node.membership.set_image(after);
    take_up(node, &node.membership.image(), &touched);
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

/// A partition's shell: the one at work, or a new one over its log. Where the log cannot be read, an empty one takes its place as
/// soon as that costs nothing: another replica leads, and this one does not count among those that hold what is committed.
fn find_or_open(
    node: &Arc<Node>,
    image: &Image,
    id: PartitionId,
    assignment: &Arc<Assignment>,
) -> Option<Arc<Partition>> {
    let me = node.membership.me;
    let elsewhere = assignment.leader.is_some_and(|leader| leader != me);
    let counts = assignment.isr.contains(&me) || assignment.elr.contains(&me);
    let may_begin_anew = elsewhere && !counts;
    let held = node.partitions.get(id);
    let unreadable = |p: &Partition| p.offline().is_some_and(|o| o.unreadable);
    if let Some(partition) = &held
        && !(may_begin_anew && unreadable(partition))
    {
        return held;
    }
    let topic = image.topics.get(&id.topic)?;
    let name = TopicPartition::new(topic.name.clone(), id.partition);
    let config = Arc::new(TopicConfig::from_image(image, &topic.name));
    let found = match held {
        None => Some(node.logs.take(id, &name, log_config(&config))),
        Some(partition) => {
            drop(partition.close());
            None
        }
    };
    let usable = found.filter(|(log, _)| {
        let unreadable = log.as_ref().is_err_and(|offline| offline.unreadable);
        !(may_begin_anew && unreadable)
    });
    let (log, high_watermark) = usable.unwrap_or_else(|| {
        let empty = node.logs.begin_anew(id, &name, log_config(&config));
        (empty, Offset::ZERO)
    });
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
