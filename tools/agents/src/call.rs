//! A call of an agent: opens its run, or goes on with it, and keeps it going until the model has answered.

use std::time::Duration;

use client::agent::{Agent, AgentError, Start};
use client::{Client, v1};
use collaboration::{Fleet, below, child_id, parent, refused, stop_with_parent};
use run::{CallError, ErrorKind};
use serde_json::Value;
use tokio::time::Instant;
use toolyard_tool::{AGENT_TEXT, AnyTool, Context, Output, ToolError};

use crate::INPUT;
use crate::file::Settings;
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
        let client = self.fleet.client().await?;
        let start = self.start(context, &client).await?;
        let mut agent = Agent::open(&client, start).await.map_err(failed)?;
        let run_id = agent.run_id().to_owned();
        let done = tokio::select! {
            biased;
            () = context.cancelled() => {
                stop_with_parent(context, &client, &run_id).await;
                return Err(ToolError::new("the call was stopped"));
            }
            done = self.turns(context, &mut agent, arguments) => done,
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
                    // Nothing goes on with it. It ends at its own deadline if this fails, as after the last attempt.
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
            timeout: timeout.try_into().ok(),
            rules: Some(rules),
            store: Some(context.is_stored()),
            ..v1::CreateRunRequest::default()
        };
        let (form, tools) = (self.model.form(), self.settings.tools.clone());
        Ok(Start { run, form, tools, metadata, limits: self.settings.limits })
    }

    /// Goes on until the model has answered, and returns its text.
    async fn turns(&self, context: &Context, agent: &mut Agent, arguments: Value) -> Result<String, ToolError> {
        let input = self.input(&arguments);
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
            let instruction = &self.settings.instruction;
            let request = Request { instruction, input: &input, messages: &messages, tools };
            let said = self.model.ask(context, &request, before).await?;
            if !client::agent::text_of(&said.message).is_empty() {
                before = BETWEEN;
            }
            agent.store(said).await.map_err(failed)?;
        }
        match agent.text() {
            text if text.trim().is_empty() => Err(ToolError::new("the model's last message has no text")),
            text => Ok(text),
        }
    }

    /// What the user says to the model.
    fn input(&self, arguments: &Value) -> String {
        let mut input = match arguments[INPUT].as_str().filter(|_| self.takes_text) {
            Some(text) => text.to_owned(),
            None => arguments.to_string(),
        };
        if let Some(schema) = &self.settings.output_schema {
            input.push_str("\n\nAnswer with JSON alone, without a fence, that fits this JSON Schema:\n");
            input.push_str(&schema.to_string());
        }
        input
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
