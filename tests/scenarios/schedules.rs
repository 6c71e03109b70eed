//! Schedules fire each of their times once, whichever coordinators die, and tell what became of each firing.

use std::collections::BTreeSet;
use std::time::Duration;

use harness::{Client, Coordinator, Fixture, PATIENCE, Yard, call, client_answer, reason};
use proto::names::SCHEDULES_BUCKET;
use proto::v1::schedule_spec::Timing;
use proto::v1::{self, FiringOutcome, MissedPolicy, OverlapPolicy, RunStatus, Schedule, ScheduleSpec, ScheduleStatus};
use serde_json::{Value, json};
use tonic::Status;

use crate::{FIXTURE, question};

fn echo() -> v1::NewCall {
    call("a", "echo", json!({ "text": "on time" }))
}

fn every(seconds: i64) -> Option<Timing> {
    Some(Timing::Every(prost_types::Duration { seconds, nanos: 0 }))
}

fn in_ms(ms: u64) -> prost_types::Timestamp {
    proto::convert::api::timestamp(run::Timestamp(nats::now().0 + ms))
}

fn spec(timing: Option<Timing>, calls: Vec<v1::NewCall>) -> ScheduleSpec {
    let run = Some(v1::CreateRunRequest { calls, ..v1::CreateRunRequest::default() });
    ScheduleSpec { timing, run, ..ScheduleSpec::default() }
}

async fn ask_to_create(client: &Client, spec: ScheduleSpec, request_id: &str) -> Result<Schedule, Status> {
    let request = v1::CreateScheduleRequest { spec: Some(spec), request_id: request_id.to_owned() };
    let created = client.schedules.clone().create_schedule(request).await?.into_inner();
    Ok(created.schedule.expect("the response has the schedule"))
}

async fn create(client: &Client, spec: ScheduleSpec) -> Schedule {
    ask_to_create(client, spec, "").await.expect("it is accepted")
}

async fn get(client: &Client, id: &str) -> Result<Schedule, Status> {
    let request = v1::GetScheduleRequest { schedule_id: id.to_owned() };
    let found = client.schedules.clone().get_schedule(request).await?.into_inner();
    Ok(found.schedule.expect("the response has the schedule"))
}

async fn pause(client: &Client, id: &str) -> Schedule {
    let request = v1::PauseScheduleRequest { schedule_id: id.to_owned(), reason: "maintenance".to_owned() };
    let paused = client.schedules.clone().pause_schedule(request).await.expect("it is there").into_inner();
    paused.schedule.expect("the response has the schedule")
}

async fn resume(client: &Client, id: &str) -> Schedule {
    let request = v1::ResumeScheduleRequest { schedule_id: id.to_owned() };
    let resumed = client.schedules.clone().resume_schedule(request).await.expect("it is there").into_inner();
    resumed.schedule.expect("the response has the schedule")
}

