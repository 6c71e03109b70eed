//! Hand-made runs: specs and events in few words, and a log that is folded as it is written.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use toolyard_run::{
    AfterPartialOutput, Approval, AttemptId, AttemptNumber, AttemptOutcome, Call, CallError, CallId, CallIndex,
    CallSpec, Chunk, ChunkIndex, Concurrency, Content, DeadlineKind, Decider, Decision, DefaultDecision, Effects,
    Entry, EraseRequest, ErrorKind, Event, Fact, FloorPolicy, Nonce, OutputEvent, OutputKind, Policy, PoolId, Route,
    Rules, Run, RunId, RunOpened, Sequencer, StopStage, Timestamp, ToolName, WorkerId,
};

pub(crate) const START: Timestamp = Timestamp(1_700_000_000_000);
pub(crate) const RUN_LIFE: Duration = Duration::from_secs(3600);
/// Shorter than the run's, so that the two can be told apart.
pub(crate) const CALL_LIFE: Duration = Duration::from_secs(1800);

pub(crate) fn run_id() -> RunId {
    "run_0b_0193a7b4c2d07e3f8a1b2c3d4e5f6071".parse().expect("a run id")
}

pub(crate) fn id(text: &str) -> CallId {
    text.parse().expect("a call id")
}

pub(crate) fn pool(name: &str) -> PoolId {
    name.parse().expect("a pool name")
}

pub(crate) fn worker(name: &str) -> WorkerId {
    name.parse().expect("a worker id")
}

pub(crate) fn text(text: &str) -> Vec<Content> {
    vec![Content::Text(text.into())]
}

pub(crate) fn error(kind: ErrorKind) -> CallError {
    CallError::new(kind, "it broke")
}

// ---- calls ----

pub(crate) fn spec(name: &str, route: Route) -> CallSpec {
    let tool: ToolName = "tool".parse().expect("a tool name");
    CallSpec::new(id(name), tool, "{}", route, START.after(CALL_LIFE))
}

pub(crate) fn with_policy(name: &str, policy: Policy) -> CallSpec {
    spec(name, Route::Pool { pool: pool("alpha"), policy, version: None })
}

/// A call that may be attempted three times.
pub(crate) fn repeatable(name: &str) -> CallSpec {
    with_policy(name, Policy::of(Effects { idempotent: true, ..Effects::default() }))
}

/// A repeatable call of whose output this becomes where another attempt follows.
pub(crate) fn in_mode(name: &str, after_partial_output: AfterPartialOutput) -> CallSpec {
    let policy = Policy::of(Effects { idempotent: true, ..Effects::default() });
    with_policy(name, Policy { after_partial_output, ..policy })
}

/// A repeatable call that must not be silent for longer than this.
pub(crate) fn with_idle_timeout(name: &str, idle: Duration) -> CallSpec {
    let policy = Policy::of(Effects { idempotent: true, ..Effects::default() });
    with_policy(name, Policy { idle_timeout: Some(idle), ..policy })
}

/// A call whose start is not repeated once it is on record.
pub(crate) fn once(name: &str) -> CallSpec {
    with_policy(name, Policy::of(Effects::default()))
}

/// A call that runs alone.
pub(crate) fn exclusive(name: &str) -> CallSpec {
    CallSpec { concurrency: Concurrency::Exclusive, ..once(name) }
}

/// A call that is rejected where nobody approves it within this time.
pub(crate) fn unapproved(name: &str, within: Duration) -> CallSpec {
    let approval = Approval { deadline: START.after(within), default: DefaultDecision::Reject };
    CallSpec { approval: Some(approval), ..repeatable(name) }
}

/// A call that may not begin before this time has passed.
pub(crate) fn delayed(name: &str, delay: Duration) -> CallSpec {
    CallSpec { not_before: Some(START.after(delay)), ..repeatable(name) }
}

pub(crate) fn delay_ended(call: u16) -> Event {
    Event::CallDelayEnded { call: CallIndex(call) }
}

pub(crate) fn approved(call: u16) -> Event {
    decided(call, Decision::Approved { arguments: None })
}

pub(crate) fn rejected(call: u16, reason: &str) -> Event {
    decided(call, Decision::Rejected { reason: reason.into() })
}

