//! ElectLeaders: preferred or unclean elections, passed on to the controller.

use std::collections::BTreeMap;

use epoka_proto::error::ErrorCode;
use epoka_proto::v1;
use kafka_protocol::messages::elect_leaders_response::{PartitionResult, ReplicaElectionResult};
use kafka_protocol::messages::{ElectLeadersRequest, ElectLeadersResponse, TopicName};

use super::lookup::{message, no_controller, text};
use super::request::Call;
use crate::node::Node;

/// Election type of an election that may lose records.
const UNCLEAN: i8 = 1;

/// Elects leaders, of all partitions where none are named.
pub(super) async fn answer(
    node: &Node,
    call: &Call,
    request: ElectLeadersRequest,
) -> ElectLeadersResponse {
    let named = request.topic_partitions.iter().flatten();
    let partitions: Vec<v1::PartitionName> = named
        .flat_map(|topic| {
            topic.partitions.iter().map(|&partition| v1::PartitionName {
                topic: topic.topic.to_string(),
                partition,
            })
        })
        .collect();
    if request.topic_partitions.is_some() && partitions.is_empty() {
        return ElectLeadersResponse::default(); // to the controller, no names mean all
    }
    let asked = v1::ElectLeadersRequest {
        unclean: request.election_type == UNCLEAN,
        partitions,
    };
    match node.controller().elect_leaders(asked.clone()).await {
        Err(status) => {
            let (error, why) = no_controller(&status);
            let refused = asked.partitions.iter().map(|p| v1::ElectLeadersResult {
                topic: p.topic.clone(),
                partition: p.partition,
                error: error.code().into(),
                message: why.clone(),
            });
            // The first version has no place for an error of the whole.
            let whole = if call.version >= 1 { error.code() } else { 0 };
            ElectLeadersResponse::default()
                .with_error_code(whole)
                .with_replica_election_results(by_topic(refused))
        }
        Ok(answer) => {
            // Who asks for all partitions does not care for those that need no election.
            let all = asked.partitions.is_empty();
            let unneeded = i32::from(ErrorCode::ElectionNotNeeded.code());
            let told = answer
                .partitions
                .into_iter()
                .filter(|r| !all || r.error != unneeded);
            ElectLeadersResponse::default().with_replica_election_results(by_topic(told))
        }
    }
}

fn by_topic(results: impl Iterator<Item = v1::ElectLeadersResult>) -> Vec<ReplicaElectionResult> {
    let mut topics: BTreeMap<String, Vec<PartitionResult>> = BTreeMap::new();
    for result in results {
        let partition = PartitionResult::default()
            .with_partition_id(result.partition)
            .with_error_code(result.error as i16)
            .with_error_message(message(&result.message));
        topics.entry(result.topic).or_default().push(partition);
    }
    topics
        .into_iter()
        .map(|(topic, partitions)| {
            ReplicaElectionResult::default()
                .with_topic(TopicName(text(&topic)))
                .with_partition_result(partitions)
        })
        .collect()
}
