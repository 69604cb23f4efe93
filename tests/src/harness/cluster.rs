//! A cluster of child processes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use epoka_client::{Client, ClientConfig, Metadata, NewTopic, ReplicaState};
use epoka_proto::ids::TopicPartition;
use epoka_proto::v1::{DescribeQuorumRequest, DescribeQuorumResponse, Event};
use futures::future::join_all;
use tempfile::TempDir;
use tokio::time::timeout;

use super::network::{Fault, Network, Node};
use super::ports::Port;
use super::process::{Process, logs_in, tail};
use super::spec::Spec;
use super::timeline::Timeline;
use super::wait::poll;

/// How long anything that a healthy cluster does may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// How long one node may take to answer one question.
const ANSWER: Duration = Duration::from_secs(2);

/// Real processes of the product, their directories, and the network between them. Everything ends with this value; when
/// a test fails, the timeline and the nodes' last words are printed.
pub struct Cluster {
    binary: PathBuf,
    dir: TempDir,
    network: Network,
    members: BTreeMap<Node, Member>,
    client: Client,
    timeline: Timeline,
    /// Whether the directory stays when the test fails.
    keeps_when_failing: bool,
}

/// A node that is there, running or not.
struct Member {
    process: Option<Process>,
    /// Kafka clients connect here; controllers have none.
    kafka: Option<Port>,
    /// The gRPC services themselves, behind the proxy.
    grpc: Port,
    properties: BTreeMap<String, String>,
}

