//! How a command ends when it does not succeed: a sentence for the person and an exit code for the script.

use std::fmt;
use std::process::ExitCode;

/// The result of a command.
pub type Outcome<T = ()> = Result<T, Failure>;

/// Why a command did not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    code: u8,
    sentence: String,
}

impl Failure {
    /// It was found wrong, or was refused: exit code 1. The sentence names the thing, the reason and the next step.
    pub fn wrong(sentence: impl Into<String>) -> Self {
        Self {
            code: 1,
            sentence: sentence.into(),
        }
    }

    /// The command line or a configuration was wrong: exit code 2.
    pub fn usage(sentence: impl Into<String>) -> Self {
        Self {
            code: 2,
            sentence: sentence.into(),
        }
    }

    /// What a script gets.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

impl From<epoka_client::Error> for Failure {
    fn from(error: epoka_client::Error) -> Self {
        Self::wrong(error.to_string())
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::wrong(format!("{error:#}"))
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::wrong(error.to_string())
    }
}
