//! The tools of a tenant: other tools do not exist for it, for any caller, and the file can change this at any time.

use harness::{Callers, Client, Fixture, Guarded, PATIENCE, Pools, call};
use proto::v1::run_event::Event;
use proto::v1::{self, CallErrorKind, CallState, FloorPolicy, ToolConcurrency};
use serde_json::json;
use tonic::Code;

use crate::FIXTURE;
use crate::check::outcomes;

const CALLERS: &str = r#"
    [[callers]]
    name = "ops"
    roles = ["admin"]
    tools = [{ names = ["*"] }]
    keys = ["{ops}"]

    [[callers]]
    name = "shop"
    tenant = "acme"
    roles = ["submit", "read", "approve"]
    tools = [{ names = ["*"] }]
    keys = ["{shop}"]

    [[callers]]
    name = "rival"
    tenant = "rival"
    roles = ["submit", "read", "approve"]
    tools = [{ names = ["*"] }]
    keys = ["{rival}"]
"#;

async fn guarded(tenants: &str) -> Guarded {
    let yard = Guarded::start(Fixture::new(FIXTURE), Callers::new(&format!("{CALLERS}{tenants}"))).await;
    yard.client("ops").wait_for_tool("writes").await;
    yard
}

async fn listed(client: &Client) -> Vec<String> {
    let request = v1::ListToolsRequest { page_size: 1000, ..v1::ListToolsRequest::default() };
    let page = client.tools.clone().list_tools(request).await.expect("it lists").into_inner();
    page.tools.into_iter().map(|tool| tool.name).collect()
}

