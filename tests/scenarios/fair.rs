//! Fair turns: tenants share a pool, priorities order a tenant's calls, and what is not handed out can be changed.

use std::time::Duration;

use harness::{Callers, Client, Fixture, Guarded, Run, Shards, Yard, call};
use proto::v1::run_event::Event;
use proto::v1::{self, CallState, FloorPolicy, Priority};
use serde_json::json;
use tempfile::TempDir;

use crate::FIXTURE;
use crate::check::outcomes;

/// The jobs of the pool.
const JOBS: &str = "ty.run.*.*.*.job.main";

/// Calls that keep slots until they may end.
struct Blocked {
    runs: Vec<Run>,
    folder: TempDir,
}

impl Blocked {
    async fn slots(client: &Client, slots: usize) -> Self {
        // Before the coordinator knows the slots of a worker, it hands out 16 calls. Callers without the right to list
        // workers have as many slots here.
        let listed = async || client.fleet.clone().list_workers(v1::ListWorkersRequest::default()).await;
        while listed().await.is_ok_and(|listed| listed.into_inner().workers.is_empty()) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let mut runs = Vec::new();
        for _ in 0..slots {
            let run = client.create(vec![call("blocks", "waits", json!({ "path": folder.path().join("end") }))]).await;
            run.watch(FloorPolicy::Interleaved).await.until(|event| matches!(event, Event::AttemptStarted(_))).await;
            runs.push(run);
        }
        Self { runs, folder }
    }

    fn release(&self) {
        std::fs::write(self.folder.path().join("end"), "").expect("it can be written");
    }
}

/// A run of one call.
fn sleeping(ms: u64, tenant: &str, priority: Priority) -> v1::CreateRunRequest {
    v1::CreateRunRequest {
        calls: vec![call("a", "sleep", json!({ "ms": ms, "text": "slept" }))],
        tenant: tenant.to_owned(),
        rules: Some(v1::RunRules { priority: priority.into(), ..v1::RunRules::default() }),
        ..v1::CreateRunRequest::default()
    }
}

async fn create(client: &Client, request: v1::CreateRunRequest) -> Run {
    let response = client.runs.clone().create_run(request).await.expect("it is accepted").into_inner();
    Run { client: client.clone(), id: response.run.expect("the response has the run").run_id }
}

async fn why(run: &Run) -> String {
    let request = v1::ExplainCallRequest { run_id: run.id.clone(), call_id: "a".to_owned() };
    run.client.runs.clone().explain_call(request).await.expect("it is there").into_inner().why
}

/// Waits for the end of a run's only call, which completed in one attempt, and returns when it ended.
async fn completed_at(run: &Run) -> (i64, i32) {
    run.watch(FloorPolicy::Arrival).await.to_end().await;
    let call = run.get().await.calls.remove(0);
    assert_eq!((call.state(), call.attempts), (CallState::Completed, 1), "{}: {call:?}", run.id);
    let end = call.end_time.expect("it has ended");
    (end.seconds, end.nanos)
}

/// The labels of runs in the order in which their calls ended.
async fn order<'label>(runs: &[(&'label str, Run)]) -> Vec<&'label str> {
    let mut ended = Vec::new();
    for (label, run) in runs {
        ended.push((completed_at(run).await, *label));
    }
    ended.sort_by_key(|(at, _)| *at);
    ended.into_iter().map(|(_, label)| label).collect()
}

/// Three calls of each priority, the lowest first.
async fn nine(client: &Client) -> Vec<(&'static str, Run)> {
    let mut runs = Vec::new();
    for (label, priority) in [("low", Priority::Low), ("normal", Priority::Unspecified), ("high", Priority::High)] {
        for _ in 0..3 {
            runs.push((label, create(client, sleeping(60, "", priority)).await));
        }
    }
    runs
}

