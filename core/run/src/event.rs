//! What happened, in the past tense: the only things that are stored. An event is a fact; judgement came before it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::approval::{Approval, Decider, Decision};
use crate::erasure::{EraseRequest, Erasure};
use crate::fields::Fields;
use crate::id::{
    AttemptNumber, CallId, CallIndex, CallerName, ChunkIndex, Nonce, PoolId, RunId, TenantId, Timestamp, ToolName,
    WorkerId,
};
use crate::limit::{ERROR_BYTES_MAX, RETRY_AFTER_MAX};
use crate::object::{File, Object};
use crate::rules::Rules;
use crate::tool::{Concurrency, Policy, ResultUse, Version};

/// One message of the log: events that were stored together.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The message's place in the log; rises, with gaps, along a run.
    pub sequence: u64,
    /// When the broker stored it.
    pub at: Timestamp,
    /// If it was stored later than this, it changes nothing. `None` for entries of workers, and of older coordinators.
    pub not_after: Option<Timestamp>,
    pub events: Vec<Event>,
}

/// A place in the log: where the body of a chunk is found again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    pub sequence: u64,
    /// Which event of the entry.
    pub event: u32,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    RunOpened(RunOpened),
    CallsAppended {
        calls: Vec<Arc<CallSpec>>,
    },
    RunClosed,
    RunCancelRequested {
        reason: String,
    },
    /// An operator requested that the run is cancelled, if it has not ended, and then erased.
    RunEraseRequested(EraseRequest),
    /// The run reached its deadline; whatever was open in it ends.
    RunExpired {
        /// Calls for which no worker lived: if they still wait for one, that is why they fail.
        without_worker: Vec<CallIndex>,
    },
    /// The call's job is in the log, which is to say: in the queue of its pool.
    CallDispatched {
        call: CallIndex,
        pool: PoolId,
    },
    CallCancelRequested {
        call: CallIndex,
        reason: String,
    },
    /// The call was cancelled and its attempt did not say that it stopped within the grace period.
    CallCancelled {
        call: CallIndex,
    },
    CallExpired {
        call: CallIndex,
        deadline: DeadlineKind,
    },
    /// The call cannot be executed, as its owner found while it was queued.
    CallFailed {
        call: CallIndex,
        error: CallError,
    },
    /// A parked call was asked for once more, as the only call of another run.
    CallRedriven {
        call: CallIndex,
        into: RunId,
    },
    /// A parked call was put aside for good.
    CallDropped {
        call: CallIndex,
    },
    /// Somebody decided on a call that awaited approval, or nobody did in time.
    CallDecided {
        call: CallIndex,
        decision: Decision,
        by: Decider,
    },
    /// The client's answer to a call that only it can give: a result, or an error in the client's words.
    ClientAnswered {
        call: CallIndex,
        answer: Result<Vec<Content>, CallError>,
    },
    /// `lease` is what hands the job back to its queue, should the worker be lost. `from` is the chunk with which the
    /// attempt goes on where the one before it broke off; 0 for one that begins at the beginning.
    AttemptStarted {
        attempt: AttemptId,
        pool: PoolId,
        worker: WorkerId,
        lease: Bytes,
        from: ChunkIndex,
    },
    /// How far the wish to stop the attempt has come. Its last stage is the attempt's end.
    AttemptStopping {
        attempt: AttemptId,
        pool: PoolId,
        stage: StopStage,
    },
    Output {
        attempt: AttemptId,
        pool: PoolId,
        first: ChunkIndex,
        chunks: Vec<Chunk>,
    },
    /// `chunks` counts what the attempt sent in all, and what it went on from: the number that its next chunk would have.
    AttemptEnded {
        attempt: AttemptId,
        pool: PoolId,
        chunks: u32,
        outcome: AttemptOutcome,
    },
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct RunOpened {
    pub deadline: Timestamp,
    pub calls: Vec<Arc<CallSpec>>,
    /// More calls may be appended until the run is closed.
    pub open: bool,
    /// When a call fails or expires, the others are cancelled.
    pub fail_fast: bool,
    /// What a pool would execute waits for the client.
    pub client_only: bool,
    /// For whom the run is, where that was said.
    pub tenant: Option<TenantId>,
    /// Who asked for it, where callers are known.
    pub caller: Option<CallerName>,
    /// The tools that its calls may name; empty for all that are listed.
    pub tools: Vec<ToolName>,
    pub rules: Rules,
    /// What calls that are added later are given, where they do not say otherwise. Empty where none can be.
    pub context: Fields,
    /// `None`: it is kept for as long as the log.
    pub erasure: Option<Erasure>,
}

