//! Entries of the log. Run, call and pool come from the subject. An event on a subject where it does not belong is
//! rejected, so the restrictions of the broker's permissions also hold in the fold.

mod spec;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
use run::limit::EXECUTION_MAX;
use run::{
    AttemptId, AttemptNumber, AttemptOutcome, CallError, CallIndex, CallSpec, Chunk, ChunkIndex, Completion, Content,
    DeadlineKind, Decider, Decision, Entry, EraseRequest, Erasure, Event, Fields, Nonce, PoolId, Requester, Route,
    RunId, RunOpened, StopStage, Timestamp, is_late,
};

use self::spec::{spec_in, spec_out, specs_in, specs_out};
use super::api::contents;
use super::fields::{fields_in, fields_out};
use super::requester::{requester_in, requester_out, roles_out};
use super::{
    InvalidMessage, VERSION, check_version, content_in, content_out, contents_out, each_in, error_in, error_out,
    parent_in, parent_out, progress_in, progress_out, rules, rules_out,
};
use crate::subject::{Subject, SubjectKind};
use crate::wire::v1::{self as wire, event::Kind};

/// The version of an entry that opens a run with features that an older release would ignore.
const WITH_NEWER: u32 = 2;

/// What the entry that dispatches a call holds beside the event, for the call's worker.
#[derive(Debug, Clone, PartialEq)]
pub struct Dispatch {
    pub spec: Arc<CallSpec>,
    /// Who asked for the run of the call.
    pub requester: Requester,
    /// Whether the run is stored, or nothing of it is kept after its end.
    pub is_stored: bool,
}

/// Encodes events of one entry. A dispatch contains `job` unless the same entry opens the run, because the opening
/// contains it already.
#[must_use]
pub fn encode(events: &[Event], job: Option<&Dispatch>) -> Bytes {
    encode_as(0, None, events, job)
}

/// Like [`encode`], with a number by which the writer recognises the entry, and the last time at which it counts.
#[must_use]
pub fn encode_as(nonce: u64, not_after: Option<Timestamp>, events: &[Event], job: Option<&Dispatch>) -> Bytes {
    wire::Entry { nonce, not_after_ms: not_after.map_or(0, |at| at.0), ..entry_out(events, job) }.encode_to_vec().into()
}

/// Encodes events of an attempt. `hooked`: the worker runs the hooks that the call requires.
#[must_use]
pub fn encode_attempt(events: &[Event], hooked: bool) -> Bytes {
    wire::Entry { hooked, ..entry_out(events, None) }.encode_to_vec().into()
}

fn entry_out(events: &[Event], job: Option<&Dispatch>) -> wire::Entry {
    let attempt = events.iter().find_map(attempt_of).map(|attempt| attempt_out(*attempt));
    let version = if events.iter().any(opens_with_newer) { WITH_NEWER } else { VERSION };
    let events = events.iter().map(|event| wire::Event { kind: Some(event_out(event, job)) }).collect();
    wire::Entry { version, attempt, events, nonce: 0, not_after_ms: 0, hooked: false }
}

/// Decodes a message of the log.
///
/// # Errors
/// The message is not a log entry, or contains an event that is not allowed on its subject.
pub fn decode(subject: &Subject, payload: Bytes, sequence: u64, at: Timestamp) -> Result<Entry, InvalidMessage> {
    let entry = wire::Entry::decode(payload)?;
    check_entry_version(entry.version)?;
    let (attempt, not_after) = (entry.attempt, not_after_in(entry.not_after_ms));
    let events = each_in(entry.events, |event| event_in(event, &subject.place, attempt))?;
    Ok(Entry { sequence, at, not_after, hooked: entry.hooked, events })
}

/// An older release would ignore a delay, required hooks, the answer of a hook, the limit on bytes and tools that are
/// the client's. Entries that add calls to a run keep their version: their positions in the run must be the same in all
/// releases.
fn opens_with_newer(event: &Event) -> bool {
    let Event::RunOpened(RunOpened { rules, calls, .. }) = event else { return false };
    let with_newer_rules = rules.output_bytes_max.is_some() || rules.client_tools.is_some();
    let is_newer = |call: &CallSpec| {
        call.not_before.is_some() || !call.required_hooks.is_empty() || matches!(call.route, Route::Answered(_))
    };
    with_newer_rules || calls.iter().any(|call| is_newer(call))
}

fn check_entry_version(version: u32) -> Result<(), InvalidMessage> {
    if version == WITH_NEWER { Ok(()) } else { check_version(version) }
}

