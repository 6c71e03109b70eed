//! The ended calls of a run, for a tool that requests them. The history is written when a call's job is stored, and
//! read by the worker that executes the call.

use std::sync::Arc;

use run::{Call, CallSpec, Content, Outcome, Run, limit};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::convert::error_kind_name;
use crate::convert::log::Dispatch;

/// The context key of the history. A tool declares it like any other key; callers cannot set it.
pub const TOOL_CALL_HISTORY: &str = "TOOL_CALL_HISTORY";
/// The deepest nesting of a value that is included as JSON; deeper values are included as text. Readers take 127
/// levels, and the history adds some of its own.
const DEPTH_MAX: usize = 100;
/// The value of the key before the job is stored.
pub const NONE: &str = "[]";

/// A call that ended before another call began.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PastCall {
    pub call_id: String,
    pub tool: String,
    /// The arguments with which it was executed; a string for a tool that takes text.
    pub arguments: Value,
    pub outcome: PastOutcome,
    /// Its arguments and its result did not fit; they are null and empty here.
    #[serde(default)]
    pub left_out: bool,
}

/// How it ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum PastOutcome {
    Completed {
        result: Vec<PastContent>,
    },
    Failed {
        /// Such as `TOOL_FAILED`.
        kind: String,
        message: String,
    },
    Cancelled {
        reason: String,
    },
    Expired {
        reason: String,
    },
}

/// A part of a result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PastContent {
    Text(String),
    Json(Value),
    /// Only the media type and the size of binary data.
    Data {
        media_type: String,
        bytes: usize,
    },
}

/// What a call's job stores. If its tool requests the history of the run, the current history is filled
/// in. The job is stored once, so every attempt gets the same history.
#[must_use]
pub fn job(run: &Run, call: &Call) -> Dispatch {
    let mut spec = Arc::clone(call.spec());
    if spec.context.get(TOOL_CALL_HISTORY).is_some() {
        Arc::make_mut(&mut spec).context.set(TOOL_CALL_HISTORY, write(run, call));
    }
    Dispatch { spec, requester: run.requester(), is_stored: run.erasure().is_none() }
}

/// In the order of the calls. The latest calls get space first.
fn write(run: &Run, of: &Call) -> String {
    let ended = run.requested_calls().filter(|call| call.index() != of.index());
    let ended: Vec<(&CallSpec, &Outcome)> = ended.filter_map(|call| Some((&**call.spec(), call.outcome()?))).collect();
    let mut room = limit::HISTORY_BYTES_MAX;
    let mut told = Vec::with_capacity(ended.len());
    for (spec, outcome) in ended.into_iter().rev() {
        let fits = (size(spec, outcome) <= room).then(|| text(&whole(spec, outcome)));
        let fits = fits.filter(|text| text.len() <= room);
        room -= fits.as_ref().map_or(0, String::len);
        told.push(fits.unwrap_or_else(|| text(&named(spec, outcome))));
    }
    told.reverse();
    format!("[{}]", told.join(","))
}

fn text(past: &PastCall) -> String {
    serde_json::to_string(past).expect("texts and JSON values serialize")
}

/// The least number of bytes that the entry takes.
fn size(spec: &CallSpec, outcome: &Outcome) -> usize {
    let result = match outcome {
        Outcome::Completed(result) => result.iter().map(|part| match part {
            Content::Text(text) | Content::Json(text) => text.len(),
            Content::Object(object) => object.preview.len(),
            Content::Cited(cited) => cited.text.len(),
            Content::Data { .. } => 0,
        }),
        Outcome::Failed(_) | Outcome::Cancelled { .. } | Outcome::Expired(_) => return spec.arguments.len(),
    };
    spec.arguments.len() + result.sum::<usize>()
}

fn whole(spec: &CallSpec, outcome: &Outcome) -> PastCall {
    let arguments =
        json(&spec.arguments).unwrap_or_else(|| String::from_utf8_lossy(&spec.arguments).into_owned().into());
    let part = |content: &Content| match content {
        Content::Text(text) => PastContent::Text(text.clone()),
        Content::Json(text) => json(text.as_bytes()).map_or_else(|| PastContent::Text(text.clone()), PastContent::Json),
        Content::Object(object) => PastContent::Text(object.preview.clone()),
        Content::Cited(cited) => PastContent::Text(cited.text.clone()),
        Content::Data { media_type, data } => PastContent::Data { media_type: media_type.clone(), bytes: data.len() },
    };
    let outcome = match outcome {
        Outcome::Completed(result) => PastOutcome::Completed { result: result.iter().map(part).collect() },
        Outcome::Failed(error) => {
            PastOutcome::Failed { kind: error_kind_name(error.kind).to_owned(), message: error.message.clone() }
        }
        Outcome::Cancelled { reason, .. } => PastOutcome::Cancelled { reason: reason.clone() },
        Outcome::Expired(deadline) => PastOutcome::Expired { reason: run::expiry(*deadline).to_owned() },
    };
    PastCall { call_id: spec.id.to_string(), tool: spec.tool.to_string(), arguments, outcome, left_out: false }
}

/// JSON that other readers can parse inside the history.
pub(crate) fn json(text: &[u8]) -> Option<Value> {
    serde_json::from_slice(text).ok().filter(|value| depth(value) <= DEPTH_MAX)
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(values) => 1 + values.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

/// The minimal entry, which always fits.
fn named(spec: &CallSpec, outcome: &Outcome) -> PastCall {
    let nothing = String::new();
    let outcome = match outcome {
        Outcome::Completed(_) => PastOutcome::Completed { result: Vec::new() },
        Outcome::Failed(error) => {
            PastOutcome::Failed { kind: error_kind_name(error.kind).to_owned(), message: nothing }
        }
        Outcome::Cancelled { .. } => PastOutcome::Cancelled { reason: nothing },
        Outcome::Expired(_) => PastOutcome::Expired { reason: nothing },
    };
    let (call_id, tool) = (spec.id.to_string(), spec.tool.to_string());
    PastCall { call_id, tool, arguments: Value::Null, outcome, left_out: true }
}
