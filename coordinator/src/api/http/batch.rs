//! `POST /v1/tool_calls:batch`: takes an assistant turn in the format of a model vendor, and returns the messages that
//! answer it. The calls are executed as an ordinary run.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use bytes::Bytes;
use formats::heard::Heard;
use formats::tools::{self, Format};
use formats::turns::{Answer, Arguments, Form, Reason, SkippedItem, Turn};
use proto::convert::api;
use proto::v1;
use proto::v1::run_event::Event;
use run::{FloorPolicy, Run, RunStatus, Timestamp, ToolName, WithoutWorker};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::ask::Ask;
use super::routes::text_response;
use super::sse;
use crate::admission::accept::RequestedCall;
use crate::admission::custom::CustomTools;
use crate::admission::error::RequestError;
use crate::api::output::{HEARTBEAT, Piece, broken};
use crate::api::problem::{Place, Problem};
use crate::api::{Api, ApiError};
use crate::readers::{Reader, WatchError};
use crate::runs::{NewRun, Runs};

/// Default waiting time.
const WAIT: Duration = Duration::from_secs(30);
/// Longest waiting time, which most proxies allow; a client that wants to wait longer repeats the request.
const WAIT_MAX: Duration = Duration::from_secs(300);
/// No call's output is held back by another's: the calls that have ended when the time is up are answered.
const FLOOR: FloorPolicy = FloorPolicy::Interleaved;
/// How long a stored run may take to appear.
const OPENING_MAX: Duration = Duration::from_secs(10);

pub(super) async fn batch(api: Api, ask: Ask) -> Result<Response, Problem> {
    let terms = Terms::read(&ask)?;
    let turn = Turn::parse(&ask.body, terms.form).map_err(unreadable)?;
    let (calls, refused) = asked(&turn, &api.runs)?;
    let turn = Answering { turn, refused };
    if calls.is_empty() {
        return Ok(turn.response(None));
    }
    let new = terms.run(calls);
    let reader = api.runs.execute(new, FLOOR).await.map_err(|refusal| ask.problem(refusal.into()))?;
    let mut waiting = Waiting { api, reader, until: Instant::now() + terms.wait, heard: Heard::default(), acts: None };
    if ask.wants_events() {
        return Ok(events(turn, waiting));
    }
    let run = loop {
        match waiting.next().await.map_err(|fault| ask.problem(fault))? {
            Word::Events(_) | Word::Nothing => {}
            Word::Settled(run) => break run,
        }
    };
    Ok(turn.response(Some((&run, &waiting.heard))))
}

/// The run's output as it is produced, then the messages as an event of their own.
fn events(turn: Answering, waiting: Waiting) -> Response {
    let stream = futures::stream::unfold(Some((turn, waiting)), async |state| {
        let (turn, mut waiting) = state?;
        match waiting.next().await {
            Ok(Word::Events(events)) => {
                Some((sse::text(Ok(Piece { events, ..Piece::default() })), Some((turn, waiting))))
            }
            Ok(Word::Nothing) => Some((Bytes::from_static(sse::HEARTBEAT), Some((turn, waiting)))),
            Ok(Word::Settled(run)) => {
                let mut text = Vec::new();
                sse::event(&mut text, None, Some("messages"), &turn.json(Some((&run, &waiting.heard))));
                Some((text.into(), None))
            }
            Err(fault) => Some((sse::text(Err(fault)), None)),
        }
    });
    sse::response(stream)
}

/// The options in the query and the headers.
struct Terms {
    form: Option<Form>,
    wait: Duration,
    timeout: Option<Duration>,
    /// No call is executed before this time.
    not_before: Option<Timestamp>,
    tenant: Option<run::TenantId>,
    /// Whether calls of dangerous tools await approval.
    confirm: Option<bool>,
    store: bool,
    request_id: Option<run::RequestId>,
}

