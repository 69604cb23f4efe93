//! Newtypes for every id, offset and epoch. Sentinels (-1 for "none") exist only on the wire; in the code they are `None`.

use std::fmt;
use std::ops::{Add, Sub};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl $name {
            /// Reads a wire field in which a negative number means "none".
            pub fn from_wire(value: $inner) -> Option<Self> {
                (value >= 0).then_some(Self(value))
            }

            /// Writes "none" as -1, as the wire wants it.
            pub fn to_wire(value: Option<Self>) -> $inner {
                value.map_or(-1, |v| v.0)
            }
        }
    };
}

number! {
    /// A broker's id, chosen by its operator; unique in the cluster.
    BrokerId(i32)
}
number! {
    /// Counts the leaders of a partition: one leader at most appends in a leader epoch.
    LeaderEpoch(i32)
}
number! {
    /// Counts the changes of a partition's assignment, leader changes included.
    PartitionEpoch(i32)
}
number! {
    /// Names one uptime of a broker process: the metadata offset of its registration.
    BrokerEpoch(i64)
}
number! {
    /// A record's position in its partition. Ends are exclusive: a log end is the next offset to be written.
    Offset(i64)
}
number! {
    /// An idempotent or transactional producer's id.
    ProducerId(i64)
}
number! {
    /// Counts the incarnations of one producer id.
    ProducerEpoch(i16)
}

impl Offset {
    /// The first offset of a new log.
    pub const ZERO: Self = Self(0);
}

impl Add<i64> for Offset {
    type Output = Self;
    fn add(self, records: i64) -> Self {
        Self(self.0 + records)
    }
}

impl Sub for Offset {
    type Output = i64;
    fn sub(self, other: Self) -> i64 {
        self.0 - other.0
    }
}

impl LeaderEpoch {
    /// The epoch after this one.
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl PartitionEpoch {
    /// The epoch after this one.
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// Milliseconds: since the Unix epoch in record timestamps, since an arbitrary start in what pure code is told of time.
pub type Millis = i64;

/// A topic's identity: a deleted and re-created topic gets a new one. Printed as 22 characters of base64url, as Kafka does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TopicId(pub Uuid);

impl TopicId {
    /// A new random id. Draws from the system's randomness, so pure code is handed ids instead of calling this.
    pub fn random() -> Self {
        // Kafka's tools take a leading dash for an option.
        loop {
            let id = Self(Uuid::new_v4());
            if !id.to_string().starts_with('-') {
                return id;
            }
        }
    }

    /// Reads 16 raw bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Uuid::from_slice(bytes).ok().map(Self)
    }

    /// The 16 raw bytes, as gRPC messages carry them.
    pub fn to_bytes(self) -> bytes::Bytes {
        bytes::Bytes::copy_from_slice(self.0.as_bytes())
    }

    /// Reads the printed form.
    pub fn parse(text: &str) -> Option<Self> {
        URL_SAFE_NO_PAD
            .decode(text)
            .ok()
            .and_then(|b| Self::from_bytes(&b))
    }
}

impl fmt::Display for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&URL_SAFE_NO_PAD.encode(self.0.as_bytes()))
    }
}

impl fmt::Debug for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One process's life, drawn at random when it starts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Incarnation(pub Uuid);

/// A partition by name, as people and files call it: `orders-0`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TopicPartition {
    /// The topic's name.
    pub topic: Arc<str>,
    /// The partition's number, from 0.
    pub partition: i32,
}

impl TopicPartition {
    /// Names a partition.
    pub fn new(topic: impl Into<Arc<str>>, partition: i32) -> Self {
        Self {
            topic: topic.into(),
            partition,
        }
    }

    /// Reads `orders-0`. Topic names may hold dashes; the number is what follows the last one.
    pub fn parse(text: &str) -> Option<Self> {
        let (topic, number) = text.rsplit_once('-')?;
        let canonical = number == "0" || !number.starts_with('0');
        let partition = (canonical && number.bytes().all(|b| b.is_ascii_digit()))
            .then(|| number.parse().ok())
            .flatten()?;
        (!topic.is_empty()).then(|| Self::new(topic, partition))
    }
}

impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.topic, self.partition)
    }
}

impl fmt::Debug for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A partition by identity, as protocols call it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct PartitionId {
    /// The topic's identity.
    pub topic: TopicId,
    /// The partition's number, from 0.
    pub partition: i32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_name_is_read_from_its_last_dash() {
        assert_eq!(
            TopicPartition::parse("my-topic-12"),
            Some(TopicPartition::new("my-topic", 12))
        );
        for bad in [
            "orders",
            "-3",
            "orders-",
            "orders-x",
            "orders-01",
            "orders-99999999999",
        ] {
            assert_eq!(TopicPartition::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_topic_id_prints_as_22_characters_and_reads_back() {
        let id = TopicId::random();
        assert_eq!(id.to_string().len(), 22);
        assert_eq!(TopicId::parse(&id.to_string()), Some(id));
    }

    #[test]
    fn negative_wire_numbers_mean_none() {
        assert_eq!(LeaderEpoch::from_wire(-1), None);
        assert_eq!(LeaderEpoch::from_wire(0), Some(LeaderEpoch(0)));
        assert_eq!(LeaderEpoch::to_wire(None), -1);
    }
}
