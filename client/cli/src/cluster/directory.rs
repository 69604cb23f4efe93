//! The directory of a local cluster: one supervisor at a time, what `--fresh` deletes from it, and whether all of the
//! cluster is still there.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::failure::{Failure, Outcome};

/// A cluster's directory, held by this process until dropped.
pub struct Directory {
    path: PathBuf,
    /// Directories that were not there before, the innermost first.
    created: Vec<PathBuf>,
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
        let logs = path.join("logs");
        let absent = |p: &&Path| !p.as_os_str().is_empty() && !p.exists();
        let absent: Vec<_> = logs.ancestors().take_while(absent).collect();
        std::fs::create_dir_all(&logs).map_err(|e| refused(&e))?;
        let created = absent.into_iter().filter_map(|p| p.canonicalize().ok());
        let created = created.collect();
        let path = path.canonicalize().map_err(|e| refused(&e))?;
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path.join(".lock"))
            .map_err(|e| refused(&e))?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(Self {
                path,
                created,
                _lock: lock,
            }),
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

    /// Gives the directory back as it was before it was taken, when nothing has come of it: what is new and empty goes.
    pub fn undo(self) {
        if self.created.contains(&self.path) {
            // What cannot be removed stays; there is something better to say than that.
            let _ = std::fs::remove_file(self.path.join(".lock"));
        }
        for path in &self.created {
            let _ = std::fs::remove_dir(path);
        }
    }

    /// Checks that brokers' data of a cluster is not all that is left of it: controllers that have lost their records would
    /// found another cluster, to which that data does not belong, unless they are `restoring`.
    ///
    /// # Errors
    /// So many of the `controllers` have lost their records that the others are no majority.
    pub fn check_controllers(&self, controllers: i32, restoring: bool) -> Outcome {
        let Some((brokers, cluster)) = self.brokers_of_a_cluster() else {
            return Ok(());
        };
        let name = |id: i32| format!("controller-{id}");
        let lost: Vec<_> = (1..=controllers)
            .map(name)
            .filter(|name| !has_records(&self.path.join(name)))
            .collect();
        let left = usize::try_from(controllers).unwrap_or(0) - lost.len();
        if left > lost.len() || left == 0 && restoring {
            return Ok(());
        }
        let (all, rebuild) = if left == 0 {
            let rebuild = format!(
                "have it rebuilt from the brokers' data with --set epoka.restore.brokers={}, ",
                brokers.len()
            );
            ("", rebuild)
        } else {
            (", and the rest is no majority", String::new())
        };
        Err(Failure::wrong(format!(
            "{directory} holds data of cluster {cluster} in {brokers}, but {lost} has lost the cluster's metadata \
             (which topics there are, who leads){all}: put it back from a copy of the directory, {rebuild}or start over with \
             --fresh, which deletes the brokers' data too; nothing was changed",
            directory = self.path.display(),
            brokers = brokers.join(", "),
            lost = lost.join(", "),
        )))
    }

    /// The brokers' directories that belong to a cluster, and its id.
    fn brokers_of_a_cluster(&self) -> Option<(Vec<String>, String)> {
        let mut found = Vec::new();
        let mut cluster = None;
        for entry in std::fs::read_dir(&self.path).ok()?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if !name.starts_with("broker-") || !is_node(&name) {
                continue;
            }
            let meta = std::fs::read_to_string(entry.path().join("meta.properties"));
            let meta = meta.unwrap_or_default();
            let id = meta.lines().find_map(|l| l.strip_prefix("cluster.id="));
            if let Some(id) = id.map(str::trim).filter(|id| !id.is_empty()) {
                cluster = Some(id.to_owned());
                found.push(name);
            }
        }
        found.sort();
        Some((found, cluster?))
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

/// Whether a controller's directory has anything of the metadata log.
fn has_records(controller: &Path) -> bool {
    let Ok(files) = std::fs::read_dir(controller.join("__cluster_metadata-0")) else {
        return false;
    };
    let mut names = files.flatten().map(|file| file.file_name());
    names.any(|name| name.to_string_lossy().ends_with(".log"))
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
    fn what_was_created_for_nothing_is_removed_and_what_was_there_stays() {
        let path = scratch("undo");
        let inner = path.join("a/b");
        Directory::take(&inner).expect("free").undo();
        assert!(!path.exists());
        std::fs::create_dir_all(&inner).expect("writable");
        std::fs::write(inner.join("mine"), "").expect("writable");
        Directory::take(&inner).expect("free").undo();
        assert!(inner.join("mine").exists());
        std::fs::remove_dir_all(path).expect("there");
    }

    #[test]
    fn brokers_without_their_controllers_are_no_cluster() {
        let path = scratch("lost");
        let directory = Directory::take(&path).expect("free");
        let write = |name: &str, text: &str| {
            let file = path.join(name);
            std::fs::create_dir_all(file.parent().expect("inside")).expect("writable");
            std::fs::write(file, text).expect("writable");
        };
        directory
            .check_controllers(1, false)
            .expect("nothing there yet");
        write("broker-1/meta.properties", "node.id=1\nversion=1\n");
        directory
            .check_controllers(1, false)
            .expect("in no cluster yet");
        write("broker-2/meta.properties", "node.id=2\ncluster.id=abc\n");
        let refused = directory.check_controllers(1, false).expect_err("lost");
        let refused = refused.to_string();
        for part in [
            "abc",
            "broker-2",
            "controller-1",
            "restore.brokers=1",
            "--fresh",
        ] {
            assert!(refused.contains(part), "{refused}");
        }
        directory.check_controllers(1, true).expect("told to");
        let log = "__cluster_metadata-0/00000000000000000000.log";
        write(&format!("controller-1/{log}"), "");
        directory.check_controllers(1, false).expect("there");
        let refused = directory
            .check_controllers(3, false)
            .expect_err("one of three");
        assert!(refused.to_string().contains("no majority"), "{refused}");
        write(&format!("controller-3/{log}"), "");
        directory.check_controllers(3, false).expect("a majority");
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
