//! The leader's side of replication: answers fetches in order, parking one that finds nothing until something is appended,
//! a newer request arrives, or its time is up.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use epoka_proto::error::ErrorCode;
use epoka_proto::ids::{BrokerEpoch, BrokerId, LeaderEpoch, Offset, PartitionId};
use epoka_proto::v1::replica_server::Replica;
use epoka_proto::v1::{
    BoundsRequest, BoundsResponse, EpochEnd, FetchPartition, FetchRequest, FetchResponse,
    FetchedPartition, PingRequest, PingResponse,
};
use futures::StreamExt as _;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::{PARTITION_MAX_BYTES, RESPONSE_MAX_BYTES};
use crate::partition::{Partition, Read};
use crate::partitions::Partitions;
use crate::replica::{ReadRequest, Reader};
use crate::waiter::{Interest, ReadWaiter};

/// Serves followers.
pub struct ReplicaService {
    partitions: Arc<Partitions>,
}

impl ReplicaService {
    /// A service over this node's partitions.
    pub fn new(partitions: Arc<Partitions>) -> Self {
        Self { partitions }
    }
}

#[tonic::async_trait]
impl Replica for ReplicaService {
    type FetchStream = Pin<Box<dyn Stream<Item = Result<FetchResponse, Status>> + Send>>;

    async fn fetch(
        &self,
        request: Request<Streaming<FetchRequest>>,
    ) -> Result<Response<Self::FetchStream>, Status> {
        let requests = request.into_inner();
        let (answers, stream) = mpsc::channel(2);
        let follower = Follower {
            partitions: self.partitions.clone(),
            told: BTreeMap::new(),
        };
        tokio::spawn(follower.serve(requests, answers));
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn ping(&self, _: Request<PingRequest>) -> Result<Response<PingResponse>, Status> {
        Ok(Response::new(PingResponse {}))
    }

    async fn bounds(
        &self,
        request: Request<BoundsRequest>,
    ) -> Result<Response<BoundsResponse>, Status> {
        let asked = request.into_inner();
        let partition = self.partitions.find(&asked.topic_id, asked.partition);
        let bounds = partition.and_then(|p| p.bounds(LeaderEpoch::from_wire(asked.leader_epoch)));
        let error = i32::from(ErrorCode::to_wire(&bounds));
        let (log_start, log_end) = bounds.map_or((-1, -1), |(start, end)| (start.0, end.0));
        Ok(Response::new(BoundsResponse {
            error,
            log_start,
            log_end,
        }))
    }
}

/// One follower's exchange.
struct Follower {
    partitions: Arc<Partitions>,
    /// What was told already, so that an answer holds only partitions with something new.
    told: BTreeMap<PartitionId, Told>,
}

/// Bounds told, and in answer to what: a follower that asks something else has perhaps not taken them in.
#[derive(PartialEq, Eq)]
struct Told {
    leader_epoch: i32,
    fetch_offset: i64,
    high_watermark: i64,
    log_start: i64,
}

/// A request, each partition looked up once.
struct Fetch {
    broker: BrokerId,
    epoch: BrokerEpoch,
    max_bytes: usize,
    items: Vec<(FetchPartition, Result<Arc<Partition>, ErrorCode>)>,
}

impl Follower {
    async fn serve(
        mut self,
        mut requests: Streaming<FetchRequest>,
        answers: mpsc::Sender<Result<FetchResponse, Status>>,
    ) {
        let mut next = requests.next().await;
        while let Some(Ok(request)) = next {
            let deadline =
                Instant::now() + Duration::from_millis(u64::from(request.max_wait_ms.min(30_000)));
            let min_bytes = (request.min_bytes as usize).max(1);
            let fetch = self.look_up(request);
            let waiter = ReadWaiter::new();
            let mut answer = Answer::new(fetch.items.len());
            let mut due: Vec<usize> = (0..fetch.items.len()).collect();
            let (mut again, mut expired) = (false, false);
            let newer = loop {
                for &index in &due {
                    self.read(&fetch, index, again, &waiter, &mut answer);
                }
                again = true;
                if answer.bytes >= min_bytes || answer.urgent || expired {
                    break None;
                }
                tokio::select! {
                    changed = waiter.changed() => due = changed,
                    // One last look at every partition, for high watermarks that moved meanwhile.
                    () = sleep_until(deadline) => (due, expired) = ((0..fetch.items.len()).collect(), true),
                    newer = requests.next() => break Some(newer),
                }
                due.sort_unstable();
                due.dedup();
            };
            let response = self.finish(&fetch, answer);
            if answers.send(Ok(response)).await.is_err() {
                return;
            }
            next = match newer {
                Some(newer) => newer,
                None => requests.next().await,
            };
        }
    }

