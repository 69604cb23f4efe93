//! The cluster in containers: what a person does to a compose cluster, with the audit running in its network.

use std::process::Stdio;
use std::time::Duration;

use epoka_client::{ProducerRecord, Start};
use epoka_proto::ids::{BrokerId, TopicPartition};
use epoka_tests::docker::{Compose, Docker, Shape, Verify, docker, try_docker};
use epoka_tests::harness::wait::poll;
use epoka_tests::skipped;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::time::timeout;

/// How long a whole recovery may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs kcat on this machine; `None` where there is none and there need not be.
async fn kcat(arguments: &[&str], input: &str) -> Option<String> {
    let mut command = Command::new("kcat");
    command.args(arguments).kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let Ok(mut child) = command.spawn() else {
        let required = std::env::var("EPOKA_REQUIRE_KCAT").is_ok_and(|v| v == "1");
        assert!(!required, "EPOKA_REQUIRE_KCAT=1, but kcat is not installed");
        skipped("a part of it: kcat is not installed");
        return None;
    };
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(input.as_bytes()).await.expect("it reads");
    drop(stdin);
    let output = timeout(PATIENCE, child.wait_with_output()).await;
    let output = output.expect("kcat ends").expect("kcat runs");
    assert!(
        output.status.success(),
        "kcat {arguments:?}: {}",
        output.status
    );
    Some(String::from_utf8(output.stdout).expect("text"))
}

