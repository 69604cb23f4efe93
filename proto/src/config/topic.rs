//! A topic's configuration as the code uses it: numbers, flags, and `None` where Kafka writes a number that means "never".

use crate::batch::{Limits, TimestampType};
use crate::compression::Compression;
use crate::ids::Millis;
use crate::metadata::Image;

use super::{list, topic_key};

/// What happens to old segments. Neither: they stay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CleanupPolicy {
    /// Dropped by age and size.
    pub delete: bool,
    /// Compacted by key.
    pub compact: bool,
}

/// A topic's configuration. Sizes in bytes, times in milliseconds; meanings in [`super::TOPIC_KEYS`].
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)]
pub struct TopicConfig {
    pub cleanup_policy: CleanupPolicy,
    /// `None`: whatever the producer chose.
    pub compression_type: Option<Compression>,
    pub delete_retention_ms: Millis,
    pub file_delete_delay_ms: Millis,
    pub flush_messages: Option<u64>,
    pub flush_ms: Option<Millis>,
    pub index_interval_bytes: usize,
    pub max_compaction_lag_ms: Millis,
    pub max_message_bytes: usize,
    pub message_timestamp_after_max_ms: Millis,
    pub message_timestamp_before_max_ms: Millis,
    pub message_timestamp_type: TimestampType,
    pub min_cleanable_dirty_ratio: f64,
    pub min_compaction_lag_ms: Millis,
    pub min_insync_replicas: usize,
    pub preallocate: bool,
    pub retention_bytes: Option<u64>,
    pub retention_ms: Option<Millis>,
    pub segment_bytes: u64,
    pub segment_index_bytes: usize,
    pub segment_jitter_ms: Millis,
    pub segment_ms: Millis,
    pub unclean_leader_election_enable: bool,
}

impl TopicConfig {
    /// The configuration of a topic: its overrides, else the cluster-wide ones, else Kafka's defaults.
    pub fn from_image(image: &Image, topic: &str) -> Self {
        Self::from_lookup(|key| image.config(topic, key))
    }

    /// The configuration that `lookup` and the defaults add up to. A value that the table would refuse counts as absent.
    pub fn from_lookup<'a>(lookup: impl Fn(&str) -> Option<&'a str>) -> Self {
        let values = Values(lookup);
        let policy = values.text("cleanup.policy");
        Self {
            cleanup_policy: CleanupPolicy {
                delete: list(policy).any(|word| word == "delete"),
                compact: list(policy).any(|word| word == "compact"),
            },
            compression_type: match values.text("compression.type") {
                "uncompressed" => Some(Compression::None),
                codec => codec.parse().ok(),
            },
            delete_retention_ms: values.long("delete.retention.ms"),
            file_delete_delay_ms: values.long("file.delete.delay.ms"),
            flush_messages: values.unless_max("flush.messages").map(i64::unsigned_abs),
            flush_ms: values.unless_max("flush.ms"),
            index_interval_bytes: values.size("index.interval.bytes"),
            max_compaction_lag_ms: values.long("max.compaction.lag.ms"),
            max_message_bytes: values.size("max.message.bytes"),
            message_timestamp_after_max_ms: values.long("message.timestamp.after.max.ms"),
            message_timestamp_before_max_ms: values.long("message.timestamp.before.max.ms"),
            message_timestamp_type: match values.text("message.timestamp.type") {
                "LogAppendTime" => TimestampType::LogAppendTime,
                _ => TimestampType::CreateTime,
            },
            min_cleanable_dirty_ratio: values.double("min.cleanable.dirty.ratio"),
            min_compaction_lag_ms: values.long("min.compaction.lag.ms"),
            min_insync_replicas: values.size("min.insync.replicas"),
            preallocate: values.flag("preallocate"),
            retention_bytes: u64::try_from(values.long("retention.bytes")).ok(),
            retention_ms: Some(values.long("retention.ms")).filter(|&ms| ms >= 0),
            segment_bytes: values.size("segment.bytes") as u64,
            segment_index_bytes: values.size("segment.index.bytes"),
            segment_jitter_ms: values.long("segment.jitter.ms"),
            segment_ms: values.long("segment.ms"),
            unclean_leader_election_enable: values.flag("unclean.leader.election.enable"),
        }
    }

    /// What a client's batch is checked against at this time.
    pub fn limits(&self, now: Millis) -> Limits {
        // The leader's clock replaces the producer's: what the producer's said does not matter.
        let timestamps = match self.message_timestamp_type {
            TimestampType::LogAppendTime => Millis::MIN..=Millis::MAX,
            TimestampType::CreateTime => {
                now.saturating_sub(self.message_timestamp_before_max_ms)
                    ..=now.saturating_add(self.message_timestamp_after_max_ms)
            }
        };
        Limits {
            max_message_bytes: self.max_message_bytes,
            segment_bytes: usize::try_from(self.segment_bytes).unwrap_or(usize::MAX),
            keys_required: self.cleanup_policy.compact,
            timestamps,
        }
    }
}