fn not_after_in(ms: u64) -> Option<Timestamp> {
    (ms > 0).then_some(Timestamp(ms))
}

/// The part of a job that a worker needs.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    pub run: RunId,
    pub call: CallIndex,
    pub pool: PoolId,
    pub spec: Arc<CallSpec>,
    /// Who asked for the run; `None` if the coordinator that dispatched the call is of a release that does not say it.
    pub requester: Option<Requester>,
    /// Whether the run is stored, or nothing of it is kept after its end. Coordinators of older versions do not say it
    /// of jobs of runs with several calls, which count as stored.
    pub is_stored: bool,
}

/// Decodes a job from the message that dispatches a call, with the deadline that counts from then on. Returns `None` if
/// the message was stored, at `at`, too late to count.
///
/// # Errors
/// The message is not a dispatch.
pub fn decode_job(subject: &Subject, payload: Bytes, at: Timestamp) -> Result<Option<Job>, InvalidMessage> {
    let SubjectKind::Job { call, pool } = &subject.place else {
        return Err(InvalidMessage::Misplaced { event: "job" });
    };
    let entry = wire::Entry::decode(payload)?;
    check_entry_version(entry.version)?;
    if is_late(at, not_after_in(entry.not_after_ms)) {
        return Ok(None);
    }
    let found = entry.events.into_iter().find_map(|event| match event.kind {
        Some(Kind::RunOpened(opened)) => {
            let wire::RunOpened { calls, tenant, caller, roles, erase_after_ms, .. } = opened;
            let requester = wire::Requester { tenant, caller, roles };
            calls.into_iter().nth(call.as_usize()).map(|spec| (spec, Some(requester), erase_after_ms == 0))
        }
        Some(Kind::CallDispatched(wire::CallDispatched { job, requester, erased })) => {
            job.map(|spec| (spec, requester, !erased))
        }
        _ => None,
    });
    let (spec, requester, is_stored) = found.ok_or(InvalidMessage::Missing("the call to execute"))?;
    let (mut spec, requester) = (spec_in(spec)?, requester.map(requester_in).transpose()?);
    // The run may last longer.
    spec.deadline = spec.deadline.min(at.after(EXECUTION_MAX));
    // Without this check, a pool could have the broker deliver its jobs to another pool's subject.
    if !matches!(&spec.route, Route::Pool { pool: routed, .. } if routed == pool) {
        return Err(InvalidMessage::Misplaced { event: "job of another pool" });
    }
    Ok(Some(Job { run: subject.run, call: *call, pool: pool.clone(), spec: Arc::new(spec), requester, is_stored }))
}

fn attempt_of(event: &Event) -> Option<&AttemptId> {
    match event {
        Event::AttemptStarted { attempt, .. }
        | Event::AttemptStopping { attempt, .. }
        | Event::Output { attempt, .. }
        | Event::AttemptEnded { attempt, .. } => Some(attempt),
        Event::RunOpened(_)
        | Event::CallsAppended { .. }
        | Event::RunClosed
        | Event::RunCancelRequested { .. }
        | Event::RunEraseRequested(_)
        | Event::RunExpired { .. }
        | Event::CallDispatched { .. }
        | Event::CallCancelRequested { .. }
        | Event::CallCancelled { .. }
        | Event::CallExpired { .. }
        | Event::CallFailed { .. }
        | Event::CallRedriven { .. }
        | Event::CallDropped { .. }
        | Event::CallDelayEnded { .. }
        | Event::CallDecided { .. }
        | Event::ClientAnswered { .. } => None,
    }
}

pub(super) fn attempt_out(attempt: AttemptId) -> wire::Attempt {
    wire::Attempt { number: attempt.number.0, nonce: attempt.nonce.0 }
}

pub(super) fn attempt_in(wire: wire::Attempt, call: CallIndex) -> AttemptId {
    AttemptId { call, number: AttemptNumber(wire.number), nonce: Nonce(wire.nonce) }
}

