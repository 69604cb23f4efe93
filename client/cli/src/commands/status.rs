//! `epoka status`: leaders, epochs, ISR, log end and high watermark of every replica, once.

use clap::Args;

use super::view::View;
use crate::cluster::ClusterArgs;
use crate::failure::{Failure, Outcome};

/// Show processes, leaders, epochs, ISR, and log end and high watermark of every replica.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  epoka status
  epoka status --json | jq '.partitions[] | select(.leader == null)'")]
pub struct StatusArgs {
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
///
/// # Errors
/// There is no cluster to ask, or none of its brokers answers.
pub async fn run(args: StatusArgs) -> Outcome {
    let view = View::take(&args.cluster).await?;
    if args.json {
        say!("{:#}", view.json());
    } else {
        crate::output::print(format_args!("{}", view.text(None)));
    }
    if !view.knows_partitions() {
        return Err(Failure::wrong(
            "no broker answers, so nothing is known of partitions",
        ));
    }
    Ok(())
}