/// Stages between the wish to stop an attempt and its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StopStage {
    /// The worker that runs the attempt has heard of it, and told the tool.
    Delivered,
    /// The tool has noticed.
    Acknowledged,
}

/// A call as it was accepted. Only an approval may change its arguments.
#[derive(Debug, Clone, PartialEq)]
pub struct CallSpec {
    pub id: CallId,
    pub tool: ToolName,
    /// A JSON object, as text.
    pub arguments: Bytes,
    /// What the caller wants the tool to know and the model not to say: opaque, handed to the tool as it is.
    pub metadata: BTreeMap<String, String>,
    pub route: Route,
    /// By when the call has ended, whatever happens. Time in the queue counts.
    pub deadline: Timestamp,
    /// By when its first attempt has begun; `None` where only the other deadlines count.
    pub queue_deadline: Option<Timestamp>,
    pub without_worker: WithoutWorker,
    /// Whether it may run beside other calls of its run.
    pub concurrency: Concurrency,
    /// What it asks for before it is executed; `None` where nobody need agree.
    pub approval: Option<Approval>,
    /// As its tool said.
    pub result_use: ResultUse,
    /// What the tool is given beside its arguments: of what its run and its caller gave, the keys that the tool declares.
    pub context: Fields,
    /// The files that it may open.
    pub files: Vec<File>,
}

/// What a call does while no worker of its pool lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum WithoutWorker {
    /// It waits for one, until a deadline ends it.
    #[default]
    Wait,
    /// It fails.
    Fail,
}

/// Where a call goes. Decided when it is accepted.
#[derive(Debug, Clone, PartialEq)]
pub enum Route {
    Pool {
        pool: PoolId,
        policy: Policy,
        /// The oldest version of the tool that has the schemas by which the call was accepted. A worker that hosts an
        /// older one leaves the call to others.
        version: Option<Version>,
    },
    /// Only the client can answer it.
    Client,
    /// It ended as it was accepted: no such tool, or arguments that do not fit. The other calls of the run go on.
    Refused(CallError),
}

/// One execution of a call: the number fences, the nonce tells apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AttemptId {
    pub call: CallIndex,
    pub number: AttemptNumber,
    pub nonce: Nonce,
}

/// A piece of output.
#[derive(Debug, Clone, PartialEq)]
pub enum Chunk {
    /// `channel` tells streams of one call apart, as `stderr` from `stdout`; empty for the only one.
    Content {
        channel: String,
        content: Content,
    },
    Progress(Progress),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    Text(String),
    /// JSON as text: numbers keep their digits.
    Json(String),
    Data {
        media_type: String,
        data: Bytes,
    },
    /// Too large for the log: stored beside it.
    Object(Box<Object>),
}

impl Content {
    /// Bytes of the body, as the log has it.
    #[must_use]
    pub fn size(&self) -> usize {
        match self {
            Self::Text(text) | Self::Json(text) => text.len(),
            Self::Data { data, .. } => data.len(),
            Self::Object(object) => object.preview.len(),
        }
    }

