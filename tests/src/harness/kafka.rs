//! Kafka clients as tests need them: librdkafka with settings that keep it impatient, and one-shot reads of a whole topic.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Message as _, OwnedMessage};
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::{Offset, TopicPartitionList};

/// One answer of a broker to one call of a client.
const ANSWER: Duration = Duration::from_secs(10);

/// What every client has in common: it connects again soon after a broker is back, and soon gives up on a silent one.
pub fn client(bootstrap: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", bootstrap)
        .set("reconnect.backoff.max.ms", "300")
        .set("log_level", "0");
    config
        .set("socket.timeout.ms", "3000")
        .set("socket.connection.setup.timeout.ms", "3000");
    config
}

/// A consumer that is told its partitions and stores no offsets.
///
/// # Panics
/// When the settings are refused.
pub fn consumer(bootstrap: &str) -> BaseConsumer {
    let mut config = client(bootstrap);
    // The client library wants a name for the group even where none is joined.
    config
        .set("group.id", "none")
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false");
    config
        .set("auto.offset.reset", "error")
        .set("fetch.wait.max.ms", "100")
        .set("check.crcs", "true");
    config.create().expect("the settings are valid")
}

/// Has the consumer read all partitions of a topic from their beginning.
///
/// # Panics
/// When the consumer refuses.
pub fn read_from_start(consumer: &BaseConsumer, topic: &str, partitions: i32) {
    let mut list = TopicPartitionList::new();
    for partition in 0..partitions {
        list.add_partition_offset(topic, partition, Offset::Beginning)
            .expect("a valid offset");
    }
    consumer.assign(&list).expect("assigned");
}

/// The next record. Errors that a client overcomes by itself count as none.
///
/// # Panics
/// On any other error.
pub fn next(consumer: &BaseConsumer, within: Duration) -> Option<BorrowedMessage<'_>> {
    try_next(consumer, within).unwrap_or_else(|error| panic!("reading failed: {error}"))
}

/// The next record. Errors that a client overcomes by itself count as none.
///
/// # Errors
/// Any other.
pub fn try_next(
    consumer: &BaseConsumer,
    within: Duration,
) -> Result<Option<BorrowedMessage<'_>>, KafkaError> {
    match consumer.poll(within).transpose() {
        Err(KafkaError::MessageConsumption(code)) if is_passing(code) => Ok(None),
        next => next,
    }
}

fn is_passing(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode as Code;
    matches!(
        code,
        Code::AllBrokersDown
            | Code::BrokerTransportFailure
            | Code::CoordinatorNotAvailable
            | Code::CoordinatorLoadInProgress
            | Code::LeaderNotAvailable
            | Code::NotLeaderForPartition
            | Code::OperationTimedOut
            | Code::RequestTimedOut
            | Code::Resolve
            | Code::UnknownTopicOrPartition
    )
}

/// Everything committed in a topic now, partition by partition, in order.
///
/// # Panics
/// When the ends are not known or not reached within `within`.
pub fn read_all(
    bootstrap: &str,
    topic: &str,
    partitions: i32,
    within: Duration,
) -> Vec<OwnedMessage> {
    let deadline = Instant::now() + within;
    let consumer = consumer(bootstrap);
    let mut ends: BTreeMap<i32, i64> = (0..partitions)
        .map(|partition| (partition, end_of(&consumer, topic, partition, deadline)))
        .collect();
    ends.retain(|_, end| *end > 0);
    read_from_start(&consumer, topic, partitions);
    let mut records = BTreeMap::<i32, Vec<OwnedMessage>>::new();
    while !ends.is_empty() {
        assert!(
            Instant::now() < deadline,
            "{topic}: not read to the ends {ends:?} within {within:?}"
        );
        let Some(message) = next(&consumer, Duration::from_millis(100)) else {
            continue;
        };
        let partition = message.partition();
        if ends
            .get(&partition)
            .is_some_and(|end| message.offset() < *end)
        {
            records.entry(partition).or_default().push(message.detach());
        }
        if ends
            .get(&partition)
            .is_some_and(|end| message.offset() + 1 >= *end)
        {
            ends.remove(&partition);
        }
    }
    records.into_values().flatten().collect()
}

fn end_of(consumer: &BaseConsumer, topic: &str, partition: i32, deadline: Instant) -> i64 {
    loop {
        match consumer.fetch_watermarks(topic, partition, ANSWER) {
            Ok((_, end)) => return end,
            Err(error) => assert!(
                Instant::now() < deadline,
                "{topic}-{partition}: where it ends is not known: {error}"
            ),
        }
    }
}
