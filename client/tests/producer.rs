//! The producer against scripted brokers: what it sends again, under which numbers, and to whom, when answers are bad, late
//! or missing.

mod fake;

use std::time::Duration;

use epoka_client::events::Collector;
use epoka_client::{Client, ClientConfig, Error, Producer, ProducerConfig, ProducerRecord};
use epoka_proto::error::ErrorCode;
use epoka_proto::ids::Offset;
use fake::{Cluster, Reply, Sent};

async fn client(cluster: &Cluster) -> Client {
    let config = ClientConfig {
        request_timeout: Duration::from_secs(2),
        ..ClientConfig::default()
    };
    let client = Client::new(cluster.addresses(), config);
    client.refresh().await.expect("the fake brokers answer");
    client
}

fn record(value: &'static str) -> ProducerRecord {
    ProducerRecord::new("orders", value).partition(0)
}

/// Sends one record and waits for its fate.
async fn write(producer: &Producer, value: &'static str) -> Result<Option<Offset>, Error> {
    let delivery = producer.send(record(value)).await?;
    Ok(delivery.await?.offset)
}

fn sent(broker: i32, producer_id: i64, base_sequence: i32, values: &[&str]) -> Sent {
    Sent {
        broker,
        producer_id,
        base_sequence,
        values: values.iter().map(|v| (*v).to_owned()).collect(),
    }
}

#[tokio::test]
async fn batches_of_one_partition_are_numbered_in_order() {
    let cluster = Cluster::start(1).await;
    let producer = client(&cluster).await.producer(ProducerConfig::default());
    assert_eq!(write(&producer, "a").await.expect("acked"), Some(Offset(0)));
    assert_eq!(write(&producer, "b").await.expect("acked"), Some(Offset(1)));
    producer.close().await;
    assert_eq!(
        cluster.sent(),
        [sent(1, 1, 0, &["a"]), sent(1, 1, 1, &["b"])]
    );
}

#[tokio::test]
async fn after_a_leader_change_the_same_batch_goes_to_the_new_leader() {
    let cluster = Cluster::start(2).await;
    let producer = client(&cluster).await.producer(ProducerConfig::default());
    write(&producer, "a").await.expect("acked");
    cluster.script([Reply::Refuse(ErrorCode::NotLeaderOrFollower)]);
    cluster.lead(2);
    write(&producer, "b")
        .await
        .expect("acked by the new leader");
    assert_eq!(
        cluster.sent(),
        [
            sent(1, 1, 0, &["a"]),
            sent(1, 1, 1, &["b"]),
            sent(2, 1, 1, &["b"])
        ]
    );
}

#[tokio::test]
async fn a_lost_answer_is_asked_for_again_under_the_same_number() {
    let cluster = Cluster::start(1).await;
    let producer = client(&cluster).await.producer(ProducerConfig::default());
    write(&producer, "a").await.expect("acked");
    cluster.script([Reply::HangUp]);
    write(&producer, "b")
        .await
        .expect("acked at the second try");
    let b = sent(1, 1, 1, &["b"]);
    assert_eq!(cluster.sent(), [sent(1, 1, 0, &["a"]), b.clone(), b]);
}

#[tokio::test]
async fn a_silent_leader_is_left_when_another_takes_over() {
    let cluster = Cluster::start(2).await;
    let producer = client(&cluster).await.producer(ProducerConfig::default());
    write(&producer, "a").await.expect("acked");
    cluster.script([Reply::Silence]);
    let delivery = producer.send(record("b")).await.expect("queued");
    cluster.received(2).await;
    cluster.lead(2);
    delivery.await.expect("acked by the new leader");
    assert_eq!(cluster.sent()[2], sent(2, 1, 1, &["b"]));
}

#[tokio::test]
async fn a_refused_batch_fails_alone_and_what_follows_is_numbered_anew() {
    let cluster = Cluster::start(1).await;
    let producer = client(&cluster).await.producer(ProducerConfig::default());
    write(&producer, "a").await.expect("acked");
    cluster.script([Reply::Refuse(ErrorCode::MessageTooLarge)]);
    let error = write(&producer, "b").await.expect_err("too large");
    assert_eq!(error.code(), Some(ErrorCode::MessageTooLarge));
    write(&producer, "c").await.expect("acked");
    assert_eq!(cluster.sent()[2], sent(1, 2, 0, &["c"]));
}

#[tokio::test]
async fn a_batch_that_is_too_large_is_split_until_the_guilty_record_is_alone() {
    let cluster = Cluster::start(1).await;
    let producer = client(&cluster).await.producer(ProducerConfig {
        linger: Duration::from_millis(50),
        ..ProducerConfig::default()
    });
    // "a b" together, then "a", then "b" alone.
    cluster.script([
        Reply::Refuse(ErrorCode::MessageTooLarge),
        Reply::Accept,
        Reply::Refuse(ErrorCode::MessageTooLarge),
    ]);
    let a = producer.send(record("a")).await.expect("queued");
    let b = producer.send(record("b")).await.expect("queued");
    assert_eq!(a.await.expect("acked").offset, Some(Offset(0)));
    let error = b.await.expect_err("too large by itself");
    assert_eq!(error.code(), Some(ErrorCode::MessageTooLarge));
    assert_eq!(
        cluster.sent(),
        [
            sent(1, 1, 0, &["a", "b"]),
            sent(1, 2, 0, &["a"]),
            sent(1, 2, 1, &["b"])
        ]
    );
}

