//! The batch endpoint's part of the document.

use formats::turns::Form;
use serde_json::{Value, json};

/// The batch endpoint's part of the document.
pub(in crate::api::http) fn described() -> Value {
    json!({
        "operationId": "BatchToolCalls",
        "description": "Executes the calls of an assistant turn and returns the messages that answer it, in the \
            form of the same vendor. A message has the output of its call, at most 256 KiB of it, and then its \
            result or error. What a form cannot carry (errors, images, structure) is described in text. A client \
            that accepts `text/event-stream` receives the output of the run as it is produced; the answer follows \
            as an event named `messages`.",
        "parameters": [
            query("format", "The form of the turn; detected if not set. `openai` is another name of \
                `openai-responses`.", named()),
            query("wait", "How long to wait for calls to end, as `30s`, `500ms`, `2m`: 30 s if not set, 300 s at \
                most.", json!({ "type": "string" })),
            query("timeout", "The time after which the run expires: 24 h if not set.", json!({ "type": "string" })),
            query("not_before", "No call begins before this time.", json!({ "type": "string", "format": "date-time" })),
            query("tenant", "The tenant of the run.", json!({ "type": "string" })),
            query("confirmation", "Whether calls of tools with the permission EXTERNAL await approval: as the \
                deployment is configured if not set.", json!({ "type": "string", "enum": ["ask", "none"] })),
            query("store", "As `store` of a CreateRunRequest; true if not set.", json!({ "type": "boolean" })),
            query("run", "An open run to which the calls are added; the answer is for them alone. Calls that the run \
                has already, with the same ids and arguments, are not added again.", json!({ "type": "string" })),
            query("floor_policy", "Which call's output is shown; INTERLEAVED if not set. For a client that accepts \
                `text/event-stream` only.", json!({ "type": "string", "enum": ["FLOOR_POLICY_ARRIVAL",
                "FLOOR_POLICY_SUBMISSION", "FLOOR_POLICY_INTERLEAVED"] })),
            query("on_disconnect", "`cancel`: cancel the calls if the client disconnects before the answer.",
                json!({ "type": "string", "enum": ["cancel", "continue"] })),
            { "name": "Idempotency-Key", "in": "header", "description": "The `request_id` of the run: the same \
                request with the same key waits for the same run.", "schema": { "type": "string" } },
        ],
        "requestBody": {
            "required": true,
            "description": "The turn as the vendor returned it: a whole response, its message, the list of its calls, \
                or the list of the events of its stream. Or an object with the turn as `turn`, or with a whole \
                conversation as `messages`. The member `toolyard` has all other options of the run.",
            "content": { "application/json": { "schema": { "properties": { "toolyard": options() } } } },
        },
        "responses": { "200": { "description": "The answer.", "content": {
            "application/json": { "schema": answer() },
            "text/event-stream": { "description":
                "RunEvents in the order of `floor_policy`, then the answer as an event named `messages`." },
        } } },
    })
}

/// The options in a body.
pub(in crate::api::http) fn options() -> Value {
    json!({ "$ref": "#/components/schemas/RunOptions" })
}

/// The schema of the options, made from that of a CreateRunRequest.
pub(in crate::api::http) fn options_described(create_run: &Value) -> Value {
    let mut options = create_run.clone();
    options["description"] = "A CreateRunRequest, and how the client follows the run. `run`, `floor_policy` and \
        `on_disconnect` are as in the query of BatchToolCalls."
        .into();
    let properties = options["properties"].as_object_mut().expect("a message has properties");
    properties["calls"]["description"] =
        "Options of single calls: each names a call of the request by its `call_id`, without `tool` and `arguments`."
            .into();
    for (name, values) in [("run", None), ("floor_policy", None), ("on_disconnect", Some(["cancel", "continue"]))] {
        let mut schema = json!({ "type": "string" });
        if let Some(values) = values {
            schema["enum"] = values.into_iter().collect();
        }
        properties.insert(name.to_owned(), schema);
    }
    options
}

fn query(name: &str, description: &str, schema: Value) -> Value {
    json!({ "name": name, "in": "query", "description": description, "schema": schema })
}

fn forms() -> Vec<&'static str> {
    Form::ALL.iter().map(|form| form.as_str()).collect()
}

/// The names of the forms in a request.
fn named() -> Value {
    let named = [&forms()[..], &["openai"]].concat();
    json!({ "type": "string", "enum": named })
}

fn answer() -> Value {
    json!({
        "type": "object",
        "required": ["format", "complete", "finish", "return_direct", "messages", "open_calls", "passed_over"],
        "properties": {
            "format": { "type": "string", "enum": forms(), "description": "The form in which the turn was parsed." },
            "run_id": { "type": "string", "description": "The run; missing if no call had to be executed." },
            "status": { "$ref": "#/components/schemas/RunStatus" },
            "complete": { "type": "boolean", "description": "Every call is answered." },
            "finish": { "type": "boolean", "description": "The turn requests nothing: the model has finished." },
            "return_direct": { "type": "boolean", "description": "The tools of all calls return their results \
                directly, and all calls completed: the messages are the final answer, and the model need not be \
                called again." },
            "messages": { "type": "array", "items": {}, "description": "What the vendor's API expects next, in the \
                order of the calls." },
            "open_calls": {
                "type": "array", "items": { "$ref": "#/components/schemas/Call" },
                "description": "Calls that have not ended. Client calls are answered at the run; then the same \
                    request, with the same Idempotency-Key, returns all messages.",
            },
            "passed_over": {
                "type": "array", "description": "Parts of the turn that are not answered by this service.",
                "items": { "type": "object", "properties": {
                    "pointer": { "type": "string", "description": "A JSON pointer into the turn." },
                    "kind": { "type": "string", "description": "The vendor's name for the part." },
                    "reason": { "type": "string", "enum": ["executed_by_vendor", "answered", "needs_approval",
                        "unsupported"] },
                } },
            },
            "dangling": {
                "type": "array", "description": "For `messages`: results for calls of earlier turns that never got \
                    one; without them the vendor refuses the conversation. Missing if there are none.",
                "items": { "type": "object", "properties": {
                    "after": { "type": "integer", "description": "The index of the message behind which they belong." },
                    "messages": { "type": "array", "items": {} },
                } },
            },
        },
    })
}

/// The part of the document of the messages of a run.
pub(in crate::api::http) fn messages_described() -> Value {
    let mut format = query("format", "The form of the messages.", named());
    format["required"] = true.into();
    json!({
        "operationId": "GetRunMessages",
        "description": "Gets the messages that answer a run's calls, in the form of a vendor: as the answer of \
            BatchToolCalls, for a run that any request has made. Each call is an ordinary function call of the form.",
        "parameters": [
            { "name": "run_id", "in": "path", "required": true, "description": "The run.",
                "schema": { "type": "string" } },
            format,
            query("wait", "How long to wait for calls to end, as `30s`: 0 s if not set, 300 s at most.",
                json!({ "type": "string" })),
        ],
        "responses": { "200": { "description": "The answer.", "content": {
            "application/json": { "schema": answer() },
        } } },
    })
}