fn event_out(event: &Event, job: Option<&Dispatch>) -> Kind {
    match event {
        Event::RunOpened(opened) => Kind::RunOpened(opened_out(opened)),
        Event::CallsAppended { calls } => Kind::CallsAppended(wire::CallsAppended { calls: specs_out(calls) }),
        Event::RunClosed => Kind::RunClosed(wire::RunClosed {}),
        Event::RunCancelRequested { reason } => {
            Kind::RunCancelRequested(wire::RunCancelRequested { reason: reason.clone() })
        }
        Event::RunEraseRequested(request) => Kind::RunEraseRequested(erase_request_out(request)),
        Event::RunExpired { without_worker } => Kind::RunExpired(wire::RunExpired {
            without_worker: without_worker.iter().map(|call| u32::from(call.0)).collect(),
        }),
        Event::CallDispatched { .. } => Kind::CallDispatched(wire::CallDispatched {
            job: job.map(|job| spec_out(&job.spec)),
            requester: job.map(|job| requester_out(&job.requester)),
            erased: job.is_some_and(|job| !job.is_stored),
        }),
        Event::CallCancelRequested { reason, .. } => {
            Kind::CallCancelRequested(wire::CallCancelRequested { reason: reason.clone() })
        }
        Event::CallCancelled { .. } => Kind::CallCancelled(wire::CallCancelled {}),
        Event::CallExpired { deadline, .. } => Kind::CallExpired(deadline_out(*deadline)),
        Event::CallFailed { error, .. } => Kind::CallFailed(wire::CallFailed { error: Some(error_out(error)) }),
        Event::CallRedriven { into, .. } => Kind::CallRedriven(wire::CallRedriven { into_run_id: into.to_string() }),
        Event::CallDropped { .. } => Kind::CallDropped(wire::CallDropped {}),
        Event::CallDelayEnded { .. } => Kind::CallDelayEnded(wire::CallDelayEnded {}),
        Event::CallDecided { decision, by, .. } => Kind::CallDecided(decided_out(decision, *by)),
        Event::ClientAnswered { answer, .. } => Kind::ClientAnswered(answer_out(answer)),
        Event::AttemptStarted { worker, lease, from, .. } => Kind::AttemptStarted(wire::AttemptStarted {
            worker_id: worker.to_string(),
            lease: lease.clone(),
            from: from.0,
        }),
        Event::AttemptStopping { stage, .. } => {
            let stage = match stage {
                StopStage::Delivered => wire::StopStage::Delivered,
                StopStage::Acknowledged => wire::StopStage::Acknowledged,
            };
            Kind::AttemptStopping(wire::AttemptStopping { stage: stage.into() })
        }
        Event::Output { first, chunks, .. } => {
            Kind::Output(wire::Output { first: first.0, chunks: chunks.iter().map(chunk_out).collect() })
        }
        Event::AttemptEnded { chunks, outcome, .. } => Kind::AttemptEnded(ended_out(*chunks, outcome)),
    }
}

pub(super) fn answer_out(answer: &Result<Vec<Content>, CallError>) -> wire::ClientAnswered {
    match answer {
        Ok(result) => wire::ClientAnswered { result: contents_out(result), error: None },
        Err(error) => wire::ClientAnswered { result: Vec::new(), error: Some(error_out(error)) },
    }
}

pub(super) fn answer_in(answered: wire::ClientAnswered) -> Result<Result<Vec<Content>, CallError>, InvalidMessage> {
    match answered.error {
        Some(error) => Ok(Err(error_in(error))),
        None => contents(answered.result).map(Ok),
    }
}

fn erase_request_out(request: &EraseRequest) -> wire::RunEraseRequested {
    wire::RunEraseRequested {
        reason: request.reason.clone(),
        tenant: request.tenant.as_ref().map(ToString::to_string).unwrap_or_default(),
        bytes: request.bytes,
        not_before_ms: request.not_before.0,
        request: request.request.map(|digest| Bytes::copy_from_slice(&digest)).unwrap_or_default(),
        continuations: request.continuations,
    }
}

fn erase_request_in(wire: wire::RunEraseRequested) -> Result<EraseRequest, InvalidMessage> {
    Ok(EraseRequest {
        reason: wire.reason,
        tenant: if wire.tenant.is_empty() { None } else { Some(wire.tenant.parse()?) },
        bytes: wire.bytes,
        not_before: Timestamp(wire.not_before_ms),
        request: wire.request.as_ref().try_into().ok(),
        continuations: wire.continuations,
    })
}

