//! Brokers that answer produce requests as a test tells them to. They keep one partition, orders-0, and write down what
//! they were sent.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use epoka_proto::batch::{BatchHeader, records};
use epoka_proto::destination;
use epoka_proto::error::ErrorCode;
use epoka_proto::v1::log_server::{Log, LogServer};
use epoka_proto::v1::*;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::InterceptorLayer;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};

/// How the next produce request is answered; without one, it is accepted.
#[derive(Clone, Copy, Debug)]
pub enum Reply {
    /// Appended.
    Accept,
    /// Not appended, with this error.
    Refuse(ErrorCode),
    /// Appended, but the answer is lost with the exchange.
    HangUp,
    /// No answer at all.
    Silence,
}

/// A produce request as a broker got it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    pub broker: i32,
    pub producer_id: i64,
    pub base_sequence: i32,
    pub values: Vec<String>,
}

/// The brokers of a test.
pub struct Cluster {
    addresses: Vec<String>,
    state: Arc<Mutex<State>>,
    received: watch::Sender<usize>,
}

#[derive(Default)]
struct State {
    cluster_id: String,
    addresses: Vec<String>,
    leader: i32,
    /// Counts the changes, as the metadata's offset.
    changes: i64,
    script: VecDeque<Reply>,
    forever: Option<ErrorCode>,
    producer_ids: i64,
    log_end: i64,
    sent: Vec<Sent>,
}

impl Cluster {
    /// Starts this many brokers; broker 1 leads.
    pub async fn start(brokers: i32) -> Self {
        let state = Arc::new(Mutex::new(State {
            cluster_id: "fake".to_owned(),
            leader: 1,
            ..State::default()
        }));
        let received = watch::Sender::new(0);
        let mut addresses = Vec::new();
        for id in 1..=brokers {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            addresses.push(listener.local_addr().expect("bound").to_string());
            let broker = FakeBroker {
                id,
                state: state.clone(),
                received: received.clone(),
            };
            let cluster = state.clone();
            let check = destination::checked(
                destination::broker(epoka_proto::ids::BrokerId(id)),
                move || Some(cluster.lock().expect("not poisoned").cluster_id.clone()),
            );
            let server = Server::builder()
                .layer(InterceptorLayer::new(check))
                .add_service(LogServer::new(broker));
            let connections = TcpIncoming::from(listener).with_nodelay(Some(true));
            tokio::spawn(server.serve_with_incoming(connections));
        }
        state
            .lock()
            .expect("not poisoned")
            .addresses
            .clone_from(&addresses);
        Self {
            addresses,
            state,
            received,
        }
    }

    pub fn addresses(&self) -> Vec<String> {
        self.addresses.clone()
    }

    pub fn script(&self, replies: impl IntoIterator<Item = Reply>) {
        self.state
            .lock()
            .expect("not poisoned")
            .script
            .extend(replies);
    }

    pub fn script_forever(&self, error: ErrorCode) {
        self.state.lock().expect("not poisoned").forever = Some(error);
    }

    /// Makes it another cluster, at the same addresses.
    pub fn become_another(&self) {
        let mut state = self.state.lock().expect("not poisoned");
        state.cluster_id = "another".to_owned();
        state.changes += 1;
    }

    /// Makes another broker the leader.
    pub fn lead(&self, broker: i32) {
        let mut state = self.state.lock().expect("not poisoned");
        state.leader = broker;
        state.changes += 1;
    }

    pub fn sent(&self) -> Vec<Sent> {
        self.state.lock().expect("not poisoned").sent.clone()
    }

    /// Waits until this many produce requests have arrived.
    pub async fn received(&self, requests: usize) {
        let mut received = self.received.subscribe();
        received
            .wait_for(|n| *n >= requests)
            .await
            .expect("held by self");
    }
}

struct FakeBroker {
    id: i32,
    state: Arc<Mutex<State>>,
    received: watch::Sender<usize>,
}

