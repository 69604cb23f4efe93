//! The server processes: reads a node's settings, starts it, and stops it cleanly when asked to. What the node does lives in
//! the broker's and the controller's crates.

pub mod controller;
mod kafka_keys;
pub mod properties;

use std::path::PathBuf;

use clap::Args;
use epoka_broker::BrokerConfig;
use epoka_controller::ControllerConfig;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid};
use tokio::signal::unix::{SignalKind, signal};

use crate::failure::{Failure, Outcome};
use crate::topic_spec::key_value;
use properties::{Properties, drop_meaningless, gather};

/// How a node is told its settings.
#[derive(Args, Clone, Debug)]
pub struct NodeArgs {
    /// A properties file with Kafka's names.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// One setting; overrides the file and EPOKA_* variables.
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_value)]
    pub set: Vec<(String, String)>,
    /// Ends with the process of this id, which must be the parent.
    #[arg(long, value_name = "PID", hide = true)]
    pub supervised_by: Option<i32>,
}

impl NodeArgs {
    fn properties(&self) -> Outcome<Properties> {
        let environment = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        gather(self.config.as_deref(), environment, &self.set)
    }

    /// Asks the kernel to end this process with its supervisor, however that ends.
    fn tie_to_supervisor(&self) -> Outcome {
        let Some(supervisor) = self.supervised_by else {
            return Ok(());
        };
        set_pdeathsig(Signal::SIGKILL).map_err(|e| {
            Failure::wrong(format!("cannot tie this process to its supervisor: {e}"))
        })?;
        // It may have ended before the kernel was asked.
        if getppid() != Pid::from_raw(supervisor) {
            return Err(Failure::wrong("the supervisor has ended"));
        }
        Ok(())
    }
}

/// Lets this process open as many files as it may ask for: a segment takes several, a connection one.
fn raise_file_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
}

/// A broker's settings.
///
/// # Errors
/// One of them is wrong.
pub fn broker_config(args: &NodeArgs) -> Outcome<BrokerConfig> {
    let mut properties = args.properties()?;
    let known = epoka_broker::config::KEYS.iter().map(|k| k.name);
    drop_meaningless(&mut properties, known, "broker");
    BrokerConfig::from_properties(&properties).map_err(Failure::usage)
}

/// A controller's settings.
///
/// # Errors
/// One of them is wrong.
pub fn controller_config(args: &NodeArgs) -> Outcome<ControllerConfig> {
    let mut properties = args.properties()?;
    drop_meaningless(&mut properties, controller::names(), "controller");
    controller::from_properties(&properties).map_err(Failure::usage)
}

/// Runs a broker until it is asked to stop.
pub async fn run_broker(args: NodeArgs) -> Outcome {
    args.tie_to_supervisor()?;
    raise_file_limit();
    let mut stop = StopSignal::new()?;
    let config = broker_config(&args)?;
    let id = config.node_id;
    let mut broker = epoka_broker::start(config).await?;
    tracing::info!(%id, listeners = ?broker.kafka_addresses(), grpc = %broker.grpc_address(), "broker started");
    let failure = tokio::select! {
        () = stop.received() => None,
        error = broker.failed() => Some(error),
    };
    match failure {
        None => {
            tracing::info!(%id, "stopping");
            tokio::select! {
                () = broker.shutdown() => {}
                () = stop.received() => return Err(Failure::wrong("stopped before the logs were closed")),
            }
            tracing::info!(%id, "stopped cleanly");
            Ok(())
        }
        Some(error) => {
            // Closed whole, its data may be claimed at the next start as if this one had never been.
            tokio::select! {
                () = broker.shutdown() => {}
                () = stop.received() => {}
            }
            Err(Failure::wrong(format!(
                "broker {id} cannot go on: {error:#}"
            )))
        }
    }
}

/// Runs a controller until it is asked to stop.
pub async fn run_controller(args: NodeArgs) -> Outcome {
    args.tie_to_supervisor()?;
    let mut stop = StopSignal::new()?;
    let config = controller_config(&args)?;
    let id = config.id;
    let controller = epoka_controller::start(config).await?;
    tracing::info!(id, address = %controller.local_addr(), "controller started");
    stop.received().await;
    tracing::info!(id, "stopping");
    tokio::select! {
        () = controller.shutdown() => {}
        () = stop.received() => return Err(Failure::wrong("stopped before the quorum's log was closed")),
    }
    tracing::info!(id, "stopped cleanly");
    Ok(())
}

/// SIGINT or SIGTERM.
pub struct StopSignal {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

impl StopSignal {
    /// From now on these signals no longer end the process by themselves.
    ///
    /// # Errors
    /// The system refuses the handlers.
    pub fn new() -> Outcome<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// Waits for the next of them. Cancel-safe.
    pub async fn received(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
