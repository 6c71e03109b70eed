//! Manifests of a worker's tools reach clients, and unusable manifests are rejected at the worker.

use std::process::Stdio;

use harness::{Fixture, Yard, call};
use proto::v1;
use serde_json::json;

use crate::{FIXTURE, check};

async fn tool(yard: &Yard, name: &str) -> v1::Tool {
    let request = v1::GetToolRequest { name: name.to_owned() };
    let response = yard.client.tools.clone().get_tool(request).await.expect("the tool is known");
    response.into_inner().tool.expect("the response has the tool")
}

async fn listed(yard: &Yard) -> Vec<v1::Tool> {
    let response = yard.client.tools.clone().list_tools(v1::ListToolsRequest::default()).await;
    response.expect("a page").into_inner().tools
}

#[tokio::test]
async fn every_field_of_a_manifest_reaches_whoever_lists_the_tools() {
    let yard = Yard::start_with(Fixture::new(FIXTURE).with("TOOLYARD_FIXTURE_TOOLS", "described")).await;
    let _worker = yard.fixture.worker(&yard.broker.url(), "main", 4).await;
    yard.client.wait_for_tool("described").await;
    let tool = tool(&yard, "described").await;
    assert!(listed(&yard).await.contains(&tool), "it is listed as it is got");
    let seconds = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
    let millis = |millis: i32| Some(prost_types::Duration { seconds: 0, nanos: millis * 1_000_000 });
    let policy = v1::ToolPolicy {
        repeatable: true,
        attempts_max: 5,
        attempt_timeout: seconds(7),
        backoff_first: millis(10),
        backoff_longest: millis(90),
        backoff_jitter_percent: Some(25),
        idle_timeout: seconds(3),
        retry_on: Some(v1::RetryOn { retryable: true, timeout: true, panic: true, lost: true, other: false }),
        after_partial_output: v1::AfterPartialOutput::Buffer.into(),
    };
    let alias =
        v1::ToolAlias { name: "described_otherwise".to_owned(), description: "Says who else it is.".to_owned() };
    let expected = v1::Tool {
        name: "described".to_owned(),
        description: "Says who it is.".to_owned(),
        input_schema: tool.input_schema.clone(),
        output_schema: tool.output_schema.clone(),
        effects: Some(v1::ToolEffects {
            read_only: false,
            idempotent: true,
            destructive: true,
            open_world: true,
            uses_machine: false,
        }),
        policy: Some(policy),
        definition_only: false,
        streaming: true,
        pools: tool.pools.clone(),
        category: "tests".to_owned(),
        permission: v1::ToolPermission::External.into(),
        side_effect_scope: "nothing at all".to_owned(),
        requires_confirmation: true,
        tags: vec!["first".to_owned(), "second".to_owned()],
        r#final: true,
        return_direct: true,
        hidden: false,
        concurrency: v1::ToolConcurrency::Parallel.into(),
        version: "1.4.2".to_owned(),
        aliases: vec![alias],
        alias_of: String::new(),
        available: true,
        max_concurrent: 3,
        running_max: 100,
        exclusive_when: r#"{"required":["alone"]}"#.to_owned(),
        parallel_when: r#"{"required":["beside"]}"#.to_owned(),
        paused: false,
        context_keys: vec!["user".to_owned(), "TOOL_CALL_HISTORY".to_owned()],
        origin: v1::ToolOrigin::External.into(),
        title: "Described".to_owned(),
        needs_approval: true,
    };
    assert_eq!(tool, expected);
    assert!(tool.input_schema.contains(r#""type":"object""#), "{}", tool.input_schema);
    assert!(tool.output_schema.contains(r#""type":"string""#), "{}", tool.output_schema);
}

#[tokio::test]
async fn a_worker_with_a_bad_manifest_does_not_start_and_says_all_that_is_wrong() {
    let mut worker = tokio::process::Command::new(FIXTURE)
        .args(["worker", "nats://127.0.0.1:1", "main", "1", "1"])
        .env("TOOLYARD_FIXTURE_TOOLS", "bad")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the fixture starts");
    // It ends when its input does.
    let _input = worker.stdin.take();
    let ended = worker.wait_with_output().await.expect("it ends");
    assert!(!ended.status.success());
    let said = String::from_utf8_lossy(&ended.stderr);
    for wrong in ["\"described\"", "description has 9000 bytes", "category has 100 bytes", "version", "aliases.name"] {
        assert!(said.contains(wrong), "{wrong} is not in: {said}");
    }
}

#[tokio::test]
async fn a_bad_advertisement_is_passed_over_and_harms_no_other_tool() {
    use prost::Message as _;
    let yard = Yard::start(FIXTURE).await;
    let context =
        async_nats::jetstream::new(async_nats::connect(yard.broker.url()).await.expect("the broker is there"));
    let bucket = context.get_key_value(proto::names::TOOLS_BUCKET).await.expect("the coordinator made it");
    let bad = |name: &str, input_schema: &str| v1::Tool {
        name: name.to_owned(),
        input_schema: input_schema.to_owned(),
        definition_only: true,
        ..v1::Tool::default()
    };
    let tools = vec![
        bad("endless", r##"{"type":"object","allOf":[{"$ref":"#"}]}"##),
        bad("foreign", r#"{"type":"object","properties":{"a":{"$ref":"http://example.org/"}}}"#),
        bad("name with spaces", r#"{"type":"object"}"#),
        v1::Tool { description: "d".repeat(500_000), ..bad("wordy", r#"{"type":"object"}"#) },
        bad("usable", r#"{"type":"object"}"#),
    ];
    let advertisement = proto::wire::v1::Advertisement { version: 1, tools };
    bucket.put("strange.set", advertisement.encode_to_vec().into()).await.expect("it is stored");
    bucket.put("garbage.set", vec![0xff; 1000].into()).await.expect("it is stored");
    let _worker = yard.worker().await;
    yard.client.wait_for_tool("usable").await;
    let names: Vec<String> = listed(&yard).await.into_iter().map(|tool| tool.name).collect();
    for refused in ["endless", "foreign", "name with spaces", "wordy"] {
        assert!(!names.iter().any(|name| name == refused), "{refused} is among {names:?}");
    }
    let events = yard.client.execute(vec![call("c", "echo", json!({ "text": "here" }))]).await.to_end().await;
    assert_eq!(check::text(&check::outcomes(&events)["c"]), "here");
}
