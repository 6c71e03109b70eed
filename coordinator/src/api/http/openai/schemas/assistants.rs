//! The messages of the Assistants API.

use serde_json::{Value, json};

use super::super::super::batch::options;
use super::{flag, list, may_be_null, metadata, named, object, one_of, text, time};

pub(super) fn thread() -> Value {
    object(
        &["id", "object", "created_at", "metadata"],
        json!({ "id": text("`thread_…`: only an id; threads are not stored."), "object": { "const": "thread" },
            "created_at": time(""), "metadata": { "type": "object" }, "tool_resources": { "type": "null" } }),
    )
}

/// The schema of something that belongs to a thread: the members that each of them has, and further ones.
fn of_thread(kind: &str, required: &[&str], more: Value) -> Value {
    let own = json!({
        "object": { "const": kind },
        "created_at": time("By the log's clock."),
        "assistant_id": { "const": "toolyard" },
        "thread_id": text(""),
    });
    object(&[&["id", "object", "created_at", "thread_id"], required].concat(), with(own, more))
}

/// The schema of a change to something: to what, and the change.
fn delta(kind: &str, of: &str, change: Value) -> Value {
    object(&["id", "object", "delta"], json!({ "id": text(of), "object": { "const": kind }, "delta": change }))
}

/// Properties and further ones.
fn with(mut properties: Value, more: Value) -> Value {
    if let (Some(properties), Value::Object(more)) = (properties.as_object_mut(), more) {
        properties.extend(more);
    }
    properties
}

fn function(required: &[&str]) -> Value {
    object(
        required,
        json!({ "name": text("Name of the tool."), "arguments": text("JSON."), "output": { "type": ["string",
            "null"], "description": "\
            Its output, and its result or error." } }),
    )
}

fn tool_call(required: &[&str]) -> Value {
    object(
        &["id", "type", "function"],
        json!({ "id": text("The id of the call, as the client gave it."), "type": { "const": "function" },
            "function": function(required) }),
    )
}

pub(super) fn run_request() -> Value {
    let mut request = object(
        &["tool_calls"],
        json!({
            "tool_calls": json!({ "type": "array", "items": { "type": "object" }, "minItems": 1, "description": "\
                The calls to execute, as the `tool_calls` of a message of Chat Completions. The API has no member \
                for them: SDKs send them in `extra_body`." }),
            "stream": may_be_null(flag("Whether the answer is a stream of events.")),
            "tools": json!({ "type": ["array", "null"], "items": named("OpenAITool") }),
            "tool_resources": json!({ "type": ["object", "array", "null"], "description": "Files for the tools, by \
                tool: `file_ids` has ids of objects. `_all` has those of every tool, and so has a list of ids. \
                `functions` is a list of objects with `name` and `file_ids`. The files of `vector_stores` are files \
                of their tool." }),
            "parallel_tool_calls": may_be_null(flag("false: the calls run one after another.")),
            "metadata": metadata(),
            "toolyard": options(),
        }),
    );
    request["description"] = "Members that concern a model, an assistant or messages are ignored.".into();
    request
}

pub(super) fn tool_outputs() -> Value {
    let output = object(
        &["tool_call_id"],
        json!({ "tool_call_id": text("Id of an open client call."), "output": { "type": ["string", "null"] } }),
    );
    object(
        &["tool_outputs"],
        json!({
            "tool_outputs": json!({ "type": "array", "items": output, "description": "One for each open client \
                call, all together." }),
            "stream": may_be_null(flag("Whether the answer is a stream of the events that follow.")),
        }),
    )
}

