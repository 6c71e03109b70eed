//! Events: facts, in the past tense. Nothing else is stored. An event was judged before it was appended.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::approval::{Approval, Decider, Decision};
use crate::citation::CitedText;
use crate::erasure::{EraseRequest, Erasure};
use crate::fields::Fields;
use crate::id::{
    AttemptNumber, CallId, CallIndex, CallerName, ChunkIndex, Nonce, PoolId, RunId, TenantId, Timestamp, ToolName,
    WorkerId,
};
use crate::limit::{ERROR_BYTES_MAX, RETRY_AFTER_MAX};
use crate::object::{File, Object};
use crate::priority::Priority;
use crate::question::AskedBy;
use crate::requester::Roles;
use crate::rules::Rules;
use crate::tool::{Concurrency, Policy, ResultUse, Version};

/// One message of the log: events that were stored together.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The message's sequence number in the log; rises, with gaps, along a run.
    pub sequence: u64,
    /// When the broker stored it.
    pub at: Timestamp,
    /// If it was stored later than this, it changes nothing. `None` for entries of workers, and of older coordinators.
    pub not_after: Option<Timestamp>,
    /// A worker wrote it that runs the hooks which the call requires.
    pub hooked: bool,
    pub events: Vec<Event>,
}

/// A position in the log, by which the body of a chunk is read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
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
    /// The run reached its deadline; all its open calls end.
    RunExpired {
        /// Calls for which no worker was alive: if they still wait for one, they fail with that reason.
        without_worker: Vec<CallIndex>,
    },
    /// The call's job is in the log, and thereby in the queue of its pool.
    CallDispatched {
        call: CallIndex,
        pool: PoolId,
    },
    CallCancelRequested {
        call: CallIndex,
        reason: String,
    },
    /// The call was cancelled and its attempt did not confirm within the grace period that it stopped.
    CallCancelled {
        call: CallIndex,
    },
    CallExpired {
        call: CallIndex,
        deadline: DeadlineKind,
    },
    /// The owner found, while the call was queued, that it cannot be executed.
    CallFailed {
        call: CallIndex,
        error: CallError,
    },
    /// A parked call is executed again, as the only call of another run.
    CallRedriven {
        call: CallIndex,
        into: RunId,
    },
    /// A parked call was dropped for good.
    CallDropped {
        call: CallIndex,
    },
    /// The time before which a delayed call may not begin has come.
    CallDelayEnded {
        call: CallIndex,
    },
    /// A call that awaited approval was decided on, by a person or by default.
    CallDecided {
        call: CallIndex,
        decision: Decision,
        by: Decider,
    },
    /// The client's answer to a client call: a result, or an error in the client's words.
    ClientAnswered {
        call: CallIndex,
        answer: Result<Vec<Content>, CallError>,
    },
    /// `lease` returns the job to its queue if the worker is lost. `from` is the chunk at which the attempt continues
    /// the output of the attempt before it; 0 for an attempt that starts over.
    AttemptStarted {
        attempt: AttemptId,
        pool: PoolId,
        worker: WorkerId,
        lease: Bytes,
        from: ChunkIndex,
    },
    /// A stage of stopping the attempt. The last stage is the attempt's end.
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
    /// `chunks` is the number that the next chunk would have: what the attempt sent, plus what it continued from.
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
    /// Calls that a pool would execute wait for the client.
    pub client_only: bool,
    /// The tenant, if one was given.
    pub tenant: Option<TenantId>,
    /// The caller; `None` if no callers are configured.
    pub caller: Option<CallerName>,
    /// The roles of the caller at that time.
    pub roles: Roles,
    /// The tools that its calls may use; empty for all listed tools.
    pub tools: Vec<ToolName>,
    pub rules: Rules,
    /// The context of calls that are added later, unless they have their own. Empty if none can be added.
    pub context: Fields,
    /// `None`: the run is kept for as long as the log.
    pub erasure: Option<Erasure>,
    /// The call that made the run, in a run of the same shard.
    pub parent: Option<Box<ParentCall>>,
}

/// The call that made a run: the run is cancelled once the call has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParentCall {
    pub run: RunId,
    pub call: CallId,
}

/// Stages between the request to stop an attempt and its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StopStage {
    /// The worker that runs the attempt has received the request and notified the tool.
    Delivered,
    /// The tool has acknowledged.
    Acknowledged,
}

