//! Permissions of callers: none without a key; roles, the isolation of tenants, and the allowed tools, also when a call
//! begins.

use std::collections::BTreeSet;
use std::time::Duration;

use harness::{Authority, Callers, Client, Fixture, Guarded, Run, call, reason};
use prost::Message as _;
use proto::v1::run_event::Event;
use proto::v1::{self, CallErrorKind, CallState, FloorPolicy, ToolConcurrency};
use serde_json::json;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use crate::check::outcomes;
use crate::{FIXTURE, question};

const CALLERS: &str = r#"
    answer_token_key_file = "answer.key"

    [[callers]]
    name = "ops"
    roles = ["admin"]
    tools = [{ names = ["*"] }]
    keys = ["{ops}"]

    [[callers]]
    name = "shop"
    tenant = "acme"
    roles = ["submit", "read", "answer"]
    tools = [{ classes = ["read"] }, { names = ["ask_user"] }]
    keys = ["{shop}", "{shop-next}"]

    [[callers]]
    name = "colleague"
    tenant = "acme"
    roles = ["submit", "read", "answer"]
    tools = [{ names = ["ask_user"] }]
    keys = ["{colleague}"]

    [[callers]]
    name = "boss"
    tenant = "acme"
    roles = ["read", "approve"]
    keys = ["{boss}"]

    [[callers]]
    name = "rival"
    tenant = "rival"
    roles = ["submit", "read", "answer", "approve"]
    tools = [{ names = ["ech*", "sleep"], classes = ["read"] }]
    keys = ["{rival}"]
"#;

pub(crate) async fn guarded() -> Guarded {
    guarded_with(Fixture::new(FIXTURE)).await
}

pub(crate) async fn guarded_with(fixture: Fixture) -> Guarded {
    let callers = Callers::new("");
    callers.beside("answer.key", b"0123456789abcdef0123456789abcdef");
    callers.write(CALLERS);
    let guarded = Guarded::start(fixture, callers).await;
    guarded.client("shop").wait_for_tool("echo").await;
    guarded
}

fn echo(id: &str) -> v1::NewCall {
    call(id, "echo", json!({ "text": "hello" }))
}

async fn create(client: &Client, calls: Vec<v1::NewCall>, tenant: &str) -> Result<v1::Run, Status> {
    let request = v1::CreateRunRequest { calls, tenant: tenant.to_owned(), ..v1::CreateRunRequest::default() };
    let response = client.runs.clone().create_run(request).await?;
    Ok(response.into_inner().run.expect("the response has the run"))
}

async fn list(client: &Client) -> Result<(), Status> {
    client.tools.clone().list_tools(v1::ListToolsRequest::default()).await.map(drop)
}

fn refusal(refused: Result<impl Sized, Status>) -> (Code, String) {
    let Err(status) = refused else { panic!("it must be refused") };
    (status.code(), reason(&status))
}

fn denied(why: &str) -> (Code, String) {
    (Code::PermissionDenied, why.to_owned())
}

fn unknown(why: &str) -> (Code, String) {
    (Code::Unauthenticated, why.to_owned())
}

#[tokio::test]
async fn nobody_is_let_in_who_does_not_say_who_they_are_and_health_asks_nobody() {
    let yard = guarded().await;
    assert_eq!(refusal(list(&yard.stranger).await), unknown("CREDENTIAL_MISSING"));
    assert_eq!(refusal(list(&yard.stranger.with_key("tyk_of-my-own")).await), unknown("KEY_UNKNOWN"));
    assert_eq!(refusal(list(&yard.stranger.with_key(&"x".repeat(9000))).await), unknown("CREDENTIAL_TOO_LARGE"));
    assert_eq!(refusal(list(&yard.stranger.with_key("a.b.c")).await), unknown("TOKEN_REFUSED"));
    assert!(list(&yard.client("shop")).await.is_ok() && list(&yard.client("shop-next")).await.is_ok());

    let endpoint = Channel::from_shared(format!("http://{}", yard.coordinator.address())).expect("a URL");
    let channel = endpoint.connect().await.expect("the coordinator listens");
    let health = HealthClient::new(channel).check(HealthCheckRequest::default()).await;
    assert!(health.is_ok(), "{health:?}");
}