impl Default for TopicConfig {
    fn default() -> Self {
        Self::from_lookup(|_| None)
    }
}

/// Reads values by key, falling back to the table's default.
struct Values<F>(F);

impl<'a, F: Fn(&str) -> Option<&'a str>> Values<F> {
    fn text(&self, name: &str) -> &'a str {
        let key = topic_key(name).expect("every key read here is in the table");
        (self.0)(name)
            .map(str::trim)
            .filter(|value| key.check(value).is_ok())
            .unwrap_or(key.default)
    }

    fn parsed<T: std::str::FromStr>(&self, name: &str) -> T {
        match self.text(name).parse() {
            Ok(value) => value,
            Err(_) => unreachable!("{name} was checked against its kind"),
        }
    }

    fn long(&self, name: &str) -> i64 {
        self.parsed(name)
    }

    fn size(&self, name: &str) -> usize {
        self.parsed(name)
    }

    fn double(&self, name: &str) -> f64 {
        self.parsed(name)
    }

    fn flag(&self, name: &str) -> bool {
        self.parsed(name)
    }

    fn unless_max(&self, name: &str) -> Option<i64> {
        Some(self.long(name)).filter(|&value| value != i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Record;

    #[test]
    fn without_overrides_a_topic_has_kafkas_defaults() {
        let config = TopicConfig::default();
        assert_eq!(config.segment_bytes, 1 << 30);
        assert_eq!(config.max_message_bytes, (1 << 20) + 12);
        assert_eq!(config.retention_ms, Some(7 * 24 * 3_600_000));
        assert_eq!(config.retention_bytes, None);
        assert_eq!((config.flush_messages, config.flush_ms), (None, None));
        assert!(config.cleanup_policy.delete && !config.cleanup_policy.compact);
        assert!(!config.unclean_leader_election_enable);
        assert_eq!(
            config.limits(1_000_000_000).timestamps.end(),
            &1_003_600_000
        );
    }

    #[test]
    fn overrides_come_from_the_topic_then_the_cluster_and_nonsense_is_ignored() {
        let mut image = Image::default();
        for (topic, key, value) in [
            (None, "min.insync.replicas", "2"),
            (None, "segment.bytes", "1000"),
            (Some("orders"), "segment.bytes", "2000"),
            (Some("orders"), "cleanup.policy", "compact,delete"),
            (Some("orders"), "retention.ms", "forever"),
            (Some("orders"), "flush.messages", "1"),
        ] {
            image.apply(&Record::Config {
                topic: topic.map(Into::into),
                key: key.into(),
                value: Some(value.into()),
            });
        }
        let config = TopicConfig::from_image(&image, "orders");
        assert_eq!(config.segment_bytes, 2000);
        assert_eq!(config.min_insync_replicas, 2);
        assert!(config.cleanup_policy.compact && config.cleanup_policy.delete);
        assert_eq!(config.retention_ms, TopicConfig::default().retention_ms);
        assert_eq!(config.flush_messages, Some(1));
        assert!(config.limits(0).keys_required);
        assert_eq!(TopicConfig::from_image(&image, "other").segment_bytes, 1000);
    }
}
