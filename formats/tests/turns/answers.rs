//! Answers in each vendor's form, including content that a form cannot carry. The tests cover the table in the
//! documentation of `turns` row by row.

use formats::turns::{Answer, Part, Turn};

const PNG: Part<'_> = Part::Data { media_type: "image/png", data: b"png" };
const PDF: Part<'_> = Part::Data { media_type: "application/pdf", data: b"pdf" };
const ZIP: Part<'_> = Part::Data { media_type: "application/zip", data: b"\xff\x00\x01" };
const WAV: Part<'_> = Part::Data { media_type: "audio/wav", data: b"wav" };
const CSV: Part<'_> = Part::Data { media_type: "text/csv", data: b"a,b" };

const CHAT: &str = r#"{"tool_calls":[{"id":"c1","type":"function","function":{"name":"t","arguments":"{}"}}]}"#;
const FUNCTION: &str = r#"[{"type":"function_call","call_id":"c1","name":"t","arguments":"{}"}]"#;
const SHELL: &str = r#"[{"type":"shell_call","call_id":"c1","action":{"commands":["ls"],"max_output_length":100}}]"#;
const TOOL_USE: &str = r#"[{"type":"tool_use","id":"c1","name":"t","input":{}}]"#;
const GEMINI: &str = r#"[{"functionCall":{"id":"c1","name":"t","args":{}}}]"#;
const MCP: &str = r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"t"}}"#;
const MCP_MODERN: &str = r#"{"jsonrpc":"2.0","id":"r","method":"tools/call","params":{"name":"t","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}"#;

/// The messages that give the same answer to every call of the turn.
fn answered(turn: &str, answer: &Answer<'_>) -> String {
    let turn = Turn::parse(turn.as_bytes(), None).unwrap_or_else(|error| panic!("{error}"));
    let messages = turn.answers(|_| Some(answer.clone()));
    messages.iter().map(|message| message.get()).collect::<Vec<_>>().join("\n")
}

fn check(turn: &str, answer: &Answer<'_>, expected: &str) {
    assert_eq!(answered(turn, answer), expected, "{:?}", answer.parts);
}

