//! A controller that lost its directory under brokers that still have theirs: nothing is lost by it, and the metadata comes back
//! from the brokers.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use epoka_proto::ids::TopicPartition;
use epoka_proto::v1::event::Kind;
use epoka_tests::harness::cluster::PATIENCE;
use epoka_tests::harness::wait::until;
use epoka_tests::harness::{Cluster, Fault, Load, LoadSpec, Node, Spec, files, kafka, raw};
use rdkafka::message::Message as _;

const EPOKA: &str = env!("CARGO_BIN_EXE_epoka-under-test");
const ORDERS: (&str, i32) = ("orders", 0);
const CONTROLLER: Node = Node::Controller(1);
const RESTORE: &str = "epoka.restore.brokers";

fn lose_directory(cluster: &Cluster, node: Node) {
    fs::remove_dir_all(cluster.data_dir(node)).expect("it is there");
}

/// The records and epochs of every partition a broker holds.
fn contents(cluster: &Cluster, broker: Node) -> BTreeMap<PathBuf, Vec<u8>> {
    let found = files::below(&cluster.data_dir(broker)).into_iter();
    let records = found.filter(|path| {
        let name = path.file_name().unwrap_or_default();
        path.extension().is_some_and(|e| e == "log") || name == "leader-epoch-checkpoint"
    });
    records
        .map(|path| {
            let bytes = fs::read(&path).expect("readable");
            (path, bytes)
        })
        .collect()
}

async fn until_printed(cluster: &Cluster, node: Node, words: &str) {
    until(&format!("{node} to print '{words}'"), PATIENCE, || {
        let output = cluster.output(node);
        output.contains(words).then_some(()).ok_or(output)
    })
    .await;
}

async fn write(cluster: &Cluster, leader: Node, acks: i32, values: &[&str]) {
    let batch = raw::batch(None, values);
    let answer = cluster.produce(leader, ORDERS, acks, batch).await;
    assert_eq!(answer.error, 0, "{answer:?}");
}

