//! `epoka kill | stop | start | pause | resume`: does something to one process of a local cluster.

use std::time::Duration;

use clap::Args;
use epoka_client::{Client, ClientConfig, Connections, Metadata};
use epoka_proto::ids::{BrokerId, TopicPartition};
use epoka_proto::v1::{ActRequest, DescribeQuorumRequest, Process};
use serde_json::json;

use crate::cluster::{Action, ClusterArgs, Description};
use crate::failure::{Failure, Outcome};
use crate::target::{Kind, Target};

/// How long a controller may take to say who is active.
const QUORUM_PATIENCE: Duration = Duration::from_secs(1);
/// How long `--wait` waits.
const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// Which process.
#[derive(Args, Debug)]
pub struct ActArgs {
    /// broker:2, leader:orders-0, follower:orders-0, controller (the active one), controller:1.
    pub target: Target,
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Print what was done as JSON.
    #[arg(long)]
    pub json: bool,
}

/// Which process to start, and what to wait for.
#[derive(Args, Debug)]
pub struct StartArgs {
    #[command(flatten)]
    pub act: ActArgs,
    /// Wait until every partition has all its replicas in the ISR again.
    #[arg(long)]
    pub wait: bool,
}

/// Does it.
///
/// # Errors
/// No process plays that part, or the supervisor refuses; what was started has died.
pub async fn run(action: Action, args: ActArgs) -> Outcome {
    if !args.cluster.bootstrap.is_empty() {
        return Err(Failure::usage(
            "processes are reached through their cluster's directory: name it with --data-dir, without --bootstrap or EPOKA_BOOTSTRAP",
        ));
    }
    let (cluster, processes) = args.cluster.processes().await?;
    let (kind, id) = match only_candidate(action, &args.target, &processes) {
        Some(found) => found,
        None => resolve(&args, &cluster, &processes).await?,
    };
    let connections = Connections::default();
    let mut supervisor = connections.supervisor(&cluster.supervisor)?;
    let request = ActRequest {
        action: action.to_wire().into(),
        kind: kind.name().to_owned(),
        id,
    };
    let answer = supervisor
        .act(request)
        .await
        .map_err(|_| args.cluster.not_running())?;
    let answer = answer.into_inner();
    if !answer.refused.is_empty() {
        return Err(Failure::wrong(format!(
            "{}; `epoka status` shows the processes",
            answer.refused
        )));
    }
    if action == Action::Start {
        super::started::wait_until_up(&args.cluster, &cluster, kind, id).await?;
    }
    if args.json {
        let done = json!({"done": action.past(), "kind": kind.name(), "id": id, "pid": answer.pid});
        say!("{done}");
    } else {
        let part = match &args.target {
            Target::Process(..) => String::new(),
            Target::Leader(partition) => format!(", leader of {partition}"),
            Target::Follower(partition) => format!(", follower of {partition}"),
            Target::ActiveController => ", the active one".to_owned(),
        };
        say!("{kind} {id}{part} {} (pid {})", action.past(), answer.pid);
    }
    Ok(())
}

/// Starts a process, and waits if asked to.
///
/// # Errors
/// As [`run`]; the cluster does not become whole in time.
pub async fn start(args: StartArgs) -> Outcome {
    if !args.wait {
        return run(Action::Start, args.act).await;
    }
    let cluster = args.act.cluster.clone();
    let Target::Process(kind, id) = args.act.target else {
        return Err(Failure::usage(
            "--wait needs the process by name, such as broker:2",
        ));
    };
    let broker = (kind == Kind::Broker).then_some(BrokerId(id));
    let epoch = |m: &Metadata| Some(m.brokers.get(&broker?)?.epoch);
    // Its last life, as far as anybody is there to tell.
    let before = match cluster.client().await {
        Ok(client) => epoch(&client.metadata()),
        Err(_) => None,
    };
    run(Action::Start, args.act).await?;
    let client = Client::new(cluster.describe()?.brokers_grpc(), ClientConfig::default());
    // Right after a kill the cluster may still look whole: the dead life has to be replaced first.
    let whole = |m: &Metadata| {
        let reborn = broker.is_none() || epoch(m) > before;
        let serving = m.brokers.values().all(|b| !b.fenced);
        (reborn && serving && m.partitions().all(|(_, p)| p.is_whole())).then_some(())
    };
    let what = "waiting for every broker to serve and every ISR to be whole";
    client.wait_until(what, WAIT_LIMIT, whole).await?;
    Ok(())
}

