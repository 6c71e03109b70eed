//! Definitions of tools for `tools/list`. Schemas are passed on as their authors wrote them.

use proto::v1;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::Era;
use crate::tools::{meta, words};
use crate::turns::json::{object, raw, string};

/// Tags of a tool by which its author controls how MCP clients call it.
pub const TASK: &str = "mcp.task";
/// As [`TASK`], for clients with the tasks extension alone.
pub const TASK_REQUIRED: &str = "mcp.task.required";
/// The beginning of a tag that names a capability without which a client may not call the tool.
pub const NEEDS: &str = "mcp.needs.";

/// The definition of a tool as JSON. `name` is the one under which it is exported.
#[must_use]
pub fn definition(tool: &v1::Tool, name: &str, era: Era) -> String {
    let said = words(&tool.name);
    let description = match tool.description.trim() {
        "" => &said,
        description => description,
    };
    let title = if tool.title.is_empty() { titled(&said) } else { tool.title.clone() };
    let effects = tool.effects.unwrap_or_default();
    let flag = |value: bool| Some(value.to_string());
    let annotations = object(&[
        ("readOnlyHint", flag(effects.read_only)),
        ("destructiveHint", flag(effects.destructive)),
        ("idempotentHint", flag(effects.idempotent)),
        ("openWorldHint", flag(effects.open_world)),
    ]);
    let input = raw(&tool.input_schema).filter(|schema| schema.starts_with('{')).unwrap_or(r#"{"type":"object"}"#);
    object(&[
        ("name", Some(string(name))),
        ("title", Some(string(&title))),
        ("description", Some(string(description))),
        ("inputSchema", Some(input.to_owned())),
        ("outputSchema", output_schema(&tool.output_schema, era).map(str::to_owned)),
        ("annotations", Some(annotations)),
        ("_meta", meta(tool).map(|meta| meta.to_string())),
    ])
}

/// The output schema if the client's revision allows it: before 2026-07-28 results are objects.
#[must_use]
pub fn output_schema(schema: &str, era: Era) -> Option<&str> {
    let schema = raw(schema).filter(|schema| schema.starts_with('{'))?;
    (era == Era::Modern || is_of_object(schema)).then_some(schema)
}

fn is_of_object(schema: &str) -> bool {
    #[derive(Deserialize)]
    struct Typed<'a> {
        #[serde(borrow, rename = "type")]
        kind: Option<&'a RawValue>,
    }
    let typed: Result<Typed<'_>, _> = serde_json::from_str(schema);
    typed.is_ok_and(|typed| typed.kind.is_some_and(|kind| kind.get() == r#""object""#))
}

/// The words of a name as a title.
fn titled(words: &str) -> String {
    let mut letters = words.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// The arguments that a client must repeat in headers, because the tool's schema marks them with `x-mcp-header`: the
/// names of argument and header.
#[must_use]
pub fn headers(input_schema: &str) -> Vec<(String, String)> {
    const MARK: &str = "x-mcp-header";
    // Most schemas have none, and parsing one for each call would cost more than the rest of the check.
    if !input_schema.contains(MARK) {
        return Vec::new();
    }
    let schema: serde_json::Value = serde_json::from_str(input_schema).unwrap_or_default();
    let properties = schema["properties"].as_object().into_iter().flatten();
    let marked = properties.filter_map(|(name, schema)| Some((name.clone(), schema[MARK].as_str()?.to_owned())));
    marked.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool() -> v1::Tool {
        v1::Tool {
            name: "get_time".to_owned(),
            input_schema: r#"{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object"}"#.to_owned(),
            output_schema: r#"{"type":"array"}"#.to_owned(),
            effects: Some(v1::ToolEffects { read_only: true, ..v1::ToolEffects::default() }),
            ..v1::Tool::default()
        }
    }

    #[test]
    fn schemas_are_passed_on_as_they_are_and_effects_become_annotations() {
        let text = [
            r#"{"name":"get_time","title":"Get time","description":"get time","#,
            r#""inputSchema":{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object"},"#,
            r#""outputSchema":{"type":"array"},"#,
            r#""annotations":{"readOnlyHint":true,"destructiveHint":false,"#,
            r#""idempotentHint":false,"openWorldHint":false}}"#,
        ];
        assert_eq!(definition(&tool(), "get_time", Era::Modern), text.concat());
    }

    #[test]
    fn before_2026_only_results_that_are_objects_are_declared() {
        assert!(!definition(&tool(), "get_time", Era::Legacy).contains("outputSchema"));
        let of_object = v1::Tool { output_schema: r#"{"type": "object"}"#.to_owned(), ..tool() };
        assert!(definition(&of_object, "get_time", Era::Legacy).contains(r#""outputSchema":{"type": "object"}"#));
    }

    #[test]
    fn an_argument_for_a_header_is_found() {
        let schema = r#"{"properties":{"region":{"type":"string","x-mcp-header":"Region"},"other":{}}}"#;
        assert_eq!(headers(schema), [("region".to_owned(), "Region".to_owned())]);
        assert!(headers(r#"{"properties":{"region":{"type":"string"}}}"#).is_empty());
    }
}
