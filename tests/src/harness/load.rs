//! An audited load: writers and readers of one topic, made of an ordinary Kafka client, that note everything they send, are
//! told and are given.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, DeliveryResult, Message};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _, ProducerContext};

use super::history::{Audit, History, Outcome, Seen, Write, WriteId};
use super::kafka;
use super::wait::until;

/// How long a record may stay unacknowledged, whatever happens meanwhile, and how long the final read may take.
const DELIVERY: Duration = Duration::from_secs(90);
/// How long a reader that begins again and again reads each time.
const PASS: Duration = Duration::from_secs(5);

/// What the load is like.
#[derive(Clone, Debug)]
pub struct LoadSpec {
    /// The topic.
    pub topic: String,
    /// Its partitions; each writer goes round them.
    pub partitions: i32,
    /// `all`, with idempotence, or `1`, without.
    pub acks: &'static str,
    /// Writers, each with a producer of its own.
    pub writers: u32,
    /// Pause of a writer between two records; a client sends what comes up meanwhile in batches.
    pub pause: Duration,
    /// Bytes of a record's value.
    pub value_bytes: usize,
    /// Readers that follow the topic meanwhile.
    pub readers: usize,
    /// Readers that begin anew from the start again and again.
    pub rereaders: usize,
    /// Further settings of the writers' clients.
    pub producer: Vec<(&'static str, &'static str)>,
}

impl LoadSpec {
    /// Two writers that want every record committed, and a reader.
    pub fn new(topic: &str, partitions: i32) -> Self {
        Self {
            topic: topic.into(),
            partitions,
            acks: "all",
            writers: 2,
            pause: Duration::from_millis(1),
            value_bytes: 100,
            readers: 1,
            rereaders: 0,
            producer: Vec::new(),
        }
    }

    /// Writers that are content with the leader's word.
    #[must_use]
    pub fn leader_only(mut self) -> Self {
        self.acks = "1";
        self
    }

    /// Writers that are content with the leader's word and send a record once at most: it may be lost, and neither be there
    /// twice nor overtake another. They give up soon, so that there are refused records too.
    #[must_use]
    pub fn at_most_once(mut self) -> Self {
        self.producer.extend([
            ("retries", "0"),
            ("max.in.flight.requests.per.connection", "1"),
            ("message.timeout.ms", "700"),
        ]);
        self.leader_only()
    }
}

/// What clients could not go on from, in their words.
type Failures = Arc<Mutex<Vec<String>>>;

/// A load that is running.
pub struct Load {
    spec: LoadSpec,
    bootstrap: String,
    enough: Arc<AtomicBool>,
    acked: Arc<AtomicUsize>,
    failures: Failures,
    writers: Vec<JoinHandle<Vec<Write>>>,
    readers: Vec<JoinHandle<Vec<Vec<Seen>>>>,
}

impl Load {
    /// Starts writing and reading.
    pub fn start(bootstrap: &str, spec: LoadSpec) -> Self {
        let (enough, acked) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let failures = Failures::default();
        let writers = (0..spec.writers).map(|writer| {
            let (bootstrap, spec) = (bootstrap.to_owned(), spec.clone());
            let (enough, acked, failures) = (enough.clone(), acked.clone(), failures.clone());
            std::thread::spawn(move || write(writer, &bootstrap, &spec, &enough, acked, &failures))
        });
        let readers = (0..spec.readers + spec.rereaders).map(|number| {
            let (bootstrap, spec, enough) = (bootstrap.to_owned(), spec.clone(), enough.clone());
            let pass = (number >= spec.readers).then_some(PASS);
            let failures = failures.clone();
            std::thread::spawn(move || read(&bootstrap, &spec, &enough, pass, &failures))
        });
        Self {
            bootstrap: bootstrap.to_owned(),
            writers: writers.collect(),
            readers: readers.collect(),
            spec,
            enough,
            acked,
            failures,
        }
    }

    /// Records acknowledged so far.
    pub fn acked(&self) -> usize {
        self.acked.load(Ordering::Relaxed)
    }

    /// What clients could not go on from so far. The audit names it too.
    pub fn failures(&self) -> Vec<String> {
        lock(&self.failures).clone()
    }

    /// Waits until `more` further records are acknowledged, or a client has failed, so that the audit comes soon.
    ///
    /// # Panics
    /// When they are not within that time.
    pub async fn progress(&self, more: usize, within: Duration) {
        let wanted = self.acked() + more;
        let what = format!("{more} more acknowledged records");
        until(&what, within, || {
            (self.acked() >= wanted || !self.failures().is_empty())
                .then_some(())
                .ok_or_else(|| self.acked())
        })
        .await;
    }

    /// Stops sending, waits for what is under way, reads the whole topic and tells what was done and seen. The cluster must
    /// be able to serve again.
    ///
    /// # Panics
    /// When the topic cannot be read to its end.
    pub async fn finish(mut self) -> History {
        self.enough.store(true, Ordering::Relaxed);
        let (writers, readers) = (
            std::mem::take(&mut self.writers),
            std::mem::take(&mut self.readers),
        );
        let (bootstrap, spec) = (self.bootstrap.clone(), self.spec.clone());
        let failures = self.failures.clone();
        let finish = move || {
            let writes = writers
                .into_iter()
                .flat_map(|w| w.join().expect("a writer never panics"));
            let writes = writes.collect();
            let readers = readers
                .into_iter()
                .flat_map(|r| r.join().expect("a reader never panics"));
            let readers = readers.collect();
            let finally = kafka::read_all(&bootstrap, &spec.topic, spec.partitions, DELIVERY);
            History {
                writes,
                readers,
                finally: finally.iter().map(seen).collect(),
                failures: lock(&failures).clone(),
            }
        };
        tokio::task::spawn_blocking(finish)
            .await
            .expect("the final read succeeds")
    }

