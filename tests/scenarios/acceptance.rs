//! Acceptance tests of the contract of tools, one row a test: every built-in tool is registered and runs; hooks are
//! called at each hook point, and their decisions hold; output of streaming tools arrives while they run; and calls
//! without any of this are unaffected. Errors, delays and crashes are in the scenarios of each feature.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use harness::acceptance::{ROWS, Verdict, record};
use harness::{Client, Fixture, PATIENCE, Run, Worker, Yard, call, client_answer};
use proto::v1::call_decision::Decision;
use proto::v1::run_event::Event;
use proto::v1::{self, CallErrorKind, CallState, Confirmation, FloorPolicy};
use serde_json::{Value, json};

use crate::{FIXTURE, check, count, question};

/// The worker also reaches an MCP server, which is named `test`, through `mcp_client`.
pub fn with_servers(fixture: &Fixture, folder: &Path) -> Fixture {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../worker/origins/tests/servers/server.py");
    let servers = json!({ "mcpServers": { "test": { "command": "python3", "args": [script, "well"] } } });
    let file = folder.join("servers.json");
    std::fs::write(&file, servers.to_string()).expect("it can be written");
    fixture.with("TOOLYARD_MCP_CONFIG", file.display()).with("TOOLYARD_MCP_CLIENT", "*")
}

/// A yard whose worker hosts the tools that come with one, which work on this folder.
async fn built_in(folder: &Path) -> (Yard, Worker) {
    let yard = Yard::start(FIXTURE).await;
    let fixture = yard.fixture.with("TOOLYARD_FIXTURE_TOOLS", format!("built_in:{}", folder.display()));
    let fixture = with_servers(&fixture, folder);
    let worker = fixture.worker(&yard.broker.url(), "main", 16).await;
    yard.client.wait_for_tool("bash").await;
    (yard, worker)
}

async fn listed(client: &Client) -> Vec<v1::Tool> {
    let page = client.tools.clone().list_tools(v1::ListToolsRequest::default()).await.expect("a page").into_inner();
    assert!(page.refused.is_empty() && page.next_page_token.is_empty(), "{page:?}");
    page.tools
}

/// A run whose dangerous calls are approved.
async fn agreed(client: &Client, calls: Vec<v1::NewCall>) -> Run {
    let rules = Some(v1::RunRules { confirmation: Confirmation::None.into(), ..v1::RunRules::default() });
    let request = v1::CreateRunRequest { calls, rules, ..v1::CreateRunRequest::default() };
    let created = client.runs.clone().create_run(request).await.expect("it is accepted").into_inner();
    Run { client: client.clone(), id: created.run.expect("the response has the run").run_id }
}

/// 工具注册: the tools that come with a worker are registered, with what callers must know of them.
#[tokio::test]
async fn tool_registration() {
    let folder = tempfile::tempdir().expect("a folder");
    let (yard, _worker) = built_in(folder.path()).await;
    let tools = listed(&yard.client).await;
    for row in ROWS.iter().filter(|row| !row.tool.is_empty()) {
        let tool = tools.iter().find(|tool| tool.name == row.tool).unwrap_or_else(|| panic!("{} is missing", row.tool));
        assert!(!tool.description.is_empty() && !tool.category.is_empty(), "{tool:?}");
        let scopes = ["NONE", "LOCAL_STATE", "DB_WRITE", "NETWORK"];
        assert!(scopes.contains(&tool.side_effect_scope.as_str()), "{tool:?}");
        let schema: Value = serde_json::from_str(&tool.input_schema).expect("a schema is JSON");
        assert_eq!(schema["additionalProperties"], false, "{}", tool.name);
    }
    let permission = |name: &str| tools.iter().find(|tool| tool.name == name).map(v1::Tool::permission);
    for name in ["glob", "grep", "lint", "lsp", "mcp_tools", "process_output", "read_file"] {
        assert_eq!(permission(name), Some(v1::ToolPermission::Read), "{name}");
    }
    for name in ["edit", "git"] {
        assert_eq!(permission(name), Some(v1::ToolPermission::Write), "{name}");
    }
    for name in ["bash", "mcp_client", "powershell", "process"] {
        assert_eq!(permission(name), Some(v1::ToolPermission::External), "{name}");
    }
    // One that may do anything asks first, with no file that says so.
    let careless = yard.client.create(vec![call("bash", "bash", json!({ "command": "true" }))]).await;
    assert_eq!(careless.get().await.calls[0].state(), CallState::AwaitingApproval);
    record("tool_registration", &Verdict::Passed);
}

