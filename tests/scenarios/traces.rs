//! One trace for a call, from its caller through the log and the worker and back, after any crash; and no content of
//! calls in traces, logs or metrics.

use harness::{Admin, Collector, Fixture, Span, SpanKind, Yard, call, hex, said};
use proto::v1::{self, run_event::Event};
use serde_json::json;
use tonic::Request;

use crate::{FIXTURE, count};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";
const JOB: &str = "ty.run.{shard}.{run}.{call}.job.{pool}";

/// A request to execute these calls, of a caller who traces it or does not want it traced.
fn request(calls: Vec<v1::NewCall>, flags: &str) -> Request<v1::ExecuteRunRequest> {
    let mut request = Request::new(v1::CreateRunRequest { calls, ..v1::CreateRunRequest::default() }.into());
    let traceparent = format!("00-{TRACE}-{CALLER}-{flags}").parse().expect("it is ASCII");
    request.metadata_mut().insert("traceparent", traceparent);
    request
}

/// Reads a stream until an event is seen that is wanted, or to its end.
async fn read(stream: &mut tonic::Streaming<v1::ExecuteRunResponse>, wanted: impl Fn(&Event) -> bool) {
    let read = async {
        while let Some(message) = stream.message().await.expect("the stream does not break") {
            if message.events.iter().filter_map(|event| event.event.as_ref()).any(&wanted) {
                return;
            }
        }
    };
    tokio::time::timeout(harness::PATIENCE, read).await.expect("it comes in time");
}

fn named<'a>(spans: &'a [Span], name: &str) -> Vec<&'a Span> {
    spans.iter().filter(|span| span.name == name).collect()
}

fn only<'a>(spans: &'a [Span], name: &str) -> &'a Span {
    let found = named(spans, name);
    assert_eq!(found.len(), 1, "{name} among {spans:#?}");
    found[0]
}

#[tokio::test]
async fn a_run_names_the_trace_of_its_calls_if_they_are_traced() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    yard.client.wait_for_tool("count").await;
    for (flags, trace) in [("01", TRACE), ("00", "")] {
        let traceparent = format!("00-{TRACE}-{CALLER}-{flags}");
        let traced = v1::NewCall {
            metadata: [("traceparent".to_owned(), traceparent)].into_iter().collect(),
            ..count("traced", 1, 1)
        };
        let run = yard.client.create(vec![count("other", 1, 1), traced]).await;
        run.watch(v1::FloorPolicy::Arrival).await.to_end().await;
        let stored = run.get().await;
        assert_eq!(stored.trace_id, trace, "{flags}");
        let call = &stored.calls[0];
        let millis = |time: &Option<prost_types::Timestamp>| time.map(|time| (time.seconds, time.nanos));
        let times = [&call.create_time, &call.queue_time, &call.end_time].map(millis);
        assert!(times.iter().all(Option::is_some) && times.is_sorted(), "its turn came in between: {times:?}");
    }
}