pub(crate) fn decided(call: u16, decision: Decision) -> Event {
    Event::CallDecided { call: CallIndex(call), decision, by: Decider::Person }
}

pub(crate) fn client(name: &str) -> CallSpec {
    spec(name, Route::Client)
}

pub(crate) fn refused(name: &str) -> CallSpec {
    spec(name, Route::Refused(error(ErrorKind::UnknownTool)))
}

pub(crate) fn shared(calls: impl IntoIterator<Item = CallSpec>) -> Vec<Arc<CallSpec>> {
    calls.into_iter().map(Arc::new).collect()
}

// ---- events; the calls of a story are in pool alpha ----

pub(crate) fn attempt(call: u16, number: u32) -> AttemptId {
    AttemptId { call: CallIndex(call), number: AttemptNumber(number), nonce: Nonce(u64::from(number)) }
}

pub(crate) fn dispatched(call: u16) -> Event {
    Event::CallDispatched { call: CallIndex(call), pool: pool("alpha") }
}

pub(crate) fn started(call: u16, number: u32) -> Event {
    started_as(attempt(call, number), "alpha")
}

pub(crate) fn started_as(attempt: AttemptId, in_pool: &str) -> Event {
    started_from(attempt, in_pool, 0)
}

pub(crate) fn started_from(attempt: AttemptId, in_pool: &str, from: u32) -> Event {
    let lease = Bytes::from_static(b"lease");
    Event::AttemptStarted { attempt, pool: pool(in_pool), worker: worker("worker-1"), lease, from: ChunkIndex(from) }
}

/// An attempt that goes on where the one before it broke off.
pub(crate) fn continued(call: u16, number: u32, from: u32) -> Event {
    started_from(attempt(call, number), "alpha", from)
}

pub(crate) fn stopping(call: u16, number: u32, stage: StopStage) -> Event {
    Event::AttemptStopping { attempt: attempt(call, number), pool: pool("alpha"), stage }
}

pub(crate) fn output(call: u16, number: u32, chunks: Range<u32>) -> Event {
    output_as(attempt(call, number), "alpha", chunks)
}

pub(crate) fn output_as(attempt: AttemptId, in_pool: &str, chunks: Range<u32>) -> Event {
    let first = ChunkIndex(chunks.start);
    let chunks = chunks.map(|index| chunk(attempt, index)).collect();
    Event::Output { attempt, pool: pool(in_pool), first, chunks }
}

/// A chunk that says whose it is.
pub(crate) fn chunk(attempt: AttemptId, index: u32) -> Chunk {
    let AttemptId { call, number, nonce } = attempt;
    let body = format!("{call}/{}/{}/{index}", number.0, nonce.0);
    Chunk::Content { channel: String::new(), content: Content::Text(body) }
}

pub(crate) fn completed(call: u16, number: u32, chunks: u32) -> Event {
    ended_as(attempt(call, number), "alpha", chunks, AttemptOutcome::Completed(text("done").into()))
}

pub(crate) fn failed(call: u16, number: u32) -> Event {
    ended(call, number, AttemptOutcome::Failed(error(ErrorKind::ToolFailed)))
}

pub(crate) fn failed_for_now(call: u16, number: u32) -> Event {
    ended(call, number, AttemptOutcome::Failed(error(ErrorKind::ToolFailed).retryable()))
}

pub(crate) fn returned(call: u16, number: u32) -> Event {
    ended(call, number, AttemptOutcome::Returned)
}

pub(crate) fn ended(call: u16, number: u32, outcome: AttemptOutcome) -> Event {
    ended_as(attempt(call, number), "alpha", 0, outcome)
}

pub(crate) fn ended_as(attempt: AttemptId, in_pool: &str, chunks: u32, outcome: AttemptOutcome) -> Event {
    Event::AttemptEnded { attempt, pool: pool(in_pool), chunks, outcome }
}

pub(crate) fn answered(call: u16, answer: &str) -> Event {
    Event::ClientAnswered { call: CallIndex(call), answer: Ok(text(answer)) }
}

pub(crate) fn cancel_requested(call: u16) -> Event {
    Event::CallCancelRequested { call: CallIndex(call), reason: "not needed".into() }
}