#[tokio::test]
async fn no_request_of_any_service_is_open() {
    let yard = guarded().await;
    let endpoint = Channel::from_shared(format!("http://{}", yard.coordinator.address())).expect("a URL");
    let channel = endpoint.connect().await.expect("the coordinator listens");
    let set = prost_types::FileDescriptorSet::decode(proto::DESCRIPTORS).expect("descriptors");
    let mut asked = 0;
    for file in &set.file {
        for service in &file.service {
            for method in &service.method {
                let path = format!("/{}.{}/{}", file.package(), service.name(), method.name());
                let mut grpc = tonic::client::Grpc::new(channel.clone());
                grpc.ready().await.expect("it is connected");
                let codec = tonic_prost::ProstCodec::<(), ()>::default();
                let path = PathAndQuery::try_from(path.as_str()).expect("a path");
                let answer = grpc.unary(Request::new(()), path.clone(), codec).await;
                assert_eq!(refusal(answer), unknown("CREDENTIAL_MISSING"), "{path}");
                asked += 1;
            }
        }
    }
    assert!(asked > 20, "{asked}");
}

#[tokio::test]
async fn each_may_what_their_roles_say() {
    let yard = guarded().await;
    let [shop, boss, ops] = ["shop", "boss", "ops"].map(|name| yard.client(name));
    let role = || denied("ROLE_MISSING");
    let waiting = create(&shop, vec![question("ask"), call("sure", "confirms", json!({ "text": "x" }))], "").await;
    let id = waiting.expect("it may submit").run_id;
    assert_eq!(refusal(create(&boss, vec![echo("a")], "").await), role());
    let answer = || vec![harness::client_answer("ask", "that one")];
    let run = |client: &Client| Run { client: client.clone(), id: id.clone() };
    assert_eq!(refusal(run(&boss).submit(answer()).await), role());
    let cancel = v1::CancelRunRequest { run_id: id.clone(), reason: String::new() };
    assert_eq!(refusal(boss.runs.clone().cancel_run(cancel).await), role());
    let approve = v1::call_decision::Decision::Approve(v1::CallApproval::default());
    let decisions = vec![v1::CallDecision { call_id: "sure".to_owned(), decision: Some(approve) }];
    let decide = v1::DecideCallsRequest { run_id: id.clone(), decisions };
    assert_eq!(refusal(shop.runs.clone().decide_calls(decide.clone()).await), role());
    assert_eq!(refusal(shop.index.clone().rebuild_index(v1::RebuildIndexRequest {}).await), role());
    assert_eq!(refusal(shop.index.clone().verify_index(v1::VerifyIndexRequest {}).await), role());
    let pause = v1::PauseRequest { what: Some(v1::pause_request::What::Pool("main".to_owned())), ..Default::default() };
    assert_eq!(refusal(shop.fleet.clone().pause(pause).await), role());
    let drain = v1::DrainWorkerRequest { worker_id: "worker-1".to_owned() };
    assert_eq!(refusal(shop.fleet.clone().drain_worker(drain).await), role());

    assert_eq!(run(&boss).get().await.caller, "shop");
    boss.runs.clone().decide_calls(decide).await.expect("it may approve");
    run(&shop).submit(answer()).await.expect("it may answer");
    let events = run(&boss).watch(FloorPolicy::Arrival).await.to_end().await;
    let outcomes = outcomes(&events);
    assert!(outcomes.values().all(|outcome| outcome.state() == CallState::Completed), "{outcomes:?}");
    ops.index.clone().rebuild_index(v1::RebuildIndexRequest {}).await.expect("an admin may");
}