async fn until_listed(client: &Client, tool: &str, is_listed: bool) {
    let changed = async {
        while listed(client).await.iter().any(|name| name == tool) != is_listed {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, changed).await.expect("the file is read again");
}

fn not_permitted(events: &[v1::RunEvent], call: &str) -> String {
    let error = outcomes(events)[call].error.clone().expect("it is refused");
    assert_eq!(error.kind(), CallErrorKind::NotPermitted, "{error:?}");
    error.message
}

#[tokio::test]
async fn a_tool_that_a_tenant_does_not_have_is_neither_listed_nor_named_nor_called() {
    let yard = guarded("[tenants.acme]\nwithout = [{ names = [\"writes\", \"described\"] }]\n").await;
    let _other = yard.fixture.with("TOOLYARD_FIXTURE_TOOLS", "callable").worker(&yard.broker.url(), "other", 4).await;
    let [shop, rival, ops] = ["shop", "rival", "ops"].map(|name| yard.client(name));
    until_listed(&rival, "described_otherwise", true).await;
    let (acme, all) = (listed(&shop).await, listed(&rival).await);
    let gone: Vec<&String> = all.iter().filter(|tool| !acme.contains(tool)).collect();
    assert_eq!(gone, ["described", "described_otherwise", "writes"], "an alias goes with its tool");
    let get = v1::GetToolRequest { name: "writes".to_owned() };
    assert_eq!(shop.tools.clone().get_tool(get).await.expect_err("it is not there").code(), Code::NotFound);

    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("written");
    let write = || call("write", "writes", json!({ "path": path, "line": "x", "then_wait_ms": 0 }));
    let calls = vec![
        call("echo", "echo", json!({ "text": "hello" })),
        write(),
        call("alias", "described_otherwise", json!({})),
        call("unheard", "unheard", json!({})),
    ];
    let events = shop.execute(calls).await.to_end().await;
    assert_eq!(outcomes(&events)["echo"].state(), CallState::Completed);
    assert!(not_permitted(&events, "write").contains("its tenant does not have it"));
    not_permitted(&events, "alias");
    let unheard = outcomes(&events)["unheard"].error.clone().expect("it is refused").message;
    assert!(unheard.contains("echo") && !unheard.contains("writes"), "{unheard}");

    // What an admin asks for in its name is its, too.
    let request = v1::CreateRunRequest { calls: vec![write()], tenant: "acme".to_owned(), ..Default::default() };
    let events = ops.execute_request(request).await.expect("the run is accepted").to_end().await;
    not_permitted(&events, "write");
    assert!(!path.exists());
    let events = rival.execute(vec![write()]).await.to_end().await;
    assert_eq!(outcomes(&events)["write"].state(), CallState::Completed);
    assert!(path.exists());
}

#[tokio::test]
async fn a_facade_gives_no_tenant_a_tool_that_it_does_not_have() {
    let facades = "[facades.by_name]\ntool = \"described_otherwise\"\n\
                   [facades.by_tag]\ntool = \"files_read\"\ntags = [\"harmless\"]\n";
    let tenants = "[tenants.acme]\nwithout = [{ names = [\"described\"] }, { tags = [\"disk\"] }]\n";
    let pools = Pools::new(facades);
    let yard = Guarded::start(pools.of(&Fixture::new(FIXTURE)), Callers::new(&format!("{CALLERS}{tenants}"))).await;
    let hosts = |tools: &str| yard.fixture.with("TOOLYARD_FIXTURE_TOOLS", tools);
    let _described = hosts("callable").worker(&yard.broker.url(), "other", 4).await;
    let _files = hosts("catalogue").worker(&yard.broker.url(), "shelf", 4).await;
    let [shop, rival] = ["shop", "rival"].map(|name| yard.client(name));
    until_listed(&rival, "by_name", true).await;
    until_listed(&rival, "by_tag", true).await;
    let acme = listed(&shop).await;
    assert!(!acme.iter().any(|tool| tool.starts_with("by_")), "{acme:?}");
    for tool in ["by_name", "by_tag"] {
        let events = shop.execute(vec![call("a", tool, json!({}))]).await.to_end().await;
        assert!(not_permitted(&events, "a").contains("its tenant does not have it"));
    }
}

#[tokio::test]
async fn a_tool_that_is_taken_from_a_tenant_meanwhile_is_not_called_any_more_and_comes_back_with_the_file() {
    let yard = guarded("").await;
    let shop = yard.client("shop");
    let alone = |id: &str, ms: u64| {
        let concurrency = ToolConcurrency::Exclusive.into();
        v1::NewCall { concurrency, ..call(id, "sleep", json!({ "ms": ms, "text": id })) }
    };
    let run = shop.create(vec![alone("first", 3_600_000), alone("second", 1)]).await;
    let mut stream = run.watch(FloorPolicy::Interleaved).await;
    stream.until(|event| matches!(event, Event::AttemptStarted(_))).await;

    yard.callers.write(&format!("{CALLERS}[tenant]\ntools = [{{ names = [\"ec*\"] }}]\n"));
    until_listed(&shop, "sleep", false).await;
    assert_eq!(listed(&shop).await, ["echo"], "these alone");
    let cancel = v1::CancelCallRequest { run_id: run.id.clone(), call_id: "first".to_owned(), reason: String::new() };
    shop.runs.clone().cancel_call(cancel).await.expect("it is its own");
    let events = stream.to_end().await;
    assert!(not_permitted(&events, "second").contains("any more"));

    yard.callers.write(CALLERS);
    until_listed(&shop, "sleep", true).await;
    let events = shop.execute(vec![alone("again", 1)]).await.to_end().await;
    assert_eq!(outcomes(&events)["again"].state(), CallState::Completed);
}

/// An approved call of `bash` with this command.
async fn bash(client: &Client, command: &str) -> v1::CallOutcome {
    let rules = Some(v1::RunRules { confirmation: v1::Confirmation::None.into(), ..v1::RunRules::default() });
    let calls = vec![call("c", "bash", json!({ "command": command }))];
    let request = v1::CreateRunRequest { calls, rules, ..v1::CreateRunRequest::default() };
    let events = client.execute_request(request).await.expect("the run is accepted").to_end().await;
    outcomes(&events)["c"].clone()
}

/// Workers of `bash`, each pool in a folder of its own.
async fn shells(yard: &Guarded, folder: &std::path::Path, pools: &[&str]) -> Vec<harness::Worker> {
    let mut workers = Vec::new();
    for pool in pools {
        let root = folder.join(pool);
        std::fs::create_dir(&root).expect("a folder");
        let fixture = yard.fixture.with("TOOLYARD_FIXTURE_TOOLS", format!("built_in:{}", root.display()));
        workers.push(fixture.worker(&yard.broker.url(), pool, 4).await);
    }
    workers
}

#[tokio::test]
async fn tenants_that_the_file_gives_pools_of_their_own_do_not_see_each_others_files() {
    let pools = Pools::new(
        "[pools.main]\ntools = [\"*\"]\n[pools.acme]\ntools = [\"*\"]\ntenants = [\"acme\"]\n[pools.rival]\ntools = [\"bash\"]\n\
         tenants = [\"rival\"]\n",
    );
    let yard = Guarded::start(pools.of(&Fixture::new(FIXTURE)), Callers::new(CALLERS)).await;
    let folder = tempfile::tempdir().expect("a folder");
    let _shells = shells(&yard, folder.path(), &["acme", "rival"]).await;
    let [shop, rival] = ["shop", "rival"].map(|name| yard.client(name));
    until_listed(&shop, "grep", true).await;
    until_listed(&rival, "bash", true).await;
    assert!(!listed(&rival).await.contains(&"grep".to_owned()), "what only another tenant's pool hosts is not there");
    let written = bash(&shop, "echo customers > customers.csv").await;
    assert_eq!(written.state(), CallState::Completed, "{written:?}");
    assert!(folder.path().join("acme/customers.csv").exists());
    let read = bash(&rival, "ls; test ! -e customers.csv").await;
    assert_eq!((read.state(), crate::check::text(&read)), (CallState::Completed, r#"{"exit_code":0}"#.to_owned()));
    let events = rival.execute(vec![call("c", "grep", json!({ "pattern": "." }))]).await.to_end().await;
    assert!(not_permitted(&events, "c").contains("pool acme does not serve its tenant"));
}

#[tokio::test]
async fn a_pool_whose_tools_use_the_machine_refuses_several_tenants_until_the_file_declares_it_shared() {
    let pools = Pools::new("[pools.main]\ntools = [\"*\"]\n[pools.shell]\ntools = [\"*\"]\n");
    let yard = Guarded::start(pools.of(&Fixture::new(FIXTURE)), Callers::new(CALLERS)).await;
    let folder = tempfile::tempdir().expect("a folder");
    let _shells = shells(&yard, folder.path(), &["shell"]).await;
    let [shop, ops] = ["shop", "ops"].map(|name| yard.client(name));
    until_listed(&ops, "bash", true).await;
    assert!(!listed(&shop).await.contains(&"bash".to_owned()));
    let refused = bash(&shop, "true").await.error.expect("it is refused");
    assert_eq!(refused.kind(), CallErrorKind::NotPermitted);
    assert!(
        refused.message.contains("[pools.shell]") && refused.message.contains("shared = true"),
        "{}",
        refused.message
    );
    assert_eq!(bash(&ops, "true").await.state(), CallState::Completed, "a run without a tenant is the operator's own");
    pools.write("[pools.main]\ntools = [\"*\"]\n[pools.shell]\ntools = [\"*\"]\nshared = true\n");
    until_listed(&shop, "bash", true).await;
    assert_eq!(bash(&shop, "true").await.state(), CallState::Completed);
    // Waiting calls were accepted under the old file, and are checked against the new one.
    let alone = |id: &str, ms: u64| {
        let concurrency = ToolConcurrency::Exclusive.into();
        v1::NewCall { concurrency, ..call(id, "sleep", json!({ "ms": ms, "text": id })) }
    };
    let waits = v1::NewCall {
        concurrency: ToolConcurrency::Exclusive.into(),
        ..call("waits", "glob", json!({ "pattern": "*" }))
    };
    let run = shop.create(vec![alone("first", 3_600_000), waits]).await;
    let mut stream = run.watch(FloorPolicy::Interleaved).await;
    stream.until(|event| matches!(event, Event::AttemptStarted(_))).await;
    pools.write("[pools.main]\ntools = [\"*\"]\n[pools.shell]\ntools = [\"*\"]\ntenants = [\"rival\"]\n");
    until_listed(&shop, "glob", false).await;
    let cancel = v1::CancelCallRequest { run_id: run.id.clone(), call_id: "first".to_owned(), reason: String::new() };
    shop.runs.clone().cancel_call(cancel).await.expect("it is its own");
    assert!(not_permitted(&stream.to_end().await, "waits").contains("does not serve its tenant"));
}
