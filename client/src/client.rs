//! The client: a handle on one cluster, with a picture of it that is refreshed when it proves wrong.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use epoka_proto::ids::TopicPartition;
use epoka_proto::v1;
use epoka_proto::v1::log_client::LogClient;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tonic::{Code, Response, Status};

use crate::admin::Admin;
use crate::connections::{Connection, Connections, Target};
use crate::consumer::{PartitionConsumer, Start};
use crate::error::{Error, Result, status_reason};
use crate::metadata::{Leader, Metadata};
use crate::producer::{Producer, ProducerConfig};

/// How many brokers are asked at once for the cluster's picture.
const ASKED_AT_ONCE: usize = 5;
/// How long to wait for a newer picture from another broker after the first answer.
const SECOND_OPINION: Duration = Duration::from_millis(10);

/// How patient a client is.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// How long one question to one node may take.
    pub request_timeout: Duration,
    /// How long an operation looks for a leader, or for a broker that answers, before it gives up.
    pub retry_timeout: Duration,
    /// The pause between two tries. A leader is usually replaced within a fraction of a second, so the first 20 tries are
    /// this close; after that the pause doubles up to [`Self::max_backoff`].
    pub min_backoff: Duration,
    /// The longest pause between two tries.
    pub max_backoff: Duration,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            request_timeout: Duration::from_secs(5),
            retry_timeout: Duration::from_secs(30),
            min_backoff: Duration::from_millis(5),
            max_backoff: Duration::from_millis(100),
        }
    }
}

/// A handle on one cluster. Clones share connections and metadata.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    config: ClientConfig,
    connections: Connections,
    bootstrap: Vec<String>,
    metadata: watch::Sender<Arc<Metadata>>,
    /// Held by the one caller that asks on everybody's behalf.
    asking: Mutex<()>,
    /// How many rounds of questions have been answered.
    rounds: AtomicU64,
}

impl Client {
    /// Connects to a cluster through the gRPC addresses (`host:port`) of some of its brokers.
    ///
    /// # Errors
    /// [`Error::Unreachable`] when none of them answers.
    pub async fn connect<A: Into<String>>(bootstrap: impl IntoIterator<Item = A>) -> Result<Self> {
        let client = Self::new(bootstrap, ClientConfig::default());
        client.refresh().await?;
        Ok(client)
    }

