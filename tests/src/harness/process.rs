//! One node as a real operating-system process: started, killed, stopped, paused. It never outlives the test that started
//! it, however the test ends.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{LazyLock, mpsc};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::wait::until;

/// How many lines of a node's output are shown when a test fails.
const SHOWN_LINES: usize = 40;

/// A child process and where its output goes.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    /// Reaped: its exit was seen.
    ended: Option<ExitStatus>,
    paused: bool,
}

impl Process {
    /// Starts a command. Its output is added to `log`.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start(name: &str, mut command: Command, log: &Path) -> Self {
        let output = append_to(log).and_then(|out| Ok((out.try_clone()?, out)));
        let (out, err) =
            output.unwrap_or_else(|e| panic!("{} cannot be written: {e}", log.display()));
        command.stdin(Stdio::null()).stdout(out).stderr(err);
        let child = spawn(command).unwrap_or_else(|e| panic!("{name} cannot be started: {e}"));
        Self {
            name: name.to_owned(),
            child,
            ended: None,
            paused: false,
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().expect("our own child");
        }
        self.ended
    }

    /// Whether it runs and is not paused.
    pub fn is_running(&mut self) -> bool {
        !self.paused && self.ended().is_none()
    }

    /// SIGKILL, and waits until the process is gone. Works on a paused one too.
    pub fn kill(&mut self) {
        if self.ended().is_none() {
            self.child.kill().expect("our own child");
            self.ended = Some(self.child.wait().expect("our own child"));
        }
    }

    /// Asks the process to end.
    pub fn terminate(&mut self) {
        self.signal(Signal::SIGTERM);
    }

    /// As Ctrl-C does.
    pub fn interrupt(&mut self) {
        self.signal(Signal::SIGINT);
    }

    /// SIGSTOP: it keeps its memory, its files and its connections, and does nothing.
    pub fn pause(&mut self) {
        self.signal(Signal::SIGSTOP);
        self.paused = true;
    }

    /// SIGCONT.
    pub fn resume(&mut self) {
        self.signal(Signal::SIGCONT);
        self.paused = false;
    }

    /// Waits until the process has ended by itself.
    ///
    /// # Panics
    /// When it does not within that time.
    pub async fn exited(&mut self, within: Duration) -> ExitStatus {
        let what = format!("{} to end", self.name);
        until(&what, within, || self.ended().ok_or("still running")).await
    }

    /// Resident memory in bytes; 0 when it is gone.
    pub fn resident_bytes(&self) -> u64 {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap_or_default();
        let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
        let kilobytes: Option<u64> =
            line.and_then(|l| l.trim().trim_end_matches("kB").trim().parse().ok());
        kilobytes.unwrap_or(0) * 1024
    }

    fn signal(&mut self, signal: Signal) {
        if self.ended().is_none() {
            let pid = Pid::from_raw(i32::try_from(self.pid()).expect("process ids are small"));
            kill(pid, signal).expect("our own child");
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The end of a node's output, for the report of a failed test.
pub fn tail(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n")
}

/// The output files in a directory of them.
pub fn logs_in(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut logs: Vec<_> = entries.map(|e| e.path()).collect();
    logs.sort();
    logs
}

fn append_to(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

type Request = (Command, mpsc::SyncSender<io::Result<Child>>);

/// All children are started by one thread that lives as long as this process: the signal that ends them with their parent
/// is tied to the thread that started them.
static SPAWNER: LazyLock<mpsc::Sender<Request>> = LazyLock::new(|| {
    let (sender, requests) = mpsc::channel::<Request>();
    std::thread::spawn(move || {
        for (mut command, reply) in requests {
            // SAFETY: between fork and exec only one async-signal-safe system call is made.
            unsafe { command.pre_exec(|| Ok(nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?)) };
            let _gone = reply.send(command.spawn());
        }
    });
    sender
});

fn spawn(command: Command) -> io::Result<Child> {
    let (reply, child) = mpsc::sync_channel(1);
    SPAWNER
        .send((command, reply))
        .expect("the thread never ends");
    child.recv().expect("the thread always answers")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, log: &Path) -> Process {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Process::start("shell", command, log)
    }

    #[tokio::test]
    async fn a_process_can_be_paused_and_killed_and_its_output_is_kept() {
        let dir = tempfile::tempdir().expect("a directory");
        let log = dir.path().join("out");
        let mut process = shell("echo hello; exec sleep 600", &log);
        until("its output", Duration::from_secs(10), || {
            (tail(&log) == "hello")
                .then_some(())
                .ok_or_else(|| tail(&log))
        })
        .await;
        assert!(process.is_running());
        process.pause();
        assert!(!process.is_running());
        process.kill();
        assert!(process.ended().is_some());
    }

    #[tokio::test]
    async fn a_dropped_process_is_gone() {
        let dir = tempfile::tempdir().expect("a directory");
        let process = shell("exec sleep 600", &dir.path().join("out"));
        let alive = format!("/proc/{}", process.pid());
        assert!(Path::new(&alive).exists());
        drop(process);
        assert!(!Path::new(&alive).exists());
    }
}
