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
