//! Power switches and screwdrivers: everything killed at once, and files damaged by hand while their broker is down.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use epoka_proto::v1::Event;
use epoka_proto::v1::event::Kind;
use epoka_tests::harness::cluster::PATIENCE;
use epoka_tests::harness::{Cluster, Load, LoadSpec, Node, Spec, files, kafka, raw};

const EPOKA: &str = env!("CARGO_BIN_EXE_epoka-under-test");
/// Small enough for several closed segments.
const SEGMENT_BYTES: usize = 16 << 10;

/// A cluster whose `orders-0` has several closed segments and `records` records, and its leader.
async fn filled() -> (Cluster, Node, usize) {
    let segment = SEGMENT_BYTES.to_string();
    let spec = Spec::default().topic(
        "orders",
        1,
        &[
            ("segment.bytes", &segment),
            ("index.interval.bytes", "1024"),
        ],
    );
    let mut cluster = Cluster::start(EPOKA, spec).await;
    let leader = cluster.leader_of("orders", 0).await;
    let value = "x".repeat(100);
    let mut records = 0;
    while records * value.len() < 5 * SEGMENT_BYTES {
        let answer = cluster
            .produce(
                leader,
                ("orders", 0),
                -1,
                raw::batch(None, &[value.as_str(); 10]),
            )
            .await;
        assert_eq!(
            (answer.error, answer.base_offset),
            (0, records as i64),
            "{answer:?}"
        );
        records += 10;
    }
    cluster.await_whole().await;
    (cluster, leader, records)
}

fn segments(cluster: &Cluster, node: Node) -> Vec<PathBuf> {
    files::with_extension(&cluster.partition_dir(node, "orders", 0), "log")
}

fn follower(cluster: &Cluster, leader: Node) -> Node {
    cluster
        .brokers()
        .into_iter()
        .find(|b| *b != leader)
        .expect("two brokers follow")
}

/// The records are all there, and the same on every broker, byte for byte.
async fn assert_all_there(cluster: &mut Cluster, records: usize) {
    cluster.await_all_brokers().await;
    cluster.await_whole().await;
    let read = kafka::read_all(&cluster.bootstrap(), "orders", 1, PATIENCE);
    assert_eq!(read.len(), records);
    let dirs = cluster.brokers().into_iter();
    let dirs: Vec<_> = dirs
        .map(|b| cluster.partition_dir(b, "orders", 0))
        .collect();
    files::assert_identical_logs(&dirs);
}

/// What a node said in an event of one kind, once it has.
async fn told(
    cluster: &Cluster,
    node: Node,
    what: &str,
    say: impl Fn(&Kind) -> Option<String>,
) -> String {
    let of_node = |event: &Event| {
        event
            .kind
            .as_ref()
            .filter(|_| event.node == node.to_string())
            .and_then(&say)
    };
    cluster
        .timeline()
        .find(&format!("{node} to tell of {what}"), PATIENCE, of_node)
        .await
}

fn repaired(kind: &Kind) -> Option<String> {
    match kind {
        Kind::Repaired(repaired) => Some(repaired.what.clone()),
        _ => None,
    }
}

