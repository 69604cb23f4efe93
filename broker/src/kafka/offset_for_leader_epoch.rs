//! OffsetForLeaderEpoch: where a leader epoch ends here, by which consumers notice that what they read is gone (L-55).

use epoka_proto::epochs::EpochEnd;
use epoka_proto::error::ErrorCode;
use epoka_proto::ids::LeaderEpoch;
use epoka_proto::metadata::Image;
use kafka_protocol::messages::offset_for_leader_epoch_request::OffsetForLeaderPartition;
use kafka_protocol::messages::offset_for_leader_epoch_response::{
    EpochEndOffset, OffsetForLeaderTopicResult,
};
use kafka_protocol::messages::{OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse};

use super::lookup::{self, TopicRef};
use crate::node::Node;

/// Answers for every partition.
pub(super) fn answer(
    node: &Node,
    request: OffsetForLeaderEpochRequest,
) -> OffsetForLeaderEpochResponse {
    let image = node.image();
    let topics = request.topics.into_iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|asked| {
            let end = find(node, &image, &topic.topic, asked);
            let known = end.ok().flatten();
            EpochEndOffset::default()
                .with_error_code(ErrorCode::to_wire(&end))
                .with_partition(asked.partition)
                .with_leader_epoch(known.map_or(-1, |e| e.epoch.0))
                .with_end_offset(known.map_or(-1, |e| e.end.0))
        });
        OffsetForLeaderTopicResult::default()
            .with_partitions(partitions.collect())
            .with_topic(topic.topic.clone())
    });
    OffsetForLeaderEpochResponse::default().with_topics(topics.collect())
}

fn find(
    node: &Node,
    image: &Image,
    topic: &str,
    asked: &OffsetForLeaderPartition,
) -> Result<Option<EpochEnd>, ErrorCode> {
    let topic = TopicRef::Name(topic).find(image)?;
    let partition = lookup::partition(node, topic, asked.partition)?;
    let epoch = LeaderEpoch::from_wire(asked.leader_epoch).ok_or(ErrorCode::InvalidRequest)?;
    partition.end_offset_for(LeaderEpoch::from_wire(asked.current_leader_epoch), epoch)
}
