//! One child process: started, watched, and ended. The thread that starts a child waits for it until it ends, so the kernel
//! ties the child's life to this process (it remembers the parent thread), and a process id is never signalled after it was
//! given back.

use std::fs::OpenOptions;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use epoka_proto::events::EventLog;
use epoka_proto::v1::ProcessChange;
use epoka_proto::v1::event::Kind as EventKind;
use epoka_proto::v1::process_change::Kind as ChangeKind;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use tokio::sync::{oneshot, watch};

use super::description::NodeDescription;

/// What a process is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It runs, or is about to.
    Running,
    /// It was paused and does nothing.
    Paused,
    /// It ended as asked.
    Stopped,
    /// It was killed.
    Killed,
    /// It ended by itself.
    Exited,
}

impl State {
    /// The process exists.
    pub fn is_alive(self) -> bool {
        matches!(self, Self::Running | Self::Paused)
    }

    /// As `status` shows it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Stopped => "stopped",
            Self::Killed => "killed",
            Self::Exited => "exited",
        }
    }
}

/// A process's state, and its id while it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    pub state: State,
    pub pid: Option<Pid>,
    /// What was asked of it; it ends for that reason.
    ending: Option<State>,
}

/// A node of the cluster and the process that is it, if there is one.
pub struct Process {
    pub node: NodeDescription,
    program: PathBuf,
    arguments: Vec<String>,
    events: EventLog,
    status: watch::Sender<Status>,
}

impl Process {
    pub fn new(
        node: NodeDescription,
        program: PathBuf,
        arguments: Vec<String>,
        events: EventLog,
    ) -> Self {
        let nothing = Status {
            state: State::Stopped,
            pid: None,
            ending: None,
        };
        Self {
            node,
            program,
            arguments,
            events,
            status: watch::Sender::new(nothing),
        }
    }

    pub fn status(&self) -> Status {
        *self.status.borrow()
    }

    pub fn changes(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    /// Starts the process; the error is a sentence.
    pub async fn start(self: &Arc<Self>) -> Result<Pid, String> {
        let claimed = self.status.send_if_modified(|status| {
            let free = !status.state.is_alive();
            if free {
                *status = Status {
                    state: State::Running,
                    pid: None,
                    ending: None,
                };
            }
            free
        });
        if !claimed {
            return Err(format!("{} is running already", self.node.title()));
        }
        let (report, started) = oneshot::channel();
        let this = self.clone();
        let thread = std::thread::Builder::new().name(self.node.name());
        let spawned = thread.spawn(move || this.live(report));
        let outcome = match spawned {
            Ok(_) => started
                .await
                .unwrap_or_else(|_| Err("its thread ended".to_owned())),
            Err(error) => Err(error.to_string()),
        };
        outcome.map_err(|why| {
            self.ended(State::Exited);
            format!("{} cannot be started: {why}", self.node.title())
        })
    }

    /// Sends SIGKILL.
    pub fn kill(&self) -> Result<(), String> {
        self.end(State::Killed, &[Signal::SIGKILL], || {
            // Told before it is done: its consequences are noticed faster than the end of the process.
            self.tell(ChangeKind::Killed, String::new());
        })
    }

    /// Sends SIGTERM: the node stops cleanly. A paused one is woken first.
    pub fn stop(&self) -> Result<(), String> {
        self.end(State::Stopped, &[Signal::SIGTERM, Signal::SIGCONT], || {})
    }

    /// Sends SIGSTOP.
    pub fn pause(&self) -> Result<(), String> {
        self.signal(Signal::SIGSTOP)
    }

    /// Sends SIGCONT.
    pub fn resume(&self) -> Result<(), String> {
        if self.status().state == State::Running {
            return Err(format!("{} is not paused", self.node.title()));
        }
        self.signal(Signal::SIGCONT)
    }

    /// Waits until the process no longer exists.
    pub async fn gone(&self) {
        let mut changes = self.status.subscribe();
        // The sender lives as long as `self`.
        let _ = changes.wait_for(|s| !s.state.is_alive()).await;
    }

    /// Waits until the process is in this state, or no longer exists.
    pub async fn reaches(&self, state: State) {
        let mut changes = self.status.subscribe();
        let _ = changes
            .wait_for(|s| s.state == state || !s.state.is_alive())
            .await;
    }

    fn signal(&self, signal: Signal) -> Result<(), String> {
        let mut outcome = Ok(());
        self.status.send_if_modified(|status| {
            outcome = self.send(status, &[signal]);
            false
        });
        outcome
    }

    fn end(&self, ending: State, signals: &[Signal], before: impl FnOnce()) -> Result<(), String> {
        let mut outcome = Ok(());
        self.status.send_if_modified(|status| {
            if status.pid.is_some() {
                before();
            }
            outcome = self.send(status, signals);
            if outcome.is_ok() {
                status.ending = Some(ending);
            }
            false
        });
        outcome
    }

    /// Under the lock of the status, which the watching thread takes before it gives the process id back.
    fn send(&self, status: &Status, signals: &[Signal]) -> Result<(), String> {
        let title = self.node.title();
        let Some(pid) = status.pid else {
            return Err(format!("{title} is not running ({})", status.state.name()));
        };
        for &signal in signals {
            kill(pid, signal).map_err(|e| format!("{title} cannot be signalled: {e}"))?;
        }
        Ok(())
    }

    /// The life of one process, on a thread of its own.
    fn live(&self, report: oneshot::Sender<Result<Pid, String>>) {
        let mut child = match self.spawn() {
            Ok(child) => child,
            Err(error) => {
                let _ = report.send(Err(error.to_string()));
                return;
            }
        };
        let pid = Pid::from_raw(i32::try_from(child.id()).expect("process ids fit"));
        self.status.send_modify(|status| status.pid = Some(pid));
        self.tell(ChangeKind::Started, String::new());
        let _ = report.send(Ok(pid));
        let how = self.watch(pid);
        self.status.send_modify(|status| {
            // Nobody signals this id any more once it is reaped: they hold this lock and see no id after it.
            let _ = child.wait();
            self.conclude(status, how);
        });
    }

    fn spawn(&self) -> std::io::Result<Child> {
        let output = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.node.output)?;
        Command::new(&self.program)
            .args(&self.arguments)
            .arg("--supervised-by")
            .arg(std::process::id().to_string())
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            // A group of its own: Ctrl-C is for the supervisor, which stops the nodes in order.
            .process_group(0)
            .spawn()
    }

