//! Vendors' turns that are truncated or damaged at any position. Each is rejected with a pointer, or read so that no
//! call is mistaken for another and no answer goes to another call.

use formats::turns::{Answer, Arguments, Call, Form, Part, Turn, limit};
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// A complete response of each vendor, with line breaks in some allowed positions.
const TURNS: [(Form, &str); 5] = [
    (
        Form::Chat,
        r#"{"id":"chatcmpl-1","object":"chat.completion","choices":[{"index":0,"finish_reason":"tool_calls","message":{
        "role":"assistant","content":null,"refusal":null,"tool_calls":[
        {"id":"call_1","type":"function","function":{"name":"grep","arguments":"{\"n\": 1.10,\"text\":\"a\\nb\"}"}},
        {"id":"call_10","type":"custom","custom":{"name":"sql","input":"select \"a\"\n"}},
        {"id":"call_2","type":"function","function":{"name":"grep","arguments":""}}]}}],"usage":{"total_tokens":7}}"#,
    ),
    (
        Form::Responses,
        r#"{"id":"resp_1","object":"response","status":"completed","output":[
        {"type":"reasoning","id":"rs_1","summary":[]},
        {"type":"function_call","id":"fc_1","call_id":"call_1","name":"t","arguments":"{}","namespace":"crm","caller":{
            "type":"program",
            "id":"p"}},
        {"type":"custom_tool_call","call_id":"call_2","name":"sql","input":"select 1"},
        {"type":"shell_call","id":"sh_1","call_id":"call_3","action":{"commands":["ls"],"timeout_ms":100}},
        {"type":"local_shell_call","call_id":"call_4","action":{"type":"exec","command":["ls"],"env":{}}},
        {"type":"apply_patch_call","call_id":"call_5","operation":{"type":"delete_file","path":"a"}},
        {"type":"mcp_call","id":"mcp_1","server_label":"w","name":"t","arguments":"{}"},
        {"type":"function_call","call_id":"call_8","name":"t","arguments":"{}"},
        {"type":"function_call_output","call_id":"call_8","output":"done"}]}"#,
    ),
    (
        Form::Anthropic,
        r#"{"id":"msg_1","type":"message","role":"assistant","model":"m","stop_reason":"tool_use","content":[
        {"type":"thinking","thinking":"hm","signature":"s"},{"type":"text","text":"so"},
        {"type":"server_tool_use","id":"srvtoolu_1","name":"web_search","input":{"query":"q"}},
        {"type":"tool_use","id":"toolu_1","name":"t","input":{"big":12345678901234567890123, "small":1e400}},
        {"type":"tool_use","id":"toolu_2","name":"t","input":{}}]}"#,
    ),
    (
        Form::Gemini,
        r#"{"candidates":[{"content":{"role":"model","parts":[{"text":"so"},
        {"functionCall":{"id":"f1","name":"a","args":{"x":1}},"thoughtSignature":"s"},
        {"functionCall":{"name":"b"}},{"executableCode":{"code":"1"}}]},"finishReason":"STOP"}]}"#,
    ),
    (
        Form::Mcp,
        r#"[{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"a","arguments":{"x":1}}},
        {"jsonrpc":"2.0","id":"7","method":"tools/call","params":{"name":"b","_meta":{
            "io.modelcontextprotocol/protocolVersion":"2026-01-01"}}},
        {"jsonrpc":"2.0","id":-1.5,"method":"tools/call","params":{"name":"c"}},
        {"jsonrpc":"2.0","method":"notifications/initialized"}]"#,
    ),
];

/// The vendor's id of the call as JSON, if the vendor gave one.
fn vendors_id<'a>(form: Form, call: &Call, document: &'a Value) -> Option<&'a Value> {
    let node = document.pointer(&call.pointer).unwrap_or_else(|| panic!("{call:?} stands nowhere"));
    let name = if form == Form::Responses { "call_id" } else { "id" };
    // The predecessor of `tool_calls` in Chat Completions had no ids.
    let has_none = form == Form::Chat && call.pointer.ends_with("function_call");
    Some(&node[name]).filter(|id| !id.is_null() && !has_none)
}

/// The events of a model's stream, whose ids are in some of them.
fn is_stream(document: &Value) -> bool {
    let kind = document[0]["type"].as_str().unwrap_or_default();
    let has = |name: &str| document[0].get(name).is_some();
    has("choices") || has("candidates") || kind == "message_start" || kind.starts_with("response.")
}

