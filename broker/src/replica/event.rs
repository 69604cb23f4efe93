//! What a replica is told and what it answers: events, effects, and the values in them. Plain data: comparable in tests,
//! printable in scenario scripts, replayable from a seed. Nothing here decides anything.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use epoka_proto::epochs::{EpochEnd, EpochHistory};
use epoka_proto::error::ErrorCode;
use epoka_proto::ids::{BrokerEpoch, BrokerId, LeaderEpoch, Millis, Offset, PartitionEpoch};
use epoka_proto::metadata::Assignment;

/// What the replica knows of its log. The shell tells it anew after every disk effect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogState {
    /// First offset kept.
    pub start: Offset,
    /// Next offset to be written.
    pub end: Offset,
    /// Which leader epoch began where.
    pub epochs: Arc<EpochHistory>,
}

/// Names a caller that waits for an answer; the shell maps it to a sender.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ReplyId(pub u64);

/// What a producer waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Acks {
    /// Nothing: no answer is sent to the client.
    None,
    /// The leader's append.
    Leader,
    /// The commit: every member of the maximal ISR has it.
    All,
}

/// What the log says of a batch's producer sequence (P-1), asked by the shell just before the step, under the same lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sequence {
    /// Not from an idempotent producer, or the sequence expected.
    Next,
    /// The batch is in the log already, at these offsets.
    Duplicate {
        /// Its base offset.
        base: Offset,
        /// The offset after its last record.
        end: Offset,
    },
    /// Refused: out of order, or of a fenced producer.
    Refused(ErrorCode),
}

/// A validated client batch, still with the client's base offset 0.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientBatch {
    /// The whole batch, as the client sent it.
    pub bytes: Bytes,
    /// How many offsets it takes (last offset delta + 1).
    pub records: i64,
    /// The verdict on its producer sequence.
    pub sequence: Sequence,
}

/// Who reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reader {
    /// A follower: reads to the log end, and its fetch offset acknowledges what is before it.
    Follower {
        /// Who.
        broker: BrokerId,
        /// Which life of it.
        epoch: BrokerEpoch,
    },
    /// A consumer: reads to the high watermark.
    Consumer,
}

/// A fetch of this partition, without its bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReadRequest {
    /// Who asks.
    pub reader: Reader,
    /// The leader epoch the reader believes in; absent: not checked (L-50).
    pub current_leader_epoch: Option<LeaderEpoch>,
    /// Where to read from.
    pub offset: Offset,
    /// The epoch of the last batch the reader has; absent: no divergence test (L-52).
    pub last_fetched_epoch: Option<LeaderEpoch>,
    /// A parked fetch being tried again: all checks, no follower state update (L-42).
    pub again: bool,
}

/// What a read may take from the log, fixed before reading (L-51).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadGrant {
    /// Read from here.
    pub from: Offset,
    /// Up to here, exclusive; always a batch boundary. Equal to or below `from`: nothing to read yet.
    pub bound: Offset,
    /// High watermark to answer.
    pub high_watermark: Offset,
    /// First offset kept, to answer.
    pub log_start: Offset,
    /// The term of the grant.
    pub leader_epoch: LeaderEpoch,
}

/// The outcome of a read that was not refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadAnswer {
    /// Read these bytes.
    Grant(ReadGrant),
    /// The reader's log has parted from ours: it must cut (L-52). Answer at once, without records.
    Diverging(EpochEnd),
}

/// The outcome of a produce that was not refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Produced {
    /// Offset of the first record.
    pub base_offset: Offset,
    /// First offset kept.
    pub log_start: Offset,
}

/// Answers to parked callers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// To `Event::Produce`.
    Produced(Result<Produced, ErrorCode>),
    /// To `Event::Read`; always in the same step.
    Read(Result<ReadAnswer, ErrorCode>),
}

/// One batch of a fetched answer, CRC and size checked by the shell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FetchedBatch {
    /// Its base offset.
    pub base: Offset,
    /// The offset after its last record.
    pub end: Offset,
    /// The leader epoch stamped into it.
    pub epoch: LeaderEpoch,
    /// Its bytes within the answer.
    pub size: usize,
}

