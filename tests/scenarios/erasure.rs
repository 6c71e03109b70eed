//! Runs with `store: false`: after they are erased, neither their arguments, output and results nor their ids remain
//! anywhere, even if processes were killed in between.

use std::time::{Duration, Instant};

use async_nats::jetstream;
use futures::TryStreamExt as _;
use harness::{
    Callers, Client, Fixture, Guarded, Http, Keys, PATIENCE, Run, Shards, Yard, call, client_answer, reason,
};
use hyper::Method;
use prost::Message as _;
use proto::v1::{self, FloorPolicy, RunStatus};
use proto::wire::v1 as wire;
use serde_json::json;

use crate::{FIXTURE, check};

const SECRET: &str = "the-owl-flies-at-dusk";
/// How long a run can be read after its end.
const GRACE_S: u64 = 2;

/// All that is stored: at the broker, and in the store of the index.
struct Stored {
    broker: jetstream::Context,
    store: Option<redis::aio::MultiplexedConnection>,
}

impl Stored {
    async fn of(broker: async_nats::Client, store: Option<&local::Store>) -> Self {
        let store = match store {
            Some(store) => {
                let client = redis::Client::open(store.url()).expect("an address");
                Some(client.get_multiplexed_async_connection().await.expect("the store answers"))
            }
            None => None,
        };
        Self { broker: jetstream::new(broker), store }
    }

    /// Finds the secret, or the run's id in any of its forms.
    async fn traces_of(&mut self, run: &str) -> Vec<String> {
        self.traces(run, &[SECRET.as_bytes()]).await
    }

    /// Finds one of the texts, or the run's id in any of its forms.
    async fn traces(&mut self, run: &str, texts: &[&[u8]]) -> Vec<String> {
        let uuid = run.rsplit('_').next().expect("an id has parts");
        let bytes = uuid::Uuid::parse_str(uuid).expect("a uuid").into_bytes();
        let needles: Vec<&[u8]> = texts.iter().copied().chain([uuid.as_bytes(), &bytes]).collect();
        let is_there =
            |text: &[u8]| needles.iter().any(|needle| text.windows(needle.len()).any(|window| window == *needle));
        let mut found = Vec::new();
        let streams: Vec<String> = self.broker.stream_names().try_collect().await.expect("the broker answers");
        assert!(streams.len() > 4, "{streams:?}");
        for name in streams {
            let stream = self.broker.get_stream(&name).await.expect("it is there");
            let state = stream.cached_info().state.clone();
            for sequence in state.first_sequence..=state.last_sequence {
                let Ok(message) = stream.get_raw_message(sequence).await else { continue };
                let headers = format!("{:?}", message.headers);
                if [message.subject.as_bytes(), &message.payload, headers.as_bytes()].into_iter().any(is_there) {
                    found.push(format!("{name} {sequence} {}", message.subject));
                }
            }
        }
        let Some(store) = &mut self.store else { return found };
        let keys: Vec<String> = redis::cmd("KEYS").arg("*").query_async(store).await.expect("the store answers");
        for key in keys {
            let kind: String = redis::cmd("TYPE").arg(&key).query_async(store).await.expect("the store answers");
            let read = match kind.as_str() {
                "hash" => redis::cmd("HGETALL").arg(&key).to_owned(),
                "zset" => redis::cmd("ZRANGE").arg(&key).arg(0).arg(-1).to_owned(),
                "set" => redis::cmd("SMEMBERS").arg(&key).to_owned(),
                _ => redis::cmd("MGET").arg(&key).to_owned(),
            };
            let held: Vec<Vec<u8>> = read.query_async(store).await.expect("the store answers");
            if is_there(key.as_bytes()) || held.iter().any(|text| is_there(text)) {
                found.push(format!("store {key}"));
            }
        }
        found
    }

    async fn until_there_is_no_trace_of_run(&mut self, run: &str) {
        self.until_there_is_no_trace(run, &[]).await;
    }

    async fn until_there_is_no_trace_of(&mut self, run: &str) {
        self.until_there_is_no_trace(run, &[SECRET.as_bytes()]).await;
    }