impl Terms {
    fn read(ask: &Ask) -> Result<Self, Problem> {
        let (form, timeout, tenant, confirm, request_id) = (None, None, None, None, None);
        let not_before = None;
        let mut terms = Self { form, wait: WAIT, timeout, not_before, tenant, confirm, store: true, request_id };
        for (name, value) in &ask.query {
            let wrong = |why: String| Problem::malformed(Place::Parameter(name.clone()), format!("{name}: {why}"));
            match name.as_str() {
                // The name under which the same vendor's tool definitions are exported.
                "format" if value == "openai" => terms.form = Some(Form::Responses),
                "format" => {
                    terms.form =
                        Some(value.parse().map_err(|error: formats::turns::UnknownName| wrong(error.to_string()))?)
                }
                "wait" => {
                    let wait = duration(value).filter(|wait| *wait <= WAIT_MAX);
                    let reason = || {
                        wrong(format!("{value:?} is not a duration of at most {} s, such as 30s", WAIT_MAX.as_secs()))
                    };
                    terms.wait = wait.ok_or_else(reason)?;
                }
                "timeout" => {
                    let timeout = duration(value).filter(|timeout| !timeout.is_zero());
                    terms.timeout = Some(timeout.ok_or_else(|| {
                        wrong(format!(
                            "{value:?} is not a duration, such as \
                        90s"
                        ))
                    })?);
                }
                "not_before" => {
                    let time = value.parse().ok().and_then(api::time_in);
                    let reason = || wrong(format!("{value:?} is not a time, such as 2030-01-01T00:00:00Z"));
                    terms.not_before = Some(time.ok_or_else(reason)?);
                }
                "tenant" => {
                    terms.tenant = Some(value.parse().map_err(|error: run::InvalidId| wrong(error.to_string()))?);
                }
                "confirmation" => {
                    terms.confirm = match value.as_str() {
                        "none" => Some(false),
                        "ask" => Some(true),
                        _ => return Err(wrong(format!("{value:?} is neither none nor ask"))),
                    };
                }
                "store" => {
                    terms.store = value.parse().map_err(|_| wrong(format!("{value:?} is neither true nor false")))?;
                }
                _ => {
                    let known = "format, wait, timeout, not_before, tenant, confirmation, store";
                    return Err(wrong(format!("unknown parameter; known parameters: {known}")));
                }
            }
        }
        let key = ask.request_id(String::new())?;
        if !key.is_empty() {
            let malformed =
                |error: run::InvalidId| Problem::malformed(Place::Header("idempotency-key"), error.to_string());
            terms.request_id = Some(key.parse().map_err(malformed)?);
        }
        Ok(terms)
    }

    fn run(&self, mut calls: Vec<RequestedCall>) -> NewRun {
        calls.iter_mut().for_each(|call| call.not_before = self.not_before);
        NewRun {
            calls,
            keep_open: false,
            timeout: self.timeout,
            fail_fast: false,
            client_only: false,
            custom: CustomTools::new(),
            tenant: self.tenant.clone(),
            tools: Vec::new(),
            files: Vec::new(),
            rules: run::Rules { confirm: self.confirm, ..run::Rules::default() },
            context: run::Fields::default(),
            store: self.store,
            request_id: self.request_id.clone(),
        }
    }
}

/// `1.5s`, `500ms`, `2m`.
fn duration(text: &str) -> Option<Duration> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit_s = match &text[number.len()..] {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(number.parse::<f64>().ok()? * unit_s).ok()
}

fn unreadable(error: formats::turns::Error) -> Problem {
    let (reason, detail) = (error.problem.reason(), error.to_string());
    Problem::at(reason, Place::Body(error.pointer), detail)
}

/// The calls to execute, and the errors of the others by the ids of their calls.
type Sorted = (Vec<RequestedCall>, HashMap<String, String>);

