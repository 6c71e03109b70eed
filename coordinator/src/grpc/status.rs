//! The only place that makes statuses. Each carries `google.rpc.ErrorInfo` with a stable reason, for programs; the message
//! is for people and may change.

use std::collections::HashMap;
use std::time::Duration;

use proto::v1;
use run::{CallId, Rejection, Violation};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

use crate::index::{RebuildError, Unavailable};
use crate::runs::Refusal;
use crate::watch::WatchError;

const DOMAIN: &str = "toolyard.dev";
/// When to come back after a refusal that passes.
const RETRY_AFTER: Duration = Duration::from_secs(1);

pub(super) fn status<const N: usize>(
    code: Code,
    reason: &'static str,
    message: impl Into<String>,
    metadata: [(&str, String); N],
) -> Status {
    let metadata: HashMap<String, String> = metadata.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    Status::with_error_details(code, message, ErrorDetails::with_error_info(reason, DOMAIN, metadata))
}

/// A status as a part of a message.
pub(super) fn refusal(status: &Status) -> v1::RunRefusal {
    let reason = status.get_details_error_info().map(|info| info.reason).unwrap_or_default();
    v1::RunRefusal { code: status.code().into(), reason, message: status.message().to_owned() }
}

fn passing(code: Code, reason: &'static str, message: String) -> Status {
    let mut details = ErrorDetails::with_error_info(reason, DOMAIN, HashMap::<String, String>::new());
    details.set_retry_info(Some(RETRY_AFTER));
    Status::with_error_details(code, message, details)
}

pub(super) fn malformed(field: &str, message: String) -> Status {
    let mut details = ErrorDetails::with_error_info("MALFORMED", DOMAIN, [("field".to_owned(), field.to_owned())]);
    details.add_bad_request_violation(field, message.clone());
    Status::with_error_details(Code::InvalidArgument, message, details)
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let message = refusal.to_string();
        match refusal {
            Refusal::Malformed { field, .. } => malformed(&field, message),
            Refusal::Rejected(rejection) => rejected(&rejection),
            Refusal::RunNotFound(run) => {
                status(Code::NotFound, "RUN_NOT_FOUND", message, [("run_id", run.to_string())])
            }
            Refusal::EventsExpired(run) => {
                status(Code::OutOfRange, "EVENTS_EXPIRED", message, [("run_id", run.to_string())])
            }
            Refusal::ToolNotFound(tool) => {
                status(Code::NotFound, "TOOL_NOT_FOUND", message, [("tool", tool.to_string())])
            }
            Refusal::ArgumentsInvalid { call, violations } => arguments_invalid(&call, &violations, message),
            Refusal::RequestIdTaken { run } => {
                status(Code::AlreadyExists, "REQUEST_ID_TAKEN", message, [("run_id", run.to_string())])
            }
            Refusal::LogFull => passing(Code::ResourceExhausted, "LOG_FULL", message),
            Refusal::TooLarge => status(Code::ResourceExhausted, "PAYLOAD_TOO_LARGE", message, []),
            Refusal::Contended => passing(Code::Aborted, "CONTENDED", message),
            Refusal::BrokerUnavailable(_) => passing(Code::Unavailable, "BROKER_UNAVAILABLE", message),
            Refusal::ShuttingDown => passing(Code::Unavailable, "SHUTTING_DOWN", message),
        }
    }
}

fn arguments_invalid(call: &CallId, violations: &[Violation], message: String) -> Status {
    let call = [("call_id".to_owned(), call.to_string())];
    let mut details = ErrorDetails::with_error_info("ARGUMENTS_INVALID", DOMAIN, call);
    for violation in violations {
        details.add_bad_request_violation(&violation.path, &violation.message);
    }
    Status::with_error_details(Code::InvalidArgument, message, details)
}

