//! The processes of a local cluster together: which one is meant, what may be done to it, and the order of a clean stop.

use std::sync::Arc;
use std::time::Duration;

use epoka_proto::events::EventLog;
use epoka_proto::v1::act_request::Action as WireAction;
use futures::future::join_all;
use tokio::time::sleep;

use super::process::{Process, State};
use crate::target::Kind;

/// The pause before a process that died is revived; it doubles while the process keeps dying.
const REVIVE: Duration = Duration::from_millis(100);
/// The longest such pause.
const REVIVE_MAX: Duration = Duration::from_secs(5);
/// A process that lived this long had a fair start.
const FAIR_START: Duration = Duration::from_secs(10);

/// What can be done to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// SIGKILL.
    Kill,
    /// A clean stop.
    Stop,
    /// A start.
    Start,
    /// SIGSTOP.
    Pause,
    /// SIGCONT.
    Resume,
}

impl Action {
    /// Said of a process to which it was done.
    pub fn past(self) -> &'static str {
        match self {
            Self::Kill => "killed",
            Self::Stop => "stopped",
            Self::Start => "started",
            Self::Pause => "paused",
            Self::Resume => "resumed",
        }
    }

    pub(super) fn from_wire(action: WireAction) -> Self {
        match action {
            WireAction::Kill => Self::Kill,
            WireAction::Stop => Self::Stop,
            WireAction::Start => Self::Start,
            WireAction::Pause => Self::Pause,
            WireAction::Resume => Self::Resume,
        }
    }

    /// As the supervisor's service takes it.
    pub fn to_wire(self) -> WireAction {
        match self {
            Self::Kill => WireAction::Kill,
            Self::Stop => WireAction::Stop,
            Self::Start => WireAction::Start,
            Self::Pause => WireAction::Pause,
            Self::Resume => WireAction::Resume,
        }
    }
}

/// All processes of a cluster.
pub struct Supervisor {
    processes: Vec<Arc<Process>>,
    events: EventLog,
}

impl Supervisor {
    pub fn new(processes: Vec<Arc<Process>>, events: EventLog) -> Self {
        Self { processes, events }
    }

    pub fn processes(&self) -> &[Arc<Process>] {
        &self.processes
    }

    pub fn events(&self) -> &EventLog {
        &self.events
    }

    fn of(&self, kind: Kind) -> impl Iterator<Item = &Arc<Process>> {
        self.processes.iter().filter(move |p| p.node.kind == kind)
    }

    /// Does something to one process and waits until it shows. Returns its process id; the error is a sentence.
    pub async fn act(&self, action: Action, kind: Kind, id: i32) -> Result<u32, String> {
        let process = self.of(kind).find(|p| p.node.id == id).ok_or_else(|| {
            let ids: Vec<_> = self.of(kind).map(|p| p.node.id.to_string()).collect();
            format!(
                "there is no {kind} {id}; this cluster has {kind} {}",
                ids.join(", ")
            )
        })?;
        let before = process.status().pid;
        match action {
            Action::Kill => {
                process.kill()?;
                process.gone().await;
            }
            Action::Stop => {
                process.stop()?;
                process.gone().await;
            }
            Action::Pause => {
                process.pause()?;
                process.reaches(State::Paused).await;
            }
            Action::Resume => {
                process.resume()?;
                process.reaches(State::Running).await;
            }
            Action::Start => {
                let pid = process.start().await?;
                return Ok(u32::try_from(pid.as_raw()).unwrap_or(0));
            }
        }
        Ok(before.map_or(0, |pid| u32::try_from(pid.as_raw()).unwrap_or(0)))
    }

    /// Starts everything at once.
    pub async fn start_all(&self) -> Result<(), String> {
        let starts = join_all(self.processes.iter().map(|p| p.start())).await;
        starts.into_iter().collect::<Result<Vec<_>, _>>().map(drop)
    }

    /// Stops the brokers, which hand over to each other and to the controllers, and then the controllers.
    pub async fn stop_all(&self) {
        for kind in [Kind::Broker, Kind::Controller] {
            for process in self.of(kind) {
                // One that is down already needs no stop.
                let _ = process.stop();
            }
            join_all(self.of(kind).map(|p| p.gone())).await;
        }
    }

