//! What a test can do to the processes of its cluster, and what it can await afterwards.

use std::time::{Duration, Instant};

use epoka_testing::epoka_client::{ProducerConfig, ProducerRecord};
use epoka_testing::{
    Cluster, Error, NewTopic, Node, Result, TopicPartition, active_controller, broker, controller,
    follower, leader,
};

async fn write(cluster: &Cluster, topic: &str) -> Result<()> {
    let producer = cluster.client().producer(ProducerConfig::default());
    let record = ProducerRecord::new(topic, "a record").partition(0);
    producer.send(record).await?.await?;
    Ok(())
}

fn isr(cluster: &Cluster, topic: &str) -> Vec<i32> {
    let metadata = cluster.client().metadata();
    let partition = metadata.partition(&TopicPartition::new(topic, 0));
    let mut isr: Vec<_> = partition
        .expect("there")
        .isr
        .iter()
        .map(|id| id.0)
        .collect();
    isr.sort_unstable();
    isr
}

#[tokio::test]
async fn a_leader_and_a_follower_are_found_killed_and_started_again() -> Result<()> {
    let cluster = Cluster::builder().topic("orders", 1, 3).start().await?;
    write(&cluster, "orders").await?;
    for _ in 0..2 {
        let killed = cluster.kill(leader("orders", 0)).await?;
        write(&cluster, "orders").await?;
        assert_eq!(cluster.start(leader("orders", 0)).await?, killed);
        cluster.await_whole().await?;
    }
    let first = cluster.kill(leader("orders", 0)).await?;
    // Whoever was just killed leads no more, noticed or not.
    let second = cluster.kill(leader("orders", 0)).await?;
    assert_ne!(first, second);
    let doubt = cluster
        .start(leader("orders", 0))
        .await
        .expect_err("two are down");
    for part in [
        first.to_string(),
        second.to_string(),
        "broker(1)".to_owned(),
    ] {
        assert!(doubt.to_string().contains(&part), "{doubt}");
    }
    cluster.start(second).await?;
    cluster.start(first).await?;
    cluster.await_isr("orders", 0, 3).await?;

    let follower = cluster.stop(follower("orders", 0)).await?;
    cluster.await_isr("orders", 0, 2).await?;
    assert!(!isr(&cluster, "orders").contains(&follower.id()));
    cluster.start(follower).await?;
    cluster.await_isr("orders", 0, 3).await?;
    assert_eq!(isr(&cluster, "orders"), [1, 2, 3]);

    let timeline = cluster.timeline().await;
    assert!(timeline.unavailable_ms().count() >= 2, "{timeline}");
    let text = timeline.to_string();
    assert!(text.contains(&format!("{first} killed")), "{text}");
    assert!(text.contains(&format!("{follower} stopped")), "{text}");
    Ok(())
}

#[tokio::test]
async fn a_paused_leader_is_replaced_and_comes_back() -> Result<()> {
    let cluster = Cluster::builder()
        .topic("orders", 1, 3)
        .set("broker.session.timeout.ms", "1000")
        .start()
        .await?;
    let paused = cluster.pause(leader("orders", 0)).await?;
    write(&cluster, "orders").await?;
    assert_eq!(cluster.resume(leader("orders", 0)).await?, paused);
    cluster.await_whole().await?;
    let not_paused = cluster.resume(paused).await.expect_err("it runs");
    assert!(matches!(not_paused, Error::Refused { .. }), "{not_paused}");
    Ok(())
}

#[tokio::test]
async fn three_controllers_outlive_the_active_one() -> Result<()> {
    let cluster = Cluster::builder()
        .controllers(3)
        .topic("orders", 1, 3)
        .start()
        .await?;
    let first = cluster.kill(active_controller()).await?;
    assert!(matches!(first, Node::Controller(_)));
    cluster
        .client()
        .admin()
        .create_topic(&NewTopic::new("more", 1, 3))
        .await?;
    cluster.await_isr("more", 0, 3).await?;
    let second = cluster.stop(active_controller()).await?;
    assert_ne!(first, second);
    cluster.start(first).await?;
    cluster.start(second).await?;
    let running = cluster.start(controller(1)).await.expect_err("it runs");
    assert!(running.to_string().contains("running already"), "{running}");
    Ok(())
}

#[tokio::test]
async fn a_lone_broker_and_its_controller_come_back_on_their_data() -> Result<()> {
    let cluster = Cluster::builder().brokers(1).start().await?;
    write(&cluster, "orders").await?;
    cluster.kill(broker(1)).await?;
    cluster.kill(controller(1)).await?;
    cluster.start(controller(1)).await?;
    cluster.start(broker(1)).await?;
    cluster.await_isr("orders", 0, 1).await?;
    write(&cluster, "orders").await?;
    Ok(())
}

#[tokio::test]
async fn clusters_side_by_side_do_not_meet() -> Result<()> {
    let topic = NewTopic::new("events", 1, 3).config("cleanup.policy", "compact");
    let one = Cluster::builder().topic_with(topic).start();
    let (one, other) = tokio::join!(one, Cluster::builder().brokers(2).start());
    let (one, other) = (one?, other?);
    let [one_now, other_now] = [one.client().metadata(), other.client().metadata()];
    assert_ne!(one_now.cluster_id, other_now.cluster_id);
    assert_ne!(one.directory(), other.directory());
    assert_eq!(one.bootstrap().split(',').count(), 3);
    assert_eq!(other.bootstrap().split(',').count(), 2);
    let topic = one_now.topic("events")?;
    assert_eq!(topic.configs["cleanup.policy"], "compact");
    drop(one);
    write(&other, "orders").await
}

#[tokio::test]
async fn what_is_wrong_is_said() -> Result<()> {
    let unknown = Cluster::builder()
        .set("min.insync.replica", "2")
        .start()
        .await;
    let unknown = unknown.expect_err("no such setting").to_string();
    assert!(
        unknown.contains("did you mean `min.insync.replicas`"),
        "{unknown}"
    );

    let begun = Instant::now();
    let cluster = Cluster::builder()
        .patience(Duration::from_millis(200))
        .start()
        .await?;
    println!("ready in {} ms", begun.elapsed().as_millis());
    let missing = cluster
        .kill(leader("oders", 0))
        .await
        .expect_err("no such topic");
    assert_eq!(missing.to_string(), "topic oders does not exist");
    let missing = cluster.kill(broker(7)).await.expect_err("no such broker");
    assert!(
        missing.to_string().contains("there is no broker 7"),
        "{missing}"
    );
    let late = cluster
        .await_isr("orders", 0, 4)
        .await
        .expect_err("three at most");
    assert!(
        late.to_string()
            .contains("4 replicas in the ISR of orders-0; last seen: leader"),
        "{late}"
    );
    Ok(())
}