/// A call as it was accepted. Only an approval may change its arguments.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallSpec {
    pub id: CallId,
    pub tool: ToolName,
    /// A JSON object, as text.
    pub arguments: Bytes,
    /// Metadata from the caller for the tool, not for the model: opaque, passed on as it is.
    pub metadata: BTreeMap<String, String>,
    pub route: Route,
    /// The call is not dispatched before this time; `None` for a call that is not delayed.
    pub not_before: Option<Timestamp>,
    /// The call ends by this time, whatever happens. Includes time in the queue.
    pub deadline: Timestamp,
    /// Deadline for the start of its first attempt; `None` if only the other deadlines count.
    pub queue_deadline: Option<Timestamp>,
    pub without_worker: WithoutWorker,
    /// Whether it may run concurrently with other calls of its run.
    pub concurrency: Concurrency,
    /// The approval that it needs; `None` if it needs none.
    pub approval: Option<Approval>,
    /// As declared by its tool.
    pub result_use: ResultUse,
    /// The context that the tool receives beside its arguments: the keys that the tool declares, of the run's and the
    /// call's context.
    pub context: Fields,
    /// The files that it may open.
    pub files: Vec<File>,
    /// Set for a question of a running tool.
    pub asked_by: Option<AskedBy>,
    /// The names of the hooks that every worker must run on its executions. Output and results of a worker that does
    /// not run them are not accepted.
    pub required_hooks: Vec<String>,
    /// Its own priority; `None` for that of its run.
    pub priority: Option<Priority>,
}

impl CallSpec {
    /// A call with nothing beyond what every call has: no metadata, context, files, approval or delay, no deadline for
    /// its start, and free to run beside others. Other values are set with the struct update syntax.
    #[must_use]
    pub fn new(id: CallId, tool: ToolName, arguments: impl Into<Bytes>, route: Route, deadline: Timestamp) -> Self {
        Self {
            id,
            tool,
            arguments: arguments.into(),
            metadata: BTreeMap::new(),
            route,
            not_before: None,
            deadline,
            queue_deadline: None,
            without_worker: WithoutWorker::Wait,
            concurrency: Concurrency::Parallel,
            approval: None,
            result_use: ResultUse::default(),
            context: Fields::default(),
            files: Vec::new(),
            asked_by: None,
            required_hooks: Vec::new(),
            priority: None,
        }
    }

    /// Bytes that the call takes of the request that makes it.
    #[must_use]
    pub fn size(&self) -> usize {
        let metadata: usize = self.metadata.iter().map(|(key, value)| key.len() + value.len()).sum();
        let files: usize = self.files.iter().map(File::size).sum();
        let answer = if let Route::Answered(answer) = &self.route { answer.size() } else { 0 };
        self.arguments.len() + metadata + self.context.size() + files + answer
    }
}

/// What a call does while no worker of its pool is alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum WithoutWorker {
    /// It waits for one, until a deadline ends it.
    #[default]
    Wait,
    /// It fails.
    Fail,
}

/// Where a call goes. Decided when it is accepted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Route {
    Pool {
        pool: PoolId,
        policy: Policy,
        /// The oldest version of the tool that has the schemas with which the call was accepted. A worker that hosts an
        /// older version returns the call to the queue.
        version: Option<Version>,
    },
    /// Only the client can answer it.
    Client,
    /// It ended when it was accepted: no such tool, or arguments that do not match the schema. The other calls
    /// continue.
    Refused(CallError),
    /// It ended when it was accepted: a hook answered it, so it is not executed.
    Answered(HookAnswer),
}

/// The answer that a hook gave in place of an execution.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HookAnswer {
    /// The name of the hook.
    pub hook: String,
    pub result: Vec<Content>,
}

impl HookAnswer {
    /// Bytes, as limits count them. A part takes some whatever it contains.
    #[must_use]
    pub fn size(&self) -> usize {
        self.result.iter().map(|part| part.size() + 16).sum()
    }
}

/// One execution of a call. The number is the fence; the nonce distinguishes two attempts of the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AttemptId {
    pub call: CallIndex,
    pub number: AttemptNumber,
    pub nonce: Nonce,
}

/// A piece of output.
#[derive(Debug, Clone, PartialEq)]
pub enum Chunk {
    /// `channel` distinguishes streams of one call, such as `stdout` and `stderr`; empty for the only one.
    Content {
        channel: String,
        content: Content,
    },
    Progress(Progress),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
    /// A text and its sources.
    Cited(Box<CitedText>),
}

