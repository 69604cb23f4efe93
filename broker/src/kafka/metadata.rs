//! Metadata: brokers, topics, leaders. Answered from the image alone; only a request that asks for topics to be created on
//! the way, on a broker set up for that, goes further.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use epoka_proto::error::ErrorCode;
use epoka_proto::ids::{BrokerId, TopicId};
use epoka_proto::metadata::{Assignment, Image, Topic};
use epoka_proto::v1;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use kafka_protocol::messages::{MetadataRequest, MetadataResponse, TopicName};

use super::lookup::{admin_broker, endpoint, text};
use super::request::Call;
use super::topics::is_valid_name;
use crate::node::Node;

/// What everyone may do with a topic where nobody is kept from anything: read, write, create, delete, alter, describe, and
/// the same of its configuration (bits by Kafka's AclOperation codes).
const ALL_TOPIC_OPERATIONS: i32 =
    1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 10 | 1 << 11;

/// What everyone may do with the cluster.
pub(super) const ALL_CLUSTER_OPERATIONS: i32 =
    1 << 5 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 12;

/// How long an answer may wait for the successor of a leader that seems to have died. An election after a death takes a few
/// tens of milliseconds; a client that is told "no leader" in the meantime may come back only after a second.
const PATIENCE: Duration = Duration::from_millis(250);

/// Answers from the newest metadata, with the addresses of one listener.
pub(super) async fn answer(
    node: &Node,
    listener: &str,
    call: &Call,
    request: MetadataRequest,
) -> MetadataResponse {
    let leaders = |image: &Image| -> BTreeSet<BrokerId> {
        let topics = asked_for(call, &request, image);
        topics.flat_map(|t| leaders(t)).collect()
    };
    node.hear(leaders(&node.image()), PATIENCE).await;
    let doubtful = |image: &Image| leaders(image).into_iter().any(|l| node.is_suspect(l));
    let image = node.settled(PATIENCE, doubtful).await;
    let view = View {
        node,
        image: &image,
        listener,
        call,
        request: &request,
    };
    let topics: Vec<MetadataResponseTopic> = match wanted(call, &request) {
        None => image
            .topic_ids
            .values()
            .filter_map(|id| image.topics.get(id))
            .map(|t| view.describe(t))
            .collect(),
        Some(wanted) => {
            let topics: Vec<_> = wanted.iter().map(|topic| view.find(topic)).collect();
            if request.allow_auto_topic_creation && node.config().auto_create_topics {
                create_missing(node, topics).await
            } else {
                topics
            }
        }
    };
    let cluster_operations = if request.include_cluster_authorized_operations {
        ALL_CLUSTER_OPERATIONS
    } else {
        i32::MIN
    };
    MetadataResponse::default()
        .with_brokers(brokers(node, listener, &image))
        .with_cluster_id(Some(text(&image.cluster_id)))
        .with_controller_id(BrokerId::to_wire(admin_broker(&image)).into())
        .with_topics(topics)
        .with_cluster_authorized_operations(cluster_operations)
}

/// The topics asked for; `None` is all of them. Version 0 could not say "none", so there an empty list means all.
fn wanted<'a>(call: &Call, request: &'a MetadataRequest) -> Option<&'a [MetadataRequestTopic]> {
    let topics = request.topics.as_deref()?;
    (call.version > 0 || !topics.is_empty()).then_some(topics)
}

/// The topics asked for that exist.
fn asked_for<'a>(
    call: &Call,
    request: &'a MetadataRequest,
    image: &'a Image,
) -> impl Iterator<Item = &'a Arc<Topic>> {
    let by_name = |wanted: &'a MetadataRequestTopic| match &wanted.name {
        Some(name) => image.topic(name),
        None => image.topics.get(&TopicId(wanted.topic_id)),
    };
    let wanted = wanted(call, request);
    let all = wanted.is_none().then(|| image.topics.values());
    let named = wanted.into_iter().flatten().filter_map(by_name);
    all.into_iter().flatten().chain(named)
}

/// Who leads a partition of the topic.
fn leaders(topic: &Topic) -> impl Iterator<Item = BrokerId> {
    topic.partitions.values().filter_map(|a| a.leader)
}

/// Brokers that clients can use: those that have been fenced for a while are left out.
fn brokers(node: &Node, listener: &str, image: &Image) -> Vec<MetadataResponseBroker> {
    let up = image.brokers.values().filter(|b| node.is_listed(b));
    up.filter_map(|broker| {
        let endpoint = endpoint(broker, listener)?;
        Some(
            MetadataResponseBroker::default()
                .with_node_id(broker.id.0.into())
                .with_host(text(&endpoint.host))
                .with_port(endpoint.port.into())
                .with_rack(broker.rack.as_deref().map(text)),
        )
    })
    .collect()
}

