//! A cluster of processes of this machine: `epoka up` runs the nodes, its supervisor does to them what is asked.

mod binary;
mod description;
mod up;

use std::path::{Path, PathBuf};
use std::time::Duration;

use epoka_client::Connections;
use epoka_client::events::Collector;
use epoka_proto::v1::act_request::Action as WireAction;
use epoka_proto::v1::{ActRequest, DescribeQuorumRequest, ProcessesRequest};
use tokio::time::timeout;

use crate::action::{Action, State};
use crate::builder::Builder;
use crate::error::{Error, Result};
use crate::target::Node;
use crate::timeline::WINDOW;
use description::Description;
use up::Up;

/// How long a controller may take to say who is active.
const LOOK: Duration = Duration::from_secs(1);

/// A running cluster.
pub struct Processes {
    description: Description,
    connections: Connections,
    up: Up,
}

impl Processes {
    /// Starts a cluster and waits until it is ready.
    ///
    /// # Errors
    /// There is no program; the cluster does not become ready.
    pub async fn launch(plan: &Builder) -> Result<Self> {
        let program = binary::find(plan.binary.as_deref())?;
        let (mut up, ready) = Up::start(program, plan)?;
        let why = match timeout(plan.patience, ready).await {
            Ok(Ok(_)) => match Description::read(up.directory()) {
                Ok(description) => {
                    return Ok(Self {
                        description,
                        connections: Connections::default(),
                        up,
                    });
                }
                Err(why) => why,
            },
            Ok(Err(_)) => up.last_words(),
            Err(_) => {
                let waited = plan.patience.as_millis();
                format!("waited {waited} ms; last seen: {}", up.last_words())
            }
        };
        let directory = Some(up.keep());
        Err(Error::NotReady { why, directory })
    }

    /// The brokers' Kafka addresses.
    pub fn bootstrap(&self) -> &str {
        &self.description.bootstrap
    }

    /// Where the SDK reaches the brokers.
    pub fn brokers(&self) -> Vec<String> {
        let nodes = self.description.nodes();
        nodes
            .filter(|(node, _)| matches!(node, Node::Broker(_)))
            .map(|(_, address)| address.to_owned())
            .collect()
    }

    /// Where the cluster keeps its data and its logs.
    pub fn directory(&self) -> &Path {
        self.up.directory()
    }

    /// Keeps the directory when the cluster ends; returns where it is.
    pub fn keep(&mut self) -> PathBuf {
        self.up.keep()
    }

    /// The source of everything that happens: all nodes and the supervisor.
    pub fn events(&self) -> impl Future<Output = Collector> + Send + use<> {
        let sources = self.description.event_sources();
        async { Collector::new(&Connections::default(), sources, WINDOW) }
    }

    /// Does something to a process, and waits until it shows.
    ///
    /// # Errors
    /// The process is in no state for it; the cluster has ended.
    pub async fn act(&self, action: Action, node: Node) -> Result<()> {
        let mut supervisor = self.connections.supervisor(&self.description.supervisor)?;
        let action_on_wire = match action {
            Action::Kill => WireAction::Kill,
            Action::Stop => WireAction::Stop,
            Action::Start => WireAction::Start,
            Action::Pause => WireAction::Pause,
            Action::Resume => WireAction::Resume,
        };
        let request = ActRequest {
            action: action_on_wire.into(),
            kind: node.kind().to_owned(),
            id: node.id(),
        };
        let answer = supervisor.act(request).await.map_err(|_| self.ended())?;
        let why = answer.into_inner().refused;
        if why.is_empty() {
            return Ok(());
        }
        let done = action.past();
        Err(Error::Refused { node, done, why })
    }

    /// What every process is doing.
    ///
    /// # Errors
    /// The cluster has ended.
    pub async fn states(&self) -> Result<Vec<(Node, State)>> {
        let mut supervisor = self.connections.supervisor(&self.description.supervisor)?;
        let answer = supervisor.processes(ProcessesRequest {}).await;
        let processes = answer.map_err(|_| self.ended())?.into_inner().processes;
        let known = processes.into_iter().filter_map(|process| {
            let state = match process.state.as_str() {
                "running" => State::Running,
                "paused" => State::Paused,
                _ => State::Down,
            };
            Some((description::node(&process.kind, process.id)?, state))
        });
        Ok(known.collect())
    }

    /// The active controller, as this controller knows it; any of them when none is named. `None` when there is none, or
    /// nobody answers.
    pub async fn active_controller(&self, asked: Option<Node>) -> Option<i32> {
        let controllers = self.description.nodes().filter(|(node, _)| match asked {
            Some(asked) => *node == asked,
            None => matches!(node, Node::Controller(_)),
        });
        for (_, address) in controllers {
            let Ok(mut controller) = self.connections.controller(address) else {
                continue;
            };
            let asked = controller.describe_quorum(DescribeQuorumRequest {});
            if let Ok(Ok(answer)) = timeout(LOOK, asked).await
                && let Some(id) = answer.into_inner().active_id
            {
                return Some(id);
            }
        }
        None
    }

    /// What a process said last.
    pub fn last_words(&self, node: Node) -> String {
        let file = format!("{}.log", node.name());
        let said = std::fs::read_to_string(self.directory().join("logs").join(file));
        let said = said.unwrap_or_default();
        let last = said.trim().lines().last().unwrap_or("it said nothing");
        last.strip_prefix("epoka: ").unwrap_or(last).to_owned()
    }

    fn ended(&self) -> Error {
        Error::Ended {
            why: self.up.last_words(),
        }
    }
}
