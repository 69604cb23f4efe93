//! The committed metadata on this controller: the cluster as of the last command applied, and the recent changes that brokers
//! follow. Every voter keeps it; only the active controller serves it. Order is kept by one lock; a follower that asks for
//! changes no longer kept is given a snapshot instead.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use epoka_proto::metadata::{Image, Record};
use epoka_proto::v1::MetadataUpdate;
use futures::Stream;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::cluster::{Cluster, Command, Outcome};

/// How many recent changes are kept.
const KEPT: usize = 4096;

/// The committed metadata. Clones share it.
#[derive(Clone)]
pub struct Metadata {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    /// Offset of the last change; what followers wait on.
    newest: watch::Sender<Option<i64>>,
}

#[derive(Default)]
struct State {
    cluster: Cluster,
    /// Offset of the last command applied, whether or not it changed anything.
    applied: Option<i64>,
    /// Recent changes, oldest first.
    deltas: VecDeque<Delta>,
    /// Every change after this offset is in `deltas`; `None`: every change there ever was.
    floor: Option<i64>,
}

impl State {
    /// What metadata offsets have above positions in the quorum's log.
    fn offset_base(&self) -> i64 {
        self.cluster.image().offset_base
    }
}

#[derive(Clone)]
struct Delta {
    offset: i64,
    records: Vec<Bytes>,
}

impl Metadata {
    /// No metadata yet.
    pub fn new() -> Self {
        Self {
            shared: Arc::new(Shared {
                state: Mutex::default(),
                newest: watch::Sender::new(None),
            }),
        }
    }

    /// Applies a committed command, which has this position in the quorum's log.
    pub fn apply(&self, index: i64, command: &Command) -> Outcome {
        let mut state = self.shared.state.lock();
        let base = state.offset_base();
        let outcome = state.cluster.apply(base + index, command);
        let offset = state.offset_base() + index;
        if offset != base + index {
            // Another history begins: nobody goes on from the one before.
            state.deltas.clear();
            state.floor = Some(offset - 1);
        }
        state.applied = Some(offset);
        if !outcome.records.is_empty() {
            let records = outcome.records.iter().map(Record::encode).collect();
            state.deltas.push_back(Delta { offset, records });
            if state.deltas.len() > KEPT {
                state.floor = state.deltas.pop_front().map(|d| d.offset);
            }
            self.shared.newest.send_replace(Some(offset));
        }
        outcome
    }

    /// Notes that an entry without a command was committed at this position.
    pub fn skip(&self, index: i64) {
        let mut state = self.shared.state.lock();
        state.applied = Some(state.offset_base() + index);
    }

    /// Replaces everything by a snapshot that covers the log up to this position.
    pub fn install(&self, image: Image, index: i64) {
        let offset = image.offset_base + index;
        let mut state = self.shared.state.lock();
        *state = State {
            cluster: Cluster::new(image),
            applied: Some(offset),
            deltas: VecDeque::new(),
            floor: Some(offset),
        };
        self.shared.newest.send_replace(Some(offset));
    }

    /// Looks at the cluster. Keep it short: nothing is applied meanwhile.
    pub fn read<T>(&self, look: impl FnOnce(&Cluster) -> T) -> T {
        look(&self.shared.state.lock().cluster)
    }

    /// The cluster's id, once known.
    pub fn cluster_id(&self) -> Option<String> {
        self.read(|c| c.image().known_cluster_id().map(str::to_owned))
    }

    /// A copy of the cluster; cheap, because topics and brokers are shared.
    pub fn cluster(&self) -> Cluster {
        self.read(Cluster::clone)
    }

    /// Offset of the last command applied.
    pub fn applied(&self) -> Option<i64> {
        self.shared.state.lock().applied
    }

    /// Offset of the last change: what an up-to-date broker reports.
    pub fn newest(&self) -> Option<i64> {
        *self.shared.newest.borrow()
    }

    /// Follows `newest`.
    pub(crate) fn watch_newest(&self) -> watch::Receiver<Option<i64>> {
        self.shared.newest.subscribe()
    }

    /// Follows the changes after an offset, beginning with a snapshot where needed. Ends never; drop it.
    pub fn follow(&self, after: Option<i64>) -> impl Stream<Item = MetadataUpdate> + Send + use<> {
        let start = (self.clone(), self.shared.newest.subscribe(), after);
        futures::stream::unfold(start, |(metadata, mut newest, mut at)| async move {
            loop {
                newest.borrow_and_update();
                if let Some(update) = metadata.next_after(at) {
                    at = Some(update.offset);
                    return Some((update, (metadata, newest, at)));
                }
                newest.changed().await.ok()?;
            }
        })
    }

