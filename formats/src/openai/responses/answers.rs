//! Reads answers to the open calls of an earlier response and matches them with those calls.

use crate::turns::{Answer, Form, Turn};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use proto::convert::api;
use proto::v1::run_event::Event as Told;
use proto::{Reason, v1};
use run::Run;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::ResponseId;
use super::items::{self, Carrier};
use crate::openai::InputError;
use crate::openai::body::readable;
use crate::openai::calls::{Calls, Failure, parts};
use crate::openai::share::{SharedRun, View};

/// A request that answers the open calls of a response.
#[derive(Debug, Clone, PartialEq)]
pub struct Continued {
    pub previous: ResponseId,
    pub is_streamed: bool,
    pub is_background: bool,
    pub cancels_on_disconnect: bool,
    /// Whether to store the response. If unset, the setting of the previous responses applies.
    pub store: Option<bool>,
    /// With a pointer to each in the request.
    pub(super) outputs: Vec<(String, v1::ToolOutput)>,
    pub(super) approvals: Vec<(String, Approval)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Approval {
    request_id: String,
    approve: bool,
    reason: String,
}

type Answers = (Vec<(String, v1::ToolOutput)>, Vec<(String, Approval)>);

pub(super) fn answers(input: &RawValue) -> Result<Answers, InputError> {
    let Value::Array(items) = readable(input, "/input")? else {
        return Err(InputError::invalid("/input", "a list of items was expected: the outputs of the open calls"));
    };
    let (mut outputs, mut approvals) = (Vec::new(), Vec::new());
    for (nth, item) in items.iter().enumerate() {
        let at = format!("/input/{nth}");
        match item["type"].as_str().unwrap_or_default() {
            "mcp_approval_response" => {
                let text = |name: &str| item[name].as_str().map(str::to_owned);
                let request_id = text("approval_request_id")
                    .ok_or_else(|| InputError::invalid(format!("{at}/approval_request_id"), "it is missing"))?;
                let approve = item["approve"]
                    .as_bool()
                    .ok_or_else(|| InputError::invalid(format!("{at}/approve"), "true or false was expected"))?;
                approvals.push((at, Approval { request_id, approve, reason: text("reason").unwrap_or_default() }));
            }
            output if output.ends_with("_call_output") => outputs.push((at.clone(), tool_output(item, output, &at)?)),
            // Items of the previous turn that the client repeats.
            "message" | "reasoning" | "mcp_approval_request" => {}
            call if call.ends_with("_call") => {
                let is_answered = items.iter().any(|other| {
                    other["type"].as_str().is_some_and(|kind| kind.ends_with("_call_output"))
                        && !item["call_id"].is_null()
                        && other["call_id"] == item["call_id"]
                });
                if !is_answered {
                    let message = "new calls need a new response: leave `previous_response_id` out, and send the \
                                   outputs of the open calls in a request of their own";
                    return Err(InputError::unsupported(at, message));
                }
            }
            _ => {
                return Err(InputError::invalid(
                    format!("{at}/type"),
                    "an output of a call or an approval was expected",
                ));
            }
        }
    }
    if outputs.is_empty() && approvals.is_empty() {
        return Err(InputError::new(
            Reason::NoAnswers,
            "/input",
            "the request answers no call: send the outputs of the open calls",
        ));
    }
    Ok((outputs, approvals))
}

fn tool_output(item: &Value, kind: &str, at: &str) -> Result<v1::ToolOutput, InputError> {
    // For a local shell the reference names it `id`, and agents use `call_id`.
    let id = item["call_id"].as_str().or_else(|| item["id"].as_str().filter(|_| kind == "local_shell_call_output"));
    let call_id = id.ok_or_else(|| InputError::invalid(format!("{at}/call_id"), "it is missing"))?.to_owned();
    let output = &item["output"];
    let content = |body| v1::Content::from(body);
    let text = |text: &str| content(v1::content::Body::Text(text.to_owned()));
    let unexpected = || InputError::invalid(format!("{at}/output"), "a text or a list of parts was expected");
    if kind == "apply_patch_call_output" && item["status"] == "failed" {
        let error = output.as_str().filter(|text| !text.is_empty()).unwrap_or("the patch was not applied").to_owned();
        return Ok(v1::ToolOutput { call_id, result: Vec::new(), error });
    }
    let result = match output {
        Value::String(said) => vec![text(said)],
        Value::Null if kind == "apply_patch_call_output" => vec![text("")],
        Value::Array(runs) if kind == "shell_call_output" => {
            let said = runs.iter().flat_map(|run| [run["stdout"].as_str(), run["stderr"].as_str()]).flatten();
            let mut result: Vec<_> = said.filter(|said| !said.is_empty()).map(text).collect();
            let outcome = runs.iter().rev().map(|run| &run["outcome"]).find(|outcome| outcome["type"] != "timeout");
            if runs.iter().any(|run| run["outcome"]["type"] == "timeout") {
                let said: String =
                    result.iter().map(|part| Answer::new(parts(std::slice::from_ref(part))).text()).collect();
                return Ok(v1::ToolOutput {
                    call_id,
                    result: Vec::new(),
                    error: format!("{said}\nthe shell timed out"),
                });
            }
            if let Some(code) = outcome.and_then(|outcome| outcome["exit_code"].as_i64()) {
                result.push(content(v1::content::Body::Json(json!({ "exit_code": code }).to_string())));
            }
            result
        }
        Value::Array(parts) => parts.iter().map(part).collect::<Option<_>>().ok_or_else(unexpected)?,
        _ => return Err(unexpected()),
    };
    Ok(v1::ToolOutput { call_id, result, error: String::new() })
}

/// A part of an output: text, inline bytes, or a link that is passed on unchanged.
fn part(part: &Value) -> Option<v1::Content> {
    let here = |url: &Value| {
        let (head, data) = url.as_str()?.strip_prefix("data:")?.split_once(";base64,")?;
        let data = BASE64_STANDARD.decode(data).ok()?.into();
        Some(v1::content::Body::Data(v1::Data { media_type: head.to_owned(), data }))
    };
    let body = match part["type"].as_str()? {
        "input_text" | "output_text" | "text" => v1::content::Body::Text(part["text"].as_str()?.to_owned()),
        "input_image" => here(&part["image_url"]).unwrap_or_else(|| v1::content::Body::Json(part.to_string())),
        "input_file" => here(&part["file_data"]).unwrap_or_else(|| v1::content::Body::Json(part.to_string())),
        _ => return None,
    };
    Some(v1::Content::from(body))
}

impl Continued {
    fn has_output(&self, call: &str) -> bool {
        self.outputs.iter().any(|(_, output)| output.call_id == call)
    }

