//! What `kill`, `stop`, `start`, `pause` and `resume` act on, as a person names it: a process, or whoever plays a part
//! right now.

use std::fmt;
use std::str::FromStr;

use epoka_proto::ids::TopicPartition;
use serde::{Deserialize, Serialize};

/// The kinds of process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A broker.
    Broker,
    /// A controller.
    Controller,
}

impl Kind {
    /// `broker` or `controller`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Broker => "broker",
            Self::Controller => "controller",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A process, or a part that some process plays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// `broker:2`, `controller:1`.
    Process(Kind, i32),
    /// `leader:orders-0`: the broker that leads the partition.
    Leader(TopicPartition),
    /// `follower:orders-0`: a running broker that holds the partition and does not lead it.
    Follower(TopicPartition),
    /// `controller`: the active controller.
    ActiveController,
}

/// The forms a target takes, for messages.
pub const FORMS: &str = "broker:2, leader:orders-0, follower:orders-0, controller, controller:1";

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| format!("`{text}` {why}; write one of: {FORMS}");
        let Some((subject, name)) = text.split_once(':') else {
            return match text {
                "controller" => Ok(Self::ActiveController),
                "broker" => Err(wrong("does not say which broker")),
                "leader" | "follower" => Err(wrong("does not say of which partition")),
                _ => Err(wrong("is not a target")),
            };
        };
        let id = || {
            let id = name.parse::<i32>().ok().filter(|id| *id >= 0);
            id.ok_or_else(|| wrong("does not end in a node's id"))
        };
        let partition = || {
            TopicPartition::parse(name)
                .ok_or_else(|| wrong("does not end in a partition such as orders-0"))
        };
        match subject {
            "broker" => Ok(Self::Process(Kind::Broker, id()?)),
            "controller" => Ok(Self::Process(Kind::Controller, id()?)),
            "leader" => partition().map(Self::Leader),
            "follower" => partition().map(Self::Follower),
            _ => Err(wrong("is not a target")),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process(kind, id) => write!(f, "{kind}:{id}"),
            Self::Leader(partition) => write!(f, "leader:{partition}"),
            Self::Follower(partition) => write!(f, "follower:{partition}"),
            Self::ActiveController => f.write_str("controller"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_read_back_as_they_print() {
        for text in [
            "broker:2",
            "controller:1",
            "leader:orders-0",
            "follower:my-topic-12",
            "controller",
        ] {
            let target: Target = text.parse().expect(text);
            assert_eq!(target.to_string(), text);
        }
    }

    #[test]
    fn a_wrong_target_is_answered_with_the_right_forms() {
        for (text, says) in [
            ("broker", "which broker"),
            ("broker:two", "a node's id"),
            ("broker:-1", "a node's id"),
            ("leader", "of which partition"),
            ("leader:orders", "a partition such as orders-0"),
            ("leder:orders-0", "is not a target"),
            ("", "is not a target"),
        ] {
            let error = text.parse::<Target>().expect_err(text);
            assert!(
                error.contains(says) && error.contains(FORMS),
                "{text}: {error}"
            );
        }
    }
}