impl Cluster {
    /// Starts a cluster of `binary`'s processes and waits until every requested topic is whole.
    ///
    /// # Panics
    /// When it does not come up.
    pub async fn start(binary: &str, spec: Spec) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("epoka-test-")
            .tempdir()
            .expect("a temporary directory");
        std::fs::create_dir(dir.path().join("output")).expect("writable");
        let network = Network::default();
        let members = members(&spec, &network, dir.path()).await;
        let addresses: Vec<_> = members.values().map(|m| m.grpc.address()).collect();
        let brokers = members
            .iter()
            .filter(|(node, _)| matches!(node, Node::Broker(_)));
        let bootstrap: Vec<_> = brokers.map(|(_, m)| m.grpc.address()).collect();
        let patience = ClientConfig {
            request_timeout: ANSWER,
            ..ClientConfig::default()
        };
        let mut cluster = Self {
            binary: binary.into(),
            dir,
            network,
            members,
            // Never refreshed, so it goes on asking the nodes themselves and not their proxies.
            client: Client::new(bootstrap, patience),
            timeline: Timeline::follow(addresses),
            keeps_when_failing: false,
        };
        for node in cluster.nodes() {
            cluster.start_node(node);
        }
        cluster.await_all_brokers().await;
        for topic in &spec.topics {
            cluster.create_topic(topic).await;
        }
        cluster.await_whole().await;
        cluster
    }

    /// Bootstrap servers for Kafka clients.
    pub fn bootstrap(&self) -> String {
        let addresses: Vec<_> = self
            .members
            .values()
            .filter_map(|m| m.kafka.as_ref())
            .map(Port::address)
            .collect();
        addresses.join(",")
    }

    /// A client of the SDK that knows every broker.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Every node, running or not: brokers, then controllers.
    pub fn nodes(&self) -> Vec<Node> {
        self.members.keys().copied().collect()
    }

    /// Every broker, running or not.
    pub fn brokers(&self) -> Vec<Node> {
        self.nodes()
            .into_iter()
            .filter(|n| matches!(n, Node::Broker(_)))
            .collect()
    }

    /// Where Kafka clients reach a broker.
    ///
    /// # Panics
    /// For a controller.
    pub fn kafka_address(&self, node: Node) -> String {
        self.members[&node]
            .kafka
            .as_ref()
            .expect("a broker")
            .address()
    }

    /// Where a node's gRPC services listen, without a proxy between.
    pub fn grpc_address(&self, node: Node) -> String {
        self.members[&node].grpc.address()
    }

    /// A node's own directory.
    pub fn data_dir(&self, node: Node) -> PathBuf {
        self.dir.path().join(node.to_string())
    }

    /// A directory that lives as long as the cluster, for the test's own files.
    pub fn scratch(&self) -> &Path {
        self.dir.path()
    }

    /// Where a broker keeps a partition.
    pub fn partition_dir(&self, node: Node, topic: &str, partition: i32) -> PathBuf {
        self.data_dir(node).join(format!("{topic}-{partition}"))
    }

    /// What a node has printed.
    pub fn output(&self, node: Node) -> String {
        let bytes = std::fs::read(self.log_file(node)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The node's process, if it was not killed or stopped.
    ///
    /// # Panics
    /// When it was.
    pub fn process(&mut self, node: Node) -> &mut Process {
        self.member(node)
            .process
            .as_mut()
            .unwrap_or_else(|| panic!("{node} is not running"))
    }

    /// Whether a node runs and is not paused.
    pub fn is_running(&mut self, node: Node) -> bool {
        self.member(node)
            .process
            .as_mut()
            .is_some_and(Process::is_running)
    }

    /// Has the directory stay when the test fails; the environment variable `EPOKA_KEEP` has it stay in any case.
    pub fn keep_when_failing(&mut self) {
        self.keeps_when_failing = true;
    }

    // What is done to nodes.

    /// Gives a node another property at its next start.
    pub fn set_property(&mut self, node: Node, name: &str, value: &str) {
        let properties = &mut self.member(node).properties;
        properties.insert(name.into(), value.into());
    }

    /// Waits until a node has ended by itself.
    ///
    /// # Panics
    /// When it does not.
    pub async fn ended(&mut self, node: Node) -> ExitStatus {
        let status = self.process(node).exited(PATIENCE).await;
        self.timeline.note(format!("{node} ended"));
        self.member(node).process = None;
        status
    }

    /// Starts a node that is not running.
    ///
    /// # Panics
    /// When it is.
    pub fn start_node(&mut self, node: Node) {
        let mut command = Command::new(&self.binary);
        command.arg(node.kind()).current_dir(self.dir.path());
        for (name, value) in &self.members[&node].properties {
            command.arg("--set").arg(format!("{name}={value}"));
        }
        self.timeline.note(format!("{node} started"));
        let log = self.log_file(node);
        assert!(self.members[&node].process.is_none(), "{node} runs already");
        let process = Process::start(&node.to_string(), command, &log);
        self.network.started(node, process.pid());
        self.member(node).process = Some(process);
    }

    /// SIGKILL.
    pub fn kill(&mut self, node: Node) {
        self.timeline.note(format!("{node} killed"));
        self.process(node).kill();
        self.member(node).process = None;
    }

    /// SIGKILL for every node, as near to at once as can be.
    pub fn kill_all(&mut self) {
        for node in self.nodes() {
            if self.member(node).process.is_some() {
                self.kill(node);
            }
        }
    }

    /// Starts every node that is not running.
    pub fn start_all(&mut self) {
        for node in self.nodes() {
            if self.member(node).process.is_none() {
                self.start_node(node);
            }
        }
    }

    /// SIGTERM, and waits until the node has ended by itself.
    ///
    /// # Panics
    /// When it does not.
    pub async fn stop(&mut self, node: Node) -> ExitStatus {
        self.timeline.note(format!("{node} asked to stop"));
        self.process(node).terminate();
        let status = self.process(node).exited(PATIENCE).await;
        self.timeline.note(format!("{node} stopped"));
        self.member(node).process = None;
        status
    }

    /// SIGSTOP.
    pub fn pause(&mut self, node: Node) {
        self.timeline.note(format!("{node} paused"));
        self.process(node).pause();
    }

    /// SIGCONT.
    pub fn resume(&mut self, node: Node) {
        self.timeline.note(format!("{node} resumed"));
        self.process(node).resume();
    }

    /// Separates a node from all other nodes, both ways. Kafka clients still reach it.
    pub fn isolate(&self, node: Node, fault: Fault) {
        self.timeline.note(format!("{node} isolated: {fault:?}"));
        for other in self.members.keys().filter(|n| **n != node) {
            self.network.set(node, *other, Some(fault));
            self.network.set(*other, node, Some(fault));
        }
    }

    /// Makes the way from one node to another bad, or good again. The way back is another matter.
    pub fn set_fault(&self, from: Node, to: Node, fault: Option<Fault>) {
        self.timeline.note(format!("{from} -> {to}: {fault:?}"));
        self.network.set(from, to, fault);
    }

    /// See [`Network::mislead`].
    pub fn mislead(&self, node: Node, other: Node) {
        self.timeline
            .note(format!("the address of {node} leads to {other}"));
        self.network.mislead(node, other);
    }

    /// Waits until so many connections to `node` have reached somebody else.
    ///
    /// # Panics
    /// When they do not.
    pub async fn await_astray(&self, node: Node, count: usize) {
        let astray = timeout(PATIENCE, self.network.await_astray(node, count)).await;
        astray.unwrap_or_else(|_| panic!("{count} connections to {node} did not go astray"));
    }

    /// Mends the whole network.
    pub fn heal(&self) {
        self.timeline.note("network healed".into());
        self.network.heal();
    }

    /// Creates a topic; its leaders may still be taking over when this returns.
    ///
    /// # Panics
    /// When it is refused.
    pub async fn create_topic(&self, topic: &NewTopic) {
        let admin = self.client.admin();
        let created = poll(PATIENCE, async || admin.create_topic(topic).await).await;
        created.unwrap_or_else(|e| panic!("{e}"));
    }

    // What is seen of it.

    /// The newest picture that any running broker has of the cluster; `None` when none answers.
    pub async fn metadata(&mut self) -> Option<Metadata> {
        let addresses = self
            .running_brokers()
            .into_iter()
            .map(|n| self.grpc_address(n));
        let answers = join_all(addresses.map(|address| self.client.describe(address))).await;
        answers.into_iter().flatten().max_by_key(|m| m.offset)
    }

    /// A partition's leader, as the newest picture has it.
    ///
    /// # Panics
    /// When it has none within [`PATIENCE`].
    pub async fn leader_of(&mut self, topic: &str, partition: i32) -> Node {
        let name = TopicPartition::new(topic, partition);
        let what = format!("{name} to have a leader");
        self.until_metadata(&what, |m| {
            m.partition(&name).ok()?.leader.map(|l| Node::Broker(l.0))
        })
        .await
    }

    /// Another leader than `old`.
    ///
    /// # Panics
    /// When there is none within [`PATIENCE`].
    pub async fn leader_other_than(&mut self, old: Node, topic: &str, partition: i32) -> Node {
        let name = TopicPartition::new(topic, partition);
        let what = format!("{name} to be led by another than {old}");
        let leader = |m: &Metadata| m.partition(&name).ok()?.leader.map(|l| Node::Broker(l.0));
        self.until_metadata(&what, |m| leader(m).filter(|l| *l != old))
            .await
    }

    /// Waits until every broker is registered and may lead.
    ///
    /// # Panics
    /// When that is not so within [`PATIENCE`].
    pub async fn await_all_brokers(&mut self) {
        let count = self.brokers().len();
        let all = |m: &Metadata| {
            m.brokers
                .values()
                .filter(|b| !b.fenced && !b.shutting_down)
                .count()
                == count
        };
        self.until_metadata("all brokers to be unfenced", |m| all(m).then_some(()))
            .await;
    }

    /// Waits until every partition has a leader, all its replicas in the ISR, and equal log ends and high watermarks on all
    /// of them. Every broker must be running, and nobody writing.
    ///
    /// # Panics
    /// When that is not so within [`PATIENCE`].
    pub async fn await_whole(&mut self) {
        self.until_metadata("every partition to be whole", |m| {
            m.partitions().all(|(_, p)| p.is_whole()).then_some(())
        })
        .await;
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            match self.unequal_replica().await {
                None => return,
                Some(seen) if tokio::time::Instant::now() > deadline => {
                    panic!("replicas stay different: {seen}")
                }
                Some(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    }

    async fn unequal_replica(&mut self) -> Option<String> {
        let Some(metadata) = self.metadata().await else {
            return Some("no broker answers".to_owned());
        };
        let wanted: usize = metadata.partitions().map(|(_, p)| p.replicas.len()).sum();
        let mut known = BTreeMap::new();
        let mut held = 0;
        for (broker, states) in self.replica_states().await {
            let Some(states) = states else {
                return Some(format!("{broker} does not answer"));
            };
            held += states.len();
            for state in states {
                let at = (state.log_end, state.high_watermark);
                let first = *known.entry(state.partition.clone()).or_insert(at);
                if at != first || at.0 != at.1 || state.offline.is_some() {
                    return Some(format!("{broker} {state:?}, another replica {first:?}"));
                }
            }
        }
        // A broker that has just started may not hold its replicas yet.
        (held != wanted).then(|| format!("{held} replicas of {wanted}"))
    }

    /// What each broker's replicas hold; `None` for a broker that is down or does not answer.
    pub async fn replica_states(&mut self) -> BTreeMap<Node, Option<Vec<ReplicaState>>> {
        let running = self.running_brokers();
        let admin = self.client.admin();
        let answers = self.brokers().into_iter().map(async |node| {
            let address = self.members[&node].grpc.address();
            let states = if running.contains(&node) {
                admin.replicas_at(&address).await.ok()
            } else {
                None
            };
            (node, states)
        });
        join_all(answers).await.into_iter().collect()
    }

    /// What one broker's replica of a partition holds.
    pub async fn replica_state(
        &mut self,
        node: Node,
        topic: &str,
        partition: i32,
    ) -> Option<ReplicaState> {
        let name = TopicPartition::new(topic, partition);
        let states = self
            .client
            .admin()
            .replicas_at(&self.grpc_address(node))
            .await
            .ok()?;
        states.into_iter().find(|s| s.partition == name)
    }

    /// Looks at the newest picture of the cluster until `look` finds what it wants.
    ///
    /// # Panics
    /// When it does not within [`PATIENCE`].
    pub async fn until_metadata<T>(
        &mut self,
        what: &str,
        mut look: impl FnMut(&Metadata) -> Option<T>,
    ) -> T {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let seen = self.metadata().await;
            if let Some(found) = seen.as_ref().and_then(&mut look) {
                return found;
            }
            assert!(
                tokio::time::Instant::now() < deadline,
                "waited {PATIENCE:?} for {what}; last seen: {seen:#?}"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// The active controller.
    ///
    /// # Panics
    /// When there is none within [`PATIENCE`].
    pub async fn active_controller(&mut self) -> Node {
        let active = poll(PATIENCE, async || {
            self.quorum().await.ok_or("no controller says it is active")
        })
        .await;
        active.unwrap_or_else(|seen| panic!("waited {PATIENCE:?} for an active controller: {seen}"))
    }

    async fn quorum(&self) -> Option<Node> {
        let controllers = self
            .members
            .keys()
            .filter(|n| matches!(n, Node::Controller(_)));
        let asked = controllers.map(async |node| {
            let mut controller = self
                .client
                .connections()
                .controller(&self.grpc_address(*node))
                .ok()?;
            let answer =
                tokio::time::timeout(ANSWER, controller.describe_quorum(DescribeQuorumRequest {}))
                    .await;
            Some(answer.ok()?.ok()?.into_inner())
        });
        let answers: Vec<DescribeQuorumResponse> =
            join_all(asked).await.into_iter().flatten().collect();
        let itself = answers
            .into_iter()
            .filter(|a| a.active_id == Some(a.controller_id));
        itself
            .max_by_key(|a| a.term)
            .map(|a| Node::Controller(a.controller_id))
    }

    /// What happened so far.
    pub fn events(&self) -> Vec<Event> {
        self.timeline.events()
    }

    /// The timeline, to wait for an event in it.
    pub fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    fn running_brokers(&mut self) -> Vec<Node> {
        self.brokers()
            .into_iter()
            .filter(|n| self.is_running(*n))
            .collect()
    }

    fn member(&mut self, node: Node) -> &mut Member {
        self.members
            .get_mut(&node)
            .unwrap_or_else(|| panic!("there is no {node}"))
    }

    fn log_file(&self, node: Node) -> PathBuf {
        self.dir.path().join("output").join(node.to_string())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for member in self.members.values_mut() {
            member.process = None;
        }
        let asked = std::env::var_os("EPOKA_KEEP").is_some();
        if std::thread::panicking() || asked {
            println!("---- timeline\n{}", self.timeline.text());
            for log in logs_in(&self.dir.path().join("output")) {
                let name = log.file_name().unwrap_or_default().to_string_lossy();
                println!("---- {name}\n{}", tail(&log));
            }
            if asked || self.keeps_when_failing {
                self.dir.disable_cleanup(true);
                println!("---- kept {}", self.dir.path().display());
            }
        }
    }
}

/// Ports, proxies and properties of every node.
async fn members(spec: &Spec, network: &Network, dir: &Path) -> BTreeMap<Node, Member> {
    let mut members = BTreeMap::new();
    let mut voters = Vec::new();
    for id in 1..=spec.controllers {
        let node = Node::Controller(id);
        let grpc = Port::reserve();
        voters.push((id, network.proxy(node, grpc.address()).await));
        let own = [("listeners", format!("CONTROLLER://{}", grpc.address()))];
        let properties = properties(node, dir, own, &spec.controller_properties);
        members.insert(
            node,
            Member {
                process: None,
                kafka: None,
                grpc,
                properties,
            },
        );
    }
    let list: Vec<_> = voters
        .iter()
        .map(|(id, address)| format!("{id}@{address}"))
        .collect();
    for controller in members.values_mut() {
        controller
            .properties
            .insert("controller.quorum.voters".into(), list.join(","));
    }
    let controllers: Vec<_> = voters.into_iter().map(|(_, address)| address).collect();
    for id in 1..=spec.brokers {
        let node = Node::Broker(id);
        let (kafka, grpc) = (Port::reserve(), Port::reserve());
        let own = [
            ("listeners", format!("PLAINTEXT://{}", kafka.address())),
            ("epoka.grpc.listener", grpc.address()),
            (
                "epoka.grpc.advertised",
                network.proxy(node, grpc.address()).await,
            ),
            ("controller.quorum.bootstrap.servers", controllers.join(",")),
        ];
        let properties = properties(node, dir, own, &spec.broker_properties);
        members.insert(
            node,
            Member {
                process: None,
                kafka: Some(kafka),
                grpc,
                properties,
            },
        );
    }
    members
}

fn properties<const N: usize>(
    node: Node,
    dir: &Path,
    own: [(&str, String); N],
    asked: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let mut properties = BTreeMap::from(own.map(|(name, value)| (name.to_owned(), value)));
    properties.insert("node.id".into(), node.id().to_string());
    properties.insert(
        "log.dirs".into(),
        dir.join(node.to_string()).display().to_string(),
    );
    properties.extend(asked.clone());
    properties
}
