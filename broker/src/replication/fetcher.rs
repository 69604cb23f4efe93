//! The follower's side of replication: one loop for each leader, fetching all partitions followed from it. The next fetch is
//! sent as soon as the last answer is appended; a fetch at an offset acknowledges what is before it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use epoka_proto::batch;
use epoka_proto::epochs::EpochEnd;
use epoka_proto::error::ErrorCode;
use epoka_proto::ids::{BrokerId, LeaderEpoch, Millis, Offset, PartitionId, TopicId};
use epoka_proto::v1::replica_client::ReplicaClient;
use epoka_proto::v1::{BoundsRequest, FetchPartition, FetchRequest, FetchedPartition};
use futures::StreamExt as _;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep_until};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;

use super::link::{Link, connect, for_leader};
use super::{MAX_WAIT_MS, MESSAGE_LIMIT, PARTITION_MAX_BYTES, RESPONSE_MAX_BYTES};
use crate::clock::Clock;
use crate::membership::Membership;
use crate::partition::Partition;
use crate::replica::{Event, FetchAnswer, FetchedBatch};

/// The fetch loops of a node, one for each leader that is followed.
pub struct Fetchers {
    pub(super) peers: Arc<Membership>,
    loops: Mutex<BTreeMap<BrokerId, Arc<FetchLoop>>>,
    /// Which loop owns a partition: one at most (F-1, I-27).
    owner: Mutex<BTreeMap<PartitionId, BrokerId>>,
    stop: CancellationToken,
}

pub(super) struct FetchLoop {
    followed: Mutex<BTreeMap<PartitionId, Arc<Partition>>>,
    changed: Notify,
    pub(super) link: Link,
}

impl Fetchers {
    /// No loops yet.
    pub fn new(peers: Arc<Membership>, stop: CancellationToken) -> Self {
        Self {
            peers,
            loops: Mutex::default(),
            owner: Mutex::default(),
            stop,
        }
    }

    /// Fetches a partition from this leader, and from no other. Also called when only the leader's epoch changed: the loop
    /// then sends a new request at once.
    pub fn follow(&self, partition: Arc<Partition>, leader: BrokerId) {
        let previous = self.owner.lock().insert(partition.id, leader);
        if let Some(previous) = previous.filter(|p| *p != leader) {
            self.drop_from(previous, partition.id);
        }
        let fetch_loop = self
            .loops
            .lock()
            .entry(leader)
            .or_insert_with(|| self.start(leader))
            .clone();
        fetch_loop.followed.lock().insert(partition.id, partition);
        fetch_loop.changed.notify_one();
    }

    /// Fetches a partition no more. An answer under way is refused by the replica, whose epoch moved on.
    pub fn unfollow(&self, id: PartitionId) {
        if let Some(previous) = self.owner.lock().remove(&id) {
            self.drop_from(previous, id);
        }
    }

    /// Leaders that are followed and cannot be reached.
    pub fn out_of_reach(&self) -> Vec<BrokerId> {
        let loops = self.loops.lock();
        let lost = loops
            .iter()
            .filter(|(_, l)| !l.followed.lock().is_empty() && !l.link.is_open());
        lost.map(|(leader, _)| *leader).collect()
    }

    /// Asks a leader for its log start and log end, and tells the partition.
    pub fn ask_bounds(
        &self,
        partition: Arc<Partition>,
        leader: BrokerId,
        leader_epoch: LeaderEpoch,
    ) {
        let peers = self.peers.clone();
        let fetch_loop = self.loops.lock().get(&leader).cloned();
        tokio::spawn(async move {
            let answer = bounds(&peers, partition.id, leader, leader_epoch).await;
            let now = peers.clock.now();
            tokio::task::block_in_place(|| {
                partition.handle(Event::Bounds {
                    leader_epoch,
                    answer,
                    now,
                })
            });
            // It fetches again, from somewhere else perhaps.
            if let Some(fetch_loop) = fetch_loop {
                fetch_loop.changed.notify_one();
            }
        });
    }

    /// The loops of these leaders, as far as they are followed.
    pub(super) fn loops_of(&self, leaders: BTreeSet<BrokerId>) -> Vec<(BrokerId, Arc<FetchLoop>)> {
        let loops = self.loops.lock();
        let of = |leader| Some((leader, loops.get(&leader)?.clone()));
        leaders.into_iter().filter_map(of).collect()
    }

    fn drop_from(&self, leader: BrokerId, id: PartitionId) {
        if let Some(fetch_loop) = self.loops.lock().get(&leader) {
            fetch_loop.followed.lock().remove(&id);
        }
    }

