//! How a log lays itself out: the topic settings that segments, indexes and flushes obey, under Kafka's names and defaults.
//! Retention and compaction settings do not live here.

use epoka_proto::ids::Millis;

/// The settings of one log. Changed ones count from the next append on; segments already written keep their shape.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogConfig {
    /// `segment.bytes`: a segment is closed before an append that would make it larger.
    pub segment_bytes: u64,
    /// `segment.ms`: how far record timestamps may reach within one segment (D-41).
    pub segment_ms: Millis,
    /// `segment.jitter.ms`: each segment's `segment_ms` is shortened at random by less than this.
    pub segment_jitter_ms: Millis,
    /// `segment.index.bytes`: a segment is closed when one of its indexes has reached this size.
    pub segment_index_bytes: usize,
    /// `index.interval.bytes`: at least this much log lies between two index entries.
    pub index_interval_bytes: usize,
    /// `flush.messages`: fsync once this many offsets are not yet durable.
    pub flush_messages: Option<u64>,
    /// `flush.ms`: fsync data that has waited this long.
    pub flush_ms: Option<Millis>,
    /// `preallocate`: a new segment takes its whole size on disk at once (D-39).
    pub preallocate: bool,
    /// `producer.id.expiration.ms`: a producer silent for this long is forgotten (P-4).
    pub producer_id_expiration_ms: Millis,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            segment_bytes: 1 << 30,
            segment_ms: 7 * 24 * 60 * 60 * 1000,
            segment_jitter_ms: 0,
            segment_index_bytes: 10 << 20,
            index_interval_bytes: 4096,
            flush_messages: None,
            flush_ms: None,
            preallocate: false,
            producer_id_expiration_ms: 24 * 60 * 60 * 1000,
        }
    }
}
