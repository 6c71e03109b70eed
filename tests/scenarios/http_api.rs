//! Everything that gRPC does, done over HTTP.

use harness::http::{Answer, events};
use harness::{Http, Yard};
use hyper::Method;
use serde_json::{Value, json};

use crate::FIXTURE;

fn call(id: &str, tool: &str, arguments: &Value) -> Value {
    json!({ "call_id": id, "tool": tool, "arguments": arguments.to_string() })
}

fn question(id: &str) -> Value {
    call(id, "ask_user", &json!({ "question": "Which one?" }))
}

async fn run(http: Http, body: Value) -> String {
    let answer = http.post("/v1/runs", &body).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    answer.json()["run"]["run_id"].as_str().expect("the run has an id").to_owned()
}

async fn ended(http: Http, run: &str) -> Value {
    http.events(run, None).await.to_end().await.expect("the stream does not break");
    http.get(&format!("/v1/runs/{run}")).await.json()["run"].clone()
}

/// An answer that repeats the request.
fn fine(answer: &Answer) -> Value {
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

/// Looks until it is as wanted: the index follows the log by a moment.
async fn until(http: Http, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let look = async {
        loop {
            let found = fine(&http.get(path).await);
            if wanted(&found) {
                return found;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(harness::PATIENCE, look).await.expect("it becomes so in time")
}

#[tokio::test]
async fn a_run_is_appended_to_answered_decided_on_closed_and_explained() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let http = yard.http();
    let asked = json!({ "calls": [question("ask"), { "call_id": "held", "tool": "echo", "arguments": "{\"text\":\"a\"}", "approval": {} }], "keep_open": true });
    let id = run(http, asked).await;
    let at = |rest: &str| format!("/v1/runs/{id}/{rest}");

    fine(&http.post(&at("calls"), &json!({ "calls": [call("more", "echo", &json!({ "text": "b" }))] })).await);
    let why = fine(&http.get(&at("calls/held/why")).await);
    assert!(why["why"].as_str().is_some_and(|why| why.contains("approv")), "{why}");
    let changed = json!({ "decisions": [{ "call_id": "held", "approve": { "arguments": "{\"text\":7}" } }] });
    let refused = http.post(&at("decisions"), &changed).await;
    assert_eq!(refused.problem(), (400, "ARGUMENTS_INVALID".to_owned()));
    assert_eq!(refused.json()["errors"][0]["arguments_pointer"], "/text");
    let changed = json!({ "decisions": [{ "call_id": "held", "approve": { "arguments": "{\"text\":\"c\"}" } }] });
    fine(&http.post(&at("decisions"), &changed).await);
    let partial =
        json!({ "outputs": [{ "call_id": "ask", "result": [{ "text": "the blue one" }] }], "all_required": true });
    fine(&http.post(&at("outputs"), &partial).await);
    let twice = json!({ "outputs": [{ "call_id": "ask", "error": "nobody is there" }] });
    assert_eq!(http.post(&at("outputs"), &twice).await.problem(), (409, "CALL_ALREADY_ANSWERED".to_owned()));
    fine(&http.ask(Method::POST, &at("close"), &[], "").await);
    assert_eq!(http.post(&at("calls"), &json!({ "calls": [question("late")] })).await.problem().0, 409);

    let run = ended(http, &id).await;
    let said: Vec<&Value> =
        run["calls"].as_array().expect("calls").iter().map(|call| &call["outcome"]["result"][0]["text"]).collect();
    assert_eq!(said, ["the blue one", "c", "b"]);
    assert_eq!(run["calls"][1]["decided"]["arguments_changed"], true);
}

#[tokio::test]
async fn runs_and_calls_are_found_counted_and_cancelled() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let http = yard.http();
    let mut ids = Vec::new();
    for tenant in ["a", "a", "b"] {
        ids.push(run(http, json!({ "calls": [question("one"), question("two")], "tenant": tenant })).await);
    }
    let is_indexed = |counts: &Value| counts["waiting_for_client"] == 6 && counts["coverage"]["complete"] == true;
    until(http, "/v1/counts", is_indexed).await;
    let first = fine(&http.get("/v1/runs?tenant=a&status=RUN_STATUS_REQUIRES_ACTION&page_size=1").await);
    assert_eq!((first["runs"].as_array().map(Vec::len), &first["runs"][0]["run_id"]), (Some(1), &json!(ids[1])));
    let token = first["next_page_token"].as_str().expect("there is another page");
    let second =
        fine(&http.get(&format!("/v1/runs?tenant=a&status=RUN_STATUS_REQUIRES_ACTION&page_token={token}")).await);
    assert_eq!((&second["runs"][0]["run_id"], &second["next_page_token"]), (&json!(ids[0]), &json!("")));
    let other = http.get(&format!("/v1/runs?tenant=b&page_token={token}")).await;
    assert_eq!(
        (other.problem(), &other.json()["errors"][0]["parameter"]),
        ((400, "MALFORMED".to_owned()), &json!("page_token"))
    );
    let inbox = fine(&http.get("/v1/calls?inbox=true&tenant=b").await);
    assert_eq!(inbox["calls"].as_array().map(Vec::len), Some(2));

    fine(&http.ask(Method::POST, &format!("/v1/runs/{}/calls/one/cancel", ids[2]), &[], "").await);
    let cancelled = http.post("/v1/calls/cancel", &json!({ "tenant": "b", "reason": "enough" })).await;
    let two = json!([{ "run_id": ids[2], "call_id": "two" }]);
    let cancelled = fine(&cancelled);
    assert_eq!(cancelled["calls"], two, "the one that had not ended");
    assert_eq!(cancelled["coverage"]["complete"], true);
    assert_eq!(ended(http, &ids[2]).await["status"], "RUN_STATUS_COMPLETED");
    let headers = [("content-type", "application/json"), ("accept", "text/event-stream")];
    let again = http.ask(Method::POST, "/v1/calls/cancel", &headers, json!({ "tenant": "b" }).to_string()).await;
    let words = events(&again.body);
    let names: Vec<_> = words.iter().map(|event| event.name.as_deref()).collect();
    assert_eq!(names, [None, Some("end")], "nothing is open");
    assert_eq!(words[0].json()["coverage"]["complete"], true);
    fine(&http.post(&format!("/v1/runs/{}/cancel", ids[0]), &json!({ "reason": "enough" })).await);
    assert_eq!(ended(http, &ids[0]).await["status"], "RUN_STATUS_CANCELLED");

    let verified = http.ask(Method::POST, "/v1/index/verify", &[], "").await;
    let words = events(&verified.body);
    assert_eq!(words[words.len() - 2].json()["end"]["differences"], 0, "{words:?}");
}

#[tokio::test]
async fn a_parked_call_is_found_redriven_once_and_dropped() {
    let yard = Yard::start(FIXTURE).await;
    let http = yard.http();
    let id = {
        let _worker = yard.worker().await;
        let lost = json!({ "calls": [call("lost", "fails", &json!({ "attempts": 99 })), call("other", "fails", &json!({ "attempts": 99 }))] });
        let id = run(http, lost).await;
        ended(http, &id).await;
        id
    };
    let parked =
        until(http, "/v1/calls?parked=true", |parked| parked["calls"].as_array().is_some_and(|calls| calls.len() == 2))
            .await;
    assert_eq!(parked["calls"][0]["run_id"], json!(id));
    let at = |rest: &str| format!("/v1/runs/{id}/calls/{rest}");
    let first = fine(&http.ask(Method::POST, &at("lost/redrive"), &[], "").await);
    let second = fine(&http.ask(Method::POST, &at("lost/redrive"), &[], "").await);
    assert_eq!(first["run"]["run_id"], second["run"]["run_id"]);
    assert_ne!(first["run"]["run_id"], json!(id));
    fine(&http.ask(Method::POST, &at("other/drop"), &[], "").await);
    assert_eq!(
        http.ask(Method::POST, &at("other/redrive"), &[], "").await.problem(),
        (409, "CALL_NOT_PARKED_ANY_MORE".to_owned())
    );
    assert_eq!(http.ask(Method::POST, &at("none/drop"), &[], "").await.problem(), (404, "CALL_NOT_FOUND".to_owned()));
}

#[tokio::test]
async fn tools_are_listed_and_described_for_each_vendor() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let http = yard.http();
    let listed = fine(&http.get("/v1/tools?page_size=2").await);
    assert_eq!(listed["tools"].as_array().map(Vec::len), Some(2));
    assert_ne!(listed["next_page_token"], "");
    assert_eq!(fine(&http.get("/v1/tools/echo").await)["tool"]["name"], "echo");
    assert_eq!(http.get("/v1/tools/nope").await.problem(), (404, "TOOL_NOT_FOUND".to_owned()));
    for (format, schema) in [
        ("anthropic", "input_schema"),
        ("openai", "parameters"),
        ("mcp", "inputSchema"),
        ("gemini", "parametersJsonSchema"),
    ] {
        let described = fine(&http.get(&format!("/v1/tools?format={format}")).await);
        let tools = described["tools"].as_array().expect("a list");
        let echo = tools.iter().find(|tool| tool["name"] == "echo").expect("echo is described");
        assert_eq!(echo[schema]["type"], "object", "{format}");
    }
    assert_eq!(http.get("/v1/tools?format=klingon").await.problem().0, 400);
    assert_eq!(http.get("/v1/tools?format=mcp&page_size=1").await.problem().0, 400);
}

#[tokio::test]
async fn ids_that_contradict_each_other_are_refused_and_change_nothing() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let http = yard.http();
    let (one, other) =
        (run(http, json!({ "calls": [question("a")] })).await, run(http, json!({ "calls": [question("a")] })).await);
    let body = json!({ "run_id": other, "outputs": [{ "call_id": "a", "result": [{ "text": "x" }] }] });
    let refused = http.post(&format!("/v1/runs/{one}/outputs"), &body).await;
    assert_eq!(refused.problem(), (400, "MALFORMED".to_owned()));
    let unknown = json!({ "outputs": [{ "call_id": "b", "result": [{ "text": "x" }] }] });
    assert_eq!(
        http.post(&format!("/v1/runs/{one}/outputs"), &unknown).await.problem(),
        (404, "CALL_NOT_FOUND".to_owned())
    );
    // Values that would break a header are not put into one.
    let injected = http.get("/v1/runs/run%0d%0aset-cookie:%20a=b").await;
    assert_eq!((injected.problem().0, injected.headers.get("set-cookie")), (400, None));
    for id in [one, other] {
        let run = fine(&http.get(&format!("/v1/runs/{id}")).await);
        assert_eq!(run["run"]["calls"][0]["state"], "CALL_STATE_WAITING_FOR_CLIENT");
    }
}

