//! A cluster of real processes under an audited load, while leaders die, stop, freeze, and controllers fail over.

use std::slice;
use std::time::{Duration, Instant};

use epoka_client::{ProducerConfig, ProducerRecord, Start};
use epoka_proto::error::ErrorCode;
use epoka_proto::ids::{Offset, TopicPartition};
use epoka_tests::harness::cluster::PATIENCE;
use epoka_tests::harness::{Cluster, Load, LoadSpec, Node, Spec, raw};

const EPOKA: &str = env!("CARGO_BIN_EXE_epoka-under-test");

fn orders(partitions: i32) -> Spec {
    Spec::default().topic("orders", partitions, &[])
}

async fn leader_epoch(cluster: &mut Cluster) -> i32 {
    let metadata = cluster.metadata().await.expect("brokers run");
    metadata.topics["orders"].partitions[&0].leader_epoch.0
}

/// Every partition has a leader and its full ISR again; writers may be at work.
async fn await_full_isr(cluster: &mut Cluster) {
    cluster
        .until_metadata("full ISRs", |m| {
            m.partitions().all(|(_, p)| p.is_whole()).then_some(())
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_killed_leaders_lose_repeat_and_reorder_nothing() {
    let mut cluster = Cluster::start(EPOKA, orders(3)).await;
    let before = leader_epoch(&mut cluster).await;
    let load = Load::start(&cluster.bootstrap(), LoadSpec::new("orders", 3));
    load.progress(500, PATIENCE).await;
    for _ in 0..3 {
        let leader = cluster.leader_of("orders", 0).await;
        cluster.kill(leader);
        cluster.leader_other_than(leader, "orders", 0).await;
        load.progress(500, PATIENCE).await;
        cluster.start_node(leader);
        await_full_isr(&mut cluster).await;
    }
    load.progress(500, PATIENCE).await;
    load.audit().await.assert_clean();
    assert!(leader_epoch(&mut cluster).await >= before + 3);
    cluster.await_whole().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_asked_to_stop_hands_over_quickly_and_loses_nothing() {
    let mut cluster = Cluster::start(EPOKA, orders(1)).await;
    let load = Load::start(&cluster.bootstrap(), LoadSpec::new("orders", 1));
    load.progress(300, PATIENCE).await;
    let leader = cluster.leader_of("orders", 0).await;
    let asked = Instant::now();
    let status = cluster.stop(leader).await;
    assert!(status.success(), "{status}: {}", cluster.output(leader));
    assert!(
        asked.elapsed() < Duration::from_secs(5),
        "took {:?}",
        asked.elapsed()
    );
    assert!(
        cluster
            .data_dir(leader)
            .join(".kafka_cleanshutdown")
            .exists()
    );
    cluster.leader_other_than(leader, "orders", 0).await;
    load.progress(300, PATIENCE).await;
    cluster.start_node(leader);
    await_full_isr(&mut cluster).await;
    load.audit().await.assert_clean();
    cluster.await_whole().await;
}

/// H-37: the frozen leader wakes up believing that it leads, and must not acknowledge anything as committed.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_frozen_beyond_its_session_is_replaced_and_follows_when_it_wakes() {
    let spec = orders(1).session_timeout_ms(1000);
    let mut cluster = Cluster::start(EPOKA, spec).await;
    let load = Load::start(&cluster.bootstrap(), LoadSpec::new("orders", 1));
    load.progress(300, PATIENCE).await;
    let leader = cluster.leader_of("orders", 0).await;
    cluster.pause(leader);
    cluster.leader_other_than(leader, "orders", 0).await;
    load.progress(300, PATIENCE).await;
    cluster.resume(leader);
    await_full_isr(&mut cluster).await;
    load.audit().await.assert_clean();
    cluster.await_whole().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quorum_of_three_controllers_survives_its_leader() {
    // A broker that dies together with the active controller is missed by the next one after a session timeout.
    let spec = orders(2).controllers(3).session_timeout_ms(1500);
    let mut cluster = Cluster::start(EPOKA, spec).await;
    let load = Load::start(&cluster.bootstrap(), LoadSpec::new("orders", 2));
    load.progress(200, PATIENCE).await;
    for _ in 0..2 {
        let active = cluster.active_controller().await;
        cluster.kill(active);
        // The quorum that is left replaces a dead leader of a partition too.
        let leader = cluster.leader_of("orders", 0).await;
        cluster.kill(leader);
        cluster.leader_other_than(leader, "orders", 0).await;
        load.progress(200, PATIENCE).await;
        cluster.start_node(leader);
        cluster.start_node(active);
        await_full_isr(&mut cluster).await;
    }
    load.audit().await.assert_clean();
    cluster.await_whole().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_only_controller_may_restart_under_load() {
    let mut cluster = Cluster::start(EPOKA, orders(1)).await;
    let load = Load::start(&cluster.bootstrap(), LoadSpec::new("orders", 1));
    load.progress(200, PATIENCE).await;
    cluster.kill(Node::Controller(1));
    load.progress(200, PATIENCE).await; // leaders go on by themselves
    cluster.start_node(Node::Controller(1));
    let leader = cluster.leader_of("orders", 0).await;
    cluster.active_controller().await;
    cluster.await_all_brokers().await;
    cluster.kill(leader);
    cluster.leader_other_than(leader, "orders", 0).await;
    load.progress(200, PATIENCE).await;
    cluster.start_node(leader);
    await_full_isr(&mut cluster).await;
    load.audit().await.assert_clean();
    cluster.await_whole().await;
}

/// P-1: a batch sent again after its acknowledgement was lost is recognised by another leader and by a restarted one.
#[tokio::test(flavor = "multi_thread")]
async fn a_producers_sequence_survives_failover_and_restart() {
    let mut cluster = Cluster::start(EPOKA, orders(1)).await;
    let leader = cluster.leader_of("orders", 0).await;
    let id = cluster.producer_id(leader).await;
    let batch = |sequence| {
        raw::batch(
            Some((id, sequence)),
            &["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"],
        )
    };
    let first = cluster.produce(leader, ("orders", 0), -1, batch(0)).await;
    assert_eq!((first.error, first.base_offset), (0, 0), "{first:?}");
    let second = cluster.produce(leader, ("orders", 0), -1, batch(10)).await;
    assert_eq!((second.error, second.base_offset), (0, 10), "{second:?}");

    cluster.kill(leader);
    let successor = cluster.leader_other_than(leader, "orders", 0).await;
    let again = cluster
        .produce(successor, ("orders", 0), -1, batch(10))
        .await;
    assert_eq!((again.error, again.base_offset), (0, 10), "{again:?}");

    cluster.kill_all();
    cluster.start_all();
    cluster.await_all_brokers().await;
    await_full_isr(&mut cluster).await;
    let leader = cluster.leader_of("orders", 0).await;
    let again = cluster.produce(leader, ("orders", 0), -1, batch(10)).await;
    assert_eq!((again.error, again.base_offset), (0, 10), "{again:?}");
    let gap = cluster.produce(leader, ("orders", 0), -1, batch(30)).await;
    assert_eq!(
        gap.error,
        i32::from(ErrorCode::OutOfOrderSequenceNumber.code()),
        "{gap:?}"
    );
    let next = cluster.produce(leader, ("orders", 0), -1, batch(20)).await;
    assert_eq!((next.error, next.base_offset), (0, 20), "{next:?}");
    cluster.await_whole().await;
}

/// When several nodes restart at once, as containers do, an address can pass to another node while a connection to it is being
/// made. Neither clients nor followers may stay with the wrong broker.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_reached_another_broker_is_given_up_and_made_anew() {
    let mut cluster = Cluster::start(EPOKA, orders(1)).await;
    let leader = cluster.leader_of("orders", 0).await;
    cluster.kill(leader);
    let other = cluster.leader_other_than(leader, "orders", 0).await;
    cluster.mislead(leader, other);
    cluster.start_node(leader);
    await_full_isr(&mut cluster).await;
    let partition = TopicPartition::new("orders", 0);
    let admin = cluster.client().admin();
    let elected = admin.elect_preferred_leaders(slice::from_ref(&partition));
    elected.await.expect("it is in the ISR");

    let producer = cluster.client().producer(ProducerConfig::default());
    let written = producer.send(ProducerRecord::new("orders", "a").partition(0));
    let written = written.await.expect("room");
    // Two followers, which fetch anew as often as they are refused, and the client.
    cluster.await_astray(leader, 6).await;
    cluster.heal();
    let written = tokio::time::timeout(PATIENCE / 3, written).await;
    written.expect("soon").expect("acknowledged");
    let found = cluster.client().find_offset(&partition, Start::Latest);
    assert_eq!(found.await.expect("an end").offset, Offset(1));
    cluster.await_whole().await;
    assert_eq!(cluster.leader_of("orders", 0).await, leader);
}
