//! Logs of a process, on standard error: for people, or a JSON object a line for machines. What is logged is chosen by
//! `TOOLYARD_LOG`, as in `debug` or `warn,toolyard=debug`; unset, by whoever starts the process.

use std::env::VarError;
use std::io::{IsTerminal as _, stderr};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::fmt;
use tracing_subscriber::util::{SubscriberInitExt as _, TryInitError};

pub use tracing_subscriber::filter::LevelFilter;

/// The variable that chooses what is logged.
pub const VARIABLE: &str = "TOOLYARD_LOG";

/// What a line of the log looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// For people: coloured on a terminal, unless `NO_COLOR` is set.
    Human,
    /// One JSON object a line.
    Json,
}

/// Why there are no logs. The process should not start without.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{VARIABLE} is {text:?}: {source}. Write a level, or levels by target as in `warn,toolyard=debug`")]
    Malformed { text: String, source: ParseError },
    #[error("{VARIABLE} is not text")]
    NotText,
    #[error(transparent)]
    Taken(#[from] TryInitError),
}

/// Sets up the logs of this process. Unless the variable says otherwise, our own lines are logged from `default_level` on
/// and those of libraries from WARN.
///
/// # Errors
/// When the variable cannot be understood, or the process has logs already.
pub fn init(format: Format, default_level: LevelFilter) -> Result<(), Error> {
    let filter = match std::env::var(VARIABLE) {
        Ok(text) => text.parse().map_err(|source| Error::Malformed { text, source })?,
        Err(VarError::NotPresent) => default_filter(default_level),
        Err(VarError::NotUnicode(_)) => return Err(Error::NotText),
    };
    let lines = fmt().with_env_filter(filter).with_writer(stderr);
    match format {
        Format::Human => lines.with_ansi(colours()).finish().try_init()?,
        Format::Json => lines.json().flatten_event(true).finish().try_init()?,
    }
    Ok(())
}

fn default_filter(level: LevelFilter) -> EnvFilter {
    // Every crate of ours has a name that begins so.
    EnvFilter::new(format!("{},toolyard={level}", level.min(LevelFilter::WARN)))
}

fn colours() -> bool {
    stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_never_louder_than_a_warning() {
        assert_eq!(default_filter(LevelFilter::INFO).to_string(), "toolyard=info,warn");
        assert_eq!(default_filter(LevelFilter::ERROR).to_string(), "toolyard=error,error");
    }
}