fn asked(turn: &Turn, runs: &Runs) -> Result<Sorted, Problem> {
    let (mut calls, mut refused) = (Vec::new(), HashMap::new());
    for call in &turn.calls {
        let arguments = match &call.arguments {
            Arguments::Json(arguments) => arguments.clone(),
            Arguments::Unreadable { why, .. } => {
                refused.insert(call.id.clone(), why.to_string());
                continue;
            }
        };
        let Some(tool) = tool(call, turn.form, runs) else {
            refused.insert(call.id.clone(), format!("there is no tool {:?}", call.name));
            continue;
        };
        let malformed =
            |error: run::InvalidId| Problem::malformed(Place::Body(call.pointer.clone()), error.to_string());
        calls.push(RequestedCall {
            id: Some(call.id.parse().map_err(malformed)?),
            tool,
            arguments: arguments.into(),
            metadata: std::collections::BTreeMap::new(),
            not_before: None,
            timeout: None,
            queue_timeout: None,
            without_worker: WithoutWorker::Wait,
            concurrency: None,
            approval: None,
            context: run::Fields::default(),
            files: Vec::new(),
            refusal: None,
            unlisted: None,
        });
    }
    Ok((calls, refused))
}

/// The tool that the model named: by its own name, or by its name in the vendor's form.
fn tool(call: &formats::turns::Call, form: Form, runs: &Runs) -> Option<ToolName> {
    let registry = runs.registry.borrow();
    let name = match &call.namespace {
        Some(namespace) => format!("{namespace}.{}", call.name),
        None => call.name.clone(),
    };
    let own: Option<ToolName> = name.parse().ok();
    if own.as_ref().is_some_and(|own| registry.catalog.find(own).is_some()) {
        return own;
    }
    let format = match form {
        Form::Chat => Format::OpenAiChat,
        Form::Responses => Format::OpenAi,
        Form::Anthropic => Format::Anthropic,
        Form::Gemini => Format::Gemini,
        Form::Mcp => Format::Mcp,
    };
    let shows = runs.callers.shows(&runs.caller);
    let listed = registry.catalog_of(runs.caller.tenant()).after(None).iter();
    let listed = listed
        .filter(|entry| !entry.hosted.manifest.result_use.hidden && shows(entry) && registry.is_available(entry))
        .map(|entry| entry.name.as_str());
    tools::meant(listed, format, &call.name).and_then(|tool| tool.parse().ok()).or(own)
}

/// A run whose client waits for it.
struct Waiting {
    api: Api,
    reader: Box<Reader>,
    until: Instant,
    heard: Heard,
    /// The run's state, while a client or an approver must act and nothing else is outstanding.
    acts: Option<Arc<Run>>,
}

enum Word {
    Events(Vec<v1::RunEvent>),
    /// The heartbeat's time passed without an event.
    Nothing,
    /// Waiting is over: the run ended, a client or an approver must act, or the time is up.
    Settled(Arc<Run>),
}

