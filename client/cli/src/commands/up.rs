//! `epoka up`: a cluster on this machine, in the foreground.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use epoka_client::NewTopic;
use tokio::io::AsyncReadExt as _;
use tokio::task::JoinHandle;

use crate::cluster::{LocalCluster, Plan};
use crate::failure::Outcome;
use crate::node::StopSignal;
use crate::target::Kind;
use crate::topic_spec::{TopicSpec, key_value};

/// Start a cluster on this machine and keep it running.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  epoka up
  epoka up --topic orders:6:3 --topic audit:1:3:cleanup.policy=compact
  epoka up --port 0 --data-dir /tmp/try --controllers 3

The first line on standard output says that the cluster can take writes:
  ready in 412 ms · bootstrap 127.0.0.1:9092,127.0.0.1:9093,127.0.0.1:9094
Ctrl-C stops it cleanly; the next `up` resumes the same data.")]
pub struct UpArgs {
    /// How many brokers [default: as many as the directory has, or 3].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=100))]
    pub brokers: Option<i32>,
    /// How many controllers: 1, 3 or 5 [default: as many as the directory has, or 1].
    #[arg(long, value_name = "N", value_parser = controllers)]
    pub controllers: Option<i32>,
    /// Where the cluster keeps its data.
    #[arg(
        long,
        value_name = "DIR",
        default_value = ".epoka",
        env = "EPOKA_DATA_DIR"
    )]
    pub data_dir: PathBuf,
    /// A topic to create where absent, and to wait for [default: orders:3:3 in a new cluster].
    #[arg(long = "topic", value_name = "NAME:PARTITIONS:RF[:KEY=VALUE,...]")]
    pub topics: Vec<TopicSpec>,
    /// The first broker's Kafka port; the next brokers take the next ports; 0 picks free ones.
    #[arg(long, default_value_t = 9092)]
    pub port: u16,
    /// Delete the directory's cluster first.
    #[arg(long)]
    pub fresh: bool,
    /// Start processes again that were killed or ended by themselves.
    #[arg(long)]
    pub restart: bool,
    /// End, cleanly, when standard input does: for programs that start a cluster.
    #[arg(long)]
    pub with_stdin: bool,
    /// A setting for every node that knows it; cluster-wide defaults count only for a new cluster.
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_value)]
    pub set: Vec<(String, String)>,
}

/// How many controllers there may be: a majority of an even number is no smaller than of the next odd one.
fn controllers(text: &str) -> Result<i32, String> {
    match text.parse() {
        Ok(count @ (1 | 3 | 5)) => Ok(count),
        _ => Err("a cluster has 1, 3 or 5 controllers, so that a majority can be told".to_owned()),
    }
}

/// Runs the command. `begun` is when the program started.
///
/// # Errors
/// The cluster cannot be started.
pub async fn run(args: UpArgs, log_format: &str, begun: Instant) -> Outcome {
    let mut stop = Stop::new(args.with_stdin)?;
    let plan = Plan {
        directory: args.data_dir,
        brokers: args.brokers,
        controllers: args.controllers,
        port: args.port,
        fresh: args.fresh,
        set: args.set,
        log_format: log_format.to_owned(),
    };
    let cluster = LocalCluster::launch(&plan).await?;
    if !cluster.deleted().is_empty() {
        let directory = cluster.directory().display();
        eprintln!("deleted from {directory}: {}", cluster.deleted().join(", "));
    }
    let topics: Vec<_> = args
        .topics
        .into_iter()
        .map(|TopicSpec(topic)| topic)
        .collect();
    let default = default_topic(&cluster);
    let ready = tokio::select! {
        ready = cluster.ready(&topics, &default) => ready,
        () = stop.received() => {
            shut_down(&cluster, &mut stop).await;
            return Ok(());
        }
    };
    if let Err(failure) = ready {
        cluster.kill().await;
        return Err(failure);
    }
    let bootstrap = &cluster.description().bootstrap;
    println!(
        "ready in {} ms · bootstrap {bootstrap}",
        begun.elapsed().as_millis()
    );
    tokio::select! {
        () = stop.received() => {}
        () = cluster.supervisor().revive(), if args.restart => {}
    }
    shut_down(&cluster, &mut stop).await;
    Ok(())
}

/// What a new cluster holds when nothing was asked for.
pub fn default_topic(cluster: &LocalCluster) -> NewTopic {
    let brokers = cluster.description().nodes_of(Kind::Broker).count();
    NewTopic::new(
        "orders",
        3,
        i32::try_from(brokers.min(3)).expect("at most 3"),
    )
}

/// What ends the cluster: a signal, or the end of standard input where that counts.
struct Stop {
    signal: StopSignal,
    /// Ends when standard input does.
    input: Option<JoinHandle<()>>,
}

impl Stop {
    fn new(with_stdin: bool) -> Outcome<Self> {
        let signal = StopSignal::new()?;
        let input = with_stdin.then(|| {
            tokio::spawn(async {
                let mut input = tokio::io::stdin();
                let mut unread = [0; 1024];
                // What cannot be read any more has ended too.
                while matches!(input.read(&mut unread).await, Ok(1..)) {}
            })
        });
        Ok(Self { signal, input })
    }

    /// Waits for the next of them. Cancel-safe.
    async fn received(&mut self) {
        let signal = self.signal.received();
        let Some(input) = &mut self.input else {
            return signal.await;
        };
        tokio::select! {
            () = signal => {}
            _ = input => self.input = None,
        }
    }
}

async fn shut_down(cluster: &LocalCluster, stop: &mut Stop) {
    eprintln!("stopping brokers, then controllers; Ctrl-C again kills them");
    tokio::select! {
        () = cluster.stop() => {}
        () = stop.received() => {
            eprintln!("killing what is left");
            cluster.kill().await;
        }
    }
}