/// Each answer with its id.
fn answers(form: Form, messages: &[Value]) -> Vec<(Value, String)> {
    let lists = |name: &str| -> Vec<Value> {
        messages.iter().filter_map(|message| message[name].as_array()).flatten().cloned().collect()
    };
    let of = |id: &Value, answer: &Value| (id.clone(), answer.to_string());
    match form {
        Form::Chat => messages.iter().map(|message| of(&message["tool_call_id"], message)).collect(),
        Form::Responses => messages.iter().map(|message| of(&message["call_id"], message)).collect(),
        Form::Mcp => messages.iter().map(|message| of(&message["id"], message)).collect(),
        Form::Anthropic => lists("content").iter().map(|block| of(&block["tool_use_id"], block)).collect(),
        Form::Gemini => lists("parts").iter().map(|part| of(&part["functionResponse"]["id"], part)).collect(),
    }
}

/// Reads the turn in every form and in its own. A turn that is read keeps the vendor's ids, and its answers carry them.
fn judge(bytes: &[u8]) {
    let document: Option<Value> = serde_json::from_slice(bytes).ok();
    for form in Form::ALL.map(Some).into_iter().chain([None]) {
        let turn = match Turn::parse(bytes, form) {
            Ok(turn) => turn,
            Err(error) => {
                let found = document.as_ref().is_none_or(|document| document.pointer(&error.pointer).is_some());
                assert!(found && !error.to_string().contains('\n'), "{error}");
                continue;
            }
        };
        // Numbers beyond the range of a double are valid JSON.
        let Some(document) = &document else { continue };
        if is_stream(document) {
            assert!(turn.calls.iter().all(|call| call.pointer.is_empty()), "{:?}", turn.calls);
            continue;
        }
        for (index, call) in turn.calls.iter().enumerate() {
            assert!(!call.id.is_empty() && call.id.len() <= limit::CALL_ID_BYTES_MAX, "{call:?}");
            assert!(!call.id.contains(char::is_control), "{call:?}");
            let is_another = turn.calls.iter().take(index).any(|other| other.id == call.id);
            assert!(!is_another, "two calls are {:?}", call.id);
            let own = vendors_id(turn.form, call, document);
            let shown = own.map(|id| id.as_str().map_or_else(|| id.to_string(), str::to_owned));
            let is_own = shown.as_ref() == Some(&call.id);
            assert!(is_own || call.id.starts_with("call_") || own.is_some_and(Value::is_number), "{call:?}: {own:?}");
            if let Arguments::Json(arguments) = &call.arguments {
                assert!(arguments.starts_with('{') || serde_json::from_str::<&RawValue>(arguments).is_ok(), "{call:?}");
            }
        }
        for parts in [&[Part::Text("")][..], &[Part::Json("{\n \"a\":\r\n1}")]] {
            let mut messages = Vec::new();
            for (nth, asked) in turn.calls.iter().enumerate() {
                let said = format!("answer {nth}.");
                let answer = |call: &Call| {
                    let parts = match parts {
                        [Part::Text(_)] => vec![Part::Text(&said)],
                        other => other.to_vec(),
                    };
                    (call.id == asked.id).then_some(Answer { parts, is_error: false })
                };
                let told = turn.answers(answer);
                assert_eq!(told.len(), 1, "one call is answered");
                assert!(!told[0].get().contains(['\n', '\r']), "it would end an event: {}", told[0]);
                let told: Value = serde_json::from_str(told[0].get()).expect("it is JSON");
                let [(id, told)] = &answers(turn.form, std::slice::from_ref(&told))[..] else { panic!("{told}") };
                let own = vendors_id(turn.form, asked, document).filter(|id| **id != "" || turn.form != Form::Gemini);
                assert_eq!(own.unwrap_or(&Value::Null), id, "{asked:?} is answered as another");
                messages.push(told.contains(&said) || !matches!(parts, [Part::Text(_)]));
            }
            assert!(messages.into_iter().all(|said| said), "{:?}", turn.calls);
        }
    }
}

#[test]
fn a_turn_that_is_cut_off_at_any_byte_is_refused() {
    for (form, text) in TURNS {
        assert_eq!(Turn::parse(text.as_bytes(), None).unwrap_or_else(|error| panic!("{error}")).form, form);
        judge(text.as_bytes());
        for end in 0..text.len() {
            for named in [None, Some(form)] {
                let cut = Turn::parse(&text.as_bytes()[..end], named);
                assert!(cut.is_err(), "{form}, after {end} bytes: {cut:?}");
            }
        }
    }
}

/// A change of some bytes.
#[derive(Debug, Clone)]
enum Edit {
    Put(u8),
    Insert(Vec<u8>),
    Remove(usize),
    Repeat(usize),
}

