//! The loop of an agent, in the log: the model is asked, its calls are executed, their answers go to the model, until
//! it answers without a call.
//!
//! All of it is one run, which stays open while the loop goes on. Each message of the model is stored in it before its
//! calls are executed, together with them in one entry: as a call of [`TURN_TOOL`] whose arguments are the message.
//! Another process that opens the same loop, under the same request id, goes on after the last stored message. So the
//! model is never asked twice for a message that was stored.
//!
//! ```no_run
//! use toolyard_client::agent::{Agent, Said, Start};
//! use toolyard_client::{Client, v1};
//! # use toolyard_client::agent::{AgentError, Message};
//! # async fn ask(_: Vec<Box<Message>>) -> Result<Said, AgentError> { unimplemented!() }
//! # async fn example(client: Client) -> Result<(), AgentError> {
//! let run = v1::CreateRunRequest { request_id: "conversation-7/1".to_owned(), ..v1::CreateRunRequest::default() };
//! let mut agent = Agent::open(&client, Start { run, tools: vec!["bash".to_owned()], ..Start::default() }).await?;
//! while let Some(messages) = agent.next().await? {
//!     // The system message and the user's come first, then `messages`; the tools are `agent.definitions()`.
//!     let said = ask(messages).await?;
//!     agent.store(said).await?;
//! }
//! println!("{}", agent.text());
//! # Ok(())
//! # }
//! ```

mod error;
mod stored;
mod template;

use std::collections::{BTreeMap, HashMap, HashSet};

use formats::heard::Heard;
use formats::tools::{Exported, export};
use formats::turns::{Answer, Arguments, Turn, conversation_of};
use proto::Reason;
use proto::conversation::TOOL_CALL_CONVERSATION;
use proto::v1;
use serde_json::{Value, json};
use tonic::Status;

pub use formats::tools::Format;
pub use formats::turns::{Error as TurnError, Form};
pub use serde_json::value::RawValue as Message;

pub use self::error::AgentError;
use self::stored::{Record, Stored, tokens_of};
pub use self::template::{Template, TemplateError, with_output_schema};

use crate::client::Client;
use crate::error::{Error, metadata, reason};
use crate::inlining::Inlining;
use crate::nested::named_run;
use crate::watch::Watch;

/// The tool whose calls are the stored messages. The loop itself answers them; no tool of a worker is needed.
pub const TURN_TOOL: &str = "assistant_turn";
/// The answer of such a call.
const STORED: &str = "stored";
/// Calls of a run, the stored messages among them.
pub const CALLS_MAX: u32 = 128;
/// Bytes of a stored message: as many as the arguments of a call may have.
pub const MESSAGE_BYTES_MAX: usize = 256 * 1024;
/// Room for what is stored beside the message.
const BESIDE_BYTES: usize = 96;
/// The metadata key of a call with the tokens that a loop below it may use.
pub const TOKENS_LEFT: &str = "toolyard.tokens_left";
/// Bytes of the messages that tools are given as the conversation; half of what a request may have, because they are
/// written in another form there. Older messages are left out.
const CONVERSATION_BYTES: usize = 2 * 1024 * 1024;
/// The answer of a call that has none, because models require one of each call.
const DANGLING: &str = "this call was cancelled: it has no result";

/// What a loop begins with.
#[derive(Debug, Clone)]
pub struct Start {
    /// The run of the loop: tenant, request id, timeout, rules. Its calls, its tools and its open end are set here.
    pub run: v1::CreateRunRequest,
    /// The form of the model's messages.
    pub form: Form,
    /// The tools that the model may call, by their names. No others can be called.
    pub tools: Vec<String>,
    /// Metadata of every call, as in `NewCall`.
    pub metadata: BTreeMap<String, String>,
    /// When the loop is ended.
    pub limits: Limits,
    /// The messages that the model is given before its own, in its form. Tools that declare the context key
    /// `TOOL_CALL_CONVERSATION` receive them, and the messages of the loop after them.
    pub opening: Vec<Box<Message>>,
}

