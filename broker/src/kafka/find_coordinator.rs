//! FindCoordinator: there are no groups yet, which is said so that clients come back; and no transactions, which is said so
//! that they do not. (The API has to be there: librdkafka takes its presence for the sign that lz4 is known.)

use epoka_proto::error::ErrorCode;
use kafka_protocol::messages::find_coordinator_response::Coordinator;
use kafka_protocol::messages::{FindCoordinatorRequest, FindCoordinatorResponse};

use super::lookup::text;
use super::request::Call;

/// Key type of consumer groups.
const GROUP: i8 = 0;

/// From this version on, several keys are asked for at once.
const BATCHED_SINCE: i16 = 4;

/// Nobody coordinates anything.
pub(super) fn answer(call: &Call, request: FindCoordinatorRequest) -> FindCoordinatorResponse {
    let (error, message) = if request.key_type == GROUP {
        (
            ErrorCode::CoordinatorNotAvailable,
            "this broker has no group coordinator yet",
        )
    } else {
        (
            ErrorCode::InvalidRequest,
            "this broker has no transaction or share coordinator yet",
        )
    };
    if call.version < BATCHED_SINCE {
        return FindCoordinatorResponse::default()
            .with_error_code(error.code())
            .with_error_message(Some(text(message)))
            .with_node_id((-1).into())
            .with_port(-1);
    }
    let coordinators = request.coordinator_keys.into_iter().map(|key| {
        Coordinator::default()
            .with_key(key)
            .with_node_id((-1).into())
            .with_port(-1)
            .with_error_code(error.code())
            .with_error_message(Some(text(message)))
    });
    FindCoordinatorResponse::default().with_coordinators(coordinators.collect())
}
