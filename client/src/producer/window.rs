//! The batches of one lane: the one being filled, and those sealed, numbered and not yet acknowledged. Pure bookkeeping:
//! no clock, no network.

use std::collections::VecDeque;

use bytes::Bytes;
use epoka_proto::batch::BatchBuilder;
use epoka_proto::compression::Compression;
use epoka_proto::ids::{Millis, Offset, ProducerEpoch, ProducerId, TopicPartition};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::Instant;

use super::Delivered;
use crate::error::{Error, Result};

/// A record waiting to be put into a batch.
pub(super) struct Queued {
    pub timestamp: Millis,
    pub key: Option<Bytes>,
    pub value: Option<Bytes>,
    pub headers: Vec<(Bytes, Option<Bytes>)>,
    pub size: usize,
    pub since: Instant,
    pub answer: oneshot::Sender<Result<Delivered>>,
    /// Given back when the record is delivered or has failed.
    pub _memory: OwnedSemaphorePermit,
}

/// Who numbers the batches, and the next number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub id: ProducerId,
    pub epoch: ProducerEpoch,
    pub next_sequence: i32,
}

impl Identity {
    /// The sequence of a batch of `count` records. Numbers wrap from 2^31-1 to 0 (KAFKA-7692).
    fn take(&mut self, count: usize) -> i32 {
        let first = self.next_sequence;
        let next = (i64::from(first) + count as i64) % (1 << 31);
        self.next_sequence = i32::try_from(next).expect("below 2^31");
        first
    }
}

/// A batch that has its final bytes.
pub(super) struct Sealed {
    pub bytes: Bytes,
    pub since: Instant,
    records: Vec<Queued>,
}

impl Sealed {
    /// Builds a batch of at least one record.
    fn build(
        records: Vec<Queued>,
        compression: Compression,
        identity: Option<&mut Identity>,
    ) -> Self {
        Self {
            bytes: encode(&records, compression, identity),
            since: records.first().expect("a batch has records").since,
            records,
        }
    }

    /// Tells every record of the batch where it is.
    pub fn deliver(self, partition: &TopicPartition, base: Option<Offset>) {
        for (index, record) in self.records.into_iter().enumerate() {
            // Whoever does not wait for the answer has dropped the receiver.
            let _ = record.answer.send(Ok(Delivered {
                partition: partition.clone(),
                offset: base.map(|base| base + index as i64),
            }));
        }
    }

    /// Tells every record of the batch why it failed.
    pub fn fail(self, error: &Error) {
        for record in self.records {
            let _ = record.answer.send(Err(error.clone()));
        }
    }
}

/// The batches of one lane.
pub(super) struct Window {
    compression: Compression,
    batch_bytes: usize,
    /// The batch being filled.
    open: Vec<Queued>,
    open_bytes: usize,
    /// Sealed batches, oldest first.
    sealed: VecDeque<Sealed>,
    /// How many of them are on the current connection.
    sent: usize,
}

impl Window {
    pub fn new(compression: Compression, batch_bytes: usize) -> Self {
        Self {
            compression,
            batch_bytes,
            open: Vec::new(),
            open_bytes: 0,
            sealed: VecDeque::new(),
            sent: 0,
        }
    }

    /// Whether the open batch has room for another record.
    pub fn has_room(&self) -> bool {
        self.open_bytes < self.batch_bytes
    }

    pub fn push(&mut self, record: Queued) {
        self.open_bytes += record.size;
        self.open.push(record);
    }

    pub fn is_empty(&self) -> bool {
        self.open.is_empty() && self.sealed.is_empty()
    }

    /// Since when the open batch has had a record.
    pub fn open_since(&self) -> Option<Instant> {
        self.open.first().map(|record| record.since)
    }

    /// When the oldest record of all was handed over.
    pub fn oldest(&self) -> Option<Instant> {
        let sealed = self.sealed.front().map(|batch| batch.since);
        sealed.or_else(|| self.open_since())
    }

    pub fn sealed(&self) -> usize {
        self.sealed.len()
    }

    pub fn sent(&self) -> usize {
        self.sent
    }

    /// Closes the open batch: from here on its records and its numbers stay together.
    pub fn seal(&mut self, identity: Option<&mut Identity>) {
        if !self.open.is_empty() {
            let records = std::mem::take(&mut self.open);
            self.open_bytes = 0;
            self.sealed
                .push_back(Sealed::build(records, self.compression, identity));
        }
    }

    /// The oldest sealed batch that is not on the current connection; it is from now on.
    pub fn next_to_send(&mut self) -> Option<Bytes> {
        let bytes = self.sealed.get(self.sent)?.bytes.clone();
        self.sent += 1;
        Some(bytes)
    }

    /// The connection is gone: everything sealed has to be sent again, with the same bytes.
    pub fn unsend(&mut self) {
        self.sent = 0;
    }

    /// Takes out the oldest batch under way: it has been answered.
    pub fn answered(&mut self) -> Option<Sealed> {
        self.sent = self.sent.checked_sub(1)?;
        self.sealed.pop_front()
    }

    /// Takes out everything, sealed or not.
    pub fn give_up(&mut self, error: &Error) {
        self.sent = 0;
        for batch in self.sealed.drain(..) {
            batch.fail(error);
        }
        self.open_bytes = 0;
        for record in self.open.drain(..) {
            let _ = record.answer.send(Err(error.clone()));
        }
    }

