//! The tools of servers that are reached by name, through `mcp_client`.

#![allow(clippy::unwrap_used, reason = "it is all tests")]

mod hosted;

use std::time::Duration;

use origins::mcp::config::{Patterns, ServerConfig};
use origins::mcp::{Host, Selection};
use run::{CallError, Effects, ErrorKind, Permission};
use serde_json::{Value, json};
use tokio::time::timeout;
use toolyard_tool::Table;
use toolyard_tool::testkit::{Called, manifest, start_in};

use hosted::{Hosted, SOON, server, start};

/// The small server under the prefix of a file of servers.
fn config() -> ServerConfig {
    server("well").with_prefix("well__").unwrap()
}

async fn by_name(config: ServerConfig, selection: Selection) -> Hosted {
    start(vec![config], Table::new(), |host| host.selecting(selection).by_name(&["w*".to_owned()]).unwrap()).await
}

fn echo(text: Value) -> Value {
    json!({ "server": "well", "tool": "echo", "arguments": { "text": text } })
}

fn names(hosted: &Hosted) -> Vec<String> {
    hosted.table().manifests().map(|manifest| manifest.name.to_string()).collect()
}

fn error(called: Called) -> CallError {
    called.result.unwrap_err()
}

#[tokio::test]
async fn tools_of_a_server_are_listed_and_called_by_name_instead_of_each_being_hosted() {
    let hosted = by_name(config(), Selection::default()).await;
    assert_eq!(names(&hosted), ["mcp_client", "mcp_tools"]);
    assert_eq!(hosted.call("mcp_client", echo(json!("hi"))).await.answer(), "hi");
    let failed = error(hosted.call("mcp_client", json!({ "server": "well", "tool": "fail" })).await);
    assert_eq!((failed.kind, failed.message.as_str()), (ErrorKind::ToolFailed, "the disk is full"));

    let listed = hosted.call("mcp_tools", json!({ "server": "well" })).await.answer();
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let names: Vec<&str> =
        listed["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert!(names.starts_with(&["echo", "fail", "invalid", "sleep"]), "those of all pages, in their order: {names:?}");
    assert!(names.contains(&"nonsense"), "{names:?}");
    let one = hosted.call("mcp_tools", json!({ "server": "well", "tool": "ec*" })).await.answer();
    let one: Value = serde_json::from_str(&one).unwrap();
    let tool = &one["tools"][0];
    assert_eq!((&tool["name"], &tool["read_only"]), (&json!("echo"), &json!(true)), "{one}");
    assert_eq!(tool["input_schema"]["required"], json!(["text"]));
    hosted.stop().await;
}

#[tokio::test]
async fn calling_reaches_the_world_and_listing_only_reads() {
    let hosted = by_name(config(), Selection::default()).await;
    let table = hosted.table();
    let (call, list) = (manifest(&table, "mcp_client").unwrap(), manifest(&table, "mcp_tools").unwrap());
    let effects = Effects { destructive: true, open_world: true, uses_machine: true, ..Effects::default() };
    assert_eq!((call.permission, call.effects, call.policy.repeatable), (Permission::External, effects, false));
    assert_eq!((list.permission, list.effects.read_only), (Permission::Read, true));
    hosted.stop().await;
}

#[tokio::test]
async fn what_is_not_there_and_arguments_that_do_not_fit_are_refused_by_their_place() {
    let hosted =
        by_name(ServerConfig { deny: Patterns::new(&["die*"]).unwrap(), ..config() }, Selection::default()).await;
    for (arguments, path, reason) in [
        (json!({ "server": "other", "tool": "echo" }), "/server", "well"),
        (json!({ "server": "https://example.com/mcp", "tool": "echo" }), "/server", "well"),
        (json!({ "server": "well", "tool": "nothing" }), "/tool", "it has: echo, fail"),
        (json!({ "server": "well", "tool": "die" }), "/tool", "has no tool"),
        (json!({ "server": "well" }), "", "tool"),
        (echo(json!(7)), "/arguments/text", "string"),
        (json!({ "server": "well", "tool": "echo" }), "/arguments", "text"),
    ] {
        let error = error(hosted.call("mcp_client", arguments.clone()).await);
        assert_eq!(error.kind, ErrorKind::ArgumentsInvalid, "{arguments}: {error:?}");
        assert_eq!(error.violations[0].path, path, "{arguments}: {error:?}");
        assert!(error.message.contains(reason), "{arguments}: {}", error.message);
    }
    let list = error(hosted.call("mcp_tools", json!({ "server": "other" })).await);
    assert_eq!(list.kind, ErrorKind::ArgumentsInvalid);
    hosted.stop().await;
}

#[tokio::test]
async fn a_tool_that_needs_approval_keeps_its_name_and_a_disabled_one_is_not_reached() {
    let confirm = Patterns::new(&["fail"]).unwrap();
    let selection = Selection { disable: Patterns::new(&["well__echo"]).unwrap(), ..Selection::default() };
    let hosted = by_name(ServerConfig { confirm, ..config() }, selection).await;
    assert_eq!(names(&hosted), ["mcp_client", "mcp_tools", "well__fail"]);
    let refused = error(hosted.call("mcp_client", json!({ "server": "well", "tool": "fail" })).await);
    assert!(refused.message.contains("call the tool well__fail instead"), "{refused:?}");
    let disabled = error(hosted.call("mcp_client", echo(json!("hi"))).await);
    assert!(disabled.message.contains("has no tool \"echo\""), "{disabled:?}");
    let listed = hosted.call("mcp_tools", json!({ "server": "well", "tool": "fail" })).await.answer();
    assert!(listed.contains(r#""call_as":"well__fail""#), "{listed}");
    hosted.stop().await;
}

#[tokio::test]
async fn a_cancellation_reaches_the_server_and_a_lost_call_is_not_repeated() {
    let hosted = by_name(config(), Selection::default()).await;
    let sleep = json!({ "server": "well", "tool": "sleep", "arguments": { "note": hosted.note() } });
    let mut call = start_in(&hosted.table(), "mcp_client", sleep);
    timeout(SOON, call.chunk()).await.unwrap().unwrap();
    call.cancel();
    assert_eq!(timeout(SOON, call.end()).await.unwrap().error(), "the call was cancelled");
    let lost = error(hosted.call("mcp_client", json!({ "server": "well", "tool": "die" })).await);
    assert_eq!(lost.kind, ErrorKind::Interrupted, "{lost:?}");
    // The server is started again, and the next call waits for it.
    assert_eq!(hosted.call("mcp_client", echo(json!("hi"))).await.answer(), "hi");
    hosted.stop().await;
}

#[tokio::test]
async fn a_server_that_does_not_run_is_reported_and_not_taken_for_an_unknown_tool() {
    let broken = ServerConfig { start_timeout: Duration::from_secs(3), ..server("broken") };
    let set = |host: Host| host.by_name(&["broken".to_owned()]).unwrap();
    let hosted = start(vec![broken], Table::new(), set).await;
    let call = json!({ "server": "broken", "tool": "echo" });
    let error = error(hosted.call("mcp_client", call).await);
    assert!(error.retryable && error.message.contains("the MCP server broken is not running"), "{error:?}");
    hosted.stop().await;
}

#[tokio::test]
async fn a_name_that_no_server_has_is_refused() {
    let host = Host::new(vec![server("well")], Table::new(), None, 1);
    let error = host.by_name(&["wall".to_owned()]).unwrap_err().to_string();
    assert!(error.contains("\"wall\"") && error.contains("there are: well"), "{error}");
}
