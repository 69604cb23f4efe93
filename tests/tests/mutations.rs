//! Breaks a rule of the product on purpose, in a copy of it, and sees a scenario script fail (`tests/mutations/*.patch`). Each
//! patch opens with the rule it breaks and, after `Caught by:`, the script that must notice.
//!
//! Takes minutes, most of them for the first build, so it runs only when asked:
//! `cargo test -p epoka-tests --test mutations -- --ignored --nocapture`. The copy and what is built of it stay in
//! `target/mutations`; `EPOKA_MUTATION=name` runs one patch.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests/ is in the workspace")
        .to_owned()
}

/// Copies a tree, without what is built or hidden. Files that are the same already are left alone, so that little is rebuilt.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("a folder to copy") {
        let entry = entry.expect("an entry");
        let name = entry.file_name();
        if name == "target" || name.to_string_lossy().starts_with('.') {
            continue;
        }
        let (source, target) = (entry.path(), to.join(&name));
        if source.is_dir() {
            copy(&source, &target);
        } else {
            let bytes = std::fs::read(&source).expect("a readable file");
            if std::fs::read(&target).ok().as_deref() != Some(&bytes[..]) {
                std::fs::write(&target, bytes).expect("a writable copy");
            }
        }
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
        String::from_utf8_lossy(&out.stderr)
    );
}

fn scenarios(tree: &Path, target: &Path) -> Output {
    let mut command = Command::new(env!("CARGO"));
    command
        .current_dir(tree)
        .env("CARGO_TARGET_DIR", target)
        .env_remove("UPDATE_SCENARIOS");
    command
        .args(["test", "-p", "epoka-tests", "--test", "scenarios"])
        .output()
        .expect("cargo runs")
}

/// The scripts that failed, from the test's own words.
fn failed(out: &Output) -> Vec<String> {
    let text =
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    let mut names: Vec<String> = text
        .lines()
        .filter_map(|l| l.strip_prefix("scenario ")?.split_once(".txt:"))
        .map(|(n, _)| n.to_owned())
        .collect();
    names.sort();
    names.dedup();
    names
}

#[test]
#[ignore = "builds the product once for each broken rule: see the head of this file"]
fn every_broken_rule_is_noticed_by_its_script() {
    let target = root().join("target/mutations");
    let tree = target.join("tree");
    copy(&root(), &tree);
    forget(&tree, &root());
    let sound = scenarios(&tree, &target);
    assert!(
        sound.status.success(),
        "the sound product fails: {}",
        String::from_utf8_lossy(&sound.stderr)
    );

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
        let name = file
            .file_stem()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        if only.as_ref().is_some_and(|o| *o != name) {
            continue;
        }
        let text = std::fs::read_to_string(&file).expect("a readable patch");
        let due = text
            .lines()
            .find_map(|l| l.strip_prefix("Caught by: "))
            .expect("a patch names its script");
        patch(&tree, &file, false);
        let out = scenarios(&tree, &target);
        patch(&tree, &file, true);
        let caught = failed(&out);
        println!(
            "{name}: {}",
            if caught.is_empty() {
                "SURVIVED".into()
            } else {
                caught.join(", ")
            }
        );
        if out.status.success() || !caught.iter().any(|c| c == due) {
            let said = String::from_utf8_lossy(&out.stderr).into_owned();
            survivors.push(format!(
                "{name}: {due} did not notice, but {caught:?}\n{said}"
            ));
        }
    }
    assert!(survivors.is_empty(), "{}", survivors.join("\n"));
}
