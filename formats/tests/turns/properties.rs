//! Arbitrary input: no panic, errors with valid pointers, and calls that can be executed and answered.

use std::collections::HashSet;

use formats::turns::{Answer, Arguments, Form, Part, Turn, limit};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Names and words with a meaning in some form, and others.
const WORDS: [&str; 46] = [
    "choices",
    "message",
    "tool_calls",
    "function_call",
    "function",
    "custom",
    "id",
    "type",
    "name",
    "arguments",
    "input",
    "output",
    "call_id",
    "status",
    "action",
    "operation",
    "environment",
    "max_output_length",
    "caller",
    "namespace",
    "content",
    "tool_use",
    "stop_reason",
    "max_tokens",
    "toolset_name",
    "candidates",
    "parts",
    "functionCall",
    "args",
    "willContinue",
    "jsonrpc",
    "2.0",
    "method",
    "tools/call",
    "params",
    "_meta",
    "custom_tool_call",
    "shell_call",
    "local_shell_call",
    "apply_patch_call",
    "function_call_output",
    "mcp_call",
    "text",
    "assistant",
    "role",
    "a~/b",
];

fn word() -> impl Strategy<Value = String> {
    prop_oneof![4 => prop::sample::select(&WORDS[..]).prop_map(str::to_owned), 1 => ".{0,8}", 1 => Just("{}".to_owned())]
}

fn anything() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        1 => Just(Value::Null),
        1 => any::<bool>().prop_map(Value::from),
        1 => any::<i64>().prop_map(Value::from),
        4 => word().prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 48, 6, |inner| {
        prop_oneof![
            1 => prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            2 => prop::collection::hash_map(word(), inner, 0..6).prop_map(|map| map.into_iter().collect()),
        ]
    })
}

/// A turn of the form with these calls. Each is an id, a name and arguments.
fn written(form: Form, calls: &[(String, String, Value)]) -> Value {
    let each = |write: fn(&(String, String, Value)) -> Value| calls.iter().map(write).collect::<Vec<_>>();
    match form {
        Form::Chat => json!({ "tool_calls": each(|(id, name, arguments)| json!({
            "id": id, "type": "function", "function": { "name": name, "arguments": arguments.to_string() } })) }),
        Form::Responses => json!({ "output": each(|(id, name, arguments)| json!({
            "type": "function_call", "call_id": id, "name": name, "arguments": arguments.to_string() })) }),
        Form::Anthropic => json!({ "content": each(|(id, name, arguments)| json!({
            "type": "tool_use", "id": id, "name": name, "input": arguments })) }),
        Form::Gemini => json!({ "parts": each(|(id, name, arguments)| json!({
            "functionCall": { "id": id, "name": name, "args": arguments } })) }),
        Form::Mcp => each(|(id, name, arguments)| {
            json!({
            "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": { "name": name, "arguments": arguments } })
        })
        .into(),
    }
}

fn calls() -> impl Strategy<Value = Vec<(String, String, Value)>> {
    let arguments = prop::collection::hash_map(word(), anything(), 0..4).prop_map(|map| map.into_iter().collect());
    let call = (any::<u16>(), word(), arguments);
    prop::collection::vec(call, 1..6).prop_map(|calls| {
        let numbered = |(index, (id, name, arguments))| (format!("{id}_{index}"), name, arguments);
        calls.into_iter().enumerate().map(numbered).collect()
    })
}

