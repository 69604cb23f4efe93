//! From a frame to the API it is for.

use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use kafka_protocol::messages::ApiKey;
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Message};

use super::connection::Reply;
use super::request::{Call, Opened, Refused, decode, open};
use super::response::Response;
use super::{
    api_versions, cluster, configs, elect_leaders, fetch, find_coordinator, init_producer_id,
    list_offsets, metadata, offset_for_leader_epoch, partitions, produce, topics,
};
use crate::node::Node;

/// Begins a request that came through the listener of this name. A produce appends before this returns; everything else happens
/// when the reply is awaited.
pub(super) fn begin(node: &Arc<Node>, listener: &Arc<str>, frame: Bytes) -> Result<Reply, Refused> {
    let (call, body) = match open(frame)? {
        Opened::Request(call, body) => (call, body),
        Opened::TooNewApiVersions(call) => {
            let response = api_versions::too_new();
            return Ok(Box::pin(async move {
                Response::encode(&call, &response).map(Some)
            }));
        }
    };
    let (node, listener) = (node.clone(), listener.clone());
    match call.api {
        ApiKey::Produce => produce::begin(&node, listener, call, decode(&call, body)?),
        ApiKey::Fetch => {
            let request = decode(&call, body)?;
            Ok(Box::pin(async move {
                Ok(Some(fetch::answer(&node, &listener, &call, request).await))
            }))
        }
        ApiKey::ListOffsets => later(call, body, move |r| async move {
            list_offsets::answer(&node, &call, r)
        }),
        ApiKey::Metadata => later(call, body, move |r| async move {
            metadata::answer(&node, &listener, &call, r).await
        }),
        ApiKey::FindCoordinator => later(call, body, move |r| async move {
            find_coordinator::answer(&call, r)
        }),
        ApiKey::ApiVersions => api_versions::begin(&node, call, body),
        ApiKey::CreateTopics => later(call, body, move |r| async move {
            topics::create(&node, r).await
        }),
        ApiKey::DeleteTopics => later(call, body, move |r| async move {
            topics::delete(&node, &call, r).await
        }),
        ApiKey::CreatePartitions => later(call, body, move |r| async move {
            partitions::create(&node, r).await
        }),
        ApiKey::InitProducerId => later(call, body, move |r| async move {
            init_producer_id::answer(&node, r).await
        }),
        ApiKey::OffsetForLeaderEpoch => later(call, body, move |r| async move {
            offset_for_leader_epoch::answer(&node, r)
        }),
        ApiKey::DescribeConfigs => {
            later(
                call,
                body,
                move |r| async move { configs::describe(&node, r) },
            )
        }
        ApiKey::AlterConfigs => later(call, body, move |r| async move {
            configs::replace(&node, r).await
        }),
        ApiKey::IncrementalAlterConfigs => later(call, body, move |r| async move {
            configs::change(&node, r).await
        }),
        ApiKey::ElectLeaders => later(call, body, move |r| async move {
            elect_leaders::answer(&node, &call, r).await
        }),
        ApiKey::DescribeCluster => later(call, body, move |r| async move {
            cluster::describe(&node, &listener, &call, &r)
        }),
        other => Err(Refused::UnknownApi(other as i16)),
    }
}

/// A reply that decodes now, so that nonsense is noticed at once, and answers when awaited.
fn later<M, F, Fut, R>(call: Call, body: Bytes, answer: F) -> Result<Reply, Refused>
where
    M: Message + Decodable + Send + 'static,
    F: FnOnce(M) -> Fut + Send + 'static,
    Fut: Future<Output = R> + Send + 'static,
    R: Message + Encodable + HeaderVersion + Send + 'static,
{
    let request = decode::<M>(&call, body)?;
    Ok(Box::pin(async move {
        Response::encode(&call, &answer(request).await).map(Some)
    }))
}
