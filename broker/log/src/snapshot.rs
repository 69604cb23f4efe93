//! Producer snapshots (`<offset>.snapshot`): the producers' state as of an offset, in Kafka's bytes (D-31), so that a restart
//! need not read the whole log to tell a retry from a gap. When they are written and removed is decided elsewhere (D-30).

use std::fs;
use std::path::{Path, PathBuf};

use epoka_proto::batch::crc32c;
use epoka_proto::ids::{Offset, ProducerEpoch, ProducerId};

use crate::files::{Context, StorageError};
use crate::producers::{ProducerBatch, ProducerEntry, ProducerStates};

const VERSION: i16 = 1;
/// Version, CRC, count.
const HEADER: usize = 10;
const ENTRY: usize = 46;
/// Where the bytes covered by the CRC begin.
const CRC_FROM: usize = 6;

/// Why a snapshot file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// Reading failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The content is damaged.
    #[error("{0}")]
    Damaged(&'static str),
}

/// The file's name: the offset in twenty digits. Its state covers everything below that offset.
pub fn snapshot_path(dir: &Path, offset: Offset) -> PathBuf {
    dir.join(format!("{:020}.snapshot", offset.0))
}

/// The state as file bytes.
pub fn encode_snapshot(states: &ProducerStates) -> Vec<u8> {
    let entries = states.sorted();
    let count = i32::try_from(entries.len()).expect("fewer producers than 2^31");
    let mut bytes = Vec::with_capacity(HEADER + entries.len() * ENTRY);
    bytes.extend(VERSION.to_be_bytes());
    bytes.extend([0; 4]);
    bytes.extend(count.to_be_bytes());
    for (id, entry) in entries {
        let newest = entry.newest();
        bytes.extend(id.0.to_be_bytes());
        bytes.extend(ProducerEpoch::to_wire(entry.epoch()).to_be_bytes());
        bytes.extend(newest.map_or(-1, |b| b.last_sequence).to_be_bytes());
        bytes.extend(newest.map_or(-1, |b| b.last_offset.0).to_be_bytes());
        bytes.extend(newest.map_or(0, |b| b.offset_delta).to_be_bytes());
        bytes.extend(entry.last_timestamp().to_be_bytes());
        bytes.extend(entry.coordinator_epoch().unwrap_or(-1).to_be_bytes());
        bytes.extend(Offset::to_wire(entry.transaction_start()).to_be_bytes());
    }
    let crc = crc32c(&bytes[CRC_FROM..]);
    bytes[2..CRC_FROM].copy_from_slice(&crc.to_be_bytes());
    bytes
}

/// Reads file bytes.
pub fn decode_snapshot(bytes: &[u8]) -> Result<ProducerStates, SnapshotError> {
    let Some((header, mut rest)) = bytes.split_first_chunk::<HEADER>() else {
        return Err(SnapshotError::Damaged("shorter than its header"));
    };
    let [v0, v1, c0, c1, c2, c3, n0, n1, n2, n3] = *header;
    if i16::from_be_bytes([v0, v1]) != VERSION {
        return Err(SnapshotError::Damaged("not version 1"));
    }
    if u32::from_be_bytes([c0, c1, c2, c3]) != crc32c(&bytes[CRC_FROM..]) {
        return Err(SnapshotError::Damaged("the CRC does not match"));
    }
    let count = i32::from_be_bytes([n0, n1, n2, n3]);
    if usize::try_from(count).map(|n| n.saturating_mul(ENTRY)) != Ok(rest.len()) {
        return Err(SnapshotError::Damaged("the number of entries is another"));
    }
    let mut states = ProducerStates::default();
    while let Some((entry, next)) = rest.split_first_chunk::<ENTRY>() {
        let (id, entry) = decode_entry(entry);
        states.insert(id, entry);
        rest = next;
    }
    Ok(states)
}

fn decode_entry(raw: &[u8; ENTRY]) -> (ProducerId, ProducerEntry) {
    let i32_at = |at: usize| i32::from_be_bytes(raw[at..at + 4].try_into().expect("four bytes"));
    let i64_at = |at: usize| i64::from_be_bytes(raw[at..at + 8].try_into().expect("eight bytes"));
    let timestamp = i64_at(26);
    let newest = Offset::from_wire(i64_at(14)).map(|last_offset| ProducerBatch {
        last_sequence: i32_at(10),
        last_offset,
        offset_delta: i32_at(22),
        timestamp,
    });
    let epoch = ProducerEpoch::from_wire(i16::from_be_bytes([raw[8], raw[9]]));
    let coordinator_epoch = Some(i32_at(34)).filter(|e| *e >= 0);
    let transaction_start = Offset::from_wire(i64_at(38));
    let entry = ProducerEntry::restored(
        epoch,
        newest,
        coordinator_epoch,
        timestamp,
        transaction_start,
    );
    (ProducerId(i64_at(0)), entry)
}

