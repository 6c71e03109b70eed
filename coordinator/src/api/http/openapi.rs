//! The document of the HTTP API: OpenAPI 3.1, made from the route table and the descriptors of the messages.

use std::sync::LazyLock;

use axum::response::Response;
use http::Method as Verb;
use proto::openapi::{Method, Schemas, message};
use serde_json::{Map, Value, json};

use super::routes::{DEFER, Meaning, OPERATIONS, Operation, STRICT, text_response};
use super::{batch, objects, openai};

static DOCUMENT: LazyLock<String> =
    LazyLock::new(|| serde_json::to_string_pretty(&document()).expect("JSON always serializes") + "\n");

pub(super) async fn serve() -> Response {
    text_response(DOCUMENT.clone())
}

/// The document's own route.
pub(super) fn described() -> Value {
    json!({
        "operationId": "GetDocument",
        "summary": "Gets this document.",
        "responses": { "200": { "description": "This document.",
            "content": { "application/json": { "schema": { "type": "object" } } } } },
    })
}

fn document() -> Value {
    let mut schemas = Schemas::from([("Problem".to_owned(), problem())]);
    schemas.extend(openai::schemas::all());
    let mut paths = Map::new();
    for operation in OPERATIONS {
        let path = paths.entry(operation.path).or_insert_with(|| json!({}));
        let mut described = match &operation.meaning {
            Meaning::Method(service, name) => {
                let method = Method::find(service, name).expect("the list names methods of the API");
                of_method(operation, &method, &mut schemas)
            }
            Meaning::Other(_, _, described) => described(),
        };
        described["responses"]["default"] = json!({
            "description": "A problem: nothing was changed, unless it reports otherwise.",
            "content": { "application/problem+json": { "schema": { "$ref": "#/components/schemas/Problem" } } },
        });
        path[operation.method.as_str().to_lowercase()] = described;
    }
    let options = batch::options_described(&schemas["CreateRunRequest"]);
    schemas.insert("RunOptions".to_owned(), options);
    for route in openai::list_of_routes() {
        let path = paths.entry(format!("/v1{}", route.path)).or_insert_with(|| json!({}));
        path[route.method.as_str().to_lowercase()] = route.described();
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Toolyard",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Runs the tool calls of agents. Messages are those of the gRPC API in the protobuf JSON \
                mapping: times are RFC 3339, durations seconds with an `s`, bytes base64. Operations tagged OpenAI \
                have the form of that vendor's APIs, and are also served without `/v1`.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "paths": paths,
        "components": { "schemas": schemas },
    })
}

/// The names in the braces of a path.
pub(super) fn names(path: &str) -> Vec<&str> {
    path.split('/').filter_map(|step| step.strip_prefix('{')?.strip_suffix('}')).collect()
}

fn of_method(operation: &Operation, method: &Method, schemas: &mut Schemas) -> Value {
    let in_path = names(operation.path);
    let mut parameters: Vec<Value> = in_path
        .iter()
        .map(|name| {
            let description = method.field(name).expect("the path names fields of the message");
            json!({ "name": name, "in": "path", "required": true, "description": description,
                "schema": { "type": "string" } })
        })
        .collect();
    let mut described = json!({ "operationId": method.name(), "description": method.description() });
    let mut takes = None;
    if operation.method == Verb::GET {
        parameters.extend(method.parameters(&in_path, schemas));
    } else if !matches!(method.name(), "CreateObject" | "DeleteObject" | "DeleteSchedule") {
        // The paths of the others have all of their fields.
        takes = Some(method.takes(schemas));
    }
    if let Some(schema) = takes {
        described["requestBody"] = json!({ "content": { "application/json": { "schema": schema } } });
    }
    add_peculiarities(method, &mut parameters, &mut described, schemas);
    if !parameters.is_empty() {
        described["parameters"] = parameters.into();
    }
    described["responses"] = responses(method, schemas);
    described
}

