//! The pure core: a run of tool calls is a fold over its log, and so is the ordered output that a client sees.
//!
//! ```text
//!                      decide(command, now)                       append (the driver)
//!   command ─────────────────────────────▶ events | rejection ───────────────────▶ log
//!                                                                                   │
//!   effects ◀── outstanding(now) ── Run ◀─────────────── apply(entry) ◀─────────────┘
//!                                    │
//!                                    └─ accepted ▶ Sequencer ──▶ numbered output, the same for every reader
//! ```
//!
//! * [`Run::open`] and [`Run::decide`] judge: they return events, or a [`CommandError`] with the reason.
//! * [`Run::apply`] judges nothing: it cannot fail, and it alone changes a run.
//! * [`Run::outstanding`] derives pending effects from state alone; every [`Effect`] is safe to repeat, so a crash between
//!   append and effect does no harm.
//! * [`Run::next_deadline`] is when pending effects may change without an event.
//! * [`Sequencer`] decides which call has the floor.
//!
//! There is no IO here, no clock, no randomness and no async: time enters as a [`Timestamp`].

mod admission;
mod approval;
mod call;
mod chunks;
mod citation;
mod command;
mod effect;
mod erasure;
mod event;
mod fields;
mod id;
mod late;
mod object;
mod parked;
mod priority;
mod question;
mod requester;
mod rest;
mod retry;
mod rules;
mod run;
mod section;
mod sequencer;
mod state;
mod tool;
mod turn;
mod verdict;
mod why;

pub use approval::{Approval, Decided, Decider, Decision, DefaultDecision};
pub use call::{Call, CallState, Cancelling, Disposition, Ended, FailedAttempt, Running};
pub use chunks::Span;
pub use citation::{Citation, CitationSource, CitedText};
pub use command::{Answer, Command, CommandError, Opening};
pub use effect::Effect;
pub use erasure::{EraseRequest, Erasure};
pub use event::{
    AttemptId, AttemptOutcome, CallError, CallSpec, Chunk, Completion, Content, DeadlineKind, Entry, ErrorKind, Event,
    HookAnswer, Outcome, ParentCall, Position, Progress, Route, RunOpened, StopStage, Stopped, Violation,
    WithoutWorker,
};
pub use fields::Fields;
pub use id::{
    AttemptNumber, CallId, CallIndex, CallerName, ChunkIndex, InvalidId, Nonce, Partition, PoolId, RequestId, RunId,
    Shard, TenantId, Timestamp, ToolName, ToolSetId, WorkerId,
};
pub use late::{NEVER_OPENED_AFTER, OPENED_WITHIN, REOPENED_WITHIN, STORED_WITHIN, counts_until, is_late};
pub use object::{File, Object, ObjectId};
pub use priority::Priority;
pub use question::{AskError, AskedBy, NewQuestion, QUESTION_TOOL};
pub use requester::{Requester, Role, Roles};
pub use retry::{Backoff, Retry, after_failure, is_retried};
pub use rules::Rules;
pub use run::{Fact, Run, RunStatus};
pub use section::Section;
pub use sequencer::{AddedPolicy, ChooseSpeaker, FloorPolicy, OutputEvent, OutputKind, Sequencer, Voice};
pub use tool::{
    AfterPartialOutput, Alias, Concurrency, Effects, Manifest, Origin, Permission, Policy, ResultUse, RetryOn, Version,
};
pub use verdict::Verdict;
pub use why::{expiry, no_worker, span};

pub mod limit;
