//! Produce: batches to partitions. The records stay the bytes the client sent; each batch is appended, or refused, before
//! the next request of the connection is looked at, and what remains to be awaited is the commit.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use epoka_proto::batch::BatchHeader;
use epoka_proto::error::ErrorCode;
use epoka_proto::metadata::Image;
use kafka_protocol::messages::produce_request::TopicProduceData;
use kafka_protocol::messages::produce_response::{
    LeaderIdAndEpoch, NodeEndpoint, PartitionProduceResponse, TopicProduceResponse,
};
use kafka_protocol::messages::{ProduceRequest, ProduceResponse, TopicName};
use kafka_protocol::protocol::StrBytes;
use uuid::Uuid;

use super::connection::Reply;
use super::lookup::{self, LeaderHint, TopicRef, hinted, leader_hint, text};
use super::request::{Call, Refused};
use super::response::Response;
use crate::node::Node;
use crate::partition::Pending;
use crate::replica::{Acks, Produced};

/// From this version on, topics have ids instead of names.
const TOPIC_IDS_SINCE: i16 = 13;

/// One topic's partitions, begun.
struct Begun {
    name: TopicName,
    id: Uuid,
    partitions: Vec<(i32, Result<Pending, ErrorCode>)>,
}

fn topic_ref<'a>(call: &Call, name: &'a TopicName, id: Uuid) -> TopicRef<'a> {
    if call.version >= TOPIC_IDS_SINCE {
        TopicRef::Id(id)
    } else {
        TopicRef::Name(name)
    }
}

/// Appends every batch, and returns what is left to wait for.
pub(super) fn begin(
    node: &Arc<Node>,
    listener: Arc<str>,
    call: Call,
    request: ProduceRequest,
) -> Result<Reply, Refused> {
    let acks = match request.acks {
        0 => Ok(Acks::None),
        1 => Ok(Acks::Leader),
        -1 => Ok(Acks::All),
        _ => Err(ErrorCode::InvalidRequiredAcks),
    };
    let timeout = Duration::from_millis(request.timeout_ms.max(0).unsigned_abs().into());
    let image = node.image();
    let begin_topic = |data: TopicProduceData| {
        let topic = topic_ref(&call, &data.name, data.topic_id).find(&image);
        let begin_partition = |number, records: Option<Bytes>| {
            let batch = refuse_transactions(records.unwrap_or_default())?;
            let partition = lookup::partition(node, topic?, number)?;
            Ok(partition.begin_produce(batch, acks?, timeout))
        };
        let partitions = data
            .partition_data
            .into_iter()
            .map(|p| (p.index, begin_partition(p.index, p.records)))
            .collect();
        Begun {
            // A copy: the name is a part of the frame, whose memory is wanted back.
            name: TopicName(StrBytes::from_string(data.name.to_string())),
            id: data.topic_id,
            partitions,
        }
    };
    let topics: Vec<Begun> = request.topic_data.into_iter().map(begin_topic).collect();
    let node = node.clone();
    Ok(Box::pin(async move {
        if acks == Ok(Acks::None) {
            return unacknowledged(topics).await;
        }
        let response = acknowledge(&node, &listener, &call, topics).await;
        Response::encode(&call, &response).map(Some)
    }))
}

/// Batches of transactions need a coordinator, and there is none yet.
fn refuse_transactions(batch: Bytes) -> Result<Bytes, ErrorCode> {
    match BatchHeader::parse(&batch) {
        Ok(header) if header.is_transactional() => Err(ErrorCode::InvalidTxnState),
        _ => Ok(batch),
    }
}

/// Nobody waits for an answer, but a failure must be noticed: the connection is closed for it.
async fn unacknowledged(topics: Vec<Begun>) -> Result<Option<Response>, Refused> {
    for (_, begun) in topics.into_iter().flat_map(|t| t.partitions) {
        let outcome = match begun {
            Ok(pending) => pending.outcome().await,
            Err(error) => Err(error),
        };
        outcome.map_err(Refused::Unacknowledged)?;
    }
    Ok(None)
}

/// Waits for every outcome and says it.
async fn acknowledge(
    node: &Node,
    listener: &str,
    call: &Call,
    topics: Vec<Begun>,
) -> ProduceResponse {
    let mut hints = Vec::new();
    let mut responses = Vec::with_capacity(topics.len());
    for topic in topics {
        let mut partitions = Vec::with_capacity(topic.partitions.len());
        let by = topic_ref(call, &topic.name, topic.id);
        for (number, begun) in topic.partitions {
            let outcome = match begun {
                Ok(pending) => pending.outcome().await,
                Err(error) => Err(error),
            };
            let hint = outcome
                .err()
                .and_then(|e| leader_hint(&node.image(), by, number, e));
            hints.extend(hint);
            partitions.push(partition_response(number, outcome, hint));
        }
        responses.push(
            TopicProduceResponse::default()
                .with_name(topic.name)
                .with_topic_id(topic.id)
                .with_partition_responses(partitions),
        );
    }
    let endpoints = if hints.is_empty() {
        Vec::new()
    } else {
        endpoints(&node.image(), listener, hints)
    };
    ProduceResponse::default()
        .with_responses(responses)
        .with_node_endpoints(endpoints)
}

fn partition_response(
    number: i32,
    outcome: Result<Produced, ErrorCode>,
    hint: Option<LeaderHint>,
) -> PartitionProduceResponse {
    let leader = hint.map_or_else(LeaderIdAndEpoch::default, |hint| {
        LeaderIdAndEpoch::default()
            .with_leader_id(hint.id.0.into())
            .with_leader_epoch(hint.epoch.0)
    });
    PartitionProduceResponse::default()
        .with_index(number)
        .with_error_code(ErrorCode::to_wire(&outcome))
        .with_base_offset(outcome.map_or(-1, |p| p.base_offset.0))
        .with_log_append_time_ms(-1)
        .with_log_start_offset(outcome.map_or(-1, |p| p.log_start.0))
        .with_current_leader(leader)
}

fn endpoints(image: &Image, listener: &str, hints: Vec<LeaderHint>) -> Vec<NodeEndpoint> {
    hinted(image, listener, hints.into_iter())
        .into_iter()
        .map(|(broker, endpoint)| {
            NodeEndpoint::default()
                .with_node_id(broker.id.0.into())
                .with_host(text(&endpoint.host))
                .with_port(endpoint.port.into())
                .with_rack(broker.rack.as_deref().map(text))
        })
        .collect()
}
