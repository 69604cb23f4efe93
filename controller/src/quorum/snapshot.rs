//! Snapshots of the metadata: the records that rebuild the image, one JSON a line, with Raft's bookkeeping in the file's
//! first line. One file, replaced whole.

use std::io;
use std::path::{Path, PathBuf};

use epoka_proto::metadata::{Image, Record};
use openraft::BasicNode;

use super::guarded;

pub(super) type Meta = openraft::SnapshotMeta<u64, BasicNode>;

/// A snapshot as it is stored and sent.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) meta: Meta,
    /// The records, one a line.
    pub(super) data: Vec<u8>,
}

impl Stored {
    pub(super) fn path(data_dir: &Path) -> PathBuf {
        data_dir.join("metadata.snapshot")
    }

    pub(super) fn read(data_dir: &Path) -> io::Result<Option<Self>> {
        let Some(mut content) = guarded::read(&Self::path(data_dir))? else {
            return Ok(None);
        };
        let end = content.iter().position(|&b| b == b'\n');
        let end = end.ok_or_else(|| io::Error::other("a metadata snapshot has no first line"))?;
        let meta = serde_json::from_slice(&content[..end])?;
        content.drain(..=end);
        Ok(Some(Self {
            meta,
            data: content,
        }))
    }

    pub(super) fn write(&self, data_dir: &Path) -> io::Result<()> {
        let mut content = serde_json::to_vec(&self.meta)?;
        content.push(b'\n');
        content.extend_from_slice(&self.data);
        guarded::write(&Self::path(data_dir), &content)
    }
}

/// The records of an image, one a line.
pub(super) fn encode(image: &Image) -> Vec<u8> {
    let mut data = Vec::new();
    for record in image.to_records() {
        data.extend_from_slice(&record.encode());
        data.push(b'\n');
    }
    data
}

/// The image that these records add up to.
pub(super) fn decode(data: &[u8]) -> io::Result<Image> {
    let mut image = Image::default();
    for line in data.split(|&b| b == b'\n').filter(|l| !l.is_empty()) {
        image.apply(&Record::decode(line)?);
    }
    Ok(image)
}
