//! Reads one partition in order, from an offset or a time on, and finds the leader again when it moves. Positions are the
//! caller's business: nothing is stored anywhere.

use std::time::Duration;

use epoka_proto::batch::{Record, batches, crc_is_valid, records};
use epoka_proto::ids::{LeaderEpoch, Millis, Offset, TopicPartition};
use epoka_proto::v1::{ConsumeRequest, ConsumeResponse, FindOffsetRequest};
use tokio::time::{Instant, sleep};
use tonic::Streaming;

use crate::client::Client;
use crate::error::{Error, Result, code_of, reason, status_reason};

/// Bytes asked for at a time. A larger first batch comes whole.
const FETCH_BYTES: u32 = 1 << 20;

/// Where reading begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// At the first offset there is.
    Earliest,
    /// After the last committed record.
    Latest,
    /// At this offset.
    Offset(Offset),
    /// At the first record with this timestamp (milliseconds) or a later one; at the end when there is none.
    Timestamp(Millis),
}

/// Some records, and how far the partition goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    /// Records in order of offset.
    pub records: Vec<Record>,
    /// Everything below is committed.
    pub high_watermark: Offset,
}

/// Where a timestamp was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundOffset {
    /// The offset.
    pub offset: Offset,
    /// The timestamp of the record there; `None` for the ends of the partition.
    pub timestamp: Option<Millis>,
    /// The leader epoch the record was written in, when known.
    pub leader_epoch: Option<LeaderEpoch>,
}

/// Follows one partition.
pub struct PartitionConsumer {
    client: Client,
    partition: TopicPartition,
    start: Start,
    /// The next offset to be returned, once known.
    position: Option<Offset>,
    stream: Option<Streaming<ConsumeResponse>>,
}

/// Why a try to read ended.
enum Failure {
    /// Another try may succeed.
    Again(String),
    Final(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Unreachable { .. } | Error::OtherCluster { .. } => {
                Self::Again(error.to_string())
            }
            Error::Refused { code, reason, .. } if code.is_retriable() => Self::Again(reason),
            other => Self::Final(other),
        }
    }
}

impl PartitionConsumer {
    pub(crate) fn new(client: Client, partition: TopicPartition, start: Start) -> Self {
        Self {
            client,
            partition,
            start,
            position: None,
            stream: None,
        }
    }

    /// The partition.
    pub fn partition(&self) -> &TopicPartition {
        &self.partition
    }

    /// The offset of the next record to come; `None` before the first call of [`Self::next`].
    pub fn position(&self) -> Option<Offset> {
        self.position
    }

