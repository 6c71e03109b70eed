//! What a worker asks of a guard, and what the guard reports.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::Signal;

/// Bytes of a request as JSON: a command of 128 KiB in which every byte is escaped, arguments, variables and paths.
pub(crate) const REQUEST_BYTES_MAX: u64 = 1024 * 1024;

/// What is run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Program {
    /// A command of `bash`, or of `sh` where there is no `bash`.
    Shell(String),
    /// A program, found in `PATH` unless its name has a slash, and its arguments. No shell reads them.
    Run { program: String, arguments: Vec<String> },
}

/// The standard input of a program.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Input {
    /// Nothing: its first read finds the end.
    #[default]
    Empty,
    /// A pipe that the worker writes: [`Guarded::stdin`](crate::Guarded::stdin).
    Pipe,
}

/// A program to start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    pub program: Program,
    /// The folder to run it in.
    pub folder: PathBuf,
    /// Environment variables beside the few that every program has (`PATH`, `HOME`, `LANG` and the like), and instead
    /// of those. No other variables of the worker reach a program.
    pub environment: BTreeMap<String, String>,
    pub input: Input,
    /// The folder that a confined program may change, with all in it; `None`: that of the sandbox's settings.
    pub workspace: Option<PathBuf>,
}

impl Request {
    /// A command of a shell.
    pub fn shell(command: impl Into<String>, folder: impl Into<PathBuf>) -> Self {
        Self::of(Program::Shell(command.into()), folder.into())
    }

    /// A program with its arguments.
    pub fn run<A: Into<String>>(
        program: impl Into<String>,
        arguments: impl IntoIterator<Item = A>,
        folder: impl Into<PathBuf>,
    ) -> Self {
        let arguments = arguments.into_iter().map(Into::into).collect();
        Self::of(Program::Run { program: program.into(), arguments }, folder.into())
    }

    fn of(program: Program, folder: PathBuf) -> Self {
        Self { program, folder, environment: BTreeMap::new(), input: Input::default(), workspace: None }
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.environment.insert(name.into(), value.into());
        self
    }

    /// The worker writes the program's standard input.
    #[must_use]
    pub fn piped(mut self) -> Self {
        self.input = Input::Pipe;
        self
    }

    /// Checks what the system would refuse in words of its own.
    pub(crate) fn check(&self) -> Result<(), StartError> {
        let is_name = |name: &str| !name.is_empty() && !name.contains(['=', '\0']);
        if let Some(name) = self.environment.keys().find(|name| !is_name(name)) {
            return Err(StartError::VariableName(name.clone()));
        }
        let texts: Vec<&String> = match &self.program {
            Program::Shell(command) => vec![command],
            Program::Run { program, arguments } => std::iter::once(program).chain(arguments).collect(),
        };
        match texts.into_iter().chain(self.environment.values()).find(|text| text.contains('\0')) {
            Some(text) => Err(StartError::Nul(text.chars().take(100).collect())),
            None => Ok(()),
        }
    }
}

/// A program was not started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("{0:?} cannot be the name of an environment variable: it must not be empty, nor contain \"=\" or NUL")]
    VariableName(String),
    #[error("an argument or variable contains a NUL character, which no program can be given: {0:?}")]
    Nul(String),
    #[error(
        "the program's arguments and variables take {bytes} bytes, at most {REQUEST_BYTES_MAX} can be given: write \
         them into a file"
    )]
    TooLarge { bytes: usize },
    #[error("the folder {} cannot be used: {source}", path.display())]
    Folder { path: PathBuf, source: std::io::Error },
    #[error("the guard of the program cannot be started: {0}")]
    Guard(#[from] std::io::Error),
}

/// An order of the worker to the guard of a running program. One byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// SIGTERM to all that live.
    Terminate,
    /// SIGKILL until nothing lives.
    Kill,
    /// A signal to the program's process group, as a terminal sends it. Processes that left the group do not get it.
    Signal(Signal),
}

impl Order {
    pub(crate) const fn byte(self) -> u8 {
        match self {
            Self::Terminate => b't',
            Self::Kill => b'k',
            Self::Signal(signal) => signal.byte(),
        }
    }

    pub(crate) fn of(byte: u8) -> Option<Self> {
        match byte {
            b't' => Some(Self::Terminate),
            b'k' => Some(Self::Kill),
            byte => Signal::ALL.into_iter().find(|signal| signal.byte() == byte).map(Self::Signal),
        }
    }
}

/// A report of a guard. One line of JSON.
#[derive(Debug, Serialize, Deserialize)]
pub enum Report {
    /// The program could not be started. The last report.
    Failed(String),
    /// The program ended. Processes that it started may still run.
    Exited(Exit),
    /// Nothing that the program started lives any more. The last report.
    Gone,
    /// All processes that the guard can observe on this system have ended. The last report.
    PerhapsGone,
}

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    ExitCode(i32),
    Signal(i32),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_has_a_byte_of_its_own() {
        let signals = Signal::ALL.into_iter().map(Order::Signal);
        for order in signals.chain([Order::Terminate, Order::Kill]) {
            assert_eq!(Order::of(order.byte()), Some(order));
        }
        assert_eq!(Order::of(b'?'), None);
    }

    #[test]
    fn names_and_texts_that_no_program_can_be_given_are_refused() {
        let request = || Request::run("true", ["a"], "/");
        assert!(request().with("A", "=").check().is_ok());
        assert!(matches!(request().with("A=B", "").check(), Err(StartError::VariableName(name)) if name == "A=B"));
        assert!(matches!(request().with("", "").check(), Err(StartError::VariableName(_))));
        assert!(matches!(request().with("A", "\0").check(), Err(StartError::Nul(_))));
        assert!(matches!(Request::shell("a\0", "/").check(), Err(StartError::Nul(_))));
    }
}
