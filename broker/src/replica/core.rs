//! What a replica is in every role: who it is, what it was last told by the controller and by its log, and the high
//! watermark. Keeps the watermark within the log (I-12). Knows nothing of leading or following.

use std::collections::BTreeMap;

use epoka_proto::ids::{BrokerEpoch, BrokerId, LeaderEpoch, Offset, PartitionEpoch};
use epoka_proto::metadata::Assignment;

use super::{Effect, LogState, Settings};

/// The state common to all roles.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) me: BrokerId,
    pub(super) settings: Settings,
    pub(super) log: LogState,
    pub(super) high_watermark: Offset,
    pub(super) known: Option<Known>,
    /// Active brokers among the replicas with their registered epochs (L-24).
    pub(super) eligible: BTreeMap<BrokerId, BrokerEpoch>,
    /// A disk effect was asked for and its outcome is not known yet.
    pub(super) disk_busy: bool,
}

/// The epochs of the newest word of the controller.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub(super) leader_epoch: LeaderEpoch,
    pub(super) partition_epoch: PartitionEpoch,
}

impl Core {
    pub(super) fn new(
        me: BrokerId,
        settings: Settings,
        log: LogState,
        high_watermark: Offset,
    ) -> Self {
        assert!(log.start <= log.end, "{log:?}");
        Self {
            me,
            settings,
            high_watermark: high_watermark.clamp(log.start, log.end),
            log,
            known: None,
            eligible: BTreeMap::new(),
            disk_busy: false,
        }
    }

    pub(super) fn leader_epoch(&self) -> Option<LeaderEpoch> {
        self.known.map(|k| k.leader_epoch)
    }

    pub(super) fn learn(&mut self, assignment: &Assignment) {
        self.known = Some(Known {
            leader_epoch: assignment.leader_epoch,
            partition_epoch: assignment.partition_epoch,
        });
    }

    /// Asks for a disk effect.
    pub(super) fn disk(&mut self, effect: Effect, effects: &mut Vec<Effect>) {
        assert!(!self.disk_busy, "{effect:?} while another disk effect runs");
        self.disk_busy = true;
        effects.push(effect);
    }

    /// The log is now this. A cut lowers the high watermark to the log end, a higher log start raises it (L-26, F-10, H-29).
    pub(super) fn log_changed(&mut self, log: LogState, effects: &mut Vec<Effect>) {
        assert!(log.start <= log.end, "{log:?}");
        self.disk_busy = false;
        self.log = log;
        let within = self.high_watermark.clamp(self.log.start, self.log.end);
        self.set_high_watermark(within, effects);
    }

    pub(super) fn set_high_watermark(&mut self, to: Offset, effects: &mut Vec<Effect>) {
        assert!(
            self.log.start <= to && to <= self.log.end,
            "I-12: high watermark {to} outside {:?}",
            self.log
        );
        if to != self.high_watermark {
            self.high_watermark = to;
            effects.push(Effect::Publish { high_watermark: to });
        }
    }
}