fn event_in(event: wire::Event, place: &SubjectKind, attempt: Option<wire::Attempt>) -> Result<Event, InvalidMessage> {
    let kind = event.kind.ok_or(InvalidMessage::Missing("the kind of an event, or it is newer than this program"))?;
    let misplaced = |event| Err(InvalidMessage::Misplaced { event });
    let by_attempt = |call: &CallIndex| {
        attempt.map(|attempt| attempt_in(attempt, *call)).ok_or(InvalidMessage::Missing("the attempt"))
    };
    Ok(match (kind, place) {
        (Kind::RunOpened(opened), SubjectKind::Run | SubjectKind::Job { .. }) => Event::RunOpened(opened_in(opened)?),
        (Kind::CallsAppended(appended), SubjectKind::Run) => Event::CallsAppended { calls: specs_in(appended.calls)? },
        (Kind::RunClosed(_), SubjectKind::Run) => Event::RunClosed,
        (Kind::RunCancelRequested(asked), SubjectKind::Run) => Event::RunCancelRequested { reason: asked.reason },
        (Kind::RunEraseRequested(request), SubjectKind::Run) => Event::RunEraseRequested(erase_request_in(request)?),
        (Kind::RunExpired(expired), SubjectKind::Run) => {
            let without_worker =
                expired.without_worker.into_iter().map(super::worker::index_in).collect::<Result<_, _>>()?;
            Event::RunExpired { without_worker }
        }
        (Kind::CallDispatched(_), SubjectKind::Job { call, pool }) => {
            Event::CallDispatched { call: *call, pool: pool.clone() }
        }
        (Kind::CallCancelRequested(asked), SubjectKind::Control { call }) => {
            Event::CallCancelRequested { call: *call, reason: asked.reason }
        }
        (Kind::CallCancelled(_), SubjectKind::Control { call }) => Event::CallCancelled { call: *call },
        (Kind::CallExpired(expired), SubjectKind::Control { call }) => {
            Event::CallExpired { call: *call, deadline: deadline_in(&expired) }
        }
        (Kind::CallFailed(failed), SubjectKind::Control { call }) => Event::CallFailed {
            call: *call,
            error: error_in(failed.error.ok_or(InvalidMessage::Missing("the error"))?),
        },
        (Kind::CallRedriven(redriven), SubjectKind::Control { call }) => {
            Event::CallRedriven { call: *call, into: redriven.into_run_id.parse()? }
        }
        (Kind::CallDropped(_), SubjectKind::Control { call }) => Event::CallDropped { call: *call },
        (Kind::CallDelayEnded(_), SubjectKind::Control { call }) => Event::CallDelayEnded { call: *call },
        (Kind::CallDecided(decided), SubjectKind::Control { call }) => decided_in(*call, decided)?,
        (Kind::ClientAnswered(answered), SubjectKind::Control { call }) => {
            Event::ClientAnswered { call: *call, answer: answer_in(answered)? }
        }
        (Kind::AttemptStarted(started), SubjectKind::Output { call, pool }) => Event::AttemptStarted {
            attempt: by_attempt(call)?,
            pool: pool.clone(),
            worker: started.worker_id.parse()?,
            lease: started.lease,
            from: ChunkIndex(started.from),
        },
        (Kind::AttemptStopping(stopping), SubjectKind::Output { call, pool }) => Event::AttemptStopping {
            attempt: by_attempt(call)?,
            pool: pool.clone(),
            stage: match stopping.stage() {
                wire::StopStage::Delivered => StopStage::Delivered,
                wire::StopStage::Acknowledged => StopStage::Acknowledged,
                wire::StopStage::Unspecified => return Err(InvalidMessage::Missing("the stage")),
            },
        },
        (Kind::Output(output), SubjectKind::Output { call, pool }) => Event::Output {
            attempt: by_attempt(call)?,
            pool: pool.clone(),
            first: ChunkIndex(output.first),
            chunks: each_in(output.chunks, chunk_in)?,
        },
        (Kind::AttemptEnded(ended), SubjectKind::Output { call, pool }) => Event::AttemptEnded {
            attempt: by_attempt(call)?,
            pool: pool.clone(),
            chunks: ended.chunks,
            outcome: outcome_in(ended)?,
        },
        (Kind::RunOpened(_), _) => return misplaced("run opened"),
        (Kind::CallsAppended(_), _) => return misplaced("calls appended"),
        (Kind::RunClosed(_), _) => return misplaced("run closed"),
        (Kind::RunCancelRequested(_), _) => return misplaced("run cancel requested"),
        (Kind::RunEraseRequested(_), _) => return misplaced("run erase requested"),
        (Kind::RunExpired(_), _) => return misplaced("run expired"),
        (Kind::CallDispatched(_), _) => return misplaced("call dispatched"),
        (Kind::CallCancelRequested(_), _) => return misplaced("call cancel requested"),
        (Kind::CallCancelled(_), _) => return misplaced("call cancelled"),
        (Kind::CallExpired(_), _) => return misplaced("call expired"),
        (Kind::CallDecided(_), _) => return misplaced("call decided"),
        (Kind::ClientAnswered(_), _) => return misplaced("client answered"),
        (Kind::AttemptStarted(_), _) => return misplaced("attempt started"),
        (Kind::Output(_), _) => return misplaced("output"),
        (Kind::AttemptEnded(_), _) => return misplaced("attempt ended"),
        (Kind::CallFailed(_), _) => return misplaced("call failed"),
        (Kind::CallRedriven(_), _) => return misplaced("call redriven"),
        (Kind::CallDelayEnded(_), _) => return misplaced("call delay ended"),
        (Kind::CallDropped(_), _) => return misplaced("call dropped"),
        (Kind::AttemptStopping(_), _) => return misplaced("attempt stopping"),
    })
}

