//! What the parts of a running controller share: the quorum, the committed metadata, the soft state, and the role this
//! controller plays. Only handles; the decisions are made elsewhere.

use std::sync::Arc;
use std::time::Instant;

use epoka_proto::ids::Millis;
use parking_lot::Mutex;
use tokio::sync::watch;
use tonic::{Code, Status};

use crate::cluster::{Command, Offers, Outcome};
use crate::config::ControllerConfig;
use crate::declared::Declared;
use crate::liveness::Liveness;
use crate::metadata::Metadata;
use crate::quorum::{ProposeError, Quorum};
use crate::timeline::Timeline;

/// The gRPC metadata entry that names the active controller's address.
pub const ACTIVE_HINT: &str = "epoka-active";

/// What this controller is at the moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// The one that answers.
    Active,
    /// Another one is active, or none.
    Passive { active: Option<u64> },
    /// Going away.
    Stopping,
}

pub(crate) struct Shared {
    pub(crate) config: ControllerConfig,
    pub(crate) quorum: Arc<Quorum>,
    pub(crate) metadata: Metadata,
    /// Never locked while the metadata is about to be: the metadata's lock comes first.
    pub(crate) liveness: Mutex<Liveness>,
    /// What brokers offer to a controller that lost its metadata.
    pub(crate) offers: Mutex<Offers>,
    pub(crate) timeline: Timeline,
    pub(crate) declared: Declared,
    pub(crate) role: watch::Sender<Role>,
    /// Counts heartbeats that brought news of a broker's metadata offset.
    pub(crate) progress: watch::Sender<u64>,
    pub(crate) started: Instant,
}

impl Shared {
    /// Milliseconds on the monotonic clock.
    pub(crate) fn now(&self) -> Millis {
        self.started.elapsed().as_millis() as Millis
    }

    pub(crate) fn is_active(&self) -> bool {
        *self.role.borrow() == Role::Active
    }

    /// Changes the role, unless the controller is stopping.
    pub(crate) fn set_role(&self, role: Role) {
        self.role.send_if_modified(|now| {
            let changes = *now != role && *now != Role::Stopping;
            if changes {
                *now = role;
            }
            changes
        });
    }

    /// Waits until this controller is not the active one, for the status that ends a stream.
    pub(crate) async fn deposed(&self) -> Status {
        let mut changes = self.role.subscribe();
        let left = changes.wait_for(|r| *r != Role::Active).await;
        let role = left.map_or(Role::Stopping, |r| *r);
        self.not_active(role)
    }

    /// Fails unless this controller is the active one.
    pub(crate) fn require_active(&self) -> Result<(), Status> {
        match *self.role.borrow() {
            Role::Active => Ok(()),
            role => Err(self.not_active(role)),
        }
    }

    /// The status that sends a caller elsewhere.
    pub(crate) fn not_active(&self, role: Role) -> Status {
        match role {
            Role::Passive {
                active: Some(active),
            } => self.redirect(Some(active)),
            Role::Stopping => Status::unavailable("this controller is stopping"),
            Role::Active | Role::Passive { active: None } => self.redirect(None),
        }
    }

    fn redirect(&self, active: Option<u64>) -> Status {
        let mut status = Status::new(
            Code::FailedPrecondition,
            "NOT_CONTROLLER: this controller is not the active one",
        );
        let address = active.and_then(|id| self.quorum.voters.get(&id));
        if let Some(address) = address.and_then(|a| a.parse().ok()) {
            status.metadata_mut().insert(ACTIVE_HINT, address);
        }
        status
    }

    /// Has a command carried out. An error says nothing about whether it was (C-4).
    pub(crate) async fn propose(&self, command: Command) -> Result<Outcome, Status> {
        self.require_active()?;
        self.quorum.propose(command).await.map_err(|e| match e {
            ProposeError::NotActive { active } => self.redirect(active),
            ProposeError::TimedOut | ProposeError::Stopped(_) => Status::unavailable(e.to_string()),
        })
    }

    /// What a command would do now, without doing it.
    pub(crate) fn rehearse(&self, command: &Command) -> Outcome {
        self.metadata.cluster().apply(i64::MAX, command)
    }
}