impl Content {
    /// Bytes of the body in the log.
    #[must_use]
    pub fn size(&self) -> usize {
        match self {
            Self::Text(text) | Self::Json(text) => text.len(),
            Self::Data { data, .. } => data.len(),
            Self::Object(object) => object.preview.len(),
            Self::Cited(cited) => cited.size(),
        }
    }

    /// Bytes of its media type, or of its longest title or source; 0 if it has none.
    #[must_use]
    pub fn label_size(&self) -> usize {
        match self {
            Self::Text(_) | Self::Json(_) => 0,
            Self::Data { media_type, .. } => media_type.len(),
            Self::Object(object) => object.media_type.len(),
            Self::Cited(cited) => cited.label_size(),
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    pub done: f64,
    /// The value of `done` at the end, if it is known.
    pub total: Option<f64>,
    pub message: String,
}

/// How an attempt ended, as its worker reports.
#[derive(Debug, Clone, PartialEq)]
pub enum AttemptOutcome {
    Completed(Completion),
    Failed(CallError),
    Cancelled,
    /// The call's deadline passed while it ran.
    Expired,
    /// The worker shut down and returned the job: not a failure, and it uses up no attempt.
    Returned,
}

/// The result of an attempt that completed.
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Outcome {
    Completed(Vec<Content>),
    Failed(CallError),
    Cancelled { reason: String, stopped: Stopped },
    Expired(DeadlineKind),
}

/// Whether the execution of a cancelled call has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Stopped {
    /// No attempt was running, and none will begin.
    NotRunning,
    /// Its worker confirmed that its attempt ended.
    Confirmed,
    /// No worker confirmed that it ended: its effect may have happened, or may still happen.
    Unconfirmed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum DeadlineKind {
    /// The call's own deadline, which includes its time in the queue.
    Call,
    /// No attempt began in time.
    Queue,
    /// The client did not answer in time.
    Client,
    /// This attempt exceeded its timeout and its worker did not report it.
    Attempt(AttemptNumber),
    /// This attempt exceeded its idle timeout and its worker did not report it.
    Idle(AttemptNumber),
    /// The deadline of the whole run.
    Run,
    /// The run's opening was stored too late to count. No call of the run was executed.
    Opening,
}

/// What went wrong with a call, for the model and the caller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallError {
    pub kind: ErrorKind,
    /// Never empty, at most 16 KiB.
    pub message: String,
    /// Another attempt may succeed.
    pub retryable: bool,
    /// The shortest wait before another attempt; `None` if the error gives none.
    pub retry_after: Option<Duration>,
    /// Where the arguments violate the schema; empty for other kinds.
    pub violations: Vec<Violation>,
}

/// One place in which arguments violate their schema.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// A JSON pointer into the arguments; empty for the whole.
    pub path: String,
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ErrorKind {
    UnknownTool,
    ArgumentsInvalid,
    /// The tool reported an error.
    ToolFailed,
    ToolPanicked,
    AttemptTimeout,
    /// The attempt sent neither output nor progress for longer than its idle timeout.
    IdleTimeout,
    /// The worker was lost after the start of a tool that is not safe to repeat: its effect may have happened.
    Interrupted,
    /// All attempts that the call may use were lost with their workers.
    WorkerLost,
    ResultTooLarge,
    OutputTooLarge,
    /// The attempt ended, but not all of its output reached the log.
    OutputIncomplete,
    /// The client answered with an error.
    ClientFailed,
    /// No worker of the pool that hosts the tool is alive.
    NoWorker,
    /// The call was not approved.
    Rejected,
    /// The model should repeat the call with changes.
    ModelRetry,
    /// The tool needs something from the caller first.
    NeedsInput,
    /// A service that the tool uses limits its rate.
    RateLimited,
    /// A hook of the deployment denied it.
    Denied,
    /// A hook of the deployment did not respond, so the call was not allowed.
    HookFailed,
    /// The worker does not run a hook that the deployment requires for the tool, so its result was withheld.
    HookRequired,
    /// The run or the deployment allows no more such calls.
    LimitExceeded,
    /// The caller may not use the tool.
    NotPermitted,
    /// The call was to be streamed, and its tool does not stream.
    StreamingUnsupported,
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
    /// A place and what is wrong there; both are cut to the longest error text.
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
