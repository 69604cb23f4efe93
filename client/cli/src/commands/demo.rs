//! `epoka demo`: a cluster of its own under load, its leader killed three times, the timeline of it, and an audit of every
//! acknowledged write.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use epoka_client::events::Collector;
use epoka_client::timeline::{Teller, next_events};
use epoka_client::{Client, Connections, Metadata, NewTopic, ProducerConfig};
use epoka_proto::ids::{BrokerId, LeaderEpoch, TopicPartition};
use epoka_proto::v1::Event;
use epoka_proto::v1::event::Kind as EventKind;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::cluster::{Action, Description, LocalCluster, Plan};
use crate::failure::{Failure, Outcome};
use crate::load::{Load, LoadConfig, check};
use crate::node::StopSignal;
use crate::target::Kind;

/// How often the leader is killed.
const KILLS: usize = 3;
/// How long the load runs undisturbed before each kill, and before the dead broker is started again.
const CALM: Duration = Duration::from_millis(1200);
/// How long anything that is waited for may take.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long an event is held back for an earlier one from another node.
const WINDOW: Duration = Duration::from_millis(60);

/// The whole story by itself: load, three kills of the leader, timeline, audit, exit code.
#[derive(Args, Debug)]
#[command(after_help = "Example:
  epoka demo && echo 'nothing was lost'

Exit code 0 only if every acknowledged record is there once, in order, and every ISR is whole again.")]
pub struct DemoArgs {
    /// Keep the cluster's data in this directory, which holds no cluster yet [default: a temporary directory, deleted if all is well].
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
}

/// Runs the command.
///
/// # Errors
/// Something was lost, duplicated or reordered, or the cluster did not recover.
pub async fn run(args: DemoArgs) -> Outcome {
    let mut stop = StopSignal::new()?;
    let temporary = args.data_dir.is_none();
    let directory = args
        .data_dir
        .unwrap_or_else(|| std::env::temp_dir().join(format!("epoka-demo-{}", std::process::id())));
    let plan = Plan {
        directory: directory.clone(),
        brokers: Some(3),
        controllers: Some(1),
        port: 0,
        fresh: false,
        set: Vec::new(),
        log_format: "text".to_owned(),
    };
    if Description::read(&directory)?.is_some() {
        let directory = directory.display();
        return Err(Failure::wrong(format!(
            "{directory} holds a cluster already, and the demo begins with nothing: choose another --data-dir"
        )));
    }
    let begun = Instant::now();
    let cluster = LocalCluster::launch(&plan).await?;
    let told = tokio::select! {
        told = tell(&cluster, begun) => told,
        () = stop.received() => Err(Failure::wrong("interrupted")),
    };
    cluster.stop().await;
    drop(cluster);
    if told.is_ok() && temporary {
        std::fs::remove_dir_all(&directory)?;
    } else {
        println!("the cluster's data is in {}", directory.display());
    }
    told
}

async fn tell(cluster: &LocalCluster, begun: Instant) -> Outcome {
    let topic = NewTopic::new("orders", 3, 3).config("min.insync.replicas", "2");
    cluster.ready(std::slice::from_ref(&topic), &topic).await?;
    let client = cluster.client();
    println!(
        "cluster ready in {} ms: 1 controller, 3 brokers, topic orders with 3 partitions on 3 brokers each",
        begun.elapsed().as_millis()
    );
    let subject = TopicPartition::new("orders", 0);
    let partitions = (0..3).map(|n| TopicPartition::new("orders", n)).collect();
    let load = LoadConfig {
        partitions,
        every: Duration::from_millis(2),
        per_round: 2,
        producer: ProducerConfig::default(),
    };
    client.refresh().await?;
    let load = Load::start(client, &format!("demo-{}", std::process::id()), load);
    println!(
        "idempotent load with acks=all running; the leader of {subject} is killed {KILLS} times\n"
    );
    let mut story = Story::follow(cluster);
    for _ in 0..KILLS {
        sleep(CALM).await;
        kill_and_recover(cluster, &subject, &mut story).await?;
    }
    sleep(CALM / 2).await;
    let (audit, _) = load.finish().await?;
    story.end().await;

    let report = check(client, &audit).await?;
    println!("\naudit: {report}");
    for finding in &report.findings {
        println!("  {finding}");
    }
    if !report.is_clean() {
        return Err(Failure::wrong(
            "acknowledged records were lost, duplicated or reordered",
        ));
    }
    if report.acked == 0 {
        return Err(Failure::wrong("not one record was acknowledged"));
    }
    println!(
        "ISR whole on every partition; took {:.1} s",
        begun.elapsed().as_secs_f64()
    );
    Ok(())
}

