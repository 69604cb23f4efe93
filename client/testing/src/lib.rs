//! Real clusters for integration tests: started in a moment, their faults in the test's hand.
//!
//! ```no_run
#![doc = include_str!("../tests/example.rs")]
//! ```
//!
//! Each cluster has ports and a directory of its own, so tests run beside each other. Add the crate to the
//! `[dev-dependencies]`; the brokers are the program `epoka`, which is not built with it. It is found by
//! [`Builder::binary`], else by the variable EPOKA_BIN, else beside the test in cargo's target directory, else in PATH.
//!
//! # Clients
//!
//! [`Cluster::bootstrap`] is for any Kafka client, [`Cluster::client`] is the Rust SDK's client, [`epoka_client`].
//!
//! # Faults
//!
//! | call | what happens |
//! |---|---|
//! | [`Cluster::kill`] | SIGKILL: the process is gone, its connections break |
//! | [`Cluster::stop`] | SIGTERM: a broker hands over what it leads, then ends |
//! | [`Cluster::pause`] | the process is alive and silent; its session expires |
//! | [`Cluster::resume`] | a paused process goes on, and learns what it missed |
//! | [`Cluster::start`] | a process that is down starts on the data it had, and is waited for |
//!
//! They act on [`broker`]`(2)`, [`controller`]`(1)`, the [`active_controller`]`()`, the [`leader`]`("orders", 0)` or a
//! [`follower`]`("orders", 0)`, and return the [`Node`] that it was. What follows from a fault takes time: await it with
//! [`Cluster::await_isr`] or [`Cluster::await_whole`], and read in [`Cluster::timeline`] what happened and for how long
//! which partition took no writes.
//!
//! # The end
//!
//! A cluster ends with the value that owns it, and its data with it. When the test panics the data is kept, and its place is
//! printed with the timeline. When the test's process is killed the brokers end by themselves, and the directory stays in
//! the system's place for temporary files.
//!
//! # Containers
//!
//! With [`Builder::in_containers`] the nodes are containers of the local Docker engine, through `testcontainers`, in a
//! network of their own; the brokers' ports are published on 127.0.0.1. The image is [`Builder::image`], else what EPOKA_IMAGE
//! names (`name:tag`), else `epoka:latest`. Everything above is the same, except that a start takes seconds and no data is
//! kept. [`Cluster::network`] is for clients that are containers too.
//!
//! The containers and the network are removed when the cluster is dropped, also by a panic, and before SIGINT (Ctrl-C),
//! SIGTERM or SIGQUIT ends the test. A test that is killed with SIGKILL leaves them running: the next one that starts a
//! cluster in containers on the same machine removes them, as does
//! `docker rm -fv $(docker ps -aq --filter label=epoka.testing.owner)`.
//!
//! Without the feature `containers`, on by default, none of this is built.

mod action;
mod builder;
mod cluster;
#[cfg(feature = "containers")]
mod containers;
mod error;
mod place;
mod processes;
mod target;
mod timeline;

pub use builder::Builder;
pub use cluster::Cluster;
pub use error::{Error, Result};
pub use target::{Node, Target, active_controller, broker, controller, follower, leader};
pub use timeline::Timeline;

pub use epoka_client;
pub use epoka_client::NewTopic;
pub use epoka_client::timeline::Line;
pub use epoka_proto::ids::TopicPartition;
