//! CreatePartitions: passed on to the controller.

use epoka_proto::v1;
use kafka_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use kafka_protocol::messages::create_partitions_response::CreatePartitionsTopicResult;
use kafka_protocol::messages::{CreatePartitionsRequest, CreatePartitionsResponse};

use super::lookup::{message, no_controller};
use super::topics::taken_up;
use crate::node::Node;

/// Adds partitions to topics.
pub(super) async fn create(
    node: &Node,
    request: CreatePartitionsRequest,
) -> CreatePartitionsResponse {
    let asked = v1::CreatePartitionsRequest {
        topics: request.topics.iter().map(new_partitions).collect(),
        validate_only: request.validate_only,
    };
    let topics = &request.topics;
    let results = match node.controller().create_partitions(asked).await {
        Err(status) => {
            let (error, why) = no_controller(&status);
            topics
                .iter()
                .map(|t| result(t, error.code(), &why))
                .collect()
        }
        Ok(answer) => {
            let answered = topics.iter().zip(&answer.topics);
            if !request.validate_only {
                taken_up(node, |image| {
                    answered
                        .clone()
                        .filter(|(_, r)| r.error == 0)
                        .all(|(topic, _)| {
                            let known = image.topic(&topic.name).map(|t| t.partitions.len() as i32);
                            known.is_none_or(|count| count >= topic.count)
                        })
                })
                .await;
            }
            answered
                .map(|(topic, r)| result(topic, r.error as i16, &r.message))
                .collect()
        }
    };
    CreatePartitionsResponse::default().with_results(results)
}

fn new_partitions(topic: &CreatePartitionsTopic) -> v1::NewPartitions {
    let known = topic.assignments.iter().flatten();
    v1::NewPartitions {
        name: topic.name.to_string(),
        count: topic.count,
        assignments: known
            .map(|a| v1::ReplicaAssignment {
                partition: -1, // in order
                broker_ids: a.broker_ids.iter().map(|b| b.0).collect(),
            })
            .collect(),
    }
}

fn result(topic: &CreatePartitionsTopic, error: i16, why: &str) -> CreatePartitionsTopicResult {
    CreatePartitionsTopicResult::default()
        .with_name(topic.name.clone())
        .with_error_code(error)
        .with_error_message(message(why))
}
