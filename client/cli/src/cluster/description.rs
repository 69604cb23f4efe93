//! `cluster.json`: where a local cluster is, so that commands in another shell need no address, and so that the next `up`
//! finds the shape and the ports it had.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Outcome};
use crate::target::Kind;

/// A local cluster as it was started last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// The supervisor's process.
    pub supervisor_pid: u32,
    /// The supervisor's gRPC address.
    pub supervisor: String,
    /// The brokers' Kafka addresses, separated by commas.
    pub bootstrap: String,
    /// Every process, controllers first.
    pub nodes: Vec<NodeDescription>,
}

/// One broker or controller of a local cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeDescription {
    /// What it is.
    pub kind: Kind,
    /// Its id among its kind.
    pub id: i32,
    /// Where Kafka clients reach a broker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kafka: Option<String>,
    /// Where its gRPC services are.
    pub grpc: String,
    /// Its data.
    pub log_dirs: Vec<PathBuf>,
    /// What it writes to its standard output and error.
    pub output: PathBuf,
}

impl NodeDescription {
    /// `broker 2`.
    pub fn title(&self) -> String {
        format!("{} {}", self.kind, self.id)
    }

    /// `broker-2`, as events name it.
    pub fn name(&self) -> String {
        format!("{}-{}", self.kind, self.id)
    }
}

impl Description {
    /// The file's name in a cluster's directory.
    const FILE: &str = "cluster.json";

    /// Reads the description of the cluster in this directory; `None` when there never was one.
    ///
    /// # Errors
    /// The file is there but cannot be read.
    pub fn read(directory: &Path) -> Outcome<Option<Self>> {
        let path = directory.join(Self::FILE);
        let wrong = |why: String| {
            let path = path.display();
            Failure::wrong(format!(
                "{path} cannot be read: {why}; remove it and run `epoka up` again"
            ))
        };
        match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map(Some)
                .map_err(|e| wrong(e.to_string())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(wrong(error.to_string())),
        }
    }

    /// Writes the description, so that a reader sees the old one or the new one.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn write(&self, directory: &Path) -> Outcome {
        let path = directory.join(Self::FILE);
        let draft = directory.join(format!("{}.tmp", Self::FILE));
        let json = serde_json::to_vec_pretty(self).expect("plain data");
        std::fs::write(&draft, json)
            .and_then(|()| std::fs::rename(&draft, &path))
            .map_err(|e| Failure::wrong(format!("{} cannot be written: {e}", path.display())))
    }

    /// The nodes of one kind.
    pub fn nodes_of(&self, kind: Kind) -> impl Iterator<Item = &NodeDescription> {
        self.nodes.iter().filter(move |n| n.kind == kind)
    }

    /// The brokers' gRPC addresses.
    pub fn brokers_grpc(&self) -> Vec<String> {
        self.nodes_of(Kind::Broker)
            .map(|n| n.grpc.clone())
            .collect()
    }

    /// Every address with an events service: all nodes and the supervisor.
    pub fn event_sources(&self) -> Vec<String> {
        let nodes = self.nodes.iter().map(|n| n.grpc.clone());
        nodes.chain([self.supervisor.clone()]).collect()
    }
}
