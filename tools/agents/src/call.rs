//! A call of an agent: opens its run, or goes on with it, and keeps it going until the model has answered.

use std::borrow::Cow;
use std::time::Duration;

use client::agent::{Agent, AgentError, Limits, Start, TOKENS_LEFT, Template, with_output_schema};
use client::{Client, v1};
use collaboration::{Fleet, below, child_id, parent, parent_call, refused, stop_with_parent};
use run::{CallError, ErrorKind};
use serde_json::{Map, Value};
use tokio::time::Instant;
use toolyard_tool::{AGENT_TEXT, AnyTool, Context, Output, ToolError};

use crate::INPUT;
use crate::file::{Instruction, OF_CONTEXT, Settings};
use crate::model::{Model, Request};

/// Between the texts of two messages.
const BETWEEN: &str = "\n\n";

/// The tool that an agent is.
#[derive(Debug)]
pub(crate) struct AgentTool {
    pub(crate) name: String,
    pub(crate) settings: Settings,
    pub(crate) model: Model,
    /// Its input is a text.
    pub(crate) takes_text: bool,
    pub(crate) fleet: Fleet,
}

impl AnyTool for AgentTool {
    async fn call(&self, context: &Context, arguments: Value) -> Result<Output, ToolError> {
        // It is large, and a worker may have thousands.
        Box::pin(self.answer(context, arguments)).await.map_err(|error| self.named(error))
    }
}

impl AgentTool {
    async fn answer(&self, context: &Context, arguments: Value) -> Result<Output, ToolError> {
        let values = Values { arguments: &arguments, context: self.context(context)? };
        let (instruction, input) = (self.instruction(&values)?, self.input(&values)?);
        let opening = self.model.opening(&instruction, &input)?;
        let client = self.fleet.client().await?;
        let start = Start { opening, ..self.start(context, &client).await? };
        let mut agent = Agent::open(&client, start).await.map_err(failed)?;
        let run_id = agent.run_id().to_owned();
        let done = tokio::select! {
            biased;
            () = context.cancelled() => {
                stop_with_parent(context, &client, &run_id).await;
                return Err(ToolError::new("the call was stopped"));
            }
            done = self.turns(context, &mut agent, (&*instruction, &*input)) => done,
        };
        match done {
            Ok(text) => {
                agent.close().await.map_err(failed)?;
                let output = self.output(&text)?;
                match &self.settings.output_key {
                    Some(key) => output.with_state(key, &text),
                    None => Ok(output),
                }
            }
            Err(error) => {
                if context.is_cancelled() {
                    stop_with_parent(context, &client, &run_id).await;
                } else if !error.is_retryable() {
                    // Nothing goes on with it. A coordinator does it if this fails, as after the last attempt.
                    drop(client.cancel_run(&run_id, "the agent of this run failed").await);
                }
                Err(error)
            }
        }
    }

    /// The run of this call. It sees nothing of the call's own run: neither its context nor its state.
    async fn start(&self, context: &Context, client: &Client) -> Result<Start, ToolError> {
        let metadata = below(context)?;
        let parent = parent(context, client).await?;
        // As long as the call: another attempt goes on with it.
        let left = context.call_deadline().saturating_duration_since(Instant::now());
        let timeout = left.max(Duration::from_secs(1));
        let rules = v1::RunRules { confirmation: self.settings.confirmation.into(), ..v1::RunRules::default() };
        let run = v1::CreateRunRequest {
            tenant: parent.tenant,
            request_id: child_id(context),
            parent: Some(parent_call(context)),
            timeout: timeout.try_into().ok(),
            rules: Some(rules),
            store: Some(context.is_stored()),
            ..v1::CreateRunRequest::default()
        };
        let (form, tools) = (self.model.form(), self.settings.tools.clone());
        // What an agent above may still use is the most for all below it.
        let above = context.metadata().get(TOKENS_LEFT).and_then(|left| left.parse::<u64>().ok());
        let tokens = self.settings.limits.tokens.into_iter().chain(above).min();
        let limits = Limits { tokens, ..self.settings.limits };
        Ok(Start { run, form, tools, metadata, limits, ..Start::default() })
    }

