//! What can go wrong for a client, said so that a person can act on it.

use epoka_proto::error::ErrorCode;
use epoka_proto::ids::TopicPartition;
use tonic::Status;

/// The result of an operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation failed. Everything that another try could cure was tried again before this was returned.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Not one of the addresses answered.
    #[error("no broker answered at {addresses}: {reason}")]
    Unreachable {
        /// Who was asked, separated by commas.
        addresses: String,
        /// What the last one of them, or the network, said.
        reason: String,
    },
    /// Whoever answers now is of another cluster than the one this client got to know.
    #[error(
        "the brokers there are of another cluster now, {other}; this client belongs to {ours}: begin anew to work with the other"
    )]
    OtherCluster {
        /// The id of the client's cluster.
        ours: String,
        /// The id of the cluster that answered.
        other: String,
    },
    /// The cluster has no such topic.
    #[error("topic {topic} does not exist")]
    UnknownTopic {
        /// Its name.
        topic: String,
    },
    /// The topic exists but has fewer partitions.
    #[error("{partition} does not exist: the topic has {count} partitions, numbered from 0")]
    UnknownPartition {
        /// What was asked for.
        partition: TopicPartition,
        /// How many partitions the topic has.
        count: usize,
    },
    /// A broker or the controller said no, and would say so again.
    #[error("{what} was refused: {reason}")]
    Refused {
        /// What was asked.
        what: String,
        /// The error as Kafka numbers it.
        code: ErrorCode,
        /// The answer in words.
        reason: String,
    },
    /// No try succeeded in time. What was asked may still have happened.
    #[error("{what} did not succeed within {waited_ms} ms: {last}")]
    TimedOut {
        /// What was asked.
        what: String,
        /// How long it was tried.
        waited_ms: u128,
        /// What went wrong last.
        last: String,
    },
    /// A batch that came from a broker cannot be read.
    #[error("{partition} at offset {offset} cannot be read: {reason}")]
    Corrupt {
        /// Where it was read.
        partition: TopicPartition,
        /// The position of the reader.
        offset: i64,
        /// What is wrong with the bytes.
        reason: String,
    },
    /// The producer was closed before the record could be sent.
    #[error("the producer is closed")]
    Closed,
}

impl Error {
    /// The Kafka error code of a refusal.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Turns the error fields of a gRPC answer into a result.
    pub(crate) fn check(what: impl FnOnce() -> String, error: i32, message: &str) -> Result<()> {
        code_of(error).map_err(|code| Self::Refused {
            what: what(),
            code,
            reason: reason(code, message),
        })
    }
}

/// Reads the error field of a gRPC answer.
pub(crate) fn code_of(error: i32) -> Result<(), ErrorCode> {
    let code = i16::try_from(error).unwrap_or(ErrorCode::UnknownServerError.code());
    ErrorCode::from_wire(code)
}

/// A refusal in words, naming Kafka's error once.
pub(crate) fn reason(code: ErrorCode, message: &str) -> String {
    let name = code.name();
    match (message.trim(), words(code)) {
        (said, words) if said.is_empty() || said == name => {
            words.map_or_else(|| name.to_owned(), |words| format!("{words} ({name})"))
        }
        (said, _) if said.contains(name) => said.to_owned(),
        (said, _) => format!("{said} ({name})"),
    }
}

/// What brokers say with nothing but a code, in words.
fn words(code: ErrorCode) -> Option<&'static str> {
    Some(match code {
        ErrorCode::OffsetOutOfRange => "the log does not have that offset",
        ErrorCode::CorruptMessage => "the batch arrived damaged",
        ErrorCode::UnknownTopicOrPartition => "the broker does not know the partition",
        ErrorCode::LeaderNotAvailable => "the partition has no leader",
        ErrorCode::NotLeaderOrFollower => "the broker does not lead the partition",
        ErrorCode::RequestTimedOut => "it was not committed in time",
        ErrorCode::MessageTooLarge => "the batch is larger than the topic allows",
        ErrorCode::NotEnoughReplicas => "fewer replicas are in sync than min.insync.replicas",
        ErrorCode::NotEnoughReplicasAfterAppend => {
            "it was appended, but fewer replicas are in sync than min.insync.replicas"
        }
        ErrorCode::OutOfOrderSequenceNumber => "batches before it are missing",
        ErrorCode::KafkaStorageError => "the replica is offline",
        _ => return None,
    })
}

/// What a gRPC failure says, without the transport's own nesting of causes.
pub(crate) fn status_reason(status: &Status) -> String {
    let mut cause: &dyn std::error::Error = status;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    if std::ptr::addr_eq(cause, status) {
        status.message().to_owned()
    } else {
        cause.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_names_the_error_once_and_says_it_in_words() {
        let code = ErrorCode::NotEnoughReplicas;
        for message in [
            "",
            "NOT_ENOUGH_REPLICAS",
            "2 are needed",
            "NOT_ENOUGH_REPLICAS: 2 are needed",
        ] {
            let reason = reason(code, message);
            assert_eq!(reason.matches(code.name()).count(), 1, "{reason}");
            assert!(
                reason.contains("needed") || reason.contains("in sync"),
                "{reason}"
            );
        }
        assert_eq!(reason(ErrorCode::PolicyViolation, ""), "POLICY_VIOLATION");
    }
}