/// Reads a schedule until it is as wanted. While a coordinator or the broker is away, it is read again.
async fn until(client: &Client, id: &str, wanted: impl Fn(&Schedule) -> bool) -> Schedule {
    let mut last = None;
    let read = async {
        loop {
            last = Some(get(client, id).await);
            if let Some(Ok(schedule)) = &last
                && wanted(schedule)
            {
                return schedule.clone();
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let read = tokio::time::timeout(2 * PATIENCE, read).await;
    read.unwrap_or_else(|_| panic!("it becomes so in time: {last:?}"))
}

fn counts(schedule: &Schedule) -> (u64, u64, u64, u64) {
    let counts = schedule.counts.unwrap_or_default();
    (counts.runs, counts.refused, counts.skipped, counts.missed)
}

/// The runs of a schedule in the index of a coordinator that owns all shards.
async fn runs_of(client: &Client, id: &str, expected: usize) -> Vec<v1::RunSummary> {
    let list = async {
        loop {
            let request = v1::ListRunsRequest { schedule_id: id.to_owned(), page_size: 500, ..Default::default() };
            let listed = client.index.clone().list_runs(request).await.expect("the index answers").into_inner();
            let is_complete = listed.coverage.is_some_and(|coverage| coverage.complete);
            if is_complete && listed.runs.len() >= expected {
                return listed.runs;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(2 * PATIENCE, list).await.expect("the index becomes complete")
}

/// Waits until the index covers all runs, then for entries that are still on their way.
async fn settled_runs(client: &Client, id: &str, expected: usize) -> usize {
    runs_of(client, id, expected).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    runs_of(client, id, expected).await.len()
}

async fn two_coordinators(yard: &Yard) -> (Coordinator, Client) {
    let other = yard.fixture.coordinator(&yard.broker.url()).await;
    let client = Client::connect(other.address()).await;
    (other, client)
}

#[tokio::test]
async fn each_time_creates_one_run_while_coordinators_are_killed_around_the_firings() {
    const FIRINGS: u32 = 20;
    let mut yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let (mut other, other_client) = two_coordinators(&yard).await;
    let mut schedules = Vec::new();
    for _ in 0..6 {
        let spec = ScheduleSpec {
            missed_policy: MissedPolicy::All.into(),
            firings_max: FIRINGS,
            ..spec(every(1), vec![echo()])
        };
        schedules.push(create(&yard.client, spec).await.schedule_id);
    }
    let watched = &schedules[0];
    // Each kill comes right after a firing was recorded, so that others are on their way.
    until(&other_client, watched, |schedule| counts(schedule).0 >= 2).await;
    yard.coordinator.kill().await;
    let address = yard.coordinator.address();
    until(&other_client, watched, |schedule| counts(schedule).0 >= 8).await;
    yard.coordinator = yard.fixture.coordinator_at(&yard.broker.url(), address).await;
    let client = Client::connect(address).await;
    until(&client, watched, |schedule| counts(schedule).0 >= 10).await;
    other.kill().await;
    for id in &schedules {
        let ended = until(&client, id, |schedule| schedule.status() == ScheduleStatus::Ended).await;
        assert_eq!(counts(&ended), (u64::from(FIRINGS), 0, 0, 0), "{ended:?}");
        assert_eq!(settled_runs(&client, id, FIRINGS as usize).await, FIRINGS as usize, "{id}");
    }
}

#[tokio::test]
async fn a_firing_whose_coordinator_died_before_it_was_recorded_is_repeated_without_a_second_run() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let nats = async_nats::connect(yard.broker.url()).await.expect("the broker listens");
    let bucket = async_nats::jetstream::new(nats).get_key_value(SCHEDULES_BUCKET).await.expect("it is there");
    let created = create(&yard.client, spec(Some(Timing::OnceAt(in_ms(1500))), vec![echo()])).await;
    let id = created.schedule_id;
    let before = bucket.get(&id).await.expect("the broker answers").expect("it is stored");
    let fired = until(&yard.client, &id, |schedule| counts(schedule).0 == 1).await;
    // The record as it was when the run was accepted and nothing else was stored.
    for _ in 0..3 {
        bucket.put(&id, before.clone()).await.expect("it can be written");
        let again = until(&yard.client, &id, |schedule| counts(schedule).0 == 1).await;
        assert_eq!(again.last_run_id, fired.last_run_id, "the same run");
    }
    assert_eq!(settled_runs(&yard.client, &id, 1).await, 1);
}

#[tokio::test]
async fn a_tenant_that_fills_its_room_leaves_room_to_others() {
    let yard = Yard::start(FIXTURE).await;
    let large = |tenant: &str| {
        let calls = vec![call("a", "echo", json!({ "text": "x".repeat(25_000) }))];
        let mut spec = spec(Some(Timing::OnceAt(in_ms(3_600_000))), calls);
        spec.run.as_mut().expect("it has a run").tenant = tenant.to_owned();
        spec
    };
    let refused = loop {
        if let Err(refused) = ask_to_create(&yard.client, large("greedy"), "").await {
            break refused;
        }
    };
    assert_eq!(reason(&refused), "SCHEDULES_FULL");
    assert!(refused.message().contains("the tenant's schedules"), "{refused:?}");
    ask_to_create(&yard.client, large("modest"), "").await.expect("there is room for another tenant");
}

#[tokio::test]
async fn schedules_outlive_the_broker_and_the_coordinators_and_missed_firings_follow_their_policy() {
    let mut yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let policies = [MissedPolicy::All, MissedPolicy::Latest];
    let mut ids = Vec::new();
    for policy in policies {
        let spec = ScheduleSpec { missed_policy: policy.into(), ..spec(every(1), vec![echo()]) };
        ids.push(create(&yard.client, spec).await.schedule_id);
    }
    for id in &ids {
        until(&yard.client, id, |schedule| counts(schedule).0 >= 2).await;
    }
    yard.coordinator.kill().await;
    yard.broker.kill().await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    yard.broker.restart().await.expect("the broker comes back");
    let address = yard.coordinator.address();
    yard.coordinator = yard.fixture.coordinator_at(&yard.broker.url(), address).await;
    let client = Client::connect(address).await;
    let before = get(&client, &ids[0]).await.expect("it is there").counts.unwrap_or_default().runs;
    let all = until(&client, &ids[0], |schedule| counts(schedule).0 >= before + 6).await;
    assert_eq!(counts(&all).3, 0, "all are made up for");
    let latest = until(&client, &ids[1], |schedule| counts(schedule).3 >= 2 && counts(schedule).0 >= 3).await;
    let (runs, refused, skipped, missed) = counts(&latest);
    assert!(missed >= 2 && runs >= 3, "{latest:?}");
    assert_eq!((refused, skipped), (0, 0));
    // Nothing is lost or doubled between the times: they are one second apart.
    let paused = pause(&client, &ids[0]).await;
    let times: Vec<i64> =
        paused.firings.iter().filter_map(|firing| firing.fire_time).map(|time| time.seconds).collect();
    assert!(times.windows(2).all(|pair| pair[1] == pair[0] + 1), "{times:?}");
}

#[tokio::test]
async fn a_paused_schedule_does_not_fire_and_goes_on_without_the_times_of_the_pause() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let spec = ScheduleSpec {
        missed_policy: MissedPolicy::All.into(),
        name: "beats".to_owned(),
        ..spec(every(1), vec![echo()])
    };
    let id = create(&yard.client, spec).await.schedule_id;
    until(&yard.client, &id, |schedule| counts(schedule).0 >= 1).await;
    let paused = pause(&yard.client, &id).await;
    assert_eq!(paused.status(), ScheduleStatus::Paused);
    assert_eq!(paused.pause.clone().expect("a pause").reason, "maintenance");
    assert!(paused.next_fire_times.is_empty());
    tokio::time::sleep(Duration::from_secs(4)).await;
    let after = get(&yard.client, &id).await.expect("it is there");
    // One that was on its way when it was paused may be recorded.
    assert!(counts(&after).0 <= counts(&paused).0 + 1, "{after:?}");
    let resumed = resume(&yard.client, &id).await;
    assert_eq!((resumed.status(), resumed.next_fire_times.len()), (ScheduleStatus::Active, 5));
    let on = until(&yard.client, &id, |schedule| counts(schedule).0 > counts(&after).0).await;
    assert!(counts(&on).0 <= counts(&after).0 + 2 && counts(&on).3 == 0, "nothing is made up for: {on:?}");
}

#[tokio::test]
async fn a_firing_is_skipped_or_replaces_the_previous_run_as_its_overlap_policy_says() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let of =
        |policy: OverlapPolicy| ScheduleSpec { overlap_policy: policy.into(), ..spec(every(1), vec![question("ask")]) };
    let skips = create(&yard.client, of(OverlapPolicy::Skip)).await.schedule_id;
    let replaces = create(&yard.client, of(OverlapPolicy::CancelPrevious)).await.schedule_id;
    let allows = create(&yard.client, of(OverlapPolicy::Allow)).await.schedule_id;

    let skipped = until(&yard.client, &skips, |schedule| counts(schedule).2 >= 2).await;
    assert_eq!(counts(&skipped).0, 1, "one run is open, so no other is created");
    let open = harness::Run { client: yard.client.clone(), id: skipped.last_run_id.clone() };
    open.submit(vec![client_answer("ask", "this one")]).await.expect("it waits");
    until(&yard.client, &skips, |schedule| counts(schedule).0 == 2).await;

    until(&yard.client, &replaces, |schedule| counts(schedule).0 >= 3).await;
    let schedule = pause(&yard.client, &replaces).await;
    let runs: Vec<_> = schedule.firings.iter().filter(|firing| !firing.run_id.is_empty()).collect();
    for firing in runs.iter().rev().skip(1) {
        let run = harness::Run { client: yard.client.clone(), id: firing.run_id.clone() };
        assert_eq!(run.get().await.status(), RunStatus::Cancelled);
    }
    let allowed = until(&yard.client, &allows, |schedule| counts(schedule).0 >= 3).await;
    for firing in &allowed.firings {
        let run = harness::Run { client: yard.client.clone(), id: firing.run_id.clone() };
        assert_eq!(run.get().await.status(), RunStatus::RequiresAction);
    }
}

#[tokio::test]
async fn a_single_time_fires_once_and_never_early_and_a_request_fires_beside_the_times() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let at = in_ms(2000);
    let once = ScheduleSpec {
        jitter: Some(prost_types::Duration { seconds: 1, nanos: 0 }),
        ..spec(Some(Timing::OnceAt(at)), vec![echo()])
    };
    let created = ask_to_create(&yard.client, once.clone(), "mine").await.expect("it is accepted");
    let again = ask_to_create(&yard.client, once.clone(), "mine").await.expect("it is the same");
    assert_eq!(created.schedule_id, again.schedule_id);
    let other = ScheduleSpec { name: "other".to_owned(), ..once };
    let refused = ask_to_create(&yard.client, other, "mine").await.expect_err("another schedule");
    assert_eq!(reason(&refused), "SCHEDULE_EXISTS");
    let due = created.next_fire_times.clone();
    let id = created.schedule_id;
    let ended = until(&yard.client, &id, |schedule| schedule.status() == ScheduleStatus::Ended).await;
    assert_eq!((counts(&ended), ended.firings.len()), ((1, 0, 0, 0), 1));
    let firing = &ended.firings[0];
    let ms = |time: prost_types::Timestamp| time.seconds * 1000 + i64::from(time.nanos) / 1_000_000;
    assert_eq!(firing.fire_time, Some(at));
    assert!(ms(due[0]) >= ms(at) && ms(due[0]) <= ms(at) + 1000, "jitter");
    assert!(ms(firing.time.expect("it is decided")) >= ms(due[0]), "never before its time");

    let now = |request_id: &str| {
        let request = v1::RunScheduleNowRequest { schedule_id: id.clone(), request_id: request_id.to_owned() };
        let mut schedules = yard.client.schedules.clone();
        async move { schedules.run_schedule_now(request).await.expect("it fires").into_inner().run.expect("a run") }
    };
    let (first, repeated, second) = (now("x").await, now("x").await, now("").await);
    assert_eq!(first.run_id, repeated.run_id);
    let all: BTreeSet<String> = runs_of(&yard.client, &id, 3).await.into_iter().map(|run| run.run_id).collect();
    let expected = [firing.run_id.clone(), first.run_id, second.run_id.clone()];
    assert_eq!(all, BTreeSet::from(expected), "runs are listed by their schedule");
    let by_request = get(&yard.client, &id).await.expect("it is there");
    assert_eq!((counts(&by_request).0, by_request.last_run_id), (3, second.run_id));

    let request = v1::DeleteScheduleRequest { schedule_id: id.clone() };
    yard.client.schedules.clone().delete_schedule(request.clone()).await.expect("it is deleted");
    assert_eq!(reason(&get(&yard.client, &id).await.expect_err("deleted")), "SCHEDULE_NOT_FOUND");
    let refused = yard.client.schedules.clone().delete_schedule(request).await.expect_err("deleted");
    assert_eq!(reason(&refused), "SCHEDULE_NOT_FOUND");
    let anew = spec(every(60), vec![echo()]);
    assert_eq!(ask_to_create(&yard.client, anew, "mine").await.expect("the id is free").schedule_id, id);
}

const CALLERS: &str = r#"
    quotas.rival = { open_runs = 1 }

    [[callers]]
    name = "ops"
    roles = ["admin"]
    tools = [{ names = ["*"] }]
    keys = ["{ops}"]

    [[callers]]
    name = "shop"
    tenant = "acme"
    roles = ["submit", "read", "answer"]
    tools = [{ names = ["*"] }]
    keys = ["{shop}"]

    [[callers]]
    name = "desk"
    tenant = "acme"
    roles = ["submit", "read"]
    tools = [{ names = ["*"] }]
    keys = ["{desk}"]

    [[callers]]
    name = "rival"
    tenant = "rival"
    roles = ["submit", "read"]
    tools = [{ names = ["*"] }]
    keys = ["{rival}"]

    [[callers]]
    name = "leaver"
    tenant = "acme"
    roles = ["submit", "read"]
    tools = [{ names = ["*"] }]
    keys = ["{leaver}"]
"#;

#[tokio::test]
async fn a_schedule_fires_with_the_present_rights_of_its_creator_and_other_tenants_do_not_see_it() {
    let callers = harness::Callers::new(CALLERS);
    let yard = harness::Guarded::start(Fixture::new(FIXTURE), callers).await;
    let [ops, shop, desk, rival, leaver] = ["ops", "shop", "desk", "rival", "leaver"].map(|name| yard.client(name));
    shop.wait_for_tool("echo").await;
    let kept = create(&shop, spec(every(1), vec![echo()])).await;
    assert_eq!((kept.tenant.as_str(), kept.caller.as_str()), ("acme", "shop"));
    let left = create(&leaver, spec(every(1), vec![echo()])).await.schedule_id;
    let id = kept.schedule_id;
    until(&shop, &left, |schedule| counts(schedule).0 >= 1).await;

    let list = |client: &Client| {
        let mut schedules = client.schedules.clone();
        async move {
            let listed = schedules.list_schedules(v1::ListSchedulesRequest::default()).await.expect("it lists");
            listed.into_inner().schedules.len()
        }
    };
    assert_eq!([list(&ops).await, list(&shop).await, list(&desk).await, list(&rival).await], [2, 2, 2, 0]);
    assert_eq!(reason(&get(&rival, &id).await.expect_err("not theirs")), "SCHEDULE_NOT_FOUND");
    let pauses = v1::PauseScheduleRequest { schedule_id: id.clone(), reason: String::new() };
    let refused = rival.schedules.clone().pause_schedule(pauses).await.expect_err("not theirs");
    assert_eq!(reason(&refused), "SCHEDULE_NOT_FOUND");
    let mut elsewhere = spec(every(1), vec![echo()]);
    elsewhere.run.as_mut().expect("a run").tenant = "acme".to_owned();
    let refused = ask_to_create(&rival, elsewhere, "").await.expect_err("not their tenant");
    assert_eq!(reason(&refused), "TENANT_DENIED");
    let now = v1::RunScheduleNowRequest { schedule_id: id.clone(), request_id: String::new() };
    let refused = desk.schedules.clone().run_schedule_now(now.clone()).await.expect_err("not their rights");
    assert_eq!(reason(&refused), "SCHEDULE_OF_ANOTHER_CALLER");
    let run = shop.schedules.clone().run_schedule_now(now).await.expect("it fires").into_inner().run.expect("a run");
    assert_eq!((run.tenant.as_str(), run.caller.as_str()), ("acme", "shop"));

    // A quota refuses firings, and the schedule goes on.
    let limited = create(&rival, spec(every(1), vec![call("a", "sleep", json!({ "ms": 60_000, "text": "" }))])).await;
    let refused = until(&rival, &limited.schedule_id, |schedule| counts(schedule).1 >= 2).await;
    assert_eq!(refused.firings.last().expect("a firing").reason, "QUOTA_EXCEEDED");
    assert_eq!((counts(&refused).0, refused.status()), (1, ScheduleStatus::Active));

    yard.callers.write(CALLERS.split("[[callers]]\n    name = \"leaver\"").next().expect("the rest"));
    let refused = until(&shop, &left, |schedule| counts(schedule).1 >= 2).await;
    let last = refused.firings.last().expect("a firing");
    assert_eq!((last.outcome(), last.reason.as_str()), (FiringOutcome::Refused, "ROLE_MISSING"));
    assert_eq!(refused.status(), ScheduleStatus::Active, "a refusal does not stop it");
    assert_eq!(counts(&get(&shop, &id).await.expect("it is there")).1, 0, "others fire");
    yard.callers.write(CALLERS);
    let runs = counts(&refused).0;
    until(&shop, &left, |schedule| counts(schedule).0 > runs).await;
}

/// The run of the schedules below, over HTTP.
fn run_over_http() -> Value {
    json!({ "calls": [{ "tool": "echo", "arguments": "{\"text\":\"a\"}" }] })
}

fn cron(expression: &str, zone: &str) -> Value {
    json!({ "cron": { "expression": expression, "time_zone": zone }, "run": run_over_http() })
}

fn with(name: &str, value: Value) -> Value {
    let mut spec = json!({ "every": "60s", "run": run_over_http() });
    spec[name] = value;
    spec
}

fn with_run(name: &str, value: Value) -> Value {
    let mut spec = with("name", json!("a"));
    spec["run"][name] = value;
    spec
}

/// Schedules that cannot be, with the reason and the place of the refusal.
fn refused() -> Vec<(Value, &'static str, &'static str)> {
    let large = json!([{ "tool": "echo", "arguments": json!({ "text": "x".repeat(40_000) }).to_string() }]);
    let once = |at: &str| json!({ "once_at": at, "run": run_over_http() });
    vec![
        (json!({ "run": run_over_http() }), "MALFORMED", "/spec"),
        (json!({ "every": "60s" }), "MALFORMED", "/spec/run"),
        (json!({ "every": "60s", "run": {} }), "NO_CALLS", ""),
        (cron("0 0 30 2 *", ""), "NEVER_FIRES", "/spec/cron/expression"),
        (cron("0 0 31 4 *", "Europe/Berlin"), "NEVER_FIRES", "/spec/cron/expression"),
        (cron("often", ""), "MALFORMED", "/spec/cron/expression"),
        (cron("", ""), "MALFORMED", "/spec/cron/expression"),
        (cron(&"* ".repeat(200), ""), "MALFORMED", "/spec/cron/expression"),
        (cron("* * * * *", "Europe/Nowhere"), "MALFORMED", "/spec/cron/time_zone"),
        (with("every", json!("0.5s")), "MALFORMED", "/spec/every"),
        (with("every", json!("-5s")), "MALFORMED", "/spec/every"),
        (with("every", json!("99999999s")), "MALFORMED", "/spec/every"),
        (once("2020-01-01T00:00:00Z"), "MALFORMED", "/spec/once_at"),
        (once("2090-01-01T00:00:00Z"), "MALFORMED", "/spec/once_at"),
        (with("jitter", json!("7200s")), "MALFORMED", "/spec/jitter"),
        (with("end_time", json!("2020-01-01T00:00:00Z")), "MALFORMED", "/spec/end_time"),
        (with("name", json!("n".repeat(129))), "MALFORMED", "/spec/name"),
        (with_run("keep_open", json!(true)), "MALFORMED", "/spec/run/keep_open"),
        (with_run("store", json!(false)), "MALFORMED", "/spec/run/store"),
        (with_run("request_id", json!("x")), "MALFORMED", "/spec/run/request_id"),
        (with_run("tenant", json!("a b")), "MALFORMED", "/spec/run/tenant"),
        (with_run("timeout", json!("2600000s")), "DEADLINE_TOO_FAR", ""),
        (with_run("calls", json!([{ "tool": "a b" }])), "MALFORMED", "/spec/run/calls/0/tool"),
        (with_run("calls", large), "MALFORMED", "/spec"),
    ]
}

#[tokio::test]
async fn a_schedule_that_cannot_be_is_refused_with_its_field_and_stores_nothing() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let http = yard.http();
    for (spec, reason, pointer) in refused() {
        let answer = http.post("/v1/schedules", &json!({ "spec": spec })).await;
        let problem = answer.json();
        let shown = problem.to_string();
        assert_eq!((answer.status, problem["reason"].as_str()), (400, Some(reason)), "{spec}: {shown}");
        if !pointer.is_empty() {
            assert_eq!(problem["errors"][0]["pointer"], pointer, "{spec}: {shown}");
        }
    }
    let listed = http.get("/v1/schedules").await.json();
    assert!(listed["schedules"].as_array().is_none_or(Vec::is_empty), "{listed}");
    assert_eq!(http.get("/v1/schedules/x").await.status, 400);
    assert_eq!(http.get("/v1/schedules/sch_00000000000000000000000000000000").await.status, 404);
}

#[tokio::test]
async fn schedules_are_created_paused_fired_and_deleted_over_http_and_come_without_their_context() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let http = yard.http();
    let mut fine = cron("*/5 * * * *", "Europe/Berlin");
    fine["run"]["context"] = json!("{\"user\":\"secret\"}");
    let created = http.post("/v1/schedules", &json!({ "spec": fine })).await;
    assert_eq!(created.status, 201, "{created:?}");
    let schedule = created.json()["schedule"].clone();
    assert!(!schedule.to_string().contains("secret"), "{schedule}");
    assert_eq!(schedule["next_fire_times"].as_array().map(Vec::len), Some(5), "{schedule}");
    let at = format!("/v1/schedules/{}", schedule["schedule_id"].as_str().expect("an id"));
    let paused = http.post(&format!("{at}/pause"), &json!({ "reason": "a" })).await.json();
    assert_eq!(paused["schedule"]["status"], "SCHEDULE_STATUS_PAUSED");
    assert_eq!(http.post(&format!("{at}/run"), &json!({})).await.status, 200);
    assert_eq!(http.ask(hyper::Method::DELETE, &at, &[], "").await.status, 200);
    assert_eq!(http.get(&at).await.status, 404);
}

