//! Administration: topics, configurations, elections. With `validate_only` a command is rehearsed on a copy of the cluster.

use epoka_proto::ids::TopicPartition;
use epoka_proto::v1::*;
use tonic::{Response, Status};

use super::convert;
use crate::cluster::{Command, ElectionKind, Reply};
use crate::shared::Shared;

pub(super) async fn create_topics(
    shared: &Shared,
    request: CreateTopicsRequest,
) -> Result<Response<TopicResults>, Status> {
    let topics = request.topics.into_iter().map(convert::new_topic);
    let command = Command::CreateTopics {
        topics: topics.collect(),
    };
    run(shared, command, request.validate_only).await
}

pub(super) async fn delete_topics(
    shared: &Shared,
    request: DeleteTopicsRequest,
) -> Result<Response<TopicResults>, Status> {
    let topics = request.topics.into_iter().map(convert::topic_ref);
    let command = Command::DeleteTopics {
        topics: topics.collect::<Result<_, _>>()?,
    };
    run(shared, command, false).await
}

pub(super) async fn create_partitions(
    shared: &Shared,
    request: CreatePartitionsRequest,
) -> Result<Response<TopicResults>, Status> {
    let topics = request.topics.into_iter().map(convert::new_partitions);
    let command = Command::CreatePartitions {
        topics: topics.collect(),
    };
    run(shared, command, request.validate_only).await
}

pub(super) async fn alter_configs(
    shared: &Shared,
    request: AlterConfigsRequest,
) -> Result<Response<TopicResults>, Status> {
    let changes = request.changes.into_iter().map(convert::config_change);
    let command = Command::AlterConfigs {
        changes: changes.collect(),
    };
    run(shared, command, request.validate_only).await
}

async fn run(
    shared: &Shared,
    command: Command,
    validate_only: bool,
) -> Result<Response<TopicResults>, Status> {
    let outcome = if validate_only {
        shared.require_active()?;
        shared.rehearse(&command)
    } else {
        shared.propose(command).await?
    };
    let Reply::Topics(replies) = outcome.reply else {
        unreachable!("topic commands are answered with topics");
    };
    Ok(Response::new(TopicResults {
        topics: replies.into_iter().map(convert::topic_result).collect(),
    }))
}

pub(super) async fn elect_leaders(
    shared: &Shared,
    request: ElectLeadersRequest,
) -> Result<Response<ElectLeadersResponse>, Status> {
    let named = request.partitions.into_iter();
    let named: Vec<_> = named
        .map(|p| TopicPartition::new(p.topic, p.partition))
        .collect();
    let command = Command::ElectLeaders {
        kind: if request.unclean {
            ElectionKind::Unclean
        } else {
            ElectionKind::Preferred
        },
        partitions: (!named.is_empty()).then_some(named),
    };
    let Reply::Elections(replies) = shared.propose(command).await?.reply else {
        unreachable!("elections are answered with elections");
    };
    let result = |reply: crate::cluster::ElectionReply| {
        let (error, message) = convert::refusal(&reply.result);
        ElectLeadersResult {
            topic: reply.partition.topic.to_string(),
            partition: reply.partition.partition,
            error,
            message,
        }
    };
    Ok(Response::new(ElectLeadersResponse {
        partitions: replies.into_iter().map(result).collect(),
    }))
}
