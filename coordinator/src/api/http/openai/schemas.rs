//! The messages of OpenAI's APIs that are read and written, as the document has them. Ignored members are left out.

mod assistants;

use serde_json::{Value, json};

use super::super::batch::options;

/// The messages by their names.
pub(crate) fn all() -> Vec<(String, Value)> {
    let schemas = [
        ("OpenAIError", error()),
        ("OpenAITool", tool()),
        ("OpenAIResponseRequest", response_request()),
        ("OpenAIItem", item()),
        ("OpenAIItemList", page("OpenAIItem")),
        ("OpenAIResponse", response()),
        (
            "OpenAIResponseDeleted",
            object(
                &["id", "object", "deleted"],
                json!({ "id": text(""), "object": { "const": "response" }, "deleted": { "const": true } }),
            ),
        ),
        ("OpenAIResponseEvent", response_event()),
        ("OpenAIThread", assistants::thread()),
        ("OpenAIRunRequest", assistants::run_request()),
        ("OpenAIToolOutputs", assistants::tool_outputs()),
        ("OpenAIRun", assistants::run()),
        ("OpenAIStep", assistants::step()),
        ("OpenAIStepList", page("OpenAIStep")),
        ("OpenAIStepDelta", assistants::step_delta()),
        ("OpenAIMessage", assistants::message()),
        ("OpenAIMessageList", page("OpenAIMessage")),
        ("OpenAIMessageDelta", assistants::message_delta()),
        (
            "OpenAIRunEvent",
            json!({ "anyOf": [named("OpenAIRun"), named("OpenAIStep"), named("OpenAIStepDelta"),
                named("OpenAIMessage"), named("OpenAIMessageDelta"), named("OpenAIError")] }),
        ),
    ];
    schemas.map(|(name, schema)| (name.to_owned(), schema)).to_vec()
}

fn error() -> Value {
    object(
        &["error"],
        json!({ "error": object(&["type", "code", "message", "param", "remedy"], json!({
            "type": one_of(&["invalid_request_error", "server_error"]),
            "code": text("For programs: the reason of the native API, or one of these APIs' own; stable."),
            "message": text("For people: the error, and what to do. Its wording may change."),
            "param": may_be_null(text("The place of the error in the request: a JSON pointer into the body, or the \
                name of a parameter.")),
            "remedy": text("What to do."),
        })) }),
    )
}

fn page(of: &str) -> Value {
    let id = || may_be_null(text("Id of an item, for `after`."));
    object(
        &["object", "data", "first_id", "last_id", "has_more"],
        json!({ "object": { "const": "list" }, "data": list(named(of)), "first_id": id(), "last_id": id(),
            "has_more": flag("\
            Whether more items follow the last one.") }),
    )
}

fn metadata() -> Value {
    json!({
        "type": ["object", "null"],
        "description": "Returned unchanged, and passed to the tools. Names have 64 bytes at most and values 512; \
            names that begin with `toolyard` are reserved.",
        "maxProperties": 16,
        "additionalProperties": { "type": "string" },
    })
}

fn tool() -> Value {
    let names = json!({ "description": "Names of tools, or an object with `tool_names`." });
    let mut tool = object(
        &["type"],
        json!({
            "type": one_of(&["function", "custom", "local_shell", "shell", "apply_patch", "mcp"]),
            "name": text("Name of a function or a custom tool."),
            "parameters": json!({ "type": ["object", "null"],
                "description": "The JSON Schema of a function's arguments." }),
            "function": json!({ "type": "object", "description": "A function in the form of Chat Completions and \
                Assistants: `name` and `parameters`." }),
            "format": object(&["type"], json!({
                "type": one_of(&["text", "grammar"]), "syntax": one_of(&["regex", "lark"]),
                    "definition": text("The grammar of a custom tool's input."),
            })),
            "environment": json!({ "type": "object", "description": "For a shell: its `type` is `local`, or it is \
                missing." }),
            "allowed_tools": names,
            "require_approval": json!({ "description": "For `mcp`: `always`, `never`, or an object with the names \
                of tools under either." }),
        }),
    );
    tool["description"] = "A tool whose calls the client answers, unless a worker hosts a tool of that name; `mcp` \
        stands for the tools of the workers, and takes no server."
        .into();
    tool
}

