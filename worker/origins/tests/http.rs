//! HTTP tools against a real server.

#![allow(clippy::unwrap_used, reason = "it is all tests")]

mod service;

use std::time::Duration;

use origins::http::{HttpTools, InvalidFile, Skipped};
use serde_json::{Value, json};
use service::Service;
use toolyard_tool::{CallError, Content, ErrorKind, Origin, Role, Table, testkit};

const LOCAL: &str = "[egress]\naddresses = [\"127.0.0.1\"]\n";

/// The tools of a file, in a folder of their own.
async fn host(text: &str) -> Result<(Table, Vec<Skipped>), InvalidFile> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tools.toml");
    std::fs::write(&path, text).unwrap();
    std::fs::write(folder.path().join("token"), "s3cret-token\n").unwrap();
    HttpTools::read(&path)?.host(Table::new()).await
}

/// One tool of the service, with further lines.
async fn tool(service: &Service, path: &str, lines: &str) -> Table {
    let url = service.url(path);
    let text = format!("{LOCAL}[[tool]]\nname = \"t\"\ndescription = \"A tool.\"\nurl = \"{url}\"\n{lines}");
    host(&text).await.unwrap().0
}

async fn error(table: &Table, arguments: Value) -> CallError {
    testkit::call_in(table, "t", arguments).await.result.unwrap_err()
}

#[tokio::test]
async fn a_service_is_told_for_whom_a_call_is_if_its_file_says_so_and_no_argument_can_pretend() {
    let service = Service::start().await;
    let requester = || testkit::Requester {
        tenant: Some("acme".parse().unwrap()),
        caller: Some("shop/zoë".parse().unwrap()),
        roles: [Role::Submit, Role::Read].into_iter().collect(),
    };
    for (lines, tenant, caller, roles) in [
        ("caller_headers = true", json!("acme"), json!("shop/zoë"), json!("submit,read")),
        ("", Value::Null, Value::Null, Value::Null),
    ] {
        let called = testkit::call_for(&tool(&service, "/echo/x", lines).await, "t", json!({}), requester()).await;
        let headers = serde_json::from_str::<Value>(&called.answer()).unwrap()["headers"].take();
        let told = [&headers["toolyard-tenant"], &headers["toolyard-caller"], &headers["toolyard-roles"]];
        assert_eq!(told, [&tenant, &caller, &roles]);
    }
    let pretends = "send = { a = \"header:Toolyard-Tenant\" }\n[tool.input_schema]\ntype = \"object\"\n\
                    [tool.input_schema.properties]\na = {}\n";
    let text = format!("[[tool]]\nname = \"t\"\ndescription = \"A tool.\"\nurl = \"{}\"\n{pretends}", service.url("/"));
    assert!(host(&text).await.unwrap_err().to_string().contains("no header that an argument may set"));
}

#[tokio::test]
async fn arguments_go_into_path_query_headers_and_body() {
    let service = Service::start().await;
    let lines = "method = \"POST\"\nsend = { q = \"query:search\", trace = \"header:x-trace\", n = \"field:number\" }\n\
                 query = { format = \"json\" }\nidempotency_header = \"idempotency-key\"\n\
                 headers = { authorization = { file = \"token\", prefix = \"Bearer \" } }\n\
                 [tool.input_schema]\ntype = \"object\"\n[tool.input_schema.properties]\n\
                 id = {}\nq = {}\ntrace = {}\nn = {}\nother = {}\n";
    // The file of the token is read for each call, so it must stay.
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("token"), "s3cret-token\n").unwrap();
    let path = folder.path().join("tools.toml");
    let url = service.url("/echo/{id}");
    let text = format!("{LOCAL}[[tool]]\nname = \"t\"\ndescription = \"A tool.\"\nurl = \"{url}\"\n{lines}");
    std::fs::write(&path, text).unwrap();
    let tools = HttpTools::read(&path).unwrap();
    assert_eq!(tools.secret_files(), [folder.path().join("token")]);
    let (table, _) = tools.host(Table::new()).await.unwrap();
    let arguments = json!({ "id": "a/b ?", "q": ["x y", 2], "trace": "t-1", "n": 7, "other": [1] });
    let answer: Value = serde_json::from_str(&testkit::call_in(&table, "t", arguments).await.answer()).unwrap();
    assert_eq!(answer["path"], "/echo/a%2Fb%20%3F");
    assert_eq!(answer["query"], "search=x+y&search=2&format=json");
    assert_eq!(answer["body"], json!({ "number": 7, "other": [1] }));
    let headers = &answer["headers"];
    assert_eq!((&headers["x-trace"], &headers["authorization"]), (&json!("t-1"), &json!("Bearer s3cret-token")));
    let key = headers["idempotency-key"].as_str().unwrap();
    assert!(key.starts_with("run_") && key.ends_with("/call"), "{key}");
    let manifest = format!("{:?}", testkit::manifest(&table, "t"));
    assert!(!manifest.contains("s3cret") && !manifest.contains("authorization"), "{manifest}");
}

