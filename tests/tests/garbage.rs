//! What no client sends: other protocols, noise, absurd lengths, half a frame. Only that connection closes; the cluster goes
//! on, and its memory does not follow the numbers it is told.

use std::time::Duration;

use epoka_tests::harness::cluster::PATIENCE;
use epoka_tests::harness::{Cluster, Load, LoadSpec, Node, Spec};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

const EPOKA: &str = env!("CARGO_BIN_EXE_epoka-under-test");
const SEED: u64 = 0x5EED;
/// How much a node may grow by while it is shouted at.
const GROWTH: u64 = 100 << 20;
/// How soon a connection that can mean nothing must be closed.
const CLOSED: Duration = Duration::from_secs(10);

fn tls_hello() -> Vec<u8> {
    let mut hello = vec![
        0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03,
    ];
    hello.extend([0x5a; 501]);
    hello
}

fn http() -> Vec<u8> {
    b"GET /index.html HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n".to_vec()
}

/// A frame with this body.
fn frame(body: &[u8]) -> Vec<u8> {
    let mut frame = i32::try_from(body.len())
        .expect("short")
        .to_be_bytes()
        .to_vec();
    frame.extend(body);
    frame
}

/// A request header (version 1) with what follows it.
fn request(key: i16, version: i16, rest: &[u8]) -> Vec<u8> {
    let mut body = key.to_be_bytes().to_vec();
    body.extend(version.to_be_bytes());
    body.extend(7_i32.to_be_bytes());
    body.extend([0, 1, b'x']);
    body.extend(rest);
    frame(&body)
}

/// Sends bytes; whether the other side closes.
async fn is_closed_after(address: &str, bytes: &[u8]) -> bool {
    let mut socket = TcpStream::connect(address)
        .await
        .expect("the listener is open");
    let exchange = async {
        if socket.write_all(bytes).await.is_err() {
            return;
        }
        let mut answer = [0; 4096];
        while let Ok(read) = socket.read(&mut answer).await {
            if read == 0 {
                return;
            }
        }
    };
    tokio::time::timeout(CLOSED, exchange).await.is_ok()
}

/// A cluster under load, and the addresses to shout at: each kind of listener.
async fn started() -> (Cluster, Load, Vec<(Node, String)>) {
    let cluster = Cluster::start(EPOKA, Spec::default().topic("orders", 1, &[])).await;
    let load = Load::start(&cluster.bootstrap(), LoadSpec::new("orders", 1));
    load.progress(100, PATIENCE).await;
    let (broker, controller) = (Node::Broker(1), Node::Controller(1));
    let targets = vec![
        (broker, cluster.kafka_address(broker)),
        (broker, cluster.grpc_address(broker)),
        (controller, cluster.grpc_address(controller)),
    ];
    (cluster, load, targets)
}

/// Nobody fell over, nobody's lease was lost, every record is there.
async fn assert_unimpressed(mut cluster: Cluster, load: Load, before: &[(Node, u64)]) {
    load.progress(200, PATIENCE).await;
    for (node, bytes) in before {
        assert!(
            cluster.is_running(*node),
            "{node} has ended: {}",
            cluster.output(*node)
        );
        let now = cluster.process(*node).resident_bytes();
        assert!(
            now < bytes + GROWTH,
            "{node} grew from {bytes} to {now} bytes"
        );
        let output = cluster.output(*node);
        assert!(!output.contains("panicked"), "{node}: {output}");
    }
    load.audit().await.assert_clean();
    let metadata = cluster.metadata().await.expect("brokers answer");
    assert_eq!(
        metadata.topics["orders"].partitions[&0].leader_epoch.0, 0,
        "no leader was replaced"
    );
    cluster.await_whole().await;
}