/// The parts of a method's HTTP API beside the fields of its message.
fn add_peculiarities(method: &Method, parameters: &mut Vec<Value>, described: &mut Value, schemas: &mut Schemas) {
    match method.name() {
        "CreateRun" => {
            parameters.push(header("Idempotency-Key", "The `request_id`, for clients that prefer a header."));
            let watch = Method::find("RunService", "WatchRun").expect("the API has it");
            parameters.extend(watch.parameters(&["run_id", "after_sequence"], schemas));
            parameters.push(json!({ "name": "on_disconnect", "in": "query", "description": DISCONNECT,
                "schema": { "type": "string", "enum": ["cancel", "continue"] } }));
            described["description"] = format!("{}\n\n{}", method.description(), CREATE).into();
        }
        "CreateSchedule" => {
            parameters.push(header("Idempotency-Key", "The `request_id`, for clients that prefer a header."));
        }
        "CreateObject" => {
            described["requestBody"] = json!({ "description": UPLOAD,
                "content": { "*/*": { "schema": { "type": "string",
                    "contentMediaType": "application/octet-stream" } } } });
            let tenant = method.field("tenant").unwrap_or_default();
            parameters.push(json!({ "name": "tenant", "in": "query", "description": tenant,
                "schema": { "type": "string" } }));
        }
        "ReadObject" => {
            parameters.push(header("Range", "One range of bytes; takes precedence over `offset` and `length`."));
            described["description"] = format!("{}\n\n{OBJECT}", method.description()).into();
        }
        "WatchRun" => parameters.push(header(
            "Last-Event-ID",
            "Takes precedence over `after_sequence`: the number \
            of the last event that the client has.",
        )),
        "ListTools" => parameters.extend([
            json!({
                "name": "format", "in": "query", "description": FORMAT, "schema": { "type": "string",
                    "enum": formats::tools::Format::ALL.map(|(name, _)| name) },
            }),
            json!({
                "name": DEFER, "in": "query", "description": DEFER_LOADING, "schema": { "type": "string" },
            }),
            json!({
                "name": STRICT, "in": "query", "description": STRICT_DEFINITIONS, "schema": { "type": "boolean" },
            }),
        ]),
        _ => {}
    }
}

fn responses(method: &Method, schemas: &mut Schemas) -> Value {
    let done = |content: Value| json!({ "description": "Done.", "content": content });
    let bytes = json!({ "schema": { "type": "string", "contentMediaType": "application/octet-stream" } });
    match method.name() {
        "ReadObject" => {
            json!({ "200": done(json!({ "*/*": bytes })), "206": objects::bytes("The requested range.") })
        }
        "CreateRun" => {
            let created = done(json!({ "application/json": { "schema": method.gives(schemas) } }));
            let events = json!({ "schema": message("RunEvent", schemas), "description": EVENTS });
            let watched =
                json!({ "description": "The output of the run.", "content": { "text/event-stream": events } });
            json!({ "200": watched, "201": created })
        }
        _ if method.streams() => json!({ "200": done(json!({ "text/event-stream": events(method, schemas) })) }),
        name => {
            let status = if matches!(name, "CreateObject" | "CreateSchedule") { "201" } else { "200" };
            json!({ status: done(json!({ "application/json": { "schema": method.gives(schemas) } })) })
        }
    }
}

const EVENTS: &str = "Each event has its `sequence` as its id, and no name. A comment is sent after 15 seconds \
    without events. The last event is named `end` and holds a StreamEnd, or `problem` and holds a Problem.";
const CREATE: &str = "A client that accepts `text/event-stream` \
    receives the output of the run, with status 200. `floor_policy` \
    is for such a client only.";
const DISCONNECT: &str = "`cancel`: cancel the run if the client disconnects before its output ends. Only for a client \
    that accepts `text/event-stream`. Ignored for a request with a `request_id`, because it may be repeated and then \
    follows the same run.";
const OBJECT: &str = "The response is the object's bytes, under the object's own media type, to be saved and not \
    shown; with a `Range` its status is 206. `ETag` is the SHA-256 of the whole object. If reading fails midway, \
    the body is shorter than `Content-Length`.";
const UPLOAD: &str = "The object's bytes; `Content-Type` is its media type.";
const FORMAT: &str = "All tools as definitions for a model, in a vendor's form: an object with `tools`; `names`, which \
    maps changed names to the tools' own; `notes` on each tool by its name: `needs_approval`, `answered_by_client`, \
    `return_direct`, `read_only`, `idempotent`, `destructive`, `open_world`; and with `strict`, `not_strict`.";
const STRICT_DEFINITIONS: &str = "With `format` openai or openai-chat: definitions that the vendor enforces while the \
    model writes arguments. Objects are closed and have all properties; an optional one may be null, which counts as \
    missing. `not_strict` says why a tool's schema cannot be expressed; its definition stays as it is.";
const DEFER_LOADING: &str = "With `format` openai or anthropic: names of tools, with commas between them and `*` for \
    any characters, whose definitions have `defer_loading`. The model loads such a definition only when its vendor's \
    tool search finds it. `search_tools` is never deferred.";

