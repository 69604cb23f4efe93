//! A cluster of child processes and everything a test does to it and with it: starting, killing, pausing and cutting off
//! nodes, Kafka clients, an audited load, the files on disk. What lives here only drives and observes; whether what it
//! saw was right is for the tests to say, and for `history`, which is pure.

pub mod cluster;
pub mod files;
pub mod history;
pub mod kafka;
pub mod load;
pub mod network;
pub mod owners;
pub mod ports;
pub mod process;
pub mod raw;
pub mod spec;
pub mod timeline;
pub mod up;
pub mod wait;

pub use cluster::Cluster;
pub use history::{Anomaly, Audit, History};
pub use load::{Load, LoadSpec};
pub use network::{Fault, Node};
pub use spec::Spec;
pub use up::Up;
