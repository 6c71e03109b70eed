//! Quotas of tenants: requests beyond them are refused with a retry time, and other tenants are not affected.

use std::time::Duration;

use harness::{Callers, Client, Fixture, Guarded, Shards, call, reason};
use proto::v1;
use serde_json::json;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::FIXTURE;

fn callers(quotas: &str) -> Callers {
    Callers::new(&text(quotas))
}

/// The file of callers with these quotas.
fn text(quotas: &str) -> String {
    let caller = |name: &str| {
        format!(
            "[[callers]]\nname = \"{name}\"\ntenant = \"{name}\"\nroles = [\"submit\", \"read\"]\n\
             tools = [{{ names = [\"*\"] }}]\nkeys = [\"{{{name}}}\"]\n"
        )
    };
    format!("{}{}{quotas}", caller("acme"), caller("rival"))
}

async fn guarded(quotas: &str) -> Guarded {
    let yard = Guarded::start(Fixture::new(FIXTURE), callers(quotas)).await;
    yard.client("acme").wait_for_tool("sleep").await;
    yard
}

fn sleep(id: &str, ms: u64) -> v1::NewCall {
    call(id, "sleep", json!({ "ms": ms, "text": id }))
}

const LONG: u64 = 3_600_000;

async fn create(client: &Client, calls: Vec<v1::NewCall>) -> Result<String, Status> {
    let request = v1::CreateRunRequest { calls, ..v1::CreateRunRequest::default() };
    Ok(client.runs.clone().create_run(request).await?.into_inner().run.expect("the response has the run").run_id)
}

/// Opens runs of one call until that is refused, at most so many.
async fn opened(client: &Client, at_most: usize) -> Vec<String> {
    let mut runs = Vec::new();
    while runs.len() < at_most
        && let Ok(run) = create(client, vec![sleep("a", LONG)]).await
    {
        runs.push(run);
    }
    runs
}

/// The retry time of a refusal.
fn exceeded(refused: Result<String, Status>) -> Duration {
    let Err(status) = refused else { panic!("it must be refused") };
    assert_eq!((status.code(), reason(&status).as_str()), (Code::ResourceExhausted, "QUOTA_EXCEEDED"), "{status:?}");
    let retry = status.get_details_retry_info().and_then(|info| info.retry_delay);
    retry.expect("it says when to come back")
}

async fn cancel(client: &Client, run_id: String) {
    let request = v1::CancelRunRequest { run_id, reason: String::new() };
    client.runs.clone().cancel_run(request).await.expect("it is its own");
}