pub(crate) fn expired(call: u16) -> Event {
    Event::CallExpired { call: CallIndex(call), deadline: DeadlineKind::Call }
}

pub(crate) fn expired_by(call: u16, deadline: DeadlineKind) -> Event {
    Event::CallExpired { call: CallIndex(call), deadline }
}

pub(crate) fn no_worker_lives(call: u16) -> Event {
    Event::CallFailed { call: CallIndex(call), error: error(ErrorKind::NoWorker) }
}

pub(crate) fn run_erase_requested() -> Event {
    Event::RunEraseRequested(EraseRequest {
        reason: "erased by an operator".into(),
        tenant: None,
        bytes: 7,
        not_before: Timestamp(0),
        request: None,
        continuations: 0,
    })
}

pub(crate) fn run_cancel_requested() -> Event {
    Event::RunCancelRequested { reason: "not needed".into() }
}

// ---- the log ----

/// A run, and the log that it is the fold of.
#[derive(Clone)]
pub(crate) struct Story {
    pub(crate) run: Run,
    pub(crate) log: Vec<Entry>,
    pub(crate) now: Timestamp,
}

impl Story {
    pub(crate) fn unopened() -> Self {
        Self { run: Run::new(run_id()), log: Vec::new(), now: START }
    }

    /// A run of just these calls.
    pub(crate) fn of(calls: impl IntoIterator<Item = CallSpec>) -> Self {
        let mut story = Self::unopened();
        story.tell(opened(calls, false));
        story
    }

    /// A run of calls that are run so.
    pub(crate) fn under(rules: Rules, calls: impl IntoIterator<Item = CallSpec>) -> Self {
        let mut story = Self::unopened();
        let opened = RunOpened { deadline: START.after(RUN_LIFE), calls: shared(calls), ..RunOpened::default() };
        story.tell(Event::RunOpened(RunOpened { rules, ..opened }));
        story
    }

    /// A run that takes further calls.
    pub(crate) fn open(calls: impl IntoIterator<Item = CallSpec>) -> Self {
        let mut story = Self::unopened();
        story.tell(opened(calls, true));
        story
    }

    /// A run that fails with the first of its calls that fails.
    pub(crate) fn failing_fast(calls: impl IntoIterator<Item = CallSpec>, open: bool) -> Self {
        let mut story = Self::unopened();
        let opened = RunOpened { deadline: START.after(RUN_LIFE), calls: shared(calls), open, ..RunOpened::default() };
        story.tell(Event::RunOpened(RunOpened { fail_fast: true, ..opened }));
        story
    }

    /// Stores an event as an entry of its own, and says what of it was heard.
    pub(crate) fn tell(&mut self, event: Event) -> Vec<Fact> {
        self.tell_together([event])
    }

    pub(crate) fn tell_all(&mut self, events: impl IntoIterator<Item = Event>) {
        for event in events {
            self.tell(event);
        }
    }

    pub(crate) fn told(mut self, event: Event) -> Self {
        self.tell(event);
        self
    }

    /// Stores events as one entry.
    pub(crate) fn tell_together(&mut self, events: impl IntoIterator<Item = Event>) -> Vec<Fact> {
        self.tell_by(None, events)
    }

    /// Stores events as one entry that came a moment too late.
    pub(crate) fn tell_late(&mut self, events: impl IntoIterator<Item = Event>) -> Vec<Fact> {
        self.tell_by(Some(Timestamp(self.now.0 - 1)), events)
    }

    /// Stores events as one entry that counts until `not_after`.
    pub(crate) fn tell_by(
        &mut self,
        not_after: Option<Timestamp>,
        events: impl IntoIterator<Item = Event>,
    ) -> Vec<Fact> {
        self.tell_as((not_after, false), events)
    }

    /// Stores events of a worker that runs the required hooks.
    pub(crate) fn tell_hooked(&mut self, events: impl IntoIterator<Item = Event>) -> Vec<Fact> {
        self.tell_as((None, true), events)
    }

    fn tell_as(
        &mut self,
        (not_after, hooked): (Option<Timestamp>, bool),
        events: impl IntoIterator<Item = Event>,
    ) -> Vec<Fact> {
        let sequence = self.log.last().map_or(1, |last| last.sequence + 10);
        let entry = Entry { sequence, at: self.now, not_after, hooked, events: events.into_iter().collect() };
        let mut heard = Vec::new();
        self.run.apply(&entry, &mut heard);
        self.log.push(entry);
        heard
    }

