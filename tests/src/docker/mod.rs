//! The cluster of `deploy/compose.yaml`, driven as a person drives it: with `docker` and a compose command. Where no daemon answers,
//! tests that need one say so and pass; with `EPOKA_REQUIRE_DOCKER=1` they fail.

mod compose;
mod image;
mod verify;

pub use compose::{Compose, Shape, Tool};
pub use image::image;
pub use verify::{Outcome, Verify};

use std::process::{Output, Stdio};

use tokio::process::Command;
use tokio::sync::{Mutex, MutexGuard};

/// One cluster at a time: a machine for tests has few cores, and the times that are looked at are its own.
static TURN: Mutex<()> = Mutex::const_new(());

/// What a test needs to use containers, for as long as it holds it.
pub struct Docker {
    /// The image under test.
    pub image: String,
    /// The compose commands that are there; at least one.
    pub tools: Vec<Tool>,
    _turn: MutexGuard<'static, ()>,
}

impl Docker {
    /// Docker, or `None`, having said why there is none.
    ///
    /// # Panics
    /// When there is none and there must be.
    pub async fn find() -> Option<Self> {
        let turn = TURN.lock().await;
        match Self::look(turn).await {
            Ok(found) => Some(found),
            Err(why) => {
                let required = std::env::var("EPOKA_REQUIRE_DOCKER").is_ok_and(|v| v == "1");
                assert!(!required, "EPOKA_REQUIRE_DOCKER=1, but {why}");
                crate::skipped(why);
                None
            }
        }
    }

    async fn look(turn: MutexGuard<'static, ()>) -> Result<Self, String> {
        try_docker(&["version", "--format", "{{.Server.Version}}"])
            .await
            .map_err(|_| "no Docker daemon answers")?;
        let tools = Tool::find_all().await;
        if tools.is_empty() {
            return Err("there is neither docker-compose nor docker compose".into());
        }
        Ok(Self {
            image: image().await?,
            tools,
            _turn: turn,
        })
    }
}

/// Runs `docker` to a good end; what it printed.
///
/// # Panics
/// When it fails.
pub async fn docker(arguments: &[&str]) -> String {
    try_docker(arguments)
        .await
        .unwrap_or_else(|why| panic!("{why}"))
}

/// Runs `docker`; the error says what it said.
///
/// # Errors
/// It cannot be run, or failed.
pub async fn try_docker(arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new("docker");
    command.args(arguments);
    finish(command).await
}

/// Runs a command to its end.
async fn finish(mut command: Command) -> Result<String, String> {
    let shown = format!("{:?}", command.as_std());
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output: Output = command
        .output()
        .await
        .map_err(|e| format!("{shown} cannot be run: {e}"))?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if !output.status.success() {
        return Err(format!("{shown}: {}: {said}", output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