#[tokio::test]
async fn an_argument_cannot_lead_to_another_path() {
    let service = Service::start().await;
    let table =
        tool(&service, "/echo/{id}/x", "input_schema = '{\"type\":\"object\",\"properties\":{\"id\":{}}}'").await;
    for id in ["..", ".", ""] {
        assert_eq!(error(&table, json!({ "id": id })).await.kind, ErrorKind::ArgumentsInvalid, "{id:?}");
    }
    assert_eq!(error(&table, json!({})).await.violations[0].path, "/id");
    let answer = testkit::call_in(&table, "t", json!({ "id": "../../admin?x=1#y" })).await.answer();
    assert!(answer.contains("/echo/..%2F..%2Fadmin%3Fx%3D1%23y/x"), "{answer}");
}

#[tokio::test]
async fn json_text_and_images_become_what_they_are() {
    let service = Service::start().await;
    for (path, expected) in [
        ("/json", Content::Json("{\"a\":[1]}".to_owned())),
        ("/text", Content::Text("plain".to_owned())),
        ("/image", Content::Data { media_type: "image/png".to_owned(), data: vec![0x89, 0x50].into() }),
        ("/nothing", Content::Text("Done".to_owned())),
    ] {
        let table = tool(&service, path, "").await;
        assert_eq!(testkit::call_in(&table, "t", json!({})).await.result.unwrap(), [expected], "{path}");
    }
    let table = tool(&service, "/json", "method = \"HEAD\"").await;
    let answer: Value = serde_json::from_str(&testkit::call_in(&table, "t", json!({})).await.answer()).unwrap();
    assert_eq!((&answer["status"], &answer["headers"]["content-type"]), (&json!(200), &json!("application/json")));
    let broken = error(&tool(&service, "/broken_json", "").await, json!({})).await;
    assert!(broken.message.contains("answered application/json, but"), "{}", broken.message);
}

#[tokio::test]
async fn events_and_lines_are_output_as_they_come() {
    let service = Service::start().await;
    let table = tool(&service, "/events", "").await;
    let mut call = testkit::start_in(&table, "t", json!({}));
    // The service sends the rest when this was received.
    let first = format!("{:?}", call.chunk().await.unwrap());
    assert!(first.contains("{\\\"n\\\":1}"), "{first}");
    service.go_on();
    let called = call.end().await;
    assert_eq!(called.output.len(), 2);
    let expected = json!([{ "n": 1 }, { "event": "note", "data": "hi" }, { "n": 3 }]).to_string();
    assert_eq!(called.answer(), expected);
    let called = testkit::call_in(&tool(&service, "/lines", "").await, "t", json!({})).await;
    assert_eq!((called.output.len(), called.answer()), (3, "{\"n\":1}no JSON\n{\"n\":2}".to_owned()));
}

#[tokio::test]
async fn a_stream_that_breaks_off_or_falls_silent_is_a_retryable_error() {
    let service = Service::start().await;
    let table = tool(&service, "/breaks", "").await;
    let mut call = testkit::start_in(&table, "t", json!({}));
    assert!(call.chunk().await.is_some());
    service.go_on();
    let broken = call.end().await.result.unwrap_err();
    assert!(broken.retryable && broken.message.contains("broke off"), "{}", broken.message);
    let silent = error(&tool(&service, "/silent", "idle_timeout_s = 1").await, json!({})).await;
    assert!(silent.retryable && silent.message.contains("sent nothing for 1s"), "{}", silent.message);
}

/// A service that reads a request and closes the connection.
async fn hanging_up() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut connection, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 4096];
            let read = tokio::io::AsyncReadExt::read(&mut connection, &mut request).await.unwrap();
            assert!(read > 0);
        }
    });
    url
}

