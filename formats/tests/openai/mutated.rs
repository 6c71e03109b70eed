//! Damaged requests of the APIs. Each is either read or rejected with a pointer to an existing or a missing member.

use std::collections::HashSet;

use formats::openai::responses::ResponseId;
use formats::openai::{InputError, assistants, responses};
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::Value;

/// Requests that together contain every member that is read at least once.
const REQUESTS: [&str; 5] = [
    r#"{"model":"m","stream":true,"background":false,"store":true,"parallel_tool_calls":false,"max_tool_calls":3,
        "metadata":{"a":"b"},"tools":[{"type":"function","name":"ask","parameters":{"type":"object"}},
        {"type":"custom","name":"sql","format":{"type":"grammar","syntax":"regex","definition":"a+"}},
        {"type":"mcp","server_label":"w","allowed_tools":["bash"],"require_approval":{"never":{"tool_names":["bash"]}}},
        {"type":"shell"},{"type":"apply_patch"}],"input":[{"role":"user","content":"hello"},
        {"type":"function_call","call_id":"call_1","name":"ask","arguments":"{\"n\": 1.10}"},
        {"type":"custom_tool_call","call_id":"call_2","name":"sql","input":"aa"},
        {"type":"shell_call","call_id":"call_3","action":{"commands":["ls"],"timeout_ms":18446744073709551615}},
        {"type":"local_shell_call","call_id":"call_4","action":{"type":"exec","command":["ls","it's"],"env":{}}},
        {"type":"apply_patch_call","call_id":"call_5","operation":{"type":"delete_file","path":"a"}}]}"#,
    r#"{"previous_response_id":"resp_0b_0193a7b4c2d07e3f8a1b2c3d4e5f6071_1","stream":false,"input":[
        {"type":"function_call","call_id":"call_1","name":"ask","arguments":"{}"},
        {"type":"function_call_output","call_id":"call_1","output":"blue"},
        {"type":"custom_tool_call_output","call_id":"call_2","output":[{"type":"input_text","text":"a"},
        {"type":"input_image","image_url":"data:image/png;base64,AAAA"},{"type":"input_file","file_data":"data:;base64,?"}]},
        {"type":"shell_call_output","call_id":"call_3","output":[{"stdout":"a","stderr":"b","outcome":{"type":"exit","exit_code":-1}}]},
        {"type":"local_shell_call_output","id":"call_4","output":"{}"},
        {"type":"apply_patch_call_output","call_id":"call_5","status":"failed","output":"no"},
        {"type":"mcp_approval_response","approval_request_id":"mcpr_1_0","approve":false,"reason":"no"}]}"#,
    r#"{"assistant_id":"a","stream":true,"metadata":{},"tools":[{"type":"function","function":{"name":"ask","parameters":{}}}],
        "tool_calls":[{"id":"call_1","type":"function","function":{"name":"ask","arguments":"{}"}},
        {"id":"call_2","type":"custom","custom":{"name":"sql","input":"a\n"}}]}"#,
    r#"{"stream":null,"tool_outputs":[{"tool_call_id":"call_1","output":"blue"},{"tool_call_id":"call_2","output":null}]}"#,
    r#"{"input":[{"type":"function_call","call_id":"a","name":"a__b","namespace":"crm","arguments":""}],"tools":null}"#,
];

fn hosted(name: &str) -> Option<String> {
    ["bash", "a.b"].into_iter().find(|known| *known == name || *known == name.replace("__", ".")).map(str::to_owned)
}

/// Checks that the rejected member exists, or could be a member of an existing value.
fn check_place(refused: &InputError, document: Option<&Value>) {
    assert!(!refused.message.is_empty() && !refused.reason.code().is_empty(), "{refused:?}");
    let Some(document) = document else { return };
    let around = refused.pointer.rsplit_once('/').map_or("", |(around, _)| around);
    // A list of names may be in an object, and either may be missing.
    let further = around.rsplit_once('/').map_or("", |(further, _)| further);
    let is_there = [refused.pointer.as_str(), around, further].iter().any(|at| document.pointer(at).is_some());
    assert!(is_there, "{refused:?}: {document}");
}

fn judge(bytes: &[u8]) {
    let document: Option<Value> = serde_json::from_slice(bytes).ok();
    let check_calls = |calls: &[proto::v1::NewCall]| {
        let mut ids = HashSet::new();
        for call in calls {
            assert!(!call.call_id.is_empty() && !call.call_id.contains(char::is_control), "{call:?}");
            assert!(ids.insert(&call.call_id), "two calls are {:?}", call.call_id);
        }
    };
    match responses::Asked::read(bytes, &hosted) {
        Ok(responses::Asked::Opened(opened)) => check_calls(&opened.run.calls),
        Ok(responses::Asked::Continued(_)) => {}
        Err(refused) => check_place(&refused, document.as_ref()),
    }
    match assistants::Asked::read(bytes, &hosted) {
        Ok(asked) => check_calls(&asked.run.calls),
        Err(refused) => check_place(&refused, document.as_ref()),
    }
    match assistants::tool_outputs(bytes, "run_x") {
        Ok((outputs, _)) => {
            let ids: HashSet<_> = outputs.outputs.iter().map(|output| &output.call_id).collect();
            assert_eq!(ids.len(), outputs.outputs.len(), "no call is answered twice");
        }
        Err(refused) => check_place(&refused, document.as_ref()),
    }
}

