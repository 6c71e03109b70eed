//! The tools `mcp_client` and `mcp_tools`: the tools of some servers are called and listed by name, instead of being
//! advertised one by one. A model that uses a few of hundreds then reads two descriptions.
//!
//! Only servers of the worker are reached, and of their tools only those that it would host. A tool whose calls a
//! person must approve stays a tool of its own, because an approval belongs to the name that is called.

use std::sync::Arc;
use std::time::Duration;

use run::{CallError, Manifest, Origin, Policy, Violation};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use toolyard_tool::{About, AnyTool, Context, InvalidTool, Output, Table, ToolError};

use super::config::Patterns;
use super::server::Server;

/// The name of the tool that calls.
const CALL: &str = "mcp_client";
/// The name of the tool that lists. It is another one because approvals look at the tool, and listing needs none.
const LIST: &str = "mcp_tools";
/// Bytes of a list, which is then no object beside the log. Tools beyond it are counted.
const LIST_BYTES_MAX: usize = 192 * 1024;
/// Names that an error about an unknown tool has.
const NAMES_MAX: usize = 50;

/// The servers that are reached by name.
#[derive(Debug, Clone)]
struct Servers {
    servers: Arc<Vec<Arc<Server>>>,
    /// Patterns of the names of tools that the worker does not host.
    disabled: Patterns,
}

#[derive(Debug)]
struct McpClient(Servers);

#[derive(Debug)]
struct McpTools(Servers);

/// The arguments of `mcp_client`.
#[derive(Deserialize)]
struct Wanted {
    server: String,
    tool: String,
    #[serde(default)]
    arguments: Map<String, Value>,
}

/// The arguments of `mcp_tools`.
#[derive(Deserialize)]
struct Listed {
    server: String,
    tool: Option<String>,
}

/// Both tools, for at least one server.
pub(super) fn table(servers: Vec<Arc<Server>>, disabled: Patterns) -> Result<Table, InvalidTool> {
    let names: Vec<&str> = servers.iter().map(|server| server.name()).collect();
    let (call, list) = (call_schema(&names), list_schema(&names));
    let names = names.join(", ");
    let longest = servers.iter().map(|server| server.call_timeout()).max().unwrap_or(Policy::ATTEMPT_TIMEOUT);
    let (calls, lists) = (about_call(&names, longest, servers.iter().any(|s| s.is_program())), about_list(&names));
    let servers = Servers { servers: Arc::new(servers), disabled };
    let table = Table::new().host_any(CALL, call.to_string(), calls, McpClient(servers.clone()))?;
    table.host_any(LIST, list.to_string(), lists, McpTools(servers))
}

fn about_call(names: &str, timeout: Duration, uses_machine: bool) -> About {
    let text = format!("Calls a tool of an MCP server. The servers: {names}. {LIST} lists the tools of one.");
    let about = About::new(text).destructive().open_world().attempt_timeout(timeout).origin(Origin::Mcp);
    let about = about.category("mcp").tag("mcp").side_effect_scope("NETWORK");
    if uses_machine { about.uses_machine() } else { about }
}

fn about_list(names: &str) -> About {
    let text = format!(
        "Lists the tools of an MCP server, with their descriptions and the schemas of their arguments. {CALL} calls \
         them. The servers: {names}."
    );
    About::new(text).read_only().origin(Origin::Mcp).category("mcp").tag("mcp").side_effect_scope("NONE")
}

fn call_schema(names: &[&str]) -> Value {
    json!({ "type": "object", "additionalProperties": false, "required": ["server", "tool"], "properties": {
        "server": { "type": "string", "enum": names, "description": "The server" },
        "tool": { "type": "string", "minLength": 1, "description": "The name of its tool" },
        "arguments": { "type": "object", "description": "The arguments, which fit the tool's input_schema" },
    } })
}

fn list_schema(names: &[&str]) -> Value {
    let tool = "Only the tools with this name; `*` stands for any characters";
    json!({ "type": "object", "additionalProperties": false, "required": ["server"], "properties": {
        "server": { "type": "string", "enum": names, "description": "The server" },
        "tool": { "type": "string", "minLength": 1, "description": tool },
    } })
}

impl Servers {
    fn get(&self, name: &str) -> Result<&Arc<Server>, ToolError> {
        let server = self.servers.iter().find(|server| server.name() == name);
        server.ok_or_else(|| ToolError::bad_input("/server", format!("there is no MCP server {name:?} here")))
    }

