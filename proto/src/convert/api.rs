//! The API's view for clients: runs, calls, and the events of a run's ordered output.

use run::{
    AttemptOutcome, Call, CallError, CallState, Chunk, Decided, Decider, Decision, Disposition, Ended, Entry, Event,
    FailedAttempt, FloorPolicy, Outcome, OutputEvent, OutputKind, Priority, Route, Run, RunStatus, Span, StopStage,
    Stopped, Timestamp, WithoutWorker,
};

use super::fields::fields_out;
use super::{
    InvalidMessage, approval_default_out, content_in, content_out, contents_out, each_in, error_kind_out, error_out,
    parent_out, priority_out, progress_out,
};
use crate::v1;

/// The end of the year 9999, the latest time that the format can represent.
const TIMESTAMP_SECONDS_MAX: i64 = 253_402_300_799;

/// A time in wire form.
#[must_use]
pub fn timestamp(at: Timestamp) -> prost_types::Timestamp {
    prost_types::Timestamp {
        seconds: i64::try_from(at.0 / 1000).unwrap_or(i64::MAX).min(TIMESTAMP_SECONDS_MAX),
        nanos: i32::try_from(at.0 % 1000).unwrap_or_default() * 1_000_000,
    }
}

/// A time from the wire, rounded up to whole milliseconds; `None` if it is before the year 1970, or no time.
#[must_use]
pub fn time_in(wire: prost_types::Timestamp) -> Option<Timestamp> {
    let (seconds, nanos) = (u64::try_from(wire.seconds).ok()?, u64::try_from(wire.nanos).ok()?);
    let is_time = wire.seconds <= TIMESTAMP_SECONDS_MAX && nanos < 1_000_000_000;
    is_time.then(|| Timestamp(seconds * 1000 + nanos.div_ceil(1_000_000)))
}

/// A reader's choice. An unknown value becomes the default.
#[must_use]
pub fn floor_policy(wire: v1::FloorPolicy) -> FloorPolicy {
    match wire {
        v1::FloorPolicy::Unspecified | v1::FloorPolicy::Arrival => FloorPolicy::Arrival,
        v1::FloorPolicy::Submission => FloorPolicy::Submission,
        v1::FloorPolicy::Interleaved => FloorPolicy::Interleaved,
    }
}

/// A caller's choice. An unknown value becomes the default.
#[must_use]
pub fn without_worker(wire: v1::WithoutWorker) -> WithoutWorker {
    match wire {
        v1::WithoutWorker::Unspecified | v1::WithoutWorker::Wait => WithoutWorker::Wait,
        v1::WithoutWorker::Fail => WithoutWorker::Fail,
    }
}

/// A client's content.
///
/// # Errors
/// The content has no body.
pub fn contents(wire: Vec<v1::Content>) -> Result<Vec<run::Content>, InvalidMessage> {
    each_in(wire, content_in)
}

/// The kind of error that ended a call; unspecified if there was none.
#[must_use]
pub fn error_kind(call: &Call) -> v1::CallErrorKind {
    match call.outcome() {
        Some(Outcome::Failed(error)) => error_kind_out(error.kind),
        Some(Outcome::Completed(_) | Outcome::Cancelled { .. } | Outcome::Expired(_)) | None => {
            v1::CallErrorKind::Unspecified
        }
    }
}

/// A run in its current state, without its trace.
#[must_use]
pub fn run(run: &Run) -> v1::Run {
    v1::Run {
        run_id: run.id().to_string(),
        status: status(run.status()).into(),
        create_time: run.opened_at().map(timestamp),
        deadline: Some(timestamp(run.deadline())),
        open: run.is_open(),
        calls: run.calls().iter().map(|call| call_in(run, call)).collect(),
        tenant: run.tenant().map(ToString::to_string).unwrap_or_default(),
        return_direct: run.returns_direct(),
        caller: run.caller().map(ToString::to_string).unwrap_or_default(),
        extra_state: fields_out(&run.extra_state()),
        erase_time: run.erase_at().map(timestamp),
        parent: run.parent().map(parent_out),
        trace_id: String::new(),
    }
}

/// A call of the run in its current state.
#[must_use]
pub fn call_in(run: &Run, call: &Call) -> v1::Call {
    let priority = Some(run.priority_of(call)).filter(|priority| *priority != Priority::default());
    let priority = priority_out(priority).into();
    v1::Call { asked_by_call_id: asked_by(run, call.spec()), priority, ..self::call(call) }
}

/// The id of the call that asked a question; empty for calls of the model.
fn asked_by(run: &Run, spec: &run::CallSpec) -> String {
    spec.asked_by.map_or_else(String::new, |by| id_of(run, by.attempt.call))
}

