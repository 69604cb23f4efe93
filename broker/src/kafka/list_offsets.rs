//! ListOffsets: offsets by timestamp, and the special ones.

use epoka_proto::error::ErrorCode;
use epoka_proto::ids::{LeaderEpoch, Millis, Offset};
use epoka_proto::metadata::Image;
use kafka_protocol::messages::list_offsets_request::ListOffsetsPartition;
use kafka_protocol::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
};
use kafka_protocol::messages::{ListOffsetsRequest, ListOffsetsResponse};

use super::lookup::{self, TopicRef};
use super::request::Call;
use crate::node::Node;

/// The end of what consumers may read.
const LATEST: i64 = -1;
/// The first offset kept.
const EARLIEST: i64 = -2;
/// The record with the largest timestamp.
const MAX_TIMESTAMP: i64 = -3;
/// The first offset kept on this broker's disks: all there is, without remote storage.
const EARLIEST_LOCAL: i64 = -4;
/// The last offset in remote storage: none, without remote storage.
const LATEST_TIERED: i64 = -5;

/// From this version on, clients know OFFSET_NOT_AVAILABLE.
const OFFSET_NOT_AVAILABLE_SINCE: i16 = 5;

/// From this version on, answers carry leader epochs.
const LEADER_EPOCHS_SINCE: i16 = 4;

/// An offset with its timestamp and leader epoch, where there are any.
struct Found {
    offset: Offset,
    timestamp: Millis,
    epoch: Option<LeaderEpoch>,
}

/// Answers for every partition.
pub(super) fn answer(node: &Node, call: &Call, request: ListOffsetsRequest) -> ListOffsetsResponse {
    let image = node.image();
    let topics = request.topics.into_iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|asked| {
            let found = find(node, &image, &topic.name, asked);
            partition_response(call, asked.partition_index, found)
        });
        ListOffsetsTopicResponse::default()
            .with_partitions(partitions.collect())
            .with_name(topic.name.clone())
    });
    ListOffsetsResponse::default().with_topics(topics.collect())
}

fn find(
    node: &Node,
    image: &Image,
    topic: &str,
    asked: &ListOffsetsPartition,
) -> Result<Option<Found>, ErrorCode> {
    let topic = TopicRef::Name(topic).find(image)?;
    let partition = lookup::partition(node, topic, asked.partition_index)?;
    let current = LeaderEpoch::from_wire(asked.current_leader_epoch);
    let record = |(offset, timestamp, epoch)| Found {
        offset,
        timestamp,
        epoch,
    };
    match asked.timestamp {
        LATEST => {
            let (offset, epoch) = partition.latest(current)?;
            Ok(Some(record((offset, -1, Some(epoch)))))
        }
        EARLIEST | EARLIEST_LOCAL => {
            let (offset, epoch) = partition.earliest(current)?;
            Ok(Some(record((offset, -1, epoch))))
        }
        MAX_TIMESTAMP => Ok(partition.max_timestamp(current)?.map(record)),
        LATEST_TIERED => {
            partition.earliest(current)?; // who leads is checked all the same
            Ok(None)
        }
        timestamp if timestamp >= 0 => {
            Ok(partition.find_timestamp(current, timestamp)?.map(record))
        }
        _ => Err(ErrorCode::UnsupportedVersion),
    }
}

fn partition_response(
    call: &Call,
    number: i32,
    found: Result<Option<Found>, ErrorCode>,
) -> ListOffsetsPartitionResponse {
    let error = match found.as_ref().err() {
        Some(ErrorCode::OffsetNotAvailable) if call.version < OFFSET_NOT_AVAILABLE_SINCE => {
            ErrorCode::LeaderNotAvailable.code()
        }
        other => other.map_or(0, |e| e.code()),
    };
    let nothing = Found {
        offset: Offset(-1),
        timestamp: -1,
        epoch: None,
    };
    let found = found.ok().flatten().unwrap_or(nothing);
    let epoch = found.epoch.filter(|_| call.version >= LEADER_EPOCHS_SINCE);
    ListOffsetsPartitionResponse::default()
        .with_partition_index(number)
        .with_error_code(error)
        .with_timestamp(found.timestamp)
        .with_offset(found.offset.0)
        .with_leader_epoch(LeaderEpoch::to_wire(epoch))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kafka::response::Response;
    use kafka_protocol::messages::ApiKey;

    fn encoded(
        version: i16,
        found: Result<Option<Found>, ErrorCode>,
    ) -> ListOffsetsPartitionResponse {
        let call = Call {
            api: ApiKey::ListOffsets,
            version,
            correlation_id: 1,
        };
        let partition = partition_response(&call, 0, found);
        let topic = ListOffsetsTopicResponse::default().with_partitions(vec![partition.clone()]);
        let response = ListOffsetsResponse::default().with_topics(vec![topic]);
        Response::encode(&call, &response).expect("encodable in every version");
        partition
    }

    #[test]
    fn leader_epochs_and_new_errors_are_told_to_those_who_know_them() {
        for version in 1..=10 {
            let found = Found {
                offset: Offset(3),
                timestamp: 5,
                epoch: Some(LeaderEpoch(7)),
            };
            let answer = encoded(version, Ok(Some(found)));
            assert_eq!((answer.offset, answer.timestamp), (3, 5));
            assert_eq!(answer.leader_epoch, if version >= 4 { 7 } else { -1 });
            let refused = encoded(version, Err(ErrorCode::OffsetNotAvailable));
            let expected = if version >= 5 {
                ErrorCode::OffsetNotAvailable
            } else {
                ErrorCode::LeaderNotAvailable
            };
            assert_eq!(refused.error_code, expected.code());
            assert_eq!(encoded(version, Ok(None)).offset, -1);
        }
    }
}