    /// Waits for the next records. Cancel-safe: a call that was abandoned loses nothing.
    ///
    /// # Errors
    /// [`Error::Refused`] with `OFFSET_OUT_OF_RANGE` when the position is not in the log (any more);
    /// [`Error::Corrupt`]; [`Error::TimedOut`] when no leader could be found in time.
    pub async fn next(&mut self) -> Result<Fetched> {
        let limit = self.client.config().retry_timeout;
        let mut backoff = self.client.backoff();
        let mut failing_since = None;
        loop {
            let last = match self.try_next().await {
                Ok(Some(fetched)) => return Ok(fetched),
                Ok(None) => {
                    failing_since = None;
                    backoff = self.client.backoff();
                    continue;
                }
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Again(reason)) => reason,
            };
            tracing::debug!(partition = %self.partition, last, "looking for the leader again");
            self.stream = None;
            let since = *failing_since.get_or_insert_with(Instant::now);
            if since.elapsed() >= limit {
                return Err(Error::TimedOut {
                    what: format!("reading {}", self.partition),
                    waited_ms: since.elapsed().as_millis(),
                    last,
                });
            }
            sleep(backoff.step()).await;
            // A failure to refresh shows as a failure to connect.
            let _ = self.client.refresh().await;
        }
    }

    /// Reads up to, not including, `end`, calling `take` for each record.
    ///
    /// # Errors
    /// As [`Self::next`].
    pub async fn read_to(&mut self, end: Offset, mut take: impl FnMut(Record)) -> Result<()> {
        if self.position.is_none() {
            self.position = Some(
                self.client
                    .find_offset(&self.partition, self.start)
                    .await?
                    .offset,
            );
        }
        while self.position.is_some_and(|position| position < end) {
            for record in self.next().await?.records {
                if record.offset < end {
                    take(record);
                }
            }
        }
        Ok(())
    }

    /// `None`: the leader is alive but had no records to show.
    async fn try_next(&mut self) -> Result<Option<Fetched>, Failure> {
        if self.stream.is_none() {
            self.stream = Some(self.open().await?);
        }
        let stream = self.stream.as_mut().expect("opened above");
        let answer = match stream.message().await {
            Ok(Some(answer)) => answer,
            Ok(None) => return Err(Failure::Again("the broker ended the exchange".to_owned())),
            Err(status) => return Err(Failure::Again(status_reason(&status))),
        };
        code_of(answer.error).map_err(|code| Error::Refused {
            what: format!("reading {}", self.partition),
            code,
            reason: reason(code, &answer.message),
        })?;
        let fetched = self.unpack(&answer)?;
        Ok((!fetched.records.is_empty()).then_some(fetched))
    }

    async fn open(&mut self) -> Result<Streaming<ConsumeResponse>, Failure> {
        let offset = match self.position {
            Some(offset) => offset,
            None => {
                self.client
                    .try_find_offset(&self.partition, self.start)
                    .await?
                    .offset
            }
        };
        self.position = Some(offset);
        let leader = self.client.leader(&self.partition).await?;
        let mut log = self.client.connections().log(&leader)?;
        let request = ConsumeRequest {
            topic: self.partition.topic.to_string(),
            partition: self.partition.partition,
            offset: offset.0,
            max_bytes: FETCH_BYTES,
            current_leader_epoch: None,
        };
        match log.consume(request).await {
            Ok(stream) => Ok(stream.into_inner()),
            Err(status) => Err(Failure::Again(status_reason(&status))),
        }
    }

    /// The records at or above the position; moves the position past them.
    fn unpack(&mut self, answer: &ConsumeResponse) -> Result<Fetched> {
        let mut position = self.position.unwrap_or(Offset::ZERO);
        let mut unpacked = Vec::new();
        let corrupt = |position: Offset, reason: String| Error::Corrupt {
            partition: self.partition.clone(),
            offset: position.0,
            reason,
        };
        for batch in batches(&answer.records) {
            let (header, bytes) = batch.map_err(|e| corrupt(position, e.to_string()))?;
            if !crc_is_valid(bytes) {
                return Err(corrupt(position, "the CRC does not match".to_owned()));
            }
            if !header.is_control() {
                for record in records(bytes).map_err(|e| corrupt(position, e.to_string()))? {
                    let record = record.map_err(|e| corrupt(position, e.to_string()))?;
                    if record.offset >= position {
                        unpacked.push(record);
                    }
                }
            }
            position = position.max(header.next_offset());
        }
        self.position = Some(position);
        Ok(Fetched {
            records: unpacked,
            high_watermark: Offset(answer.high_watermark),
        })
    }
}

impl Client {
    /// Finds an offset of a partition: an end of it, or the first record at or after a time. An offset is its own answer.
    ///
    /// # Errors
    /// [`Error::UnknownTopic`], [`Error::UnknownPartition`], [`Error::TimedOut`].
    pub async fn find_offset(&self, partition: &TopicPartition, at: Start) -> Result<FoundOffset> {
        let limit = self.config().retry_timeout;
        let start = Instant::now();
        let mut backoff = self.backoff();
        loop {
            let last = match self
                .try_find_offset(partition, at)
                .await
                .map_err(Failure::from)
            {
                Ok(found) => return Ok(found),
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Again(reason)) => reason,
            };
            if start.elapsed() >= limit {
                return Err(Error::TimedOut {
                    what: format!("finding an offset of {partition}"),
                    waited_ms: start.elapsed().as_millis(),
                    last,
                });
            }
            sleep(backoff.step().max(Duration::from_millis(1))).await;
            let _ = self.refresh().await;
        }
    }

    async fn try_find_offset(&self, partition: &TopicPartition, at: Start) -> Result<FoundOffset> {
        let timestamp_ms = match at {
            Start::Offset(offset) => {
                return Ok(FoundOffset {
                    offset,
                    timestamp: None,
                    leader_epoch: None,
                });
            }
            Start::Earliest => -2,
            Start::Latest => -1,
            Start::Timestamp(timestamp) => timestamp.max(0),
        };
        let leader = self.leader(partition).await?;
        let ask = |timestamp_ms| {
            let request = FindOffsetRequest {
                topic: partition.topic.to_string(),
                partition: partition.partition,
                timestamp_ms,
            };
            self.call(&leader, async move |mut log| log.find_offset(request).await)
        };
        let mut answer = ask(timestamp_ms).await?;
        if code_of(answer.error).is_ok() && answer.offset < 0 {
            // Nothing is as young as that: reading begins at the end.
            answer = ask(-1).await?;
        }
        code_of(answer.error).map_err(|code| Error::Refused {
            what: format!("finding an offset of {partition}"),
            code,
            reason: reason(code, &answer.message),
        })?;
        Ok(FoundOffset {
            offset: Offset(answer.offset),
            timestamp: (answer.timestamp_ms >= 0).then_some(answer.timestamp_ms),
            leader_epoch: LeaderEpoch::from_wire(answer.leader_epoch),
        })
    }
}
