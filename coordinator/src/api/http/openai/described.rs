//! The descriptions of the routes of OpenAI's APIs for the document.

use http::Method;
use serde_json::{Value, json};

use super::Route;
use super::schemas::{named, one_of};

/// The operation of a route. Its parameters are the names in its path, those of lists if it returns one, and `more`.
fn operation(route: &Route, takes: Option<&str>, gives: Value, more: &[Value]) -> Value {
    let of_path = super::super::openapi::names(route.path).into_iter().map(|name| {
        let description = match name {
            "thread_id" => "Any name: threads are not stored.",
            "response_id" => "`resp_…`, from the response.",
            _ => "`run_…`, from the run.",
        };
        json!({ "name": name, "in": "path", "required": true, "description": description,
            "schema": { "type": "string" } })
    });
    let parameters: Vec<Value> = of_path.chain(more.iter().cloned()).collect();
    let mut described = json!({
        "operationId": route.name,
        "description": route.description,
        "tags": ["OpenAI"],
        "responses": {
            "200": { "description": "Done.", "content": gives },
            "default": {
                "description": "Why the request was refused. Errors before the route is reached (authentication, \
                    pages of browsers, methods that are not allowed) have the form of a Problem.",
                "content": {
                    "application/json": { "schema": named("OpenAIError") },
                    "application/problem+json": { "schema": named("Problem") },
                },
            },
        },
    });
    if !parameters.is_empty() {
        described["parameters"] = parameters.into();
    }
    if let Some(name) = takes {
        described["requestBody"] =
            json!({ "required": true, "content": { "application/json": { "schema": named(name) } } });
    }
    described
}

fn query(name: &str, description: &str, schema: Value) -> Value {
    json!({ "name": name, "in": "query", "description": description, "schema": schema })
}

fn key() -> Value {
    let description = "The same request with the same key returns the same run.";
    json!({ "name": "Idempotency-Key", "in": "header", "description": description, "schema": { "type": "string" } })
}

fn of_lists() -> [Value; 3] {
    [
        query(
            "limit",
            "Number of items per page: 20 if not set.",
            json!({ "type": "integer", "minimum": 1, "maximum": 100 }),
        ),
        query("order", "`desc`, the newest first, if not set.", one_of(&["asc", "desc"])),
        query("after", "The id of an item of the list: the items after it are returned.", json!({ "type": "string" })),
    ]
}

fn shows_all() -> Value {
    query("events", "`all`: also the events that the API does not document.", one_of(&["documented", "all"]))
}

fn items_wanted() -> Value {
    query(
        "items",
        "`one_by_one`, if not set: the item of an executed call begins when the call has output or ends, and is done \
        before the next one begins. `interleaved`: it begins when the call is accepted. A stream is resumed with the \
        same value.",
        one_of(&["one_by_one", "interleaved"]),
    )
}

fn foreign_tools() -> Value {
    query(
        "foreign_tools",
        "What to do with `tools` that no worker and no client executes here (`web_search`, `mcp` with a server, …): \
        `refuse`, if not set, or `ignore`.",
        one_of(&["refuse", "ignore"]),
    )
}

fn gives(name: &str) -> Value {
    json!({ "application/json": { "schema": named(name) } })
}

/// A single answer, or events with `stream`.
fn streams(name: &str, event: &str, told: &str) -> Value {
    json!({
        "application/json": { "schema": named(name) },
        "text/event-stream": { "schema": named(event), "description": told },
    })
}

const OF_RESPONSES: &str = "Each event is named by its `type`. The last one is `response.completed`, \
    `response.failed` or `response.incomplete`, then `[DONE]` follows as data without a name. A comment is sent \
    after 15 seconds without events. A stream that ends otherwise was interrupted, and is resumed with \
    `starting_after`; if it cannot be continued, its last event is named `error` and holds an OpenAIError.";
const OF_RUNS: &str = "Named `thread.run.created`, `.queued`, `.in_progress`, `.requires_action`, `.cancelling`, \
    `.completed`, `.failed`, `.cancelled`, `.expired` (the run), `thread.message.created`, `.in_progress`, `.delta`, \
    `.completed` (the result of a final tool), `thread.run.step.created`, `.in_progress`, `.completed`, \
    `.failed`, `.cancelled`, `.expired` (a step), `thread.run.step.delta`, and `done` with the data `[DONE]`, which \
    is the last. A comment is sent after 15 seconds without events. If the stream cannot be continued, the last \
    event is named `error` and holds an OpenAIError.";

/// The description of a route in the document.
pub(super) fn described(route: &Route) -> Value {
    let (takes, gives, more): (Option<&str>, Value, Vec<Value>) = match route.name {
        "createResponse" => (
            Some("OpenAIResponseRequest"),
            streams("OpenAIResponse", "OpenAIResponseEvent", OF_RESPONSES),
            vec![key(), shows_all(), items_wanted(), foreign_tools()],
        ),
        "getResponse" => {
            let number = json!({ "type": "integer", "minimum": 0 });
            let more = vec![
                query("stream", "The events, from the first one.", json!({ "type": "boolean" })),
                query(
                    "starting_after",
                    "With `stream`: the `sequence_number` of the last event that the client has.",
                    number,
                ),
                shows_all(),
                items_wanted(),
            ];
            (None, streams("OpenAIResponse", "OpenAIResponseEvent", OF_RESPONSES), more)
        }
        "cancelResponse" => (None, gives("OpenAIResponse"), vec![items_wanted()]),
        "deleteResponse" => (None, gives("OpenAIResponseDeleted"), vec![]),
        "listInputItems" => (None, gives("OpenAIItemList"), of_lists().to_vec()),
        "createThread" => (None, gives("OpenAIThread"), vec![]),
        "createThreadAndRun" | "createThreadRun" => {
            (Some("OpenAIRunRequest"), streams("OpenAIRun", "OpenAIRunEvent", OF_RUNS), vec![key(), foreign_tools()])
        }
        "submitThreadRunOutputs" => {
            (Some("OpenAIToolOutputs"), streams("OpenAIRun", "OpenAIRunEvent", OF_RUNS), vec![])
        }
        "listThreadMessages" => {
            let run = query("run_id", "The run whose messages are returned.", json!({ "type": "string" }));
            let more = of_lists().into_iter().chain([run]).collect();
            (None, gives("OpenAIMessageList"), more)
        }
        "listThreadRunSteps" => (None, gives("OpenAIStepList"), of_lists().to_vec()),
        // Routes of a run: to get it, and to cancel it.
        _ => (None, gives("OpenAIRun"), vec![]),
    };
    debug_assert!(takes.is_none() || route.method == Method::POST, "{} has a body", route.path);
    operation(route, takes, gives, &more)
}
