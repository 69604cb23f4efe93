//! Suffixes that were cut from a log, kept aside under `truncated/` of the data directory: the batches as a `.log` file each
//! tool can read, and a manifest that says what they were and why they went. Nothing here decides what to cut.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use epoka_proto::ids::{LeaderEpoch, Millis, Offset, TopicId, TopicPartition};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::clock;
use crate::files::{self, Context, StorageError};
use crate::segment::segment_path;

/// The folder of a data directory that holds the archives, and the manifest within each.
pub const TRUNCATED_DIR: &str = "truncated";
const MANIFEST: &str = "manifest.json";

/// Why a suffix was cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CutReason {
    /// It had diverged from the leader's log.
    Diverged,
    /// It was not whole when the log was opened after an unclean stop.
    Torn,
    /// All of it lay below the noted start of the log.
    BelowStart,
}

/// What an archived suffix was.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Manifest {
    /// The topic's name.
    pub topic: String,
    /// The partition's number.
    pub partition: i32,
    /// The topic's identity.
    pub topic_id: TopicId,
    /// Why it was cut.
    pub reason: CutReason,
    /// The log end before; for a torn suffix, as far as it could be read.
    pub from: Offset,
    /// The log end after.
    pub to: Offset,
    /// How many whole batches the suffix holds.
    pub batches: usize,
    /// The leader epochs that appended them, ascending.
    pub epochs: Vec<LeaderEpoch>,
    /// When, in milliseconds since 1970.
    pub cut_at_ms: Millis,
    /// The files, oldest first.
    pub files: Vec<String>,
}

/// A manifest on disk, with its CRC-32 (of the manifest's compact JSON).
#[derive(Serialize, Deserialize)]
struct Guarded {
    crc32: u32,
    manifest: Manifest,
}

impl Guarded {
    fn new(manifest: Manifest) -> Self {
        let json = serde_json::to_vec(&manifest).expect("a manifest is plain data");
        Self {
            crc32: crc32fast::hash(&json),
            manifest,
        }
    }
}

/// Reads and checks the manifest of one archive.
pub fn read_manifest(archive: &Path) -> Result<Manifest, StorageError> {
    let path = archive.join(MANIFEST);
    let content = fs::read(&path).context("read", &path)?;
    let damaged = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    let stored: Guarded = serde_json::from_slice(&content)
        .map_err(|e| damaged(e.to_string()))
        .context("understand", &path)?;
    let crc32 = stored.crc32;
    let checked = Guarded::new(stored.manifest);
    if checked.crc32 != crc32 {
        return Err(damaged("its CRC does not match".into())).context("trust", &path);
    }
    Ok(checked.manifest)
}

/// An archive being filled. Without `finish` it has no manifest.
#[derive(Debug)]
pub(crate) struct Archive {
    path: PathBuf,
    files: Vec<String>,
}

impl Archive {
    /// Makes the folder `truncated/<partition>.<from>-<to>.<random>`.
    pub fn begin(
        root: &Path,
        partition: &TopicPartition,
        from: Offset,
        to: Offset,
    ) -> Result<Self, StorageError> {
        let random = Uuid::new_v4().as_fields().0;
        let path = root
            .join(TRUNCATED_DIR)
            .join(format!("{partition}.{from}-{to}.{random:08x}"));
        fs::create_dir_all(&path).context("create", &path)?;
        let files = Vec::new();
        Ok(Self { path, files })
    }

    /// Copies the end of a log file from `position` on; it begins with offset `base`.
    pub fn copy_tail(
        &mut self,
        log: &Path,
        position: u64,
        end: u64,
        base: Offset,
    ) -> Result<(), StorageError> {
        let target = segment_path(&self.path, base, "log");
        let mut source = File::open(log).context("open", log)?;
        source
            .seek(SeekFrom::Start(position))
            .context("seek in", log)?;
        let mut file = File::create(&target).context("create", &target)?;
        let copied = io::copy(&mut source.take(end - position), &mut file);
        copied
            .and_then(|_| file.sync_all())
            .context("write", &target)?;
        self.note(&target);
        Ok(())
    }

    fn note(&mut self, file: &Path) {
        let name = file.file_name().expect("a segment file has a name");
        self.files.push(name.to_string_lossy().into_owned());
    }

    /// Writes the manifest. Returns the folder.
    pub fn finish(
        mut self,
        partition: &TopicPartition,
        topic_id: TopicId,
        reason: CutReason,
        cut: &crate::truncate::Truncation,
    ) -> Result<PathBuf, StorageError> {
        self.files.sort_unstable();
        let guarded = Guarded::new(Manifest {
            topic: partition.topic.to_string(),
            partition: partition.partition,
            topic_id,
            reason,
            from: cut.from,
            to: cut.to,
            batches: cut.batches,
            epochs: cut.epochs.clone(),
            cut_at_ms: clock::now_ms(),
            files: self.files,
        });
        let json = serde_json::to_vec_pretty(&guarded).expect("a manifest is plain data");
        files::replace(&self.path.join(MANIFEST), &json)?;
        Ok(self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::truncate::Truncation;

    #[test]
    fn an_archive_keeps_the_suffix_and_says_what_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("x.log");
        fs::write(&log, b"keepcut").unwrap();
        let orders = TopicPartition::new("orders", 2);
        let topic_id = TopicId::random();
        let mut archive = Archive::begin(dir.path(), &orders, Offset(42), Offset(40)).unwrap();
        archive.copy_tail(&log, 4, 7, Offset(40)).unwrap();
        let cut = Truncation {
            from: Offset(42),
            to: Offset(40),
            batches: 2,
            epochs: vec![LeaderEpoch(4)],
            archived: None,
        };
        let path = archive
            .finish(&orders, topic_id, CutReason::Diverged, &cut)
            .unwrap();
        let manifest = read_manifest(&path).unwrap();
        assert_eq!(
            (manifest.from, manifest.to, manifest.batches),
            (Offset(42), Offset(40), 2)
        );
        assert_eq!(manifest.files, ["00000000000000000040.log"]);
        assert_eq!(fs::read(path.join(&manifest.files[0])).unwrap(), b"cut");

        let text = fs::read_to_string(path.join(MANIFEST)).unwrap();
        fs::write(
            path.join(MANIFEST),
            text.replace("\"batches\": 2", "\"batches\": 3"),
        )
        .unwrap();
        let error = read_manifest(&path).unwrap_err().to_string();
        assert!(error.contains("CRC"), "{error}");
    }
}