/// 流式执行: output of a tool that says that it streams arrives while it runs.
#[tokio::test]
async fn streaming_execution() {
    let folder = tempfile::tempdir().expect("a folder");
    let (yard, _worker) = built_in(folder.path()).await;
    let script = "echo one; until test -e heard; do sleep 0.05; done; echo two";
    let run = agreed(&yard.client, vec![call("bash", "bash", json!({ "command": script }))]).await;
    let mut stream = run.watch(FloorPolicy::Arrival).await;
    stream.until(|event| matches!(event, Event::CallOutput(_))).await;
    assert_eq!(check::said(&stream.seen)["bash"], "one\n");
    // It ends because its output was received.
    std::fs::write(folder.path().join("heard"), "").expect("it can be written");
    let events = stream.to_end().await;
    check::whole(&events, true);
    assert_eq!(check::said(&events)["bash"], "one\ntwo\n");
    assert_eq!(check::text(&check::outcomes(&events)["bash"]), r#"{"exit_code":0}"#);
    record("streaming_execution", &Verdict::Passed);
}

/// A hook at each hook point that records its requests, and one that denies calls.
struct Notebook(tempfile::TempDir);

const MOMENTS: [&str; 4] = ["pre_tool_use", "post_tool_use", "tool_error", "tool_skip"];

impl Notebook {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut text = String::new();
        for moment in MOMENTS {
            // In one piece, for many are told at once.
            let told = folder.path().join(moment);
            let note =
                format!(r#"told=$(cat); printf '%s\n' "$told" >> {}; echo '{{"decision":"allow"}}'"#, told.display());
            let command = json!(["sh", "-c", note]);
            writeln!(text, "[[hook]]\nname = \"{moment}\"\non = [\"{moment}\"]\ncommand = {command}").expect("a text");
        }
        let deny = json!(["sh", "-c", r#"cat >/dev/null; echo '{"decision":"deny","reason":"no"}'"#]);
        writeln!(text, "[[hook]]\nname = \"denies\"\non = [\"pre_tool_use\"]\ntools = [\"writes\"]\ncommand = {deny}")
            .expect("a text");
        std::fs::write(folder.path().join("hooks.toml"), text).expect("it can be written");
        Self(folder)
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("hooks.toml")
    }

    /// The requests of a hook point for each call: their number, and the text of an error.
    fn told(&self, moment: &str) -> BTreeMap<String, (usize, Option<String>)> {
        let text = std::fs::read_to_string(self.0.path().join(moment)).unwrap_or_default();
        let mut told: BTreeMap<String, (usize, Option<String>)> = BTreeMap::new();
        for line in text.lines() {
            let question: Value = serde_json::from_str(line).expect("a question is JSON");
            assert_eq!(question["event"], moment);
            let id = question["call_id"].as_str().expect("the call has an id").to_owned();
            let (times, error) = told.entry(id).or_default();
            *times += 1;
            *error = question["error"]["kind"].as_str().map(str::to_owned);
        }
        told
    }
}

/// Hook 执行: hooks are asked at each of their moments and of nothing else, and their decisions hold.
#[tokio::test]
async fn hook_execution() {
    let notebook = Notebook::new();
    let yard = Yard::start_with(Fixture::new(FIXTURE).with("TOOLYARD_HOOKS", notebook.file().display())).await;
    let _worker = yard.worker().await;
    let writes = json!({ "path": notebook.0.path().join("written"), "line": "x", "then_wait_ms": 0 });
    let calls = vec![
        call("fine", "echo", json!({ "text": "fine" })),
        call("mended", "fails", json!({ "attempts": 1 })),
        call("panics", "panics", json!({})),
        call("silent", "silent", json!({})),
        call("cancelled", "sleep", json!({ "ms": 600_000, "text": "" })),
        call("rejected", "confirms", json!({ "text": "" })),
        question("client's"),
        call("denied", "writes", writes),
        call("misfit", "echo", json!({ "text": 7 })),
        call("unknown", "nowhere", json!({})),
        call("too many", "echo", json!({ "text": "" })),
    ];
    let rules = Some(v1::RunRules { calls_max: 10, ..v1::RunRules::default() });
    let request = v1::CreateRunRequest { calls, rules, ..v1::CreateRunRequest::default() };
    let created = yard.client.runs.clone().create_run(request).await.expect("it is accepted").into_inner();
    let run = Run { client: yard.client.clone(), id: created.run.expect("the response has the run").run_id };
    let rejection = Decision::Reject(v1::CallRejection { reason: "no".to_owned() });
    let decisions = vec![v1::CallDecision { call_id: "rejected".to_owned(), decision: Some(rejection) }];
    let decide = v1::DecideCallsRequest { run_id: run.id.clone(), decisions };
    yard.client.runs.clone().decide_calls(decide).await.expect("it awaits approval");
    run.submit(vec![client_answer("client's", "mine")]).await.expect("it waits");
    let mut stream = run.watch(FloorPolicy::Interleaved).await;
    stream.until(|event| matches!(event, Event::AttemptStarted(started) if started.call_id == "cancelled")).await;
    let call_id = "cancelled".to_owned();
    let cancel = v1::CancelCallRequest { run_id: run.id.clone(), call_id, reason: String::new() };
    yard.client.runs.clone().cancel_call(cancel).await.expect("it runs");
    let outcomes = check::outcomes(&stream.to_end().await);
    assert_eq!(check::text(&outcomes["mended"]), "at last");
    assert_eq!(outcomes["denied"].error.as_ref().map(v1::CallError::kind), Some(CallErrorKind::Denied));
    assert!(!notebook.0.path().join("written").exists());

    let expected = |told: &[(&str, usize, Option<&str>)]| -> BTreeMap<String, (usize, Option<String>)> {
        told.iter().map(|(id, times, error)| ((*id).to_owned(), (*times, error.map(str::to_owned)))).collect()
    };
    // Hooks are notified of calls that were not executed, and of the end of the cancelled one.
    let skipped = async {
        while notebook.told("tool_skip").len() < 5 || notebook.told("tool_error").len() < 4 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, skipped).await.expect("the hook is told of all");
    let asked = ["fine", "mended", "panics", "silent", "cancelled", "rejected", "client's", "denied"];
    assert_eq!(notebook.told("pre_tool_use"), expected(&asked.map(|id| (id, 1, None))));
    assert_eq!(notebook.told("post_tool_use"), expected(&["fine", "mended", "client's"].map(|id| (id, 1, None))));
    let failed = [
        ("mended", 1, Some("TOOL_FAILED")),
        ("panics", 1, Some("TOOL_PANICKED")),
        ("silent", 1, Some("IDLE_TIMEOUT")),
        ("cancelled", 1, Some("CANCELLED")),
    ];
    assert_eq!(notebook.told("tool_error"), expected(&failed));
    let skipped = [
        ("rejected", 1, Some("REJECTED")),
        ("denied", 1, Some("DENIED")),
        ("misfit", 1, Some("ARGUMENTS_INVALID")),
        ("unknown", 1, Some("UNKNOWN_TOOL")),
        ("too many", 1, Some("LIMIT_EXCEEDED")),
    ];
    assert_eq!(notebook.told("tool_skip"), expected(&skipped));
    record("hook_execution", &Verdict::Passed);
}

/// Calls with nothing but a tool and its arguments.
async fn story(yard: &Yard) -> Vec<String> {
    let calls = vec![
        call("text", "echo", json!({ "text": "hello" })),
        count("stream", 5, 10),
        call("mended", "fails", json!({ "attempts": 1 })),
        call("hopeless", "panics", json!({})),
        call("misfit", "echo", json!({ "text": 7 })),
        call("unknown", "nowhere", json!({})),
        question("client's"),
    ];
    let run = yard.client.create(calls).await;
    run.submit(vec![client_answer("client's", "mine")]).await.expect("it waits");
    let events = run.watch(FloorPolicy::Submission).await.to_end().await;
    check::whole(&events, true);
    let (said, outcomes, ended) = (check::said(&events), check::outcomes(&events), run.get().await);
    let told = ended.calls.iter().map(|call| {
        let v1::CallOutcome { result, error, extra_state, .. } = &outcomes[&call.call_id];
        let said = said.get(&call.call_id);
        let v1::Call { call_id, tool, arguments, attempts, .. } = call;
        format!(
            "{call_id} {tool} {arguments} {attempts} {:?} {said:?} {result:?} {error:?} {extra_state:?}",
            call.state()
        )
    });
    told.chain([format!("{:?} {}", ended.status(), ended.return_direct)]).collect()
}

/// 向后兼容: calls that use nothing of all this go as they always went.
#[tokio::test]
async fn backward_compatibility() {
    let plain = Yard::start(FIXTURE).await;
    let _worker = plain.worker().await;
    let before = story(&plain).await;
    assert!(before[0].starts_with(r#"text echo {"text":"hello"} 1 Completed None"#), "{before:#?}");

    // All hooks are called about everything, and allow it.
    let notebook = Notebook::new();
    let unknown = json!(["sh", "-c", r#"cat >/dev/null; echo '{"decision":"unknown"}'"#]);
    let resolver = format!("[[resolver]]\nname = \"names\"\ncommand = {unknown}\n[confirm]\ndangerous = \"always\"\n");
    let hooks = std::fs::read_to_string(notebook.file()).expect("it was written");
    std::fs::write(notebook.file(), format!("{hooks}{resolver}")).expect("it can be written");
    let asked = Yard::start_with(Fixture::new(FIXTURE).with("TOOLYARD_HOOKS", notebook.file().display())).await;
    let _asked_worker = asked.worker().await;
    assert_eq!(story(&asked).await, before);
    assert_eq!(notebook.told("pre_tool_use").len(), 5, "they were asked");
    record("backward_compatibility", &Verdict::Passed);
}