    fn decides(&self, call: &str, run: &Run) -> bool {
        let mut decided = self.approvals.iter().filter_map(|(_, approval)| approved(&approval.request_id, run));
        decided.any(|decided| decided.spec().id.as_str() == call)
    }

    /// The requests to the run that submit answers and decisions. `previous` is the answered response in its final
    /// state.
    ///
    /// Calls that the request does not answer go on waiting.
    ///
    /// # Errors
    /// An answered call is not open.
    pub fn requests(
        &self,
        run: &Run,
        previous: &Value,
    ) -> Result<(Option<v1::SubmitToolOutputsRequest>, Option<v1::DecideCallsRequest>), InputError> {
        let open = open_items(previous);
        if open.is_empty() {
            let message = format!("response {} has no open call to answer", self.previous);
            return Err(InputError::new(Reason::ResponseNotWaiting, "/previous_response_id", message));
        }
        let waits = |id: &str, is_approval: bool| {
            open.iter().any(|item| {
                let own = if item["type"] == "mcp_approval_request" { &item["id"] } else { &item["call_id"] };
                own == id && (item["type"] == "mcp_approval_request") == is_approval
            })
        };
        let unknown = |at: &str, id: &str| {
            let message = format!("{id:?} is not open in response {}", self.previous);
            Err(InputError::new(Reason::CallNotFound, at, message))
        };
        for (at, output) in &self.outputs {
            if !waits(&output.call_id, false) {
                return unknown(at, &output.call_id);
            }
        }
        let mut decisions = Vec::new();
        for (at, approval) in &self.approvals {
            if !waits(&approval.request_id, true) {
                return unknown(at, &approval.request_id);
            }
            let Some(call) = approved(&approval.request_id, run) else {
                return unknown(at, &approval.request_id);
            };
            let decision = match approval.approve {
                true => v1::call_decision::Decision::Approve(v1::CallApproval { arguments: None }),
                false => v1::call_decision::Decision::Reject(v1::CallRejection { reason: approval.reason.clone() }),
            };
            decisions.push(v1::CallDecision { call_id: call.spec().id.to_string(), decision: Some(decision) });
        }
        let run_id = run.id().to_string();
        let outputs: Vec<_> = self.outputs.iter().map(|(_, output)| output.clone()).collect();
        let submit = v1::SubmitToolOutputsRequest { run_id: run_id.clone(), outputs, all_required: false };
        let decide = v1::DecideCallsRequest { run_id, decisions };
        Ok((Some(submit).filter(|it| !it.outputs.is_empty()), Some(decide).filter(|it| !it.decisions.is_empty())))
    }
}

/// Finds the part of a run in which the answers of a request were given: the one that its answer is. It depends on
/// the log alone, so a repeated request gets the same. Its input is the output of the run, or of the section of the
/// request, under the policy `INTERLEAVED`, because then an answer is not held back by the floor.
#[derive(Debug)]
pub struct Answered<'a> {
    continued: &'a Continued,
    view: View,
    /// The number of the current part.
    part: u32,
    /// The part of the latest of the answers, and how many were read.
    found: Option<u32>,
    count: usize,
}

