//! Conversations of all vendors in one form, for tools.

use formats::turns::{Form, History};
use proto::v1::ConversationMessage;
use serde_json::{Value, json};

/// Each message as its role, text, calls and results.
fn told(messages: &[ConversationMessage]) -> Value {
    let one = |message: &ConversationMessage| {
        let calls = message.calls.iter().map(|call| json!([call.call_id, call.tool, call.arguments]));
        let results = message.results.iter().map(|result| json!([result.call_id, result.text, result.is_error]));
        let role = message.role().as_str_name().trim_start_matches("CONVERSATION_ROLE_");
        json!([role, message.text, calls.collect::<Vec<_>>(), results.collect::<Vec<_>>()])
    };
    messages.iter().map(one).collect()
}

fn read(messages: &Value, form: Form) -> Value {
    let read = History::parse(messages.to_string().as_bytes(), Some(form));
    told(&read.unwrap_or_else(|error| panic!("{messages}: {error}")).messages)
}

/// The conversation of the tests below, whose second call failed in some of them.
fn expected(failed: bool, arguments: &str) -> Value {
    json!([
        ["USER", "Find x", [], []],
        ["ASSISTANT", "I look.", [["a", "grep", arguments], ["b", "find", "{}"]], []],
        ["TOOL", "", [], [["a", "one\ntwo", false], ["b", "no", failed]]],
        ["USER", "Go on", [], []],
        ["ASSISTANT", "", [["c", "grep", "{}"]], []],
    ])
}

#[test]
fn messages_of_chat_completions_are_read() {
    let function = |id: &str, name: &str, arguments: &str| {
        let function = json!({ "name": name, "arguments": arguments });
        json!({ "id": id, "type": "function", "function": function })
    };
    let image = json!({ "type": "image_url", "image_url": { "url": "data:image/png;base64,AA" } });
    let parts = json!([{ "type": "text", "text": "one" }, { "type": "text", "text": "two" }]);
    let chat = json!([
        { "role": "system", "content": "Be brief." },
        { "role": "user", "content": [{ "type": "text", "text": "Find x" }, image] },
        { "role": "assistant", "content": "I look.",
            "tool_calls": [function("a", "grep", "{\"n\":1.10}"), function("b", "find", "")] },
        { "role": "tool", "tool_call_id": "a", "content": parts },
        { "role": "tool", "tool_call_id": "b", "content": "no" },
        { "role": "user", "content": "Go on" },
        { "role": "assistant", "content": null, "tool_calls": [function("c", "grep", "{}")] },
    ]);
    let mut expected = expected(false, "{\"n\":1.10}");
    let all = expected.as_array_mut().expect("a list");
    // Each result is a message of its own there.
    all[2] = json!(["TOOL", "", [], [["a", "one\ntwo", false]]]);
    all.insert(3, json!(["TOOL", "", [], [["b", "no", false]]]));
    all.insert(0, json!(["SYSTEM", "Be brief.", [], []]));
    assert_eq!(read(&chat, Form::Chat), expected);
}

#[test]
fn messages_of_anthropic_are_read_and_numbers_keep_their_digits() {
    let block =
        |id: &str, name: &str, input: Value| json!({ "type": "tool_use", "id": id, "name": name, "input": input });
    let text = |text: &str| json!({ "type": "text", "text": text });
    let thinking = json!({ "type": "thinking", "thinking": "Hm", "signature": "s" });
    let found = json!({ "type": "tool_result", "tool_use_id": "a", "content": [text("one"), text("two")] });
    let failed = json!({ "type": "tool_result", "tool_use_id": "b", "content": "no", "is_error": true });
    let grep = block("a", "grep", json!("§"));
    let anthropic = json!([
        { "role": "user", "content": "Find x" },
        { "role": "assistant", "content": [thinking, text("I look."), grep, block("b", "find", json!({}))] },
        { "role": "user", "content": [found, failed, text("Go on")] },
        { "role": "assistant", "content": [block("c", "grep", json!({}))] },
    ]);
    let anthropic = anthropic.to_string().replace("\"§\"", "{\"n\":1.10}");
    let read = History::parse(anthropic.as_bytes(), Some(Form::Anthropic)).expect("it is a conversation");
    assert_eq!(told(&read.messages), expected(true, "{\"n\":1.10}"));
}

#[test]
fn contents_of_gemini_are_read() {
    let call = |id: &str, name: &str, args: Value| json!({ "functionCall": { "id": id, "name": name, "args": args } });
    let result = |id: &str, name: &str, response: Value| {
        let response = json!({ "id": id, "name": name, "response": response });
        json!({ "functionResponse": response })
    };
    let thought = json!({ "text": "Hm", "thought": true });
    let calls = [call("a", "grep", json!({ "n": 1 })), call("b", "find", json!({}))];
    let found = result("a", "grep", json!({ "output": "one\ntwo" }));
    let gemini = json!([
        { "role": "user", "parts": [{ "text": "Find x" }] },
        { "role": "model", "parts": [thought, { "text": "I look." }, calls[0], calls[1]] },
        { "role": "user", "parts": [found, result("b", "find", json!({ "error": "no" }))] },
        { "role": "user", "parts": [{ "text": "Go on" }] },
        { "role": "model", "parts": [call("c", "grep", json!({}))] },
    ]);
    assert_eq!(read(&gemini, Form::Gemini), expected(true, "{\"n\":1}"));
}

#[test]
fn results_that_are_no_text_are_json_and_data_is_left_out() {
    let response = json!({ "temperature": 21, "unit": "C" });
    let gemini = json!([
        { "role": "model", "parts": [{ "functionCall": { "name": "measure", "args": {} } }] },
        { "role": "user", "parts": [{ "functionResponse": { "name": "measure", "response": response } }] },
    ]);
    let read_one = read(&gemini, Form::Gemini);
    assert_eq!(read_one[0], json!(["ASSISTANT", "", [["call_0", "measure", "{}"]], []]));
    assert_eq!(read_one[1], json!(["TOOL", "", [], [["measure", response.to_string(), false]]]));
    let image = json!({ "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": "AAAA" } });
    let anthropic =
        json!([{ "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "a", "content": [image] }] }]);
    assert_eq!(read(&anthropic, Form::Anthropic), json!([["TOOL", "", [], [["a", "", false]]]]));
}