    /// The change that comes next after `at`, or a snapshot when it is no longer kept or `at` is not of this history.
    fn next_after(&self, at: Option<i64>) -> Option<MetadataUpdate> {
        let state = self.shared.state.lock();
        let applied = state.applied?;
        let resumable = at.filter(|&at| at <= applied && state.floor.is_none_or(|f| f <= at));
        let Some(at) = resumable else {
            let records = state.cluster.image().to_records();
            return Some(MetadataUpdate {
                offset: applied,
                snapshot: true,
                records: records.iter().map(Record::encode).collect(),
            });
        };
        let next = state.deltas.partition_point(|d| d.offset <= at);
        state.deltas.get(next).map(|delta| MetadataUpdate {
            offset: delta.offset,
            snapshot: false,
            records: delta.records.clone(),
        })
    }
}

impl Default for Metadata {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use epoka_proto::ids::{BrokerId, Incarnation};
    use futures::{FutureExt, StreamExt};

    use crate::cluster::{Registration, Restoration};

    fn register(broker: i32, incarnation: u128) -> Command {
        Command::Register(Registration {
            broker: BrokerId(broker),
            cluster_id: None,
            incarnation: Incarnation(uuid::Uuid::from_u128(incarnation)),
            listeners: vec![],
            grpc_address: String::new(),
            log_dirs: vec![],
            previous_epoch: None,
            rack: None,
        })
    }

    fn rebuild(image: &mut Image, update: &MetadataUpdate) {
        if update.snapshot {
            *image = Image::default();
        }
        for record in &update.records {
            image.apply(&Record::decode(record).expect("json"));
        }
    }

    #[tokio::test]
    async fn a_follower_resumes_where_it_was_and_sees_every_change_in_order() {
        let metadata = Metadata::new();
        metadata.apply(0, &register(1, 1));
        metadata.skip(1);
        metadata.apply(2, &register(2, 2));
        let mut resumed = Box::pin(metadata.follow(Some(0)));
        let update = resumed.next().await.expect("endless");
        assert_eq!((update.offset, update.snapshot), (2, false));
        assert!(resumed.next().now_or_never().is_none(), "nothing new yet");
        metadata.apply(3, &register(1, 3));
        assert_eq!(resumed.next().await.map(|u| u.offset), Some(3));
    }

    #[tokio::test]
    async fn a_follower_that_is_too_far_behind_gets_a_snapshot_i_17() {
        let metadata = Metadata::new();
        let count = KEPT as i64 + 10;
        for offset in 0..count {
            metadata.apply(offset, &register((offset % 5) as i32, offset as u128));
        }
        for after in [None, Some(3), Some(count + 7)] {
            let mut follower = Box::pin(metadata.follow(after));
            let update = follower.next().await.expect("endless");
            assert_eq!(
                (update.offset, update.snapshot),
                (count - 1, true),
                "{after:?}"
            );
            let mut image = Image::default();
            rebuild(&mut image, &update);
            assert_eq!(&image, metadata.cluster().image());
        }
        let mut near = Box::pin(metadata.follow(Some(count - 2)));
        assert!(!near.next().await.expect("endless").snapshot);
    }

    #[tokio::test]
    async fn a_rebuilt_history_has_offsets_of_its_own() {
        let metadata = Metadata::new();
        metadata.skip(0);
        let restored = Command::Restore(Restoration {
            cluster_id: "abc".into(),
            configs: [].into(),
            topics: vec![],
            offset_base: 1_000_000,
            next_producer_id: 1,
        });
        metadata.apply(1, &restored);
        metadata.apply(2, &register(1, 1));
        metadata.skip(3);
        assert_eq!(metadata.applied(), Some(1_000_003));
        let epoch = metadata.read(|c| c.image().brokers[&BrokerId(1)].epoch);
        assert_eq!(epoch.0, 1_000_002);
        // One that followed the lost history begins anew.
        for (after, snapshot) in [(0, true), (500, true), (1_000_001, false)] {
            let mut follower = Box::pin(metadata.follow(Some(after)));
            let update = follower.next().await.expect("endless");
            assert_eq!(update.snapshot, snapshot, "{after}");
        }
        let again = Metadata::new();
        again.install(metadata.cluster().image().clone(), 3);
        assert_eq!(again.applied(), metadata.applied());
    }
}
