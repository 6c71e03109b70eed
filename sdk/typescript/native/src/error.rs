//! Errors on their way between JavaScript and Rust: as JSON, so that a tool's error keeps its kind.

use std::time::Duration;

use napi::{Error, Status};
use serde::{Deserialize, Serialize};
use toolyard_tool::{CallError, ErrorKind, ToolError};

/// The error of a call, as JavaScript has it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Failure {
    kind: Kind,
    message: String,
    #[serde(default)]
    retryable: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    /// JSON pointer to the argument that is of no use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    path: Option<String>,
}

/// The kinds that a tool sets. Those that the engine sets are `other` for a tool.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    ToolFailed,
    ArgumentsInvalid,
    RateLimited,
    ModelRetry,
    NeedsInput,
    UnknownTool,
    OutputTooLarge,
    ResultTooLarge,
    Other,
}

impl From<Failure> for ToolError {
    fn from(failure: Failure) -> Self {
        let Failure { kind, message, retryable, retry_after_ms, path } = failure;
        let wait = retry_after_ms.map(Duration::from_millis);
        match kind {
            Kind::RateLimited => Self::rate_limited(message, wait.unwrap_or_default()),
            Kind::ArgumentsInvalid => Self::bad_input(path.unwrap_or_default(), message),
            Kind::ModelRetry => Self::model_retry(message),
            Kind::NeedsInput => Self::needs(message),
            Kind::ToolFailed | Kind::UnknownTool | Kind::OutputTooLarge | Kind::ResultTooLarge | Kind::Other => {
                match (retryable, wait) {
                    (true, Some(wait)) => {
                        Self::of_call(CallError::new(ErrorKind::ToolFailed, message).retryable_after(wait))
                    }
                    (true, None) => Self::retryable(message),
                    (false, _) => Self::new(message),
                }
            }
        }
    }
}

impl From<&ToolError> for Failure {
    fn from(error: &ToolError) -> Self {
        let kind = match error.kind() {
            ErrorKind::ToolFailed => Kind::ToolFailed,
            ErrorKind::ArgumentsInvalid => Kind::ArgumentsInvalid,
            ErrorKind::RateLimited => Kind::RateLimited,
            ErrorKind::ModelRetry => Kind::ModelRetry,
            ErrorKind::NeedsInput => Kind::NeedsInput,
            ErrorKind::UnknownTool => Kind::UnknownTool,
            ErrorKind::OutputTooLarge => Kind::OutputTooLarge,
            ErrorKind::ResultTooLarge => Kind::ResultTooLarge,
            ErrorKind::ToolPanicked
            | ErrorKind::AttemptTimeout
            | ErrorKind::IdleTimeout
            | ErrorKind::Interrupted
            | ErrorKind::WorkerLost
            | ErrorKind::OutputIncomplete
            | ErrorKind::ClientFailed
            | ErrorKind::NoWorker
            | ErrorKind::Rejected
            | ErrorKind::Denied
            | ErrorKind::HookFailed
            | ErrorKind::HookRequired
            | ErrorKind::LimitExceeded
            | ErrorKind::StreamingUnsupported
            | ErrorKind::NotPermitted => Kind::Other,
        };
        let retry_after_ms = error.retry_after().and_then(|wait| u64::try_from(wait.as_millis()).ok());
        let (message, retryable) = (error.message().to_owned(), error.is_retryable());
        Self { kind, message, retryable, retry_after_ms, path: None }
    }
}

/// An error of a tool's context as an error of JavaScript, whose message is JSON.
pub(crate) fn thrown(error: &ToolError) -> Error {
    Error::new(Status::GenericFailure, json(error))
}

pub(crate) fn json(error: &ToolError) -> String {
    serde_json::to_string(&Failure::from(error)).unwrap_or_else(|_| error.message().to_owned())
}

/// An argument that cannot be used.
pub(crate) fn invalid(what: impl std::fmt::Display) -> Error {
    Error::new(Status::InvalidArg, what.to_string())
}
