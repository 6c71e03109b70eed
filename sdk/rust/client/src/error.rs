//! The error of a request.

use std::time::Duration;

use proto::Reason;
use tonic::Status;
use tonic_types::StatusExt as _;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The settings of the connection cannot be used; nothing was sent.
    #[error("{0}")]
    Settings(String),
    /// No coordinator answered. A request that makes a run may have been accepted all the same.
    #[error("cannot reach the coordinator at {url}: {reason}")]
    Unreachable {
        /// The address that was tried.
        url: String,
        /// The innermost cause.
        reason: String,
    },
    /// The coordinator refused the request; [`reason`] returns the reason, docs/reference/reasons.md lists all reasons.
    #[error("{}", .0.message())]
    Refused(Box<Status>),
    /// The connection broke before the first event named the run. Repeat the request with the same `request_id`: it is
    /// executed once.
    #[error("the connection broke before the run's id was known: the coordinator may have accepted the run or not")]
    RunUnknown,
    /// The bytes to upload could not be read.
    #[error("reading the object to upload failed: {0}")]
    Source(#[source] std::io::Error),
}

/// The reason of a refusal; `None` if the coordinator gave none, or one that only a newer release knows.
#[must_use]
pub fn reason(status: &Status) -> Option<Reason> {
    Reason::from_code(&reason_code(status)?)
}

/// The stable code of a refusal's reason, such as `RUN_NOT_FOUND`, known here or not; `None` if the coordinator gave
/// none.
#[must_use]
pub fn reason_code(status: &Status) -> Option<String> {
    status.get_details_error_info().map(|info| info.reason)
}

/// How long to wait before the same request is sent again; `None` if the coordinator gave no time.
#[must_use]
pub fn retry_after(status: &Status) -> Option<Duration> {
    status.get_details_retry_info()?.retry_delay
}

/// What a refusal says about itself under a name, such as the `run_id` of a run that exists.
#[must_use]
pub fn metadata(status: &Status, name: &str) -> Option<String> {
    status.get_details_error_info()?.metadata.remove(name)
}
