//! How many connections the listener has at once, in all and from one address. One too many is closed as soon as it was
//! accepted: its client learns of it at once, and the open files of the process are left for the logs.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use nix::sys::resource::{Resource, getrlimit};
use parking_lot::Mutex;

/// Counts connections against their limits.
pub(super) struct Admission {
    limit: usize,
    limit_per_address: usize,
    open: Arc<Mutex<Open>>,
}

#[derive(Default)]
struct Open {
    all: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// Why a connection is closed at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum Refusal {
    /// There are as many as there may be.
    #[error("there are {0} open already (max.connections, or half of what `ulimit -n` allows)")]
    TooMany(usize),
    /// There are as many from this address as there may be.
    #[error("there are {0} open from its address already (max.connections.per.ip)")]
    TooManyFromThere(usize),
}

impl Admission {
    /// Admits so many connections in all and from one address; fewer in all when the process may not open twice as many
    /// files.
    pub(super) fn new(limit: usize, limit_per_address: usize) -> Self {
        let files = getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft);
        let files = usize::try_from(files).unwrap_or(usize::MAX);
        Self {
            limit: limit.min(files / 2),
            limit_per_address,
            open: Arc::default(),
        }
    }

    /// Admits one more connection from this address, until what is returned is dropped.
    pub(super) fn admit(&self, address: IpAddr) -> Result<Admitted, Refusal> {
        let mut open = self.open.lock();
        if open.all >= self.limit {
            return Err(Refusal::TooMany(open.all));
        }
        let from_there = open.by_address.get(&address).copied().unwrap_or(0);
        if from_there >= self.limit_per_address {
            return Err(Refusal::TooManyFromThere(from_there));
        }
        open.all += 1;
        open.by_address.insert(address, from_there + 1);
        Ok(Admitted {
            address,
            open: self.open.clone(),
        })
    }
}

/// A connection that counts.
pub(super) struct Admitted {
    address: IpAddr,
    open: Arc<Mutex<Open>>,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut open = self.open.lock();
        open.all -= 1;
        if let Some(count) = open.by_address.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                open.by_address.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_limited_in_all_and_from_one_address() {
        let admission = Admission::new(3, 2);
        let [here, there]: [IpAddr; 2] = [[127, 0, 0, 1].into(), [10, 0, 0, 1].into()];
        let refusal = |address| admission.admit(address).err();
        let first = admission.admit(here).expect("the first");
        let second = admission.admit(here).expect("the second");
        assert_eq!(refusal(here), Some(Refusal::TooManyFromThere(2)));
        let third = admission.admit(there).expect("another address");
        assert_eq!(refusal(there), Some(Refusal::TooMany(3)));
        drop(first);
        let fourth = admission.admit(here).expect("one has left");
        drop((second, third, fourth));
        assert!(admission.open.lock().by_address.is_empty());
    }
}
