//! Tools come and go with their workers, and each name stands for one tool.

use std::time::{Duration, Instant};

use harness::{Client, Fixture, PATIENCE, Pools, Worker, Yard, call, reason};
use proto::v1::{self, ListToolsRequest, ListToolsResponse, ToolOrigin, ToolPermission};
use serde_json::json;

use crate::{FIXTURE, check};

pub async fn listed(client: &Client, request: ListToolsRequest) -> ListToolsResponse {
    client.tools.clone().list_tools(request).await.expect("a page").into_inner()
}

pub fn names(page: &ListToolsResponse) -> Vec<&str> {
    page.tools.iter().map(|tool| tool.name.as_str()).collect()
}

/// Lists until the list is as expected, and returns how long that took.
pub(crate) async fn until(
    client: &Client,
    wanted: impl Fn(&ListToolsResponse) -> bool,
) -> (ListToolsResponse, Duration) {
    let started = Instant::now();
    let page = async {
        loop {
            let page = listed(client, ListToolsRequest::default()).await;
            if wanted(&page) {
                return page;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let page = tokio::time::timeout(PATIENCE, page).await.expect("the list becomes as it should be");
    (page, started.elapsed())
}

fn lists(tool: &str) -> impl Fn(&ListToolsResponse) -> bool {
    move |page| page.tools.iter().any(|listed| listed.name == tool)
}

fn description(page: &ListToolsResponse, tool: &str) -> String {
    page.tools.iter().find(|listed| listed.name == tool).map(|tool| tool.description.clone()).unwrap_or_default()
}

/// A worker of `pool` that hosts the tools of `table`.
pub(crate) async fn worker(yard: &Yard, pool: &str, table: &str) -> Worker {
    yard.fixture.with("TOOLYARD_FIXTURE_TOOLS", table).worker(&yard.broker.url(), pool, 4).await
}

#[tokio::test]
async fn a_tool_appears_with_its_first_worker_and_goes_with_its_last() {
    let yard = Yard::start(FIXTURE).await;
    let mut first = worker(&yard, "main", "callable").await;
    let (_, took) = until(&yard.client, lists("described")).await;
    assert!(took < Duration::from_secs(1), "it took {took:?}");
    let mut second = worker(&yard, "main", "callable").await;
    until(&yard.client, |page| page.tools.iter().any(|tool| tool.pools[0].live_workers == 2)).await;
    first.terminate().await;
    let (page, _) = until(&yard.client, |page| page.tools.iter().all(|tool| tool.pools[0].live_workers < 2)).await;
    assert!(lists("described")(&page), "one of two is left");
    second.kill().await;
    let (page, took) = until(&yard.client, |page| page.tools.is_empty()).await;
    assert!(took > Duration::from_secs(3), "a worker that was silent for {took:?} may live");
    assert!(took < Duration::from_secs(12), "it took {took:?}");
    assert!(page.refused.is_empty());

    // It is still known: waiting calls are executed when a worker comes.
    let everything = ListToolsRequest { include_unavailable: true, ..ListToolsRequest::default() };
    let page = listed(&yard.client, everything).await;
    assert!(page.tools.iter().any(|tool| tool.name == "described" && !tool.available), "{:?}", names(&page));
    let run = yard.client.create(vec![call("waits", "described", json!({}))]).await;
    let hurried = v1::NewCall { without_worker: v1::WithoutWorker::Fail.into(), ..call("not", "described", json!({})) };
    let events = yard.client.execute(vec![hurried]).await.to_end().await;
    let error = check::outcomes(&events)["not"].error.clone().expect("a failure has an error");
    assert_eq!(error.kind(), v1::CallErrorKind::NoWorker);
    let _third = worker(&yard, "main", "callable").await;
    let events = run.watch(v1::FloorPolicy::Arrival).await.to_end().await;
    assert_eq!(check::text(&check::outcomes(&events)["waits"]), "called as described");
}

/// The explanation of a call of a run.
async fn why(run: &harness::Run, call: &str) -> String {
    let request = v1::ExplainCallRequest { run_id: run.id.clone(), call_id: call.to_owned() };
    run.client.runs.clone().explain_call(request).await.expect("the call is there").into_inner().why
}

#[tokio::test]
async fn calls_of_a_tool_that_the_pools_new_workers_do_not_host_have_no_worker() {
    let yard = Yard::start(FIXTURE).await;
    let mut old = worker(&yard, "main", "callable").await;
    until(&yard.client, lists("described")).await;
    let _new = worker(&yard, "main", "first").await;
    until(&yard.client, lists("contended")).await;
    old.terminate().await;
    until(&yard.client, |page| !lists("described")(page)).await;

    let get = v1::GetToolRequest { name: "described".to_owned() };
    let tool = yard.client.tools.clone().get_tool(get).await.expect("it is known").into_inner().tool.expect("the tool");
    assert_eq!((tool.pools[0].live_workers, tool.pools[0].pulling_workers), (0, 0), "{tool:?}");
    let hurried = v1::NewCall { without_worker: v1::WithoutWorker::Fail.into(), ..call("not", "described", json!({})) };
    let events = yard.client.execute(vec![hurried]).await.to_end().await;
    let error = check::outcomes(&events)["not"].error.clone().expect("a failure has an error");
    assert_eq!(error.kind(), v1::CallErrorKind::NoWorker, "{error:?}");
    let run = yard.client.create(vec![call("waits", "described", json!({}))]).await;
    let queued = async {
        while !why(&run, "waits").await.contains("no worker of the pool that hosts the tool takes calls: start one") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, queued).await.expect("it waits for a worker");

    let _third = worker(&yard, "main", "callable").await;
    let events = run.watch(v1::FloorPolicy::Arrival).await.to_end().await;
    assert_eq!(check::text(&check::outcomes(&events)["waits"]), "called as described");
}

#[tokio::test]
async fn workers_of_two_pools_that_the_operator_lists_for_a_tool_are_replicas() {
    let pools = Pools::new("[pools.one]\ntools = [\"described*\"]\n[pools.two]\ntools = [\"described*\"]\n");
    let yard = Yard::start_with(pools.of(&Fixture::new(FIXTURE))).await;
    let mut one = worker(&yard, "one", "callable").await;
    let _two = worker(&yard, "two", "callable").await;
    let (page, _) = until(&yard.client, |page| page.tools.iter().any(|tool| tool.pools.len() == 2)).await;
    assert!(page.refused.is_empty(), "{:?}", page.refused);
    one.terminate().await;
    until(&yard.client, |page| page.tools.iter().all(|tool| tool.pools.len() == 1)).await;
    let events = yard.client.execute(vec![call("c", "described", json!({}))]).await.to_end().await;
    assert_eq!(check::text(&check::outcomes(&events)["c"]), "called as described");
    // Calls of a tool that no pool may host any more wait, until the file permits it again.
    pools.write("[pools.one]\ntools = [\"*\"]\n");
    let (page, _) = until(&yard.client, |page| page.tools.is_empty() && !page.refused.is_empty()).await;
    assert!(page.refused[0].reason.contains("add the name to pools.two.tools"), "{:?}", page.refused);
    pools.write("[pools.two]\ntools = [\"*\"]\n");
    until(&yard.client, lists("described")).await;
}

#[tokio::test]
async fn a_pool_that_copies_a_tool_of_another_pool_gets_none_of_its_calls_and_hears_why() {
    let yard = Yard::start(FIXTURE).await;
    let owner = worker(&yard, "shell", "callable").await;
    until(&yard.client, lists("described")).await;
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("log");
    let copies = yard.fixture.with("TOOLYARD_FIXTURE_TOOLS", "callable").logging_to(&log);
    let _copy = copies.worker(&yard.broker.url(), "aa", 4).await;
    let (page, _) = until(&yard.client, |page| page.refused.len() == 2).await;
    assert!(page.refused.iter().all(|refused| refused.reason.contains("pool shell hosted")), "{:?}", page.refused);
    let calls = || (0..8).map(|number| call(&number.to_string(), "described", json!({}))).collect();
    // A coordinator that starts later agrees on the first pool.
    let late = yard.fixture.coordinator(&yard.broker.url()).await;
    let late = Client::connect(late.address()).await;
    until(&late, |page| page.refused.len() == 2).await;
    for client in [&yard.client, &late] {
        let events = client.execute(calls()).await.to_end().await;
        let started = events.iter().filter_map(|event| match &event.event {
            Some(v1::run_event::Event::AttemptStarted(started)) => Some(started.worker_id.as_str()),
            _ => None,
        });
        assert_eq!(started.collect::<Vec<_>>(), [owner.id(); 8]);
    }
    let heard = async {
        while !std::fs::read_to_string(&log).is_ok_and(|log| log.contains("shell hosted described first")) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, heard).await.expect("its author hears it");
}

#[tokio::test]
async fn a_higher_version_in_another_pool_takes_no_name_over() {
    let yard = Yard::start(FIXTURE).await;
    let mut first = worker(&yard, "shell", "first").await;
    until(&yard.client, lists("contended")).await;
    let _greedy = worker(&yard, "aa", "newer").await;
    let (page, _) = until(&yard.client, |page| !page.refused.is_empty()).await;
    assert_eq!((description(&page, "contended"), page.refused.len()), ("The first.".to_owned(), 1));
    assert_eq!(page.refused[0].holder.as_ref().map(|holder| holder.pool.as_str()), Some("shell"));
    // Nor while the first pool has no worker.
    first.terminate().await;
    let (page, _) = until(&yard.client, |page| page.tools.is_empty()).await;
    assert_eq!(page.refused.len(), 1, "{:?}", page.refused);
}

#[tokio::test]
async fn another_schema_under_a_name_is_refused_with_both_owners_named() {
    let yard = Yard::start(FIXTURE).await;
    let mut first = worker(&yard, "one", "first").await;
    until(&yard.client, lists("contended")).await;
    let other = worker(&yard, "two", "other").await;
    let (page, _) = until(&yard.client, |page| !page.refused.is_empty()).await;
    let refused = &page.refused[0];
    assert_eq!((page.refused.len(), refused.tool.as_str()), (1, "contended"));
    let named = |hosts: &Option<v1::ToolHosts>| hosts.clone().map(|hosts| (hosts.pool, hosts.worker_ids));
    assert_eq!(named(&refused.hosts), Some(("two".to_owned(), vec![other.id().to_owned()])));
    assert_eq!(named(&refused.holder), Some(("one".to_owned(), vec![first.id().to_owned()])));
    assert_eq!(description(&page, "contended"), "The first.");
    assert_eq!(page.tools[0].pools.iter().map(|pool| pool.pool.as_str()).collect::<Vec<_>>(), ["one"]);
    let events = yard.client.execute(vec![call("c", "contended", json!({ "other": "schema" }))]).await.to_end().await;
    let error = check::outcomes(&events)["c"].error.clone().expect("a failure has an error");
    assert_eq!(error.kind(), v1::CallErrorKind::ArgumentsInvalid);
    // Who comes later sees the same.
    let late = yard.fixture.coordinator(&yard.broker.url()).await;
    let (page, _) = until(&Client::connect(late.address()).await, |page| !page.refused.is_empty()).await;
    assert_eq!(description(&page, "contended"), "The first.");
    // The name stays with its pool, and waiting calls are not given to another one.
    first.terminate().await;
    let (page, _) = until(&yard.client, |page| page.tools.is_empty()).await;
    assert_eq!(page.refused.len(), 1, "{:?}", page.refused);
}

#[tokio::test]
async fn a_higher_version_takes_a_name_over_while_it_lives() {
    let yard = Yard::start(FIXTURE).await;
    // In one pool, as a rolling update has it.
    let _first = worker(&yard, "main", "first").await;
    until(&yard.client, lists("contended")).await;
    let mut newer = worker(&yard, "main", "newer").await;
    let (page, _) = until(&yard.client, |page| !page.refused.is_empty()).await;
    assert_eq!(description(&page, "contended"), "A newer one.");
    assert!(page.refused[0].reason.contains("is replaced by version 2"), "{}", page.refused[0].reason);
    newer.terminate().await;
    let (page, _) = until(&yard.client, |page| page.refused.is_empty()).await;
    assert_eq!(description(&page, "contended"), "The first.");
}

#[tokio::test]
async fn a_tool_can_be_called_by_another_name_that_has_its_own_description() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = worker(&yard, "main", "callable").await;
    let (page, _) = until(&yard.client, lists("described_otherwise")).await;
    let alias = page.tools.iter().find(|tool| tool.name == "described_otherwise").expect("it is listed");
    assert_eq!((alias.alias_of.as_str(), alias.description.as_str()), ("described", "Says who else it is."));
    assert_eq!(alias.version, "1.4.2");
    let events = yard.client.execute(vec![call("c", "described_otherwise", json!({}))]).await.to_end().await;
    assert_eq!(check::text(&check::outcomes(&events)["c"]), "called as described_otherwise");
}

#[tokio::test]
async fn a_facade_has_a_manifest_of_its_own_and_is_executed_by_its_tool() {
    let pools = Pools::new(
        "[facades.greet_everybody]\ntool = \"echo\"\ndescription = \"Greets everybody.\"\ntitle = \"Greet\"\n\
         category = \"social\"\npermission = \"write\"\nreturn_direct = true\narguments = { text = \"hello\" }\n\
         input_schema = { type = \"object\", additionalProperties = false }\n[facades.nobody]\ntool = \"unknown\"\n",
    );
    let yard = Yard::start_with(pools.of(&Fixture::new(FIXTURE))).await;
    let _worker = yard.worker().await;
    let (page, _) = until(&yard.client, lists("greet_everybody")).await;
    let facade = page.tools.iter().find(|tool| tool.name == "greet_everybody").expect("it is listed");
    assert_eq!((facade.alias_of.as_str(), facade.description.as_str()), ("echo", "Greets everybody."));
    assert_eq!((facade.title.as_str(), facade.category.as_str()), ("Greet", "social"));
    assert_eq!((facade.permission(), facade.return_direct), (ToolPermission::Write, true));
    assert!(!page.tools.iter().any(|tool| tool.name == "nobody"), "a facade without its tool is not listed");
    let calls =
        vec![call("bound", "greet_everybody", json!({})), call("own", "greet_everybody", json!({ "text": "bye" }))];
    let outcomes = check::outcomes(&yard.client.execute(calls).await.to_end().await);
    assert_eq!(check::text(&outcomes["bound"]), "hello, greet_everybody");
    let refused = outcomes["own"].error.as_ref().expect("its arguments do not fit the facade's schema");
    assert_eq!(refused.kind(), v1::CallErrorKind::ArgumentsInvalid, "{refused:?}");
}

#[tokio::test]
async fn an_approver_cannot_change_the_arguments_that_a_facade_binds() {
    let pools = Pools::new(
        "[facades.greet_everybody]\ntool = \"echo\"\nrequires_confirmation = true\narguments = { text = \"hello\" }\n",
    );
    let yard = Yard::start_with(pools.of(&Fixture::new(FIXTURE))).await;
    let _worker = yard.worker().await;
    until(&yard.client, lists("greet_everybody")).await;
    let run = yard.client.create(vec![call("a", "greet_everybody", json!({}))]).await;
    let approval = v1::CallApproval { arguments: Some(json!({ "text": "bye" }).to_string()) };
    let decision = Some(v1::call_decision::Decision::Approve(approval));
    let decisions = vec![v1::CallDecision { call_id: "a".to_owned(), decision }];
    let request = v1::DecideCallsRequest { run_id: run.id.clone(), decisions };
    yard.client.runs.clone().decide_calls(request).await.expect("it awaits approval");
    let outcomes = check::outcomes(&run.watch(v1::FloorPolicy::Arrival).await.to_end().await);
    assert_eq!(check::text(&outcomes["a"]), "hello, greet_everybody");
}

#[tokio::test]
async fn tools_are_found_by_what_is_said_of_them_and_hidden_ones_are_not() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = worker(&yard, "shelf", "catalogue").await;
    let _other = worker(&yard, "other", "external").await;
    until(&yard.client, |page| page.tools.len() == 5).await;
    let all = ListToolsRequest::default;
    let cases: [(ListToolsRequest, &[&str]); 11] = [
        (ListToolsRequest { name: "files_*".to_owned(), ..all() }, &["files_read", "files_write"]),
        (ListToolsRequest { name: "*e*".to_owned(), tags: vec!["safe".to_owned()], ..all() }, &["files_read"]),
        (ListToolsRequest { category: "files".to_owned(), ..all() }, &["files_read", "files_write"]),
        (ListToolsRequest { tags: vec!["disk".to_owned(), "safe".to_owned()], ..all() }, &["files_read"]),
        (ListToolsRequest { permission: ToolPermission::Read.into(), ..all() }, &["files_read"]),
        (ListToolsRequest { permission: ToolPermission::Write.into(), ..all() }, &["files_write"]),
        (ListToolsRequest { pool: "other".to_owned(), ..all() }, &["described", "described_otherwise"]),
        (ListToolsRequest { origin: ToolOrigin::External.into(), ..all() }, &["described", "described_otherwise"]),
        (ListToolsRequest { origin: ToolOrigin::Mcp.into(), ..all() }, &[]),
        (ListToolsRequest { category: "web".to_owned(), pool: "other".to_owned(), ..all() }, &[]),
        (ListToolsRequest { category: "nothing".to_owned(), ..all() }, &[]),
    ];
    for (request, expected) in cases {
        assert_eq!(names(&listed(&yard.client, request.clone()).await), expected, "{request:?}");
    }
    // A search puts the best first: a name before a description.
    let found = |query: &str| ListToolsRequest { query: query.to_owned(), ..all() };
    assert_eq!(names(&listed(&yard.client, found("who")).await).first(), Some(&"described"));
    assert_eq!(names(&listed(&yard.client, found("read files")).await).first(), Some(&"files_read"));
    assert_eq!(names(&listed(&yard.client, found("quantum")).await), Vec::<&str>::new());
    let first = listed(&yard.client, ListToolsRequest { page_size: 1, category: "files".to_owned(), ..all() }).await;
    assert_eq!((names(&first).as_slice(), first.next_page_token.as_str()), (["files_read"].as_slice(), "files_read"));
    let next = ListToolsRequest { page_token: first.next_page_token, category: "files".to_owned(), ..all() };
    let next = listed(&yard.client, next).await;
    assert_eq!((names(&next).as_slice(), next.next_page_token.as_str()), (["files_write"].as_slice(), ""));
    yard.client.wait_for_tool("secret").await;
    let malformed = [
        ListToolsRequest { permission: 9, ..all() },
        ListToolsRequest { origin: 9, ..all() },
        ListToolsRequest { query: "a".repeat(513), ..all() },
        ListToolsRequest { query: "a".to_owned(), page_token: "files_read".to_owned(), ..all() },
        ListToolsRequest { pool: "no pool".to_owned(), ..all() },
        ListToolsRequest { name: "[".to_owned(), ..all() },
        ListToolsRequest { name: "a".repeat(129), ..all() },
        ListToolsRequest { page_token: "no token".to_owned(), ..all() },
    ];
    for request in malformed {
        let refused = yard.client.tools.clone().list_tools(request).await.expect_err("it is malformed");
        assert_eq!(reason(&refused), "MALFORMED");
    }
}

#[tokio::test]
async fn a_run_that_attaches_tools_can_call_those_alone() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = worker(&yard, "main", "catalogue").await;
    let _other = worker(&yard, "other", "callable").await;
    until(&yard.client, |page| page.tools.len() == 5).await;
    let request = v1::CreateRunRequest {
        calls: vec![call("attached", "described", json!({})), call("not", "files_read", json!({}))],
        tools: vec!["described".to_owned(), "secret".to_owned(), "nobody_has_it".to_owned()],
        keep_open: true,
        ..v1::CreateRunRequest::default()
    };
    let created = yard.client.runs.clone().create_run(request).await.expect("it is accepted").into_inner();
    let run_id = created.run.expect("the response has the run").run_id;
    // Attached tools also apply to later calls, through any coordinator.
    let other = yard.fixture.coordinator(&yard.broker.url()).await;
    let client = Client::connect(other.address()).await;
    let calls = vec![call("later", "files_write", json!({})), call("hidden", "secret", json!({}))];
    let append = v1::AppendCallsRequest { run_id: run_id.clone(), calls, ..v1::AppendCallsRequest::default() };
    let run = client.runs.clone().append_calls(append).await.expect("they are accepted").into_inner().run;
    let run = run.expect("the response has the run");
    let outcome = |id: &str| run.calls.iter().find(|call| call.call_id == id).expect("it is there").clone();
    for refused in ["not", "later"] {
        let error = outcome(refused).outcome.expect("it ended").error.expect("it failed");
        assert_eq!(error.kind(), v1::CallErrorKind::UnknownTool);
        assert!(error.message.ends_with("available tools: described, secret"), "{}", error.message);
    }
    assert_eq!(outcome("hidden").state(), v1::CallState::WaitingForClient, "an attached one may be hidden");
    assert!(outcome("hidden").hidden && !outcome("later").hidden, "whoever shows runs to users is told");
    let run = harness::Run { client, id: run_id.clone() };
    run.submit(vec![harness::client_answer("hidden", "found")]).await.expect("it waits");
    let close = v1::CloseRunRequest { run_id };
    yard.client.runs.clone().close_run(close).await.expect("it is open");
    let events = run.watch(v1::FloorPolicy::Arrival).await.to_end().await;
    assert_eq!(check::text(&check::outcomes(&events)["attached"]), "called as described");
    // Without any attached, those that are listed.
    let events = yard.client.execute(vec![call("c", "secret", json!({}))]).await.to_end().await;
    let error = check::outcomes(&events)["c"].error.clone().expect("a failure has an error");
    assert_eq!(error.kind(), v1::CallErrorKind::UnknownTool);
    assert!(error.message.ends_with("files_read, files_write, web_fetch"), "{}", error.message);
}

#[tokio::test]
async fn a_run_that_attaches_what_has_no_name_is_refused() {
    let yard = Yard::start(FIXTURE).await;
    let many: Vec<String> = (0..257).map(|tool| tool.to_string()).collect();
    for tools in [vec!["white space".to_owned()], vec![String::new()], many] {
        let request = v1::CreateRunRequest { tools, keep_open: true, ..v1::CreateRunRequest::default() };
        let refused = yard.client.runs.clone().create_run(request).await.expect_err("it is malformed");
        assert_eq!(reason(&refused), "MALFORMED");
    }
}
