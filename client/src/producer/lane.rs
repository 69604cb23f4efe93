//! A lane sends the records of one partition in order: it fills batches, keeps a few under way, finds the leader again when
//! it moves, and resends what was not acknowledged with the same numbers, so that the new leader recognises what it has.

use std::sync::Arc;
use std::time::Duration;

use epoka_proto::error::ErrorCode;
use epoka_proto::ids::{Offset, ProducerEpoch, ProducerId, TopicPartition};
use epoka_proto::v1::{InitProducerIdRequest, ProduceRequest, ProduceResponse};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::link::Link;
use super::window::{Identity, Queued, Window};
use super::{Acks, ProducerConfig};
use crate::client::{Backoff, Client};
use crate::error::{Error, Result, code_of, reason};

/// Without an answer for this long, a lane asks whether the leader has moved: a paused or cut-off leader closes nothing.
const STALL: Duration = Duration::from_millis(300);

pub(super) struct Lane {
    client: Client,
    config: Arc<ProducerConfig>,
    partition: TopicPartition,
    queue: mpsc::Receiver<Queued>,
    /// The producer is closing: no more records will come.
    closing: bool,
    window: Window,
    /// Absent before the first batch, and after the numbers were lost; always absent for plain producers.
    identity: Option<Identity>,
    link: Option<Link>,
    /// The broker has acknowledged a batch on this connection, so it knows the numbers. Until then one batch at most is
    /// under way: a broker without state for a producer takes any number, even one behind a gap.
    confirmed: bool,
    /// The metadata led to a failure and must be asked for again before the next try.
    stale: bool,
    /// Not before this moment is a new connection tried.
    retry_at: Instant,
    backoff: Backoff,
    /// The last sign of life of the leader.
    heard: Instant,
    /// Why the last try failed, for the error of a record that runs out of time.
    last_failure: String,
}

enum Woken {
    Record(Queued),
    Closing,
    Answer(Result<ProduceResponse, String>),
    Timer,
}

impl Lane {
    pub fn new(
        client: Client,
        config: Arc<ProducerConfig>,
        partition: TopicPartition,
        queue: mpsc::Receiver<Queued>,
    ) -> Self {
        let now = Instant::now();
        Self {
            backoff: client.backoff(),
            window: Window::new(config.compression, config.batch_bytes),
            client,
            config,
            partition,
            queue,
            closing: false,
            identity: None,
            link: None,
            confirmed: false,
            stale: false,
            retry_at: now,
            heard: now,
            last_failure: "nothing was tried yet".to_owned(),
        }
    }

    /// Runs until the producer is closed and everything is answered.
    pub async fn run(mut self) {
        loop {
            self.expire();
            if !self.window.is_empty() {
                self.connect().await;
                self.pump();
            }
            // Only now: records may have run out of time, or have been refused, on the way here.
            if self.closing && self.window.is_empty() {
                return;
            }
            match self.wait().await {
                Woken::Record(record) => {
                    self.window.push(record);
                    self.fill();
                }
                Woken::Closing => self.closing = true,
                Woken::Answer(Ok(answer)) => self.answered(&answer),
                Woken::Answer(Err(why)) => self.disconnect(why),
                Woken::Timer => self.look_after_a_silent_leader().await,
            }
        }
    }

    async fn wait(&mut self) -> Woken {
        let timer = self.next_timer();
        let accepts = !self.closing && self.window.has_room();
        tokio::select! {
            biased;
            answer = async { self.link.as_mut().expect("checked").answer().await },
                if self.link.is_some() => Woken::Answer(answer),
            record = self.queue.recv(), if accepts => record.map_or(Woken::Closing, Woken::Record),
            () = async { sleep_until(timer.expect("checked")).await }, if timer.is_some() => Woken::Timer,
        }
    }

    /// Takes whatever else is queued already, so that one wake-up fills a batch.
    fn fill(&mut self) {
        while self.window.has_room() {
            match self.queue.try_recv() {
                Ok(record) => self.window.push(record),
                Err(_) => return,
            }
        }
    }

    /// The next moment at which something must be done without anybody's prompting.
    fn next_timer(&self) -> Option<Instant> {
        let expiry = self.window.oldest()? + self.config.delivery_timeout;
        let next = match &self.link {
            None => self.retry_at,
            Some(_) if self.window.sent() > 0 => self.heard + STALL,
            Some(_) => self.window.open_since()? + self.config.linger,
        };
        let linger = self
            .window
            .open_since()
            .filter(|_| self.link.is_some() && self.window.sealed() < self.limit())
            .map(|since| since + self.config.linger);
        Some(linger.map_or(next, |linger| linger.min(next)).min(expiry))
    }

    /// Makes sure there is a connection and an identity, if it is time to try.
    async fn connect(&mut self) {
        if self.link.is_some() || Instant::now() < self.retry_at {
            return;
        }
        if let Err(error) = self.try_connect().await {
            self.disconnect(error.to_string());
        }
    }

    async fn try_connect(&mut self) -> Result<()> {
        let metadata = if self.stale {
            self.client.refresh().await?
        } else {
            self.client.metadata()
        };
        metadata.partition(&self.partition)?;
        let leader = metadata
            .leader(&self.partition)
            .ok_or_else(|| Error::Refused {
                what: format!("writing to {}", self.partition),
                code: ErrorCode::LeaderNotAvailable,
                reason: "the partition has no leader".to_owned(),
            })?;
        if self.config.idempotent && self.identity.is_none() {
            self.identity = Some(self.new_identity().await?);
        }
        let link = Link::open(self.client.connections(), leader, self.config.in_flight)?;
        self.link = Some(link);
        self.stale = false;
        self.confirmed = false;
        self.heard = Instant::now();
        Ok(())
    }

