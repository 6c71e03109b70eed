//! The HTTP door: the same runs and the same events as over gRPC, as JSON.

use harness::http::events;
use harness::{Http, Yard};
use hyper::Method;
use proto::v1::FloorPolicy;
use serde_json::{Value, json};

use crate::{FIXTURE, check};

/// As [`crate::count`].
fn count(id: &str, pieces: u32, every_ms: u64) -> Value {
    let arguments = json!({ "label": id, "pieces": pieces, "every_ms": every_ms }).to_string();
    json!({ "call_id": id, "tool": "count", "arguments": arguments })
}

fn question(id: &str) -> Value {
    json!({ "call_id": id, "tool": "ask_user", "arguments": "{\"question\":\"Which one?\"}" })
}

async fn create(http: Http, calls: &[Value]) -> String {
    let answer = http.post("/v1/runs", &json!({ "calls": calls })).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    answer.json()["run"]["run_id"].as_str().expect("the run has an id").to_owned()
}

/// The same run as gRPC has it.
fn over_grpc(yard: &Yard, id: &str) -> harness::Run {
    harness::Run { client: yard.client.clone(), id: id.to_owned() }
}

#[tokio::test]
async fn a_run_is_the_same_over_http_and_over_grpc() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let http = yard.http();
    let id = create(http, &[count("a", 30, 5), count("b", 3, 1)]).await;
    let mut stream = http.events(&id, None).await;
    stream.to_end().await.expect("the stream does not break");
    let told = over_grpc(&yard, &id).watch(FloorPolicy::Arrival).await.to_end().await;
    check::whole(&told, true);
    let sent = stream.sent();
    let (end, sent) = sent.split_last().expect("there are events");
    assert_eq!((end.name.as_deref(), end.id), (Some("end"), None));
    assert_eq!(end.json(), json!({ "reason": "STREAM_END_REASON_RUN_ENDED" }));
    assert_eq!(sent.len(), told.len());
    for (sent, told) in sent.iter().zip(&told) {
        assert_eq!((sent.id, &sent.name, sent.data.as_str()), (Some(told.sequence), &None, &*proto::json::write(told)));
    }
    let run = over_grpc(&yard, &id).get().await;
    let read: Value = serde_json::from_str(&proto::json::write(&run)).expect("it is JSON");
    assert_eq!(http.get(&format!("/v1/runs/{id}")).await.json(), json!({ "run": read }));
    assert_eq!(
        (&read["status"], &read["calls"][0]["outcome"]["state"]),
        (&json!("RUN_STATUS_COMPLETED"), &json!("CALL_STATE_COMPLETED"))
    );
}

#[tokio::test]
async fn a_stream_that_a_kill_broke_is_read_on_elsewhere_without_a_byte_of_difference() {
    let mut yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let id = create(yard.http(), &[count("a", 60, 50), count("b", 20, 50)]).await;
    let mut broken = yard.http().events(&id, None).await;
    broken.until(|bytes| events(bytes).len() > 20).await;
    yard.coordinator.kill().await;
    while broken.next().await.is_ok_and(|goes_on| goes_on) {}
    let whole = broken.bytes.windows(2).rposition(|end| end == b"\n\n").expect("an event came whole") + 2;
    broken.bytes.truncate(whole);
    let last = broken.sent().last().expect("events came").id;

    let elsewhere = yard.fixture.coordinator(&yard.broker.url()).await;
    let http = Http::new(elsewhere.address());
    let mut rest = http.events(&id, last).await;
    rest.to_end().await.expect("the stream does not break");
    let mut late = http.events(&id, None).await;
    late.to_end().await.expect("the stream does not break");
    let resumed = [broken.bytes, rest.bytes].concat();
    assert_eq!(String::from_utf8(resumed), String::from_utf8(late.bytes));
}

