//! Questions that a running tool asks its client.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use bytes::Bytes;
use proto::convert::worker::{Unanswered, UserAnswer};
use proto::elicitation::{Asks, Elicitation, Reply};
use run::limit::QUESTION_BYTES_MAX;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::context::Context;
use crate::error::ToolError;

/// The name of the value of a question that asks for one value.
const ONE: &str = "answer";

/// A question to the client of a call, which a person or a program there answers. `T` is the type of the answer.
///
/// ```
/// use toolyard_tool::{Answer, Context, Question, ToolError, tool};
///
/// /// Deletes a branch.
/// #[tool]
/// async fn delete_branch(name: String, context: &Context) -> Result<String, ToolError> {
///     let question = Question::new(format!("Delete {name} although it is not merged?")).options(["delete", "keep"]);
///     match context.ask(question).await? {
///         Answer::Accepted(choice) if choice == "delete" => Ok(format!("{name} is deleted")),
///         Answer::Accepted(_) | Answer::Declined | Answer::Cancelled => Ok(format!("{name} is kept")),
///     }
/// }
/// ```
#[derive(Debug, Clone)]
pub struct Question<T = String> {
    elicitation: Elicitation,
    /// The answer is the only value of the content.
    is_one: bool,
    timeout: Option<Duration>,
    answer: PhantomData<fn() -> T>,
}

/// The client's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer<T> {
    Accepted(T),
    /// The person refused.
    Declined,
    /// The person dismissed the question without a choice.
    Cancelled,
}

impl Question<String> {
    /// A question that is answered with a text.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        let elicitation = Elicitation { message: message.into(), asks: one(json!({ "type": "string" })) };
        Self { elicitation, is_one: true, timeout: None, answer: PhantomData }
    }
}

fn one(schema: Value) -> Asks {
    Asks::Form { schema: json!({ "type": "object", "properties": { ONE: schema }, "required": [ONE] }) }
}

impl<T> Question<T> {
    /// One of these options is the answer.
    #[must_use]
    pub fn options<O: Into<String>>(self, options: impl IntoIterator<Item = O>) -> Question<String> {
        let options: Vec<String> = options.into_iter().map(Into::into).collect();
        self.asking(one(json!({ "type": "string", "enum": options })), true)
    }

    /// Any number of these options is the answer.
    #[must_use]
    pub fn several_of<O: Into<String>>(self, options: impl IntoIterator<Item = O>) -> Question<Vec<String>> {
        let options: Vec<String> = options.into_iter().map(Into::into).collect();
        let items = json!({ "type": "string", "enum": options });
        self.asking(one(json!({ "type": "array", "items": items, "uniqueItems": true })), true)
    }

    /// The answer is a `U`: an object with named values, or one value.
    #[must_use]
    pub fn schema<U: JsonSchema + DeserializeOwned>(self) -> Question<U> {
        let schema = schemars::schema_for!(U).to_value();
        if schema["type"] == "object" {
            self.asking(Asks::Form { schema }, false)
        } else {
            self.asking(one(schema), true)
        }
    }

    /// The answer is an object that fits this JSON Schema.
    #[must_use]
    pub fn json_schema(self, schema: Value) -> Question<Value> {
        self.asking(Asks::Form { schema }, false)
    }

    /// The person opens this page, and agrees or declines. What they do there is not part of the answer.
    #[must_use]
    pub fn url(self, url: impl Into<String>, id: impl Into<String>) -> Question<Value> {
        self.asking(Asks::Url { url: url.into(), id: id.into() }, false)
    }

    /// How long it waits for an answer; without it, for as long as the call may take.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }

    fn asking<U>(self, asks: Asks, is_one: bool) -> Question<U> {
        let elicitation = Elicitation { message: self.elicitation.message, asks };
        Question { elicitation, is_one, timeout: self.timeout, answer: PhantomData }
    }
}

impl<T: DeserializeOwned> Question<T> {
    fn read(&self, result: &[run::Content]) -> Result<Answer<T>, ToolError> {
        let unfit = |why: String| ToolError::new(format!("the client's answer is of no use: {why}"));
        let reply = self.elicitation.read(result);
        let reply = reply.map_err(|violations| {
            unfit(violations.first().map_or_else(String::new, |violation| violation.message.clone()))
        })?;
        let mut content = match reply {
            Reply::Accept(content) => content,
            Reply::Decline => return Ok(Answer::Declined),
            Reply::Cancel => return Ok(Answer::Cancelled),
        };
        let value = if self.is_one { content.remove(ONE).unwrap_or(Value::Null) } else { Value::Object(content) };
        serde_json::from_value(value).map(Answer::Accepted).map_err(|error| unfit(error.to_string()))
    }
}

