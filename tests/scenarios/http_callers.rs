//! The HTTP API authenticates callers as the gRPC API does, and refuses them in problem bodies with the same reasons.

use harness::http::{Answer, events};
use harness::{Guarded, Http};
use hyper::Method;
use serde_json::{Value, json};

use crate::callers::guarded;

const JSON: (&str, &str) = ("content-type", "application/json");
const EVENTS: (&str, &str) = ("accept", "text/event-stream");

/// Sends a request, with a key or a token if there is one.
async fn ask(yard: &Guarded, key: Option<&str>, method: Method, path: &str, body: &Value) -> Answer {
    let bearer = key.map(|key| format!("Bearer {key}"));
    let said = bearer.iter().map(|bearer| ("authorization", bearer.as_str()));
    let headers: Vec<_> = said.chain([JSON].into_iter().filter(|_| method == Method::POST)).collect();
    let body = if method == Method::POST { body.to_string() } else { String::new() };
    Http::new(yard.coordinator.address()).ask(method, path, &headers, body).await
}

async fn get(yard: &Guarded, name: &str, path: &str) -> Answer {
    ask(yard, Some(&yard.callers.key(name)), Method::GET, path, &Value::Null).await
}

pub(crate) async fn post(yard: &Guarded, name: &str, path: &str, body: &Value) -> Answer {
    ask(yard, Some(&yard.callers.key(name)), Method::POST, path, body).await
}

/// With the wish for events.
async fn events_of(yard: &Guarded, name: &str, path: &str, body: &Value) -> Answer {
    let bearer = format!("Bearer {}", yard.callers.key(name));
    let headers = [("authorization", bearer.as_str()), JSON, EVENTS];
    Http::new(yard.coordinator.address()).ask(Method::POST, path, &headers, body.to_string()).await
}

fn problem(status: u16, reason: &str) -> (u16, String) {
    (status, reason.to_owned())
}

fn asks_user() -> Value {
    json!({ "calls": [{ "call_id": "ask", "tool": "ask_user", "arguments": "{\"question\":\"Which one?\"}" }] })
}

/// Every route of the document, with something in the place of its names.
async fn routes(yard: &Guarded) -> Vec<(Method, String)> {
    let document = ask(yard, None, Method::GET, "/v1/openapi.json", &Value::Null).await;
    assert_eq!(document.status, 200, "the document is open");
    let mut routes = Vec::new();
    for (path, operations) in document.json()["paths"].as_object().expect("paths") {
        let path = path.replace("{run_id}", "run_0b_x").replace("{call_id}", "call").replace("{name}", "echo");
        let path = path.replace("{thread_id}", "thread_1").replace("{response_id}", "resp_none");
        for method in operations.as_object().expect("operations").keys() {
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).expect("a method");
            routes.push((method, path.clone()));
        }
    }
    // A link carries its own permission, and a client without a key reads where to get one.
    let is_open =
        |path: &str| path == "/v1/openapi.json" || path.starts_with("/v1/links/") || path.starts_with("/.well-known/");
    routes.retain(|(_, path)| !is_open(path));
    assert!(routes.len() > 20, "{routes:?}");
    routes
}

#[tokio::test]
async fn no_route_is_open_but_that_of_the_document() {
    let yard = guarded().await;
    for (method, path) in routes(&yard).await {
        let refused = ask(&yard, None, method.clone(), &path, &json!({})).await;
        assert_eq!(refused.problem(), problem(401, "CREDENTIAL_MISSING"), "{method} {path}");
        let challenge = refused.headers["www-authenticate"].to_str().expect("a text");
        assert!(challenge.starts_with("Bearer"), "{method} {path}");
    }
    let stranger = ask(&yard, Some("tyk_of-my-own"), Method::GET, "/v1/tools", &Value::Null).await;
    assert_eq!(stranger.problem(), problem(401, "KEY_UNKNOWN"));
    let nowhere = ask(&yard, None, Method::GET, "/v1/nothing", &Value::Null).await;
    assert_eq!(nowhere.problem(), problem(401, "CREDENTIAL_MISSING"));
    assert_eq!(get(&yard, "shop", "/v1/nothing").await.problem(), problem(404, "NO_SUCH_ROUTE"));
    assert_eq!(get(&yard, "shop", "/v1/tools").await.status, 200);
}

/// In the error format of OpenAI's APIs, or of JSON-RPC.
fn is_of_a_face(path: &str) -> bool {
    path == "/mcp" || path.starts_with("/v1/responses") || path.starts_with("/v1/threads")
}