fn response_request() -> Value {
    let mut request = object(
        &["input"],
        json!({
            "input": json!({ "type": "array", "items": { "type": "object", "required": ["type"] }, "description": "\
                The calls to execute, as a model requested them; or, with `previous_response_id`, the outputs and \
                the approvals that answer open calls. Calls that are answered within the list are ignored." }),
            "previous_response_id": may_be_null(text("The response whose open calls are answered: some or all.")),
            "stream": may_be_null(flag("Whether the answer is a stream of events.")),
            "background": may_be_null(flag("Whether to answer immediately, and not when the response has ended.")),
            "store": may_be_null(flag("false: the response is deleted some time after its run's end. A response \
                that continues another one has the same setting.")),
            "tools": json!({ "type": ["array", "null"], "items": named("OpenAITool") }),
            "parallel_tool_calls": may_be_null(flag("false: the calls run one after another.")),
            "max_tool_calls": json!({ "type": ["integer", "null"], "minimum": 1, "description": "Calls beyond this \
                limit fail." }),
            "metadata": metadata(),
            "toolyard": options(),
        }),
    );
    request["description"] =
        "Members that concern a model are ignored. `conversation`, `prompt` and `context_management` are rejected."
            .into();
    request
}

/// An item of one type, with any further members.
fn item_of(kind: &str, required: &[&str], mut properties: Value) -> Value {
    properties["type"] = json!({ "const": kind });
    properties["id"] = text("");
    properties["toolyard"] = json!({ "type": "object", "description": "For a failed call its `state` and the kind \
        of its `error`; if the item has no member for the result, `output`; for parts that it cannot carry \
        `attachments`, each with its `media_type` and `url`; for a message the `call_id` whose result it is." });
    object(&[&["type", "id"], required].concat(), properties)
}

fn status() -> Value {
    json!({ "type": ["string", "null"], "enum": ["in_progress", "completed", "incomplete", "failed", null] })
}

fn call_id() -> Value {
    text("The id of the call, as the client gave it.")
}

fn item() -> Value {
    let items = [items_of_the_server(), items_of_hosted_tools(), items_of_the_client()].concat();
    json!({ "oneOf": items, "discriminator": { "propertyName": "type" } })
}

fn shell_action() -> Value {
    object(
        &["commands"],
        json!({ "commands": list(text("")), "timeout_ms": { "type": ["integer", "null"] },
            "max_output_length": { "type": ["integer", "null"] } }),
    )
}

fn command_output() -> Value {
    let outcome =
        object(&["type"], json!({ "type": one_of(&["exit", "timeout"]), "exit_code": { "type": "integer" } }));
    object(&[], json!({ "stdout": text(""), "stderr": text(""), "outcome": outcome }))
}

/// Messages, and calls that the server executes.
fn items_of_the_server() -> Vec<Value> {
    let any_object = || json!({ "type": ["object", "null"] });
    let error = || json!({ "type": ["object", "string", "null"], "description": "Why the call failed." });
    let label = || text("The pool of the tool.");
    let message_part = object(
        &["type", "text"],
        json!({ "type": { "const": "output_text" }, "text": text(""), "annotations": list(json!({})) }),
    );
    vec![
        item_of(
            "message",
            &["role", "content", "status"],
            json!({ "role": { "const": "assistant" }, "content": list(message_part), "status": status() }),
        ),
        item_of(
            "mcp_call",
            &["call_id", "server_label", "name", "arguments", "output", "error", "status"],
            json!({
                "call_id": call_id(), "server_label": label(), "name": text("Name of the tool."),
                    "arguments": text("JSON."),
                "approval_request_id": { "type": ["string", "null"] }, "output": { "type": ["string", "null"] },
                    "error": error(), "status": status(),
            }),
        ),
        item_of(
            "mcp_list_tools",
            &["call_id", "server_label", "tools"],
            json!({ "call_id": call_id(), "server_label": label(), "tools": list(json!({})), "error": error() }),
        ),
        item_of(
            "mcp_approval_request",
            &["server_label", "name", "arguments"],
            json!({ "call_id": call_id(), "server_label": label(), "name": text("Name of the tool."),
                "arguments": text("JSON.") }),
        ),
        item_of(
            "mcp_approval_response",
            &["approval_request_id", "approve"],
            json!({ "approval_request_id": text(""), "approve": flag(""), "reason": { "type": ["string", "null"] } }),
        ),
        item_of(
            "shell_call",
            &["call_id", "action", "status"],
            json!({ "call_id": call_id(), "action": shell_action(), "environment": any_object(), "status": status() }),
        ),
        item_of(
            "shell_call_output",
            &["call_id", "output"],
            json!({ "call_id": call_id(), "output": list(command_output()), "max_output_length": { "type": ["integer",
                "null"] }, "status": status() }),
        ),
    ]
}