    pub(crate) fn wait(&mut self, time: Duration) {
        self.now = self.now.after(time);
    }

    pub(crate) fn call(&self, index: u16) -> &Call {
        self.run.call(CallIndex(index)).expect("the run has the call")
    }

    pub(crate) fn state(&self, index: u16) -> &'static str {
        self.call(index).state_name()
    }

    /// The whole output, each piece in a few words.
    pub(crate) fn spoken(&self, policy: FloorPolicy) -> Vec<String> {
        speak(&self.log, policy).iter().map(|spoken| in_words(spoken.what)).collect()
    }

    /// The part of the output that needs the floor.
    pub(crate) fn floor(&self, policy: FloorPolicy) -> Vec<String> {
        let spoken = speak(&self.log, policy).into_iter();
        spoken.filter(|spoken| needs_floor(&spoken.what)).map(|spoken| in_words(spoken.what)).collect()
    }
}

pub(crate) fn opened(calls: impl IntoIterator<Item = CallSpec>, open: bool) -> Event {
    Event::RunOpened(RunOpened { deadline: START.after(RUN_LIFE), calls: shared(calls), open, ..RunOpened::default() })
}

/// What a reader hears who reads the log from its beginning.
pub(crate) fn speak(log: &[Entry], policy: FloorPolicy) -> Vec<OutputEvent> {
    let (mut run, mut sequencer, mut spoken) = (Run::new(run_id()), Sequencer::new(policy), Vec::new());
    for entry in log {
        let mut heard = Vec::new();
        run.apply(entry, &mut heard);
        sequencer.observe(entry.at, &heard, &mut spoken);
    }
    spoken
}

pub(crate) fn needs_floor(what: &OutputKind) -> bool {
    match what {
        OutputKind::Speaks { .. }
        | OutputKind::Output { .. }
        | OutputKind::Withdrawn { .. }
        | OutputKind::CallEnded { .. } => true,
        OutputKind::RunOpened
        | OutputKind::CallsAppended { .. }
        | OutputKind::RunClosed
        | OutputKind::ApprovalAsked { .. }
        | OutputKind::Decided { .. }
        | OutputKind::CallWaits { .. }
        | OutputKind::AttemptStarted { .. }
        | OutputKind::AttemptEnded { .. }
        | OutputKind::CancelRequested { .. }
        | OutputKind::AttemptStopping { .. }
        | OutputKind::StatusChanged(_)
        | OutputKind::RunEnded(_) => false,
    }
}

fn in_words(what: OutputKind) -> String {
    match what {
        OutputKind::RunOpened => "run opened".into(),
        OutputKind::CallsAppended { first, count } => format!("{count} more from {first}"),
        OutputKind::RunClosed => "run closed".into(),
        OutputKind::ApprovalAsked { call } => format!("{call} awaits approval"),
        OutputKind::Decided { call } => format!("{call} is decided"),
        OutputKind::CallWaits { call } => format!("{call} waits"),
        OutputKind::AttemptStarted { attempt, .. } => format!("{} attempt {} starts", attempt.call, attempt.number.0),
        OutputKind::AttemptEnded { attempt } => format!("{} attempt {} ends", attempt.call, attempt.number.0),
        OutputKind::CancelRequested { call } => format!("{call} shall stop"),
        OutputKind::AttemptStopping { attempt, stage } => {
            format!("{} attempt {} is told to stop: {stage:?}", attempt.call, attempt.number.0)
        }
        OutputKind::Speaks { call } => format!("{call} speaks"),
        OutputKind::Output { attempt, span } => {
            let end = span.first.0 + span.count;
            format!("{} says {}..{end} of attempt {}", attempt.call, span.first.0, attempt.number.0)
        }
        OutputKind::Withdrawn { call, number } => format!("{call} withdraws attempt {}", number.0),
        OutputKind::CallEnded { call } => format!("{call} ended"),
        OutputKind::StatusChanged(status) => format!("run is {status:?}"),
        OutputKind::RunEnded(status) => format!("run ended {status:?}"),
    }
}
