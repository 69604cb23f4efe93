//! `epoka verify`: writes to a topic and keeps the books while somebody else breaks the cluster, tells the timeline meanwhile, and
//! compares the books with the log in the end.

use std::collections::BTreeSet;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use epoka_client::events::Collector;
use epoka_client::timeline::{Teller, next_events};
use epoka_client::{Acks, Client, ProducerConfig};
use epoka_proto::ids::{TopicId, TopicPartition};
use epoka_proto::v1::event::Kind;
use epoka_proto::v1::{Event, Truncated};
use serde_json::json;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::follow::{WINDOW, follow};
use crate::audit::{Finding, Report};
use crate::cluster::ClusterArgs;
use crate::failure::{Failure, Outcome};
use crate::load::{Load, LoadConfig, Silence, Watch, check};
use crate::node::StopSignal;

/// How long a record may take.
const DELIVERY: Duration = Duration::from_secs(60);
/// A partition without an acknowledgement for this long is spoken of.
const SILENT: Duration = Duration::from_secs(3);
/// How often that is looked at.
const LOOK: Duration = Duration::from_millis(500);

/// Write, keep the books while you break what you like, and say what was lost. Its records stay in the topic.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  epoka verify --for 30s                                   and in another shell: epoka kill leader:orders-0
  epoka verify payments --bootstrap 127.0.0.1:9092         and: docker kill deploy_broker-1_1
  epoka verify --acks 1                                    what acks=1 costs

Exit code 0 only if every acknowledged record is in the log once, at its offset, in order.")]
pub struct VerifyArgs {
    /// The topic to write to.
    #[arg(default_value = "orders")]
    pub topic: String,
    /// How long to write; Ctrl-C ends it earlier and still audits.
    #[arg(long = "for", value_name = "TIME", default_value = "30s", value_parser = duration)]
    pub duration: Duration,
    /// When a record counts as written.
    #[arg(long, default_value = "all")]
    pub acks: Acknowledged,
    /// Records a second for each partition.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rate: u32,
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Print the outcome as JSON; the timeline goes to standard error.
    #[arg(long)]
    pub json: bool,
}

/// Kafka's acks, but for 0: with that nothing is acknowledged, and there is nothing to verify.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Acknowledged {
    /// Committed on all in-sync replicas.
    #[value(alias = "-1")]
    All,
    /// Appended by the leader.
    #[value(name = "1")]
    Leader,
}

/// A time such as `30s` or `2min`; a bare number is seconds.
fn duration(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.parse() {
        return Ok(Duration::from_secs(seconds));
    }
    humantime::parse_duration(text).map_err(|e| format!("{e}; write a time such as 30s or 2min"))
}

/// Runs the command.
///
/// # Errors
/// Something acknowledged was lost, duplicated or reordered; nothing was acknowledged; the log cannot be read.
pub async fn run(args: VerifyArgs) -> Outcome {
    let acks = match args.acks {
        Acknowledged::All => Acks::All,
        Acknowledged::Leader => Acks::Leader,
    };
    let mut stop = StopSignal::new()?;
    let client = args.cluster.client().await?;
    let partitions = client.metadata().topic(&args.topic)?.partitions.len();
    let partitions: Vec<_> = (0..partitions)
        .filter_map(|n| i32::try_from(n).ok())
        .map(|n| TopicPartition::new(args.topic.as_str(), n))
        .collect();
    let story = Story::begin(follow(&args.cluster).await?, args.json);
    tell(
        args.json,
        &format!(
            "writing {} records a second to each of the {} partitions of {} for {}; break what you like",
            args.rate,
            partitions.len(),
            args.topic,
            humantime::format_duration(args.duration)
        ),
    );
    let config = LoadConfig {
        partitions,
        every: Duration::from_secs(1) / args.rate,
        per_round: 1,
        producer: ProducerConfig {
            acks,
            delivery_timeout: DELIVERY,
            ..ProducerConfig::default()
        },
    };
    // Tells the records of this run from those of others.
    let run = format!("verify-{}", TopicId::random());
    let load = Load::start(&client, &run, config);
    let complaints = tokio::spawn(complain(load.watch(), client.clone(), args.json));
    let mut replaced = pin!(replaced(&client));
    tokio::select! {
        () = sleep(args.duration) => {}
        () = stop.received() => tell(args.json, "interrupted; auditing what was written"),
        error = &mut replaced => return Err(unfinished(&error, load.acked(), load.under_way())),
    }
    let (unknown, acked) = (load.under_way(), load.acked());
    let hesitates = async {
        sleep(LOOK).await;
        tell(
            args.json,
            &format!("waiting for the outcome of {unknown} records"),
        );
        std::future::pending().await
    };
    let (audit, silences) = tokio::select! {
        finished = load.finish() => finished?,
        () = hesitates => unreachable!("it only speaks"),
        error = &mut replaced => return Err(unfinished(&error, acked, unknown)),
        () = stop.received() => return Err(unfinished(&"interrupted", acked, unknown)),
    };
    complaints.abort();
    let cuts = story.end().await;
    let report = tokio::select! {
        report = check(&client, &audit) => report?,
        () = stop.received() => return Err(Failure::wrong("interrupted during the audit")),
    };
    conclude(&args, &report, &silences, &cuts)
}

