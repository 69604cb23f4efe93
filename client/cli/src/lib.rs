//! The one binary: command line, local cluster, audit, and the server processes' entry. Everything it knows of a
//! running cluster it learns through the SDK, as any client does.

#[macro_use]
mod output;

pub mod audit;
pub mod cluster;
mod commands;
pub mod failure;
pub mod load;
pub mod node;
pub mod target;
pub mod topic_spec;

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, ValueEnum};
use tracing_subscriber::EnvFilter;

/// A replicated, partitioned commit log that speaks Kafka's protocol.
#[derive(Parser, Debug)]
#[command(
    name = "epoka",
    version = env!("EPOKA_VERSION"),
    propagate_version = true,
    after_help = "Begin with `epoka up`, and `epoka watch` in another shell.
Exit codes: 0 done; 1 it was found wrong or refused; 2 the command line or a configuration was wrong."
)]
struct Cli {
    /// How log lines look.
    #[arg(
        long,
        global = true,
        value_enum,
        default_value_t,
        env = "EPOKA_LOG_FORMAT",
        hide_env_values = true
    )]
    log_format: LogFormat,
    #[command(subcommand)]
    command: commands::Command,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum LogFormat {
    #[default]
    Text,
    Json,
}

impl LogFormat {
    fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

/// The program: reads the command line, runs the command, says on standard error why it failed.
pub fn main() -> ExitCode {
    let begun = Instant::now();
    let cli = Cli::parse();
    start_logging(cli.log_format, cli.command.is_node());
    let mut runtime = if cli.command.is_busy() {
        tokio::runtime::Builder::new_multi_thread()
    } else {
        tokio::runtime::Builder::new_current_thread()
    };
    let runtime = match runtime.enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("epoka: the system gives no threads: {error}");
            return ExitCode::FAILURE;
        }
    };
    let outcome = runtime.block_on(cli.command.run(cli.log_format.name(), begun));
    // A read of standard input cannot be called back, and nothing else is left to wait for.
    runtime.shutdown_background();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("epoka: {failure}");
            failure.exit_code()
        }
    }
}

/// Logs go to standard error, filtered by EPOKA_LOG: a node's from `info` on, a command's from `warn` on.
fn start_logging(format: LogFormat, node: bool) {
    let default = if node {
        "info,openraft=error,openraft::replication=off,h2=error"
    } else {
        "warn"
    };
    let filter = EnvFilter::try_from_env("EPOKA_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    match format {
        LogFormat::Text => lines.init(),
        LogFormat::Json => lines.json().init(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_tree_is_sound_and_every_command_shows_an_example() {
        let mut command = Cli::command();
        command.build();
        command.clone().debug_assert();
        for sub in command.get_subcommands().filter(|c| c.get_name() != "help") {
            let help = sub
                .get_after_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            assert!(
                help.contains("Example"),
                "{} shows no example",
                sub.get_name()
            );
        }
    }
}
