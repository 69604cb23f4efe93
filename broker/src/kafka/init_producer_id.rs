//! InitProducerId: ids for idempotent producers. Transactional ones need a coordinator, and there is none yet.

use epoka_proto::error::ErrorCode;
use kafka_protocol::messages::{InitProducerIdRequest, InitProducerIdResponse};

use crate::node::Node;

/// A fresh id with epoch 0. A producer that names its old id, to have its epoch raised, is as well served by a fresh one,
/// as by Kafka.
pub(super) async fn answer(node: &Node, request: InitProducerIdRequest) -> InitProducerIdResponse {
    let id = match request.transactional_id {
        Some(_) => Err(ErrorCode::InvalidRequest),
        None => node.producer_id().await,
    };
    InitProducerIdResponse::default()
        .with_error_code(ErrorCode::to_wire(&id))
        .with_producer_id(id.map_or(-1, |id| id.0).into())
        .with_producer_epoch(if id.is_ok() { 0 } else { -1 })
}
