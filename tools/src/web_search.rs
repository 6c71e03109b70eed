//! Searches the web through a backend that speaks JSON: the operator's file says where it is (docs/howto/backends.md).

use origins::http::Service;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::backends::{beginning, until_cancelled};
use super::scope;
use toolyard_tool::{About, Context, Output, Permission, Tool, ToolError};

/// Results of a search, unless a call asks for more or fewer, and at most.
const RESULTS: u32 = 5;
const RESULTS_MAX: u32 = 20;
/// Bytes of what the result has of a page.
const SNIPPET_BYTES_MAX: usize = 4 * 1024;
/// Characters of a query.
const QUERY_MAX: u32 = 1000;

/// Searches the web.
#[derive(Debug)]
pub struct WebSearch {
    service: Service,
}

/// A search.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WebQuery {
    /// What to search for
    #[schemars(length(min = 1, max = QUERY_MAX))]
    query: String,
    /// How many results
    #[serde(default = "results")]
    #[schemars(range(min = 1, max = RESULTS_MAX))]
    max_results: u32,
}

/// What a backend answers. It may say more.
#[derive(Debug, Deserialize)]
struct Answered {
    answer: Option<String>,
    results: Vec<Page>,
}

/// A page that was found.
#[derive(Debug, Deserialize)]
struct Page {
    #[serde(default)]
    title: String,
    url: String,
    #[serde(default)]
    content: String,
}

/// A page in a result.
#[derive(Debug, Serialize)]
struct Citation<'a> {
    index: usize,
    title: &'a str,
    url: &'a str,
    snippet: &'a str,
}

fn results() -> u32 {
    RESULTS
}

impl WebSearch {
    /// Searches with this backend.
    #[must_use]
    pub const fn new(service: Service) -> Self {
        Self { service }
    }
}

impl Tool for WebSearch {
    const NAME: &'static str = "web_search";
    type Input = WebQuery;

    fn about(&self) -> About {
        let text = "Searches the web. The result is JSON with numbered pages (index, title, url, snippet), and the \
                    same as text: cite pages by their number.";
        let about = About::new(text).read_only().open_world().permission(Permission::Read);
        about.category("search").side_effect_scope(scope::NETWORK)
    }

    async fn call(&self, context: &Context, input: WebQuery) -> Result<Output, ToolError> {
        let WebQuery { query, max_results } = input;
        let body = [("query", json!(query)), ("max_results", json!(max_results))];
        let body: Map<String, Value> = body.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let answered = until_cancelled(context, async { self.service.ask(context, body).await?.json().await }).await?;
        let answered: Answered = serde_json::from_value(answered)
            .map_err(|error| self.service.malformed(&format!("it is no list of results: {error}")))?;
        let pages = answered.results.iter().take(usize::try_from(max_results).unwrap_or(usize::MAX));
        let citations: Vec<Citation<'_>> = pages.zip(1..).map(|(page, index)| page.citation(index)).collect();
        let mut summary = json!({ "query": query, "results": citations });
        let mut text = String::new();
        if let Some(answer) = answered.answer.filter(|answer| !answer.is_empty()) {
            text.push_str(&format!("{answer}\n\n"));
            summary["answer"] = json!(answer);
        }
        for Citation { index, title, url, snippet } in &citations {
            text.push_str(&format!("[{index}] {title}\n{url}\n{snippet}\n\n"));
        }
        let text = if text.is_empty() { "Nothing was found." } else { text.trim_end() };
        Ok(Output::json(&summary)?.and(text.into()))
    }
}

impl Page {
    fn citation(&self, index: usize) -> Citation<'_> {
        let Self { title, url, content } = self;
        let title = if title.is_empty() { url } else { title };
        Citation { index, title, url, snippet: beginning(content, SNIPPET_BYTES_MAX) }
    }
}
