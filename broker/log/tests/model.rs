//! Random operations on a log beside a model of it (I-14, I-16, I-24): appends as leader and as follower, rolls, cuts, raised starts,
//! flushes, clean and unclean restarts, and crashes that lose or zero what was not flushed. After every step the log holds what
//! the model holds; after every restart its indexes, epochs and producers are what the batches say.

mod common;

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};

use common::*;
use epoka_log::{LogConfig, PartitionLog, ProducerVerdict, Repair};
use epoka_proto::batch::{self, BatchHeader};
use epoka_proto::epochs::EpochHistory;
use epoka_proto::ids::{LeaderEpoch, Offset};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    /// Append as leader, in a later epoch now and then, perhaps as one of three idempotent producers.
    Lead {
        records: i64,
        size: usize,
        later: bool,
        producer: Option<i64>,
    },
    /// Append several batches at once as follower.
    Follow {
        batches: Vec<(i64, usize, bool)>,
    },
    /// Note an epoch without a batch.
    StartEpoch,
    /// Cut at this share (in 1/256) of the log, at any offset.
    Truncate(u8),
    /// Raise the start to this share of the log.
    Raise(u8),
    StartOver(u8),
    Flush,
    /// Flush, and note the recovery point and the log start.
    Checkpoint,
    Restart,
    Kill,
    /// Lose what was not flushed from this share on; the file ends there, or reads as zeros from there.
    PowerLoss {
        share: u8,
        zeros: bool,
        later_files: bool,
    },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let lead = (
        1..4_i64,
        0..400_usize,
        prop::bool::weighted(0.1),
        prop::option::of(0..3_i64),
    )
        .prop_map(|(records, size, later, producer)| Op::Lead {
            records,
            size,
            later,
            producer,
        });
    let follow = prop::collection::vec((1..4_i64, 0..400_usize, prop::bool::weighted(0.1)), 1..6)
        .prop_map(|batches| Op::Follow { batches });
    let loss =
        (any::<u8>(), any::<bool>(), any::<bool>()).prop_map(|(share, zeros, later_files)| {
            Op::PowerLoss {
                share,
                zeros,
                later_files,
            }
        });
    let op = prop_oneof![
        20 => lead,
        8 => follow,
        1 => Just(Op::StartEpoch),
        3 => any::<u8>().prop_map(Op::Truncate),
        2 => any::<u8>().prop_map(Op::Raise),
        1 => any::<u8>().prop_map(Op::StartOver),
        2 => Just(Op::Flush),
        2 => Just(Op::Checkpoint),
        1 => Just(Op::Restart),
        1 => Just(Op::Kill),
        3 => loss,
    ];
    prop::collection::vec(op, 1..60)
}

/// What the log should hold.
#[derive(Default)]
struct Model {
    /// Every batch since the log last started over, those below the start too: producers remember them.
    batches: Vec<(BatchHeader, Vec<u8>)>,
    start: Offset,
    end: Offset,
    epochs: EpochHistory,
    epoch: i32,
    sequences: BTreeMap<i64, i32>,
}

impl Model {
    fn push(&mut self, bytes: &[u8]) {
        let header = BatchHeader::parse(bytes).unwrap();
        self.epochs
            .assign(header.epoch().unwrap(), header.base_offset);
        self.end = header.next_offset();
        self.batches.push((header, bytes.to_vec()));
    }

    fn cut(&mut self, end: Offset) {
        self.batches
            .retain(|(header, _)| header.next_offset() <= end);
        self.epochs.truncate_from_end(end);
        self.end = end;
    }

    fn at(&self, share: u8) -> Offset {
        self.start + (self.end - self.start) * i64::from(share) / 255
    }

    /// The bytes from the batch that holds `from` on.
    fn bytes(&self, from: Offset) -> Vec<u8> {
        let visible = self
            .batches
            .iter()
            .filter(|(header, _)| header.next_offset() > from);
        visible.flat_map(|(_, bytes)| bytes.clone()).collect()
    }

