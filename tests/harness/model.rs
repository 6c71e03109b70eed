//! A scripted model behind the two APIs that agents use: OpenAI's Chat Completions and Anthropic's Messages, streamed
//! and whole. What it says depends on the user's message and on how often it spoke in the conversation. It counts what
//! it was asked, and can be held before a turn.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use bytes::Bytes;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;

use crate::Fixture;

/// The key that the model wants. A test gives it to workers by a file.
pub const MODEL_KEY: &str = "sk-scripted-0123456789";

/// What the model says in one turn.
#[derive(Debug, Clone)]
pub enum Line {
    /// A text, and calls of tools with their arguments.
    Says(String, Vec<(String, Value)>),
    /// An error with this status, as often as this many times; then the next line. Its text has the key. An error with
    /// the status 200 is an event of a stream, or a whole answer.
    Fails(u16, usize),
}

impl Line {
    /// A text without calls.
    #[must_use]
    pub fn text(text: &str) -> Self {
        Self::Says(text.to_owned(), Vec::new())
    }

    /// Calls without a text.
    #[must_use]
    pub fn calls(calls: &[(&str, Value)]) -> Self {
        Self::Says(
            String::new(),
            calls.iter().map(|(name, arguments)| ((*name).to_owned(), arguments.clone())).collect(),
        )
    }
}

/// A model.
#[derive(Debug)]
pub struct Model {
    address: SocketAddr,
    folder: TempDir,
    shared: Arc<Shared>,
    _serving: JoinSet<()>,
}

#[derive(Debug)]
struct Shared {
    /// By a word of the user's message.
    script: HashMap<String, Vec<Line>>,
    asked: Mutex<Vec<Asked>>,
    changed: Notify,
    holds: Mutex<HashMap<(String, usize), Arc<Semaphore>>>,
}

/// A request that the model was sent.
#[derive(Debug, Clone)]
pub struct Asked {
    /// The word of the script.
    pub word: String,
    /// How often the model had spoken.
    pub turn: usize,
    pub body: Value,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Api {
    OpenAi,
    Anthropic,
}

impl Model {
    /// A model with this script: the first word of the user's message that is a key decides.
    ///
    /// # Panics
    /// If there is no free port or no folder.
    pub async fn start(script: &[(&str, Vec<Line>)]) -> Self {
        let script = script.iter().map(|(word, lines)| ((*word).to_owned(), lines.clone())).collect();
        let shared =
            Arc::new(Shared { script, asked: Mutex::default(), changed: Notify::new(), holds: Mutex::default() });
        let router = Router::new()
            .route("/v1/chat/completions", post(chat))
            .route("/v1/messages", post(messages))
            .with_state(Arc::clone(&shared));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("it has an address");
        let mut serving = JoinSet::new();
        serving.spawn(async move { axum::serve(listener, router).await.expect("it serves") });
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(folder.path().join("key"), MODEL_KEY).expect("a file is written");
        Self { address, folder, shared, _serving: serving }
    }

    /// Writes a file of agents, in which `OPENAI` and `ANTHROPIC` stand for the address and the key of the model.
    ///
    /// # Panics
    /// If the file cannot be written.
    #[must_use]
    pub fn write(&self, agents: &str) -> PathBuf {
        let address = self.address;
        let at = |kind: &str, path: &str| {
            let url = format!("http://{address}/v1/{path}");
            format!("api = \"{kind}\"\nurl = \"{url}\"\nkey = {{ file = \"key\" }}\nmodel = \"m1\"")
        };
        let text = agents
            .replace("OPENAI", &at("openai", "chat/completions"))
            .replace("ANTHROPIC", &at("anthropic", "messages"));
        let file = self.folder.path().join("agents.toml");
        std::fs::write(&file, format!("{text}\n[egress]\naddresses = [\"127.0.0.1\"]\n")).expect("a file is written");
        file
    }

    /// The fixture whose workers host the agents of such a file.
    #[must_use]
    pub fn of(&self, fixture: &Fixture, agents: &str, api: SocketAddr) -> Fixture {
        let file = self.write(agents);
        fixture.with("TOOLYARD_AGENTS", file.display()).with("TOOLYARD_API_URL", format!("http://{api}"))
    }

    /// Holds the model's answer of a turn until it is [released](Self::release).
    pub fn hold(&self, word: &str, turn: usize) {
        lock(&self.shared.holds).insert((word.to_owned(), turn), Arc::new(Semaphore::new(0)));
    }

    /// Lets the answer of a turn go.
    pub fn release(&self, word: &str, turn: usize) {
        if let Some(hold) = lock(&self.shared.holds).remove(&(word.to_owned(), turn)) {
            hold.add_permits(Semaphore::MAX_PERMITS / 2);
        }
    }

