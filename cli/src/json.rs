//! The JSON that programs read: events, runs and tools, each an object with fields that stay as they are.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use proto::v1;
use proto::v1::content::Body;
use proto::v1::run_event::Event;
use serde::{Serialize, Serializer};
use serde_json::value::{RawValue, to_raw_value};

use crate::words::{call_state, error_kind, run_status, tool_concurrency, tool_permission, word};

pub(crate) const HELP: &str = "\
JSON (-o json): one object a line. `call`, `runs watch` and `demo` write one
for each event, with the fields type, sequence, time, and by type:
  run_opened             run_id, deadline,
                         calls [call_id, tool, waits_for_client,
                         awaits_approval]
  calls_appended         calls
  run_closed
  call_waiting           call_id, tool, arguments, deadline
  call_awaiting_approval call_id, tool, arguments, deadline, default
  call_approved          call_id, by_default, arguments (where they changed)
  call_rejected          call_id, by_default, reason
  attempt_started        call_id, attempt, worker_id, continues (it goes on
                         where the attempt before it broke off)
  attempt_ended          call_id, attempt, error (absent when its worker shut
                         down and gave the call back)
  cancel_requested       call_id
  cancel_delivered       call_id, attempt (its worker has told the tool)
  cancel_acknowledged    call_id, attempt (the tool has noticed)
  call_speaking          call_id, tool
  call_output            call_id, attempt, chunk, channel,
                         and content or progress
  call_output_withdrawn  call_id, attempt
  call_ended             call_id, outcome
  run_status_changed     status
  run_ended              status
`runs ls` and `calls ls` write one for each run or call that they find.
The other commands write one object: a run (run_id, status, create_time,
deadline, open, tenant, calls), a tool, {tools, refused}, or {why, call}. In all of them:
  outcome   state, and result [content], error or reason; of a cancelled call
            stopped: not_running, confirmed or unconfirmed
  content   {text}, {json} or {media_type, data}, data in base64
  progress  done, total (where known), message
  error     kind, message, retryable, retry_after_s (where known),
            violations [path, message]
States, statuses and kinds are the API's names in lower case and without their
prefix. Times are RFC 3339. When the program itself fails it writes one object
to standard error: {error: {reason, message, exit_code}}.";

