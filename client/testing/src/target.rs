//! What is acted on: a process, or whoever plays a part right now.

use std::fmt;

use epoka_proto::ids::TopicPartition;

/// One process of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Node {
    /// The broker with this id.
    Broker(i32),
    /// The controller with this id.
    Controller(i32),
}

impl Node {
    /// Its id among its kind, from 1.
    pub fn id(self) -> i32 {
        match self {
            Self::Broker(id) | Self::Controller(id) => id,
        }
    }

    /// `broker` or `controller`.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Broker(_) => "broker",
            Self::Controller(_) => "controller",
        }
    }

    /// `broker-2`, as events and files name it.
    pub(crate) fn name(self) -> String {
        format!("{}-{}", self.kind(), self.id())
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind(), self.id())
    }
}

/// A process, or a part that some process plays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// This process.
    Node(Node),
    /// The controller that is active.
    ActiveController,
    /// The broker that leads the partition.
    Leader(TopicPartition),
    /// A broker that holds the partition and does not lead it, one in the ISR if there is one.
    Follower(TopicPartition),
}

impl From<Node> for Target {
    fn from(node: Node) -> Self {
        Self::Node(node)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(node) => node.fmt(f),
            Self::ActiveController => f.write_str("the active controller"),
            Self::Leader(partition) => write!(f, "the leader of {partition}"),
            Self::Follower(partition) => write!(f, "a follower of {partition}"),
        }
    }
}

/// The broker with this id. Ids count from 1.
pub fn broker(id: i32) -> Target {
    Target::Node(Node::Broker(id))
}

/// The controller with this id. Ids count from 1.
pub fn controller(id: i32) -> Target {
    Target::Node(Node::Controller(id))
}

/// The controller that is active at the time.
pub fn active_controller() -> Target {
    Target::ActiveController
}

/// The broker that leads this partition at the time.
pub fn leader(topic: &str, partition: i32) -> Target {
    Target::Leader(TopicPartition::new(topic, partition))
}

/// A broker that follows this partition at the time, one in the ISR if there is one.
pub fn follower(topic: &str, partition: i32) -> Target {
    Target::Follower(TopicPartition::new(topic, partition))
}
