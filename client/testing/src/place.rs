//! Where a cluster's nodes run: as processes, or as containers. Everything else is the same for both.

use std::path::PathBuf;
use std::pin::Pin;

use epoka_client::events::Collector;

use crate::action::{Action, State};
use crate::builder::Builder;
#[cfg(feature = "containers")]
use crate::containers::Containers;
use crate::error::Result;
use crate::processes::Processes;
use crate::target::Node;

/// The nodes of a running cluster.
pub enum Place {
    /// Processes of this machine.
    Processes(Processes),
    /// Containers of the local Docker engine.
    #[cfg(feature = "containers")]
    Containers(Containers),
}

/// The source of everything that happens, made by the runtime that awaits it.
pub type Events = Pin<Box<dyn Future<Output = Collector> + Send>>;

impl Place {
    /// Starts a cluster and waits until it is ready.
    ///
    /// # Errors
    /// It does not become ready.
    pub async fn launch(plan: &Builder) -> Result<Self> {
        #[cfg(feature = "containers")]
        if plan.containers {
            return Containers::launch(plan).await.map(Self::Containers);
        }
        Processes::launch(plan).await.map(Self::Processes)
    }

    /// The brokers' Kafka addresses, separated by commas.
    pub fn bootstrap(&self) -> &str {
        match self {
            Self::Processes(processes) => processes.bootstrap(),
            #[cfg(feature = "containers")]
            Self::Containers(containers) => containers.bootstrap(),
        }
    }

    /// Where the SDK reaches the brokers.
    pub fn brokers(&self) -> Vec<String> {
        match self {
            Self::Processes(processes) => processes.brokers(),
            #[cfg(feature = "containers")]
            Self::Containers(containers) => containers.brokers(),
        }
    }

    /// Everybody who has events to tell.
    pub fn events(&self) -> Events {
        match self {
            Self::Processes(processes) => Box::pin(processes.events()),
            #[cfg(feature = "containers")]
            Self::Containers(containers) => Box::pin(containers.events()),
        }
    }

    /// Does something to a node, and waits until it shows.
    ///
    /// # Errors
    /// The node is in no state for it.
    pub async fn act(&self, action: Action, node: Node) -> Result<()> {
        match self {
            Self::Processes(processes) => processes.act(action, node).await,
            #[cfg(feature = "containers")]
            Self::Containers(containers) => containers.act(action, node).await,
        }
    }

    /// What every node is doing.
    ///
    /// # Errors
    /// Nobody is there to say so.
    pub async fn states(&self) -> Result<Vec<(Node, State)>> {
        match self {
            Self::Processes(processes) => processes.states().await,
            #[cfg(feature = "containers")]
            Self::Containers(containers) => containers.states().await,
        }
    }

    /// What a node said last.
    pub async fn last_words(&self, node: Node) -> String {
        match self {
            Self::Processes(processes) => processes.last_words(node),
            #[cfg(feature = "containers")]
            Self::Containers(containers) => containers.last_words(node).await,
        }
    }

    /// Keeps what the cluster has on this machine's disk when it ends; returns where it is.
    pub fn keep(&mut self) -> Option<PathBuf> {
        match self {
            Self::Processes(processes) => Some(processes.keep()),
            #[cfg(feature = "containers")]
            Self::Containers(_) => None,
        }
    }
}
