//! Why a request was rejected, as commands report it; the API turns it into [`ApiError`](crate::api::ApiError).

use ::history::HistoryError;
use ::objects::StoreError;
use proto::Reason;
use run::{CallError, CallId, CommandError, ObjectId, PoolId, RunId, ToolName, Violation, WorkerId};

use crate::auth::callers::{Denied, Exceeded};
use crate::nats::journal::{AppendError, Bound, ROOM_PERCENT, ReadError};
use crate::nats::requests::PutError;
use crate::nats::setup::RETENTION;
use crate::owner::Stopped;

/// Why a request was rejected.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestError {
    #[error("{field}: {reason}")]
    Malformed { field: String, reason: String },
    #[error("the request selects no calls: give a state, a tool, a tenant or a time, or set `all`")]
    NothingSelected,
    #[error(transparent)]
    Rejected(#[from] CommandError),
    #[error(transparent)]
    NotPermitted(#[from] Denied),
    #[error(transparent)]
    Exceeded(#[from] Exceeded),
    #[error("there is no run {0}")]
    RunNotFound(RunId),
    #[error(
        "run {0} is not in the log any more, which keeps runs that have ended for a day, and for less when it fills \
         up. Its calls are not executed again under its request id: submit them under another one if they may be"
    )]
    EventsExpired(RunId),
    #[error(transparent)]
    History(#[from] HistoryError),
    #[error("the changed arguments of call {call} are invalid: {}", schema::describe(violations))]
    ArgumentsInvalid { call: CallId, violations: Vec<Violation> },
    #[error("the answer to question {call} does not fit what it asks for: {}", places(violations))]
    AnswerInvalid { call: CallId, violations: Vec<Violation> },
    #[error("the changed arguments of call {call} are refused: {}", error.message)]
    Denied { call: CallId, error: CallError },
    #[error("call {call} stays parked, because it would be refused now: {}", error.message)]
    RedriveRefused { call: CallId, error: CallError },
    #[error("there is no tool {0}")]
    ToolNotFound(ToolName),
    #[error("there is no pool {0}")]
    PoolNotFound(PoolId),
    #[error("there is no live worker {0}: it has left, or never existed")]
    WorkerNotFound(WorkerId),
    #[error(
        "worker {0} did not confirm the drain: it may be hung, disconnected, or running a version without drain \
        support"
    )]
    WorkerSilent(WorkerId),
    #[error("there is no object {0}: no result refers to it, or it has expired")]
    ObjectNotFound(ObjectId),
    #[error("there is no schedule {0}")]
    ScheduleNotFound(String),
    #[error("the request id was used for another schedule, {0}: use another id")]
    ScheduleExists(String),
    #[error("{0}")]
    SchedulesFull(String),
    #[error("spec.cron.expression: {0}")]
    NeverFires(String),
    #[error("the link is invalid, expired, or its issuer has lost access to the object")]
    LinkUnknown,
    #[error("the object store is full: no object can be stored until others have aged out")]
    ObjectsFull,
    #[error("the tenant's uploads would exceed their limit of {limit} bytes")]
    UploadsFull { limit: u64 },
    #[error("the tenant has reached its limit of {limit} uploads")]
    TooManyUploads { limit: usize },
    #[error("this coordinator has reached its limit of concurrent uploads")]
    UploadsBusy,
    #[error("this coordinator holds as many bytes of stored images for answers as it can")]
    InlinedBusy,
    #[error("{0}")]
    ObjectsUnavailable(String),
    #[error("the conversation is {size} bytes as JSON, the limit is {limit}: leave out its oldest messages")]
    ConversationTooLarge { size: usize, limit: usize },
    #[error("the upload is larger than {} bytes, the limit of an object", run::limit::OBJECT_BYTES_MAX)]
    ObjectTooLarge,
    #[error("requested range is outside the object ({size} bytes)")]
    OutOfObject { size: u64 },
    #[error("the request id was used for another request, which opened run {run}: use another id")]
    RequestIdTaken { run: RunId },
    /// With the bound that is reached; without one, the broker itself rejected the entry.
    #[error("the log is full: {}", why_full(.0.as_ref()))]
    LogFull(Option<Bound>),
    #[error(
        "the broker has no room for another request id: the bucket `ty-requests` is full, and ids expire after \
        {hours} hours at most; retry later, send the request without an id if it may be done twice, enlarge the log \
        (`toolyard log resize`), or start coordinators with a shorter --request-ids-for",
        hours = RETENTION.as_secs() / 3600
    )]
    RequestIdsFull,
    #[error("the calls do not fit one event of the log: put large input in files")]
    TooLarge,
    #[error("too many concurrent changes of the run")]
    Contended,
    #[error("the broker does not answer: {0}")]
    BrokerUnavailable(String),
    #[error(
        "the broker did not confirm the request in time ({reason}): run {run} has it by now, or never will; get the \
        run when the broker answers again, or repeat the request with its request id"
    )]
    Unconfirmed { run: RunId, reason: String },
    #[error("the coordinator is shutting down")]
    ShuttingDown,
}

