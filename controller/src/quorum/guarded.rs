//! Small files that are replaced whole: a CRC-32 line, then the content. Written beside, synced, renamed, and the directory
//! synced, so that a crash leaves the old file or the new one; a file that is neither is an error, never half read.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

/// Replaces a file durably.
pub(super) fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    let beside = path.with_extension("new");
    let mut file = File::create(&beside)?;
    writeln!(file, "{:08x}", crc32fast::hash(content))?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    let dir = path.parent().expect("a file of ours is in a directory");
    File::open(dir)?.sync_all()
}

/// Reads what `write` wrote; `None` when it never did.
pub(super) fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read?,
    };
    let damaged = || {
        let message = format!("{} is damaged: its checksum does not match", path.display());
        io::Error::new(io::ErrorKind::InvalidData, message)
    };
    let guard = bytes.get(..8).and_then(|b| std::str::from_utf8(b).ok());
    let guard = guard.and_then(|hex| u32::from_str_radix(hex, 16).ok());
    let content = bytes.get(9..).ok_or_else(damaged)?;
    if guard != Some(crc32fast::hash(content)) {
        return Err(damaged());
    }
    bytes.drain(..9);
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_reads_back_whole_or_not_at_all() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("state");
        assert_eq!(read(&path).expect("absent"), None);
        write(&path, b"one").expect("write");
        write(&path, b"two").expect("replace");
        assert_eq!(read(&path).expect("read").as_deref(), Some(&b"two"[..]));
        let whole = fs::read(&path).expect("bytes");
        for cut in 0..whole.len() {
            fs::write(&path, &whole[..cut]).expect("cut");
            assert!(read(&path).is_err(), "cut at {cut}");
        }
    }
}
