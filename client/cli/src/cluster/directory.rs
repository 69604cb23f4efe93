//! The directory of a local cluster: one supervisor at a time, and what `--fresh` deletes from it.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::failure::{Failure, Outcome};

/// A cluster's directory, held by this process until dropped.
pub struct Directory {
    path: PathBuf,
    _lock: Flock<File>,
}

impl Directory {
    /// Creates the directory where absent, and takes it.
    ///
    /// # Errors
    /// Another supervisor holds it; the file system refuses.
    pub fn take(path: &Path) -> Outcome<Self> {
        let shown = path.display();
        let refused = |e: &dyn std::fmt::Display| {
            Failure::wrong(format!(
                "the data directory {shown} cannot be used: {e}; choose another with --data-dir"
            ))
        };
        std::fs::create_dir_all(path.join("logs")).map_err(|e| refused(&e))?;
        let path = path.canonicalize().map_err(|e| refused(&e))?;
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path.join(".lock"))
            .map_err(|e| refused(&e))?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(Self { path, _lock: lock }),
            Err((_, Errno::EWOULDBLOCK)) => Err(Failure::wrong(format!(
                "a cluster is already running in {shown}: stop it first, or choose another directory with --data-dir"
            ))),
            Err((_, error)) => Err(refused(&error)),
        }
    }

    /// Where it is, absolute.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Deletes the nodes' directories and what describes them; whatever else lies there stays. Returns what was deleted.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn clear(&self) -> Outcome<Vec<String>> {
        let mut deleted = Vec::new();
        let failed = |what: &Path, e: std::io::Error| {
            Failure::wrong(format!("{} cannot be deleted: {e}", what.display()))
        };
        let entries = std::fs::read_dir(&self.path).map_err(|e| failed(&self.path, e))?;
        for entry in entries {
            let entry = entry.map_err(|e| failed(&self.path, e))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = entry.path();
            if is_node(&name) {
                std::fs::remove_dir_all(&path).map_err(|e| failed(&path, e))?;
                deleted.push(name);
            } else if name == "cluster.json" {
                std::fs::remove_file(&path).map_err(|e| failed(&path, e))?;
            }
        }
        deleted.sort();
        Ok(deleted)
    }
}

fn is_node(name: &str) -> bool {
    let id = name
        .strip_prefix("broker-")
        .or_else(|| name.strip_prefix("controller-"));
    id.is_some_and(|id| !id.is_empty() && id.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("epoka-directory-{name}-{}", std::process::id()))
    }

    #[test]
    fn a_directory_has_one_supervisor_at_a_time() {
        let path = scratch("lock");
        let held = Directory::take(&path).expect("free");
        let refused = Directory::take(&path).err().expect("held").to_string();
        assert!(
            refused.contains("already running in") && refused.contains("--data-dir"),
            "{refused}"
        );
        drop(held);
        drop(Directory::take(&path).expect("free again"));
        std::fs::remove_dir_all(path).expect("there");
    }

    #[test]
    fn fresh_deletes_nodes_and_nothing_else() {
        let path = scratch("fresh");
        let directory = Directory::take(&path).expect("free");
        for name in [
            "broker-1",
            "broker-12",
            "controller-1",
            "broker-mine",
            "photos",
        ] {
            std::fs::create_dir_all(path.join(name).join("inside")).expect("writable");
        }
        assert_eq!(
            directory.clear().expect("ours"),
            ["broker-1", "broker-12", "controller-1"]
        );
        assert!(path.join("photos/inside").exists() && path.join("broker-mine").exists());
        std::fs::remove_dir_all(path).expect("there");
    }
}
