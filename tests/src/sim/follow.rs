//! What a simulated broker does for a replica that follows: one fetch on its way at a time, taken for lost after a while.

use epoka_broker::replica::{Event, FetchAnswer, ReadRequest, Reader};
use epoka_proto::error::ErrorCode;
use epoka_proto::ids::{LeaderEpoch, Millis, Offset};

use super::message::{Asked, Home, Item, Message, Node};
use super::world::World;

const FETCH_TIMEOUT_MS: Millis = 600;

impl World {
    pub(super) fn maybe_fetch(&mut self, home: Home) {
        let now = self.now;
        let Some(process) = self.alive(home.broker, home.life) else {
            return;
        };
        let Some(epoch) = process.epoch else { return };
        let Some(partition) = process.partitions[home.partition].as_mut() else {
            return;
        };
        if partition.fetch.is_some() {
            return;
        }
        let Some(position) = partition.replica.fetch_position() else {
            return;
        };
        if position.not_before > now {
            if partition.fetch_again != position.not_before {
                partition.fetch_again = position.not_before;
                self.schedule(position.not_before - now, Item::FetchAgain { home });
            }
            return;
        }
        let rpc = self.next_id();
        self.home(home).expect("it is here").fetch = Some(rpc);
        let request = ReadRequest {
            reader: Reader::Follower {
                broker: self.brokers[home.broker].id,
                epoch,
            },
            current_leader_epoch: Some(position.leader_epoch),
            offset: position.offset,
            last_fetched_epoch: position.last_fetched_epoch,
            again: false,
        };
        let to = Node::Broker(self.index(position.leader));
        self.send(
            Node::Broker(home.broker),
            to,
            Message::Fetch {
                from: home,
                rpc,
                request,
            },
        );
        self.schedule(FETCH_TIMEOUT_MS, Item::FetchTimeout { home, rpc });
    }

    /// An answer, perhaps late or twice: the replica judges by its echo (F-5).
    pub(super) fn fetched(&mut self, home: Home, rpc: u64, asked: Asked, answer: FetchAnswer) {
        let now = self.now;
        let Some(partition) = self.home(home) else {
            return;
        };
        if partition.fetch == Some(rpc) {
            partition.fetch = None;
        }
        let (leader_epoch, fetch_offset, last_fetched_epoch) = asked;
        self.step(
            home,
            Event::Fetched {
                leader_epoch,
                fetch_offset,
                last_fetched_epoch,
                answer,
                now,
            },
        );
    }

    pub(super) fn fetch_timed_out(&mut self, home: Home, rpc: u64) {
        let now = self.now;
        let Some(partition) = self.home(home) else {
            return;
        };
        if partition.fetch != Some(rpc) {
            return;
        }
        partition.fetch = None;
        if let Some(position) = partition.replica.fetch_position() {
            self.step(
                home,
                Event::Fetched {
                    leader_epoch: position.leader_epoch,
                    fetch_offset: position.offset,
                    last_fetched_epoch: position.last_fetched_epoch,
                    answer: FetchAnswer::Unreachable,
                    now,
                },
            );
        }
    }

    pub(super) fn bounds_answered(
        &mut self,
        home: Home,
        rpc: u64,
        leader_epoch: LeaderEpoch,
        answer: Result<(Offset, Offset), ErrorCode>,
    ) {
        let now = self.now;
        let Some(partition) = self.home(home) else {
            return;
        };
        if partition.bounds == Some(rpc) {
            partition.bounds = None;
            self.step(
                home,
                Event::Bounds {
                    leader_epoch,
                    answer,
                    now,
                },
            );
        }
    }
}