#[tokio::test]
async fn a_request_that_must_not_be_repeated_and_is_not_answered_may_have_had_its_effect() {
    let service = Service::start().await;
    let silent = (service.url("/silent"), "idle_timeout_s = 1");
    for (url, lines) in [(hanging_up().await, ""), silent] {
        let text = |method: &str| {
            format!(
                "[egress]\naddresses = [\"127.0.0.0/8\"]\n[[tool]]\nname = \"t\"\ndescription = \"A tool.\"\n\
                 method = \"{method}\"\nurl = \"{url}\"\n{lines}\n"
            )
        };
        let once = error(&host(&text("POST")).await.unwrap().0, json!({})).await;
        assert_eq!(once.kind, ErrorKind::Interrupted, "{url}: {}", once.message);
        assert!(once.message.contains("its effect may have happened"), "{}", once.message);
        let again = error(&host(&text("PUT")).await.unwrap().0, json!({})).await;
        assert!(again.retryable && again.kind == ErrorKind::ToolFailed, "{url}: {again:?}");
    }
    // It was not sent.
    let closed = "[egress]\naddresses = [\"127.0.0.0/8\"]\n[[tool]]\nname = \"t\"\ndescription = \"A tool.\"\n\
                  method = \"POST\"\nurl = \"http://127.0.0.1:1/\"\n";
    let unreached = error(&host(closed).await.unwrap().0, json!({})).await;
    assert!(unreached.retryable && unreached.kind == ErrorKind::ToolFailed, "{unreached:?}");
}

#[tokio::test]
async fn a_cancelled_call_closes_its_connection() {
    let service = Service::start().await;
    let table = tool(&service, "/silent", "").await;
    let call = testkit::start_in(&table, "t", json!({}));
    service.reached().await;
    call.cancel();
    assert_eq!(call.end().await.error(), "the call was cancelled");
    service.closed().await;
}

