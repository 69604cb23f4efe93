//! A steady stream of stamped records through the SDK, with the books kept: what `demo` and `verify` break clusters under.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use epoka_client::{Client, Producer, ProducerConfig, ProducerRecord, Record, Start};
use epoka_proto::ids::{Offset, TopicPartition};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::audit::{Audit, Report, Stamp};
use crate::failure::{Failure, Outcome};

/// Settings of a load.
#[derive(Clone, Debug)]
pub struct LoadConfig {
    /// Where records go, in turn.
    pub partitions: Vec<TopicPartition>,
    /// Pause between two rounds; in each round every partition gets [`Self::per_round`] records.
    pub every: Duration,
    /// Records a partition gets in a round.
    pub per_round: usize,
    /// How they are sent.
    pub producer: ProducerConfig,
}

/// The longest time between two acknowledgements of a partition's records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Silence {
    /// The partition.
    pub partition: TopicPartition,
    /// How long; while there are records without one, the time since the last one counts.
    pub longest: Duration,
}

/// When each partition last had a record acknowledged, and the longest time it had none.
type Acknowledgements = BTreeMap<TopicPartition, (Instant, Duration)>;

/// A load under way.
pub struct Load {
    audit: Arc<Mutex<Audit>>,
    acknowledged: Arc<Mutex<Acknowledgements>>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Load {
    /// Begins to send. The name of the run goes into every record.
    pub fn start(client: &Client, run: &str, config: LoadConfig) -> Self {
        let audit = Arc::new(Mutex::new(Audit::new(run)));
        let stop = watch::Sender::new(false);
        let producer = client.producer(config.producer.clone());
        let now = Instant::now();
        let begun = config
            .partitions
            .iter()
            .map(|p| (p.clone(), (now, Duration::ZERO)));
        let acknowledged = Arc::new(Mutex::new(begun.collect()));
        let books = Books {
            audit: audit.clone(),
            acknowledged: acknowledged.clone(),
        };
        let task = tokio::spawn(send(producer, config, books, stop.subscribe()));
        Self {
            audit,
            acknowledged,
            stop,
            task,
        }
    }

    /// How many records were acknowledged so far.
    pub fn acked(&self) -> usize {
        self.audit
            .lock()
            .expect("nothing panics under it")
            .acked_so_far()
    }

    /// How many records were sent whose outcome is not known yet.
    pub fn under_way(&self) -> usize {
        let audit = self.audit.lock().expect("nothing panics under it");
        audit.entered_so_far() - audit.acked_so_far()
    }

    /// Watches which partitions have acknowledgements.
    pub fn watch(&self) -> Watch {
        Watch(self.acknowledged.clone())
    }

    /// Stops sending, waits until the fate of every record is known, and gives the books, and the longest time that each
    /// partition went without an acknowledgement.
    ///
    /// # Errors
    /// The load itself failed.
    pub async fn finish(self) -> Outcome<(Audit, Vec<Silence>)> {
        self.stop.send_replace(true);
        self.task
            .await
            .map_err(|e| Failure::wrong(format!("the load failed: {e}")))?;
        let audit = Arc::into_inner(self.audit).expect("the task, the only other owner, has ended");
        let audit = audit.into_inner().expect("nothing panics under it");
        let now = Instant::now();
        let acknowledged = self.acknowledged.lock().expect("nothing panics under it");
        let silences = acknowledged.iter().map(|(partition, (last, longest))| {
            // What was never acknowledged is still waited for.
            let silent = if audit.has_unknown(partition) {
                now - *last
            } else {
                Duration::ZERO
            };
            Silence {
                partition: partition.clone(),
                longest: silent.max(*longest),
            }
        });
        let silences = silences.collect();
        Ok((audit, silences))
    }
}

/// Looks at the acknowledgements of a load.
pub struct Watch(Arc<Mutex<Acknowledgements>>);

impl Watch {
    /// The partitions without an acknowledgement for this long, and for how long.
    pub fn silent_for(&self, limit: Duration) -> Vec<(TopicPartition, Duration)> {
        let now = Instant::now();
        let acknowledged = self.0.lock().expect("nothing panics under it");
        let silent = acknowledged.iter().map(|(p, (last, _))| (p, now - *last));
        silent
            .filter(|(_, silent)| *silent >= limit)
            .map(|(p, silent)| (p.clone(), silent))
            .collect()
    }
}

/// Where the outcome of every record is entered.
#[derive(Clone)]
struct Books {
    audit: Arc<Mutex<Audit>>,
    acknowledged: Arc<Mutex<Acknowledgements>>,
}

impl Books {
    fn acked(&self, stamp: &Stamp, partition: &TopicPartition, offset: Offset) {
        self.audit
            .lock()
            .expect("nothing panics under it")
            .acked(stamp, offset);
        let mut acknowledged = self.acknowledged.lock().expect("nothing panics under it");
        if let Some((last, longest)) = acknowledged.get_mut(partition) {
            let now = Instant::now();
            *longest = (*longest).max(now - *last);
            *last = now;
        }
    }
}

async fn send(
    producer: Producer,
    config: LoadConfig,
    books: Books,
    mut stop: watch::Receiver<bool>,
) {
    let mut rounds = interval(config.every);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut deliveries = JoinSet::new();
    loop {
        tokio::select! {
            _ = rounds.tick() => {}
            // A closed channel means that nobody is interested any more.
            _ = stop.wait_for(|stop| *stop) => break,
        }
        for partition in config
            .partitions
            .iter()
            .flat_map(|p| std::iter::repeat_n(p, config.per_round))
        {
            let (stamp, value) = books
                .audit
                .lock()
                .expect("nothing panics under it")
                .enter(partition);
            let record =
                ProducerRecord::new(&*partition.topic, value).partition(partition.partition);
            // A record that could not be queued stays in the books with an unknown fate.
            let Ok(delivery) = producer.send(record).await else {
                continue;
            };
            let (books, partition) = (books.clone(), partition.clone());
            deliveries.spawn(async move {
                match delivery.await {
                    Ok(delivered) => {
                        if let Some(offset) = delivered.offset {
                            books.acked(&stamp, &partition, offset);
                        }
                    }
                    Err(error) => tracing::debug!(%error, "a record was not acknowledged"),
                }
            });
        }
        while deliveries.try_join_next().is_some() {}
    }
    producer.close().await;
    while deliveries.join_next().await.is_some() {}
}

/// Reads every partition of the books from its beginning to its end and compares.
///
/// # Errors
/// A partition cannot be read.
pub async fn check(client: &Client, audit: &Audit) -> Outcome<Report> {
    let mut logs = Vec::new();
    for partition in audit.partitions() {
        let end = client.find_offset(partition, Start::Latest).await?.offset;
        let mut records: Vec<Record> = Vec::new();
        let mut consumer = client.consumer(partition.clone(), Start::Earliest);
        consumer.read_to(end, |record| records.push(record)).await?;
        logs.push((partition, records));
    }
    Ok(audit.check(|partition| {
        let log = logs.iter().find(|(name, _)| *name == partition);
        let records = log
            .map(|(_, records)| records.as_slice())
            .unwrap_or_default();
        records
            .iter()
            .map(|r| (r.offset, r.value.as_deref().unwrap_or_default()))
    }))
}
