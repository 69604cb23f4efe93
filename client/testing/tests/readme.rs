//! The example that README.md shows, as it shows it.

use epoka_testing::epoka_client::{ProducerConfig, ProducerRecord};
use epoka_testing::{Cluster, leader};

#[tokio::test]
async fn writes_survive_their_leader() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = Cluster::builder()
        .brokers(3)
        .topic("orders", 3, 3)
        .start()
        .await?;
    println!("any Kafka client connects to {}", cluster.bootstrap());
    let producer = cluster.client().producer(ProducerConfig::default());
    let order = |value: &str| ProducerRecord::new("orders", value.to_owned()).partition(0);
    producer.send(order("before")).await?.await?;
    let dead = cluster.kill(leader("orders", 0)).await?;
    producer.send(order("after")).await?.await?;
    cluster.start(dead).await?;
    cluster.await_isr("orders", 0, 3).await?;
    println!("{}", cluster.timeline().await);
    Ok(())
}

#[test]
fn the_readme_shows_this_test() {
    let readme = include_str!("../../../README.md");
    let own = include_str!("readme.rs");
    let start = own.find("use epoka").expect("the example");
    let end = own.find("#[test]").expect("this test");
    let shown = own[start..end].trim_end();
    let indented: Vec<_> = shown
        .lines()
        .map(|line| format!("    {line}").trim_end().to_owned())
        .collect();
    assert!(
        readme.contains(&indented.join("\n")),
        "README.md shows something else"
    );
}
