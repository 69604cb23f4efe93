//! A running cluster: what can be done to its nodes, and what can be awaited.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use epoka_client::Error::{UnknownPartition, UnknownTopic};
use epoka_client::{Client, ClientConfig, Metadata};
use epoka_proto::ids::{BrokerEpoch, BrokerId, TopicPartition};
use tokio::time::{Instant, sleep};

use crate::action::{Action, State};
use crate::builder::Builder;
use crate::error::{Error, Result};
use crate::place::Place;
use crate::target::{Node, Target};
use crate::timeline::{Following, Timeline};

/// Pause between two looks at something that cannot be followed.
const PAUSE: Duration = Duration::from_millis(10);
/// How long a topic may be new.
const FRESH: Duration = Duration::from_secs(1);

/// A cluster of its own for one test. It ends when it is dropped, and at the latest with the test's process.
///
/// A test that panics keeps the directory of its cluster, with its data and its logs, and prints where it is together with
/// the timeline.
pub struct Cluster {
    following: Following,
    client: Client,
    patience: Duration,
    place: Place,
}

impl Cluster {
    /// Says which cluster to start.
    pub fn builder() -> Builder {
        Builder::new()
    }

    pub(crate) async fn launch(plan: &Builder) -> Result<Self> {
        let place = Place::launch(plan).await?;
        let following = Following::start(place.events())?;
        let client = Client::new(place.brokers(), ClientConfig::default());
        client.refresh().await?;
        Ok(Self {
            following,
            client,
            patience: plan.patience,
            place,
        })
    }

    /// The addresses for any Kafka client: `127.0.0.1:41001,127.0.0.1:41002,127.0.0.1:41003`.
    pub fn bootstrap(&self) -> &str {
        self.place.bootstrap()
    }

    /// A client of the Rust SDK. Clones share its connections.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Where a cluster of processes keeps its data and its logs, until it is dropped.
    pub fn directory(&self) -> Option<&Path> {
        match &self.place {
            Place::Processes(processes) => Some(processes.directory()),
            #[cfg(feature = "containers")]
            Place::Containers(_) => None,
        }
    }

    /// For clients in containers: the name of the network that a cluster of containers has, and the bootstrap servers there.
    #[cfg(feature = "containers")]
    pub fn network(&self) -> Option<(&str, String)> {
        match &self.place {
            Place::Processes(_) => None,
            Place::Containers(containers) => Some(containers.network()),
        }
    }

    /// Kills a process with SIGKILL, and returns which one it was once it is gone. The others have yet to notice.
    ///
    /// The leader of a partition is a running process here: one that was just killed is not it, though the cluster may not
    /// have another one yet. That one is waited for.
    ///
    /// # Errors
    /// [`Error::NoTarget`], [`Error::Refused`] when it is not running.
    pub async fn kill(&self, target: impl Into<Target>) -> Result<Node> {
        self.act(Action::Kill, target.into()).await
    }

    /// Stops a process cleanly with SIGTERM: a broker first gives up what it leads. Returns which one it was once it is gone.
    ///
    /// # Errors
    /// As [`Self::kill`].
    pub async fn stop(&self, target: impl Into<Target>) -> Result<Node> {
        self.act(Action::Stop, target.into()).await
    }

    /// Pauses a process: it is alive and silent, as behind a cut cable. The cluster notices when the session of the broker
    /// expires, after `broker.session.timeout.ms`.
    ///
    /// # Errors
    /// As [`Self::kill`].
    pub async fn pause(&self, target: impl Into<Target>) -> Result<Node> {
        self.act(Action::Pause, target.into()).await
    }

    /// Resumes a paused process. A part, such as a leader, means the one broker that is paused.
    ///
    /// # Errors
    /// [`Error::NoTarget`] when more than one could be meant, [`Error::Refused`] when it is not paused.
    pub async fn resume(&self, target: impl Into<Target>) -> Result<Node> {
        self.act(Action::Resume, target.into()).await
    }

    /// Starts a process that was killed or stopped, on the data it had, and waits until it serves: a broker is admitted by
    /// the controller, which has buried its former life; a controller knows who is active. A part, such as a leader, means
    /// the one broker that is down.
    ///
    /// # Errors
    /// [`Error::NoTarget`] when more than one could be meant, [`Error::Refused`] when it is running, [`Error::Died`],
    /// [`Error::TimedOut`].
    pub async fn start(&self, target: impl Into<Target>) -> Result<Node> {
        let node = self.resolve(Action::Start, &target.into()).await?;
        // A life that began before this start does not count. With nobody to tell, the last known one is old enough.
        let _ = self.client.refresh().await;
        let before = self.life(node);
        self.place.act(Action::Start, node).await?;
        tokio::select! {
            serving = self.await_serving(node, before) => serving?,
            died = self.died(node) => return Err(died),
        }
        Ok(node)
    }

