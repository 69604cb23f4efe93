//! Any cluster by the address that Kafka clients take: both protocols are spoken there, commands and the SDK need no other way in,
//! and addresses that lead nowhere are said to.

use std::process::{Child, Command as Blocking, Stdio};
use std::time::Duration;

use epoka_client::Client;
use epoka_client::events::Collector;
use epoka_proto::v1::broker_change::Kind as BrokerKind;
use epoka_proto::v1::event::Kind;
use epoka_tests::harness::cluster::PATIENCE;
use epoka_tests::harness::ports::Port;
use epoka_tests::harness::up::run;
use epoka_tests::harness::wait::poll;
use epoka_tests::harness::{Up, kafka};
use rdkafka::producer::{FutureProducer, FutureRecord};
use serde_json::Value;
use tokio::time::timeout;

const EPOKA: &str = env!("CARGO_BIN_EXE_epoka-under-test");

#[tokio::test(flavor = "multi_thread")]
async fn a_kafka_address_is_all_that_commands_need() {
    let up = Up::start(EPOKA, &["--topic", "orders:3:3:min.insync.replicas=2"]).await;
    let all = up.bootstrap();
    let first = all.split(',').next().expect("an address").to_owned();
    let nowhere = tempfile::tempdir().expect("a directory");
    let epoka = |arguments: &[&str]| {
        let mut command = Blocking::new(EPOKA);
        command.args(arguments).args(["--bootstrap", &first]);
        command.current_dir(nowhere.path());
        command.output().expect("it runs")
    };
    let status = epoka(&["status", "--json"]);
    let status: Value = serde_json::from_slice(&status.stdout).expect("JSON");
    assert_eq!(status["bootstrap"], all);
    assert_eq!(status["brokers"][2]["standing"], "serving");

    // A Kafka client and ours at one port.
    let producer: FutureProducer = kafka::client(&first).create().expect("settings");
    let record = FutureRecord::<(), _>::to("orders").partition(0);
    let sent = producer
        .send(record.payload("by librdkafka"), PATIENCE)
        .await;
    sent.expect("acknowledged");
    let read = epoka(&["consume", "orders", "--partition", "0", "--exit"]);
    assert!(
        String::from_utf8_lossy(&read.stdout).contains("by librdkafka"),
        "{read:?}"
    );

    let verified = epoka(&["verify", "--for", "1s", "--json"]);
    assert_eq!(verified.status.code(), Some(0), "{verified:?}");
    let report: Value = serde_json::from_slice(&verified.stdout).expect("JSON");
    assert!(
        report["acked"].as_u64().expect("a number") > 100,
        "{report}"
    );

    // The controller's events come through brokers, each once.
    let client = Client::connect([first.as_str()]).await.expect("a cluster");
    let mut events = Collector::of_cluster(&client, Duration::from_millis(50));
    let mut active = 0;
    while let Ok(Some(event)) = timeout(Duration::from_secs(2), events.next()).await {
        if let Some(Kind::Broker(change)) = &event.kind {
            active += usize::from(change.kind() == BrokerKind::ControllerActive);
        }
    }
    assert_eq!(active, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_leads_nowhere_is_said_to_and_not_waited_for() {
    let (controller, listener, grpc) = (Port::reserve(), Port::reserve(), Port::reserve());
    let dir = tempfile::tempdir().expect("a directory");
    let node = |kind: &str, settings: &[String]| {
        let mut command = Blocking::new(EPOKA);
        command
            .arg(kind)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.args(settings.iter().flat_map(|s| ["--set", s]));
        Ended(command.spawn().expect("it runs"))
    };
    let data = |name: &str| format!("log.dirs={}", dir.path().join(name).display());
    let controllers = format!(
        "controller.quorum.bootstrap.servers={}",
        controller.address()
    );
    let _controller = node(
        "controller",
        &[
            "node.id=1".into(),
            data("controller"),
            format!("listeners=CONTROLLER://{}", controller.address()),
            "epoka.topics=orders:1:1".into(),
        ],
    );
    let broker = |id: i32, listen: &str, grpc: &str| {
        [
            format!("node.id={id}"),
            data(&format!("broker-{id}")),
            controllers.clone(),
            format!("listeners=HOST://{listen}"),
            // Port 1, where nobody listens.
            "advertised.listeners=HOST://127.0.0.1:1".into(),
            format!("epoka.grpc.listener={grpc}"),
        ]
    };
    let first = broker(1, &listener.address(), &grpc.address());
    let _broker = node("broker", &first);
    let health = |settings: &[String]| {
        let mut command = Blocking::new(EPOKA);
        command.args(["health", "broker"]);
        command.args(settings.iter().flat_map(|s| ["--set", s]));
        command.output().expect("it runs")
    };
    let ready = poll(PATIENCE, async || {
        let output = health(&first);
        if output.status.success() {
            Ok(())
        } else {
            Err(output)
        }
    });
    ready
        .await
        .unwrap_or_else(|seen| panic!("never healthy: {seen:?}"));

    let directory = dir.path().display().to_string();
    let bootstrap = listener.address();
    for command in [
        &["status"][..],
        &["consume", "orders"],
        &["topic", "list"],
        &["watch"],
        &["verify"],
    ] {
        let arguments = [
            command,
            &["--data-dir", &directory, "--bootstrap", &bootstrap],
        ]
        .concat();
        let refused = timeout(PATIENCE, run(EPOKA, dir.path(), &arguments)).await;
        let refused = refused.expect("it does not hang");
        let said = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{command:?}: {said}");
        assert!(
            said.contains("broker 1 at 127.0.0.1:1") && said.contains("advertised.listeners"),
            "{said}"
        );
    }

    // The same address once more: settings that were copied.
    let (other, other_grpc) = (Port::reserve(), Port::reserve());
    let second = broker(2, &other.address(), &other_grpc.address());
    let _second = node("broker", &second);
    let told = poll(PATIENCE, async || {
        let output = health(&second);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if said.contains("where broker 1 is reached") {
            Ok(said)
        } else {
            Err(said)
        }
    });
    let told = told.await.unwrap_or_else(|seen| panic!("not said: {seen}"));
    assert!(
        told.contains("give it an address of its own in advertised.listeners"),
        "{told}"
    );
}

/// A process that ends with the test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