fn rejected(rejection: &Rejection) -> Status {
    use Code::{AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted};
    let message = rejection.to_string();
    match rejection {
        Rejection::NoCalls => status(InvalidArgument, "NO_CALLS", message, []),
        Rejection::NoAnswers => status(InvalidArgument, "NO_ANSWERS", message, []),
        Rejection::AnswersMissing { .. } => status(FailedPrecondition, "ANSWERS_MISSING", message, []),
        Rejection::TooManyCalls { limit, .. } => {
            status(InvalidArgument, "TOO_MANY_CALLS", message, [("limit", limit.to_string())])
        }
        Rejection::DuplicateCallId { call } => {
            status(InvalidArgument, "DUPLICATE_CALL_ID", message, [("call_id", call.to_string())])
        }
        Rejection::ArgumentsTooLarge { call, limit, .. }
        | Rejection::MetadataTooLarge { call, limit, .. }
        | Rejection::OutputTooLarge { call, limit, .. } => {
            let metadata = [("call_id", call.to_string()), ("limit", limit.to_string())];
            status(ResourceExhausted, "PAYLOAD_TOO_LARGE", message, metadata)
        }
        Rejection::RequestTooLarge { limit, .. } => {
            status(ResourceExhausted, "PAYLOAD_TOO_LARGE", message, [("limit", limit.to_string())])
        }
        Rejection::DeadlinePassed => status(InvalidArgument, "DEADLINE_PASSED", message, []),
        Rejection::DeadlineTooFar { limit_s } => {
            status(InvalidArgument, "DEADLINE_TOO_FAR", message, [("limit_s", limit_s.to_string())])
        }
        Rejection::RunClosed => status(FailedPrecondition, "RUN_CLOSED", message, []),
        Rejection::RunEnded => status(FailedPrecondition, "RUN_ENDED", message, []),
        Rejection::UnknownCall { call } => status(NotFound, "CALL_NOT_FOUND", message, [("call_id", call.to_string())]),
        Rejection::CallNotWaiting { call, state } => {
            let metadata = [("call_id", call.to_string()), ("state", (*state).to_owned())];
            status(FailedPrecondition, "CALL_NOT_WAITING", message, metadata)
        }
        Rejection::NotParked { call, state } => {
            let metadata = [("call_id", call.to_string()), ("state", (*state).to_owned())];
            status(FailedPrecondition, "CALL_NOT_PARKED", message, metadata)
        }
        Rejection::NotParkedAnyMore { call, .. } => {
            status(FailedPrecondition, "CALL_NOT_PARKED_ANY_MORE", message, [("call_id", call.to_string())])
        }
        Rejection::NoDecisions => status(InvalidArgument, "NO_DECISIONS", message, []),
        Rejection::NotAwaitingApproval { call, state } => {
            let metadata = [("call_id", call.to_string()), ("state", (*state).to_owned())];
            status(FailedPrecondition, "CALL_NOT_AWAITING_APPROVAL", message, metadata)
        }
        Rejection::AlreadyDecided { call, .. } => {
            status(AlreadyExists, "CALL_ALREADY_DECIDED", message, [("call_id", call.to_string())])
        }
        Rejection::AlreadyAnswered { call } => {
            status(AlreadyExists, "CALL_ALREADY_ANSWERED", message, [("call_id", call.to_string())])
        }
    }
}

impl From<WatchError> for Status {
    fn from(error: WatchError) -> Self {
        let message = error.to_string();
        match error {
            WatchError::Stopped(_) => passing(Code::Unavailable, "SHUTTING_DOWN", message),
            WatchError::Read(_) => passing(Code::Unavailable, "BROKER_UNAVAILABLE", message),
            WatchError::Unknown => status(Code::NotFound, "RUN_NOT_FOUND", message, []),
            WatchError::Gone(_) => status(Code::OutOfRange, "EVENTS_EXPIRED", message, []),
        }
    }
}

impl From<Unavailable> for Status {
    fn from(error: Unavailable) -> Self {
        passing(Code::Unavailable, "INDEX_UNAVAILABLE", error.to_string())
    }
}

impl From<RebuildError> for Status {
    fn from(error: RebuildError) -> Self {
        match error {
            RebuildError::Index(error) => error.into(),
            RebuildError::Log(error) => passing(Code::Unavailable, "BROKER_UNAVAILABLE", error.to_string()),
        }
    }
}
