//! The service's integration test: orders are written while the leader of a partition is killed at the worst moment, and in the end
//! every order that was acknowledged must have its invoice, once.
//!
//!     cargo test                      from this folder; needs Docker, and the image (deploy/image)
//!     EXAMPLE_BROKEN=1 cargo test     with acks=1 and unclean elections: the check reports what was lost, and fails

mod cluster;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cluster::Cluster;
use epoka_client::Client;
use epoka_example::{Care, INVOICES, ORDERS, bill, consumer, producer};
use epoka_proto::ids::{BrokerId, TopicPartition};
use futures::StreamExt as _;
use futures::future::join_all;
use rdkafka::Message as _;
use rdkafka::producer::FutureRecord;
use tokio::time::{sleep, timeout};

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// What came of the orders.
struct Outcome {
    acknowledged: BTreeSet<String>,
    invoices: BTreeMap<String, usize>,
}

impl Outcome {
    /// Orders that were acknowledged and have no invoice.
    fn lost(&self) -> Vec<&String> {
        let invoiced = |order: &&String| !self.invoices.contains_key(*order);
        self.acknowledged.iter().filter(invoiced).collect()
    }

    fn billed_twice(&self) -> Vec<&String> {
        let twice = self.invoices.iter().filter(|(_, count)| **count > 1);
        twice.map(|(order, _)| order).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_acknowledged_order_is_billed_once_though_a_leader_is_killed_in_mid_stream() {
    let broken = std::env::var("EXAMPLE_BROKEN").is_ok_and(|v| v == "1");
    let (care, settings) = if broken {
        (Care::Little, UNSAFE)
    } else {
        (Care::Full, SAFE)
    };
    let Some(outcome) = run(care, settings).await else {
        return;
    };
    println!(
        "{} orders acknowledged, {} invoices",
        outcome.acknowledged.len(),
        outcome.invoices.len()
    );
    let (lost, twice) = (outcome.lost(), outcome.billed_twice());
    assert!(
        lost.is_empty(),
        "lost: {} acknowledged orders have no invoice, such as {}",
        lost.len(),
        lost[0]
    );
    assert!(
        twice.is_empty(),
        "{} orders were billed twice, such as {}",
        twice.len(),
        twice[0]
    );
    assert_eq!(
        outcome.acknowledged.len(),
        3 * PART,
        "every order is acknowledged in the end"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_on_purpose_the_check_reports_the_loss() {
    let Some(outcome) = run(Care::Little, UNSAFE).await else {
        return;
    };
    let lost = outcome.lost();
    println!(
        "with acks=1 and unclean elections: {} acknowledged orders lost",
        lost.len()
    );
    assert!(
        !lost.is_empty(),
        "acks=1 lost nothing, so this test would not notice a loss"
    );
}

/// Settings of topics that lose nothing acknowledged.
const SAFE: &str = "min.insync.replicas=2";
/// Settings of topics that prefer going on to keeping everything.
const UNSAFE: &str = "min.insync.replicas=1,unclean.leader.election.enable=true";

/// Orders written before, during and after the trouble.
const PART: usize = 1000;

/// The whole story: orders before, orders that only the leader has when it is killed, orders after.
async fn run(care: Care, settings: &str) -> Option<Outcome> {
    let topics = format!("{ORDERS}:3:3:{settings};{INVOICES}:3:3:{settings}");
    let cluster = Cluster::up(&topics)?;
    let bootstrap = cluster.bootstrap();
    let service = tokio::spawn({
        let bootstrap = bootstrap.clone();
        async move { bill(&bootstrap, Care::Full).await }
    });
    let mut acknowledged = order(&bootstrap, care, 0..PART).await;

    // The followers of orders-0 stand still, so what is written now reaches its leader alone; then the leader dies.
    let client = Client::connect(bootstrap.split(','))
        .await
        .expect("a cluster");
    let leader = leader(&client);
    let followers: Vec<_> = (1..=3).filter(|id| *id != leader).collect();
    followers.iter().for_each(|id| cluster.broker("pause", *id));
    let during = tokio::spawn({
        let bootstrap = bootstrap.clone();
        async move { order(&bootstrap, care, PART..2 * PART).await }
    });
    appended(&client, leader).await;
    if care == Care::Little {
        // These are acknowledged by the leader alone. With acks=all none is, until there is another leader.
        acknowledged.extend(
            timeout(PATIENCE, during)
                .await
                .expect("in time")
                .expect("written"),
        );
        cluster.broker("kill", leader);
        followers
            .iter()
            .for_each(|id| cluster.broker("unpause", *id));
    } else {
        cluster.broker("kill", leader);
        followers
            .iter()
            .for_each(|id| cluster.broker("unpause", *id));
        acknowledged.extend(
            timeout(PATIENCE, during)
                .await
                .expect("in time")
                .expect("written"),
        );
    }
    acknowledged.extend(order(&bootstrap, care, 2 * PART..3 * PART).await);
    cluster.broker("start", leader);

    let invoices = invoices(&bootstrap, &acknowledged).await;
    service.abort();
    Some(Outcome {
        acknowledged,
        invoices,
    })
}

/// Writes orders of these numbers to partition 0; those that were acknowledged.
async fn order(bootstrap: &str, care: Care, numbers: std::ops::Range<usize>) -> BTreeSet<String> {
    let producer = producer(bootstrap, care).expect("a producer");
    let sent = numbers.map(|number| {
        let producer = &producer;
        async move {
            let key = format!("order-{number}");
            let record = FutureRecord::to(ORDERS)
                .partition(0)
                .key(&key)
                .payload("a book");
            let sent = producer.send(record, PATIENCE).await;
            sent.is_ok().then(|| key.clone())
        }
    });
    join_all(sent).await.into_iter().flatten().collect()
}

/// The broker that leads orders-0.
fn leader(client: &Client) -> i32 {
    let metadata = client.metadata();
    let partition = &metadata.topics[ORDERS].partitions[&0];
    partition.leader.expect("a leader").0
}

/// Waits until the leader of orders-0 has appended more than the first part, whoever else has it.
async fn appended(client: &Client, leader: i32) {
    let grown = async {
        loop {
            let held = client
                .admin()
                .replicas(BrokerId(leader))
                .await
                .expect("it answers");
            let subject = TopicPartition::new(ORDERS, 0);
            let replica = held.iter().find(|r| r.partition == subject);
            if replica.is_some_and(|r| r.log_end.0 > PART as i64) {
                return;
            }
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, grown).await.expect("the leader appends");
}

/// Reads invoices until every one that was ordered is there, or no more come.
async fn invoices(bootstrap: &str, orders: &BTreeSet<String>) -> BTreeMap<String, usize> {
    const QUIET: Duration = Duration::from_secs(5);
    let consumer = consumer(bootstrap, INVOICES, 3).expect("a consumer");
    let mut stream = consumer.stream();
    let mut invoices = BTreeMap::new();
    loop {
        let complete = orders.iter().all(|order| invoices.contains_key(order));
        // Once complete, a moment more: an order billed twice would come now.
        let wait = if complete { QUIET / 5 } else { QUIET };
        match timeout(wait, stream.next()).await {
            Ok(Some(Ok(invoice))) => {
                let key = String::from_utf8_lossy(invoice.key().unwrap_or_default()).into_owned();
                *invoices.entry(key).or_insert(0) += 1;
            }
            Ok(Some(Err(_))) => {}
            Ok(None) | Err(_) => return invoices,
        }
    }
}