    /// As [`Self::finish`], compared.
    ///
    /// # Panics
    /// As there.
    pub async fn audit(self) -> Audit {
        let audit = self.finish().await.audit();
        println!("audit: {audit}");
        audit
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.enough.store(true, Ordering::Relaxed);
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes what the client says of each record.
#[derive(Default)]
struct Notes {
    writes: Mutex<Vec<Write>>,
    acked: Arc<AtomicUsize>,
    /// Whether what the client says was not written was never appended anywhere.
    knows_refusals: bool,
}

impl ClientContext for Notes {}

impl ProducerContext for Notes {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, index: usize) {
        let outcome = match result {
            Ok(message) => {
                self.acked.fetch_add(1, Ordering::Relaxed);
                Outcome::Acked(Some(message.offset()).filter(|offset| *offset >= 0))
            }
            Err((error, message)) if self.knows_refusals && was_not_written(message) => {
                Outcome::Refused(error.to_string())
            }
            Err((error, _)) => Outcome::Unknown(error.to_string()),
        };
        lock(&self.writes)[index].outcome = outcome;
    }
}

/// Whether the client knows that a record was written nowhere, after all its tries.
fn was_not_written(message: &BorrowedMessage<'_>) -> bool {
    use rdkafka::bindings::{rd_kafka_message_status, rd_kafka_msg_status_t as Status};
    // SAFETY: the message lives as long as the reference to it, and the call only reads it.
    let status = unsafe { rd_kafka_message_status(message.ptr()) };
    status == Status::RD_KAFKA_MSG_STATUS_NOT_PERSISTED
}

fn write(
    writer: u32,
    bootstrap: &str,
    spec: &LoadSpec,
    enough: &AtomicBool,
    acked: Arc<AtomicUsize>,
    failures: &Failures,
) -> Vec<Write> {
    let mut config = kafka::client(bootstrap);
    config
        .set("acks", spec.acks)
        .set("enable.idempotence", (spec.acks == "all").to_string());
    config
        .set("linger.ms", "2")
        // Whatever piles up during an outage fits into the smallest segments of the tests.
        .set("batch.size", "16384")
        .set("request.timeout.ms", "3000")
        .set("message.timeout.ms", DELIVERY.as_millis().to_string());
    for (name, value) in &spec.producer {
        config.set(*name, *value);
    }
    let notes = Notes {
        acked,
        // With acks=all a leader that is replaced while it waits for the commit refuses what it has appended.
        knows_refusals: spec.acks == "1",
        ..Notes::default()
    };
    let producer: BaseProducer<Notes> = config
        .create_with_context(notes)
        .expect("the settings are valid");
    let writes = &producer.context().writes;
    'sending: for number in 0.. {
        if enough.load(Ordering::Relaxed) {
            break;
        }
        let id = WriteId { writer, number };
        let partition = i32::try_from(number % u64::from(spec.partitions.unsigned_abs()))
            .expect("a partition number");
        let index = {
            let mut writes = lock(writes);
            writes.push(Write {
                id,
                partition,
                outcome: Outcome::Unknown("never answered".into()),
            });
            writes.len() - 1
        };
        let value = id.to_value(spec.value_bytes);
        let key = writer.to_string();
        let mut record: BaseRecord<'_, str, str, usize> =
            BaseRecord::with_opaque_to(&spec.topic, index)
                .partition(partition)
                .key(key.as_str())
                .payload(value.as_str());
        while let Err((error, refused)) = producer.send(record) {
            match error {
                KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull) => record = refused,
                other => {
                    let fatal = producer.client().fatal_error();
                    lock(failures).push(format!("writer {writer}: {other}; {fatal:?}"));
                    break 'sending;
                }
            }
            producer.poll(Duration::from_millis(10));
        }
        producer.poll(spec.pause);
    }
    // What is not acknowledged by then stays unknown.
    let _unfinished = producer.flush(DELIVERY);
    lock(writes).clone()
}

/// What a reader was given, each time it read from the start. `pass`: how long it reads before it begins anew; for ever when
/// it does not.
fn read(
    bootstrap: &str,
    spec: &LoadSpec,
    enough: &AtomicBool,
    pass: Option<Duration>,
    failures: &Failures,
) -> Vec<Vec<Seen>> {
    let mut passes = Vec::new();
    while !enough.load(Ordering::Relaxed) {
        let consumer = kafka::consumer(bootstrap);
        kafka::read_from_start(&consumer, &spec.topic, spec.partitions);
        let mut given = Vec::new();
        let begun = Instant::now();
        while !enough.load(Ordering::Relaxed) && pass.is_none_or(|p| begun.elapsed() < p) {
            match kafka::try_next(&consumer, Duration::from_millis(100)) {
                Ok(next) => given.extend(next.map(|m| seen(&m))),
                Err(error) => {
                    lock(failures).push(format!("a reader: {error}"));
                    passes.push(given);
                    return passes;
                }
            }
        }
        passes.push(given);
    }
    passes
}

fn seen(message: &impl Message) -> Seen {
    let id = message.payload().and_then(WriteId::from_value);
    Seen {
        partition: message.partition(),
        offset: message.offset(),
        id,
    }
}
