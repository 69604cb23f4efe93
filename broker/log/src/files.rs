//! Small durable-file helpers: whole-file replacement that survives a power loss, directory syncs, and the one error that says
//! what was being done to which path.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A failed operation on a file: what was tried, where, and the system's answer.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}: {source}", path.display())]
pub struct StorageError {
    /// What was tried, as a verb: `write`, `rename`.
    pub action: &'static str,
    /// On which file or directory.
    pub path: PathBuf,
    /// The system's answer.
    #[source]
    pub source: io::Error,
}

impl StorageError {
    /// Whether the file or its directory is gone: expected of work on a log that is being deleted (H-6E).
    pub fn is_not_found(&self) -> bool {
        self.source.kind() == io::ErrorKind::NotFound
    }
}

/// Adds the action and the path to an I/O result.
pub(crate) trait Context<T> {
    /// Names what was tried, and on what.
    fn context(self, action: &'static str, path: &Path) -> Result<T, StorageError>;
}

impl<T> Context<T> for io::Result<T> {
    fn context(self, action: &'static str, path: &Path) -> Result<T, StorageError> {
        self.map_err(|source| StorageError {
            action,
            path: path.to_owned(),
            source,
        })
    }
}

/// Makes the names in a directory durable: a synced file whose directory entry was not synced can vanish (KAFKA-3968).
pub(crate) fn sync_dir(dir: &Path) -> Result<(), StorageError> {
    File::open(dir)
        .and_then(|d| d.sync_all())
        .context("sync directory", dir)
}

/// Replaces a file's whole content so that a crash at any point leaves the old or the new one: temporary file, fsync, rename,
/// fsync of the directory (D-1).
pub(crate) fn replace(path: &Path, content: &[u8]) -> Result<(), StorageError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".tmp");
    let temporary = PathBuf::from(name);
    let mut file = File::create(&temporary).context("create", &temporary)?;
    file.write_all(content)
        .and_then(|()| file.sync_all())
        .context("write", &temporary)?;
    fs::rename(&temporary, path).context("rename a temporary file to", path)?;
    sync_dir(path.parent().expect("a file lives in a directory"))
}

/// Reads a whole file, or `None` when there is none.
pub(crate) fn read_if_present(path: &Path) -> Result<Option<Vec<u8>>, StorageError> {
    match fs::read(path) {
        Ok(content) => Ok(Some(content)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e).context("read", path),
    }
}

/// Removes a file that may be gone already.
pub(crate) fn remove_if_present(path: &Path) -> Result<(), StorageError> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e).context("remove", path),
        _ => Ok(()),
    }
}

/// Renames a file that may be gone already. Says whether it was there.
pub(crate) fn rename_if_present(from: &Path, to: &Path) -> Result<bool, StorageError> {
    match fs::rename(from, to) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e).context("rename", from),
    }
}

/// Files and directories already renamed out of the way, still to be unlinked: dropping a large file takes the file system a
/// while, so the caller does it away from any lock. Whatever is never unlinked is swept at the next start.
#[must_use = "unlink it away from the partition's lock"]
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Doomed {
    paths: Vec<PathBuf>,
}

impl Doomed {
    pub(crate) fn push(&mut self, path: PathBuf) {
        self.paths.push(path);
    }

    /// What would be unlinked.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// Adds what another operation doomed.
    pub fn merge(&mut self, other: Doomed) {
        self.paths.extend(other.paths);
    }

    /// Unlinks them. Readers that still hold a file keep its bytes until they let go.
    pub fn unlink(self) -> Result<(), StorageError> {
        for path in self.paths {
            if path.is_dir() {
                match fs::remove_dir_all(&path) {
                    Err(e) if e.kind() != io::ErrorKind::NotFound => {
                        return Err(e).context("remove", &path);
                    }
                    _ => {}
                }
            } else {
                remove_if_present(&path)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replacing_a_file_leaves_only_the_new_content() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("checkpoint");
        replace(&path, b"one").unwrap();
        replace(&path, b"two").unwrap();
        assert_eq!(read_if_present(&path).unwrap().unwrap(), b"two");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn an_error_names_the_action_and_the_path() {
        let error = sync_dir(Path::new("/nowhere/at/all")).unwrap_err();
        assert!(error.is_not_found());
        assert!(
            error
                .to_string()
                .starts_with("cannot sync directory /nowhere/at/all: ")
        );
    }

    #[test]
    fn unlinking_twice_is_no_error() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.deleted");
        let folder = dir.path().join("b");
        fs::write(&file, b"x").unwrap();
        fs::create_dir(&folder).unwrap();
        for _ in 0..2 {
            let mut doomed = Doomed::default();
            doomed.push(file.clone());
            doomed.push(folder.clone());
            doomed.unlink().unwrap();
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
