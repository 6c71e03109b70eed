//! The state of a run's calls that both APIs share: their tools and arguments, their output so far, and how they ended.

use std::collections::HashMap;

use crate::turns::{Answer, Part};
use proto::names::CALLED_AS;
use proto::v1;
use run::{AfterPartialOutput, CallId, Route, Run, RunId};

use crate::openai::SAID_BYTES_MAX;

/// The metadata key with the item type of a call in its request, if the tool does not determine the type.
pub(crate) const ITEM: &str = "toolyard.item";
/// Prefix of metadata keys that are reserved; the client cannot set them.
pub(crate) const OURS: &str = "toolyard.";

/// Where a call is executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    Pool {
        name: String,
        /// Its output may be withdrawn by another attempt.
        may_restart: bool,
    },
    Client,
    /// A hook answered it.
    Answered,
    Nowhere,
}

/// The state of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    Accepted,
    AwaitingApproval,
    WaitingForClient,
    Ended,
}

#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) index: usize,
    pub(crate) id: String,
    pub(crate) tool: String,
    /// The name that the client used, if that is an alias of the tool.
    pub(crate) called_as: Option<String>,
    pub(crate) arguments: String,
    pub(crate) place: Place,
    /// The item type in the request, if it does not follow from the tool.
    pub(crate) item: Option<String>,
    /// Users see the call only when the client must act on it.
    pub(crate) hidden: bool,
    /// A question of a running call, and no call of the model.
    pub(crate) is_question: bool,
    /// The call that asks it; empty for a call of the model.
    pub(crate) asked_by: String,
    pub(crate) stage: Stage,
    pub(crate) said: Said,
}

impl Call {
    /// The suffix of every id that is derived from the call's. Unlike the client's id it is unique and has a known
    /// form.
    pub(crate) fn token(&self, run: RunId) -> String {
        format!("{}_{}", rest(run), self.index)
    }

    /// Whether its output may be shown before it ends.
    pub(crate) fn is_live(&self) -> bool {
        !matches!(self.place, Place::Pool { may_restart: true, .. })
    }

    /// The names of the tool without their namespaces: the one that the client used, if that is an alias, and its own.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = &str> {
        let names = self.called_as.as_deref().into_iter().chain([self.tool.as_str()]);
        names.map(|name| name.rsplit('.').next().unwrap_or(name)).map(|name| name.rsplit("__").next().unwrap_or(name))
    }
}

/// A run's id without its prefix.
pub(crate) fn rest(run: RunId) -> String {
    let id = run.to_string();
    id.strip_prefix("run_").map_or_else(|| id.clone(), str::to_owned)
}

/// The calls of a run in the order in which they were requested.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    pub(crate) all: Vec<Call>,
    by_id: HashMap<String, usize>,
}

impl Calls {
    /// Adds accepted calls and returns their positions. Only immutable state is read from the run, because the run may
    /// be further ahead than the events read so far. Calls of hidden tools are skipped unless the client must act on
    /// them.
    pub(crate) fn accept<'opened>(
        &mut self,
        opened: &'opened [v1::OpenedCall],
        run: &Run,
    ) -> Vec<(usize, &'opened v1::OpenedCall)> {
        let mut added = Vec::with_capacity(opened.len());
        let is_shown = |call: &&v1::OpenedCall| !call.hidden || call.waits_for_client || call.awaits_approval;
        for call in opened.iter().filter(is_shown) {
            let place_here = self.all.len();
            let accepted = call.call_id.parse::<CallId>().ok().and_then(|id| run.find(&id));
            let called_as = accepted.and_then(|call| call.spec().metadata.get(CALLED_AS).cloned());
            let (place, item, arguments) = match accepted.map(run::Call::spec) {
                Some(spec) => {
                    // The arguments of a call that needs approval come with the approval request and may change with
                    // the decision.
                    let arguments = if call.awaits_approval { "" } else { &String::from_utf8_lossy(&spec.arguments) };
                    (place(&spec.route), spec.metadata.get(ITEM).cloned(), arguments.to_owned())
                }
                None => (Place::Nowhere, None, String::new()),
            };
            let (id, tool) = (call.call_id.clone(), call.tool.clone());
            self.by_id.insert(id.clone(), place_here);
            // Its position in the run, by which an approval finds it again: hidden calls are skipped here.
            let index = accepted.map_or(place_here, |call| call.index().as_usize());
            let (stage, said) = (Stage::Accepted, Said::default());
            let (hidden, asked_by) = (call.hidden, call.asked_by_call_id.clone());
            let is_question = !asked_by.is_empty();
            self.all.push(Call {
                index,
                id,
                tool,
                called_as,
                arguments,
                place,
                item,
                hidden,
                is_question,
                asked_by,
                stage,
                said,
            });
            added.push((place_here, call));
        }
        added
    }

    pub(crate) fn find(&self, call_id: &str) -> Option<usize> {
        self.by_id.get(call_id).copied()
    }
}

