//! `tools/list`: the tools that the caller may call, by their names, in pages.

use std::collections::HashMap;

use formats::mcp::tools::definition;
use formats::tools::{Format, names};
use proto::v1;
use serde::Deserialize;

use super::client::Client;
use super::message::{INVALID_PARAMS, Request, RpcError};
use crate::api::Api;
use crate::auth::callers::Role;

/// Tools in a page.
const PAGE: i32 = 250;
/// How long a client may keep a page: changes are reported too, but a client need not listen.
const TTL_MS: u64 = 5_000;

#[derive(Deserialize)]
struct Params {
    cursor: Option<String>,
}

pub(super) fn tools(api: &Api, client: &Client, request: &Request) -> Result<String, RpcError> {
    api.runs.caller.must(Role::Read).map_err(crate::admission::error::RequestError::from)?;
    let Params { cursor } = request.read()?;
    let page_token = cursor.unwrap_or_default();
    let listed = v1::ListToolsRequest { page_size: PAGE, page_token, ..v1::ListToolsRequest::default() };
    let page = api.list_tools(&listed);
    let page = page.map_err(|error| RpcError::new(INVALID_PARAMS, format!("cursor: {}", error.message)))?;
    // A name is the same on every page: it depends on all names.
    let registry = std::sync::Arc::clone(&api.runs.registry.borrow());
    let all = registry.catalog_of(api.runs.caller.tenant()).listed();
    let exported: HashMap<&str, String> = all.iter().copied().zip(names(&all, Format::Mcp)).collect();
    let tools = page.tools.iter().map(|tool| {
        let name = exported.get(tool.name.as_str()).unwrap_or(&tool.name);
        definition(tool, name, client.era)
    });
    let tools: Vec<String> = tools.collect();
    let mut members = vec![format!(r#""tools":[{}]"#, tools.join(","))];
    if !page.next_page_token.is_empty() {
        members.push(format!(r#""nextCursor":{}"#, serde_json::Value::from(page.next_page_token)));
    }
    members.extend(cache(api, client, TTL_MS));
    Ok(members.join(","))
}

/// How long a client may keep a result, and whether others may see it.
pub(super) fn cache(api: &Api, client: &Client, ttl_ms: u64) -> Option<String> {
    let scope = if api.runs.callers.are_known() { "private" } else { "public" };
    client.is_modern().then(|| format!(r#""ttlMs":{ttl_ms},"cacheScope":"{scope}""#))
}
