//! The node's log directories: which partition's log lies where, how logs are opened, set aside, deleted and closed, and the
//! checkpoint files. Everything here blocks on the disk: call it where blocking is allowed.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use epoka_log::{LogConfig, LogDir, LogDirError, OpenError, PartitionLog, Repair, Survived};
use epoka_proto::events::EventLog;
use epoka_proto::ids::{BrokerEpoch, BrokerId, Offset, PartitionId, TopicId, TopicPartition};
use epoka_proto::v1::event::Kind;
use epoka_proto::v1::{Repaired, ReplicaOffline};
use parking_lot::Mutex;

use super::boot;
use crate::clock::wall_clock_ms;
use crate::partition::Offline;

/// How long the files of a deleted log stay readable for those who read them.
const UNLINK_DELAY: Duration = Duration::from_secs(60);

/// What was found when a log was opened.
type Opened = Result<PartitionLog, OpenError>;

/// The log directories of a node.
pub struct Logs {
    dirs: Vec<LogDir>,
    /// Logs found at start and not yet taken up by a partition.
    found: Mutex<BTreeMap<PartitionId, Opened>>,
    /// Where each log lies: an index into `dirs`.
    home: Mutex<BTreeMap<PartitionId, (TopicPartition, usize)>>,
    events: EventLog,
    /// The broker epoch this data was last served under, when nothing acknowledged can have been lost since without being noticed.
    previous_epoch: Option<BrokerEpoch>,
    loaded_whole: bool,
    /// A write failed in this life.
    incomplete: AtomicBool,
}

impl Logs {
    /// Locks the directories and loads every log in them, in parallel.
    pub fn load(paths: &[PathBuf], me: BrokerId, events: EventLog) -> anyhow::Result<Self> {
        let mut dirs = Vec::new();
        let mut work = Vec::new();
        let mut claims = Vec::new();
        for path in paths {
            let (dir, opened) = LogDir::open(path, me, None)?;
            let this_boot = boot::epoch_of_this_boot(path);
            if this_boot.is_some() {
                dir.set_survived(Survived::Written);
            }
            claims.push(opened.clean_epoch.or(this_boot));
            // Logs deleted before the last stop: nobody reads them any more.
            if let Err(error) = opened.leftovers.unlink() {
                tracing::warn!(%error, "cannot remove what was deleted before");
            }
            for (name, topic_id) in opened.partitions {
                match topic_id {
                    Some(topic) => work.push((dirs.len(), name, topic)),
                    None => {
                        tracing::warn!(partition = %name, "no partition.metadata: the directory is left alone")
                    }
                }
            }
            dirs.push(dir);
        }
        let logs = Self {
            dirs,
            found: Mutex::default(),
            home: Mutex::default(),
            events,
            previous_epoch: None,
            loaded_whole: false,
            incomplete: AtomicBool::new(false),
        };
        logs.load_all(work);
        let loaded_whole = logs.found.lock().values().all(Result::is_ok);
        let agreed = claims
            .first()
            .copied()
            .flatten()
            .filter(|first| claims.iter().all(|c| *c == Some(*first)));
        Ok(Self {
            previous_epoch: agreed,
            loaded_whole,
            ..logs
        })
    }

