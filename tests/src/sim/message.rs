//! What travels between the nodes of a simulated cluster, and what the clock brings.

use epoka_broker::replica::{Acks, FetchAnswer, IsrAnswer, Produced, ReadRequest, ReplyId};
use epoka_controller::cluster::{IsrProposal, Registration};
use epoka_proto::error::ErrorCode;
use epoka_proto::ids::{BrokerEpoch, LeaderEpoch, Millis, Offset};

/// A place messages go to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Node {
    /// A broker, by index: whichever process of it lives when the message arrives.
    Broker(usize),
    Controller,
    Client,
}

/// One partition in one life of a broker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Home {
    pub(super) broker: usize,
    pub(super) life: u64,
    pub(super) partition: usize,
}

/// The identity of a fetch (F-5).
pub(super) type Asked = (LeaderEpoch, Offset, Option<LeaderEpoch>);

#[derive(Clone, Debug)]
pub(super) enum Message {
    Fetch {
        from: Home,
        rpc: u64,
        request: ReadRequest,
    },
    Fetched {
        to: Home,
        rpc: u64,
        asked: Asked,
        answer: FetchAnswer,
    },
    Bounds {
        from: Home,
        rpc: u64,
        leader_epoch: LeaderEpoch,
    },
    BoundsAnswer {
        to: Home,
        rpc: u64,
        leader_epoch: LeaderEpoch,
        answer: Result<(Offset, Offset), ErrorCode>,
    },
    AlterPartition {
        from: Home,
        rpc: u64,
        epoch: BrokerEpoch,
        proposal: IsrProposal,
    },
    IsrAnswer {
        to: Home,
        rpc: u64,
        answer: IsrAnswer,
    },
    Register {
        from: usize,
        life: u64,
        registration: Registration,
    },
    Registered {
        to: usize,
        life: u64,
        epoch: BrokerEpoch,
    },
    Heartbeat {
        from: usize,
        life: u64,
        epoch: BrokerEpoch,
        applied: i64,
        leaving: bool,
    },
    HeartbeatAnswer {
        to: usize,
        life: u64,
        stale: bool,
        upto: i64,
    },
    Metadata {
        to: usize,
        life: u64,
        upto: i64,
    },
    Produce {
        partition: usize,
        client: usize,
        attempt: u64,
        payload: u64,
        records: i64,
        acks: Acks,
    },
    Produced {
        client: usize,
        attempt: u64,
        outcome: Result<Produced, ErrorCode>,
    },
    Consume {
        partition: usize,
        epoch: Option<LeaderEpoch>,
        offset: Offset,
    },
    Consumed {
        partition: usize,
        outcome: Result<Offset, ErrorCode>,
    },
}

/// What the clock brings.
#[derive(Clone, Debug)]
pub(super) enum Item {
    Deliver {
        from: Node,
        to: Node,
        message: Message,
    },
    FetchTimeout {
        home: Home,
        rpc: u64,
    },
    FetchAgain {
        home: Home,
    },
    ParkedLongEnough {
        home: Home,
        reply: ReplyId,
    },
    BoundsTimeout {
        home: Home,
        rpc: u64,
        leader_epoch: LeaderEpoch,
    },
    IsrTimeout {
        home: Home,
        rpc: u64,
    },
    Tick {
        broker: usize,
        life: u64,
    },
    Heartbeat {
        broker: usize,
        life: u64,
    },
    RegisterAgain {
        broker: usize,
        life: u64,
    },
    Start {
        broker: usize,
    },
    Stop {
        broker: usize,
        life: u64,
    },
    Commit {
        term: u64,
    },
    ControllerTick,
    ControllerUp {
        term: u64,
    },
    ProduceNext {
        client: usize,
    },
    ProduceTimeout {
        client: usize,
        attempt: u64,
    },
    ConsumeNext {
        partition: usize,
    },
    Chaos,
}

/// An entry of the agenda: earliest first, then in the order written.
#[derive(Debug)]
pub(super) struct Scheduled {
    pub(super) at: Millis,
    pub(super) order: u64,
    pub(super) item: Item,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.at, other.order).cmp(&(self.at, self.order)) // a max-heap gives the earliest
    }
}