impl Default for Start {
    fn default() -> Self {
        Self {
            run: v1::CreateRunRequest::default(),
            form: Form::Chat,
            tools: Vec::new(),
            metadata: BTreeMap::new(),
            limits: Limits::default(),
            opening: Vec::new(),
        }
    }
}

/// The limits of a loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Messages of the model; `turns` and `calls` together are at most [`CALLS_MAX`].
    pub turns: u32,
    /// Calls that are executed. The model is told that further ones are not.
    pub calls: u32,
    /// Tokens of all requests to the model, as the model counts them, and of those of the loops that its calls make;
    /// `None` for no limit.
    pub tokens: Option<u64>,
}

impl Limits {
    /// Messages of the model, unless set.
    pub const TURNS: u32 = 10;
}

impl Default for Limits {
    fn default() -> Self {
        Self { turns: Self::TURNS, calls: CALLS_MAX - Self::TURNS, tokens: None }
    }
}

/// A message of a model.
#[derive(Debug, Clone)]
pub struct Said {
    /// The assistant message, as the model's API takes it back.
    pub message: Box<Message>,
    /// Tokens that the request used, of its input and its output together.
    pub tokens: u64,
}

impl Said {
    /// A message that says why the model has none, for a loop that is to end with it instead of an error: store it, and
    /// it is the answer, `Exception: ` and the reason. `None` for MCP, which has no messages of models.
    #[must_use]
    pub fn exception(form: Form, why: impl std::fmt::Display) -> Option<Self> {
        let text = format!("Exception: {why}");
        let message = match form {
            Form::Chat | Form::Anthropic => json!({ "role": "assistant", "content": text }),
            Form::Responses => json!([{ "type": "message", "role": "assistant",
                "content": [{ "type": "output_text", "text": text, "annotations": [] }] }]),
            Form::Gemini => json!({ "role": "model", "parts": [{ "text": text }] }),
            Form::Mcp => return None,
        };
        Some(Self { message: Message::from_string(message.to_string()).ok()?, tokens: 0 })
    }
}

/// The loop of an agent.
#[derive(Debug)]
pub struct Agent {
    client: Client,
    run_id: String,
    watch: Watch,
    heard: Heard,
    tools: Vec<Exported>,
    form: Form,
    metadata: BTreeMap<String, String>,
    limits: Limits,
    turns: Vec<Stored>,
    /// Calls that are executed.
    executed: u32,
    opening: Vec<Box<Message>>,
    /// The tools that receive the conversation.
    listeners: HashSet<String>,
    inlining: Inlining,
    /// The runs that calls made, by the ids of the calls.
    made: HashMap<String, String>,
    /// Tokens of the runs that the calls of the last message made; `None` until they are counted.
    below: Option<u64>,
}

impl Agent {
    /// Opens a loop, or goes on with the one that was opened under the same request id.
    ///
    /// # Errors
    /// If the limits or a tool cannot be used, or the coordinator refuses the run.
    pub async fn open(client: &Client, start: Start) -> Result<Self, AgentError> {
        let Start { run, form, tools, metadata, limits, opening } = start;
        let Limits { turns, calls, .. } = limits;
        if turns == 0 || turns.saturating_add(calls) > CALLS_MAX {
            return Err(AgentError::Limits { turns, calls });
        }
        let (tools, listeners) = offered(client, &tools, form).await?;
        // Without a name in the list, all tools could be called.
        let names = tools.iter().map(|tool| tool.tool.clone()).chain([TURN_TOOL.to_owned()]);
        let request = v1::CreateRunRequest { calls: Vec::new(), keep_open: true, tools: names.collect(), ..run };
        let (run_id, watch) = opened(client, request).await?;
        let mut agent = Self {
            client: client.clone(),
            run_id,
            watch,
            heard: Heard::default(),
            tools,
            form,
            metadata,
            limits,
            turns: Vec::new(),
            executed: 0,
            opening,
            listeners,
            inlining: Inlining::default(),
            made: HashMap::new(),
            below: None,
        };
        agent.read().await?;
        Ok(agent)
    }

