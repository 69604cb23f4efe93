//! `epoka consume`: records of a topic on standard output.

use std::io::Write as _;
use std::str::FromStr;

use clap::Args;
use epoka_client::{Client, PartitionConsumer, Record, Start};
use epoka_proto::ids::{Offset, TopicPartition};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::cluster::ClusterArgs;
use crate::failure::{Failure, Outcome};
use crate::node::StopSignal;

/// Print records: from the beginning on, and new ones as they come.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  epoka consume orders --exit
  epoka consume orders --partition 0 --offset 1040 --max-messages 10
  epoka consume orders --timestamp 1764475200000 --json")]
pub struct ConsumeArgs {
    /// The topic.
    pub topic: String,
    /// Only this partition.
    #[arg(long)]
    pub partition: Option<i32>,
    /// Where to begin in each partition: earliest, latest, or an offset.
    #[arg(long, default_value = "earliest", conflicts_with = "timestamp")]
    pub offset: From,
    /// Begin at the first record of this time or later, in milliseconds since 1970.
    #[arg(long, value_name = "MS")]
    pub timestamp: Option<i64>,
    /// Stop after this many records.
    #[arg(long, value_name = "N")]
    pub max_messages: Option<u64>,
    /// Stop at the end of what is committed now.
    #[arg(long, short = 'e', visible_alias = "exit-at-end")]
    pub exit: bool,
    /// Print the key before the value, with a tab between.
    #[arg(long)]
    pub print_key: bool,
    /// Print partition and offset before each record.
    #[arg(long)]
    pub print_offset: bool,
    /// Print the headers before the value.
    #[arg(long)]
    pub print_headers: bool,
    /// Print one JSON object a record.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// A place to begin.
#[derive(Clone, Copy, Debug)]
pub struct From(Start);

impl FromStr for From {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "earliest" | "beginning" => Ok(Self(Start::Earliest)),
            "latest" | "end" => Ok(Self(Start::Latest)),
            number => match number.parse() {
                Ok(offset) if offset >= 0 => Ok(Self(Start::Offset(Offset(offset)))),
                _ => Err(format!(
                    "`{text}` is neither earliest nor latest nor an offset"
                )),
            },
        }
    }
}

/// Runs the command.
///
/// # Errors
/// The topic does not exist; the offset is out of range.
pub async fn run(args: ConsumeArgs) -> Outcome {
    let mut stop = StopSignal::new()?;
    tokio::select! {
        () = stop.received() => Ok(()),
        outcome = consume(args) => outcome,
    }
}

async fn consume(args: ConsumeArgs) -> Outcome {
    let client = args.cluster.client().await?;
    let (sender, mut records) = mpsc::channel(64);
    for partition in reachable(&client, partitions(&args, &client)?, args.offset.0).await? {
        let end = match args.exit {
            true => Some(client.find_offset(&partition, Start::Latest).await?.offset),
            false => None,
        };
        let start = args.timestamp.map_or(args.offset.0, Start::Timestamp);
        let consumer = client.consumer(partition, start);
        tokio::spawn(read(client.clone(), consumer, start, end, sender.clone()));
    }
    drop(sender);
    let mut left = args.max_messages.unwrap_or(u64::MAX);
    while left > 0 {
        let Some(batch) = records.recv().await else {
            break;
        };
        let (partition, records) = batch?;
        if !print(&args, &partition, &records, &mut left) {
            break;
        }
    }
    Ok(())
}

fn partitions(args: &ConsumeArgs, client: &Client) -> Outcome<Vec<TopicPartition>> {
    let metadata = client.metadata();
    let name = |number: i32| TopicPartition::new(args.topic.as_str(), number);
    if let Some(number) = args.partition {
        metadata.partition(&name(number))?;
        return Ok(vec![name(number)]);
    }
    Ok(metadata
        .topic(&args.topic)?
        .partitions
        .keys()
        .map(|&n| name(n))
        .collect())
}

/// The partitions that have the offset to begin at, if it is one. Those that end before are named on standard error.
///
/// # Errors
/// None of them has it.
async fn reachable(
    client: &Client,
    partitions: Vec<TopicPartition>,
    start: Start,
) -> Outcome<Vec<TopicPartition>> {
    let Start::Offset(wanted) = start else {
        return Ok(partitions);
    };
    let (mut reachable, mut missing) = (Vec::new(), Vec::new());
    for partition in partitions {
        let first = client.find_offset(&partition, Start::Earliest).await?;
        let end = client.find_offset(&partition, Start::Latest).await?;
        match out_of_range(&partition, wanted, first.offset, end.offset) {
            Some(why) => missing.push(why),
            None => reachable.push(partition),
        }
    }
    if reachable.is_empty() && !missing.is_empty() {
        return Err(Failure::wrong(format!(
            "offset {wanted} is out of range: {}; --offset takes earliest or latest too",
            missing.join(", ")
        )));
    }
    if !missing.is_empty() {
        eprintln!("left out, without offset {wanted}: {}", missing.join(", "));
    }
    Ok(reachable)
}