    /// A client that has asked nobody anything yet.
    pub fn new<A: Into<String>>(
        bootstrap: impl IntoIterator<Item = A>,
        config: ClientConfig,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                config,
                connections: Connections::default(),
                bootstrap: bootstrap.into_iter().map(Into::into).collect(),
                metadata: watch::Sender::default(),
                asking: Mutex::default(),
                rounds: AtomicU64::new(0),
            }),
        }
    }

    /// A producer with queues and sequence numbers of its own.
    pub fn producer(&self, config: ProducerConfig) -> Producer {
        Producer::new(self.clone(), config)
    }

    /// Reads one partition from a position on.
    pub fn consumer(&self, partition: TopicPartition, from: Start) -> PartitionConsumer {
        PartitionConsumer::new(self.clone(), partition, from)
    }

    /// Creates, changes and describes topics.
    pub fn admin(&self) -> Admin {
        Admin::new(self.clone())
    }

    /// The newest known picture of the cluster; empty before the first answer.
    pub fn metadata(&self) -> Arc<Metadata> {
        self.inner.metadata.borrow().clone()
    }

    /// The connections this client uses.
    pub fn connections(&self) -> &Connections {
        &self.inner.connections
    }

    pub(crate) fn config(&self) -> &ClientConfig {
        &self.inner.config
    }

    /// Asks several brokers for their picture of the cluster and keeps the newest. Callers at the same time share one
    /// round of questions.
    ///
    /// # Errors
    /// [`Error::Unreachable`] when no broker answers.
    pub async fn refresh(&self) -> Result<Arc<Metadata>> {
        let before = self.inner.rounds.load(Ordering::Acquire);
        let _turn = self.inner.asking.lock().await;
        // A round that ended while this caller waited for its turn was asked on its behalf.
        if self.inner.rounds.load(Ordering::Acquire) == before {
            self.ask_around().await?;
            self.inner.rounds.fetch_add(1, Ordering::Release);
        }
        Ok(self.metadata())
    }

    async fn ask_around(&self) -> Result<()> {
        let mut answers: FuturesUnordered<_> = self
            .addresses()
            .into_iter()
            .take(ASKED_AT_ONCE)
            .map(async |address| (self.describe(address.clone()).await, address))
            .collect();
        let (mut foreign, mut refusal) = (None, None);
        let mut deadline = Instant::now() + self.inner.config.request_timeout;
        let mut answered = false;
        while let Ok(Some((answer, address))) = timeout_at(deadline, answers.next()).await {
            match answer {
                Ok(metadata) if self.is_foreign(&metadata) => {
                    self.inner.connections.give_up(&address);
                    foreign = Some(Error::OtherCluster {
                        ours: self.metadata().cluster_id.clone(),
                        other: metadata.cluster_id,
                    });
                }
                Ok(metadata) => {
                    if !answered {
                        deadline = deadline.min(Instant::now() + SECOND_OPINION);
                    }
                    answered = true;
                    self.keep(metadata);
                }
                Err(error) => refusal = Some(error),
            }
        }
        if answered {
            return Ok(());
        }
        Err(foreign.or(refusal).unwrap_or_else(|| Error::Unreachable {
            addresses: self.addresses().join(", "),
            reason: "no answer".into(),
        }))
    }

    /// What one broker knows of the cluster. The client's own picture is left alone.
    ///
    /// # Errors
    /// [`Error::Unreachable`] when it does not answer.
    pub async fn describe(&self, address: String) -> Result<Metadata> {
        let answer = self
            .call(address.as_str(), async move |mut log| {
                log.describe(v1::DescribeRequest::default()).await
            })
            .await?;
        Ok(answer.into())
    }

    /// The picture is of another cluster than this client's: its addresses have passed to others.
    fn is_foreign(&self, metadata: &Metadata) -> bool {
        let known = self.inner.metadata.borrow();
        let known = known.cluster_id.as_str();
        !known.is_empty() && !metadata.cluster_id.is_empty() && metadata.cluster_id != known
    }

    fn keep(&self, metadata: Metadata) {
        self.inner.connections.belong_to(&metadata.cluster_id);
        self.inner.metadata.send_if_modified(|known| {
            let newer = metadata.offset >= known.offset && metadata != **known;
            if newer {
                *known = Arc::new(metadata);
            }
            newer
        });
    }

    /// Whom to ask: the brokers that serve, then whatever was given at the start.
    fn addresses(&self) -> Vec<String> {
        let metadata = self.inner.metadata.borrow();
        let serving = metadata.brokers.values().filter(|b| !b.fenced);
        let mut seen = BTreeSet::new();
        serving
            .map(|b| &b.grpc)
            .chain(&self.inner.bootstrap)
            .filter(|a| seen.insert(a.as_str()))
            .cloned()
            .collect()
    }

    /// Refreshes until `look` finds what it wants in the picture.
    ///
    /// # Errors
    /// [`Error::TimedOut`] naming what was waited for.
    pub async fn wait_until<T>(
        &self,
        what: &str,
        within: Duration,
        mut look: impl FnMut(&Metadata) -> Option<T>,
    ) -> Result<T> {
        let start = Instant::now();
        let mut backoff = self.backoff();
        loop {
            let last = match self.refresh().await {
                Ok(metadata) => match look(&metadata) {
                    Some(found) => return Ok(found),
                    None => "by what the brokers say, not yet".to_owned(),
                },
                Err(error) => error.to_string(),
            };
            if start.elapsed() >= within {
                return Err(Error::TimedOut {
                    what: what.to_owned(),
                    waited_ms: start.elapsed().as_millis(),
                    last,
                });
            }
            backoff.pause().await;
        }
    }

    /// The leader of a partition; an existing topic without one is waited for.
    pub(crate) async fn leader(&self, partition: &TopicPartition) -> Result<Leader> {
        if let Some(leader) = self.metadata().leader(partition) {
            return Ok(leader);
        }
        self.refresh().await?;
        self.metadata().partition(partition)?;
        let what = format!("finding the leader of {partition}");
        self.wait_until(&what, self.inner.config.retry_timeout, |m| {
            m.leader(partition)
        })
        .await
    }

    /// Asks one node one question.
    pub(crate) async fn call<T, F>(
        &self,
        target: impl Into<Target>,
        question: impl FnOnce(LogClient<Connection>) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let unreachable = |addresses, reason| Error::Unreachable { addresses, reason };
        let target = target.into();
        let address = target.address().to_owned();
        let log = self.inner.connections.log(target)?;
        let (start, limit) = (Instant::now(), self.inner.config.request_timeout);
        match timeout(limit, question(log)).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            // The broker is well, and waited in vain for somebody else: another one would too.
            Ok(Err(status)) if status.code() == Code::DeadlineExceeded => Err(Error::TimedOut {
                what: format!("asking the controller through the broker at {address}"),
                waited_ms: start.elapsed().as_millis(),
                last: status.message().to_owned(),
            }),
            Ok(Err(status)) => Err(unreachable(address, status_reason(&status))),
            Err(_) => Err(unreachable(
                address,
                format!("no answer in {} ms", limit.as_millis()),
            )),
        }
    }

    /// Asks one broker after the other until one answers.
    pub(crate) async fn call_any<T, F>(
        &self,
        mut question: impl FnMut(LogClient<Connection>) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let addresses = self.addresses();
        let mut reason = "no address was given".to_owned();
        for address in &addresses {
            match self.call(Target::member(address), &mut question).await {
                Ok(answer) => return Ok(answer),
                Err(Error::Unreachable { reason: why, .. }) => reason = why,
                Err(other) => return Err(other),
            }
        }
        Err(Error::Unreachable {
            addresses: addresses.join(", "),
            reason,
        })
    }

    pub(crate) fn backoff(&self) -> Backoff {
        Backoff {
            close_tries: 20,
            next: self.inner.config.min_backoff,
            max: self.inner.config.max_backoff,
        }
    }
}

/// Pauses that are short at first and then grow.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    close_tries: u32,
    next: Duration,
    max: Duration,
}

impl Backoff {
    /// The pause to make now.
    pub(crate) fn step(&mut self) -> Duration {
        let now = self.next;
        match self.close_tries.checked_sub(1) {
            Some(left) => self.close_tries = left,
            None => self.next = (now * 2).min(self.max),
        }
        now
    }

    pub(crate) async fn pause(&mut self) {
        sleep(self.step()).await;
    }
}