fn events(method: &Method, schemas: &mut Schemas) -> Value {
    match method.name() {
        "WatchRun" => json!({ "schema": message("RunEvent", schemas), "description": EVENTS }),
        _ => {
            json!({ "schema": method.gives(schemas),
                "description": "Each message as an event; the last event is named `end`, or `problem`." })
        }
    }
}

fn header(name: &str, description: &str) -> Value {
    json!({ "name": name, "in": "header", "description": description, "schema": { "type": "string" } })
}

fn problem() -> Value {
    let text = |description: &str| json!({ "type": "string", "description": description });
    json!({
        "type": "object",
        "description": "Why a request was refused (RFC 9457).",
        "properties": {
            "type": text("`about:blank`: see `reason`."),
            "title": text("The meaning of the status."),
            "status": { "type": "integer", "description": "The status of the response." },
            "detail": text("For people; its wording may change."),
            "domain": text("The domain of the reason: `toolyard.dev`."),
            "reason": text("For programs: the same as over gRPC, and stable."),
            "remedy": text("How to correct or avoid the error."),
            "metadata": { "type": "object", "description": "The values in the detail, for programs.",
                "additionalProperties": { "type": "string" } },
            "errors": {
                "type": "array",
                "description": "The places of the errors in the request.",
                "items": { "type": "object", "properties": {
                    "detail": text("The error at this place."),
                    "pointer": text("A JSON pointer into the body."),
                    "parameter": text("A part of the path, or of the query."),
                    "header": text("A header."),
                    "arguments_pointer": text("A JSON pointer into the arguments of the call that the metadata names."),
                } },
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Methods whose work is done by other routes than their own.
    const OTHERWISE: [&str; 2] = ["ExecuteRun", "ExecuteRuns"];

    #[test]
    fn every_method_of_the_api_is_served() {
        let served: Vec<String> = OPERATIONS
            .iter()
            .filter_map(|operation| match operation.meaning {
                Meaning::Method(service, name) => Some(format!("{service}.{name}")),
                Meaning::Other(..) => None,
            })
            .collect();
        for (service, name) in Method::all() {
            assert!(
                served.contains(&format!("{service}.{name}")) || OTHERWISE.contains(&&*name),
                "{service}.{name} is not served"
            );
        }
    }

    #[test]
    fn every_route_is_in_the_document() {
        let document = document();
        let native = OPERATIONS.iter().map(|operation| (&operation.method, operation.path.to_owned()));
        let faces = openai::list_of_routes().map(|route| (&route.method, format!("/v1{}", route.path)));
        let mut ids = std::collections::HashSet::new();
        for (method, path) in native.chain(faces) {
            let operation = &document["paths"][&path][method.as_str().to_lowercase()];
            let id = operation["operationId"].as_str();
            assert!(
                id.is_some_and(|id| ids.insert(id.to_lowercase())),
                "{method} {path} has no name of its own: {id:?}"
            );
            let is_described = ["description", "summary"].iter().any(|said| operation[*said].is_string());
            assert!(is_described, "{method} {path} is not described");
            for name in names(&path) {
                let parameters = operation["parameters"].as_array().expect("a path with names has parameters");
                assert!(parameters.iter().any(|parameter| parameter["name"] == name), "{method} {path}: {name}");
            }
        }
        let operations = document["paths"].as_object().expect("paths").values().flat_map(|path| path.as_object());
        assert_eq!(operations.map(|operations| operations.len()).sum::<usize>(), ids.len());
    }

    #[test]
    fn the_document_that_lies_in_the_repository_is_current() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/openapi.json");
        if std::env::var_os("TOOLYARD_WRITE_OPENAPI").is_some() {
            std::fs::write(&path, &*DOCUMENT).expect("it can be written");
        }
        let there = std::fs::read_to_string(&path).expect("it is there");
        assert!(there == *DOCUMENT, "docs/openapi.json is out of date: run this test with TOOLYARD_WRITE_OPENAPI=1");
    }

    #[test]
    fn every_reference_of_the_document_leads_somewhere() {
        let document = document();
        let text = document.to_string();
        for reference in text.split("\"$ref\":\"#/components/schemas/").skip(1) {
            let name = reference.split('"').next().unwrap_or_default();
            assert!(document["components"]["schemas"][name].is_object(), "{name}");
        }
        assert!(document["components"]["schemas"].as_object().is_some_and(|schemas| schemas.len() > 60));
    }
}
