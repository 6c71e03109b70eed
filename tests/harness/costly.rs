//! Requests that cost far more than their size suggests if their cost is not limited.

use proto::v1;
use proto::v1::request_tool::Format;
use serde_json::{Value, json};

/// A request that would take minutes or gigabytes if its size alone were limited.
#[derive(Debug)]
pub struct Costly {
    pub what: &'static str,
    pub format: Format,
    pub arguments: String,
    /// The error of the request, or of its call.
    pub says: &'static str,
}

fn nested(depth: usize) -> String {
    format!("{}1{}", r#"{"a":"#.repeat(depth), "}".repeat(depth))
}

fn schema(what: &'static str, schema: &Value, arguments: String, says: &'static str) -> Costly {
    Costly { what, format: Format::InputSchema(schema.to_string()), arguments, says }
}

/// Expressions of six kinds, nested so deep, of which the innermost has a misspelt member: an ordinary mistake.
fn expressions(depth: usize) -> (Value, String) {
    let expression = json!({ "$ref": "#/$defs/expression" });
    let mut kinds: Vec<Value> = ["and", "or", "not", "eq", "lt", "gt"]
        .iter()
        .map(|op| {
            let properties = json!({ "op": { "const": op }, "args": { "type": "array", "items": expression } });
            json!({ "type": "object", "required": ["op", "args"], "additionalProperties": false, "properties": properties })
        })
        .collect();
    let field = json!({ "field": { "type": "string" } });
    kinds.push(json!({ "type": "object", "required": ["field"], "additionalProperties": false, "properties": field }));
    let schema = json!({
        "type": "object", "properties": { "where": expression }, "$defs": { "expression": { "anyOf": kinds } },
    });
    let mut arguments = json!({ "feild": "name" });
    for _ in 0..depth {
        arguments = json!({ "op": "and", "args": [arguments] });
    }
    (schema, json!({ "where": arguments }).to_string())
}

impl Costly {
    /// All that are known.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let mut deep = json!({ "type": "object", "properties": { "a": { "$ref": "#" } } });
        for _ in 0..55 {
            deep = json!({ "anyOf": [deep] });
        }
        let union = json!({ "type": "object", "anyOf": [
        { "required": ["x"], "properties": { "a": { "$ref": "#" } } },
        { "required": ["y"], "properties": { "a": { "$ref": "#" } } },
    ] });
        let consts: Vec<Value> = (0..3500).map(|n| json!({ "const": n })).collect();
        let wide = json!({ "type": "object", "properties": { "a": { "items": { "anyOf": consts } } } });
        let patterns: serde_json::Map<_, _> =
            (0..1700).map(|n| (format!("p{n}"), json!({ "pattern": format!(r"\p{{L}}{{99}}{n:04}") }))).collect();
        let backtracks =
            json!({ "type": "object", "properties": { "a": { "items": { "pattern": "^(?:(a)|a)*(?!x)b$" } } } });
        let (kinds, misspelt) = expressions(7);
        let text: String = (0..250_000_u64).map(|n| if (n * n / 7) % 3 == 0 { 'a' } else { 'b' }).collect();
        let terminals: String = (0..4000).map(|n| format!(" /\\p{{L}}{{40}}{n}/")).collect();
        vec![
            schema("a deep schema", &deep, nested(120), "too deep"),
            schema("a recursive union", &union, nested(60), "required"),
            schema("a misspelt member", &kinds, misspelt, "feild"),
            schema("many constants", &wide, format!(r#"{{"a":[{}1.5]}}"#, "1.5,".repeat(20_000)), "/a"),
            schema("large patterns", &json!({ "properties": patterns }), "{}".to_owned(), "/properties/p"),
            schema("backtracking", &backtracks, "{}".to_owned(), "lookahead"),
            Self {
                what: "a pattern of many states",
                format: Format::Regex("[ab]*a[ab]{10000}".to_owned()),
                arguments: text,
                says: "more steps",
            },
            Self {
                what: "a large grammar",
                format: Format::Lark(format!("start:{terminals}")),
                arguments: "a".to_owned(),
                says: "request_tools[0].lark: line 1",
            },
        ]
    }

    #[must_use]
    pub fn request(&self) -> v1::CreateRunRequest {
        let tool = v1::RequestTool { name: "own".to_owned(), format: Some(self.format.clone()) };
        let calls = vec![v1::NewCall {
            call_id: "own".to_owned(),
            tool: "own".to_owned(),
            arguments: self.arguments.clone(),
            ..v1::NewCall::default()
        }];
        v1::CreateRunRequest { calls, request_tools: vec![tool], ..v1::CreateRunRequest::default() }
    }
}