    /// How many batches may be sealed and unanswered.
    fn limit(&self) -> usize {
        if self.config.idempotent && !self.confirmed {
            1
        } else {
            self.config.in_flight
        }
    }

    /// Takes a new producer id and numbers what is sealed from 0.
    async fn new_identity(&mut self) -> Result<Identity> {
        let answer = self
            .client
            .call_any(|mut log| async move { log.init_producer_id(InitProducerIdRequest {}).await })
            .await?;
        Error::check(|| "asking for a producer id".to_owned(), answer.error, "")?;
        let mut identity = Identity {
            id: ProducerId(answer.producer_id),
            epoch: ProducerEpoch(i16::try_from(answer.producer_epoch).unwrap_or(0)),
            next_sequence: 0,
        };
        self.window.renumber(&mut identity);
        Ok(identity)
    }

    /// Seals what may be sealed and sends what may be sent.
    fn pump(&mut self) {
        let Some(link) = &self.link else { return };
        let due = |since: Instant| since + self.config.linger <= Instant::now();
        let full = !self.window.has_room() || self.closing;
        let open = self.window.open_since();
        let limit = self.limit();
        if self.window.sealed() < limit && open.is_some_and(|s| full || due(s)) {
            self.window.seal(self.identity.as_mut());
        }
        if self.window.sent() == 0 {
            self.heard = Instant::now();
        }
        while self.window.sent() < limit
            && let Some(batch) = self.window.next_to_send()
        {
            link.send(ProduceRequest {
                topic: self.partition.topic.to_string(),
                partition: self.partition.partition,
                acks: self.config.acks.to_wire(),
                timeout_ms: u32::try_from(self.config.request_timeout.as_millis())
                    .unwrap_or(u32::MAX),
                batch,
            });
        }
    }

    fn answered(&mut self, answer: &ProduceResponse) {
        self.heard = Instant::now();
        match code_of(answer.error) {
            Ok(()) | Err(ErrorCode::DuplicateSequenceNumber) => {
                self.backoff = self.client.backoff();
                self.confirmed = true;
                if let Some(batch) = self.window.answered() {
                    let known = self.config.acks != Acks::None && answer.error == 0;
                    let base = known
                        .then(|| Offset::from_wire(answer.base_offset))
                        .flatten();
                    batch.deliver(&self.partition, base);
                }
            }
            // The oldest batch under way is out of order: the broker no longer knows what came before it. The others are
            // behind the same gap, so none was appended, and all can be sent again under fresh numbers.
            Err(
                code @ (ErrorCode::OutOfOrderSequenceNumber
                | ErrorCode::UnknownProducerId
                | ErrorCode::InvalidProducerEpoch),
            ) if self.config.idempotent => {
                tracing::warn!(partition = %self.partition, error = %code, "taking a new producer id");
                self.identity = None;
                self.disconnect(reason(code, &answer.message));
            }
            Err(code) if code.is_retriable() => self.disconnect(reason(code, &answer.message)),
            // Too large together, perhaps not one by one (KIP-126). What follows was numbered after a batch that does
            // not exist, so it was not appended either.
            Err(code @ (ErrorCode::MessageTooLarge | ErrorCode::RecordListTooLarge))
                if self.window.split_oldest() =>
            {
                self.identity = None;
                self.disconnect(reason(code, &answer.message));
            }
            Err(code) => {
                let error = Error::Refused {
                    what: format!("writing to {}", self.partition),
                    code,
                    reason: reason(code, &answer.message),
                };
                if let Some(batch) = self.window.answered() {
                    batch.fail(&error);
                }
                if self.config.idempotent {
                    // As above: what follows is behind a gap.
                    self.identity = None;
                    self.disconnect(error.to_string());
                }
            }
        }
    }

    /// Gives up the connection; everything unanswered will be sent again after a pause.
    fn disconnect(&mut self, why: String) {
        tracing::debug!(partition = %self.partition, why, "looking for the leader again");
        self.link = None;
        self.stale = true;
        self.last_failure = why;
        self.window.unsend();
        self.retry_at = Instant::now() + self.backoff.step();
    }

    /// A leader that owes an answer has been silent for a while: has another one taken over?
    async fn look_after_a_silent_leader(&mut self) {
        let Some(link) = &self.link else { return };
        if self.window.sent() == 0 || Instant::now() < self.heard + STALL {
            return;
        }
        let moved = match self.client.refresh().await {
            Ok(metadata) => metadata.leader(&self.partition).as_ref() != Some(&link.leader),
            Err(_) => false,
        };
        self.heard = Instant::now();
        if moved {
            self.disconnect("the leader fell silent and another took over".to_owned());
        }
    }

    /// Fails everything once the oldest record has run out of time. All of it: what was under way may or may not have
    /// been appended, and records behind a gap must not overtake it.
    fn expire(&mut self) {
        let limit = self.config.delivery_timeout;
        let expired = |since: Instant| since + limit <= Instant::now();
        if self.window.oldest().is_some_and(expired) {
            let error = Error::TimedOut {
                what: format!("writing to {}", self.partition),
                waited_ms: limit.as_millis(),
                last: self.last_failure.clone(),
            };
            self.window.give_up(&error);
            self.identity = None;
            self.link = None;
        }
    }
}
