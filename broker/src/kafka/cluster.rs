//! DescribeCluster: the brokers and the cluster's id.

use epoka_proto::error::ErrorCode;
use epoka_proto::ids::BrokerId;
use kafka_protocol::messages::describe_cluster_response::DescribeClusterBroker;
use kafka_protocol::messages::{DescribeClusterRequest, DescribeClusterResponse};

use super::lookup::{admin_broker, endpoint, text};
use super::metadata::ALL_CLUSTER_OPERATIONS;
use super::request::Call;
use crate::node::Node;

/// Endpoint type of brokers; controllers are not reached through the Kafka protocol.
const BROKERS: i8 = 1;

/// From this version on, fenced brokers are shown to those who ask for them.
const FENCED_SINCE: i16 = 2;

/// Answers from the newest metadata, with the addresses of one listener.
pub(super) fn describe(
    node: &Node,
    listener: &str,
    call: &Call,
    request: &DescribeClusterRequest,
) -> DescribeClusterResponse {
    let response = DescribeClusterResponse::default().with_endpoint_type(request.endpoint_type);
    if call.version >= 1 && request.endpoint_type != BROKERS {
        return response
            .with_error_code(ErrorCode::InvalidRequest.code())
            .with_error_message(Some(text("this is a broker: its endpoint type is 1")))
            .with_cluster_authorized_operations(i32::MIN);
    }
    let image = node.image();
    let show_fenced = call.version >= FENCED_SINCE && request.include_fenced_brokers;
    let shown = image.brokers.values().filter(|b| !b.fenced || show_fenced);
    let brokers = shown.filter_map(|broker| {
        let endpoint = endpoint(broker, listener)?;
        Some(
            DescribeClusterBroker::default()
                .with_broker_id(broker.id.0.into())
                .with_host(text(&endpoint.host))
                .with_port(endpoint.port.into())
                .with_rack(broker.rack.as_deref().map(text))
                .with_is_fenced(broker.fenced),
        )
    });
    let operations = if request.include_cluster_authorized_operations {
        ALL_CLUSTER_OPERATIONS
    } else {
        i32::MIN
    };
    response
        .with_brokers(brokers.collect())
        .with_cluster_id(text(&image.cluster_id))
        .with_controller_id(BrokerId::to_wire(admin_broker(&image)).into())
        .with_cluster_authorized_operations(operations)
}
