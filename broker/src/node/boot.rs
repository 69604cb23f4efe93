//! Whether data survived since it was last served. A process that died left its writes in the page cache: nothing is lost
//! as long as the machine has not been restarted. So each log directory notes the machine's boot and the broker epoch; a
//! start on the same boot may claim that epoch as if it had been shut down cleanly (C-13).

use std::fs;
use std::io;
use std::path::Path;

use epoka_log::boot_id;
use epoka_proto::ids::BrokerEpoch;
use serde::{Deserialize, Serialize};

const FILE: &str = "epoka.lease";

#[derive(Serialize, Deserialize)]
struct Lease {
    boot_id: String,
    broker_epoch: i64,
}

/// The broker epoch noted in a log directory, if it was noted since the machine started.
pub fn epoch_of_this_boot(dir: &Path) -> Option<BrokerEpoch> {
    let lease: Lease = serde_json::from_slice(&fs::read(dir.join(FILE)).ok()?).ok()?;
    let same = boot_id().is_ok_and(|id| id == lease.boot_id);
    same.then_some(BrokerEpoch(lease.broker_epoch))
}

/// Notes a broker epoch. Not made durable on purpose: a machine that restarts invalidates it anyway.
pub fn note_epoch(dir: &Path, epoch: BrokerEpoch) -> io::Result<()> {
    let lease = Lease {
        boot_id: boot_id()?,
        broker_epoch: epoch.0,
    };
    let temporary = dir.join(format!("{FILE}.tmp"));
    fs::write(&temporary, serde_json::to_vec(&lease)?)?;
    fs::rename(temporary, dir.join(FILE))
}

/// Takes back what was noted.
pub fn forget_epoch(dir: &Path) -> io::Result<()> {
    match fs::remove_file(dir.join(FILE)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_is_claimed_only_on_the_boot_it_was_noted_on() {
        let dir = tempfile::tempdir().expect("temporary directory");
        assert_eq!(epoch_of_this_boot(dir.path()), None);
        note_epoch(dir.path(), BrokerEpoch(42)).expect("written");
        assert_eq!(epoch_of_this_boot(dir.path()), Some(BrokerEpoch(42)));
        forget_epoch(dir.path()).expect("removed");
        forget_epoch(dir.path()).expect("nothing to remove");
        assert_eq!(epoch_of_this_boot(dir.path()), None);
        fs::write(
            dir.path().join(FILE),
            r#"{"boot_id":"another","broker_epoch":42}"#,
        )
        .expect("written");
        assert_eq!(epoch_of_this_boot(dir.path()), None);
    }
}
