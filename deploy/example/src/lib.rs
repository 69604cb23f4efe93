//! A small service as one finds it beside any Kafka cluster: it reads orders and writes an invoice for each. It uses the Kafka
//! client it would use anywhere, librdkafka, and knows nothing of Epoka.

use anyhow::Context as _;
use futures::StreamExt as _;
use rdkafka::consumer::{Consumer as _, StreamConsumer};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::{ClientConfig, Message as _, Offset, TopicPartitionList};

/// Where orders are read from.
pub const ORDERS: &str = "orders";
/// Where invoices are written to.
pub const INVOICES: &str = "invoices";

/// How sure the service is of what it writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Care {
    /// `acks=all` and idempotent: an acknowledged record is on every in-sync replica, once.
    Full,
    /// `acks=1`: acknowledged by the leader alone.
    Little,
}

/// A producer that a service would use.
///
/// # Errors
/// librdkafka refuses the settings.
pub fn producer(bootstrap: &str, care: Care) -> anyhow::Result<FutureProducer> {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", bootstrap)
        .set("linger.ms", "1");
    match care {
        Care::Full => config.set("acks", "all").set("enable.idempotence", "true"),
        Care::Little => config.set("acks", "1"),
    };
    Ok(config.create()?)
}

/// A consumer that begins at the first record of every partition of a topic.
///
/// # Errors
/// The cluster cannot be asked for the partitions.
pub fn consumer(bootstrap: &str, topic: &str, partitions: i32) -> anyhow::Result<StreamConsumer> {
    let consumer: StreamConsumer = ClientConfig::new()
        .set("bootstrap.servers", bootstrap)
        .set("group.id", "invoices") // asked for by librdkafka; partitions are assigned, so there is no group
        .set("enable.auto.commit", "false")
        .create()?;
    let mut assignment = TopicPartitionList::new();
    for partition in 0..partitions {
        assignment.add_partition_offset(topic, partition, Offset::Beginning)?;
    }
    consumer.assign(&assignment)?;
    Ok(consumer)
}

/// Writes an invoice for every order, under the order's key, for as long as it is polled.
///
/// # Errors
/// An invoice could not be written.
pub async fn bill(bootstrap: &str, care: Care) -> anyhow::Result<()> {
    let orders = consumer(bootstrap, ORDERS, 3)?;
    let invoices = producer(bootstrap, care)?;
    let mut stream = orders.stream();
    while let Some(order) = stream.next().await {
        // A leader that has just died is an error to read past: librdkafka finds the next one.
        let Ok(order) = order else { continue };
        let key = order.key().unwrap_or_default().to_vec();
        let invoice = format!("invoice for {}", String::from_utf8_lossy(&key));
        let record = FutureRecord::to(INVOICES).key(&key).payload(&invoice);
        let written = invoices
            .send(record, std::time::Duration::from_secs(30))
            .await;
        written
            .map_err(|(error, _)| error)
            .context("writing an invoice")?;
    }
    Ok(())
}
