//! Turns as the vendors write them, and the calls read from them.

use formats::turns::{Arguments, Form, Reason, Turn};

fn turn(text: &str) -> Turn {
    Turn::parse(text.as_bytes(), None).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Each call as `id name arguments`.
fn calls(turn: &Turn) -> Vec<String> {
    let line = |call: &formats::turns::Call| match &call.arguments {
        Arguments::Json(text) => format!("{} {} {text}", call.id, call.name),
        Arguments::Unreadable { why, .. } => format!("{} {} unreadable: {}", call.id, call.name, why.problem),
    };
    turn.calls.iter().map(line).collect()
}

fn passed_over(turn: &Turn) -> Vec<(&str, &str, Reason)> {
    turn.passed_over.iter().map(|passed| (passed.pointer.as_str(), passed.kind.as_str(), passed.reason)).collect()
}

const CHAT_MESSAGE: &str = r#"{"role":"assistant","content":null,"function_call":null,"tool_calls":[
    {"id":"call_1","type":"function","function":{"name":"grep","arguments":" {\"n\": 1.10}\n"}},
    {"id":"call_2","type":"custom","custom":{"name":"sql","input":"select \"a\"\n"}}]}"#;

#[test]
fn a_chat_message_is_read_alone_in_its_response_and_as_the_list_of_its_calls() {
    let expected = [r#"call_1 grep {"n": 1.10}"#, r#"call_2 sql {"input":"select \"a\"\n"}"#];
    let response = format!(
        r#"{{"id":"c","object":"chat.completion","choices":[{{"index":0,"finish_reason":"tool_calls","message":{CHAT_MESSAGE}}}]}}"#
    );
    let list = CHAT_MESSAGE.split_once("\"tool_calls\":").expect("a list").1.strip_suffix('}').expect("an end");
    for (text, first) in [(CHAT_MESSAGE, "/tool_calls/0"), (&response, "/choices/0/message/tool_calls/0"), (list, "/0")]
    {
        let turn = turn(text);
        assert_eq!((turn.form, calls(&turn)), (Form::Chat, expected.map(str::to_owned).to_vec()));
        assert_eq!(turn.calls[0].pointer, first);
    }
}

#[test]
fn the_function_call_from_before_tool_calls_is_read() {
    let turn = turn(r#"{"role":"assistant","content":null,"function_call":{"name":"add","arguments":""}}"#);
    assert_eq!((turn.form, calls(&turn)), (Form::Chat, vec!["call_0 add {}".to_owned()]));
}

#[test]
fn items_of_responses_are_read_and_those_that_are_not_for_us_reported() {
    let turn = turn(
        r#"{"id":"resp_1","object":"response","status":"completed","output":[
        {"type":"reasoning","id":"rs_1","summary":[]},
        {"type":"message","role":"assistant","content":[{"type":"output_text","text":"so"}]},
        {"type":"function_call","id":"fc_1","call_id":"call_1","name":"t","arguments":"{}","status":"completed","namespace":"crm"},
        {"type":"custom_tool_call","call_id":"call_2","name":"sql","input":"select 1"},
        {"type":"shell_call","id":"sh_1","call_id":"call_3","status":"in_progress","action":{"commands":["ls"],"timeout_ms":100}},
        {"type":"local_shell_call","call_id":"call_4","action":{"type":"exec","command":["ls"],"env":{}}},
        {"type":"apply_patch_call","call_id":"call_5","operation":{"type":"delete_file","path":"a"}},
        {"type":"shell_call","call_id":"call_6","environment":{"type":"container_reference","container_id":"c"},"action":{"commands":["ls"]}},
        {"type":"mcp_call","id":"mcp_1","server_label":"w","name":"t","arguments":"{}"},
        {"type":"mcp_approval_request","id":"mcpr_1","server_label":"w","name":"t","arguments":"{}"},
        {"type":"computer_call","call_id":"call_7","action":{"type":"screenshot"}},
        {"type":"acme:thing","id":"x"},
        {"type":"function_call","call_id":"call_8","name":"t","arguments":"{}"},
        {"type":"function_call_output","call_id":"call_8","output":"done"}]}"#,
    );
    let expected = [
        "call_1 t {}",
        r#"call_2 sql {"input":"select 1"}"#,
        r#"call_3 shell {"commands":["ls"],"timeout_ms":100}"#,
        r#"call_4 local_shell {"type":"exec","command":["ls"],"env":{}}"#,
        r#"call_5 apply_patch {"type":"delete_file","path":"a"}"#,
    ];
    assert_eq!((turn.form, calls(&turn)), (Form::Responses, expected.map(str::to_owned).to_vec()));
    assert_eq!(turn.calls[0].namespace.as_deref(), Some("crm"));
    let expected = [
        ("/output/7", "shell_call", Reason::ExecutedByVendor),
        ("/output/8", "mcp_call", Reason::ExecutedByVendor),
        ("/output/9", "mcp_approval_request", Reason::NeedsApproval),
        ("/output/10", "computer_call", Reason::Unsupported),
        ("/output/11", "acme:thing", Reason::Unsupported),
        ("/output/12", "function_call", Reason::Answered),
    ];
    assert_eq!(passed_over(&turn), expected);
}

