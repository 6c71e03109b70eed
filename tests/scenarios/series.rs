//! Metrics of calls from acceptance to end, of tenants and of stores, and their links to traces.

use std::time::Duration;

use harness::{Admin, Callers, Client, Collector, Fixture, Guarded, Yard, call};
use proto::v1;
use proto::v1::FloorPolicy;
use serde_json::json;
use tonic::{Code, Request};

use crate::{FIXTURE, check};

/// The value of a series, named with its labels.
fn value(text: &str, series: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
    line.split(' ').next()?.parse().ok()
}

#[tokio::test]
async fn a_call_is_timed_from_its_acceptance_to_its_end_and_once_though_its_owner_died() {
    let admins = [Admin::anywhere(), Admin::anywhere()];
    let mut yard = Yard::start_with(admins[0].of(&Fixture::new(FIXTURE))).await;
    let worker = Fixture::new(FIXTURE).worker(&yard.broker.url(), "main", 4).await;
    yard.client.wait_for_tool("waits").await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("there");
    let accepted = std::time::Instant::now();
    let run = yard.client.create(vec![call("c", "waits", json!({ "path": path }))]).await;
    let completed = "{pool=\"main\",outcome=\"completed\"}";
    let count = format!("toolyard_call_seconds_count{completed}");
    // A call that has ended before is counted by the owner that saw it end, and by no other.
    yard.client.execute(vec![call("e", "echo", json!({ "text": "hi" }))]).await.to_end().await;
    admins[0].until("/metrics", |_, text| value(text, &count) == Some(1.0)).await;
    yard.coordinator.kill().await;
    let fixture = admins[1].of(&Fixture::new(FIXTURE));
    let other = fixture.coordinator(&yard.broker.url()).await;
    let run = harness::Run { client: Client::connect(other.address()).await, id: run.id };
    admins[1].until("/metrics", |_, text| value(text, "toolyard_shards_owned") == Some(16.0)).await;
    std::fs::write(&path, "").expect("it is written");
    check::whole(&run.watch(FloorPolicy::Arrival).await.to_end().await, true);
    admins[1].until("/metrics", |_, text| value(text, &count).is_some()).await;
    let (_, text) = admins[1].get("/metrics").await;
    assert_eq!(value(&text, &count), Some(1.0));
    let took = value(&text, &format!("toolyard_call_seconds_sum{completed}")).expect("there is a sum");
    let most = accepted.elapsed().as_secs_f64();
    // The lease of the coordinator that died lasts for seconds.
    assert!(took > 1.0 && took <= most + 0.1, "{took} s of {most} s");
    assert!(text.contains("toolyard_call_seconds_bucket{pool=\"main\",outcome=\"completed\",le=\"0.0005\"} 0"));
    drop(worker);
}

const CALLERS: &str = r#"
    [[callers]]
    name = "shop"
    tenant = "acme"
    roles = ["submit", "read"]
    tools = [{ names = ["*"] }]
    keys = ["{shop}"]

    [[callers]]
    name = "rival"
    tenant = "rival"
    roles = ["submit", "read"]
    tools = [{ names = ["*"] }]
    keys = ["{rival}"]

    [quotas.rival]
    calls_at_once = 1
"#;

