//! One `epoka up`, the child process whose children are the nodes. It ends when its standard input does, and that ends with
//! this process: whatever happens to the test, nothing is left running.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use tokio::sync::oneshot;

use crate::builder::Builder;
use crate::error::{Error, Result};

/// How long the nodes may take to be killed before their supervisor is.
const END: Duration = Duration::from_secs(5);
/// What the supervisor writes to its standard error.
const OUTPUT: &str = "up.log";
/// Variables that a test's own environment may have and that are meant for it, not for every cluster.
const PASSED_ON: [&str; 2] = ["EPOKA_LOG", "EPOKA_LOG_FORMAT"];

/// A running `epoka up` and its directory.
pub struct Up {
    child: Child,
    /// The only writing end: the system closes it with this process, and no other program inherits it.
    input: Option<ChildStdin>,
    /// Told when the child has ended.
    ended: mpsc::Receiver<()>,
    directory: TempDir,
}

impl Up {
    /// Starts it; it is not ready before the receiver has its line. With nothing received it has ended.
    ///
    /// # Errors
    /// The program cannot be run; the system refuses a directory or a thread.
    pub fn start(program: PathBuf, plan: &Builder) -> Result<(Self, oneshot::Receiver<String>)> {
        let directory = tempfile::Builder::new().prefix("epoka-").tempdir();
        let directory = directory.map_err(Error::system("a temporary directory"))?;
        let output = File::create(directory.path().join(OUTPUT));
        let output = output.map_err(Error::system("a file in the temporary directory"))?;
        let mut command = Command::new(&program);
        command
            .args(arguments(plan, directory.path()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(output)
            // Ctrl-C is for the test, whose end is the cluster's.
            .process_group(0);
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            if name.starts_with("EPOKA_") && !PASSED_ON.contains(&name.as_ref()) {
                command.env_remove(name.as_ref());
            }
        }
        let mut child = command.spawn().map_err(|source| Error::NotRun {
            path: program,
            source,
        })?;
        let input = child.stdin.take();
        let stdout = child.stdout.take().expect("piped above");
        let (said, ready) = oneshot::channel();
        let (over, ended) = mpsc::channel();
        let up = Self {
            child,
            input,
            ended,
            directory,
        };
        let listener = std::thread::Builder::new().name("epoka-up".to_owned());
        listener
            .spawn(move || listen(stdout, said, over))
            .map_err(Error::system("a thread for the cluster's output"))?;
        Ok((up, ready))
    }

    /// Where the cluster keeps its data and its logs.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Keeps the directory when this ends; returns where it is.
    pub fn keep(&mut self) -> PathBuf {
        self.directory.disable_cleanup(true);
        self.directory.path().to_owned()
    }

    /// The last thing it said.
    pub fn last_words(&self) -> String {
        let said = std::fs::read_to_string(self.directory.path().join(OUTPUT));
        let said = said.unwrap_or_default();
        let last = said.trim().lines().last().unwrap_or("it said nothing");
        last.strip_prefix("epoka: ").unwrap_or(last).to_owned()
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        // Asked once it would stop the nodes cleanly; asked twice it kills them, which loses nothing that is still wanted.
        drop(self.input.take());
        if let Ok(pid) = i32::try_from(self.child.id()) {
            // It may have ended before. Its id is not given to another before it is waited for.
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        if let Err(mpsc::RecvTimeoutError::Timeout) = self.ended.recv_timeout(END) {
            // The system then kills the nodes.
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

fn arguments(plan: &Builder, directory: &Path) -> Vec<String> {
    let directory = directory.display().to_string();
    let mut arguments: Vec<_> = ["up", "--with-stdin", "--port", "0", "--data-dir"]
        .map(str::to_owned)
        .into();
    let brokers = plan.brokers.to_string();
    let controllers = plan.controllers.to_string();
    arguments.extend([directory, "--brokers".to_owned(), brokers]);
    arguments.extend(["--controllers".to_owned(), controllers]);
    for topic in plan.topics() {
        arguments.extend(["--topic".to_owned(), topic]);
    }
    for (key, value) in &plan.settings {
        arguments.extend(["--set".to_owned(), format!("{key}={value}")]);
    }
    arguments
}

/// Reads what it says until it ends.
fn listen(stdout: ChildStdout, said: oneshot::Sender<String>, over: mpsc::Sender<()>) {
    let mut said = Some(said);
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        if line.starts_with("ready in ")
            && let Some(said) = said.take()
        {
            // A test that no longer waits has dropped the cluster too.
            let _ = said.send(line);
        }
    }
    drop(over);
}