impl<'a> Answered<'a> {
    #[must_use]
    pub fn new(continued: &'a Continued) -> Self {
        Self { continued, view: View::new(continued.previous.of()), part: 0, found: None, count: 0 }
    }

    /// Applies the next event. `run` must include at least this event.
    pub fn take(&mut self, event: &v1::RunEvent, run: &Run) {
        if let Some(shown) = self.view.take(event, run) {
            let is_answer = match &shown.event {
                Some(Told::RunStatusChanged(changed)) => {
                    self.part += u32::from(changed.status() == v1::RunStatus::RequiresAction);
                    false
                }
                Some(Told::CallEnded(ended)) => self.continued.has_output(&ended.call_id),
                Some(Told::CallApproved(decided)) => self.continued.decides(&decided.call_id, run),
                Some(Told::CallRejected(decided)) => self.continued.decides(&decided.call_id, run),
                _ => false,
            };
            if is_answer {
                (self.found, self.count) = (Some(self.part), self.count + 1);
            }
        }
    }

    /// The part, if all answers were read.
    #[must_use]
    pub fn part(&self) -> Option<u32> {
        let all = self.continued.outputs.len() + self.continued.approvals.len();
        self.found.filter(|_| self.count >= all)
    }
}

/// The call whose approval was requested under this id.
fn approved<'a>(request_id: &str, run: &'a Run) -> Option<&'a run::Call> {
    run.calls().get(request_id.rsplit('_').next()?.parse::<usize>().ok()?)
}

/// The items of a response that wait for the client.
fn open_items(response: &Value) -> Vec<&Value> {
    let output: Vec<&Value> = response["output"].as_array().into_iter().flatten().collect();
    let client = [
        "function_call",
        "custom_tool_call",
        "local_shell_call",
        "shell_call",
        "apply_patch_call",
        "mcp_approval_request",
    ];
    let is_open = |item: &&&Value| {
        let asks_approval = item["type"] == "mcp_approval_request";
        let is_answer = |other: &&Value| {
            let kind = other["type"].as_str().unwrap_or_default();
            let answers = if asks_approval { kind != "mcp_approval_request" } else { kind.ends_with("_call_output") };
            answers && other["call_id"] == item["call_id"]
        };
        let is_asked = item["type"].as_str().is_some_and(|kind| client.contains(&kind));
        is_asked && !output.iter().any(is_answer)
    };
    output.iter().filter(is_open).copied().collect()
}

/// The item that answers a client's call, in the form the client would have sent.
pub(super) fn answer_item(item: &Value, outcome: &v1::CallOutcome) -> Option<Value> {
    let turn = Turn::parse(item.to_string().as_bytes(), Some(Form::Responses)).ok()?;
    let failure = Failure::of(outcome);
    let answer = match &failure {
        Some(failure) => Answer::error(&failure.message),
        None => Answer::new(parts(&outcome.result)),
    };
    let answered = turn.answers(|_| Some(answer.clone()));
    serde_json::from_str(answered.first()?.get()).ok()
}

/// The input items of a response: for the first one the calls, for each later one the answers to the previous response.
#[must_use]
pub fn input_items(of: SharedRun, run: &Run, previous: Option<&Value>) -> Vec<Value> {
    let Some(previous) = previous else {
        let opened = of.calls(run).map(|call| v1::OpenedCall {
            call_id: call.spec().id.to_string(),
            tool: call.spec().tool.to_string(),
            waits_for_client: false,
            awaits_approval: false,
            hidden: false,
            asked_by_call_id: String::new(),
            not_before: None,
        });
        let mut calls = Calls::default();
        calls.accept(&opened.collect::<Vec<_>>(), run);
        let given = calls.all.iter().map(|call| {
            let of = |carrier| items::item(run.id(), carrier, call, false);
            match Carrier::of(call) {
                carrier @ (Carrier::Custom | Carrier::LocalShell | Carrier::ClientShell | Carrier::ApplyPatch) => {
                    of(carrier)
                }
                _ => of(Carrier::Function),
            }
        });
        return given.collect();
    };
    let mut answered = Vec::new();
    for item in open_items(previous) {
        let call = item["call_id"].as_str().and_then(|id| run.find(&id.parse().ok()?));
        let Some(call) = call.map(api::call) else { continue };
        if item["type"] == "mcp_approval_request" {
            let Some(decided) = call.decided else { continue };
            answered.push(json!({
                "type": "mcp_approval_response",
                "id": item["id"].as_str().map(|id| id.replacen("mcpr_", "mcpa_", 1)),
                "approval_request_id": item["id"],
                "approve": decided.approved,
                "reason": decided.reason,
            }));
        } else if let Some(mut output) = call.outcome.as_ref().and_then(|outcome| answer_item(item, outcome)) {
            output["id"] = item["id"].as_str().map(|id| format!("out_{id}")).into();
            answered.push(output);
        }
    }
    answered
}
