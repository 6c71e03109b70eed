//! What a scripted model says, in the forms of the two APIs: whole, and in pieces as a stream of events.

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

pub(super) fn whole(value: &Value) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

pub(super) fn events(pieces: &[Value], with_done: bool) -> Response {
    let mut text: String = pieces
        .iter()
        .map(|piece| match piece["type"].as_str() {
            Some(name) => format!("event: {name}\ndata: {piece}\n\n"),
            None => format!("data: {piece}\n\n"),
        })
        .collect();
    if with_done {
        text.push_str("data: [DONE]\n\n");
    }
    ([(header::CONTENT_TYPE, "text/event-stream")], Body::from(text)).into_response()
}

/// The calls of a message: id, tool, arguments.
pub(super) type Calls<'a> = [(String, &'a str, &'a Value)];

pub(super) fn chat_message(text: &str, calls: &Calls<'_>) -> Value {
    let mut message = json!({ "role": "assistant", "content": text, "refusal": null });
    if !calls.is_empty() {
        let call = |(id, name, arguments): &(String, &str, &Value)| {
            let function = json!({ "name": name, "arguments": arguments.to_string() });
            json!({ "id": id, "type": "function", "function": function })
        };
        message["tool_calls"] = calls.iter().map(call).collect();
    }
    let finish = if calls.is_empty() { "stop" } else { "tool_calls" };
    json!({ "id": "chatcmpl-1", "object": "chat.completion", "model": "m1",
        "choices": [{ "index": 0, "message": message, "finish_reason": finish }],
        "usage": { "prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10 } })
}

fn halves(text: &str) -> [&str; 2] {
    let (first, second) = text.split_at(text.char_indices().nth(text.chars().count() / 2).map_or(0, |(at, _)| at));
    [first, second]
}

pub(super) fn chat_pieces(text: &str, calls: &Calls<'_>) -> Vec<Value> {
    let piece = |delta: Value, finish: Option<&str>| {
        json!({ "id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "m1",
            "choices": [{ "index": 0, "delta": delta, "finish_reason": finish }] })
    };
    let mut pieces = vec![piece(json!({ "role": "assistant", "content": "" }), None)];
    pieces.extend(halves(text).map(|half| piece(json!({ "content": half }), None)));
    for (index, (id, name, arguments)) in calls.iter().enumerate() {
        let call =
            json!({ "index": index, "id": id, "type": "function", "function": { "name": name, "arguments": "" } });
        pieces.push(piece(json!({ "tool_calls": [call] }), None));
        for half in halves(&arguments.to_string()) {
            let call = json!({ "index": index, "function": { "arguments": half } });
            pieces.push(piece(json!({ "tool_calls": [call] }), None));
        }
    }
    pieces.push(piece(json!({}), Some(if calls.is_empty() { "stop" } else { "tool_calls" })));
    pieces.push(json!({ "id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [],
        "usage": { "prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10 } }));
    pieces
}

fn blocks(text: &str, calls: &Calls<'_>) -> Vec<Value> {
    let text = (!text.is_empty()).then(|| json!({ "type": "text", "text": text }));
    let calls =
        calls.iter().map(|(id, name, input)| json!({ "type": "tool_use", "id": id, "name": name, "input": input }));
    text.into_iter().chain(calls).collect()
}

pub(super) fn anthropic_message(text: &str, calls: &Calls<'_>) -> Value {
    let stop = if calls.is_empty() { "end_turn" } else { "tool_use" };
    json!({ "id": "msg_1", "type": "message", "role": "assistant", "model": "m1", "content": blocks(text, calls),
        "stop_reason": stop, "stop_sequence": null, "usage": { "input_tokens": 7, "output_tokens": 3 } })
}

pub(super) fn anthropic_pieces(text: &str, calls: &Calls<'_>) -> Vec<Value> {
    let message = json!({ "id": "msg_1", "type": "message", "role": "assistant", "model": "m1", "content": [],
        "stop_reason": null, "stop_sequence": null, "usage": { "input_tokens": 7, "output_tokens": 1 } });
    let mut pieces = vec![json!({ "type": "message_start", "message": message }), json!({ "type": "ping" })];
    for (index, block) in blocks(text, calls).into_iter().enumerate() {
        let (begun, deltas) = match block["type"].as_str() {
            Some("text") => {
                let halves = halves(text).map(|half| json!({ "type": "text_delta", "text": half }));
                (json!({ "type": "text", "text": "" }), halves)
            }
            _ => {
                let input = block["input"].to_string();
                let halves = halves(&input).map(|half| json!({ "type": "input_json_delta", "partial_json": half }));
                (json!({ "type": "tool_use", "id": block["id"], "name": block["name"], "input": {} }), halves)
            }
        };
        pieces.push(json!({ "type": "content_block_start", "index": index, "content_block": begun }));
        pieces.extend(deltas.map(|delta| json!({ "type": "content_block_delta", "index": index, "delta": delta })));
        pieces.push(json!({ "type": "content_block_stop", "index": index }));
    }
    let stop = if calls.is_empty() { "end_turn" } else { "tool_use" };
    pieces.push(json!({ "type": "message_delta", "delta": { "stop_reason": stop, "stop_sequence": null },
        "usage": { "output_tokens": 3 } }));
    pieces.push(json!({ "type": "message_stop" }));
    pieces
}
