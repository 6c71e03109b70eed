//! `POST /v1/tool_calls:batch`: an assistant turn as a vendor's model said it goes in, the messages that answer it come out.
//! In between is a run like any other.

mod heard;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use bytes::Bytes;
use http::StatusCode;
use proto::convert::api;
use proto::export::{self, Format};
use proto::v1;
use proto::v1::run_event::Event;
use run::{FloorPolicy, Run, RunStatus, ToolName, WithoutWorker};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::time::Instant;
use vendor::{Answer, Arguments, Form, PassedOver, Reason, Turn};

use self::heard::Heard;
use super::ask::Ask;
use super::problem::{Place, Problem};
use super::routes::text_response;
use super::sse;
use crate::accept::Asked;
use crate::custom::CustomTools;
use crate::door::output::{HEARTBEAT, Piece};
use crate::door::{Door, Fault};
use crate::runs::{NewRun, Refusal, Runs};
use crate::watch::{Reader, WatchError};

/// How long a client waits that does not say.
const WAIT: Duration = Duration::from_secs(30);
/// What most proxies let pass; whoever wants to wait longer sends the request again.
const WAIT_MAX: Duration = Duration::from_secs(300);
/// No call's output is kept back by another's: what has ended when the time is up is answered.
const FLOOR: FloorPolicy = FloorPolicy::Interleaved;
/// How long a run that is stored may take to be seen.
const OPENING_MAX: Duration = Duration::from_secs(10);

