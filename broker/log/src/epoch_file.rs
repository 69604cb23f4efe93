//! `leader-epoch-checkpoint`: a partition's leader-epoch history on disk (section 4.1). What the entries mean, and how they
//! change, is `epoka_proto::epochs`.

use std::path::Path;

use epoka_proto::epochs::{EpochHistory, EpochStart};
use epoka_proto::ids::{LeaderEpoch, Offset};

use crate::checkpoint::{self, CheckpointError};
use crate::files::{self, StorageError};

/// The file's name within a partition's directory.
pub const EPOCH_FILE: &str = "leader-epoch-checkpoint";

/// Reads the history of the partition directory `dir`; `None` when there is no file.
pub fn read_epochs(dir: &Path) -> Result<Option<EpochHistory>, CheckpointError> {
    let Some(content) = files::read_if_present(&dir.join(EPOCH_FILE))? else {
        return Ok(None);
    };
    let entries = checkpoint::decode(&content, |[epoch, start]| {
        Some(EpochStart {
            epoch: LeaderEpoch::from_wire(epoch.parse().ok()?)?,
            start: Offset::from_wire(start.parse().ok()?)?,
        })
    })?;
    EpochHistory::from_entries(entries)
        .map(Some)
        .ok_or(CheckpointError::Malformed {
            line: 3,
            what: "epochs and starts do not both increase",
        })
}

/// Replaces the file, durably (E-1, E-4).
pub(crate) fn write_epochs(dir: &Path, history: &EpochHistory) -> Result<(), StorageError> {
    let lines = history
        .entries()
        .iter()
        .map(|e| format!("{} {}", e.epoch, e.start));
    files::replace(&dir.join(EPOCH_FILE), checkpoint::encode(lines).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_epoch_file_is_kafkas_text_and_epoch_0_is_an_epoch_h_63() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read_epochs(dir.path()).unwrap().is_none());
        let mut history = EpochHistory::default();
        history.assign(LeaderEpoch(0), Offset(0));
        history.assign(LeaderEpoch(4), Offset(19));
        write_epochs(dir.path(), &history).unwrap();
        let text = std::fs::read_to_string(dir.path().join(EPOCH_FILE)).unwrap();
        assert_eq!(text, "0\n2\n0 0\n4 19\n");
        assert_eq!(read_epochs(dir.path()).unwrap(), Some(history));
    }

    #[test]
    fn unsorted_or_negative_entries_are_malformed() {
        let dir = tempfile::tempdir().unwrap();
        for text in ["0\n2\n1 0\n0 5\n", "0\n1\n-1 0\n", "0\n1\n1 -3\n", "\0\0\0"] {
            std::fs::write(dir.path().join(EPOCH_FILE), text).unwrap();
            assert!(read_epochs(dir.path()).is_err(), "{text:?}");
        }
    }
}
