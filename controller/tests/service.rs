//! One controller and brokers that talk to it over gRPC: registration, leases, metadata, administration, restart.

mod common;

use std::time::Instant;

use common::*;
use epoka_controller::ControllerConfig;
use epoka_proto::error::ErrorCode;
use epoka_proto::ids::BrokerId;
use epoka_proto::v1::broker_change::Kind as Change;
use epoka_proto::v1::event::Kind;
use epoka_proto::v1::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_whose_stream_breaks_is_fenced_at_once_and_its_leaderships_move() {
    let dir = tempfile::tempdir().expect("tempdir");
    let before = Instant::now();
    let controller = start(config(1, 0, dir.path())).await;
    patiently("the controller", controller.wait_active()).await;
    println!("start to active: {:?}", before.elapsed());
    let address = controller.local_addr();

    let first = Broker::join(address, 1, 11).await;
    let mut second = Broker::join(address, 2, 12).await;
    let mut third = Broker::join(address, 3, 13).await;
    let created = second.client.create_topics(new_topic("orders", 3, 3)).await;
    let created = created.expect("created").into_inner();
    assert_eq!(created.topics[0].error, 0, "{}", created.topics[0].message);
    assert_eq!(
        (
            created.topics[0].partitions,
            created.topics[0].replication_factor
        ),
        (3, 3)
    );
    third
        .follow_until(|b| b.leader_of("orders", 2).is_some())
        .await;
    let orders = third.image.topic("orders").expect("created").clone();
    for (partition, assignment) in &orders.partitions {
        assert_eq!((assignment.isr.len(), assignment.min_isr), (3, 2));
        assert_eq!(assignment.leader, Some(BrokerId(partition + 1)));
    }

    let killed = Instant::now();
    drop(first);
    third
        .follow_until(|b| b.leader_of("orders", 0) == Some(BrokerId(2)))
        .await;
    println!("stream broken to new leader known: {:?}", killed.elapsed());
    let moved = third.image.topic("orders").expect("still there").partitions[&0].clone();
    assert_eq!((moved.leader_epoch.0, moved.isr.len()), (1, 2));
    assert!(third.image.brokers[&BrokerId(1)].fenced);

    let told: Vec<_> = controller
        .events()
        .after(0)
        .into_iter()
        .filter_map(|e| match e.kind {
            Some(Kind::Broker(change)) => Some((change.broker_id, change.kind())),
            _ => None,
        })
        .collect();
    assert_eq!(told.first(), Some(&(1, Change::ControllerActive)));
    let end = &told[told.len() - 2..];
    assert_eq!(end, [(1, Change::StreamClosed), (1, Change::Fenced)]);
    let times: Vec<_> = controller
        .events()
        .after(0)
        .iter()
        .map(|e| e.unix_micros)
        .collect();
    println!("events at: {times:?}");
    let elected = controller.events().after(0).into_iter().any(|e| {
        matches!(e.kind, Some(Kind::Elected(e)) if (e.old_leader, e.new_leader, e.new_epoch) == (Some(1), Some(2), 1))
    });
    assert!(elected, "the election is in the timeline");

    // C-10: a restarted process gets in at once, a second one beside a live one does not.
    let mut again = Broker::join(address, 1, 21).await;
    assert!(again.epoch > 0);
    let twin = again.client.register(register_request(1, 31, None)).await;
    let twin = twin.expect("answered").into_inner();
    assert_eq!(
        twin.error,
        i32::from(ErrorCode::DuplicateBrokerRegistration.code())
    );
    controller.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_cannot_advertise_where_another_one_is_reached() {
    let dir = tempfile::tempdir().expect("tempdir");
    let controller = start(config(1, 0, dir.path())).await;
    patiently("the controller", controller.wait_active()).await;
    let mut first = Broker::join(controller.local_addr(), 1, 11).await;
    let own = register_request(2, 12, None);
    let copied_listener = RegisterRequest {
        listeners: register_request(1, 11, None).listeners,
        ..own.clone()
    };
    let copied_grpc = RegisterRequest {
        grpc_address: register_request(1, 11, None).grpc_address,
        ..own.clone()
    };
    for (request, says) in [
        (
            copied_listener.clone(),
            "broker 2 advertises localhost:9001, where broker 1 is reached",
        ),
        (copied_grpc, "in epoka.grpc.advertised"),
    ] {
        let answer = first.client.register(request).await.expect("an answer");
        let answer = answer.into_inner();
        assert_eq!(
            ErrorCode::from_wire(answer.error as i16),
            Err(ErrorCode::DuplicateBrokerRegistration)
        );
        assert!(answer.message.contains(says), "{}", answer.message);
    }
    // Once the other one is gone its address is free.
    first.beat(true, false).await.expect("fenced");
    let answer = first.client.register(copied_listener).await;
    assert_eq!(answer.expect("an answer").into_inner().error, 0);
    controller.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_opens_another_stream_within_the_grace_stays_unfenced() {
    let dir = tempfile::tempdir().expect("tempdir");
    let mut config = config(1, 0, dir.path());
    config.stream_grace = std::time::Duration::from_secs(3600);
    let controller = start(config).await;
    patiently("the controller", controller.wait_active()).await;
    let address = controller.local_addr();
    let broker = Broker::join(address, 1, 11).await;
    let epoch = broker.epoch;
    drop(broker);
    let broker = Broker::attach(client(address).await, 1, 11, epoch).await;
    assert!(!broker.image.brokers[&BrokerId(1)].fenced);
    controller.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_draining_broker_may_stop_once_the_others_know_c_16() {
    let dir = tempfile::tempdir().expect("tempdir");
    let controller = start(config(1, 0, dir.path())).await;
    patiently("the controller", controller.wait_active()).await;
    let address = controller.local_addr();
    let mut one = Broker::join(address, 1, 11).await;
    let mut two = Broker::join(address, 2, 12).await;
    let created = one.client.create_topics(new_topic("orders", 2, 2)).await;
    assert_eq!(created.expect("created").into_inner().topics[0].error, 0);
    one.follow_until(|b| b.leader_of("orders", 1).is_some())
        .await;

    let answer = one.beat(false, true).await.expect("answer");
    assert!(!answer.should_shut_down, "it leads a partition");
    let answer = one.beat(false, true).await.expect("answer");
    assert!(
        !answer.should_shut_down,
        "the other broker does not know yet"
    );
    two.follow_until(|b| b.leader_of("orders", 0) == Some(BrokerId(2)))
        .await;
    two.beat(false, false).await.expect("answer");
    // Told without having asked again.
    let answer = one.answer().await.expect("answer");
    assert!(answer.should_shut_down);
    two.follow_until(|b| b.image.brokers[&BrokerId(1)].fenced)
        .await;
    controller.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_broker_is_fenced_when_its_session_ends_and_is_back_with_its_next_heartbeat() {
    let dir = tempfile::tempdir().expect("tempdir");
    let mut config = config(1, 0, dir.path());
    config.session_timeout = std::time::Duration::from_millis(500);
    let controller = start(config).await;
    patiently("the controller", controller.wait_active()).await;
    let mut silent = Broker::join(controller.local_addr(), 1, 11).await;
    silent
        .follow_until(|b| b.image.brokers[&BrokerId(1)].fenced)
        .await;
    assert!(!silent.beat(false, false).await.expect("answer").is_fenced);
    controller.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_controller_still_knows_everything() {
    let dir = tempfile::tempdir().expect("tempdir");
    let mut known = None;
    for round in 0..3 {
        let before = Instant::now();
        let controller = start(config(1, 0, dir.path())).await;
        patiently("the controller", controller.wait_active()).await;
        println!("start {round} to active: {:?}", before.elapsed());
        let image = controller.metadata().cluster().image().clone();
        if let Some(known) = known.replace(image.clone()) {
            assert_eq!(image, known);
        }
        let mut broker = Broker::join(controller.local_addr(), 1, 100 + round).await;
        let name = format!("topic-{round}");
        let created = broker.client.create_topics(new_topic(&name, 4, 1)).await;
        assert_eq!(created.expect("created").into_inner().topics[0].error, 0);
        let ids = broker
            .client
            .allocate_producer_ids(AllocateProducerIdsRequest {
                broker_id: 1,
                broker_epoch: broker.epoch,
            });
        let ids = ids.await.expect("a block").into_inner();
        assert_eq!((ids.first, ids.count), (1000 * round as i64, 1000));
        drop(broker);
        let mut changes = controller.metadata().cluster();
        while !changes.image().brokers[&BrokerId(1)].fenced {
            tokio::task::yield_now().await;
            changes = controller.metadata().cluster();
        }
        known = Some(controller.metadata().cluster().image().clone());
        controller.shutdown().await;
    }
}

/// A controller that lost its metadata and got other: what a running broker knows must not be mixed with that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_of_another_history_gets_neither_a_place_nor_metadata() {
    let dir = tempfile::tempdir().expect("tempdir");
    let controller = start(config(1, 0, dir.path())).await;
    patiently("the controller", controller.wait_active()).await;
    let known = Broker::join(controller.local_addr(), 1, 11).await;
    let mut client = client(controller.local_addr()).await;

    let mut request = register_request(2, 12, None);
    request.registered_epoch = Some(known.epoch);
    let answer = client.register(request).await.expect("an answer");
    let answer = answer.into_inner();
    let stale = i32::from(ErrorCode::StaleBrokerEpoch.code());
    assert_eq!(answer.error, stale, "{answer:?}");
    assert!(answer.message.contains("start the broker again"));
    // The same process, which lost an answer.
    let mut request = register_request(1, 11, None);
    request.registered_epoch = Some(known.epoch);
    let answer = client.register(request).await.expect("an answer");
    assert_eq!(answer.into_inner().broker_epoch, known.epoch);

    for (broker_id, epoch) in [(1, known.epoch + 1), (2, known.epoch)] {
        let request = MetadataRequest {
            after_offset: Some(0),
            broker_id,
            broker_epoch: Some(epoch),
        };
        let refused = client.metadata(request).await.expect_err("refused");
        assert!(refused.message().contains("STALE_BROKER_EPOCH"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_controller_told_to_rebuild_waits_for_brokers_with_data_of_one_cluster() {
    let dir = tempfile::tempdir().expect("tempdir");
    let controller = start(ControllerConfig {
        restore_brokers: 2,
        ..config(1, 0, dir.path())
    })
    .await;
    patiently("the controller", controller.wait_active()).await;
    let mut client = client(controller.local_addr()).await;
    let mut register = async |id: i32, cluster: &str| {
        let holding = Holding {
            topic: "orders".into(),
            topic_id: vec![7; 16].into(),
            log_end: i64::from(id),
            ..Holding::default()
        };
        let request = RegisterRequest {
            cluster_id: cluster.into(),
            holdings: vec![holding],
            ..register_request(id, id as u128, None)
        };
        let answer = client.register(request).await.expect("an answer");
        answer.into_inner()
    };
    let empty = register(3, "").await;
    assert!(empty.message.contains("no cluster yet"), "{empty:?}");
    let first = register(1, "abc").await;
    assert!(first.message.contains("1 of them"), "{first:?}");
    let other = register(2, "xyz").await;
    let inconsistent = i32::from(ErrorCode::InconsistentClusterId.code());
    assert_eq!(other.error, inconsistent, "{other:?}");
    let second = register(2, "abc").await;
    assert_eq!(second.error, 0, "{second:?}");
    assert_eq!(register(1, "abc").await.error, 0);
    let cluster = controller.metadata().cluster();
    let image = cluster.image();
    assert_eq!(image.cluster_id, "abc");
    let orders = &image.topic("orders").expect("rebuilt").partitions[&0];
    assert_eq!(orders.elr, [BrokerId(2)]);
    assert_eq!(image.config("orders", "min.insync.replicas"), Some("2"));
    let beginning = image.brokers[&BrokerId(2)].epoch.0;
    assert!(beginning > 1_000_000_000_000, "{beginning}");
    // And a new broker is welcome.
    assert_eq!(register(3, "").await.error, 0);
}
