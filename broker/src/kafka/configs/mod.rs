//! Configuration: DescribeConfigs, AlterConfigs and IncrementalAlterConfigs, for topics, for the cluster-wide defaults (the
//! broker resource without a name), and, to read only, for this broker's own settings.

mod alter;
mod describe;

pub(super) use alter::{change, replace};
pub(super) use describe::{describe, effective};

/// Resource type of topics.
const TOPIC: i8 = 2;
/// Resource type of brokers; the one without a name stands for the cluster-wide defaults.
const BROKER: i8 = 4;

/// Cluster-wide settings that no topic has: the controller's defaults for new topics.
const CLUSTER_ONLY: [&str; 2] = ["num.partitions", "default.replication.factor"];

/// The topic key behind a broker-wide key. Topic keys and the controller's own pass as they are.
fn topic_key_of(broker_key: &str) -> &str {
    let mut keys = epoka_proto::config::TOPIC_KEYS.iter();
    keys.find(|key| key.broker_synonym == Some(broker_key))
        .map_or(broker_key, |key| key.name)
}
