//! How requests are read, and how each invalid request is rejected.

extern crate run as toolyard_run;

use formats::openai::{InputError, assistants, responses};
use proptest::prelude::*;
use proto::v1;
use proto::v1::request_tool::Format;
use responses::{Asked, Opened};
use serde_json::{Value, json};

fn hosted(name: &str) -> Option<String> {
    let name = name.replace("__", ".");
    ["bash", "add", "math.add"].contains(&name.as_str()).then_some(name)
}

fn read(body: &Value) -> Result<Asked, InputError> {
    Asked::read(body.to_string().as_bytes(), &hosted)
}

fn opened(body: &Value) -> v1::CreateRunRequest {
    match read(body).expect("it is well formed") {
        Asked::Opened(Opened { run, .. }) => run,
        Asked::Continued(_) => panic!("it begins a response"),
    }
}

fn refused(body: &Value) -> (&'static str, String) {
    let error = read(body).expect_err("it is refused");
    assert!(!error.message.is_empty());
    (error.reason.code(), error.pointer)
}

fn function(id: &str, name: &str, arguments: &str) -> Value {
    json!({ "type": "function_call", "call_id": id, "name": name, "arguments": arguments })
}

#[test]
fn calls_of_every_kind_are_taken() {
    let input = json!([
        { "role": "user", "content": "add, please" },
        function("a", "math__add", r#"{"a":1.50}"#),
        function("b", "ask", "{}"),
        { "type": "custom_tool_call", "call_id": "c", "name": "write", "input": "{\"not\": \"an object\"}" },
        { "type": "shell_call", "call_id": "d", "action": { "commands": ["ls", "pwd"], "timeout_ms": 1500 } },
        function("e", "add", "{}"),
        { "type": "function_call_output", "call_id": "e", "output": "3" },
    ]);
    let tools = json!([
        { "type": "function", "name": "ask", "parameters": { "type": "object" } },
        { "type": "function", "name": "math__add", "parameters": { "type": "object" } },
        { "type": "custom", "name": "write" },
        { "type": "mcp", "server_label": "yard", "require_approval": { "always": { "tool_names": ["bash"] } } },
    ]);
    let request = opened(
        &json!({ "input": input, "tools": tools, "metadata": { "user": "7" }, "parallel_tool_calls": false, "max_tool_calls": 9 }),
    );
    let calls: Vec<(&str, &str, &str)> =
        request.calls.iter().map(|call| (call.call_id.as_str(), call.tool.as_str(), call.arguments.as_str())).collect();
    let bash = r#"{"command":"ls\npwd","timeout_s":2}"#;
    let expected = [
        ("a", "math.add", r#"{"a":1.50}"#),
        ("b", "ask", "{}"),
        ("c", "write", "{\"not\": \"an object\"}"),
        ("d", "bash", bash),
    ];
    assert_eq!(calls, expected);
    assert_eq!(
        request.calls.iter().map(|call| call.approval.is_some()).collect::<Vec<_>>(),
        [false, false, false, true]
    );
    assert_eq!(request.rules, Some(v1::RunRules { running_max: 1, calls_max: 9, ..v1::RunRules::default() }));
    assert!(request.calls.iter().all(|call| call.metadata.get("user").is_some_and(|user| user == "7")));
    let own: Vec<(&str, bool)> = request
        .request_tools
        .iter()
        .map(|tool| (tool.name.as_str(), matches!(tool.format, Some(Format::Text(_)))))
        .collect();
    assert_eq!(own, [("ask", false), ("write", true)], "what a worker hosts is not the client's");
}

#[test]
fn who_approves_is_said_for_all_tools_or_by_their_names() {
    let approval = |require: Value| {
        let tools = json!([{ "type": "mcp", "allowed_tools": ["add", "math__add"], "require_approval": require }]);
        let input = json!([function("a", "add", "{}"), function("b", "math__add", "{}")]);
        let request = opened(&json!({ "input": input, "tools": tools }));
        assert_eq!(request.tools, ["add", "math.add"]);
        let asks: Vec<bool> = request.calls.iter().map(|call| call.approval.is_some()).collect();
        (asks, request.rules.unwrap_or_default().confirmation())
    };
    assert_eq!(approval(Value::Null), (vec![false, false], v1::Confirmation::Unspecified));
    assert_eq!(approval(json!("always")), (vec![true, true], v1::Confirmation::Unspecified));
    assert_eq!(approval(json!("never")), (vec![false, false], v1::Confirmation::None));
    // By the worker's name of the tool, and by the name that was exported to a model.
    for name in ["math.add", "math__add"] {
        let named = json!({ "tool_names": [name] });
        assert_eq!(approval(json!({ "always": named })), (vec![false, true], v1::Confirmation::Unspecified));
        assert_eq!(approval(json!({ "never": named })), (vec![true, false], v1::Confirmation::None));
    }
}

#[test]
fn what_cannot_be_kept_is_refused_with_a_pointer() {
    let input = json!([function("a", "add", "{}")]);
    let with = |name: &str, value: Value| {
        let mut body = json!({ "input": input });
        body[name] = value;
        refused(&body)
    };
    let of = |code, pointer: &str| (code, pointer.to_owned());
    assert_eq!(with("store", json!("no")), of("MALFORMED", "/store"));
    assert_eq!(with("conversation", json!("conv_1")), of("UNSUPPORTED", "/conversation"));
    assert_eq!(with("stream", json!("yes")), of("MALFORMED", "/stream"));
    assert_eq!(with("metadata", json!({ "a/b": 1 })), of("MALFORMED", "/metadata/a~1b"));
    assert_eq!(with("metadata", json!({ "toolyard.item": "x" })), of("MALFORMED", "/metadata/toolyard.item"));
    assert_eq!(with("max_tool_calls", json!(0)), of("MALFORMED", "/max_tool_calls"));
    assert_eq!(with("tools", json!([{ "type": "web_search" }])), of("UNSUPPORTED", "/tools/0/type"));
    assert_eq!(
        with("tools", json!([{ "type": "mcp", "server_url": "http://x" }])),
        of("UNSUPPORTED", "/tools/0/server_url")
    );
    assert_eq!(with("input", json!("add 1 and 2")), of("UNSUPPORTED", "/input"));
    assert_eq!(with("input", json!([])), of("NO_CALLS", "/input"));
    assert_eq!(with("input", json!([{ "type": "function_call" }])), of("MALFORMED", "/input/0"));
    assert_eq!(with("input", json!([function("a", "x", "{}"), function("a", "x", "{}")])), of("MALFORMED", "/input/1"));
    assert_eq!(with("previous_response_id", json!("resp_x")), of("RESPONSE_NOT_FOUND", "/previous_response_id"));
    assert_eq!(refused(&json!([])), of("MALFORMED", ""));
}

const RUN: &str = "0b_0193a7b4c2d07e3f8a1b2c3d4e5f6071";

#[test]
fn answers_are_those_of_the_open_calls_and_of_no_others() {
    let id = format!("resp_{RUN}");
    let continued = |input: Value| read(&json!({ "previous_response_id": id, "input": input }));
    let output = |id: &str| json!({ "type": "function_call_output", "call_id": id, "output": "blue" });
    let run = run::Run::new(format!("run_{RUN}").parse().expect("an id"));
    let asked = |output: Value| json!({ "id": id, "output": output });
    let ask = |input: Value, previous: &Value| match continued(input).expect("well formed") {
        Asked::Continued(continued) => continued.requests(&run, previous),
        Asked::Opened(_) => panic!("it continues"),
    };
    let open = asked(json!([function("a", "ask", "{}"), function("b", "ask", "{}")]));
    let (submit, decide) = ask(json!([output("a"), output("b")]), &open).expect("both are open");
    assert_eq!((submit.expect("outputs").outputs.len(), decide), (2, None));
    let code = |refused: Result<_, InputError>| refused.map(|_: (_, _)| ()).expect_err("refused").reason.code();
    let (submit, _) = ask(json!([output("a")]), &open).expect("the other one goes on waiting");
    assert_eq!(submit.expect("an output").outputs.len(), 1);
    assert_eq!(code(ask(json!([output("a"), output("b"), output("c")]), &open)), "CALL_NOT_FOUND");
    assert_eq!(code(ask(json!([output("a")]), &asked(json!([])))), "RESPONSE_NOT_WAITING");
    let refused = |input: Value| {
        let error = continued(input).expect_err("refused");
        (error.reason.code(), error.pointer)
    };
    assert_eq!(refused(json!([output("a"), output("a")])), ("MALFORMED", "/input/1".to_owned()));
    assert_eq!(refused(json!([])), ("NO_ANSWERS", "/input".to_owned()));
    assert_eq!(refused(json!([function("c", "add", "{}"), output("a")])), ("UNSUPPORTED", "/input/0".to_owned()));
}

#[test]
fn tools_that_are_executed_elsewhere_are_passed_over_on_request() {
    let mcp = json!({ "type": "mcp", "server_label": "x", "server_url": "https://x.example" });
    let own = [json!({ "type": "mcp", "server_label": "toolyard" }), json!({ "type": "custom", "name": "write" })];
    let tools = json!([own[0], { "type": "web_search" }, mcp, { "type": "shell", "environment": { "type": "container_auto" } }, own[1]]);
    let body = json!({ "input": [], "tools": tools }).to_string().replace("[]", "[1e999]");
    let left = formats::openai::without_foreign_tools(body.as_bytes()).expect("readable").expect("it has tools");
    let expected = format!(r#"{{"input":[1e999],"tools":{}}}"#, json!(own));
    assert_eq!(String::from_utf8(left).expect("text"), expected);
    assert_eq!(formats::openai::without_foreign_tools(b"{").expect("not for this reader"), None);
}

#[test]
fn an_assistants_run_takes_the_calls_of_a_message() {
    let calls = json!([{ "id": "a", "type": "function", "function": { "name": "add", "arguments": "{}" } }]);
    let body = json!({ "assistant_id": "x", "tool_calls": calls, "stream": true });
    let asked = assistants::Asked::read(body.to_string().as_bytes(), &hosted).expect("well formed");
    assert_eq!((asked.is_streamed, asked.run.calls[0].tool.as_str()), (true, "add"));
    let error = assistants::Asked::read(b"{\"assistant_id\":\"x\"}", &hosted).expect_err("no calls");
    assert_eq!((error.reason.code(), error.pointer.as_str()), ("NO_CALLS", "/tool_calls"));
    let outputs = json!({ "tool_outputs": [{ "tool_call_id": "a", "output": "3" }] });
    let (submit, is_streamed) = assistants::tool_outputs(outputs.to_string().as_bytes(), "run_x").expect("well formed");
    assert_eq!((submit.outputs[0].call_id.as_str(), submit.all_required, is_streamed), ("a", true, false));
    let error = assistants::tool_outputs(b"{\"tool_outputs\":[{\"output\":1}]}", "run_x").expect_err("no id");
    assert_eq!(error.pointer, "/tool_outputs/0/tool_call_id");
}

#[test]
fn tool_resources_are_files_of_the_tools() {
    let calls = json!([{ "id": "a", "type": "function", "function": { "name": "add", "arguments": "{}" } }]);
    let read = |resources: Value| {
        let body = json!({ "tool_calls": calls, "tool_resources": resources }).to_string();
        assistants::Asked::read(body.as_bytes(), &hosted).map(|asked| asked.run.files)
    };
    let ids = |ids: &[&str]| json!({ "file_ids": ids });
    let files = read(json!({ "_all": ids(&["c"]), "code_interpreter": ids(&["a", "b"]) })).expect("well formed");
    let files: Vec<_> =
        files.iter().map(|file| (file.tool.as_str(), file.name.as_str(), file.object_id.as_str())).collect();
    assert_eq!(files, [("_all", "c", "c"), ("code_interpreter", "a", "a"), ("code_interpreter", "b", "b")]);
    assert_eq!(read(json!({ "file_search": { "vector_store_ids": [] } })).expect("nothing is wanted"), []);
    let given = |resources: Value| -> Vec<(String, String)> {
        let files = read(resources).expect("well formed");
        files.into_iter().map(|file| (file.tool, file.object_id)).collect()
    };
    let pair = |tool: &str, id: &str| (tool.to_owned(), id.to_owned());
    let functions =
        json!({ "functions": [{ "name": "add", "file_ids": ["a", "b", "a"] }, { "name": "sub", "file_ids": ["a"] }] });
    assert_eq!(given(functions), [pair("add", "a"), pair("add", "b"), pair("sub", "a")], "each once for a tool");
    let stores = json!({ "file_search": { "vector_stores": [ids(&["a"]), ids(&["b", "a"])] } });
    assert_eq!(given(stores), [pair("file_search", "a"), pair("file_search", "b")]);
    assert_eq!(given(json!(["a", "b"])), [pair("_all", "a"), pair("_all", "b")], "a list is for every tool");
    for (wrong, pointer) in [
        (json!({ "functions": [{ "file_ids": ["a"] }] }), "/functions/0/name"),
        (json!({ "functions": [{ "name": "add", "file_ids": [1] }] }), "/functions/0/file_ids/0"),
        (json!({ "add": ["a"] }), "/add"),
        (json!({ "x": { "vector_stores": [{ "file_ids": "a" }] } }), "/x/vector_stores/0/file_ids"),
        (json!(["a", 1]), "/1"),
    ] {
        assert_eq!(read(wrong).expect_err("it is refused").pointer, format!("/tool_resources{pointer}"));
    }
    let refused = read(json!({ "file_search": { "vector_store_ids": ["vs_1"] } })).expect_err("not kept");
    assert_eq!(refused.pointer, "/tool_resources/file_search/vector_store_ids");
    assert_eq!(read(json!({ "x": { "file_ids": [1] } })).expect_err("no text").pointer, "/tool_resources/x/file_ids/0");
}

#[test]
fn only_an_id_of_our_making_names_a_response() {
    for id in [format!("resp_{RUN}"), format!("resp_{RUN}_1"), format!("resp_{RUN}_42")] {
        assert_eq!(id.parse::<responses::ResponseId>().expect("ours").to_string(), id);
    }
    for id in ["", "resp_", "resp_x_y", &format!("resp_{RUN}_0"), &format!("resp_{RUN}_01"), &format!("run_{RUN}")] {
        assert_eq!(id.parse::<responses::ResponseId>().expect_err("not ours").reason.code(), "RESPONSE_NOT_FOUND");
    }
}

/// JSON that is close to a valid request.
fn near() -> impl Strategy<Value = Value> {
    const NAMES: [&str; 11] = [
        "type",
        "call_id",
        "id",
        "name",
        "arguments",
        "action",
        "commands",
        "output",
        "function",
        "tool_call_id",
        "format",
    ];
    const TEXTS: [&str; 9] = [
        "function_call",
        "shell_call",
        "custom_tool_call",
        "function_call_output",
        "shell_call_output",
        "mcp",
        "custom",
        "{}",
        "a",
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        prop::sample::select(&TEXTS[..]).prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((prop::sample::select(&NAMES[..]), inner), 0..5)
                .prop_map(|members| members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()),
        ]
    })
}

proptest! {
    #[test]
    fn nothing_that_is_sent_makes_a_face_panic(input in near(), tools in near(), previous in any::<bool>(), bytes in any::<Vec<u8>>()) {
        let mut body = json!({
            "input": input, "tools": tools, "tool_calls": input, "tool_outputs": input, "thread": tools,
            "additional_messages": input,
        });
        if previous {
            body["previous_response_id"] = format!("resp_{RUN}").into();
        }
        for text in [body.to_string().as_bytes(), &bytes] {
            let refusals = [
                Asked::read(text, &hosted).err(),
                assistants::Asked::read(text, &hosted).err(),
                assistants::tool_outputs(text, "run_x").err(),
            ];
            for refused in refusals.into_iter().flatten() {
                prop_assert!(refused.pointer.is_empty() || refused.pointer.starts_with('/'), "{:?}", refused);
            }
        }
    }
}
