//! Three controllers in one process: one is active; when it goes, another takes over and nothing committed is missing.

mod common;

use std::time::Instant;

use common::*;
use epoka_controller::{ACTIVE_HINT, Controller};
use epoka_proto::ids::BrokerId;
use epoka_proto::v1::*;
use tonic::Code;

/// Waits until one of them is active, and says which.
async fn active(controllers: &[Controller]) -> usize {
    let waits = controllers.iter().map(|c| Box::pin(c.wait_active()));
    let (_, index, _) = patiently("an active controller", futures::future::select_all(waits)).await;
    index
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_controller_takes_over_and_committed_topics_are_still_there() {
    let dir = tempfile::tempdir().expect("tempdir");
    let ports = free_ports(3);
    let address = |i: usize| localhost(ports[i]);
    let voters: Vec<_> = (0..3)
        .map(|i| (i as i32 + 1, address(i).to_string()))
        .collect();
    let configured = |i: usize| epoka_controller::ControllerConfig {
        voters: voters.clone(),
        ..config(i as i32 + 1, ports[i], dir.path())
    };
    let before = Instant::now();
    let mut controllers = Vec::new();
    for i in 0..3 {
        controllers.push(start(configured(i)).await);
    }
    let first = active(&controllers).await;
    println!("start of three to active: {:?}", before.elapsed());

    let mut broker = Broker::join(controllers[first].local_addr(), 1, 11).await;
    let created = broker.client.create_topics(new_topic("orders", 3, 1)).await;
    assert_eq!(created.expect("created").into_inner().topics[0].error, 0);
    broker
        .follow_until(|b| b.leader_of("orders", 2).is_some())
        .await;
    let known = broker.image.clone();

    // A passive controller names the active one.
    let passive = (first + 1) % 3;
    let mut elsewhere = client(controllers[passive].local_addr()).await;
    let refused = elsewhere
        .create_topics(new_topic("x", 1, 1))
        .await
        .expect_err("not active");
    assert_eq!(refused.code(), Code::FailedPrecondition);
    let hint = refused.metadata().get(ACTIVE_HINT).expect("a hint");
    assert_eq!(hint.to_str().ok(), Some(&*address(first).to_string()));

    let killed = Instant::now();
    let gone = controllers.remove(first);
    let gone_index = first;
    gone.shutdown().await;
    let status = broker.stream_end().await;
    assert!(
        [Code::FailedPrecondition, Code::Unavailable, Code::Unknown].contains(&status.code()),
        "{status}"
    );
    let second = active(&controllers).await;
    println!("active stopped to next active: {:?}", killed.elapsed());
    let epoch = broker.epoch;
    let mut broker =
        Broker::attach(client(controllers[second].local_addr()).await, 1, 11, epoch).await;
    assert_eq!(broker.image.topics, known.topics);
    assert!(
        !broker.image.brokers[&BrokerId(1)].fenced,
        "no session was lost"
    );
    let created = broker.client.create_topics(new_topic("more", 1, 1)).await;
    assert_eq!(created.expect("created").into_inner().topics[0].error, 0);

    // The one that was away catches up.
    let back = start(configured(gone_index)).await;
    let newest = controllers[second].metadata().applied();
    patiently("the returned controller", async {
        while back.metadata().applied() < newest {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(
        back.metadata().cluster().image().topics,
        controllers[second].metadata().cluster().image().topics
    );
    let mut anyone = client(back.local_addr()).await;
    let quorum = anyone.describe_quorum(DescribeQuorumRequest {}).await;
    let quorum = quorum.expect("answered by all").into_inner();
    assert_eq!(quorum.voters.len(), 3);
    assert_eq!(
        quorum.active_address,
        controllers[second].local_addr().to_string()
    );

    // Without a quorum nobody is active (and the survivor says so).
    let survivor = controllers.remove(second);
    for controller in controllers.into_iter().chain([back]) {
        controller.shutdown().await;
    }
    patiently("the survivor to step down", async {
        while survivor.is_active() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    })
    .await;
    survivor.shutdown().await;
}
