//! How far each log of a data directory reaches, noted with every append. The note is never made durable: it means something as
//! long as the machine goes on, and then it tells a log that lost its end, however, from one whose last write was cut short.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use epoka_proto::ids::{Offset, TopicPartition};

use crate::files::{self, Context, StorageError};

/// The folder of a data directory that holds the notes: they outlive a partition's own directory.
const FOLDER: &str = ".ends";

/// One log's note, open for writing.
#[derive(Debug)]
pub(crate) struct EndNote {
    file: File,
    path: PathBuf,
}

fn path(root: &Path, partition: &TopicPartition) -> PathBuf {
    root.join(FOLDER).join(partition.to_string())
}

/// The end noted for a log, if one is.
pub(crate) fn read(
    root: &Path,
    partition: &TopicPartition,
) -> Result<Option<Offset>, StorageError> {
    let bytes = files::read_if_present(&path(root, partition))?;
    let end = bytes.and_then(|b| Some(i64::from_be_bytes(b.try_into().ok()?)));
    Ok(end.filter(|end| *end > 0).map(Offset))
}

/// Takes a note back.
pub(crate) fn remove(root: &Path, partition: &TopicPartition) -> Result<(), StorageError> {
    files::remove_if_present(&path(root, partition))
}

impl EndNote {
    /// Notes the end of a log that was just opened.
    pub fn open(
        root: &Path,
        partition: &TopicPartition,
        end: Offset,
    ) -> Result<Self, StorageError> {
        let path = path(root, partition);
        let open = || {
            OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .open(&path)
        };
        let file = match open() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let folder = root.join(FOLDER);
                std::fs::create_dir_all(&folder).context("create", &folder)?;
                open()
            }
            opened => opened,
        };
        let file = file.context("open", &path)?;
        let note = Self { file, path };
        note.set(end)?;
        Ok(note)
    }

    /// Notes that nothing is known, while the log is being replaced by another.
    pub fn clear(&self) -> Result<(), StorageError> {
        self.set(Offset::ZERO)
    }

    /// Notes another end. Before a cut, so that a note never claims what was taken away on purpose; after an append.
    pub fn set(&self, end: Offset) -> Result<(), StorageError> {
        let written = self.file.write_all_at(&end.0.to_be_bytes(), 0);
        written.context("write", &self.path)
    }
}
