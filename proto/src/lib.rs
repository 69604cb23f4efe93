//! Everything that crosses a process boundary: ids, Kafka V2 batch bytes, wire errors, leader-epoch histories,
//! metadata records, event records, and the gRPC messages. Apart from `events`, nothing here reads a clock or holds a lock.

pub mod batch;
pub mod compression;
pub mod config;
pub mod destination;
pub mod dial;
pub mod epochs;
pub mod error;
pub mod events;
pub mod ids;
pub mod metadata;

/// The generated gRPC messages, clients and servers of `epoka/v1/*.proto`.
pub mod v1 {
    #![allow(missing_docs, clippy::all)]
    tonic::include_proto!("epoka.v1");
}
