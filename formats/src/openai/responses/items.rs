//! How each kind of call is presented as items. The kind depends on the tool's name and on where the call is executed.

use crate::turns::Answer;
use proto::v1;
use run::RunId;
use serde_json::{Value, json};

use crate::openai::NAME;
use crate::openai::calls::{Call, Failure, Place, parts};

/// The type of item that represents a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Carrier {
    /// Any executed tool without an item type of its own, and rejected calls.
    Mcp,
    McpList,
    Shell,
    Image,
    FileSearch,
    WebSearch,
    Code,
    /// Calls that the client answers follow.
    Function,
    Custom,
    LocalShell,
    ClientShell,
    ApplyPatch,
}

impl Carrier {
    pub(super) fn of(call: &Call) -> Self {
        match (&call.place, call.item.as_deref()) {
            (Place::Nowhere, _) => Self::Mcp,
            (Place::Pool { .. } | Place::Answered, _) => call.kinds().find_map(Self::of_tool).unwrap_or(Self::Mcp),
            (Place::Client, Some("custom_tool_call")) => Self::Custom,
            (Place::Client, Some("local_shell_call")) => Self::LocalShell,
            (Place::Client, Some("shell_call")) => Self::ClientShell,
            (Place::Client, Some("apply_patch_call")) => Self::ApplyPatch,
            // Arguments that are no object belong to a tool of the request that takes text.
            (Place::Client, _) if !object(&call.arguments).is_object() => Self::Custom,
            (Place::Client, _) => Self::Function,
        }
    }

    /// The item type that the API has for a tool of this name.
    fn of_tool(name: &str) -> Option<Self> {
        match name {
            "bash" | "shell" | "local_shell" => Some(Self::Shell),
            "image_generation" => Some(Self::Image),
            "file_search" => Some(Self::FileSearch),
            "web_search" => Some(Self::WebSearch),
            "code_interpreter" => Some(Self::Code),
            "mcp_list_tools" => Some(Self::McpList),
            _ => None,
        }
    }

    /// The status of an item whose call goes on after its response, or was cancelled. Not every type has `incomplete`.
    pub(super) fn cut_short(self) -> &'static str {
        if matches!(self, Self::Image | Self::WebSearch) { "failed" } else { "incomplete" }
    }

    fn prefix(self) -> &'static str {
        match self {
            Self::Mcp => "mcp",
            Self::McpList => "mcpl",
            Self::Shell | Self::ClientShell => "sh",
            Self::Image => "ig",
            Self::FileSearch => "fs",
            Self::WebSearch => "ws",
            Self::Code => "ci",
            Self::Function => "fc",
            Self::Custom => "ctc",
            Self::LocalShell => "lsh",
            Self::ApplyPatch => "apc",
        }
    }

    /// The events between an item's beginning and its end: for the call's start, and for the start of its output.
    pub(super) fn stages(self) -> (Option<&'static str>, Option<&'static str>) {
        match self {
            Self::Mcp => (Some("response.mcp_call.in_progress"), None),
            Self::McpList => (Some("response.mcp_list_tools.in_progress"), None),
            Self::Image => {
                (Some("response.image_generation_call.in_progress"), Some("response.image_generation_call.generating"))
            }
            Self::FileSearch => {
                (Some("response.file_search_call.in_progress"), Some("response.file_search_call.searching"))
            }
            Self::WebSearch => {
                (Some("response.web_search_call.in_progress"), Some("response.web_search_call.searching"))
            }
            Self::Code => (
                Some("response.code_interpreter_call.in_progress"),
                Some("response.code_interpreter_call.interpreting"),
            ),
            Self::Shell | Self::Function | Self::Custom | Self::LocalShell | Self::ClientShell | Self::ApplyPatch => {
                (None, None)
            }
        }
    }

    /// The event that reports how the call ended. `.completed` is only sent for success; most types have no other.
    pub(super) fn ending(self, is_failure: bool) -> Option<&'static str> {
        match (self, is_failure) {
            (Self::Mcp, false) => Some("response.mcp_call.completed"),
            (Self::Mcp, true) => Some("response.mcp_call.failed"),
            (Self::McpList, false) => Some("response.mcp_list_tools.completed"),
            (Self::McpList, true) => Some("response.mcp_list_tools.failed"),
            (Self::Image, false) => Some("response.image_generation_call.completed"),
            (Self::FileSearch, false) => Some("response.file_search_call.completed"),
            (Self::WebSearch, false) => Some("response.web_search_call.completed"),
            (Self::Code, false) => Some("response.code_interpreter_call.completed"),
            (
                Self::Image
                | Self::FileSearch
                | Self::WebSearch
                | Self::Code
                | Self::Shell
                | Self::Function
                | Self::Custom
                | Self::LocalShell
                | Self::ClientShell
                | Self::ApplyPatch,
                _,
            ) => None,
        }
    }
}