/// One kill: the leader dies, another one takes writes, the dead one comes back and the ISR is whole.
async fn kill_and_recover(
    cluster: &LocalCluster,
    subject: &TopicPartition,
    story: &mut Story,
) -> Outcome {
    let client = cluster.client();
    let (leader, epoch) = wait(client, "a whole ISR", |m| {
        let partition = m.partition(subject).ok()?;
        everything_whole(m)?;
        Some((partition.leader?, partition.leader_epoch))
    })
    .await?;
    act(cluster, Action::Kill, leader).await?;
    story.first_write(subject, epoch).await?;
    sleep(CALM).await;
    act(cluster, Action::Start, leader).await?;
    wait(
        client,
        "the killed broker to rejoin every ISR",
        everything_whole,
    )
    .await
}

async fn act(cluster: &LocalCluster, action: Action, broker: BrokerId) -> Outcome {
    let done = cluster
        .supervisor()
        .act(action, Kind::Broker, broker.0)
        .await;
    done.map(drop).map_err(Failure::wrong)
}

fn everything_whole(metadata: &Metadata) -> Option<()> {
    let serving = metadata.brokers.values().all(|b| !b.fenced);
    (serving && metadata.partitions().all(|(_, p)| p.is_whole())).then_some(())
}

async fn wait<T>(
    client: &Client,
    what: &str,
    look: impl FnMut(&Metadata) -> Option<T>,
) -> Outcome<T> {
    Ok(client
        .wait_until(&format!("waiting for {what}"), PATIENCE, look)
        .await?)
}

/// Prints the timeline while it happens, and remembers where writes were accepted.
struct Story {
    accepted: watch::Receiver<Vec<(TopicPartition, LeaderEpoch)>>,
    task: tokio::task::JoinHandle<()>,
    over: Arc<tokio::sync::Notify>,
}

impl Story {
    fn follow(cluster: &LocalCluster) -> Self {
        let sources = cluster.description().event_sources();
        let mut collector = Collector::new(&Connections::default(), sources, WINDOW);
        let (sender, accepted) = watch::channel(Vec::new());
        let over = Arc::new(tokio::sync::Notify::new());
        let ended = over.clone();
        let start = micros_now();
        let task = tokio::spawn(async move {
            let mut teller = Teller::new();
            loop {
                let events = tokio::select! {
                    events = next_events(&mut collector) => events,
                    () = ended.notified() => break,
                };
                let Some(events) = events else { break };
                print(&mut teller, &events, start);
                sender
                    .send_modify(|accepted| accepted.extend(events.iter().filter_map(first_write)));
            }
            // What was on its way when the story ended.
            while let Ok(Some(events)) = timeout(WINDOW * 3, next_events(&mut collector)).await {
                print(&mut teller, &events, start);
            }
        });
        Self {
            accepted,
            task,
            over,
        }
    }

    /// Waits until a leader after `epoch` has accepted a write.
    async fn first_write(&mut self, partition: &TopicPartition, epoch: LeaderEpoch) -> Outcome {
        let later = |accepted: &Vec<(TopicPartition, LeaderEpoch)>| {
            accepted.iter().any(|(p, e)| p == partition && *e > epoch)
        };
        match timeout(PATIENCE, self.accepted.wait_for(later)).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(Failure::wrong(format!(
                "no write to {partition} was accepted within {} s of the kill",
                PATIENCE.as_secs()
            ))),
        }
    }

    async fn end(self) {
        self.over.notify_one();
        let _ = self.task.await;
    }
}

/// Prints what happened since the load began; how the cluster came up is not part of the story.
fn print(teller: &mut Teller, events: &[Event], start: i64) {
    for line in teller.tell(events) {
        if line.unix_ms * 1000 >= start {
            println!("{line}");
        }
    }
}

fn first_write(event: &Event) -> Option<(TopicPartition, LeaderEpoch)> {
    match &event.kind {
        Some(EventKind::FirstWrite(write)) => Some((
            TopicPartition::new(write.topic.as_str(), write.partition),
            LeaderEpoch(write.leader_epoch),
        )),
        _ => None,
    }
}

fn micros_now() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |d| i64::try_from(d.as_micros()).unwrap_or(i64::MAX))
}