/// The value with one part replaced: a turn that is almost valid.
fn damaged(value: &mut Value, place: usize, by: Value) {
    fn walk(value: &mut Value, left: &mut usize, by: &mut Option<Value>) {
        if *left == 0 {
            if let Some(by) = by.take() {
                *value = by;
            }
            return;
        }
        *left -= 1;
        match value {
            Value::Array(elements) => elements.iter_mut().for_each(|element| walk(element, left, by)),
            Value::Object(members) => members.values_mut().for_each(|member| walk(member, left, by)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    walk(value, &mut { place }, &mut Some(by));
}

fn part() -> impl Strategy<Value = (u8, String, Vec<u8>)> {
    let media_type =
        ["image/png", "image/gif", "application/pdf", "text/plain", "application/json", "audio/wav", "x\"\n"];
    let media_type = prop::sample::select(media_type.to_vec()).prop_map(str::to_owned);
    (0_u8..3, prop_oneof![anything().prop_map(|value| value.to_string()), media_type, ".*"], any::<Vec<u8>>())
}

fn parts(made: &[(u8, String, Vec<u8>)]) -> Vec<Part<'_>> {
    made.iter()
        .map(|(kind, text, data)| match kind {
            0 => Part::Text(text),
            1 => Part::Json(text),
            _ => Part::Data { media_type: text, data },
        })
        .collect()
}

/// Reads the turn in every form and in its own, and checks the result.
fn judge(text: &str, answer: &Answer<'_>) {
    let document: Option<Value> = serde_json::from_str(text).ok();
    for form in Form::ALL.map(Some).into_iter().chain([None]) {
        let turn = match Turn::parse(text.as_bytes(), form) {
            Ok(turn) => turn,
            Err(error) => {
                let found = document.as_ref().is_none_or(|document| document.pointer(&error.pointer).is_some());
                assert!(found, "{error} points at nothing: {text}");
                continue;
            }
        };
        let mut ids = HashSet::new();
        for call in &turn.calls {
            assert!(!call.id.is_empty() && call.id.len() <= limit::CALL_ID_BYTES_MAX, "{call:?}");
            assert!(!call.id.chars().any(char::is_control) && ids.insert(&call.id), "{call:?}");
            assert!(document.as_ref().is_some_and(|document| document.pointer(&call.pointer).is_some()), "{call:?}");
            if let Arguments::Json(arguments) = &call.arguments {
                serde_json::from_str::<Value>(arguments).unwrap_or_else(|error| panic!("{error}: {call:?}"));
            }
        }
        let messages = turn.answers(|_| Some(answer.clone()));
        let expected = match turn.form {
            Form::Chat | Form::Responses | Form::Mcp => turn.calls.len(),
            Form::Anthropic | Form::Gemini => turn.calls.len().min(1),
        };
        assert_eq!(messages.len(), expected);
        for message in messages {
            let read: Value = serde_json::from_str(message.get()).unwrap_or_else(|error| panic!("{error}: {message}"));
            assert!(read.is_object());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn any_json_is_read_or_refused(value in anything(), made in prop::collection::vec(part(), 0..3), is_error: bool) {
        judge(&value.to_string(), &Answer { parts: parts(&made), is_error });
    }

    #[test]
    fn any_bytes_are_refused_or_read(bytes: Vec<u8>) {
        for form in Form::ALL.map(Some).into_iter().chain([None]) {
            let read = Turn::parse(&bytes, form);
            prop_assert!(read.is_err() || serde_json::from_slice::<Value>(&bytes).is_ok());
        }
    }

    #[test]
    fn a_turn_that_is_almost_right_is_read_or_refused(
        calls in calls(), place in 0_usize..40, by in anything(), cut in any::<prop::sample::Index>(),
    ) {
        for form in Form::ALL {
            let mut turn = written(form, &calls);
            damaged(&mut turn, place, by.clone());
            let text = turn.to_string();
            judge(&text, &Answer::error("no"));
            let cut = text.char_indices().nth(cut.index(text.chars().count())).map_or(0, |(at, _)| at);
            judge(&text[..cut], &Answer::error("no"));
        }
    }

    #[test]
    fn any_answer_can_be_given(calls in calls(), made in prop::collection::vec(part(), 0..3), is_error: bool) {
        for form in Form::ALL {
            judge(&written(form, &calls).to_string(), &Answer { parts: parts(&made), is_error });
        }
        let items = calls.iter().map(|(id, ..)| json!({ "type": "shell_call", "call_id": id, "action": {} }));
        judge(&Value::from_iter(items).to_string(), &Answer { parts: parts(&made), is_error });
    }

    #[test]
    fn what_a_vendor_wrote_is_what_is_read_and_every_answer_finds_its_call(calls in calls()) {
        for form in Form::ALL {
            let turn = Turn::parse(written(form, &calls).to_string().as_bytes(), None);
            let turn = turn.unwrap_or_else(|error| panic!("{error}"));
            prop_assert_eq!(turn.form, form);
            prop_assert_eq!(turn.calls.len(), calls.len());
            for (call, (id, name, arguments)) in turn.calls.iter().zip(&calls) {
                prop_assert_eq!((&call.id, &call.name), (id, name));
                prop_assert_eq!(&call.arguments, &Arguments::Json(arguments.to_string()));
            }
            let messages = turn.answers(|_| Some(Answer::new(vec![])));
            let all = messages.iter().map(|message| message.get()).collect::<String>();
            let mut rest = all.as_str();
            for (id, ..) in &calls {
                let (_, after) = rest.split_once(&format!("\"{id}\"")).expect("the ids, in their order");
                rest = after;
            }
        }
    }
}