#[tokio::test]
async fn who_may_read_and_approve_may_nothing_else() {
    let yard = guarded().await;
    for (method, path) in routes(&yard).await.into_iter().filter(|(_, path)| !is_of_a_face(path)) {
        let paths = ["/v1/pauses", "/v1/workers", "/v1/webhooks/parked"];
        let of_the_fleet = paths.contains(&path.as_str());
        let is_reading = method == Method::GET && !of_the_fleet;
        let is_theirs = is_reading || path.ends_with("/decisions") || path.ends_with("/link");
        let answer = ask(&yard, Some(&yard.callers.key("boss")), method.clone(), &path, &json!({})).await;
        match is_theirs {
            true => assert!(![401, 403].contains(&answer.status), "{method} {path}: {answer:?}"),
            false => assert_eq!(answer.problem(), problem(403, "ROLE_MISSING"), "{method} {path}"),
        }
    }
}

#[tokio::test]
async fn a_face_asks_for_the_roles_that_the_same_needs_natively() {
    let yard = guarded().await;
    let question = json!({ "type": "function_call", "call_id": "ask", "name": "ask_user", "arguments": "{\"question\":\"Which?\"}" });
    let asked = post(&yard, "shop", "/v1/responses", &json!({ "input": [question] })).await;
    assert_eq!(asked.status, 200, "{asked:?}");
    let id = asked.json()["id"].as_str().expect("an id").to_owned();
    let run = id.replacen("resp_", "run_", 1);
    let thread = format!("/v1/threads/thread_1/runs/{run}");
    let chat = json!([{ "id": "b", "type": "function", "function": { "name": "ask_user", "arguments": "{\"question\":\"?\"}" } }]);
    let output = json!({ "type": "function_call_output", "call_id": "ask", "output": "blue" });
    let refused = [
        (Method::POST, "/v1/responses".to_owned(), json!({ "input": [question] })),
        (Method::POST, "/v1/responses".to_owned(), json!({ "previous_response_id": id, "input": [output] })),
        (Method::POST, format!("/v1/responses/{id}/cancel"), Value::Null),
        (Method::DELETE, format!("/v1/responses/{id}"), Value::Null),
        (Method::POST, "/v1/threads/runs".to_owned(), json!({ "tool_calls": chat })),
        (Method::POST, "/v1/threads/thread_1/runs".to_owned(), json!({ "tool_calls": chat })),
        (
            Method::POST,
            format!("{thread}/submit_tool_outputs"),
            json!({ "tool_outputs": [{ "tool_call_id": "ask", "output": "blue" }] }),
        ),
        (Method::POST, format!("{thread}/cancel"), json!({})),
    ];
    for (method, path, body) in refused {
        let body = if body.is_null() { json!({}) } else { body };
        let answer = ask(&yard, Some(&yard.callers.key("boss")), method.clone(), &path, &body).await;
        assert_eq!(
            (answer.status, answer.json()["error"]["code"].as_str()),
            (403, Some("ROLE_MISSING")),
            "{method} {path}"
        );
        if path.contains(&id[5..]) || !body["previous_response_id"].is_null() {
            let answer = ask(&yard, Some(&yard.callers.key("rival")), method.clone(), &path, &body).await;
            assert_eq!(answer.status, 404, "{method} {path}: {answer:?}");
        }
    }
    let read = [
        format!("/v1/responses/{id}"),
        format!("/v1/responses/{id}/input_items"),
        thread.clone(),
        format!("{thread}/steps"),
        format!("/v1/threads/t/messages?run_id={run}"),
    ];
    for path in read {
        assert_eq!(get(&yard, "boss", &path).await.status, 200, "{path}");
        assert_eq!(get(&yard, "rival", &path).await.status, 404, "{path}");
    }
    assert_eq!(get(&yard, "shop", &format!("/v1/responses/{id}")).await.json(), asked.json(), "nothing came of it");
}

