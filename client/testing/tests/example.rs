//! Orders are taken while their leader dies; afterwards every acknowledged order is there, and none is there twice.

use epoka_testing::epoka_client::{ProducerConfig, ProducerRecord, Start};
use epoka_testing::{Cluster, TopicPartition, leader};

const ORDERS: usize = 2_000;

#[tokio::test]
async fn acknowledged_orders_survive_their_leader() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = Cluster::builder()
        .brokers(3)
        .topic("orders", 3, 3)
        .start()
        .await?;

    // Acknowledged by all in-sync replicas; numbered, so that what is sent again is not written again.
    let producer = cluster.client().producer(ProducerConfig::default());
    let mut deliveries = Vec::new();
    let mut killed = None;
    for n in 0..ORDERS {
        if n == ORDERS / 2 {
            killed = Some(cluster.kill(leader("orders", 0)).await?);
        }
        let order = ProducerRecord::new("orders", format!("order {n}")).partition(0);
        deliveries.push(producer.send(order).await?);
    }
    let mut last = None;
    for delivery in deliveries {
        last = delivery.await?.offset;
    }

    cluster.start(killed.expect("half way")).await?;
    cluster.await_isr("orders", 0, 3).await?;

    let orders = TopicPartition::new("orders", 0);
    let mut consumer = cluster.client().consumer(orders, Start::Earliest);
    let mut read = Vec::new();
    let end = last.expect("acknowledged with its offset") + 1;
    consumer
        .read_to(end, |record| read.extend(record.value))
        .await?;
    let expected: Vec<_> = (0..ORDERS).map(|n| format!("order {n}")).collect();
    assert_eq!(read, expected, "each once, in order");

    let timeline = cluster.timeline().await;
    println!("{timeline}");
    let unavailable = timeline
        .unavailable_ms()
        .next()
        .expect("an outage of orders-0");
    assert!(unavailable < 5_000, "{unavailable} ms without a leader");
    Ok(())
}