#[tokio::test]
async fn a_request_that_accepts_events_is_answered_with_the_output_and_sent_again_with_the_same() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let headers = [("content-type", "application/json"), ("accept", "text/event-stream"), ("idempotency-key", "once")];
    let body = json!({ "calls": [count("a", 3, 5)] }).to_string();
    let path = "/v1/runs?floor_policy=FLOOR_POLICY_INTERLEAVED";
    let first = yard.http().ask(Method::POST, path, &headers, body.clone()).await;
    let second = yard.http().ask(Method::POST, path, &headers, body.clone()).await;
    assert_eq!(
        events(&first.body).first().map(|first| first.json()["run_opened"]["calls"][0]["call_id"].clone()),
        Some(json!("a"))
    );
    assert_eq!(first.body, second.body);
    let other = json!({ "calls": [count("b", 3, 5)] }).to_string();
    let refused = yard.http().ask(Method::POST, "/v1/runs", &headers, other).await;
    assert_eq!(refused.problem(), (409, "REQUEST_ID_TAKEN".to_owned()));
    for (path, headers, parameter) in [
        ("/v1/runs?floor_policy=LOUDEST", &headers[..], "floor_policy"),
        (path, &headers[..1], "floor_policy"),
        ("/v1/runs?keep_open=true", &headers[..], "keep_open"),
    ] {
        let refused = yard.http().ask(Method::POST, path, headers, body.clone()).await;
        assert_eq!(refused.problem(), (400, "MALFORMED".to_owned()), "{path}");
        assert_eq!(refused.json()["errors"][0]["parameter"], parameter, "{path}");
    }
}

#[tokio::test]
async fn a_silent_stream_has_a_comment_and_a_shutdown_a_word_to_read_on() {
    let mut yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let id = create(yard.http(), &[question("ask")]).await;
    let mut stream = yard.http().events(&id, None).await;
    stream.until(|bytes| bytes.ends_with(b": heartbeat\n\n")).await;
    let (_, read) = tokio::join!(yard.coordinator.terminate(), stream.to_end());
    read.expect("the stream ends in order");
    let last = stream.sent().pop().expect("there are events");
    assert_eq!((last.name.as_deref(), last.json()), (Some("end"), json!({ "reason": "STREAM_END_REASON_SHUTDOWN" })));
}

#[tokio::test]
async fn a_reader_that_reads_nothing_slows_nobody_and_misses_nothing() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    // Far more than the ledger holds for a watcher, and than a connection buffers.
    let id = create(yard.http(), &[count("a", 60_000, 0), count("b", 60_000, 0)]).await;
    let mut slow = yard.http().events(&id, None).await;
    let mut quick = yard.http().events(&id, None).await;
    tokio::time::timeout(harness::PATIENCE, quick.to_end()).await.expect("it ends in time").expect("nothing breaks");
    slow.to_end().await.expect("the stream does not break");
    assert!(slow.bytes == quick.bytes, "the slow reader saw something else");
    assert!(events(&slow.bytes).len() > 120_000);
}