async fn until_admitted(client: &Client, calls: Vec<v1::NewCall>) {
    let admitted = async {
        while create(client, calls.clone()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(harness::PATIENCE, admitted).await.expect("there is room again");
}

#[tokio::test]
async fn a_tenant_has_as_many_open_runs_as_it_may_and_others_do_not_notice() {
    let yard = guarded("[quotas.acme]\nopen_runs = 2\n").await;
    let (acme, rival) = (yard.client("acme"), yard.client("rival"));
    let mut runs = opened(&acme, 10).await;
    assert_eq!(runs.len(), 2);
    assert!(exceeded(create(&acme, vec![sleep("a", 1)]).await) > Duration::ZERO);
    assert_eq!(opened(&rival, 5).await.len(), 5, "it has none");
    // Longer than a coordinator takes to count again.
    tokio::time::sleep(Duration::from_secs(2)).await;
    exceeded(create(&acme, vec![sleep("a", 1)]).await);
    cancel(&acme, runs.pop().expect("two")).await;
    until_admitted(&acme, vec![sleep("a", LONG)]).await;
    exceeded(create(&acme, vec![sleep("a", 1)]).await);
}

#[tokio::test]
async fn a_request_that_is_beyond_the_quota_leaves_its_request_id_free() {
    let yard = guarded("[quota]\ncalls_at_once = 1\n").await;
    let acme = yard.client("acme");
    for store in [None, Some(false)] {
        let request = |calls: usize| v1::CreateRunRequest {
            calls: (0..calls).map(|call| sleep(&format!("c{call}"), 1)).collect(),
            request_id: format!("order {store:?}"),
            store,
            ..v1::CreateRunRequest::default()
        };
        let mut runs = acme.runs.clone();
        let refused = runs.create_run(request(2)).await.expect_err("one at once");
        assert_eq!(reason(&refused), "QUOTA_EXCEEDED");
        let smaller = runs.create_run(request(1)).await.expect("a smaller request may have the id").into_inner();
        let run = harness::Run { client: acme.clone(), id: smaller.run.expect("a run").run_id };
        run.watch(v1::FloorPolicy::Arrival).await.to_end().await;
    }
}

#[tokio::test]
async fn a_tenant_has_as_many_calls_at_once_as_it_may() {
    let yard = guarded("[quota]\ncalls_at_once = 3\n").await;
    let acme = yard.client("acme");
    exceeded(create(&acme, ["a", "b", "c", "d"].map(|id| sleep(id, LONG)).to_vec()).await);
    let run = create(&acme, vec![sleep("a", LONG), sleep("b", LONG), sleep("c", 1)]).await.expect("three are fine");
    exceeded(create(&acme, vec![sleep("d", LONG), sleep("e", LONG)]).await);
    // The one that ended gave its place back, the others did not.
    until_admitted(&acme, vec![sleep("d", LONG)]).await;
    exceeded(create(&acme, vec![sleep("e", LONG)]).await);
    cancel(&acme, run).await;
    until_admitted(&acme, vec![sleep("f", LONG), sleep("g", LONG)]).await;
}

#[tokio::test]
async fn calls_of_a_tenant_come_no_faster_than_they_may() {
    let yard = guarded("[quota]\ncalls_per_second = 4\n").await;
    let acme = yard.client("acme");
    let began = tokio::time::Instant::now();
    let mut admitted = 0_u32;
    while began.elapsed() < Duration::from_secs(3) {
        match create(&acme, vec![sleep("a", 1)]).await {
            Ok(_) => admitted += 1,
            refused => tokio::time::sleep(exceeded(refused)).await,
        }
    }
    // Four a second for three seconds, those of a second that may come at once, and one at the edge.
    assert!((12..=17).contains(&admitted), "{admitted} were admitted");
}

/// Two coordinators of one broker that ask the same callers, and how many runs each admits beside the other.
async fn two(fixture: Fixture) -> (usize, usize) {
    let yard = Guarded::start(fixture, callers("[quota]\nopen_runs = 6\n")).await;
    let second = yard.fixture.coordinator(&yard.broker.url()).await;
    Shards::at(&yard.broker.url()).await.until(&[8, 8]).await;
    let first = yard.client("acme");
    first.wait_for_tool("sleep").await;
    let other = Client::connect(second.address()).await.with_key(&yard.callers.key("acme"));
    other.wait_for_tool("sleep").await;
    let here = opened(&first, 20).await.len();
    // Longer than they take to tell each other.
    tokio::time::sleep(Duration::from_secs(3)).await;
    (here, opened(&other, 20).await.len())
}

#[tokio::test]
async fn coordinators_share_a_quota_through_redis() {
    let store = local::Store::start(|_| {}).await.expect("a store starts");
    let fixture = Fixture::new(FIXTURE).with_redis(&store.url());
    assert_eq!(two(fixture).await, (6, 0), "the first has all of it");
}

#[tokio::test]
async fn without_redis_each_coordinator_has_its_part_of_a_quota() {
    assert_eq!(two(Fixture::new(FIXTURE)).await, (3, 3));
}

#[tokio::test]
async fn calls_beyond_those_of_a_tenant_that_may_run_wait_for_a_place() {
    let yard = guarded("[quotas.acme]\nrunning_calls = 2\n").await;
    let (acme, rival) = (yard.client("acme"), yard.client("rival"));
    let first = create(&acme, vec![sleep("a", LONG)]).await.expect("it is admitted");
    create(&acme, vec![sleep("b", LONG)]).await.expect("it is admitted");
    let third = create(&acme, vec![sleep("c", 1), sleep("d", 1)]).await.expect("it is admitted, and waits");
    let others = rival.execute((0..5).map(|number| sleep(&number.to_string(), 1)).collect()).await;
    assert_eq!(crate::check::outcomes(&others.to_end().await).len(), 5, "it has no such limit");
    let state = harness::Run { client: acme.clone(), id: third.clone() }.get().await;
    assert!(state.calls.iter().all(|call| call.attempts == 0), "{state:?}");
    cancel(&acme, first).await;
    let third = harness::Run { client: acme, id: third };
    let outcomes = crate::check::outcomes(&third.watch(v1::FloorPolicy::Arrival).await.to_end().await);
    assert!(outcomes.values().all(|outcome| outcome.state() == v1::CallState::Completed), "{outcomes:?}");
}

/// Echoes so much that some such calls fill what a tenant may have in the log.
async fn fill(client: &Client, at_most: usize) -> (usize, Option<Status>) {
    let text = "x".repeat(64 << 10);
    for number in 0..at_most {
        // Its text is stored twice: as what it was asked and as what it answered.
        match create(client, vec![call("c", "echo", json!({ "text": text }))]).await {
            Ok(id) => {
                let run = harness::Run { client: client.clone(), id };
                run.watch(v1::FloorPolicy::Arrival).await.to_end().await;
            }
            Err(refused) => return (number, Some(refused)),
        }
    }
    (at_most, None)
}

#[tokio::test]
async fn a_tenant_that_fills_its_part_of_the_log_gets_no_new_work_and_others_do_not_notice() {
    let yard = guarded("[quotas.acme]\nlog_bytes = 1000000\n").await;
    let (acme, rival) = (yard.client("acme"), yard.client("rival"));
    let (done, refused) = fill(&acme, 40).await;
    let refused = refused.expect("it is refused before 40 runs");
    // Results are counted every second, requests at once.
    assert!((6..=15).contains(&done), "{done} runs of 64 KiB and as large an answer were admitted to 1 MB");
    assert_eq!((refused.code(), reason(&refused).as_str()), (Code::ResourceExhausted, "QUOTA_EXCEEDED"));
    assert!(refused.message().contains("log_bytes in the callers' file"), "{}", refused.message());
    assert_eq!(fill(&rival, 12).await.0, 12, "the others have the rest of the log");
    // The count is derived from the log, so the next owner of the shards has it.
    let Guarded { fixture, broker, mut coordinator, callers, worker: _worker, .. } = yard;
    coordinator.kill().await;
    let next = fixture.coordinator(&broker.url()).await;
    let acme = Client::connect(next.address()).await.with_key(&callers.key("acme"));
    acme.wait_for_tool("echo").await;
    Shards::at(&broker.url()).await.until(&[16]).await;
    let refused = async {
        // Shards are taken over one after the other, and counted every second.
        while create(&acme, vec![call("c", "echo", json!({ "text": "hello" }))]).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(harness::PATIENCE, refused).await.expect("it is refused again");
    // Nothing is kept of a refusal, and what is beyond is a matter of the file.
    callers.write(&text("[quotas.acme]\nlog_bytes = 100000000\n"));
    until_admitted(&acme, vec![sleep("a", 1)]).await;
}

#[tokio::test]
async fn a_call_that_writes_output_beyond_its_tenants_part_of_the_log_is_cancelled_with_the_reason() {
    let yard = guarded("[quotas.acme]\nlog_bytes = 20000\n").await;
    let acme = yard.client("acme");
    let calls = vec![crate::count("talks", 100_000, 5), sleep("silent", 4000)];
    let run = create(&acme, calls).await.expect("it is admitted");
    let run = harness::Run { client: acme, id: run };
    let outcomes = crate::check::outcomes(&run.watch(v1::FloorPolicy::Interleaved).await.to_end().await);
    assert_eq!(outcomes["talks"].state(), v1::CallState::Cancelled, "{:?}", outcomes["talks"]);
    let why = format!("{:?}", run.get().await);
    assert!(why.contains("quota log_bytes"), "{why}");
    assert_eq!(outcomes["silent"].state(), v1::CallState::Completed, "a call that writes nothing goes on");
}
