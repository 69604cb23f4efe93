//! Whether this controller is the active one: watches the quorum, takes office when elected and everything committed is
//! applied, and leaves it when deposed or cut off. What the active controller does besides answering calls runs from here:
//! fencing brokers whose session ran out, and moving leaderships back.

use std::sync::Arc;
use std::time::Duration;

use epoka_proto::ids::{BrokerId, TopicId};
use epoka_proto::v1::broker_change::Kind as Change;
use tokio::time::{Instant, MissedTickBehavior};

use crate::cluster::{Cluster, Command, is_vacant};
use crate::liveness::Expired;
use crate::quorum::QUORUM_LOST_MS;
use crate::shared::{Role, Shared};

/// How often sessions are looked at.
const SESSION_CHECK: Duration = Duration::from_millis(100);
/// A check that comes so late means that this process was not running, and saw nobody's heartbeats.
const OVERSLEPT: Duration = Duration::from_secs(2);
/// How many leaderships are moved at once.
const MOVED_AT_ONCE: usize = 1000;

/// Follows the quorum's leadership for as long as the controller runs.
pub(crate) async fn follow_quorum(shared: Arc<Shared>) {
    let mut metrics = shared.quorum.raft.metrics();
    let mut tick = tokio::time::interval(SESSION_CHECK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut taken_office_in = None;
    loop {
        let (leader, term, lost) = {
            let now = metrics.borrow_and_update();
            let alone = shared.quorum.voters.len() == 1;
            let silent = now
                .millis_since_quorum_ack
                .is_some_and(|ms| ms > QUORUM_LOST_MS);
            (now.current_leader, now.current_term, silent && !alone)
        };
        let leads = leader == Some(shared.quorum.id) && !lost;
        if leads && taken_office_in != Some(term) {
            match take_office(&shared).await {
                Ok(()) => taken_office_in = Some(term),
                Err(error) => tracing::warn!(%error, "elected, but could not take office"),
            }
        } else if !leads {
            let active = leader.filter(|l| *l != shared.quorum.id);
            if taken_office_in.take().is_some() {
                tracing::warn!(?active, "no longer the active controller");
            }
            shared.timeline.set_active(false);
            shared.set_role(Role::Passive { active });
        }
        tokio::select! {
            changed = metrics.changed() => if changed.is_err() { return },
            _ = tick.tick() => {}
        }
    }
}

async fn take_office(shared: &Arc<Shared>) -> anyhow::Result<()> {
    shared.quorum.catch_up().await?;
    let (new, vacant) = shared.metadata.read(|c| {
        let image = c.image();
        (image.cluster_id.is_empty(), is_vacant(image))
    });
    let restore = shared.config.restore_brokers;
    if restore > 0 && vacant {
        tracing::warn!(
            "no metadata here: it is to be rebuilt from the data of {restore} broker(s), which may be started now. To begin a \
             new cluster, start without epoka.restore.brokers"
        );
    } else if restore > 0 {
        tracing::info!(
            "the metadata is here: epoka.restore.brokers has no effect, and is better taken away"
        );
    }
    if new && restore == 0 {
        let drawn = || TopicId::random().to_string();
        let initialize = Command::Initialize {
            cluster_id: shared
                .config
                .initial_cluster_id
                .clone()
                .unwrap_or_else(drawn),
            configs: shared.config.initial_configs.clone(),
        };
        shared.quorum.propose(initialize).await?;
    }
    let now = shared.now();
    let image = shared.metadata.read(|c| c.image().clone());
    shared.liveness.lock().start_over(&image, now);
    shared.timeline.set_active(true);
    shared.set_role(Role::Active);
    shared
        .timeline
        .broker(BrokerId(shared.config.id), Change::ControllerActive);
    tracing::info!(cluster = %image.cluster_id, "active controller");
    Ok(())
}

/// Fences brokers whose session ran out: one at a time, the longest silent first, so that each fencing sees the effect of
/// the one before (C-14).
pub(crate) async fn expire_sessions(shared: Arc<Shared>) {
    let mut last = Instant::now();
    loop {
        tokio::time::sleep(SESSION_CHECK).await;
        if !shared.is_active() {
            last = Instant::now();
            continue;
        }
        let slept = last.elapsed();
        last = Instant::now();
        let now = shared.now();
        if slept > OVERSLEPT {
            tracing::warn!(
                ms = slept.as_millis() as u64,
                "was not running; sessions begin anew"
            );
            let image = shared.metadata.read(|c| c.image().clone());
            shared.liveness.lock().start_over(&image, now);
            continue;
        }
        let expired = shared
            .metadata
            .read(|c| shared.liveness.lock().expired(c.image(), now));
        if let Some(Expired {
            broker,
            epoch,
            silent,
        }) = expired
        {
            shared.timeline.session_expired(broker, silent);
            if let Err(error) = shared.propose(Command::Fence { broker, epoch }).await {
                tracing::warn!(%broker, %error, "cannot fence");
            }
        }
    }
}

/// Now and then moves leaderships back to preferred leaders and tries leaderless partitions again (C-32, C-35).
pub(crate) async fn balance(shared: Arc<Shared>) {
    let Some(interval) = shared.config.balance_interval else {
        return;
    };
    loop {
        tokio::time::sleep(interval).await;
        let commands = [
            Command::RetryElections,
            Command::BalanceLeaders {
                at_most: MOVED_AT_ONCE,
            },
        ];
        for command in commands {
            if shared.is_active()
                && changes_something(shared.metadata.cluster(), &command)
                && let Err(error) = shared.propose(command).await
            {
                tracing::warn!(%error, "cannot balance leaderships");
            }
        }
    }
}

/// Tries a command on a copy of the cluster, to spare the log one that does nothing.
fn changes_something(mut cluster: Cluster, command: &Command) -> bool {
    !cluster.apply(i64::MAX, command).records.is_empty()
}
