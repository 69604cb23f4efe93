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

/// A refusal in words, naming Kafka's error.
pub(crate) fn reason(code: ErrorCode, message: &str) -> String {
    if message.is_empty() || message == code.name() {
        code.name().to_owned()
    } else {
        format!("{message} ({code})")
    }
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