#[tokio::test]
async fn lost_numbers_are_replaced_by_a_new_producer_id() {
    let cluster = Cluster::start(1).await;
    let producer = client(&cluster).await.producer(ProducerConfig::default());
    write(&producer, "a").await.expect("acked");
    cluster.script([Reply::Refuse(ErrorCode::OutOfOrderSequenceNumber)]);
    write(&producer, "b").await.expect("acked under a new id");
    assert_eq!(
        cluster.sent(),
        [
            sent(1, 1, 0, &["a"]),
            sent(1, 1, 1, &["b"]),
            sent(1, 2, 0, &["b"])
        ]
    );
}

#[tokio::test]
async fn until_the_first_answer_one_batch_at_most_is_under_way() {
    let cluster = Cluster::start(1).await;
    let producer = client(&cluster).await.producer(ProducerConfig::default());
    // The first batch is refused for now; a second one under way might be accepted behind the gap.
    cluster.script([Reply::Refuse(ErrorCode::NotEnoughReplicas)]);
    let first = producer.send(record("a")).await.expect("queued");
    cluster.received(1).await;
    let second = producer.send(record("b")).await.expect("queued");
    first.await.expect("acked at the second try");
    second.await.expect("acked");
    let sent = cluster.sent();
    assert_eq!(sent[0], sent[1], "nothing overtook the first batch");
    assert_eq!(
        (sent[2].base_sequence, sent[2].values.as_slice()),
        (1, &["b".to_owned()][..])
    );
}

#[tokio::test]
async fn a_record_that_runs_out_of_time_fails_with_the_last_reason() {
    let cluster = Cluster::start(1).await;
    let producer = client(&cluster).await.producer(ProducerConfig {
        delivery_timeout: Duration::from_millis(200),
        ..ProducerConfig::default()
    });
    cluster.script_forever(ErrorCode::NotEnoughReplicas);
    match write(&producer, "a").await {
        Err(Error::TimedOut { what, last, .. }) => {
            assert_eq!(what, "writing to orders-0");
            assert!(last.contains("NOT_ENOUGH_REPLICAS"), "{last}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_close_whose_records_run_out_of_time_ends() {
    let cluster = Cluster::start(1).await;
    let producer = client(&cluster).await.producer(ProducerConfig {
        delivery_timeout: Duration::from_millis(300),
        ..ProducerConfig::default()
    });
    write(&producer, "a").await.expect("acked");
    cluster.script_forever(ErrorCode::NotEnoughReplicas);
    let delivery = producer.send(record("b")).await.expect("queued");
    let closed = tokio::time::timeout(Duration::from_secs(10), producer.close());
    closed.await.expect("it ends");
    let error = delivery.await.expect_err("it was never taken");
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
}

#[tokio::test]
async fn records_sent_together_share_batches_and_stay_in_order() {
    let cluster = Cluster::start(1).await;
    let producer = client(&cluster).await.producer(ProducerConfig::default());
    let mut deliveries = Vec::new();
    for _ in 0..1000 {
        deliveries.push(producer.send(record("x")).await.expect("queued"));
    }
    let mut offsets = Vec::new();
    for delivery in deliveries {
        offsets.push(delivery.await.expect("acked").offset.expect("acks=all").0);
    }
    assert_eq!(offsets, (0..1000).collect::<Vec<_>>());
    assert!(
        cluster.sent().len() < 500,
        "{} batches",
        cluster.sent().len()
    );
}

#[tokio::test]
async fn an_unknown_topic_or_partition_is_an_error_at_once() {
    let cluster = Cluster::start(1).await;
    let producer = client(&cluster).await.producer(ProducerConfig::default());
    let unknown = producer.send(ProducerRecord::new("nope", "x")).await;
    assert!(matches!(unknown, Err(Error::UnknownTopic { .. })));
    let beyond = producer
        .send(ProducerRecord::new("orders", "x").partition(7))
        .await;
    assert!(matches!(
        beyond,
        Err(Error::UnknownPartition { count: 1, .. })
    ));
}

#[tokio::test]
async fn another_cluster_at_the_same_addresses_is_not_taken_for_ones_own() {
    let cluster = Cluster::start(1).await;
    let client = client(&cluster).await;
    let mut events = Collector::of_cluster(&client, Duration::from_millis(1));
    let producer = client.producer(ProducerConfig {
        delivery_timeout: Duration::from_millis(500),
        ..ProducerConfig::default()
    });
    write(&producer, "a").await.expect("acked");
    cluster.become_another();
    let error = client.refresh().await.expect_err("it is not ours");
    let of_another = "another; this client belongs to fake";
    assert!(error.to_string().contains(of_another), "{error}");
    let error = client.admin().delete_topic("orders").await;
    let error = error.expect_err("it is not ours").to_string();
    assert!(error.contains("of another cluster than fake"), "{error}");
    // There is nothing left to be told of the one that was followed.
    let told = tokio::time::timeout(Duration::from_secs(20), events.next()).await;
    assert!(told.expect("it ends").is_none());
    // The exchange that was open is with a process of the old cluster. A new one is not made.
    let stranger = client.producer(ProducerConfig {
        delivery_timeout: Duration::from_millis(500),
        ..ProducerConfig::default()
    });
    let error = write(&stranger, "b").await.expect_err("it is not ours");
    let sent = cluster.sent();
    assert_eq!(sent, [sent[0].clone()], "{error}");
}