#[tokio::test]
async fn tenants_are_walls() {
    let yard = guarded().await;
    let [shop, boss, rival, ops] = ["shop", "boss", "rival", "ops"].map(|name| yard.client(name));
    let ours = create(&shop, vec![question("ask")], "").await.expect("accepted");
    assert_eq!(ours.tenant, "acme");
    let theirs = create(&rival, vec![echo("a"), echo("b")], "rival").await.expect("accepted");
    assert_eq!(refusal(create(&rival, vec![echo("a")], "acme").await), denied("TENANT_DENIED"));

    // Another tenant's run is not found, for any command.
    let run_id = || ours.run_id.clone();
    let missing = (Code::NotFound, "RUN_NOT_FOUND".to_owned());
    let mut runs = rival.runs.clone();
    assert_eq!(refusal(runs.get_run(v1::GetRunRequest { run_id: run_id() }).await), missing);
    let there = Run { client: rival.clone(), id: run_id() };
    assert_eq!(refusal(there.watch_after(FloorPolicy::Arrival, None).await), missing);
    assert_eq!(refusal(there.submit(vec![harness::client_answer("ask", "mine")]).await), missing);
    assert_eq!(refusal(runs.close_run(v1::CloseRunRequest { run_id: run_id() }).await), missing);
    let cancel = v1::CancelRunRequest { run_id: run_id(), reason: String::new() };
    assert_eq!(refusal(runs.cancel_run(cancel).await), missing);
    let append = v1::AppendCallsRequest {
        run_id: run_id(),
        calls: vec![echo("c")],
        request_tools: Vec::new(),
        ..v1::AppendCallsRequest::default()
    };
    assert_eq!(refusal(runs.append_calls(append).await), missing);
    let explain = v1::ExplainCallRequest { run_id: run_id(), call_id: "ask".to_owned() };
    assert_eq!(refusal(runs.explain_call(explain).await), missing);

    // Lists and counts are one's own.
    let listed = async |client: &Client, tenant: &str| -> Result<BTreeSet<String>, Status> {
        let request = v1::ListRunsRequest { tenant: tenant.to_owned(), ..v1::ListRunsRequest::default() };
        let found = client.index.clone().list_runs(request).await?.into_inner().runs;
        Ok(found.into_iter().map(|run| run.run_id).collect())
    };
    let all = BTreeSet::from([ours.run_id.clone(), theirs.run_id.clone()]);
    let indexed = async {
        while listed(&ops, "").await.expect("it lists") != all {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(harness::PATIENCE, indexed).await.expect("the index follows");
    assert_eq!(listed(&boss, "").await.expect("it lists"), BTreeSet::from([ours.run_id.clone()]));
    assert_eq!(listed(&rival, "rival").await.expect("it lists"), BTreeSet::from([theirs.run_id.clone()]));
    assert_eq!(refusal(listed(&rival, "acme").await), denied("TENANT_DENIED"));
    assert_eq!(listed(&ops, "acme").await.expect("it lists"), BTreeSet::from([ours.run_id.clone()]));
    let counted = async |client: &Client, tenant: &str| {
        let request = v1::CountRunsRequest { tenant: tenant.to_owned() };
        let counts = client.index.clone().count_runs(request).await.expect("it counts").into_inner();
        counts.calls.iter().map(|state| state.count).sum::<u64>()
    };
    assert_eq!((counted(&boss, "").await, counted(&rival, "").await), (1, 2));
    assert_eq!((counted(&ops, "").await, counted(&ops, "rival").await), (3, 2));
    let calls = rival.index.clone().list_calls(v1::ListCallsRequest::default()).await.expect("it lists");
    assert!(calls.into_inner().calls.iter().all(|listed| listed.tenant == "rival"));
    let cancel = v1::CancelCallsRequest { tool: "ask_user".to_owned(), ..v1::CancelCallsRequest::default() };
    let mut told = rival.index.clone().cancel_calls(cancel).await.expect("it cancels").into_inner();
    assert_eq!(told.message().await.expect("it ends").map_or(0, |word| word.calls.len()), 0, "only its own");
}

#[tokio::test]
async fn a_tool_knows_its_tenant_its_caller_and_the_roles_whatever_the_request_pretends() {
    let yard = guarded().await;
    let pretends = |id: &str| v1::NewCall {
        context: json!({ "tenant": "rival" }).to_string(),
        metadata: [("tenant".to_owned(), "rival".to_owned())].into(),
        ..call(id, "who", json!({}))
    };
    let who = |tenant: Option<&str>, caller: &str, roles: &[&str]| {
        let pretended = "rival";
        json!({ "tenant": tenant, "caller": caller, "roles": roles, "pretended": pretended })
    };
    let of_shop = who(Some("acme"), "shop", &["submit", "answer", "read"]);
    let cases = [
        // The job of one call is the opening of its run; those of more calls have entries of their own.
        ("shop", "", vec![pretends("a")], of_shop.clone()),
        ("shop-next", "", vec![pretends("a"), pretends("b")], of_shop.clone()),
        ("ops", "", vec![pretends("a"), pretends("b")], who(None, "ops", &["admin"])),
        ("ops", "acme", vec![pretends("a")], who(Some("acme"), "ops", &["admin"])),
    ];
    for (key, tenant, calls, expected) in cases {
        let client = yard.client(key);
        client.wait_for_tool("who").await;
        let count = calls.len();
        let run = Run { id: create(&client, calls, tenant).await.expect("it may").run_id, client: client.clone() };
        let ends = outcomes(&run.watch(FloorPolicy::Arrival).await.to_end().await);
        assert_eq!(ends.len(), count);
        for end in ends.values() {
            let told: serde_json::Value = serde_json::from_str(&crate::check::text(end)).expect("it is JSON");
            assert_eq!(told, expected, "{key}");
        }
    }
}

#[tokio::test]
async fn nobody_decides_on_the_calls_of_another_tenant() {
    let yard = guarded().await;
    let [shop, boss, rival] = ["shop", "boss", "rival"].map(|name| yard.client(name));
    let ours = create(&shop, vec![call("sure", "confirms", json!({ "text": "x" }))], "").await.expect("accepted");
    let run_id = || ours.run_id.clone();
    let decide = |decision| v1::DecideCallsRequest {
        run_id: run_id(),
        decisions: vec![v1::CallDecision { call_id: "sure".to_owned(), decision: Some(decision) }],
    };
    let approve = |arguments: Option<&str>| {
        let arguments = arguments.map(str::to_owned);
        decide(v1::call_decision::Decision::Approve(v1::CallApproval { arguments }))
    };
    let reject = decide(v1::call_decision::Decision::Reject(v1::CallRejection { reason: "mine".to_owned() }));
    let missing = (Code::NotFound, "RUN_NOT_FOUND".to_owned());
    let mut runs = rival.runs.clone();
    // The answer does not reveal whether its arguments match.
    for request in [approve(None), approve(Some(r#"{"text":"y"}"#)), approve(Some("{}")), reject] {
        assert_eq!(refusal(runs.decide_calls(request).await), missing);
    }
    let call_id = || "sure".to_owned();
    let cancel = v1::CancelCallRequest { run_id: run_id(), call_id: call_id(), reason: String::new() };
    assert_eq!(refusal(runs.cancel_call(cancel).await), missing);
    let redrive = v1::RedriveCallRequest { run_id: run_id(), call_id: call_id() };
    assert_eq!(refusal(runs.redrive_call(redrive).await), missing);
    let put_aside = v1::DropCallRequest { run_id: run_id(), call_id: call_id() };
    assert_eq!(refusal(runs.drop_call(put_aside).await), missing);
    let inbox = v1::ListCallsRequest { inbox: true, ..v1::ListCallsRequest::default() };
    assert!(rival.index.clone().list_calls(inbox).await.expect("it lists").into_inner().calls.is_empty());

    let run = Run { client: boss.clone(), id: run_id() };
    assert_eq!(run.get().await.calls[0].state(), CallState::AwaitingApproval);
    boss.runs.clone().decide_calls(approve(None)).await.expect("it may approve");
    let ended = outcomes(&run.watch(FloorPolicy::Arrival).await.to_end().await);
    assert_eq!(crate::check::text(&ended["sure"]), "x");
}

#[tokio::test]
async fn a_tool_that_its_caller_may_not_call_is_neither_listed_nor_called_and_the_rest_goes_on() {
    let yard = guarded().await;
    let rival = yard.client("rival");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("written");
    let writes = json!({ "path": path, "line": "x", "then_wait_ms": 0 });
    let calls = vec![echo("fine"), call("written", "writes", writes), crate::count("counted", 1, 1)];
    let ended = outcomes(&rival.execute(calls).await.to_end().await);
    assert_eq!(ended["fine"].state(), CallState::Completed);
    for call in ["written", "counted"] {
        let error = ended[call].error.clone().expect("it is refused");
        assert_eq!(error.kind(), CallErrorKind::NotPermitted, "{error:?}");
    }
    assert!(!path.exists());
    let listed = rival.tools.clone().list_tools(v1::ListToolsRequest::default()).await.expect("it lists").into_inner();
    let names: BTreeSet<&str> = listed.tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, BTreeSet::from(["echo", "sleep"]));
    let get = v1::GetToolRequest { name: "writes".to_owned() };
    assert_eq!(refusal(rival.tools.clone().get_tool(get).await).0, Code::NotFound);
    let unheard = rival.execute(vec![call("no", "unheard", json!({}))]).await.to_end().await;
    let message = outcomes(&unheard)["no"].error.clone().expect("it is refused").message;
    assert!(message.contains("echo") && !message.contains("writes"), "{message}");
}

/// Waits until the coordinator has read the file again.
async fn until_refused(client: &Client) {
    let refused = async {
        while list(client).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(harness::PATIENCE, refused).await.expect("the file is read again");
}

#[tokio::test]
async fn a_caller_who_is_revoked_meanwhile_has_no_further_call_dispatched() {
    let yard = guarded().await;
    let (rival, ops) = (yard.client("rival"), yard.client("ops"));
    let alone = |id: &str, ms: u64| {
        let concurrency = ToolConcurrency::Exclusive.into();
        v1::NewCall { concurrency, ..call(id, "sleep", json!({ "ms": ms, "text": id })) }
    };
    let run = create(&rival, vec![alone("first", 3_600_000), alone("second", 1)], "").await.expect("accepted").run_id;
    let run = Run { client: ops.clone(), id: run };
    let mut stream = run.watch(FloorPolicy::Interleaved).await;
    stream.until(|event| matches!(event, Event::AttemptStarted(_))).await;

    yard.callers.write(CALLERS.split("[[callers]]\n    name = \"rival\"").next().expect("the rest"));
    until_refused(&rival).await;
    let cancel = v1::CancelCallRequest { run_id: run.id.clone(), call_id: "first".to_owned(), reason: String::new() };
    ops.runs.clone().cancel_call(cancel).await.expect("an admin may");
    let ended = outcomes(&stream.to_end().await);
    assert_eq!(ended["first"].state(), CallState::Cancelled);
    let error = ended["second"].error.clone().expect("it is refused");
    assert_eq!(error.kind(), CallErrorKind::NotPermitted, "{error:?}");
}

/// A stream of many runs, each of one call of `echo`, one after the other.
pub(crate) struct ManyRuns {
    sender: tokio::sync::mpsc::Sender<v1::ExecuteRunsRequest>,
    said: tonic::Streaming<v1::ExecuteRunsResponse>,
    tag: u64,
}

impl ManyRuns {
    pub(crate) async fn begin(client: &Client) -> Self {
        let (sender, requests) = tokio::sync::mpsc::channel(4);
        let requests = futures::stream::unfold(requests, async |mut requests| Some((requests.recv().await?, requests)));
        let said = client.runs.clone().execute_runs(Box::pin(requests)).await.expect("it may submit").into_inner();
        Self { sender, said, tag: 0 }
    }

    /// The reason for which the next run is refused, or `None` when it has ended.
    pub(crate) async fn next(&mut self, approve: &[&str]) -> Option<String> {
        self.tag += 1;
        let approve = approve.iter().map(ToString::to_string).collect();
        let run = v1::CreateRunRequest { calls: vec![echo("a")], approve, ..v1::CreateRunRequest::default() };
        let request = v1::ExecuteRunsRequest { tag: self.tag, run: Some(run.into()) };
        self.sender.send(request).await.expect("it listens");
        loop {
            let message = self.said.message().await.expect("the stream does not break").expect("it does not end");
            let last = |piece: &v1::RunPiece| piece.tag == self.tag && (piece.end.is_some() || piece.refusal.is_some());
            if let Some(piece) = message.pieces.into_iter().find(last) {
                return piece.refusal.map(|refusal| refusal.reason);
            }
        }
    }
}

#[tokio::test]
async fn a_stream_of_many_runs_does_not_outlive_its_callers_rights() {
    let yard = guarded().await;
    let rival = yard.client("rival");
    let mut runs = ManyRuns::begin(&rival).await;
    assert_eq!(runs.next(&[]).await, None);
    // It may submit still, and not approve any more.
    let without = CALLERS.replace(r#""submit", "read", "answer", "approve""#, r#""submit", "read", "answer""#);
    yard.callers.write(&without);
    let refused = async {
        loop {
            if let Some(reason) = runs.next(&["_all"]).await {
                break reason;
            }
        }
    };
    let refused = tokio::time::timeout(harness::PATIENCE, refused).await.expect("the file is read again");
    assert_eq!(refused, "ROLE_MISSING");
    yard.callers.write(CALLERS.split("[[callers]]\n    name = \"rival\"").next().expect("the rest"));
    until_refused(&rival).await;
    assert_eq!(runs.next(&[]).await.as_deref(), Some("ROLE_MISSING"));
}

#[tokio::test]
async fn a_run_is_added_to_by_who_opened_it() {
    let yard = guarded().await;
    let (shop, ops) = (yard.client("shop"), yard.client("ops"));
    let request = v1::CreateRunRequest { keep_open: true, ..v1::CreateRunRequest::default() };
    let request = v1::CreateRunRequest { tenant: "acme".to_owned(), ..request };
    let opened = ops.runs.clone().create_run(request).await.expect("an admin may").into_inner().run.expect("a run");
    assert_eq!((opened.tenant.as_str(), opened.caller.as_str()), ("acme", "ops"));
    let append = v1::AppendCallsRequest {
        run_id: opened.run_id,
        calls: vec![echo("a")],
        request_tools: Vec::new(),
        ..v1::AppendCallsRequest::default()
    };
    assert_eq!(refusal(shop.runs.clone().append_calls(append.clone()).await), denied("RUN_OF_ANOTHER_CALLER"));
    ops.runs.clone().append_calls(append).await.expect("it opened it");
}

#[tokio::test]
async fn a_token_for_one_answer_answers_that_call_and_nothing_else() {
    let yard = guarded().await;
    let shop = yard.client("shop");
    let gives = call("gives", "remembers", json!({ "state": { "cart": 1 }, "after_ms": 0 }));
    let opened = create(&shop, vec![question("one"), question("two"), gives], "").await.expect("accepted");
    let other = create(&shop, vec![question("one")], "").await.expect("accepted");
    let ask = |call: &str, ms: i32| v1::CreateAnswerTokenRequest {
        run_id: opened.run_id.clone(),
        call_id: call.to_owned(),
        lifetime: Some(prost_types::Duration { seconds: i64::from(ms / 1000), nanos: ms % 1000 * 1_000_000 }),
    };
    let token = async |request| -> Result<String, Status> {
        Ok(shop.runs.clone().create_answer_token(request).await?.into_inner().token)
    };
    let good = token(ask("one", 60_000)).await.expect("it may answer");
    assert_eq!(refusal(token(ask("three", 60_000)).await).1, "CALL_NOT_FOUND");
    assert_eq!(refusal(yard.client("rival").runs.clone().create_answer_token(ask("one", 1)).await).1, "RUN_NOT_FOUND");

    let browser = yard.stranger.with_key(&good);
    let there = |id: &str| Run { client: browser.clone(), id: id.to_owned() };
    let answer = |call: &str| vec![harness::client_answer(call, "blue")];
    assert_eq!(refusal(there(&opened.run_id).submit(answer("two")).await), denied("TOKEN_FOR_ANOTHER_CALL"));
    assert_eq!(refusal(there(&other.run_id).submit(answer("one")).await), denied("TOKEN_FOR_ANOTHER_CALL"));
    let get = v1::GetRunRequest { run_id: opened.run_id.clone() };
    assert_eq!(refusal(browser.runs.clone().get_run(get).await), denied("ROLE_MISSING"));
    assert_eq!(refusal(create(&browser, vec![echo("a")], "").await), denied("ROLE_MISSING"));
    assert_eq!(refusal(list(&browser).await), denied("ROLE_MISSING"));
    assert_eq!(refusal(browser.runs.clone().create_answer_token(ask("one", 1)).await), denied("TOKEN_FOR_ONE_ANSWER"));

    let soon_over = token(ask("one", 1)).await.expect("it may answer");
    tokio::time::sleep(Duration::from_millis(5)).await;
    let late = Run { client: yard.stranger.with_key(&soon_over), id: opened.run_id.clone() };
    assert_eq!(refusal(late.submit(answer("one")).await), unknown("TOKEN_REFUSED"));
    let mut forged = good.clone();
    forged.replace_range(10..11, if &good[10..11] == "A" { "B" } else { "A" });
    let forged = Run { client: yard.stranger.with_key(&forged), id: opened.run_id.clone() };
    assert_eq!(refusal(forged.submit(answer("one")).await), unknown("TOKEN_REFUSED"));

    let own = Run { client: shop.clone(), id: opened.run_id.clone() };
    let ended = |event: &Event| matches!(event, Event::CallEnded(ended) if ended.call_id == "gives");
    own.watch(FloorPolicy::Interleaved).await.until(ended).await;
    assert_eq!(own.get().await.extra_state, r#"{"cart":1}"#);
    // All required answers would name the other calls that wait.
    let request =
        v1::SubmitToolOutputsRequest { run_id: opened.run_id.clone(), outputs: answer("one"), all_required: true };
    let shown = browser.runs.clone().submit_tool_outputs(request).await.expect("it is for this");
    let shown = shown.into_inner().run.expect("the response has the run");
    let calls: Vec<&str> = shown.calls.iter().map(|call| call.call_id.as_str()).collect();
    assert_eq!((calls, shown.extra_state.as_str()), (vec!["one"], ""), "nothing else of the run is shown");
    assert_eq!(shown.calls[0].state(), CallState::Completed);
}

#[tokio::test]
async fn a_certificate_names_its_caller() {
    let authority = Authority::new();
    let callers = Callers::new(
        r#"
        [[callers]]
        name = "by-uri"
        tenant = "acme"
        roles = ["read"]
        certificates = ["URI:spiffe://acme.example/shop"]

        [[callers]]
        name = "by-name"
        tenant = "acme"
        roles = ["submit", "read"]
        tools = [{ names = ["*"] }]
        certificates = ["CN=cron"]
        "#,
    );
    let server = authority.server("door");
    let fixture = Fixture::new(FIXTURE)
        .with("TOOLYARD_TLS_CERT", server.certificate.display())
        .with("TOOLYARD_TLS_KEY", server.key.display())
        .with("TOOLYARD_TLS_CLIENT_CA", authority.file().display())
        .with("TOOLYARD_AUTH", callers.file().display());
    let broker = local::Broker::start(local::BrokerOptions::default(), |_| {}).await.expect("a broker starts");
    let coordinator = fixture.coordinator(&broker.url()).await;
    let with = async |name: &str, uri: Option<&str>| {
        let tls = authority.trusted(Some(&authority.client(name, uri)));
        let endpoint = Channel::from_shared(format!("https://{}", coordinator.address())).expect("a URL");
        Client::through(endpoint.tls_config(tls).expect("sound files").connect().await.expect("it is let in"))
    };
    let shop = with("anything", Some("spiffe://acme.example/shop")).await;
    assert_eq!(refusal(create(&shop, vec![question("a")], "").await), denied("ROLE_MISSING"));
    let cron = with("cron", None).await;
    assert_eq!(create(&cron, vec![question("a")], "").await.expect("it may").caller, "by-name");
    // A common name beside alternative names is whatever its owner wanted.
    for name in ["stranger", "cron"] {
        let stranger = with(name, Some("spiffe://acme.example/other")).await;
        assert_eq!(refusal(list(&stranger).await), unknown("CERTIFICATE_UNKNOWN"));
    }
}

#[tokio::test]
async fn the_audit_of_an_erasure_names_what_was_erased() {
    let log = tempfile::NamedTempFile::new().expect("a temporary file");
    let yard = guarded_with(Fixture::new(FIXTURE).with("TOOLYARD_LOG", "info").logging_to(log.path())).await;
    let ops = yard.client("ops");
    let run = create(&ops, vec![echo("a")], "acme").await.expect("an admin may").run_id;
    for (tenant, run_id) in [("acme", ""), ("", run.as_str())] {
        let of = (tenant.to_owned(), run_id.to_owned());
        let request = v1::EraseRunsRequest { tenant: of.0, run_id: of.1, dry_run: true, ..Default::default() };
        ops.runs.clone().erase_runs(request).await.expect("an admin may");
    }
    let text = std::fs::read_to_string(log.path()).expect("the log is there");
    let lines: Vec<&str> = text.lines().filter(|line| line.contains(r#"command="EraseRuns""#)).collect();
    let [of_tenant, of_run] = lines[..] else { panic!("a line for each request: {lines:?}") };
    assert!(of_tenant.contains(r#"erased.tenant="acme""#), "{of_tenant}");
    assert!(of_run.contains(&run), "{of_run}");
}
