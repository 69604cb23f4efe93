//! The program itself: its version, its exit codes, its end. With this test cargo builds it for the whole workspace's tests,
//! among them those that start it as their cluster.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

fn epoka(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_epoka"));
    command.args(arguments).output().expect("it was built")
}

#[test]
fn it_says_its_version() {
    let output = epoka(&["--version"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0));
    // The commit follows, where it is known.
    assert!(
        said.starts_with(concat!("epoka ", env!("CARGO_PKG_VERSION"))),
        "{said}"
    );
}

#[test]
fn a_wrong_command_line_is_exit_code_2_and_a_refusal_1() {
    assert_eq!(epoka(&["upp"]).status.code(), Some(2));
    let nowhere = std::env::temp_dir().join("epoka-nowhere");
    let nowhere = nowhere.display().to_string();
    let refused = epoka(&["kill", "broker:1", "--data-dir", &nowhere]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
}

#[test]
fn with_stdin_a_cluster_ends_cleanly_when_its_input_does() {
    let directory = std::env::temp_dir().join(format!("epoka-with-stdin-{}", std::process::id()));
    let mut up = Command::new(env!("CARGO_BIN_EXE_epoka"))
        .args(["up", "--with-stdin", "--port", "0", "--data-dir"])
        .arg(&directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it was built");
    // What is written to it means nothing.
    let mut input = up.stdin.take().expect("piped");
    input.write_all(b"hello\n").expect("it reads");
    drop(input);
    let output = up.wait_with_output().expect("its own child");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("stopping brokers"), "{said}");
    std::fs::remove_dir_all(directory).expect("it was made");
}