    /// The tools of a server that may be reached, each as a table of its own. Waits for a server that is not running.
    async fn tools(&self, context: &Context, server: &Server) -> Result<Vec<Table>, ToolError> {
        let listed = server.listed(context).await?;
        let enabled =
            |table: &&Table| manifest_of(table).is_some_and(|tool| !self.disabled.matches(tool.name.as_str()));
        Ok(listed.iter().filter(enabled).cloned().collect())
    }
}

impl AnyTool for McpClient {
    async fn call(&self, context: &Context, arguments: Value) -> Result<Output, ToolError> {
        let Wanted { server, tool, arguments } = serde_json::from_value(arguments)?;
        let server = self.0.get(&server)?;
        let tools = self.0.tools(context, server).await?;
        let hosted = server.hosted_name(&tool);
        let Some((table, manifest)) = tools.iter().filter_map(known).find(|(_, known)| known.name.as_str() == hosted)
        else {
            return Err(unknown(server, &tool, &tools));
        };
        if manifest.requires_confirmation {
            let message = format!("calls of {tool} need an approval of their own: call the tool {hosted} instead");
            return Err(ToolError::bad_input("/tool", message));
        }
        let arguments = Value::Object(arguments).to_string();
        let prepared = table.prepare(&manifest.name, arguments.as_bytes()).map_err(within_arguments)?;
        prepared.call(context.clone()).await
    }
}

impl AnyTool for McpTools {
    async fn call(&self, context: &Context, arguments: Value) -> Result<Output, ToolError> {
        let Listed { server, tool } = serde_json::from_value(arguments)?;
        let server = self.0.get(&server)?;
        let wanted = tool.map(|pattern| Patterns::new(&[pattern])).transpose();
        let wanted = wanted.map_err(|error| ToolError::bad_input("/tool", error.to_string()))?;
        let (mut shown, mut bytes, mut left_out) = (Vec::new(), 0, 0);
        for table in self.0.tools(context, server).await? {
            let Some(manifest) = manifest_of(&table) else { continue };
            let name = server.own_name(&manifest.name);
            if wanted.as_ref().is_some_and(|wanted| !wanted.matches(name)) {
                continue;
            }
            let tool = describe(name, manifest);
            bytes += tool.to_string().len();
            match bytes <= LIST_BYTES_MAX || shown.is_empty() {
                true => shown.push(tool),
                false => left_out += 1,
            }
        }
        let mut list = json!({ "server": server.name(), "tools": shown });
        if left_out > 0 {
            list["left_out"] = json!(left_out);
            list["hint"] = json!("the list is too long: give a pattern of names as tool");
        }
        Output::json(&list)
    }
}

fn manifest_of(table: &Table) -> Option<&Manifest> {
    table.manifests().next()
}

fn known(table: &Table) -> Option<(&Table, &Manifest)> {
    Some((table, manifest_of(table)?))
}

/// A tool as a model needs it to call it.
fn describe(name: &str, manifest: &Manifest) -> Value {
    let schema = |text: &str| serde_json::from_str::<Value>(text).ok();
    let mut tool =
        json!({ "name": name, "description": manifest.description, "read_only": manifest.effects.read_only });
    tool["input_schema"] = schema(&manifest.input_schema).unwrap_or_default();
    if let Some(output) = schema(&manifest.output_schema) {
        tool["output_schema"] = output;
    }
    if manifest.requires_confirmation {
        tool["call_as"] = json!(manifest.name.as_str());
    }
    tool
}

fn unknown(server: &Server, tool: &str, tools: &[Table]) -> ToolError {
    let names = tools.iter().filter_map(manifest_of).map(|manifest| server.own_name(&manifest.name));
    let names: Vec<&str> = names.take(NAMES_MAX).collect();
    let rest = match tools.len() - names.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let server = server.name();
    let message = format!("the MCP server {server} has no tool {tool:?}; it has: {}{rest}", names.join(", "));
    ToolError::bad_input("/tool", message)
}

/// An error about the arguments of a tool, as one about those of `mcp_client`.
fn within_arguments(mut error: CallError) -> ToolError {
    for Violation { path, .. } in &mut error.violations {
        *path = format!("/arguments{path}");
    }
    if !error.violations.is_empty() {
        error.message = schema::describe(&error.violations);
    }
    ToolError::of_call(error)
}