    fn load_all(&self, work: Vec<(usize, TopicPartition, TopicId)>) {
        let queue = Mutex::new(work.into_iter());
        let workers = thread::available_parallelism().map_or(2, usize::from);
        thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(|| {
                    loop {
                        let Some((dir, name, topic)) = queue.lock().next() else {
                            return;
                        };
                        let opened = self.open_in(dir, &name, topic, LogConfig::default());
                        let id = PartitionId {
                            topic,
                            partition: name.partition,
                        };
                        self.found.lock().insert(id, opened);
                        self.home.lock().insert(id, (name, dir));
                    }
                });
            }
        });
    }

    fn open_in(
        &self,
        dir: usize,
        name: &TopicPartition,
        topic: TopicId,
        config: LogConfig,
    ) -> Opened {
        let (log, repairs) = self.dirs[dir].open_log(name, topic, config, wall_clock_ms())?;
        for repair in repairs {
            self.report_repair(name, &repair);
        }
        Ok(log)
    }

    fn report_repair(&self, name: &TopicPartition, repair: &Repair) {
        tracing::warn!(partition = %name, %repair, "repaired at start");
        self.events.push(Kind::Repaired(Repaired {
            topic: name.topic.to_string(),
            partition: name.partition,
            what: repair.to_string(),
        }));
    }

    /// A write failed, so acknowledged records may be missing from the files: nothing is claimed at the next start.
    pub fn forget_epoch(&self) {
        self.incomplete.store(true, Ordering::Release);
        for dir in &self.dirs {
            if let Err(error) = boot::forget_epoch(dir.path()) {
                tracing::error!(path = %dir.path().display(), %error, "cannot take back the noted broker epoch");
            }
        }
    }

    /// The broker epoch to claim at registration (C-13): absent when acknowledged data may be missing here. Logs that were found
    /// damaged are no reason: they are known, and are withdrawn before the broker is unfenced.
    pub fn previous_epoch(&self) -> Option<BrokerEpoch> {
        self.previous_epoch
    }

    /// Ids of the directories.
    pub fn directory_ids(&self) -> Vec<TopicId> {
        self.dirs.iter().map(LogDir::directory_id).collect()
    }

    /// Their paths.
    pub fn paths(&self) -> Vec<String> {
        self.dirs
            .iter()
            .map(|d| d.path().display().to_string())
            .collect()
    }

    /// The cluster that the data belongs to, once known.
    pub fn cluster_id(&self) -> Option<String> {
        self.dirs.iter().find_map(LogDir::cluster_id)
    }

    /// Notes the cluster that the data belongs to; an error when it belongs to another.
    pub fn set_cluster_id(&self, cluster_id: &str) -> anyhow::Result<()> {
        for dir in &self.dirs {
            dir.set_cluster_id(cluster_id)?;
        }
        Ok(())
    }

    /// Notes the epoch under which the data is served from now on.
    pub fn note_epoch(&self, epoch: BrokerEpoch) {
        if self.incomplete.load(Ordering::Acquire) {
            return;
        }
        for dir in &self.dirs {
            if let Err(error) = boot::note_epoch(dir.path(), epoch) {
                tracing::warn!(%error, "cannot note the broker epoch: the next start counts as unclean");
            }
        }
    }

    /// The log of a partition, as found at start or new, and its high watermark.
    pub fn take(
        &self,
        id: PartitionId,
        name: &TopicPartition,
        config: LogConfig,
    ) -> (Result<PartitionLog, Offline>, Offset) {
        let found = self.found.lock().remove(&id);
        let opened = match found {
            Some(Ok(mut log)) => {
                log.set_config(config);
                Ok(log)
            }
            Some(Err(error)) => Err(self.offline(name, format!("{name}: {error}"), true)),
            None => match self.noted_end(name) {
                Ok(Offset::ZERO) => self.create(id, name, config),
                Ok(end) => {
                    let reason = format!(
                        "{name}: its directory is gone, though its log had reached offset {end}"
                    );
                    Err(self.offline(name, reason, true))
                }
                Err(error) => Err(self.offline(name, format!("{name}: {error}"), false)),
            },
        };
        let watermark = opened.as_ref().map_or(Offset::ZERO, |log| {
            let home = self.home.lock().get(&id).map(|(_, dir)| *dir);
            let saved = home.and_then(|dir| self.dirs[dir].high_watermark(name));
            saved.unwrap_or(log.start()).clamp(log.start(), log.end())
        });
        (opened, watermark)
    }

    /// Sets aside the files of a partition that cannot be read, and begins an empty log in their place. Nothing but the
    /// partition's other replicas may be counted on from here: see that they hold everything committed.
    pub fn begin_anew(
        &self,
        id: PartitionId,
        name: &TopicPartition,
        config: LogConfig,
    ) -> Result<PartitionLog, Offline> {
        let home = self.home.lock().get(&id).map(|(_, dir)| *dir);
        let set_aside = match home.or_else(|| self.holder(name)) {
            Some(dir) => self.dirs[dir].quarantine(name).map(Some),
            None => self.forget(name).map(|()| None),
        };
        let kept = set_aside
            .map_err(|e| self.offline(name, format!("{name}: cannot be set aside: {e}"), false))?;
        let files = match kept {
            Some(path) => format!("damaged files kept in {}", path.display()),
            None => "no files left".to_owned(),
        };
        tracing::warn!(partition = %name, files, "begun anew");
        self.events.push(Kind::Repaired(Repaired {
            topic: name.topic.to_string(),
            partition: name.partition,
            what: format!("{files}; fetching the partition anew from its leader"),
        }));
        self.create(id, name, config)
    }

    /// How far a partition's log had come, as noted in any of the directories.
    fn noted_end(&self, name: &TopicPartition) -> Result<Offset, LogDirError> {
        let mut end = Offset::ZERO;
        for dir in &self.dirs {
            end = end.max(dir.noted_end(name)?);
        }
        Ok(end)
    }

    fn forget(&self, name: &TopicPartition) -> Result<(), LogDirError> {
        self.dirs.iter().try_for_each(|dir| dir.forget(name))
    }

    fn create(
        &self,
        id: PartitionId,
        name: &TopicPartition,
        config: LogConfig,
    ) -> Result<PartitionLog, Offline> {
        let dir = self.holder(name).unwrap_or_else(|| self.emptiest());
        let log = self.open_in(dir, name, id.topic, config).map_err(|error| {
            let files_are_bad = !matches!(error, OpenError::Storage(_));
            self.offline(name, format!("{name}: {error}"), files_are_bad)
        })?;
        self.home.lock().insert(id, (name.clone(), dir));
        Ok(log)
    }

    /// There is no log: says so to whoever watches.
    fn offline(&self, name: &TopicPartition, reason: String, unreadable: bool) -> Offline {
        tracing::error!(partition = %name, reason, "the replica is offline");
        self.events.push(Kind::ReplicaOffline(ReplicaOffline {
            topic: name.topic.to_string(),
            partition: name.partition,
            reason: reason.clone(),
        }));
        Offline { reason, unreadable }
    }

    /// Which directory holds files of a partition of this name, whosever they are.
    fn holder(&self, name: &TopicPartition) -> Option<usize> {
        let holds = |dir: &LogDir| dir.path().join(name.to_string()).is_dir();
        self.dirs.iter().position(holds)
    }

    fn emptiest(&self) -> usize {
        let home = self.home.lock();
        let load = |dir: &usize| home.values().filter(|(_, d)| d == dir).count();
        (0..self.dirs.len())
            .min_by_key(load)
            .expect("at least one log directory")
    }

    /// Deletes a partition's log; its files stay readable for a while.
    pub fn delete(&self, id: PartitionId) {
        self.found.lock().remove(&id);
        let Some((name, dir)) = self.home.lock().remove(&id) else {
            return;
        };
        match self.dirs[dir].delete_log(&name) {
            Ok(renamed) => {
                tokio::spawn(async move {
                    tokio::time::sleep(UNLINK_DELAY).await;
                    if let Err(error) = tokio::fs::remove_dir_all(&renamed).await {
                        tracing::warn!(path = %renamed.display(), %error, "cannot remove a deleted log");
                    }
                });
            }
            Err(error) => tracing::error!(partition = %name, %error, "cannot delete the log"),
        }
    }

    /// Whether a partition has files, readable or not, that nobody took up yet.
    pub fn has_found(&self, id: PartitionId) -> bool {
        self.found.lock().contains_key(&id)
    }

    /// Sets aside logs found at start that the metadata does not give to this broker (D-2).
    pub fn set_strays_aside(&self, is_ours: impl Fn(PartitionId) -> bool) {
        let strays: Vec<PartitionId> = self
            .found
            .lock()
            .keys()
            .copied()
            .filter(|id| !is_ours(*id))
            .collect();
        for id in strays {
            self.found.lock().remove(&id);
            let Some((name, dir)) = self.home.lock().remove(&id) else {
                continue;
            };
            match self.dirs[dir].set_stray_aside(&name) {
                Ok(path) => {
                    tracing::warn!(partition = %name, path = %path.display(), "not ours by the metadata: set aside")
                }
                Err(error) => {
                    tracing::error!(partition = %name, %error, "cannot set a stray log aside")
                }
            }
        }
    }
}

mod closing;
mod holdings;
#[cfg(test)]
mod tests;