/// Says which end of a partition an offset is beyond, if it does not have it and is not about to have it.
fn out_of_range(
    partition: &TopicPartition,
    wanted: Offset,
    first: Offset,
    end: Offset,
) -> Option<String> {
    if wanted > end {
        Some(format!("the log of {partition} ends at {end}"))
    } else if wanted < first {
        Some(format!("the log of {partition} begins at {first}"))
    } else {
        None
    }
}

type Batch = Result<(TopicPartition, Vec<Record>), Failure>;

/// Reads one partition, to `end` if there is one, until nobody listens.
async fn read(
    client: Client,
    mut consumer: PartitionConsumer,
    start: Start,
    end: Option<Offset>,
    listener: mpsc::Sender<Batch>,
) {
    let partition = consumer.partition().clone();
    if let Some(end) = end {
        match client.find_offset(&partition, start).await {
            Ok(found) if found.offset >= end => return,
            Ok(_) => {}
            Err(error) => {
                let _ = listener.send(Err(error.into())).await;
                return;
            }
        }
    }
    loop {
        let fetched = tokio::select! {
            () = listener.closed() => return,
            fetched = consumer.next() => fetched,
        };
        let batch = match fetched {
            Ok(fetched) => {
                let mut records = fetched.records;
                records.retain(|r| end.is_none_or(|end| r.offset < end));
                Ok((partition.clone(), records))
            }
            Err(error) => Err(error.into()),
        };
        let failed = batch.is_err();
        let at_end = end.is_some_and(|end| consumer.position().is_some_and(|p| p >= end));
        if listener.send(batch).await.is_err() || failed || at_end {
            return;
        }
    }
}

/// `false` when nobody reads any more.
fn print(
    args: &ConsumeArgs,
    partition: &TopicPartition,
    records: &[Record],
    left: &mut u64,
) -> bool {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let mut write = || -> std::io::Result<()> {
        for record in records {
            if *left == 0 {
                break;
            }
            *left -= 1;
            if args.json {
                writeln!(out, "{}", record_json(partition, record))?;
                continue;
            }
            if args.print_offset {
                write!(out, "{partition}\t{}\t", record.offset)?;
            }
            if args.print_headers {
                write!(out, "{}\t", headers(record))?;
            }
            if args.print_key {
                out.write_all(record.key.as_deref().unwrap_or(b"null"))?;
                out.write_all(b"\t")?;
            }
            out.write_all(record.value.as_deref().unwrap_or_default())?;
            out.write_all(b"\n")?;
        }
        out.flush()
    };
    write().is_ok()
}

fn headers(record: &Record) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let one = |(key, value): &(bytes::Bytes, Option<bytes::Bytes>)| {
        format!(
            "{}={}",
            text(key),
            value.as_deref().map_or_else(|| "null".to_owned(), text)
        )
    };
    record.headers.iter().map(one).collect::<Vec<_>>().join(",")
}

fn record_json(partition: &TopicPartition, record: &Record) -> Value {
    let text = |bytes: &Option<bytes::Bytes>| {
        bytes
            .as_deref()
            .map(|b| String::from_utf8_lossy(b).into_owned())
    };
    let headers: Vec<_> = record
        .headers
        .iter()
        .map(|(k, v)| json!({"key": String::from_utf8_lossy(k), "value": text(v)}))
        .collect();
    json!({
        "topic": &*partition.topic,
        "partition": partition.partition,
        "offset": record.offset.0,
        "timestamp_ms": record.timestamp,
        "key": text(&record.key),
        "value": text(&record.value),
        "headers": headers,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_to_begin_is_an_end_or_an_offset() {
        let read = |text: &str| text.parse::<From>().map(|f| f.0);
        assert_eq!(read("earliest"), Ok(Start::Earliest));
        assert_eq!(read("latest"), Ok(Start::Latest));
        assert_eq!(read("42"), Ok(Start::Offset(Offset(42))));
        assert!(read("-5").is_err() && read("soon").is_err());
    }

    #[test]
    fn an_offset_outside_the_log_is_answered_with_the_end_that_is_nearer() {
        let partition = TopicPartition::new("orders", 0);
        let why = |wanted| out_of_range(&partition, Offset(wanted), Offset(5), Offset(10));
        assert_eq!(why(5), None);
        assert_eq!(why(10), None, "the next record to come");
        assert!(why(11).is_some_and(|w| w.contains("orders-0 ends at 10")));
        assert!(why(4).is_some_and(|w| w.contains("orders-0 begins at 5")));
    }
}