fn place(route: &Route) -> Place {
    match route {
        Route::Pool { pool, policy, .. } => Place::Pool {
            name: pool.to_string(),
            may_restart: policy.after_partial_output == AfterPartialOutput::Restart
                && (policy.repeatable || policy.attempts_max > 1),
        },
        Route::Client => Place::Client,
        Route::Answered(_) => Place::Answered,
        Route::Refused(_) => Place::Nowhere,
    }
}

/// The output of a call, as far as it is shown.
#[derive(Debug, Clone, Default)]
pub(crate) struct Said {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) is_cut: bool,
    /// Some of it was emitted already.
    pub(crate) is_told: bool,
}

impl Said {
    /// Adds a piece and returns the part of it that is shown.
    pub(crate) fn take(&mut self, is_stderr: bool, text: &str) -> String {
        if self.is_cut {
            return String::new();
        }
        let room = SAID_BYTES_MAX.saturating_sub(self.stdout.len() + self.stderr.len());
        let mut shown = text.to_owned();
        if text.len() > room {
            let end = (0..=room).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default();
            shown.truncate(end);
            shown.push_str(&format!("\n[cut: more than {SAID_BYTES_MAX} bytes; the run's own events have the rest]"));
            self.is_cut = true;
        }
        let stream = if is_stderr { &mut self.stderr } else { &mut self.stdout };
        stream.push_str(&shown);
        shown
    }

    /// All of it that is not empty, with whether it is of stderr.
    pub(crate) fn both(&self) -> Vec<(bool, String)> {
        let both = [(false, self.stdout.clone()), (true, self.stderr.clone())];
        both.into_iter().filter(|(_, text)| !text.is_empty()).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.stdout.is_empty() && self.stderr.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// A piece of output as text, or `None` for progress.
pub(crate) fn text_of(output: &v1::CallOutput) -> Option<(bool, String)> {
    let Some(v1::call_output::Piece::Content(content)) = &output.piece else { return None };
    Some((output.channel == "stderr", Answer::new(parts(std::slice::from_ref(content))).text()))
}

pub(crate) fn parts(contents: &[v1::Content]) -> Vec<Part<'_>> {
    contents.iter().filter_map(part).collect()
}

fn part(content: &v1::Content) -> Option<Part<'_>> {
    match content.body.as_ref()? {
        v1::content::Body::Text(text) => Some(Part::Text(text)),
        v1::content::Body::Json(json) => Some(Part::Json(json)),
        v1::content::Body::Data(data) => Some(Part::Data { media_type: &data.media_type, data: &data.data }),
        v1::content::Body::Object(object) => Some(Part::Text(&object.preview)),
    }
}

/// The characters of a text for which a citation is the source. `whole`: all characters of the text.
pub(crate) fn span(citation: &v1::Citation, whole: usize) -> (usize, usize) {
    let place = |at: u32| usize::try_from(at).unwrap_or(whole).min(whole);
    if citation.end > citation.start { (place(citation.start), place(citation.end)) } else { (0, whole) }
}

/// How a call ended without a result.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The API's name without its prefix.
    pub(crate) state: &'static str,
    /// The kind of its error, or empty if there is none.
    pub(crate) kind: &'static str,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn of(outcome: &v1::CallOutcome) -> Option<Self> {
        match outcome.state() {
            v1::CallState::Completed => None,
            v1::CallState::Cancelled => {
                let message = format!("the call was cancelled: {}", outcome.reason);
                Some(Self { state: "CANCELLED", kind: "", message: message.trim_end_matches([':', ' ']).to_owned() })
            }
            v1::CallState::Expired => {
                let message = format!("the call has expired: {}", outcome.reason);
                Some(Self { state: "EXPIRED", kind: "", message })
            }
            _ => {
                let error = outcome.error.clone().unwrap_or_default();
                let kind = error.kind().as_str_name().trim_start_matches("CALL_ERROR_KIND_");
                Some(Self { state: "FAILED", kind, message: error.message })
            }
        }
    }

    /// As an item shows it in `toolyard`.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::json!({ "state": self.state, "error": { "kind": self.kind, "message": self.message } })
    }

    pub(crate) fn is_timeout(&self) -> bool {
        self.state == "EXPIRED" || matches!(self.kind, "ATTEMPT_TIMEOUT" | "IDLE_TIMEOUT")
    }

    /// Whether the call itself was invalid, so that nothing was executed.
    pub(crate) fn is_callers(&self) -> bool {
        matches!(self.kind, "UNKNOWN_TOOL" | "ARGUMENTS_INVALID")
    }
}