#[test]
fn blocks_of_anthropic_are_read() {
    let text = r#"{"id":"msg_1","type":"message","role":"assistant","model":"m","stop_reason":"tool_use","content":[
        {"type":"thinking","thinking":"hm","signature":"s"},{"type":"text","text":"so"},
        {"type":"server_tool_use","id":"srvtoolu_1","name":"web_search","input":{"query":"q"}},
        {"type":"web_search_tool_result","tool_use_id":"srvtoolu_1","content":[]},
        {"type":"tool_use","id":"toolu_1","name":"t","input":{"big":12345678901234567890123, "small":1e400},"toolset_name":"crm"}]}"#;
    let turn = turn(text);
    let expected = r#"toolu_1 t {"big":12345678901234567890123, "small":1e400}"#.to_owned();
    assert_eq!((turn.form, calls(&turn)), (Form::Anthropic, vec![expected]));
    assert_eq!(turn.calls[0].namespace.as_deref(), Some("crm"));
    let expected = [
        ("/content/2", "server_tool_use", Reason::ExecutedByVendor),
        ("/content/3", "web_search_tool_result", Reason::ExecutedByVendor),
    ];
    assert_eq!(passed_over(&turn), expected);
}

#[test]
fn parts_of_gemini_are_read_with_and_without_ids_in_camel_and_snake_case() {
    let parts = [
        r#"[{"text":"so"},{"functionCall":{"id":"f1","name":"a","args":{"x":1}}},{"functionCall":{"name":"b"}},{"executableCode":{"code":"1"}}]"#,
        r#"[{"text":"so"},{"function_call":{"id":"f1","name":"a","args":{"x":1}}},{"function_call":{"id":null,"name":"b","args":null}},{"executable_code":{"code":"1"}}]"#,
    ];
    for parts in parts {
        let content = format!(r#"{{"role":"model","parts":{parts}}}"#);
        let candidate = format!(r#"{{"content":{content},"finishReason":"STOP"}}"#);
        let response = format!(r#"{{"candidates":[{candidate}],"modelVersion":"g"}}"#);
        for text in [parts, &content, &candidate, &response] {
            let turn = turn(text);
            let expected = vec![r#"f1 a {"x":1}"#.to_owned(), "call_1 b {}".to_owned()];
            assert_eq!((turn.form, calls(&turn)), (Form::Gemini, expected));
            assert_eq!(turn.passed_over[0].reason, Reason::ExecutedByVendor);
        }
    }
}

#[test]
fn requests_of_mcp_are_read_alone_and_in_a_batch() {
    let request = r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"bash","arguments":{"command":"make test"},
        "_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","progressToken":"p7"}}}"#;
    let single = turn(request);
    assert_eq!((single.form, calls(&single)), (Form::Mcp, vec![r#"7 bash {"command":"make test"}"#.to_owned()]));

    let batch = turn(&format!(
        r#"[{request},{{"jsonrpc":"2.0","id":"7","method":"tools/call","params":{{"name":"t"}}}},{{"jsonrpc":"2.0","id":8,"method":"tools/list"}}]"#
    ));
    let expected = [r#"7 bash {"command":"make test"}"#, "call_1 t {}"];
    assert_eq!(calls(&batch), expected.map(str::to_owned).to_vec(), "the number and the string are two ids");
    assert_eq!(passed_over(&batch), [("/2", "tools/list", Reason::Unsupported)]);
}

#[test]
fn an_id_that_is_made_is_never_one_that_was_given() {
    let turn = turn(
        r#"{"parts":[{"functionCall":{"name":"a"}},{"functionCall":{"id":"call_0","name":"b"}},{"functionCall":{"id":"call_0_1","name":"c"}}]}"#,
    );
    assert_eq!(calls(&turn), ["call_0_2 a {}", "call_0 b {}", "call_0_1 c {}"]);
}

#[test]
fn an_id_that_a_run_cannot_take_is_replaced() {
    let long = "x".repeat(129);
    for id in ["", "a\\u0000b", &long] {
        let turn = turn(&format!(
            r#"{{"tool_calls":[{{"id":"{id}","type":"function","function":{{"name":"a","arguments":"{{}}"}}}}]}}"#
        ));
        assert_eq!(calls(&turn), ["call_0 a {}"]);
    }
}

#[test]
fn arguments_that_are_not_json_spoil_their_own_call_only() {
    let text = r#"{"tool_calls":[{"id":"1","type":"function","function":{"name":"a","arguments":"{\"x\":"}},
        {"id":"2","type":"function","function":{"name":"b","arguments":"{}"}}]}"#;
    let turn = turn(text);
    let Arguments::Unreadable { text, why } = &turn.calls[0].arguments else { panic!("{turn:?}") };
    assert_eq!((text.as_str(), why.pointer.as_str()), ("{\"x\":", "/tool_calls/0/function/arguments"));
    assert_eq!(turn.calls[1].arguments, Arguments::Json("{}".into()));
}

#[test]
fn a_call_that_the_model_did_not_finish_is_not_to_be_executed() {
    let unfinished = [
        r#"[{"type":"function_call","call_id":"c","name":"t","arguments":"{}","status":"incomplete"}]"#,
        r#"{"stop_reason":"max_tokens","content":[{"type":"tool_use","id":"c","name":"t","input":{}}]}"#,
        r#"{"parts":[{"functionCall":{"id":"c","name":"t","willContinue":true}}]}"#,
    ];
    for text in unfinished {
        let turn = turn(text);
        assert!(calls(&turn)[0].contains("unreadable: the call is not complete"), "{turn:?}");
    }
    let before = turn(
        r#"{"stop_reason":"max_tokens","content":[{"type":"tool_use","id":"c","name":"t","input":{}},{"type":"text","text":"and"}]}"#,
    );
    assert_eq!(calls(&before), ["c t {}"], "what was cut off came after it");
}

#[test]
fn a_turn_without_calls_is_one_where_its_form_is_known() {
    let text = br#"{"role":"assistant","content":"hello"}"#;
    for form in [Form::Chat, Form::Anthropic] {
        let turn = Turn::parse(text, Some(form)).expect("a message");
        assert!(turn.calls.is_empty() && turn.passed_over.is_empty());
        assert!(turn.answers(|_| None).is_empty());
    }
}