    /// Goes on until the model has answered, and returns its text.
    async fn turns(
        &self,
        context: &Context,
        agent: &mut Agent,
        (instruction, input): (&str, &str),
    ) -> Result<String, ToolError> {
        let mut before = "";
        // The output of an attempt replaces that of the one before.
        for text in agent.texts().filter(|text| !text.is_empty()) {
            context.text_on(AGENT_TEXT, format!("{before}{text}")).await?;
            before = BETWEEN;
        }
        loop {
            self.report(context, agent).await?;
            let Some(messages) = agent.next().await.map_err(failed)? else { break };
            let tools = agent.definitions();
            let request = Request { instruction, input, messages: &messages, tools };
            let said = self.model.ask(context, &request, before).await?;
            if !client::agent::text_of(&said.message).is_empty() {
                before = BETWEEN;
            }
            agent.store(said).await.map_err(failed)?;
        }
        match agent.text() {
            text if text.trim().is_empty() => Err(ToolError::new("the model's answer has no text")),
            text => Ok(text),
        }
    }

    /// The values of its call's context that its templates name.
    fn context(&self, context: &Context) -> Result<Map<String, Value>, ToolError> {
        let value = |key: &str| Ok((key.to_owned(), context.given(key)?));
        self.settings.context_keys().into_iter().map(value).collect()
    }

    /// What the model is told before everything else.
    fn instruction<'a>(&'a self, values: &Values<'_>) -> Result<Cow<'a, str>, ToolError> {
        match &self.settings.instruction {
            Instruction::Text(text) => Ok(text.into()),
            Instruction::Template(template) => values.put_in(template, "instruction_template").map(Cow::Owned),
        }
    }

    /// What the user says to the model.
    fn input(&self, values: &Values<'_>) -> Result<String, ToolError> {
        let arguments = values.arguments;
        let input = match (&self.settings.input_template, arguments[INPUT].as_str().filter(|_| self.takes_text)) {
            (Some(template), _) => values.put_in(template, "input_template")?,
            (None, Some(text)) => text.to_owned(),
            (None, None) => arguments.to_string(),
        };
        Ok(match &self.settings.output_schema {
            Some(schema) => with_output_schema(&input, schema),
            None => input,
        })
    }

    /// The result of an answer.
    fn output(&self, text: &str) -> Result<Output, ToolError> {
        if self.settings.output_schema.is_none() {
            return Ok(text.into());
        }
        let answer: Value = serde_json::from_str(text)
            .map_err(|error| ToolError::new(format!("its answer is no JSON ({error}): {text}")))?;
        Output::json(&answer)
    }

    /// Reports the turns so far, and the run, so that it can be watched.
    async fn report(&self, context: &Context, agent: &Agent) -> Result<(), ToolError> {
        let turns = |count: usize| u32::try_from(count).map_or(f64::MAX, f64::from);
        let max = f64::from(self.settings.limits.turns);
        context.progress(turns(agent.turns()), Some(max), client::made_run(agent.run_id())).await
    }

    /// An error that says which agent it is of.
    fn named(&self, error: ToolError) -> ToolError {
        let error = CallError::from(error);
        let message = format!("the agent {:?} failed: {}", self.name, error.message);
        ToolError::of_call(CallError { message, ..error })
    }
}

/// The values for the templates of an agent.
struct Values<'a> {
    arguments: &'a Value,
    context: Map<String, Value>,
}

impl Values<'_> {
    fn put_in(&self, template: &Template, field: &str) -> Result<String, ToolError> {
        let rendered = template.render(|name| match name.strip_prefix(OF_CONTEXT) {
            Some(key) => self.context.get(key),
            None => self.arguments.get(name),
        });
        rendered.map_err(|error| {
            let places = "values are arguments of the call, and with `context.` before their names of its context";
            ToolError::needs(format!("{field}: {error}; {places}"))
        })
    }
}

/// A coordinator that is away may be there for another attempt. The rest fails again.
fn failed(error: AgentError) -> ToolError {
    match error {
        AgentError::Request(error) => refused(error),
        AgentError::Turns { .. } | AgentError::Tokens { .. } | AgentError::TooLong { .. } => {
            ToolError::of_call(CallError::new(ErrorKind::LimitExceeded, error.to_string()))
        }
        // Its worker may come back.
        AgentError::Tool(..) => ToolError::retryable(error.to_string()),
        AgentError::Turn(_) | AgentError::Limits { .. } | AgentError::Ended(_) | AgentError::Foreign { .. } => {
            ToolError::new(error.to_string())
        }
    }
}