fn opened_out(opened: &RunOpened) -> wire::RunOpened {
    let RunOpened { deadline, calls, open, fail_fast, client_only, tools, rules, context, erasure, .. } = opened;
    let RunOpened { tenant, caller, roles, .. } = opened;
    let (erase_after_ms, request) = erasure_out(*erasure);
    wire::RunOpened {
        deadline_ms: deadline.0,
        calls: specs_out(calls),
        open: *open,
        fail_fast: *fail_fast,
        client_only: *client_only,
        tenant: tenant.as_ref().map(ToString::to_string).unwrap_or_default(),
        caller: caller.as_ref().map(ToString::to_string).unwrap_or_default(),
        tools: tools.iter().map(ToString::to_string).collect(),
        rules: rules_out(rules),
        context: fields_out(context),
        erase_after_ms,
        request,
        roles: roles_out(*roles),
        parent: opened.parent.as_deref().map(parent_out),
    }
}

fn opened_in(opened: wire::RunOpened) -> Result<RunOpened, InvalidMessage> {
    let wire::RunOpened { tenant, caller, roles, .. } = opened;
    let Requester { tenant, caller, roles } = requester_in(wire::Requester { tenant, caller, roles })?;
    Ok(RunOpened {
        deadline: Timestamp(opened.deadline_ms),
        calls: specs_in(opened.calls)?,
        open: opened.open,
        fail_fast: opened.fail_fast,
        client_only: opened.client_only,
        tenant,
        caller,
        roles,
        tools: opened.tools.iter().map(|tool| tool.parse()).collect::<Result<_, _>>()?,
        rules: rules(opened.rules),
        context: object("context", &opened.context)?,
        erasure: erasure_in(opened.erase_after_ms, &opened.request),
        parent: opened.parent.map(|parent| parent_in(parent).map(Box::new)).transpose()?,
    })
}

fn object(field: &'static str, text: &str) -> Result<Fields, InvalidMessage> {
    fields_in(text).map_err(|error| InvalidMessage::Object { field, error })
}

fn erasure_out(erasure: Option<Erasure>) -> (u64, Bytes) {
    let request = erasure.and_then(|erasure| erasure.request);
    let after = erasure.map_or(0, |erasure| u64::try_from(erasure.after.as_millis()).unwrap_or(u64::MAX));
    (after, request.map(|digest| Bytes::copy_from_slice(&digest)).unwrap_or_default())
}

fn erasure_in(after_ms: u64, request: &[u8]) -> Option<Erasure> {
    let after = Duration::from_millis(after_ms);
    (after_ms > 0).then(|| Erasure { after, request: request.try_into().ok() })
}

fn decided_out(decision: &Decision, by: Decider) -> wire::CallDecided {
    use wire::call_decided::Decision as Wire;
    let decision = match decision {
        Decision::Approved { arguments } => Wire::Approved(wire::CallApproved { arguments: arguments.clone() }),
        Decision::Rejected { reason } => Wire::Rejected(wire::CallRejected { reason: reason.clone() }),
    };
    wire::CallDecided { decision: Some(decision), by_default: by == Decider::Default }
}

fn decided_in(call: CallIndex, wire: wire::CallDecided) -> Result<Event, InvalidMessage> {
    use wire::call_decided::Decision as Wire;
    let decision = match wire.decision.ok_or(InvalidMessage::Missing("the decision"))? {
        Wire::Approved(approved) => Decision::Approved { arguments: approved.arguments },
        Wire::Rejected(rejected) => Decision::Rejected { reason: rejected.reason },
    };
    let by = if wire.by_default { Decider::Default } else { Decider::Person };
    Ok(Event::CallDecided { call, decision, by })
}

