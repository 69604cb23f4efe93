//! Says of which commit the binary is: `EPOKA_COMMIT`, or what git knows, or nothing.

use std::path::Path;
use std::process::Command;

/// What the binary is made of, from the root of the repository.
const SOURCES: [&str; 6] = [
    "Cargo.toml",
    "Cargo.lock",
    "proto",
    "broker",
    "controller",
    "client",
];

fn main() {
    let version = env!("CARGO_PKG_VERSION");
    // A debug build is of what is being worked on; naming a commit would only have it built again after each one.
    if std::env::var("PROFILE").is_ok_and(|profile| profile == "debug") {
        println!("cargo:rerun-if-changed=build.rs");
        println!("cargo:rustc-env=EPOKA_VERSION={version} (debug build)");
        return;
    }
    let root = Path::new("../..");
    for source in SOURCES {
        println!("cargo:rerun-if-changed={}", root.join(source).display());
    }
    println!("cargo:rerun-if-env-changed=EPOKA_COMMIT");
    // Where HEAD points, and what it points to.
    for file in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--git-path", file]) {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    let given = std::env::var("EPOKA_COMMIT").ok().filter(|c| !c.is_empty());
    let commit =
        given.or_else(|| git(&["describe", "--always", "--abbrev=12", "--dirty=+changes"]));
    match commit {
        Some(commit) => println!("cargo:rustc-env=EPOKA_VERSION={version} ({commit})"),
        None => println!("cargo:rustc-env=EPOKA_VERSION={version}"),
    }
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let text = text.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}