#[tokio::test]
async fn an_event_is_one_of_the_kinds_that_the_document_has() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let document = fine(&yard.http().get("/v1/openapi.json").await);
    let text = json!({ "$ref": "#/components/schemas/RunEvent", "components": document["components"] });
    let kinds = text["components"]["schemas"]["RunEvent"]["oneOf"].as_array().expect("a union").clone();
    let headers = [("content-type", "application/json"), ("accept", "text/event-stream")];
    let body = json!({ "calls": [call("a", "echo", &json!({ "text": "hi" }))] }).to_string();
    let streamed = yard.http().ask(Method::POST, "/v1/runs", &headers, body).await;
    for event in events(&streamed.body).iter().filter(|event| event.name.is_none()) {
        let event = event.json();
        let is = |kind: &&Value| !event[kind["required"][0].as_str().expect("a name")].is_null();
        assert_eq!(kinds.iter().filter(is).count(), 1, "{event}");
    }
}

#[tokio::test]
async fn the_document_that_is_served_names_every_route() {
    let yard = Yard::start(FIXTURE).await;
    let document = fine(&yard.http().get("/v1/openapi.json").await);
    for (path, methods) in document["paths"].as_object().expect("paths") {
        for method in methods.as_object().expect("methods").keys() {
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).expect("a method");
            let path = path.replace("{run_id}", "run_00_nonsense").replace("{call_id}", "a").replace("{name}", "nope");
            let answer = yard.http().begin(method.clone(), &path, &[("content-type", "application/json")], "[").await;
            // Only clients of older revisions of MCP, with a session, have a stream there.
            let is_of_sessions = (method.as_str(), path.as_str()) == ("GET", "/mcp");
            assert!(is_of_sessions || ![405, 501].contains(&answer.status), "{method} {path}: {}", answer.status);
            // A route reports missing things itself.
            let is_route = answer.status != 404
                || ["/tools/", "/links/", "/responses/", "/runs/run_00_nonsense", "/messages"]
                    .iter()
                    .any(|route| path.contains(route));
            assert!(is_route, "{method} {path} is in the document and not served");
        }
    }
}

