//! Segmented logs on disk, byte for byte as Apache Kafka keeps them: segments with offset and time indexes, leader-epoch histories,
//! producer snapshots, checkpoint files, recovery, truncation. Synchronous, with one writer and lock-free readers for each log.
//! Nothing here knows of leaders, followers or the network.
//!
//! [`LogDir`] is a data directory, [`PartitionLog`] a partition's log in it, [`LogView`] what its readers hold. Rule tags (D-20, F-41)
//! refer to the replication protocol.

mod append;
mod archive;
mod checkpoint;
mod clock;
mod config;
mod dir_state;
mod end_note;
mod epoch_file;
mod files;
mod flush;
mod index_file;
mod log_dir;
mod meta;
mod offset_index;
mod partition_log;
mod producers;
mod recover;
mod recover_segments;
mod replay;
mod retain;
mod scan;
mod scrub;
mod segment;
mod snapshot;
mod survived;
mod time_index;
mod timestamps;
mod truncate;
mod view;

#[cfg(test)]
mod testing;

pub use append::AppendError;
pub use archive::{CutReason, Manifest, TRUNCATED_DIR, read_manifest};
pub use checkpoint::{CheckpointError, read_offsets};
pub use config::LogConfig;
pub use epoch_file::{EPOCH_FILE, read_epochs};
pub use files::{Doomed, StorageError};
pub use flush::{FlushPoint, FlushWork};
pub use log_dir::{LogDir, LogDirError, Opened, QUARANTINE_DIR};
pub use partition_log::{LogError, PartitionLog};
pub use producers::{ProducerBatch, ProducerEntry, ProducerStates, ProducerVerdict};
pub use recover::{Damage, OpenError, Repair};
pub use scrub::Scrubbed;
pub use snapshot::{SnapshotError, decode_snapshot, encode_snapshot, read_snapshot, snapshot_path};
pub use survived::{Survived, boot_id};
pub use truncate::Truncation;
pub use view::{LogView, ReadError};