pub(super) async fn batch(door: Door, ask: Ask) -> Result<Response, Problem> {
    let terms = Terms::read(&ask)?;
    let turn = Turn::parse(&ask.body, terms.form).map_err(unreadable)?;
    let (calls, refused) = asked(&turn, &door.runs)?;
    let turn = Answering { turn, refused };
    if calls.is_empty() {
        return Ok(turn.response(None));
    }
    let new = terms.run(calls);
    let reader = door.runs.execute(new, FLOOR).await.map_err(|refusal| ask.problem(refusal.into()))?;
    let mut waiting = Waiting { door, reader, until: Instant::now() + terms.wait, heard: Heard::default(), acts: None };
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

/// The run's output as it comes, then the messages as an event of their own.
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

/// What the query and the headers say of the run.
struct Terms {
    form: Option<Form>,
    wait: Duration,
    timeout: Option<Duration>,
    tenant: Option<run::TenantId>,
    /// Whether somebody confirms calls of dangerous tools.
    confirm: Option<bool>,
    store: bool,
    request_id: Option<run::RequestId>,
}

impl Terms {
    fn read(ask: &Ask) -> Result<Self, Problem> {
        let (form, timeout, tenant, confirm, request_id) = (None, None, None, None, None);
        let mut terms = Self { form, wait: WAIT, timeout, tenant, confirm, store: true, request_id };
        for (name, value) in &ask.query {
            let wrong = |why: String| Problem::malformed(Place::Parameter(name.clone()), format!("{name}: {why}"));
            match name.as_str() {
                // The name under which the same vendor's definitions of tools are exported.
                "format" if value == "openai" => terms.form = Some(Form::Responses),
                "format" => {
                    terms.form = Some(value.parse().map_err(|error: vendor::UnknownName| wrong(error.to_string()))?)
                }
                "wait" => {
                    let wait = duration(value).filter(|wait| *wait <= WAIT_MAX);
                    let reason =
                        || wrong(format!("{value:?} is no time of at most {} s, such as 30s", WAIT_MAX.as_secs()));
                    terms.wait = wait.ok_or_else(reason)?;
                }
                "timeout" => {
                    let timeout = duration(value).filter(|timeout| !timeout.is_zero());
                    terms.timeout = Some(timeout.ok_or_else(|| wrong(format!("{value:?} is no time, such as 90s")))?);
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
                    let known = "format, wait, timeout, tenant, confirmation, store";
                    return Err(wrong(format!("is not known here: {known} are")));
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

    fn run(&self, calls: Vec<Asked>) -> NewRun {
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

fn unreadable(error: vendor::Error) -> Problem {
    use vendor::Problem as Unread;
    let (status, reason) = match &error.problem {
        Unread::TooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "PAYLOAD_TOO_LARGE"),
        Unread::UnknownForm { .. } => (StatusCode::BAD_REQUEST, "FORM_UNKNOWN"),
        Unread::AmbiguousForm { .. } => (StatusCode::BAD_REQUEST, "FORM_AMBIGUOUS"),
        Unread::OtherForm { .. } => (StatusCode::BAD_REQUEST, "FORM_MISMATCH"),
        Unread::DuplicateId { .. } => (StatusCode::BAD_REQUEST, "DUPLICATE_CALL_ID"),
        _ => (StatusCode::BAD_REQUEST, "MALFORMED"),
    };
    let detail = error.to_string();
    Problem::at(status, reason, Place::Body(error.pointer), detail)
}

/// What is to be executed, and what the others are told, by the ids of their calls.
type Sorted = (Vec<Asked>, HashMap<String, String>);

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
        calls.push(Asked {
            id: Some(call.id.parse().map_err(malformed)?),
            tool,
            arguments: arguments.into(),
            metadata: std::collections::BTreeMap::new(),
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

/// The tool that the model means: by its own name, or by the one that it has in the vendor's form.
fn tool(call: &vendor::Call, form: Form, runs: &Runs) -> Option<ToolName> {
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
    export::meant(listed, format, &call.name).and_then(|tool| tool.parse().ok()).or(own)
}

/// A run whose client waits for it.
struct Waiting {
    door: Door,
    reader: Box<Reader>,
    until: Instant,
    heard: Heard,
    /// The run as it stands, while somebody is to act and nothing else is outstanding.
    acts: Option<Arc<Run>>,
}

enum Word {
    Events(Vec<v1::RunEvent>),
    /// A while passed, and nothing happened.
    Nothing,
    /// There is nothing more to wait for: the run ended, somebody is to act, or the time is up.
    Settled(Arc<Run>),
}

impl Waiting {
    async fn next(&mut self) -> Result<Word, Fault> {
        // What has ended and was not heard of yet is in the log already.
        let is_heard = |run: &Arc<Run>| {
            let mut ended = run.calls().iter().filter(|call| call.outcome().is_some());
            ended.all(|call| self.heard.has_ended(call.spec().id.as_str()))
        };
        if let Some(run) = self.acts.take_if(|run| is_heard(run)) {
            return Ok(Word::Settled(run));
        }
        let now = Instant::now();
        let is_opened = self.reader.run().opened_at().is_some();
        if is_opened && (self.until <= now || self.door.stop.is_cancelled()) {
            return Ok(self.as_it_stands());
        }
        // The run is stored, so it opens; how it stands cannot be told before.
        let until = if is_opened { self.until.min(now + HEARTBEAT) } else { now + OPENING_MAX };
        let events = tokio::select! {
            biased;
            events = self.reader.next() => events,
            () = self.door.stop.cancelled(), if is_opened => return Ok(self.as_it_stands()),
            () = tokio::time::sleep_until(until) => {
                let (run, reason) = (self.reader.run().id(), "the log does not show its opening yet".to_owned());
                return if is_opened { Ok(Word::Nothing) } else { Err(Refusal::Unconfirmed { run, reason }.into()) };
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
                    // The reader may be far behind: somebody may have acted since.
                    let id = self.reader.run().id();
                    let run = self.door.runs.known(id).await.map_err(|refusal| refusal.of_stored(id))?.run;
                    self.acts = (run.status() == RunStatus::RequiresAction).then_some(run);
                }
                Ok(Word::Events(events))
            }
            Ok(None) => Ok(self.as_it_stands()),
            Err(WatchError::Stopped(_)) if is_opened => Ok(self.as_it_stands()),
            Err(error) => Err(self.reader.broken(error)),
        }
    }

    fn as_it_stands(&self) -> Word {
        Word::Settled(Arc::new(self.reader.run().clone()))
    }
}

/// A turn on its way to its answer.
struct Answering {
    turn: Turn,
    /// What calls are told that were not executed.
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
    /// The messages are the answer: the model need not be asked again.
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

    /// The messages that answer the turn as far as its calls have ended, and what is still open.
    fn json(&self, run: Option<(&Run, &Heard)>) -> String {
        let messages = self.turn.answers(|call| match (self.refused.get(&call.id), run) {
            (Some(why), _) => Some(Answer::error(why)),
            (None, Some((_, heard))) => heard.answer(&call.id),
            (None, None) => None,
        });
        let calls = run.iter().flat_map(|(run, heard)| run.calls().iter().map(move |call| (call, heard)));
        let open = calls.filter(|(call, heard)| !heard.has_ended(call.spec().id.as_str())).map(|(call, _)| {
            RawValue::from_string(proto::json::write(&api::call(call))).expect("it was written as JSON")
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

    /// Of a turn of which something was not executed here the model has more to hear.
    fn returns_direct(&self, run: Option<&Run>) -> bool {
        let is_whole = self.refused.is_empty() && self.turn.passed_over.is_empty();
        is_whole && run.is_some_and(Run::returns_direct)
    }
}

fn passed(passed: &PassedOver) -> Passed<'_> {
    let reason = match passed.reason {
        Reason::ExecutedByVendor => "executed_by_vendor",
        Reason::Answered => "answered",
        Reason::NeedsApproval => "needs_approval",
        Reason::Unsupported => "unsupported",
    };
    Passed { pointer: &passed.pointer, kind: &passed.kind, reason }
}

/// Its part of the document.
pub(super) fn described() -> Value {
    let query = |name: &str, description: &str, schema: Value| json!({ "name": name, "in": "query", "description": description, "schema": schema });
    let formats: Vec<&str> = Form::ALL.iter().map(|form| form.as_str()).collect();
    let named = [&formats[..], &["openai"]].concat();
    let answer = json!({
        "type": "object",
        "required": ["format", "complete", "return_direct", "messages", "open_calls", "passed_over"],
        "properties": {
            "format": { "type": "string", "enum": formats, "description": "The form in which the turn was read." },
            "run_id": { "type": "string", "description": "The run; not there where nothing had to be executed." },
            "status": { "$ref": "#/components/schemas/RunStatus" },
            "complete": { "type": "boolean", "description": "Every call is answered." },
            "return_direct": { "type": "boolean", "description": "The tools of all calls return their results directly, and all completed: what the messages hold is the answer, and the model need not be asked again." },
            "messages": { "type": "array", "items": {}, "description": "What the vendor wants next, in the order of the calls." },
            "open_calls": {
                "type": "array", "items": { "$ref": "#/components/schemas/Call" },
                "description": "Calls that have not ended. Those that wait for the client are answered at the run; then the same request, with the same Idempotency-Key, gives all messages.",
            },
            "passed_over": {
                "type": "array", "description": "What the turn holds that is not for us to answer.",
                "items": { "type": "object", "properties": {
                    "pointer": { "type": "string", "description": "A JSON pointer into the turn." },
                    "kind": { "type": "string", "description": "What the vendor calls it." },
                    "reason": { "type": "string", "enum": ["executed_by_vendor", "answered", "needs_approval", "unsupported"] },
                } },
            },
        },
    });
    json!({
        "operationId": "BatchToolCalls",
        "description": "Executes the calls of an assistant turn and gives the messages that answer it, in the form of the same vendor. A message has what its call said, at most 256 KiB of it, and then its result or error. What a form cannot carry (errors, images, structure) is told in words. A client that accepts `text/event-stream` sees the output of the run as it comes; the answer follows as an event named `messages`.",
        "parameters": [
            query("format", "The form of the turn; recognised when not said. `openai` is another name of `openai-responses`.", json!({ "type": "string", "enum": named })),
            query("wait", "How long to wait for calls to end, as `30s`, `500ms`, `2m`: 30 s when not said, 300 s at most.", json!({ "type": "string" })),
            query("timeout", "By when the run has ended: 24 h when not said.", json!({ "type": "string" })),
            query("tenant", "For whom the run is.", json!({ "type": "string" })),
            query("confirmation", "Whether calls of tools with the permission EXTERNAL await approval: as the deployment has it when not said.", json!({ "type": "string", "enum": ["ask", "none"] })),
            query("store", "Keep what happened, as `store` of a CreateRunRequest; true when not said.", json!({ "type": "boolean" })),
            { "name": "Idempotency-Key", "in": "header", "description": "The `request_id` of the run: the same request with the same key waits for the same run.", "schema": { "type": "string" } },
        ],
        "requestBody": {
            "required": true,
            "description": "The turn as the vendor gave it: a whole response, its message, or the list of its calls.",
            "content": { "application/json": { "schema": {} } },
        },
        "responses": { "200": { "description": "The answer.", "content": {
            "application/json": { "schema": answer },
            "text/event-stream": { "description": "RunEvents in the order of FLOOR_POLICY_INTERLEAVED, then the answer as an event named `messages`." },
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
