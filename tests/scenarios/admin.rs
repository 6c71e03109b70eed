//! The admin port, as Kubernetes, scrapers and autoscalers use it.

use harness::{Admin, Client, Fixture, Yard, call};
use proto::v1;
use proto::v1::run_event::Event;
use serde_json::{Value, json};

use crate::{FIXTURE, check};

#[tokio::test]
async fn a_lost_broker_makes_processes_unready_and_kills_none() {
    let (coordinator, worker) = (Admin::anywhere(), Admin::anywhere());
    let mut yard = Yard::start_with(coordinator.of(&Fixture::new(FIXTURE))).await;
    let _worker = worker.of(&Fixture::new(FIXTURE)).worker(&yard.broker.url(), "main", 4).await;
    for admin in [coordinator, worker] {
        admin.until("/readyz", |status, _| status == 200).await;
        assert_eq!(admin.get("/livez").await, (200, "ok\n".to_owned()));
    }
    yard.broker.kill().await;
    for admin in [coordinator, worker] {
        admin.until("/readyz", |status, _| status == 503).await;
        assert_eq!(admin.get("/livez").await.0, 200, "a restart would not bring the broker back");
    }
    let (status, stats) = coordinator.get("/stats").await;
    assert!(status == 503 && stats.contains("error"), "nothing is told that is not known: {status} {stats}");
    yard.broker.restart().await.expect("the broker comes back");
    for admin in [coordinator, worker] {
        admin.until("/readyz", |status, _| status == 200).await;
    }
}

#[tokio::test]
async fn a_process_that_drains_is_alive_and_not_ready() {
    let admin = Admin::anywhere();
    let yard = Yard::start(FIXTURE).await;
    let mut worker = admin.of(&Fixture::new(FIXTURE)).worker(&yard.broker.url(), "main", 4).await;
    yard.client.wait_for_tool("sleep").await;
    admin.until("/readyz", |status, _| status == 200).await;
    let mut stream = yard.client.execute(vec![call("c", "sleep", json!({ "ms": 3000, "text": "slept" }))]).await;
    stream.until(|event| matches!(event, Event::AttemptStarted(_))).await;
    let drained = worker.terminate();
    let looked = async {
        admin.until("/readyz", |status, _| status == 503).await;
        assert_eq!(admin.get("/livez").await.0, 200);
    };
    tokio::join!(drained, looked);
    assert_eq!(check::text(&check::outcomes(&stream.to_end().await)["c"]), "slept");
}

#[tokio::test]
async fn any_coordinator_tells_autoscalers_what_a_pool_has_to_do() {
    let (first, second) = (Admin::anywhere(), Admin::anywhere());
    let yard = Yard::start_with(first.of(&Fixture::new(FIXTURE))).await;
    let other = second.of(&Fixture::new(FIXTURE)).coordinator(&yard.broker.url()).await;
    let _worker = Fixture::new(FIXTURE).worker(&yard.broker.url(), "main", 2).await;
    yard.client.wait_for_tool("sleep").await;
    let other = Client::connect(other.address()).await;
    other.wait_for_tool("sleep").await;
    let sleep = |id: &str| call(id, "sleep", json!({ "ms": 600_000, "text": "" }));
    let run = yard.client.create(vec![sleep("a"), sleep("b"), sleep("c"), sleep("d"), sleep("e")]).await;
    let told = |stats: &str| serde_json::from_str::<Value>(stats).map(|stats| stats["pools"]["main"].clone());
    // The queue has two at most beside those that run: the others wait for their turn.
    let is_wanted = |told: &Value| {
        let waiting = told["waiting"].as_u64().unwrap_or(0);
        let wanted = json!({
            "jobs": waiting + 2, "waiting": waiting, "running": 2, "workers": 1, "slots": 2, "free_slots": 0,
        });
        (1..=3).contains(&waiting) && *told == wanted
    };
    for admin in [first, second] {
        admin.until("/stats", |_, stats| told(stats).is_ok_and(|told| is_wanted(&told))).await;
    }
    run.cancel("enough").await;
}

