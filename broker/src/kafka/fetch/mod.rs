//! Fetch, for consumers: reads of several partitions in one answer, and the wait until there is enough to answer. Replicas
//! fetch over gRPC, so a request that claims to be one is refused. Fetch sessions are never granted: a session id of 0 tells
//! the client to name all partitions in every request.

mod encode;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use epoka_proto::epochs::EpochEnd;
use epoka_proto::error::ErrorCode;
use epoka_proto::ids::{LeaderEpoch, Offset};
use kafka_protocol::messages::fetch_request::FetchPartition;
use kafka_protocol::messages::{FetchRequest, TopicName};
use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

use super::lookup::{self, LeaderHint, TopicRef, leader_hint};
use super::request::Call;
use super::response::Response;
use crate::node::Node;
use crate::partition::{Partition, Read};
use crate::replica::{ReadGrant, ReadRequest, Reader};
use crate::waiter::{Interest, ReadWaiter};

/// The most bytes of records in one answer, whatever is asked (Kafka's `fetch.max.bytes`).
const MAX_BYTES: usize = 55 << 20;

/// Nobody is kept waiting for longer than this.
const MAX_WAIT: Duration = Duration::from_secs(600);

/// Session epochs that belong to no session: "give me a new one" and "I want none".
const WITHOUT_SESSION: [i32; 2] = [0, -1];

/// What one partition has to say.
#[derive(Debug)]
enum Said {
    /// Bounds and whole batches, perhaps none.
    Data { grant: ReadGrant, records: Bytes },
    /// The consumer has read what is not in the log any more: where the two part.
    Diverging(EpochEnd),
    /// Refused, perhaps with the place to go to instead.
    Refused(ErrorCode, Option<LeaderHint>),
}

impl Said {
    fn bytes(&self) -> usize {
        match self {
            Self::Data { records, .. } => records.len(),
            _ => 0,
        }
    }
}

/// A topic of the request, and how many of the partitions are its.
struct TopicOf {
    name: TopicName,
    id: Uuid,
    partitions: usize,
}

impl TopicOf {
    fn by(&self, version: i16) -> TopicRef<'_> {
        if version >= encode::TOPIC_IDS_SINCE {
            TopicRef::Id(self.id)
        } else {
            TopicRef::Name(&self.name)
        }
    }
}

/// A partition of the request, and what it last said.
struct Asked {
    number: i32,
    topic: usize,
    request: ReadRequest,
    max_bytes: usize,
    partition: Option<Arc<Partition>>,
    said: Said,
}

/// A request under way.
struct Fetch {
    version: i16,
    topics: Vec<TopicOf>,
    asked: Vec<Asked>,
    /// Bytes of records that may be answered, and those there are.
    budget: usize,
    bytes: usize,
}

/// Answers once there are enough bytes to read, there is something else to say, or the time is up (L-42).
pub(super) async fn answer(
    node: &Node,
    listener: &str,
    call: &Call,
    request: FetchRequest,
) -> Response {
    let start = Instant::now();
    let max_wait = Duration::from_millis(request.max_wait_ms.max(0).unsigned_abs().into());
    let min_bytes = usize::try_from(request.min_bytes).unwrap_or(0);
    let read_committed = request.isolation_level == 1;
    let refusal = refusal(&request);
    let mut fetch = Fetch::new(node, call.version, request, refusal);
    if refusal.is_none() {
        (0..fetch.asked.len()).for_each(|at| fetch.read(node, at, false));
        if !max_wait.is_zero() && !fetch.is_worth_answering(min_bytes) {
            fetch
                .wait(node, min_bytes, start + max_wait.min(MAX_WAIT))
                .await;
        }
    }
    let image = node.image();
    encode::answer(call, listener, &image, refusal, &mut fetch, read_committed)
}

/// Why the request as a whole is refused, if it is.
fn refusal(request: &FetchRequest) -> Option<ErrorCode> {
    if request.replica_id.0 >= 0 || request.replica_state.replica_id.0 >= 0 {
        return Some(ErrorCode::InvalidRequest);
    }
    // A client that believes in a session was answered by another process: it starts over with a full request.
    let in_session = request.session_id != 0 && !WITHOUT_SESSION.contains(&request.session_epoch);
    in_session.then_some(ErrorCode::FetchSessionIdNotFound)
}

