//! Who may depend on whom (section 3 of the architecture): the pure folders know no runtime, no clock and no disk, the log knows
//! no runtime, and crates depend one way only. Reads the sources as text.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Folders whose code is a function of its input. A hash map's order is not, so none is used there at all.
const PURE: &[&str] = &["broker/src/replica", "controller/src/cluster"];

const IMPURE: &[&str] = &[
    "tokio",
    "tonic",
    "async_trait",
    "std::fs",
    "std::net",
    "std::thread",
    "std::env",
    "Instant::now",
    "SystemTime",
    "async fn",
    "async move",
    "rand::",
    "HashMap",
    "HashSet",
];

/// Names that `broker/log` may not know: it is synchronous, and serves nobody by itself.
const RUNTIMES: &[&str] = &["tokio", "tonic", "async fn"];

/// The epoka crates each crate may name in its `[dependencies]`.
const ARROWS: &[(&str, &[&str])] = &[
    ("proto", &[]),
    ("broker/log", &["epoka-proto"]),
    ("broker", &["epoka-log", "epoka-proto"]),
    ("controller", &["epoka-log", "epoka-proto"]),
    ("client", &["epoka-proto"]),
    (
        "client/cli",
        &[
            "epoka-broker",
            "epoka-client",
            "epoka-controller",
            "epoka-log",
            "epoka-proto",
        ],
    ),
    ("client/testing", &["epoka-client", "epoka-proto"]),
    // What it is an example of is any Kafka cluster.
    ("deploy/example", &[]),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests/ is in the workspace")
        .to_owned()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Every Rust file below a folder, as (path from the root, text); a folder that is gone is an error, not a pass.
fn sources(folder: &str) -> Vec<(String, String)> {
    let mut open = vec![root().join(folder)];
    let mut found = Vec::new();
    while let Some(folder) = open.pop() {
        for entry in
            std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()))
        {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let name = path
                    .strip_prefix(root())
                    .expect("below it")
                    .display()
                    .to_string();
                found.push((name, read(&path)));
            }
        }
    }
    assert!(!found.is_empty(), "no sources in {folder}");
    found.sort();
    found
}

/// Code without comments: prose may speak of anything.
fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or_default()
}

/// Lines of product code that name something forbidden. A file's tests, at its end, are held to the same rules.
fn offences(folder: &str, forbidden: &[&str]) -> Vec<String> {
    let mut offences = Vec::new();
    for (name, text) in sources(folder) {
        for (i, line) in text.lines().enumerate() {
            for word in forbidden.iter().filter(|word| code(line).contains(**word)) {
                offences.push(format!("{name}:{} names {word}: {}", i + 1, line.trim()));
            }
        }
    }
    offences
}

/// The keys of a manifest's `[dependencies]`.
fn dependencies(manifest: &str) -> Vec<String> {
    let mut inside = false;
    let mut keys = Vec::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            inside = line.trim() == "[dependencies]";
        } else if inside
            && let Some(key) = line
                .split(['.', '=', ' '])
                .next()
                .filter(|k| !k.is_empty() && !k.starts_with('#'))
        {
            keys.push(key.to_owned());
        }
    }
    keys
}

#[test]
fn pure_folders_know_no_runtime_no_clock_no_disk_and_no_hash_order() {
    let offences: Vec<String> = PURE
        .iter()
        .flat_map(|folder| offences(folder, IMPURE))
        .collect();
    assert!(offences.is_empty(), "{}", offences.join("\n"));
}

#[test]
fn the_log_knows_no_runtime() {
    let mut offences = offences("broker/log/src", RUNTIMES);
    let manifest = dependencies(&read(&root().join("broker/log/Cargo.toml")));
    offences.extend(
        manifest
            .into_iter()
            .filter(|d| RUNTIMES.iter().any(|r| d.contains(r))),
    );
    assert!(offences.is_empty(), "{}", offences.join("\n"));
}

#[test]
fn replica_and_log_never_see_each_other_and_cluster_does_not_know_that_it_is_replicated() {
    let mut offences = offences(
        "broker/src/replica",
        &[
            "epoka_log",
            "crate::partition",
            "crate::node",
            "crate::kafka",
        ],
    );
    offences.extend(self::offences("broker/log/src", &["epoka_broker"]));
    offences.extend(self::offences(
        "controller/src/cluster",
        &[
            "openraft",
            "crate::quorum",
            "crate::service",
            "crate::liveness",
        ],
    ));
    assert!(offences.is_empty(), "{}", offences.join("\n"));
}

#[test]
fn crates_depend_one_way() {
    let arrows: BTreeMap<_, _> = ARROWS.iter().copied().collect();
    let workspace = read(&root().join("Cargo.toml"));
    let members = workspace
        .lines()
        .find(|l| l.starts_with("members"))
        .expect("members");
    for member in members
        .split('"')
        .skip(1)
        .step_by(2)
        .filter(|m| *m != "tests")
    {
        let allowed = arrows
            .get(member)
            .unwrap_or_else(|| panic!("say what the new crate {member} may depend on"));
        let named = dependencies(&read(&root().join(member).join("Cargo.toml")));
        assert!(
            !named.is_empty(),
            "no dependencies read from {member}/Cargo.toml"
        );
        for dependency in named.iter().filter(|d| d.starts_with("epoka")) {
            assert!(
                allowed.contains(&dependency.as_str()),
                "{member} must not depend on {dependency}"
            );
        }
    }
}
