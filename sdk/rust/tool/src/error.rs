//! The error of a call. Its kind decides who can correct it (the model, the caller, or an operator), and whether the
//! call is tried again.

use std::error::Error;
use std::time::Duration;

use run::{CallError, ErrorKind, Violation};

/// Why a call failed, for the model and the caller. Any error becomes one with `?`, and is then final.
///
/// The text is cut to 16 KiB. The tool's policy decides whether and how often a retryable failure is tried again: only
/// if the tool is safe to repeat, with three attempts unless [`About::attempts_max`](crate::About::attempts_max) sets
/// another number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolError(pub(crate) CallError);

impl ToolError {
    /// Another attempt would fail as well.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self(CallError::new(ErrorKind::ToolFailed, message))
    }

    /// Another attempt may succeed; it is made when the tool's policy allows.
    #[must_use]
    pub fn retryable(message: impl Into<String>) -> Self {
        Self(CallError::new(ErrorKind::ToolFailed, message).retryable())
    }

    /// A service that the tool uses limits its rate. Another attempt is made as after [`Self::retryable`], but not
    /// before `wait` (at most an hour) has passed. Meanwhile the call holds no slot.
    #[must_use]
    pub fn rate_limited(message: impl Into<String>, wait: Duration) -> Self {
        Self(CallError::new(ErrorKind::RateLimited, message).retryable_after(wait))
    }

    /// An argument fits its schema and is of no use all the same. `path` is a JSON pointer to it, as `/name` or
    /// `/points/3/x`, or empty for all of them together. No further attempt is made.
    #[must_use]
    pub fn bad_input(path: impl Into<String>, message: impl Into<String>) -> Self {
        let (path, message) = (path.into(), message.into());
        let text = match path.as_str() {
            "" => format!("the arguments are of no use: {message}"),
            path => format!("the arguments are of no use: at {path}: {message}"),
        };
        let error = CallError::new(ErrorKind::ArgumentsInvalid, text);
        Self(CallError { violations: vec![Violation::new(path, message)], ..error })
    }

    /// The model should call again with other arguments; `hint` explains how. No further attempt of this call is made.
    #[must_use]
    pub fn model_retry(hint: impl Into<String>) -> Self {
        Self(CallError::new(ErrorKind::ModelRetry, hint))
    }

    /// The tool needs something from the caller first: a login, a file, a consent. `what` names it. No further attempt
    /// is made.
    #[must_use]
    pub fn needs(what: impl Into<String>) -> Self {
        Self(CallError::new(ErrorKind::NeedsInput, what))
    }

    /// An error of a kind that the other constructors do not have.
    #[must_use]
    pub fn of_call(error: CallError) -> Self {
        Self(error)
    }

    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Whether another attempt may succeed.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.0.retryable
    }

    /// The shortest wait before another attempt, if the error sets one.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// An error with its causes.
    pub(crate) fn of(error: &dyn Error) -> Self {
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            message = format!("{message}: {error}");
            cause = error.source();
        }
        Self::new(message)
    }
}

impl From<ToolError> for CallError {
    fn from(ToolError(error): ToolError) -> Self {
        error
    }
}

impl<E: Error> From<E> for ToolError {
    fn from(error: E) -> Self {
        Self::of(&error)
    }
}
