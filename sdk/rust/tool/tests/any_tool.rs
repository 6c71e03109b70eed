//! Tools whose names and schemas are known only at run time.

#![allow(clippy::unwrap_used, reason = "it is all tests")]

use serde_json::{Value, json};
use toolyard_tool::{About, AnyTool, Context, ErrorKind, Origin, Output, Table, ToolError, testkit};

/// Returns its arguments.
struct Echo;

impl AnyTool for Echo {
    async fn call(&self, _: &Context, arguments: Value) -> Result<Output, ToolError> {
        Output::json(&arguments)
    }
}

fn schema() -> String {
    json!({ "type": "object", "properties": { "text": { "type": "string" } }, "required": ["text"] }).to_string()
}

fn table() -> Table {
    let about = About::new("Returns its arguments.").read_only().origin(Origin::Mcp).title("Echo");
    Table::new().host_any("docs__echo", schema(), about, Echo).unwrap()
}

#[tokio::test]
async fn a_tool_known_at_run_time_is_called_with_arguments_that_fit_its_schema() {
    let called = testkit::call_in(&table(), "docs__echo", json!({ "text": "hi" })).await;
    assert_eq!(called.answer(), json!({ "text": "hi" }).to_string());
    let refused = testkit::call_in(&table(), "docs__echo", json!({ "text": 1 })).await.result.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::ArgumentsInvalid);
}

#[test]
fn its_manifest_names_its_origin_and_its_title() {
    let table = table();
    let manifest = table.manifests().next().unwrap();
    assert_eq!((manifest.origin, manifest.title.as_str()), (Origin::Mcp, "Echo"));
    assert_eq!(manifest.input_schema, schema());
}

#[test]
fn a_schema_that_cannot_be_used_is_refused_with_its_tool() {
    let error = Table::new().host_any("broken", "{".to_owned(), About::new("Broken."), Echo).unwrap_err().to_string();
    assert!(error.contains("\"broken\"") && error.contains("input_schema"), "{error}");
}
