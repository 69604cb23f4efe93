//! Clients: kcat, driven as a person drives it, librdkafka in this process, and our own SDK where Kafka's cannot tell.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use epoka_proto::batch::batches;
use epoka_proto::compression::Compression;
use epoka_proto::ids::TopicPartition;
use epoka_tests::harness::cluster::PATIENCE;
use epoka_tests::harness::{Cluster, Spec, files, kafka, raw};
use rdkafka::message::{Header, Headers as _, Message as _, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

const EPOKA: &str = env!("CARGO_BIN_EXE_epoka-under-test");
/// Lines of the text file that is sent.
const LINES: usize = 12_000;

/// Whether kcat can be run; where it must be, its absence is an error.
fn has_kcat() -> bool {
    let found = std::process::Command::new("kcat")
        .arg("-V")
        .output()
        .is_ok();
    let required = std::env::var("EPOKA_REQUIRE_KCAT").is_ok_and(|v| v == "1");
    assert!(
        found || !required,
        "EPOKA_REQUIRE_KCAT=1, but kcat is not installed"
    );
    if !found {
        epoka_tests::skipped("kcat is not installed");
    }
    found
}

fn kcat(cluster: &Cluster, arguments: &[&str]) -> Command {
    let mut command = Command::new("kcat");
    command.args(["-b", &cluster.bootstrap()]).args(arguments);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// Runs kcat to its end, which must be a good one; returns what it printed.
async fn run(cluster: &Cluster, arguments: &[&str]) -> String {
    let output = tokio::time::timeout(PATIENCE, kcat(cluster, arguments).output()).await;
    let output = output
        .unwrap_or_else(|_| panic!("kcat {arguments:?} does not end"))
        .expect("kcat runs");
    good(output, arguments)
}

fn good(output: Output, arguments: &[&str]) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "kcat {arguments:?}: {}: {errors}",
        output.status
    );
    String::from_utf8(output.stdout).expect("text")
}

fn text_file(dir: &Path, lines: usize) -> PathBuf {
    let path = dir.join("lines.txt");
    let text: String = (0..lines)
        .map(|n| format!("{n} 2026-11-30 status installed libexample{n}:amd64 1.{n}-2\n"))
        .collect();
    fs::write(&path, text).expect("writable");
    path
}

async fn started(topics: &[(&str, i32)]) -> Cluster {
    let spec = topics
        .iter()
        .fold(Spec::default(), |spec, (name, partitions)| {
            spec.topic(name, *partitions, &[])
        });
    Cluster::start(EPOKA, spec).await
}

#[tokio::test(flavor = "multi_thread")]
async fn kcat_lists_brokers_topics_leaders_and_replicas() {
    if !has_kcat() {
        return;
    }
    let mut cluster = started(&[("orders", 3)]).await;
    let listed = run(&cluster, &["-L"]).await;
    assert!(
        listed.contains(" 3 brokers:") && listed.contains("topic \"orders\" with 3 partitions:"),
        "{listed}"
    );
    for broker in cluster.brokers() {
        let line = format!(
            "broker {} at {}",
            broker.id(),
            cluster.kafka_address(broker)
        );
        assert!(listed.contains(&line), "`{line}` is missing: {listed}");
    }
    for partition in 0..3 {
        let leader = cluster.leader_of("orders", partition).await.id();
        assert!(
            listed.contains(&format!(
                "partition {partition}, leader {leader}, replicas: "
            )),
            "{listed}"
        );
    }
}

