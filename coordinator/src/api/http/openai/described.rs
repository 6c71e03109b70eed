//! What the document says of the routes of OpenAI's APIs.

use http::Method;
use serde_json::{Value, json};

use super::Route;
use super::schemas::{named, one_of};

/// The operation of a route. Its parameters are the names in its path, those of lists where it gives one, and `more`.
fn operation(route: &Route, takes: Option<&str>, gives: Value, more: &[Value]) -> Value {
    let of_path = super::super::openapi::names(route.path).into_iter().map(|name| {
        let description = match name {
            "thread_id" => "Any name: nothing is kept under it.",
            "response_id" => "`resp_…`, as the response says it.",
            _ => "`run_…`, as the run says it.",
        };
        json!({ "name": name, "in": "path", "required": true, "description": description, "schema": { "type": "string" } })
    });
    let parameters: Vec<Value> = of_path.chain(more.iter().cloned()).collect();
    let mut described = json!({
        "operationId": route.name,
        "description": route.description,
        "tags": ["OpenAI"],
        "responses": {
            "200": { "description": "Done.", "content": gives },
            "default": {
                "description": "Why it was not served. What is refused before its route is looked at (who asks, pages of browsers, \
                                methods that are not served) is told as a Problem.",
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
    let description = "The same request with the same key gives the same run.";
    json!({ "name": "Idempotency-Key", "in": "header", "description": description, "schema": { "type": "string" } })
}

fn of_lists() -> [Value; 3] {
    [
        query(
            "limit",
            "How many items to give: 20 when not said.",
            json!({ "type": "integer", "minimum": 1, "maximum": 100 }),
        ),
        query("order", "`desc`, the newest first, when not said.", one_of(&["asc", "desc"])),
        query("after", "The id of an item of the list: those behind it are given.", json!({ "type": "string" })),
    ]
}

fn shows_all() -> Value {
    query("events", "`all`: also the events that the API does not document.", one_of(&["documented", "all"]))
}

fn gives(name: &str) -> Value {
    json!({ "application/json": { "schema": named(name) } })
}

/// An answer, or events with `stream`.
fn streams(name: &str, event: &str, told: &str) -> Value {
    json!({
        "application/json": { "schema": named(name) },
        "text/event-stream": { "schema": named(event), "description": told },
    })
}

const OF_RESPONSES: &str = "Each event is named by its `type`. The last one is `response.completed`, `response.failed` or `response.incomplete`, \
    then `[DONE]` follows as data without a name. A comment comes after 15 silent seconds. A stream that ends otherwise was cut off, and is \
    read on with `starting_after`; where it cannot be told, its last event is named `error` and holds an OpenAIError.";
const OF_RUNS: &str = "Named `thread.run.created`, `.queued`, `.in_progress`, `.requires_action`, `.completed`, `.failed`, `.cancelled`, \
    `.expired` (the run), `thread.run.step.created`, `.in_progress`, `.completed`, `.failed`, `.cancelled`, `.expired` (a step), \
    `thread.run.step.delta`, and `done` with the data `[DONE]`, which is the last. A comment comes after 15 silent seconds. Where it cannot \
    be told further, the last event is named `error` and holds an OpenAIError.";

/// What the document says of a route.
pub(super) fn described(route: &Route) -> Value {
    let (takes, gives, more): (Option<&str>, Value, Vec<Value>) = match route.name {
        "createResponse" => (
            Some("OpenAIResponseRequest"),
            streams("OpenAIResponse", "OpenAIResponseEvent", OF_RESPONSES),
            vec![key(), shows_all()],
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
            ];
            (None, streams("OpenAIResponse", "OpenAIResponseEvent", OF_RESPONSES), more)
        }
        "cancelResponse" => (None, gives("OpenAIResponse"), vec![]),
        "deleteResponse" => (None, gives("OpenAIResponseDeleted"), vec![]),
        "listInputItems" => (None, gives("OpenAIItemList"), of_lists().to_vec()),
        "createThread" => (None, gives("OpenAIThread"), vec![]),
        "createThreadAndRun" | "createThreadRun" => {
            (Some("OpenAIRunRequest"), streams("OpenAIRun", "OpenAIRunEvent", OF_RUNS), vec![key()])
        }
        "submitThreadRunOutputs" => {
            (Some("OpenAIToolOutputs"), streams("OpenAIRun", "OpenAIRunEvent", OF_RUNS), vec![])
        }
        "listThreadRunSteps" => (None, gives("OpenAIStepList"), of_lists().to_vec()),
        // Of a run: to get it, and to cancel it.
        _ => (None, gives("OpenAIRun"), vec![]),
    };
    debug_assert!(takes.is_none() || route.method == Method::POST, "{} has a body", route.path);
    operation(route, takes, gives, &more)
}
