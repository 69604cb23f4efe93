//! CreateTopics and DeleteTopics: passed on to the controller. The answer waits until this broker knows the outcome too, so
//! that a client's next request to it does not meet yesterday's metadata.

use std::time::Duration;

use epoka_proto::error::ErrorCode;
use epoka_proto::ids::{BrokerId, PartitionId};
use epoka_proto::metadata::{Image, Topic};
use epoka_proto::v1;
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::create_topics_response::{
    CreatableTopicConfigs, CreatableTopicResult,
};
use kafka_protocol::messages::delete_topics_response::DeletableTopicResult;
use kafka_protocol::messages::{
    CreateTopicsRequest, CreateTopicsResponse, DeleteTopicsRequest, DeleteTopicsResponse, TopicName,
};
use kafka_protocol::protocol::StrBytes;
use tokio::time::timeout;

use super::configs;
use super::lookup::{message, no_controller, text};
use super::request::Call;
use crate::node::Node;

/// How long an answer waits for this broker to have taken up what the controller has committed.
const TAKE_UP: Duration = Duration::from_secs(5);

/// The longest name of a topic: with a partition number it must still be a file name.
const LONGEST_NAME: usize = 249;

/// From this version on, topics are deleted by name or id.
const DELETE_BY_ID_SINCE: i16 = 6;

/// Whether a topic can have this name.
pub(super) fn is_valid_name(name: &str) -> bool {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    (1..=LONGEST_NAME).contains(&name.len())
        && !matches!(name, "." | "..")
        && name.chars().all(legal)
}

/// Waits until this broker's metadata is as `wanted`, within reason.
pub(super) async fn taken_up(node: &Node, wanted: impl Fn(&Image) -> bool) {
    let mut applied = node.watch_metadata();
    let reached = applied.wait_for(|_| wanted(&node.image()));
    // Late is no failure: the outcome is committed, and clients ask again.
    drop(timeout(TAKE_UP, reached).await);
}

/// Creates topics.
pub(super) async fn create(node: &Node, request: CreateTopicsRequest) -> CreateTopicsResponse {
    let (wanted, refused): (Vec<_>, Vec<_>) = request.topics.iter().partition(|t| has_values(t));
    let mut results: Vec<CreatableTopicResult> = refused
        .into_iter()
        .map(|topic| {
            let why = "a configuration without a value is not supported in a new topic";
            creation_refused(&topic.name, ErrorCode::InvalidConfig, why)
        })
        .collect();
    let asked = v1::CreateTopicsRequest {
        topics: wanted.iter().map(|t| new_topic(t)).collect(),
        validate_only: request.validate_only,
    };
    match node.controller().create_topics(asked).await {
        Err(status) => {
            let (error, why) = no_controller(&status);
            results.extend(
                wanted
                    .iter()
                    .map(|t| creation_refused(&t.name, error, &why)),
            );
        }
        Ok(answer) => {
            if !request.validate_only {
                let created = answer.topics.iter().filter(|t| t.error == 0);
                let names: Vec<&str> = created.map(|t| t.name.as_str()).collect();
                let all_here = |image: &Image| names.iter().all(|name| is_here(node, image, name));
                taken_up(node, all_here).await;
            }
            let image = node.image();
            results.extend(
                wanted
                    .iter()
                    .zip(&answer.topics)
                    .map(|(topic, result)| created(&image, topic, result)),
            );
        }
    }
    CreateTopicsResponse::default().with_topics(results)
}

fn has_values(topic: &CreatableTopic) -> bool {
    topic.configs.iter().all(|c| c.value.is_some())
}

/// Whether a topic is known and this broker has begun to serve its share of it.
fn is_here(node: &Node, image: &Image, name: &str) -> bool {
    let serves = |topic: &Topic, me: BrokerId| {
        topic.partitions.iter().all(|(&partition, assignment)| {
            let id = PartitionId {
                topic: topic.id,
                partition,
            };
            !assignment.replicas.contains(&me) || node.partition(id).is_some()
        })
    };
    image
        .topic(name)
        .is_some_and(|topic| serves(topic, node.me()))
}

fn new_topic(topic: &CreatableTopic) -> v1::NewTopic {
    let value =
        |value: &Option<StrBytes>| value.as_ref().map(ToString::to_string).unwrap_or_default();
    v1::NewTopic {
        name: topic.name.to_string(),
        partitions: topic.num_partitions,
        replication_factor: topic.replication_factor.into(),
        assignments: topic
            .assignments
            .iter()
            .map(|a| v1::ReplicaAssignment {
                partition: a.partition_index,
                broker_ids: a.broker_ids.iter().map(|b| b.0).collect(),
            })
            .collect(),
        configs: topic
            .configs
            .iter()
            .map(|c| (c.name.to_string(), value(&c.value)))
            .collect(),
    }
}