#[tokio::test]
async fn one_trace_holds_a_call_from_its_caller_to_both_its_attempts_though_a_worker_was_killed() {
    let collector = Collector::start().await;
    let yard = Yard::start_with(collector.of(&Fixture::new(FIXTURE))).await;
    let mut first = yard.worker().await;
    let process = format!("process {JOB}");
    let mut runs = yard.client.runs.clone();
    let calls = vec![count("c", 80, 60), count("d", 1, 1)];
    let mut stream = runs.execute_run(request(calls, "01")).await.expect("it is accepted").into_inner();
    read(&mut stream, |event| matches!(event, Event::CallOutput(output) if output.call_id == "c")).await;
    // Its exported spans are not lost with it.
    collector.until(TRACE, |spans| named(spans, &process).len() == 1).await;
    first.kill().await;
    let second = yard.worker().await;
    read(&mut stream, |_| false).await;
    drop(stream);

    let is_whole = |spans: &[Span]| {
        named(spans, &process).len() == 3
            && named(spans, "call count").len() == 2
            && !named(spans, "toolyard.v1.RunService/ExecuteRun").is_empty()
            && named(spans, "execute_tool count").len() == 2
    };
    let spans = collector.until(TRACE, is_whole).await;
    let parent = |span: &Span| hex(&span.parent_span_id);
    let of = |name: &str, id: &str| -> Vec<&Span> {
        let of_call = |span: &&Span| said(span, "gen_ai.tool.call.id").as_deref() == Some(id);
        named(&spans, name).into_iter().filter(of_call).collect()
    };

    let door = only(&spans, "toolyard.v1.RunService/ExecuteRun");
    assert_eq!((parent(door).as_str(), door.kind()), (CALLER, SpanKind::Server));
    let calls = of("call count", "c");
    assert_eq!((calls.len(), parent(calls[0])), (1, hex(&door.span_id)));
    let attempts = of(&process, "c");
    assert_eq!(attempts.len(), 2);
    for attempt in &attempts {
        assert_eq!(
            (parent(attempt), attempt.kind()),
            (hex(&calls[0].span_id), SpanKind::Consumer),
            "they are siblings"
        );
        assert_eq!(said(attempt, "messaging.system").as_deref(), Some("nats"));
        assert_eq!(said(attempt, "messaging.destination.template").as_deref(), Some(JOB));
    }
    let attempt = |number: &str| {
        let found = attempts.iter().find(|span| said(span, "toolyard.attempt").as_deref() == Some(number));
        found.expect("there is one of this number")
    };
    assert_eq!(said(attempt("1"), "toolyard.worker.id").as_deref(), Some(first.id()));
    assert_eq!(said(attempt("1"), "error.type").as_deref(), Some("worker_lost"), "told by the owner of the run");
    assert_eq!(said(attempt("2"), "toolyard.worker.id").as_deref(), Some(second.id()));
    assert_eq!(said(attempt("2"), "error.type"), None);
    let executed = of("execute_tool count", "c");
    assert_eq!((executed.len(), parent(executed[0])), (1, hex(&attempt("2").span_id)));
    for (key, value) in [
        ("gen_ai.operation.name", "execute_tool"),
        ("gen_ai.tool.name", "count"),
        ("gen_ai.tool.call.id", "c"),
        ("gen_ai.tool.type", "function"),
    ] {
        assert_eq!(said(executed[0], key).as_deref(), Some(value));
    }
    let sent = of(&format!("send {JOB}"), "c");
    assert_eq!((sent.len(), parent(sent[0]), sent[0].kind()), (1, hex(&calls[0].span_id), SpanKind::Producer));

    let known: Vec<String> = spans.iter().map(|span| hex(&span.span_id)).chain([CALLER.to_owned()]).collect();
    for span in &spans {
        assert!(known.contains(&parent(span)), "{} hangs in the air", span.name);
        assert!(span.start_time_unix_nano <= span.end_time_unix_nano, "{}", span.name);
        assert!(!span.name.contains("run_"), "a name holds no ids: {}", span.name);
    }
}

#[tokio::test]
async fn what_its_caller_does_not_trace_is_not_traced() {
    let collector = Collector::start().await;
    let yard = Yard::start_with(collector.of(&Fixture::new(FIXTURE))).await;
    let _worker = yard.worker().await;
    let mut runs = yard.client.runs.clone();
    let calls = || vec![call("c", "echo", json!({ "text": "hi" }))];
    let mut stream = runs.execute_run(request(calls(), "00")).await.expect("it is accepted").into_inner();
    read(&mut stream, |_| false).await;
    // A traced one behind it, so that we know when the first would have come.
    let mut traced = request(calls(), "01");
    let other = format!("00-{}-{CALLER}-01", "1".repeat(32)).parse().expect("it is ASCII");
    traced.metadata_mut().insert("traceparent", other);
    let mut stream = runs.execute_run(traced).await.expect("it is accepted").into_inner();
    read(&mut stream, |_| false).await;
    collector.until(&"1".repeat(32), |spans| spans.len() >= 5).await;
    assert_eq!(collector.spans(TRACE), []);
}