#[tokio::test]
async fn a_refusal_is_an_error_with_status_and_the_beginning_of_the_body() {
    let service = Service::start().await;
    let lines = "headers = { x-key = { env = \"PATH\" } }";
    let not_found = error(&tool(&service, "/status/404", lines).await, json!({})).await;
    assert!(not_found.message.contains("answered 404 Not Found: you sent [secret]"), "{}", not_found.message);
    assert!(!not_found.retryable && not_found.message.len() < 3000, "{}", not_found.message.len());
    for (status, kind, retryable, wait) in [
        (429, ErrorKind::RateLimited, true, Some(Duration::from_secs(7))),
        (503, ErrorKind::RateLimited, true, Some(Duration::from_secs(7))),
        (500, ErrorKind::ToolFailed, true, None),
        (400, ErrorKind::ToolFailed, false, None),
        (401, ErrorKind::ToolFailed, false, None),
        (304, ErrorKind::ToolFailed, false, None),
    ] {
        let error = error(&tool(&service, &format!("/status/{status}"), "").await, json!({})).await;
        assert_eq!((error.kind, error.retryable, error.retry_after), (kind, retryable, wait), "{status}");
    }
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused() {
    let service = Service::start().await;
    for path in ["/large", "/large_unannounced"] {
        let large = error(&tool(&service, path, "response_bytes_max = 1000").await, json!({})).await;
        assert_eq!(large.kind, ErrorKind::OutputTooLarge, "{path}: {}", large.message);
    }
}

#[tokio::test]
async fn private_addresses_are_not_reached_unless_the_file_allows_them() {
    let service = Service::start().await;
    for (name, rule) in [("127.0.0.1", ""), ("localhost", ""), ("localhost", "addresses = [\"10.0.0.0/8\"]")] {
        let url = format!("http://{name}:{}/json", service.address.port());
        let text = format!("[egress]\n{rule}\n[[tool]]\nname = \"t\"\ndescription = \"A tool.\"\nurl = \"{url}\"\n");
        let refused = error(&host(&text).await.unwrap().0, json!({})).await;
        assert!(refused.message.contains("private ones need egress.addresses"), "{}", refused.message);
        assert!(!refused.retryable);
    }
    assert_eq!(service.requests(), 0);
}

#[tokio::test]
async fn redirects_lead_to_allowed_hosts_alone_and_take_no_secrets_to_another() {
    let (service, other) = (Service::start().await, Service::start().await);
    let key = "headers = { x-key = { env = \"PATH\" } }\n\
               input_schema = '{\"type\":\"object\",\"properties\":{\"to\":{}}}'";
    let table = tool(&service, "/redirect", key).await;
    let here = testkit::call_in(&table, "t", json!({ "to": "/echo/here" })).await.answer();
    assert!(here.contains("\"x-key\""), "the same host gets them: {here}");
    let refused = error(&table, json!({ "to": other.url("/echo/there") })).await;
    assert!(refused.message.contains("is not allowed"), "{}", refused.message);
    let metadata = error(&table, json!({ "to": "http://169.254.169.254/latest" })).await;
    assert!(metadata.message.contains("169.254.169.254:80 is not allowed"), "{}", metadata.message);
    assert_eq!(other.requests(), 0);
    let round = error(&table, json!({ "to": "/round" })).await;
    assert!(round.message.contains("redirects"), "{}", round.message);
    let allow = format!(
        "[egress]\naddresses = [\"127.0.0.1\"]\nallow = [\"{}\", \"{}\"]\n\
         [[tool]]\nname = \"t\"\ndescription = \"A tool.\"\n\
         url = \"{}\"\n{key}",
        service.address,
        other.address,
        service.url("/redirect")
    );
    let table = host(&allow).await.unwrap().0;
    let there = testkit::call_in(&table, "t", json!({ "to": other.url("/echo/there") })).await.answer();
    assert!(there.contains("/echo/there") && !there.contains("x-key"), "{there}");
}

#[tokio::test]
async fn effects_follow_from_the_method_unless_the_file_says_so() {
    let service = Service::start().await;
    for (lines, read_only, idempotent, attempts) in [
        ("", true, true, 3),
        ("method = \"PUT\"", false, true, 3),
        ("method = \"DELETE\"", false, true, 3),
        ("method = \"POST\"", false, false, 1),
        ("method = \"POST\"\neffects = { idempotent = true }\nattempts_max = 5", false, true, 5),
    ] {
        let table = tool(&service, "/json", lines).await;
        let manifest = testkit::manifest(&table, "t").unwrap();
        assert_eq!(manifest.origin, Origin::External);
        let effects = manifest.effects;
        assert_eq!((effects.read_only, effects.idempotent), (read_only, idempotent), "{lines}");
        assert_eq!(manifest.policy.attempts_max, attempts, "{lines}");
    }
}

#[tokio::test]
async fn a_file_that_is_wrong_is_refused_with_the_place() {
    let tool = "[[tool]]\nname = \"t\"\ndescription = \"A tool.\"\nurl = \"https://a.example\"\n";
    for (text, expected) in [
        ("[[tool]\n", "cannot be understood"),
        ("[[tool]]\nurl = \"https://a.example\"\n", "tool 1: it has no name"),
        ("[[tool]]\nname = \"t\"\n", "tool 1 (t): it has no url"),
        (&format!("{tool}colour = \"red\"\n"), "tool 1 (t): unknown field `colour`"),
        (&format!("{tool}method = \"BREW\"\n"), "\"BREW\" is none of"),
        (&format!("{tool}timeout_s = 0\n"), "timeout_s is 0"),
        (
            &format!("{tool}headers = {{ a = {{ env = \"NOT_THERE\" }} }}\n"),
            "headers.a: the environment variable NOT_THERE",
        ),
        (&format!("{tool}send = {{ a = \"query\" }}\n"), "send.a"),
        (&format!("{tool}[egress]\nallow = [\"b.example\"]\n"), "a.example:443 is not allowed"),
        (&format!("{tool}[egress]\naddresses = [\"local\"]\n"), "\"local\" is no address or network"),
        ("[[tool]]\nname = \"t\"\nurl = \"https://{host}/\"\n", "arguments go behind the host"),
        ("[[tool]]\nname = \"t\"\nurl = \"https://a.example/{x}\"\n", "{x}, which is no property"),
        ("[[tool]]\nname = \"t\"\nurl = \"ftp://a.example/\"\n", "\"ftp\" is no address of http or https"),
        ("tools = 1\n", "there is no \"tools\""),
        ("", "has no tool that can be hosted"),
    ] {
        let error = host(text).await.unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("tools.toml"), "{text}: {error}");
    }
    let (table, skipped) = host(&format!("{tool}{tool}")).await.unwrap();
    assert_eq!(table.manifests().count(), 1);
    assert_eq!(skipped[0].place, "tool 2 (t)");
}
