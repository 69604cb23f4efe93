//! The local cluster of `epoka up`: a supervisor that keeps brokers and controllers as child processes, does to them what it
//! is asked, and tells others where they are. It knows processes, ports and directories; what the processes do inside, it
//! learns as any client does.

mod description;
mod directory;
mod launch;
mod locate;
mod ports;
mod process;
mod readiness;
mod service;
mod shape;
mod supervisor;

pub use description::{Description, NodeDescription};
pub use launch::{LocalCluster, Plan};
pub use locate::ClusterArgs;
pub use process::{State, last_line};
pub use supervisor::Action;