/// Who was stopped or paused by a part that it no longer plays: what is to be started or resumed is then the only process that
/// can be.
fn only_candidate(action: Action, target: &Target, processes: &[Process]) -> Option<(Kind, i32)> {
    let kind = match target {
        Target::Process(..) => return None,
        Target::Leader(_) | Target::Follower(_) => Kind::Broker,
        Target::ActiveController => Kind::Controller,
    };
    let can_be = |state: &str| match action {
        Action::Start => state != "running" && state != "paused",
        Action::Resume => state == "paused",
        Action::Kill | Action::Stop | Action::Pause => false,
    };
    let mut candidates = processes
        .iter()
        .filter(|p| p.kind == kind.name() && can_be(&p.state));
    match (candidates.next(), candidates.next()) {
        (Some(only), None) => Some((kind, only.id)),
        _ => None,
    }
}

async fn resolve(
    args: &ActArgs,
    cluster: &Description,
    processes: &[Process],
) -> Outcome<(Kind, i32)> {
    match &args.target {
        Target::Process(kind, id) => Ok((*kind, *id)),
        Target::Leader(partition) => {
            let client = args.cluster.client().await?;
            leader(&client, partition).map(|id| (Kind::Broker, id.0))
        }
        Target::Follower(partition) => {
            let client = args.cluster.client().await?;
            follower(&client, partition, processes).map(|id| (Kind::Broker, id.0))
        }
        Target::ActiveController => active_controller(cluster)
            .await
            .map(|id| (Kind::Controller, id)),
    }
}

fn leader(client: &Client, partition: &TopicPartition) -> Outcome<BrokerId> {
    let metadata = client.metadata();
    let leader = metadata.partition(partition)?.leader;
    leader.ok_or_else(|| {
        Failure::wrong(format!(
            "{partition} has no leader; name a process instead, such as broker:1"
        ))
    })
}

/// A running broker that follows, one in the ISR if there is one.
fn follower(
    client: &Client,
    partition: &TopicPartition,
    processes: &[Process],
) -> Outcome<BrokerId> {
    let metadata = client.metadata();
    let state = metadata.partition(partition)?;
    let runs = |id: &BrokerId| {
        processes
            .iter()
            .any(|p| p.kind == "broker" && p.id == id.0 && p.state == "running")
    };
    let follows = |id: &&BrokerId| Some(**id) != state.leader && runs(id);
    let found = state
        .isr
        .iter()
        .find(follows)
        .or_else(|| state.replicas.iter().find(follows));
    found.copied().ok_or_else(|| {
        Failure::wrong(format!(
            "{partition} has no running follower; name a process instead, such as broker:1"
        ))
    })
}

async fn active_controller(cluster: &Description) -> Outcome<i32> {
    let connections = Connections::default();
    for controller in cluster.nodes_of(Kind::Controller) {
        let mut client = connections.controller(&controller.grpc)?;
        let asked = client.describe_quorum(DescribeQuorumRequest {});
        if let Ok(Ok(answer)) = tokio::time::timeout(QUORUM_PATIENCE, asked).await
            && let Some(id) = answer.into_inner().active_id
        {
            return Ok(id);
        }
    }
    Err(Failure::wrong(
        "no controller is active; name one instead, such as controller:1",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(kind: &str, id: i32, state: &str) -> Process {
        Process {
            kind: kind.into(),
            id,
            state: state.into(),
            ..Process::default()
        }
    }

    #[test]
    fn what_was_stopped_by_a_part_comes_back_by_it_if_there_is_no_doubt() {
        let orders: Target = "leader:orders-0".parse().expect("a target");
        let controller: Target = "controller".parse().expect("a target");
        let processes = [
            process("broker", 1, "killed"),
            process("broker", 2, "running"),
            process("broker", 3, "paused"),
            process("controller", 1, "paused"),
        ];
        let found = |action, target| only_candidate(action, target, &processes);
        assert_eq!(found(Action::Start, &orders), Some((Kind::Broker, 1)));
        assert_eq!(found(Action::Resume, &orders), Some((Kind::Broker, 3)));
        assert_eq!(
            found(Action::Resume, &controller),
            Some((Kind::Controller, 1))
        );
        assert_eq!(found(Action::Start, &controller), None);
        assert_eq!(found(Action::Kill, &orders), None);
        let two = [
            process("broker", 1, "killed"),
            process("broker", 2, "stopped"),
        ];
        assert_eq!(only_candidate(Action::Start, &orders, &two), None);
    }
}
