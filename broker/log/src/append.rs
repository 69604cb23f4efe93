//! Appending: one write a batch, then the end moves, then everything derived from the batch is noted. Also when and how a new
//! segment begins (D-40 to D-42), and what only the writer knows of the newest segment.

use std::io::IoSlice;
use std::sync::Arc;

use epoka_proto::batch::{self, BatchError, BatchHeader};
use epoka_proto::ids::{LeaderEpoch, Millis, Offset};
use uuid::Uuid;

use crate::config::LogConfig;
use crate::files::{Context, StorageError};
use crate::index_file::IndexWriter;
use crate::offset_index::OffsetEntry;
use crate::partition_log::{IsStorage, LogError, PartitionLog};
use crate::segment::Segment;
use crate::snapshot;
use crate::time_index::TimeEntry;

/// Why an append failed. Except for `Log`, nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// The disk failed, now or before.
    #[error(transparent)]
    Log(#[from] LogError),
    /// Not whole batches.
    #[error("malformed batch: {0}")]
    Malformed(#[from] BatchError),
    /// Offsets must go on where the log ends.
    #[error("a batch at offset {found} where the log ends at {expected}")]
    NotContiguous {
        /// The log end.
        expected: Offset,
        /// The batch's base offset.
        found: Offset,
    },
    /// Leader epochs never fall along a log (I-15), and an appended batch has one.
    #[error("a batch of leader epoch {found} after one of {newest}")]
    OlderEpoch {
        /// The newest in the log; -1: none.
        newest: i32,
        /// The batch's; -1: none.
        found: i32,
    },
}

impl From<StorageError> for AppendError {
    fn from(error: StorageError) -> Self {
        Self::Log(error.into())
    }
}

impl IsStorage for AppendError {
    fn is_storage(&self) -> bool {
        matches!(self, Self::Log(LogError::Storage(_)))
    }
}

/// The newest segment, as its writer knows it.
#[derive(Debug)]
pub(crate) struct Active {
    pub segment: Arc<Segment>,
    offset_writer: IndexWriter,
    time_writer: IndexWriter,
    /// Where the batch of the last offset entry begins; 0 before the first entry.
    last_indexed: u64,
    /// The largest record timestamp, with the last offset of the first batch that holds it.
    largest: Option<TimeEntry>,
    /// The largest timestamp of the first batch: segment age is counted from it (D-41).
    first_timestamp: Option<Millis>,
    opened_ms: Millis,
    /// How much earlier than `segment.ms` this segment is closed.
    jitter_ms: Millis,
}

impl Active {
    pub fn new(segment: Arc<Segment>, config: &LogConfig, now_ms: Millis) -> Self {
        let most = config.segment_jitter_ms.min(config.segment_ms);
        let random = (Uuid::new_v4().as_u128() >> 65) as i64;
        Self {
            segment,
            offset_writer: IndexWriter::default(),
            time_writer: IndexWriter::default(),
            last_indexed: 0,
            largest: None,
            first_timestamp: None,
            opened_ms: now_ms,
            jitter_ms: if most > 0 { random % most } else { 0 },
        }
    }

    /// Takes up a segment that holds batches already. Reads headers from the last index entries on; also says where it ends.
    pub fn resume(
        segment: Arc<Segment>,
        config: &LogConfig,
        now_ms: Millis,
    ) -> Result<(Self, Offset), StorageError> {
        let mut active = Self::new(segment.clone(), config, now_ms);
        let path = segment.path();
        let last_offset_entry = segment.offsets.last().context("read the index of", path)?;
        let last_time_entry = segment.times.last().context("read the index of", path)?;
        active.last_indexed = last_offset_entry.map_or(0, |e| u64::from(e.position));
        active.largest = last_time_entry;
        if let Some(first) = segment.scan(0).batch().context("read", path)? {
            active.first_timestamp = Some(first.header.max_timestamp);
        }
        let mut scanner = match last_time_entry {
            Some(entry) => segment.scan_before(entry.offset)?,
            None => segment.scan(0),
        };
        let mut end = segment.base();
        while let Some(batch) = scanner.batch().context("read", path)? {
            active.note_timestamp(&batch.header);
            end = batch.header.next_offset();
        }
        Ok((active, end))
    }

    fn note_timestamp(&mut self, header: &BatchHeader) {
        if self
            .largest
            .is_none_or(|l| header.max_timestamp > l.timestamp)
        {
            self.largest = Some(TimeEntry {
                timestamp: header.max_timestamp,
                offset: header.last_offset(),
            });
        }
    }

    /// Whether the segment must be closed before this batch (D-40). An empty one never is: there would be no end to it.
    fn is_over(&self, header: &BatchHeader, config: &LogConfig, now_ms: Millis) -> bool {
        let size = self.segment.size();
        if size == 0 {
            return false;
        }
        let waited = match self.first_timestamp {
            Some(first) if first >= 0 => header.max_timestamp - first,
            _ => now_ms - self.opened_ms,
        };
        size + header.size as u64 > size_limit(config)
            || waited > config.segment_ms - self.jitter_ms
            || self.segment.offsets.is_full()
            || self.segment.times.is_full()
            || !self.spans(header)
    }

    /// Whether the segment can express the batch's offsets.
    fn spans(&self, header: &BatchHeader) -> bool {
        header.last_offset() - self.segment.base() <= i64::from(i32::MAX)
    }

    /// How many batches can be added without filling an index: each makes at most one entry.
    fn index_room(&self) -> usize {
        self.segment.offsets.room().min(self.segment.times.room())
    }

    /// Notes a batch that was written at `position` (D-35, D-36).
    fn note(
        &mut self,
        header: &BatchHeader,
        position: u64,
        config: &LogConfig,
    ) -> std::io::Result<()> {
        self.note_timestamp(header);
        self.first_timestamp.get_or_insert(header.max_timestamp);
        if position - self.last_indexed > config.index_interval_bytes as u64 {
            let entry = OffsetEntry {
                last_offset: header.last_offset(),
                position: u32::try_from(position).expect("a segment is smaller than 4 GiB"),
            };
            self.segment
                .offsets
                .append(&mut self.offset_writer, entry)?;
            self.last_indexed = position;
            self.index_largest()?;
        }
        Ok(())
    }

    /// Adds the largest timestamp to the time index: with each offset entry, and when the segment is closed.
    pub fn index_largest(&mut self) -> std::io::Result<()> {
        match self.largest {
            Some(largest) => self
                .segment
                .times
                .maybe_append(&mut self.time_writer, largest),
            None => Ok(()),
        }
    }
}

/// `segment.bytes`, but never more than positions in an index can express.
fn size_limit(config: &LogConfig) -> u64 {
    config.segment_bytes.min(i32::MAX as u64)
}

impl PartitionLog {
    /// Appends a client's batch, validated by the caller, with this base offset and leader epoch patched in. The bytes after
    /// the first 16 are written as they are.
    pub fn append_as_leader(
        &mut self,
        batch: &[u8],
        base_offset: Offset,
        leader_epoch: LeaderEpoch,
        now_ms: Millis,
    ) -> Result<(), AppendError> {
        let mut header = BatchHeader::parse(batch)?;
        if header.size != batch.len() {
            return Err(BatchError::NotOne.into());
        }
        header.base_offset = base_offset;
        header.leader_epoch = leader_epoch.0;
        self.check_follows(&header, self.end(), self.epochs.latest())?;
        self.changing(|log| {
            log.assign_epoch(leader_epoch, base_offset)?;
            log.roll_before(&header, now_ms)?;
            let prefix = batch::patched_prefix(base_offset, header.batch_length(), leader_epoch);
            let mut parts = [IoSlice::new(&prefix), IoSlice::new(&batch[prefix.len()..])];
            log.write(&mut parts, batch.len(), header.next_offset())?;
            log.note(
                &header,
                log.active.segment.size() - batch.len() as u64,
                now_ms,
            )?;
            Ok(())
        })
    }

    /// Appends whole batches as they are, offsets and epochs included; the caller checked their CRCs. All of them are looked
    /// at before the first is written. An empty log may begin anywhere at or below its start (F-22): it starts over there.
    pub fn append_as_follower(
        &mut self,
        batches: &[u8],
        now_ms: Millis,
    ) -> Result<(), AppendError> {
        let mut end = self.end();
        let mut newest = self.epochs.latest();
        for (index, item) in batch::batches(batches).enumerate() {
            let (header, _) = item?;
            if index == 0 && self.may_begin_with(&header) {
                end = header.base_offset;
            }
            self.check_follows(&header, end, newest)?;
            end = header.next_offset();
            newest = header.epoch();
        }
        self.changing(|log| log.append_run(batches, now_ms))
    }

    /// Whether the log is empty and this batch, which begins below its end, covers it (F-22, KAFKA-6975).
    fn may_begin_with(&self, header: &BatchHeader) -> bool {
        let end = self.end();
        self.start() == end && header.base_offset < end && header.next_offset() > end
    }

    fn check_follows(
        &self,
        header: &BatchHeader,
        end: Offset,
        newest: Option<LeaderEpoch>,
    ) -> Result<(), AppendError> {
        if header.base_offset != end {
            return Err(AppendError::NotContiguous {
                expected: end,
                found: header.base_offset,
            });
        }
        if header.last_offset_delta < 0 {
            return Err(BatchError::Header("negative last offset delta").into());
        }
        if header.epoch().is_none() || header.epoch() < newest {
            return Err(AppendError::OlderEpoch {
                newest: LeaderEpoch::to_wire(newest),
                found: header.leader_epoch,
            });
        }
        Ok(())
    }

    /// Writes the batches with as few writes as segments allow.
    fn append_run(&mut self, batches: &[u8], now_ms: Millis) -> Result<(), AppendError> {
        let mut rest = batches;
        while let Ok(first) = BatchHeader::parse(rest) {
            if self.may_begin_with(&first) {
                self.restart_at(first.base_offset, now_ms)?;
            }
            self.roll_before(&first, now_ms)?;
            let epoch = first.epoch().expect("checked: it has a leader epoch");
            self.assign_epoch(epoch, first.base_offset)?;
            // The batches of the same epoch that fit the segment go in one write.
            let room = size_limit(&self.config).saturating_sub(self.active.segment.size());
            let most = self.active.index_room().max(1);
            let (mut size, mut end) = (first.size, first.next_offset());
            for _ in 1..most {
                let Ok(next) = BatchHeader::parse(&rest[size..]) else {
                    break;
                };
                let fits = (size + next.size) as u64 <= room && self.active.spans(&next);
                if !fits
                    || next.epoch() != Some(epoch)
                    || self.active.is_over(&next, &self.config, now_ms)
                {
                    break;
                }
                size += next.size;
                end = next.next_offset();
            }
            let (run, after) = rest.split_at(size);
            let mut position = self.active.segment.size();
            self.write(&mut [IoSlice::new(run)], size, end)?;
            for item in batch::batches(run) {
                let (header, bytes) = item.expect("parsed before");
                self.note(&header, position, now_ms)?;
                position += bytes.len() as u64;
            }
            rest = after;
        }
        Ok(())
    }

    /// Writes at the end and moves the end at once: whatever fails later, these offsets are taken (KAFKA-7866).
    fn write(
        &mut self,
        parts: &mut [IoSlice<'_>],
        size: usize,
        end: Offset,
    ) -> Result<(), StorageError> {
        let segment = &self.active.segment;
        if let Err(error) = segment.write(parts) {
            // Part of it may be in the file. Nothing follows it, and a restart cuts it; if the cut works now, so much the better.
            drop(segment.trim());
            return Err(error).context("append to", segment.path());
        }
        segment.advance(size as u64);
        self.publish_end(end);
        Ok(())
    }

    fn note(
        &mut self,
        header: &BatchHeader,
        position: u64,
        now_ms: Millis,
    ) -> Result<(), StorageError> {
        self.producers.note(header);
        self.flush.note_append(now_ms);
        self.active
            .note(header, position, &self.config)
            .context("append to the index of", self.active.segment.path())
    }

    fn roll_before(&mut self, header: &BatchHeader, now_ms: Millis) -> Result<(), StorageError> {
        if self.active.is_over(header, &self.config, now_ms) {
            self.roll(header.base_offset, now_ms)?;
        }
        Ok(())
    }

    /// Closes the newest segment and begins one at `base`. The new one is there before anything else happens: a log always has
    /// a segment to write to (KAFKA-12875).
    fn roll(&mut self, base: Offset, now_ms: Millis) -> Result<(), StorageError> {
        let old = self.active.segment.clone();
        self.active
            .index_largest()
            .context("append to the index of", old.path())?;
        if self.config.preallocate {
            old.trim().context("trim", old.path())?;
        }
        let segment = Arc::new(Segment::create(&self.place.dir, base, &self.config)?);
        let mut segments = Vec::clone(&self.shared.segments.load());
        segments.push(segment.clone());
        self.publish_segments(segments);
        self.active = Active::new(segment, &self.config, now_ms);
        snapshot::write_snapshot(&self.place.dir, base, &self.producers)?;
        self.flush.note_roll();
        Ok(())
    }
}