fn unfinished(why: &dyn std::fmt::Display, acked: usize, unknown: usize) -> Failure {
    Failure::wrong(format!(
        "{why}; before the audit: {acked} records were acknowledged, the outcome of {unknown} was not known"
    ))
}

/// Waits until another cluster has taken the place of the client's.
async fn replaced(client: &Client) -> epoka_client::Error {
    loop {
        sleep(LOOK).await;
        if let Err(error @ epoka_client::Error::OtherCluster { .. }) = client.refresh().await {
            return error;
        }
    }
}

/// Says which partitions take no writes, as long as there are any.
async fn complain(watch: Watch, client: Client, json: bool) {
    let mut told: BTreeSet<TopicPartition> = BTreeSet::new();
    loop {
        sleep(LOOK).await;
        let silent = watch.silent_for(SILENT);
        told.retain(|partition| silent.iter().any(|(p, _)| p == partition));
        for (partition, since) in silent {
            if !told.insert(partition.clone()) {
                continue;
            }
            let metadata = client.metadata();
            let leader = metadata.partition(&partition).ok().and_then(|p| p.leader);
            let whom = match leader.and_then(|id| Some((id, metadata.brokers.get(&id)?))) {
                Some((id, broker)) => format!("its leader is broker {id} at {}", broker.kafka),
                None => "it has no leader that is known".to_owned(),
            };
            tell(
                json,
                &format!(
                    "no acknowledged write to {partition} for {} s; {whom}",
                    since.as_secs()
                ),
            );
        }
    }
}

fn conclude(
    args: &VerifyArgs,
    report: &Report,
    silences: &[Silence],
    cuts: &[(String, Truncated)],
) -> Outcome {
    let findings: Vec<_> = report
        .findings
        .iter()
        .map(|finding| format!("{finding}{}", blame(finding, cuts)))
        .collect();
    if args.json {
        let silent = silences
            .iter()
            .map(|s| json!({"partition": s.partition.to_string(), "ms": s.longest.as_millis()}));
        say!(
            "{:#}",
            json!({
                "topic": args.topic,
                "acked": report.acked,
                "lost": report.lost,
                "duplicated": report.duplicated,
                "reordered": report.reordered,
                "never_sent": report.strange,
                "not_acknowledged": report.unknown,
                "not_acknowledged_but_written": report.unknown_present,
                "longest_without_acknowledgement_ms": silent.collect::<Vec<_>>(),
                "findings": findings,
            })
        );
    } else {
        let longest = silences.iter().max_by_key(|s| s.longest);
        if let Some(silence) = longest {
            say!(
                "longest time without an acknowledged write: {} ms, on {}",
                silence.longest.as_millis(),
                silence.partition
            );
        }
        say!("audit: {report}");
        findings.iter().for_each(|finding| say!("  {finding}"));
    }
    if !report.is_clean() {
        return Err(Failure::wrong(
            "acknowledged records were lost, duplicated or reordered",
        ));
    }
    if report.acked == 0 {
        return Err(Failure::wrong("not one record was acknowledged"));
    }
    Ok(())
}