#[tokio::test]
async fn ten_calls_of_a_tenant_do_not_wait_for_the_backlog_of_another() {
    const SLOTS: usize = 8;
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker_with_slots(SLOTS as u32).await;
    let shards = Shards::at(&yard.broker.url()).await;
    let blocked = Blocked::slots(&yard.client, SLOTS).await;
    let mut busy = Vec::new();
    for _ in 0..400 {
        busy.push(create(&yard.client, sleeping(100, "busy", Priority::High)).await);
    }
    assert_eq!(shards.entries(JOBS).await, 2 * SLOTS, "one waits in the queue for each slot, and the rest elsewhere");
    let mut small = Vec::new();
    for _ in 0..10 {
        small.push(create(&yard.client, sleeping(100, "small", Priority::Low)).await);
    }
    blocked.release();
    let mut last = (0, 0);
    for run in &small {
        last = last.max(completed_at(run).await);
    }
    let mut before = 0;
    for run in &busy {
        before += usize::from(completed_at(run).await <= last);
    }
    // Those in the queue, the ten that take turns with the others, and those that run beside the last one.
    assert!(before <= SLOTS + 10 + SLOTS, "{before} calls of the busy tenant came before the ten");
    for run in blocked.runs {
        run.watch(FloorPolicy::Arrival).await.to_end().await;
    }
    assert_eq!(shards.entries(JOBS).await, SLOTS + 410, "each call has one job");
}

#[tokio::test]
async fn calls_of_a_higher_priority_come_first_and_why_tells_the_position() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker_with_slots(1).await;
    let blocked = Blocked::slots(&yard.client, 1).await;
    let runs = nine(&yard.client).await;
    let queued = why(&runs[0].1).await;
    assert!(queued.contains("has been queued in pool main"), "the first was handed out: {queued}");
    let last_low = why(&runs[2].1).await;
    assert!(last_low.contains("7 of the 8 calls that wait there come before it"), "{last_low}");
    assert!(last_low.contains("in pool main") && last_low.contains("priority is low"), "{last_low}");
    let first_high = why(&runs[6].1).await;
    assert!(first_high.contains("0 of the 8 calls"), "{first_high}");
    blocked.release();
    let order = order(&runs).await;
    assert_eq!(order, ["low", "high", "high", "high", "normal", "normal", "normal", "low", "low"]);
}

#[tokio::test]
async fn every_coordinator_tells_the_position_of_a_call_that_waits_at_another_one() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker_with_slots(1).await;
    let second = yard.fixture.coordinator(&yard.broker.url()).await;
    let other = Client::connect(second.address()).await;
    other.wait_for_tool("sleep").await;
    Shards::at(&yard.broker.url()).await.until(&[8, 8]).await;
    let blocked = Blocked::slots(&yard.client, 1).await;
    let clients = [&yard.client, &other];
    let mut runs = Vec::new();
    for number in 0..32 {
        // A coordinator opens runs in shards of its own.
        runs.push(create(clients[number % 2], sleeping(60, "", Priority::Low)).await);
    }
    let mut waiting = [0, 0];
    for (number, run) in runs.iter().enumerate() {
        let reasons = [why(&run.through(&yard.client)).await, why(&run.through(&other)).await];
        if !reasons[number % 2].contains("calls that wait there come before it") {
            continue;
        }
        let [here, there] = reasons.each_ref().map(|why| why.split_once(": ").map(|(_, rest)| rest.split(", ").next()));
        assert_eq!(here, there, "{reasons:?}");
        waiting[number % 2] += 1;
    }
    assert!(waiting.iter().all(|calls| *calls >= 8), "most calls wait at each coordinator: {waiting:?}");
    blocked.release();
    for run in &runs {
        completed_at(run).await;
    }
}

#[tokio::test]
async fn a_call_has_a_priority_of_its_own_and_shows_it() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker_with_slots(1).await;
    let blocked = Blocked::slots(&yard.client, 1).await;
    let first = create(&yard.client, sleeping(60, "", Priority::Unspecified)).await;
    let low = create(&yard.client, sleeping(60, "", Priority::Low)).await;
    let mut request = sleeping(60, "", Priority::Low);
    request.calls[0].priority = Priority::High.into();
    let own = create(&yard.client, request).await;
    let normal = create(&yard.client, sleeping(60, "", Priority::Unspecified)).await;
    assert_eq!(own.get().await.calls[0].priority(), Priority::High);
    assert_eq!(low.get().await.calls[0].priority(), Priority::Low);
    assert_eq!(normal.get().await.calls[0].priority(), Priority::Unspecified);
    blocked.release();
    let order = order(&[("first", first), ("low", low), ("own", own), ("normal", normal)]).await;
    assert_eq!(order, ["first", "own", "normal", "low"]);
}