impl Context {
    /// Asks the client of the call, and waits for the answer. Every endpoint shows the question as a call of its own
    /// that the client answers. While it waits, the attempt's own timeouts rest; the deadline of the call does not.
    ///
    /// A call asks at most 16 questions, those of its earlier attempts included, each of at most 32 KiB. If the worker
    /// is lost while a question is open, the question ends, and the next attempt, if there is one, asks again.
    ///
    /// # Errors
    /// Nobody answered in time, the question was cancelled, the call should stop, or the question cannot be asked.
    pub async fn ask<T: DeserializeOwned>(&self, question: Question<T>) -> Result<Answer<T>, ToolError> {
        if let Err(error) = question.elicitation.schema() {
            return Err(ToolError::new(format!("the schema of a question to the client is not usable: {error}")));
        }
        let arguments = question.elicitation.to_arguments();
        if arguments.len() > QUESTION_BYTES_MAX {
            return Err(ToolError::new(format!(
                "a question to the client is {} bytes, at most {QUESTION_BYTES_MAX} are taken: shorten it",
                arguments.len()
            )));
        }
        let stops = || ToolError::new("the call is to stop, so the client is asked no more");
        let asked = self.execution.asker.ask(arguments, question.timeout);
        let answer = tokio::select! {
            biased;
            answer = asked => answer.map_err(|why| ToolError::retryable(format!("the client cannot be asked: {why}")))?,
            () = self.cancelled() => return Err(stops()),
        };
        match answer {
            UserAnswer::Answered(Ok(result)) => question.read(&result),
            UserAnswer::Answered(Err(error)) => {
                Err(ToolError::new(format!("the client could not answer: {}", error.message)))
            }
            UserAnswer::Unanswered(Unanswered::Expired) => {
                Err(ToolError::needs(format!("an answer to {:?}: none came in time", question.elicitation.message)))
            }
            UserAnswer::Unanswered(Unanswered::Cancelled { reason }) => {
                Err(ToolError::new(format!("the question to the client was cancelled: {reason}")))
            }
            UserAnswer::Refused(why) => Err(ToolError::new(format!("the client cannot be asked: {why}"))),
            UserAnswer::Open => Err(ToolError::new("the question to the client has not ended")),
        }
    }
}

/// A question as the executing program passes it on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AskRequest {
    /// Which of the attempt's questions it is, from 1.
    pub number: u16,
    pub arguments: Bytes,
    pub timeout: Option<Duration>,
}

type Asking = Pin<Box<dyn Future<Output = Result<UserAnswer, String>> + Send>>;

/// The way from a tool to its client: asks a question and returns when it has ended. Clones count together.
#[derive(Clone)]
pub struct Asker {
    ask: Arc<dyn Fn(AskRequest) -> Asking + Send + Sync>,
    next: Arc<AtomicU16>,
    waits: Waits,
}

impl fmt::Debug for Asker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asker").field("next", &self.next).finish_non_exhaustive()
    }
}

impl Asker {
    pub fn new(ask: impl Fn(AskRequest) -> Asking + Send + Sync + 'static) -> Self {
        Self { ask: Arc::new(ask), next: Arc::new(AtomicU16::new(1)), waits: Waits::default() }
    }

    /// The time in which the attempt waits for answers.
    #[must_use]
    pub fn waits(&self) -> Waits {
        self.waits.clone()
    }

    async fn ask(&self, arguments: Bytes, timeout: Option<Duration>) -> Result<UserAnswer, String> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let _waiting = self.waits.begin();
        (self.ask)(AskRequest { number, arguments, timeout }).await
    }
}

/// How long an attempt has waited for answers, which is none of its own time.
#[derive(Debug, Clone)]
pub struct Waits(Arc<watch::Sender<Waited>>);

/// The state of [`Waits`].
#[derive(Debug, Clone, Copy, Default)]
pub struct Waited {
    open: u32,
    since: Option<Instant>,
    earlier: Duration,
}

impl Default for Waits {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(Waited::default())))
    }
}

impl Waits {
    /// Resolves with each change.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Waited> {
        self.0.subscribe()
    }

    /// The state now.
    #[must_use]
    pub fn now(&self) -> Waited {
        *self.0.borrow()
    }

    fn begin(&self) -> Waiting<'_> {
        self.0.send_modify(|waited| {
            waited.open += 1;
            waited.since.get_or_insert_with(Instant::now);
        });
        Waiting(self)
    }
}

impl Waited {
    /// Whether it waits now.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.since.is_some()
    }

    /// How long it has waited in all.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.earlier + self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

/// Waits for an answer until it is dropped.
struct Waiting<'a>(&'a Waits);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.0.send_modify(|waited| {
            waited.open -= 1;
            if waited.open == 0 {
                *waited = Waited { open: 0, since: None, earlier: waited.total() };
            }
        });
    }
}