fn failed(parts: Vec<Part<'_>>) -> Answer<'_> {
    Answer { parts, is_error: true }
}

#[test]
fn chat_has_one_text_and_says_of_errors_and_data_in_words() {
    let message = |content: &str| format!(r#"{{"role":"tool","tool_call_id":"c1","content":{content}}}"#);
    check(CHAT, &Answer::new(vec![Part::Text("a\"b")]), &message(r#""a\"b""#));
    check(CHAT, &Answer::new(vec![Part::Text("a"), Part::Json("1.10"), CSV]), &message(r#""a\n1.10\na,b""#));
    check(CHAT, &Answer::new(vec![]), &message(r#""""#));
    check(CHAT, &Answer::error("no such file"), &message(r#""Error: no such file""#));
    let note = message(r#""[image/png, 3 bytes: not shown because this form of results cannot carry it]""#);
    check(CHAT, &Answer::new(vec![PNG]), &note);
}

#[test]
fn the_function_call_from_before_tool_calls_is_answered_by_name() {
    let turn = r#"{"role":"assistant","function_call":{"name":"add","arguments":"{}"}}"#;
    check(turn, &Answer::new(vec![Part::Json("3")]), r#"{"role":"function","name":"add","content":"3"}"#);
}

#[test]
fn responses_show_images_and_documents_and_say_of_errors_in_words() {
    let item = |output: &str| format!(r#"{{"type":"function_call_output","call_id":"c1","output":{output}}}"#);
    check(FUNCTION, &Answer::new(vec![Part::Text("a"), Part::Json("{}")]), &item(r#""a\n{}""#));
    check(FUNCTION, &Answer::error("no"), &item(r#""Error: no""#));
    let rich = item(
        r#"[{"type":"input_text","text":"a"},{"type":"input_image","image_url":"data:image/png;base64,cG5n","detail":"auto"},{"type":"input_file","filename":"result.pdf","file_data":"data:application/pdf;base64,cGRm"},{"type":"input_text","text":"[application/zip, 3 bytes: not shown because this form of results cannot carry it]"}]"#,
    );
    check(FUNCTION, &Answer::new(vec![Part::Text("a"), PNG, PDF, ZIP]), &rich);
    let error = item(
        r#"[{"type":"input_text","text":"Error:"},{"type":"input_image","image_url":"data:image/png;base64,cG5n","detail":"auto"}]"#,
    );
    check(FUNCTION, &failed(vec![PNG]), &error);
}

#[test]
fn each_kind_of_item_is_answered_by_its_own() {
    let turn = r#"[{"type":"custom_tool_call","call_id":"c1","name":"t","input":"i","caller":{"type":"program","caller_id":"p"}},
        {"type":"local_shell_call","call_id":"c2","action":{}},
        {"type":"apply_patch_call","call_id":"c3","operation":{}}]"#;
    let done = r#"{"type":"custom_tool_call_output","call_id":"c1","output":"a","caller":{"type":"program","caller_id":"p"}}
{"type":"local_shell_call_output","id":"c2","call_id":"c2","output":"a"}
{"type":"apply_patch_call_output","call_id":"c3","status":"completed","output":"a"}"#;
    check(turn, &Answer::new(vec![Part::Text("a")]), done);
    let failed = r#"{"type":"custom_tool_call_output","call_id":"c1","output":"Error: a","caller":{"type":"program","caller_id":"p"}}
{"type":"local_shell_call_output","id":"c2","call_id":"c2","output":"Error: a"}
{"type":"apply_patch_call_output","call_id":"c3","status":"failed","output":"a"}"#;
    check(turn, &Answer::error("a"), failed);
}

#[test]
fn a_shell_is_answered_with_its_streams_and_how_it_ended() {
    let item = |stdout: &str, stderr: &str, code: i32| {
        format!(
            r#"{{"type":"shell_call_output","call_id":"c1","max_output_length":100,"output":[{{"stdout":"{stdout}","stderr":"{stderr}","outcome":{{"type":"exit","exit_code":{code}}}}}]}}"#
        )
    };
    check(SHELL, &Answer::new(vec![Part::Text("a\n")]), &item("a\\n", "", 0));
    check(SHELL, &Answer::new(vec![Part::Text("a"), Part::Json(r#"{"exit_code":2}"#)]), &item("a", "", 2));
    check(SHELL, &Answer::new(vec![Part::Json(r#"{"exit_code":2}"#)]), &item("", "", 2));
    check(SHELL, &Answer::new(vec![Part::Json("[2]")]), &item("[2]", "", 0));
    check(SHELL, &Answer::error("timed out"), &item("", "timed out", 1));
}

#[test]
fn anthropic_has_a_flag_for_errors_in_which_only_text_may_stand() {
    let message =
        |rest: &str| format!(r#"{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"c1"{rest}}}]}}"#);
    let rich = r#","content":[{"type":"text","text":"a"},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"cG5n"}},{"type":"document","source":{"type":"base64","media_type":"application/pdf","data":"cGRm"}}]"#;
    check(TOOL_USE, &Answer::new(vec![Part::Text("a"), PNG, Part::Text(" "), PDF]), &message(rich));
    check(TOOL_USE, &Answer::new(vec![]), &message(""));
    let error = r#","content":[{"type":"text","text":"no"},{"type":"text","text":"[image/png, 3 bytes: not shown because this form of results cannot carry it]"}],"is_error":true"#;
    check(TOOL_USE, &failed(vec![Part::Text("no"), PNG]), &message(error));
}

#[test]
fn gemini_keeps_structure_and_tells_output_from_error() {
    let message = |response: &str| {
        format!(r#"{{"role":"user","parts":[{{"functionResponse":{{"id":"c1","name":"t","response":{response}}}}}]}}"#)
    };
    let structure = r#"{"error": 1.10}"#;
    check(GEMINI, &Answer::new(vec![Part::Json(structure)]), &message(r#"{"output":{"error": 1.10}}"#));
    check(GEMINI, &Answer::new(vec![Part::Json("not json")]), &message(r#"{"output":"not json"}"#));
    check(GEMINI, &Answer::new(vec![Part::Text("a"), Part::Json("1")]), &message(r#"{"output":"a\n1"}"#));
    check(GEMINI, &failed(vec![Part::Json("1")]), &message(r#"{"error":"1"}"#));
    let media = message(r#"{"output":"a"},"parts":[{"inlineData":{"mimeType":"image/png","data":"cG5n"}}]"#);
    check(GEMINI, &Answer::new(vec![Part::Text("a"), PNG]), &media);
    let without_id = r#"[{"functionCall":{"name":"t"}}]"#;
    let expected = r#"{"role":"user","parts":[{"functionResponse":{"name":"t","response":{"output":"a"}}}]}"#;
    check(without_id, &Answer::new(vec![Part::Text("a")]), expected);
}

#[test]
fn mcp_carries_everything() {
    let result = |rest: &str| format!(r#"{{"jsonrpc":"2.0","id":7,"result":{{{rest}}}}}"#);
    check(MCP, &Answer::error("no"), &result(r#""content":[{"type":"text","text":"no"}],"isError":true"#));
    let object =
        result(r#""content":[{"type":"text","text":"{\"a\":1.10}"}],"structuredContent":{"a":1.10},"isError":false"#);
    check(MCP, &Answer::new(vec![Part::Json(r#"{"a":1.10}"#)]), &object);
    let number = result(r#""content":[{"type":"text","text":"1.10"}],"isError":false"#);
    check(MCP, &Answer::new(vec![Part::Json("1.10")]), &number);
    let rich = result(
        r#""content":[{"type":"image","data":"cG5n","mimeType":"image/png"},{"type":"audio","data":"d2F2","mimeType":"audio/wav"},{"type":"resource","resource":{"uri":"toolyard:part/2","mimeType":"application/zip","blob":"/wAB"}},{"type":"text","text":"a,b"}],"isError":false"#,
    );
    check(MCP, &Answer::new(vec![PNG, WAV, ZIP, CSV]), &rich);
    let modern = r#"{"jsonrpc":"2.0","id":"r","result":{"resultType":"complete","content":[{"type":"text","text":"1.10"}],"structuredContent":1.10,"isError":false}}"#;
    check(MCP_MODERN, &Answer::new(vec![Part::Json("1.10")]), modern);
}

#[test]
fn answers_come_in_the_order_of_the_calls_and_open_ones_are_left_out() {
    let calls = ["c", "a", "b"].map(|id| format!(r#"{{"type":"tool_use","id":"{id}","name":"{id}","input":{{}}}}"#));
    let turn = Turn::parse(format!("[{}]", calls.join(",")).as_bytes(), None).expect("a turn");
    let messages = turn.answers(|call| (call.id != "a").then(|| Answer::new(vec![])));
    let [message] = &messages[..] else { panic!("{messages:?}") };
    let expected = r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"c"},{"type":"tool_result","tool_use_id":"b"}]}"#;
    assert_eq!(message.get(), expected);
    assert!(turn.answers(|_| None).is_empty());
}

#[test]
fn an_answer_has_the_vendors_own_id_where_another_was_made() {
    let long = "x".repeat(200);
    let turn = CHAT.replace("c1", &long);
    let expected = format!(r#"{{"role":"tool","tool_call_id":"{long}","content":"a"}}"#);
    check(&turn, &Answer::new(vec![Part::Text("a")]), &expected);
}
