//! Logs, metrics, traces and the admin port of a process. It has no domain types.
//!
//! Logs go to standard error: as text for people, or as one JSON object a line for programs. `TOOLYARD_LOG` selects the
//! level, as in `debug` or `warn,toolyard=debug`; if it is not set, the program's default applies. [`set_level`]
//! changes it later.

pub mod admin;
pub mod hosts;
pub mod metrics;
pub mod otlp;
pub mod process;
pub mod trace;

use std::env::VarError;
use std::io::{IsTerminal as _, stderr};
use std::sync::OnceLock;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::reload;
use tracing_subscriber::util::{SubscriberInitExt as _, TryInitError};

use crate::otlp::ExportedLogs;

pub use tracing_subscriber::filter::LevelFilter;

/// The variable that sets the log level.
pub const VARIABLE: &str = "TOOLYARD_LOG";

/// Puts another filter in the place of the one that the process began with.
type SetFilter = Box<dyn Fn(EnvFilter) -> Result<(), reload::Error> + Send + Sync>;
static SET_FILTER: OnceLock<SetFilter> = OnceLock::new();

/// The format of log lines.
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

/// Sets up the logs of this process. Unless the variable says otherwise, our own lines are logged from `default_level`
/// on and those of libraries from WARN.
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
    let set: SetFilter = match format {
        Format::Human => {
            let lines = lines.with_ansi(colours()).with_filter_reloading();
            let handle = lines.reload_handle();
            lines.finish().with(ExportedLogs).try_init()?;
            Box::new(move |filter| handle.reload(filter))
        }
        Format::Json => {
            let lines = lines.json().flatten_event(true).with_filter_reloading();
            let handle = lines.reload_handle();
            lines.finish().with(ExportedLogs).try_init()?;
            Box::new(move |filter| handle.reload(filter))
        }
    };
    // Logs are set up once in a process, so no subscriber is set yet.
    SET_FILTER.get_or_init(|| set);
    Ok(())
}

/// The error of a log level that cannot be set.
#[derive(Debug, thiserror::Error)]
pub enum SetLevelError {
    #[error("{text:?} is not understood: {source}. Write a level, or levels by target as in `warn,toolyard=debug`")]
    Malformed { text: String, source: ParseError },
    #[error("{0:?} cannot be set here: write a level, or levels of targets of ours, as in `warn,toolyard=debug`")]
    Refused(String),
    #[error("this process has no logs")]
    NoLogs,
    #[error(transparent)]
    Gone(#[from] reload::Error),
}

/// Changes the log level: a level, and levels of our own targets, as in `warn,toolyard=debug`. Every client of the
/// admin port may do this. So it cannot set libraries to more than warnings, because they could log payloads, and it
/// cannot end the audit log.
///
/// # Errors
/// The text is malformed, or requests more than that. Then nothing changes.
pub fn set_level(text: &str) -> Result<(), SetLevelError> {
    let bounded = bounded(text)?;
    let filter = bounded.parse().map_err(|source| SetLevelError::Malformed { text: text.to_owned(), source })?;
    let set = SET_FILTER.get().ok_or(SetLevelError::NoLogs)?;
    Ok(set(filter)?)
}

/// Libraries that would log each export of telemetry that fails. We log the first of them, and count all.
const SILENT: &str = "opentelemetry-otlp=off,opentelemetry_sdk=off";

/// The target of the audit log.
pub const AUDIT: &str = "toolyard::audit";

fn bounded(text: &str) -> Result<String, SetLevelError> {
    let mut directives = Vec::new();
    for directive in text.split(',').map(str::trim) {
        let refused = || SetLevelError::Refused(directive.to_owned());
        // The library takes no text for a level too.
        let level = |text: &str| text.parse::<LevelFilter>().ok().filter(|_| !text.is_empty()).ok_or_else(refused);
        match directive.split_once('=') {
            None => directives.push(default_filter(level(directive)?).to_string()),
            Some((target, text)) => {
                let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
                if !target.starts_with("toolyard") || target.starts_with(AUDIT) || !target.chars().all(is_plain) {
                    return Err(refused());
                }
                directives.push(format!("{target}={}", level(text)?));
            }
        }
    }
    directives.push(format!("{AUDIT}=info"));
    Ok(directives.join(","))
}

fn default_filter(level: LevelFilter) -> EnvFilter {
    // Every crate of ours has a name that begins so.
    EnvFilter::new(format!("{},toolyard={level},{SILENT}", level.min(LevelFilter::WARN)))
}

fn colours() -> bool {
    stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_ends_the_audit_log_or_has_libraries_tell_what_they_carry() {
        for (text, filter) in [
            ("off", format!("{SILENT},toolyard::audit=info,toolyard=off,off")),
            ("trace", format!("{SILENT},toolyard::audit=info,toolyard=trace,warn")),
            ("warn,toolyard=debug", format!("{SILENT},toolyard::audit=info,toolyard=debug,warn")),
            ("toolyard_worker::nats=trace", "toolyard_worker::nats=trace,toolyard::audit=info".to_owned()),
        ] {
            let bounded: EnvFilter = bounded(text).expect("it may be set").parse().expect("it is a filter");
            assert_eq!(bounded.to_string(), filter, "{text}");
        }
        for text in ["h2=trace", "toolyard::audit=off", "toolyard", "warn,[span]=trace", "toolyard[s]=info", "loud", ""]
        {
            assert!(matches!(bounded(text), Err(SetLevelError::Refused(_))), "{text}");
        }
    }

    #[test]
    fn libraries_are_never_louder_than_a_warning() {
        assert_eq!(default_filter(LevelFilter::INFO).to_string(), format!("{SILENT},toolyard=info,warn"));
        assert_eq!(default_filter(LevelFilter::ERROR).to_string(), format!("{SILENT},toolyard=error,error"));
    }
}
