//! Traces, metrics and logs reach an OpenTelemetry collector over gRPC and over HTTP, with TLS and without, under the
//! names that OpenTelemetry gives them.

use harness::{Authority, Collector, Data, Fixture, LogRecord, Metric, Span, Worker, Yard, call, hex};
use proto::v1;
use serde_json::json;
use tonic::Request;

use crate::{FIXTURE, check};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// Executes a traced call in a fleet that exports to a collector, and waits until its trace and metrics are there.
/// The processes still run: what they have not exported yet is still to come.
async fn a_call_is_exported(collector: &Collector, fixture: &Fixture) -> (Yard, Worker) {
    let yard = Yard::start_with(collector.of(fixture)).await;
    let worker = yard.worker().await;
    yard.client.wait_for_tool("echo").await;
    let calls = vec![call("c", "echo", json!({ "text": "hi" }))];
    let mut request = Request::new(v1::CreateRunRequest { calls, ..v1::CreateRunRequest::default() }.into());
    let traceparent = format!("00-{TRACE}-00f067aa0ba902b7-01").parse().expect("it is ASCII");
    request.metadata_mut().insert("traceparent", traceparent);
    let mut stream = yard.client.runs.clone().execute_run(request).await.expect("it is accepted").into_inner();
    while stream.message().await.expect("the stream does not break").is_some() {}
    let has = |spans: &[Span], name: &str| spans.iter().any(|span| span.name == name);
    collector.until(TRACE, |spans| has(spans, "call echo") && has(spans, "execute_tool echo")).await;
    let attempts = collector.until_metric("toolyard.attempts", is_counted).await;
    assert_eq!(attempts.unit, "{attempt}");
    assert_eq!(collector.until_metric("process.cpu.time", is_counted).await.unit, "s");
    let request = collector.until_metric("rpc.server.call.duration", |metric| counted(metric) > 0).await;
    assert_eq!(request.unit, "s");
    assert_eq!(bounds(&request).first(), Some(&0.0005));
    assert!(format!("{request:?}").contains("rpc.method"), "{request:?}");
    (yard, worker)
}

fn is_counted(metric: &Metric) -> bool {
    matches!(&metric.data, Some(Data::Sum(sum)) if sum.is_monotonic && !sum.data_points.is_empty())
}

/// How many values a histogram has.
fn counted(metric: &Metric) -> u64 {
    match &metric.data {
        Some(Data::Histogram(histogram)) => histogram.data_points.iter().map(|point| point.count).sum(),
        _ => 0,
    }
}

fn bounds(metric: &Metric) -> Vec<f64> {
    match &metric.data {
        Some(Data::Histogram(histogram)) => histogram.data_points[0].explicit_bounds.clone(),
        _ => Vec::new(),
    }
}

#[tokio::test]
async fn telemetry_is_exported_over_grpc_with_headers() {
    let collector = Collector::start().await;
    let fixture = Fixture::new(FIXTURE).with("OTEL_EXPORTER_OTLP_HEADERS", "x-team=agents");
    let _running = a_call_is_exported(&collector, &fixture).await;
    assert!(collector.teams().iter().all(|team| team == "agents") && !collector.teams().is_empty());
}

#[tokio::test]
async fn telemetry_is_exported_over_http_with_headers() {
    let collector = Collector::start_http(None).await;
    let fixture = Fixture::new(FIXTURE).with("OTEL_EXPORTER_OTLP_HEADERS", "x-team=agents");
    let _running = a_call_is_exported(&collector, &fixture).await;
    assert!(collector.teams().iter().all(|team| team == "agents") && !collector.teams().is_empty());
}

#[tokio::test]
async fn telemetry_is_exported_with_tls_over_grpc() {
    let authority = Authority::new();
    let collector = Collector::start_tls(&authority).await;
    let fixture = Fixture::new(FIXTURE).with("OTEL_EXPORTER_OTLP_CERTIFICATE", authority.file().display());
    let _running = a_call_is_exported(&collector, &fixture).await;
}

#[tokio::test]
async fn telemetry_is_exported_with_tls_over_http() {
    let authority = Authority::new();
    let collector = Collector::start_http(Some(&authority)).await;
    let fixture = Fixture::new(FIXTURE).with("OTEL_EXPORTER_OTLP_CERTIFICATE", authority.file().display());
    let _running = a_call_is_exported(&collector, &fixture).await;
}

#[tokio::test]
async fn what_is_logged_is_exported_where_it_is_asked_for_with_its_trace() {
    for collector in [Collector::start().await, Collector::start_http(None).await] {
        let fixture = Fixture::new(FIXTURE).with("OTEL_LOGS_EXPORTER", "otlp").with("OTEL_BLRP_SCHEDULE_DELAY", 200);
        let fixture = fixture.with("TOOLYARD_LOG", "warn,toolyard=debug");
        let _running = a_call_is_exported(&collector, &fixture).await;
        let says = |record: &LogRecord, text: &str| format!("{:?}", record.body).contains(text);
        collector.until_logged(|record| says(record, "attempt ended")).await;
        // Log events of a traced request carry its trace.
        collector.until_logged(|record| hex(&record.trace_id) == TRACE).await;
    }
}

#[tokio::test]
async fn a_collector_that_is_not_trusted_gets_nothing_and_hinders_no_call() {
    let (authority, other) = (Authority::new(), Authority::new());
    for collector in [Collector::start_tls(&authority).await, Collector::start_http(Some(&authority)).await] {
        let fixture = Fixture::new(FIXTURE).with("OTEL_EXPORTER_OTLP_CERTIFICATE", other.file().display());
        let admin = harness::Admin::anywhere();
        let yard = Yard::start_with(collector.of(&admin.of(&fixture))).await;
        let _worker = Fixture::new(FIXTURE).worker(&yard.broker.url(), "main", 4).await;
        yard.client.wait_for_tool("echo").await;
        let calls = vec![call("c", "echo", json!({ "text": "hi" }))];
        check::whole(&yard.client.execute(calls).await.to_end().await, true);
        let is_dropped = |text: &str, what: &str| {
            let line = format!("toolyard_telemetry_dropped_total{{what=\"{what}\"}} ");
            let count = text.lines().find_map(|known| known.strip_prefix(line.as_str()));
            count.is_some_and(|count| count != "0")
        };
        admin.until("/metrics", |_, text| is_dropped(text, "spans") && is_dropped(text, "metrics")).await;
        assert_eq!(collector.spans_taken(), 0);
    }
}