    /// What each producer's newest batch is: sequence and offset.
    fn newest(&self) -> Vec<(i64, i32, i64)> {
        let mut newest = BTreeMap::new();
        for (header, _) in &self.batches {
            if let Some(id) = header.producer_id {
                newest.insert(id.0, (header.last_sequence(), header.last_offset().0));
            }
        }
        newest
            .into_iter()
            .map(|(id, (sequence, offset))| (id, sequence, offset))
            .collect()
    }
}

struct World {
    disk: Disk,
    log: Option<PartitionLog>,
    model: Model,
}

impl World {
    fn new() -> Self {
        let config = LogConfig {
            segment_index_bytes: 64,
            ..small(1500)
        };
        let mut disk = Disk::new(config);
        let log = Some(disk.open());
        Self {
            disk,
            log,
            model: Model::default(),
        }
    }

    fn log(&mut self) -> &mut PartitionLog {
        self.log.as_mut().expect("open")
    }

    fn run(&mut self, op: &Op) {
        match op {
            Op::Lead {
                records,
                size,
                later,
                producer,
            } => self.lead(*records, *size, *later, *producer),
            Op::Follow { batches } => self.follow(batches),
            Op::StartEpoch => {
                self.model.epoch += 1;
                let (epoch, end) = (LeaderEpoch(self.model.epoch), self.model.end);
                self.model.epochs.assign(epoch, end);
                self.log().start_epoch(epoch, end).unwrap();
            }
            Op::Truncate(share) => {
                let to = self.model.at(*share);
                let cut = self.log().truncate_to(to).unwrap();
                assert!(cut.to <= to.min(self.model.end) && cut.from == self.model.end);
                self.model.cut(cut.to);
                self.model.epochs.truncate_from_end(to);
                self.model.start = self.model.start.min(cut.to);
            }
            Op::Raise(share) => {
                let to = self.model.at(*share);
                self.log().raise_start(to).unwrap();
                if to > self.model.start {
                    self.model.start = to;
                    self.model.epochs.truncate_from_start(to);
                }
            }
            Op::StartOver(share) => {
                let at = self.model.at(*share) + i64::from(share % 3) * 50;
                self.log().start_over(at).unwrap();
                let epoch = self.model.epoch;
                self.model = Model {
                    start: at,
                    end: at,
                    epoch,
                    ..Model::default()
                };
            }
            Op::Flush => {
                let point = self.log().flush_work().run().unwrap();
                let end = self.model.end;
                assert_eq!(self.log().flushed_to(point), end);
            }
            Op::Checkpoint => {
                let mut log = self.log.take().expect("open");
                flush(&self.disk, &mut log);
                self.disk
                    .dir()
                    .write_log_starts(&[(orders(), log.start())])
                    .unwrap();
                self.log = Some(log);
            }
            Op::Restart => {
                let log = self.log.take().expect("open");
                self.disk.stop(log);
                self.reopen(self.model.end);
            }
            Op::Kill => {
                let log = self.log.take().expect("open");
                self.disk.kill(log);
                self.reopen(self.model.end);
            }
            Op::PowerLoss {
                share,
                zeros,
                later_files,
            } => self.power_loss(*share, *zeros, *later_files),
        }
    }

    fn lead(&mut self, records: i64, size: usize, later: bool, producer: Option<i64>) {
        self.model.epoch += i32::from(later);
        let (epoch, end) = (LeaderEpoch(self.model.epoch), self.model.end);
        let sent = match producer {
            Some(id) => {
                let sequence = self.model.sequences.entry(id).or_default();
                let batch = idempotent(id, 0, *sequence, records, size);
                *sequence += records as i32;
                batch
            }
            None => client_batch(records, size, 1000 + end.0 % 7),
        };
        self.log().append_as_leader(&sent, end, epoch, NOW).unwrap();
        let mut stored = sent;
        let prefix = batch::patched_prefix(end, (stored.len() - 12) as i32, epoch);
        stored[..16].copy_from_slice(&prefix);
        self.model.push(&stored);
        // What was just appended is a duplicate now.
        let header = BatchHeader::parse(&stored).unwrap();
        let expected = match producer {
            Some(_) => ProducerVerdict::Duplicate {
                base: end,
                end: header.next_offset(),
            },
            None => ProducerVerdict::Next,
        };
        assert_eq!(self.log().check_producer(&header), expected);
    }