fn memory(cluster: &mut Cluster) -> Vec<(Node, u64)> {
    cluster
        .nodes()
        .into_iter()
        .map(|node| (node, cluster.process(node).resident_bytes()))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn other_protocols_and_impossible_frames_close_their_own_connection() {
    let (mut cluster, load, targets) = started().await;
    let before = memory(&mut cluster);
    for (_, address) in &targets {
        for (what, bytes) in [
            ("HTTP", http()),
            ("a TLS hello", tls_hello()),
            ("noise", vec![0xff; 4096]),
        ] {
            assert!(
                is_closed_after(address, &bytes).await,
                "{what} at {address} was listened to"
            );
        }
    }
    let kafka = cluster.kafka_address(Node::Broker(1));
    let many = i32::MAX.to_be_bytes();
    for (what, bytes) in [
        ("a negative length", (-1_i32).to_be_bytes().to_vec()),
        ("the smallest length", i32::MIN.to_be_bytes().to_vec()),
        ("the largest length", many.to_vec()),
        ("an empty frame", frame(&[])),
        ("half a header", frame(&[0, 3])),
        ("no such API", request(9999, 0, &[])),
        ("an API of the past", request(4, 0, &[])),
        ("a version of the future", request(3, 99, &[])),
        ("two thousand million topics", request(3, 1, &many)),
        (
            "two thousand million topics to write to",
            request(0, 3, &[&[0xff; 4][..], &[0, 0, 0, 1], &many].concat()),
        ),
        (
            "a client id beyond the frame",
            frame(&[0, 3, 0, 1, 0, 0, 0, 7, 0x7f, 0xff, b'x']),
        ),
    ] {
        assert!(
            is_closed_after(&kafka, &bytes).await,
            "{what} was listened to"
        );
    }
    assert!(
        cluster.output(Node::Broker(1)).contains("HTTP"),
        "the guess is in the log"
    );
    assert_unimpressed(cluster, load, &before).await;
}

/// Whoever announces much gets no memory for it before it comes.
#[tokio::test(flavor = "multi_thread")]
async fn announced_but_absent_bytes_cost_nothing() {
    let (mut cluster, load, targets) = started().await;
    let before = memory(&mut cluster);
    let mut held = Vec::new();
    for (_, address) in &targets {
        for _ in 0..100 {
            let mut socket = TcpStream::connect(address)
                .await
                .expect("the listener is open");
            let mut half = (90_i32 << 20).to_be_bytes().to_vec();
            half.extend([0, 0, 0, 9, 0, 0]);
            // A closed connection is an answer too.
            let _ = socket.write_all(&half).await;
            held.push(socket);
        }
    }
    load.progress(500, PATIENCE).await;
    assert_unimpressed(cluster, load, &before).await;
    drop(held);
}

#[tokio::test(flavor = "multi_thread")]
async fn seeded_noise_of_all_lengths_disturbs_nobody() {
    let (mut cluster, load, targets) = started().await;
    let before = memory(&mut cluster);
    println!("seed {SEED:#x}");
    let mut rng = SmallRng::seed_from_u64(SEED);
    for round in 0..300 {
        let (_, address) = &targets[round % targets.len()];
        let mut bytes = vec![0; rng.random_range(1..2000)];
        rng.fill(&mut bytes[..]);
        let bytes = match rng.random_range(0..3) {
            0 => bytes,
            1 => frame(&bytes),
            // A header that promises sense: a known API and version, then noise.
            _ => {
                let key =
                    [0, 1, 2, 3, 10, 18, 19, 20, 22, 23, 32, 37, 43, 60][rng.random_range(0..14)];
                request(key, rng.random_range(0..12), &bytes)
            }
        };
        let mut socket = TcpStream::connect(address)
            .await
            .expect("the listener is open");
        let _ = socket.write_all(&bytes).await; // closed meanwhile, perhaps
        let mut answer = [0; 1024];
        let _ = tokio::time::timeout(Duration::from_millis(5), socket.read(&mut answer)).await;
    }
    assert_unimpressed(cluster, load, &before).await;
}

/// Large requests whose ends never come share what memory there is for them; who sends little is served as ever, and who
/// sends much is once they have been given up.
#[tokio::test(flavor = "multi_thread")]
async fn half_requests_of_many_connections_share_a_bounded_memory() {
    const BOUND: u64 = 96 << 20;
    const CONNECTIONS: usize = 400;
    const SENT: usize = 1 << 20;
    let spec = Spec::default()
        .topic("orders", 1, &[])
        .broker_property("socket.request.max.bytes", "33554432")
        .broker_property("queued.max.request.bytes", &BOUND.to_string());
    let mut cluster = Cluster::start(EPOKA, spec).await;
    let load = Load::start(&cluster.bootstrap(), LoadSpec::new("orders", 1));
    load.progress(100, PATIENCE).await;
    let leader = cluster.leader_of("orders", 0).await;
    let before = cluster.process(leader).resident_bytes();
    let address = cluster.kafka_address(leader);
    let hostile = (0..CONNECTIONS).map(|_| {
        let address = address.clone();
        tokio::spawn(async move {
            let mut socket = TcpStream::connect(&address)
                .await
                .expect("the listener is open");
            let mut half = (30_i32 << 20).to_be_bytes().to_vec();
            half.extend([0, 0, 0, 9, 0, 0, 0, 7]);
            half.resize(SENT, 0);
            // Ends when the broker closes; until then a byte from time to time.
            while socket.write_all(&half).await.is_ok() {
                half.truncate(1);
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        })
    });
    let hostile: Vec<_> = hostile.collect();
    let mut most = before;
    for _ in 0..10 {
        load.progress(100, PATIENCE).await;
        most = most.max(cluster.process(leader).resident_bytes());
    }
    println!("{leader} grew from {before} to {most} bytes");
    let aside = CONNECTIONS as u64 * (128 << 10);
    assert!(
        most < before + BOUND + aside,
        "{leader} grew from {before} to {most} bytes"
    );
    // They do not hold on for ever: most are closed while memory is scarce, the rest in its own time.
    let mut hostile = hostile.into_iter().collect::<FuturesUnordered<_>>();
    for _ in 0..CONNECTIONS / 2 {
        tokio::time::timeout(PATIENCE, hostile.next())
            .await
            .expect("closed for its slowness")
            .expect("there are more")
            .expect("no panic");
    }
    hostile.iter().for_each(JoinHandle::abort);
    assert!(
        cluster.output(leader).contains("closed a Kafka connection"),
        "the reason is in the log"
    );
    assert_unimpressed(cluster, load, &[]).await;
}
