//! Replication over gRPC: the fetch loops of followers and the service of leaders. What a fetch means is decided by the
//! replica; here is only how requests and answers travel.

mod fetcher;
mod link;
mod service;

pub use fetcher::Fetchers;
pub use service::ReplicaService;

use crate::partition::LARGEST_BATCH;

/// Bytes of one partition in one answer. Kafka's `replica.fetch.max.bytes` is 1 MiB; larger answers cost fewer round trips.
pub const PARTITION_MAX_BYTES: usize = 2 << 20;
/// Bytes of one answer, unless a single batch is larger.
pub const RESPONSE_MAX_BYTES: usize = 8 << 20;
/// The largest message either side decodes: the largest batch, and what is said besides of some thousand partitions.
pub const MESSAGE_LIMIT: usize = LARGEST_BATCH + (16 << 20);
/// HTTP/2 frame size on both sides: the default 16 KiB costs twice the CPU.
pub const FRAME_SIZE: u32 = 256 << 10;
/// HTTP/2 flow-control windows of stream and connection: more than one answer in flight.
pub const WINDOW: u32 = 16 << 20;
/// How long a leader parks a fetch that finds nothing.
const MAX_WAIT_MS: u32 = 500;