fn edit() -> impl Strategy<Value = Edit> {
    let piece = prop::sample::select(
        &[
            "null",
            "\"\"",
            "{}",
            "[]",
            "{\"id\":",
            "\"id\":\"call_1\",",
            "\"call_id\":7,",
            "\\n",
            "\\u0000",
            "\\ud800",
            "\r\n\r\n",
            "1e999",
            "-0",
            "[[[[[[[[",
            "}}}}",
            "\"tool_calls\":[],",
            "\"output\":[],",
            "\"jsonrpc\":\"2.0\",",
            "\"function_call\":{\"name\":\"x\",\"arguments\":\"{}\"},",
            "\u{feff}",
            "\u{202e}",
        ][..],
    );
    prop_oneof![
        any::<u8>().prop_map(Edit::Put),
        prop::sample::select(&b"{}[]\",:\\ 0\n"[..]).prop_map(Edit::Put),
        piece.prop_map(|piece| Edit::Insert(piece.as_bytes().to_vec())),
        (1_usize..64).prop_map(Edit::Remove),
        (1_usize..256).prop_map(Edit::Repeat),
    ]
}

fn edited(bytes: &mut Vec<u8>, at: Index, edit: Edit) {
    if bytes.is_empty() {
        return;
    }
    let at = at.index(bytes.len());
    let end = |length: usize, bytes: &Vec<u8>| (at + length).min(bytes.len());
    match edit {
        Edit::Put(byte) => bytes[at] = byte,
        Edit::Insert(piece) => drop(bytes.splice(at..at, piece)),
        Edit::Remove(length) => drop(bytes.drain(at..end(length, bytes))),
        Edit::Repeat(length) => {
            let piece = bytes[at..end(length, bytes)].to_vec();
            drop(bytes.splice(at..at, piece));
        }
    }
}

