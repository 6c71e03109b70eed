//! Spans of calls, made by their shard's owner from the log, and of jobs that are sent. A call carries the trace
//! context of its request in its metadata. The id of its own span is derived from its run. So the executing worker can
//! attach its spans to it, and its owner can export it, without passing anything between them.

use std::collections::BTreeMap;
use std::time::Duration;

use proto::names::JOB_TEMPLATE;
use proto::v1;
use run::limit::METADATA_BYTES_MAX;
use run::{
    AttemptId, Call, CallError, CallIndex, CallSpec, CallState, ErrorKind, Event, Outcome, Route, Run, RunId,
    Timestamp, WorkerId,
};
use telemetry::trace::{self, Kind, Moment, Span, SpanContext, TRACEPARENT, call_span};

use crate::fleet::registry::Registry;

/// Adds the trace context of a request to a call's metadata, unless the caller has set one for this call, or there is
/// no room. Tracing never causes an error.
pub(crate) fn carry_on(metadata: &mut BTreeMap<String, String>) {
    let Some(context) = trace::current() else { return };
    let traceparent = context.traceparent();
    let size: usize = metadata.iter().map(|(key, value)| key.len() + value.len()).sum();
    if size + TRACEPARENT.len() + traceparent.len() <= METADATA_BYTES_MAX {
        metadata.entry(TRACEPARENT.to_owned()).or_insert(traceparent);
    }
}

/// The span of the request that made a call, if it is traced.
pub(crate) fn context(spec: &CallSpec) -> Option<SpanContext> {
    spec.metadata.get(TRACEPARENT).and_then(|text| SpanContext::sampled(text))
}

/// A run as clients see it, with the trace of its first call that is traced.
pub(crate) fn run_out(run: &Run) -> v1::Run {
    let trace_id = run.calls().iter().find_map(|call| context(call.spec())).map(SpanContext::trace_id);
    v1::Run { trace_id: trace_id.unwrap_or_default(), ..proto::convert::api::run(run) }
}

fn time(at: Timestamp) -> Duration {
    Duration::from_millis(at.0)
}

/// A job was appended to the log between `began` and now, at this position.
pub(crate) fn sent(run: RunId, events: &[Event], job: Option<&CallSpec>, sequence: u64, began: Moment) {
    let dispatched = events.iter().find_map(|event| match event {
        Event::CallDispatched { call, .. } => Some(*call),
        _ => None,
    });
    let Some(call) = dispatched else { return };
    let opened = events.iter().find_map(|event| match event {
        Event::RunOpened(opened) => opened.calls.get(call.as_usize()).map(AsRef::as_ref),
        _ => None,
    });
    let Some((spec, parent)) = opened.or(job).and_then(|spec| Some((spec, context(spec)?))) else { return };
    let parent = parent.with_span(call_span(run.uuid().into_bytes(), call.0));
    Span::below(parent, 0, format!("send {JOB_TEMPLATE}"), Kind::Producer, began.since_epoch())
        .text("messaging.system", "nats")
        .text("messaging.operation.name", "send")
        .text("messaging.operation.type", "send")
        .text("messaging.destination.template", JOB_TEMPLATE)
        .text("messaging.message.id", sequence)
        .text("messaging.message.conversation_id", run)
        .text("gen_ai.tool.call.id", &spec.id)
        .end(began.later());
}

/// A call has ended.
pub(crate) fn call_ended(run: &Run, call: &Call, at: Timestamp) {
    let spec = call.spec();
    let Some(parent) = context(spec) else { return };
    let id = call_span(run.id().uuid().into_bytes(), call.index().0);
    let span = Span::below(parent, id, format!("call {}", tool(call)), Kind::Internal, time(call.accepted_at()))
        .text("gen_ai.tool.name", tool(call))
        .text("gen_ai.tool.call.id", &spec.id)
        .text("toolyard.run.id", run.id())
        .text("toolyard.call.outcome", call.state_name())
        .number("toolyard.call.attempts", call.attempts_used());
    let span = match &spec.route {
        Route::Pool { pool, .. } => span.text("toolyard.pool", pool),
        Route::Client | Route::Refused(_) | Route::Answered(_) => span,
    };
    let span = match call.outcome() {
        Some(Outcome::Completed(_)) | None => span,
        Some(Outcome::Failed(error)) => span.failed(error_type(error)),
        Some(Outcome::Cancelled { .. } | Outcome::Expired(_)) => span.failed(call.state_name()),
    };
    span.end(time(at));
}

/// The tool's name for the span. Names without a host are left out, because they are the caller's free text.
fn tool(call: &Call) -> &str {
    match &call.spec().route {
        Route::Refused(CallError { kind: ErrorKind::UnknownTool, .. }) => telemetry::metrics::OTHER,
        Route::Pool { .. } | Route::Client | Route::Refused(_) | Route::Answered(_) => call.spec().tool.as_str(),
    }
}

fn error_type(error: &CallError) -> String {
    proto::convert::error_word(error.kind)
}

/// An attempt that was running before an entry that may end it.
#[derive(Debug)]
pub(crate) struct Before {
    call: CallIndex,
    attempt: AttemptId,
    since: Timestamp,
    worker: WorkerId,
}

/// The attempt that an entry may end, if its call is traced.
pub(crate) fn before(run: &Run, events: &[Event]) -> Option<Before> {
    let call = events.iter().find_map(|event| match event {
        Event::AttemptStarted { attempt, .. } | Event::AttemptEnded { attempt, .. } => Some(attempt.call),
        Event::CallExpired { call, .. } => Some(*call),
        _ => None,
    })?;
    let CallState::Running(running) = run.call(call)?.state() else { return None };
    context(run.call(call)?.spec())?;
    let (worker, _) = running.worker.as_ref()?;
    Some(Before { call, attempt: running.attempt, since: running.since, worker: worker.clone() })
}

/// Exports the span of an attempt whose worker died and cannot export it: a further attempt followed, or the call ended
/// because the worker was lost.
pub(crate) fn after(before: &Before, run: &Run, registry: &Registry, at: Timestamp) {
    let Some(call) = run.call(before.call) else { return };
    let is_lost = match call.state() {
        CallState::Running(running) => running.attempt != before.attempt,
        CallState::Ended(ended) => match &ended.outcome {
            Outcome::Failed(error) => matches!(error.kind, ErrorKind::Interrupted | ErrorKind::WorkerLost),
            Outcome::Expired(_) => true,
            Outcome::Completed(_) | Outcome::Cancelled { .. } => false,
        },
        CallState::Accepted
        | CallState::AwaitingApproval
        | CallState::Delayed
        | CallState::WaitingForClient
        | CallState::Queued { .. } => false,
    };
    let Route::Pool { pool, .. } = &call.spec().route else { return };
    let is_lost = is_lost && !registry.is_alive(pool, &before.worker);
    let Some(parent) = context(call.spec()).filter(|_| is_lost) else { return };
    let parent = parent.with_span(call_span(run.id().uuid().into_bytes(), before.call.0));
    let name = format!("process {JOB_TEMPLATE}");
    Span::below(parent, before.attempt.nonce.0, name, Kind::Consumer, time(before.since))
        .text("messaging.system", "nats")
        .text("messaging.operation.name", "process")
        .text("messaging.operation.type", "process")
        .text("messaging.destination.template", JOB_TEMPLATE)
        .text("messaging.message.conversation_id", run.id())
        .text("gen_ai.tool.call.id", &call.spec().id)
        .number("toolyard.attempt", before.attempt.number.0)
        .text("toolyard.worker.id", &before.worker)
        .failed("worker_lost")
        .end(time(at));
}
