//! What a node writes down about its logs while they are open, and how it closes them.

use std::sync::Arc;

use epoka_log::{LogDir, PartitionLog};
use epoka_proto::ids::{BrokerEpoch, Offset, TopicPartition};

use super::Logs;
use crate::partition::Partition;

/// What stands in the clean-shutdown marker when the data was never served under an epoch that may be claimed.
const NO_EPOCH: BrokerEpoch = BrokerEpoch(-1);

impl Logs {
    /// Saves high watermarks (D-1).
    pub fn save_high_watermarks(&self, partitions: &[Arc<Partition>]) {
        self.save(
            "high watermarks",
            partitions,
            |p| Some(p.high_watermark()),
            LogDir::write_high_watermarks,
        );
    }

    /// Saves recovery points (D-1).
    pub fn save_recovery_points(&self, partitions: &[Arc<Partition>]) {
        let point = |p: &Partition| p.with_log(|log| log.recovery_point());
        self.save(
            "recovery points",
            partitions,
            point,
            LogDir::write_recovery_points,
        );
    }

    /// Saves log starts (D-1).
    pub fn save_log_starts(&self, partitions: &[Arc<Partition>]) {
        let start = |p: &Partition| p.with_log(|log| log.start());
        self.save("log starts", partitions, start, LogDir::write_log_starts);
    }

    fn save<E: std::fmt::Display>(
        &self,
        what: &str,
        partitions: &[Arc<Partition>],
        value: impl Fn(&Partition) -> Option<Offset>,
        write: impl Fn(&LogDir, &[(TopicPartition, Offset)]) -> Result<(), E>,
    ) {
        let home = self.home.lock().clone();
        for (index, dir) in self.dirs.iter().enumerate() {
            let ours = partitions
                .iter()
                .filter(|p| home.get(&p.id).is_some_and(|(_, d)| *d == index));
            let entries: Vec<_> = ours
                .filter_map(|p| Some((p.name.clone(), value(p)?)))
                .collect();
            if let Err(error) = write(dir, &entries) {
                tracing::error!(path = %dir.path().display(), %error, "cannot save {what}");
            }
        }
    }

    /// Closes every log and marks the directories cleanly shut down (D-10, D-11), unless one of the logs did not come through
    /// whole. `epoch`: under which the data was served last; `None` when nobody may count on it.
    pub fn close(&self, partitions: &[Arc<Partition>], epoch: Option<BrokerEpoch>) {
        self.save_high_watermarks(partitions);
        self.save_log_starts(partitions);
        let mut clean = self.loaded_whole;
        for partition in partitions {
            clean &= !partition.has_failed();
            clean &= partition.close().is_some_and(|log| self.close_log(log));
        }
        // Logs that no metadata spoke of in this life.
        for opened in std::mem::take(&mut *self.found.lock()).into_values() {
            clean &= opened.is_ok_and(|log| self.close_log(log));
        }
        if !clean {
            tracing::warn!("not every log was closed whole: the next start will look them through");
        }
        for dir in &self.dirs {
            let saved = if clean {
                dir.mark_clean_shutdown(epoch.unwrap_or(NO_EPOCH))
            } else {
                dir.write_recovery_points(&[])
            };
            if let Err(error) = saved {
                tracing::error!(path = %dir.path().display(), %error, "the next start will recover the logs");
            }
        }
    }

    fn close_log(&self, log: PartitionLog) -> bool {
        let partition = log.partition().clone();
        let closed = log.close();
        if let Err(error) = &closed {
            tracing::error!(%partition, %error, "cannot close the log");
        }
        closed.is_ok()
    }
}
