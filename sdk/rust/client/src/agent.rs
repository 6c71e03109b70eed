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

mod template;

use std::collections::{BTreeMap, HashMap, HashSet};

use formats::heard::Heard;
use formats::tools::{Exported, export};
use formats::turns::{Answer, Arguments, Turn};
use proto::Reason;
use proto::v1;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tonic::Status;

pub use formats::tools::Format;
pub use formats::turns::{Error as TurnError, Form};
pub use serde_json::value::RawValue as Message;

pub use self::template::{Template, TemplateError, with_output_schema};

use crate::client::Client;
use crate::error::{Error, metadata, reason};
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
const BESIDE_BYTES: usize = 64;
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
}

impl Default for Start {
    fn default() -> Self {
        Self {
            run: v1::CreateRunRequest::default(),
            form: Form::Chat,
            tools: Vec::new(),
            metadata: BTreeMap::new(),
            limits: Limits::default(),
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
    /// Tokens of all requests to the model, as the model counts them; `None` for no limit.
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

/// Why a loop cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// A request to the coordinator failed.
    #[error(transparent)]
    Request(#[from] Error),
    /// The model's message is not of the form.
    #[error("the model's message cannot be read: {0}")]
    Turn(#[from] TurnError),
    /// The message cannot be stored.
    #[error("the model's message has {bytes} bytes, at most {MESSAGE_BYTES_MAX} are stored")]
    TooLong {
        /// Its bytes.
        bytes: usize,
    },
    /// The model was asked as often as it may be.
    #[error("it stopped after {turns} turns without an answer, which is its limit")]
    Turns {
        /// The limit.
        turns: u32,
    },
    /// The tokens are used up.
    #[error("it used {used} tokens, its limit is {limit}")]
    Tokens {
        /// Tokens so far.
        used: u64,
        /// The limit.
        limit: u64,
    },
    /// The limits are more than a run has room for.
    #[error("{turns} turns and {calls} calls are more than the {CALLS_MAX} that a run has room for")]
    Limits {
        /// The turns.
        turns: u32,
        /// The calls.
        calls: u32,
    },
    /// A tool that the model may call is not there.
    #[error("the tool {0:?} cannot be offered to the model: {1}")]
    Tool(String, #[source] Error),
    /// The run ended, for example because it was cancelled or is overdue.
    #[error("the run {0} of the loop has ended")]
    Ended(String),
    /// The run has something else in it.
    #[error("the run {run_id} is no loop of an agent: {why}")]
    Foreign {
        /// The run.
        run_id: String,
        /// What does not fit.
        why: String,
    },
}

/// A stored message, as the arguments of its call.
#[derive(Serialize, Deserialize)]
struct Record {
    message: Box<Message>,
    tokens: u64,
}

/// A message of the model that is stored, and its calls.
#[derive(Debug)]
struct Stored {
    said: Said,
    turn: Turn,
    /// The ids in the run of the calls that are executed, by the model's ids.
    calls: HashMap<String, String>,
    /// Why the others are not executed.
    refused: HashMap<String, String>,
}

impl Stored {
    /// Corrects what is executed by the calls that the run has: tools and limits may have changed since.
    fn correct(&mut self, number: usize, ids: &HashSet<&str>) {
        for (index, call) in self.turn.calls.iter().enumerate() {
            let id = format!("{}.{index}", turn_id(number));
            if ids.contains(id.as_str()) {
                self.refused.remove(&call.id);
                self.calls.insert(call.id.clone(), id);
            } else if self.calls.remove(&call.id).is_some() {
                self.refused.insert(call.id.clone(), "it was not executed".to_owned());
            }
        }
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
}

impl Agent {
    /// Opens a loop, or goes on with the one that was opened under the same request id.
    ///
    /// # Errors
    /// If the limits or a tool cannot be used, or the coordinator refuses the run.
    pub async fn open(client: &Client, start: Start) -> Result<Self, AgentError> {
        let Start { run, form, tools, metadata, limits } = start;
        let Limits { turns, calls, .. } = limits;
        if turns == 0 || turns.saturating_add(calls) > CALLS_MAX {
            return Err(AgentError::Limits { turns, calls });
        }
        let tools = offered(client, &tools, form).await?;
        // Without a name in the list, all tools could be called.
        let names = tools.iter().map(|tool| tool.tool.clone()).chain([TURN_TOOL.to_owned()]);
        let request = v1::CreateRunRequest { calls: Vec::new(), keep_open: true, tools: names.collect(), ..run };
        let (run_id, watch) = opened(client, request).await?;
        let (client, heard) = (client.clone(), Heard::default());
        let mut agent =
            Self { client, run_id, watch, heard, tools, form, metadata, limits, turns: Vec::new(), executed: 0 };
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

    /// Tokens so far.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.turns.iter().map(|turn| turn.said.tokens).sum()
    }

    /// Waits until the calls of the messages have ended. Then these are the messages for the model; `None` if its
    /// last message has no calls, so that it is the answer. Cancel safe.
    ///
    /// # Errors
    /// If a limit is reached, or the run ends.
    pub async fn next(&mut self) -> Result<Option<Vec<Box<Message>>>, AgentError> {
        if self.turns.last().is_some_and(|last| last.turn.calls.is_empty()) {
            return Ok(None);
        }
        while !self.is_settled() {
            let events = self.watch.next().await?.ok_or_else(|| AgentError::Ended(self.run_id.clone()))?;
            events.iter().for_each(|event| self.heard.take(event));
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
        let (stored, calls) = self.planned(number, said)?;
        let request = v1::AppendCallsRequest {
            run_id: self.run_id.clone(),
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

    /// The text of the last message; empty if it has none.
    #[must_use]
    pub fn text(&self) -> String {
        self.turns.last().map(|last| text_of(&last.said.message)).unwrap_or_default()
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
            read.push(Said { message: record.message, tokens: record.tokens });
            if call.outcome.is_none() {
                waiting.push(number);
            }
        }
        let ids: HashSet<&str> = run.calls.iter().map(|call| call.call_id.as_str()).collect();
        for said in read {
            let number = self.turns.len() + 1;
            let (mut stored, _) = self.planned(number, said)?;
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
        self.turns.push(stored);
    }

    /// A message, and the calls to append for it. The same for the same messages before it.
    fn planned(&self, number: usize, said: Said) -> Result<(Stored, Vec<v1::NewCall>), AgentError> {
        let bytes = said.message.get().len();
        if bytes > MESSAGE_BYTES_MAX - BESIDE_BYTES {
            return Err(AgentError::TooLong { bytes });
        }
        let turn = Turn::parse(said.message.get().as_bytes(), Some(self.form))?;
        let record = Record { message: said.message.clone(), tokens: said.tokens };
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
        Ok((Stored { said, turn, calls: ids, refused }, calls))
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

/// The definitions of tools for a model.
async fn offered(client: &Client, names: &[String], form: Form) -> Result<Vec<Exported>, AgentError> {
    let mut tools = Vec::with_capacity(names.len());
    for name in names {
        tools.push(client.tool(name).await.map_err(|error| AgentError::Tool(name.clone(), error))?);
    }
    Ok(export(&tools, form.definitions()))
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

/// The text of an assistant message of Chat Completions or Messages; empty if it has none.
#[must_use]
pub fn text_of(message: &Message) -> String {
    let message: Value = serde_json::from_str(message.get()).unwrap_or_default();
    match &message["content"] {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        _ => String::new(),
    }
}