    /// Bytes of its media type; none where it needs none.
    #[must_use]
    pub fn label_size(&self) -> usize {
        match self {
            Self::Text(_) | Self::Json(_) => 0,
            Self::Data { media_type, .. } => media_type.len(),
            Self::Object(object) => object.media_type.len(),
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    pub done: f64,
    /// What `done` will be at the end, where that is known.
    pub total: Option<f64>,
    pub message: String,
}

/// How an attempt ended, in its worker's words.
#[derive(Debug, Clone, PartialEq)]
pub enum AttemptOutcome {
    Completed(Completion),
    Failed(CallError),
    Cancelled,
    /// The call's own deadline came while it ran.
    Expired,
    /// The worker shut down and gave the job back: not a failure, and it uses up no attempt.
    Returned,
}

/// What an attempt that completed gives.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Completion {
    pub result: Vec<Content>,
    /// For the run's state; not for the model.
    pub extra_state: Fields,
}

impl From<Vec<Content>> for Completion {
    fn from(result: Vec<Content>) -> Self {
        Self { result, extra_state: Fields::default() }
    }
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    Completed(Vec<Content>),
    Failed(CallError),
    Cancelled { reason: String, stopped: Stopped },
    Expired(DeadlineKind),
}

/// What is known of the execution of a call that was cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stopped {
    /// No attempt was running, and none will begin.
    NotRunning,
    /// Its attempt ended, as its worker says.
    Confirmed,
    /// No worker confirmed that it ended: its effect may have happened, or still happen.
    Unconfirmed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeadlineKind {
    /// The call's own deadline, which includes its time in the queue.
    Call,
    /// No attempt began in time.
    Queue,
    /// The client did not answer in time.
    Client,
    /// This attempt overran and its worker did not say so.
    Attempt(AttemptNumber),
    /// This attempt said nothing for too long and its worker did not say so.
    Idle(AttemptNumber),
    /// The deadline of the whole run.
    Run,
    /// The run's opening was stored after the moment until which it counts. Nothing of the run was executed.
    Opening,
}

/// What went wrong with a call, for the model and the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallError {
    pub kind: ErrorKind,
    /// Never empty, at most 16 KiB.
    pub message: String,
    /// Another attempt may succeed.
    pub retryable: bool,
    /// Not sooner than after this long; `None` where nobody said.
    pub retry_after: Option<Duration>,
    /// Where the arguments break the schema; empty for other kinds.
    pub violations: Vec<Violation>,
}

/// One place in which arguments do not fit their schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// A JSON pointer into the arguments; empty for the whole.
    pub path: String,
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    UnknownTool,
    ArgumentsInvalid,
    /// The tool reported an error.
    ToolFailed,
    ToolPanicked,
    AttemptTimeout,
    /// The attempt said nothing for too long.
    IdleTimeout,
    /// The worker was lost after the start of a tool that is not safe to repeat: its effect may have happened.
    Interrupted,
    /// Every attempt that the call may use was lost with its worker.
    WorkerLost,
    ResultTooLarge,
    OutputTooLarge,
    /// The attempt ended, but not all of its output reached the log.
    OutputIncomplete,
    /// The client answered with an error.
    ClientFailed,
    /// No worker of the pool that hosts the tool lives.
    NoWorker,
    /// The call was not approved.
    Rejected,
    /// The model should make the call again, and differently.
    ModelRetry,
    /// The tool needs something from the caller first.
    NeedsInput,
    /// Whatever the tool asked has had enough calls for now.
    RateLimited,
    /// Somebody whom the deployment asks about calls did not allow it.
    Denied,
    /// Somebody whom the deployment asks about calls did not answer, so it was not allowed.
    HookFailed,
    /// The run or the deployment allows no more such calls.
    LimitExceeded,
    /// Whoever asked for the call may not call the tool.
    NotPermitted,
}

impl CallError {
    /// An error with a text that is never empty and never longer than the limit.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if message.trim().is_empty() {
            message = format!("{kind:?}, without a message");
        }
        cut(&mut message);
        Self { kind, message, retryable: false, retry_after: None, violations: Vec::new() }
    }

    #[must_use]
    pub fn retryable(mut self) -> Self {
        self.retryable = true;
        self
    }

    /// Another attempt may succeed, after a wait of at most an hour.
    #[must_use]
    pub fn retryable_after(self, wait: Duration) -> Self {
        Self { retry_after: Some(wait.min(RETRY_AFTER_MAX)), ..self.retryable() }
    }
}

impl Violation {
    /// A place and what is wrong there, neither longer than the text of an error.
    #[must_use]
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        let (mut path, mut message) = (path.into(), message.into());
        cut(&mut path);
        cut(&mut message);
        Self { path, message }
    }
}

fn cut(text: &mut String) {
    const MARK: &str = " … (cut)";
    if text.len() > ERROR_BYTES_MAX {
        let mut end = ERROR_BYTES_MAX - MARK.len();
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push_str(MARK);
    }
}