#[tokio::test]
async fn a_call_of_a_pool_that_was_scaled_to_zero_waits_for_the_worker_that_its_queue_asks_for() {
    let admin = Admin::anywhere();
    let mut yard = Yard::start_with(admin.of(&Fixture::new(FIXTURE)).with("TOOLYARD_ON_DEMAND", "main")).await;
    let mut last = Fixture::new(FIXTURE).worker(&yard.broker.url(), "main", 2).await;
    let crew = Fixture::new(FIXTURE).with("TOOLYARD_FIXTURE_TOOLS", "crew");
    let mut crew = crew.worker(&yard.broker.url(), "crew", 2).await;
    yard.client.wait_for_tool("echo").await;
    yard.client.wait_for_tool("crew_works").await;
    last.terminate().await;
    crew.terminate().await;
    let of_pool = |stats: &str| serde_json::from_str::<Value>(stats).map(|stats| stats["pools"]["main"].clone());
    let is = |jobs: u64, workers: u64| {
        move |_: u16, stats: &str| of_pool(stats).is_ok_and(|it| it["jobs"] == jobs && it["workers"] == workers)
    };
    admin.until("/stats", is(0, 0)).await;
    // A coordinator that starts meanwhile knows the tools too.
    let address = yard.coordinator.address();
    yard.coordinator.terminate().await;
    yard.coordinator = yard.fixture.coordinator_at(&yard.broker.url(), address).await;
    let client = Client::connect(address).await;
    // Of pools that nobody starts nothing is offered, once the coordinator is sure that no worker is there.
    let offered = || async {
        let listed = client.tools.clone().list_tools(v1::ListToolsRequest::default()).await.expect("a list");
        listed.into_inner().tools.into_iter().map(|tool| tool.name).collect::<Vec<_>>()
    };
    let has = |tools: &[String], name: &str| tools.iter().any(|tool| tool == name);
    let gone = async {
        while has(&offered().await, "crew_works") {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(harness::PATIENCE, gone).await.expect("it is sure in time");
    assert!(has(&offered().await, "echo"));
    let stream = client.execute(vec![call("a", "echo", json!({ "text": "awake" }))]).await;
    admin.until("/stats", is(1, 0)).await;
    let _worker = Fixture::new(FIXTURE).worker(&yard.broker.url(), "main", 2).await;
    let events = stream.to_end().await;
    check::whole(&events, true);
    assert_eq!(check::text(&check::outcomes(&events)["a"]).split(',').next(), Some("awake"));
    admin.until("/stats", is(0, 1)).await;
}

#[tokio::test]
async fn what_is_logged_is_chosen_while_it_runs() {
    let admin = Admin::anywhere();
    let _yard = Yard::start_with(admin.of(&Fixture::new(FIXTURE))).await;
    assert_eq!(admin.ask("PUT", "/log-level", "warn,toolyard=debug\n").await.0, 200);
    let (status, error) = admin.ask("PUT", "/log-level", "toolyard=loud").await;
    assert!(status == 400 && error.contains("toolyard=loud"), "{status} {error}");
    assert_eq!(admin.ask("PUT", "/log-level", &"x".repeat(8192)).await.0, 413);
    assert_eq!(admin.get("/nothing-here").await.0, 404);
    for too_much in ["h2=trace", "toolyard::audit=off", "toolyard=info,[span]=trace"] {
        let (status, error) = admin.ask("PUT", "/log-level", too_much).await;
        assert!(status == 400 && error.contains("cannot be set here"), "{too_much}: {status} {error}");
    }
    let (status, error) = admin.ask_for("evil.example", "PUT", "/log-level", "off").await;
    assert!(status == 403 && error.contains("--host-names"), "{status} {error}");
    assert_eq!(admin.ask_for("localhost:1", "GET", "/livez", "").await.0, 200);
}

/// The value of a series, as it was scraped.
fn value(text: &str, series: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.strip_prefix(series).is_some_and(|rest| rest.starts_with(' ')))?;
    line.rsplit(' ').next()?.parse().ok()
}

#[tokio::test]
async fn a_run_that_waits_for_its_client_alone_is_kept_packed_until_it_is_answered() {
    let admin = Admin::anywhere();
    let yard = Yard::start_with(admin.of(&Fixture::new(FIXTURE))).await;
    let _worker = Fixture::new(FIXTURE).worker(&yard.broker.url(), "main", 4).await;
    let rest = |open: f64, resting: f64| {
        move |_: u16, text: &str| {
            value(text, "toolyard_runs_open") == Some(open) && value(text, "toolyard_runs_resting") == Some(resting)
        }
    };
    let sleeps = call("s", "sleep", json!({ "ms": 600_000, "text": "" }));
    let busy = yard.client.create(vec![crate::question("also"), sleeps]).await;
    let waits = yard.client.create(vec![crate::question("ask")]).await;
    admin.until("/metrics", rest(2.0, 1.0)).await;
    waits.submit(vec![harness::client_answer("ask", "this one")]).await.expect("the call waits");
    check::whole(&waits.watch(v1::FloorPolicy::Arrival).await.to_end().await, true);
    admin.until("/metrics", rest(1.0, 0.0)).await;
    busy.cancel("enough").await;
}

#[tokio::test]
async fn what_happens_to_calls_is_counted_where_it_happens() {
    let (door, hosts) = (Admin::anywhere(), Admin::anywhere());
    let yard = Yard::start_with(door.of(&Fixture::new(FIXTURE))).await;
    let worker = |admin: &Admin| admin.of(&Fixture::new(FIXTURE));
    let mut first = worker(&hosts).worker(&yard.broker.url(), "main", 1).await;
    yard.client.wait_for_tool("count").await;
    let mut stream = yard.client.execute(vec![crate::count("a", 100, 60)]).await;
    stream.until(|event| matches!(event, Event::CallOutput(_))).await;
    let behind = vec![
        call("b", "echo", json!({ "text": "hi" })),
        crate::question("ask"),
        call("who", "nobody-hosts-this", json!({})),
    ];
    let run = yard.client.create(behind).await;
    let waits = |text: &str| {
        value(text, "toolyard_calls_running{pool=\"main\",tool=\"count\"}") == Some(1.0)
            && value(text, "toolyard_calls_runnable{pool=\"main\",tool=\"echo\"}") == Some(1.0)
            && value(text, "toolyard_calls_waiting{pool=\"main\",tool=\"echo\"}") == Some(1.0)
            && value(text, "toolyard_queue_age_seconds{pool=\"main\",tool=\"echo\"}").is_some_and(|age| age > 0.0)
            && value(text, "toolyard_client_calls_waiting") == Some(1.0)
            && value(text, "toolyard_runs_open") == Some(2.0)
            && value(text, "toolyard_shards_owned") == Some(16.0)
            && value(text, "toolyard_pool_slots{pool=\"main\"}") == Some(1.0)
            && value(text, "toolyard_log_reachable") == Some(1.0)
            && value(text, "toolyard_log_bytes").is_some_and(|bytes| bytes > 0.0)
    };
    door.until("/metrics", |_, text| waits(text)).await;
    hosts.until("/metrics", |_, text| value(text, "toolyard_worker_free_slots{pool=\"main\"}") == Some(0.0)).await;
    first.kill().await;
    let hosts = Admin::anywhere();
    let _second = worker(&hosts).worker(&yard.broker.url(), "main", 1).await;
    run.submit(vec![harness::client_answer("ask", "this one")]).await.expect("the call waits");
    check::whole(&stream.to_end().await, true);
    check::whole(&run.watch(proto::v1::FloorPolicy::Arrival).await.to_end().await, true);
    let ended = |text: &str| {
        let of = |tool: &str, outcome: &str, pool: &str| {
            let labels = format!("pool=\"{pool}\",tool=\"{tool}\",outcome=\"{outcome}\"");
            value(text, &format!("toolyard_calls_ended_total{{{labels}}}"))
        };
        of("count", "completed", "main") == Some(1.0)
            && of("echo", "completed", "main") == Some(1.0)
            && of("ask_user", "completed", "") == Some(1.0)
            && of("other", "failed", "") == Some(1.0)
            && value(text, "toolyard_jobs_handed_back_total{pool=\"main\"}").is_some_and(|jobs| jobs >= 1.0)
            && value(text, "toolyard_floor_wait_seconds_count{tool=\"count\"}").is_some_and(|calls| calls >= 1.0)
            && value(text, "toolyard_floor_wait_seconds_count{tool=\"echo\"}").is_some_and(|calls| calls >= 1.0)
    };
    door.until("/metrics", |_, text| ended(text)).await;
    let attempts = |text: &str| {
        let labels = "pool=\"main\",tool=\"count\"";
        value(text, &format!("toolyard_attempts_total{{{labels},outcome=\"completed\"}}")) == Some(1.0)
            && value(text, &format!("toolyard_attempt_seconds_count{{{labels}}}")) == Some(1.0)
            && value(text, &format!("toolyard_first_chunk_seconds_count{{{labels}}}")) == Some(1.0)
            && value(text, &format!("toolyard_output_bytes_total{{{labels}}}")) == Some(f64::from(COUNTED))
            && value(text, "toolyard_redeliveries_total{pool=\"main\"}").is_some_and(|jobs| jobs >= 1.0)
            && value(text, "toolyard_worker_free_slots{pool=\"main\"}") == Some(1.0)
    };
    hosts.until("/metrics", |_, text| attempts(text)).await;
    let (_, text) = door.get("/metrics").await;
    assert!(!text.contains("nobody-hosts-this"), "a caller makes up no series");
}

/// Bytes of what a call of `count` says in 100 pieces.
const COUNTED: u32 = 10 * 4 + 90 * 5;

#[tokio::test]
async fn requests_are_counted_by_method_and_by_how_they_were_answered() {
    let door = Admin::anywhere();
    let yard = Yard::start_with(door.of(&Fixture::new(FIXTURE))).await;
    let _worker = Fixture::new(FIXTURE).worker(&yard.broker.url(), "main", 4).await;
    yard.client.wait_for_tool("echo").await;
    yard.client.execute(vec![call("a", "echo", json!({ "text": "hi" }))]).await.to_end().await;
    let nothing = yard.client.execute_request(proto::v1::CreateRunRequest::default()).await;
    nothing.expect_err("a run needs a call");
    let http = yard.http();
    let unknown = http.get("/v1/tools/nobody").await.problem();
    assert_eq!(unknown, (404, "TOOL_NOT_FOUND".to_owned()));
    assert_eq!(http.get("/v1/nonsense/of/a/caller").await.problem().0, 404);
    let (_, text) = door.get("/metrics").await;
    let requests = |protocol: &str, method: &str, code: &str| {
        let labels = format!("protocol=\"{protocol}\",method=\"{method}\",code=\"{code}\"");
        value(&text, &format!("toolyard_requests_total{{{labels}}}"))
    };
    assert_eq!(requests("grpc", "ExecuteRun", "OK"), Some(1.0), "{text}");
    assert_eq!(requests("grpc", "ExecuteRun", "INVALID_ARGUMENT"), Some(1.0), "{text}");
    assert_eq!(requests("http", "GetTool", "404"), Some(1.0), "{text}");
    assert_eq!(requests("http", "other", "404"), Some(1.0), "{text}");
    assert!(!text.contains("nonsense"), "a caller makes up no series");
    let took = "toolyard_request_seconds_count{protocol=\"grpc\",method=\"ExecuteRun\"}";
    assert_eq!(value(&text, took), Some(2.0), "{text}");
    assert_eq!(value(&text, "toolyard_refusals_total{reason=\"TOOL_NOT_FOUND\"}"), Some(1.0), "{text}");
    let release = format!("toolyard_build_info{{version=\"{}\",part=\"coordinator\"}}", env!("CARGO_PKG_VERSION"));
    assert_eq!(value(&text, &release), Some(1.0), "{text}");
    assert!(value(&text, "process_resident_memory_bytes").is_some_and(|bytes| bytes > 1e6), "{text}");
}
