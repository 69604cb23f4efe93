//! A divergence on purpose: a leader that is cut off goes on appending, another is elected, and the two histories meet again.

use std::path::Path;

use epoka_proto::batch::{batches, crc_is_valid};
use epoka_proto::error::ErrorCode;
use epoka_proto::v1::Truncated;
use epoka_proto::v1::event::Kind;
use epoka_tests::harness::cluster::PATIENCE;
use epoka_tests::harness::{Cluster, Fault, Load, LoadSpec, Node, Spec, files, kafka, raw};
use rdkafka::message::Message as _;

const EPOKA: &str = env!("CARGO_BIN_EXE_epoka-under-test");
const ORDERS: (&str, i32) = ("orders", 0);

/// A cluster with ten committed records, and its leader.
async fn started() -> (Cluster, Node) {
    let spec = Spec::default()
        .topic("orders", 1, &[])
        .session_timeout_ms(1500);
    let mut cluster = Cluster::start(EPOKA, spec).await;
    let leader = cluster.leader_of("orders", 0).await;
    for value in ["a", "b"] {
        let answer = cluster
            .produce(leader, ORDERS, -1, raw::batch(None, &[value; 5]))
            .await;
        assert_eq!(answer.error, 0, "{answer:?}");
    }
    (cluster, leader)
}

async fn truncation(cluster: &Cluster, node: Node) -> Truncated {
    let of_node = |event: &epoka_proto::v1::Event| match &event.kind {
        Some(Kind::Truncated(cut)) if event.node == node.to_string() => Some(cut.clone()),
        _ => None,
    };
    cluster
        .timeline()
        .find(&format!("{node} to truncate"), PATIENCE, of_node)
        .await
}

async fn assert_identical_logs(cluster: &mut Cluster) -> Vec<u8> {
    cluster.await_whole().await;
    let dirs = cluster.brokers().into_iter();
    let dirs: Vec<_> = dirs
        .map(|b| cluster.partition_dir(b, "orders", 0))
        .collect();
    files::assert_identical_logs(&dirs);
    files::log_bytes(&dirs[0])
}

