//! Searches documents through a backend that speaks JSON, as a whole or piece by piece (docs/howto/backends.md).

use origins::http::{Answer, Service};
use run::limit::RESULT_BYTES_MAX;
use run::{CallError, ErrorKind};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::backends::until_cancelled;
use super::scope;
use toolyard_tool::{About, Context, Output, Permission, Tool, ToolError};

/// Passages of a search, unless a call asks for more or fewer, and at most.
const RESULTS: u32 = 10;
const RESULTS_MAX: u32 = 50;
/// Characters of a query.
const QUERY_MAX: u32 = 4000;
/// Files that a search is confined to.
const FILES_MAX: u32 = 100;

/// Searches documents.
#[derive(Debug)]
pub struct FileSearch {
    service: Service,
}

/// A search.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Passages {
    /// What to search for
    #[schemars(length(min = 1, max = QUERY_MAX))]
    query: String,
    /// How many passages
    #[serde(default = "results")]
    #[schemars(range(min = 1, max = RESULTS_MAX))]
    max_results: u32,
    /// Search only these files
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = FILES_MAX))]
    file_ids: Vec<String>,
    /// The answer that the backend writes of the passages is the result
    #[serde(default, rename = "final")]
    is_final: bool,
}

/// What a backend answers, or a piece of it. It may say more.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Answered {
    results: Vec<Passage>,
    /// An answer that it wrote of the passages, or a piece of it.
    text: String,
    #[serde(rename = "final")]
    is_final: bool,
}

/// A passage that was found.
#[derive(Debug, Deserialize, Serialize)]
struct Passage {
    file_id: String,
    #[serde(default)]
    filename: String,
    #[serde(default)]
    score: f64,
    text: String,
}

impl Passage {
    /// About as many as it takes in memory.
    fn bytes(&self) -> usize {
        size_of::<Self>() + self.file_id.len() + self.filename.len() + self.text.len()
    }
}

fn results() -> u32 {
    RESULTS
}

impl FileSearch {
    /// Searches with this backend.
    #[must_use]
    pub const fn new(service: Service) -> Self {
        Self { service }
    }

    async fn search(&self, context: &Context, body: Map<String, Value>) -> Result<Answered, ToolError> {
        let answer = self.service.ask(context, body).await?;
        match answer.is_streamed() {
            true => self.follow(context, answer).await,
            false => self.read(answer.json().await?),
        }
    }

    fn read(&self, value: Value) -> Result<Answered, ToolError> {
        let wrong = |error| self.service.malformed(&format!("it is no list of passages: {error}"));
        if !value.is_object() {
            return Err(self.service.malformed("it is no object with results"));
        }
        serde_json::from_value(value).map_err(wrong)
    }

    /// Sends the pieces of the answer's text as they come.
    async fn follow(&self, context: &Context, mut answer: Answer<'_>) -> Result<Answered, ToolError> {
        let (mut all, mut bytes) = (Answered::default(), 0);
        while let Some(piece) = answer.next().await? {
            let Answered { results, text, is_final } = self.read(piece.data)?;
            bytes += text.len() + results.iter().map(Passage::bytes).sum::<usize>();
            if bytes > RESULT_BYTES_MAX {
                let message = format!("the backend sent more than {RESULT_BYTES_MAX} bytes: ask for fewer passages");
                return Err(ToolError::of_call(CallError::new(ErrorKind::OutputTooLarge, message)));
            }
            if !text.is_empty() {
                context.text(text.as_str()).await?;
            }
            all.results.extend(results);
            all.text.push_str(&text);
            all.is_final |= is_final;
        }
        Ok(all)
    }
}

impl Tool for FileSearch {
    const NAME: &'static str = "file_search";
    type Input = Passages;

    fn about(&self) -> About {
        let text = "Searches documents for passages. The result is JSON: passages with file_id, filename, score and \
                    text, the best first. With final the result is an answer that is made of them, as text, and then \
                    the passages.";
        let about = About::new(text).read_only().open_world().streaming().permission(Permission::Read);
        about.category("search").side_effect_scope(scope::NETWORK)
    }

    async fn call(&self, context: &Context, input: Passages) -> Result<Output, ToolError> {
        let Value::Object(body) = serde_json::to_value(&input)? else { return Err(ToolError::new("it is no object")) };
        let mut answered = until_cancelled(context, self.search(context, body)).await?;
        answered.results.truncate(usize::try_from(input.max_results).unwrap_or(usize::MAX));
        let passages = Output::json(&json!({ "query": input.query, "results": answered.results }))?;
        match answered.is_final || input.is_final {
            true if answered.text.is_empty() => Err(self.service.malformed("it is final, and has no text")),
            true => Ok(Output::from(answered.text).and(passages)),
            false => Ok(passages),
        }
    }
}
