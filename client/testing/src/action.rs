//! What can be done to a process, and what it is doing.

/// What can be done to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// SIGKILL.
    Kill,
    /// SIGTERM: a clean stop.
    Stop,
    /// A start.
    Start,
    /// It does nothing any more, and says nothing.
    Pause,
    /// It goes on.
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

    /// Whether a process in this state is one that it can be done to.
    pub fn suits(self, state: State) -> bool {
        match self {
            Self::Kill | Self::Stop | Self::Pause => state == State::Running,
            Self::Start => state == State::Down,
            Self::Resume => state == State::Paused,
        }
    }
}

/// What a process is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It runs.
    Running,
    /// It was paused and does nothing.
    Paused,
    /// It does not exist: it was killed or stopped, or has ended by itself.
    Down,
}
