//! The producer: records in, offsets out. Each partition has a lane of its own (`lane.rs`) with its own producer id, so one
//! partition's trouble never delays or renumbers another's. Here are the settings, the choice of a partition, and the
//! bound on the memory of records under way.

mod lane;
mod link;
mod partitioner;
mod window;

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use epoka_proto::compression::Compression;
use epoka_proto::ids::{Millis, Offset, TopicPartition};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::client::Client;
use crate::error::{Error, Result};
use partitioner::Partitioner;
use window::Queued;

/// Records a lane queues before `send` waits.
const LANE_QUEUE: usize = 4096;
/// What a record costs beside its key and value: framing and bookkeeping.
const RECORD_OVERHEAD: usize = 64;

/// When a record counts as written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Acks {
    /// Not at all: its offset is not known and its loss is not noticed.
    None,
    /// Once the leader has appended it; lost if the leader dies before a follower has fetched it.
    Leader,
    /// Once it is committed: every in-sync replica has it, and there are at least `min.insync.replicas` of them.
    #[default]
    All,
}

impl Acks {
    /// As Kafka writes it: 0, 1, -1.
    pub fn to_wire(self) -> i32 {
        match self {
            Self::None => 0,
            Self::Leader => 1,
            Self::All => -1,
        }
    }
}

/// How a producer behaves.
#[derive(Clone, Debug)]
pub struct ProducerConfig {
    /// When a record counts as written.
    pub acks: Acks,
    /// Number batches so that a retried one is never appended twice or out of order. Needs acks of at least the leader;
    /// ignored with [`Acks::None`].
    pub idempotent: bool,
    /// How long to wait for more records before a batch is sent. Batches also fill while earlier ones are under way.
    pub linger: Duration,
    /// A batch is sent when it holds this many bytes. A larger record travels in a batch of its own.
    pub batch_bytes: usize,
    /// Codec of the batches.
    pub compression: Compression,
    /// Batches under way for a partition. An idempotent producer may have 5: a broker remembers no more.
    pub in_flight: usize,
    /// A record that was not acknowledged this long after `send` fails.
    pub delivery_timeout: Duration,
    /// How long a broker may wait for the in-sync replicas.
    pub request_timeout: Duration,
    /// Bytes of records not yet acknowledged, over all partitions, before `send` waits.
    pub buffer_bytes: usize,
}

impl Default for ProducerConfig {
    fn default() -> Self {
        Self {
            acks: Acks::All,
            idempotent: true,
            linger: Duration::ZERO,
            batch_bytes: 256 << 10,
            compression: Compression::None,
            in_flight: 5,
            delivery_timeout: Duration::from_secs(120),
            request_timeout: Duration::from_secs(30),
            buffer_bytes: 32 << 20,
        }
    }
}

/// A record to be sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProducerRecord {
    /// The topic.
    pub topic: String,
    /// The partition; `None` lets the key decide, or spreads records without a key.
    pub partition: Option<i32>,
    /// Milliseconds since the Unix epoch; `None` is now.
    pub timestamp: Option<Millis>,
    /// The key.
    pub key: Option<Bytes>,
    /// The value; `None` is a tombstone in a compacted topic.
    pub value: Option<Bytes>,
    /// Headers in order.
    pub headers: Vec<(Bytes, Option<Bytes>)>,
}

impl ProducerRecord {
    /// A record with a value.
    pub fn new(topic: impl Into<String>, value: impl Into<Bytes>) -> Self {
        Self {
            topic: topic.into(),
            value: Some(value.into()),
            ..Self::default()
        }
    }

    /// The same record with a key.
    #[must_use]
    pub fn key(mut self, key: impl Into<Bytes>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// The same record for one certain partition.
    #[must_use]
    pub fn partition(mut self, partition: i32) -> Self {
        self.partition = Some(partition);
        self
    }

    fn size(&self) -> usize {
        let len = |field: &Option<Bytes>| field.as_ref().map_or(0, Bytes::len);
        let headers = self.headers.iter().map(|(k, v)| k.len() + len(v) + 8);
        RECORD_OVERHEAD + len(&self.key) + len(&self.value) + headers.sum::<usize>()
    }
}

/// Where a record ended up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// The partition.
    pub partition: TopicPartition,
    /// The offset; `None` with [`Acks::None`].
    pub offset: Option<Offset>,
}

/// Resolves when a record is acknowledged, or has failed for good. Dropping it does not recall the record.
#[derive(Debug)]
pub struct Delivery(oneshot::Receiver<Result<Delivered>>);