#[tokio::test]
async fn calls_and_refusals_are_counted_by_tenant() {
    let (admin, folder) = (Admin::anywhere(), tempfile::tempdir().expect("a temporary folder"));
    let callers = Callers::new(CALLERS);
    let fixture = Fixture::new(FIXTURE).with("TOOLYARD_AUTH", callers.file().display());
    let broker = local::Broker::start(local::BrokerOptions::default(), |_| {}).await.expect("a broker starts");
    let coordinator = admin.of(&fixture).coordinator(&broker.url()).await;
    let worker = fixture.worker(&broker.url(), "main", 16).await;
    let stranger = Client::connect(coordinator.address()).await;
    let yard = Guarded { fixture, broker, coordinator, worker, callers, stranger };
    let [shop, rival] = ["shop", "rival"].map(|name| yard.client(name));
    shop.wait_for_tool("waits").await;
    let waits = || vec![call("c", "waits", json!({ "path": folder.path().join("there") }))];
    let held = rival.create(waits()).await;
    shop.execute(vec![call("e", "echo", json!({ "text": "hi" }))]).await.to_end().await;
    let request = v1::CreateRunRequest { calls: waits(), ..v1::CreateRunRequest::default() };
    let refused = rival.execute_request(request).await.expect_err("one call at once");
    assert_eq!(refused.code(), Code::ResourceExhausted);
    let counted = |text: &str| {
        let of = |name: &str, labels: &str| value(text, &format!("toolyard_tenant_{name}{{{labels}}}"));
        of("calls_accepted_total", "tenant=\"acme\"") == Some(1.0)
            && of("calls_ended_total", "tenant=\"acme\",outcome=\"completed\"") == Some(1.0)
            && of("calls_accepted_total", "tenant=\"rival\"") == Some(1.0)
            && of("calls_running", "tenant=\"rival\"") == Some(1.0)
            && of("refusals_total", "tenant=\"rival\"") == Some(1.0)
            && of("refusals_total", "tenant=\"acme\"").is_none()
    };
    admin.until("/metrics", |_, text| counted(text)).await;
    std::fs::write(folder.path().join("there"), "").expect("it is written");
    check::whole(&held.watch(FloorPolicy::Arrival).await.to_end().await, true);
}

#[tokio::test]
async fn a_scraper_sees_whether_redis_answers() {
    let mut store = local::Store::start(|_| {}).await.expect("a store starts");
    let admin = Admin::anywhere();
    let _yard = Yard::start_with(admin.of(&Fixture::new(FIXTURE).with_redis(&store.url()))).await;
    admin.until("/metrics", |_, text| value(text, "toolyard_redis_reachable") == Some(1.0)).await;
    store.kill().await;
    admin.until("/metrics", |_, text| value(text, "toolyard_redis_reachable") == Some(0.0)).await;
}

#[tokio::test]
async fn a_bucket_of_a_histogram_leads_to_the_trace_of_a_call() {
    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    let (door, hosts, collector) = (Admin::anywhere(), Admin::anywhere(), Collector::start().await);
    let yard = Yard::start_with(collector.of(&door.of(&Fixture::new(FIXTURE)))).await;
    let _worker = collector.of(&hosts.of(&Fixture::new(FIXTURE))).worker(&yard.broker.url(), "main", 4).await;
    yard.client.wait_for_tool("echo").await;
    let calls = vec![call("c", "echo", json!({ "text": "hi" }))];
    let mut request = Request::new(v1::CreateRunRequest { calls, ..v1::CreateRunRequest::default() }.into());
    let traceparent = format!("00-{TRACE}-00f067aa0ba902b7-01").parse().expect("it is ASCII");
    request.metadata_mut().insert("traceparent", traceparent);
    let mut stream = yard.client.runs.clone().execute_run(request).await.expect("it is accepted").into_inner();
    while stream.message().await.expect("the stream does not break").is_some() {}
    for (admin, histogram) in [
        (&door, "toolyard_call_seconds_bucket"),
        (&door, "toolyard_request_seconds_bucket"),
        (&hosts, "toolyard_attempt_seconds_bucket"),
    ] {
        let leads = |text: &str| {
            let link = format!("# {{trace_id=\"{TRACE}\"}} ");
            text.lines().any(|line| line.starts_with(histogram) && line.contains(&link))
        };
        let led = async {
            while !leads(&admin.openmetrics().await) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(harness::PATIENCE, led).await.expect(histogram);
        assert!(admin.openmetrics().await.ends_with("# EOF\n"));
        assert!(!admin.get("/metrics").await.1.contains(TRACE), "the older format has no links");
    }
}
