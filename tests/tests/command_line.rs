//! What scripts rely on: `epoka up` and the commands beside it, their output and their exit codes.

use std::fs::File;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use epoka_tests::harness::cluster::PATIENCE;
use epoka_tests::harness::up::run;
use epoka_tests::harness::wait::poll;
use epoka_tests::harness::{Load, LoadSpec, Up, kafka};
use serde_json::Value;
use tokio::process::Command;

const EPOKA: &str = env!("CARGO_BIN_EXE_epoka-under-test");

/// The entry of `orders-0` in what `status --json` prints.
fn orders_0(status: &Value) -> &Value {
    let partitions = status["partitions"].as_array().expect("a list");
    partitions
        .iter()
        .find(|p| p["topic"] == "orders" && p["partition"] == 0)
        .expect("orders-0")
}

fn whole(status: &Value) -> bool {
    let partitions = status["partitions"].as_array().expect("a list");
    partitions
        .iter()
        .all(|p| !p["leader"].is_null() && p["isr"].as_array().map(Vec::len) == Some(3))
}

async fn status_when(up: &Up, what: &str, mut accept: impl FnMut(&Value) -> bool) -> Value {
    let status = poll(PATIENCE, async || {
        let status = up.status().await;
        if accept(&status) {
            Ok(status)
        } else {
            Err(status)
        }
    });
    status
        .await
        .unwrap_or_else(|seen| panic!("waited {PATIENCE:?} for {what}; last seen: {seen:#}"))
}

