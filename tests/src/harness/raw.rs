//! Batches sent to one chosen node, whoever leads: what a test needs to write to a leader that has been replaced, or to send
//! one batch twice. Goes past every client's own judgement.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use epoka_client::Connections;
use epoka_proto::batch::BatchBuilder;
use epoka_proto::compression::Compression;
use epoka_proto::error::ErrorCode;
use epoka_proto::ids::{Millis, ProducerEpoch, ProducerId};
use epoka_proto::v1::{InitProducerIdRequest, ProduceRequest, ProduceResponse};
use futures::stream;

use super::cluster::{Cluster, PATIENCE};
use super::network::Node;
use super::wait::poll;

/// A batch of these values, as an idempotent producer sends it if one is named, with the sequence of its first record.
/// Records carry the present time: a producer is forgotten a day after the time its last records carry.
///
/// # Panics
/// When there is no value.
pub fn batch(producer: Option<(ProducerId, i32)>, values: &[&str]) -> Bytes {
    let mut batch = BatchBuilder::new(Compression::None);
    if let Some((id, sequence)) = producer {
        batch = batch.producer(id, ProducerEpoch(0), sequence);
    }
    for value in values {
        batch.append(now(), None, Some(value.as_bytes()), &[]);
    }
    batch.finish()
}

/// Milliseconds since 1970.
pub fn now() -> Millis {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970");
    i64::try_from(now.as_millis()).expect("before the year 292 million")
}

impl Cluster {
    /// A new producer id.
    ///
    /// # Panics
    /// When none is given.
    pub async fn producer_id(&self, node: Node) -> ProducerId {
        let mut log = Connections::default()
            .log(&self.grpc_address(node))
            .expect("an address");
        let answer = log
            .init_producer_id(InitProducerIdRequest {})
            .await
            .expect("an answer")
            .into_inner();
        assert_eq!(answer.error, 0, "{answer:?}");
        ProducerId(answer.producer_id)
    }

    /// Sends one batch to a node that may not lead; its answer, whatever it is. `acks`: 1 or -1 for all.
    ///
    /// # Errors
    /// The node gives no answer.
    pub async fn try_produce(
        &self,
        node: Node,
        partition: (&str, i32),
        acks: i32,
        batch: Bytes,
    ) -> Result<ProduceResponse, String> {
        let brief = Duration::from_secs(2);
        self.send(node, partition, acks, batch, brief).await
    }

    /// `timeout`: how long the node may wait for the commit.
    async fn send(
        &self,
        node: Node,
        (topic, partition): (&str, i32),
        acks: i32,
        batch: Bytes,
        timeout: Duration,
    ) -> Result<ProduceResponse, String> {
        let request = ProduceRequest {
            topic: topic.into(),
            partition,
            acks,
            timeout_ms: u32::try_from(timeout.as_millis()).expect("seconds"),
            batch,
        };
        let mut log = Connections::default()
            .log(&self.grpc_address(node))
            .expect("an address");
        let exchange = async {
            let mut answers = log.produce(stream::iter([request])).await?.into_inner();
            answers.message().await
        };
        match tokio::time::timeout(timeout + Duration::from_secs(8), exchange).await {
            Ok(Ok(Some(answer))) => Ok(answer),
            other => Err(format!("{other:?}")),
        }
    }

    /// Has one batch appended by a node that leads, or is about to.
    ///
    /// # Panics
    /// When the answer stays retriable, or none comes.
    pub async fn produce(
        &self,
        node: Node,
        partition: (&str, i32),
        acks: i32,
        batch: Bytes,
    ) -> ProduceResponse {
        let passing = [ErrorCode::NotLeaderOrFollower, ErrorCode::NotEnoughReplicas];
        let passing = passing.map(|code| i32::from(code.code()));
        let answer = poll(PATIENCE, async || {
            let patient = Duration::from_secs(10);
            match self
                .send(node, partition, acks, batch.clone(), patient)
                .await?
            {
                answer if passing.contains(&answer.error) => Err(format!("{answer:?}")),
                answer => Ok(answer),
            }
        });
        answer
            .await
            .unwrap_or_else(|seen| panic!("{node} did not take a batch: {seen}"))
    }
}