impl Waiting {
    async fn next(&mut self) -> Result<Word, ApiError> {
        // The log may have ended calls whose events were not read yet.
        let is_heard = |run: &Arc<Run>| {
            let mut ended = run.calls().iter().filter(|call| call.outcome().is_some());
            ended.all(|call| self.heard.has_ended(call.spec().id.as_str()))
        };
        if let Some(run) = self.acts.take_if(|run| is_heard(run)) {
            return Ok(Word::Settled(run));
        }
        let now = Instant::now();
        let is_opened = self.reader.run().opened_at().is_some();
        if is_opened && (self.until <= now || self.api.stop.is_cancelled()) {
            return Ok(self.as_it_stands());
        }
        // The run is stored, so it will be opened; its state is not known before.
        let until = if is_opened { self.until.min(now + HEARTBEAT) } else { now + OPENING_MAX };
        let events = tokio::select! {
            biased;
            events = self.reader.next() => events,
            () = self.api.stop.cancelled(), if is_opened => return Ok(self.as_it_stands()),
            () = tokio::time::sleep_until(until) => {
                let (run, reason) = (self.reader.run().id(), "the log does not show its opening yet".to_owned());
                if is_opened {
                    return Ok(Word::Nothing);
                }
                return Err(RequestError::Unconfirmed { run, reason }.into());
            }
        };
        match events {
            Ok(Some(events)) => {
                events.iter().for_each(|event| self.heard.take(event));
                let asks = |event: &v1::RunEvent| match &event.event {
                    Some(Event::RunStatusChanged(changed)) => changed.status() == v1::RunStatus::RequiresAction,
                    _ => false,
                };
                if events.iter().any(asks) {
                    // The reader may be far behind, so a client may have acted since.
                    let id = self.reader.run().id();
                    let run = self.api.runs.known(id).await.map_err(|refusal| refusal.of_stored(id))?.run;
                    self.acts = (run.status() == RunStatus::RequiresAction).then_some(run);
                }
                Ok(Word::Events(events))
            }
            Ok(None) => Ok(self.as_it_stands()),
            Err(WatchError::Stopped(_)) if is_opened => Ok(self.as_it_stands()),
            Err(error) => Err(broken(&self.reader, error)),
        }
    }

    fn as_it_stands(&self) -> Word {
        Word::Settled(Arc::new(self.reader.run().clone()))
    }
}

/// A turn and its answer so far.
struct Answering {
    turn: Turn,
    /// Errors of calls that were not executed.
    refused: HashMap<String, String>,
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
    /// The messages are the final answer: the model need not be called again.
    return_direct: bool,
    messages: Vec<Box<RawValue>>,
    open_calls: Vec<Box<RawValue>>,
    passed_over: Vec<Passed<'a>>,
}

#[derive(Serialize)]
struct Passed<'a> {
    pointer: &'a str,
    kind: &'a str,
    reason: &'static str,
}

impl Answering {
    fn response(&self, run: Option<(&Run, &Heard)>) -> Response {
        text_response(self.json(run))
    }

    /// The messages that answer the turn, of the calls that have ended, and the open calls.
    fn json(&self, run: Option<(&Run, &Heard)>) -> String {
        let messages = self.turn.answers(|call| match (self.refused.get(&call.id), run) {
            (Some(why), _) => Some(Answer::error(why)),
            (None, Some((_, heard))) => heard.answer(&call.id),
            (None, None) => None,
        });
        let calls = run.iter().flat_map(|(run, heard)| run.calls().iter().map(move |call| (*run, call, heard)));
        let open = calls.filter(|(_, call, heard)| !heard.has_ended(call.spec().id.as_str())).map(|(run, call, _)| {
            RawValue::from_string(proto::json::write(&api::call_in(run, call))).expect("it was written as JSON")
        });
        let open: Vec<_> = open.collect();
        let answered = Answered {
            format: self.turn.form.as_str(),
            run_id: run.map(|(run, _)| run.id().to_string()),
            status: run.map(|(run, _)| api::status(run.status()).as_str_name()),
            complete: open.is_empty(),
            return_direct: self.returns_direct(run.map(|(run, _)| run)),
            messages,
            open_calls: open,
            passed_over: self.turn.passed_over.iter().map(passed).collect(),
        };
        serde_json::to_string(&answered).expect("texts and JSON always serialize")
    }