impl FakeBroker {
    /// `None`: the exchange ends without an answer. `Some(None)`: it goes on without one.
    fn answer(&self, request: &ProduceRequest) -> Option<Option<ProduceResponse>> {
        let header = BatchHeader::parse(&request.batch).expect("a batch");
        let values = records(&request.batch).expect("a batch").map(|record| {
            let value = record.expect("a record").value.expect("a value");
            String::from_utf8(value.to_vec()).expect("text")
        });
        let mut state = self.state.lock().expect("not poisoned");
        let sent = Sent {
            broker: self.id,
            producer_id: header.producer_id.map_or(-1, |id| id.0),
            base_sequence: header.base_sequence,
            values: values.collect(),
        };
        let base_offset = state.log_end;
        state.sent.push(sent);
        let reply = state.script.pop_front();
        let refuse = |code: ErrorCode| ProduceResponse {
            error: code.code().into(),
            base_offset: -1,
            ..ProduceResponse::default()
        };
        match (reply, state.forever) {
            (Some(Reply::HangUp), _) => None,
            (Some(Reply::Silence), _) => Some(None),
            (Some(Reply::Refuse(code)), _) | (None, Some(code)) => Some(Some(refuse(code))),
            (Some(Reply::Accept), _) | (None, None) => {
                state.log_end += i64::from(header.records_count);
                Some(Some(ProduceResponse {
                    base_offset,
                    ..ProduceResponse::default()
                }))
            }
        }
    }
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Log for FakeBroker {
    type ProduceStream = Answers<ProduceResponse>;
    type ConsumeStream = Answers<ConsumeResponse>;

    async fn describe(
        &self,
        _: Request<DescribeRequest>,
    ) -> Result<Response<DescribeResponse>, Status> {
        let state = self.state.lock().expect("not poisoned");
        let brokers = (1..).zip(&state.addresses).map(|(id, address)| BrokerInfo {
            id,
            grpc_address: address.clone(),
            ..BrokerInfo::default()
        });
        let partition = PartitionInfo {
            leader: Some(state.leader),
            min_isr: 1,
            ..PartitionInfo::default()
        };
        let topic = TopicInfo {
            name: "orders".to_owned(),
            topic_id: epoka_proto::ids::TopicId(uuid::Uuid::from_u128(7)).to_bytes(),
            partitions: vec![partition],
            ..TopicInfo::default()
        };
        Ok(Response::new(DescribeResponse {
            cluster_id: state.cluster_id.clone(),
            metadata_offset: state.changes,
            brokers: brokers.collect(),
            topics: vec![topic],
        }))
    }

    async fn produce(
        &self,
        request: Request<Streaming<ProduceRequest>>,
    ) -> Result<Response<Self::ProduceStream>, Status> {
        let mut requests = request.into_inner();
        let (answers, stream) = mpsc::channel(16);
        let broker = FakeBroker {
            id: self.id,
            state: self.state.clone(),
            received: self.received.clone(),
        };
        tokio::spawn(async move {
            while let Ok(Some(request)) = requests.message().await {
                let answer = broker.answer(&request);
                broker.received.send_modify(|n| *n += 1);
                match answer {
                    Some(Some(answer)) => drop(answers.send(Ok(answer)).await),
                    Some(None) => {}
                    None => return,
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn init_producer_id(
        &self,
        _: Request<InitProducerIdRequest>,
    ) -> Result<Response<InitProducerIdResponse>, Status> {
        let mut state = self.state.lock().expect("not poisoned");
        state.producer_ids += 1;
        Ok(Response::new(InitProducerIdResponse {
            producer_id: state.producer_ids,
            ..InitProducerIdResponse::default()
        }))
    }

    async fn consume(
        &self,
        _: Request<ConsumeRequest>,
    ) -> Result<Response<Self::ConsumeStream>, Status> {
        Err(Status::unimplemented("consume"))
    }

    async fn find_offset(
        &self,
        _: Request<FindOffsetRequest>,
    ) -> Result<Response<FindOffsetResponse>, Status> {
        Err(Status::unimplemented("find_offset"))
    }

    async fn describe_replicas(
        &self,
        _: Request<DescribeReplicasRequest>,
    ) -> Result<Response<DescribeReplicasResponse>, Status> {
        Err(Status::unimplemented("describe_replicas"))
    }

    async fn readiness(
        &self,
        _: Request<ReadinessRequest>,
    ) -> Result<Response<ReadinessResponse>, Status> {
        Err(Status::unimplemented("readiness"))
    }

    async fn create_topics(
        &self,
        _: Request<CreateTopicsRequest>,
    ) -> Result<Response<TopicResults>, Status> {
        Err(Status::unimplemented("create_topics"))
    }

    async fn delete_topics(
        &self,
        _: Request<DeleteTopicsRequest>,
    ) -> Result<Response<TopicResults>, Status> {
        Err(Status::unimplemented("delete_topics"))
    }

    async fn create_partitions(
        &self,
        _: Request<CreatePartitionsRequest>,
    ) -> Result<Response<TopicResults>, Status> {
        Err(Status::unimplemented("create_partitions"))
    }

    async fn alter_configs(
        &self,
        _: Request<AlterConfigsRequest>,
    ) -> Result<Response<TopicResults>, Status> {
        Err(Status::unimplemented("alter_configs"))
    }

    async fn elect_leaders(
        &self,
        _: Request<ElectLeadersRequest>,
    ) -> Result<Response<ElectLeadersResponse>, Status> {
        Err(Status::unimplemented("elect_leaders"))
    }
}