fn values_of(cluster: &Cluster) -> Vec<String> {
    let read = kafka::read_all(&cluster.bootstrap(), "orders", 1, PATIENCE);
    read.iter()
        .map(|m| String::from_utf8_lossy(m.payload().expect("a value")).into_owned())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_without_memory_is_refused_in_words_and_rebuilds_the_metadata_when_told_to() {
    let spec = Spec::default()
        .topic("orders", 1, &[])
        .topic("payments", 4, &[])
        .session_timeout_ms(1500);
    let mut cluster = Cluster::start(EPOKA, spec).await;
    let old = cluster.leader_of("orders", 0).await;
    let id = cluster.producer_id(old).await;
    write(&cluster, old, -1, &["a", "b", "c"]).await;
    // A suffix that only the old leader holds, and records that only the other two hold.
    cluster.isolate(old, Fault::Cut);
    write(&cluster, old, 1, &["lost-1", "lost-2", "lost-3", "lost-4"]).await;
    let new = cluster.leader_other_than(old, "orders", 0).await;
    cluster.kill(old);
    cluster.heal();
    write(&cluster, new, -1, &["d", "e"]).await;
    let was = cluster.leader_of("payments", 3).await;
    let before = cluster.metadata().await.expect("an answer");
    let epoch = before
        .partition(&TopicPartition::new("orders", 0))
        .expect("there")
        .leader_epoch;

    // All die, and the controller's directory is lost. It comes back as a new one, which no broker believes.
    cluster.kill_all();
    lose_directory(&cluster, CONTROLLER);
    let held: Vec<_> = cluster
        .brokers()
        .iter()
        .map(|b| contents(&cluster, *b))
        .collect();
    assert!(held.iter().all(|files| files.len() >= 5));
    cluster.start_all();
    for broker in cluster.brokers() {
        let status = cluster.ended(broker).await;
        assert_eq!(status.code(), Some(1), "{broker}");
        let output = cluster.output(broker);
        for words in [
            "of which this controller has no memory",
            "EPOKA_RESTORE_BROKERS",
            "Nothing was changed here",
        ] {
            assert!(output.contains(words), "{broker} said: {output}");
        }
    }
    let now: Vec<_> = cluster
        .brokers()
        .iter()
        .map(|b| contents(&cluster, *b))
        .collect();
    assert!(held == now, "a broker's files have changed");

    // Told to rebuild, it waits for all of them.
    cluster.kill(CONTROLLER);
    cluster.set_property(CONTROLLER, RESTORE, "3");
    for node in [CONTROLLER, Node::Broker(1), Node::Broker(2)] {
        cluster.start_node(node);
    }
    until_printed(&cluster, Node::Broker(1), "2 of them have come (1, 2)").await;
    cluster.start_node(Node::Broker(3));
    cluster.await_all_brokers().await;
    cluster.await_whole().await;
    until_printed(&cluster, CONTROLLER, "orders (1), payments (4)").await;

    // What was acknowledged is there, and the suffix that never was is cut and kept.
    assert_eq!(values_of(&cluster), ["a", "b", "c", "d", "e"]);
    let of_old = |event: &epoka_proto::v1::Event| match &event.kind {
        Some(Kind::Truncated(cut)) if event.node == old.to_string() => Some(cut.clone()),
        _ => None,
    };
    let cut = cluster
        .timeline()
        .find("the suffix to be cut", PATIENCE, of_old)
        .await;
    assert_eq!((cut.from_offset, cut.to_offset), (7, 3), "{cut:?}");
    let leader = cluster.leader_of("orders", 0).await;
    assert_ne!(leader, old, "it lacks records");
    let after = cluster.metadata().await.expect("an answer");
    assert_eq!(after.cluster_id, before.cluster_id);
    let orders = after
        .partition(&TopicPartition::new("orders", 0))
        .expect("there");
    assert!(orders.leader_epoch > epoch, "{orders:?} after {epoch}");
    assert_eq!(orders.replicas.len(), 3);
    let payments = after
        .partition(&TopicPartition::new("payments", 3))
        .expect("there");
    assert!(payments.leader.is_some(), "{payments:?}, led by {was}");

    // It goes on as before.
    write(&cluster, leader, -1, &["f"]).await;
    assert!(cluster.producer_id(leader).await > id);
    cluster.kill(leader);
    let next = cluster.leader_other_than(leader, "orders", 0).await;
    write(&cluster, next, -1, &["g"]).await;
    cluster.start_node(leader);
    cluster.await_whole().await;
    assert_eq!(values_of(&cluster), ["a", "b", "c", "d", "e", "f", "g"]);
    let dirs: Vec<_> = cluster
        .brokers()
        .into_iter()
        .map(|b| cluster.partition_dir(b, "orders", 0))
        .collect();
    files::assert_identical_logs(&dirs);
    // The setting has no effect on metadata that is there.
    cluster.kill(CONTROLLER);
    cluster.start_node(CONTROLLER);
    until_printed(&cluster, CONTROLLER, "has no effect").await;
    cluster.await_all_brokers().await;
    write(&cluster, next, -1, &["h"]).await;
}

/// Brokers and clients live through it: the brokers have to begin anew, the clients do not.
#[tokio::test(flavor = "multi_thread")]
async fn running_brokers_that_meet_a_rebuilding_controller_say_that_they_must_begin_anew() {
    let spec = Spec::default().topic("orders", 3, &[("segment.bytes", "65536")]);
    let mut cluster = Cluster::start(EPOKA, spec).await;
    let load = Load::start(&cluster.bootstrap(), LoadSpec::new("orders", 3));
    load.progress(500, PATIENCE).await;
    cluster.kill(CONTROLLER);
    load.progress(500, PATIENCE).await;
    lose_directory(&cluster, CONTROLLER);
    cluster.set_property(CONTROLLER, RESTORE, "3");
    cluster.start_node(CONTROLLER);
    for broker in cluster.brokers() {
        let status = cluster.ended(broker).await;
        assert_eq!(status.code(), Some(1), "{broker}");
        let output = cluster.output(broker);
        assert!(
            output.contains("start the broker again"),
            "{broker} said: {output}"
        );
        cluster.start_node(broker);
    }
    cluster.await_all_brokers().await;
    load.progress(500, PATIENCE).await;
    load.audit().await.assert_clean();
    cluster.await_whole().await;
}

/// Nobody told the controller to rebuild anything: the brokers say so, and end whole.
#[tokio::test(flavor = "multi_thread")]
async fn running_brokers_that_meet_a_controller_without_memory_say_what_to_do() {
    let spec = Spec::default().topic("orders", 1, &[]);
    let mut cluster = Cluster::start(EPOKA, spec).await;
    let leader = cluster.leader_of("orders", 0).await;
    write(&cluster, leader, -1, &["a", "b", "c"]).await;
    cluster.kill(CONTROLLER);
    lose_directory(&cluster, CONTROLLER);
    cluster.start_node(CONTROLLER);
    for broker in cluster.brokers() {
        let status = cluster.ended(broker).await;
        assert_eq!(status.code(), Some(1), "{broker}");
        let output = cluster.output(broker);
        assert!(
            output.contains("EPOKA_RESTORE_BROKERS"),
            "{broker} said: {output}"
        );
        let clean = cluster.data_dir(broker).join(".kafka_cleanshutdown");
        assert!(clean.exists(), "{broker} closed its logs");
    }
    cluster.kill(CONTROLLER);
    cluster.set_property(CONTROLLER, RESTORE, "3");
    cluster.start_all();
    cluster.await_all_brokers().await;
    cluster.await_whole().await;
    assert_eq!(values_of(&cluster), ["a", "b", "c"]);
}