    fn look_up(&self, request: FetchRequest) -> Fetch {
        let find = |asked: &FetchPartition| self.partitions.find(&asked.topic_id, asked.partition);
        Fetch {
            broker: BrokerId(request.broker_id),
            epoch: BrokerEpoch(request.broker_epoch),
            max_bytes: (request.max_bytes as usize).min(RESPONSE_MAX_BYTES),
            items: request
                .partitions
                .into_iter()
                .map(|p| (p.clone(), find(&p)))
                .collect(),
        }
    }

    /// Reads one partition into the answer, after registering for its next change.
    fn read(
        &mut self,
        fetch: &Fetch,
        index: usize,
        again: bool,
        waiter: &Arc<ReadWaiter>,
        answer: &mut Answer,
    ) {
        let (asked, partition) = &fetch.items[index];
        let read = partition.as_ref().map_err(|e| *e).and_then(|partition| {
            partition.watch(waiter, index, Interest::LogEnd);
            let request = ReadRequest {
                reader: Reader::Follower {
                    broker: fetch.broker,
                    epoch: fetch.epoch,
                },
                current_leader_epoch: LeaderEpoch::from_wire(asked.leader_epoch),
                offset: Offset(asked.fetch_offset),
                last_fetched_epoch: asked.last_fetched_epoch.and_then(LeaderEpoch::from_wire),
                again,
            };
            let room = fetch.max_bytes.saturating_sub(answer.bytes);
            let max_bytes = (asked.max_bytes as usize)
                .min(PARTITION_MAX_BYTES)
                .min(room);
            partition.read(request, max_bytes, answer.bytes == 0)
        });
        let mut item = echo(asked);
        match read {
            Err(error) => {
                item.error = i32::from(error.code());
                answer.urgent = true;
            }
            Ok(Read::Diverging(end)) => {
                item.diverging = Some(EpochEnd {
                    epoch: end.epoch.0,
                    end_offset: end.end.0,
                });
                answer.urgent = true;
            }
            Ok(Read::Data { grant, bytes }) => {
                item.high_watermark = grant.high_watermark.0;
                item.log_start = grant.log_start.0;
                answer.bytes += bytes.len();
                item.records = bytes;
            }
        }
        answer.items[index] = Some(item);
    }

    /// Keeps the items that have something to say: records, an error, a divergence, or bounds not yet told.
    fn finish(&mut self, fetch: &Fetch, answer: Answer) -> FetchResponse {
        let mut partitions = Vec::new();
        for (item, (_, partition)) in answer.items.into_iter().zip(&fetch.items) {
            let Some(item) = item else { continue };
            let Ok(partition) = partition else {
                partitions.push(item);
                continue;
            };
            let refused = item.error != 0 || item.diverging.is_some();
            let news = if refused {
                self.told.remove(&partition.id);
                true
            } else {
                let told = Told {
                    leader_epoch: item.leader_epoch,
                    fetch_offset: item.fetch_offset,
                    high_watermark: item.high_watermark,
                    log_start: item.log_start,
                };
                let before = self.told.get(&partition.id);
                let news = before != Some(&told);
                self.told.insert(partition.id, told);
                news
            };
            if news || !item.records.is_empty() {
                partitions.push(item);
            }
        }
        FetchResponse { partitions }
    }
}

/// An answer being put together: an item for each partition asked for.
struct Answer {
    items: Vec<Option<FetchedPartition>>,
    bytes: usize,
    /// Holds an error or a divergence: not to be kept waiting.
    urgent: bool,
}

impl Answer {
    fn new(partitions: usize) -> Self {
        Self {
            items: vec![None; partitions],
            bytes: 0,
            urgent: false,
        }
    }
}

fn echo(asked: &FetchPartition) -> FetchedPartition {
    FetchedPartition {
        topic_id: asked.topic_id.clone(),
        partition: asked.partition,
        leader_epoch: asked.leader_epoch,
        fetch_offset: asked.fetch_offset,
        last_fetched_epoch: asked.last_fetched_epoch,
        error: 0,
        high_watermark: -1,
        log_start: -1,
        diverging: None,
        records: Bytes::new(),
    }
}
