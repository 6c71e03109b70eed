//! Tools that no worker hosts and a resolver knows: other names with arguments of their own, and tools of the client.

use std::time::{Duration, Instant};

use harness::{Fixture, Yard, call, client_answer};
use proto::v1::{self, CallErrorKind, CallState, FloorPolicy};
use serde_json::json;
use tempfile::TempDir;

use crate::check::{outcomes, text};
use crate::{FIXTURE, count};

/// Knows some names, is slow with one, and answers that others are unknown.
const SCRIPT: &str = r#"
question=$(cat)
echo "$question" >> "$0.asked"
case "$question" in
*'"greet"'*) echo '{"decision":"alias","tool":"echo","arguments":{"text":"hello"}}' ;;
*'"note"'*) echo '{"decision":"alias","tool":"annotates","arguments":{"note":"bound"}}' ;;
*'"shout"'*) echo '{"decision":"alias","tool":"echo","input_schema":{"type":"object","properties":{"text":{"maxLength":3}}}}' ;;
*'"ask"'*) echo '{"decision":"client","input_schema":{"type":"object","required":["question"]}}' ;;
*'"nowhere"'*) echo '{"decision":"alias","tool":"no_such_tool"}' ;;
*'"swell"'*) printf '{"decision":"alias","tool":"echo","arguments":{"text":"'
    head -c 300000 /dev/zero | tr '\0' x
    printf '"}}' ;;
*'"slow"'*) sleep 30 ;;
*) echo '{"decision":"unknown"}' ;;
esac
"#;

struct Resolver {
    folder: TempDir,
}

impl Resolver {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("resolver"), SCRIPT).expect("it can be written");
        let command = json!(["sh", folder.path().join("resolver")]);
        // A hook sees the resolved tool, and not the alias.
        let decides = r#"grep -q forbidden && echo '{"decision":"deny"}' || echo '{"decision":"allow"}'"#;
        let hook = json!(["sh", "-c", format!("tee -a {}/hooked | {decides}", folder.path().display())]);
        let text = format!(
            "[[resolver]]\nname = \"names\"\ntimeout_ms = 2000\ncommand = {command}\n\
             [[hook]]\nname = \"echoes\"\non = [\"pre_tool_use\"]\ntools = [\"echo\"]\ncommand = {hook}\n"
        );
        std::fs::write(folder.path().join("hooks.toml"), text).expect("it can be written");
        Self { folder }
    }

    async fn yard(&self) -> Yard {
        let file = self.folder.path().join("hooks.toml");
        Yard::start_with(Fixture::new(FIXTURE).with("TOOLYARD_HOOKS", file.display())).await
    }

    fn asked(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("resolver.asked")).unwrap_or_default()
    }

    fn hooked(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("hooked")).unwrap_or_default()
    }
}

