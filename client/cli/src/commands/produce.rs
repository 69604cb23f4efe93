//! `epoka produce`: the lines of standard input as records.

use std::collections::VecDeque;
use std::pin::pin;
use std::time::Duration;

use clap::{Args, ValueEnum};
use epoka_client::{Acks, Compression, Delivery, Producer, ProducerConfig, ProducerRecord};
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::time::timeout;

use crate::cluster::ClusterArgs;
use crate::failure::{Failure, Outcome};
use crate::topic_spec::key_value;

/// How long an acknowledgement may take before that is worth a word.
const SILENT: Duration = Duration::from_secs(3);
/// Deliveries that may be outstanding before the oldest is looked at.
const OUTSTANDING: usize = 10_000;

/// Send the lines of standard input, each a record.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  epoka produce orders < /var/log/dpkg.log
  echo 'customer-7:paid' | epoka produce orders --key-separator :
  epoka produce orders --partition 0 --acks 1 --header source=test")]
pub struct ProduceArgs {
    /// The topic.
    pub topic: String,
    /// The partition of every record [default: chosen by key, or spread].
    #[arg(long)]
    pub partition: Option<i32>,
    /// The key of every record.
    #[arg(long, conflicts_with = "key_separator")]
    pub key: Option<String>,
    /// Each line is a key, this separator, and a value.
    #[arg(long, value_name = "TEXT")]
    pub key_separator: Option<String>,
    /// A header of every record; may be repeated.
    #[arg(long = "header", value_name = "KEY=VALUE", value_parser = key_value)]
    pub headers: Vec<(String, String)>,
    /// When a record counts as written.
    #[arg(long, default_value = "all")]
    pub acks: AcksArg,
    /// Do not number batches: a retry may write one twice.
    #[arg(long)]
    pub no_idempotence: bool,
    /// Codec of the batches: none, gzip, snappy, lz4, zstd.
    #[arg(long, default_value = "none")]
    pub compression: Compression,
    /// How long to wait for more lines before a batch is sent, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 5)]
    pub linger: u64,
    /// How long a record may take, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 120_000)]
    pub timeout: u64,
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Print the outcome as JSON.
    #[arg(long)]
    pub json: bool,
}

impl ProduceArgs {
    fn patience(&self) -> Duration {
        Duration::from_millis(self.timeout.max(1))
    }
}

/// Kafka's acks.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum AcksArg {
    /// Committed on all in-sync replicas.
    #[value(alias = "-1")]
    All,
    /// Appended by the leader.
    #[value(name = "1")]
    Leader,
    /// Not waited for.
    #[value(name = "0")]
    None,
}

impl From<AcksArg> for Acks {
    fn from(acks: AcksArg) -> Self {
        match acks {
            AcksArg::All => Self::All,
            AcksArg::Leader => Self::Leader,
            AcksArg::None => Self::None,
        }
    }
}

/// Runs the command.
///
/// # Errors
/// The topic does not exist; a line is no record; some record was not acknowledged.
pub async fn run(args: ProduceArgs) -> Outcome {
    let client = args.cluster.client().await?;
    let metadata = client.metadata();
    if let Some(partition) = args.partition {
        let name = epoka_proto::ids::TopicPartition::new(args.topic.as_str(), partition);
        metadata.partition(&name)?;
    }
    metadata.topic(&args.topic)?;
    let producer = client.producer(ProducerConfig {
        acks: args.acks.into(),
        idempotent: !args.no_idempotence,
        linger: Duration::from_millis(args.linger),
        compression: args.compression,
        delivery_timeout: args.patience(),
        ..ProducerConfig::default()
    });
    let mut tally = Tally::default();
    // What was sent before a line that cannot be sent is still written, and counted.
    let sent = send_lines(&args, &producer, &mut tally).await;
    producer.close().await;
    let Tally {
        acked, failed, why, ..
    } = tally;
    if args.json {
        say!(
            "{}",
            json!({"topic": args.topic, "acked": acked, "failed": failed})
        );
    } else {
        eprintln!("{acked} records acknowledged by {}", args.topic);
    }
    match why {
        None => sent,
        Some(why) => Err(Failure::wrong(format!(
            "{failed} records were not acknowledged: {why}"
        ))),
    }
}

#[derive(Default)]
struct Tally {
    acked: u64,
    failed: u64,
    why: Option<String>,
    has_complained: bool,
}