/// The values in whole batches, after a check of each.
fn values(bytes: &[u8]) -> Vec<String> {
    let records = batches(bytes).flat_map(|batch| {
        let (_, batch) = batch.expect("whole batches");
        assert!(crc_is_valid(batch));
        epoka_proto::batch::records(batch)
            .expect("records")
            .map(|r| r.expect("a record"))
    });
    records
        .map(|r| String::from_utf8_lossy(&r.value.expect("a value")).into_owned())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replaced_leaders_own_suffix_is_cut_at_a_batch_boundary_told_and_kept() {
    let (mut cluster, old) = started().await;
    cluster.isolate(old, Fault::Cut);
    // Three batches that only the old leader holds.
    for values in [
        &["lost-1", "lost-2", "lost-3"][..],
        &["lost-4"],
        &["lost-5", "lost-6"],
    ] {
        let answer = cluster
            .produce(old, ORDERS, 1, raw::batch(None, values))
            .await;
        assert_eq!(
            answer.error, 0,
            "the old leader does not know yet: {answer:?}"
        );
    }
    let suffix = files::log_bytes(&cluster.partition_dir(old, "orders", 0));

    let new = cluster.leader_other_than(old, "orders", 0).await;
    let answer = cluster
        .produce(new, ORDERS, -1, raw::batch(None, &["kept-1", "kept-2"]))
        .await;
    assert_eq!((answer.error, answer.base_offset), (0, 10), "{answer:?}");

    cluster.heal();
    let cut = truncation(&cluster, old).await;
    assert_eq!((cut.topic.as_str(), cut.partition), ORDERS);
    assert_eq!(
        (cut.from_offset, cut.to_offset, cut.batches),
        (16, 10, 3),
        "{cut:?}"
    );
    assert_eq!(cut.epochs, [0], "{cut:?}");

    let log = assert_identical_logs(&mut cluster).await;
    let expected: Vec<_> = ["a"; 5]
        .into_iter()
        .chain(["b"; 5])
        .chain(["kept-1", "kept-2"])
        .collect();
    assert_eq!(values(&log), expected);
    let read = kafka::read_all(&cluster.bootstrap(), "orders", 1, PATIENCE);
    let read: Vec<_> = read
        .iter()
        .map(|m| String::from_utf8_lossy(m.payload().expect("a value")))
        .collect();
    assert_eq!(read, expected);

    // What was cut is kept, byte for byte.
    let archived = Path::new(&cut.archived);
    assert!(
        archived.starts_with(cluster.data_dir(old).join("truncated")),
        "{cut:?}"
    );
    let kept = files::log_bytes(archived);
    assert_eq!(
        values(&kept),
        ["lost-1", "lost-2", "lost-3", "lost-4", "lost-5", "lost-6"]
    );
    assert!(suffix.ends_with(&kept));
    assert!(archived.join("manifest.json").exists());
}

/// H-37, I-13: whatever an isolated leader believes, it acknowledges nothing as committed.
#[tokio::test(flavor = "multi_thread")]
async fn an_isolated_leader_acknowledges_nothing_with_acks_all() {
    for fault in [Fault::Cut, Fault::Silent] {
        let (mut cluster, old) = started().await;
        cluster.isolate(old, fault);
        let answer = cluster
            .try_produce(old, ORDERS, -1, raw::batch(None, &["never"]))
            .await
            .expect("an answer");
        let refusals = [
            ErrorCode::RequestTimedOut,
            ErrorCode::NotLeaderOrFollower,
            ErrorCode::NotEnoughReplicas,
        ];
        assert!(
            refusals.iter().any(|r| i32::from(r.code()) == answer.error),
            "{fault:?}: {answer:?}"
        );
        let new = cluster.leader_other_than(old, "orders", 0).await;
        let answer = cluster
            .produce(new, ORDERS, -1, raw::batch(None, &["kept"]))
            .await;
        assert_eq!(answer.error, 0, "{fault:?}: {answer:?}");
        cluster.heal();
        let log = values(&assert_identical_logs(&mut cluster).await);
        assert!(
            !log.contains(&"never".to_owned()) && log.contains(&"kept".to_owned()),
            "{fault:?}: {log:?}"
        );
    }
}

/// With acks=1 and no sequences a record may be lost with its leader, and a client's own retry may repeat or delay it. What
/// a reader was given stays true all the same.
#[tokio::test(flavor = "multi_thread")]
async fn readers_see_one_history_even_of_records_that_only_their_leader_acknowledged() {
    let (mut cluster, _) = started().await;
    cluster
        .create_topic(
            &epoka_client::NewTopic::new("loose", 1, 3).config("min.insync.replicas", "1"),
        )
        .await;
    cluster.await_whole().await;
    let load = Load::start(
        &cluster.bootstrap(),
        LoadSpec::new("loose", 1).leader_only(),
    );
    load.progress(200, PATIENCE).await;
    for fault in [Fault::Cut, Fault::Silent] {
        let leader = cluster.leader_of("loose", 0).await;
        cluster.isolate(leader, fault);
        cluster.leader_other_than(leader, "loose", 0).await;
        load.progress(50, PATIENCE).await;
        cluster.heal();
        cluster
            .until_metadata("full ISRs", |m| {
                m.partitions().all(|(_, p)| p.is_whole()).then_some(())
            })
            .await;
        load.progress(200, PATIENCE).await;
    }
    let audit = load.audit().await;
    // An offset that is acknowledged to two writers, first by a leader that then loses it, is inconsistent to them alone.
    let allowed = [
        "lost-write",
        "inconsistent-offsets",
        "unseen",
        "duplicate",
        "nonmonotonic-send",
    ];
    let others: Vec<_> = audit
        .anomalies
        .iter()
        .filter(|a| !allowed.contains(&a.name()))
        .collect();
    assert!(others.is_empty(), "{audit}: {others:#?}");
    cluster.await_whole().await;
    let dirs = cluster.brokers().into_iter();
    let dirs: Vec<_> = dirs.map(|b| cluster.partition_dir(b, "loose", 0)).collect();
    files::assert_identical_logs(&dirs);
}
