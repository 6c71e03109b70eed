//! Tools of a request that are executed neither by workers nor by the client: the model's vendor executes them.

use std::collections::BTreeMap;

use serde_json::Value;
use serde_json::value::RawValue;

use crate::openai::InputError;
use crate::openai::body::readable;

/// The body of a request without such tools. All other members are passed on unchanged.
///
/// # Errors
/// The tools cannot be read. Any other error is left to the reader of the request.
pub fn without_foreign_tools(body: &[u8]) -> Result<Option<Vec<u8>>, InputError> {
    let Ok(mut members) = serde_json::from_slice::<BTreeMap<String, &RawValue>>(body) else { return Ok(None) };
    let Some(tools) = members.get("tools") else { return Ok(None) };
    let Value::Array(mut tools) = readable(tools, "/tools")? else { return Ok(None) };
    tools.retain(|tool| !is_foreign(tool));
    let tools = serde_json::value::to_raw_value(&tools);
    let Ok(tools) = &tools else { return Ok(None) };
    members.insert("tools".to_owned(), tools);
    Ok(serde_json::to_vec(&members).ok())
}

fn is_foreign(tool: &Value) -> bool {
    match tool["type"].as_str() {
        Some("mcp") => ["server_url", "connector_id"].iter().any(|member| !tool[*member].is_null()),
        Some("shell") => !matches!(tool["environment"]["type"].as_str(), None | Some("local")),
        Some("function" | "custom" | "local_shell" | "apply_patch") | None => false,
        Some(_) => true,
    }
}