fn edited(bytes: &mut Vec<u8>, at: Index, (kind, length, piece): (u8, usize, &str)) {
    if bytes.is_empty() {
        return;
    }
    let at = at.index(bytes.len());
    let end = (at + length).min(bytes.len());
    match kind {
        0 => bytes[at] = piece.as_bytes().first().copied().unwrap_or_default(),
        1 => drop(bytes.splice(at..at, piece.bytes())),
        2 => drop(bytes.drain(at..end)),
        _ => {
            let again = bytes[at..end].to_vec();
            drop(bytes.splice(at..at, again));
        }
    }
}

const PIECES: [&str; 18] = [
    "null",
    "\"\"",
    "{}",
    "[]",
    "7",
    "-1e999",
    "\"",
    "\\u0000",
    "\\ud800",
    "\r\n",
    ",",
    ":",
    "[[[[[[",
    "}",
    "\"type\":7,",
    "\"call_id\":\"call_1\",",
    "\"input\":[],",
    "\u{202e}",
];

#[test]
fn a_request_that_is_cut_off_at_any_byte_is_refused() {
    for request in REQUESTS {
        judge(request.as_bytes());
        for end in 0..request.len() {
            let cut = &request.as_bytes()[..end];
            assert!(responses::Asked::read(cut, &hosted).is_err() && assistants::Asked::read(cut, &hosted).is_err());
            assert!(assistants::tool_outputs(cut, "run_x").is_err(), "after {end} bytes");
        }
    }
}

#[test]
fn what_cannot_be_read_is_refused_and_not_passed_over() {
    let call = r#"{"type":"function_call","call_id":"a","name":"bash","arguments":"{}"}"#;
    let chat = r#"{"id":"a","type":"function","function":{"name":"bash","arguments":"{}"}}"#;
    for (name, value) in [
        ("tools", r#"[{"type":"mcp","require_approval":"always","x":1e999}]"#),
        ("previous_response_id", r#""\ud800""#),
        ("metadata", r#"{"a":"\udfff"}"#),
        ("stream", "1e999"),
        ("store", "-1e999"),
        ("parallel_tool_calls", "1e999"),
        ("parallel_tool_calls", r#""false""#),
        ("max_tool_calls", "1e999"),
        ("conversation", r#""\ud800""#),
    ] {
        let body = format!(r#"{{"input":[{call}],"tool_calls":[{chat}],"{name}":{value}}}"#);
        let refused = responses::Asked::read(body.as_bytes(), &hosted).expect_err(&body);
        assert_eq!(
            (refused.reason.code(), refused.pointer.as_str()),
            ("MALFORMED", &*format!("/{name}")),
            "{refused:?}"
        );
        if ["tools", "metadata", "stream", "parallel_tool_calls"].contains(&name) {
            let refused = assistants::Asked::read(body.as_bytes(), &hosted).expect_err(&body);
            assert_eq!(
                (refused.reason.code(), refused.pointer.as_str()),
                ("MALFORMED", &*format!("/{name}")),
                "{refused:?}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn a_request_with_damaged_bytes_is_read_as_it_stands_or_refused(
        edits in prop::collection::vec((any::<Index>(), 0_u8..4, 1_usize..200, any::<Index>()), 1..6),
    ) {
        for request in REQUESTS {
            let mut bytes = request.as_bytes().to_vec();
            for (at, kind, length, piece) in &edits {
                edited(&mut bytes, *at, (*kind, *length, PIECES[piece.index(PIECES.len())]));
            }
            judge(&bytes);
        }
    }

    #[test]
    fn an_id_is_read_as_it_is_written_or_not_at_all(
        at in any::<Index>(), by in ".{0,3}", length in 0_usize..4, whole in "\\PC{0,60}",
    ) {
        let id = "resp_0b_0193a7b4c2d07e3f8a1b2c3d4e5f6071_12";
        let at = at.index(id.len());
        let damaged = format!("{}{by}{}", &id[..at], &id[(at + length).min(id.len())..]);
        for text in [damaged, whole, format!("{id}{by}")] {
            match text.parse::<ResponseId>() {
                Ok(read) => prop_assert_eq!(read.to_string(), text),
                Err(refused) => prop_assert_eq!(refused.reason.code(), "RESPONSE_NOT_FOUND"),
            }
        }
    }
}