    /// Waits until the partition has a leader and at least so many of its replicas are in sync.
    ///
    /// # Errors
    /// [`Error::TimedOut`] with what the brokers say.
    pub async fn await_isr(&self, topic: &str, partition: i32, count: usize) -> Result<()> {
        let name = TopicPartition::new(topic, partition);
        let what = format!("a leader and {count} replicas in the ISR of {name}");
        self.until(&what, |metadata| {
            let state = metadata.partition(&name).map_err(|e| e.to_string())?;
            let isr: Vec<_> = state.isr.iter().map(|id| id.0).collect();
            match state.leader {
                Some(_) if isr.len() >= count => Ok(()),
                Some(leader) => Err(format!("leader {leader}, ISR {isr:?}")),
                None => Err(format!("no leader, ISR {isr:?}")),
            }
        })
        .await
    }

    /// Waits until every broker serves and every partition has a leader and all its replicas in the ISR.
    ///
    /// # Errors
    /// [`Error::TimedOut`] with what is missing.
    pub async fn await_whole(&self) -> Result<()> {
        self.until(
            "every broker to serve and every ISR to be whole",
            |metadata| {
                let fenced = metadata.brokers.iter().find(|(_, b)| b.fenced);
                let fenced = fenced.map(|(id, _)| format!("broker {id} is fenced"));
                let partial = || {
                    let (name, state) = metadata.partitions().find(|(_, p)| !p.is_whole())?;
                    let isr: Vec<_> = state.isr.iter().map(|id| id.0).collect();
                    Some(format!("the ISR of {name} is {isr:?}"))
                };
                fenced.or_else(partial).map_or(Ok(()), Err)
            },
        )
        .await
    }

    /// What has happened since the cluster was started, in plain words. Waits a moment for what is on its way.
    pub async fn timeline(&self) -> Timeline {
        self.following.settled().await
    }

    async fn act(&self, action: Action, target: Target) -> Result<Node> {
        let node = self.resolve(action, &target).await?;
        self.place.act(action, node).await?;
        Ok(node)
    }

    /// Which process is meant.
    async fn resolve(&self, action: Action, target: &Target) -> Result<Node> {
        if let Target::Node(node) = target {
            return Ok(*node);
        }
        if matches!(action, Action::Start | Action::Resume) {
            return self.only_candidate(action, target).await;
        }
        let begun = Instant::now();
        loop {
            let states = self.place.states().await?;
            let runs = |node: Node| states.contains(&(node, State::Running));
            let why = match self.who_is(target).await {
                // A topic that was just created is known everywhere in a moment.
                Err(UnknownTopic { .. } | UnknownPartition { .. }) if begun.elapsed() < FRESH => {
                    sleep(PAUSE).await;
                    continue;
                }
                Err(error @ (UnknownTopic { .. } | UnknownPartition { .. })) => {
                    return Err(error.into());
                }
                Err(error) => error.to_string(),
                Ok(candidates) => match candidates.into_iter().find(|node| runs(*node)) {
                    Some(node) => return Ok(node),
                    None => "nobody who could be runs".to_owned(),
                },
            };
            if begun.elapsed() >= self.patience {
                return Err(Self::nobody(target, why));
            }
            sleep(PAUSE).await;
        }
    }

    /// Who plays a part, as the cluster says at this moment, the likeliest first.
    async fn who_is(&self, target: &Target) -> Result<Vec<Node>, epoka_client::Error> {
        let partition = match target {
            Target::Node(node) => return Ok(vec![*node]),
            Target::ActiveController => {
                let active = self.active_controller(None).await;
                return Ok(active.map(Node::Controller).into_iter().collect());
            }
            Target::Leader(partition) | Target::Follower(partition) => partition,
        };
        let metadata = self.client.refresh().await?;
        let state = metadata.partition(partition)?;
        let brokers: Vec<BrokerId> = match target {
            Target::Follower(_) => {
                let all = state.isr.iter().chain(&state.replicas).copied();
                all.filter(|id| Some(*id) != state.leader).collect()
            }
            _ => state.leader.into_iter().collect(),
        };
        Ok(brokers.iter().map(|id| Node::Broker(id.0)).collect())
    }

