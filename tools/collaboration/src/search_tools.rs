//! Finds tools by words, so that a model needs only a few definitions at a time.

use client::v1;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use toolyard_tool::{About, Context, Output, Tool, ToolError};

use crate::fleet::{Fleet, refused};

/// The name of the tool. Exported definitions never defer it.
pub const SEARCH_TOOLS: &str = "search_tools";
/// Tools that a search finds unless it sets another number, and at most.
const FOUND: u32 = 5;
const FOUND_MAX: u32 = 20;
const QUERY_BYTES_MAX: usize = 512;

/// Finds tools that this worker's key may call.
#[derive(Debug, Clone)]
pub struct SearchTools(Fleet);

/// A search for tools.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolQuery {
    /// Words for what the tool should do, as "read a file"
    query: String,
    /// Only tools of this category
    category: Option<String>,
    /// Only tools with all of these tags
    #[serde(default)]
    tags: Vec<String>,
    /// How many tools to return, 1 to 20; 5 if not given
    #[schemars(range(min = 1, max = FOUND_MAX))]
    limit: Option<u32>,
}

impl SearchTools {
    /// A search over the tools of a fleet.
    #[must_use]
    pub fn new(fleet: Fleet) -> Self {
        Self(fleet)
    }
}

impl Tool for SearchTools {
    const NAME: &'static str = SEARCH_TOOLS;
    type Input = ToolQuery;

    fn about(&self) -> About {
        About::new(
            "Finds tools by words, the best first, with their descriptions and the JSON Schemas of their arguments. \
             Use it if no tool that you know does what is needed.",
        )
        .read_only()
        .category("collaboration")
        .side_effect_scope("NONE")
        .title("Search tools")
    }

    async fn call(&self, _: &Context, search: ToolQuery) -> Result<Output, ToolError> {
        let ToolQuery { query, category, tags, limit } = search;
        if query.trim().is_empty() || query.len() > QUERY_BYTES_MAX {
            return Err(ToolError::bad_input("/query", format!("it needs 1 to {QUERY_BYTES_MAX} bytes of words")));
        }
        let request = v1::ListToolsRequest {
            query,
            category: category.unwrap_or_default(),
            tags,
            page_size: i32::try_from(limit.unwrap_or(FOUND)).unwrap_or(i32::MAX),
            ..v1::ListToolsRequest::default()
        };
        let found = self.0.client().await?.tools(request).await.map_err(refused)?;
        let tools: Vec<Value> = found.tools.iter().map(shown).collect();
        Output::json(&json!({ "tools": tools }))
    }
}

fn shown(tool: &v1::Tool) -> Value {
    let schema: Value = serde_json::from_str(&tool.input_schema).unwrap_or(Value::Null);
    json!({ "name": tool.name, "description": tool.description, "input_schema": schema })
}