/// A call in its current state, without the call that asked it, and with its own priority only.
#[must_use]
pub fn call(call: &Call) -> v1::Call {
    let spec = call.spec();
    let pool = match &spec.route {
        Route::Pool { pool, .. } => pool.to_string(),
        Route::Client | Route::Refused(_) | Route::Answered(_) => String::new(),
    };
    let last_error = if call.outcome().is_some() { None } else { call.last_failure() };
    v1::Call {
        call_id: spec.id.to_string(),
        tool: spec.tool.to_string(),
        arguments: String::from_utf8_lossy(&spec.arguments).into_owned(),
        state: state(call).into(),
        deadline: Some(timestamp(call.deadline())),
        pool,
        attempts: call.attempts_used(),
        last_error: last_error.map(error_out),
        outcome: outcome_of(call),
        create_time: Some(timestamp(call.accepted_at())),
        queue_time: call.dispatched_at().map(timestamp),
        end_time: match call.state() {
            CallState::Ended(ended) => Some(timestamp(ended.at)),
            _ => None,
        },
        failed_attempts: call.failures().iter().map(failed_attempt).collect(),
        parked: call.is_parked(),
        redriven_run_id: match call.fate() {
            Some(Disposition::Redriven { into }) => into.to_string(),
            Some(Disposition::Dropped) | None => String::new(),
        },
        approval_deadline: spec.approval.map(|approval| timestamp(approval.deadline)),
        decided: call.decided().map(decided),
        r#final: spec.result_use.is_final,
        return_direct: spec.result_use.return_direct,
        hidden: spec.result_use.hidden,
        asked_by_call_id: String::new(),
        not_before: spec.not_before.map(timestamp),
        priority: priority_out(spec.priority).into(),
        answered_by_hook: match &spec.route {
            Route::Answered(answer) => answer.hook.clone(),
            Route::Pool { .. } | Route::Client | Route::Refused(_) => String::new(),
        },
    }
}

fn decided(decided: &Decided) -> v1::CallDecided {
    let blank = v1::CallDecided {
        time: Some(timestamp(decided.at)),
        by_default: decided.by == Decider::Default,
        ..v1::CallDecided::default()
    };
    match &decided.decision {
        Decision::Approved { arguments } => {
            v1::CallDecided { approved: true, arguments_changed: arguments.is_some(), ..blank }
        }
        Decision::Rejected { reason } => v1::CallDecided { reason: reason.clone(), ..blank },
    }
}

fn failed_attempt(failed: &FailedAttempt) -> v1::FailedAttempt {
    v1::FailedAttempt {
        attempt: failed.number.0,
        time: Some(timestamp(failed.at)),
        error: Some(error_out(&failed.error)),
    }
}

/// The state of a call.
#[must_use]
pub fn state(call: &Call) -> v1::CallState {
    match call.state() {
        CallState::Accepted => v1::CallState::Accepted,
        CallState::AwaitingApproval => v1::CallState::AwaitingApproval,
        CallState::Delayed => v1::CallState::Delayed,
        CallState::WaitingForClient => v1::CallState::WaitingForClient,
        CallState::Queued { .. } => v1::CallState::Queued,
        CallState::Running(_) => v1::CallState::Running,
        CallState::Ended(Ended { outcome: ended, .. }) => outcome(ended).state(),
    }
}

fn outcome_of(call: &Call) -> Option<v1::CallOutcome> {
    let outcome = call.outcome().map(outcome)?;
    Some(v1::CallOutcome { extra_state: fields_out(call.extra_state()), ..outcome })
}

fn outcome(outcome: &Outcome) -> v1::CallOutcome {
    let blank = v1::CallOutcome::default();
    match outcome {
        Outcome::Completed(result) => {
            v1::CallOutcome { state: v1::CallState::Completed.into(), result: contents_out(result), ..blank }
        }
        Outcome::Failed(error) => {
            v1::CallOutcome { state: v1::CallState::Failed.into(), error: Some(error_out(error)), ..blank }
        }
        Outcome::Cancelled { reason, stopped } => {
            let stopped = match stopped {
                Stopped::NotRunning => v1::Stopped::NotRunning,
                Stopped::Confirmed => v1::Stopped::Confirmed,
                Stopped::Unconfirmed => v1::Stopped::Unconfirmed,
            };
            let (state, reason) = (v1::CallState::Cancelled.into(), reason.clone());
            v1::CallOutcome { state, reason, stopped: stopped.into(), ..blank }
        }
        Outcome::Expired(deadline) => {
            v1::CallOutcome { state: v1::CallState::Expired.into(), reason: run::expiry(*deadline).to_owned(), ..blank }
        }
    }
}

