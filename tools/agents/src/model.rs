//! Asks a model over its HTTP API: Chat Completions as OpenAI has it and many servers copy it, or Anthropic's Messages.

use client::agent::{AgentError, Form, Message, Said};
use origins::http::Service;
use run::{CallError, ErrorKind};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use toolyard_tool::{AGENT_TEXT, Context, ToolError};

use crate::message::{AnthropicMessage, ChatMessage};

/// The API of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Api {
    OpenAi,
    Anthropic,
}

/// A model.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) service: Service,
    pub(crate) api: Api,
    /// Its name at the service.
    pub(crate) name: String,
    /// Whether its messages arrive piece by piece.
    pub(crate) stream: bool,
    /// Further fields of each request.
    pub(crate) parameters: Map<String, Value>,
}

/// What a model is asked.
pub(crate) struct Request<'a> {
    pub(crate) instruction: &'a str,
    pub(crate) input: &'a str,
    /// What it said before, and the answers of its calls.
    pub(crate) messages: &'a [Box<Message>],
    pub(crate) tools: Vec<&'a Value>,
}

/// A message as its API sends it, whole or in pieces.
pub(crate) trait Assembled: Default {
    /// Takes a piece, and returns the text that it adds.
    fn piece(&mut self, piece: &Value) -> Result<String, Unusable>;
    /// Takes a whole answer.
    fn whole(answer: &Value) -> Result<Self, Unusable>;
    /// The message, if it is complete.
    fn said(self) -> Result<Said, Incomplete>;
}

/// Why an answer, or a piece of one, is of no use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unusable {
    Malformed(String),
    /// The message has this many bytes so far, which is more than are stored.
    TooLong(usize),
}

impl From<&str> for Unusable {
    fn from(why: &str) -> Self {
        Self::Malformed(why.to_owned())
    }
}

/// Why there is no message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Incomplete {
    /// The stream ended before the message did. Another request may have one.
    BrokenOff,
    /// The model stopped at a limit, or refused.
    Stopped(String),
}

impl Model {
    pub(crate) const fn form(&self) -> Form {
        match self.api {
            Api::OpenAi => Form::Chat,
            Api::Anthropic => Form::Anthropic,
        }
    }

    /// The model's next message. What it says meanwhile is output of the call, after `before`.
    pub(crate) async fn ask(
        &self,
        context: &Context,
        request: &Request<'_>,
        before: &'static str,
    ) -> Result<Said, ToolError> {
        match self.api {
            Api::OpenAi => self.said::<ChatMessage>(context, request, before).await,
            Api::Anthropic => self.said::<AnthropicMessage>(context, request, before).await,
        }
    }

    async fn said<M: Assembled>(
        &self,
        context: &Context,
        request: &Request<'_>,
        mut before: &'static str,
    ) -> Result<Said, ToolError> {
        let body = self.body(request)?;
        let mut answer = self.service.ask(context, body).await?;
        let wrong = |unusable: Unusable| match unusable {
            Unusable::Malformed(why) => self.service.malformed(&why),
            Unusable::TooLong(bytes) => {
                let error = AgentError::TooLong { bytes };
                ToolError::of_call(CallError::new(ErrorKind::LimitExceeded, error.to_string()))
            }
        };
        let is_streamed = answer.is_streamed();
        let message = if is_streamed {
            let mut message = M::default();
            while let Some(piece) = answer.next().await? {
                if let Some(error) = self.failed(&piece.data) {
                    return Err(error);
                }
                let text = message.piece(&piece.data).map_err(wrong)?;
                if !text.is_empty() {
                    context.text_on(AGENT_TEXT, format!("{before}{text}")).await?;
                    before = "";
                }
            }
            message
        } else {
            let answer = answer.json().await?;
            if let Some(error) = self.failed(&answer) {
                return Err(error);
            }
            M::whole(&answer).map_err(wrong)?
        };
        let said = message.said().map_err(|incomplete| match incomplete {
            Incomplete::BrokenOff => ToolError::retryable("the model's message broke off"),
            Incomplete::Stopped(why) => ToolError::new(why),
        })?;
        if !is_streamed {
            let text = client::agent::text_of(&said.message);
            if !text.is_empty() {
                context.text_on(AGENT_TEXT, format!("{before}{text}")).await?;
            }
        }
        Ok(said)
    }

    /// The messages before those of the model.
    pub(crate) fn opening(&self, instruction: &str, input: &str) -> Result<Vec<Box<Message>>, ToolError> {
        let mut opening = Vec::with_capacity(2);
        // Elsewhere it is no message.
        if self.api == Api::OpenAi && !instruction.is_empty() {
            opening.push(json!({ "role": "system", "content": instruction }));
        }
        opening.push(json!({ "role": "user", "content": input }));
        Ok(opening.iter().map(serde_json::value::to_raw_value).collect::<Result<_, _>>()?)
    }

    fn body(&self, request: &Request<'_>) -> Result<Map<String, Value>, ToolError> {
        let Request { instruction, input, messages, tools } = request;
        let mut body = self.parameters.clone();
        let mut all: Vec<Value> = Vec::with_capacity(messages.len() + 2);
        if self.api == Api::Anthropic && !instruction.is_empty() {
            body.insert("system".to_owned(), json!(instruction));
        }
        for message in self.opening(instruction, input)?.iter().chain(*messages) {
            all.push(serde_json::from_str(message.get())?);
        }
        body.insert("model".to_owned(), json!(self.name));
        body.insert("messages".to_owned(), all.into());
        if !tools.is_empty() {
            body.insert("tools".to_owned(), tools.iter().map(|tool| (*tool).clone()).collect());
        }
        body.insert("stream".to_owned(), self.stream.into());
        if self.stream && self.api == Api::OpenAi {
            body.entry("stream_options").or_insert_with(|| json!({ "include_usage": true }));
        }
        Ok(body)
    }

    /// An error that a service sends in place of a message, or of the rest of it.
    fn failed(&self, data: &Value) -> Option<ToolError> {
        let error = data.get("error").filter(|error| !error.is_null())?;
        let kind = error["type"].as_str().unwrap_or_default();
        let message = error["message"].as_str().map_or_else(|| error.to_string(), str::to_owned);
        let text = format!("the model failed: {}", self.service.masked(&message));
        match kind {
            "overloaded_error" | "api_error" | "server_error" | "rate_limit_error" => Some(ToolError::retryable(text)),
            _ => Some(ToolError::new(text)),
        }
    }
}