/// Who cut a lost record off, if somebody was heard to.
fn blame(finding: &Finding, cuts: &[(String, Truncated)]) -> String {
    let (Finding::Lost {
        partition, offset, ..
    }
    | Finding::Moved {
        partition,
        acked: offset,
        ..
    }) = finding
    else {
        return String::new();
    };
    let cut_it = |cut: &&(String, Truncated)| {
        *cut.1.topic == *partition.topic
            && cut.1.partition == partition.partition
            && (cut.1.to_offset..cut.1.from_offset).contains(&offset.0)
    };
    let Some((node, cut)) = cuts.iter().find(cut_it) else {
        return String::new();
    };
    let epochs: Vec<_> = cut.epochs.iter().map(ToString::to_string).collect();
    format!(
        "; {} cut offsets {} to {}, of epoch {}",
        node.replace('-', " "),
        cut.to_offset,
        cut.from_offset - 1,
        epochs.join(", ")
    )
}

/// What replicas cut off, and which node said so.
type Cuts = Vec<(String, Truncated)>;

/// The timeline, told from now on.
struct Story {
    task: JoinHandle<Cuts>,
    over: Arc<Notify>,
}

impl Story {
    fn begin(collector: Collector, json: bool) -> Self {
        let over = Arc::new(Notify::new());
        Self {
            task: tokio::spawn(tell_on(collector, json, over.clone())),
            over,
        }
    }

    async fn end(self) -> Cuts {
        self.over.notify_one();
        self.task.await.unwrap_or_default()
    }
}

/// Tells what happens until it is over, and what was on its way then.
async fn tell_on(mut collector: Collector, json: bool, over: Arc<Notify>) -> Cuts {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let since = now.map_or(0, |d| i64::try_from(d.as_micros()).unwrap_or(i64::MAX));
    let mut teller = Teller::new();
    let mut cuts = Cuts::new();
    let (mut begun, mut ending) = (false, false);
    loop {
        let mut next = pin!(next_events(&mut collector));
        let soon = async |next: Pin<&mut _>| timeout(WINDOW * 3, next).await.ok().flatten();
        let events: Option<Vec<Event>> = if ending {
            soon(next).await
        } else {
            tokio::select! {
                events = &mut next => events,
                () = over.notified() => {
                    ending = true;
                    soon(next).await
                }
            }
        };
        let Some(events) = events else { return cuts };
        for event in &events {
            if let Some(Kind::Truncated(cut)) = &event.kind
                && event.unix_micros >= since
            {
                cuts.push((event.node.clone(), cut.clone()));
            }
        }
        // What happened before only says how things stand.
        let (now, past): (Vec<_>, Vec<_>) =
            events.into_iter().partition(|e| e.unix_micros >= since);
        // What happened before only says how things stand; what is heard of it late says nothing any more.
        if !begun {
            drop(teller.tell(&past));
        }
        if !begun && !now.is_empty() {
            teller.begin(since);
            begun = true;
        }
        let lines = teller.tell(&now);
        lines.iter().for_each(|line| tell(json, &line.to_string()));
    }
}

fn tell(json: bool, line: &str) {
    if json {
        eprintln!("{line}");
    } else {
        say!("{line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use epoka_proto::ids::Offset;

    #[test]
    fn a_lost_record_is_laid_to_whoever_cut_it_off() {
        let cut = Truncated {
            topic: "orders".into(),
            partition: 1,
            from_offset: 20,
            to_offset: 10,
            epochs: vec![4],
            ..Truncated::default()
        };
        let cuts = [("broker-2".to_owned(), cut)];
        let lost = |partition, offset| Finding::Lost {
            partition: TopicPartition::new("orders", partition),
            number: 0,
            offset: Offset(offset),
        };
        assert_eq!(
            blame(&lost(1, 10), &cuts),
            "; broker 2 cut offsets 10 to 19, of epoch 4"
        );
        for elsewhere in [lost(1, 9), lost(1, 20), lost(0, 10)] {
            assert_eq!(blame(&elsewhere, &cuts), "");
        }
    }
}
