//! The broker: replicas of partitions, the logs they keep, the fetch loops between them, and the Kafka listener.

pub mod clock;
pub mod config;
pub mod membership;
pub mod replica;
pub mod waiter;