/// The pointers of all values in a document.
fn places(value: &Value, at: &str, into: &mut Vec<String>) {
    into.push(at.to_owned());
    match value {
        Value::Array(elements) => {
            elements.iter().enumerate().for_each(|(index, element)| places(element, &format!("{at}/{index}"), into));
        }
        Value::Object(members) => members.iter().for_each(|(name, member)| {
            let name = name.replace('~', "~0").replace('/', "~1");
            places(member, &format!("{at}/{name}"), into);
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Ids and names with a meaning in other contexts: headers, events, subjects, terminals.
fn hostile() -> impl Strategy<Value = String> {
    let known = [
        "a\r\nset-cookie: x=1",
        "a\n\ndata: {}",
        "a\0b",
        "a.b.>",
        "*",
        "call_0",
        "call_1",
        "call_00",
        "../..",
        "\"",
        "\\",
        "{}",
        "7",
        "7.0",
        " a",
        "a ",
        "\u{202e}a",
        "\u{feff}",
        "ä",
        "\u{1f600}",
        "__proto__",
        "",
        "é",
        "e\u{301}",
    ];
    prop_oneof![
        4 => prop::sample::select(known.to_vec()).prop_map(str::to_owned),
        1 => ".{0,12}",
        1 => (120_usize..140).prop_map(|length| "x".repeat(length)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn a_turn_with_damaged_bytes_is_read_as_it_stands_or_refused(
        edits in prop::collection::vec((any::<Index>(), edit()), 1..6),
    ) {
        for (_, text) in TURNS {
            let mut bytes = text.as_bytes().to_vec();
            edits.iter().for_each(|(at, edit)| edited(&mut bytes, *at, edit.clone()));
            judge(&bytes);
        }
    }

    /// A part of a turn replaces another part, possibly of another vendor's turn.
    #[test]
    fn a_turn_whose_parts_are_mixed_up_is_read_as_it_stands_or_refused(
        moves in prop::collection::vec((any::<Index>(), any::<Index>(), any::<Index>()), 1..4),
    ) {
        let documents = TURNS.map(|(_, text)| serde_json::from_str::<Value>(&text.replace("1e400", "1e30")).expect("it is JSON"));
        for document in &documents {
            let mut mixed = document.clone();
            for (from, of, to) in &moves {
                let source = &documents[of.index(documents.len())];
                let (mut sources, mut targets) = (Vec::new(), Vec::new());
                places(source, "", &mut sources);
                places(&mixed, "", &mut targets);
                let part = source.pointer(&sources[from.index(sources.len())]).expect("it is there").clone();
                *mixed.pointer_mut(&targets[to.index(targets.len())]).expect("it is there") = part;
            }
            judge(mixed.to_string().as_bytes());
        }
    }

    #[test]
    fn ids_that_look_alike_or_mean_something_elsewhere_stay_those_of_their_calls(
        ids in prop::collection::vec((hostile(), hostile()), 1..6),
    ) {
        let each = |write: fn(&(String, String)) -> Value| Value::from_iter(ids.iter().map(write));
        let turns = [
            json!({ "tool_calls": each(|(id, name)| json!({ "id": id, "type": "function", "function": { "name": name, "arguments": "{}" } })) }),
            json!({ "output": each(|(id, name)| json!({ "type": "function_call", "call_id": id, "name": name, "arguments": "{}" })) }),
            json!({ "role": "assistant", "content": each(|(id, name)| json!({ "type": "tool_use", "id": id, "name": name, "input": {} })) }),
            json!({ "parts": each(|(id, name)| json!({ "functionCall": { "id": id, "name": name, "args": {} } })) }),
            each(|(id, name)| json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": { "name": name } })),
        ];
        for turn in turns {
            judge(turn.to_string().as_bytes());
        }
    }
}

/// A turn of each form with one call that has these arguments, and whether the form carries them as text.
fn with_arguments(arguments: &str) -> [(Form, String, bool); 5] {
    let text = Value::from(arguments).to_string();
    [
        (
            Form::Chat,
            format!(
                r#"{{"tool_calls":[{{"id":"a","type":"function","function":{{"name":"t","arguments":{text}}}}}]}}"#
            ),
            true,
        ),
        (
            Form::Responses,
            format!(r#"{{"output":[{{"type":"function_call","call_id":"a","name":"t","arguments":{text}}}]}}"#),
            true,
        ),
        (
            Form::Anthropic,
            format!(r#"{{"content":[{{"type":"tool_use","id":"a","name":"t","input":{arguments}}}]}}"#),
            false,
        ),
        (
            Form::Gemini,
            format!(r#"{{"parts":[{{"functionCall":{{"id":"a","name":"t","args":{arguments}}}}}]}}"#),
            false,
        ),
        (
            Form::Mcp,
            format!(
                r#"{{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{{"name":"t","arguments":{arguments}}}}}"#
            ),
            false,
        ),
    ]
}

#[test]
fn numbers_of_any_size_are_passed_on_digit_by_digit() {
    let long = "9".repeat(4000);
    for number in ["1e999999999", "-1e-999999999", "-0", "0.10", "18446744073709551616", &long, &format!("0.{long}")] {
        let arguments = format!(r#"{{"x":{number}}}"#);
        for (form, text, _) in with_arguments(&arguments) {
            let turn = Turn::parse(text.as_bytes(), None).unwrap_or_else(|error| panic!("{form}: {error}"));
            assert_eq!(turn.calls[0].arguments, Arguments::Json(arguments.clone()), "{form}");
        }
        let request = format!(r#"{{"jsonrpc":"2.0","id":{number},"method":"tools/call","params":{{"name":"t"}}}}"#);
        let turn = Turn::parse(request.as_bytes(), None).unwrap_or_else(|error| panic!("{error}"));
        let answer = turn.answers(|_| Some(Answer::new(vec![])));
        assert!(answer[0].get().contains(&format!("\"id\":{number},")), "{}", answer[0]);
    }
}

#[test]
fn what_is_nested_too_deep_is_refused_however_deep_it_is() {
    for depth in [limit::DEPTH_MAX + 1, 1000, 200_000] {
        for (open, close) in [("[", "]"), (r#"{"a":"#, "}")] {
            let close = if open == "[" { close.repeat(depth) } else { format!("1{}", close.repeat(depth)) };
            let deep = format!("{}{close}", open.repeat(depth));
            let arguments = format!(r#"{{"x":{deep}}}"#);
            for (form, text, is_text) in with_arguments(&arguments) {
                match Turn::parse(text.as_bytes(), None) {
                    Ok(turn) => {
                        let is_refused = matches!(&turn.calls[0].arguments, Arguments::Unreadable { .. });
                        assert!(is_text && is_refused, "{form}, {depth} deep");
                    }
                    Err(_) => assert!(!is_text || text.len() > limit::TURN_BYTES_MAX, "{form}, {depth} deep"),
                }
            }
            for form in Form::ALL.map(Some).into_iter().chain([None]) {
                assert!(Turn::parse(deep.as_bytes(), form).is_err(), "{depth} deep");
                assert!(Turn::parse(open.repeat(depth).as_bytes(), form).is_err(), "{depth} deep and cut off");
            }
        }
    }
}