impl Future for Delivery {
    type Output = Result<Delivered>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // The sending half is dropped unanswered only when the runtime shuts down under the lane.
        Pin::new(&mut self.0)
            .poll(cx)
            .map(|outcome| outcome.unwrap_or(Err(Error::Closed)))
    }
}

/// Sends records. Records for one partition arrive in the order of the calls to [`Producer::send`].
pub struct Producer {
    client: Client,
    config: Arc<ProducerConfig>,
    lanes: Mutex<HashMap<TopicPartition, Lane>>,
    partitioner: Partitioner,
    /// One permit for each byte that may be under way.
    buffer: Arc<Semaphore>,
}

struct Lane {
    queue: mpsc::Sender<Queued>,
    task: JoinHandle<()>,
}

impl Producer {
    pub(crate) fn new(client: Client, mut config: ProducerConfig) -> Self {
        if config.acks == Acks::None {
            config.idempotent = false;
        }
        let most = if config.idempotent { 5 } else { usize::MAX };
        config.in_flight = config.in_flight.clamp(1, most);
        config.buffer_bytes = config
            .buffer_bytes
            .clamp(1, Semaphore::MAX_PERMITS.min(1 << 31));
        Self {
            client,
            lanes: Mutex::default(),
            partitioner: Partitioner::new(config.batch_bytes),
            buffer: Arc::new(Semaphore::new(config.buffer_bytes)),
            config: Arc::new(config),
        }
    }

    /// Queues a record. Waits while too many bytes are under way, and for the topic's metadata the first time. Await the
    /// returned [`Delivery`] to learn its offset; there is no need to before sending the next one.
    ///
    /// # Errors
    /// [`Error::UnknownTopic`], [`Error::UnknownPartition`], [`Error::Unreachable`]: the record was not queued.
    pub async fn send(&self, record: ProducerRecord) -> Result<Delivery> {
        let size = record.size();
        let permits = size.min(self.config.buffer_bytes);
        let permits = u32::try_from(permits).expect("bounded by the buffer's size");
        let memory = self.buffer.clone().acquire_many_owned(permits).await;
        let memory = memory.expect("the semaphore is never closed");
        let partition = self.choose_partition(&record, size).await?;
        let (answer, delivery) = oneshot::channel();
        let queued = Queued {
            timestamp: record.timestamp.unwrap_or_else(now_ms),
            key: record.key,
            value: record.value,
            headers: record.headers,
            size,
            since: Instant::now(),
            answer,
            _memory: memory,
        };
        let lane = self.lane(&partition);
        lane.send(queued).await.map_err(|_| Error::Closed)?;
        Ok(Delivery(delivery))
    }

    /// Waits until every record sent so far is acknowledged or has failed.
    pub async fn flush(&self) {
        let all = u32::try_from(self.config.buffer_bytes).expect("bounded in `new`");
        let _nothing_under_way = self.buffer.acquire_many(all).await;
    }

    /// Sends what is queued, waits for the answers and ends.
    pub async fn close(self) {
        let lanes = std::mem::take(&mut *self.lanes.lock().expect("nothing panics under it"));
        for lane in lanes.into_values() {
            drop(lane.queue);
            // A lane that panicked has dropped its deliveries, which reports the failure to whoever waits for them.
            let _ = lane.task.await;
        }
    }

    async fn choose_partition(
        &self,
        record: &ProducerRecord,
        size: usize,
    ) -> Result<TopicPartition> {
        let known = self.client.metadata();
        let metadata = if known.topics.contains_key(&record.topic) {
            known
        } else {
            self.client.refresh().await?
        };
        let count = metadata.topic(&record.topic)?.partitions.len();
        let number = match record.partition {
            Some(number) => number,
            None => self
                .partitioner
                .choose(&record.topic, record.key.as_deref(), count, size),
        };
        let name = TopicPartition::new(record.topic.as_str(), number);
        metadata.partition(&name)?;
        Ok(name)
    }

    fn lane(&self, partition: &TopicPartition) -> mpsc::Sender<Queued> {
        let mut lanes = self.lanes.lock().expect("nothing panics under it");
        if let Some(lane) = lanes.get(partition) {
            return lane.queue.clone();
        }
        let (queue, records) = mpsc::channel(LANE_QUEUE);
        let lane = lane::Lane::new(
            self.client.clone(),
            self.config.clone(),
            partition.clone(),
            records,
        );
        let task = tokio::spawn(lane.run());
        let lane = Lane {
            queue: queue.clone(),
            task,
        };
        lanes.insert(partition.clone(), lane);
        queue
    }
}

fn now_ms() -> Millis {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    since_epoch.map_or(0, |d| d.as_millis() as Millis)
}