    /// Follows pauses and resumptions, whoever caused them, until the process has ended but is not yet reaped.
    fn watch(&self, pid: Pid) -> Option<WaitStatus> {
        let pausing = WaitPidFlag::WSTOPPED | WaitPidFlag::WCONTINUED;
        let all = pausing | WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
        loop {
            let state = match waitid(Id::Pid(pid), all) {
                Ok(WaitStatus::Stopped(..)) => State::Paused,
                Ok(WaitStatus::Continued(_)) => State::Running,
                Ok(ended) => return Some(ended),
                Err(Errno::EINTR) => continue,
                Err(_) => return None,
            };
            let _ = waitid(Id::Pid(pid), pausing | WaitPidFlag::WNOHANG);
            let changed = self.status.send_if_modified(|status| {
                let changed = status.state != state;
                status.state = state;
                changed
            });
            match (changed, state) {
                (true, State::Paused) => self.tell(ChangeKind::Paused, String::new()),
                (true, _) => self.tell(ChangeKind::Resumed, String::new()),
                (false, _) => {}
            }
        }
    }

    fn conclude(&self, status: &mut Status, how: Option<WaitStatus>) {
        let ending = status.ending.take();
        status.pid = None;
        status.state = match (how, ending) {
            (_, Some(State::Killed)) => State::Killed, // already told
            (Some(WaitStatus::Signaled(_, Signal::SIGKILL, _)), _) => {
                self.tell(ChangeKind::Killed, "from outside".to_owned());
                State::Killed
            }
            (Some(WaitStatus::Exited(_, 0)), _) => {
                self.tell(ChangeKind::Stopped, String::new());
                State::Stopped
            }
            (how, _) => {
                self.tell(ChangeKind::Exited, self.last_words(how));
                State::Exited
            }
        };
    }

    fn ended(&self, state: State) {
        self.status.send_modify(|status| {
            *status = Status {
                state,
                pid: None,
                ending: None,
            };
        });
    }

