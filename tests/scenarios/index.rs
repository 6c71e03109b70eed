//! Finding runs: lists, filters and counts from the index, which is rebuilt from the log whatever becomes of its store.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use harness::{Client, Fixture, PATIENCE, Run, Yard, call, client_answer, reason};
use proto::v1::{self, CallState, FloorPolicy, RunStatus};
use run::{CallIndex, CallSpec, Event, RunId, RunOpened};
use serde_json::json;
use tonic::Status;

use crate::{FIXTURE, check, count, question};

struct Shared {
    yard: Yard,
    store: local::Store,
}

/// A yard whose coordinators share an index in a real store.
async fn shared() -> Shared {
    let store = local::Store::start(|_| {}).await.expect("a store starts");
    let fixture = Fixture::new(FIXTURE).with_redis(&store.url());
    let broker = local::Broker::start(local::BrokerOptions::default(), |_| {}).await.expect("a broker starts");
    let coordinator = fixture.coordinator(&broker.url()).await;
    let client = Client::connect(coordinator.address()).await;
    Shared { yard: Yard { fixture, broker, coordinator, client }, store }
}

impl Shared {
    async fn redis(&self) -> redis::aio::MultiplexedConnection {
        let client = redis::Client::open(self.store.url()).expect("an address");
        client.get_multiplexed_async_connection().await.expect("the store answers")
    }

    async fn flush(&self) {
        let mut redis = self.redis().await;
        redis::cmd("FLUSHALL").query_async::<()>(&mut redis).await.expect("it is emptied");
    }
}

async fn list_runs(client: &Client, request: v1::ListRunsRequest) -> Result<v1::ListRunsResponse, Status> {
    Ok(client.index.clone().list_runs(request).await?.into_inner())
}

async fn list_calls(client: &Client, request: v1::ListCallsRequest) -> Result<v1::ListCallsResponse, Status> {
    Ok(client.index.clone().list_calls(request).await?.into_inner())
}

async fn counts(client: &Client) -> Result<v1::CountRunsResponse, Status> {
    Ok(client.index.clone().count_runs(v1::CountRunsRequest::default()).await?.into_inner())
}

