//! The table of topic configuration keys: names, defaults and ranges of Apache Kafka 4.x. Sorted by name. Where a range is
//! wider than Kafka's (small segments), it is so that tests can roll segments without writing megabytes.

use super::{ConfigKey, Kind};

const LONG_MAX: i64 = i64::MAX;

const fn key(
    name: &'static str,
    default: &'static str,
    kind: Kind,
    broker_synonym: Option<&'static str>,
    doc: &'static str,
) -> ConfigKey {
    ConfigKey {
        name,
        default,
        kind,
        broker_synonym,
        has_effect: true,
        doc,
    }
}

/// A key that Kafka knows and nothing here reads.
const fn idle(
    name: &'static str,
    default: &'static str,
    kind: Kind,
    doc: &'static str,
) -> ConfigKey {
    ConfigKey {
        has_effect: false,
        ..key(name, default, kind, None, doc)
    }
}

/// Every topic configuration key.
pub static TOPIC_KEYS: &[ConfigKey] = &[
    key(
        "cleanup.policy",
        "delete",
        Kind::ListOf(&["delete", "compact"]),
        Some("log.cleanup.policy"),
        "What happens to old segments: delete drops them by time and size, compact keeps the last record of each key; both may be given.",
    ),
    idle(
        "compression.gzip.level",
        "-1",
        Kind::Int(-1, 9),
        "Level used when a broker recompresses with gzip. Batches stay as producers sent them here.",
    ),
    idle(
        "compression.lz4.level",
        "9",
        Kind::Int(1, 17),
        "Level used when a broker recompresses with lz4. Batches stay as producers sent them here.",
    ),
    idle(
        "compression.type",
        "producer",
        Kind::OneOf(&["uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"]),
        "Codec of the log. Batches stay as producers sent them here.",
    ),
    idle(
        "compression.zstd.level",
        "3",
        Kind::Int(-131_072, 22),
        "Level used when a broker recompresses with zstd. Batches stay as producers sent them here.",
    ),
    key(
        "delete.retention.ms",
        "86400000",
        Kind::Long(0, LONG_MAX),
        Some("log.cleaner.delete.retention.ms"),
        "How long a compacted topic keeps tombstones, in milliseconds.",
    ),
    key(
        "file.delete.delay.ms",
        "60000",
        Kind::Long(0, LONG_MAX),
        Some("log.segment.delete.delay.ms"),
        "How long a removed file stays on disk, in milliseconds.",
    ),
    key(
        "flush.messages",
        "9223372036854775807",
        Kind::Long(1, LONG_MAX),
        Some("log.flush.interval.messages"),
        "Forces an fsync after this many records.",
    ),
    key(
        "flush.ms",
        "9223372036854775807",
        Kind::Long(0, LONG_MAX),
        Some("log.flush.interval.ms"),
        "Forces an fsync after this many milliseconds.",
    ),
    idle(
        "follower.replication.throttled.replicas",
        "",
        Kind::List,
        "Replicas whose fetching is throttled.",
    ),
    key(
        "index.interval.bytes",
        "4096",
        Kind::Int(0, i32::MAX),
        Some("log.index.interval.bytes"),
        "An index entry is written about every so many bytes of log.",
    ),
    idle(
        "leader.replication.throttled.replicas",
        "",
        Kind::List,
        "Replicas whose serving is throttled.",
    ),
    idle(
        "local.retention.bytes",
        "-2",
        Kind::Long(-2, LONG_MAX),
        "Local size of a log with remote storage.",
    ),
    idle(
        "local.retention.ms",
        "-2",
        Kind::Long(-2, LONG_MAX),
        "Local age of a log with remote storage.",
    ),
    key(
        "max.compaction.lag.ms",
        "9223372036854775807",
        Kind::Long(1, LONG_MAX),
        Some("log.cleaner.max.compaction.lag.ms"),
        "The longest a record may stay uncompacted, in milliseconds.",
    ),
    key(
        "max.message.bytes",
        "1048588",
        Kind::Int(0, i32::MAX),
        Some("message.max.bytes"),
        "The largest batch accepted, in bytes, after compression.",
    ),
    key(
        "message.timestamp.after.max.ms",
        "3600000",
        Kind::Long(0, LONG_MAX),
        Some("log.message.timestamp.after.max.ms"),
        "How far ahead of the broker's clock a record's timestamp may be, in milliseconds.",
    ),
    key(
        "message.timestamp.before.max.ms",
        "9223372036854775807",
        Kind::Long(0, LONG_MAX),
        Some("log.message.timestamp.before.max.ms"),
        "How far behind the broker's clock a record's timestamp may be, in milliseconds.",
    ),
    key(
        "message.timestamp.type",
        "CreateTime",
        Kind::OneOf(&["CreateTime", "LogAppendTime"]),
        Some("log.message.timestamp.type"),
        "Whose clock timestamps records: the producer's or the leader's.",
    ),
    key(
        "min.cleanable.dirty.ratio",
        "0.5",
        Kind::Double(0.0, 1.0),
        Some("log.cleaner.min.cleanable.ratio"),
        "Compaction begins when this much of the log is not compacted.",
    ),
    key(
        "min.compaction.lag.ms",
        "0",
        Kind::Long(0, LONG_MAX),
        Some("log.cleaner.min.compaction.lag.ms"),
        "The shortest a record stays uncompacted, in milliseconds.",
    ),
    key(
        "min.insync.replicas",
        "1",
        Kind::Int(1, i32::MAX),
        Some("min.insync.replicas"),
        "How many replicas must be in sync for acks=all to be accepted and for the high watermark to move.",
    ),
    key(
        "preallocate",
        "false",
        Kind::Boolean,
        Some("log.preallocate"),
        "Whether a new segment's file takes its full size at once.",
    ),
    idle(
        "remote.log.copy.disable",
        "false",
        Kind::Boolean,
        "Whether a topic with remote storage stops copying.",
    ),
    idle(
        "remote.log.delete.on.disable",
        "false",
        Kind::Boolean,
        "Whether switching remote storage off deletes what is there.",
    ),
    idle(
        "remote.storage.enable",
        "false",
        Kind::OneOf(&["false"]),
        "Remote storage does not exist here.",
    ),
    key(
        "retention.bytes",
        "-1",
        Kind::Long(-1, LONG_MAX),
        Some("log.retention.bytes"),
        "A partition larger than this loses its oldest segments; -1: no limit.",
    ),
    key(
        "retention.ms",
        "604800000",
        Kind::Long(-1, LONG_MAX),
        Some("log.retention.ms"),
        "Segments older than this are deleted, in milliseconds; -1: never.",
    ),
    key(
        "segment.bytes",
        "1073741824",
        Kind::Int(14, i32::MAX),
        Some("log.segment.bytes"),
        "A segment is rolled before it grows beyond this many bytes.",
    ),
    key(
        "segment.index.bytes",
        "10485760",
        Kind::Int(12, i32::MAX),
        Some("log.index.size.max.bytes"),
        "Size of a segment's offset index, in bytes.",
    ),
    key(
        "segment.jitter.ms",
        "0",
        Kind::Long(0, LONG_MAX),
        Some("log.roll.jitter.ms"),
        "At most this is taken off segment.ms at random, so that segments do not all roll at once.",
    ),
    key(
        "segment.ms",
        "604800000",
        Kind::Long(1, LONG_MAX),
        Some("log.roll.ms"),
        "A segment is rolled when its records span this many milliseconds.",
    ),
    key(
        "unclean.leader.election.enable",
        "false",
        Kind::Boolean,
        Some("unclean.leader.election.enable"),
        "Whether a replica outside of the ISR may lead when no other can, at the price of lost records.",
    ),
];