#[tokio::test(flavor = "multi_thread")]
async fn each_broker_is_killed_in_turn_under_load_and_nothing_is_lost() {
    let Some(docker) = Docker::find().await else {
        return;
    };
    for &tool in &docker.tools {
        let cluster = Compose::up(&docker, tool, Shape::Single).await;
        println!("{tool:?}: healthy after {} ms", cluster.took.as_millis());
        let bootstrap = cluster.bootstrap();
        if let Some(listed) = kcat(&["-b", &bootstrap, "-L"], "").await {
            assert!(
                listed.contains("3 brokers") && listed.contains("topic \"orders\" with 3"),
                "{listed}"
            );
            let lines: String = (0..1000).map(|n| format!("line {n}\n")).collect();
            let to = [
                "-b", &bootstrap, "-P", "-t", "orders", "-p", "1", "-X", "acks=all",
            ];
            kcat(&to, &lines).await;
            let from = [
                "-b", &bootstrap, "-C", "-t", "orders", "-p", "1", "-e", "-q",
            ];
            assert_eq!(kcat(&from, "").await.as_ref(), Some(&lines));
        }
        let verify = Verify::start(&cluster, &docker.image).await;
        for broker in 1..=3 {
            let service = format!("broker-{broker}");
            written(&cluster).await;
            cluster.act(&["kill"], &service).await;
            cluster.await_fenced(broker).await;
            written(&cluster).await;
            // A killed broker stays dead until it is started.
            assert_eq!(
                cluster.inspect(&service, "{{.State.Status}}").await,
                "exited"
            );
            cluster.act(&["start"], &service).await;
            cluster.await_whole().await;
        }
        cluster.await_healthy().await;
        let outcome = verify.finish().await;
        outcome.assert_clean();
        println!(
            "{tool:?}: {} records, longest silence {} ms over three kills",
            outcome.report["acked"],
            outcome.longest_silence_ms()
        );
        for broker in 1..=3 {
            let gone = format!("broker {broker} ");
            let told = |line: &String| line.contains(&gone) && line.contains("killed");
            assert!(outcome.timeline.iter().any(told), "{:#?}", outcome.timeline);
        }
        let unavailable = outcome
            .timeline
            .iter()
            .filter(|l| l.contains(": unavailable "));
        assert!(unavailable.count() >= 1, "{:#?}", outcome.timeline);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_is_clean_and_loses_nothing() {
    let Some(docker) = Docker::find().await else {
        return;
    };
    let cluster = Compose::up(&docker, docker.tools[0], Shape::Single).await;
    let verify = Verify::start(&cluster, &docker.image).await;
    for broker in 1..=3 {
        let service = format!("broker-{broker}");
        written(&cluster).await;
        cluster.act(&["stop", "--time", "30"], &service).await;
        assert_eq!(cluster.inspect(&service, "{{.State.ExitCode}}").await, "0");
        let said = cluster.logs(&service).await;
        assert!(said.contains("stopped cleanly"), "{said}");
        cluster.act(&["start"], &service).await;
        cluster.await_whole().await;
    }
    cluster.act(&["stop", "--time", "30"], "controller-1").await;
    assert_eq!(
        cluster.inspect("controller-1", "{{.State.ExitCode}}").await,
        "0"
    );
    cluster.act(&["start"], "controller-1").await;
    cluster.await_whole().await;
    verify.finish().await.assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_paused_or_cut_off_is_fenced_and_comes_back() {
    let Some(docker_there) = Docker::find().await else {
        return;
    };
    let cluster = Compose::up(&docker_there, docker_there.tools[0], Shape::Single).await;
    let verify = Verify::start(&cluster, &docker_there.image).await;

    written(&cluster).await;
    let paused = cluster.leader("orders", 0).await;
    let service = format!("broker-{paused}");
    cluster.act(&["pause"], &service).await;
    // Longer than the session timeout, as it is fenced only then.
    cluster.await_fenced(paused).await;
    written(&cluster).await;
    cluster.act(&["unpause"], &service).await;
    cluster.await_whole().await;

    let cut = cluster.leader("orders", 0).await;
    let service = format!("broker-{cut}");
    let container = cluster.container(&service).await;
    let network = cluster.network();
    docker(&["network", "disconnect", &network, &container]).await;
    cluster.await_fenced(cut).await;
    written(&cluster).await;
    docker(&[
        "network", "connect", "--alias", &service, &network, &container,
    ])
    .await;
    cluster.await_whole().await;
    verify.finish().await.assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_killed_at_once_comes_back_with_its_data() {
    let Some(docker_there) = Docker::find().await else {
        return;
    };
    let cluster = Compose::up(&docker_there, docker_there.tools[0], Shape::Single).await;
    let verify = Verify::start(&cluster, &docker_there.image).await;
    written(&cluster).await;
    let mut all = Vec::new();
    for service in cluster.services() {
        all.push(cluster.container(&service).await);
    }
    let mut all: Vec<_> = all.iter().map(String::as_str).collect();
    docker(&[&["kill"], all.as_slice()].concat()).await;
    // In another order than before, so that their addresses change hands.
    all.reverse();
    docker(&[&["start"], all.as_slice()].concat()).await;
    cluster.await_whole().await;
    written(&cluster).await;
    cluster.await_healthy().await;
    verify.finish().await.assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_lost_its_volume_says_so_and_copies_everything_anew() {
    let Some(docker_there) = Docker::find().await else {
        return;
    };
    let cluster = Compose::up(&docker_there, docker_there.tools[0], Shape::Single).await;
    let verify = Verify::start(&cluster, &docker_there.image).await;
    written(&cluster).await;
    let broker = cluster.leader("orders", 0).await;
    let service = format!("broker-{broker}");
    let container = cluster.container(&service).await;
    docker(&["rm", "--force", &container]).await;
    docker(&["volume", "rm", &cluster.volume(&service)]).await;
    cluster.await_fenced(broker).await;
    written(&cluster).await;
    cluster.compose(&["up", "-d", "--no-deps", &service]).await;
    let metadata = cluster.await_whole().await;
    let said = cluster.logs(&service).await;
    assert!(
        said.contains("no files") && said.contains("copied from their leaders"),
        "{said}"
    );
    verify.finish().await.assert_clean();
    // Whole again means that it holds what the others hold.
    let ends = async |broker: i32| {
        let held = cluster.client().admin().replicas(BrokerId(broker)).await;
        let held = held.expect("it answers").into_iter();
        held.map(|r| (r.partition, r.log_end))
            .collect::<std::collections::BTreeMap<_, _>>()
    };
    assert_eq!(metadata.brokers.len(), 3);
    assert_eq!(ends(broker).await, ends(broker % 3 + 1).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_lost_its_volume_is_refused_and_then_rebuilds_its_metadata() {
    let Some(docker_there) = Docker::find().await else {
        return;
    };
    let cluster = Compose::up(&docker_there, docker_there.tools[0], Shape::Single).await;
    written(&cluster).await;
    written(&cluster).await;
    let container = cluster.container("controller-1").await;
    docker(&["rm", "--force", &container]).await;
    docker(&["volume", "rm", &cluster.volume("controller-1")]).await;
    cluster
        .compose(&["up", "-d", "--no-deps", "controller-1"])
        .await;
    for broker in 1..=3 {
        let service = format!("broker-{broker}");
        let ended = poll(PATIENCE, async || {
            match cluster
                .inspect(&service, "{{.State.Status}} {{.State.ExitCode}}")
                .await
            {
                ended if ended == "exited 1" => Ok(()),
                other => Err(other),
            }
        });
        ended
            .await
            .unwrap_or_else(|seen| panic!("{service} is {seen}"));
        let said = cluster.logs(&service).await;
        assert!(
            said.contains("EPOKA_RESTORE_BROKERS") && said.contains("Nothing was changed"),
            "{said}"
        );
    }
    cluster
        .compose_with(&[("EPOKA_RESTORE_BROKERS", "3")], &["up", "-d"])
        .await;
    cluster.await_healthy().await;
    let metadata = cluster.await_whole().await;
    // What the file declares of a topic is declared again.
    assert_eq!(
        metadata.topics["orders"].configs["min.insync.replicas"],
        "2"
    );
    written(&cluster).await;
    for partition in 0..3 {
        let name = TopicPartition::new("orders", partition);
        let end = cluster.client().find_offset(&name, Start::Latest).await;
        assert_eq!(end.expect("it answers").offset.0, 3, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_active_one_of_three_controllers_is_killed_and_another_takes_over() {
    let Some(docker_there) = Docker::find().await else {
        return;
    };
    let cluster = Compose::up(&docker_there, docker_there.tools[0], Shape::Quorum).await;
    println!(
        "three controllers: healthy after {} ms",
        cluster.took.as_millis()
    );
    let verify = Verify::start(&cluster, &docker_there.image).await;
    written(&cluster).await;
    let mut active = Vec::new();
    for n in 1..=3 {
        let service = format!("controller-{n}");
        if cluster
            .logs(&service)
            .await
            .contains("active controller cluster=")
        {
            active.push(service);
        }
    }
    let active = active.last().expect("one was elected").clone();
    cluster.act(&["kill"], &active).await;
    // Only a controller elects leaders.
    let broker = cluster.leader("orders", 0).await;
    let service = format!("broker-{broker}");
    cluster.act(&["kill"], &service).await;
    cluster.await_fenced(broker).await;
    written(&cluster).await;
    cluster.act(&["start"], &service).await;
    cluster.act(&["start"], &active).await;
    cluster.await_whole().await;
    cluster.await_healthy().await;
    verify.finish().await.assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_image_holds_a_binary_that_needs_nothing_and_refuses_what_cannot_work() {
    let Some(docker_there) = Docker::find().await else {
        return;
    };
    let image = docker_there.image.as_str();
    let hard = [
        "--read-only",
        "--cap-drop",
        "ALL",
        "--user",
        "65532",
        "--network",
        "none",
    ];
    let size = docker(&["image", "inspect", "--format", "{{.Size}}", image]).await;
    println!("image: {size} bytes");
    assert!(size.parse::<u64>().expect("a number") < 64 << 20, "{size}");
    let version = docker(&[&["run", "--rm"], &hard[..], &[image, "--version"]].concat()).await;
    assert!(
        version.starts_with("epoka ") && version.contains('('),
        "{version}"
    );

    let volume = format!("epokatest{:08x}", rand::random::<u32>());
    let mount = format!("{volume}:/data");
    let name = format!("{volume}c");
    let run = ["run", "--detach", "--name", &name, "--volume", &mount];
    let settings = [
        "--env",
        "EPOKA_NODE_ID=1",
        "--env",
        "EPOKA_LISTENERS=CONTROLLER://127.0.0.1:9093",
    ];
    docker(&[&run[..], &hard[..], &settings[..], &[image, "controller"]].concat()).await;
    let check = ["exec", &name, "/epoka", "health", "controller"];
    let healthy = poll(PATIENCE, async || try_docker(&check).await).await;
    drop(try_docker(&["rm", "--force", &name]).await);
    drop(try_docker(&["volume", "rm", &volume]).await);
    assert_eq!(healthy.as_deref(), Ok("ready"));

    let nowhere = [
        "--env",
        "EPOKA_NODE_ID=1",
        "--env",
        "EPOKA_CONTROLLER_QUORUM_BOOTSTRAP_SERVERS=c:1",
    ];
    for (variables, says) in [
        (
            &[
                "EPOKA_LISTENERS=A://0.0.0.0:1",
                "EPOKA_ADVERTISED_LISTENERS=",
            ][..],
            "set advertised.listeners=A://HOST:1",
        ),
        (
            &[
                "EPOKA_LISTENERS=A://:1",
                "EPOKA_ADVERTISED_LISTENERS=A://:1",
            ],
            "no client can reach",
        ),
        (
            &[
                "EPOKA_LISTENERS=A://:1",
                "EPOKA_ADVERTISED_LISTENERS=B://b:1",
            ],
            "listeners has no B, only A",
        ),
        (
            &["EPOKA_GRPC_LISTENER=0.0.0.0:19093"],
            "set epoka.grpc.advertised=HOST:19093",
        ),
    ] {
        let variables = variables
            .iter()
            .flat_map(|v| ["--env", v])
            .collect::<Vec<_>>();
        let arguments = [
            &["run", "--rm"],
            &hard[..],
            &nowhere[..],
            &variables,
            &[image, "broker"],
        ]
        .concat();
        let refused = try_docker(&arguments).await.expect_err("it cannot work");
        assert!(
            refused.contains(says) && refused.contains("exit status: 2"),
            "{refused}"
        );
    }
}

/// Writes one record to every partition, which takes a leader and its minimum ISR.
async fn written(cluster: &Compose) {
    let producer = cluster.client().producer(Default::default());
    for partition in 0..3 {
        let record = ProducerRecord::new("orders", "between").partition(partition);
        let delivery = producer.send(record).await.expect("queued");
        let delivered = timeout(PATIENCE, delivery).await.expect("in time");
        let name = TopicPartition::new("orders", partition);
        delivered.unwrap_or_else(|e| panic!("a write to {name}: {e}"));
    }
    producer.close().await;
}