    /// If some call of the turn was not executed here, the model must be called again.
    fn returns_direct(&self, run: Option<&Run>) -> bool {
        let is_whole = self.refused.is_empty() && self.turn.passed_over.is_empty();
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

/// The batch endpoint's part of the document.
pub(super) fn described() -> Value {
    let query = |name: &str, description: &str, schema: Value| {
        json!({ "name": name, "in": "query",
        "description": description, "schema": schema })
    };
    let formats: Vec<&str> = Form::ALL.iter().map(|form| form.as_str()).collect();
    let named = [&formats[..], &["openai"]].concat();
    let answer = json!({
        "type": "object",
        "required": ["format", "complete", "return_direct", "messages", "open_calls", "passed_over"],
        "properties": {
            "format": { "type": "string", "enum": formats, "description": "The form in which the turn was parsed." },
            "run_id": { "type": "string", "description": "The run; missing if no call had to be executed." },
            "status": { "$ref": "#/components/schemas/RunStatus" },
            "complete": { "type": "boolean", "description": "Every call is answered." },
            "return_direct": { "type": "boolean", "description": "The tools of all calls return their results \
                directly, and all calls completed: the messages are the final answer, and the model need not be \
                called again." },
            "messages": { "type": "array", "items": {}, "description": "What the vendor's API expects next, in the \
                order of the calls." },
            "open_calls": {
                "type": "array", "items": { "$ref": "#/components/schemas/Call" },
                "description": "Calls that have not ended. Client calls are answered at the run; then the same \
                    request, with the same Idempotency-Key, returns all messages.",
            },
            "passed_over": {
                "type": "array", "description": "Parts of the turn that are not answered by this service.",
                "items": { "type": "object", "properties": {
                    "pointer": { "type": "string", "description": "A JSON pointer into the turn." },
                    "kind": { "type": "string", "description": "The vendor's name for the part." },
                    "reason": { "type": "string", "enum": ["executed_by_vendor", "answered", "needs_approval",
                        "unsupported"] },
                } },
            },
        },
    });
    json!({
        "operationId": "BatchToolCalls",
        "description": "Executes the calls of an assistant turn and returns the messages that answer it, in the \
            form of the same vendor. A message has the output of its call, at most 256 KiB of it, and then its \
            result or error. What a form cannot carry (errors, images, structure) is described in text. A client \
            that accepts `text/event-stream` receives the output of the run as it is produced; the answer follows \
            as an event named `messages`.",
        "parameters": [
            query("format", "The form of the turn; detected if not set. `openai` is another name of \
                `openai-responses`.", json!({ "type": "string", "enum": named })),
            query("wait", "How long to wait for calls to end, as `30s`, `500ms`, `2m`: 30 s if not set, 300 s at \
                most.", json!({ "type": "string" })),
            query("timeout", "The time after which the run expires: 24 h if not set.", json!({ "type": "string" })),
            query("not_before", "No call begins before this time.", json!({ "type": "string", "format": "date-time" })),
            query("tenant", "The tenant of the run.", json!({ "type": "string" })),
            query("confirmation", "Whether calls of tools with the permission EXTERNAL await approval: as the \
                deployment is configured if not set.", json!({ "type": "string", "enum": ["ask", "none"] })),
            query("store", "As `store` of a CreateRunRequest; true if not set.", json!({ "type": "boolean" })),
            { "name": "Idempotency-Key", "in": "header", "description": "The `request_id` of the run: the same \
                request with the same key waits for the same run.", "schema": { "type": "string" } },
        ],
        "requestBody": {
            "required": true,
            "description": "The turn as the vendor returned it: a whole response, its message, or the list of its \
                calls.",
            "content": { "application/json": { "schema": {} } },
        },
        "responses": { "200": { "description": "The answer.", "content": {
            "application/json": { "schema": answer },
            "text/event-stream": { "description":
                "RunEvents in the order of FLOOR_POLICY_INTERLEAVED, then the answer as an event named `messages`." },
        } } },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_number_and_its_unit() {
        assert_eq!(duration("30s"), Some(Duration::from_secs(30)));
        assert_eq!(duration("1.5s"), Some(Duration::from_millis(1500)));
        assert_eq!(duration("250ms"), Some(Duration::from_millis(250)));
        assert_eq!(duration("2m"), Some(Duration::from_secs(120)));
        for text in ["", "s", "30", "-1s", "1e400s", "NaNs", "1 s", "1h", "1ss", "٣s"] {
            assert_eq!(duration(text), None, "{text:?}");
        }
    }
}