    /// Kills everything.
    pub async fn kill_all(&self) {
        for process in &self.processes {
            let _ = process.kill();
        }
        join_all(self.processes.iter().map(|p| p.gone())).await;
    }

    /// Waits until a process ends by itself, and says which and why.
    pub async fn somebody_gave_up(&self) -> String {
        let ends = self.processes.iter().map(|process| {
            Box::pin(async move {
                let mut changes = process.changes();
                // The sender lives as long as the process's entry.
                let _ = changes.wait_for(|s| s.state == State::Exited).await;
                let output = process.node.output.display();
                let why = super::process::last_line(&process.node.output);
                let why = why.unwrap_or_else(|| "it said nothing".to_owned());
                let why = why.strip_prefix("epoka: ").unwrap_or(&why);
                format!(
                    "{} ended while starting: {why} (its output: {output})",
                    process.node.title()
                )
            })
        });
        futures::future::select_all(ends).await.0
    }

    /// Starts again whatever was killed or ended by itself, until dropped.
    pub async fn revive(&self) {
        let each = self.processes.iter().map(|process| async move {
            let mut pause = REVIVE;
            let mut changes = process.changes();
            loop {
                let started = tokio::time::Instant::now();
                let died = changes.wait_for(|s| matches!(s.state, State::Killed | State::Exited));
                // What it gives is a lock on the state, which the start below has to change.
                if died.await.map(drop).is_err() {
                    return;
                }
                if started.elapsed() > FAIR_START {
                    pause = REVIVE;
                }
                sleep(pause).await;
                pause = (pause * 2).min(REVIVE_MAX);
                if let Err(why) = process.start().await {
                    tracing::debug!(why, "not revived");
                }
            }
        });
        join_all(each).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::NodeDescription;

    #[tokio::test]
    async fn a_killed_process_is_revived_and_a_stopped_one_is_not() {
        let output = std::env::temp_dir().join(format!("epoka-revive-{}", std::process::id()));
        let node = NodeDescription {
            kind: Kind::Broker,
            id: 1,
            kafka: None,
            grpc: String::new(),
            log_dirs: vec![],
            output: output.clone(),
        };
        // The shell ignores what follows the script; SIGTERM ends it with 0, as a clean stop does.
        let script = "trap 'exit 0' TERM; echo up; while :; do sleep 0.01; done";
        let arguments = vec!["-c".to_owned(), script.to_owned()];
        let events = EventLog::new("supervisor");
        let process = Arc::new(Process::new(
            node,
            "/bin/sh".into(),
            arguments,
            events.clone(),
        ));
        let supervisor = Arc::new(Supervisor::new(vec![process.clone()], events));
        supervisor.start_all().await.expect("a shell");
        let reviving = supervisor.clone();
        let reviving = tokio::spawn(async move { reviving.revive().await });

        // Each life sets its trap, then speaks once.
        let spoken = async |times: usize| {
            let said = || std::fs::read_to_string(&output).map_or(0, |said| said.lines().count());
            while said() < times {
                tokio::task::yield_now().await;
            }
        };
        spoken(1).await;
        let mut changes = process.changes();
        let killed = supervisor.act(Action::Kill, Kind::Broker, 1).await;
        let killed = i32::try_from(killed.expect("running")).expect("a process id");
        let revived = changes.wait_for(|s| s.pid.is_some_and(|pid| pid.as_raw() != killed));
        revived.await.map(drop).expect("the process entry lives");

        spoken(2).await;
        supervisor.stop_all().await;
        assert_eq!(process.status().state, State::Stopped);
        reviving.abort();
        std::fs::remove_file(output).expect("written by the shell");
    }

    #[tokio::test]
    async fn an_unknown_process_is_answered_with_the_known_ones() {
        let supervisor = Supervisor::new(vec![], EventLog::new("supervisor"));
        let refused = supervisor.act(Action::Kill, Kind::Broker, 7).await;
        assert!(refused.is_err_and(|e| e.starts_with("there is no broker 7")));
    }
}