fn offline(kind: &Kind) -> Option<String> {
    match kind {
        Kind::ReplicaOffline(offline) => Some(offline.reason.clone()),
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_killed_at_once_loses_nothing_acknowledged() {
    let spec = Spec::default().topic("orders", 3, &[("segment.bytes", "65536")]);
    let mut cluster = Cluster::start(EPOKA, spec).await;
    let load = Load::start(&cluster.bootstrap(), LoadSpec::new("orders", 3));
    for _ in 0..3 {
        load.progress(500, PATIENCE).await;
        cluster.kill_all();
        cluster.start_all();
    }
    cluster.await_all_brokers().await;
    load.progress(500, PATIENCE).await;
    load.audit().await.assert_clean();
    cluster.await_whole().await;
}

/// D-22, D-23: half a batch, zeros, and noise after the last batch of each broker's active segment.
#[tokio::test(flavor = "multi_thread")]
async fn a_torn_tail_is_cut_on_every_broker_and_told() {
    let (mut cluster, _, records) = filled().await;
    cluster.kill_all();
    let whole = files::log_bytes(&cluster.partition_dir(Node::Broker(1), "orders", 0));
    let half = &whole[..70];
    let tails = [
        half.to_vec(),
        vec![0; 4096],
        (0..=255).cycle().take(3000).collect(),
    ];
    for (broker, tail) in cluster.brokers().into_iter().zip(&tails) {
        files::append(
            segments(&cluster, broker)
                .last()
                .expect("an active segment"),
            tail,
        );
    }
    cluster.start_all();
    // Zeros are what a file that was grown in advance ends with: they go without a word.
    for broker in [Node::Broker(1), Node::Broker(3)] {
        let what = told(&cluster, broker, "its repair", repaired).await;
        assert!(what.contains("cut"), "{what}");
    }
    assert_all_there(&mut cluster, records).await;
    assert_eq!(
        files::log_bytes(&cluster.partition_dir(Node::Broker(1), "orders", 0)),
        whole
    );
}

/// The damaged replica goes offline alone and says what is wrong where; its files are kept; it is whole again from the leader.
async fn assert_refetched(cluster: &mut Cluster, damaged: Node, segment: &Path, records: usize) {
    let reason = told(cluster, damaged, "the damage", offline).await;
    let name = segment.file_name().expect("a name").to_string_lossy();
    assert!(
        reason.contains(&*name) && reason.contains("damaged"),
        "{reason}"
    );
    assert!(
        cluster.output(damaged).contains(&*name),
        "it is in the log too"
    );
    assert_all_there(cluster, records).await;
    let kept = files::below(&cluster.data_dir(damaged).join("quarantine"));
    assert!(
        kept.iter()
            .any(|file| file.file_name() == segment.file_name()),
        "{kept:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_byte_in_a_closed_segment_of_a_killed_follower_has_it_fetch_the_partition_anew() {
    let (mut cluster, leader, records) = filled().await;
    let damaged = follower(&cluster, leader);
    cluster.kill(damaged);
    let segment = segments(&cluster, damaged)[1].clone();
    files::flip_byte(&segment, 5000);
    cluster.start_node(damaged);
    assert_refetched(&mut cluster, damaged, &segment, records).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_byte_in_a_closed_segment_of_the_killed_leader_has_it_fetch_the_partition_anew() {
    let (mut cluster, leader, records) = filled().await;
    cluster.kill_all();
    let segment = segments(&cluster, leader)[2].clone();
    files::flip_byte(&segment, 5000);
    cluster.start_all();
    assert_refetched(&mut cluster, leader, &segment, records).await;
}

/// E-6: the history is made anew from the batches.
#[tokio::test(flavor = "multi_thread")]
async fn a_missing_or_garbled_leader_epoch_file_is_rebuilt() {
    let (mut cluster, leader, records) = filled().await;
    // Two epochs, so that there is something to rebuild.
    cluster.kill(leader);
    let next = cluster.leader_other_than(leader, "orders", 0).await;
    let answer = cluster
        .produce(next, ("orders", 0), -1, raw::batch(None, &["y"; 10]))
        .await;
    assert_eq!(answer.error, 0, "{answer:?}");
    cluster.start_node(leader);
    cluster.await_whole().await;
    cluster.kill_all();
    let file = |cluster: &Cluster, broker| {
        cluster
            .partition_dir(broker, "orders", 0)
            .join("leader-epoch-checkpoint")
    };
    fs::remove_file(file(&cluster, Node::Broker(1))).expect("it is there");
    fs::write(file(&cluster, Node::Broker(2)), "0\n1\nnonsense\n").expect("writable");
    cluster.start_all();
    assert_all_there(&mut cluster, records + 10).await;
    let leader = cluster.leader_of("orders", 0).await;
    let expected = fs::read_to_string(file(&cluster, leader)).expect("it is there again");
    for broker in cluster.brokers() {
        // A follower that has no batch of the newest epochs yet may not know of them.
        let rebuilt = fs::read_to_string(file(&cluster, broker)).expect("it is there again");
        let lines: Vec<_> = rebuilt.lines().skip(2).collect();
        assert!(lines.len() >= 2, "both epochs: {rebuilt}");
        assert!(
            lines
                .iter()
                .all(|line| expected.lines().any(|e| e == *line)),
            "{broker}: {rebuilt} in {expected}"
        );
    }
}

/// D-38, H-68: what a crash leaves of index files is worth nothing.
#[tokio::test(flavor = "multi_thread")]
async fn padded_garbled_and_missing_indexes_mislead_nobody() {
    for clean in [false, true] {
        let (mut cluster, _, records) = filled().await;
        if clean {
            for broker in cluster.brokers() {
                assert!(cluster.stop(broker).await.success());
            }
        }
        cluster.kill_all();
        for broker in cluster.brokers() {
            let dir = cluster.partition_dir(broker, "orders", 0);
            let damage = broker.id();
            for (n, index) in ["index", "timeindex"]
                .iter()
                .flat_map(|e| files::with_extension(&dir, e))
                .enumerate()
            {
                match (damage + i32::try_from(n).expect("few files")) % 3 {
                    0 => files::append(&index, &[0; 12 * 8 * 10]),
                    1 => fs::write(&index, [0x7f; 12 * 8]).expect("writable"),
                    _ => fs::remove_file(&index).expect("it is there"),
                }
            }
        }
        cluster.start_all();
        assert_all_there(&mut cluster, records).await;
        read_from_every_hundredth(&cluster, records);
    }
}

/// Lookups by offset go through the indexes.
fn read_from_every_hundredth(cluster: &Cluster, records: usize) {
    use rdkafka::consumer::Consumer as _;
    let consumer = kafka::consumer(&cluster.bootstrap());
    for offset in (0..records as i64).step_by(100) {
        let mut list = rdkafka::TopicPartitionList::new();
        list.add_partition_offset("orders", 0, rdkafka::Offset::Offset(offset))
            .expect("a valid offset");
        consumer.assign(&list).expect("assigned");
        let deadline = std::time::Instant::now() + PATIENCE;
        let found = loop {
            assert!(
                std::time::Instant::now() < deadline,
                "nothing at offset {offset}"
            );
            if let Some(message) = kafka::next(&consumer, Duration::from_millis(100)) {
                break rdkafka::Message::offset(&message);
            }
        };
        assert_eq!(found, offset);
    }
}

/// D-2: a directory whose identity is lost is kept, and the partition comes from the leader.
#[tokio::test(flavor = "multi_thread")]
async fn a_follower_whose_partition_was_deleted_by_hand_fetches_it_anew() {
    let (mut cluster, leader, records) = filled().await;
    let emptied = follower(&cluster, leader);
    cluster.kill(emptied);
    fs::remove_dir_all(cluster.partition_dir(emptied, "orders", 0)).expect("it is there");
    cluster.start_node(emptied);
    assert_all_there(&mut cluster, records).await;
}

/// Nobody else holds what the last member of the ISR took: without its files the partition waits for them.
#[tokio::test(flavor = "multi_thread")]
async fn the_last_of_the_isr_is_not_elected_without_its_files() {
    let spec = Spec::default().topic("orders", 1, &[("min.insync.replicas", "1")]);
    let mut cluster = Cluster::start(EPOKA, spec).await;
    let leader = cluster.leader_of("orders", 0).await;
    let others: Vec<Node> = cluster
        .brokers()
        .into_iter()
        .filter(|b| *b != leader)
        .collect();
    let batch = || raw::batch(None, &["value"; 10]);
    let taken = cluster.produce(leader, ("orders", 0), -1, batch()).await;
    assert_eq!(taken.error, 0, "{taken:?}");
    cluster.await_whole().await;
    for other in &others {
        cluster.kill(*other);
    }
    cluster
        .until_metadata("an ISR of one", |m| {
            (m.topics["orders"].partitions[&0].isr.len() == 1).then_some(())
        })
        .await;
    let taken = cluster.produce(leader, ("orders", 0), -1, batch()).await;
    assert_eq!(taken.error, 0, "{taken:?}");
    cluster.kill_all();
    let (home, away) = (
        cluster.partition_dir(leader, "orders", 0),
        cluster.scratch().join("orders-0"),
    );
    fs::rename(&home, &away).expect("moved");
    cluster.start_all();
    let reason = told(&cluster, leader, "its missing files", offline).await;
    assert!(reason.contains("is gone"), "{reason}");
    cluster.await_all_brokers().await;
    cluster
        .until_metadata("no leader", |m| {
            m.topics["orders"].partitions[&0]
                .leader
                .is_none()
                .then_some(())
        })
        .await;
    for other in others {
        let state = cluster.replica_state(other, "orders", 0).await;
        assert_eq!(state.map(|s| s.log_end.0), Some(10), "{other} cut nothing");
    }

    cluster.kill(leader);
    fs::rename(&away, &home).expect("moved back");
    cluster.start_node(leader);
    assert_all_there(&mut cluster, 20).await;
}
