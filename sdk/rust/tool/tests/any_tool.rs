//! Tools that are not types of their own: closures, and those whose names and schemas are known only at run time.

#![allow(clippy::unwrap_used, reason = "it is all tests")]

use schemars::JsonSchema;
use serde::Deserialize;
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

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Person {
    /// Whom to greet
    name: String,
}

#[tokio::test]
async fn a_closure_is_called_with_its_input_and_the_context_of_the_call() {
    let about = About::new("Greets a person.").read_only();
    let greeting = "Hello".to_owned();
    let table = Table::new().host_fn("greet", about, move |person: Person, context: Context| {
        let greeting = greeting.clone();
        async move {
            context.text("one moment\n").await?;
            Ok(format!("{greeting}, {}!", person.name).into())
        }
    });
    let table = table.unwrap();
    let called = testkit::call_in(&table, "greet", json!({ "name": "Ada" })).await;
    assert_eq!((called.answer(), called.text()), ("Hello, Ada!".to_owned(), "one moment\n".to_owned()));
    let schema: Value = serde_json::from_str(&table.manifests().next().unwrap().input_schema).unwrap();
    assert_eq!(schema["properties"]["name"]["description"], "Whom to greet");
    let refused = testkit::call_in(&table, "greet", json!({})).await.result.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::ArgumentsInvalid);
    let fails = |_: Person, _| async { Err(ToolError::new("no")) };
    let table = Table::new().host_fn("fails", About::new("Fails."), fails).unwrap();
    assert_eq!(testkit::call_in(&table, "fails", json!({ "name": "" })).await.error(), "no");
}
