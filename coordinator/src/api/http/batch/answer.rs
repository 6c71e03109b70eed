//! The answer of the batch endpoint: the messages of the calls that have ended, and the open calls.

use std::collections::HashMap;

use axum::response::Response;
use formats::heard::Heard;
use formats::turns::{Answer, Reason, SkippedItem, Turn};
use proto::convert::api;
use run::{Call, CallId, Run};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::api::http::routes::text_response;

/// A turn and its answer so far.
pub(super) struct Answering {
    pub(super) turn: Turn,
    /// Errors of calls that were not executed.
    pub(super) refused: HashMap<String, String>,
    /// Results for calls of earlier turns.
    pub(super) dangling: Vec<(usize, Vec<Box<RawValue>>)>,
    /// The newest message is the model's: a turn without calls is the end.
    pub(super) is_of_model: bool,
    /// The run has calls of other requests.
    pub(super) is_shared: bool,
}

#[derive(Serialize)]
struct Answered<'a> {
    format: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    run_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'static str>,
    /// Every call is answered; otherwise those of `open_calls` are not.
    complete: bool,
    /// The turn is the newest message and has no calls, so the model has finished.
    finish: bool,
    /// The messages are the final answer: the model need not be called again.
    return_direct: bool,
    messages: Vec<Box<RawValue>>,
    open_calls: Vec<Box<RawValue>>,
    passed_over: Vec<Passed<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    dangling: Vec<Dangling<'a>>,
}

#[derive(Serialize)]
struct Passed<'a> {
    pointer: &'a str,
    kind: &'a str,
    reason: &'static str,
}

#[derive(Serialize)]
struct Dangling<'a> {
    after: usize,
    messages: &'a [Box<RawValue>],
}

impl Answering {
    pub(super) fn response(&self, run: Option<(&Run, &Heard)>) -> Response {
        text_response(self.json(run))
    }

    /// Whether the call is one of the turn's, or a question of one.
    pub(super) fn has(&self, call: &Call, run: &Run) -> bool {
        let is_ours = |id: &CallId| self.turn.calls.iter().any(|call| call.id == id.as_str());
        let asks = call.spec().asked_by.as_ref().and_then(|asked| run.call(asked.attempt.call));
        is_ours(&call.spec().id) || asks.is_some_and(|asking| is_ours(&asking.spec().id))
    }

    /// The messages that answer the turn, of the calls that have ended, and the open calls.
    pub(super) fn json(&self, run: Option<(&Run, &Heard)>) -> String {
        let messages = self.turn.answers(|call| match (self.refused.get(&call.id), run) {
            (Some(why), _) => Some(Answer::error(why)),
            (None, Some((_, heard))) => heard.answer(&call.id),
            (None, None) => None,
        });
        let calls = run.iter().flat_map(|(run, heard)| run.calls().iter().map(move |call| (*run, call, heard)));
        let open = calls.filter(|(run, call, heard)| self.has(call, run) && !heard.has_ended(call.spec().id.as_str()));
        let open = open.map(|(run, call, _)| {
            RawValue::from_string(proto::json::write(&api::call_in(run, call))).expect("it was written as JSON")
        });
        let open: Vec<_> = open.collect();
        // The run may be read only in part.
        let has_ended = |call: &formats::turns::Call| {
            self.refused.contains_key(&call.id) || run.is_some_and(|(_, heard)| heard.has_ended(&call.id))
        };
        let dangling = self.dangling.iter();
        let answered = Answered {
            format: self.turn.form.as_str(),
            run_id: run.map(|(run, _)| run.id().to_string()),
            status: run.map(|(run, _)| api::status(run.status()).as_str_name()),
            complete: open.is_empty() && self.turn.calls.iter().all(has_ended),
            finish: self.is_of_model && self.turn.calls.is_empty() && self.turn.passed_over.is_empty(),
            return_direct: self.returns_direct(run.map(|(run, _)| run)),
            messages,
            open_calls: open,
            passed_over: self.turn.passed_over.iter().map(passed).collect(),
            dangling: dangling.map(|(after, messages)| Dangling { after: *after, messages }).collect(),
        };
        serde_json::to_string(&answered).expect("texts and JSON always serialize")
    }

    /// If some call of the turn was not executed here, the model must be called again.
    fn returns_direct(&self, run: Option<&Run>) -> bool {
        let is_whole = self.refused.is_empty() && self.turn.passed_over.is_empty() && !self.is_shared;
        is_whole && run.is_some_and(Run::returns_direct)
    }
}

fn passed(passed: &SkippedItem) -> Passed<'_> {
    let reason = match passed.reason {
        Reason::ExecutedByVendor => "executed_by_vendor",
        Reason::Answered => "answered",
        Reason::NeedsApproval => "needs_approval",
        Reason::Unsupported => "unsupported",
    };
    Passed { pointer: &passed.pointer, kind: &passed.kind, reason }
}
