//! Why a request was not served, as commands say it; the doors tell it as [faults](crate::door::Fault).

use proto::schema;
use run::{CallError, CallId, ObjectId, PoolId, Rejection, RunId, ToolName, Violation, WorkerId};
use store::{NotKept, Unread};

use crate::callers::Denied;
use crate::ledger::Stopped;
use crate::nats::journal::{AppendError, Bound, ROOM_PERCENT, ReadError};
use crate::nats::requests::PutError;
use crate::nats::setup::RETENTION;
use crate::quotas::Exceeded;

/// Why a request was not served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("{field}: {reason}")]
    Malformed { field: String, reason: String },
    #[error("the request selects no calls: give a state, a tool, a tenant or a time, or set `all`")]
    NothingSelected,
    #[error(transparent)]
    Rejected(#[from] Rejection),
    #[error(transparent)]
    NotPermitted(#[from] Denied),
    #[error(transparent)]
    Exceeded(#[from] Exceeded),
    #[error("there is no run {0}")]
    RunNotFound(RunId),
    #[error("run {0} is older than the log: events are kept for {hours} hours", hours = RETENTION.as_secs() / 3600)]
    EventsExpired(RunId),
    #[error("the changed arguments of call {call}: {}", schema::describe(violations))]
    ArgumentsInvalid { call: CallId, violations: Vec<Violation> },
    #[error("the changed arguments of call {call}: {}", error.message)]
    Denied { call: CallId, error: CallError },
    #[error("there is no tool {0}")]
    ToolNotFound(ToolName),
    #[error("there is no pool {0}")]
    PoolNotFound(PoolId),
    #[error("no worker {0} lives: it has left, or never was")]
    WorkerNotFound(WorkerId),
    #[error("worker {0} does not say that it drains: it stands still, is cut off, or is too old to know the word")]
    WorkerSilent(WorkerId),
    #[error("there is no object {0}: no result refers to it, or it is not kept any more")]
    ObjectNotFound(ObjectId),
    #[error(
        "the link leads nowhere: it is none of ours, its time is over, or who gave it out may not read the object any more"
    )]
    LinkUnknown,
    #[error("the object store is full: nothing more is kept until something has aged out")]
    ObjectsFull,
    #[error("the tenant's uploads would hold more than the {limit} bytes that they may")]
    UploadsFull { limit: u64 },
    #[error("the tenant has as many uploads as it may: {limit}")]
    TooManyUploads { limit: usize },
    #[error("this coordinator takes no more uploads at once")]
    UploadsBusy,
    #[error("{0}")]
    ObjectsUnavailable(String),
    #[error("what is sent is larger than {} bytes, the most that an object may have", run::limit::OBJECT_BYTES_MAX)]
    ObjectTooLarge,
    #[error("the object has {size} bytes, and none of those that are asked for")]
    OutOfObject { size: u64 },
    #[error("the request id was used for another request, which made run {run}: use another id")]
    RequestIdTaken { run: RunId },
    /// With the bound that is reached; without, the broker itself refused the entry.
    #[error("the log is full: {}", why_full(.0.as_ref()))]
    LogFull(Option<Bound>),
    #[error(
        "the broker has no room for another request id: they fill the bucket `ty-requests` and are forgotten after {hours} hours; \
         send it without a request id if it may be done twice, ask again later, or give the stream KV_ty-requests more bytes",
        hours = RETENTION.as_secs() / 3600
    )]
    RequestIdsFull,
    #[error("the calls do not fit one event of the log: put large input in files")]
    TooLarge,
    #[error("too many others change the run at the same time")]
    Contended,
    #[error("the broker does not answer: {0}")]
    BrokerUnavailable(String),
    #[error(
        "the broker did not confirm it in time ({reason}): run {run} has what was asked by now, or never will; get the run when \
         the broker answers again, or repeat the request with its request id"
    )]
    Unconfirmed { run: RunId, reason: String },
    #[error("the coordinator is shutting down")]
    ShuttingDown,
}

impl Refusal {
    /// The refusal of a request that is stored in a run, though its answer cannot be given: asked again as a new one, it would
    /// be done twice.
    pub(crate) fn of_stored(self, run: RunId) -> Self {
        match self {
            Self::BrokerUnavailable(_) | Self::ShuttingDown => Self::Unconfirmed { run, reason: self.to_string() },
            other => other,
        }
    }
}

fn why_full(bound: Option<&Bound>) -> String {
    match bound {
        Some(Bound::Bytes(limit)) => format!(
            "{ROOM_PERCENT} % of its {limit} bytes are taken. Nothing new is accepted until entries have aged out, or the operator \
             gives it more bytes: `toolyard log resize SIZE`"
        ),
        Some(Bound::Messages(limit)) => format!(
            "it has {ROOM_PERCENT} % of its {limit} messages. Nothing new is accepted until entries have aged out, or the operator \
             allows more, for which the broker needs memory: `toolyard log resize --messages N`"
        ),
        None => "the broker has no room for the entry. Nothing new is accepted until entries have aged out, or the operator gives \
                 it more: `toolyard log usage` shows what it lacks, `toolyard log resize` changes it"
            .to_owned(),
    }
}

impl From<Stopped> for Refusal {
    fn from(Stopped: Stopped) -> Self {
        Self::ShuttingDown
    }
}

impl From<NotKept> for Refusal {
    fn from(error: NotKept) -> Self {
        match error {
            NotKept::Full => Self::ObjectsFull,
            NotKept::Unavailable(_) => Self::ObjectsUnavailable(error.to_string()),
        }
    }
}

impl From<Unread> for Refusal {
    fn from(error: Unread) -> Self {
        Self::ObjectsUnavailable(error.to_string())
    }
}

impl From<ReadError> for Refusal {
    fn from(error: ReadError) -> Self {
        Self::BrokerUnavailable(error.to_string())
    }
}

impl From<PutError> for Refusal {
    fn from(error: PutError) -> Self {
        match error {
            PutError::Full => Self::RequestIdsFull,
            PutError::Unavailable(error) => error.into(),
        }
    }
}

impl From<AppendError> for Refusal {
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
