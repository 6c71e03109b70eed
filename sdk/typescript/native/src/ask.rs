//! Questions of a tool to its client.

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use toolyard_tool::{Answer, Context, Question, ToolError};

use crate::error::{invalid, thrown};

/// A question, as JavaScript has it. Without options, a schema and a page it is answered with a text.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Asked {
    message: String,
    options: Option<Vec<String>>,
    #[serde(default)]
    several: bool,
    schema: Option<Value>,
    url: Option<String>,
    url_id: Option<String>,
    timeout_ms: Option<u64>,
}

pub(crate) async fn ask(context: &Context, question: &str) -> napi::Result<String> {
    let asked: Asked = serde_json::from_str(question).map_err(invalid)?;
    let timeout = asked.timeout_ms.map(Duration::from_millis);
    let question = Question::new(asked.message);
    let answer = match (asked.options, asked.schema, asked.url) {
        (Some(options), None, None) if asked.several => put(context, question.several_of(options), timeout).await,
        (Some(options), None, None) => put(context, question.options(options), timeout).await,
        (None, Some(schema), None) => put(context, question.json_schema(schema), timeout).await,
        (None, None, Some(url)) => put(context, question.url(url, asked.url_id.unwrap_or_default()), timeout).await,
        (None, None, None) => put(context, question, timeout).await,
        _ => return Err(invalid("a question has options, a schema or a url, and not two of them")),
    };
    answer.map(|answer| answer.to_string()).map_err(|error| thrown(&error))
}

async fn put<T>(context: &Context, question: Question<T>, timeout: Option<Duration>) -> Result<Value, ToolError>
where
    T: DeserializeOwned + Serialize,
{
    let question = match timeout {
        Some(timeout) => question.timeout(timeout),
        None => question,
    };
    Ok(match context.ask(question).await? {
        Answer::Accepted(value) => json!({ "action": "accept", "value": value }),
        Answer::Declined => json!({ "action": "decline" }),
        Answer::Cancelled => json!({ "action": "cancel" }),
    })
}
