//! The broker: replicas of partitions, the logs they keep, the fetch loops between them, and the Kafka listener.

pub mod clock;
pub mod config;
pub mod kafka;
pub mod listeners;
pub mod membership;
pub mod node;
pub mod partition;
pub mod partitions;
pub mod replica;
pub mod replication;
pub mod waiter;

pub use config::BrokerConfig;
pub use node::{Broker, start};
