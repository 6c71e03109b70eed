//! How a command ends: the exit codes, what can go wrong, and what to say about it.

use std::io;
use std::process::ExitCode;

use tonic::{Code, Status};
use tonic_types::StatusExt as _;

/// The exit codes. Scripts rely on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    Completed = 0,
    Failed = 1,
    Refused = 2,
    Cancelled = 3,
    Expired = 4,
    Unreachable = 5,
    /// As a shell reports a program that ended with SIGINT.
    Interrupted = 130,
    /// As a shell reports a program that ended with SIGPIPE.
    PipeClosed = 141,
}

pub(crate) const HELP: &str = "\
Exit codes:
  0    the call completed
  1    the call failed
  2    wrong usage, or the coordinator refused the request
  3    the call was cancelled
  4    the call expired
  5    the coordinator cannot be reached
  130  interrupted";

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a command could not do what it was asked to. The text is for people, and says what to do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{0}")]
    Usage(String),
    #[error("cannot reach the coordinator at {url}: {reason}. Is `toolyard dev` running?")]
    Unreachable { url: String, reason: String },
    #[error("{}", describe(.0))]
    Refused(Box<Status>),
    #[error("the connection broke before the run's id was known: the coordinator may have accepted it or not")]
    RunUnknown,
    #[error("interrupted")]
    Interrupted,
    #[error("cannot write the output: {0}")]
    Output(io::Error),
    #[error("{part} ended before it was told to")]
    Died { part: &'static str },
    #[error("the coordinator does not hear of the worker's tools")]
    ToolsUnknown,
    #[error(transparent)]
    Broker(#[from] local::Error),
    #[error(transparent)]
    Coordinator(#[from] coordinator::Error),
    #[error(transparent)]
    Operate(#[from] coordinator::OperateError),
    #[error(transparent)]
    Worker(#[from] worker::Error),
    #[error("{}{}", .0, cause(.0))]
    Tools(#[from] worker::tools::Error),
    #[error(transparent)]
    ToolsUser(#[from] worker::guard::NotRoot),
    #[error(transparent)]
    Hooks(#[from] hooks::InvalidHooks),
    #[error(transparent)]
    Webhooks(#[from] coordinator::InvalidWebhooks),
    #[error(transparent)]
    Unwatchable(#[from] worker::Unwatchable),
    #[error(transparent)]
    NotHosted(#[from] worker::NotHosted),
    #[error(transparent)]
    Logs(#[from] telemetry::Error),
    #[error(transparent)]
    Telemetry(#[from] telemetry::otlp::SettingsError),
    #[error(transparent)]
    Export(#[from] telemetry::otlp::StartError),
    #[error("cannot hear signals: {0}")]
    Signals(io::Error),
    #[error("cannot start: {0}")]
    Runtime(io::Error),
}

impl Failure {
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Usage(_) | Self::Logs(_) | Self::Telemetry(_) => Exit::Refused,
            Self::Unreachable { .. } => Exit::Unreachable,
            Self::Refused(status) => match status.code() {
                Code::Unavailable => Exit::Unreachable,
                Code::InvalidArgument
                | Code::NotFound
                | Code::AlreadyExists
                | Code::PermissionDenied
                | Code::Unauthenticated
                | Code::ResourceExhausted
                | Code::FailedPrecondition
                | Code::OutOfRange
                | Code::Unimplemented => Exit::Refused,
                Code::Ok
                | Code::Cancelled
                | Code::Unknown
                | Code::DeadlineExceeded
                | Code::Aborted
                | Code::Internal
                | Code::DataLoss => Exit::Failed,
            },
            Self::Interrupted => Exit::Interrupted,
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => Exit::PipeClosed,
            Self::RunUnknown
            | Self::Output(_)
            | Self::Died { .. }
            | Self::ToolsUnknown
            | Self::Broker(_)
            | Self::Coordinator(_)
            | Self::Operate(_)
            | Self::Worker(_)
            | Self::Tools(_)
            | Self::ToolsUser(_)
            | Self::NotHosted(_)
            | Self::Hooks(_)
            | Self::Webhooks(_)
            | Self::Unwatchable(_)
            | Self::Export(_)
            | Self::Signals(_)
            | Self::Runtime(_) => Exit::Failed,
        }
    }

    /// A stable word for programs: the coordinator's reason where it gave one.
    pub(crate) fn reason(&self) -> String {
        match self {
            Self::Refused(status) => reason(status).unwrap_or_else(|| "UNKNOWN".to_owned()),
            Self::Usage(_) | Self::Logs(_) | Self::Telemetry(_) => "USAGE".to_owned(),
            Self::Unreachable { .. } => "UNREACHABLE".to_owned(),
            Self::RunUnknown => "RUN_UNKNOWN".to_owned(),
            Self::Interrupted => "INTERRUPTED".to_owned(),
            Self::Output(_)
            | Self::Died { .. }
            | Self::ToolsUnknown
            | Self::Broker(_)
            | Self::Coordinator(_)
            | Self::Operate(_)
            | Self::Worker(_)
            | Self::Tools(_)
            | Self::ToolsUser(_)
            | Self::NotHosted(_)
            | Self::Hooks(_)
            | Self::Webhooks(_)
            | Self::Unwatchable(_)
            | Self::Export(_)
            | Self::Signals(_)
            | Self::Runtime(_) => "FAILED".to_owned(),
        }
    }
}

/// The stable reason of the coordinator's refusal.
pub(crate) fn reason(status: &Status) -> Option<String> {
    status.get_details_error_info().map(|info| info.reason)
}

/// What lies behind an error that does not say it.
fn cause(error: &impl std::error::Error) -> String {
    error.source().map_or_else(String::new, |cause| format!(": {cause}"))
}

fn describe(status: &Status) -> String {
    let reason = reason(status);
    let name = reason.clone().unwrap_or_else(|| format!("{:?}", status.code()));
    let mut text = format!("{} ({name})", status.message());
    if let Some(advice) = reason.as_deref().and_then(advice) {
        text.push_str("; ");
        text.push_str(advice);
    }
    text
}

/// What to do about a refusal, where its message does not say it.
fn advice(reason: &str) -> Option<&'static str> {
    Some(match reason {
        "TOOL_NOT_FOUND" => "`toolyard tools ls` lists the tools",
        "CALL_NOT_FOUND" | "CALL_NOT_WAITING" | "CALL_ALREADY_ANSWERED" | "RUN_ENDED" => {
            "`toolyard runs get RUN` shows where its calls stand"
        }
        "BROKER_UNAVAILABLE" => "the coordinator is there, its broker is not: look at nats-server",
        "UNCONFIRMED" => "`toolyard runs get RUN` shows whether it was stored",
        "INDEX_UNAVAILABLE" => "look at the Redis or Valkey server; nothing else depends on it",
        "CREDENTIAL_MISSING" => "--key-file names the file of your key",
        "KEY_UNKNOWN" => "is it the key of this coordinator, and still in its file of callers?",
        "LOG_FULL" => "entries leave the log 25 h after their run was opened; `toolyard log usage` shows what is full",
        "CONTENDED" | "SHUTTING_DOWN" => "try again in a moment",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use tonic_types::ErrorDetails;

    use super::*;

    fn refusal(code: Code, reason: &str) -> Failure {
        let details = ErrorDetails::with_error_info(reason, "toolyard.dev", HashMap::new());
        Failure::Refused(Box::new(Status::with_error_details(code, "no", details)))
    }

    #[test]
    fn a_refusal_says_its_reason_and_what_to_do() {
        let failure = refusal(Code::NotFound, "TOOL_NOT_FOUND");
        assert_eq!(failure.to_string(), "no (TOOL_NOT_FOUND); `toolyard tools ls` lists the tools");
        assert_eq!(failure.reason(), "TOOL_NOT_FOUND");
        assert_eq!(failure.exit(), Exit::Refused);
    }

    #[test]
    fn a_coordinator_that_leaves_counts_as_not_reached() {
        assert_eq!(refusal(Code::Unavailable, "SHUTTING_DOWN").exit(), Exit::Unreachable);
    }

    #[test]
    fn a_closed_pipe_has_an_exit_of_its_own() {
        let failure = Failure::Output(io::ErrorKind::BrokenPipe.into());
        assert_eq!(failure.exit(), Exit::PipeClosed);
    }
}
