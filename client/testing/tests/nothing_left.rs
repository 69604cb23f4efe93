//! A cluster ends with its test, however that ends.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use epoka_testing::{Cluster, Result};

/// The variable that makes [`victim`] the process to be killed.
const VICTIM: &str = "EPOKA_TESTING_VICTIM";
/// How long processes may take to end cleanly on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// The processes that were started with something in this directory.
fn processes(directory: &Path) -> Vec<String> {
    let directory = directory.display().to_string();
    let all = std::fs::read_dir("/proc").expect("Linux").flatten();
    all.filter_map(|process| {
        let arguments = std::fs::read(process.path().join("cmdline")).ok()?;
        let arguments = String::from_utf8_lossy(&arguments).replace('\0', " ");
        arguments.contains(&directory).then_some(arguments)
    })
    .collect()
}

fn directory(cluster: &Cluster) -> PathBuf {
    cluster
        .directory()
        .expect("a cluster of processes")
        .to_owned()
}

#[tokio::test]
async fn a_dropped_cluster_leaves_no_process_and_no_file() -> Result<()> {
    let begun = Instant::now();
    let cluster = Cluster::builder().start().await?;
    println!("started in {} ms", begun.elapsed().as_millis());
    let directory = directory(&cluster);
    // `up`, a controller, three brokers.
    assert_eq!(
        processes(&directory).len(),
        5,
        "{:?}",
        processes(&directory)
    );
    let begun = Instant::now();
    drop(cluster);
    println!("dropped in {} ms", begun.elapsed().as_millis());
    assert_eq!(processes(&directory), [""; 0]);
    assert!(!directory.exists());
    Ok(())
}

#[test]
fn a_cluster_may_be_dropped_where_no_runtime_is() {
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let cluster = runtime.block_on(Cluster::builder().start()).expect("ready");
    drop(runtime);
    let directory = directory(&cluster);
    drop(cluster);
    assert_eq!(processes(&directory), [""; 0]);
    assert!(!directory.exists());
}

#[tokio::test]
async fn a_panic_keeps_the_data_and_no_process() {
    let (sender, told) = tokio::sync::oneshot::channel();
    let panicking = tokio::spawn(async {
        let cluster = Cluster::builder().start().await.expect("ready");
        sender.send(directory(&cluster)).expect("awaited");
        panic!("the test fails on purpose");
    });
    let directory = told.await.expect("told before the panic");
    assert!(panicking.await.is_err_and(|e| e.is_panic()));
    assert_eq!(processes(&directory), [""; 0]);
    assert!(directory.join("broker-1").exists());
    std::fs::remove_dir_all(directory).expect("kept for whoever looks");
}

/// Not a test of its own: the process that the test below kills.
#[tokio::test]
async fn victim() {
    if std::env::var_os(VICTIM).is_none() {
        return;
    }
    let cluster = Cluster::builder().start().await.expect("ready");
    println!("\ndirectory {}", directory(&cluster).display());
    std::future::pending::<()>().await;
}

#[test]
fn a_killed_test_leaves_no_process() {
    let test = std::env::current_exe().expect("this test");
    let mut child = Command::new(test)
        .args(["--exact", "victim", "--nocapture"])
        .env(VICTIM, "1")
        .stdout(Stdio::piped())
        .spawn()
        .expect("this test runs");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let directory = lines.map_while(Result::ok).find_map(|line| {
        let directory = line.strip_prefix("directory ")?;
        Some(PathBuf::from(directory))
    });
    let directory = directory.expect("the cluster is ready");
    assert_eq!(processes(&directory).len(), 5);
    child.kill().expect("its own child");
    child.wait().expect("its own child");
    let deadline = Instant::now() + PATIENCE;
    while !processes(&directory).is_empty() {
        let left = processes(&directory);
        assert!(Instant::now() < deadline, "still there: {left:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
    std::fs::remove_dir_all(directory).expect("its files stay");
}
