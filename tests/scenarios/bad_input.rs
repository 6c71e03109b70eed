//! Bad input gets a clear, typed error; nothing is lost or changed by it.

use harness::{Fixture, Yard, call, reason};
use proto::v1::{self, CallErrorKind, CallState, FloorPolicy};
use serde_json::json;
use tonic::{Code, Status};

use crate::{FIXTURE, check, count, question};

async fn create(yard: &Yard, calls: Vec<v1::NewCall>) -> Result<v1::CreateRunResponse, Status> {
    let request = v1::CreateRunRequest { calls, ..v1::CreateRunRequest::default() };
    yard.client.runs.clone().create_run(request).await.map(tonic::Response::into_inner)
}

#[tokio::test]
async fn an_unknown_tool_and_misfit_arguments_are_errors_of_their_calls_alone() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let calls = vec![
        call("hallucinated", "ecko", json!({})),
        call("misfit", "count", json!({ "label": "x", "pieces": "many", "every_ms": 1 })),
        v1::NewCall { arguments: "{ not json".to_owned(), ..call("broken", "echo", json!({})) },
        call("fine", "echo", json!({ "text": "here" })),
    ];
    let events = yard.client.execute(calls).await.to_end().await;
    check::whole(&events, true);
    let outcomes = check::outcomes(&events);
    let error = |id: &str| outcomes[id].error.clone().expect("a failure has an error");
    assert_eq!(error("hallucinated").kind(), CallErrorKind::UnknownTool);
    assert!(error("hallucinated").message.contains("echo"), "it names the tools: {}", error("hallucinated").message);
    assert_eq!(error("misfit").kind(), CallErrorKind::ArgumentsInvalid);
    assert_eq!(error("misfit").violations[0].path, "/pieces");
    assert_eq!(error("broken").kind(), CallErrorKind::ArgumentsInvalid);
    assert_eq!(check::text(&outcomes["fine"]), "here");
}

#[tokio::test]
async fn a_request_that_breaks_a_limit_is_refused_whole() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let huge = "x".repeat(300 * 1024);
    let many = (0..129).map(|index| count(&format!("c{index}"), 1, 0)).collect();
    let cases = [
        (vec![], Code::InvalidArgument, "NO_CALLS"),
        (vec![count("same", 1, 0), count("same", 1, 0)], Code::InvalidArgument, "DUPLICATE_CALL_ID"),
        (vec![call("big", "echo", json!({ "text": huge }))], Code::ResourceExhausted, "PAYLOAD_TOO_LARGE"),
        (many, Code::InvalidArgument, "TOO_MANY_CALLS"),
        (vec![call("line\nbreak", "echo", json!({}))], Code::InvalidArgument, "MALFORMED"),
        (vec![call("c", "no such name!", json!({}))], Code::InvalidArgument, "MALFORMED"),
        (vec![call(&"i".repeat(129), "echo", json!({}))], Code::InvalidArgument, "MALFORMED"),
    ];
    for (calls, code, why) in cases {
        let refused = create(&yard, calls).await.expect_err(why);
        assert_eq!((refused.code(), reason(&refused).as_str()), (code, why), "{refused:?}");
        assert!(!refused.message().is_empty());
    }
    let days = Some(proto::convert::duration(std::time::Duration::from_secs(31 * 24 * 3600)));
    let request =
        v1::CreateRunRequest { calls: vec![count("c", 1, 0)], timeout: days, ..v1::CreateRunRequest::default() };
    let refused = yard.client.runs.clone().create_run(request).await.expect_err("thirty days are the limit");
    assert_eq!(reason(&refused), "DEADLINE_TOO_FAR");
}

#[tokio::test]
async fn an_answer_that_the_log_cannot_hold_is_refused_and_its_call_waits_on() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let run = yard.client.create(vec![question("q")]).await;
    let part = |body| v1::Content::from(body);
    let text = |text: String| part(v1::content::Body::Text(text));
    let data = |media_type: String| {
        part(v1::content::Body::Data(v1::Data { media_type, data: bytes::Bytes::from_static(b"x") }))
    };
    let too_large = [
        vec![text("x".repeat(300 * 1024))],
        vec![text(String::new()); 1_000_000],
        vec![data("x".repeat(1_500_000))],
        vec![data("x".repeat(10_000)); 200],
    ];
    for result in too_large {
        let output = v1::ToolOutput { call_id: "q".to_owned(), result, error: String::new() };
        let refused = run.submit(vec![output]).await.expect_err("it is too large");
        assert_eq!((refused.code(), reason(&refused).as_str()), (Code::ResourceExhausted, "PAYLOAD_TOO_LARGE"));
    }
    assert_eq!(run.get().await.calls[0].state(), CallState::WaitingForClient);
    run.submit(vec![harness::client_answer("q", "fits")]).await.expect("it waits");
    let events = run.watch(FloorPolicy::Arrival).await.to_end().await;
    assert_eq!(check::text(&check::outcomes(&events)["q"]), "fits");
}