impl Fetch {
    /// Resolves what is asked, or refuses all of it.
    fn new(node: &Node, version: i16, request: FetchRequest, refusal: Option<ErrorCode>) -> Self {
        let image = node.image();
        let mut topics = Vec::with_capacity(request.topics.len());
        let mut asked = Vec::new();
        for topic in request.topics {
            let known = TopicOf {
                name: topic.topic,
                id: topic.topic_id,
                partitions: topic.partitions.len(),
            };
            let found = refusal.map_or_else(|| known.by(version).find(&image), Err);
            asked.extend(topic.partitions.iter().map(|wanted| {
                let partition =
                    found.and_then(|topic| lookup::partition(node, topic, wanted.partition));
                let hint = |error| leader_hint(&image, known.by(version), wanted.partition, error);
                Asked::new(wanted, topics.len(), partition.map_err(|e| (e, hint(e))))
            }));
            topics.push(known);
        }
        Self {
            version,
            topics,
            asked,
            budget: usize::try_from(request.max_bytes)
                .unwrap_or(0)
                .min(MAX_BYTES),
            bytes: 0,
        }
    }

    /// Enough bytes, a refusal, a divergence, or nothing asked at all.
    fn is_worth_answering(&self, min_bytes: usize) -> bool {
        let only_data = |asked: &Asked| matches!(asked.said, Said::Data { .. });
        self.bytes >= min_bytes || self.asked.is_empty() || !self.asked.iter().all(only_data)
    }

    /// Reads one partition, anew if it was read before.
    fn read(&mut self, node: &Node, at: usize, again: bool) {
        let asked = &mut self.asked[at];
        let Some(partition) = &asked.partition else {
            return; // refused when it was looked up
        };
        let others = self.bytes - asked.said.bytes();
        let max_bytes = asked.max_bytes.min(self.budget.saturating_sub(others));
        // The first batch of the answer comes whole, however large, or its reader would never get past it (L-53).
        let at_least_one = others == 0;
        let request = ReadRequest {
            again,
            ..asked.request.clone()
        };
        asked.said = match partition.read(request, max_bytes, at_least_one) {
            Ok(Read::Data { grant, bytes }) => Said::Data {
                grant,
                records: bytes,
            },
            Ok(Read::Diverging(end)) => Said::Diverging(end),
            Err(error) => {
                let topic = self.topics[asked.topic].by(self.version);
                let hint = leader_hint(&node.image(), topic, asked.number, error);
                Said::Refused(error, hint)
            }
        };
        self.bytes = others + asked.said.bytes();
    }

    /// Waits for partitions to change, and reads those that did, until it is worth answering or the time is up.
    async fn wait(&mut self, node: &Node, min_bytes: usize, deadline: Instant) {
        let waiter = ReadWaiter::new();
        let mut changed: Vec<usize> = (0..self.asked.len()).collect();
        loop {
            // Register, then look again: what changes in between is not missed (L-43).
            for &at in &changed {
                if let Some(partition) = &self.asked[at].partition {
                    partition.watch(&waiter, at, Interest::HighWatermark);
                }
            }
            for at in changed {
                self.read(node, at, true);
            }
            if self.is_worth_answering(min_bytes) {
                return;
            }
            match timeout_at(deadline, waiter.changed()).await {
                Ok(tags) => changed = tags,
                Err(_) => return,
            }
        }
    }
}

impl Asked {
    fn new(
        wanted: &FetchPartition,
        topic: usize,
        found: Result<Arc<Partition>, (ErrorCode, Option<LeaderHint>)>,
    ) -> Self {
        let request = ReadRequest {
            reader: Reader::Consumer,
            current_leader_epoch: LeaderEpoch::from_wire(wanted.current_leader_epoch),
            offset: Offset(wanted.fetch_offset),
            last_fetched_epoch: LeaderEpoch::from_wire(wanted.last_fetched_epoch),
            again: false,
        };
        let (partition, said) = match found {
            // Overwritten by the first read.
            Ok(partition) => (
                Some(partition),
                Said::Refused(ErrorCode::UnknownServerError, None),
            ),
            Err((error, hint)) => (None, Said::Refused(error, hint)),
        };
        Self {
            number: wanted.partition,
            topic,
            request,
            max_bytes: usize::try_from(wanted.partition_max_bytes).unwrap_or(0),
            partition,
            said,
        }
    }
}
