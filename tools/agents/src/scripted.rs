//! A scripted model behind the two APIs that agents use: OpenAI's Chat Completions and Anthropic's Messages, streamed
//! and whole. With it agents are tried without a key and without costs, and tested.
//!
//! What it says depends on the user's message and on how often it spoke in the conversation.

mod forms;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use futures::future::BoxFuture;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::net::TcpListener;

use self::forms::{anthropic_message, anthropic_pieces, chat_message, chat_pieces, events, whole};

/// What the model says in one turn.
#[derive(Debug, Clone, PartialEq)]
pub enum Line {
    /// A text, and calls of tools with their arguments.
    Says(String, Vec<(String, Value)>),
    /// An error with this status, as often as this many times; then the next line. An error with the status 200 is an
    /// event of a stream, or a whole answer.
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
        let calls = calls.iter().map(|(name, arguments)| ((*name).to_owned(), arguments.clone()));
        Self::Says(String::new(), calls.collect())
    }
}

/// The lines of each conversation, by a word of the user's first message. The first word there that has lines decides.
#[derive(Debug, Clone, Default)]
pub struct Script(pub HashMap<String, Vec<Line>>);

/// A script cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {why}", file.display())]
pub struct InvalidScript {
    file: PathBuf,
    why: String,
}

/// A line in a file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default)]
    text: String,
    #[serde(default)]
    calls: Vec<WrittenCall>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenCall {
    tool: String,
    #[serde(default)]
    arguments: Map<String, Value>,
}

impl Script {
    /// Reads a file (TOML): for each word a list of tables with `text` and `calls`, one for each turn of the model.
    ///
    /// # Errors
    /// If it cannot be read or is not a script.
    pub fn read(file: &Path) -> Result<Self, InvalidScript> {
        let invalid = |why: String| InvalidScript { file: file.to_owned(), why };
        let text = std::fs::read_to_string(file).map_err(|error| invalid(error.to_string()))?;
        let words: BTreeMap<String, Vec<Written>> =
            toml::from_str(&text).map_err(|error| invalid(error.to_string()))?;
        if let Some(word) = words.keys().find(|word| !word.chars().all(char::is_alphanumeric)) {
            return Err(invalid(format!("{word:?} is no word: use letters and digits")));
        }
        let line = |Written { text, calls }| {
            let calls = calls.into_iter().map(|WrittenCall { tool, arguments }| (tool, arguments.into()));
            Line::Says(text, calls.collect())
        };
        Ok(Self(words.into_iter().map(|(word, lines)| (word, lines.into_iter().map(line).collect())).collect()))
    }

    fn word_of<'a>(&self, text: &'a str) -> Option<&'a str> {
        text.split(|c: char| !c.is_alphanumeric()).find(|word| self.0.contains_key(*word))
    }
}

/// A request that the model was sent.
#[derive(Debug, Clone)]
pub struct Asked {
    /// The word of the script.
    pub word: String,
    /// How often the model had spoken.
    pub turn: usize,
    /// The request.
    pub body: Value,
}

/// Sees each request, and returns when its answer may be sent.
type Gate = Box<dyn Fn(Asked) -> BoxFuture<'static, ()> + Send + Sync>;

/// A model that follows a script.
pub struct ScriptedModel {
    script: Script,
    key: Option<String>,
    gate: Option<Gate>,
    /// How often each turn was asked for.
    counts: Mutex<HashMap<(String, usize), usize>>,
}

impl fmt::Debug for ScriptedModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScriptedModel").field("script", &self.script).finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Api {
    OpenAi,
    Anthropic,
}

impl ScriptedModel {
    /// A model that takes any key, or none.
    #[must_use]
    pub fn new(script: Script) -> Self {
        Self { script, key: None, gate: None, counts: Mutex::default() }
    }

    /// Refuses requests with another key.
    #[must_use]
    pub fn with_key(mut self, key: &str) -> Self {
        self.key = Some(key.to_owned());
        self
    }

    /// Shows each request to `gate` before it is answered, and waits for it.
    #[must_use]
    pub fn with_gate(mut self, gate: impl Fn(Asked) -> BoxFuture<'static, ()> + Send + Sync + 'static) -> Self {
        self.gate = Some(Box::new(gate));
        self
    }

    /// Answers requests until it is dropped.
    ///
    /// # Errors
    /// If the listener fails.
    pub async fn serve(self, listener: TcpListener) -> std::io::Result<()> {
        let router = Router::new()
            .route("/v1/chat/completions", post(chat))
            .route("/v1/messages", post(messages))
            .with_state(Arc::new(self));
        axum::serve(listener, router).await
    }

    fn takes(&self, headers: &HeaderMap, name: &str, scheme: &str) -> bool {
        let Some(key) = &self.key else { return true };
        headers.get(name).and_then(|given| given.to_str().ok()).and_then(|given| given.strip_prefix(scheme))
            == Some(key)
    }