#[tokio::test]
async fn runs_that_are_malformed_unknown_or_too_old_are_told_apart() {
    let yard = Yard::start(FIXTURE).await;
    // A version 7 uuid begins with its time in milliseconds.
    let fresh = {
        let run = yard.client.create(vec![call("u", "unknown", json!({}))]).await;
        let (head, _) = run.id.split_at(run.id.len() - 12);
        format!("{head}000000000000")
    };
    let cases = [
        ("", Code::InvalidArgument, "MALFORMED"),
        ("run_00_nonsense", Code::InvalidArgument, "MALFORMED"),
        ("run_00_00000000000000000000000000000000", Code::InvalidArgument, "MALFORMED"),
        (fresh.as_str(), Code::NotFound, "RUN_NOT_FOUND"),
        ("run_00_0193a5a0000070008000000000000000", Code::OutOfRange, "EVENTS_EXPIRED"),
    ];
    for (id, code, why) in cases {
        let run = harness::Run { client: yard.client.clone(), id: id.to_owned() };
        let refused = run.watch_after(FloorPolicy::Arrival, None).await.expect_err(why);
        assert_eq!((refused.code(), reason(&refused).as_str()), (code, why), "{id}");
        let refused = run.submit(vec![harness::client_answer("a", "b")]).await.expect_err(why);
        assert_eq!((refused.code(), reason(&refused).as_str()), (code, why), "{id}");
    }
}

#[tokio::test]
async fn a_request_that_outlives_its_deadline_is_told_so_and_its_run_goes_on() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let run = yard.client.create(vec![count("c", 20, 100)]).await;
    let watch = v1::WatchRunRequest { run_id: run.id.clone(), ..v1::WatchRunRequest::default() };
    let mut request = tonic::Request::new(watch);
    // Not through the client's own timer, which would answer first.
    request.metadata_mut().insert("grpc-timeout", "300m".parse().expect("it is ASCII"));
    let mut stream = yard.client.runs.clone().watch_run(request).await.expect("it begins in time").into_inner();
    let overdue = loop {
        match stream.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the run takes two seconds"),
            Err(status) => break status,
        }
    };
    assert_eq!((overdue.code(), reason(&overdue).as_str()), (Code::DeadlineExceeded, "DEADLINE_EXCEEDED"));
    let events = run.watch(FloorPolicy::Arrival).await.to_end().await;
    assert_eq!(check::outcomes(&events)["c"].state(), CallState::Completed);
}

#[tokio::test]
async fn tools_are_listed_in_pages_and_unknown_ones_are_told() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let mut tools = yard.client.tools.clone();
    let (mut names, mut page_token) = (Vec::new(), String::new());
    loop {
        let request = v1::ListToolsRequest { page_size: 2, page_token, ..v1::ListToolsRequest::default() };
        let page = tools.list_tools(request).await.expect("a page").into_inner();
        assert!(page.tools.len() <= 2);
        names.extend(page.tools.into_iter().map(|tool| tool.name));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    assert!(names.len() > 8 && names.is_sorted(), "{names:?}");
    for name in ["ask_user", "babbles", "count", "echo", "fails", "panics", "stubborn", "writes"] {
        assert!(names.iter().any(|listed| listed == name), "{name} is not among {names:?}");
    }
    let unknown = tools.get_tool(v1::GetToolRequest { name: "nope".to_owned() }).await.expect_err("no such tool");
    assert_eq!((unknown.code(), reason(&unknown).as_str()), (Code::NotFound, "TOOL_NOT_FOUND"));
    let tags = v1::ListToolsRequest { tags: vec!["a".to_owned(); 33], ..v1::ListToolsRequest::default() };
    assert_eq!(reason(&tools.list_tools(tags).await.expect_err("no tool has so many tags")), "MALFORMED");
    let negative = tools.list_tools(v1::ListToolsRequest { page_size: -1, ..v1::ListToolsRequest::default() }).await;
    assert_eq!(reason(&negative.expect_err("a page has a size")), "MALFORMED");
}

#[tokio::test]
async fn a_call_id_forges_no_field_of_the_audit() {
    let log = tempfile::NamedTempFile::new().expect("a temporary file");
    let fixture = Fixture::new(FIXTURE).with("TOOLYARD_LOG", "info").logging_to(log.path());
    let yard = Yard::start_with(fixture).await;
    let _worker = yard.worker().await;
    let id = "x decision=\"refused\" tool=ls";
    check::whole(&yard.client.execute(vec![call(id, "echo", json!({ "text": "here" }))]).await.to_end().await, true);
    let text = std::fs::read_to_string(log.path()).expect("the log is there");
    let line = text.lines().find(|line| line.contains("toolyard::audit") && line.contains("call.id"));
    let line = line.expect("the decision is in the audit");
    assert!(line.contains(r#"call.id="x decision=\"refused\" tool=ls" tool="echo" decision="allowed""#), "{line}");
}