    fn start(&self, leader: BrokerId) -> Arc<FetchLoop> {
        let fetch_loop = Arc::new(FetchLoop {
            followed: Mutex::default(),
            changed: Notify::new(),
            link: Link::default(),
        });
        let (running, peers, stop) = (fetch_loop.clone(), self.peers.clone(), self.stop.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = running.run(&peers, leader) => {}
            }
        });
        fetch_loop
    }
}

/// Pause after a connection to the leader failed. The failure is usually a dead leader, and metadata will say so soon.
const RECONNECT_PAUSE: Duration = Duration::from_millis(20);

impl FetchLoop {
    async fn run(&self, peers: &Membership, leader: BrokerId) {
        loop {
            while self.followed.lock().is_empty() {
                self.changed.notified().await;
            }
            if let Some(address) = peers.address(leader) {
                let outcome = self.exchange(peers, leader, &address).await;
                self.link.closed();
                peers.lost(leader);
                match outcome {
                    Ok(()) => tracing::debug!(%leader, "the leader ended the fetch exchange"),
                    Err(error) => {
                        tracing::debug!(%leader, address, %error, "the fetch exchange broke")
                    }
                }
            }
            tokio::time::sleep(RECONNECT_PAUSE).await;
        }
    }

    /// One connection to the leader, until it breaks.
    async fn exchange(
        &self,
        peers: &Membership,
        leader: BrokerId,
        address: &str,
    ) -> Result<(), tonic::Status> {
        let channel = connect(address)
            .await
            .map_err(|e| tonic::Status::unavailable(e.to_string()))?;
        let mut client =
            ReplicaClient::new(channel.clone()).max_decoding_message_size(MESSAGE_LIMIT);
        let (requests, outgoing) = mpsc::channel(2);
        let mut answers = client
            .fetch(for_leader(ReceiverStream::new(outgoing), peers, leader))
            .await?
            .into_inner();
        peers.found(leader);
        self.link.opened(channel);
        // Requests without an answer: one, and a second one while it pushes out the first, which the leader has parked.
        let mut in_flight = 0usize;
        let mut news = true;
        // When the next of the partitions that back off may be asked for.
        let mut alarm = None;
        let mut last_served = None;
        loop {
            if in_flight == 0 || (news && in_flight == 1) {
                if peers.address(leader).as_deref() != Some(address) {
                    return Ok(()); // a new life of it is elsewhere
                }
                let (request, later) = self.request(peers, leader, last_served);
                alarm = later.map(|wait| Instant::now() + wait);
                if !request.partitions.is_empty() {
                    if requests.send(request).await.is_err() {
                        return Ok(());
                    }
                    in_flight += 1;
                }
            }
            news = false;
            let backed_off = async {
                match alarm {
                    Some(time) => sleep_until(time).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                answer = answers.next() => {
                    let Some(answer) = answer.transpose()? else { return Ok(()) };
                    if in_flight == 0 {
                        return Err(tonic::Status::internal("an answer to no question"));
                    }
                    in_flight -= 1;
                    self.link.heard();
                    for item in answer.partitions {
                        let served = !item.records.is_empty();
                        let id = self.take(item, peers.clock);
                        last_served = id.filter(|_| served).or(last_served);
                    }
                }
                () = self.changed.notified(), if in_flight < 2 => news = true,
                () = backed_off, if in_flight < 2 => news = true,
            }
        }
    }

    /// Asks for every partition that may be fetched now. Also says how long it is until the next one may, of those that back off.
    fn request(
        &self,
        peers: &Membership,
        leader: BrokerId,
        last_served: Option<PartitionId>,
    ) -> (FetchRequest, Option<Duration>) {
        let now = peers.clock.now();
        let mut later: Option<Millis> = None;
        let mut partitions = Vec::new();
        let followed = in_turn(&self.followed.lock(), last_served);
        for partition in followed {
            let position = partition.fetch_position();
            let Some(position) = position.filter(|p| p.leader == leader) else {
                continue;
            };
            if position.not_before > now {
                let wait = position.not_before - now;
                later = Some(later.map_or(wait, |l| l.min(wait)));
                continue;
            }
            partitions.push(FetchPartition {
                topic_id: partition.id.topic.to_bytes(),
                partition: partition.id.partition,
                leader_epoch: position.leader_epoch.0,
                fetch_offset: position.offset.0,
                last_fetched_epoch: position.last_fetched_epoch.map(|e| e.0),
                log_start: position.log_start.0,
                max_bytes: PARTITION_MAX_BYTES as u32,
            });
        }
        let request = FetchRequest {
            broker_id: peers.me.0,
            broker_epoch: peers.epoch().0,
            max_wait_ms: MAX_WAIT_MS,
            min_bytes: 1,
            max_bytes: RESPONSE_MAX_BYTES as u32,
            partitions,
        };
        (
            request,
            later.map(|ms| Duration::from_millis(ms.unsigned_abs())),
        )
    }

    /// Hands one partition's answer to its replica. Says which partition, if it is followed.
    fn take(&self, item: FetchedPartition, clock: Clock) -> Option<PartitionId> {
        let id = PartitionId {
            topic: TopicId::from_bytes(&item.topic_id)?,
            partition: item.partition,
        };
        let partition = self.followed.lock().get(&id).cloned()?;
        let answer = match (ErrorCode::from_wire(item.error as i16), item.diverging) {
            (Err(error), _) => FetchAnswer::Refused(error),
            (Ok(()), Some(end)) => FetchAnswer::Diverging(EpochEnd {
                epoch: LeaderEpoch(end.epoch),
                end: Offset(end.end_offset),
            }),
            (Ok(()), None) => FetchAnswer::Data {
                high_watermark: Offset(item.high_watermark),
                log_start: Offset(item.log_start),
                batches: valid_prefix(&item.records),
                bytes: item.records,
            },
        };
        // A truncation makes files durable, and so does the first batch of an epoch; other appends do not.
        let newest = item.last_fetched_epoch.map(LeaderEpoch);
        let may_block = match &answer {
            FetchAnswer::Data { batches, .. } => batches
                .last()
                .is_some_and(|last| Some(last.epoch) != newest),
            _ => true,
        };
        let event = Event::Fetched {
            leader_epoch: LeaderEpoch(item.leader_epoch),
            fetch_offset: Offset(item.fetch_offset),
            last_fetched_epoch: newest,
            answer,
            now: clock.now(),
        };
        if may_block {
            tokio::task::block_in_place(|| partition.handle(event));
        } else {
            partition.handle(event);
        }
        Some(id)
    }
}

/// What is in a map, beginning after the key served last: an answer has room for some partitions only, and all must have their
/// turn.
fn in_turn<K: Ord, V: Clone>(map: &BTreeMap<K, V>, last_served: Option<K>) -> Vec<V> {
    let (after, up_to) = match &last_served {
        Some(key) => (
            map.range((Bound::Excluded(key), Bound::Unbounded)),
            Some(map.range(..=key)),
        ),
        None => (map.range::<K, _>(..), None),
    };
    let all = after.chain(up_to.into_iter().flatten());
    all.map(|(_, value)| value.clone()).collect()
}

/// The batches before the first one that is cut short, damaged or out of order (F-6, H-21).
fn valid_prefix(bytes: &Bytes) -> Vec<FetchedBatch> {
    let mut valid: Vec<FetchedBatch> = Vec::new();
    for (header, raw) in batch::batches(bytes).map_while(Result::ok) {
        let in_order = valid
            .last()
            .is_none_or(|last| header.base_offset >= last.end);
        let Some(epoch) = header
            .epoch()
            .filter(|_| in_order && batch::crc_is_valid(raw))
        else {
            tracing::warn!(offset = %header.base_offset, "a fetched batch is damaged; it will be fetched again");
            break;
        };
        valid.push(FetchedBatch {
            base: header.base_offset,
            end: header.next_offset(),
            epoch,
            size: raw.len(),
        });
    }
    valid
}

async fn bounds(
    peers: &Membership,
    id: PartitionId,
    leader: BrokerId,
    leader_epoch: LeaderEpoch,
) -> Result<(Offset, Offset), ErrorCode> {
    let address = peers.address(leader).ok_or(ErrorCode::BrokerNotAvailable)?;
    let channel = connect(&address)
        .await
        .map_err(|_| ErrorCode::BrokerNotAvailable)?;
    let request = BoundsRequest {
        topic_id: id.topic.to_bytes(),
        partition: id.partition,
        leader_epoch: leader_epoch.0,
    };
    let answer = ReplicaClient::new(channel)
        .bounds(for_leader(request, peers, leader))
        .await;
    let answer = answer
        .map_err(|_| ErrorCode::BrokerNotAvailable)?
        .into_inner();
    ErrorCode::from_wire(answer.error as i16)?;
    Ok((Offset(answer.log_start), Offset(answer.log_end)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_an_answer_the_partitions_behind_the_last_served_come_first() {
        let map = BTreeMap::from([(1, 'a'), (3, 'b'), (5, 'c')]);
        assert_eq!(in_turn(&map, None), ['a', 'b', 'c']);
        assert_eq!(in_turn(&map, Some(3)), ['c', 'a', 'b']);
        assert_eq!(in_turn(&map, Some(4)), ['c', 'a', 'b']); // not followed any more
        assert_eq!(in_turn(&map, Some(5)), ['a', 'b', 'c']);
    }
}