    async fn until_there_is_no_trace(&mut self, run: &str, texts: &[&[u8]]) {
        let give_up = Instant::now() + PATIENCE;
        loop {
            let traces = self.traces(run, texts).await;
            if traces.is_empty() {
                return;
            }
            assert!(Instant::now() < give_up, "it is never erased: {traces:#?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

struct Scene {
    yard: Yard,
    store: local::Store,
    stored: Stored,
    _worker: harness::Worker,
}

/// Coordinators that share an index, and erase soon.
async fn scene() -> Scene {
    let store = local::Store::start(|_| {}).await.expect("a store starts");
    let fixture = Fixture::new(FIXTURE).with_redis(&store.url()).with("TOOLYARD_ERASE_AFTER", GRACE_S);
    let yard = Yard::start_with(fixture).await;
    let worker = yard.worker().await;
    let broker = async_nats::connect(yard.broker.url()).await.expect("the broker listens");
    let stored = Stored::of(broker, Some(&store)).await;
    Scene { yard, store, stored, _worker: worker }
}

/// A run that receives the secret in every way, streams it, returns it and asks about it.
fn request() -> v1::CreateRunRequest {
    let count = json!({ "label": SECRET, "pieces": 20, "every_ms": 5 });
    let mut echo = call("echo", "echo", json!({ "text": SECRET }));
    echo.metadata.insert("whom".to_owned(), SECRET.to_owned());
    let calls = vec![
        call("count", "count", count),
        echo,
        call("ask", "ask_user", json!({ "question": SECRET })),
        call("wrong", "echo", json!({ "txt": SECRET })),
        // Too large for the log.
        call("large", "makes", json!({ "bytes": 600_000 })),
    ];
    let request_id = format!("about {SECRET}");
    v1::CreateRunRequest { calls, request_id, store: Some(false), ..v1::CreateRunRequest::default() }
}

async fn create(client: &Client, request: v1::CreateRunRequest) -> Run {
    let run = client.runs.clone().create_run(request).await.expect("accepted").into_inner().run.expect("a run");
    Run { client: client.clone(), id: run.run_id }
}

/// Answers its question, and reads it to its end.
async fn to_end(run: &Run) {
    run.submit(vec![client_answer("ask", SECRET)]).await.expect("it waits");
    let events = run.watch(FloorPolicy::Arrival).await.to_end().await;
    check::whole(&events, true);
    assert!(check::said(&events)["count"].contains(SECRET));
}

async fn is_not_found(run: &Run) {
    let request = v1::GetRunRequest { run_id: run.id.clone() };
    let refused = run.client.runs.clone().get_run(request).await.expect_err("it is erased");
    assert_eq!(reason(&refused), "RUN_NOT_FOUND");
    let mut refused = run.watch_after(FloorPolicy::Arrival, Some(3)).await;
    if let Ok(stream) = &mut refused {
        let broken = stream.next().await.expect_err("it is erased");
        assert_eq!(reason(&broken), "RUN_NOT_FOUND");
    } else {
        assert_eq!(refused.err().map(|refused| reason(&refused)).as_deref(), Some("RUN_NOT_FOUND"));
    }
}

#[tokio::test]
async fn nothing_is_left_of_a_run_that_is_not_to_be_stored_and_all_of_one_beside_it() {
    let Scene { yard, mut stored, store: _store, _worker } = scene().await;
    let (client, http) = (&yard.client, yard.http());
    let kept =
        create(client, v1::CreateRunRequest { calls: vec![crate::count("c", 3, 1)], ..Default::default() }).await;
    let said = kept.watch(FloorPolicy::Arrival).await.to_end().await;

    let run = create(client, request()).await;
    assert_eq!(create(client, request()).await.id, run.id, "a request that is sent again gives the same run");
    to_end(&run).await;
    let now = run.get().await;
    let ended =
        now.calls.iter().filter_map(|call| call.end_time).map(|time| time.seconds).max().expect("its calls ended");
    let due = now.erase_time.expect("it says when it is erased").seconds;
    // Or when no copy of its opening would count any more.
    let longest = i64::try_from(run::STORED_WITHIN.as_secs()).expect("it is small") + 3;
    assert!((ended + i64::try_from(GRACE_S).expect("it is small")..=ended + longest).contains(&due), "{ended} {due}");
    // That its response was deleted is noted somewhere, too.
    let response = format!("/responses/{}", run.id.replacen("run_", "resp_", 1));
    assert_eq!(http.ask(Method::DELETE, &response, &[], "").await.status, 200);
    let traces = stored.traces_of(&run.id).await;
    for place in ["ty-log", "ty-objects", "KV_ty-requests", "store ty:run:", "store ty:calls"] {
        assert!(traces.iter().any(|trace| trace.starts_with(place)), "{place}: {traces:#?}");
    }

    stored.until_there_is_no_trace_of(&run.id).await;
    is_not_found(&run).await;
    assert_eq!(http.get(&response).await.status, 404);
    let listed = client.index.clone().list_runs(v1::ListRunsRequest::default()).await.expect("the index answers");
    let listed: Vec<String> = listed.into_inner().runs.into_iter().map(|run| run.run_id).collect();
    assert_eq!(listed, [kept.id.as_str()]);
    assert_eq!(kept.watch(FloorPolicy::Arrival).await.to_end().await, said);
    let again = create(client, request()).await;
    assert_ne!(again.id, run.id, "the same request makes a new run, for nobody knows of the old one");
    to_end(&again).await;
    stored.until_there_is_no_trace_of(&again.id).await;
}

#[tokio::test]
async fn a_conversation_is_erased_with_its_run_whether_it_is_in_the_log_or_beside_it() {
    let Scene { yard, mut stored, store: _store, _worker } = scene().await;
    for (large, place) in [(1, "ty-log"), (200_000, "ty-objects")] {
        let text = format!("{SECRET} {}", "x".repeat(large));
        let said = v1::ConversationMessage { role: v1::ConversationRole::User.into(), text, ..Default::default() };
        let calls = vec![call("c", "converses", json!({})), call("slow", "sleep", json!({ "ms": 1500, "text": "hi" }))];
        let conversation = vec![said];
        let new = v1::CreateRunRequest { calls, conversation, store: Some(false), ..v1::CreateRunRequest::default() };
        let run = create(&yard.client, new).await;
        let events = run.watch(FloorPolicy::Interleaved).await.to_end().await;
        assert_eq!(check::outcomes(&events)["c"].state(), v1::CallState::Completed);
        let traces = stored.traces_of(&run.id).await;
        assert!(traces.iter().any(|trace| trace.starts_with(place)), "{place}: {traces:#?}");
        stored.until_there_is_no_trace_of(&run.id).await;
    }
}

#[tokio::test]
async fn the_next_owner_erases_what_one_left_that_died_right_after_the_end_or_in_the_middle() {
    let Scene { mut yard, mut stored, store, _worker } = scene().await;
    let run = create(&yard.client, request()).await;
    to_end(&run).await;
    yard.coordinator.kill().await;
    yard.coordinator = yard.fixture.coordinator(&yard.broker.url()).await;
    // As soon as the log has nothing of it any more, the next one dies, too.
    let shards = Shards::at(&yard.broker.url()).await;
    let give_up = Instant::now() + PATIENCE;
    while shards.entries(&format!("ty.run.*.{}.>", run.id)).await > 0 {
        assert!(Instant::now() < give_up, "the next owner erases nothing");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    yard.coordinator.kill().await;
    yard.coordinator = yard.fixture.coordinator(&yard.broker.url()).await;
    stored.until_there_is_no_trace_of(&run.id).await;
    let client = Client::connect(yard.coordinator.address()).await;
    is_not_found(&run.through(&client)).await;
    drop(store);
}

#[tokio::test]
async fn a_store_of_the_index_that_is_away_hinders_nothing_and_forgets_when_it_is_back() {
    let Scene { yard, mut stored, store, _worker } = scene().await;
    let run = create(&yard.client, request()).await;
    to_end(&run).await;
    store.pause();
    let shards = Shards::at(&yard.broker.url()).await;
    let give_up = Instant::now() + PATIENCE;
    while shards.entries(&format!("ty.run.*.{}.>", run.id)).await > 0 {
        assert!(Instant::now() < give_up, "the log waits for the index");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    is_not_found(&run).await;
    store.resume();
    stored.until_there_is_no_trace_of(&run.id).await;
}

#[tokio::test]
async fn what_a_worker_says_of_an_erased_run_does_not_stay_and_of_a_kept_one_does() {
    let Scene { yard, mut stored, store: _store, _worker } = scene().await;
    let kept = create(&yard.client, v1::CreateRunRequest { store: None, request_id: String::new(), ..request() }).await;
    to_end(&kept).await;
    let run = create(&yard.client, v1::CreateRunRequest { calls: vec![crate::count("c", 3, 1)], ..request() }).await;
    run.watch(FloorPolicy::Arrival).await.to_end().await;
    let shards = Shards::at(&yard.broker.url()).await;
    let of = |run: &Run| format!("ty.run.*.{}.>", run.id);
    let give_up = Instant::now() + PATIENCE;
    while shards.entries(&of(&run)).await > 0 {
        assert!(Instant::now() < give_up, "it is never erased");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    let piece = wire::chunk::Piece::Content(v1::Content::from(v1::content::Body::Text(SECRET.to_owned())));
    let chunks = vec![wire::Chunk { channel: String::new(), piece: Some(piece) }];
    let output = wire::event::Kind::Output(wire::Output { first: 3, chunks });
    let attempt = Some(wire::Attempt { number: 1, nonce: 1 });
    let events = vec![wire::Event { kind: Some(output) }];
    let late = wire::Entry { version: 1, attempt, events, ..wire::Entry::default() }.encode_to_vec();
    let before = shards.entries(&of(&kept)).await;
    // A large part of its result, stored before the entry that refers to it.
    let object = proto::object::of_run(run.id.parse().expect("an id")).replace('>', "main.late.0");
    let sent = stored.broker.publish(object, SECRET.into()).await.expect("it is sent");
    sent.await.expect("it is stored");
    for (to, payload) in [(&kept, late.clone()), (&run, late), (&run, SECRET.as_bytes().to_vec())] {
        let subject = format!("ty.run.{}.{}.0.out.main", &to.id[4..6], to.id);
        let sent = stored.broker.publish(subject, payload.into()).await.expect("it is sent");
        sent.await.expect("it is stored");
    }
    let give_up = Instant::now() + PATIENCE;
    while shards.entries(&of(&run)).await > 0 {
        assert!(Instant::now() < give_up, "what came late stays");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(shards.entries(&of(&kept)).await, before + 1);
    is_not_found(&run).await;
    assert!(!stored.traces_of(&kept.id).await.is_empty());
    let objects = stored.broker.get_stream("ty-objects").await.expect("objects lie at the broker");
    let of_run = proto::object::of_run(run.id.parse().expect("an id"));
    let give_up = Instant::now() + PATIENCE;
    while objects
        .info_with_subjects(&of_run)
        .await
        .expect("it is there")
        .try_next()
        .await
        .expect("it is there")
        .is_some()
    {
        assert!(Instant::now() < give_up, "an object that came late stays");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn coordinators_may_erase_with_the_rights_that_the_configuration_gives_them() {
    let keys = Keys::new(&["main"]);
    let options = local::BrokerOptions { config: Some(keys.accounts()), ..local::BrokerOptions::default() };
    let broker = local::Broker::start(options, |_| {}).await.expect("a broker starts");
    let fixture = Fixture::new(FIXTURE).with("TOOLYARD_ERASE_AFTER", GRACE_S);
    let coordinator = keys.coordinators(&fixture).coordinator(&broker.url()).await;
    let client = Client::connect(coordinator.address()).await;
    let _worker = keys.workers(&fixture, "main").worker(&broker.url(), "main", 4).await;
    client.wait_for_tool("echo").await;
    let run = create(&client, request()).await;
    to_end(&run).await;
    let give_up = Instant::now() + PATIENCE;
    while client.runs.clone().get_run(v1::GetRunRequest { run_id: run.id.clone() }).await.is_ok() {
        assert!(Instant::now() < give_up, "it is never erased");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    is_not_found(&run).await;
    let log = std::fs::read_to_string(broker.data_dir().join("server.log")).expect("the broker keeps a log");
    let refused: Vec<&str> = log.lines().filter(|line| line.contains("Violation")).collect();
    assert!(refused.is_empty(), "{refused:#?}");
}

#[tokio::test]
async fn a_response_that_is_not_stored_says_so_and_is_continued_by_its_like_only() {
    let Scene { yard, mut stored, store: _store, _worker } = scene().await;
    let http: Http = yard.http();
    let question = json!({ "type": "function_call", "call_id": "ask", "name": "ask_user",
        "arguments": json!({ "question": SECRET }).to_string() });
    let asked = http.post("/responses", &json!({ "input": [question], "store": false })).await.json();
    assert_eq!((&asked["status"], &asked["store"]), (&json!("completed"), &json!(false)), "{asked}");
    let output = json!({ "type": "function_call_output", "call_id": "ask", "output": SECRET });
    let answer = |store| json!({ "previous_response_id": asked["id"], "input": [output], "store": store });
    let refused = http.post("/responses", &answer(true)).await;
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("/store")));
    let answered = http.post("/responses", &answer(false)).await.json();
    assert_eq!((&answered["status"], &answered["store"]), (&json!("completed"), &json!(false)), "{answered}");
    let id = asked["id"].as_str().expect("an id");
    stored.until_there_is_no_trace_of(&id.replacen("resp_", "run_", 1)).await;
    assert_eq!(http.get(&format!("/responses/{id}_1")).await.status, 404);

    // The same over the endpoint that takes turns as they are.
    let turn = json!([{ "type": "function_call", "call_id": "a", "name": "echo", "arguments": json!({ "text": SECRET }).to_string() }]);
    let answer = http.post("/v1/tool_calls:batch?store=false", &turn).await.json();
    let run = answer["run_id"].as_str().expect("the run").to_owned();
    stored.until_there_is_no_trace_of(&run).await;
    assert_eq!(http.post("/v1/tool_calls:batch?store=no", &turn).await.problem(), (400, "MALFORMED".to_owned()));
}

/// Requests the erasure of a tenant's runs, or counts them: part by part, to the end of the log. Gives matched and
/// requested.
async fn erase(client: &Client, tenant: &str, dry_run: bool) -> (u64, u64) {
    let mut request = v1::EraseRunsRequest { tenant: tenant.to_owned(), dry_run, ..v1::EraseRunsRequest::default() };
    let (mut matched, mut requested) = (0, 0);
    loop {
        let part = client.runs.clone().erase_runs(request.clone()).await.expect("it may erase").into_inner();
        (matched, requested) = (matched + part.matched, requested + part.requested);
        if part.next_page_token.is_empty() {
            return (matched, requested);
        }
        request.page_token = part.next_page_token;
    }
}

async fn until_none_is_left(client: &Client, tenant: &str) {
    let gone = async {
        while erase(client, tenant, true).await.0 > 0 {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.expect("its runs are erased");
}

#[tokio::test]
async fn an_operator_erases_all_runs_of_a_tenant_though_the_owner_dies_in_the_middle_and_none_of_another() {
    let Scene { mut yard, mut stored, store, _worker } = scene().await;
    let of = |tenant: &str, calls| v1::CreateRunRequest { calls, tenant: tenant.to_owned(), ..Default::default() };
    let echo = || vec![call("echo", "echo", json!({ "text": SECRET }))];
    let asks = || vec![call("ask", "ask_user", json!({ "question": SECRET }))];
    let sleeps = || vec![call("sleep", "sleep", json!({ "ms": 3_600_000, "text": SECRET }))];
    let several =
        || [call("large", "makes", json!({ "bytes": 600_000 }))].into_iter().chain(echo()).collect::<Vec<_>>();
    let mut runs = Vec::new();
    for tenant in ["acme", "rival"] {
        for calls in [echo(), several()] {
            let run = create(&yard.client, of(tenant, calls)).await;
            run.watch(FloorPolicy::Arrival).await.to_end().await;
            runs.push((tenant, run));
        }
        for calls in [asks(), sleeps()] {
            runs.push((tenant, create(&yard.client, of(tenant, calls)).await));
        }
    }
    assert_eq!(erase(&yard.client, "acme", true).await, (4, 0), "a dry run only counts");
    assert_eq!(erase(&yard.client, "acme", false).await, (4, 4));
    assert_eq!(erase(&yard.client, "acme", false).await.1, 0, "what is requested is not requested again");
    yard.coordinator.kill().await;
    yard.coordinator = yard.fixture.coordinator(&yard.broker.url()).await;
    let client = Client::connect(yard.coordinator.address()).await;
    until_none_is_left(&client, "acme").await;
    for (tenant, run) in &runs {
        let run = run.through(&client);
        if *tenant == "acme" {
            stored.until_there_is_no_trace_of_run(&run.id).await;
            is_not_found(&run).await;
        } else {
            assert!(matches!(
                run.get().await.status(),
                RunStatus::Completed | RunStatus::RequiresAction | RunStatus::InProgress
            ));
        }
    }
    let request = v1::ListRunsRequest { tenant: "acme".to_owned(), ..v1::ListRunsRequest::default() };
    let listed = client.index.clone().list_runs(request).await.expect("the index answers").into_inner();
    assert_eq!(listed.runs, []);
    assert_eq!(erase(&client, "rival", true).await, (4, 0));
    drop(store);
}

#[tokio::test]
async fn only_an_admin_erases_runs_and_their_bytes_are_the_tenants_again() {
    const CALLERS: &str = "[[callers]]\nname = \"ops\"\nroles = [\"admin\"]\nkeys = [\"{ops}\"]\n\
        [[callers]]\nname = \"acme\"\ntenant = \"acme\"\nroles = [\"submit\", \"read\", \"answer\", \"approve\"]\n\
        tools = [{ names = [\"*\"] }]\nkeys = [\"{acme}\"]\n[quotas.acme]\nlog_bytes = 1000000\n";
    let yard = Guarded::start(Fixture::new(FIXTURE), Callers::new(CALLERS)).await;
    let (acme, ops) = (yard.client("acme"), yard.client("ops"));
    acme.wait_for_tool("echo").await;
    let request = || v1::CreateRunRequest {
        calls: vec![call("echo", "echo", json!({ "text": "x".repeat(50_000) }))],
        ..v1::CreateRunRequest::default()
    };
    let mut runs = Vec::new();
    let refused = loop {
        match acme.runs.clone().create_run(request()).await {
            Ok(created) => {
                let run = Run { client: acme.clone(), id: created.into_inner().run.expect("a run").run_id };
                run.watch(FloorPolicy::Arrival).await.to_end().await;
                runs.push(run);
            }
            Err(refused) => break refused,
        }
        assert!(runs.len() < 200, "the tenant's quota is never used up");
    };
    assert_eq!(reason(&refused), "QUOTA_EXCEEDED");

    let by = |tenant: &str, run: &str| v1::EraseRunsRequest {
        tenant: tenant.to_owned(),
        run_id: run.to_owned(),
        ..v1::EraseRunsRequest::default()
    };
    let asked = |client: &Client, request: v1::EraseRunsRequest| {
        let mut runs = client.runs.clone();
        async move { runs.erase_runs(request).await.map(tonic::Response::into_inner) }
    };
    let denied = asked(&acme, by("acme", "")).await.expect_err("it is no admin");
    assert_eq!(reason(&denied), "ROLE_MISSING");
    for wrong in [
        by("", ""),
        by("not a tenant", ""),
        by("", "run_1"),
        v1::EraseRunsRequest { page_token: "9-3".to_owned(), ..by("acme", "") },
    ] {
        let refused = asked(&ops, wrong.clone()).await.expect_err("it selects nothing");
        assert_eq!(reason(&refused), "MALFORMED", "{wrong:?}");
    }
    assert_eq!(asked(&ops, by("rival", &runs[0].id)).await.expect("it is another tenant's").matched, 0);
    let young = v1::EraseRunsRequest { created_before: Some(prost_types::Timestamp::default()), ..by("acme", "") };
    assert_eq!(asked(&ops, young).await.expect("it looks").matched, 0);
    let one = asked(&ops, by("", &runs[0].id)).await.expect("it may");
    assert_eq!((one.matched, one.requested), (1, 1));

    let count = u64::try_from(runs.len()).expect("they are few");
    let (matched, requested) = erase(&ops, "acme", false).await;
    assert!(matched >= count - 1 && requested == count - 1, "{matched} {requested} of {count}");
    until_none_is_left(&ops, "acme").await;
    // All of the quota is there again: at the least it holds so many runs, each with its text twice.
    let mut again = 0;
    let give_up = Instant::now() + PATIENCE;
    while again < 1_000_000 / 110_000 {
        match acme.runs.clone().create_run(request()).await {
            Ok(_) => again += 1,
            Err(refused) => {
                assert!(Instant::now() < give_up, "{refused}: {again}");
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
    }
}