    /// The requests so far.
    #[must_use]
    pub fn asked(&self) -> Vec<Asked> {
        lock(&self.shared.asked).clone()
    }

    /// How often a turn was asked for.
    #[must_use]
    pub fn count(&self, word: &str, turn: usize) -> usize {
        lock(&self.shared.asked).iter().filter(|asked| asked.word == word && asked.turn == turn).count()
    }

    /// Waits until a turn was asked for.
    pub async fn until_asked(&self, word: &str, turn: usize) {
        self.until_asked_times(word, turn, 1).await;
    }

    /// Waits until a turn was asked for so often.
    ///
    /// # Panics
    /// If that takes too long.
    pub async fn until_asked_times(&self, word: &str, turn: usize, times: usize) {
        let asked = async {
            while self.count(word, turn) < times {
                self.shared.changed.notified().await;
            }
        };
        tokio::time::timeout(crate::PATIENCE, asked).await.expect("the model is asked in time");
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn chat(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Bytes) -> Response {
    let key = format!("Bearer {MODEL_KEY}");
    answer(&shared, Api::OpenAi, headers.get("authorization").is_some_and(|it| *it == key.as_str()), &body).await
}

async fn messages(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Bytes) -> Response {
    let is_known =
        headers.get("x-api-key").is_some_and(|it| it == MODEL_KEY) && headers.contains_key("anthropic-version");
    answer(&shared, Api::Anthropic, is_known, &body).await
}

fn error(status: u16, message: &str, is_streamed: bool) -> Response {
    let status = StatusCode::from_u16(status).expect("a status");
    let body = json!({ "error": { "type": "test_error", "message": message } });
    if status.is_success() && is_streamed {
        return events(&[body], false);
    }
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

async fn answer(shared: &Shared, api: Api, has_key: bool, body: &[u8]) -> Response {
    if !has_key {
        return error(401, "no key", false);
    }
    let body: Value = serde_json::from_slice(body).expect("a request is JSON");
    let all = body["messages"].as_array().expect("it has messages");
    let user = all.iter().find(|message| message["role"] == "user").expect("a message of the user");
    let user = user["content"].as_str().expect("it is text").to_owned();
    let mut words = user.split(|c: char| !c.is_alphanumeric());
    let word = words.find(|word| shared.script.contains_key(*word)).unwrap_or_default().to_owned();
    let Some(lines) = shared.script.get(&word) else { return error(400, &format!("no script for {user:?}"), false) };
    let turn = all.iter().filter(|message| message["role"] == "assistant").count();
    let before = {
        let mut asked = lock(&shared.asked);
        let before = asked.iter().filter(|asked| asked.word == word && asked.turn == turn).count();
        asked.push(Asked { word: word.clone(), turn, body: body.clone() });
        before
    };
    // A permit is kept for the one test that waits.
    shared.changed.notify_one();
    let hold = lock(&shared.holds).get(&(word, turn)).cloned();
    if let Some(hold) = hold {
        hold.acquire().await.expect("it is never closed").forget();
    }
    let (mut at, mut line) = (turn, lines.get(turn));
    while let Some(Line::Fails(status, times)) = line {
        if before < *times {
            return error(*status, &format!("scripted failure of {MODEL_KEY}"), body["stream"] == true);
        }
        at += 1;
        line = lines.get(at);
    }
    let Some(Line::Says(text, calls)) = line else { return error(400, "the script is over", false) };
    let calls: Vec<(String, &str, &Value)> = calls
        .iter()
        .enumerate()
        .map(|(index, (name, it))| (format!("call_{turn}_{index}"), name.as_str(), it))
        .collect();
    let is_streamed = body["stream"] == true;
    match (api, is_streamed) {
        (Api::OpenAi, false) => whole(&chat_message(text, &calls)),
        (Api::OpenAi, true) => events(&chat_pieces(text, &calls), true),
        (Api::Anthropic, false) => whole(&anthropic_message(text, &calls)),
        (Api::Anthropic, true) => events(&anthropic_pieces(text, &calls), false),
    }
}

fn whole(value: &Value) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

fn events(pieces: &[Value], with_done: bool) -> Response {
    let mut text: String = pieces
        .iter()
        .map(|piece| match piece["type"].as_str() {
            Some(name) => format!("event: {name}\ndata: {piece}\n\n"),
            None => format!("data: {piece}\n\n"),
        })
        .collect();
    if with_done {
        text.push_str("data: [DONE]\n\n");
    }
    ([(header::CONTENT_TYPE, "text/event-stream")], Body::from(text)).into_response()
}

type Calls<'a> = [(String, &'a str, &'a Value)];

fn chat_message(text: &str, calls: &Calls<'_>) -> Value {
    let mut message = json!({ "role": "assistant", "content": text, "refusal": null });
    if !calls.is_empty() {
        let call = |(id, name, arguments): &(String, &str, &Value)| {
            let function = json!({ "name": name, "arguments": arguments.to_string() });
            json!({ "id": id, "type": "function", "function": function })
        };
        message["tool_calls"] = calls.iter().map(call).collect();
    }
    let finish = if calls.is_empty() { "stop" } else { "tool_calls" };
    json!({ "id": "chatcmpl-1", "object": "chat.completion", "model": "m1",
        "choices": [{ "index": 0, "message": message, "finish_reason": finish }],
        "usage": { "prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10 } })
}

fn halves(text: &str) -> [&str; 2] {
    let (first, second) = text.split_at(text.char_indices().nth(text.chars().count() / 2).map_or(0, |(at, _)| at));
    [first, second]
}

fn chat_pieces(text: &str, calls: &Calls<'_>) -> Vec<Value> {
    let piece = |delta: Value, finish: Option<&str>| {
        json!({ "id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "m1",
            "choices": [{ "index": 0, "delta": delta, "finish_reason": finish }] })
    };
    let mut pieces = vec![piece(json!({ "role": "assistant", "content": "" }), None)];
    pieces.extend(halves(text).map(|half| piece(json!({ "content": half }), None)));
    for (index, (id, name, arguments)) in calls.iter().enumerate() {
        let call =
            json!({ "index": index, "id": id, "type": "function", "function": { "name": name, "arguments": "" } });
        pieces.push(piece(json!({ "tool_calls": [call] }), None));
        for half in halves(&arguments.to_string()) {
            let call = json!({ "index": index, "function": { "arguments": half } });
            pieces.push(piece(json!({ "tool_calls": [call] }), None));
        }
    }
    pieces.push(piece(json!({}), Some(if calls.is_empty() { "stop" } else { "tool_calls" })));
    pieces.push(json!({ "id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [],
        "usage": { "prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10 } }));
    pieces
}

fn blocks(text: &str, calls: &Calls<'_>) -> Vec<Value> {
    let text = (!text.is_empty()).then(|| json!({ "type": "text", "text": text }));
    let calls =
        calls.iter().map(|(id, name, input)| json!({ "type": "tool_use", "id": id, "name": name, "input": input }));
    text.into_iter().chain(calls).collect()
}

fn anthropic_message(text: &str, calls: &Calls<'_>) -> Value {
    let stop = if calls.is_empty() { "end_turn" } else { "tool_use" };
    json!({ "id": "msg_1", "type": "message", "role": "assistant", "model": "m1", "content": blocks(text, calls),
        "stop_reason": stop, "stop_sequence": null, "usage": { "input_tokens": 7, "output_tokens": 3 } })
}

fn anthropic_pieces(text: &str, calls: &Calls<'_>) -> Vec<Value> {
    let message = json!({ "id": "msg_1", "type": "message", "role": "assistant", "model": "m1", "content": [],
        "stop_reason": null, "stop_sequence": null, "usage": { "input_tokens": 7, "output_tokens": 1 } });
    let mut pieces = vec![json!({ "type": "message_start", "message": message }), json!({ "type": "ping" })];
    for (index, block) in blocks(text, calls).into_iter().enumerate() {
        let (begun, deltas) = match block["type"].as_str() {
            Some("text") => {
                let halves = halves(text).map(|half| json!({ "type": "text_delta", "text": half }));
                (json!({ "type": "text", "text": "" }), halves)
            }
            _ => {
                let input = block["input"].to_string();
                let halves = halves(&input).map(|half| json!({ "type": "input_json_delta", "partial_json": half }));
                (json!({ "type": "tool_use", "id": block["id"], "name": block["name"], "input": {} }), halves)
            }
        };
        pieces.push(json!({ "type": "content_block_start", "index": index, "content_block": begun }));
        pieces.extend(deltas.map(|delta| json!({ "type": "content_block_delta", "index": index, "delta": delta })));
        pieces.push(json!({ "type": "content_block_stop", "index": index }));
    }
    let stop = if calls.is_empty() { "end_turn" } else { "tool_use" };
    pieces.push(json!({ "type": "message_delta", "delta": { "stop_reason": stop, "stop_sequence": null },
        "usage": { "output_tokens": 3 } }));
    pieces.push(json!({ "type": "message_stop" }));
    pieces
}
