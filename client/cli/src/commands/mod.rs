//! The commands, one file each: their options, and the few lines that turn them into calls.

mod act;
mod consume;
mod demo;
mod follow;
mod health;
mod produce;
mod started;
mod status;
mod topic;
mod up;
mod verify;
mod view;
mod watch;

use std::time::Instant;

use clap::Subcommand;

use crate::cluster::Action;
use crate::failure::Outcome;
use crate::node::{self, NodeArgs};

/// What `epoka` can do.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Start a cluster on this machine and keep it running.
    Up(up::UpArgs),
    /// The whole story by itself: load, three kills of the leader, timeline, audit, exit code.
    Demo(demo::DemoArgs),
    /// Show processes, leaders, epochs, ISR, and what every replica holds.
    Status(status::StatusArgs),
    /// Watch what happens, in plain words, as it happens.
    Watch(watch::WatchArgs),
    /// Kill a process (SIGKILL); it stays down until `start`.
    #[command(
        after_help = "Examples:\n  epoka kill leader:orders-0\n  epoka kill broker:2\n  epoka kill controller"
    )]
    Kill(act::ActArgs),
    /// Stop a process cleanly (SIGTERM): a broker hands over its leaderships first.
    #[command(after_help = "Example:\n  epoka stop follower:orders-0")]
    Stop(act::ActArgs),
    /// Start a process that is down.
    #[command(after_help = "Example:\n  epoka start broker:2 --wait")]
    Start(act::StartArgs),
    /// Pause a process (SIGSTOP): it keeps its connections and says nothing.
    #[command(after_help = "Example:\n  epoka pause leader:orders-0")]
    Pause(act::ActArgs),
    /// Let a paused process go on (SIGCONT).
    #[command(after_help = "Example:\n  epoka resume broker:2")]
    Resume(act::ActArgs),
    /// Create, delete, list, describe, grow and configure topics.
    Topic(topic::TopicArgs),
    /// Send the lines of standard input, each a record.
    Produce(produce::ProduceArgs),
    /// Print records of a topic.
    Consume(consume::ConsumeArgs),
    /// Write, keep the books while you break what you like, and say what was lost.
    Verify(verify::VerifyArgs),
    /// Say whether a node does its work, for health checks.
    Health(health::HealthArgs),
    /// Run one broker in the foreground.
    #[command(after_help = "Example:
  epoka broker --set node.id=1 --set log.dirs=/var/lib/epoka --set controller.quorum.bootstrap.servers=10.0.0.9:9093 \\
               --set listeners=PLAINTEXT://0.0.0.0:9092 --set advertised.listeners=PLAINTEXT://broker1:9092
EPOKA_LOG_DIRS sets log.dirs, and so on; --set overrides it, and it overrides --config.")]
    Broker(NodeArgs),
    /// Run one controller in the foreground.
    #[command(after_help = "Example:
  epoka controller --set node.id=1 --set listeners=CONTROLLER://0.0.0.0:9093 --set log.dirs=/var/lib/epoka-controller \\
                   --set controller.quorum.voters=1@10.0.0.9:9093")]
    Controller(NodeArgs),
}

impl Command {
    /// Whether it serves others and wants every core.
    pub fn is_busy(&self) -> bool {
        matches!(
            self,
            Self::Broker(_) | Self::Controller(_) | Self::Demo(_) | Self::Verify(_)
        )
    }

    /// Whether it is a server process, whose log is worth keeping.
    pub fn is_node(&self) -> bool {
        matches!(self, Self::Broker(_) | Self::Controller(_))
    }

    /// Runs it. `begun` is when the program started.
    ///
    /// # Errors
    /// What was asked could not be done.
    pub async fn run(self, log_format: &str, begun: Instant) -> Outcome {
        match self {
            Self::Up(args) => up::run(args, log_format, begun).await,
            Self::Demo(args) => demo::run(args).await,
            Self::Status(args) => status::run(args).await,
            Self::Watch(args) => watch::run(args).await,
            Self::Kill(args) => act::run(Action::Kill, args).await,
            Self::Stop(args) => act::run(Action::Stop, args).await,
            Self::Start(args) => act::start(args).await,
            Self::Pause(args) => act::run(Action::Pause, args).await,
            Self::Resume(args) => act::run(Action::Resume, args).await,
            Self::Topic(args) => topic::run(args).await,
            Self::Produce(args) => produce::run(args).await,
            Self::Consume(args) => consume::run(args).await,
            Self::Verify(args) => verify::run(args).await,
            Self::Health(args) => health::run(args).await,
            Self::Broker(args) => node::run_broker(args).await,
            Self::Controller(args) => node::run_controller(args).await,
        }
    }
}
