//! The gRPC service for clients of the SDK and the command line. Like the Kafka listener, it decides nothing.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use epoka_proto::error::ErrorCode;
use epoka_proto::ids::{LeaderEpoch, Offset};
use epoka_proto::metadata::{Assignment, BrokerRegistration, Topic};
use epoka_proto::v1::log_server::Log;
use epoka_proto::v1::{
    AlterConfigsRequest, BrokerInfo, ConsumeRequest, ConsumeResponse, CreatePartitionsRequest,
    CreateTopicsRequest, DeleteTopicsRequest, DescribeReplicasRequest, DescribeReplicasResponse,
    DescribeRequest, DescribeResponse, ElectLeadersRequest, ElectLeadersResponse,
    FindOffsetRequest, FindOffsetResponse, InitProducerIdRequest, InitProducerIdResponse, Listener,
    PartitionInfo, ProduceRequest, ProduceResponse, ReadinessRequest, ReadinessResponse, TopicInfo,
    TopicResults,
};
use futures::{StreamExt as _, stream};
use tokio_stream::Stream;
use tonic::{Request, Response, Status, Streaming};

use super::Node;
use crate::partition::{Partition, Pending, Read};
use crate::replica::{Acks, ReadRequest, Reader};
use crate::waiter::{Interest, ReadWaiter};

/// How many produces of one exchange may wait for their commit at once.
const PRODUCES_IN_FLIGHT: usize = 64;
/// Bytes of one answer to a consumer, unless a single batch is larger.
const CONSUME_MAX_BYTES: usize = 4 << 20;
/// A consumer that finds nothing for this long is told so: it learns of a moved high watermark, and that the broker lives.
const CONSUME_SILENCE: Duration = Duration::from_secs(5);
/// The largest timeout a producer may ask for.
const PRODUCE_TIMEOUT_LIMIT_MS: u32 = 600_000;

/// Serves clients over one node.
#[derive(Clone)]
pub struct LogService {
    node: Arc<Node>,
    /// The name of the listener its clients came through; `None`: they came to the address for other nodes.
    listener: Option<Arc<str>>,
}

impl LogService {
    /// A service over this node, for clients of the listener of this name or of the address for other nodes.
    pub fn new(node: Arc<Node>, listener: Option<Arc<str>>) -> Self {
        Self { node, listener }
    }

