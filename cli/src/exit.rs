//! The end of a command: exit codes, errors and their messages.

use std::io;
use std::process::ExitCode;

use client::{Code, Status, reason, reason_code};

/// The exit codes. Scripts rely on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    Completed,
    Failed,
    Refused,
    Cancelled,
    Expired,
    Unreachable,
    /// As a shell reports a program that ended with SIGINT.
    Interrupted,
    /// As a shell reports a program that ended with SIGPIPE.
    PipeClosed,
    /// The exit code of the program that the call ran.
    Program(u8),
}

impl Exit {
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Completed => 0,
            Self::Failed => 1,
            Self::Refused => 2,
            Self::Cancelled => 3,
            Self::Expired => 4,
            Self::Unreachable => 5,
            Self::Interrupted => 130,
            Self::PipeClosed => 141,
            Self::Program(code) => code,
        }
    }
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
        Self::from(exit.code())
    }
}

/// The error of a command. The text is for people and names a remedy.
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
    Script(#[from] agents::scripted::InvalidScript),
    #[error("the scripted model cannot serve {listen}: {error}")]
    Model { listen: std::net::SocketAddr, error: io::Error },
    #[error(transparent)]
    Origins(#[from] origins::InvalidFile),
    #[error(transparent)]
    Broker(#[from] local::Error),
    #[error(transparent)]
    Coordinator(#[from] coordinator::Error),
    #[error(transparent)]
    Operate(#[from] coordinator::OperateError),
    #[error(transparent)]
    Worker(#[from] worker::Error),
    #[error("{}{}", .0, cause(.0))]
    Tools(#[from] tools::Error),
    #[error(transparent)]
    ToolsUser(#[from] sandbox::NotRoot),
    #[error(transparent)]
    Sandbox(#[from] sandbox::SandboxError),
    #[error(transparent)]
    Mcp(#[from] origins::mcp::config::ConfigError),
    #[error(transparent)]
    McpFile(#[from] origins::mcp::config::FileError),
    #[error("no folders for calls can be made below {}: {error}", root.display())]
    Workspaces { root: std::path::PathBuf, error: io::Error },
    #[error(transparent)]
    Workspace(#[from] sandbox::WorkspaceError),
    #[error("the folder for MCP servers cannot be used: {0}")]
    McpPrograms(io::Error),
    #[error(transparent)]
    Hooks(#[from] hooks::InvalidHooks),
    #[error(transparent)]
    Webhooks(#[from] coordinator::InvalidWebhooks),
    #[error(transparent)]
    Interceptors(#[from] worker::interceptors::InvalidInterceptors),
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

impl From<client::Error> for Failure {
    fn from(error: client::Error) -> Self {
        match error {
            client::Error::Settings(what) => Self::Usage(what),
            client::Error::Unreachable { url, reason } => Self::Unreachable { url, reason },
            client::Error::Refused(status) => Self::Refused(status),
            client::Error::RunUnknown => Self::RunUnknown,
            client::Error::Source(error) => Self::Usage(format!("reading the object to upload failed: {error}")),
        }
    }
}

impl Failure {
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Usage(_) | Self::Logs(_) | Self::Telemetry(_) | Self::Mcp(_) | Self::McpFile(_) => Exit::Refused,
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
            | Self::Sandbox(_)
            | Self::Workspaces { .. }
            | Self::Workspace(_)
            | Self::McpPrograms(_)
            | Self::Origins(_)
            | Self::Script(_)
            | Self::Model { .. }
            | Self::Interceptors(_)
            | Self::NotHosted(_)
            | Self::Hooks(_)
            | Self::Webhooks(_)
            | Self::Export(_)
            | Self::Signals(_)
            | Self::Runtime(_) => Exit::Failed,
        }
    }

    /// A stable code for programs: the coordinator's reason, if it gave one.
    pub(crate) fn reason(&self) -> String {
        match self {
            Self::Refused(status) => reason_code(status).unwrap_or_else(|| "UNKNOWN".to_owned()),
            Self::Usage(_) | Self::Logs(_) | Self::Telemetry(_) | Self::Mcp(_) | Self::McpFile(_) => "USAGE".to_owned(),
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
            | Self::Sandbox(_)
            | Self::Workspaces { .. }
            | Self::Workspace(_)
            | Self::McpPrograms(_)
            | Self::Origins(_)
            | Self::Script(_)
            | Self::Model { .. }
            | Self::Interceptors(_)
            | Self::NotHosted(_)
            | Self::Hooks(_)
            | Self::Webhooks(_)
            | Self::Export(_)
            | Self::Signals(_)
            | Self::Runtime(_) => "FAILED".to_owned(),
        }
    }
}

/// The source of an error whose own text does not name it.
fn cause(error: &impl std::error::Error) -> String {
    error.source().map_or_else(String::new, |cause| format!(": {cause}"))
}

/// The message, the code, and the remedy of a reason that is known here.
fn describe(status: &Status) -> String {
    let code = reason_code(status).unwrap_or_else(|| format!("{:?}", status.code()));
    let remedy = reason(status).map_or_else(String::new, |reason| format!("; {}", reason.remedy()));
    format!("{} ({code}){remedy}", status.message())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use client::Reason;
    use proto::reason::DOMAIN;
    use tonic_types::{ErrorDetails, StatusExt as _};

    use super::*;

    fn refusal(code: Code, reason: &str) -> Failure {
        let details = ErrorDetails::with_error_info(reason, DOMAIN, HashMap::new());
        Failure::Refused(Box::new(Status::with_error_details(code, "no", details)))
    }

    #[test]
    fn a_refusal_is_printed_with_its_code_and_its_remedy() {
        let failure = refusal(Code::NotFound, "TOOL_NOT_FOUND");
        assert_eq!(failure.to_string(), "no (TOOL_NOT_FOUND); list the tools: `GET /v1/tools` or `toolyard tools ls`");
        assert_eq!(failure.reason(), "TOOL_NOT_FOUND");
        assert_eq!(failure.exit(), Exit::Refused);
    }

    #[test]
    fn a_reason_of_a_newer_coordinator_is_printed_without_a_remedy() {
        let failure = refusal(Code::ResourceExhausted, "OUT_OF_PAPER");
        assert_eq!(failure.to_string(), "no (OUT_OF_PAPER)");
        assert_eq!(failure.reason(), "OUT_OF_PAPER");
        assert_eq!(failure.exit(), Exit::Refused);
    }

    #[test]
    fn a_coordinator_that_leaves_counts_as_not_reached() {
        assert_eq!(refusal(Code::Unavailable, "SHUTTING_DOWN").exit(), Exit::Unreachable);
    }

    /// Scripts distinguish a refusal from an outage by the exit code.
    #[test]
    fn every_reason_has_the_exit_code_of_its_kind() {
        for reason in Reason::ALL {
            let exit = refusal(reason.grpc(), reason.code()).exit();
            let expected = match reason.http().as_u16() {
                503 if reason.grpc() == Code::Unavailable => Exit::Unreachable,
                408 | 504 => Exit::Failed,
                _ if [Reason::Contended, Reason::HistoryDamaged].contains(reason) => Exit::Failed,
                _ => Exit::Refused,
            };
            assert_eq!(exit, expected, "{reason:?}");
        }
    }

    #[test]
    fn a_closed_pipe_has_an_exit_of_its_own() {
        let failure = Failure::Output(io::ErrorKind::BrokenPipe.into());
        assert_eq!(failure.exit(), Exit::PipeClosed);
    }
}