/// The status of a run.
#[must_use]
pub fn status(status: RunStatus) -> v1::RunStatus {
    match status {
        RunStatus::InProgress => v1::RunStatus::InProgress,
        RunStatus::RequiresAction => v1::RunStatus::RequiresAction,
        RunStatus::Completed => v1::RunStatus::Completed,
        RunStatus::Failed => v1::RunStatus::Failed,
        RunStatus::Cancelled => v1::RunStatus::Cancelled,
        RunStatus::Expired => v1::RunStatus::Expired,
    }
}

/// The events that a client receives for one piece of ordered output. `run` has applied `entry`, which stores the event
/// (or the span of output). Only output makes more than one event.
pub fn run_events(run: &Run, entry: &Entry, spoken: &OutputEvent, events: &mut Vec<v1::RunEvent>) {
    let mut push = |offset: u64, event| {
        let (sequence, time) = (spoken.number + offset, Some(timestamp(spoken.at)));
        events.push(v1::RunEvent { sequence, time, event: Some(event) });
    };
    if let OutputKind::Output { attempt, span } = &spoken.what {
        let call_id = id_of(run, attempt.call);
        for (chunk, offset) in chunks_of(entry, span).iter().zip(0u32..) {
            let output = output(&call_id, attempt.number.0, span.first.0 + offset, chunk);
            push(u64::from(offset), v1::run_event::Event::CallOutput(output));
        }
    } else if let Some(event) = single_event(run, entry, &spoken.what) {
        push(0, event);
    }
}

fn id_of(run: &Run, call: run::CallIndex) -> String {
    run.call(call).map_or_else(String::new, |call| call.spec().id.to_string())
}

/// The error of an attempt whose worker does not run the hooks that its call requires: nothing that the worker says.
fn withheld_out(error: &CallError) -> v1::CallError {
    error_out(&CallError::new(error.kind, "withheld: the worker does not run the required hooks"))
}

fn chunks_of<'entry>(entry: &'entry Entry, span: &Span) -> &'entry [Chunk] {
    let event = usize::try_from(span.position.event).ok().and_then(|event| entry.events.get(event));
    let Some(Event::Output { chunks, .. }) = event else { return &[] };
    let (skip, count) = (span.skip as usize, span.count as usize);
    chunks.get(skip..skip + count).unwrap_or(&[])
}

fn output(call_id: &str, attempt: u32, chunk: u32, piece: &Chunk) -> v1::CallOutput {
    let (channel, piece) = match piece {
        Chunk::Content { channel, content } => (channel.clone(), v1::call_output::Piece::Content(content_out(content))),
        Chunk::Progress(progress) => (String::new(), v1::call_output::Piece::Progress(progress_out(progress))),
    };
    v1::CallOutput { call_id: call_id.to_owned(), attempt, chunk, channel, piece: Some(piece) }
}