/// Repeats the request until the answer is the expected one.
async fn until<T>(ask: impl AsyncFn() -> Result<T, Status>, wanted: impl Fn(&T) -> bool) -> T
where
    T: std::fmt::Debug,
{
    let give_up = Instant::now() + PATIENCE;
    loop {
        let answer = ask().await;
        if let Ok(answer) = answer {
            if wanted(&answer) {
                return answer;
            }
            assert!(Instant::now() < give_up, "the index never gets there: {answer:?}");
        }
        assert!(Instant::now() < give_up, "the index does not answer");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn until_complete(client: &Client) {
    let is_complete = |counts: &v1::CountRunsResponse| counts.coverage.is_some_and(|known| known.complete);
    until(async || counts(client).await, is_complete).await;
}

fn ids(page: &v1::ListRunsResponse) -> Vec<String> {
    page.runs.iter().map(|run| run.run_id.clone()).collect()
}

fn of_status(status: RunStatus) -> v1::ListRunsRequest {
    v1::ListRunsRequest { status: status.into(), ..v1::ListRunsRequest::default() }
}

async fn until_listed(client: &Client, status: RunStatus, count: usize) -> v1::ListRunsResponse {
    until(async || list_runs(client, of_status(status)).await, |page| page.runs.len() == count).await
}

/// The differences between index and log, and whether the index was complete.
async fn verify(client: &Client) -> (Vec<String>, v1::VerifyIndexEnd) {
    let stream = client.index.clone().verify_index(v1::VerifyIndexRequest {}).await;
    let mut stream = stream.expect("it is compared").into_inner();
    let mut differences = Vec::new();
    while let Some(word) = stream.message().await.expect("the stream does not break") {
        differences.extend(word.differences.into_iter().map(|found| format!("{} {}", found.run_id, found.what)));
        if let Some(end) = word.end {
            return (differences, end);
        }
    }
    panic!("a comparison has an end");
}

async fn agrees_with_the_log(client: &Client) {
    let (differences, end) = verify(client).await;
    assert_eq!((differences, end), (vec![], v1::VerifyIndexEnd { differences: 0, complete: true }));
}

async fn ended(run: &Run) {
    check::whole(&run.watch(FloorPolicy::Arrival).await.to_end().await, true);
}

/// Some runs of every kind: 4 completed, one of them with a failed call; 1 that asks; 1 that runs.
async fn some_runs(yard: &Yard) -> Run {
    for number in 0..3 {
        ended(&yard.client.create(vec![call("e", "echo", json!({ "text": format!("{number}") }))]).await).await;
    }
    ended(&yard.client.create(vec![call("e", "echo", json!({ "text": "x" })), call("n", "nonsense", json!({}))]).await)
        .await;
    let request = v1::CreateRunRequest {
        calls: vec![count("long", 600, 100)],
        tenant: "acme".to_owned(),
        ..v1::CreateRunRequest::default()
    };
    yard.client.runs.clone().create_run(request).await.expect("the run is accepted");
    yard.client.create(vec![question("ask"), call("e", "echo", json!({ "text": "y" }))]).await
}

/// Their entries in the index.
async fn knows_some_runs(client: &Client) {
    until_listed(client, RunStatus::Completed, 4).await;
    let asks = until_listed(client, RunStatus::RequiresAction, 1).await;
    assert_eq!(asks.runs[0].calls.len(), 2);
    let counted =
        until(async || counts(client).await, |counts| counts.runs.iter().map(|of| of.count).sum::<u64>() == 6);
    let counted = counted.await;
    assert_eq!(counted.waiting_for_client, 1);
    let of = |state: CallState| counted.calls.iter().find(|of| of.state() == state).map_or(0, |of| of.count);
    assert_eq!((of(CallState::Completed), of(CallState::Failed), of(CallState::WaitingForClient)), (5, 1, 1));
    let echoed = counted.tools.iter().find(|of| of.tool == "echo" && of.state() == CallState::Completed);
    assert_eq!(echoed.map(|of| of.count), Some(5));

    let waiting = v1::ListCallsRequest { state: CallState::WaitingForClient.into(), ..v1::ListCallsRequest::default() };
    let waiting = list_calls(client, waiting).await.expect("the index answers");
    assert_eq!(waiting.calls.len(), 1);
    let of_tool = v1::ListCallsRequest {
        tool: "echo".to_owned(),
        state: CallState::Completed.into(),
        ..v1::ListCallsRequest::default()
    };
    assert_eq!(list_calls(client, of_tool).await.expect("the index answers").calls.len(), 5);
    for (tenant, count) in [("acme", 1), ("nobody", 0)] {
        let request = v1::ListRunsRequest { tenant: tenant.to_owned(), ..v1::ListRunsRequest::default() };
        assert_eq!(list_runs(client, request).await.expect("the index answers").runs.len(), count);
    }
    let later = v1::ListRunsRequest {
        created_from: Some(prost_types::Timestamp { seconds: 4_000_000_000, nanos: 0 }),
        ..v1::ListRunsRequest::default()
    };
    assert!(list_runs(client, later).await.expect("the index answers").runs.is_empty());
}

#[tokio::test]
async fn runs_and_calls_are_found_in_memory() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let asks = some_runs(&yard).await;
    knows_some_runs(&yard.client).await;
    until_complete(&yard.client).await;
    agrees_with_the_log(&yard.client).await;
    asks.submit(vec![client_answer("ask", "left")]).await.expect("the call waits");
    until_listed(&yard.client, RunStatus::Completed, 5).await;
    yard.client.index.clone().rebuild_index(v1::RebuildIndexRequest {}).await.expect("it is emptied");
    until_listed(&yard.client, RunStatus::Completed, 5).await;
    until_complete(&yard.client).await;
    agrees_with_the_log(&yard.client).await;
}

#[tokio::test]
async fn an_index_in_memory_is_rebuilt_when_its_coordinator_is_started_again() {
    let mut yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    some_runs(&yard).await;
    knows_some_runs(&yard.client).await;
    yard.coordinator.kill().await;
    let address = yard.coordinator.address();
    yard.coordinator = yard.fixture.coordinator_at(&yard.broker.url(), address).await;
    let client = Client::connect(address).await;
    knows_some_runs(&client).await;
    until_complete(&client).await;
    agrees_with_the_log(&client).await;
}

#[tokio::test]
async fn runs_and_calls_are_found_in_redis_and_again_after_it_was_emptied() {
    let shared = shared().await;
    let client = &shared.yard.client;
    let _worker = shared.yard.worker().await;
    some_runs(&shared.yard).await;
    knows_some_runs(client).await;
    until_complete(client).await;
    agrees_with_the_log(client).await;
    shared.flush().await;
    until_listed(client, RunStatus::Completed, 4).await;
    knows_some_runs(client).await;
    until_complete(client).await;
    agrees_with_the_log(client).await;
}

#[tokio::test]
async fn pages_are_stable_while_new_runs_come() {
    for shared in [None, Some(shared().await)] {
        let own = if shared.is_none() { Some(Yard::start(FIXTURE).await) } else { None };
        let yard = own.as_ref().or(shared.as_ref().map(|shared| &shared.yard)).expect("there is one of them");
        let _worker = yard.worker().await;
        let client = &yard.client;
        let mut created = Vec::new();
        for number in 0..10 {
            created.push(client.create(vec![call("e", "echo", json!({ "text": format!("{number}") }))]).await.id);
        }
        created.reverse();
        let all = until_listed(client, RunStatus::Completed, 10).await;
        assert_eq!(ids(&all), created, "the newest first");
        let page = v1::ListRunsRequest { page_size: 4, ..v1::ListRunsRequest::default() };
        let first = list_runs(client, page.clone()).await.expect("the index answers");
        assert_eq!(ids(&first), created[..4]);
        ended(&client.create(vec![call("e", "echo", json!({ "text": "new" }))]).await).await;
        until_listed(client, RunStatus::Completed, 11).await;
        let mut next = v1::ListRunsRequest { page_token: first.next_page_token.clone(), ..page.clone() };
        let mut rest = Vec::new();
        while !next.page_token.is_empty() {
            let page = list_runs(client, next.clone()).await.expect("the index answers");
            rest.extend(ids(&page));
            next.page_token = page.next_page_token;
        }
        assert_eq!(rest, created[4..]);
        let of_another = v1::ListRunsRequest { page_token: first.next_page_token, ..of_status(RunStatus::Failed) };
        let refused = list_runs(client, of_another).await.expect_err("the token is of another list");
        assert_eq!(reason(&refused), "MALFORMED");
    }
}

#[tokio::test]
async fn a_dead_store_stops_nothing_and_its_index_heals() {
    let mut shared = shared().await;
    let _worker = shared.yard.worker().await;
    let client = shared.yard.client.clone();
    let asks = client.create(vec![question("ask")]).await;
    until_listed(&client, RunStatus::RequiresAction, 1).await;
    let mut stream = client.execute(vec![count("a", 20, 50)]).await;
    stream.until(|event| matches!(event, v1::run_event::Event::CallOutput(_))).await;
    shared.store.kill().await;
    check::whole(&stream.to_end().await, true);
    ended(&client.create(vec![call("e", "echo", json!({ "text": "meanwhile" }))]).await).await;
    asks.submit(vec![client_answer("ask", "left")]).await.expect("the call waits");
    let refused = list_runs(&client, v1::ListRunsRequest::default()).await.expect_err("the store is dead");
    assert_eq!(reason(&refused), "INDEX_UNAVAILABLE");

    shared.store.restart().await.expect("the store comes back");
    until_listed(&client, RunStatus::Completed, 3).await;
    until_complete(&client).await;
    agrees_with_the_log(&client).await;
}

#[tokio::test]
async fn coordinators_share_an_index_in_redis() {
    let shared = shared().await;
    let _worker = shared.yard.worker().await;
    let other = shared.yard.fixture.coordinator(&shared.yard.broker.url()).await;
    let other = Client::connect(other.address()).await;
    other.wait_for_tool("echo").await;
    for client in [&shared.yard.client, &other] {
        ended(&client.create(vec![call("e", "echo", json!({ "text": "hello" }))]).await).await;
    }
    for client in [&shared.yard.client, &other] {
        until_listed(client, RunStatus::Completed, 2).await;
        until_complete(client).await;
        agrees_with_the_log(client).await;
    }
}

#[tokio::test]
async fn a_cancellation_tells_whether_the_index_covered_all_runs() {
    let yard = Yard::start(FIXTURE).await;
    let covered = async |client: &Client| -> Result<bool, Status> {
        let request = v1::CancelCallsRequest { tool: "nobody_asks".to_owned(), ..v1::CancelCallsRequest::default() };
        let mut messages = client.index.clone().cancel_calls(request).await?.into_inner();
        let last = messages.message().await?.and_then(|last| last.coverage);
        assert!(messages.message().await?.is_none());
        Ok(last.expect("the last message tells it").complete)
    };
    until(async || covered(&yard.client).await, |is_complete| *is_complete).await;
    // Each coordinator has the runs of its own shards in memory.
    let other = yard.fixture.coordinator(&yard.broker.url()).await;
    let other = Client::connect(other.address()).await;
    for client in [&yard.client, &other] {
        until(async || covered(client).await, |is_complete| !is_complete).await;
    }
}

#[tokio::test]
async fn a_comparison_finds_what_was_changed_by_hand() {
    let shared = shared().await;
    let _worker = shared.yard.worker().await;
    let client = &shared.yard.client;
    some_runs(&shared.yard).await;
    knows_some_runs(client).await;
    until_complete(client).await;
    agrees_with_the_log(client).await;
    let mut redis = shared.redis().await;
    let members: Vec<String> = redis::cmd("ZRANGE")
        .arg("ty:runs:completed")
        .arg(0)
        .arg(-1)
        .query_async(&mut redis)
        .await
        .expect("the set is there");
    let by_hand = [
        vec!["UNLINK".to_owned(), format!("ty:run:{}", members[0])],
        vec!["ZREM".to_owned(), "ty:runs:completed".to_owned(), members[1].clone()],
        vec!["ZADD".to_owned(), "ty:calls:parked".to_owned(), "0".to_owned(), format!("{}0000", members[2])],
    ];
    for words in by_hand {
        let mut change = redis::cmd(&words[0]);
        words[1..].iter().for_each(|word| {
            change.arg(word);
        });
        change.query_async::<()>(&mut redis).await.expect("it is changed");
    }
    let (differences, end) = verify(client).await;
    let runs: HashSet<&str> = differences.iter().filter_map(|found| found.split(' ').next()).collect();
    assert_eq!(runs.len(), 3, "{differences:#?}");
    assert!(end.differences >= 3);

    client.index.clone().rebuild_index(v1::RebuildIndexRequest {}).await.expect("it is emptied");
    knows_some_runs(client).await;
    until_complete(client).await;
    agrees_with_the_log(client).await;
}

#[tokio::test]
async fn a_parked_call_is_listed_until_it_is_put_aside() {
    for shared in [None, Some(shared().await)] {
        let own = if shared.is_none() { Some(Yard::start(FIXTURE).await) } else { None };
        let yard = own.as_ref().or(shared.as_ref().map(|shared| &shared.yard)).expect("there is one of them");
        let _worker = yard.worker().await;
        let client = &yard.client;
        let run = client.create(vec![call("g", "gives", json!({ "when_there": "/nowhere/at/all" }))]).await;
        let parked = || v1::ListCallsRequest { parked: true, ..v1::ListCallsRequest::default() };
        let listed = until(async || list_calls(client, parked()).await, |page| page.calls.len() == 1).await;
        assert_eq!(listed.calls[0].run_id, run.id);
        let request = v1::DropCallRequest { run_id: run.id.clone(), call_id: "g".to_owned() };
        client.runs.clone().drop_call(request).await.expect("it is parked");
        until(async || list_calls(client, parked()).await, |page| page.calls.is_empty()).await;
        until_complete(client).await;
        agrees_with_the_log(client).await;
    }
}

/// Not a promise but a figure: how fast an index is rebuilt from the log.
#[tokio::test]
async fn an_index_is_rebuilt_from_many_entries() {
    let runs: u32 = std::env::var("TOOLYARD_INDEX_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(5_000);
    let shared = shared().await;
    let client = &shared.yard.client;
    let nats = async_nats::connect(shared.yard.broker.url()).await.expect("the broker answers");
    let log = async_nats::jetstream::new(nats.clone());
    for number in 0..runs {
        let shard = run::Shard(u8::try_from(number % 16).expect("less than 16"));
        for (subject, events, job) in finished(RunId::new(shard, uuid::Uuid::now_v7())) {
            let payload = proto::convert::log::encode(&events, job.as_ref());
            nats.publish(subject.to_string(), payload).await.expect("it is sent");
        }
        if number % 1000 == 999 {
            // The broker's own confirmation: it has stored all before it.
            log.get_stream("ty-log").await.expect("the log is there");
        }
    }
    let all = |counts: &v1::CountRunsResponse| {
        counts.coverage.is_some_and(|known| known.complete)
            && counts.runs.iter().any(|of| of.status() == RunStatus::Completed && of.count == u64::from(runs))
    };
    until(async || counts(client).await, all).await;
    shared.flush().await;
    let began = Instant::now();
    until(async || counts(client).await, |counts| !counts.runs.is_empty()).await;
    let noticed = began.elapsed();
    until(async || counts(client).await, all).await;
    let took = began.elapsed() - noticed;
    let rate = f64::from(runs * 2) / took.as_secs_f64();
    eprintln!("{runs} runs, {} entries: noticed after {noticed:?}, rebuilt in {took:?}, {rate:.0} entries/s", runs * 2);
    agrees_with_the_log(client).await;
}

type Stored = (proto::subject::Subject, Vec<Event>, Option<proto::convert::log::Dispatch>);

/// The two entries of a run of one call.
fn finished(id: RunId) -> Vec<Stored> {
    use proto::subject::{Subject, SubjectKind};
    let pool: run::PoolId = "main".parse().expect("a pool");
    let deadline = ::nats::now().after(Duration::from_secs(3600));
    let (name, tool) = ("call_0".parse().expect("an id"), "noop".parse().expect("a name"));
    let policy = run::Policy::of(run::Effects::default());
    let route = run::Route::Pool { pool: pool.clone(), policy, version: None };
    let spec = std::sync::Arc::new(CallSpec::new(name, tool, "{}", route, deadline));
    let (call, number, nonce) = (CallIndex(0), run::AttemptNumber(1), run::Nonce(7));
    let attempt = run::AttemptId { call, number, nonce };
    let opened = Event::RunOpened(RunOpened {
        deadline,
        calls: vec![std::sync::Arc::clone(&spec)],
        open: false,
        fail_fast: false,
        client_only: false,
        tenant: None,
        caller: None,
        roles: run::Roles::default(),
        tools: Vec::new(),
        rules: run::Rules::default(),
        context: run::Fields::default(),
        erasure: None,
        parent: None,
    });
    let dispatched = Event::CallDispatched { call, pool: pool.clone() };
    let outcome = run::AttemptOutcome::Completed(vec![run::Content::Text("done".to_owned())].into());
    let ended = Event::AttemptEnded { attempt, pool: pool.clone(), chunks: 0, outcome };
    vec![
        (Subject { run: id, place: SubjectKind::Job { call, pool: pool.clone() } }, vec![opened, dispatched], None),
        (Subject { run: id, place: SubjectKind::Output { call, pool } }, vec![ended], None),
    ]
}
