//! Turns in pieces, and conversations: fragments of arguments are put together, and calls that have results are left.

use formats::turns::{Answer, Arguments, Form, History, Part, Problem, Reason, Turn};
use serde_json::{Value, json};

fn read(turn: &Value) -> Turn {
    Turn::parse(turn.to_string().as_bytes(), None).unwrap_or_else(|error| panic!("{turn}: {error}"))
}

fn calls(turn: &Turn) -> Vec<(&str, &str, &str)> {
    let arguments = |arguments| match arguments {
        &Arguments::Json(ref text) | &Arguments::Unreadable { ref text, .. } => text.as_str(),
    };
    turn.calls.iter().map(|call| (call.id.as_str(), call.name.as_str(), arguments(&call.arguments))).collect()
}

#[test]
fn the_fragments_of_a_stream_are_put_together_by_their_index() {
    let chunk = |delta: Value, finish: Value| {
        json!({ "object": "chat.completion.chunk",
            "choices": [{ "index": 0, "delta": delta, "finish_reason": finish }] })
    };
    let part = |index: u64, rest: Value| {
        let mut part = rest;
        part["index"] = index.into();
        chunk(json!({ "tool_calls": [part] }), Value::Null)
    };
    let chat = json!([
        chunk(json!({ "role": "assistant", "content": "" }), Value::Null),
        part(0, json!({ "id": "a", "type": "function", "function": { "name": "echo", "arguments": "" } })),
        part(1, json!({ "id": "b", "type": "function", "function": { "name": "count", "arguments": "{\"pie" } })),
        part(0, json!({ "function": { "arguments": "{\"n\":1.1" } })),
        part(1, json!({ "function": { "arguments": "ces\":3}" } })),
        part(0, json!({ "function": { "arguments": "0}" } })),
        chunk(json!({}), json!("tool_calls")),
        json!({ "choices": [], "usage": {} }),
    ]);
    let delta = |index: u64, text: &str| {
        json!({ "type": "content_block_delta", "index": index,
            "delta": { "type": "input_json_delta", "partial_json": text } })
    };
    let start =
        |index: u64, block: Value| json!({ "type": "content_block_start", "index": index, "content_block": block });
    let tool = |id: &str, name: &str| json!({ "type": "tool_use", "id": id, "name": name, "input": {} });
    let anthropic = json!([
        { "type": "message_start", "message": { "role": "assistant", "content": [] } },
        start(0, json!({ "type": "text", "text": "" })),
        { "type": "content_block_delta", "index": 0, "delta": { "type": "text_delta", "text": "Hm" } },
        start(1, tool("a", "echo")),
        delta(1, ""),
        delta(1, "{\"n\":1.1"),
        delta(1, "0}"),
        start(2, tool("b", "count")),
        delta(2, "{\"pieces\":3}"),
        { "type": "message_delta", "delta": { "stop_reason": "tool_use" } },
        { "type": "message_stop" },
    ]);
    let item = |id: &str, name: &str, arguments: &str| {
        let kind = "function_call";
        json!({ "type": kind, "call_id": id, "name": name, "arguments": arguments })
    };
    let items = [item("a", "echo", "{\"n\":1.10}"), item("b", "count", "{\"pieces\":3}")];
    let responses = json!([
        { "type": "response.created", "response": { "output": [] } },
        { "type": "response.output_item.done", "item": items[0] },
        { "type": "response.completed", "response": { "output": items } },
    ]);
    for (stream, form) in [(chat, Form::Chat), (anthropic, Form::Anthropic), (responses, Form::Responses)] {
        let turn = read(&stream);
        assert_eq!(turn.form, form);
        assert_eq!(calls(&turn), [("a", "echo", "{\"n\":1.10}"), ("b", "count", "{\"pieces\":3}")], "{form}");
    }
    let part =
        |name: &str| json!({ "candidates": [{ "content": { "parts": [{ "functionCall": { "name": name } }] } }] });
    assert_eq!(calls(&read(&json!([part("echo"), part("count")]))).len(), 2);
}

#[test]
fn a_stream_that_was_cut_off_is_not_executed() {
    let chat = json!([{ "choices": [{ "index": 0, "delta": { "tool_calls": [
        { "index": 0, "id": "a", "type": "function", "function": { "name": "wipe", "arguments": "" } }] } }] }]);
    let anthropic = json!([
        { "type": "message_start", "message": {} },
        { "type": "content_block_start", "index": 0,
            "content_block": { "type": "tool_use", "id": "a", "name": "wipe", "input": {} } },
    ]);
    for stream in [chat, anthropic] {
        let error = Turn::parse(stream.to_string().as_bytes(), None).unwrap_err();
        assert!(matches!(error.problem, Problem::Incomplete(_)), "{error}");
    }
    // Fragments that are no JSON are the error of their call alone.
    let delta = json!({ "type": "content_block_delta", "index": 0, "delta": { "partial_json": "{\"a\":" } });
    let start = json!({ "type": "content_block_start", "index": 0,
        "content_block": { "type": "tool_use", "id": "a", "name": "wipe", "input": {} } });
    let turn = read(&json!([
        { "type": "message_start" }, start, delta, { "type": "message_delta", "delta": { "stop_reason": "tool_use" } },
    ]));
    assert!(matches!(turn.calls[0].arguments, Arguments::Unreadable { .. }));
}