pub(super) fn run() -> Value {
    let required = object(
        &["type", "submit_tool_outputs"],
        json!({ "type": { "const": "submit_tool_outputs" }, "submit_tool_outputs": object(&["tool_calls"],
            json!({ "tool_calls": list(tool_call(&["name", "arguments"])) })) }),
    );
    of_thread(
        "thread.run",
        &["status", "required_action", "last_error", "metadata", "toolyard"],
        json!({
            "id": text("`run_…`: the id of the run in the native API; followed by `_c…x…` if the calls were added to \
                a run of others."),
            "status": one_of(&["queued", "in_progress", "requires_action", "cancelling", "cancelled", "failed",
                "completed", "expired"]),
            "required_action": may_be_null(required),
            "last_error": json!({ "type": ["object", "null"], "properties": { "code": text(""),
                "message": text("") } }),
            "expires_at": may_be_null(time("When the run expires; null if it has ended.")),
            "started_at": may_be_null(time("")),
            "cancelled_at": may_be_null(time("")),
            "failed_at": may_be_null(time("")),
            "completed_at": may_be_null(time("")),
            "metadata": metadata(),
            "model": { "const": "toolyard" },
            "usage": { "type": "null" },
            "toolyard": object(&["awaiting_approval"], json!({
                "awaiting_approval": list(text("The id of a call that awaits approval, which is given through \
                    another API.")),
                "tool_resources": json!({ "type": ["object", "null"], "description": "The files that its calls may \
                    open, by tool." }),
                "file_ids": list(text("The id of a file that one of its calls may open.")),
                "finish_reason": may_be_null(text("`returnDirect` if the messages are the answer.")),
            })),
        }),
    )
}

pub(super) fn step() -> Value {
    let details = object(
        &["type", "tool_calls"],
        json!({ "type": { "const": "tool_calls" }, "tool_calls": list(tool_call(&["name", "arguments", "output"])) }),
    );
    of_thread(
        "thread.run.step",
        &["run_id", "type", "status", "last_error", "step_details"],
        json!({
            "id": text("`step_…`: the step of one call."),
            "run_id": text(""),
            "type": { "const": "tool_calls" },
            "status": one_of(&["in_progress", "cancelled", "failed", "completed", "expired"]),
            "cancelled_at": may_be_null(time("")),
            "completed_at": may_be_null(time("")),
            "expired_at": may_be_null(time("")),
            "failed_at": may_be_null(time("")),
            "last_error": json!({ "type": ["object", "null"], "properties": { "code": one_of(&["server_error",
                "rate_limit_exceeded"]), "message": text("") } }),
            "step_details": details,
            "usage": { "type": "null" },
            "metadata": { "type": "object" },
        }),
    )
}

pub(super) fn step_delta() -> Value {
    let call = object(
        &["index", "type"],
        json!({ "index": { "type": "integer" }, "id": text(""), "type": { "const": "function" },
            "function": function(&[]) }),
    );
    let details =
        object(&["type", "tool_calls"], json!({ "type": { "const": "tool_calls" }, "tool_calls": list(call) }));
    delta("thread.run.step.delta", "Id of the step.", object(&["step_details"], json!({ "step_details": details })))
}

fn message_content(required: &[&str], more: Value) -> Value {
    let properties = json!({
        "type": one_of(&["text", "image_url"]),
        "text": object(&["value", "annotations"], json!({ "value": text(""), "annotations": list(json!({})) })),
        "image_url": object(&["url"], json!({ "url": text("Of the image's bytes, or of its object."),
            "detail": text("") })),
    });
    object(required, with(properties, more))
}

pub(super) fn message() -> Value {
    of_thread(
        "thread.message",
        &["run_id", "role", "status", "content"],
        json!({
            "id": text("`msg_…`: the result of one call."),
            "completed_at": may_be_null(time("")),
            "run_id": text(""),
            "role": { "const": "assistant" },
            "status": one_of(&["in_progress", "completed"]),
            "content": list(message_content(&["type"], json!({}))),
            "metadata": { "type": "object" },
        }),
    )
}

pub(super) fn message_delta() -> Value {
    let content = message_content(&["index", "type"], json!({ "index": { "type": "integer" } }));
    let change = object(&["content"], json!({ "role": { "const": "assistant" }, "content": list(content) }));
    delta("thread.message.delta", "Id of the message.", change)
}
