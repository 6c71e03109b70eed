//! Why a request was not served, as gRPC and HTTP report it: a stable reason for programs, and a message for people,
//! which may change.

use std::time::Duration;

use proto::Reason;
use run::{CallId, CommandError, RunId, Violation};

use crate::admission::error::{RequestError, of_history};
use crate::auth::callers::Unknown;
use crate::index::{RebuildError, Unavailable};
use crate::readers::WatchError;

/// The retry hint of a temporary error.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Values of an error by name, for programs.
type Metadata = Vec<(&'static str, String)>;

#[derive(Debug, Clone)]
pub(crate) struct ApiError {
    pub(crate) reason: Reason,
    pub(crate) message: String,
    /// The values in the message, for programs.
    pub(crate) metadata: Metadata,
    /// The wrong parts of the request and their errors: a field such as `calls[0].tool`, or a JSON pointer into a
    /// call's arguments.
    pub(crate) violations: Vec<(String, String)>,
    /// When the client may retry; `None` if the same request would fail again, or might be executed twice.
    pub(crate) retry_after: Option<Duration>,
}

impl ApiError {
    pub(crate) fn new(reason: Reason, message: impl Into<String>) -> Self {
        let retry_after = reason.is_temporary().then_some(RETRY_AFTER);
        Self { reason, message: message.into(), metadata: Vec::new(), violations: Vec::new(), retry_after }
    }

    /// An error in a field of the request, or in the whole request.
    pub(crate) fn malformed(field: &str, message: String) -> Self {
        let violations = vec![(field.to_owned(), message.clone())];
        Self { violations, ..Self::new(Reason::Malformed, message) }.with("field", field)
    }

    /// The client stops waiting; the run goes on, if there is one.
    pub(crate) fn exceeded(run: Option<RunId>) -> Self {
        let error = Self::new(Reason::DeadlineExceeded, "the request's own deadline passed");
        run.iter().fold(error, |error, run| error.with("run_id", run))
    }

    /// The error with one more value for programs.
    pub(crate) fn with(mut self, name: &'static str, value: impl ToString) -> Self {
        self.metadata.push((name, value.to_string()));
        self
    }
}

impl From<RequestError> for ApiError {
    fn from(refusal: RequestError) -> Self {
        let error = Self::new(refusal.reason(), refusal.to_string());
        match refusal {
            RequestError::Malformed { field, .. } => Self::malformed(&field, error.message),
            RequestError::Rejected(rejection) => Self { metadata: metadata(&rejection), ..error },
            RequestError::Exceeded(exceeded) => Self { retry_after: Some(exceeded.retry_after), ..error }
                .with("what", exceeded.what)
                .with("limit", exceeded.limit),
            RequestError::RunNotFound(run)
            | RequestError::EventsExpired(run)
            | RequestError::RequestIdTaken { run }
            | RequestError::Unconfirmed { run, .. } => error.with("run_id", run),
            RequestError::ToolNotFound(tool) => error.with("tool", tool),
            RequestError::PoolNotFound(pool) => error.with("pool", pool),
            RequestError::WorkerNotFound(worker) | RequestError::WorkerSilent(worker) => {
                error.with("worker_id", worker)
            }
            RequestError::ObjectNotFound(id) => error.with("object_id", id),
            RequestError::ScheduleNotFound(id) | RequestError::ScheduleExists(id) => error.with("schedule_id", id),
            RequestError::NeverFires(_) => {
                let violations = vec![("spec.cron.expression".to_owned(), error.message.clone())];
                Self { violations, ..error }
            }
            RequestError::ConversationTooLarge { limit, .. } => {
                error.with("field", "conversation").with("limit", limit)
            }
            RequestError::UploadsFull { limit } => error.with("limit", limit),
            RequestError::TooManyUploads { limit } => error.with("limit", limit),
            RequestError::OutOfObject { size } => error.with("size", size),
            RequestError::Denied { call, .. } | RequestError::RedriveRefused { call, .. } => {
                error.with("call_id", call)
            }
            RequestError::ArgumentsInvalid { call, violations } | RequestError::AnswerInvalid { call, violations } => {
                Self { violations: places(violations), ..error }.with("call_id", call)
            }
            RequestError::NothingSelected
            | RequestError::NotPermitted(_)
            | RequestError::LinkUnknown
            | RequestError::SchedulesFull(_)
            | RequestError::ObjectsFull
            | RequestError::UploadsBusy
            | RequestError::InlinedBusy
            | RequestError::ObjectsUnavailable(_)
            | RequestError::History(_)
            | RequestError::ObjectTooLarge
            | RequestError::LogFull(_)
            | RequestError::RequestIdsFull
            | RequestError::TooLarge
            | RequestError::Contended
            | RequestError::BrokerUnavailable(_)
            | RequestError::ShuttingDown => error,
        }
    }
}

impl From<Unknown> for ApiError {
    fn from(unknown: Unknown) -> Self {
        Self::new(unknown.reason(), unknown.to_string())
    }
}

fn places(violations: Vec<Violation>) -> Vec<(String, String)> {
    violations.into_iter().map(|violation| (violation.path, violation.message)).collect()
}

fn metadata(rejection: &CommandError) -> Metadata {
    let of_call = |call: &CallId| ("call_id", call.to_string());
    let up_to = |limit: &usize| ("limit", limit.to_string());
    match rejection {
        CommandError::NoCalls
        | CommandError::NoAnswers
        | CommandError::AnswersMissing { .. }
        | CommandError::DeadlinePassed
        | CommandError::RunClosed
        | CommandError::RunEnded
        | CommandError::NoDecisions => Vec::new(),
        CommandError::TooManyCalls { limit, .. } | CommandError::RequestTooLarge { limit, .. } => vec![up_to(limit)],
        CommandError::ArgumentsTooLarge { call, limit, .. }
        | CommandError::MetadataTooLarge { call, limit, .. }
        | CommandError::OutputTooLarge { call, limit, .. } => vec![of_call(call), up_to(limit)],
        CommandError::ContextTooLarge { call, limit, .. } => {
            let context = [("field", "context".to_owned()), up_to(limit)];
            call.iter().map(of_call).chain(context).collect()
        }
        CommandError::DeadlineTooFar { limit_s } => vec![("limit_s", limit_s.to_string())],
        CommandError::DelayTooLong { call, left_s, .. } => vec![of_call(call), ("limit_s", left_s.to_string())],
        CommandError::DuplicateCallId { call }
        | CommandError::ClientCallDelayed { call }
        | CommandError::UnknownCall { call }
        | CommandError::NotParkedAnyMore { call, .. }
        | CommandError::AlreadyDecided { call, .. }
        | CommandError::AlreadyAnswered { call } => vec![of_call(call)],
        CommandError::CallNotWaiting { call, state }
        | CommandError::NotParked { call, state }
        | CommandError::NotAwaitingApproval { call, state } => vec![of_call(call), ("state", (*state).to_owned())],
    }
}

impl From<WatchError> for ApiError {
    fn from(error: WatchError) -> Self {
        let reason = match &error {
            WatchError::Stopped(_) => Reason::ShuttingDown,
            WatchError::Read(_) => Reason::BrokerUnavailable,
            WatchError::Unknown => Reason::RunNotFound,
            WatchError::Gone(_) => Reason::EventsExpired,
            WatchError::History(error) => of_history(error),
        };
        Self::new(reason, error.to_string())
    }
}

impl From<Unavailable> for ApiError {
    fn from(error: Unavailable) -> Self {
        Self::new(Reason::IndexUnavailable, error.to_string())
    }
}

impl From<RebuildError> for ApiError {
    fn from(error: RebuildError) -> Self {
        match error {
            RebuildError::Index(error) => error.into(),
            RebuildError::Log(error) => Self::new(Reason::BrokerUnavailable, error.to_string()),
        }
    }
}
