//! The controller's gRPC services. Each call is taken apart, made a command where it changes something, and its outcome put
//! together again; nothing is decided here. One file a theme.

mod admin;
mod brokers;
mod convert;
mod heartbeat;
mod quorum;
mod restore;

use std::pin::Pin;
use std::sync::Arc;

use epoka_proto::v1::controller_server::Controller;
use epoka_proto::v1::*;
use futures::Stream;
use tonic::{Request, Response, Status, Streaming};

use crate::shared::Shared;

pub(crate) use convert::new_topic;
pub(crate) use quorum::QuorumService;

/// A stream of answers.
type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The `Controller` service.
#[derive(Clone)]
pub(crate) struct ControllerService {
    shared: Arc<Shared>,
}

impl ControllerService {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }
}

#[tonic::async_trait]
impl Controller for ControllerService {
    type HeartbeatStream = Answers<HeartbeatResponse>;
    type MetadataStream = Answers<MetadataUpdate>;

    async fn register(
        &self,
        request: Request<RegisterRequest>,
    ) -> Result<Response<RegisterResponse>, Status> {
        brokers::register(&self.shared, request.into_inner()).await
    }

    async fn heartbeat(
        &self,
        request: Request<Streaming<HeartbeatRequest>>,
    ) -> Result<Response<Self::HeartbeatStream>, Status> {
        heartbeat::serve(self.shared.clone(), request.into_inner())
    }

    async fn metadata(
        &self,
        request: Request<MetadataRequest>,
    ) -> Result<Response<Self::MetadataStream>, Status> {
        brokers::metadata(self.shared.clone(), request.into_inner())
    }

    async fn alter_partition(
        &self,
        request: Request<AlterPartitionRequest>,
    ) -> Result<Response<AlterPartitionResponse>, Status> {
        brokers::alter_partition(&self.shared, request.into_inner()).await
    }

    async fn withdraw(
        &self,
        request: Request<WithdrawRequest>,
    ) -> Result<Response<WithdrawResponse>, Status> {
        brokers::withdraw(&self.shared, request.into_inner()).await
    }

    async fn allocate_producer_ids(
        &self,
        request: Request<AllocateProducerIdsRequest>,
    ) -> Result<Response<AllocateProducerIdsResponse>, Status> {
        brokers::allocate_producer_ids(&self.shared, request.into_inner()).await
    }

    async fn create_topics(
        &self,
        request: Request<CreateTopicsRequest>,
    ) -> Result<Response<TopicResults>, Status> {
        admin::create_topics(&self.shared, request.into_inner()).await
    }

    async fn delete_topics(
        &self,
        request: Request<DeleteTopicsRequest>,
    ) -> Result<Response<TopicResults>, Status> {
        admin::delete_topics(&self.shared, request.into_inner()).await
    }

    async fn create_partitions(
        &self,
        request: Request<CreatePartitionsRequest>,
    ) -> Result<Response<TopicResults>, Status> {
        admin::create_partitions(&self.shared, request.into_inner()).await
    }

    async fn alter_configs(
        &self,
        request: Request<AlterConfigsRequest>,
    ) -> Result<Response<TopicResults>, Status> {
        admin::alter_configs(&self.shared, request.into_inner()).await
    }

    async fn elect_leaders(
        &self,
        request: Request<ElectLeadersRequest>,
    ) -> Result<Response<ElectLeadersResponse>, Status> {
        admin::elect_leaders(&self.shared, request.into_inner()).await
    }

    async fn describe_quorum(
        &self,
        _: Request<DescribeQuorumRequest>,
    ) -> Result<Response<DescribeQuorumResponse>, Status> {
        Ok(Response::new(quorum::describe(&self.shared)))
    }
}
