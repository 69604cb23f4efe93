//! Clusters of containers. Where no Docker engine answers, or it has no image, these tests say so and pass; with
//! EPOKA_REQUIRE_DOCKER=1 they fail.
#![cfg(feature = "containers")]

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use epoka_testing::epoka_client::{ProducerConfig, ProducerRecord, Start};
use epoka_testing::{Builder, Cluster, Error, Result, TopicPartition, active_controller, leader};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use testcontainers::bollard::query_parameters::{
    InspectNetworkOptions, ListContainersOptionsBuilder,
};
use testcontainers::core::client::docker_client_instance;
use tokio::time::{Instant, sleep};

const ORDERS: usize = 2_000;
/// The variable that makes [`victim`] the process to be ended.
const VICTIM: &str = "EPOKA_TESTING_VICTIM";
/// How long containers may take to be gone.
const PATIENCE: Duration = Duration::from_secs(60);

/// `None` where there is no Docker, or no image.
async fn start(builder: Builder) -> Result<Option<Cluster>> {
    let required = std::env::var("EPOKA_REQUIRE_DOCKER").is_ok_and(|v| v == "1");
    match builder.in_containers().start().await {
        Ok(cluster) => Ok(Some(cluster)),
        Err(Error::NoDocker { why }) if !required => {
            skipped(&why.to_string());
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// How many containers this network has, and whether it exists.
async fn left(network: &str) -> (usize, bool) {
    let docker = docker_client_instance().await.expect("an engine");
    let label = format!("epoka.testing.network={network}");
    let filters = HashMap::from([("label", vec![label])]);
    let options = ListContainersOptionsBuilder::default().all(true);
    let found = docker
        .list_containers(Some(options.filters(&filters).build()))
        .await;
    let inspected = docker
        .inspect_network(network, None::<InspectNetworkOptions>)
        .await;
    (found.expect("an answer").len(), inspected.is_ok())
}

#[tokio::test]
async fn acknowledged_orders_survive_their_leader() -> Result<()> {
    let begun = Instant::now();
    let Some(cluster) = start(Cluster::builder().topic("orders", 3, 3)).await? else {
        return Ok(());
    };
    println!("ready in {} ms", begun.elapsed().as_millis());
    let producer = cluster.client().producer(ProducerConfig::default());
    let mut deliveries = Vec::new();
    let mut killed = None;
    for n in 0..ORDERS {
        if n == ORDERS / 2 {
            killed = Some(cluster.kill(leader("orders", 0)).await?);
        }
        let order = ProducerRecord::new("orders", format!("order {n}")).partition(0);
        deliveries.push(producer.send(order).await?);
    }
    let mut last = None;
    for delivery in deliveries {
        last = delivery.await?.offset;
    }
    cluster.start(killed.expect("half way")).await?;
    cluster.await_isr("orders", 0, 3).await?;

    let orders = TopicPartition::new("orders", 0);
    let mut consumer = cluster.client().consumer(orders, Start::Earliest);
    let mut read = Vec::new();
    let end = last.expect("acknowledged with its offset") + 1;
    consumer
        .read_to(end, |record| read.extend(record.value))
        .await?;
    let expected: Vec<_> = (0..ORDERS).map(|n| format!("order {n}")).collect();
    assert_eq!(read, expected, "each once, in order");

    let timeline = cluster.timeline().await;
    println!("{timeline}");
    let killed = killed.expect("half way");
    assert!(timeline.to_string().contains(&format!("{killed} killed")));
    assert!(timeline.unavailable_ms().next().is_some(), "{timeline}");
    Ok(())
}

#[tokio::test]
async fn containers_are_stopped_paused_and_started_again() -> Result<()> {
    let plan = Cluster::builder().topic("orders", 1, 3);
    let plan = plan.set("broker.session.timeout.ms", "2000");
    let Some(cluster) = start(plan).await? else {
        return Ok(());
    };
    let stopped = cluster.stop(leader("orders", 0)).await?;
    cluster.await_isr("orders", 0, 2).await?;
    assert_eq!(cluster.start(leader("orders", 0)).await?, stopped);
    cluster.await_whole().await?;

    let paused = cluster.pause(leader("orders", 0)).await?;
    let producer = cluster.client().producer(ProducerConfig::default());
    let record = ProducerRecord::new("orders", "a record").partition(0);
    producer.send(record).await?.await?;
    assert_eq!(cluster.resume(leader("orders", 0)).await?, paused);
    cluster.await_isr("orders", 0, 3).await?;

    let controller = cluster.kill(active_controller()).await?;
    assert_eq!(cluster.start(active_controller()).await?, controller);
    cluster.await_whole().await?;
    let running = cluster.start(controller).await.expect_err("it runs");
    assert!(matches!(running, Error::Refused { .. }), "{running}");
    Ok(())
}

#[tokio::test]
async fn a_dropped_cluster_leaves_no_container_and_no_network() -> Result<()> {
    let Some(cluster) = start(Cluster::builder().brokers(1)).await? else {
        return Ok(());
    };
    let (network, bootstrap) = cluster.network().expect("containers have one");
    assert_eq!(bootstrap, format!("{network}-broker-1:19092"));
    let network = network.to_owned();
    assert_eq!(left(&network).await, (2, true));
    drop(cluster);
    assert_eq!(left(&network).await, (0, false));
    Ok(())
}

/// Not a test of its own: the process that the tests below end.
#[tokio::test]
async fn victim() -> Result<()> {
    if std::env::var_os(VICTIM).is_none() {
        return Ok(());
    }
    match start(Cluster::builder().brokers(1)).await? {
        Some(cluster) => {
            println!("\nnetwork {}", cluster.network().expect("containers").0);
            std::future::pending::<()>().await;
        }
        None => println!("\nnetwork none"),
    }
    Ok(())
}

/// A process with a cluster, and the cluster's network; `None` where there is no Docker.
fn start_victim() -> Option<(Child, String)> {
    let test = std::env::current_exe().expect("this test");
    let mut child = Command::new(test)
        .args(["--exact", "victim", "--nocapture"])
        .env(VICTIM, "1")
        .stdout(Stdio::piped())
        .spawn()
        .expect("this test runs");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let network = lines.by_ref().map_while(Result::ok).find_map(|line| {
        let network = line.strip_prefix("network ")?;
        Some(network.to_owned())
    });
    let network = network.expect("it says whether it has a cluster");
    if network == "none" {
        skipped("no Docker engine, or no image");
        child.wait().expect("its own child");
        return None;
    }
    Some((child, network))
}

async fn until_gone(network: &str) {
    let deadline = Instant::now() + PATIENCE;
    while left(network).await != (0, false) {
        assert!(Instant::now() < deadline, "still there: {network}");
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn an_interrupted_test_leaves_no_container_and_no_network() {
    let Some((mut child, network)) = start_victim() else {
        return;
    };
    let pid = i32::try_from(child.id()).expect("process ids fit");
    kill(Pid::from_raw(pid), Signal::SIGINT).expect("its own child");
    child.wait().expect("its own child");
    assert_eq!(left(&network).await, (0, false));
}

#[tokio::test]
async fn what_a_killed_test_left_is_removed_by_the_next_cluster() -> Result<()> {
    let Some((mut child, network)) = start_victim() else {
        return Ok(());
    };
    child.kill().expect("its own child");
    child.wait().expect("its own child");
    // Others may be starting clusters beside this test, and have it removed before this one looks.
    let next = start(Cluster::builder().brokers(1)).await?;
    until_gone(&network).await;
    drop(next);
    Ok(())
}

/// Past the test harness, which keeps to itself what a passing test prints.
fn skipped(why: &str) {
    use std::io::Write as _;
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    drop(writeln!(std::io::stderr(), "skipped {test}: {why}"));
}