#[tokio::test]
async fn a_call_that_waits_long_rises_and_comes_before_later_ones() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker_with_slots(1).await;
    let blocked = Blocked::slots(&yard.client, 1).await;
    let first = create(&yard.client, sleeping(60, "", Priority::Unspecified)).await;
    let low = create(&yard.client, sleeping(60, "", Priority::Low)).await;
    let risen = async {
        while !why(&low).await.contains("priority is normal") {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::time::timeout(harness::PATIENCE, risen).await.expect("it rises after half a minute");
    let normal = create(&yard.client, sleeping(60, "", Priority::Unspecified)).await;
    blocked.release();
    let order = order(&[("first", first), ("low", low), ("normal", normal)]).await;
    assert_eq!(order, ["first", "low", "normal"]);
}

/// A caller of the tenant with the same name, in the file of callers.
fn caller(name: &str) -> String {
    format!(
        "[[callers]]\nname = \"{name}\"\ntenant = \"{name}\"\nroles = [\"submit\", \"read\"]\n\
         tools = [{{ names = [\"*\"] }}]\nkeys = [\"{{{name}}}\"]\n"
    )
}

#[tokio::test]
async fn tenants_share_by_the_weights_in_the_file_of_callers() {
    const SLOTS: usize = 16;
    let file = format!("{}{}[quotas.heavy]\nweight = 3\n", caller("heavy"), caller("light"));
    let yard = Guarded::start(Fixture::new(FIXTURE), Callers::new(&file)).await;
    let (heavy, light) = (yard.client("heavy"), yard.client("light"));
    heavy.wait_for_tool("sleep").await;
    let blocked = Blocked::slots(&light, SLOTS).await;
    // These fill the queue.
    for _ in 0..SLOTS {
        create(&light, sleeping(100, "", Priority::Unspecified)).await;
    }
    let mut runs = Vec::new();
    for _ in 0..64 {
        runs.push(("light", create(&light, sleeping(100, "", Priority::Unspecified)).await));
        runs.push(("heavy", create(&heavy, sleeping(100, "", Priority::Unspecified)).await));
    }
    blocked.release();
    let order = order(&runs).await;
    let of_heavy = order[..64].iter().filter(|label| **label == "heavy").count();
    assert!((44..=52).contains(&of_heavy), "{of_heavy} of 64 are the heavy tenant's, which should have 48");
}

#[tokio::test]
async fn a_run_with_more_calls_than_its_tenant_may_have_running_ends_and_holds_nobody_up() {
    const SLOTS: usize = 16;
    let file = format!("{}{}[quotas.bound]\nrunning_calls = 2\n", caller("bound"), caller("free"));
    let yard = Guarded::start(Fixture::new(FIXTURE), Callers::new(&file)).await;
    let (bound, free) = (yard.client("bound"), yard.client("free"));
    bound.wait_for_tool("sleep").await;
    // The pool is full, so that calls wait for their turns.
    let blocked = Blocked::slots(&free, SLOTS).await;
    for _ in 0..SLOTS {
        create(&free, sleeping(10, "", Priority::Unspecified)).await;
    }
    let sleeps = |number| call(&format!("c{number}"), "sleep", json!({ "ms": 10, "text": "slept" }));
    let many = v1::CreateRunRequest { calls: (0..40).map(sleeps).collect(), ..v1::CreateRunRequest::default() };
    let many = create(&bound, many).await;
    let other = create(&free, sleeping(10, "", Priority::Unspecified)).await;
    blocked.release();
    completed_at(&other).await;
    many.watch(FloorPolicy::Arrival).await.to_end().await;
    assert!(many.get().await.calls.iter().all(|call| call.state() == CallState::Completed));
}

#[tokio::test]
async fn calls_of_a_higher_priority_come_first_at_the_limit_of_their_tenant() {
    let file = format!("{}[quotas.bound]\nrunning_calls = 1\n", caller("bound"));
    let yard = Guarded::start(Fixture::new(FIXTURE), Callers::new(&file)).await;
    let bound = yard.client("bound");
    bound.wait_for_tool("sleep").await;
    let blocked = Blocked::slots(&bound, 1).await;
    let runs = nine(&bound).await;
    let last_low = why(&runs[2].1).await;
    assert!(last_low.contains("one of the 1 places that calls of its tenant have"), "{last_low}");
    assert!(last_low.contains("8 of the 9 calls that wait for that come before it"), "{last_low}");
    blocked.release();
    let order = order(&runs).await;
    assert_eq!(order, ["high", "high", "high", "normal", "normal", "normal", "low", "low", "low"]);
}

#[tokio::test]
async fn a_call_that_waits_for_calls_which_it_made_keeps_no_slot_from_them() {
    let file = format!("{}[quotas.bound]\nrunning_calls = 1\n", caller("bound"));
    let yard = Guarded::start(Fixture::new(FIXTURE), Callers::new(&file)).await;
    let bound = yard.client("bound");
    bound.wait_for_tool("sleep").await;
    let blocked = Blocked::slots(&bound, 1).await;
    let other = create(&bound, sleeping(1, "", Priority::High)).await;
    let parent = v1::ParentCall { run_id: blocked.runs[0].id.clone(), call_id: "blocks".to_owned() };
    let made = v1::CreateRunRequest { parent: Some(parent), ..sleeping(1, "", Priority::Low) };
    completed_at(&create(&bound, made).await).await;
    assert_eq!(other.get().await.calls[0].state(), CallState::Accepted, "no call made it");
    blocked.release();
    completed_at(&other).await;
}

#[tokio::test]
async fn what_is_not_handed_out_is_cancelled_without_a_job_and_held_by_a_pause() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker_with_slots(1).await;
    let shards = Shards::at(&yard.broker.url()).await;
    let blocked = Blocked::slots(&yard.client, 1).await;
    let queued = create(&yard.client, sleeping(60, "", Priority::Unspecified)).await;
    let mut waiting = Vec::new();
    for _ in 0..20 {
        waiting.push(create(&yard.client, sleeping(60, "", Priority::Unspecified)).await);
    }
    let cancelled = waiting.split_off(10);
    for run in &cancelled {
        run.cancel("not needed").await;
        let events = run.watch(FloorPolicy::Arrival).await.to_end().await;
        assert_eq!(outcomes(&events)["a"].state(), CallState::Cancelled);
    }
    assert_eq!(shards.entries(JOBS).await, 2, "the blocking call and the queued one");
    let pause = v1::pause_request::What::Tool("sleep".to_owned());
    let pause = v1::PauseRequest { what: Some(pause), reason: "maintenance".to_owned() };
    yard.client.fleet.clone().pause(pause).await.expect("it can be paused");
    blocked.release();
    for run in &blocked.runs {
        run.watch(FloorPolicy::Arrival).await.to_end().await;
    }
    // Another tool goes on meanwhile, although calls of the paused one came first.
    let echo = yard.client.create(vec![call("a", "echo", json!({ "text": "hello" }))]).await;
    completed_at(&echo).await;
    assert_eq!(shards.entries(JOBS).await, 3, "no call of the paused tool was handed out");
    let resumed = v1::resume_request::What::Tool("sleep".to_owned());
    yard.client.fleet.clone().resume(v1::ResumeRequest { what: Some(resumed) }).await.expect("it can be resumed");
    for run in waiting.iter().chain([&queued]) {
        completed_at(run).await;
    }
    assert_eq!(shards.entries(JOBS).await, 13, "each call that was not cancelled has one job");
}
