//! Scenario scripts: a few lines of cluster story over the real replicas, and the exact events expected (layer 3 of the tests).
//! This file reads a script and compares; `cluster.rs` carries the commands out; `show.rs` words what happened.
//!
//! A script is blocks, parted by blank lines: comments that tell the story (`#`), commands, `----`, and what they print. A
//! broken rule shows as a changed line, or as an invariant that panics; both name the script.

mod cluster;
mod show;

use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};

use self::cluster::Cluster;

const RULE: &str = "----";

/// Runs a script and writes it anew, with what its commands print now. Errors: the line that cannot be read, or the invariant
/// that broke, and what was printed up to there.
pub fn replay(script: &str) -> Result<String, String> {
    let mut cluster = Cluster::default();
    let mut written = String::new();
    let mut block = String::new();
    let mut lines = script.lines().enumerate();
    while let Some((_, line)) = lines.next() {
        if line.trim() != RULE {
            if is_command(line) {
                written.push_str(line.trim_end());
                block.push_str(line);
                block.push('\n');
            } else {
                written.push_str(line.trim_end());
            }
            written.push('\n');
            continue;
        }
        written.push_str(RULE);
        written.push('\n');
        for command in std::mem::take(&mut block).lines() {
            let run = catch_unwind(AssertUnwindSafe(|| cluster.run(command)));
            let said = cluster.said();
            written.push_str(&said);
            match run {
                Ok(Ok(())) if said.is_empty() => written.push_str("nothing\n"),
                Ok(Ok(())) => {}
                Ok(Err(unclear)) => return Err(failed(&written, command, &unclear)),
                Err(panic) => return Err(failed(&written, command, &panic_text(panic))),
            }
        }
        // What was expected stands up to the next blank line; the caller compares.
        for (_, expected) in lines.by_ref() {
            if expected.trim().is_empty() {
                written.push('\n');
                break;
            }
        }
    }
    if let Some(command) = block.lines().next() {
        return Err(format!("'{command}' is not followed by {RULE}"));
    }
    Ok(written.trim_end().to_owned() + "\n")
}

fn is_command(line: &str) -> bool {
    !line.trim().is_empty() && !line.starts_with('#')
}

fn failed(written: &str, command: &str, why: &str) -> String {
    let tail: Vec<&str> = written.lines().rev().take(12).collect();
    let mut text = format!("at '{command}': {why}\nup to there:\n");
    for line in tail.iter().rev() {
        let _ = writeln!(text, "  {line}");
    }
    text
}

fn panic_text(panic: Box<dyn std::any::Any + Send>) -> String {
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic
            .downcast::<&str>()
            .map_or_else(|_| "a panic".into(), |text| (*text).into()),
    }
}

/// The first line in which a script and its replay differ, with the command it belongs to.
pub fn difference(expected: &str, got: &str) -> Option<String> {
    let (mut expected_lines, mut got_lines) = (expected.trim_end().lines(), got.trim_end().lines());
    let mut command = "the beginning";
    let mut inside = false;
    for number in 1.. {
        let (want, have) = (expected_lines.next(), got_lines.next());
        if want.is_none() && have.is_none() {
            return None;
        }
        if want.map(str::trim_end) != have {
            let (want, have) = (want.unwrap_or("(the end)"), have.unwrap_or("(the end)"));
            return Some(format!(
                "line {number}, after '{command}'\n  expected: {want}\n  got:      {have}"
            ));
        }
        let line = want.unwrap_or_default();
        match line.trim() {
            RULE => inside = true,
            "" => inside = false,
            _ if !inside && is_command(line) => command = line,
            _ => {}
        }
    }
    None
}