    /// The only process that can be started, or resumed: whoever was stopped by a part does not play it any more.
    async fn only_candidate(&self, action: Action, target: &Target) -> Result<Node> {
        let states = self.place.states().await?;
        let controllers = matches!(target, Target::ActiveController);
        let candidates: Vec<_> = states
            .into_iter()
            .filter(|(node, _)| matches!(node, Node::Controller(_)) == controllers)
            .filter(|(_, state)| action.suits(*state))
            .map(|(node, _)| node)
            .collect();
        match candidates.as_slice() {
            [only] => Ok(*only),
            [] => Err(Self::nobody(
                target,
                format!("nobody is there to be {}", action.past()),
            )),
            several => {
                let names: Vec<_> = several.iter().map(ToString::to_string).collect();
                let why = format!("{} could be {}", names.join(" and "), action.past());
                Err(Self::nobody(target, why))
            }
        }
    }

    fn nobody(target: &Target, why: String) -> Error {
        let example = match target {
            Target::ActiveController => "controller(1)",
            _ => "broker(1)",
        };
        let target = target.clone();
        Error::NoTarget {
            target,
            why,
            example,
        }
    }

    /// The controller that is active, as this one says, or any of them.
    async fn active_controller(&self, asked: Option<Node>) -> Option<i32> {
        match &self.place {
            Place::Processes(processes) => processes.active_controller(asked).await,
            #[cfg(feature = "containers")]
            Place::Containers(_) => self.following.active_controller(),
        }
    }

    /// The epoch of a broker's life, as far as it is known.
    fn life(&self, node: Node) -> Option<BrokerEpoch> {
        let metadata = self.client.metadata();
        match node {
            Node::Broker(id) => metadata.brokers.get(&BrokerId(id)).map(|b| b.epoch),
            Node::Controller(_) => None,
        }
    }

    async fn await_serving(&self, node: Node, before: Option<BrokerEpoch>) -> Result<()> {
        let what = format!("{node} to serve");
        let Node::Broker(id) = node else {
            return self.await_controller(node, &what).await;
        };
        self.until(&what, |metadata| {
            match metadata.brokers.get(&BrokerId(id)) {
                None => Err("it is not registered".to_owned()),
                Some(broker) if Some(broker.epoch) <= before => {
                    Err("its former life has not been replaced".to_owned())
                }
                Some(broker) if broker.fenced => Err("it is fenced".to_owned()),
                Some(_) => Ok(()),
            }
        })
        .await
    }

    async fn await_controller(&self, node: Node, what: &str) -> Result<()> {
        let begun = Instant::now();
        while !self.controller_serves(node).await {
            if begun.elapsed() >= self.patience {
                return Err(Error::TimedOut {
                    what: what.to_owned(),
                    waited_ms: begun.elapsed().as_millis(),
                    seen: self.place.last_words(node).await,
                });
            }
            sleep(PAUSE).await;
        }
        Ok(())
    }

    async fn controller_serves(&self, node: Node) -> bool {
        match &self.place {
            Place::Processes(processes) => processes.active_controller(Some(node)).await.is_some(),
            #[cfg(feature = "containers")]
            Place::Containers(containers) => containers.controller_serves(node).await,
        }
    }

    /// Waits until a process that was just started is gone again.
    async fn died(&self, node: Node) -> Error {
        loop {
            match self.place.states().await {
                Ok(states) if states.contains(&(node, State::Down)) => {
                    let why = self.place.last_words(node).await;
                    return Error::Died { node, why };
                }
                Ok(_) => sleep(PAUSE * 5).await,
                Err(error) => return error,
            }
        }
    }

    /// Looks at the newest picture of the cluster until `look` is content with it; its error is what it saw instead.
    async fn until(
        &self,
        what: &str,
        mut look: impl FnMut(&Metadata) -> Result<(), String>,
    ) -> Result<()> {
        let begun = Instant::now();
        loop {
            let seen = match self.client.refresh().await {
                Ok(metadata) => match look(&metadata) {
                    Ok(()) => return Ok(()),
                    Err(seen) => seen,
                },
                Err(error) => error.to_string(),
            };
            if begun.elapsed() >= self.patience {
                return Err(Error::TimedOut {
                    what: what.to_owned(),
                    waited_ms: begun.elapsed().as_millis(),
                    seen,
                });
            }
            sleep(PAUSE).await;
        }
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Cluster");
        shown.field("bootstrap", &self.bootstrap());
        shown.field("directory", &self.directory());
        shown.finish_non_exhaustive()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        eprintln!("---- timeline\n{}----", self.following.settled_blocking());
        if let Some(directory) = self.place.keep() {
            eprintln!("the cluster's data and logs are in {}", directory.display());
        }
    }
}