#[tokio::test]
async fn another_tenants_run_is_not_there() {
    let yard = guarded().await;
    let ours = post(&yard, "shop", "/v1/runs", &asks_user()).await;
    assert_eq!((ours.status, &ours.json()["run"]["tenant"]), (201, &json!("acme")));
    let id = ours.json()["run"]["run_id"].as_str().expect("an id").to_owned();
    let there = format!("/v1/runs/{id}");
    for path in [there.clone(), format!("{there}/events"), format!("{there}/calls/ask/why")] {
        assert_eq!(get(&yard, "rival", &path).await.problem(), problem(404, "RUN_NOT_FOUND"), "{path}");
    }
    let outputs = json!({ "outputs": [{ "call_id": "ask", "result": [{ "text": "mine" }] }] });
    for (path, body) in [("outputs", outputs.clone()), ("close", json!({})), ("cancel", json!({}))] {
        let refused = post(&yard, "rival", &format!("{there}/{path}"), &body).await;
        assert_eq!(refused.problem(), problem(404, "RUN_NOT_FOUND"), "{path}");
    }
    assert_eq!(get(&yard, "rival", "/v1/runs?tenant=acme").await.problem(), problem(403, "TENANT_DENIED"));
    assert_eq!(get(&yard, "boss", &there).await.json()["run"]["caller"], "shop");

    // A token for one answer does that, and nothing else.
    let made = post(&yard, "shop", &format!("{there}/calls/ask/answer_token"), &json!({})).await;
    assert_eq!(made.status, 200, "{made:?}");
    let token = made.json()["token"].as_str().expect("a token").to_owned();
    let looked = ask(&yard, Some(&token), Method::GET, &there, &Value::Null).await;
    assert_eq!(looked.problem(), problem(403, "ROLE_MISSING"));
    let answered = ask(&yard, Some(&token), Method::POST, &format!("{there}/outputs"), &outputs).await;
    assert_eq!(answered.status, 200, "{answered:?}");
}

#[tokio::test]
async fn streams_and_turns_of_models_are_served_to_whoever_has_a_key() {
    let yard = guarded().await;
    let calls = json!({ "calls": [{ "call_id": "a", "tool": "echo", "arguments": "{\"text\":\"hello\"}" }] });
    let sent = events(&events_of(&yard, "shop", "/v1/runs", &calls).await.body);
    assert_eq!(sent.last().and_then(|last| last.name.as_deref()), Some("end"), "{sent:?}");
    let opened = sent[0].json();
    let id = opened["run_opened"]["run_id"].as_str().expect("the first event names the run");
    let read = get(&yard, "boss", &format!("/v1/runs/{id}/events")).await;
    assert_eq!(events(&read.body), sent);

    let turn = json!({ "role": "assistant", "content": [
        { "type": "tool_use", "id": "a", "name": "echo", "input": { "text": "hi" } },
        { "type": "tool_use", "id": "b", "name": "writes", "input": { "path": "x", "line": "x", "then_wait_ms": 0 } },
    ] });
    let answer = post(&yard, "shop", "/v1/tool_calls:batch", &turn).await.json();
    let results = &answer["messages"][0]["content"];
    assert_eq!((&answer["complete"], &results[0]["content"][0]["text"]), (&json!(true), &json!("hi")), "{answer}");
    assert!(results[1].to_string().contains("may not be called here"), "{answer}");
    let told = events(&events_of(&yard, "shop", "/v1/tool_calls:batch", &turn).await.body);
    assert_eq!(told.last().and_then(|last| last.name.as_deref()), Some("messages"), "{told:?}");
}

#[tokio::test]
async fn the_vendors_faces_ask_who_comes_too() {
    let yard = guarded().await;
    let call = json!({ "type": "function_call", "call_id": "a", "name": "echo", "arguments": "{\"text\":\"hi\"}" });
    let turn = json!({ "input": [call] });
    let refused = ask(&yard, None, Method::POST, "/v1/responses", &turn).await;
    assert_eq!(refused.status, 401, "{refused:?}");
    let refused = post(&yard, "boss", "/v1/responses", &turn).await;
    assert_eq!(refused.status, 403, "{refused:?}");
    let made = post(&yard, "shop", "/v1/responses", &turn).await;
    assert_eq!((made.status, &made.json()["status"]), (200, &json!("completed")), "{made:?}");
    let there = format!("/v1/responses/{}", made.json()["id"].as_str().expect("an id"));
    for path in [there.clone(), format!("{there}/input_items")] {
        assert_eq!(get(&yard, "rival", &path).await.status, 404, "{path}");
        assert_eq!(get(&yard, "boss", &path).await.status, 200, "{path}");
    }
    for (name, status) in [("boss", 403), ("rival", 404), ("shop", 200)] {
        let deleted = ask(&yard, Some(&yard.callers.key(name)), Method::DELETE, &there, &Value::Null).await;
        assert_eq!(deleted.status, status, "{name}: {deleted:?}");
    }
}
