//! Breaks a rule of the product on purpose, in a copy of it, and sees which tests notice (`tests/mutations/*.patch`). Each
//! patch opens with the rule it breaks and, after `Caught by:`, who must notice: scenario scripts by name, `tables` (the unit
//! tests beside the rules) or `simulation` (so many seeds as below).
//!
//! The copy holds only what these tests need, the pure parts and their tests, so that a broken rule is built and tried in
//! seconds. It runs when asked, and prints which layer caught what:
//! `cargo test -p epoka-tests --test mutations -- --ignored --nocapture`. The copy and what is built of it stay in
//! `target/mutations`; `EPOKA_MUTATION=name` runs one patch.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const SEEDS: &str = "2000";

/// What is copied: files and folders. The crates around them are written anew.
const PARTS: &[&str] = &[
    "Cargo.lock",
    "proto",
    "broker/src/replica",
    "controller/src/cluster",
    "tests/src/model.rs",
    "tests/src/scenario",
    "tests/src/sim",
    "tests/tests/scenarios.rs",
    "tests/tests/simulation.rs",
    "tests/scenarios",
];

/// The crates of the copy: folder, modules of its library, dependencies, dependencies of its tests.
const CRATES: &[(&str, &str, &str, &str)] = &[
    ("broker", "replica", "bytes epoka-proto", ""),
    (
        "controller",
        "cluster",
        "bytes epoka-proto serde serde_json thiserror uuid",
        "proptest",
    ),
    (
        "tests",
        "model scenario sim",
        "bytes epoka-broker epoka-controller epoka-proto rand uuid",
        "",
    ),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests/ is in the workspace")
        .to_owned()
}

/// Writes a file unless it says so already, so that little is rebuilt.
fn write(path: &Path, bytes: &[u8]) {
    std::fs::create_dir_all(path.parent().expect("in a folder")).expect("a folder");
    if std::fs::read(path).ok().as_deref() != Some(bytes) {
        std::fs::write(path, bytes).expect("a writable copy");
    }
}

fn copy(from: &Path, to: &Path) {
    if from.is_file() {
        write(to, &std::fs::read(from).expect("a readable file"));
        return;
    }
    for entry in std::fs::read_dir(from).expect("a folder to copy") {
        let entry = entry.expect("an entry");
        copy(&entry.path(), &to.join(entry.file_name()));
    }
}

/// What an earlier run copied and is no longer in the workspace.
fn forget(copy: &Path, origin: &Path) {
    for entry in std::fs::read_dir(copy).expect("the copy") {
        let path = entry.expect("an entry").path();
        let twin = origin.join(path.file_name().expect("a name"));
        match (path.is_dir(), twin.exists()) {
            (true, true) => forget(&path, &twin),
            (true, false) => std::fs::remove_dir_all(&path).expect("removable"),
            (false, false) => std::fs::remove_file(&path).expect("removable"),
            (false, true) => {}
        }
    }
}

/// The workspace's manifest with the crates of the copy alone.
fn workspace_manifest() -> String {
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).expect("Cargo.toml");
    let mut written = String::new();
    for line in manifest.lines() {
        let absent = ["epoka-log", "epoka-client", "epoka =", "default-members"];
        if line.starts_with("members") {
            written.push_str("members = [\"proto\", \"broker\", \"controller\", \"tests\"]\n");
        } else if !absent.iter().any(|a| line.starts_with(a)) {
            written.push_str(line);
            written.push('\n');
        }
    }
    written
}

fn crate_manifest(folder: &str, dependencies: &str, of_tests: &str) -> String {
    let list = |names: &str| -> String {
        names
            .split_whitespace()
            .map(|name| format!("{name}.workspace = true\n"))
            .collect()
    };
    format!(
        "[package]\nname = \"epoka-{folder}\"\nversion.workspace = true\nedition.workspace = true\n\n\
         [dependencies]\n{}\n[dev-dependencies]\n{}",
        list(dependencies),
        list(of_tests)
    )
}

/// Brings the copy up to date.
fn prepare(tree: &Path) {
    for part in PARTS {
        let (origin, twin) = (root().join(part), tree.join(part));
        copy(&origin, &twin);
        if twin.is_dir() {
            forget(&twin, &origin);
        }
    }
    write(&tree.join("Cargo.toml"), workspace_manifest().as_bytes());
    for (folder, modules, dependencies, of_tests) in CRATES {
        let manifest = crate_manifest(folder, dependencies, of_tests);
        write(&tree.join(folder).join("Cargo.toml"), manifest.as_bytes());
        let library: String = modules
            .split_whitespace()
            .map(|m| format!("pub mod {m};\n"))
            .collect();
        write(&tree.join(folder).join("src/lib.rs"), library.as_bytes());
    }
}