    fn follow(&mut self, batches: &[(i64, usize, bool)]) {
        let mut end = self.model.end;
        let mut all = Vec::new();
        for &(records, size, later) in batches {
            self.model.epoch += i32::from(later);
            let batch = stamped(end.0, self.model.epoch, records, size);
            end = end + records;
            self.model.push(&batch);
            all.extend(batch);
        }
        self.log().append_as_follower(&all, NOW).unwrap();
    }

    /// Cuts or zeroes un-flushed bytes, as if they had never reached the disk. Later files may have, or may not.
    fn power_loss(&mut self, share: u8, zeros: bool, later_files: bool) {
        let log = self.log.take().expect("open");
        let durable = log.recovery_point();
        self.disk.kill(log);
        let files = self.disk.files("log");
        let base = |file: &std::path::Path| -> i64 {
            file.file_stem().unwrap().to_str().unwrap().parse().unwrap()
        };
        let first = durable.max(Offset(base(&files[0])));
        let lost = first + (self.model.end - first) * i64::from(share) / 255;
        let kept = self
            .model
            .batches
            .iter()
            .map(|(h, _)| h.next_offset())
            .filter(|end| *end <= lost);
        let mut least = kept.max().unwrap_or(durable).max(durable);
        let hit = files.iter().rposition(|f| base(f) <= lost.0).unwrap();
        if lost < self.model.end {
            // The byte within the first batch that reaches beyond `lost`, or its first.
            let in_segment = self
                .model
                .batches
                .iter()
                .filter(|(h, _)| h.base_offset.0 >= base(&files[hit]));
            let at: u64 = in_segment
                .filter(|(h, _)| h.next_offset() <= lost)
                .map(|(_, b)| b.len() as u64)
                .sum();
            let size = files[hit].metadata().unwrap().len();
            let torn = if share.is_multiple_of(3) {
                0
            } else {
                u64::from(share % 90)
            };
            let at = (at + torn).min(size);
            let file = OpenOptions::new().write(true).open(&files[hit]).unwrap();
            let block = at.next_multiple_of(512);
            if zeros && block + 16 <= size {
                file.set_len(block).unwrap();
                file.set_len(size).unwrap();
                // Whole batches before the zeros stay.
                let mut position = 0;
                for (header, bytes) in self
                    .model
                    .batches
                    .iter()
                    .filter(|(h, _)| h.base_offset.0 >= base(&files[hit]))
                {
                    position += bytes.len() as u64;
                    if position <= block {
                        least = least.max(header.next_offset());
                    }
                }
            } else {
                file.set_len(at).unwrap();
            }
            for file in &files[hit + 1..] {
                if !later_files {
                    fs::remove_file(file).unwrap();
                }
            }
        }
        // Indexes that were not flushed can hold anything.
        for file in self
            .disk
            .files("index")
            .iter()
            .chain(&self.disk.files("timeindex"))
        {
            if base(file) >= lost.0 {
                let bytes = fs::read(file).unwrap();
                fs::write(file, [bytes, vec![0; 48]].concat()).unwrap();
            }
        }
        self.reopen(least);
    }

