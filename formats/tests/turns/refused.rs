//! Rejected turns: the problem, its place, and the remedy.

use formats::turns::{Error, Form, Problem, Turn, limit};

fn refused(text: &str) -> Error {
    Turn::parse(text.as_bytes(), None).expect_err(text)
}

/// The pointer and the problem.
fn refusal(form: Form, text: &str) -> (String, Problem) {
    let error = Turn::parse(text.as_bytes(), Some(form)).expect_err(text);
    (error.pointer, error.problem)
}

#[test]
fn what_could_be_of_two_forms_is_refused_with_both() {
    let ambiguous = [
        (
            r#"{"tool_calls":[],"content":[{"type":"tool_use","id":"a","name":"b","input":{}}]}"#,
            vec![Form::Chat, Form::Anthropic],
        ),
        (r#"[{"type":"reasoning"},{"functionCall":{"name":"a"}}]"#, vec![Form::Responses, Form::Gemini]),
    ];
    for (text, forms) in ambiguous {
        let Problem::AmbiguousForm { could_be, .. } = refused(text).problem else { panic!("{text}") };
        assert_eq!(could_be, forms);
    }
    let said = refused(r#"[{"type":"reasoning"},{"functionCall":{"name":"a"}}]"#).to_string();
    let expected = "the turn cannot be read: the turn may be openai-responses or gemini: found an array that begins \
                    with an object with \"type\". Set the form";
    assert_eq!(said, expected);
}

#[test]
fn what_is_of_no_form_is_refused_with_what_was_seen_and_what_is_known() {
    for (text, seen) in [
        ("{}", "an empty object"),
        ("[]", "an empty array"),
        ("7", "a number"),
        ("null", "null"),
        (r#"{"b":1,"a":2}"#, r#"an object with "a", "b""#),
        (r#"[{"x":1}]"#, r#"an array that begins with an object with "x""#),
        (r#"["x"]"#, "an array that begins with a string"),
        ("[[]]", "an array"),
    ] {
        let error = refused(text);
        assert_eq!(error.problem, Problem::UnknownForm { seen: seen.to_owned() });
        assert!(error.to_string().contains("Supported are"), "{error}");
    }
}

#[test]
fn a_turn_that_was_said_to_be_of_another_form_is_not_read_without_its_calls() {
    let turns = [
        (Form::Chat, r#"{"role":"assistant","content":"so","tool_calls":[{"id":"a","function":{"name":"b"}}]}"#),
        (Form::Responses, r#"{"output":[{"type":"function_call","call_id":"a","name":"b","arguments":"{}"}]}"#),
        (Form::Anthropic, r#"{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"b","input":{}}]}"#),
        (Form::Gemini, r#"{"role":"model","parts":[{"functionCall":{"name":"b"}}]}"#),
        (Form::Mcp, r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"b"}}"#),
    ];
    for (form, text) in turns {
        for named in Form::ALL.into_iter().filter(|named| *named != form) {
            let expected = Problem::OtherForm { named, looks_like: vec![form] };
            assert_eq!(refusal(named, text), (String::new(), expected), "{text}");
        }
        assert_eq!(Turn::parse(text.as_bytes(), Some(form)).expect("it is").calls.len(), 1);
    }
    for form in Form::ALL {
        for text in ["{}", r#"{"error":{"code":500}}"#] {
            assert!(matches!(refusal(form, text).1, Problem::Missing(_)), "{form}: {text}");
        }
    }
}

#[test]
fn a_name_of_no_form_is_refused_with_those_there_are() {
    for form in Form::ALL {
        assert_eq!(form.as_str().parse(), Ok(form));
    }
    let error = "openai".parse::<Form>().expect_err("it is two").to_string();
    assert!(Form::ALL.iter().all(|form| error.contains(form.as_str())), "{error}");
}

#[test]
fn what_is_missing_or_of_another_kind_is_pointed_at() {
    let missing = |name| Problem::Missing(name);
    let expected = |expected, found: &str| Problem::Expected { expected, found: found.to_owned() };
    let cases = [
        (Form::Chat, r#"{"choices":[{}]}"#, "/choices/0", missing("message")),
        (Form::Chat, r#"{"tool_calls":[{"type":"function"}]}"#, "/tool_calls/0", missing("id")),
        (Form::Chat, r#"{"tool_calls":[{"id":"a"}]}"#, "/tool_calls/0", missing("function")),
        (Form::Chat, r#"{"tool_calls":{}}"#, "/tool_calls", expected("an array", "an object")),
        (Form::Chat, r#"[{"id":"a","function":{"arguments":"{}"}}]"#, "/0/function", missing("name")),
        (Form::Responses, r#"{"output":[7]}"#, "/output/0", expected("an object", "a number")),
        (Form::Responses, r#"[{"type":"function_call","name":"a","arguments":"{}"}]"#, "/0", missing("call_id")),
        (
            Form::Responses,
            r#"[{"type":"shell_call","call_id":"a","action":"ls"}]"#,
            "/0/action",
            expected("an object", "a string"),
        ),
        (Form::Anthropic, r#"{"content":true}"#, "/content", expected("an array", "a boolean")),
        (
            Form::Anthropic,
            r#"[{"type":"tool_use","id":"a","name":"b","input":7}]"#,
            "/0/input",
            expected("an object", "a number"),
        ),
        (Form::Gemini, r#"{"parts":[{"functionCall":{}}]}"#, "/parts/0/functionCall", missing("name")),
        (Form::Mcp, r#"{"jsonrpc":"2.0","method":"tools/call","params":{"name":"a"}}"#, "", missing("id")),
        (
            Form::Mcp,
            r#"[{"jsonrpc":"2.0","id":true,"method":"tools/call","params":{"name":"a"}}]"#,
            "/0/id",
            expected("a string or a number", "a boolean"),
        ),
        (Form::Mcp, r#"{"jsonrpc":"1.0","id":1}"#, "/jsonrpc", expected("\"2.0\"", "another")),
    ];
    for (form, text, pointer, problem) in cases {
        assert_eq!(refusal(form, text), (pointer.to_owned(), problem), "{text}");
    }
}

#[test]
fn several_alternatives_are_not_one_turn() {
    let choices = r#"{"choices":[{"message":{"role":"assistant"}},{"message":{"role":"assistant"}}]}"#;
    assert_eq!(refused(choices).problem, Problem::Alternatives { count: 2 });
    assert_eq!(refused(r#"{"candidates":[{},{},{}]}"#).problem, Problem::Alternatives { count: 3 });
}

#[test]
fn an_id_of_two_calls_is_refused_with_both_places() {
    let block = r#"{"type":"tool_use","id":"a","name":"b","input":{}}"#;
    let error = refused(&format!(r#"{{"content":[{block},{block}]}}"#));
    assert_eq!(error.pointer, "/content/1");
    assert_eq!(error.problem, Problem::DuplicateId { id: "a".into(), first: "/content/0".into() });
}

#[test]
fn a_member_that_occurs_twice_is_refused() {
    let error = refused(r#"{"tool_calls":[{"id":"a","id":"b","function":{"name":"c"}}]}"#);
    assert_eq!((error.pointer.as_str(), error.problem), ("/tool_calls/0", Problem::Repeated("id".into())));
}

#[test]
fn what_is_not_json_is_refused() {
    for text in ["", "{", "{\"choices\":[]", "{} {}", "{'a':1}", "nul"] {
        let error = refused(text);
        assert!(matches!(error.problem, Problem::NotJson(_)), "{error}");
    }
    let error = Turn::parse(b"{\"a\":\"\xff\"}", None).expect_err("no UTF-8");
    assert!(matches!(error.problem, Problem::NotJson(_)), "{error}");
    let half = refused(r#"{"tool_calls":[{"id":"\ud800","function":{"name":"a"}}]}"#);
    assert!(half.pointer == "/tool_calls/0/id" && matches!(half.problem, Problem::NotJson(_)), "{half}");
}

#[test]
fn limits_are_reached_and_not_passed() {
    let blocks = |count: usize| {
        let block = |id| format!(r#"{{"type":"tool_use","id":"{id}","name":"b","input":{{}}}}"#);
        format!("[{}]", (0..count).map(block).collect::<Vec<_>>().join(","))
    };
    let turn = Turn::parse(blocks(limit::CALLS_MAX).as_bytes(), None).expect("as many as there may be");
    assert_eq!(turn.calls.len(), limit::CALLS_MAX);
    let error = refused(&blocks(limit::CALLS_MAX + 1));
    assert_eq!(error.problem, Problem::TooMany { what: "calls", max: limit::CALLS_MAX });
    assert_eq!(error.pointer, format!("/{}", limit::CALLS_MAX));

    let texts = |count: usize| format!("[{}]", vec![r#"{"type":"thinking"}"#; count].join(","));
    assert!(Turn::parse(texts(limit::ELEMENTS_MAX).as_bytes(), None).is_ok());
    let error = refused(&texts(limit::ELEMENTS_MAX + 1));
    assert_eq!(error.problem, Problem::TooMany { what: "elements", max: limit::ELEMENTS_MAX });

    let members = |count: usize| {
        let members: Vec<String> = (1..count).map(|n| format!(r#""m{n}":0"#)).collect();
        format!(r#"{{"choices":[],{}}}"#, members.join(","))
    };
    assert!(Turn::parse(members(limit::MEMBERS_MAX).as_bytes(), None).is_ok());
    let error = refused(&members(limit::MEMBERS_MAX + 1));
    assert_eq!(error.problem, Problem::TooMany { what: "members", max: limit::MEMBERS_MAX });

    let padded = |bytes: usize| format!("{{\"choices\":[]}}{}", " ".repeat(bytes - "{\"choices\":[]}".len()));
    assert!(Turn::parse(padded(limit::TURN_BYTES_MAX).as_bytes(), None).is_ok());
    let error = refused(&padded(limit::TURN_BYTES_MAX + 1));
    assert_eq!(error.problem, Problem::TooLarge { bytes: limit::TURN_BYTES_MAX + 1, max: limit::TURN_BYTES_MAX });
}

#[test]
fn what_is_let_through_is_no_deeper_than_what_the_next_reader_can_read() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    let chat = |depth: usize| format!(r#"[{{"id":"a","function":{{"name":"b","arguments":"{}"}}}}]"#, nested(depth));
    let arguments = |depth| {
        let turn = Turn::parse(chat(depth).as_bytes(), None).expect("a turn");
        turn.calls.into_iter().next().expect("a call").arguments
    };
    let formats::turns::Arguments::Json(deepest) = arguments(limit::DEPTH_MAX) else { panic!("it is not too deep") };
    serde_json::from_str::<serde_json::Value>(&deepest).expect("it can be read");
    let formats::turns::Arguments::Unreadable { why, .. } = arguments(limit::DEPTH_MAX + 1) else {
        panic!("it is too deep")
    };
    assert_eq!(why.problem, Problem::TooDeep { max: limit::DEPTH_MAX });
    let brackets = r#"\"["#.repeat(3 * limit::DEPTH_MAX);
    assert!(Turn::parse(format!(r#"{{"choices":[],"text":"{brackets}"}}"#).as_bytes(), None).is_ok(), "they are text");
    // Deep nesting within the limit of bytes.
    assert_eq!(refused(&nested(2_000_000)).problem, Problem::TooDeep { max: limit::DEPTH_MAX });
}