#[tokio::test]
async fn a_collector_that_is_not_there_or_never_answers_holds_nobody_up() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let silent = silent.local_addr().map(|address| (silent, address)).expect("it has an address");
    let admin = Admin::anywhere();
    for (endpoint, drops) in [("http://127.0.0.1:1".to_owned(), true), (format!("http://{}", silent.1), false)] {
        let fixture = admin.of(&Fixture::new(FIXTURE)).with("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint);
        let fixture = fixture.with("OTEL_BSP_SCHEDULE_DELAY", 200);
        let mut yard = Yard::start_with(fixture).await;
        let _worker = Fixture::new(FIXTURE).worker(&yard.broker.url(), "main", 16).await;
        yard.client.wait_for_tool("echo").await;
        for _ in 0..20 {
            let calls = vec![call("c", "echo", json!({ "text": "hi" }))];
            crate::check::whole(&yard.client.execute(calls).await.to_end().await, true);
        }
        if drops {
            let dropped = |text: &str| {
                let line = text.lines().find(|line| line.contains("telemetry_dropped_total{what=\"spans\"}"));
                line.and_then(|line| line.rsplit(' ').next()).is_some_and(|count| count != "0")
            };
            admin.until("/metrics", |_, text| dropped(text)).await;
        }
        // It ends in order and in time all the same.
        yard.coordinator.terminate().await;
    }
}

#[tokio::test]
async fn a_secret_that_went_through_is_in_no_log_no_trace_and_no_metric() {
    const SECRET: &str = "sesame-4711";
    let collector = Collector::start().await;
    let (door, hosts) = (Admin::anywhere(), Admin::anywhere());
    let folder = tempfile::tempdir().expect("a temporary folder");
    let logs = ["coordinator", "worker"].map(|name| folder.path().join(name));
    let fixture = |admin: &Admin, log: &std::path::Path| {
        let fixture = collector.of(&admin.of(&Fixture::new(FIXTURE)));
        fixture.with("TOOLYARD_LOG", "debug,toolyard=trace").logging_to(log)
    };
    let yard = Yard::start_with(fixture(&door, &logs[0])).await;
    let mut worker = fixture(&hosts, &logs[1]).worker(&yard.broker.url(), "main", 4).await;
    yard.client.wait_for_tool("echo").await;
    let calls = vec![
        call("said", "echo", json!({ "text": SECRET })),
        call("misfit", "echo", json!({ "text": 1, SECRET: SECRET })),
        count(SECRET, 3, 10),
        call("nobody", "no-such-tool", json!({ "text": SECRET })),
        call("given", "knows", json!({})),
        call("misgiven", "sees", json!({})),
        call("gives", "remembers", json!({ "state": { SECRET: SECRET }, "after_ms": 1 })),
        call("converses", "converses", json!({})),
    ];
    let given = [("user", json!(SECRET)), ("note", json!([SECRET]))].map(|(key, value)| (key.to_owned(), value));
    let given = serde_json::Value::Object(given.into_iter().collect()).to_string();
    let calls =
        calls.into_iter().map(|call| v1::NewCall { call_id: String::new(), context: given.clone(), ..call }).collect();
    let mut runs = yard.client.runs.clone();
    let mut request = request(calls, "01");
    let role = v1::ConversationRole::User.into();
    let said = |text: String| v1::ConversationMessage { role, text, ..v1::ConversationMessage::default() };
    let run = request.get_mut().run.as_mut().expect("it has a run");
    run.conversation = vec![said(SECRET.to_owned()), said(SECRET.repeat(20_000))];
    let mut stream = runs.execute_run(request).await.expect("it is accepted").into_inner();
    read(&mut stream, |_| false).await;
    drop(stream);
    collector.until(TRACE, |spans| named(spans, "toolyard.v1.RunService/ExecuteRun").len() == 1).await;
    collector.until(TRACE, |spans| named(spans, "execute_tool echo").len() == 1).await;
    collector.until_metric("toolyard.attempts", |_| true).await;
    let scraped = [door.get("/metrics").await.1, hosts.get("/metrics").await.1];
    assert!(scraped[1].contains("toolyard_attempts_total{pool=\"main\",tool=\"echo\",outcome=\"completed\"} 1"));
    worker.terminate().await;
    let logs = logs.map(|log| std::fs::read_to_string(log).expect("it logged"));
    assert!(logs.iter().all(|log| log.contains("run.id")), "they say whose they are");
    for (what, text) in [
        ("the coordinator's log", &logs[0]),
        ("the worker's log", &logs[1]),
        ("the coordinator's metrics", &scraped[0]),
        ("the worker's metrics", &scraped[1]),
        ("what was exported", &collector.everything()),
    ] {
        let line = text.lines().find(|line| line.contains(SECRET));
        assert!(line.is_none(), "{what} tells it: {line:?}");
    }
}