/// The arguments if they are an object.
fn object(arguments: &str) -> Value {
    let value = serde_json::from_str::<Value>(arguments).unwrap_or_default();
    if value.is_object() { value } else { Value::Null }
}

fn server_label(call: &Call) -> &str {
    match &call.place {
        Place::Pool { name, .. } => name,
        Place::Client | Place::Answered | Place::Nowhere => NAME,
    }
}

pub(super) fn approval_id(run: RunId, call: &Call) -> String {
    format!("mcpr_{}", call.token(run))
}

/// The item that requests approval.
pub(super) fn approval_request(run: RunId, call: &Call) -> Value {
    json!({
        "type": "mcp_approval_request",
        "id": approval_id(run, call),
        "call_id": call.id,
        "server_label": server_label(call),
        "name": call.tool,
        "arguments": call.arguments,
    })
}

/// A call's item without the result of its execution.
pub(super) fn item(run: RunId, carrier: Carrier, call: &Call, approved: bool) -> Value {
    let id = format!("{}_{}", carrier.prefix(), call.token(run));
    let arguments = || object(&call.arguments);
    match carrier {
        Carrier::Mcp => json!({
            "type": "mcp_call",
            "id": id,
            "call_id": call.id,
            "server_label": server_label(call),
            "name": call.tool,
            "arguments": call.arguments,
            "approval_request_id": approved.then(|| approval_id(run, call)),
            "output": null,
            "error": null,
            "status": "in_progress",
        }),
        Carrier::McpList => {
            let label =
                arguments()["server_label"].as_str().map_or_else(|| server_label(call).to_owned(), str::to_owned);
            json!({ "type": "mcp_list_tools", "id": id, "call_id": call.id, "server_label": label, "tools": [] })
        }
        Carrier::Shell | Carrier::ClientShell => json!({
            "type": "shell_call",
            "id": id,
            "call_id": call.id,
            "action": shell_action(&call.arguments),
            "environment": null,
            "status": "in_progress",
        }),
        Carrier::Image => json!({
            "type": "image_generation_call", "id": id, "call_id": call.id, "result": null, "status": "in_progress",
        }),
        Carrier::FileSearch => json!({
            "type": "file_search_call",
            "id": id,
            "call_id": call.id,
            "queries": queries(&arguments()),
            "results": null,
            "status": "in_progress",
        }),
        Carrier::WebSearch => {
            let queries = queries(&arguments());
            let action =
                json!({ "type": "search", "query": queries.first().cloned().unwrap_or_default(), "queries": queries });
            json!({ "type": "web_search_call", "id": id, "call_id": call.id, "action": action, "status": "in_progress" })
        }
        // Each call has a fresh folder, which is the nearest thing to a container here.
        Carrier::Code => json!({
            "type": "code_interpreter_call",
            "id": id,
            "call_id": call.id,
            "code": code(call),
            "container_id": format!("cntr_{}", call.token(run)),
            "outputs": null,
            "status": "in_progress",
        }),
        Carrier::Function => json!({
            "type": "function_call",
            "id": id,
            "call_id": call.id,
            "name": call.tool,
            "arguments": call.arguments,
            "status": "completed",
        }),
        Carrier::Custom => {
            let (name, input) = (&call.tool, &call.arguments);
            json!({
                "type": "custom_tool_call", "id": id, "call_id": call.id, "name": name, "input": input, "status": "completed",
            })
        }
        Carrier::LocalShell => {
            let mut action = arguments();
            action["type"] = "exec".into();
            for (name, empty) in [("command", json!([])), ("env", json!({}))] {
                if action[name].is_null() {
                    action[name] = empty;
                }
            }
            json!({ "type": "local_shell_call", "id": id, "call_id": call.id, "action": action, "status": "completed" })
        }
        Carrier::ApplyPatch => json!({
            "type": "apply_patch_call", "id": id, "call_id": call.id, "operation": arguments(), "status": "completed",
        }),
    }
}