impl Tally {
    async fn settle(&mut self, delivery: Delivery, patience: Duration) {
        let mut delivery = pin!(delivery);
        let outcome = match timeout(SILENT, &mut delivery).await {
            Ok(outcome) => outcome,
            Err(_) => {
                if !std::mem::replace(&mut self.has_complained, true) {
                    eprintln!(
                        "no acknowledgement for {} s; a record is given up after {} s (--timeout)",
                        SILENT.as_secs(),
                        patience.as_secs()
                    );
                }
                delivery.await
            }
        };
        match outcome {
            Ok(_) => self.acked += 1,
            Err(error) => {
                self.failed += 1;
                self.why.get_or_insert_with(|| error.to_string());
            }
        }
    }
}

/// Sends every line, up to the first that cannot be sent, and waits for what came of them.
async fn send_lines(args: &ProduceArgs, producer: &Producer, tally: &mut Tally) -> Outcome {
    let mut outstanding = VecDeque::new();
    let sent = feed(args, producer, tally, &mut outstanding).await;
    for delivery in outstanding {
        tally.settle(delivery, args.patience()).await;
    }
    sent
}

async fn feed(
    args: &ProduceArgs,
    producer: &Producer,
    tally: &mut Tally,
    outstanding: &mut VecDeque<Delivery>,
) -> Outcome {
    let mut input = BufReader::with_capacity(1 << 16, tokio::io::stdin());
    let mut line = Vec::new();
    let mut number = 0u64;
    loop {
        line.clear();
        if input.read_until(b'\n', &mut line).await? == 0 {
            return Ok(());
        }
        number += 1;
        if line.last() == Some(&b'\n') {
            line.pop();
        }
        outstanding.push_back(producer.send(record(args, &line, number)?).await?);
        if outstanding.len() > OUTSTANDING
            && let Some(oldest) = outstanding.pop_front()
        {
            tally.settle(oldest, args.patience()).await;
        }
        if tally.failed > 0 {
            return Ok(());
        }
    }
}

fn record(args: &ProduceArgs, line: &[u8], number: u64) -> Outcome<ProducerRecord> {
    let (key, value) = match &args.key_separator {
        None => (args.key.as_ref().map(|k| k.as_bytes().to_vec()), line),
        Some(separator) => {
            let at = find(line, separator.as_bytes()).ok_or_else(|| {
                Failure::wrong(format!(
                    "line {number} has no `{separator}` between a key and a value; nothing was sent from there on"
                ))
            })?;
            (Some(line[..at].to_vec()), &line[at + separator.len()..])
        }
    };
    let headers = args.headers.iter().map(|(k, v)| {
        let bytes = |text: &String| bytes::Bytes::copy_from_slice(text.as_bytes());
        (bytes(k), Some(bytes(v)))
    });
    Ok(ProducerRecord {
        topic: args.topic.clone(),
        partition: args.partition,
        timestamp: None,
        key: key.map(Into::into),
        value: Some(bytes::Bytes::copy_from_slice(value)),
        headers: headers.collect(),
    })
}

fn find(line: &[u8], separator: &[u8]) -> Option<usize> {
    if separator.is_empty() {
        return None;
    }
    line.windows(separator.len()).position(|w| w == separator)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: ProduceArgs,
    }

    fn args(line: &[&str]) -> ProduceArgs {
        let line = ["produce", "orders"].iter().chain(line);
        Cli::try_parse_from(line).expect("well formed").args
    }

    #[test]
    fn a_line_is_split_at_the_first_separator() {
        let args = args(&["--key-separator", "=>"]);
        let record = record(&args, b"k=>v=>w", 1).expect("has one");
        assert_eq!(record.key.as_deref(), Some(&b"k"[..]));
        assert_eq!(record.value.as_deref(), Some(&b"v=>w"[..]));
        let error = super::record(&args, b"none", 7).expect_err("has none");
        assert!(error.to_string().contains("line 7"), "{error}");
    }

    #[test]
    fn every_record_bears_the_key_and_the_headers_given() {
        let args = args(&[
            "--key", "k", "--header", "a=1", "--header", "b=2", "--acks", "1",
        ]);
        let record = record(&args, b"v", 1).expect("a line");
        assert_eq!(record.key.as_deref(), Some(&b"k"[..]));
        let headers: Vec<_> = record.headers.iter().map(|(k, _)| k.as_ref()).collect();
        assert_eq!(headers, [b"a", b"b"]);
        assert!(matches!(args.acks, AcksArg::Leader));
    }
}
