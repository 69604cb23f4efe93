//! The small files that say what a directory is: `meta.properties` and `.kafka_cleanshutdown` of a data directory,
//! `partition.metadata` of a partition's. Kafka's names and formats (D-2, D-3, D-12).

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use epoka_proto::ids::{BrokerEpoch, BrokerId, TopicId};
use serde::{Deserialize, Serialize};

use crate::files::{self, Context, StorageError};

pub(crate) const META_PROPERTIES: &str = "meta.properties";
pub(crate) const CLEAN_SHUTDOWN: &str = ".kafka_cleanshutdown";
const PARTITION_METADATA: &str = "partition.metadata";

/// Whose a data directory is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct MetaProperties {
    pub node_id: BrokerId,
    pub directory_id: TopicId,
    /// Unknown until the node first spoke to a controller.
    pub cluster_id: Option<String>,
}

impl MetaProperties {
    /// Reads `key=value` lines; `None` when one of ours is missing or malformed. Keys we do not know are ignored.
    pub fn parse(text: &str) -> Option<Self> {
        let get = |key: &str| {
            let lines = text.lines().map(str::trim).filter(|l| !l.starts_with('#'));
            let mut pairs = lines.filter_map(|l| l.split_once('='));
            let (_, value) = pairs.find(|(k, _)| k.trim() == key)?;
            Some(value.trim())
        };
        (get("version")? == "1").then_some(())?;
        Some(Self {
            node_id: BrokerId::from_wire(get("node.id")?.parse().ok()?)?,
            directory_id: TopicId::parse(get("directory.id")?)?,
            cluster_id: get("cluster.id").map(str::to_owned),
        })
    }

    pub fn store(&self, dir: &Path) -> Result<(), StorageError> {
        let mut text = format!(
            "#\nnode.id={}\ndirectory.id={}\nversion=1\n",
            self.node_id, self.directory_id
        );
        if let Some(id) = &self.cluster_id {
            writeln!(text, "cluster.id={id}").expect("writing to a string");
        }
        files::replace(&dir.join(META_PROPERTIES), text.as_bytes())
    }
}

/// What a broker leaves behind when it was shut down cleanly.
#[derive(Serialize, Deserialize)]
struct CleanShutdown {
    version: i32,
    #[serde(rename = "brokerEpoch")]
    broker_epoch: i64,
}

/// Writes the clean-shutdown marker, durably.
pub(crate) fn write_clean_shutdown(dir: &Path, epoch: BrokerEpoch) -> Result<(), StorageError> {
    let marker = CleanShutdown {
        version: 0,
        broker_epoch: epoch.0,
    };
    let json = serde_json::to_vec(&marker).expect("plain numbers serialize");
    files::replace(&dir.join(CLEAN_SHUTDOWN), &json)
}

/// Reads the clean-shutdown marker and deletes it, durably, before anything is loaded (D-13, KAFKA-10471). `None`: there was no
/// marker; `Some(None)`: there was one without a readable epoch.
pub(crate) fn take_clean_shutdown(dir: &Path) -> Result<Option<Option<BrokerEpoch>>, StorageError> {
    let path = dir.join(CLEAN_SHUTDOWN);
    let Some(content) = files::read_if_present(&path)? else {
        return Ok(None);
    };
    files::remove_if_present(&path)?;
    files::sync_dir(dir)?;
    let marker = serde_json::from_slice::<CleanShutdown>(&content).ok();
    let epoch = marker.filter(|m| m.version == 0);
    Ok(Some(
        epoch.and_then(|m| BrokerEpoch::from_wire(m.broker_epoch)),
    ))
}

/// What `partition.metadata` holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PartitionMetadata {
    Missing,
    Malformed,
    Topic(TopicId),
}

/// Reads `partition.metadata` of a partition's directory.
pub(crate) fn read_partition_metadata(dir: &Path) -> Result<PartitionMetadata, StorageError> {
    let Some(content) = files::read_if_present(&dir.join(PARTITION_METADATA))? else {
        return Ok(PartitionMetadata::Missing);
    };
    let id = std::str::from_utf8(&content).ok().and_then(|text| {
        let mut lines = text.lines();
        (lines.next()? == "version: 0").then_some(())?;
        TopicId::parse(lines.next()?.strip_prefix("topic_id: ")?)
    });
    Ok(id.map_or(PartitionMetadata::Malformed, PartitionMetadata::Topic))
}

/// Writes a first `partition.metadata` and syncs it: it must be on disk before the first byte of the log (D-2). Its directory
/// entry is synced with the first leader epoch, which is noted before any append, too.
pub(crate) fn write_partition_metadata(dir: &Path, topic: TopicId) -> Result<(), StorageError> {
    let path = dir.join(PARTITION_METADATA);
    let text = format!("version: 0\ntopic_id: {topic}");
    let mut file = File::create(&path).context("create", &path)?;
    file.write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .context("write", &path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meta_properties_are_kafkas_d_3() {
        let id = TopicId::random();
        let text =
            format!("#\n#Mon Jan 01\ncluster.id=abc\ndirectory.id={id}\nnode.id=3\nversion=1\n");
        let meta = MetaProperties::parse(&text).unwrap();
        assert_eq!(meta.cluster_id.as_deref(), Some("abc"));
        let dir = tempfile::tempdir().unwrap();
        meta.store(dir.path()).unwrap();
        let stored = std::fs::read_to_string(dir.path().join(META_PROPERTIES)).unwrap();
        assert_eq!(MetaProperties::parse(&stored), Some(meta));
        for bad in [
            "",
            "version=0\nnode.id=3",
            "version=1\nnode.id=x",
            "version=1\nnode.id=3\ndirectory.id=?",
        ] {
            assert_eq!(MetaProperties::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn the_clean_shutdown_marker_is_read_once_d_12_d_13() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(take_clean_shutdown(dir.path()).unwrap(), None);
        write_clean_shutdown(dir.path(), BrokerEpoch(42)).unwrap();
        let text = std::fs::read_to_string(dir.path().join(CLEAN_SHUTDOWN)).unwrap();
        assert_eq!(text, r#"{"version":0,"brokerEpoch":42}"#);
        assert_eq!(
            take_clean_shutdown(dir.path()).unwrap(),
            Some(Some(BrokerEpoch(42)))
        );
        assert_eq!(take_clean_shutdown(dir.path()).unwrap(), None);
        std::fs::write(dir.path().join(CLEAN_SHUTDOWN), "").unwrap();
        assert_eq!(take_clean_shutdown(dir.path()).unwrap(), Some(None));
    }

    #[test]
    fn partition_metadata_is_43_bytes_d_2() {
        let dir = tempfile::tempdir().unwrap();
        let id = TopicId::random();
        assert_eq!(
            read_partition_metadata(dir.path()).unwrap(),
            PartitionMetadata::Missing
        );
        write_partition_metadata(dir.path(), id).unwrap();
        let path = dir.path().join(PARTITION_METADATA);
        assert_eq!(std::fs::read(&path).unwrap().len(), 43);
        assert_eq!(
            read_partition_metadata(dir.path()).unwrap(),
            PartitionMetadata::Topic(id)
        );
        std::fs::write(&path, "version: 0\n").unwrap();
        assert_eq!(
            read_partition_metadata(dir.path()).unwrap(),
            PartitionMetadata::Malformed
        );
    }
}