/// The action of a shell call, for every supported form of arguments.
fn shell_action(arguments: &str) -> Value {
    let object = object(arguments);
    let strings = |value: &Value| -> Option<Vec<String>> {
        value.as_array()?.iter().map(|text| text.as_str().map(str::to_owned)).collect()
    };
    let commands = match (strings(&object["commands"]), object["command"].as_str(), strings(&object["command"])) {
        (Some(commands), _, _) => commands,
        (None, Some(command), _) => vec![command.to_owned()],
        (None, None, Some(words)) => vec![words.join(" ")],
        (None, None, None) => vec![arguments.to_owned()],
    };
    let timeout_ms = object["timeout_ms"].as_u64().or_else(|| object["timeout_s"].as_u64()?.checked_mul(1000));
    json!({ "commands": commands, "timeout_ms": timeout_ms, "max_output_length": object["max_output_length"].as_u64() })
}

/// The code of a call; all of its arguments if they are something else.
pub(super) fn code(call: &Call) -> String {
    let arguments = object(&call.arguments);
    arguments["code"].as_str().map_or_else(|| call.arguments.clone(), str::to_owned)
}

fn queries(arguments: &Value) -> Vec<Value> {
    match (&arguments["queries"], &arguments["query"]) {
        (Value::Array(queries), _) => queries.iter().filter(|query| query.is_string()).cloned().collect(),
        (_, Value::String(query)) => vec![query.clone().into()],
        _ => Vec::new(),
    }
}

/// The item of a shell's output while the shell may still write.
pub(super) fn shell_output(run: RunId, call: &Call, nth: u32) -> Value {
    let again = if nth == 0 { String::new() } else { format!("_{nth}") };
    json!({
        "type": "shell_call_output",
        "id": format!("sho_{}{again}", call.token(run)),
        "call_id": call.id,
        "max_output_length": crate::openai::SAID_BYTES_MAX,
        "output": [],
        "status": "in_progress",
    })
}

/// How a shell ended, and the part of its result or error that is not shown yet: for stdout and for stderr.
pub(super) fn shell_end(outcome: &v1::CallOutcome, said_nothing: bool) -> (Value, Option<(bool, String)>) {
    let exit = |code: i64| json!({ "type": "exit", "exit_code": code });
    if let Some(failure) = Failure::of(outcome) {
        let how = if failure.is_timeout() { json!({ "type": "timeout" }) } else { exit(1) };
        return (how, Some((true, failure.message)));
    }
    let (code, shown) = exited(outcome);
    let text = shown.text();
    (exit(code.unwrap_or_default()), (said_nothing && !text.is_empty()).then_some((false, text)))
}

/// The exit code at the end of a shell's result, if there is one, and the rest of the result.
pub(super) fn exited(outcome: &v1::CallOutcome) -> (Option<i64>, Answer<'_>) {
    let answer = Answer::new(parts(&outcome.result));
    let signal = || match answer.parts.last() {
        Some(crate::turns::Part::Json(json)) => object(json)["signal"].as_i64(),
        Some(crate::turns::Part::Text(_) | crate::turns::Part::Data { .. }) | None => None,
    };
    // As a shell reports the end of a child process.
    let code = answer.exit_code().or_else(|| signal()?.checked_add(128));
    let rest = if code.is_some() { answer.without_last() } else { answer };
    (code, rest)
}