/// The show: a file produced with acks=all and idempotence while the leader dies three times.
#[tokio::test(flavor = "multi_thread")]
async fn kcat_delivers_every_line_once_and_in_order_while_leaders_die() {
    if !has_kcat() {
        return;
    }
    let mut cluster = started(&[("lines", 3)]).await;
    let text = fs::read_to_string(text_file(cluster.scratch(), LINES)).expect("just written");
    let arguments = [
        "-P",
        "-t",
        "lines",
        "-X",
        "enable.idempotence=true",
        "-X",
        "acks=all",
        "-X",
        "message.timeout.ms=60000",
    ];
    let mut producing = kcat(&cluster, &arguments)
        .stdin(Stdio::piped())
        .spawn()
        .expect("kcat runs");
    let mut input = producing.stdin.take().expect("piped");
    let lines: Vec<_> = text.lines().collect();
    for (n, part) in lines.chunks(LINES / 4 + 1).enumerate() {
        let part: String = part.iter().map(|line| format!("{line}\n")).collect();
        input.write_all(part.as_bytes()).await.expect("kcat reads");
        if n < 3 {
            let leader = cluster.leader_of("lines", 0).await;
            cluster.kill(leader);
            cluster.leader_other_than(leader, "lines", 0).await;
            cluster.start_node(leader);
            let whole = |m: &epoka_client::Metadata| {
                m.partitions().all(|(_, p)| p.is_whole()).then_some(())
            };
            cluster.until_metadata("full ISRs", whole).await;
        }
    }
    drop(input);
    let output = tokio::time::timeout(PATIENCE * 2, producing.wait_with_output()).await;
    good(output.expect("kcat ends").expect("it ran"), &arguments);

    let consumed = run(
        &cluster,
        &[
            "-C",
            "-t",
            "lines",
            "-o",
            "beginning",
            "-e",
            "-q",
            "-f",
            "%p %s\n",
        ],
    )
    .await;
    let mut partitions = BTreeMap::<&str, Vec<&str>>::new();
    for line in consumed.lines() {
        let (partition, line) = line.split_once(' ').expect("as asked for");
        partitions.entry(partition).or_default().push(line);
    }
    let number = |line: &&str| {
        line.split(' ')
            .next()
            .and_then(|n| n.parse::<usize>().ok())
            .expect("a number")
    };
    for (partition, lines) in &partitions {
        assert!(
            lines.iter().map(number).is_sorted(),
            "partition {partition} is out of order"
        );
    }
    let mut all: Vec<_> = partitions.into_values().flatten().collect();
    all.sort_by_key(number);
    assert_eq!(all.len(), lines.len(), "every line once");
    assert_eq!(all, lines);
    cluster.await_whole().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_codec_goes_to_disk_as_it_came_and_reads_back() {
    if !has_kcat() {
        return;
    }
    let codecs = [
        ("none", Compression::None),
        ("gzip", Compression::Gzip),
        ("snappy", Compression::Snappy),
        ("lz4", Compression::Lz4),
        ("zstd", Compression::Zstd),
    ];
    let mut cluster = started(&codecs.map(|(name, _)| (name, 1))).await;
    let file = text_file(cluster.scratch(), 2000);
    let text = fs::read_to_string(&file).expect("just written");
    let file = file.to_str().expect("text").to_owned();
    for (name, codec) in codecs {
        run(
            &cluster,
            &[
                "-P", "-t", name, "-p", "0", "-z", name, "-X", "acks=all", "-l", &file,
            ],
        )
        .await;
        let read = run(
            &cluster,
            &["-C", "-t", name, "-p", "0", "-o", "beginning", "-e", "-q"],
        )
        .await;
        assert!(
            read == text,
            "{name}: {} bytes instead of {}",
            read.len(),
            text.len()
        );
        let read = kafka::read_all(&cluster.bootstrap(), name, 1, PATIENCE);
        let values = read.iter().map(|m| m.payload().expect("a value"));
        assert!(
            values.eq(text.lines().map(str::as_bytes)),
            "{name}: the other client reads the same"
        );
        cluster.await_whole().await;
        for broker in cluster.brokers() {
            let log = files::log_bytes(&cluster.partition_dir(broker, name, 0));
            let mut kept =
                batches(&log).map(|b| b.expect("whole batches").0.attributes.compression());
            assert!(kept.all(|c| c == Ok(codec)), "{name} on {broker}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kcat_finds_offsets_by_time_and_reads_from_any() {
    if !has_kcat() {
        return;
    }
    let mut cluster = started(&[("orders", 1)]).await;
    let leader = cluster.leader_of("orders", 0).await;
    let first = raw::now();
    for n in 0..3 {
        while raw::now() < first + n * 20 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let values = [format!("{n}-a"), format!("{n}-b")];
        let answer = cluster
            .produce(
                leader,
                ("orders", 0),
                -1,
                raw::batch(None, &values.each_ref().map(String::as_str)),
            )
            .await;
        assert_eq!((answer.error, answer.base_offset), (0, n * 2), "{answer:?}");
    }
    let later = first + 3_600_000;
    for (time, offset) in [
        (-2, "0"),
        (-1, "6"),
        (0, "0"),
        (first + 20, "2"),
        (first + 40, "4"),
        (later, "6"),
    ] {
        let answer = run(&cluster, &["-Q", "-t", &format!("orders:0:{time}")]).await;
        // librdkafka 2.0 says -1 where no record is that late; its consumers begin at the end then.
        let expected: &[&str] = if time == later {
            &["6", "-1"]
        } else {
            &[offset]
        };
        let found = answer.trim().rsplit(' ').next().expect("an offset");
        assert!(expected.contains(&found), "{time}: {answer}");
    }
    let from = |offset: &str| {
        let offset = offset.to_owned();
        let cluster = &cluster;
        async move {
            run(
                cluster,
                &["-C", "-t", "orders", "-p", "0", "-o", &offset, "-e", "-q"],
            )
            .await
        }
    };
    assert_eq!(from("3").await, "1-b\n2-a\n2-b\n");
    assert_eq!(from("-2").await, "2-a\n2-b\n");
    assert_eq!(from(&format!("s@{}", first + 40)).await, "2-a\n2-b\n");
    assert_eq!(from("end").await, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_headers_tombstones_timestamps_and_large_values_come_back_as_they_went() {
    let cluster = started(&[("orders", 1)]).await;
    for codec in ["none", "gzip", "snappy", "lz4", "zstd"] {
        let mut config = kafka::client(&cluster.bootstrap());
        config
            .set("enable.idempotence", "true")
            .set("compression.codec", codec);
        let producer: FutureProducer = config.create().expect("the settings are valid");
        let large = codec.repeat(900_000 / codec.len());
        let headers = OwnedHeaders::new()
            .insert(Header {
                key: "codec",
                value: Some(codec),
            })
            .insert(Header {
                key: "nothing",
                value: None::<&str>,
            })
            .insert(Header {
                key: "codec",
                value: Some("again"),
            });
        let records = [
            FutureRecord::to("orders")
                .partition(0)
                .key("plain")
                .payload("value")
                .timestamp(1_700_000_000_123),
            FutureRecord::to("orders")
                .partition(0)
                .key("headers")
                .payload("")
                .headers(headers),
            FutureRecord::to("orders").partition(0).key("tombstone"),
            FutureRecord::to("orders")
                .partition(0)
                .payload(large.as_str()),
        ];
        let start = kafka::read_all(&cluster.bootstrap(), "orders", 1, PATIENCE).len();
        for (n, record) in records.into_iter().enumerate() {
            let sent = producer.send::<str, str, _>(record, PATIENCE).await;
            let delivered = sent.unwrap_or_else(|(error, _)| panic!("{codec}: {error}"));
            assert_eq!(
                (delivered.partition, delivered.offset),
                (0, (start + n) as i64),
                "{codec}"
            );
        }
        let read = kafka::read_all(&cluster.bootstrap(), "orders", 1, PATIENCE);
        let [plain, headers, tombstone, big] = &read[start..] else {
            panic!("four records: {}", read.len() - start)
        };
        assert_eq!(
            (plain.key(), plain.payload()),
            (Some(&b"plain"[..]), Some(&b"value"[..]))
        );
        assert_eq!(plain.timestamp().to_millis(), Some(1_700_000_000_123));
        assert_eq!(headers.payload(), Some(&b""[..]));
        let got: Vec<_> = headers
            .headers()
            .expect("headers")
            .iter()
            .map(|h| (h.key.to_owned(), h.value))
            .collect();
        let expected = [
            ("codec", Some(codec.as_bytes())),
            ("nothing", None),
            ("codec", Some(&b"again"[..])),
        ];
        assert_eq!(got, expected.map(|(key, value)| (key.to_owned(), value)));
        assert_eq!(
            (tombstone.key(), tombstone.payload()),
            (Some(&b"tombstone"[..]), None)
        );
        assert!(
            big.key().is_none() && big.payload() == Some(large.as_bytes()),
            "{codec}"
        );
    }
}

/// L-10: what a broker must not take, it names.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_larger_than_the_topic_takes_is_refused_with_kafkas_error() {
    let spec = Spec::default().topic("small", 1, &[("max.message.bytes", "10000")]);
    let cluster = Cluster::start(EPOKA, spec).await;
    let producer: FutureProducer = kafka::client(&cluster.bootstrap())
        .create()
        .expect("the settings are valid");
    let value = "x".repeat(20_000);
    let record = FutureRecord::<str, str>::to("small")
        .partition(0)
        .payload(&value);
    let (error, _) = producer
        .send(record, PATIENCE)
        .await
        .expect_err("too large");
    assert_eq!(
        error.rdkafka_error_code(),
        Some(rdkafka::types::RDKafkaErrorCode::MessageSizeTooLarge),
        "{error}"
    );
}

/// Each partition is followed by a call of its own, and HTTP/2 servers allow 200 on a connection unless told otherwise: the others
/// would wait for good.
#[tokio::test(flavor = "multi_thread")]
async fn one_connection_follows_hundreds_of_partitions() {
    const PARTITIONS: i32 = 660;
    let cluster = started(&[]).await;
    let wide = epoka_client::NewTopic::new("wide", PARTITIONS, 1);
    cluster.create_topic(&wide).await;
    let client = cluster.client();
    let known = client.wait_until("the leaders of wide", PATIENCE, |m| {
        let wide = m.topics.get("wide")?;
        let led = wide.partitions.values().filter(|p| p.leader.is_some());
        (led.count() == PARTITIONS as usize).then_some(())
    });
    known.await.expect("a broker knows it");
    let producer = client.producer(epoka_client::ProducerConfig::default());
    let mut sent = Vec::new();
    for partition in 0..PARTITIONS {
        let record = epoka_client::ProducerRecord::new("wide", "x").partition(partition);
        sent.push(producer.send(record).await.expect("queued"));
    }
    for delivery in sent {
        delivery.await.expect("delivered");
    }
    let mut consumers: Vec<_> = (0..PARTITIONS)
        .map(|p| {
            client.consumer(
                TopicPartition::new("wide", p),
                epoka_client::Start::Earliest,
            )
        })
        .collect();
    let all = futures::future::join_all(consumers.iter_mut().map(|c| c.next()));
    let fetched = tokio::time::timeout(PATIENCE, all).await;
    for fetched in fetched.expect("every partition is heard of") {
        assert_eq!(fetched.expect("read").records.len(), 1);
    }
}