/// What a leader answered to a follower's fetch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FetchAnswer {
    /// Whole batches (perhaps none) and the leader's bounds.
    Data {
        /// The leader's high watermark.
        high_watermark: Offset,
        /// The leader's log start.
        log_start: Offset,
        /// What the bytes hold: the valid prefix.
        batches: Vec<FetchedBatch>,
        /// The batches, back to back.
        bytes: Bytes,
    },
    /// Our log has parted from the leader's.
    Diverging(EpochEnd),
    /// Refused.
    Refused(ErrorCode),
    /// No answer: the connection failed.
    Unreachable,
}

/// What the controller answered to `Effect::AskIsr`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum IsrAnswer {
    /// Committed (or already so): the partition's state now.
    Committed {
        /// Its leader epoch.
        leader_epoch: LeaderEpoch,
        /// Its partition epoch.
        partition_epoch: PartitionEpoch,
        /// Its ISR.
        isr: Vec<BrokerId>,
    },
    /// Refused with this error.
    Refused(ErrorCode),
    /// No answer: the outcome is unknown.
    Unknown,
}

/// What can happen to a replica. `now` is milliseconds on the shell's monotonic clock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The controller's word on this partition.
    Assigned {
        /// The assignment.
        assignment: Arc<Assignment>,
        /// Active brokers among the replicas, with their registered epochs (L-24).
        eligible: BTreeMap<BrokerId, BrokerEpoch>,
        /// The time.
        now: Millis,
    },
    /// Registrations of brokers among the replicas changed.
    Eligible {
        /// Active brokers among the replicas, with their registered epochs.
        brokers: BTreeMap<BrokerId, BrokerEpoch>,
        /// The time.
        now: Millis,
    },
    /// The log is now this: the end of a disk effect.
    LogChanged {
        /// Its state.
        log: LogState,
        /// The time.
        now: Millis,
    },
    /// A disk effect failed; nothing more may be written.
    LogFailed {
        /// Why, in a sentence.
        reason: String,
    },
    /// A producer's batch. Gets exactly one `Answer::Produced`, whatever its acks.
    Produce {
        /// Whom to answer.
        reply: ReplyId,
        /// What it waits for.
        acks: Acks,
        /// The batch.
        batch: ClientBatch,
        /// When to answer REQUEST_TIMED_OUT.
        deadline: Millis,
        /// The time.
        now: Millis,
    },
    /// A fetch; answered in the same step.
    Read {
        /// Whom to answer.
        reply: ReplyId,
        /// What is asked.
        request: ReadRequest,
        /// The time.
        now: Millis,
    },
    /// The leader's answer to this follower's fetch, with the request's echo (F-5).
    Fetched {
        /// Leader epoch of the request.
        leader_epoch: LeaderEpoch,
        /// Offset of the request.
        fetch_offset: Offset,
        /// Last fetched epoch of the request: the same offset may have been reached twice in a term by different logs.
        last_fetched_epoch: Option<LeaderEpoch>,
        /// The answer.
        answer: FetchAnswer,
        /// The time.
        now: Millis,
    },
    /// The leader's bounds, asked for by `Effect::AskBounds` (F-20). Each question gets exactly one answer: an error when the
    /// leader did not answer in time.
    Bounds {
        /// Leader epoch of the question.
        leader_epoch: LeaderEpoch,
        /// The leader's log start and log end, or why not.
        answer: Result<(Offset, Offset), ErrorCode>,
        /// The time.
        now: Millis,
    },
    /// The controller's answer to `Effect::AskIsr`; `Unknown` when it did not answer in time.
    Isr {
        /// Leader epoch of the proposal.
        leader_epoch: LeaderEpoch,
        /// Partition epoch the proposal was computed on.
        partition_epoch: PartitionEpoch,
        /// The answer.
        answer: IsrAnswer,
        /// The time.
        now: Millis,
    },
    /// Time passed.
    Tick {
        /// The time.
        now: Millis,
    },
    /// This broker no longer holds the partition, or is stopping.
    Removed,
}