    /// Numbers the sealed batches anew, after the broker lost track of the old numbers or one batch fell out.
    pub fn renumber(&mut self, identity: &mut Identity) {
        self.sent = 0;
        for batch in &mut self.sealed {
            batch.bytes = encode(&batch.records, self.compression, Some(identity));
        }
    }

    /// Makes two batches of the oldest one, which was refused as too large. `false`: it holds a single record. The
    /// halves have no valid numbers before [`Self::renumber`].
    pub fn split_oldest(&mut self) -> bool {
        let Some(batch) = self.sealed.front() else {
            return false;
        };
        let half = batch.records.len() / 2;
        if half == 0 {
            return false;
        }
        self.sent = 0;
        let mut first = self.sealed.pop_front().expect("looked at above").records;
        let second = first.split_off(half);
        for records in [second, first] {
            self.sealed
                .push_front(Sealed::build(records, self.compression, None));
        }
        true
    }
}

fn encode(records: &[Queued], compression: Compression, identity: Option<&mut Identity>) -> Bytes {
    let mut builder = BatchBuilder::new(compression);
    if let Some(identity) = identity {
        let sequence = identity.take(records.len());
        builder = builder.producer(identity.id, identity.epoch, sequence);
    }
    for record in records {
        let headers: Vec<_> = record
            .headers
            .iter()
            .map(|(k, v)| (k.as_ref(), v.as_deref()))
            .collect();
        builder.append(
            record.timestamp,
            record.key.as_deref(),
            record.value.as_deref(),
            &headers,
        );
    }
    builder.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use epoka_proto::batch::{BatchHeader, records};
    use std::sync::Arc;
    use tokio::sync::Semaphore;

    fn record(value: &'static str) -> (Queued, oneshot::Receiver<Result<Delivered>>) {
        let (answer, delivery) = oneshot::channel();
        let memory = Arc::new(Semaphore::new(1)).try_acquire_owned();
        let queued = Queued {
            timestamp: 7,
            key: None,
            value: Some(Bytes::from_static(value.as_bytes())),
            headers: vec![],
            size: 10,
            since: Instant::now(),
            answer,
            _memory: memory.expect("one permit"),
        };
        (queued, delivery)
    }

    fn identity(next_sequence: i32) -> Identity {
        Identity {
            id: ProducerId(9),
            epoch: ProducerEpoch(0),
            next_sequence,
        }
    }

    fn window_of(batches: &[usize], identity: &mut Identity) -> Window {
        let mut window = Window::new(Compression::None, 1000);
        for &count in batches {
            for _ in 0..count {
                window.push(record("x").0);
            }
            window.seal(Some(identity));
        }
        window
    }

    fn sequences(window: &Window) -> Vec<(i64, i32, i32)> {
        let headers = window
            .sealed
            .iter()
            .map(|b| BatchHeader::parse(&b.bytes).expect("a batch"));
        headers
            .map(|h| {
                (
                    h.producer_id.expect("numbered").0,
                    h.base_sequence,
                    h.last_sequence(),
                )
            })
            .collect()
    }

    #[test]
    fn batches_are_numbered_without_gaps() {
        let window = window_of(&[2, 3], &mut identity(0));
        assert_eq!(sequences(&window), [(9, 0, 1), (9, 2, 4)]);
    }

    #[test]
    fn numbers_wrap_to_zero() {
        let mut who = identity(i32::MAX);
        let window = window_of(&[1, 1], &mut who);
        assert_eq!(sequences(&window), [(9, i32::MAX, i32::MAX), (9, 0, 0)]);
        assert_eq!(who.next_sequence, 1);
    }

    #[test]
    fn a_lost_connection_sends_the_same_bytes_again_in_the_same_order() {
        let mut window = window_of(&[1, 1], &mut identity(0));
        let first = (window.next_to_send(), window.next_to_send());
        assert_eq!(window.next_to_send(), None);
        window.unsend();
        assert_eq!((window.next_to_send(), window.next_to_send()), first);
    }

    #[test]
    fn renumbering_keeps_the_records() {
        let mut window = window_of(&[2, 1], &mut identity(40));
        let mut fresh = Identity {
            id: ProducerId(10),
            ..identity(0)
        };
        window.renumber(&mut fresh);
        assert_eq!(sequences(&window), [(10, 0, 1), (10, 2, 2)]);
        let values: Vec<_> = records(&window.sealed[0].bytes).expect("a batch").collect();
        assert_eq!(values.len(), 2);
    }

    #[test]
    fn a_batch_is_split_down_to_its_single_records() {
        let mut window = window_of(&[3, 1], &mut identity(0));
        assert!(window.split_oldest());
        window.renumber(&mut identity(0));
        assert_eq!(sequences(&window), [(9, 0, 0), (9, 1, 2), (9, 3, 3)]);
        assert!(!window.split_oldest());
    }

    #[tokio::test]
    async fn every_record_of_a_batch_learns_its_own_offset() {
        let mut window = Window::new(Compression::None, 1000);
        let (first, first_delivery) = record("a");
        let (second, second_delivery) = record("b");
        window.push(first);
        window.push(second);
        window.seal(None);
        window.next_to_send();
        let partition = TopicPartition::new("orders", 0);
        window
            .answered()
            .expect("one")
            .deliver(&partition, Some(Offset(100)));
        let offset = |d: Result<Delivered>| d.expect("delivered").offset;
        assert_eq!(
            offset(first_delivery.await.expect("answered")),
            Some(Offset(100))
        );
        assert_eq!(
            offset(second_delivery.await.expect("answered")),
            Some(Offset(101))
        );
        assert!(window.is_empty());
    }
}