    fn begin(&self, request: ProduceRequest) -> Result<Pending, ErrorCode> {
        let acks = match request.acks {
            0 => Acks::None,
            1 => Acks::Leader,
            -1 => Acks::All,
            _ => return Err(ErrorCode::InvalidRequiredAcks),
        };
        let partition = self
            .node
            .partition_by_name(&request.topic, request.partition)?;
        let timeout =
            Duration::from_millis(request.timeout_ms.min(PRODUCE_TIMEOUT_LIMIT_MS).into());
        Ok(partition.begin_produce(request.batch, acks, timeout))
    }
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Log for LogService {
    type ProduceStream = Answers<ProduceResponse>;
    type ConsumeStream = Answers<ConsumeResponse>;

    async fn describe(
        &self,
        request: Request<DescribeRequest>,
    ) -> Result<Response<DescribeResponse>, Status> {
        let asked = request.into_inner().topics;
        let image = self.node.image();
        let wanted = image
            .topics
            .values()
            .filter(|t| asked.is_empty() || asked.iter().any(|a| **a == *t.name));
        let topics = wanted.map(|topic| {
            let overrides = image.configs.get(&Some(topic.name.clone()));
            topic_info(topic, overrides)
        });
        Ok(Response::new(DescribeResponse {
            cluster_id: image.cluster_id.clone(),
            metadata_offset: self.node.metadata_offset().unwrap_or(-1),
            brokers: image
                .brokers
                .values()
                .map(|b| broker_info(b, self.listener.as_deref()))
                .collect(),
            topics: topics.collect(),
        }))
    }

    async fn produce(
        &self,
        request: Request<Streaming<ProduceRequest>>,
    ) -> Result<Response<Self::ProduceStream>, Status> {
        let service = self.clone();
        // `map` runs in the order of the requests, so batches are appended in that order; only the waiting overlaps.
        let answers = request
            .into_inner()
            .map(move |request| {
                let begun = request.map(|r| service.begin(r));
                async move {
                    Ok(match begun? {
                        Err(error) => produced(Err(error)),
                        Ok(pending) => produced(pending.outcome().await),
                    })
                }
            })
            .buffered(PRODUCES_IN_FLIGHT);
        Ok(Response::new(Box::pin(answers)))
    }

    async fn consume(
        &self,
        request: Request<ConsumeRequest>,
    ) -> Result<Response<Self::ConsumeStream>, Status> {
        let asked = request.into_inner();
        let partition = self.node.partition_by_name(&asked.topic, asked.partition);
        let start = partition.and_then(|partition| {
            let epoch = asked.current_leader_epoch.and_then(LeaderEpoch::from_wire);
            let offset = match asked.offset {
                -2 => partition.earliest(epoch)?.0,
                -1 => partition.latest(epoch)?.0,
                offset => Offset(offset),
            };
            Ok(Consumer {
                partition,
                epoch,
                offset,
                max_bytes: (asked.max_bytes as usize).clamp(1, CONSUME_MAX_BYTES),
                told_any: false,
            })
        });
        let answers: Self::ConsumeStream = match start {
            Err(error) => Box::pin(stream::iter([Ok(refused(error))])),
            Ok(consumer) => Box::pin(stream::unfold(Some(consumer), |consumer| async move {
                let mut consumer = consumer?;
                Some(match consumer.next().await {
                    Ok(answer) => (Ok(answer), Some(consumer)),
                    Err(error) => (Ok(refused(error)), None),
                })
            })),
        };
        Ok(Response::new(answers))
    }

    async fn find_offset(
        &self,
        request: Request<FindOffsetRequest>,
    ) -> Result<Response<FindOffsetResponse>, Status> {
        let asked = request.into_inner();
        let partition = self.node.partition_by_name(&asked.topic, asked.partition);
        let found = partition.and_then(|partition| match asked.timestamp_ms {
            -2 => partition
                .earliest(None)
                .map(|(offset, epoch)| Some((offset, -1, epoch))),
            -1 => partition
                .latest(None)
                .map(|(offset, epoch)| Some((offset, -1, Some(epoch)))),
            timestamp => partition.find_timestamp(None, timestamp),
        });
        let error = i32::from(ErrorCode::to_wire(&found));
        let message = found
            .as_ref()
            .err()
            .map(ToString::to_string)
            .unwrap_or_default();
        let (offset, timestamp_ms, epoch) = found
            .ok()
            .flatten()
            .map_or((-1, -1, None), |(o, t, e)| (o.0, t, e));
        Ok(Response::new(FindOffsetResponse {
            error,
            message,
            offset,
            timestamp_ms,
            leader_epoch: LeaderEpoch::to_wire(epoch),
        }))
    }

    async fn describe_replicas(
        &self,
        _: Request<DescribeReplicasRequest>,
    ) -> Result<Response<DescribeReplicasResponse>, Status> {
        Ok(Response::new(DescribeReplicasResponse {
            broker_id: self.node.me().0,
            replicas: self
                .node
                .partitions()
                .iter()
                .map(|p| p.describe())
                .collect(),
            log_dirs: self.node.logs.paths(),
        }))
    }

    async fn readiness(
        &self,
        _: Request<ReadinessRequest>,
    ) -> Result<Response<ReadinessResponse>, Status> {
        Ok(Response::new(ReadinessResponse {
            waiting_for: self.node.waiting_for(),
            controller_silent_ms: self
                .node
                .misses_controller()
                .map_or(0, |silent| silent.as_millis() as u64),
        }))
    }

    async fn create_topics(
        &self,
        request: Request<CreateTopicsRequest>,
    ) -> Result<Response<TopicResults>, Status> {
        self.node
            .controller
            .create_topics(request.into_inner())
            .await
            .map(Response::new)
    }

    async fn delete_topics(
        &self,
        request: Request<DeleteTopicsRequest>,
    ) -> Result<Response<TopicResults>, Status> {
        self.node
            .controller
            .delete_topics(request.into_inner())
            .await
            .map(Response::new)
    }

    async fn create_partitions(
        &self,
        request: Request<CreatePartitionsRequest>,
    ) -> Result<Response<TopicResults>, Status> {
        self.node
            .controller
            .create_partitions(request.into_inner())
            .await
            .map(Response::new)
    }

    async fn alter_configs(
        &self,
        request: Request<AlterConfigsRequest>,
    ) -> Result<Response<TopicResults>, Status> {
        self.node
            .controller
            .alter_configs(request.into_inner())
            .await
            .map(Response::new)
    }

    async fn elect_leaders(
        &self,
        request: Request<ElectLeadersRequest>,
    ) -> Result<Response<ElectLeadersResponse>, Status> {
        self.node
            .controller
            .elect_leaders(request.into_inner())
            .await
            .map(Response::new)
    }

    async fn init_producer_id(
        &self,
        _: Request<InitProducerIdRequest>,
    ) -> Result<Response<InitProducerIdResponse>, Status> {
        let id = self.node.producer_id().await;
        Ok(Response::new(InitProducerIdResponse {
            error: i32::from(ErrorCode::to_wire(&id)),
            producer_id: id.map_or(-1, |id| id.0),
            producer_epoch: 0,
        }))
    }
}

/// One consumer's place in a partition.
struct Consumer {
    partition: Arc<Partition>,
    epoch: Option<LeaderEpoch>,
    offset: Offset,
    max_bytes: usize,
    told_any: bool,
}

impl Consumer {
    /// The next batches; without records when nothing came for a while, and the first time, to tell the bounds.
    async fn next(&mut self) -> Result<ConsumeResponse, ErrorCode> {
        let waiter = ReadWaiter::new();
        let silence = tokio::time::sleep(CONSUME_SILENCE);
        tokio::pin!(silence);
        let mut again = false;
        loop {
            self.partition.watch(&waiter, 0, Interest::HighWatermark);
            let request = ReadRequest {
                reader: Reader::Consumer,
                current_leader_epoch: self.epoch,
                offset: self.offset,
                last_fetched_epoch: None,
                again,
            };
            let Read::Data { grant, bytes } = self.partition.read(request, self.max_bytes, true)?
            else {
                return Err(ErrorCode::OffsetOutOfRange); // only asked-for divergence tests diverge
            };
            let answer = |records: Bytes| ConsumeResponse {
                error: 0,
                message: String::new(),
                high_watermark: grant.high_watermark.0,
                log_start: grant.log_start.0,
                records,
            };
            if !bytes.is_empty() {
                let last = epoka_proto::batch::batches(&bytes)
                    .filter_map(Result::ok)
                    .last();
                self.offset = last.map_or(self.offset, |(header, _)| header.next_offset());
                self.told_any = true;
                return Ok(answer(bytes));
            }
            if !std::mem::replace(&mut self.told_any, true) {
                return Ok(answer(Bytes::new()));
            }
            again = true;
            tokio::select! {
                _ = waiter.changed() => {}
                () = &mut silence => return Ok(answer(Bytes::new())),
            }
        }
    }
}

fn produced(outcome: Result<crate::replica::Produced, ErrorCode>) -> ProduceResponse {
    let message = outcome.err().map(|e| e.to_string()).unwrap_or_default();
    ProduceResponse {
        error: i32::from(ErrorCode::to_wire(&outcome)),
        message,
        base_offset: outcome.map_or(-1, |p| p.base_offset.0),
        log_append_time_ms: -1,
        log_start: outcome.map_or(-1, |p| p.log_start.0),
    }
}

fn refused(error: ErrorCode) -> ConsumeResponse {
    ConsumeResponse {
        error: i32::from(error.code()),
        message: error.to_string(),
        high_watermark: -1,
        log_start: -1,
        records: Bytes::new(),
    }
}

/// A broker as the clients of one listener can reach it: there it serves both protocols. Without a listener, as nodes can.
fn broker_info(broker: &BrokerRegistration, listener: Option<&str>) -> BrokerInfo {
    let visible = |name: &str| listener.is_none_or(|own| own == name);
    let listeners: Vec<_> = broker
        .listeners
        .iter()
        .filter(|l| visible(&l.name))
        .map(|l| Listener {
            name: l.name.clone(),
            host: l.host.clone(),
            port: l.port.into(),
        })
        .collect();
    let grpc_address = match (listener, listeners.first()) {
        (Some(_), Some(l)) if l.host.contains(':') => format!("[{}]:{}", l.host, l.port),
        (Some(_), Some(l)) => format!("{}:{}", l.host, l.port),
        _ => broker.grpc_address.clone(),
    };
    BrokerInfo {
        id: broker.id.0,
        epoch: broker.epoch.0,
        listeners,
        grpc_address,
        fenced: broker.fenced,
        shutting_down: broker.shutting_down,
        rack: broker.rack.clone().unwrap_or_default(),
    }
}

fn topic_info(topic: &Topic, overrides: Option<&BTreeMap<String, String>>) -> TopicInfo {
    TopicInfo {
        name: topic.name.to_string(),
        topic_id: topic.id.to_bytes(),
        partitions: topic
            .partitions
            .iter()
            .map(|(&number, a)| partition_info(number, a))
            .collect(),
        configs: overrides
            .into_iter()
            .flatten()
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect(),
    }
}

fn partition_info(number: i32, assignment: &Assignment) -> PartitionInfo {
    let ids = |brokers: &[epoka_proto::ids::BrokerId]| brokers.iter().map(|b| b.0).collect();
    PartitionInfo {
        partition: number,
        leader: assignment.leader.map(|l| l.0),
        leader_epoch: assignment.leader_epoch.0,
        partition_epoch: assignment.partition_epoch.0,
        replicas: ids(&assignment.replicas),
        isr: ids(&assignment.isr),
        elr: ids(&assignment.elr),
        min_isr: assignment.min_isr as i32,
    }
}