fn state_of(status: &Value, kind: &str, id: i64) -> String {
    let processes = status["processes"].as_array().expect("a list");
    let process = processes
        .iter()
        .find(|p| p["kind"] == kind && p["id"] == id)
        .expect("a process");
    process["state"].as_str().expect("a state").to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn status_tells_scripts_what_they_rely_on() {
    let mut up = Up::start(EPOKA, &["--topic", "orders:2:3:min.insync.replicas=2"]).await;
    let line = up.output();
    let line = line
        .lines()
        .find(|l| l.starts_with("ready in "))
        .expect("one line says so");
    let (before, servers) = line
        .split_once(" ms · bootstrap ")
        .expect("the agreed form");
    let ms: u64 = before
        .trim_start_matches("ready in ")
        .parse()
        .expect("milliseconds");
    assert!(ms < 30_000, "{line}");
    assert_eq!(servers.split(',').count(), 3, "{line}");

    let status = up.status().await;
    assert_eq!(status["bootstrap"], up.bootstrap());
    let processes = status["processes"].as_array().expect("a list");
    assert_eq!(
        processes.iter().filter(|p| p["kind"] == "broker").count(),
        3
    );
    assert_eq!(
        processes
            .iter()
            .filter(|p| p["kind"] == "controller")
            .count(),
        1
    );
    for process in processes {
        let pid = process["pid"].as_u64().expect("a process id");
        assert!(
            std::path::Path::new(&format!("/proc/{pid}")).exists(),
            "{process}"
        );
        assert_eq!(process["state"], "running");
        assert!(
            process["log_dirs"]
                .as_array()
                .is_some_and(|dirs| !dirs.is_empty()),
            "{process}"
        );
        if process["kind"] == "broker" {
            assert!(
                up.bootstrap()
                    .contains(process["kafka"].as_str().expect("an address")),
                "{process}"
            );
        }
    }
    let partition = orders_0(&status);
    for field in ["leader", "leader_epoch", "partition_epoch"] {
        assert!(partition[field].is_i64(), "{field}: {partition}");
    }
    assert_eq!(
        partition["isr"].as_array().map(Vec::len),
        Some(3),
        "{partition}"
    );
    let replicas = partition["replicas"].as_array().expect("a list");
    assert_eq!(replicas.len(), 3, "{partition}");
    for replica in replicas {
        for field in ["broker", "log_start", "log_end", "high_watermark"] {
            assert!(replica[field].is_i64(), "{field}: {replica}");
        }
    }
    assert!(up.interrupt().await.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_killed_by_name_comes_back_by_name_and_nothing_is_lost() {
    let up = Up::start(EPOKA, &["--topic", "orders:1:3:min.insync.replicas=2"]).await;
    let load = Load::start(up.bootstrap(), LoadSpec::new("orders", 1));
    load.progress(200, PATIENCE).await;
    for _ in 0..3 {
        let leader = orders_0(&up.status().await)["leader"]
            .as_i64()
            .expect("a leader");
        up.succeed(&["kill", "leader:orders-0"]).await;
        let status = status_when(&up, "another leader", |s| {
            let now = &orders_0(s)["leader"];
            !now.is_null() && *now != leader
        });
        assert_eq!(state_of(&status.await, "broker", leader), "killed");
        load.progress(200, PATIENCE).await;
        up.succeed(&["start", &format!("broker:{leader}")]).await;
        let status = status_when(&up, "full ISRs", whole).await;
        assert_eq!(state_of(&status, "broker", leader), "running");
    }
    load.audit().await.assert_clean();
    let epoch = orders_0(&up.status().await)["leader_epoch"]
        .as_i64()
        .expect("an epoch");
    assert!(epoch >= 3, "{epoch}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_up_resumes_the_same_data_after_a_clean_end_and_after_sigkill() {
    let mut up = Up::start(EPOKA, &["--topic", "orders:1:3:min.insync.replicas=2"]).await;
    let load = Load::start(up.bootstrap(), LoadSpec::new("orders", 1));
    load.progress(300, PATIENCE).await;
    let history = load.finish().await;
    history.audit().assert_clean();
    let cluster_id = up.status().await["cluster_id"].clone();

    assert!(up.interrupt().await.success());
    up.again(&[]).await;
    let read = kafka::read_all(up.bootstrap(), "orders", 1, PATIENCE);
    assert_eq!(read.len(), history.finally.len());

    // The supervisor and all nodes at once, as when the machine's user is logged out.
    let pids: Vec<i32> = up.status().await["processes"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|p| i32::try_from(p["pid"].as_i64()?).ok())
        .collect();
    assert_eq!(pids.len(), 4);
    up.kill();
    // A node ends with its supervisor; whichever has not yet is helped along.
    for pid in pids {
        let _gone = nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(pid),
            nix::sys::signal::Signal::SIGKILL,
        );
    }
    up.again(&[]).await;
    let read = kafka::read_all(up.bootstrap(), "orders", 1, PATIENCE);
    assert_eq!(read.len(), history.finally.len());
    assert_eq!(up.status().await["cluster_id"], cluster_id);
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_are_paused_resumed_stopped_and_started_by_name() {
    let up = Up::start(EPOKA, &["--topic", "orders:1:3:min.insync.replicas=2"]).await;
    let status = up.status().await;
    let leads = |id: &i64| orders_0(&status)["leader"] == *id;
    let follower = (1..=3).find(|id| !leads(id)).expect("two brokers follow");
    let target = format!("broker:{follower}");
    up.succeed(&["pause", &target]).await;
    assert_eq!(state_of(&up.status().await, "broker", follower), "paused");
    up.succeed(&["resume", &target]).await;
    assert_eq!(state_of(&up.status().await, "broker", follower), "running");
    up.succeed(&["stop", &target]).await;
    status_when(&up, "the broker to be stopped", |s| {
        state_of(s, "broker", follower) == "stopped"
    })
    .await;
    up.succeed(&["start", &target]).await;
    status_when(&up, "full ISRs", whole).await;
    up.succeed(&["kill", "controller"]).await;
    assert_eq!(state_of(&up.status().await, "controller", 1), "killed");
    up.succeed(&["start", "controller:1"]).await;
    status_when(&up, "the controller", |s| {
        state_of(s, "controller", 1) == "running"
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_codes_tell_wrong_from_wrongly_asked() {
    let elsewhere = tempfile::tempdir().expect("a directory");
    let alone = async |arguments: &[&str]| run(EPOKA, elsewhere.path(), arguments).await;
    for (arguments, code) in [
        (&["status"][..], 1),
        (&["kill", "leader:orders-0"], 1),
        (&["no-such-command"], 2),
        (&["kill", "leader"], 2),
        (&["up", "--brokers", "many"], 2),
        (&["up", "--topic", "orders:x:3"], 2),
        (&["broker", "--set", "node.id=-1"], 2),
        (&["broker", "--set", "no.such.key=1"], 2),
        (&["--help"], 0),
    ] {
        let output = alone(arguments).await;
        assert_eq!(
            output.status.code(),
            Some(code),
            "epoka {arguments:?}: {output:?}"
        );
        assert_eq!(
            output.stderr.is_empty(),
            code == 0,
            "errors go to standard error: {output:?}"
        );
    }

    let up = Up::start(EPOKA, &["--topic", "orders:1:3"]).await;
    for arguments in [
        &["kill", "broker:9"][..],
        &["kill", "leader:none-0"],
        &["start", "broker:1"],
    ] {
        let output = up.epoka(arguments).await;
        assert_eq!(
            output.status.code(),
            Some(1),
            "epoka {arguments:?}: {output:?}"
        );
        assert_eq!(
            String::from_utf8_lossy(&output.stderr)
                .trim()
                .lines()
                .count(),
            1,
            "one sentence: {output:?}"
        );
    }
    assert_eq!(up.epoka(&["status"]).await.status.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_taken_port_is_named_with_its_remedy() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("bound").port().to_string();
    let dir = tempfile::tempdir().expect("a directory");
    let output = run(EPOKA, dir.path(), &["up", "--port", &port]).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains(&port) && said.contains("--port 0"), "{said}");
    let left: Vec<_> = std::fs::read_dir(dir.path()).expect("there").collect();
    assert!(left.is_empty(), "nothing is left behind: {left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_dies_while_starting_is_not_called_started() {
    let up = Up::start(EPOKA, &["--topic", "orders:1:3"]).await;
    up.succeed(&["kill", "broker:2"]).await;
    let meta = up.data_dir().join("broker-2/meta.properties");
    let good = std::fs::read(&meta).expect("there");
    std::fs::write(&meta, "node.id=7\nversion=1\n").expect("writable");
    let output = up.epoka(&["start", "broker:2"]).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("broker 2 was started and has ended") && said.contains("meta.properties"),
        "{said}"
    );
    assert!(output.stdout.is_empty(), "{output:?}");
    std::fs::write(&meta, good).expect("writable");
    up.succeed(&["start", "broker:2"]).await;
    status_when(&up, "full ISRs", whole).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_impossible_is_said_in_one_sentence() {
    let up = Up::start(EPOKA, &["--topic", "orders:1:3:min.insync.replicas=3"]).await;
    for offset in ["5", "99999999999"] {
        let output = up
            .epoka(&["consume", "orders", "--partition", "0", "--offset", offset])
            .await;
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            said.contains("out of range: the log of orders-0 ends at 0"),
            "{said}"
        );
    }
    for count in ["0", "2", "4", "7"] {
        let output = up.epoka(&["up", "--controllers", count]).await;
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("1, 3 or 5 controllers"), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_topic_has_no_watermark_to_come_back_to() {
    let up = Up::start(EPOKA, &["--topic", "orders:1:3"]).await;
    up.succeed(&["topic", "create", "fresh", "--partitions", "3"])
        .await;
    let said = up.watched(Duration::from_secs(2)).await;
    assert!(
        said.contains("broker 1 joined"),
        "it tells something: {said}"
    );
    assert!(!said.contains("high watermark"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn brokers_whose_controller_lost_everything_are_not_given_to_a_new_cluster() {
    let mut up = Up::start(EPOKA, &["--topic", "orders:1:3"]).await;
    let cluster = up.status().await["cluster_id"].clone();
    assert!(up.interrupt().await.success());
    let directory = up.data_dir();
    let (controller, aside) = (directory.join("controller-1"), directory.join("aside"));
    std::fs::rename(&controller, &aside).expect("there");
    let output = up.epoka(&["up", "--port", "0"]).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let id = cluster.as_str().expect("an id");
    for part in [
        id,
        "broker-1, broker-2, broker-3",
        "controller-1",
        "--fresh",
    ] {
        assert!(said.contains(part), "`{part}` is missing: {said}");
    }
    assert!(!controller.exists(), "nothing was changed");
    std::fs::rename(&aside, &controller).expect("there");
    up.again(&[]).await;
    assert_eq!(up.status().await["cluster_id"], cluster);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_demonstration_ends_well_and_in_time() {
    let dir = tempfile::tempdir().expect("a directory");
    let start = Instant::now();
    let output = run(EPOKA, dir.path(), &["demo"]).await;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        start.elapsed() < Duration::from_secs(30),
        "took {:?}",
        start.elapsed()
    );
    for expected in ["killed", "unavailable", "lost 0", "duplicated 0"] {
        assert!(said.contains(expected), "`{expected}` is missing: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_known_is_not_called_healthy_and_only_ones_own_processes_are_touched() {
    let mut up = Up::start(EPOKA, &["--brokers", "1"]).await;
    let status = up.status().await;
    let grpc = status["processes"].as_array().expect("a list");
    let grpc = grpc.iter().find(|p| p["kind"] == "broker");
    let grpc = grpc.expect("a broker")["grpc"]
        .as_str()
        .expect("an address");

    let elsewhere = up.epoka(&["kill", "broker:1", "--bootstrap", grpc]).await;
    assert_eq!(elsewhere.status.code(), Some(2), "{elsewhere:?}");
    assert_eq!(state_of(&up.status().await, "broker", 1), "running");

    up.succeed(&["kill", "broker:1"]).await;
    let down = up.epoka(&["status", "--json"]).await;
    assert_eq!(down.status.code(), Some(1), "{down:?}");
    let json: Value = serde_json::from_slice(&down.stdout).expect("JSON");
    assert!(json["partitions"].is_null(), "{json}");
    assert_eq!(state_of(&json, "broker", 1), "killed");
    assert!(up.interrupt().await.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_has_seen_enough_is_no_reason_to_panic() {
    let mut up = Up::start(EPOKA, &[]).await;
    let mut command = Command::new(EPOKA);
    command
        .args(["status", "--json", "--data-dir"])
        .arg(up.data_dir());
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output = command.stdout(writer).output().await.expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{output:?}");
    assert!(up.interrupt().await.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_that_is_no_record_does_not_hide_what_was_written_before_it() {
    let mut up = Up::start(EPOKA, &["--topic", "orders:1:3"]).await;
    let lines = up.dir().join("lines");
    std::fs::write(&lines, "a:1\nb:2\nnone\nc:3\n").expect("writable");
    let mut command = Command::new(EPOKA);
    command
        .args(["produce", "orders", "--key-separator", ":", "--json"])
        .arg("--data-dir")
        .arg(up.data_dir())
        .stdin(File::open(&lines).expect("just written"));
    let output = command.output().await.expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(said.contains("line 3 has no `:`"), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["acked"], 2, "{report}");
    let orders = orders_0(&up.status().await).clone();
    assert_eq!(orders["replicas"][0]["log_end"], 2, "{orders}");
    assert!(up.interrupt().await.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_is_missed_is_spoken_of() {
    let mut up = Up::start(EPOKA, &["--topic", "orders:1:3"]).await;
    let told = async |text: &str| {
        let told = poll(PATIENCE, async || {
            let told = up.watched(Duration::from_secs(1)).await;
            let at = told.rfind(text);
            at.ok_or(told)
        });
        told.await.unwrap_or_else(|told| panic!("{text}: {told}"))
    };
    up.succeed(&["kill", "controller:1"]).await;
    let missed = |status: &Value| status["controller_silent_ms"].is_u64();
    status_when(&up, "a missed controller", missed).await;
    let said = up.succeed(&["status"]).await;
    assert!(said.contains("no controller has answered for"), "{said}");
    told("has heard no controller for").await;
    up.succeed(&["start", "controller:1"]).await;
    let heard = |status: &Value| status["controller_silent_ms"].is_null();
    status_when(&up, "a controller that answers", heard).await;
    told("hears a controller again").await;
    assert!(up.interrupt().await.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_was_not_running_blames_no_broker() {
    let mut up = Up::start(EPOKA, &["--topic", "orders:1:3"]).await;
    up.succeed(&["pause", "controller:1"]).await;
    // Long enough for brokers to give up their streams, which it finds broken when it wakes.
    let given_up = |status: &Value| {
        let silent = status["controller_silent_ms"].as_u64();
        silent.is_some_and(|ms| ms > 8_000)
    };
    status_when(&up, "streams that are given up", given_up).await;
    up.succeed(&["resume", "controller:1"]).await;
    let heard = |status: &Value| status["controller_silent_ms"].is_null();
    status_when(&up, "a controller that answers", heard).await;
    let told = up.watched(Duration::from_secs(2)).await;
    assert!(told.contains("controller 1 resumed"), "{told}");
    assert!(!told.contains("died") && !told.contains("fenced"), "{told}");
    assert!(up.interrupt().await.success());
}