/// A request (method, path, headers, body), and its answer: status, reason, and the field.
type Case<'a> = (Method, &'a str, &'a [(&'a str, &'a str)], &'a str, (u16, &'a str), Value);

#[tokio::test]
async fn a_request_that_cannot_be_read_is_told_where_and_what_to_do() {
    let yard = Yard::start(FIXTURE).await;
    let http = yard.http();
    let json = ("content-type", "application/json");
    let huge = "x".repeat(5 * 1024 * 1024);
    let deep = "[".repeat(200_000);
    let id = create(http, &[question("ask")]).await;
    let cases: [Case; 16] = [
        (Method::POST, "/v1/runs", &[json], "{\"calls\": [", (400, "MALFORMED"), json!({ "pointer": "/calls" })),
        (Method::POST, "/v1/runs", &[json], &deep, (400, "MALFORMED"), json!({ "pointer": "" })),
        (
            Method::POST,
            "/v1/runs",
            &[json],
            "{\"calls\":[{\"tool\":7}]}",
            (400, "MALFORMED"),
            json!({ "pointer": "/calls/0/tool" }),
        ),
        (
            Method::POST,
            "/v1/runs",
            &[json],
            "{\"calls\":[{\"tool\":\"no such name!\"}]}",
            (400, "MALFORMED"),
            json!({ "pointer": "/calls/0/tool" }),
        ),
        (Method::POST, "/v1/runs", &[json], "{\"cals\":[]}", (400, "MALFORMED"), json!({ "pointer": "" })),
        (Method::POST, "/v1/runs", &[json], "{}", (400, "NO_CALLS"), Value::Null),
        (Method::POST, "/v1/runs", &[json], &huge, (413, "PAYLOAD_TOO_LARGE"), Value::Null),
        (
            Method::POST,
            "/v1/runs",
            &[("content-type", "text/plain")],
            "{}",
            (415, "UNSUPPORTED_MEDIA_TYPE"),
            Value::Null,
        ),
        (
            Method::POST,
            "/v1/runs",
            &[json, ("content-encoding", "gzip")],
            "{}",
            (415, "UNSUPPORTED_MEDIA_TYPE"),
            Value::Null,
        ),
        (
            Method::POST,
            "/v1/runs?keep_open=true",
            &[json],
            "{}",
            (400, "MALFORMED"),
            json!({ "parameter": "keep_open" }),
        ),
        (
            Method::POST,
            "/v1/runs",
            &[json, ("idempotency-key", "a")],
            "{\"request_id\":\"b\"}",
            (400, "MALFORMED"),
            json!({ "header": "idempotency-key" }),
        ),
        (Method::GET, "/v1/runs/run_00_nonsense", &[], "", (400, "MALFORMED"), json!({ "parameter": "run_id" })),
        (
            Method::GET,
            "/v1/runs/run_00_0193a5a0000070008000000000000000",
            &[],
            "",
            (410, "EVENTS_EXPIRED"),
            Value::Null,
        ),
        (
            Method::GET,
            &format!("/v1/runs/{id}/events"),
            &[("last-event-id", "nine")],
            "",
            (400, "MALFORMED"),
            json!({ "header": "last-event-id" }),
        ),
        (Method::GET, "/v2/runs", &[], "", (404, "NO_SUCH_ROUTE"), Value::Null),
        (Method::DELETE, "/v1/runs", &[], "", (405, "METHOD_NOT_ALLOWED"), Value::Null),
    ];
    for (method, path, headers, body, (status, reason), place) in cases {
        let told = format!("{method} {path} {}", &body[..body.len().min(80)]);
        let refused = http.ask(method, path, headers, body.to_owned()).await;
        assert_eq!(refused.problem(), (status, reason.to_owned()), "{told}");
        let problem = refused.json();
        assert!(
            ["detail", "remedy", "title"]
                .iter()
                .all(|text| problem[*text].as_str().is_some_and(|text| !text.is_empty())),
            "{told}: {problem}"
        );
        let mut error = problem["errors"][0].clone();
        error.as_object_mut().map(|error| error.remove("detail"));
        assert_eq!(error, place, "{told}: {problem}");
    }
}

#[tokio::test]
async fn a_page_that_a_browser_has_open_cannot_ask_for_anything() {
    let yard = Yard::start(FIXTURE).await;
    let http = yard.http();
    let body = json!({ "calls": [question("a")] }).to_string();
    let json = ("content-type", "application/json");
    let foreign = http.ask(Method::POST, "/v1/runs", &[json, ("origin", "https://evil.example")], body.clone()).await;
    assert_eq!(foreign.problem(), (403, "PAGE_REFUSED".to_owned()));
    // Also not by way of gRPC, for which no preflight is asked where the page's name is pointed here.
    let grpc = [("content-type", "application/grpc"), ("origin", "https://evil.example")];
    let foreign = http.ask(Method::POST, "/toolyard.v1.RunService/CreateRun", &grpc, "").await;
    assert_eq!(foreign.problem(), (403, "PAGE_REFUSED".to_owned()));
    let own = format!("http://{}", yard.coordinator.address());
    assert_eq!(http.ask(Method::POST, "/v1/runs", &[json, ("origin", &own)], body).await.status, 201);
}
