//! What a node does by the clock: ticks for its replicas, and the checkpoint files.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::Node;
use crate::clock::wall_clock_ms;

/// How often replicas are told the time: the precision of produce deadlines and lag checks.
const TICK: Duration = Duration::from_millis(500);

/// Ticks until `stop`.
pub async fn tick(node: Arc<Node>, stop: CancellationToken) {
    every(TICK, stop, || {
        for partition in node.partitions.all() {
            partition.tick();
        }
    })
    .await;
}

/// How often producers that went silent are looked for (Kafka's `producer.id.expiration.check.interval.ms`).
const EXPIRATION_CHECK: Duration = Duration::from_secs(600);

/// Forgets idempotent producers that went silent, until `stop` (P-4).
pub async fn expire_producers(node: Arc<Node>, stop: CancellationToken) {
    every(EXPIRATION_CHECK, stop, || {
        for partition in node.partitions.all() {
            partition.with_log(|log| log.expire_producers(wall_clock_ms()));
        }
    })
    .await;
}

/// Saves checkpoints until `stop`.
pub async fn checkpoint(node: Arc<Node>, stop: CancellationToken) {
    let (watermarks, points, starts) = (node.clone(), node.clone(), node.clone());
    let save_watermarks = move || {
        blocking(&watermarks, |n| {
            n.logs.save_high_watermarks(&n.partitions.all())
        })
    };
    let save_points = move || {
        blocking(&points, |n| {
            n.logs.save_recovery_points(&n.partitions.all())
        })
    };
    let save_starts = move || blocking(&starts, |n| n.logs.save_log_starts(&n.partitions.all()));
    tokio::join!(
        every(
            node.config.high_watermark_interval,
            stop.clone(),
            save_watermarks
        ),
        every(
            node.config.recovery_point_interval,
            stop.clone(),
            save_points
        ),
        every(node.config.log_start_interval, stop, save_starts),
    );
}

fn blocking(node: &Arc<Node>, work: impl FnOnce(&Node) + Send + 'static) {
    let node = node.clone();
    tokio::task::spawn_blocking(move || work(&node));
}

async fn every(period: Duration, stop: CancellationToken, mut work: impl FnMut()) {
    let mut clock = interval(period);
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    clock.tick().await; // the first one is immediate
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = clock.tick() => work(),
        }
    }
}