impl RequestError {
    pub(crate) fn reason(&self) -> Reason {
        match self {
            Self::Malformed { .. } => Reason::Malformed,
            Self::NothingSelected => Reason::NothingSelected,
            Self::Rejected(rejection) => reason(rejection),
            Self::NotPermitted(denied) => denied.reason,
            Self::Exceeded(_) => Reason::QuotaExceeded,
            Self::RunNotFound(_) => Reason::RunNotFound,
            Self::EventsExpired(_) => Reason::EventsExpired,
            Self::History(error) => of_history(error),
            Self::ArgumentsInvalid { .. } | Self::AnswerInvalid { .. } => Reason::ArgumentsInvalid,
            Self::Denied { .. } => Reason::DeniedByHook,
            Self::RedriveRefused { .. } => Reason::RedriveRefused,
            Self::ToolNotFound(_) => Reason::ToolNotFound,
            Self::PoolNotFound(_) => Reason::PoolNotFound,
            Self::WorkerNotFound(_) => Reason::WorkerNotFound,
            Self::WorkerSilent(_) => Reason::WorkerSilent,
            Self::ObjectNotFound(_) => Reason::ObjectNotFound,
            Self::ScheduleNotFound(_) => Reason::ScheduleNotFound,
            Self::ScheduleExists(_) => Reason::ScheduleExists,
            Self::SchedulesFull(_) => Reason::SchedulesFull,
            Self::NeverFires(_) => Reason::NeverFires,
            Self::LinkUnknown => Reason::LinkUnknown,
            Self::ObjectsFull => Reason::ObjectsFull,
            Self::UploadsFull { .. } => Reason::UploadsFull,
            Self::TooManyUploads { .. } => Reason::TooManyUploads,
            Self::UploadsBusy => Reason::UploadsBusy,
            Self::InlinedBusy => Reason::InlinedBusy,
            Self::ObjectsUnavailable(_) => Reason::ObjectsUnavailable,
            Self::ObjectTooLarge | Self::TooLarge | Self::ConversationTooLarge { .. } => Reason::PayloadTooLarge,
            Self::OutOfObject { .. } => Reason::OutOfObject,
            Self::RequestIdTaken { .. } => Reason::RequestIdTaken,
            Self::LogFull(_) | Self::RequestIdsFull => Reason::LogFull,
            Self::Contended => Reason::Contended,
            Self::BrokerUnavailable(_) => Reason::BrokerUnavailable,
            Self::Unconfirmed { .. } => Reason::Unconfirmed,
            Self::ShuttingDown => Reason::ShuttingDown,
        }
    }

    /// The error of a request that is stored in a run although its answer cannot be given. If the client repeated it as
    /// a new request, the calls would be executed twice.
    pub(crate) fn of_stored(self, run: RunId) -> Self {
        match self {
            Self::BrokerUnavailable(_) | Self::ShuttingDown => Self::Unconfirmed { run, reason: self.to_string() },
            other => other,
        }
    }
}

/// The reason of an error of the history.
pub(crate) fn of_history(error: &HistoryError) -> Reason {
    match error {
        HistoryError::Damaged(_) => Reason::HistoryDamaged,
        HistoryError::Unavailable(_) | HistoryError::Fenced | HistoryError::NotOpen => Reason::HistoryUnavailable,
    }
}