#[tokio::test]
async fn a_name_that_a_resolver_knows_stands_for_another_tool_or_for_the_client() {
    let resolver = Resolver::new();
    let yard = resolver.yard().await;
    let _worker = yard.worker().await;
    yard.client.wait_for_tool("echo").await;
    let calls = vec![
        call("bound", "greet", json!({ "text": "mine" })),
        call("fits", "shout", json!({ "text": "hey" })),
        call("too long", "shout", json!({ "text": "hello" })),
        call("denied", "shout", json!({ "text": "hey", "forbidden": true })),
        call("asks", "ask", json!({ "question": "Which?" })),
        call("asks nothing", "ask", json!({})),
        call("nowhere", "nowhere", json!({})),
        call("made up", "made_up", json!({})),
        call("swells", "swell", json!({})),
        call("says null", "note", json!(null)),
        count("beside", 1, 0),
    ];
    let run = yard.client.create(calls).await;
    run.submit(vec![client_answer("asks", "this one")]).await.expect("it waits");
    let outcomes = outcomes(&run.watch(FloorPolicy::Arrival).await.to_end().await);
    // The tool says what it was called as, too, since that is in the metadata.
    assert_eq!(text(&outcomes["bound"]), "hello, greet", "what is bound cannot be said otherwise");
    assert_eq!(text(&outcomes["says null"]), "bound", "nor by saying nothing");
    assert_eq!(text(&outcomes["fits"]), "hey, shout");
    assert_eq!(text(&outcomes["asks"]), "this one");
    assert_eq!(outcomes["beside"].state(), CallState::Completed);
    let kinds = [
        ("too long", CallErrorKind::ArgumentsInvalid),
        ("denied", CallErrorKind::Denied),
        ("asks nothing", CallErrorKind::ArgumentsInvalid),
        ("nowhere", CallErrorKind::UnknownTool),
        ("made up", CallErrorKind::UnknownTool),
        ("swells", CallErrorKind::ArgumentsInvalid),
    ];
    for (id, kind) in kinds {
        let error = outcomes[id].error.clone().expect("it is refused");
        assert_eq!(error.kind(), kind, "{id}: {error:?}");
    }
    let asked = resolver.asked();
    assert!(!asked.contains("\"count\"") && !asked.contains("\"echo\""), "what workers host is not asked for: {asked}");
    assert_eq!(asked.matches("\"ask\"").count(), 1, "once for both calls: {asked}");
    let bound = run.get().await.calls.into_iter().find(|call| call.call_id == "bound").expect("it is there");
    assert_eq!((bound.tool.as_str(), bound.arguments.as_str()), ("echo", r#"{"text":"hello"}"#));
    assert!(resolver.hooked().contains(r#""toolyard.called_as":"greet""#), "{}", resolver.hooked());
}

#[tokio::test]
async fn a_run_that_attaches_a_name_can_call_what_it_stands_for_and_no_other_is_asked_for() {
    let resolver = Resolver::new();
    let yard = resolver.yard().await;
    let _worker = yard.worker().await;
    yard.client.wait_for_tool("echo").await;
    let request = v1::CreateRunRequest {
        calls: vec![call("greet", "greet", json!({})), call("echo", "echo", json!({ "text": "x" }))],
        tools: vec!["greet".to_owned()],
        keep_open: true,
        ..v1::CreateRunRequest::default()
    };
    let created = yard.client.runs.clone().create_run(request).await.expect("it is accepted").into_inner();
    let run_id = created.run.expect("the response has the run").run_id;
    let calls = vec![call("later", "greet", json!({})), call("shout", "shout", json!({ "text": "x" }))];
    let append = v1::AppendCallsRequest { run_id: run_id.clone(), calls, ..v1::AppendCallsRequest::default() };
    yard.client.runs.clone().append_calls(append).await.expect("the run is open");
    yard.client.runs.clone().close_run(v1::CloseRunRequest { run_id: run_id.clone() }).await.expect("it is open");
    let run = harness::Run { client: yard.client.clone(), id: run_id };
    let outcomes = outcomes(&run.watch(FloorPolicy::Arrival).await.to_end().await);
    for id in ["greet", "later"] {
        assert_eq!(text(&outcomes[id]), "hello, greet", "{id}");
    }
    for id in ["echo", "shout"] {
        assert_eq!(outcomes[id].error.clone().expect("it is refused").kind(), CallErrorKind::UnknownTool, "{id}");
    }
    assert!(!resolver.asked().contains("\"shout\""), "{}", resolver.asked());
}

#[tokio::test]
async fn a_resolver_that_does_not_answer_leaves_a_name_unknown_and_holds_nobody_else_up() {
    let resolver = Resolver::new();
    let yard = resolver.yard().await;
    let _worker = yard.worker().await;
    yard.client.wait_for_tool("echo").await;
    let slow = tokio::spawn({
        let client = yard.client.clone();
        async move { client.execute(vec![call("slow", "slow", json!({}))]).await.to_end().await }
    });
    while !resolver.asked().contains("\"slow\"") {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let events = yard.client.execute(vec![count("beside", 1, 0)]).await.to_end().await;
    assert_eq!(outcomes(&events)["beside"].state(), CallState::Completed);
    assert!(!slow.is_finished(), "it is still asked about");
    let error = outcomes(&slow.await.expect("it ends"))["slow"].error.clone().expect("it is refused");
    assert_eq!(error.kind(), CallErrorKind::UnknownTool, "{error:?}");
    assert!(error.message.contains("resolver names failed: it did not answer within 2s"), "{error:?}");
    assert!(error.message.contains("available tools:"), "{error:?}");
    // For a while no call waits for it again.
    let began = Instant::now();
    yard.client.execute(vec![call("again", "slow", json!({}))]).await.to_end().await;
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
}
