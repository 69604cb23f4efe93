//! The stories in `tests/scenarios/`, each told to the real replicas (see `epoka_tests::scenario`).
//!
//! `UPDATE_SCENARIOS=1` writes down what the replicas do now; read the difference for truth before committing it.

use std::path::Path;

use epoka_tests::scenario::{difference, replay};

#[test]
fn every_story_ends_as_told() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let update = std::env::var_os("UPDATE_SCENARIOS").is_some();
    let mut paths: Vec<_> = std::fs::read_dir(&folder)
        .expect("tests/scenarios")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    paths.retain(|path| path.extension().is_some_and(|e| e == "txt"));
    paths.sort();
    assert!(!paths.is_empty(), "no scripts in {}", folder.display());

    let mut failures = Vec::new();
    for path in &paths {
        let name = path
            .file_name()
            .expect("a file")
            .to_string_lossy()
            .into_owned();
        let script = std::fs::read_to_string(path).expect("a readable script");
        let wrong = match replay(&script) {
            Err(wrong) => Some(wrong),
            Ok(now) if update => {
                std::fs::write(path, now).expect("a writable script");
                None
            }
            Ok(now) => difference(&script, &now),
        };
        failures.extend(wrong.map(|wrong| format!("scenario {name}: {wrong}")));
    }
    assert!(
        failures.is_empty(),
        "{} of {} scenarios failed\n{}",
        failures.len(),
        paths.len(),
        failures.join("\n")
    );
}