    /// Opens the log again: a prefix of what it held, with everything up to `least`.
    fn reopen(&mut self, least: Offset) {
        let (log, repairs) = self.disk.try_open().unwrap();
        let (start, end) = (log.start(), log.end());
        if repairs.iter().any(|r| matches!(r, Repair::Emptied { .. })) {
            // All that was left lay below the start, which was noted when segments went (D-24).
            let epoch = self.model.epoch;
            self.model = Model {
                start: self.model.start,
                end: self.model.end,
                epoch,
                ..Model::default()
            };
        }
        assert!(
            end >= least && end <= self.model.end,
            "{least} <= {end} <= {}",
            self.model.end
        );
        assert!(
            start <= self.model.start.max(end),
            "a start is never invented"
        );
        self.model.cut(end);
        self.model.start = start;
        assert!(log.recovery_point() <= end);
        // Epochs are what the batches say; an empty log may remember one.
        let visible = self
            .model
            .batches
            .iter()
            .filter(|(header, _)| header.next_offset() > start);
        let mut epochs = EpochHistory::default();
        for (header, _) in visible {
            epochs.assign(header.epoch().unwrap(), header.base_offset);
        }
        epochs.truncate_from_start(start);
        match start < end {
            true => assert_eq!(*log.epochs(), epochs, "I-14"),
            false => assert!(log.epochs().entries().iter().all(|e| e.start <= end)),
        }
        self.model.epochs = EpochHistory::clone(&log.epochs());
        self.log = Some(log);
    }

    fn check(&mut self) {
        let (start, end) = (self.model.start, self.model.end);
        let log = self.log.as_ref().expect("open");
        assert_eq!((log.start(), log.end()), (start, end));
        assert_eq!(*log.epochs(), self.model.epochs);
        assert_eq!(read_all(&log.view(), start, 1), self.model.bytes(start));
        let newest: Vec<_> = log
            .producers()
            .sorted()
            .iter()
            .filter_map(|(id, entry)| {
                entry
                    .newest()
                    .map(|b| (id.0, b.last_sequence, b.last_offset.0))
            })
            .collect();
        assert_eq!(newest, self.model.newest(), "P-6");
        self.check_indexes();
    }

    /// Every index is one that appending the segment's batches could have made (D-35, D-36).
    fn check_indexes(&self) {
        for file in self.disk.files("log") {
            let base: i64 = file.file_stem().unwrap().to_str().unwrap().parse().unwrap();
            let bytes = fs::read(&file).unwrap();
            let mut batches = Vec::new();
            let mut position = 0;
            for header in headers(&bytes) {
                batches.push((position as u32, header));
                position += header.size;
            }
            let number = |b: &[u8]| u32::from_be_bytes(b.try_into().unwrap());
            let index = fs::read(file.with_extension("index")).unwrap();
            let mut last_indexed = 0;
            let mut expected = Vec::new();
            for (position, header) in &batches {
                if position - last_indexed > 100 {
                    expected.push(((header.last_offset().0 - base) as u32, *position));
                    last_indexed = *position;
                }
            }
            let entries: Vec<_> = index
                .chunks(8)
                .map(|e| (number(&e[..4]), number(&e[4..])))
                .collect();
            assert_eq!(entries, expected, "{}", file.display());

            let times = fs::read(file.with_extension("timeindex")).unwrap();
            let mut last = -1;
            for entry in times.chunks(12) {
                let timestamp = i64::from_be_bytes(entry[..8].try_into().unwrap());
                let offset = Offset(base + i64::from(number(&entry[8..])));
                assert!(timestamp > last);
                last = timestamp;
                let of = batches
                    .iter()
                    .find(|(_, h)| h.last_offset() == offset)
                    .expect("a batch ends there");
                assert_eq!(of.1.max_timestamp, timestamp);
                let earlier = batches.iter().filter(|(_, h)| h.last_offset() < offset);
                assert!(earlier.map(|(_, h)| h.max_timestamp).max().unwrap_or(-1) < timestamp);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, max_shrink_iters: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_log_is_its_model_through_any_operations(ops in ops()) {
        let mut world = World::new();
        for op in &ops {
            world.run(op);
            world.check();
        }
    }
}
