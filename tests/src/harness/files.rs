//! A partition's files, as a person with a hex editor meets them: found, compared, and damaged on purpose.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// The files with this extension in a directory, in order of name; none when there is no such directory.
pub fn with_extension(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut found: Vec<_> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == extension))
        .collect();
    found.sort();
    found
}

/// All files below a directory, in order of path.
pub fn below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                dirs.push(path)
            } else {
                found.push(path)
            }
        }
    }
    found.sort();
    found
}

/// Everything in a partition's `.log` files, one after the other.
///
/// # Panics
/// When a file cannot be read.
pub fn log_bytes(partition: &Path) -> Vec<u8> {
    let segments = with_extension(partition, "log");
    segments
        .iter()
        .flat_map(|path| fs::read(path).expect("readable"))
        .collect()
}

/// Demands that replicas of one partition hold the same bytes, and any.
///
/// # Panics
/// When two do not: which, and where they first differ; or when there are none.
pub fn assert_identical_logs(replicas: &[PathBuf]) {
    let (first, others) = replicas.split_first().expect("replicas");
    let bytes = log_bytes(first);
    assert!(!bytes.is_empty(), "{} is empty", first.display());
    for other in others {
        let theirs = log_bytes(other);
        let pairs = bytes.iter().zip(&theirs);
        let same = pairs.take_while(|(a, b)| a == b).count();
        assert!(
            bytes == theirs,
            "{} has {} bytes, {} has {}, and the first {same} are the same",
            first.display(),
            bytes.len(),
            other.display(),
            theirs.len()
        );
    }
}

/// Turns one byte of a file over.
///
/// # Panics
/// When the file is not that long.
pub fn flip_byte(file: &Path, at: u64) {
    let file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(file)
        .expect("the file exists");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at)
        .expect("the file is that long");
    file.write_all_at(&[!byte[0]], at).expect("writable");
}

/// Adds bytes to a file.
///
/// # Panics
/// When it cannot be written.
pub fn append(file: &Path, bytes: &[u8]) {
    use std::io::Write as _;
    let mut file = fs::OpenOptions::new()
        .append(true)
        .open(file)
        .expect("the file exists");
    file.write_all(bytes).expect("writable");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compare(one: &[u8], other: &[u8]) {
        let dirs = [one, other].map(|bytes| {
            let dir = tempfile::tempdir().expect("a directory");
            let (first, second) = bytes.split_at(bytes.len() / 2);
            fs::write(dir.path().join("0.log"), first).expect("writable");
            fs::write(dir.path().join("1.log"), second).expect("writable");
            dir
        });
        assert_identical_logs(&dirs.each_ref().map(|dir| dir.path().to_owned()));
    }

    #[test]
    fn equal_logs_are_identical() {
        compare(b"abcd", b"abcd");
    }

    #[test]
    #[should_panic(expected = "and the first 3 are the same")]
    fn one_other_byte_is_told() {
        compare(b"abcd", b"abcx");
    }

    #[test]
    #[should_panic(expected = "has 3, and the first 3 are the same")]
    fn a_shorter_log_is_told() {
        compare(b"abcd", b"abc");
    }

    #[test]
    #[should_panic(expected = "is empty")]
    fn nothing_is_identical_to_nothing() {
        compare(b"", b"");
    }
}
