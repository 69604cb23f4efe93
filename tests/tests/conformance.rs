//! Apache Kafka's own dump tool reads the files of a cluster that lost its leaders, whatever the moment.
//! `EPOKA_KAFKA_TOOLS` names a program that runs a class of Kafka's tools: `$EPOKA_KAFKA_TOOLS run CLASS ARGUMENTS`.

use std::path::PathBuf;

use epoka_tests::harness::cluster::PATIENCE;
use epoka_tests::harness::{Cluster, Load, LoadSpec, Spec, files};
use tokio::process::Command;

const EPOKA: &str = env!("CARGO_BIN_EXE_epoka-under-test");
const DUMP: &str = "org.apache.kafka.tools.DumpLogSegments";
/// What the tool says when something is wrong.
const COMPLAINTS: [&str; 8] = [
    "Mismatches",
    "mismatch",
    "out of order",
    "not found",
    "isvalid: false",
    "orrupt",
    "Exception",
    "Error",
];

/// Runs the tool over some files; it must have something to say and nothing to complain of.
async fn dump(tools: &str, files: &[PathBuf], options: &[&str]) -> String {
    let names: Vec<_> = files.iter().map(|f| f.to_str().expect("text")).collect();
    let mut command = Command::new(tools);
    command
        .args(["run", DUMP, "--files", &names.join(",")])
        .args(options);
    let output = command
        .output()
        .await
        .unwrap_or_else(|e| panic!("{tools} cannot be run: {e}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{options:?}: {text}{errors}");
    for complaint in COMPLAINTS {
        let line = text
            .lines()
            .chain(errors.lines())
            .find(|line| line.contains(complaint));
        assert_eq!(line, None, "{options:?}, {names:?}");
    }
    assert_eq!(
        text.matches("Dumping ").count(),
        files.len(),
        "{options:?}: {text}{errors}"
    );
    text
}

/// Every file of every replica on every broker.
async fn check(tools: &str, cluster: &Cluster) {
    for broker in cluster.brokers() {
        let dirs: Vec<_> = (0..2)
            .map(|partition| cluster.partition_dir(broker, "orders", partition))
            .collect();
        let of_kind = |extension| -> Vec<_> {
            dirs.iter()
                .flat_map(|d| files::with_extension(d, extension))
                .collect()
        };
        let logs = of_kind("log");
        let text = dump(tools, &logs, &["--deep-iteration"]).await;
        let bytes: u64 = logs
            .iter()
            .map(|f| f.metadata().expect("it is there").len())
            .sum();
        let size = |line: &str| {
            line.split_once(" size: ")?
                .1
                .split(' ')
                .next()?
                .parse::<u64>()
                .ok()
        };
        let read: u64 = text
            .lines()
            .filter(|l| l.starts_with("baseOffset:"))
            .filter_map(size)
            .sum();
        assert_eq!(read, bytes, "{broker}: every byte belongs to a batch");
        let indexes = [of_kind("index"), of_kind("timeindex")].concat();
        dump(tools, &indexes, &[]).await;
        let text = dump(tools, &indexes, &["--index-sanity-check"]).await;
        let sane = text.matches("passed sanity check").count() + text.matches("is empty").count();
        assert_eq!(sane, indexes.len(), "{broker}: {text}");
        dump(tools, &of_kind("snapshot"), &[]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kafkas_dump_tool_reads_everything_of_a_cluster_that_went_through_kills() {
    let Ok(tools) = std::env::var("EPOKA_KAFKA_TOOLS") else {
        epoka_tests::skipped("EPOKA_KAFKA_TOOLS does not name a program that runs Kafka's tools");
        return;
    };
    let spec = Spec::default().topic(
        "orders",
        2,
        &[("segment.bytes", "65536"), ("index.interval.bytes", "512")],
    );
    let mut cluster = Cluster::start(EPOKA, spec).await;
    let load = Load::start(&cluster.bootstrap(), LoadSpec::new("orders", 2));
    for _ in 0..3 {
        load.progress(500, PATIENCE).await;
        let leader = cluster.leader_of("orders", 0).await;
        cluster.kill(leader);
        cluster.leader_other_than(leader, "orders", 0).await;
        load.progress(500, PATIENCE).await;
        cluster.start_node(leader);
        cluster
            .until_metadata("full ISRs", |m| {
                m.partitions().all(|(_, p)| p.is_whole()).then_some(())
            })
            .await;
    }
    load.audit().await.assert_clean();
    cluster.await_whole().await;
    check(&tools, &cluster).await; // running
    cluster.kill_all();
    check(&tools, &cluster).await; // killed
    cluster.start_all();
    cluster.await_all_brokers().await;
    cluster.await_whole().await;
    for node in cluster.nodes() {
        assert!(cluster.stop(node).await.success());
    }
    check(&tools, &cluster).await; // closed
}
