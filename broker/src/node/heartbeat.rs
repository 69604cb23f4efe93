//! The broker's lease: a stream of heartbeats to the active controller, opened again at once when it breaks.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use epoka_proto::error::ErrorCode;
use epoka_proto::events::EventLog;
use epoka_proto::v1::event::Kind;
use epoka_proto::v1::{ControllerSilence, HeartbeatRequest, HeartbeatResponse};
use futures::StreamExt as _;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::controller::ActiveController;
use super::pause::Pause;
use crate::membership::Membership;

/// What the controller last said of this broker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lease {
    /// Leads nothing, joins no ISR.
    pub fenced: bool,
    /// Nothing depends on it any more; it may stop.
    pub may_stop: bool,
    /// Its registration is not the current one: it must register again.
    pub stale: bool,
}

impl Lease {
    /// Before the controller said anything.
    pub const INITIAL: Self = Self {
        fenced: true,
        may_stop: false,
        stale: false,
    };
}

/// Pauses before the stream is opened again: short at first, for a controller that has only changed places. A broker whose
/// registration is not current is refused until it has registered again.
const RECONNECT_PAUSES: RangeInclusive<Duration> =
    Duration::from_millis(5)..=Duration::from_millis(100);
/// How often it is looked whether the controller was heard.
const LOOK: Duration = Duration::from_millis(500);
/// A broker that wants something (to be unfenced, to stop) asks more often.
const EAGER_INTERVAL: Duration = Duration::from_millis(50);

/// Sends heartbeats until told to stop.
pub struct Heartbeats {
    /// Identity and applied metadata.
    pub membership: Arc<Membership>,
    /// Where the controller is.
    pub active: Arc<ActiveController>,
    /// Time between heartbeats.
    pub interval: Duration,
    /// Becomes true when the broker wants to stop.
    pub want_shutdown: watch::Receiver<bool>,
    /// Told what the controller says.
    pub lease: watch::Sender<Lease>,
    /// Where it is noted that no controller answers.
    pub events: EventLog,
}

/// How long the controller may leave heartbeats unanswered before that is worth a word: another one may be taking over.
pub(super) fn patience(interval: Duration) -> Duration {
    interval + Duration::from_secs(2)
}

impl Heartbeats {
    /// Runs until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        // Until now it was not for this to ask.
        self.membership.hear_controller();
        let events = self.events.clone();
        let missing = miss_controller(self.membership.clone(), self.interval, events);
        let beating = async {
            let mut pause = Pause::new(RECONNECT_PAUSES);
            loop {
                if let Err(error) = self.stream(&mut pause).await {
                    tracing::debug!(%error, "the heartbeat stream broke");
                }
                pause.wait().await;
            }
        };
        let both = async { tokio::join!(beating, missing) };
        stop.run_until_cancelled(both).await;
    }

    async fn stream(&mut self, pause: &mut Pause) -> Result<(), Status> {
        let (address, mut client) = self.active.connect().await?;
        let (beats, outgoing) = mpsc::channel(4);
        let opened = async {
            self.beat(&beats).await;
            client.heartbeat(ReceiverStream::new(outgoing)).await
        };
        let mut answers = match opened.await {
            Ok(answers) => answers.into_inner(),
            Err(status) => {
                self.active.failed(&address, &status);
                return Err(status);
            }
        };
        let mut applied = self.membership.watch_applied();
        let mut vetted = self.membership.watch_vetted();
        let mut regular = every(self.interval);
        let mut eager = every(EAGER_INTERVAL);
        loop {
            let lease = *self.lease.borrow();
            let pending = self.membership.topics_pending();
            let wants = lease.fenced
                || *self.want_shutdown.borrow()
                || pending.is_none_or(|pending| !pending.is_empty());
            tokio::select! {
                answer = answers.next() => match answer {
                    Some(Ok(answer)) => {
                        self.take(&answer);
                        if !self.lease.borrow().stale {
                            pause.reset();
                        }
                    }
                    Some(Err(status)) => {
                        self.active.failed(&address, &status);
                        return Err(status);
                    }
                    None => return Ok(()),
                },
                _ = regular.tick() => self.beat(&beats).await,
                _ = eager.tick(), if wants => self.beat(&beats).await,
                // A broker that wants to stop waits for all others to have applied that it leads nothing (C-16).
                Ok(()) = applied.changed() => if wants || self.membership.is_anybody_stopping() {
                    self.beat(&beats).await;
                },
                Ok(()) = vetted.changed() => self.beat(&beats).await,
                Ok(()) = self.want_shutdown.changed() => self.beat(&beats).await,
            }
        }
    }

    async fn beat(&self, beats: &mpsc::Sender<HeartbeatRequest>) {
        let epoch = self.membership.epoch();
        let beat = HeartbeatRequest {
            broker_id: self.membership.me.0,
            broker_epoch: epoch.0,
            metadata_offset: self.membership.applied().unwrap_or(-1),
            // What cannot be served is withdrawn first (C-17).
            want_fence: self.membership.vetted() != Some(epoch),
            want_shutdown: *self.want_shutdown.borrow(),
            offline_log_dirs: Vec::new(),
        };
        // A full queue means the controller is slow to take them: the one in the queue says enough.
        drop(beats.try_send(beat));
    }

    fn take(&self, answer: &HeartbeatResponse) {
        self.membership.hear_controller();
        let lease = match ErrorCode::from_wire(answer.error as i16) {
            Ok(()) => {
                self.membership.set_topics_pending(&answer.topics_pending);
                Lease {
                    fenced: answer.is_fenced,
                    may_stop: answer.should_shut_down,
                    stale: false,
                }
            }
            Err(error @ (ErrorCode::StaleBrokerEpoch | ErrorCode::BrokerIdNotRegistered)) => {
                tracing::debug!(%error, "the controller does not know this registration");
                Lease {
                    stale: true,
                    ..Lease::INITIAL
                }
            }
            Err(error) => {
                tracing::debug!(%error, "the controller refused a heartbeat");
                return;
            }
        };
        self.lease
            .send_if_modified(|old| std::mem::replace(old, lease) != lease);
    }
}

/// Notes when no controller answers, and when one does again.
async fn miss_controller(membership: Arc<Membership>, interval: Duration, events: EventLog) {
    let mut missed: Option<Duration> = None;
    let mut look = every(LOOK);
    let mut last = Instant::now();
    loop {
        look.tick().await;
        // A process that was not running heard nobody; that says nothing of the controller.
        if std::mem::replace(&mut last, Instant::now()).elapsed() > LOOK * 3 {
            continue;
        }
        let silent = membership.controller_silent();
        let over = match missed {
            None if silent > patience(interval) => {
                tracing::warn!(ms = silent.as_millis() as u64, "no controller answers");
                false
            }
            None => continue,
            Some(before) if silent >= before => {
                missed = Some(silent);
                continue;
            }
            Some(before) => {
                tracing::info!(ms = before.as_millis() as u64, "a controller answers again");
                true
            }
        };
        let silent_ms = missed.unwrap_or(silent).as_millis() as u64;
        missed = (!over).then_some(silent);
        events.push(Kind::ControllerSilence(ControllerSilence {
            silent_ms,
            over,
        }));
    }
}

/// A clock that does not make up for ticks nobody waited for.
fn every(period: Duration) -> Interval {
    let mut clock = interval(period);
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    clock
}