/// What an answer is made from.
struct View<'a> {
    node: &'a Node,
    image: &'a Image,
    listener: &'a str,
    call: &'a Call,
    request: &'a MetadataRequest,
}

impl View<'_> {
    fn find(&self, wanted: &MetadataRequestTopic) -> MetadataResponseTopic {
        let refused = |error: ErrorCode| {
            MetadataResponseTopic::default()
                .with_error_code(error.code())
                .with_name(wanted.name.clone())
                .with_topic_id(wanted.topic_id)
                .with_topic_authorized_operations(i32::MIN)
        };
        match &wanted.name {
            Some(name) => match self.image.topic(name) {
                Some(topic) => self.describe(topic),
                None if !is_valid_name(name) => refused(ErrorCode::InvalidTopic),
                None => refused(ErrorCode::UnknownTopicOrPartition),
            },
            None if wanted.topic_id.is_nil() => refused(ErrorCode::InvalidRequest),
            None => match self.image.topics.get(&TopicId(wanted.topic_id)) {
                Some(topic) => self.describe(topic),
                None => refused(ErrorCode::UnknownTopicId),
            },
        }
    }

    fn describe(&self, topic: &Topic) -> MetadataResponseTopic {
        let partitions = topic.partitions.iter();
        MetadataResponseTopic::default()
            .with_name(Some(TopicName(text(&topic.name))))
            .with_topic_id(topic.id.0)
            .with_partitions(
                partitions
                    .map(|(&number, a)| self.partition(number, a))
                    .collect(),
            )
            .with_topic_authorized_operations(if self.request.include_topic_authorized_operations {
                ALL_TOPIC_OPERATIONS
            } else {
                i32::MIN
            })
    }

    fn partition(&self, number: i32, assignment: &Arc<Assignment>) -> MetadataResponsePartition {
        let reachable = |id: &BrokerId| {
            let broker = self.image.brokers.get(id);
            broker.is_some_and(|b| !b.fenced && endpoint(b, self.listener).is_some())
        };
        // A leader that has just died is still the leader, but sending clients there costs them more than asking again.
        let named = assignment.leader.filter(|l| !self.node.is_suspect(*l));
        let error = match named {
            None => ErrorCode::LeaderNotAvailable.code(),
            Some(leader) if reachable(&leader) => 0,
            Some(_) if self.call.version < 6 => ErrorCode::LeaderNotAvailable.code(),
            Some(_) => ErrorCode::ListenerNotFound.code(),
        };
        let leader = named.filter(reachable);
        let ids = |brokers: &[BrokerId]| brokers.iter().map(|b| b.0.into()).collect();
        let is_offline = |r: &&BrokerId| !reachable(r) || assignment.offline.contains(r);
        let offline = assignment.replicas.iter().filter(is_offline);
        MetadataResponsePartition::default()
            .with_error_code(error)
            .with_partition_index(number)
            .with_leader_id(BrokerId::to_wire(leader).into())
            .with_leader_epoch(assignment.leader_epoch.0)
            .with_replica_nodes(ids(&assignment.replicas))
            .with_isr_nodes(ids(&assignment.isr))
            .with_offline_replicas(offline.map(|b| b.0.into()).collect())
    }
}

/// Asks for the topics that do not exist. Their leaders are known a moment later, so the client is told to come back.
async fn create_missing(
    node: &Node,
    mut topics: Vec<MetadataResponseTopic>,
) -> Vec<MetadataResponseTopic> {
    let missing = ErrorCode::UnknownTopicOrPartition.code();
    let names: BTreeMap<&str, v1::NewTopic> = topics
        .iter()
        .filter(|t| t.error_code == missing)
        .filter_map(|t| t.name.as_ref())
        .map(|name| {
            let topic = v1::NewTopic {
                name: name.to_string(),
                partitions: -1,
                replication_factor: -1,
                ..v1::NewTopic::default()
            };
            (name.as_str(), topic)
        })
        .collect();
    if names.is_empty() {
        return topics;
    }
    let request = v1::CreateTopicsRequest {
        topics: names.into_values().collect(),
        validate_only: false,
    };
    let created = node.controller().create_topics(request).await;
    let error = match &created {
        Ok(_) => ErrorCode::LeaderNotAvailable,
        Err(_) => ErrorCode::UnknownTopicOrPartition,
    };
    for topic in topics.iter_mut().filter(|t| t.error_code == missing) {
        topic.error_code = error.code();
    }
    topics
}
