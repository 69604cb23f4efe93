//! Reading a whole log to find damage that nothing else would notice: a flipped bit in bytes that were made durable long ago.

use epoka_proto::ids::Offset;

use crate::files::Context;
use crate::scan::Step;
use crate::view::{LogView, ReadError};

/// What a scrub read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Scrubbed {
    /// Batches whose CRC is right.
    pub batches: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl LogView {
    /// Reads every batch and compares its CRC. `Err(ReadError::Damaged)` names the first bad one. `None` when the log was cut
    /// meanwhile. Blocks for as long as the disk takes.
    pub fn scrub(&self) -> Option<Result<Scrubbed, ReadError>> {
        self.undisturbed(|segments| {
            let mut done = Scrubbed::default();
            let mut expected: Option<Offset> = None;
            for segment in segments {
                let damaged = |position, what: String| ReadError::Damaged {
                    file: segment.path().to_owned(),
                    position,
                    what,
                };
                if let Some(end) = expected.filter(|end| *end != segment.base()) {
                    return Err(damaged(
                        0,
                        format!("the segment before it ends at offset {end}"),
                    ));
                }
                let mut scanner = segment.scan(0).with_checksums();
                let mut end = segment.base();
                loop {
                    match scanner.step().context("read", segment.path())? {
                        Step::Batch(batch) => {
                            done.batches += 1;
                            done.bytes += batch.header.size as u64;
                            end = batch.header.next_offset();
                        }
                        Step::End => break,
                        Step::Fault(fault) => {
                            return Err(damaged(fault.position, fault.kind.to_string()));
                        }
                    }
                }
                expected = Some(end);
            }
            Ok(done)
        })
    }
}