#[test]
fn a_call_in_the_form_of_lang_chain_is_answered_as_a_tool_message() {
    let call = json!({ "name": "echo", "args": { "n": 1 }, "id": "a", "type": "tool_call" });
    for turn in [json!({ "type": "ai", "content": "", "tool_calls": [call] }), json!([call])] {
        let turn = read(&turn);
        assert_eq!((turn.form, calls(&turn)), (Form::Chat, vec![("a", "echo", "{\"n\":1}")]));
        let messages = turn.answers(|_| Some(Answer::new(vec![Part::Text("hi")])));
        assert_eq!(messages[0].get(), r#"{"role":"tool","tool_call_id":"a","content":"hi"}"#);
    }
}

#[test]
fn a_turn_that_only_speaks_has_no_calls_whatever_its_form() {
    for content in [json!("hello"), json!([{ "type": "text", "text": "hello" }])] {
        assert!(read(&json!({ "role": "assistant", "content": content })).calls.is_empty());
    }
}

fn history(messages: &Value) -> History {
    History::parse(messages.to_string().as_bytes(), None).unwrap_or_else(|error| panic!("{messages}: {error}"))
}

#[test]
fn of_a_conversation_only_the_calls_without_results_are_left() {
    let call = |id: &str| json!({ "id": id, "type": "function", "function": { "name": "echo", "arguments": "{}" } });
    let turn =
        |ids: &[&str]| json!({ "role": "assistant", "tool_calls": ids.iter().map(|id| call(id)).collect::<Vec<_>>() });
    let result = |id: &str| json!({ "role": "tool", "tool_call_id": id, "content": "done" });
    let user = || json!({ "role": "user", "content": "Go on" });
    let read = history(&json!([user(), turn(&["a", "b"]), result("b"), user(), turn(&["c", "d", "e"]), result("d")]));
    assert_eq!(calls(&read.turn), [("c", "echo", "{}"), ("e", "echo", "{}")]);
    assert_eq!(read.turn.passed_over[0].reason, Reason::Answered);
    let [(after, dangling)] = &read.dangling[..] else { panic!("{read:?}") };
    assert_eq!((*after, dangling.len()), (2, 1), "behind the result that there is");
    assert!(dangling[0].get().contains("\"a\"") && dangling[0].get().contains("was not executed"));
    let read = history(&json!([turn(&["a"]), user()]));
    assert_eq!((read.turn.calls.len(), read.dangling.len()), (0, 1), "the conversation went on");
    assert!(!read.is_of_model, "the model must speak next");
    assert!(history(&json!([user(), { "role": "assistant", "content": "Done" }])).is_of_model);
    assert!(history(&json!([turn(&["a"]), result("a")])).turn.calls.is_empty());
}

#[test]
fn each_result_without_an_id_answers_one_call_of_its_tool() {
    let call = |n: u8| json!({ "functionCall": { "name": "echo", "args": { "n": n } } });
    let result = || json!({ "functionResponse": { "name": "echo", "response": { "result": "done" } } });
    let conversation = |results: &[Value]| {
        history(&json!([{ "role": "model", "parts": [call(1), call(2)] }, { "role": "user", "parts": results }]))
    };
    assert!(conversation(&[result(), result()]).turn.calls.is_empty());
    let one = conversation(&[result()]).turn;
    assert_eq!((one.calls.len(), one.calls[0].pointer.ends_with("/parts/1/functionCall")), (1, true), "{one:?}");
}

#[test]
fn results_of_anthropic_and_gemini_are_found_in_the_users_message() {
    let tool = |id: &str| json!({ "type": "tool_use", "id": id, "name": "echo", "input": {} });
    let anthropic = json!([
        { "role": "assistant", "content": [tool("a"), tool("b")] },
        { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "a", "content": "done" }] },
    ]);
    assert_eq!(calls(&history(&anthropic).turn), [("b", "echo", "{}")]);
    let part = |name: &str| json!({ "functionCall": { "name": name, "args": {} } });
    let gemini = json!([
        { "role": "user", "parts": [{ "text": "Go" }] },
        { "role": "model", "parts": [part("echo"), part("count")] },
        { "role": "user", "parts": [{ "functionResponse": { "name": "count", "response": {} } }] },
    ]);
    let read = history(&gemini);
    assert_eq!((read.turn.form, read.turn.calls.len()), (Form::Gemini, 1));
    assert_eq!(read.turn.calls[0].name, "echo");
}