fn single_event(run: &Run, entry: &Entry, what: &OutputKind) -> Option<v1::run_event::Event> {
    use v1::run_event::Event as Wire;
    Some(match what {
        OutputKind::RunOpened => {
            // Later calls have an event of their own, so the calls of the opening come from the entry and not from the
            // run.
            let opened = entry.events.iter().find_map(|event| match event {
                Event::RunOpened(opened) => Some(opened),
                _ => None,
            })?;
            Wire::RunOpened(v1::RunOpened {
                run_id: run.id().to_string(),
                deadline: Some(timestamp(opened.deadline)),
                calls: opened.calls.iter().map(|spec| opened_call(run, spec)).collect(),
            })
        }
        OutputKind::CallsAppended { first, count } => {
            let calls = run.calls().iter().skip(first.as_usize()).take(usize::from(*count));
            Wire::CallsAppended(v1::CallsAppended { calls: calls.map(|call| opened_call(run, call.spec())).collect() })
        }
        OutputKind::RunClosed => Wire::RunClosed(v1::RunClosed {}),
        OutputKind::ApprovalAsked { call } => {
            let spec = run.call(*call)?.spec();
            let approval = spec.approval?;
            Wire::CallAwaitingApproval(v1::CallAwaitingApproval {
                call_id: spec.id.to_string(),
                tool: spec.tool.to_string(),
                arguments: String::from_utf8_lossy(&spec.arguments).into_owned(),
                deadline: Some(timestamp(approval.deadline)),
                default: approval_default_out(approval.default).into(),
            })
        }
        OutputKind::Decided { call } => {
            let (call_id, decided) = (id_of(run, *call), run.call(*call)?.decided()?);
            let by_default = decided.by == Decider::Default;
            match &decided.decision {
                Decision::Approved { arguments } => {
                    let arguments = arguments.as_deref().map(String::from_utf8_lossy).unwrap_or_default().into_owned();
                    Wire::CallApproved(v1::CallApproved { call_id, arguments, by_default })
                }
                Decision::Rejected { reason } => {
                    Wire::CallRejected(v1::CallRejected { call_id, reason: reason.clone(), by_default })
                }
            }
        }
        OutputKind::CallWaits { call } => {
            let spec = run.call(*call)?.spec();
            Wire::CallWaiting(v1::CallWaiting {
                call_id: spec.id.to_string(),
                tool: spec.tool.to_string(),
                arguments: String::from_utf8_lossy(&spec.arguments).into_owned(),
                deadline: Some(timestamp(spec.deadline)),
                asked_by_call_id: asked_by(run, spec),
            })
        }
        OutputKind::AttemptStarted { attempt, continues } => {
            let worker_id = entry.events.iter().find_map(|event| match event {
                Event::AttemptStarted { attempt: started, worker, .. } if started == attempt => {
                    Some(worker.to_string())
                }
                _ => None,
            });
            Wire::AttemptStarted(v1::AttemptStarted {
                call_id: id_of(run, attempt.call),
                attempt: attempt.number.0,
                worker_id: worker_id.unwrap_or_default(),
                continues: *continues,
            })
        }
        OutputKind::AttemptEnded { attempt } => {
            let error = entry.events.iter().find_map(|event| match event {
                Event::AttemptEnded { attempt: ended, outcome: AttemptOutcome::Failed(error), .. }
                    if ended == attempt =>
                {
                    let lacks = run.call(attempt.call).is_some_and(|call| call.lacks_hooks(entry.hooked));
                    Some(if lacks { withheld_out(error) } else { error_out(error) })
                }
                _ => None,
            });
            let (call_id, attempt) = (id_of(run, attempt.call), attempt.number.0);
            Wire::AttemptEnded(v1::AttemptEnded { call_id, attempt, error })
        }
        OutputKind::CancelRequested { call } => {
            Wire::CancelRequested(v1::CancelRequested { call_id: id_of(run, *call) })
        }
        OutputKind::AttemptStopping { attempt, stage } => {
            let (call_id, attempt) = (id_of(run, attempt.call), attempt.number.0);
            match stage {
                StopStage::Delivered => Wire::CancelDelivered(v1::CancelDelivered { call_id, attempt }),
                StopStage::Acknowledged => Wire::CancelAcknowledged(v1::CancelAcknowledged { call_id, attempt }),
            }
        }
        OutputKind::Speaks { call } => {
            let tool = run.call(*call)?.spec().tool.to_string();
            Wire::CallSpeaking(v1::CallSpeaking { call_id: id_of(run, *call), tool })
        }
        OutputKind::Output { .. } => return None,
        OutputKind::Withdrawn { call, number } => {
            Wire::CallOutputWithdrawn(v1::CallOutputWithdrawn { call_id: id_of(run, *call), attempt: number.0 })
        }
        OutputKind::CallEnded { call } => {
            let (call_id, call) = (id_of(run, *call), run.call(*call)?);
            let (spec, outcome) = (call.spec(), outcome_of(call));
            let has_result = matches!(call.outcome(), Some(Outcome::Completed(_)));
            Wire::CallEnded(v1::CallEnded {
                call_id,
                outcome,
                tool: spec.tool.to_string(),
                r#final: has_result && spec.result_use.is_final,
                return_direct: has_result && spec.result_use.return_direct,
            })
        }
        OutputKind::StatusChanged(to) => Wire::RunStatusChanged(v1::RunStatusChanged { status: status(*to).into() }),
        OutputKind::RunEnded(to) => {
            let (return_direct, extra_state) = (run.returns_direct(), fields_out(&run.extra_state()));
            Wire::RunEnded(v1::RunEnded { status: status(*to).into(), return_direct, extra_state })
        }
    })
}

fn opened_call(run: &Run, spec: &run::CallSpec) -> v1::OpenedCall {
    v1::OpenedCall {
        call_id: spec.id.to_string(),
        tool: spec.tool.to_string(),
        waits_for_client: spec.route == Route::Client,
        awaits_approval: spec.approval.is_some(),
        hidden: spec.result_use.hidden,
        asked_by_call_id: asked_by(run, spec),
        not_before: spec.not_before.map(timestamp),
    }
}
