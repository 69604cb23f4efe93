//! One run from beginning to end: the cluster, the load, the plan, the calm, and the comparison.

use std::fmt;
use std::time::{Duration, Instant};

use epoka_proto::v1::event::Kind;

use super::act::{await_full_isr, perform};
use super::plan::{LAG, PARTITIONS, Plan, SESSION, Settle};
use super::repeats;
use crate::harness::cluster::PATIENCE;
use crate::harness::{Audit, Cluster, Load, LoadSpec, Spec, files};

/// The topic whose writers want every record committed.
pub const TOPIC: &str = "orders";
/// The topic whose writers are content with the leader's word.
const LOOSE: &str = "loose";
/// Pause of a writer between two records.
const PAUSE: Duration = Duration::from_millis(3);
/// Small enough for every run to close several segments.
const SEGMENT_BYTES: &str = "65536";

/// What a run is like.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Draws the plan.
    pub seed: u64,
    /// No step begins after this long.
    pub lasts: Duration,
}

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// Steps of the plan.
    pub steps: usize,
    /// Leaders elected after the beginning.
    pub elections: usize,
    /// Logs that were cut because they had diverged.
    pub truncations: usize,
    /// Of the writers that wanted every record committed.
    pub committed: Audit,
    /// Of the writers that were content with the leader's word.
    pub loose: Audit,
}

impl Report {
    /// Demands that both audits are clean, and that the faults hit something.
    fn assert_clean(&self) {
        self.committed.assert_clean();
        self.loose.assert_clean();
        assert!(
            self.steps > 0 && self.elections > 0,
            "a storm that hit nothing proves nothing: {self}"
        );
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} steps, {} elections, {} truncations\nacks=all: {}\nacks=1: {}",
            self.steps, self.elections, self.truncations, self.committed, self.loose
        )
    }
}

/// Says how to repeat a run that failed, after everything else that is said of it.
struct Repeat(Settings);

impl Drop for Repeat {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Settings { seed, lasts } = self.0;
            println!(
                "to repeat this plan: EPOKA_CHAOS_SEED={seed} EPOKA_CHAOS_SECONDS={}",
                lasts.as_secs()
            );
        }
    }
}

/// Runs the plan of a seed against a new cluster of `binary`'s processes.
///
/// # Panics
/// When the cluster does not recover, the replicas differ in the end, an audit finds an anomaly, or nothing was hit.
pub async fn run(binary: &str, settings: Settings) -> Report {
    let _repeat = Repeat(settings);
    let plan = Plan::new(settings.seed);
    println!(
        "EPOKA_CHAOS_SEED={}: {} controller(s)",
        settings.seed,
        plan.controllers()
    );
    let mut cluster = Cluster::start(binary, spec(&plan)).await;
    cluster.keep_when_failing();
    let elected_before = elections(&cluster);
    let committed = Load::start(&cluster.bootstrap(), committed_load());
    let loose = Load::start(&cluster.bootstrap(), loose_load());
    committed.progress(100, PATIENCE).await;

    let steps = storm(&mut cluster, &committed, plan, settings.lasts).await;
    await_full_isr(&mut cluster).await;
    let (committed, loose) = tokio::join!(committed.finish(), loose.finish());
    cluster.await_whole().await;
    assert_identical_replicas(&cluster);
    let mut report = Report {
        steps,
        elections: elections(&cluster) - elected_before,
        truncations: count(&cluster, |kind| matches!(kind, Kind::Truncated(_))),
        committed: committed.audit(),
        loose: loose.audit_leader_only(),
    };
    println!("{report}");
    let repeated = repeats::take_out(&mut report.committed, &cluster);
    if repeated > 0 {
        println!(
            "{repeated} records were sent twice by their clients, in two epochs of the producer"
        );
    }
    report.assert_clean();
    report
}

fn spec(plan: &Plan) -> Spec {
    let configs = [("segment.bytes", SEGMENT_BYTES)];
    Spec::default()
        .controllers(plan.controllers())
        .session_timeout_ms(u32::try_from(SESSION.as_millis()).expect("seconds"))
        .broker_property("replica.lag.time.max.ms", &LAG.as_millis().to_string())
        .topic(TOPIC, PARTITIONS, &configs)
        .topic(LOOSE, PARTITIONS, &configs)
}

fn committed_load() -> LoadSpec {
    LoadSpec {
        writers: 3,
        pause: PAUSE,
        readers: 2,
        rereaders: 1,
        ..LoadSpec::new(TOPIC, PARTITIONS)
    }
}

fn loose_load() -> LoadSpec {
    let load = LoadSpec {
        pause: PAUSE,
        ..LoadSpec::new(LOOSE, PARTITIONS)
    };
    load.at_most_once()
}

/// Performs steps until the time is over or a client has failed; returns how many.
async fn storm(cluster: &mut Cluster, load: &Load, plan: Plan, lasts: Duration) -> usize {
    let begun = Instant::now();
    let mut whole = true;
    let mut steps = 0;
    for step in plan {
        if begun.elapsed() >= lasts || !load.failures().is_empty() {
            break;
        }
        steps += 1;
        let at = begun.elapsed().as_millis();
        println!("{at:>6} ms step {steps}: {step:?}");
        cluster.timeline().note(format!("step {steps}: {step:?}"));
        perform(cluster, load, &step, whole).await;
        whole = step.settle == Settle::Whole;
    }
    steps
}

fn assert_identical_replicas(cluster: &Cluster) {
    for topic in [TOPIC, LOOSE] {
        for partition in 0..PARTITIONS {
            let dirs = cluster.brokers().into_iter();
            let dirs: Vec<_> = dirs
                .map(|b| cluster.partition_dir(b, topic, partition))
                .collect();
            files::assert_identical_logs(&dirs);
        }
    }
}

fn elections(cluster: &Cluster) -> usize {
    count(cluster, |kind| matches!(kind, Kind::Elected(_)))
}

fn count(cluster: &Cluster, wanted: fn(&Kind) -> bool) -> usize {
    let events = cluster.events();
    let kinds = events.iter().filter_map(|e| e.kind.as_ref());
    kinds.filter(|kind| wanted(kind)).count()
}