/// Calls of tools for which the API has item types.
fn items_of_hosted_tools() -> Vec<Value> {
    vec![
        item_of(
            "image_generation_call",
            &["call_id", "result", "status"],
            json!({ "call_id": call_id(), "result": { "type": ["string", "null"], "description":
                "Base64; the URL of an image above 8 MiB; null until the call ends, and empty if it failed." },
                "status": status() }),
        ),
        item_of(
            "file_search_call",
            &["call_id", "queries", "status"],
            json!({ "call_id": call_id(), "queries": list(text("")), "results": { "type": ["array", "null"] },
                "status": status() }),
        ),
        item_of(
            "web_search_call",
            &["call_id", "action", "status"],
            json!({ "call_id": call_id(), "action": { "type": "object" }, "status": status() }),
        ),
        item_of(
            "code_interpreter_call",
            &["call_id", "code", "container_id", "outputs", "status"],
            json!({ "call_id": call_id(), "code": text("The code."),
                "container_id": text("Names the call's folder, which is removed with the call."),
                "outputs": { "type": ["array", "null"], "description": "Logs, and images by their `url`." },
                "status": status() }),
        ),
    ]
}

/// Calls that the client executes, and their results.
fn items_of_the_client() -> Vec<Value> {
    let any_object = || json!({ "type": ["object", "null"] });
    let output = || json!({ "type": ["string", "array"], "description": "A text, or parts." });
    vec![
        item_of(
            "function_call",
            &["call_id", "name", "arguments", "status"],
            json!({ "call_id": call_id(), "name": text("Name of the tool."), "arguments": text("JSON."),
                "status": status() }),
        ),
        item_of(
            "custom_tool_call",
            &["call_id", "name", "input"],
            json!({ "call_id": call_id(), "name": text("Name of the tool."), "input": text(""), "status": status() }),
        ),
        item_of(
            "local_shell_call",
            &["call_id", "action", "status"],
            json!({ "call_id": call_id(), "action": { "type": "object" }, "status": status() }),
        ),
        item_of(
            "apply_patch_call",
            &["call_id", "operation", "status"],
            json!({ "call_id": call_id(), "operation": any_object(), "status": status() }),
        ),
        item_of(
            "function_call_output",
            &["call_id", "output"],
            json!({ "call_id": call_id(), "output": output(), "status": status() }),
        ),
        item_of(
            "custom_tool_call_output",
            &["call_id", "output"],
            json!({ "call_id": call_id(), "output": output(), "status": status() }),
        ),
        item_of(
            "local_shell_call_output",
            &["output"],
            json!({ "call_id": call_id(), "output": output(), "status": status() }),
        ),
        item_of(
            "apply_patch_call_output",
            &["call_id", "status"],
            json!({ "call_id": call_id(), "output": output(), "status": status() }),
        ),
    ]
}

fn response() -> Value {
    object(
        &[
            "id",
            "object",
            "created_at",
            "status",
            "error",
            "output",
            "previous_response_id",
            "metadata",
            "store",
            "toolyard",
        ],
        json!({
            "id": text("`resp_…`; followed by `_c…x…` if its calls were added to a run of others, and by `_1`, `_2`, … \
                if it continues another response."),
            "object": { "const": "response" },
            "created_at": time("By the log's clock."),
            "completed_at": may_be_null(time("Set if its status is `completed`.")),
            "status": one_of(&["in_progress", "completed", "failed", "cancelled", "incomplete"]),
            "error": json!({ "type": ["object", "null"], "properties": { "code": text(""), "message": text("") } }),
            "output": list(named("OpenAIItem")),
            "previous_response_id": may_be_null(text("")),
            "metadata": metadata(),
            "store": flag("false: the response is deleted some time after its run's end."),
            "model": { "const": "toolyard" },
            "usage": { "type": "null" },
            "toolyard": object(&["run_id", "part"], json!({
                "run_id": text("The id of the run in the native API."),
                "part": { "type": "integer", "description": "Number of the response in the run, from 0." },
                "incomplete": may_be_null(text("Why it is incomplete: `cancelled` or `expired`.")),
                "input": json!({ "type": "array", "items": { "type": "object" }, "description": "When it has ended: \
                    for each call of the run that has ended, the item that answers it, for a model." }),
                "finish_reason": text("`returnDirect` if the results are the answer, so that no model need be called."),
                "returned": list(object(&["toolId", "toolName"], json!({ "toolId": text("The id of the call."),
                    "toolName": text("Name of the tool.") }))),
            })),
        }),
    )
}