fn deadline_out(deadline: DeadlineKind) -> wire::CallExpired {
    let (deadline, attempt) = match deadline {
        DeadlineKind::Call => (wire::DeadlineKind::Call, 0),
        DeadlineKind::Attempt(AttemptNumber(number)) => (wire::DeadlineKind::Attempt, number),
        DeadlineKind::Run => (wire::DeadlineKind::Run, 0),
        DeadlineKind::Opening => (wire::DeadlineKind::Opening, 0),
        DeadlineKind::Queue => (wire::DeadlineKind::Queue, 0),
        DeadlineKind::Client => (wire::DeadlineKind::Client, 0),
        DeadlineKind::Idle(AttemptNumber(number)) => (wire::DeadlineKind::Idle, number),
    };
    wire::CallExpired { deadline: deadline.into(), attempt }
}

fn deadline_in(wire: &wire::CallExpired) -> DeadlineKind {
    match wire.deadline() {
        wire::DeadlineKind::Call | wire::DeadlineKind::Unspecified => DeadlineKind::Call,
        wire::DeadlineKind::Attempt => DeadlineKind::Attempt(AttemptNumber(wire.attempt)),
        wire::DeadlineKind::Run => DeadlineKind::Run,
        wire::DeadlineKind::Opening => DeadlineKind::Opening,
        wire::DeadlineKind::Queue => DeadlineKind::Queue,
        wire::DeadlineKind::Client => DeadlineKind::Client,
        wire::DeadlineKind::Idle => DeadlineKind::Idle(AttemptNumber(wire.attempt)),
    }
}

fn chunk_out(chunk: &Chunk) -> wire::Chunk {
    match chunk {
        Chunk::Content { channel, content } => {
            wire::Chunk { channel: channel.clone(), piece: Some(wire::chunk::Piece::Content(content_out(content))) }
        }
        Chunk::Progress(progress) => {
            wire::Chunk { channel: String::new(), piece: Some(wire::chunk::Piece::Progress(progress_out(progress))) }
        }
    }
}

fn chunk_in(wire: wire::Chunk) -> Result<Chunk, InvalidMessage> {
    match wire.piece.ok_or(InvalidMessage::Missing("the piece of a chunk"))? {
        wire::chunk::Piece::Content(content) => {
            Ok(Chunk::Content { channel: wire.channel, content: content_in(content)? })
        }
        wire::chunk::Piece::Progress(progress) => Ok(Chunk::Progress(progress_in(progress))),
    }
}

pub(super) fn ended_out(chunks: u32, outcome: &AttemptOutcome) -> wire::AttemptEnded {
    use wire::AttemptOutcome as Out;
    let of = |outcome: Out| wire::AttemptEnded { chunks, outcome: outcome.into(), ..wire::AttemptEnded::default() };
    match outcome {
        AttemptOutcome::Completed(Completion { result, extra_state }) => wire::AttemptEnded {
            result: contents_out(result),
            extra_state: fields_out(extra_state),
            ..of(Out::Completed)
        },
        AttemptOutcome::Failed(error) => wire::AttemptEnded { error: Some(error_out(error)), ..of(Out::Failed) },
        AttemptOutcome::Cancelled => of(Out::Cancelled),
        AttemptOutcome::Returned => of(Out::Returned),
        AttemptOutcome::Expired => of(Out::Expired),
    }
}

pub(super) fn outcome_in(wire: wire::AttemptEnded) -> Result<AttemptOutcome, InvalidMessage> {
    match wire.outcome() {
        wire::AttemptOutcome::Completed => Ok(AttemptOutcome::Completed(Completion {
            result: contents(wire.result)?,
            extra_state: object("extra_state", &wire.extra_state)?,
        })),
        wire::AttemptOutcome::Failed => {
            Ok(AttemptOutcome::Failed(error_in(wire.error.ok_or(InvalidMessage::Missing("the error"))?)))
        }
        wire::AttemptOutcome::Cancelled => Ok(AttemptOutcome::Cancelled),
        wire::AttemptOutcome::Returned => Ok(AttemptOutcome::Returned),
        wire::AttemptOutcome::Expired => Ok(AttemptOutcome::Expired),
        wire::AttemptOutcome::Unspecified => Err(InvalidMessage::Missing("the outcome")),
    }
}
