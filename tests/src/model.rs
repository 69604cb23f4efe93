//! A log in memory, for tests that run many real replicas: it carries out a replica's disk effects as `epoka-log` would, and
//! forgets what was not flushed when the power fails. Batches are four numbers; their bytes are only a coat for them.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use epoka_broker::replica::{Effect, FetchedBatch, LogState};
use epoka_proto::epochs::EpochHistory;
use epoka_proto::ids::{LeaderEpoch, Offset};

/// One batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Batch {
    /// Offset of its first record.
    pub base: Offset,
    /// The offset after its last record.
    pub end: Offset,
    /// The leader epoch that appended it.
    pub epoch: LeaderEpoch,
    /// What it says: names the producer's batch.
    pub payload: u64,
}

const FETCHED_LEN: usize = 28;

/// A client's batch of some records, as bytes.
pub fn client_batch(payload: u64, records: i64) -> Bytes {
    let mut bytes = BytesMut::with_capacity(16);
    bytes.put_u64(payload);
    bytes.put_i64(records);
    bytes.freeze()
}

/// Batches as the bytes of a fetch answer, and what they hold.
pub fn encode(batches: &[Batch]) -> (Vec<FetchedBatch>, Bytes) {
    let mut bytes = BytesMut::with_capacity(batches.len() * FETCHED_LEN);
    let mut headers = Vec::with_capacity(batches.len());
    for batch in batches {
        bytes.put_i64(batch.base.0);
        bytes.put_i64(batch.end.0);
        bytes.put_i32(batch.epoch.0);
        bytes.put_u64(batch.payload);
        headers.push(FetchedBatch {
            base: batch.base,
            end: batch.end,
            epoch: batch.epoch,
            size: FETCHED_LEN,
        });
    }
    (headers, bytes.freeze())
}

fn decode(mut bytes: &[u8]) -> Vec<Batch> {
    use bytes::Buf;
    let mut batches = Vec::with_capacity(bytes.len() / FETCHED_LEN);
    while bytes.has_remaining() {
        batches.push(Batch {
            base: Offset(bytes.get_i64()),
            end: Offset(bytes.get_i64()),
            epoch: LeaderEpoch(bytes.get_i32()),
            payload: bytes.get_u64(),
        });
    }
    batches
}

/// The log of one replica.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ModelLog {
    start: Offset,
    end: Offset,
    batches: Vec<Batch>,
    epochs: Arc<EpochHistory>,
    /// What is before this survives a power failure.
    flushed: Offset,
}

impl ModelLog {
    /// What the replica is told of it.
    pub fn state(&self) -> LogState {
        LogState {
            start: self.start,
            end: self.end,
            epochs: self.epochs.clone(),
        }
    }

    /// First offset kept.
    pub fn start(&self) -> Offset {
        self.start
    }

    /// Next offset to be written.
    pub fn end(&self) -> Offset {
        self.end
    }

    /// Its batches, oldest first. The first may begin before the log start.
    pub fn batches(&self) -> &[Batch] {
        &self.batches
    }

    /// Its leader epochs.
    pub fn epochs(&self) -> &EpochHistory {
        &self.epochs
    }

    /// Carries out a disk effect; `false` for any other.
    pub fn run(&mut self, effect: &Effect) -> bool {
        match effect {
            Effect::Append {
                base_offset,
                leader_epoch,
                bytes,
            } => {
                use bytes::Buf;
                let mut bytes = &bytes[..];
                let (payload, records) = (bytes.get_u64(), bytes.get_i64());
                self.append(Batch {
                    base: *base_offset,
                    end: *base_offset + records,
                    epoch: *leader_epoch,
                    payload,
                });
            }
            Effect::AppendFetched { bytes } => {
                decode(bytes).into_iter().for_each(|b| self.append(b))
            }
            Effect::StartEpoch { epoch, start } => {
                assert_eq!(*start, self.end, "an epoch starts at the log end");
                Arc::make_mut(&mut self.epochs).assign(*epoch, *start);
            }
            Effect::Truncate { to } => self.truncate(*to),
            Effect::StartOver { at } => {
                *self = Self {
                    start: *at,
                    end: *at,
                    flushed: *at,
                    ..Self::default()
                };
            }
            Effect::RaiseLogStart { to } => self.raise_start(*to),
            _ => return false,
        }
        true
    }

    /// Appends a batch at the end; I-15 and I-16 hold or this panics.
    pub fn append(&mut self, batch: Batch) {
        let holed = self.batches.is_empty() && batch.base < self.end; // F-22: the log starts within it
        assert!(
            batch.base == self.end || holed,
            "I-16: {batch:?} at {}",
            self.end
        );
        let latest = self.epochs.latest();
        assert!(
            latest <= Some(batch.epoch),
            "I-15: {batch:?} after {latest:?}"
        );
        if latest != Some(batch.epoch) {
            Arc::make_mut(&mut self.epochs).assign(batch.epoch, batch.base);
        }
        self.batches.push(batch);
        self.end = batch.end;
    }

    fn truncate(&mut self, to: Offset) {
        while let Some(last) = self.batches.last()
            && last.end > to
        {
            self.end = last.base.max(self.start);
            self.batches.pop();
        }
        self.flushed = self.flushed.min(self.end);
        let end = self.end;
        Arc::make_mut(&mut self.epochs).truncate_from_end(end.min(to));
    }

    /// Forgets what is before an offset: retention, or a follower's log start following its leader's.
    pub fn raise_start(&mut self, to: Offset) {
        assert!(
            self.start <= to && to <= self.end,
            "{} <= {to} <= {}",
            self.start,
            self.end
        );
        self.start = to;
        self.flushed = self.flushed.max(to);
        let gone = self.batches.partition_point(|b| b.end <= to);
        self.batches.drain(..gone);
        Arc::make_mut(&mut self.epochs).truncate_from_start(to);
    }

    /// Up to so many batches from the one that holds `from`, all below `bound`.
    pub fn read(&self, from: Offset, bound: Offset, at_most: usize) -> &[Batch] {
        let first = self.batches.partition_point(|b| b.end <= from);
        let mut last = first;
        while last < self.batches.len() && last - first < at_most && self.batches[last].end <= bound
        {
            last += 1;
        }
        &self.batches[first..last]
    }

    /// The batch with this payload, if it is here.
    pub fn find(&self, payload: u64) -> Option<&Batch> {
        self.batches.iter().rev().find(|b| b.payload == payload)
    }

    /// Makes everything durable.
    pub fn flush(&mut self) {
        self.flushed = self.end;
    }

    /// How many batches at the end a power failure may take.
    pub fn unflushed(&self) -> usize {
        self.batches
            .iter()
            .rev()
            .take_while(|b| b.end > self.flushed)
            .count()
    }

    /// The power fails and so many unflushed batches are gone. The history is durable, and cut to the log again (E-6).
    pub fn lose(&mut self, batches: usize) {
        assert!(batches <= self.unflushed());
        for _ in 0..batches {
            let lost = self.batches.pop().expect("counted");
            self.end = lost.base.max(self.start);
        }
        let end = self.end;
        Arc::make_mut(&mut self.epochs).truncate_from_end(end);
        self.flushed = end;
    }
}