#[tokio::test]
async fn times_that_no_json_can_represent_are_refused_over_grpc_too() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let time = |seconds, nanos| Some(prost_types::Duration { seconds, nanos });
    let beyond = Some(prost_types::Timestamp { seconds: 253_402_300_800, nanos: 0 });
    let every = || v1::ScheduleSpec {
        timing: Some(Timing::Every(prost_types::Duration { seconds: 60, nanos: 0 })),
        run: Some(v1::CreateRunRequest { calls: vec![call("a", "echo", json!({ "text": "" }))], ..Default::default() }),
        ..v1::ScheduleSpec::default()
    };
    let with_call = |change: fn(&mut v1::NewCall)| {
        let mut spec = every();
        change(&mut spec.run.as_mut().expect("it has a run").calls[0]);
        spec
    };
    let specs = [
        v1::ScheduleSpec { end_time: beyond, ..every() },
        v1::ScheduleSpec { jitter: time(0, 1_500_000_000), ..every() },
        v1::ScheduleSpec { timing: beyond.map(Timing::OnceAt), ..every() },
        with_call(|call| call.timeout = Some(prost_types::Duration { seconds: 315_576_000_001, nanos: 0 })),
        with_call(|call| call.queue_timeout = Some(prost_types::Duration { seconds: 1, nanos: 1_000_000_000 })),
    ];
    for spec in specs {
        let request = v1::CreateScheduleRequest { spec: Some(spec.clone()), ..v1::CreateScheduleRequest::default() };
        let refused = yard.client.schedules.clone().create_schedule(request).await.expect_err("it cannot be shown");
        assert_eq!(reason(&refused), "MALFORMED", "{spec:?}: {refused}");
    }
    assert_eq!(yard.http().get("/v1/schedules").await.status, 200);
}
