//! Who this broker is in the cluster, and the newest metadata it has applied.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use epoka_proto::ids::{BrokerEpoch, BrokerId, Millis};
use epoka_proto::metadata::{Assignment, BrokerRegistration, Image};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::clock::Clock;

/// How long a broken connection makes its broker suspect. Fencing a dead process takes a small part of it; one that is
/// merely cut off from this broker must not look leaderless for longer.
const SUSPICION_MS: Millis = 1000;

/// How long clients are still told of a broker after it was fenced: librdkafka looks at its partitions once a second.
const FAREWELL_MS: Millis = 3000;

/// Identity and metadata, shared by everything in a node.
pub struct Membership {
    /// This broker.
    pub me: BrokerId,
    /// The node's clock.
    pub clock: Clock,
    epoch: AtomicI64,
    image: ArcSwap<Image>,
    /// Brokers whose fetch exchange broke and has not been opened again, and when it did.
    lost: Mutex<BTreeMap<BrokerId, Millis>>,
    /// When brokers were fenced, as far as this broker saw it happen.
    fenced: Mutex<BTreeMap<BrokerId, Millis>>,
    applied: watch::Sender<Option<i64>>,
    /// Speaks whenever the image or the connections to others changed.
    stirred: watch::Sender<()>,
    /// The life in which the controller was told of every replica that cannot be served.
    vetted: watch::Sender<Option<BrokerEpoch>>,
    /// What the controller last said of the topics that are declared and not there yet.
    topics_pending: Mutex<Option<String>>,
    /// Why this broker has not been admitted to the cluster, as far as it was told.
    refused: Mutex<Option<String>>,
    /// When the active controller last answered a heartbeat; at first, when this began.
    controller_heard: AtomicI64,
}

impl Membership {
    /// A broker that has not registered and knows nothing.
    pub fn new(me: BrokerId, clock: Clock) -> Self {
        Self {
            me,
            clock,
            epoch: AtomicI64::new(-1),
            image: ArcSwap::default(),
            lost: Mutex::default(),
            fenced: Mutex::default(),
            applied: watch::Sender::new(None),
            stirred: watch::Sender::new(()),
            vetted: watch::Sender::new(None),
            topics_pending: Mutex::default(),
            refused: Mutex::default(),
            controller_heard: AtomicI64::new(clock.now()),
        }
    }

    /// The epoch of the current registration.
    pub fn epoch(&self) -> BrokerEpoch {
        BrokerEpoch(self.epoch.load(Ordering::Acquire))
    }

    /// The epoch of the current registration, if there ever was one in this life.
    pub fn registered(&self) -> Option<BrokerEpoch> {
        BrokerEpoch::from_wire(self.epoch().0)
    }

    pub(crate) fn set_epoch(&self, epoch: BrokerEpoch) {
        self.epoch.store(epoch.0, Ordering::Release);
    }

    /// The newest metadata. Cheap; do not hold it for long.
    pub fn image(&self) -> Arc<Image> {
        self.image.load_full()
    }

    /// Makes an image the newest one. Its partitions may still be taking it up: see `set_applied`.
    pub(crate) fn set_image(&self, image: Image) {
        let now = self.clock.now();
        let before = self.image.load();
        let mut fenced = self.fenced.lock();
        fenced.retain(|id, _| image.brokers.get(id).is_some_and(|b| b.fenced));
        for broker in image.brokers.values().filter(|b| b.fenced) {
            if before.brokers.get(&broker.id).is_none_or(|b| !b.fenced) {
                fenced.insert(broker.id, now);
            }
        }
        drop(fenced);
        self.image.store(Arc::new(image));
        self.stirred.send_replace(());
    }

    /// The metadata offset up to which partitions have taken everything up.
    pub fn applied(&self) -> Option<i64> {
        *self.applied.borrow()
    }

    pub(crate) fn set_applied(&self, offset: i64) {
        self.applied.send_replace(Some(offset));
    }

    /// Follows `applied`.
    pub fn watch_applied(&self) -> watch::Receiver<Option<i64>> {
        self.applied.subscribe()
    }

    /// The life in which the controller was told of every replica that could not be served at its beginning. Before that is the
    /// present life, the broker is not to be unfenced: such a replica might be elected.
    pub fn vetted(&self) -> Option<BrokerEpoch> {
        *self.vetted.borrow()
    }

    pub(crate) fn set_vetted(&self, epoch: BrokerEpoch) {
        self.vetted.send_replace(Some(epoch));
    }

    /// Why this broker has not been admitted to the cluster, as far as it was told.
    pub fn refused(&self) -> Option<String> {
        self.refused.lock().clone()
    }

    pub(crate) fn set_refused(&self, why: &str) {
        *self.refused.lock() = Some(why.to_owned());
    }