/// A JSON object whose fields keep their order.
#[derive(Debug, Default)]
pub(crate) struct Object(Vec<(&'static str, Box<RawValue>)>);

impl Object {
    pub(crate) fn field(mut self, name: &'static str, value: impl Serialize) -> Self {
        let value = to_raw_value(&value).expect("texts, numbers, objects and lists of them always serialize");
        self.0.push((name, value));
        self
    }

    /// A field that is only there when it has a value.
    pub(crate) fn maybe(self, name: &'static str, value: Option<impl Serialize>) -> Self {
        match value {
            Some(value) => self.field(name, value),
            None => self,
        }
    }
}

impl Serialize for Object {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

/// JSON that came as text, passed on with all its digits but on one line; what is no JSON becomes a string.
pub(crate) fn raw(text: &str) -> Box<RawValue> {
    // A line break in valid JSON is white space: inside of strings it is escaped.
    let one_line = text.trim().replace(['\n', '\r'], " ");
    RawValue::from_string(one_line).unwrap_or_else(|_| to_raw_value(text).expect("a string always serializes"))
}

pub(crate) fn event(event: &v1::RunEvent) -> Object {
    let head = |kind: &str| {
        let time = event.time.map(|time| time.to_string());
        Object::default().field("type", kind).field("sequence", event.sequence).maybe("time", time)
    };
    let Some(what) = &event.event else {
        // An event that is newer than this program.
        return head("unknown");
    };
    match what {
        Event::RunOpened(opened) => head("run_opened")
            .field("run_id", &opened.run_id)
            .maybe("deadline", opened.deadline.map(|time| time.to_string()))
            .field("calls", opened_calls(&opened.calls)),
        Event::CallsAppended(appended) => head("calls_appended").field("calls", opened_calls(&appended.calls)),
        Event::RunClosed(_) => head("run_closed"),
        Event::CallWaiting(waiting) => head("call_waiting")
            .field("call_id", &waiting.call_id)
            .field("tool", &waiting.tool)
            .field("arguments", raw(&waiting.arguments))
            .maybe("deadline", waiting.deadline.map(|time| time.to_string())),
        Event::CallAwaitingApproval(awaits) => head("call_awaiting_approval")
            .field("call_id", &awaits.call_id)
            .field("tool", &awaits.tool)
            .field("arguments", raw(&awaits.arguments))
            .maybe("deadline", awaits.deadline.map(|time| time.to_string()))
            .field("default", word(awaits.default().as_str_name(), "APPROVAL_DEFAULT_")),
        Event::CallApproved(approved) => head("call_approved")
            .field("call_id", &approved.call_id)
            .maybe("arguments", Some(&approved.arguments).filter(|text| !text.is_empty()).map(|text| raw(text)))
            .field("by_default", approved.by_default),
        Event::CallRejected(rejected) => head("call_rejected")
            .field("call_id", &rejected.call_id)
            .field("reason", &rejected.reason)
            .field("by_default", rejected.by_default),
        Event::AttemptStarted(started) => head("attempt_started")
            .field("call_id", &started.call_id)
            .field("attempt", started.attempt)
            .field("worker_id", &started.worker_id)
            .field("continues", started.continues),
        Event::AttemptEnded(ended) => head("attempt_ended")
            .field("call_id", &ended.call_id)
            .field("attempt", ended.attempt)
            .maybe("error", ended.error.as_ref().map(error)),
        Event::CancelRequested(requested) => head("cancel_requested").field("call_id", &requested.call_id),
        Event::CancelDelivered(delivered) => {
            head("cancel_delivered").field("call_id", &delivered.call_id).field("attempt", delivered.attempt)
        }
        Event::CancelAcknowledged(acknowledged) => {
            head("cancel_acknowledged").field("call_id", &acknowledged.call_id).field("attempt", acknowledged.attempt)
        }
        Event::CallSpeaking(speaking) => {
            head("call_speaking").field("call_id", &speaking.call_id).field("tool", &speaking.tool)
        }
        Event::CallOutput(said) => output(head("call_output"), said),
        Event::CallOutputWithdrawn(withdrawn) => {
            head("call_output_withdrawn").field("call_id", &withdrawn.call_id).field("attempt", withdrawn.attempt)
        }
        Event::CallEnded(ended) => {
            head("call_ended").field("call_id", &ended.call_id).maybe("outcome", ended.outcome.as_ref().map(outcome))
        }
        Event::RunStatusChanged(changed) => head("run_status_changed").field("status", run_status(changed.status())),
        Event::RunEnded(ended) => head("run_ended").field("status", run_status(ended.status())),
    }
}

fn opened_calls(calls: &[v1::OpenedCall]) -> Vec<Object> {
    let object = |call: &v1::OpenedCall| {
        Object::default()
            .field("call_id", &call.call_id)
            .field("tool", &call.tool)
            .field("waits_for_client", call.waits_for_client)
            .field("awaits_approval", call.awaits_approval)
    };
    calls.iter().map(object).collect()
}

fn output(head: Object, output: &v1::CallOutput) -> Object {
    let head = head
        .field("call_id", &output.call_id)
        .field("attempt", output.attempt)
        .field("chunk", output.chunk)
        .field("channel", &output.channel);
    match &output.piece {
        Some(v1::call_output::Piece::Content(said)) => head.field("content", content(said)),
        Some(v1::call_output::Piece::Progress(made)) => head.field("progress", progress(made)),
        None => head,
    }
}

fn content(content: &v1::Content) -> Object {
    let object = Object::default();
    match &content.body {
        Some(Body::Text(text)) => object.field("text", text),
        Some(Body::Json(json)) => object.field("json", raw(json)),
        Some(Body::Data(data)) => {
            object.field("media_type", &data.media_type).field("data", BASE64_STANDARD.encode(&data.data))
        }
        None => object,
    }
}

fn progress(progress: &v1::Progress) -> Object {
    Object::default().field("done", progress.done).maybe("total", progress.total).field("message", &progress.message)
}

fn outcome(outcome: &v1::CallOutcome) -> Object {
    let result = outcome.result.iter().map(content).collect::<Vec<_>>();
    Object::default()
        .field("state", call_state(outcome.state()))
        .maybe("result", (outcome.state() == v1::CallState::Completed).then_some(result))
        .maybe("error", outcome.error.as_ref().map(error))
        .maybe("reason", Some(&outcome.reason).filter(|reason| !reason.is_empty()))
        .maybe("stopped", stopped(outcome.stopped()))
}

/// What is known of the execution of a call that was cancelled.
fn stopped(stopped: v1::Stopped) -> Option<&'static str> {
    match stopped {
        v1::Stopped::Unspecified => None,
        v1::Stopped::NotRunning => Some("not_running"),
        v1::Stopped::Confirmed => Some("confirmed"),
        v1::Stopped::Unconfirmed => Some("unconfirmed"),
    }
}

fn error(error: &v1::CallError) -> Object {
    let violations = error
        .violations
        .iter()
        .map(|violation| Object::default().field("path", &violation.path).field("message", &violation.message));
    Object::default()
        .field("kind", error_kind(error.kind()))
        .field("message", &error.message)
        .field("retryable", error.retryable)
        .maybe("retry_after_s", error.retry_after.map(seconds))
        .field("violations", violations.collect::<Vec<_>>())
}

pub(crate) fn run(run: &v1::Run) -> Object {
    Object::default()
        .field("run_id", &run.run_id)
        .field("status", run_status(run.status()))
        .maybe("create_time", run.create_time.map(|time| time.to_string()))
        .maybe("deadline", run.deadline.map(|time| time.to_string()))
        .field("open", run.open)
        .maybe("tenant", Some(&run.tenant).filter(|tenant| !tenant.is_empty()))
        .field("calls", run.calls.iter().map(call).collect::<Vec<_>>())
}

pub(crate) fn listed_run(run: &v1::RunSummary) -> Object {
    Object::default()
        .field("run_id", &run.run_id)
        .field("status", run_status(run.status()))
        .maybe("create_time", run.create_time.map(|time| time.to_string()))
        .maybe("deadline", run.deadline.map(|time| time.to_string()))
        .field("open", run.open)
        .maybe("tenant", Some(&run.tenant).filter(|tenant| !tenant.is_empty()))
        .field("calls", run.calls.iter().map(|call| summary(Object::default(), call)).collect::<Vec<_>>())
}

pub(crate) fn listed_call(listed: &v1::ListedCall) -> Object {
    let run = Object::default()
        .field("run_id", &listed.run_id)
        .maybe("create_time", listed.create_time.map(|time| time.to_string()))
        .maybe("tenant", Some(&listed.tenant).filter(|tenant| !tenant.is_empty()));
    listed.call.as_ref().map(|call| summary(run, call)).unwrap_or_default()
}

fn summary(head: Object, call: &v1::CallSummary) -> Object {
    let error = Some(call.error_kind()).filter(|kind| *kind != v1::CallErrorKind::Unspecified);
    head.field("call_id", &call.call_id)
        .field("tool", &call.tool)
        .maybe("pool", Some(&call.pool).filter(|pool| !pool.is_empty()))
        .field("state", call_state(call.state()))
        .field("attempts", call.attempts)
        .field("parked", call.parked)
        .maybe("end_time", call.end_time.map(|time| time.to_string()))
        .maybe("error_kind", error.map(error_kind))
}

pub(crate) fn counts(counts: &v1::CountRunsResponse) -> Object {
    let runs = counts.runs.iter().map(|of| (run_status(of.status()), of.count));
    let calls = counts.calls.iter().map(|of| (call_state(of.state()), of.count));
    let tools = counts.tools.iter().map(|of| {
        Object::default().field("tool", &of.tool).field("state", call_state(of.state())).field("count", of.count)
    });
    let coverage = counts.coverage.unwrap_or_default();
    Object::default()
        .field("runs", runs.collect::<BTreeMap<_, _>>())
        .field("calls", calls.collect::<BTreeMap<_, _>>())
        .field("tools", tools.collect::<Vec<_>>())
        .field("parked", counts.parked)
        .field("waiting_for_client", counts.waiting_for_client)
        .field("awaiting_approval", counts.awaiting_approval)
        .field("complete", coverage.complete)
        .maybe("cut_before", coverage.cut_before.map(|time| time.to_string()))
}

pub(crate) fn difference(found: &v1::IndexDifference) -> Object {
    Object::default().field("run_id", &found.run_id).field("what", &found.what)
}

pub(crate) fn verified(word: &v1::VerifyIndexResponse, end: &v1::VerifyIndexEnd) -> Object {
    Object::default()
        .field("entries", word.entries)
        .field("runs", word.runs)
        .field("differences", end.differences)
        .field("complete", end.complete)
}

fn call(call: &v1::Call) -> Object {
    Object::default()
        .field("call_id", &call.call_id)
        .field("tool", &call.tool)
        .field("arguments", raw(&call.arguments))
        .field("state", call_state(call.state()))
        .maybe("deadline", call.deadline.map(|time| time.to_string()))
        .maybe("pool", Some(&call.pool).filter(|pool| !pool.is_empty()))
        .field("attempts", call.attempts)
        .maybe("last_error", call.last_error.as_ref().map(error))
        .maybe("outcome", call.outcome.as_ref().map(outcome))
        .maybe("create_time", call.create_time.map(|time| time.to_string()))
        .maybe("end_time", call.end_time.map(|time| time.to_string()))
        .maybe("failed_attempts", failed_attempts(&call.failed_attempts))
        .field("parked", call.parked)
        .maybe("redriven_run_id", Some(&call.redriven_run_id).filter(|run| !run.is_empty()))
        .maybe("approval_deadline", call.approval_deadline.map(|time| time.to_string()))
        .maybe("decided", call.decided.as_ref().map(decided))
}

fn decided(decided: &v1::CallDecided) -> Object {
    Object::default()
        .maybe("time", decided.time.map(|time| time.to_string()))
        .field("approved", decided.approved)
        .field("arguments_changed", decided.arguments_changed)
        .maybe("reason", Some(&decided.reason).filter(|reason| !reason.is_empty()))
        .field("by_default", decided.by_default)
}

fn failed_attempts(attempts: &[v1::FailedAttempt]) -> Option<Vec<Object>> {
    let object = |failed: &v1::FailedAttempt| {
        Object::default()
            .field("attempt", failed.attempt)
            .maybe("time", failed.time.map(|time| time.to_string()))
            .maybe("error", failed.error.as_ref().map(error))
    };
    (!attempts.is_empty()).then(|| attempts.iter().map(object).collect())
}

pub(crate) fn explained(explained: &v1::ExplainCallResponse) -> Object {
    Object::default().field("why", &explained.why).maybe("call", explained.call.as_ref().map(call))
}

pub(crate) fn tool(tool: &v1::Tool) -> Object {
    let effects = tool.effects.unwrap_or_default();
    let effects = Object::default()
        .field("read_only", effects.read_only)
        .field("idempotent", effects.idempotent)
        .field("destructive", effects.destructive)
        .field("open_world", effects.open_world);
    let pools = tool.pools.iter().map(|pool| {
        Object::default()
            .field("pool", &pool.pool)
            .field("live_workers", pool.live_workers)
            .field("pulling_workers", pool.pulling_workers)
    });
    let aliases = tool
        .aliases
        .iter()
        .map(|alias| Object::default().field("name", &alias.name).field("description", &alias.description));
    Object::default()
        .field("name", &tool.name)
        .field("description", &tool.description)
        .field("input_schema", raw(&tool.input_schema))
        .maybe("output_schema", Some(&tool.output_schema).filter(|schema| !schema.is_empty()).map(|schema| raw(schema)))
        .field("effects", effects)
        .maybe("policy", tool.policy.as_ref().map(policy))
        .field("definition_only", tool.definition_only)
        .field("streaming", tool.streaming)
        .maybe("category", Some(&tool.category).filter(|category| !category.is_empty()))
        .field("permission", tool_permission(tool.permission()))
        .maybe("side_effect_scope", Some(&tool.side_effect_scope).filter(|scope| !scope.is_empty()))
        .field("requires_confirmation", tool.requires_confirmation)
        .field("tags", &tool.tags)
        .field("final", tool.r#final)
        .field("return_direct", tool.return_direct)
        .field("hidden", tool.hidden)
        .field("concurrency", tool_concurrency(tool.concurrency()))
        .maybe("version", Some(&tool.version).filter(|version| !version.is_empty()))
        .field("aliases", aliases.collect::<Vec<_>>())
        .maybe("alias_of", Some(&tool.alias_of).filter(|tool| !tool.is_empty()))
        .field("available", tool.available)
        .field("pools", pools.collect::<Vec<_>>())
}

pub(crate) fn refused_tool(refused: &v1::RefusedTool) -> Object {
    let hosts = |of: &v1::ToolHosts| Object::default().field("pool", &of.pool).field("worker_ids", &of.worker_ids);
    Object::default()
        .field("tool", &refused.tool)
        .maybe("hosts", refused.hosts.as_ref().map(hosts))
        .maybe("holder", refused.holder.as_ref().map(hosts))
        .field("reason", &refused.reason)
}

fn policy(policy: &v1::ToolPolicy) -> Object {
    Object::default()
        .field("repeatable", policy.repeatable)
        .field("attempts_max", policy.attempts_max)
        .maybe("attempt_timeout_s", policy.attempt_timeout.map(seconds))
        .maybe("idle_timeout_s", policy.idle_timeout.map(seconds))
        .maybe("backoff_first_s", policy.backoff_first.map(seconds))
        .maybe("backoff_longest_s", policy.backoff_longest.map(seconds))
        .maybe("backoff_jitter_percent", policy.backoff_jitter_percent)
        .maybe("retry_on", policy.retry_on.map(|on| retry_on(&on)))
        .field("after_partial_output", after_partial_output(policy.after_partial_output()))
}

fn retry_on(on: &v1::RetryOn) -> Object {
    Object::default()
        .field("retryable", on.retryable)
        .field("timeout", on.timeout)
        .field("panic", on.panic)
        .field("lost", on.lost)
        .field("other", on.other)
}

fn after_partial_output(mode: v1::AfterPartialOutput) -> &'static str {
    match mode {
        v1::AfterPartialOutput::Unspecified | v1::AfterPartialOutput::Restart => "restart",
        v1::AfterPartialOutput::Continue => "continue",
        v1::AfterPartialOutput::Buffer => "buffer",
    }
}

fn seconds(wait: impl TryInto<Duration>) -> Option<f64> {
    wait.try_into().ok().map(|wait| wait.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_keep_their_order_and_numbers_their_digits() {
        let object = Object::default().field("z", raw("{\"n\":\n 0.10000000000000000000001}")).field("a", "text");
        assert_eq!(object.to_string(), r#"{"z":{"n":  0.10000000000000000000001},"a":"text"}"#);
    }

    #[test]
    fn text_that_is_no_json_is_a_string() {
        assert_eq!(raw("{broken\n").get(), r#""{broken\n""#);
    }

    #[test]
    fn an_outcome_has_only_what_belongs_to_its_state() {
        let content = v1::Content { body: Some(Body::Text("hello".to_owned())) };
        let done = v1::CallOutcome {
            state: v1::CallState::Completed.into(),
            result: vec![content],
            ..v1::CallOutcome::default()
        };
        assert_eq!(outcome(&done).to_string(), r#"{"state":"completed","result":[{"text":"hello"}]}"#);
        let late = v1::CallOutcome {
            state: v1::CallState::Expired.into(),
            reason: "too late".to_owned(),
            ..v1::CallOutcome::default()
        };
        assert_eq!(outcome(&late).to_string(), r#"{"state":"expired","reason":"too late"}"#);
    }
}