/// Writes a snapshot, over any old one of that offset. Not synced: a lost snapshot costs replay time only (D-30).
pub(crate) fn write_snapshot(
    dir: &Path,
    offset: Offset,
    states: &ProducerStates,
) -> Result<PathBuf, StorageError> {
    let path = snapshot_path(dir, offset);
    fs::write(&path, encode_snapshot(states)).context("write", &path)?;
    Ok(path)
}

/// Reads one snapshot file.
pub fn read_snapshot(path: &Path) -> Result<ProducerStates, SnapshotError> {
    decode_snapshot(&fs::read(path).context("read", path)?)
}

/// The offsets of the snapshots in a partition's directory, ascending.
pub(crate) fn list_snapshots(dir: &Path) -> Result<Vec<Offset>, StorageError> {
    let mut offsets = Vec::new();
    for entry in fs::read_dir(dir).context("list", dir)? {
        let name = entry.context("list", dir)?.file_name();
        let offset = name
            .to_str()
            .and_then(|n| offset_of(n.strip_suffix(".snapshot")?));
        offsets.extend(offset);
    }
    offsets.sort_unstable();
    Ok(offsets)
}

/// Reads a file stem of twenty digits.
pub(crate) fn offset_of(stem: &str) -> Option<Offset> {
    (stem.len() == 20 && stem.bytes().all(|b| b.is_ascii_digit()))
        .then(|| stem.parse().ok().map(Offset))
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states() -> ProducerStates {
        let mut states = ProducerStates::default();
        let newest = ProducerBatch {
            last_sequence: 41,
            last_offset: Offset(1000),
            offset_delta: 2,
            timestamp: 1_700_000_000_000,
        };
        let (epoch, timestamp) = (Some(ProducerEpoch(3)), newest.timestamp);
        let entry = ProducerEntry::restored(epoch, Some(newest), None, timestamp, None);
        states.insert(ProducerId(7), entry);
        let marked = ProducerEntry::restored(epoch, None, Some(5), 9, Some(Offset(12)));
        states.insert(ProducerId(8), marked);
        states
    }

    #[test]
    fn a_snapshot_has_kafkas_bytes_d_31() {
        let bytes = encode_snapshot(&states());
        assert_eq!(bytes.len(), 10 + 2 * 46);
        assert_eq!(bytes[..2], [0, 1]);
        assert_eq!(bytes[2..6], crc32c(&bytes[6..]).to_be_bytes());
        assert_eq!(bytes[6..10], [0, 0, 0, 2]);
        let entry = [
            &7_i64.to_be_bytes()[..],
            &3_i16.to_be_bytes(),
            &41_i32.to_be_bytes(),
            &1000_i64.to_be_bytes(),
            &2_i32.to_be_bytes(),
            &1_700_000_000_000_i64.to_be_bytes(),
            &(-1_i32).to_be_bytes(),
            &(-1_i64).to_be_bytes(),
        ];
        assert_eq!(bytes[10..56], entry.concat());
        assert_eq!(decode_snapshot(&bytes).unwrap(), states());
    }

    #[test]
    fn any_changed_or_missing_byte_is_found() {
        let bytes = encode_snapshot(&states());
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            assert!(decode_snapshot(&damaged).is_err(), "byte {at}");
            assert!(decode_snapshot(&bytes[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn a_count_that_claims_too_much_allocates_nothing() {
        let mut bytes = [0, 1, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff];
        let crc = crc32c(&bytes[6..]);
        bytes[2..6].copy_from_slice(&crc.to_be_bytes());
        assert!(decode_snapshot(&bytes).is_err());
    }

    #[test]
    fn snapshots_are_listed_by_offset() {
        let dir = tempfile::tempdir().unwrap();
        for offset in [30, 4] {
            write_snapshot(dir.path(), Offset(offset), &states()).unwrap();
        }
        std::fs::write(dir.path().join("7.snapshot"), b"").unwrap();
        assert_eq!(list_snapshots(dir.path()).unwrap(), [Offset(4), Offset(30)]);
        let path = snapshot_path(dir.path(), Offset(4));
        assert!(path.ends_with("00000000000000000004.snapshot"));
        assert_eq!(read_snapshot(&path).unwrap(), states());
    }
}