    async fn answer(&self, api: Api, body: &[u8]) -> Result<Response, Refused> {
        let body: Value = serde_json::from_slice(body).map_err(|error| Refused::new(400, error.to_string()))?;
        let all = body["messages"].as_array().ok_or_else(|| Refused::new(400, "messages: is missing"))?;
        let user = all.iter().find(|message| message["role"] == "user").map(text_of).unwrap_or_default();
        let unscripted = || {
            let mut words: Vec<&str> = self.script.0.keys().map(String::as_str).collect();
            words.sort_unstable();
            Refused::new(400, format!("the script has no word of {user:?}; it has: {}", words.join(", ")))
        };
        let word = self.script.word_of(&user).ok_or_else(unscripted)?.to_owned();
        let lines = self.script.0.get(&word).ok_or_else(unscripted)?;
        let turn = all.iter().filter(|message| message["role"] == "assistant").count();
        let before = {
            let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
            let count = counts.entry((word.clone(), turn)).or_default();
            std::mem::replace(count, *count + 1)
        };
        let is_streamed = body["stream"] == true;
        if let Some(gate) = &self.gate {
            gate(Asked { word: word.clone(), turn, body }).await;
        }
        let (text, calls) = self.said(lines, turn, before, is_streamed)?;
        let calls: Vec<(String, &str, &Value)> = calls
            .iter()
            .enumerate()
            .map(|(index, (name, it))| (format!("call_{turn}_{index}"), name.as_str(), it))
            .collect();
        Ok(match (api, is_streamed) {
            (Api::OpenAi, false) => whole(&chat_message(text, &calls)),
            (Api::OpenAi, true) => events(&chat_pieces(text, &calls), true),
            (Api::Anthropic, false) => whole(&anthropic_message(text, &calls)),
            (Api::Anthropic, true) => events(&anthropic_pieces(text, &calls), false),
        })
    }

    /// The line of a turn that was asked for so often before.
    fn said<'a>(&self, lines: &'a [Line], turn: usize, before: usize, is_streamed: bool) -> Result<Said<'a>, Refused> {
        for line in lines.iter().skip(turn) {
            match line {
                Line::Says(text, calls) => return Ok((text, calls)),
                Line::Fails(status, times) if before < *times => {
                    let key = self.key.as_deref().unwrap_or_default();
                    let message = format!("scripted failure of {key}");
                    return Err(Refused { status: *status, message, is_streamed });
                }
                Line::Fails(..) => {}
            }
        }
        Err(Refused::new(400, format!("the script has {} turns for this conversation, and all are over", lines.len())))
    }
}

/// A text, and the calls behind it.
type Said<'a> = (&'a str, &'a [(String, Value)]);

/// An error of the model.
struct Refused {
    status: u16,
    message: String,
    is_streamed: bool,
}

impl Refused {
    fn new(status: u16, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), is_streamed: false }
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = json!({ "error": { "type": "test_error", "message": self.message } });
        if status.is_success() && self.is_streamed {
            return events(&[body], false);
        }
        (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
    }
}

/// The text of a message, whose content may be a list of parts.
fn text_of(message: &Value) -> String {
    match &message["content"] {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join(" "),
        _ => String::new(),
    }
}

async fn chat(State(model): State<Arc<ScriptedModel>>, headers: HeaderMap, body: Bytes) -> Result<Response, Refused> {
    if !model.takes(&headers, "authorization", "Bearer ") {
        return Err(Refused::new(401, "no key"));
    }
    model.answer(Api::OpenAi, &body).await
}

async fn messages(
    State(model): State<Arc<ScriptedModel>>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Refused> {
    if !model.takes(&headers, "x-api-key", "") || !headers.contains_key("anthropic-version") {
        return Err(Refused::new(401, "no key, or no anthropic-version"));
    }
    model.answer(Api::Anthropic, &body).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_read_and_what_is_wrong_is_said() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("script.toml");
        let read = |text: &str| {
            std::fs::write(&file, text).expect("it is written");
            Script::read(&file).map_err(|error| error.to_string())
        };
        let script = read("[[tea]]\ntext = \"Hm.\"\ncalls = [{ tool = \"clock\", arguments = { at = 5 } }]\n[[tea]]\n");
        let lines = [Line::Says("Hm.".to_owned(), vec![("clock".to_owned(), json!({ "at": 5 }))]), Line::text("")];
        assert_eq!(script.expect("it is one").0["tea"], lines);
        for (text, why) in [("[[two-words]]\n", "is no word"), ("[[tea]]\nsays = \"\"\n", "unknown field")] {
            let error = read(text).expect_err("it is none");
            assert!(error.contains("script.toml") && error.contains(why), "{error}");
        }
    }
}
