//! The endpoint's part of the document.

use serde_json::{Value, json};

/// Of messages.
pub(crate) fn posted_described() -> Value {
    let message = json!({ "type": "object", "description": "A JSON-RPC 2.0 message." });
    json!({
        "operationId": "PostMcpMessage",
        "description": "The Model Context Protocol, Streamable HTTP: revision 2026-07-28, and 2024-11-05 to 2025-11-25 \
            with `initialize`. Each method needs the role of what it does: `tools/list` read, `tools/call` submit, \
            answers to questions answer or approve.",
        "requestBody": { "required": true, "content": { "application/json": { "schema": message } } },
        "responses": {
            "200": { "description": "The answer.", "content": {
                "application/json": { "schema": message },
                "text/event-stream": { "description": "Notifications and requests, then the answer." },
            } },
            "202": { "description": "A notification or an answer was accepted." },
        },
    })
}

/// Of streams.
pub(crate) fn events_described() -> Value {
    json!({
        "operationId": "StreamMcpEvents",
        "description": "Notifications for a client with a session, or with `Last-Event-ID` the rest of a call's \
            stream. The revision 2026-07-28 does not have it.",
        "responses": { "200": { "description": "Messages.", "content": { "text/event-stream": {} } } },
    })
}