fn reason(rejection: &CommandError) -> Reason {
    match rejection {
        CommandError::NoCalls => Reason::NoCalls,
        CommandError::NoAnswers => Reason::NoAnswers,
        CommandError::AnswersMissing { .. } => Reason::AnswersMissing,
        CommandError::TooManyCalls { .. } => Reason::TooManyCalls,
        CommandError::DuplicateCallId { .. } => Reason::DuplicateCallId,
        CommandError::ArgumentsTooLarge { .. }
        | CommandError::MetadataTooLarge { .. }
        | CommandError::ContextTooLarge { .. }
        | CommandError::RequestTooLarge { .. }
        | CommandError::OutputTooLarge { .. } => Reason::PayloadTooLarge,
        CommandError::DeadlinePassed => Reason::DeadlinePassed,
        CommandError::DeadlineTooFar { .. } => Reason::DeadlineTooFar,
        CommandError::DelayTooLong { .. } => Reason::DelayTooLong,
        CommandError::ClientCallDelayed { .. } => Reason::ClientCallDelayed,
        CommandError::RunClosed => Reason::RunClosed,
        CommandError::RunEnded => Reason::RunEnded,
        CommandError::UnknownCall { .. } => Reason::CallNotFound,
        CommandError::CallNotWaiting { .. } => Reason::CallNotWaiting,
        CommandError::NotParked { .. } => Reason::CallNotParked,
        CommandError::NotParkedAnyMore { .. } => Reason::CallNotParkedAnyMore,
        CommandError::NoDecisions => Reason::NoDecisions,
        CommandError::NotAwaitingApproval { .. } => Reason::CallNotAwaitingApproval,
        CommandError::AlreadyDecided { .. } => Reason::CallAlreadyDecided,
        CommandError::AlreadyAnswered { .. } => Reason::CallAlreadyAnswered,
    }
}

/// Where an answer does not fit its question, in one line.
fn places(violations: &[Violation]) -> String {
    let line = |violation: &Violation| match violation.path.as_str() {
        "" => violation.message.clone(),
        path => format!("at {path}: {}", violation.message),
    };
    violations.iter().map(line).collect::<Vec<_>>().join("; ")
}

fn why_full(bound: Option<&Bound>) -> String {
    match bound {
        Some(Bound::Bytes(limit)) => format!(
            "{ROOM_PERCENT} % of its {limit} bytes are used. New work is refused until runs have ended and left it, or \
            the operator gives it more bytes: `toolyard log resize SIZE`"
        ),
        Some(Bound::Messages(limit)) => format!(
            "it has {ROOM_PERCENT} % of its {limit} messages. New work is refused until runs have ended and left it, \
            or the operator allows more, for which the broker needs memory: `toolyard log resize --messages N`"
        ),
        Some(Bound::Carried) => format!(
            "{ROOM_PERCENT} % of the bytes for runs that last longer than {hours} h are used. Such runs are refused \
            until some have ended, or the operator gives the stream KV_ty-carried more bytes; send it with a `timeout` \
            of at most {hours} h otherwise",
            hours = run::limit::EXECUTION_MAX.as_secs() / 3600
        ),
        None => "the broker has no room for the entry. New work is refused until runs have ended and left it, or the \
            operator gives it more: `toolyard log usage` shows what it lacks, `toolyard log resize` changes it"
            .to_owned(),
    }
}

impl From<Stopped> for RequestError {
    fn from(Stopped: Stopped) -> Self {
        Self::ShuttingDown
    }
}

impl From<StoreError> for RequestError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Full => Self::ObjectsFull,
            StoreError::Unavailable(_) => Self::ObjectsUnavailable(error.to_string()),
        }
    }
}

impl From<::objects::ReadError> for RequestError {
    fn from(error: ::objects::ReadError) -> Self {
        Self::ObjectsUnavailable(error.to_string())
    }
}

impl From<ReadError> for RequestError {
    fn from(error: ReadError) -> Self {
        Self::BrokerUnavailable(error.to_string())
    }
}

impl From<PutError> for RequestError {
    fn from(error: PutError) -> Self {
        match error {
            PutError::Full => Self::RequestIdsFull,
            PutError::Unavailable(error) => error.into(),
        }
    }
}

impl From<AppendError> for RequestError {
    fn from(error: AppendError) -> Self {
        match error {
            AppendError::Conflict => Self::Contended,
            AppendError::Full { .. } => Self::LogFull(None),
            AppendError::TooLarge => Self::TooLarge,
            AppendError::Unavailable(reason) => Self::BrokerUnavailable(reason),
            AppendError::Unconfirmed { run, reason } => Self::Unconfirmed { run, reason },
        }
    }
}
