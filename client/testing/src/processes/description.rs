//! `cluster.json`, as far as a test needs it: where the supervisor and the nodes of a local cluster are.

use std::path::Path;

use serde::Deserialize;

use crate::target::Node;

/// A local cluster.
#[derive(Debug, Deserialize)]
pub struct Description {
    /// The supervisor's gRPC address.
    pub supervisor: String,
    /// The brokers' Kafka addresses, separated by commas.
    pub bootstrap: String,
    nodes: Vec<Described>,
}

#[derive(Debug, Deserialize)]
struct Described {
    kind: String,
    id: i32,
    grpc: String,
}

impl Description {
    /// Reads it from a cluster's directory; the error is a sentence.
    pub fn read(directory: &Path) -> Result<Self, String> {
        let path = directory.join("cluster.json");
        let wrong =
            |why: &dyn std::fmt::Display| format!("{} cannot be read: {why}", path.display());
        let bytes = std::fs::read(&path).map_err(|e| wrong(&e))?;
        serde_json::from_slice(&bytes).map_err(|e| wrong(&e))
    }

    /// Every node and its gRPC address, controllers first.
    pub fn nodes(&self) -> impl Iterator<Item = (Node, &str)> {
        self.nodes.iter().filter_map(|described| {
            let node = node(&described.kind, described.id)?;
            Some((node, described.grpc.as_str()))
        })
    }

    /// Every address with an events service: all nodes and the supervisor.
    pub fn event_sources(&self) -> Vec<String> {
        let nodes = self.nodes().map(|(_, address)| address);
        nodes
            .chain([self.supervisor.as_str()])
            .map(str::to_owned)
            .collect()
    }
}

/// The node that the supervisor names so.
pub fn node(kind: &str, id: i32) -> Option<Node> {
    match kind {
        "broker" => Some(Node::Broker(id)),
        "controller" => Some(Node::Controller(id)),
        _ => None,
    }
}