#[tokio::test]
async fn content_is_in_a_trace_where_it_was_asked_for_and_a_tool_may_trace_on() {
    let collector = Collector::start().await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let log = folder.path().join("worker");
    let yard = Yard::start_with(collector.of(&Fixture::new(FIXTURE))).await;
    let fixture = yard.fixture.with("TOOLYARD_INCLUDE_CONTENT", true).with("TOOLYARD_LOG", "warn").logging_to(&log);
    let _worker = fixture.worker(&yard.broker.url(), "main", 4).await;
    yard.client.wait_for_tool("echo").await;
    let warned = std::fs::read_to_string(&log).expect("it logged");
    assert!(warned.contains("whoever sees the traces reads them"), "{warned}");
    let mut runs = yard.client.runs.clone();
    let calls = vec![call("c", "echo", json!({ "text": "hi" }))];
    let mut stream = runs.execute_run(request(calls, "01")).await.expect("it is accepted").into_inner();
    read(&mut stream, |_| false).await;
    let spans = collector.until(TRACE, |spans| named(spans, "execute_tool echo").len() == 1).await;
    let span = only(&spans, "execute_tool echo");
    assert_eq!(said(span, "gen_ai.tool.call.arguments").as_deref(), Some("{\"text\":\"hi\"}"));
    // The tool returns the parent span for its own spans, which is in the metadata.
    let result = format!("hi, 00-{TRACE}-{}-01", hex(&span.span_id));
    assert_eq!(said(span, "gen_ai.tool.call.result"), Some(result));
}

#[tokio::test]
async fn an_embedding_program_names_the_spans_of_tools_and_adds_attributes() {
    let collector = Collector::start().await;
    let yard = Yard::start_with(collector.of(&Fixture::new(FIXTURE))).await;
    let fixture = yard.fixture.with("TOOLYARD_FIXTURE_OBSERVER", true);
    let _worker = fixture.worker(&yard.broker.url(), "main", 4).await;
    yard.client.wait_for_tool("echo").await;
    let mut echo = call("c", "echo", json!({ "text": "hi" }));
    echo.metadata.insert("order".to_owned(), "4711".to_owned());
    let mut request = request(vec![echo, count("d", 1, 1)], "01");
    request.get_mut().run.as_mut().expect("it has a run").tenant = "acme".to_owned();
    let mut runs = yard.client.runs.clone();
    let mut stream = runs.execute_run(request).await.expect("it is accepted").into_inner();
    read(&mut stream, |_| false).await;
    let is_there =
        |spans: &[Span]| ["shop echo", "execute_tool count"].iter().all(|name| named(spans, name).len() == 1);
    let spans = collector.until(TRACE, is_there).await;
    let span = only(&spans, "shop echo");
    let attribute = |name: &str| said(span, name).unwrap_or_else(|| panic!("no {name} in {span:#?}"));
    assert_eq!(["shop.order", "shop.tenant", "gen_ai.tool.name"].map(attribute), ["4711", "acme", "echo"]);
    assert!(attribute("shop.attempt").starts_with("1 of run_") && attribute("shop.description") != "0");
}