fn patch(tree: &Path, file: &Path, reverse: bool) {
    let mut command = Command::new("git");
    // Without this, git would look for the repository around the copy.
    command.current_dir(tree).env(
        "GIT_CEILING_DIRECTORIES",
        tree.parent().expect("it has one"),
    );
    command.args(["apply", "--whitespace=nowarn"]);
    command.args(reverse.then_some("-R")).arg(file);
    let out = command.output().expect("git runs");
    assert!(
        out.status.success(),
        "{} no longer applies: {}",
        file.display(),
        text(&out)
    );
}

fn text(out: &Output) -> String {
    String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr)
}

/// Runs tests of the copy. A copy that does not build is no broken rule.
fn cargo_test(tree: &Path, arguments: &[&str]) -> Output {
    let out = Command::new(env!("CARGO"))
        .current_dir(tree)
        .env(
            "CARGO_TARGET_DIR",
            tree.parent().expect("it has one").join("target"),
        )
        .env("EPOKA_SEEDS", SEEDS)
        .env_remove("EPOKA_SEED")
        .env_remove("UPDATE_SCENARIOS")
        .env_remove("RUST_BACKTRACE")
        .arg("test")
        .args(arguments)
        .output()
        .expect("cargo runs");
    let said = text(&out);
    assert!(!said.contains("could not compile"), "{said}");
    out
}

/// Who notices, and all they said.
fn noticed(tree: &Path) -> (Vec<String>, String) {
    let tables = cargo_test(
        tree,
        &[
            "-p",
            "epoka-broker",
            "-p",
            "epoka-controller",
            "--lib",
            "--no-fail-fast",
        ],
    );
    let scenarios = cargo_test(tree, &["-p", "epoka-tests", "--test", "scenarios"]);
    let simulation = cargo_test(tree, &["-p", "epoka-tests", "--test", "simulation"]);
    let said = [&tables, &scenarios, &simulation].map(text).concat();
    let mut names: Vec<String> = text(&scenarios)
        .lines()
        .filter_map(|l| l.strip_prefix("scenario ")?.split_once(".txt:"))
        .map(|(name, _)| name.to_owned())
        .collect();
    names.sort();
    names.dedup();
    assert_eq!(
        scenarios.status.success(),
        names.is_empty(),
        "scenarios fail by name:\n{said}"
    );
    names.extend((!tables.status.success()).then(|| "tables".to_owned()));
    names.extend((!simulation.status.success()).then(|| "simulation".to_owned()));
    (names, said)
}

#[test]
#[ignore = "builds the pure parts once for each broken rule: see the head of this file"]
fn every_broken_rule_is_noticed() {
    let tree = root().join("target/mutations/tree");
    prepare(&tree);
    let (failing, said) = noticed(&tree);
    assert!(failing.is_empty(), "the sound product fails: {said}");

    let only = std::env::var("EPOKA_MUTATION").ok();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("mutations");
    let mut patches: Vec<_> = std::fs::read_dir(folder)
        .expect("tests/mutations")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    patches.retain(|p| p.extension().is_some_and(|e| e == "patch"));
    patches.sort();
    assert!(
        patches.len() >= 4,
        "the four rules of the testing plan at least"
    );

    let mut survivors = Vec::new();
    for file in patches {
        let name = file.file_stem().expect("a name").to_string_lossy();
        if only.as_ref().is_some_and(|o| *o != name) {
            continue;
        }
        let written = std::fs::read_to_string(&file).expect("a readable patch");
        let due = written
            .lines()
            .find_map(|l| l.strip_prefix("Caught by: "))
            .expect("a patch names who must notice");
        patch(&tree, &file, false);
        let (caught, _) = noticed(&tree);
        patch(&tree, &file, true);
        println!("{name}: {}", caught.join(", "));
        let missed: Vec<&str> = due
            .split(", ")
            .filter(|d| !caught.iter().any(|c| c == d))
            .collect();
        if !missed.is_empty() {
            survivors.push(format!("{name}: {missed:?} did not notice, but {caught:?}"));
        }
    }
    assert!(survivors.is_empty(), "{}", survivors.join("\n"));
}
