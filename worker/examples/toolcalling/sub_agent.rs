//! An agent as a tool: it answers with a model of its own, at any service that speaks Chat Completions.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use reqwest::header::AUTHORIZATION;
use serde::Deserialize;
use serde_json::json;
use toolyard_tool::{InvalidTool, Table, tool};

use crate::endpoint::Endpoint;
use crate::settings::SubAgentSettings;

/// How long a model may think.
const TIMEOUT: Duration = Duration::from_secs(120);
const INSTRUCTION: &str = "You are an agent that another agent asks. Answer briefly, and say what you do not know.";

/// The agent.
#[derive(Debug)]
pub(crate) struct Agent {
    endpoint: Endpoint,
    model: String,
}

#[derive(Deserialize)]
struct Completion {
    choices: Vec<Choice>,
}

#[derive(Deserialize)]
struct Choice {
    message: Message,
}

#[derive(Deserialize)]
struct Message {
    content: String,
}

impl Agent {
    pub(crate) fn new(settings: &SubAgentSettings) -> anyhow::Result<Self> {
        let key = settings.api_key.as_ref().context("the sub-agent needs api-key")?;
        let key = key.read().context("the key of the model cannot be read")?;
        let header = (AUTHORIZATION, format!("Bearer {key}"));
        let endpoint = Endpoint::new(&settings.base_url, "/v1/chat/completions", header, TIMEOUT)?;
        Ok(Self { endpoint, model: settings.model.clone() })
    }
}

/// Gives a task to another agent, which answers with a model of its own.
#[tool(name = "subAgent", read_only, open_world, category = "sample")]
async fn sub_agent(
    agent: Arc<Agent>,
    /// The task, with everything that the agent must know
    task: String,
) -> anyhow::Result<String> {
    let messages = json!([{ "role": "system", "content": INSTRUCTION }, { "role": "user", "content": task }]);
    let body = json!({ "model": agent.model, "messages": messages });
    let Completion { choices } = agent.endpoint.post(&body).await?;
    let answer = choices.into_iter().next().context("the model gave no answer")?;
    Ok(answer.message.content)
}

pub(crate) fn host(table: Table, agent: Agent) -> Result<Table, InvalidTool> {
    table.host(SubAgent(Arc::new(agent)))
}
