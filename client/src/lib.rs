//! The Rust SDK over a cluster's gRPC services: producer, consumer, administration, event streams and the timeline told of
//! them. What lives here is what a client decides for itself: whom to ask, when to ask again, in which order records leave.
//! It never sees a broker's or a controller's code.
//!
//! ```no_run
//! use epoka_client::{Client, NewTopic, ProducerConfig, ProducerRecord, Start};
//! use epoka_proto::ids::TopicPartition;
//!
//! # async fn example() -> Result<(), epoka_client::Error> {
//! let client = Client::connect(["127.0.0.1:41001", "127.0.0.1:41002"]).await?;
//! client.admin().create_topic(&NewTopic::new("orders", 3, 3)).await?;
//!
//! let producer = client.producer(ProducerConfig::default()); // acks=all, idempotent
//! let delivery = producer.send(ProducerRecord::new("orders", "hello").key("customer-7")).await?;
//! let at = delivery.await?;
//! println!("{} at offset {:?}", at.partition, at.offset);
//!
//! let mut consumer = client.consumer(TopicPartition::new("orders", 0), Start::Earliest);
//! for record in consumer.next().await?.records {
//!     println!("{}: {:?}", record.offset, record.value);
//! }
//! # Ok(())
//! # }
//! ```

mod admin;
mod client;
mod connections;
mod consumer;
mod error;
pub mod events;
mod metadata;
mod producer;
pub mod timeline;

pub use admin::{Admin, CreatedTopic, NewTopic, Readiness, ReplicaState};
pub use client::{Client, ClientConfig};
pub use connections::{Connection, Connections, Target};
pub use consumer::{Fetched, FoundOffset, PartitionConsumer, Start};
pub use error::{Error, Result};
pub use metadata::{Broker, Metadata, Partition, Topic};
pub use producer::{Acks, Delivered, Delivery, Producer, ProducerConfig, ProducerRecord};

pub use epoka_proto::batch::Record;
pub use epoka_proto::compression::Compression;