    fn tell(&self, kind: ChangeKind, detail: String) {
        self.events.push(EventKind::Process(ProcessChange {
            process: self.node.name(),
            kind: kind.into(),
            detail,
        }));
    }

    fn last_words(&self, how: Option<WaitStatus>) -> String {
        let how = match how {
            Some(WaitStatus::Exited(_, code)) => format!("exit code {code}"),
            Some(WaitStatus::Signaled(_, signal, _)) => signal.to_string(),
            _ => "unknown".to_owned(),
        };
        match last_line(&self.node.output) {
            Some(line) => format!("{how}, its last words: {line}"),
            None => how,
        }
    }
}

/// The last line of a file that says something.
pub fn last_line(path: &Path) -> Option<String> {
    use std::io::{Read as _, Seek as _, SeekFrom};
    const TAIL: u64 = 4096;
    let mut file = std::fs::File::open(path).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))
        .ok()?;
    let mut tail = Vec::new();
    file.take(TAIL).read_to_end(&mut tail).ok()?;
    let tail = String::from_utf8_lossy(&tail);
    let line = tail.lines().rev().find(|line| !line.trim().is_empty())?;
    Some(line.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Kind;

    fn process(script: &str, name: &str) -> Arc<Process> {
        let file = format!("epoka-process-{name}-{}", std::process::id());
        let node = NodeDescription {
            kind: Kind::Broker,
            id: 2,
            kafka: None,
            grpc: String::new(),
            log_dirs: vec![],
            output: std::env::temp_dir().join(file),
        };
        // `$0` and what follows are the arguments behind the script.
        let arguments = vec!["-c".to_owned(), script.to_owned()];
        let events = EventLog::new("supervisor");
        Arc::new(Process::new(node, "/bin/sh".into(), arguments, events))
    }

    fn told(process: &Process) -> Vec<(ChangeKind, String)> {
        let kind = |event: epoka_proto::v1::Event| match event.kind {
            Some(EventKind::Process(change)) => (change.kind(), change.detail),
            other => panic!("{other:?}"),
        };
        let told = process.events.after(0).into_iter().map(kind).collect();
        let _ = std::fs::remove_file(&process.node.output);
        told
    }

    #[tokio::test]
    async fn a_killed_process_is_told_once_and_can_be_started_again() {
        let process = process("exec sleep 1000", "kill");
        process.start().await.expect("a shell");
        assert!(
            process
                .start()
                .await
                .is_err_and(|e| e.contains("running already"))
        );
        process.kill().expect("running");
        process.gone().await;
        assert_eq!(process.status().state, State::Killed);
        assert!(
            process
                .kill()
                .is_err_and(|e| e == "broker 2 is not running (killed)")
        );
        process.start().await.expect("a shell");
        process.kill().expect("running");
        process.gone().await;
        let kinds: Vec<_> = told(&process).into_iter().map(|(kind, _)| kind).collect();
        assert_eq!(
            kinds,
            [
                ChangeKind::Started,
                ChangeKind::Killed,
                ChangeKind::Started,
                ChangeKind::Killed
            ]
        );
    }

    #[tokio::test]
    async fn a_pause_is_seen_and_a_paused_process_can_be_stopped() {
        let process = process("trap 'exit 0' TERM; while :; do sleep 0.01; done", "pause");
        process.start().await.expect("a shell");
        process.pause().expect("running");
        process.reaches(State::Paused).await;
        process.resume().expect("paused");
        process.reaches(State::Running).await;
        assert!(process.resume().is_err_and(|e| e.contains("not paused")));
        process.pause().expect("running");
        process.reaches(State::Paused).await;
        process.stop().expect("paused");
        process.gone().await;
        let _ = told(&process);
        // A shell that had no time to set its trap dies of the signal; either way it has ended.
        assert!(!process.status().state.is_alive());
    }

    #[tokio::test]
    async fn the_last_words_of_a_process_that_ends_by_itself_are_kept() {
        let process = process("echo the disk is full >&2; exit 1", "exit");
        process.start().await.expect("a shell");
        process.gone().await;
        assert_eq!(process.status().state, State::Exited);
        let expected = "exit code 1, its last words: the disk is full".to_owned();
        assert_eq!(told(&process)[1], (ChangeKind::Exited, expected));
    }
}
