//! Kafka's text checkpoint files: a version line, a count line, then one entry a line. This module knows the container and the
//! per-directory offset checkpoints; the leader-epoch file uses the same container.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use epoka_proto::ids::{Offset, TopicPartition};

use crate::files::{self, StorageError};

/// Why a checkpoint file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// Reading failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The content is not a checkpoint.
    #[error("line {line}: {what}")]
    Malformed {
        /// Which line, from 1.
        line: usize,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// The lines of a checkpoint: each entry's fields joined by spaces.
pub(crate) fn encode(entries: impl ExactSizeIterator<Item = String>) -> String {
    let mut text = format!("0\n{}\n", entries.len());
    for entry in entries {
        writeln!(text, "{entry}").expect("writing to a string");
    }
    text
}

/// Reads a checkpoint, each entry by `entry` from its `N` fields.
pub(crate) fn decode<const N: usize, T>(
    content: &[u8],
    entry: impl Fn([&str; N]) -> Option<T>,
) -> Result<Vec<T>, CheckpointError> {
    let malformed = |line, what| CheckpointError::Malformed { line, what };
    let text = std::str::from_utf8(content).map_err(|_| malformed(1, "not text"))?;
    let mut lines = text.lines();
    if lines.next() != Some("0") {
        return Err(malformed(1, "not version 0"));
    }
    let count: usize = lines
        .next()
        .and_then(|l| l.parse().ok())
        .ok_or(malformed(2, "not a number of entries"))?;
    let mut entries = Vec::new();
    for (index, line) in lines.enumerate() {
        let mut fields = line.split(' ');
        let whole = [(); N].map(|()| fields.next().unwrap_or_default());
        let parsed = match fields.next() {
            None => entry(whole),
            Some(_) => None,
        };
        entries.push(parsed.ok_or(malformed(index + 3, "not an entry"))?);
    }
    if entries.len() != count {
        return Err(malformed(2, "the number of entries is another"));
    }
    Ok(entries)
}

/// One of the `*-offset-checkpoint` files of a data directory: an offset per partition (D-1).
#[derive(Debug)]
pub(crate) struct OffsetCheckpoint {
    path: std::path::PathBuf,
    offsets: BTreeMap<TopicPartition, Offset>,
    /// Whether the file holds something else than `offsets`.
    stale: bool,
}

impl OffsetCheckpoint {
    /// Reads the file. A missing or unreadable one counts as empty, which is safe for every one of them, and slower (D-1).
    pub fn load(path: std::path::PathBuf) -> Self {
        let offsets = read_offsets(&path).unwrap_or_else(|error| {
            tracing::warn!(path = %path.display(), %error, "unreadable checkpoint, taken as empty");
            BTreeMap::new()
        });
        Self {
            path,
            offsets,
            stale: false,
        }
    }

    pub fn get(&self, partition: &TopicPartition) -> Option<Offset> {
        self.offsets.get(partition).copied()
    }

    /// Notes an offset; [`Self::store`] makes it durable.
    pub fn set(&mut self, partition: &TopicPartition, offset: Offset) {
        if self.get(partition) != Some(offset) {
            self.offsets.insert(partition.clone(), offset);
            self.stale = true;
        }
    }

    /// Lowers a noted offset to `offset`. Says whether it was higher.
    pub fn lower(&mut self, partition: &TopicPartition, offset: Offset) -> bool {
        let higher = self.get(partition).is_some_and(|noted| noted > offset);
        if higher {
            self.set(partition, offset);
        }
        higher
    }

    pub fn forget(&mut self, partition: &TopicPartition) {
        self.stale |= self.offsets.remove(partition).is_some();
    }

    /// Writes the file if anything changed.
    pub fn store(&mut self) -> Result<(), StorageError> {
        if !self.stale {
            return Ok(());
        }
        let lines = self
            .offsets
            .iter()
            .map(|(tp, offset)| format!("{} {} {offset}", tp.topic, tp.partition));
        files::replace(&self.path, encode(lines).as_bytes())?;
        self.stale = false;
        Ok(())
    }
}

/// Reads an offset checkpoint file of any data directory; a missing one is empty.
pub fn read_offsets(path: &Path) -> Result<BTreeMap<TopicPartition, Offset>, CheckpointError> {
    let Some(content) = files::read_if_present(path)? else {
        return Ok(BTreeMap::new());
    };
    let entries = decode(&content, |[topic, partition, offset]| {
        let partition = partition.parse().ok().filter(|p| *p >= 0)?;
        let offset = Offset::from_wire(offset.parse().ok()?)?;
        (!topic.is_empty()).then(|| (TopicPartition::new(topic, partition), offset))
    })?;
    Ok(entries.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offset_checkpoint_is_kafkas_text_d_1() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("recovery-point-offset-checkpoint");
        let (orders, carts) = (
            TopicPartition::new("orders", 3),
            TopicPartition::new("carts", 0),
        );
        let mut checkpoint = OffsetCheckpoint::load(path.clone());
        checkpoint.set(&orders, Offset(17));
        checkpoint.set(&carts, Offset(0));
        checkpoint.store().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, "0\n2\ncarts 0 0\norders 3 17\n");
        let mut again = OffsetCheckpoint::load(path.clone());
        assert_eq!(again.get(&orders), Some(Offset(17)));
        assert!(!again.lower(&orders, Offset(20)));
        assert!(again.lower(&orders, Offset(10)));
        again.forget(&carts);
        again.store().unwrap();
        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            "0\n1\norders 3 10\n"
        );
    }

    #[test]
    fn an_unchanged_checkpoint_is_not_written_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("replication-offset-checkpoint");
        let orders = TopicPartition::new("orders", 3);
        let mut checkpoint = OffsetCheckpoint::load(path.clone());
        checkpoint.set(&orders, Offset(1));
        checkpoint.store().unwrap();
        std::fs::remove_file(&path).unwrap();
        checkpoint.set(&orders, Offset(1));
        checkpoint.store().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn a_malformed_checkpoint_is_an_error_that_names_the_line() {
        for (text, line) in [
            ("", 1),
            ("1\n0\n", 1),
            ("0\nmany\n", 2),
            ("0\n2\na 0 1\n", 2),
            ("0\n1\na 0\n", 3),
            ("0\n1\na 0 1 2\n", 3),
            ("0\n1\na 0 -1\n", 3),
            ("0\n1\na x 1\n", 3),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("x");
            std::fs::write(&path, text).unwrap();
            match read_offsets(&path) {
                Err(CheckpointError::Malformed { line: found, .. }) => {
                    assert_eq!(found, line, "{text:?}")
                }
                other => panic!("{text:?}: {other:?}"),
            }
            assert_eq!(
                OffsetCheckpoint::load(path).get(&TopicPartition::new("a", 0)),
                None
            );
        }
    }
}
