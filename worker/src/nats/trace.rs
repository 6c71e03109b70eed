//! Spans of an attempt, from the worker that executes it. Their parent is the call's span, whose id is derived from the
//! run.

use std::sync::Arc;

use proto::convert::error_word;
use proto::convert::log::Job;
use proto::names::{self, JOB_TEMPLATE};
use run::{AttemptId, CallSpec, WorkerId};
use telemetry::trace::{self, Kind, Moment, Span, SpanContext, TRACEPARENT, call_span};

use crate::attempt::Ending;
use crate::observe::{Observation, ObservedCall, Observer};
use toolyard_tool::Table;

/// A traced attempt that is under way.
#[derive(Debug)]
pub(super) struct Traced {
    began: Moment,
    process: Span,
    tool: Option<Span>,
    /// Whether it includes the tool's arguments and result.
    includes_content: bool,
}

/// Begins to trace an attempt, if its call is traced and tracing is on. The span's id is the attempt's nonce, so the
/// owner can report the span of a worker that died.
pub(super) fn begin(job: &Job, id: AttemptId, sequence: u64, worker: &WorkerId, content: bool) -> Option<Box<Traced>> {
    if !trace::is_on() {
        return None;
    }
    let parent = job.spec.metadata.get(TRACEPARENT).and_then(|text| SpanContext::sampled(text))?;
    let parent = parent.with_span(call_span(job.run.uuid().into_bytes(), job.call.0));
    let began = Moment::now(::nats::now().0);
    let name = format!("process {JOB_TEMPLATE}");
    let process = Span::below(parent, id.nonce.0, name, Kind::Consumer, began.since_epoch())
        .text("messaging.system", "nats")
        .text("messaging.operation.name", "process")
        .text("messaging.operation.type", "process")
        .text("messaging.destination.template", JOB_TEMPLATE)
        .text("messaging.consumer.group.name", names::pool_consumer(&job.pool))
        .text("messaging.message.id", sequence)
        .text("messaging.message.conversation_id", job.run)
        .text("gen_ai.tool.call.id", &job.spec.id)
        .number("toolyard.attempt", id.number.0)
        .text("toolyard.worker.id", worker);
    // In a box, so that a call that is not traced does not carry the room for it.
    Some(Box::new(Traced { began, process, tool: None, includes_content: content }))
}

impl Traced {
    pub(super) fn context(&self) -> SpanContext {
        self.process.context()
    }

    /// The tool is called.
    pub(super) fn tool_begins(&mut self, (job, id): (&Job, AttemptId), table: &Table, observer: Option<&Observer>) {
        let description = table.description(&job.spec.tool);
        let Observation { name, attributes } = observer.map_or_else(Observation::default, |observer| {
            let (call, requester) = (&*job.spec, job.requester.as_ref());
            observer.observe(&ObservedCall { run: job.run, call, requester, attempt: id.number, description })
        });
        let name = name.unwrap_or_else(|| format!("execute_tool {}", job.spec.tool));
        let span = Span::below(self.process.context(), 0, name, Kind::Internal, self.began.later())
            .text("gen_ai.operation.name", "execute_tool")
            .text("gen_ai.tool.name", &job.spec.tool)
            .text("gen_ai.tool.call.id", &job.spec.id)
            .text("gen_ai.tool.type", "function")
            .text("gen_ai.tool.description", description);
        let span = attributes.into_iter().fold(span, |span, (key, value)| span.text(key, value));
        self.tool = Some(match self.includes_content {
            true => span.text("gen_ai.tool.call.arguments", String::from_utf8_lossy(&job.spec.arguments)),
            false => span,
        });
    }

    /// The job as its tool sees it: spans that the tool makes from its metadata are children of our span.
    pub(super) fn carried_on(&self, job: &Job) -> Job {
        let mut spec = CallSpec::clone(&job.spec);
        if let Some(span) = &self.tool {
            spec.metadata.insert(TRACEPARENT.to_owned(), span.context().traceparent());
        }
        Job { spec: Arc::new(spec), ..job.clone() }
    }

    pub(super) fn includes_content(&self) -> bool {
        self.includes_content
    }

    /// The tool's end was stored, or nothing was any more.
    pub(super) fn tool_ends(&mut self, how: Option<&Ending>) {
        let Some(span) = self.tool.take() else { return };
        let span = match how {
            Some(Ending::Completed { result: Some(result) }) => span.text("gen_ai.tool.call.result", result),
            Some(_) | None => span,
        };
        let error = error_type(how);
        self.process = with_error(self.process.clone(), error.as_deref());
        with_error(span, error.as_deref()).end(self.began.later());
    }

    /// The attempt did not count: the tool was not called.
    pub(super) fn superseded(self) {
        self.process.failed("superseded").end(self.began.later());
    }

    /// The job is settled.
    pub(super) fn end(self) {
        self.process.end(self.began.later());
    }
}

fn with_error(span: Span, error: Option<&str>) -> Span {
    match error {
        Some(error) => span.failed(error),
        None => span,
    }
}

fn error_type(how: Option<&Ending>) -> Option<String> {
    match how {
        Some(Ending::Completed { .. }) => None,
        Some(Ending::Failed(error)) => Some(error_word(error.kind)),
        Some(Ending::Cancelled) => Some("cancelled".to_owned()),
        Some(Ending::Expired) => Some("expired".to_owned()),
        Some(Ending::Returned) => Some("returned".to_owned()),
        None => Some("abandoned".to_owned()),
    }
}
