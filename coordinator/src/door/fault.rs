//! Why a request was not served, as every door says it: a code, a stable reason for programs, and a message for people, which
//! may change.

use std::time::Duration;

use run::{CallId, Rejection, RunId, Violation};

use crate::callers::Unknown;
use crate::index::{RebuildError, Unavailable};
use crate::runs::Refusal;
use crate::watch::WatchError;

/// Whose reasons they are.
pub(crate) const DOMAIN: &str = "toolyard.dev";
/// When to come back after a refusal that passes.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The kinds of faults, with the names that gRPC gives them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    InvalidArgument,
    Unauthenticated,
    PermissionDenied,
    NotFound,
    OutOfRange,
    FailedPrecondition,
    AlreadyExists,
    ResourceExhausted,
    Aborted,
    DeadlineExceeded,
    Unavailable,
}

#[derive(Debug, Clone)]
pub(crate) struct Fault {
    pub(crate) code: Code,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    /// What the message says, for programs.
    pub(crate) metadata: Vec<(&'static str, String)>,
    /// What is wrong with the request, place by place: a field as `calls[0].tool`, or a JSON pointer into a call's arguments.
    pub(crate) violations: Vec<(String, String)>,
    /// When it is worth another try.
    pub(crate) retry_after: Option<Duration>,
}

impl Fault {
    pub(crate) fn new<const N: usize>(
        code: Code,
        reason: &'static str,
        message: impl Into<String>,
        metadata: [(&'static str, String); N],
    ) -> Self {
        let (message, metadata) = (message.into(), Vec::from(metadata));
        Self { code, reason, message, metadata, violations: Vec::new(), retry_after: None }
    }

    pub(crate) fn passing(code: Code, reason: &'static str, message: String) -> Self {
        Self { retry_after: Some(RETRY_AFTER), ..Self::new(code, reason, message, []) }
    }

    /// A field of the request, or all of it, is not what it should be.
    pub(crate) fn malformed(field: &str, message: String) -> Self {
        let violations = vec![(field.to_owned(), message.clone())];
        Self { violations, ..Self::new(Code::InvalidArgument, "MALFORMED", message, [("field", field.to_owned())]) }
    }

    /// The client stops waiting; the run goes on, if there is one.
    pub(crate) fn exceeded(run: Option<RunId>) -> Self {
        let fault = Self::new(Code::DeadlineExceeded, "DEADLINE_EXCEEDED", "the request's own deadline passed", []);
        Self { metadata: run.map(|run| ("run_id", run.to_string())).into_iter().collect(), ..fault }
    }
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Self {
        let message = refusal.to_string();
        match refusal {
            Refusal::Malformed { field, .. } => Self::malformed(&field, message),
            Refusal::NothingSelected => Self::new(Code::InvalidArgument, "NOTHING_SELECTED", message, []),
            Refusal::Rejected(rejection) => rejected(&rejection),
            Refusal::NotPermitted(denied) => Self::new(Code::PermissionDenied, denied.reason, message, []),
            Refusal::Exceeded(exceeded) => {
                let metadata = [("what", exceeded.what.to_owned()), ("limit", exceeded.limit.to_string())];
                let retry_after = Some(exceeded.retry_after);
                Self { retry_after, ..Self::new(Code::ResourceExhausted, "QUOTA_EXCEEDED", message, metadata) }
            }
            Refusal::RunNotFound(run) => {
                Self::new(Code::NotFound, "RUN_NOT_FOUND", message, [("run_id", run.to_string())])
            }
            Refusal::EventsExpired(run) => {
                Self::new(Code::OutOfRange, "EVENTS_EXPIRED", message, [("run_id", run.to_string())])
            }
            Refusal::ToolNotFound(tool) => {
                Self::new(Code::NotFound, "TOOL_NOT_FOUND", message, [("tool", tool.to_string())])
            }
            Refusal::PoolNotFound(pool) => {
                Self::new(Code::NotFound, "POOL_NOT_FOUND", message, [("pool", pool.to_string())])
            }
            Refusal::WorkerNotFound(worker) => {
                Self::new(Code::NotFound, "WORKER_NOT_FOUND", message, [("worker_id", worker.to_string())])
            }
            Refusal::WorkerSilent(worker) => {
                Self::new(Code::Unavailable, "WORKER_SILENT", message, [("worker_id", worker.to_string())])
            }
            Refusal::ObjectNotFound(id) => {
                Self::new(Code::NotFound, "OBJECT_NOT_FOUND", message, [("object_id", id.to_string())])
            }
            Refusal::LinkUnknown => Self::new(Code::NotFound, "LINK_UNKNOWN", message, []),
            Refusal::ObjectsFull => Self::passing(Code::ResourceExhausted, "OBJECTS_FULL", message),
            Refusal::UploadsFull { limit } => {
                Self::new(Code::ResourceExhausted, "UPLOADS_FULL", message, [("limit", limit.to_string())])
            }
            Refusal::TooManyUploads { limit } => {
                Self::new(Code::ResourceExhausted, "TOO_MANY_UPLOADS", message, [("limit", limit.to_string())])
            }
            Refusal::UploadsBusy => Self::passing(Code::ResourceExhausted, "UPLOADS_BUSY", message),
            Refusal::ObjectsUnavailable(_) => Self::passing(Code::Unavailable, "OBJECTS_UNAVAILABLE", message),
            Refusal::ObjectTooLarge => Self::new(Code::ResourceExhausted, "PAYLOAD_TOO_LARGE", message, []),
            Refusal::OutOfObject { size } => {
                Self::new(Code::InvalidArgument, "OUT_OF_OBJECT", message, [("size", size.to_string())])
            }
            Refusal::Denied { call, .. } => {
                Self::new(Code::PermissionDenied, "DENIED_BY_HOOK", message, [("call_id", call.to_string())])
            }
            Refusal::ArgumentsInvalid { call, violations } => arguments_invalid(&call, &violations, message),
            Refusal::RequestIdTaken { run } => {
                Self::new(Code::AlreadyExists, "REQUEST_ID_TAKEN", message, [("run_id", run.to_string())])
            }
            Refusal::LogFull(_) | Refusal::RequestIdsFull => {
                Self::passing(Code::ResourceExhausted, "LOG_FULL", message)
            }
            Refusal::TooLarge => Self::new(Code::ResourceExhausted, "PAYLOAD_TOO_LARGE", message, []),
            Refusal::Contended => Self::passing(Code::Aborted, "CONTENDED", message),
            Refusal::BrokerUnavailable(_) => Self::passing(Code::Unavailable, "BROKER_UNAVAILABLE", message),
            // No `retry_after`: repeating it without a request id may do it twice.
            Refusal::Unconfirmed { run, .. } => {
                Self::new(Code::DeadlineExceeded, "UNCONFIRMED", message, [("run_id", run.to_string())])
            }
            Refusal::ShuttingDown => Self::passing(Code::Unavailable, "SHUTTING_DOWN", message),
        }
    }
}

impl From<Unknown> for Fault {
    fn from(unknown: Unknown) -> Self {
        let (reason, message) = (unknown.reason(), unknown.to_string());
        match unknown {
            Unknown::KeysMissing => Self::passing(Code::Unavailable, reason, message),
            Unknown::Missing | Unknown::TooLarge | Unknown::Key | Unknown::Token(_) | Unknown::Certificate => {
                Self::new(Code::Unauthenticated, reason, message, [])
            }
        }
    }
}

fn arguments_invalid(call: &CallId, violations: &[Violation], message: String) -> Fault {
    let violations = violations.iter().map(|violation| (violation.path.clone(), violation.message.clone())).collect();
    let call = [("call_id", call.to_string())];
    Fault { violations, ..Fault::new(Code::InvalidArgument, "ARGUMENTS_INVALID", message, call) }
}

fn rejected(rejection: &Rejection) -> Fault {
    use Code::{AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted};
    let message = rejection.to_string();
    match rejection {
        Rejection::NoCalls => Fault::new(InvalidArgument, "NO_CALLS", message, []),
        Rejection::NoAnswers => Fault::new(InvalidArgument, "NO_ANSWERS", message, []),
        Rejection::AnswersMissing { .. } => Fault::new(FailedPrecondition, "ANSWERS_MISSING", message, []),
        Rejection::TooManyCalls { limit, .. } => {
            Fault::new(InvalidArgument, "TOO_MANY_CALLS", message, [("limit", limit.to_string())])
        }
        Rejection::DuplicateCallId { call } => {
            Fault::new(InvalidArgument, "DUPLICATE_CALL_ID", message, [("call_id", call.to_string())])
        }
        Rejection::ArgumentsTooLarge { call, limit, .. }
        | Rejection::MetadataTooLarge { call, limit, .. }
        | Rejection::OutputTooLarge { call, limit, .. } => {
            let metadata = [("call_id", call.to_string()), ("limit", limit.to_string())];
            Fault::new(ResourceExhausted, "PAYLOAD_TOO_LARGE", message, metadata)
        }
        Rejection::ContextTooLarge { call, limit, .. } => {
            let call = call.iter().map(|call| ("call_id", call.to_string()));
            let metadata = [("field", "context".to_owned()), ("limit", limit.to_string())];
            let fault = Fault::new(ResourceExhausted, "PAYLOAD_TOO_LARGE", message, metadata);
            Fault { metadata: call.chain(fault.metadata).collect(), ..fault }
        }
        Rejection::RequestTooLarge { limit, .. } => {
            Fault::new(ResourceExhausted, "PAYLOAD_TOO_LARGE", message, [("limit", limit.to_string())])
        }
        Rejection::DeadlinePassed => Fault::new(InvalidArgument, "DEADLINE_PASSED", message, []),
        Rejection::DeadlineTooFar { limit_s } => {
            Fault::new(InvalidArgument, "DEADLINE_TOO_FAR", message, [("limit_s", limit_s.to_string())])
        }
        Rejection::RunClosed => Fault::new(FailedPrecondition, "RUN_CLOSED", message, []),
        Rejection::RunEnded => Fault::new(FailedPrecondition, "RUN_ENDED", message, []),
        Rejection::UnknownCall { call } => {
            Fault::new(NotFound, "CALL_NOT_FOUND", message, [("call_id", call.to_string())])
        }
        Rejection::CallNotWaiting { call, state } => {
            let metadata = [("call_id", call.to_string()), ("state", (*state).to_owned())];
            Fault::new(FailedPrecondition, "CALL_NOT_WAITING", message, metadata)
        }
        Rejection::NotParked { call, state } => {
            let metadata = [("call_id", call.to_string()), ("state", (*state).to_owned())];
            Fault::new(FailedPrecondition, "CALL_NOT_PARKED", message, metadata)
        }
        Rejection::NotParkedAnyMore { call, .. } => {
            Fault::new(FailedPrecondition, "CALL_NOT_PARKED_ANY_MORE", message, [("call_id", call.to_string())])
        }
        Rejection::NoDecisions => Fault::new(InvalidArgument, "NO_DECISIONS", message, []),
        Rejection::NotAwaitingApproval { call, state } => {
            let metadata = [("call_id", call.to_string()), ("state", (*state).to_owned())];
            Fault::new(FailedPrecondition, "CALL_NOT_AWAITING_APPROVAL", message, metadata)
        }
        Rejection::AlreadyDecided { call, .. } => {
            Fault::new(AlreadyExists, "CALL_ALREADY_DECIDED", message, [("call_id", call.to_string())])
        }
        Rejection::AlreadyAnswered { call } => {
            Fault::new(AlreadyExists, "CALL_ALREADY_ANSWERED", message, [("call_id", call.to_string())])
        }
    }
}

impl From<WatchError> for Fault {
    fn from(error: WatchError) -> Self {
        let message = error.to_string();
        match error {
            WatchError::Stopped(_) => Self::passing(Code::Unavailable, "SHUTTING_DOWN", message),
            WatchError::Read(_) => Self::passing(Code::Unavailable, "BROKER_UNAVAILABLE", message),
            WatchError::Unknown => Self::new(Code::NotFound, "RUN_NOT_FOUND", message, []),
            WatchError::Gone(_) => Self::new(Code::OutOfRange, "EVENTS_EXPIRED", message, []),
        }
    }
}

impl From<Unavailable> for Fault {
    fn from(error: Unavailable) -> Self {
        Self::passing(Code::Unavailable, "INDEX_UNAVAILABLE", error.to_string())
    }
}

impl From<RebuildError> for Fault {
    fn from(error: RebuildError) -> Self {
        match error {
            RebuildError::Index(error) => error.into(),
            RebuildError::Log(error) => Self::passing(Code::Unavailable, "BROKER_UNAVAILABLE", error.to_string()),
        }
    }
}