/// The events that the API documents, and those that it does not.
const EVENTS: [&str; 52] = [
    "response.created",
    "response.in_progress",
    "response.completed",
    "response.failed",
    "response.incomplete",
    "response.output_item.added",
    "response.output_item.done",
    "response.content_part.added",
    "response.content_part.done",
    "response.output_text.delta",
    "response.output_text.annotation.added",
    "response.output_text.done",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "response.custom_tool_call_input.delta",
    "response.custom_tool_call_input.done",
    "response.mcp_call.in_progress",
    "response.mcp_call.completed",
    "response.mcp_call.failed",
    "response.mcp_call_arguments.delta",
    "response.mcp_call_arguments.done",
    "response.mcp_list_tools.in_progress",
    "response.mcp_list_tools.completed",
    "response.mcp_list_tools.failed",
    "response.shell_call_command.added",
    "response.shell_call_command.delta",
    "response.shell_call_command.done",
    "response.shell_call_output_content.delta",
    "response.shell_call_output_content.done",
    "response.image_generation_call.in_progress",
    "response.image_generation_call.generating",
    "response.image_generation_call.partial_image",
    "response.image_generation_call.completed",
    "response.file_search_call.in_progress",
    "response.file_search_call.searching",
    "response.file_search_call.completed",
    "response.web_search_call.in_progress",
    "response.web_search_call.searching",
    "response.web_search_call.completed",
    "response.code_interpreter_call.in_progress",
    "response.code_interpreter_call.interpreting",
    "response.code_interpreter_call.completed",
    "response.code_interpreter_call_code.delta",
    "response.code_interpreter_call_code.done",
    "toolyard:attempt.started",
    "toolyard:attempt.ended",
    "toolyard:cancel.requested",
    "toolyard:cancel.delivered",
    "toolyard:cancel.acknowledged",
    "toolyard:tool_output.delta",
    "toolyard:tool_output.withdrawn",
    "toolyard:tool_progress",
];

fn response_event() -> Value {
    object(
        &["type", "sequence_number"],
        json!({
            "type": one_of(&EVENTS),
            "sequence_number": { "type": "integer", "description": "From 0 within a response, ascending; events \
                that are not shown leave gaps." },
            "response": named("OpenAIResponse"),
            "item": named("OpenAIItem"),
            "output_index": { "type": "integer", "description": "Index of the item in the final `output`." },
            "item_id": { "type": ["string", "null"] },
            "command_index": { "type": "integer" },
            "command": text(""),
            "delta": { "type": ["string", "object"], "description": "A text; for a shell's output an object with \
                `stdout` or `stderr`." },
            "arguments": text(""),
            "input": text(""),
            "name": text("Name of the tool."),
            "output": list(json!({ "type": "object" })),
            "partial_image_index": { "type": "integer" },
            "partial_image_b64": text(""),
            "output_format": text("Of a partial image: png, jpeg or webp."),
            "code": text(""),
            "annotation": { "type": "object", "description": "A `url_citation` or a `file_citation`." },
            "annotation_index": { "type": "integer" },
            "call_id": text("Only in events that the API does not document."),
        }),
    )
}

/// A text.
fn text(description: &str) -> Value {
    json!({ "type": "string", "description": description })
}

fn flag(description: &str) -> Value {
    json!({ "type": "boolean", "description": description })
}

/// Seconds since 1970.
fn time(description: &str) -> Value {
    json!({ "type": "integer", "description": description })
}

fn may_be_null(mut schema: Value) -> Value {
    schema["type"] = json!([schema["type"], "null"]);
    schema
}

pub(super) fn one_of(names: &[&str]) -> Value {
    json!({ "type": "string", "enum": names })
}

fn object(required: &[&str], properties: Value) -> Value {
    json!({ "type": "object", "required": required, "properties": properties })
}

fn list(items: Value) -> Value {
    json!({ "type": "array", "items": items })
}

pub(super) fn named(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}