/// What the shell must do, in order. Disk effects first: each is followed by `LogChanged` (or `LogFailed`) before the next event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Disk: append a client's batch with this base offset and leader epoch patched in.
    Append {
        /// Equal to the log end.
        base_offset: Offset,
        /// The leader's epoch.
        leader_epoch: LeaderEpoch,
        /// The batch.
        bytes: Bytes,
    },
    /// Disk: append whole batches as they are.
    AppendFetched {
        /// The batches.
        bytes: Bytes,
    },
    /// Disk: note durably that an epoch begins here, even before any record (L-3).
    StartEpoch {
        /// The epoch.
        epoch: LeaderEpoch,
        /// The log end.
        start: Offset,
    },
    /// Disk: cut at a batch boundary, keeping the suffix aside (F-40, F-41).
    Truncate {
        /// Batches that end above this go.
        to: Offset,
    },
    /// Disk: drop everything and begin again here (F-20).
    StartOver {
        /// The new log start and end.
        at: Offset,
    },
    /// Disk: forget what is before this.
    RaiseLogStart {
        /// The new log start.
        to: Offset,
    },
    /// The high watermark is now this: readers see up to it.
    Publish {
        /// Its value.
        high_watermark: Offset,
    },
    /// Wake the parked fetches that wait for this.
    WakeReaders(News),
    /// Answer a caller.
    Reply {
        /// Whom.
        to: ReplyId,
        /// What.
        answer: Answer,
    },
    /// Propose an ISR to the controller. One at a time.
    AskIsr {
        /// Our leader epoch.
        leader_epoch: LeaderEpoch,
        /// The partition epoch the proposal is computed on.
        partition_epoch: PartitionEpoch,
        /// The proposed members with the broker epochs seen in their fetches.
        isr: Vec<(BrokerId, Option<BrokerEpoch>)>,
        /// Still recovering from an unclean election (C-37).
        recovering: bool,
    },
    /// Fetch from this leader from now on, instead of any other; the position is asked of the replica when a request is
    /// built. Given again for every new leader epoch, even of the same leader (F-2).
    Follow {
        /// The leader.
        leader: BrokerId,
    },
    /// Stop fetching.
    Unfollow,
    /// Ask the leader for its log start and log end (F-20).
    AskBounds {
        /// The leader.
        leader: BrokerId,
        /// Fences question and answer.
        leader_epoch: LeaderEpoch,
    },
    /// Something worth a line in the timeline.
    Notice(Notice),
}

/// What parked fetches are woken for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum News {
    /// Something was appended: followers have more to read.
    Appended,
    /// The high watermark rose: consumers have more to read.
    Committed,
    /// The role or the term changed: everybody must hear it (L-43).
    Role,
}

/// What a replica reports for the timeline.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Notice {
    /// The suffix above `to` is about to be cut because it diverged from the leader's log.
    Diverged {
        /// Log end before.
        from: Offset,
        /// Where the histories part.
        to: Offset,
        /// The high watermark before; a cut below it is worth an alarm (F-10).
        high_watermark: Offset,
    },
    /// The first produce of this leader's epoch was acknowledged.
    FirstWrite {
        /// The epoch.
        leader_epoch: LeaderEpoch,
        /// Offset of its first record.
        offset: Offset,
    },
    /// The leader's high watermark has passed the start of its epoch.
    WatermarkBack {
        /// The epoch.
        leader_epoch: LeaderEpoch,
        /// The high watermark.
        high_watermark: Offset,
        /// The ISR is large enough for acks=all.
        writable: bool,
    },
    /// The replica stopped serving.
    Failed {
        /// Why, in a sentence.
        reason: String,
    },
}

/// Where a follower fetches next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FetchPosition {
    /// From whom.
    pub leader: BrokerId,
    /// In which term.
    pub leader_epoch: LeaderEpoch,
    /// The log end.
    pub offset: Offset,
    /// The latest epoch in the history.
    pub last_fetched_epoch: Option<LeaderEpoch>,
    /// First offset kept here.
    pub log_start: Offset,
    /// Not before this time (back-off).
    pub not_before: Millis,
}
