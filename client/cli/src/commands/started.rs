//! Whether a process that was just started came up: it serves, or it has ended and its last words say why.

use std::time::Duration;

use epoka_client::{Client, ClientConfig, Connections};
use epoka_proto::ids::BrokerId;
use epoka_proto::v1::DescribeQuorumRequest;
use tokio::time::{Instant, sleep, timeout};

use crate::cluster::{ClusterArgs, Description, NodeDescription, last_line};
use crate::failure::{Failure, Outcome};
use crate::target::Kind;

/// How long a process may take to come up before that is not waited for any longer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long one look at it may take.
const LOOK: Duration = Duration::from_secs(1);
/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(20);

/// Waits until the process serves. One that runs but does not serve, perhaps because no controller is there to admit it,
/// is named on standard error after a while; that is no failure of its start.
///
/// # Errors
/// The process has ended.
pub async fn wait_until_up(
    args: &ClusterArgs,
    cluster: &Description,
    kind: Kind,
    id: i32,
) -> Outcome {
    let node = cluster.nodes_of(kind).find(|node| node.id == id);
    let node = node.ok_or_else(|| Failure::wrong(format!("cluster.json has no {kind} {id}")))?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        if timeout(LOOK, serves(node)).await == Ok(true) {
            return Ok(());
        }
        let (_, processes) = args.processes().await?;
        let own = |p: &&epoka_proto::v1::Process| p.kind == kind.name() && p.id == id;
        let state = processes.iter().find(own).map(|p| p.state.as_str());
        if !matches!(state, Some("running" | "paused")) {
            return Err(died(node));
        }
        if Instant::now() >= deadline {
            eprintln!(
                "{} runs, but does not serve yet; `epoka status` shows the processes, {} is what it says",
                node.title(),
                node.output.display()
            );
            return Ok(());
        }
        sleep(PAUSE).await;
    }
}

/// Whether a broker, as it sees itself, may lead; whether a controller answers.
async fn serves(node: &NodeDescription) -> bool {
    match node.kind {
        Kind::Broker => {
            let client = Client::new(vec![node.grpc.clone()], ClientConfig::default());
            let view = client.describe(node.grpc.clone()).await;
            view.is_ok_and(|view| {
                let own = view.brokers.get(&BrokerId(node.id));
                own.is_some_and(|broker| !broker.fenced)
            })
        }
        Kind::Controller => {
            let Ok(mut client) = Connections::default().controller(&node.grpc) else {
                return false;
            };
            client
                .describe_quorum(DescribeQuorumRequest {})
                .await
                .is_ok()
        }
    }
}

fn died(node: &NodeDescription) -> Failure {
    let why = last_line(&node.output).unwrap_or_else(|| "it said nothing".to_owned());
    let why = why.strip_prefix("epoka: ").unwrap_or(&why);
    Failure::wrong(format!(
        "{} was started and has ended: {why} (its output: {})",
        node.title(),
        node.output.display()
    ))
}