fn created(
    image: &Image,
    topic: &CreatableTopic,
    result: &v1::TopicResult,
) -> CreatableTopicResult {
    if let Err(error) = ErrorCode::from_wire(result.error as i16) {
        return creation_refused(&topic.name, error, &result.message);
    }
    let given = |key: &str| {
        let config = topic.configs.iter().find(|c| *c.name == *key)?;
        config.value.as_deref()
    };
    let configs = configs::effective(image, given).map(|value| {
        CreatableTopicConfigs::default()
            .with_name(text(value.key.name))
            .with_value(Some(text(value.value)))
            .with_config_source(value.source)
    });
    CreatableTopicResult::default()
        .with_name(topic.name.clone())
        .with_topic_id(uuid::Uuid::from_slice(&result.topic_id).unwrap_or_default())
        .with_error_message(None)
        .with_num_partitions(result.partitions)
        .with_replication_factor(result.replication_factor as i16)
        .with_configs(Some(configs.collect()))
}

fn creation_refused(name: &TopicName, error: ErrorCode, why: &str) -> CreatableTopicResult {
    CreatableTopicResult::default()
        .with_name(name.clone())
        .with_error_code(error.code())
        .with_error_message(message(why))
        .with_num_partitions(-1)
        .with_replication_factor(-1)
        .with_configs(Some(Vec::new()))
}

/// Deletes topics.
pub(super) async fn delete(
    node: &Node,
    call: &Call,
    request: DeleteTopicsRequest,
) -> DeleteTopicsResponse {
    let named: Vec<v1::TopicName> = if call.version >= DELETE_BY_ID_SINCE {
        let topics = request.topics.iter();
        topics
            .map(|t| v1::TopicName {
                name: t.name.as_ref().map(|n| n.to_string()).unwrap_or_default(),
                topic_id: match &t.name {
                    Some(_) => bytes::Bytes::new(),
                    None => bytes::Bytes::copy_from_slice(t.topic_id.as_bytes()),
                },
            })
            .collect()
    } else {
        let names = request.topic_names.iter();
        names
            .map(|name| v1::TopicName {
                name: name.to_string(),
                topic_id: bytes::Bytes::new(),
            })
            .collect()
    };
    let asked = v1::DeleteTopicsRequest {
        topics: named.clone(),
    };
    let responses = match node.controller().delete_topics(asked).await {
        Err(status) => {
            let (error, why) = no_controller(&status);
            named
                .iter()
                .map(|t| deleted(t, &t.name, &t.topic_id, error.code(), &why))
                .collect()
        }
        Ok(answer) => {
            let gone = answer.topics.iter().filter(|t| t.error == 0);
            let ids: Vec<_> = gone
                .filter_map(|t| epoka_proto::ids::TopicId::from_bytes(&t.topic_id))
                .collect();
            taken_up(node, |image| {
                ids.iter().all(|id| !image.topics.contains_key(id))
            })
            .await;
            let results = named.iter().zip(&answer.topics);
            results
                .map(|(asked, r)| deleted(asked, &r.name, &r.topic_id, r.error as i16, &r.message))
                .collect()
        }
    };
    DeleteTopicsResponse::default().with_responses(responses)
}

/// A topic that was asked for by id and does not exist has no name to answer with.
fn deleted(
    asked: &v1::TopicName,
    name: &str,
    id: &[u8],
    error: i16,
    why: &str,
) -> DeletableTopicResult {
    let name = if name.is_empty() { &asked.name } else { name };
    let id = if id.is_empty() { &asked.topic_id } else { id };
    DeletableTopicResult::default()
        .with_name((!name.is_empty()).then(|| TopicName(text(name))))
        .with_topic_id(uuid::Uuid::from_slice(id).unwrap_or_default())
        .with_error_code(error)
        .with_error_message(message(why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topic_names_are_kafkas() {
        for (name, valid) in [
            ("orders", true),
            ("a.b_c-D9", true),
            ("", false),
            (".", false),
            ("..", false),
            ("a/b", false),
            ("größe", false),
            (&"x".repeat(249), true),
            (&"x".repeat(250), false),
        ] {
            assert_eq!(is_valid_name(name), valid, "{name}");
        }
    }
}
