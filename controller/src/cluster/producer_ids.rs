//! Blocks of producer ids: each broker hands out ids of its own block, so no id is ever used twice.

use std::ops::Range;

use epoka_proto::error::ErrorCode;
use epoka_proto::ids::{BrokerEpoch, BrokerId};
use epoka_proto::metadata::Record;

use super::work::Work;

/// How many ids a block holds.
const BLOCK: i64 = 1000;

impl Work<'_> {
    pub(super) fn allocate_producer_ids(
        &mut self,
        broker: BrokerId,
        epoch: BrokerEpoch,
    ) -> Result<Range<i64>, ErrorCode> {
        self.current(broker, epoch)?;
        let first = self.image().next_producer_id;
        let next = first
            .checked_add(BLOCK)
            .ok_or(ErrorCode::UnknownServerError)?;
        self.write(Record::ProducerIds { next });
        Ok(first..next)
    }
}