    /// What the controller last said of the topics that are declared and not there yet: nothing when they all are; `None` before
    /// it said anything.
    pub fn topics_pending(&self) -> Option<String> {
        self.topics_pending.lock().clone()
    }

    pub(crate) fn set_topics_pending(&self, pending: &str) {
        let mut known = self.topics_pending.lock();
        if known.as_deref() != Some(pending) {
            *known = Some(pending.to_owned());
        }
    }

    /// The active controller answered.
    pub(crate) fn hear_controller(&self) {
        self.controller_heard
            .store(self.clock.now(), Ordering::Relaxed);
    }

    /// How long ago the active controller last answered a heartbeat; before the first, how long it has been waited for.
    pub fn controller_silent(&self) -> Duration {
        let heard = self.controller_heard.load(Ordering::Relaxed);
        Duration::from_millis(self.clock.now().saturating_sub(heard).unsigned_abs())
    }

    /// Follows `vetted`.
    pub(crate) fn watch_vetted(&self) -> watch::Receiver<Option<BrokerEpoch>> {
        self.vetted.subscribe()
    }

    /// `host:port` of a broker's gRPC services, if it is registered.
    pub fn address(&self, broker: BrokerId) -> Option<String> {
        let image = self.image.load();
        image.brokers.get(&broker).map(|b| b.grpc_address.clone())
    }

    /// The connection to another broker broke.
    pub(crate) fn lost(&self, broker: BrokerId) {
        self.lost.lock().entry(broker).or_insert(self.clock.now());
        self.stirred.send_replace(());
    }

    /// The connection to another broker stands.
    pub(crate) fn found(&self, broker: BrokerId) {
        self.lost.lock().remove(&broker);
        self.stirred.send_replace(());
    }

    /// Whether a broker is likely to have died a moment ago: its connection broke and is not back. The controller will say
    /// soon; until then naming it as a leader would send clients to a closed door, from which some return only after a second.
    pub fn is_suspect(&self, broker: BrokerId) -> bool {
        let since = self.lost.lock().get(&broker).copied();
        since.is_some_and(|since| self.clock.now() - since < SUSPICION_MS)
    }

    /// Waits while `doubtful` holds of the newest image, but not longer than `patience`. Returns the image as it is then.
    pub async fn settled(
        &self,
        patience: Duration,
        doubtful: impl Fn(&Image) -> bool,
    ) -> Arc<Image> {
        let mut stirred = self.stirred.subscribe();
        let calm = async {
            while doubtful(&self.image()) {
                if stirred.changed().await.is_err() {
                    return;
                }
            }
        };
        // What is known when patience ends is told as it is.
        drop(tokio::time::timeout(patience, calm).await);
        self.image()
    }

    /// Whether clients are told of this broker: it is this one, which is evidently there; it is unfenced, or was until a moment
    /// ago, as far as this broker knows. A client that moves its partitions away from a dead broker still needs to know it, or it
    /// forgets the partitions along with the broker; one that is told of no broker at all has nobody left to ask.
    pub fn is_listed(&self, broker: &BrokerRegistration) -> bool {
        let since = self.fenced.lock().get(&broker.id).copied();
        broker.id == self.me
            || !broker.fenced
            || since.is_some_and(|since| self.clock.now() - since < FAREWELL_MS)
    }

    /// Whether a broker is being drained before it stops.
    pub(crate) fn is_anybody_stopping(&self) -> bool {
        let image = self.image.load();
        image.brokers.values().any(|b| b.shutting_down && !b.fenced)
    }

    /// Active brokers among a partition's replicas, with their registered epochs (L-24).
    pub fn eligible(image: &Image, assignment: &Assignment) -> BTreeMap<BrokerId, BrokerEpoch> {
        let registered = assignment
            .replicas
            .iter()
            .filter_map(|id| image.brokers.get(id));
        registered
            .filter(|b| b.is_active())
            .map(|b| (b.id, b.epoch))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future as _;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(600);

    #[tokio::test]
    async fn an_answer_waits_for_a_suspect_to_be_replaced_or_to_come_back() {
        let peers = Membership::new(BrokerId(1), Clock::start());
        let suspect = BrokerId(2);
        let mut now = Context::from_waker(Waker::noop());
        let doubtful = |image: &Image| peers.is_suspect(suspect) && image.brokers.is_empty();

        peers.lost(suspect);
        let mut settled = pin!(peers.settled(PATIENCE, doubtful));
        assert!(settled.as_mut().poll(&mut now).is_pending());
        peers.set_image(Image::default());
        assert!(
            settled.as_mut().poll(&mut now).is_pending(),
            "nothing new in it"
        );
        peers.found(suspect);
        assert!(settled.as_mut().poll(&mut now).is_ready());

        peers.lost(suspect);
        peers.settled(Duration::from_millis(1), doubtful).await;
        assert!(peers.is_suspect(suspect), "patience ended first");
    }
}
