//! What the active controller reports to whoever watches: the notices of committed commands as events. A controller that is
//! not active stays silent, so that each happening is told once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use epoka_proto::events::{EventLog, now_unix_micros};
use epoka_proto::ids::BrokerId;
use epoka_proto::v1::broker_change::Kind as Change;
use epoka_proto::v1::event::Kind;
use epoka_proto::v1::{BrokerChange, Elected, IsrChanged};

use crate::cluster::Notice;

/// The controller's event log and whether it may speak. Clones share both.
#[derive(Clone)]
pub(crate) struct Timeline {
    events: EventLog,
    active: Arc<AtomicBool>,
}

impl Timeline {
    pub(crate) fn new(events: EventLog) -> Self {
        Self {
            events,
            active: Arc::default(),
        }
    }

    pub(crate) fn events(&self) -> EventLog {
        self.events.clone()
    }

    pub(crate) fn set_active(&self, active: bool) {
        self.active.store(active, Ordering::Relaxed);
    }

    /// Reports a change of a broker (or, for CONTROLLER_ACTIVE, of a controller).
    pub(crate) fn broker(&self, id: BrokerId, change: Change) {
        self.change(now_unix_micros(), id, change, Duration::ZERO);
    }

    /// Reports that a session ran out, and for how long nothing had been heard.
    pub(crate) fn session_expired(&self, id: BrokerId, silent: Duration) {
        self.change(now_unix_micros(), id, Change::SessionExpired, silent);
    }

    /// Reports that a broker's heartbeat stream broke, at this time, and did not come back.
    pub(crate) fn stream_closed(&self, id: BrokerId, unix_micros: i64) {
        self.change(unix_micros, id, Change::StreamClosed, Duration::ZERO);
    }

    fn change(&self, unix_micros: i64, id: BrokerId, change: Change, silent: Duration) {
        if self.active.load(Ordering::Relaxed) {
            tracing::info!(id = id.0, change = change.as_str_name(), "broker");
            let change = BrokerChange {
                broker_id: id.0,
                kind: change.into(),
                silent_ms: silent.as_millis() as u64,
            };
            self.events.push_at(unix_micros, Kind::Broker(change));
        }
    }

    /// Reports what a committed command did.
    pub(crate) fn note(&self, notices: &[Notice]) {
        for notice in notices {
            match notice {
                Notice::Registered { broker, .. } => self.broker(*broker, Change::Registered),
                Notice::Fenced { broker } => self.broker(*broker, Change::Fenced),
                Notice::Unfenced { broker } => self.broker(*broker, Change::Unfenced),
                Notice::ShuttingDown { broker } => self.broker(*broker, Change::ShuttingDown),
                Notice::Elected { .. } | Notice::IsrChanged { .. } => self.partition(notice),
            }
        }
    }

    fn partition(&self, notice: &Notice) {
        if !self.active.load(Ordering::Relaxed) {
            return;
        }
        tracing::debug!(?notice, "partition");
        let numbers = |ids: &[BrokerId]| ids.iter().map(|id| id.0).collect();
        let kind = match notice {
            Notice::Elected {
                partition,
                old_leader,
                new_leader,
                old_epoch,
                new_epoch,
                unclean,
            } => Kind::Elected(Elected {
                topic: partition.topic.to_string(),
                partition: partition.partition,
                old_leader: old_leader.map(|l| l.0),
                new_leader: new_leader.map(|l| l.0),
                old_epoch: old_epoch.0,
                new_epoch: new_epoch.0,
                unclean: *unclean,
            }),
            Notice::IsrChanged {
                partition,
                old,
                new,
                min_isr,
            } => Kind::Isr(IsrChanged {
                topic: partition.topic.to_string(),
                partition: partition.partition,
                old_isr: numbers(old),
                new_isr: numbers(new),
                min_isr: u32::try_from(*min_isr).unwrap_or(u32::MAX),
            }),
            _ => return,
        };
        self.events.push(kind);
    }
}
