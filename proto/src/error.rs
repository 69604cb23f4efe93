//! One enum of the errors that travel on the wire, with their Kafka codes.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! errors {
    ($($(#[$doc:meta])* $name:ident = $code:literal $text:literal retriable: $retriable:literal;)*) => {
        /// An error as a Kafka client knows it. The code is what goes on the wire; `None` there means success (code 0).
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
        #[allow(missing_docs)]
        #[repr(i16)]
        pub enum ErrorCode {
            $($(#[$doc])* $name = $code,)*
        }

        impl ErrorCode {
            /// Every error, for tables and tests.
            pub const ALL: &[ErrorCode] = &[$(Self::$name,)*];

            /// Reads a wire code. 0 is success; a code from a newer peer reads as `UnknownServerError`.
            pub fn from_wire(code: i16) -> Result<(), Self> {
                match code {
                    0 => Ok(()),
                    $($code => Err(Self::$name),)*
                    _ => Err(Self::UnknownServerError),
                }
            }

            /// Kafka's name of the error, such as `NOT_LEADER_OR_FOLLOWER`.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// Whether a client may expect another try to succeed.
            pub fn is_retriable(self) -> bool {
                match self { $(Self::$name => $retriable,)* }
            }
        }
    };
}

errors! {
    UnknownServerError = -1 "UNKNOWN_SERVER_ERROR" retriable: false;
    OffsetOutOfRange = 1 "OFFSET_OUT_OF_RANGE" retriable: false;
    CorruptMessage = 2 "CORRUPT_MESSAGE" retriable: true;
    UnknownTopicOrPartition = 3 "UNKNOWN_TOPIC_OR_PARTITION" retriable: true;
    InvalidFetchSize = 4 "INVALID_FETCH_SIZE" retriable: false;
    LeaderNotAvailable = 5 "LEADER_NOT_AVAILABLE" retriable: true;
    NotLeaderOrFollower = 6 "NOT_LEADER_OR_FOLLOWER" retriable: true;
    RequestTimedOut = 7 "REQUEST_TIMED_OUT" retriable: true;
    BrokerNotAvailable = 8 "BROKER_NOT_AVAILABLE" retriable: false;
    ReplicaNotAvailable = 9 "REPLICA_NOT_AVAILABLE" retriable: true;
    MessageTooLarge = 10 "MESSAGE_TOO_LARGE" retriable: false;
    CoordinatorLoadInProgress = 14 "COORDINATOR_LOAD_IN_PROGRESS" retriable: true;
    CoordinatorNotAvailable = 15 "COORDINATOR_NOT_AVAILABLE" retriable: true;
    NotCoordinator = 16 "NOT_COORDINATOR" retriable: true;
    InvalidTopic = 17 "INVALID_TOPIC_EXCEPTION" retriable: false;
    RecordListTooLarge = 18 "RECORD_LIST_TOO_LARGE" retriable: false;
    NotEnoughReplicas = 19 "NOT_ENOUGH_REPLICAS" retriable: true;
    NotEnoughReplicasAfterAppend = 20 "NOT_ENOUGH_REPLICAS_AFTER_APPEND" retriable: true;
    InvalidRequiredAcks = 21 "INVALID_REQUIRED_ACKS" retriable: false;
    TopicAuthorizationFailed = 29 "TOPIC_AUTHORIZATION_FAILED" retriable: false;
    InvalidTimestamp = 32 "INVALID_TIMESTAMP" retriable: false;
    UnsupportedVersion = 35 "UNSUPPORTED_VERSION" retriable: false;
    TopicAlreadyExists = 36 "TOPIC_ALREADY_EXISTS" retriable: false;
    InvalidPartitions = 37 "INVALID_PARTITIONS" retriable: false;
    InvalidReplicationFactor = 38 "INVALID_REPLICATION_FACTOR" retriable: false;
    InvalidReplicaAssignment = 39 "INVALID_REPLICA_ASSIGNMENT" retriable: false;
    InvalidConfig = 40 "INVALID_CONFIG" retriable: false;
    NotController = 41 "NOT_CONTROLLER" retriable: true;
    InvalidRequest = 42 "INVALID_REQUEST" retriable: false;
    UnsupportedForMessageFormat = 43 "UNSUPPORTED_FOR_MESSAGE_FORMAT" retriable: false;
    PolicyViolation = 44 "POLICY_VIOLATION" retriable: false;
    OutOfOrderSequenceNumber = 45 "OUT_OF_ORDER_SEQUENCE_NUMBER" retriable: false;
    DuplicateSequenceNumber = 46 "DUPLICATE_SEQUENCE_NUMBER" retriable: false;
    InvalidProducerEpoch = 47 "INVALID_PRODUCER_EPOCH" retriable: false;
    InvalidTxnState = 48 "INVALID_TXN_STATE" retriable: false;
    KafkaStorageError = 56 "KAFKA_STORAGE_ERROR" retriable: true;
    LogDirNotFound = 57 "LOG_DIR_NOT_FOUND" retriable: false;
    UnknownProducerId = 59 "UNKNOWN_PRODUCER_ID" retriable: false;
    FetchSessionIdNotFound = 70 "FETCH_SESSION_ID_NOT_FOUND" retriable: true;
    InvalidFetchSessionEpoch = 71 "INVALID_FETCH_SESSION_EPOCH" retriable: true;
    ListenerNotFound = 72 "LISTENER_NOT_FOUND" retriable: true;
    FencedLeaderEpoch = 74 "FENCED_LEADER_EPOCH" retriable: true;
    UnknownLeaderEpoch = 75 "UNKNOWN_LEADER_EPOCH" retriable: true;
    UnsupportedCompressionType = 76 "UNSUPPORTED_COMPRESSION_TYPE" retriable: false;
    StaleBrokerEpoch = 77 "STALE_BROKER_EPOCH" retriable: false;
    OffsetNotAvailable = 78 "OFFSET_NOT_AVAILABLE" retriable: true;
    PreferredLeaderNotAvailable = 80 "PREFERRED_LEADER_NOT_AVAILABLE" retriable: true;
    EligibleLeadersNotAvailable = 83 "ELIGIBLE_LEADERS_NOT_AVAILABLE" retriable: true;
    ElectionNotNeeded = 84 "ELECTION_NOT_NEEDED" retriable: false;
    InvalidRecord = 87 "INVALID_RECORD" retriable: false;
    InvalidUpdateVersion = 95 "INVALID_UPDATE_VERSION" retriable: false;
    UnknownTopicId = 100 "UNKNOWN_TOPIC_ID" retriable: true;
    DuplicateBrokerRegistration = 101 "DUPLICATE_BROKER_REGISTRATION" retriable: false;
    BrokerIdNotRegistered = 102 "BROKER_ID_NOT_REGISTERED" retriable: false;
    InconsistentTopicId = 103 "INCONSISTENT_TOPIC_ID" retriable: true;
    InconsistentClusterId = 104 "INCONSISTENT_CLUSTER_ID" retriable: false;
    IneligibleReplica = 107 "INELIGIBLE_REPLICA" retriable: false;
    NewLeaderElected = 108 "NEW_LEADER_ELECTED" retriable: false;
    RebootstrapRequired = 129 "REBOOTSTRAP_REQUIRED" retriable: false;
}

impl ErrorCode {
    /// The code as the wire carries it.
    pub fn code(self) -> i16 {
        self as i16
    }

    /// The wire code of a result: 0 for success.
    pub fn to_wire<T>(result: &Result<T, Self>) -> i16 {
        result.as_ref().err().map_or(0, |e| e.code())
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::error::Error for ErrorCode {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_reads_back_and_the_unknown_is_an_unknown_server_error() {
        for &error in ErrorCode::ALL {
            assert_eq!(ErrorCode::from_wire(error.code()), Err(error));
        }
        assert_eq!(ErrorCode::from_wire(0), Ok(()));
        assert_eq!(
            ErrorCode::from_wire(9999),
            Err(ErrorCode::UnknownServerError)
        );
    }
}