#[tokio::test]
async fn no_call_is_cancelled_by_a_request_that_selects_none() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let http = yard.http();
    let id = run(http, json!({ "calls": [question("one")] })).await;
    until(http, "/v1/counts", |counts| counts["waiting_for_client"] == 1).await;
    for body in [json!({}), json!({ "reason": "r" }), json!({ "all": false })] {
        let refused = http.post("/v1/calls/cancel", &body).await;
        assert_eq!(refused.problem(), (400, "NOTHING_SELECTED".to_owned()), "{body}");
    }
    let both = http.post("/v1/calls/cancel", &json!({ "all": true, "tool": "ask_user" })).await;
    assert_eq!((both.problem(), &both.json()["errors"][0]["pointer"]), ((400, "MALFORMED".to_owned()), &json!("/all")));
    assert_eq!(fine(&http.get(&format!("/v1/runs/{id}")).await)["run"]["status"], "RUN_STATUS_REQUIRES_ACTION");
    let cancelled = fine(&http.post("/v1/calls/cancel", &json!({ "all": true })).await);
    assert_eq!(cancelled["calls"], json!([{ "run_id": id, "call_id": "one" }]));
    assert_eq!(ended(http, &id).await["status"], "RUN_STATUS_COMPLETED");
}

#[tokio::test]
async fn runs_are_erased_page_by_page_and_what_selects_none_is_refused() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let http = yard.http();
    let asked = |tenant: &str| json!({ "tenant": tenant, "calls": [call("a", "echo", &json!({ "text": "hello" }))] });
    let (acme, rival) = (run(http, asked("acme")).await, run(http, asked("rival")).await);
    for id in [&acme, &rival] {
        ended(http, id).await;
    }
    let nothing = http.post("/v1/runs:erase", &json!({})).await;
    assert_eq!((nothing.status, &nothing.json()["reason"]), (400, &json!("MALFORMED")), "{nothing:?}");
    let (mut pages, mut token) = (Vec::new(), json!(""));
    loop {
        let page = fine(&http.post("/v1/runs:erase", &json!({ "tenant": "acme", "page_token": token })).await);
        pages.push(page["requested"].clone());
        token = page.get("next_page_token").cloned().unwrap_or(json!(""));
        if token == json!("") {
            break;
        }
    }
    assert!(pages.contains(&json!(1)), "{pages:?}");
    let gone = async {
        while http.get(&format!("/v1/runs/{acme}")).await.status != 404 {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(harness::PATIENCE, gone).await.expect("it is erased");
    fine(&http.get(&format!("/v1/runs/{rival}")).await);
}