    /// The run of the loop.
    #[must_use]
    pub fn run_id(&self) -> &str {
        &self.run_id
    }

    /// The definitions of the tools, in the form of the model's API.
    #[must_use]
    pub fn definitions(&self) -> Vec<&Value> {
        self.tools.iter().map(|tool| &tool.definition).collect()
    }

    /// Messages of the model so far.
    #[must_use]
    pub fn turns(&self) -> usize {
        self.turns.len()
    }

    /// Tokens so far. With a limit, those of the loops that calls made are among them.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.stored_tokens().saturating_add(self.below.unwrap_or_default())
    }

    /// The tokens that are stored with the messages.
    fn stored_tokens(&self) -> u64 {
        self.turns.iter().map(|turn| turn.said.tokens.saturating_add(turn.below)).sum()
    }

    /// Waits until the calls of the messages have ended. Then these are the messages for the model; `None` if there is
    /// an [answer](Self::text): its last message has no calls, or the tools of all of its calls return directly.
    /// Cancel safe.
    ///
    /// # Errors
    /// If a limit is reached, or the run ends.
    pub async fn next(&mut self) -> Result<Option<Vec<Box<Message>>>, AgentError> {
        if self.turns.last().is_some_and(|last| last.turn.calls.is_empty()) {
            return Ok(None);
        }
        self.settle().await?;
        if self.turns.last().is_some_and(|last| last.direct(&self.heard).is_some()) {
            return Ok(None);
        }
        let (turns, used) = (self.turns.len(), self.tokens());
        if usize::try_from(self.limits.turns).is_ok_and(|max| turns >= max) {
            return Err(AgentError::Turns { turns: self.limits.turns });
        }
        match self.limits.tokens {
            Some(limit) if used >= limit => Err(AgentError::Tokens { used, limit }),
            Some(_) | None => Ok(Some(self.messages())),
        }
    }

    /// Waits until all calls have ended, and reads what the messages have of their results.
    async fn settle(&mut self) -> Result<(), AgentError> {
        while !self.is_settled() {
            let events = self.watch.next().await?.ok_or_else(|| AgentError::Ended(self.run_id.clone()))?;
            events.iter().for_each(|event| self.heard.take(event));
            let made = events.iter().filter_map(named_run);
            self.made.extend(made.map(|(call, run)| (call.to_owned(), run.to_owned())));
            self.inlining.note(&events);
        }
        self.inlining.read(&self.client, &mut self.heard).await?;
        let Some(last) = self.turns.last().filter(|_| self.limits.tokens.is_some() && self.below.is_none()) else {
            return Ok(());
        };
        let mut below = 0_u64;
        for run_id in last.executed().filter_map(|call| self.made.get(call)) {
            below = below.saturating_add(tokens_of(&self.client, run_id).await?);
        }
        self.below = Some(below);
        Ok(())
    }

    /// The messages of the model with the answers of their calls, in order. A call without an answer has one that says
    /// so, because models refuse a conversation in which one is missing.
    #[must_use]
    pub fn messages(&self) -> Vec<Box<Message>> {
        let mut messages = Vec::new();
        for stored in &self.turns {
            messages.push(stored.said.message.clone());
            messages.extend(stored.turn.answers(|call| {
                Some(match (stored.refused.get(&call.id), stored.calls.get(&call.id)) {
                    (Some(why), _) => Answer::error(why),
                    (None, Some(id)) => self.heard.answer(id).unwrap_or_else(|| Answer::error(DANGLING)),
                    (None, None) => Answer::error(DANGLING),
                })
            }));
        }
        messages
    }

    /// Stores a message of the model, and has its calls executed. If another process stored one in its place, that one
    /// counts.
    ///
    /// # Errors
    /// If the message cannot be read or stored.
    pub async fn store(&mut self, said: Said) -> Result<(), AgentError> {
        let number = self.turns.len() + 1;
        let (stored, calls) = self.planned(number, said, self.below.unwrap_or_default())?;
        let request = v1::AppendCallsRequest {
            run_id: self.run_id.clone(),
            conversation: self.conversation(&stored, &calls)?,
            calls,
            request_tools: vec![turn_tool()],
            ..v1::AppendCallsRequest::default()
        };
        match self.client.append(request).await {
            Ok(_) => {
                self.take(stored);
                self.confirm(number).await
            }
            // Perhaps it was stored, by a request whose response was lost or by another process, which may also have
            // gone on since.
            Err(Error::Refused(status)) if may_be_stored(&status) => {
                self.read().await?;
                match self.turns.len() >= number {
                    true => Ok(()),
                    false => Err(self.failed(Error::Refused(status))),
                }
            }
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Closes the run, which then ends.
    ///
    /// # Errors
    /// If the coordinator cannot be reached.
    pub async fn close(&self) -> Result<(), AgentError> {
        Ok(self.client.close(&self.run_id).await.map(drop)?)
    }

    /// The answer: the text of the last message, empty if it has none. If the tools of all of its calls return
    /// directly, their results: that of one call as it is, those of several as a JSON array of texts.
    #[must_use]
    pub fn text(&self) -> String {
        let Some(last) = self.turns.last() else { return String::new() };
        match last.direct(&self.heard).as_deref() {
            None => text_of(&last.said.message),
            Some([result]) => result.text(),
            Some(results) => results.iter().map(|result| Value::from(result.text())).collect::<Value>().to_string(),
        }
    }

    /// The texts of all messages of the model, in order.
    pub fn texts(&self) -> impl Iterator<Item = String> {
        self.turns.iter().map(|turn| text_of(&turn.said.message))
    }

    /// Reads the messages that the run has and this loop does not.
    async fn read(&mut self) -> Result<(), AgentError> {
        let run = self.client.run(&self.run_id).await?;
        let foreign = |why: String| AgentError::Foreign { run_id: self.run_id.clone(), why };
        let known = self.turns.len();
        let records = run.calls.iter().filter(|call| call.tool == TURN_TOOL).skip(known);
        let mut waiting = Vec::new();
        let mut read = Vec::new();
        for (number, call) in (known + 1..).zip(records) {
            if call.call_id != turn_id(number) {
                return Err(foreign(format!("the call {:?} is not expected", call.call_id)));
            }
            let record: Record =
                serde_json::from_str(&call.arguments).map_err(|error| foreign(format!("{}: {error}", call.call_id)))?;
            read.push(record);
            if call.outcome.is_none() {
                waiting.push(number);
            }
        }
        let ids: HashSet<&str> = run.calls.iter().map(|call| call.call_id.as_str()).collect();
        for Record { message, tokens, below } in read {
            let number = self.turns.len() + 1;
            let (mut stored, _) = self.planned(number, Said { message, tokens }, below)?;
            stored.correct(number, &ids);
            self.take(stored);
        }
        for number in waiting {
            self.confirm(number).await?;
        }
        Ok(())
    }

    fn take(&mut self, stored: Stored) {
        self.executed += u32::try_from(stored.calls.len()).unwrap_or(u32::MAX);
        self.below = None;
        self.turns.push(stored);
    }

    /// The messages before a message's calls, for tools that receive them.
    fn conversation(&self, stored: &Stored, calls: &[v1::NewCall]) -> Result<Vec<v1::ConversationMessage>, AgentError> {
        if !calls.iter().any(|call| self.listeners.contains(&call.tool)) {
            return Ok(Vec::new());
        }
        let own = self.messages();
        let all: Vec<&Message> =
            self.opening.iter().chain(&own).chain([&stored.said.message]).map(|it| &**it).collect();
        let mut bytes = 0;
        let newest = all.iter().rev().take_while(|message| {
            bytes += message.get().len();
            bytes <= CONVERSATION_BYTES
        });
        let from = all.len() - newest.count();
        // A message of Responses is a list of items.
        let items = |message: &&&Message| {
            let list = message.get().trim().strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
            list.unwrap_or(message.get()).trim().to_owned()
        };
        let texts: Vec<String> = all[from..].iter().map(|it| items(&it)).filter(|text| !text.is_empty()).collect();
        Ok(conversation_of(&format!("[{}]", texts.join(",")), self.form)?)
    }

    /// Tokens that each of these calls may use; `None` without a limit.
    fn tokens_left(&self, spent: u64, calls: usize) -> Option<u64> {
        let left = self.limits.tokens?.saturating_sub(spent);
        u64::try_from(calls).ok().and_then(|calls| left.checked_div(calls))
    }

    /// A message, and the calls to append for it. The same for the same messages before it.
    fn planned(&self, number: usize, said: Said, below: u64) -> Result<(Stored, Vec<v1::NewCall>), AgentError> {
        let bytes = said.message.get().len();
        if bytes > MESSAGE_BYTES_MAX - BESIDE_BYTES {
            return Err(AgentError::TooLong { bytes });
        }
        let turn = Turn::parse(said.message.get().as_bytes(), Some(self.form))?;
        let record = Record { message: said.message.clone(), tokens: said.tokens, below };
        let arguments = serde_json::to_string(&record)
            .map_err(|error| AgentError::Foreign { run_id: self.run_id.clone(), why: error.to_string() })?;
        let (id, tool) = (turn_id(number), TURN_TOOL.to_owned());
        let mut calls = vec![v1::NewCall { call_id: id.clone(), tool, arguments, ..v1::NewCall::default() }];
        let (mut ids, mut refused) = (HashMap::new(), HashMap::new());
        let mut room = self.limits.calls.saturating_sub(self.executed);
        for (index, call) in turn.calls.iter().enumerate() {
            let known = self.tools.iter().find(|tool| tool.name == call.name).filter(|_| call.namespace.is_none());
            match (&call.arguments, known) {
                (_, None) => {
                    let names: Vec<&str> = self.tools.iter().map(|tool| tool.name.as_str()).collect();
                    let why = format!("there is no tool {:?}; there are: {}", call.name, names.join(", "));
                    refused.insert(call.id.clone(), why);
                }
                (Arguments::Unreadable { why, .. }, _) => {
                    refused.insert(call.id.clone(), format!("the arguments cannot be read: {why}"));
                }
                (Arguments::Json(_), Some(_)) if room == 0 => {
                    let max = self.limits.calls;
                    refused.insert(call.id.clone(), format!("the limit of {max} calls is reached: answer without it"));
                }
                (Arguments::Json(arguments), Some(tool)) => {
                    room -= 1;
                    let call_id = format!("{id}.{index}");
                    ids.insert(call.id.clone(), call_id.clone());
                    calls.push(v1::NewCall {
                        call_id,
                        tool: tool.tool.clone(),
                        arguments: arguments.clone(),
                        metadata: self.metadata.clone().into_iter().collect(),
                        ..v1::NewCall::default()
                    });
                }
            }
        }
        let spent = self.stored_tokens().saturating_add(said.tokens).saturating_add(below);
        if let Some(left) = self.tokens_left(spent, ids.len()) {
            for call in &mut calls[1..] {
                call.metadata.insert(TOKENS_LEFT.to_owned(), left.to_string());
            }
        }
        Ok((Stored { said, below, turn, calls: ids, refused }, calls))
    }

    /// Answers the call that is a stored message.
    async fn confirm(&self, number: usize) -> Result<(), AgentError> {
        let result = vec![v1::Content::from(v1::content::Body::Text(STORED.to_owned()))];
        let answer = v1::ToolOutput { call_id: turn_id(number), result, error: String::new() };
        match self.client.submit(&self.run_id, answer).await {
            Ok(_) => Ok(()),
            // The call has ended: another process confirmed it or ended the run, or a hook changed the answer. The
            // message is in the log all the same.
            Err(Error::Refused(status)) if has_ended(&status) => Ok(()),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// The error of a request about the run.
    fn failed(&self, error: Error) -> AgentError {
        match &error {
            Error::Refused(status) if matches!(reason(status), Some(Reason::RunClosed | Reason::RunEnded)) => {
                AgentError::Ended(self.run_id.clone())
            }
            _ => AgentError::Request(error),
        }
    }

    /// Whether all calls have ended, as far as this loop has heard: one that goes on hears the old ones again.
    fn is_settled(&self) -> bool {
        self.turns.iter().flat_map(|turn| turn.calls.values()).all(|id| self.heard.has_ended(id))
    }
}

/// The definitions of tools for a model, and the names of those that receive the conversation.
async fn offered(
    client: &Client,
    names: &[String],
    form: Form,
) -> Result<(Vec<Exported>, HashSet<String>), AgentError> {
    let mut tools = Vec::with_capacity(names.len());
    for name in names {
        tools.push(client.tool(name).await.map_err(|error| AgentError::Tool(name.clone(), error))?);
    }
    let listens = |tool: &&v1::Tool| tool.context_keys.iter().any(|key| key == TOOL_CALL_CONVERSATION);
    let listeners = tools.iter().filter(listens).map(|tool| tool.name.clone()).collect();
    Ok((export(&tools, form.definitions()), listeners))
}

/// The run of a request, new or old, and its events from the first one.
async fn opened(client: &Client, request: v1::CreateRunRequest) -> Result<(String, Watch), AgentError> {
    match client.create(request).await {
        Ok(run) => Ok((run.run_id.clone(), client.watch(&run.run_id, None, v1::FloorPolicy::Interleaved).await?)),
        // It was opened before, with another timeout.
        Err(Error::Refused(status)) if reason(&status) == Some(Reason::RequestIdTaken) => {
            let run_id = metadata(&status, "run_id").unwrap_or_default();
            let watch =
                client.watch(&run_id, None, v1::FloorPolicy::Interleaved).await.map_err(|error| match error {
                    // Its request is not yet, or no longer, in the log: another one under the same id finds out.
                    Error::Refused(status) if reason(&status) == Some(Reason::RunNotFound) => Error::RunUnknown,
                    error => error,
                })?;
            Ok((run_id, watch))
        }
        Err(error) => Err(error.into()),
    }
}

/// Whether a refusal to store a message leaves open that one is stored in its place.
fn may_be_stored(status: &Status) -> bool {
    use Reason::{DuplicateCallId, RunClosed, RunEnded, TooManyCalls};
    matches!(reason(status), Some(DuplicateCallId | TooManyCalls | RunClosed | RunEnded))
}

/// Whether an answer was refused because its call has ended.
fn has_ended(status: &Status) -> bool {
    matches!(reason(status), Some(Reason::CallAlreadyAnswered | Reason::CallNotWaiting | Reason::RunEnded))
}

fn turn_id(number: usize) -> String {
    format!("t{number}")
}

fn turn_tool() -> v1::RequestTool {
    let format = v1::request_tool::Format::InputSchema(r#"{"type":"object"}"#.to_owned());
    v1::RequestTool { name: TURN_TOOL.to_owned(), format: Some(format) }
}

/// The text of an assistant message; empty if it has none.
#[must_use]
pub fn text_of(message: &Message) -> String {
    let message: Value = serde_json::from_str(message.get()).unwrap_or_default();
    // The items of Responses, or one message of another API.
    let messages = message.as_array().map_or(std::slice::from_ref(&message), Vec::as_slice);
    messages.iter().map(text_of_one).collect()
}

fn text_of_one(message: &Value) -> String {
    match (&message["content"], &message["parts"]) {
        (Value::String(text), _) => text.clone(),
        (Value::Array(parts), _) | (_, Value::Array(parts)) => {
            parts.iter().filter_map(|part| part["text"].as_str()).collect()
        }
        _ => String::new(),
    }
}
