//! The MCP endpoint: a call is found again on any replica, whatever is killed, and by nobody else's client.

use harness::http::{Answer, Answering};
use harness::{Client, Coordinator, Guarded, Http, PATIENCE, Yard};
use hyper::Method;
use proto::v1::CallState;
use serde_json::{Value, json};

use crate::FIXTURE;
use crate::callers::guarded;

const MODERN: &str = "2026-07-28";
const LEGACY: &str = "2025-11-25";
const JSON: (&str, &str) = ("content-type", "application/json");
const ACCEPT: (&str, &str) = ("accept", "application/json, text/event-stream");

/// A client of one replica.
pub(crate) struct Mcp {
    pub(crate) http: Http,
    pub(crate) bearer: String,
    pub(crate) capabilities: Value,
    /// The session id of an older client.
    pub(crate) session: Option<String>,
}

impl Mcp {
    pub(crate) fn new(coordinator: &Coordinator) -> Self {
        let tasks = json!({ "io.modelcontextprotocol/tasks": {} });
        let capabilities = json!({ "elicitation": {}, "extensions": tasks });
        Self { http: Http::new(coordinator.address()), bearer: String::new(), capabilities, session: None }
    }

    fn with_key(coordinator: &Coordinator, key: &str) -> Self {
        Self { bearer: format!("Bearer {key}"), ..Self::new(coordinator) }
    }

    /// A client of an older revision, with its session.
    pub(crate) async fn legacy(coordinator: &Coordinator) -> Self {
        let mut client = Self { capabilities: json!({ "elicitation": {} }), ..Self::new(coordinator) };
        let params = json!({ "protocolVersion": LEGACY, "capabilities": client.capabilities, "clientInfo": {} });
        client.session = Some(String::new());
        let answer = client.post("initialize", "", params).await;
        assert_eq!(answer.json()["result"]["protocolVersion"], LEGACY, "{answer:?}");
        client.session = Some(answer.headers["mcp-session-id"].to_str().expect("a text").to_owned());
        client
    }

    /// The same client at another replica.
    pub(crate) fn at(&self, coordinator: &Coordinator) -> Self {
        Self {
            http: Http::new(coordinator.address()),
            bearer: self.bearer.clone(),
            capabilities: self.capabilities.clone(),
            session: self.session.clone(),
        }
    }

    pub(crate) fn headers<'a>(&'a self, method: &'a str, name: &'a str) -> Vec<(&'a str, &'a str)> {
        let mut headers = vec![JSON, ACCEPT];
        match self.session.as_deref() {
            None => headers.extend([("mcp-protocol-version", MODERN), ("mcp-method", method), ("mcp-name", name)]),
            Some("") => {}
            Some(session) => headers.extend([("mcp-protocol-version", LEGACY), ("mcp-session-id", session)]),
        }
        headers.extend(Some(("authorization", self.bearer.as_str())).filter(|(_, bearer)| !bearer.is_empty()));
        headers
    }

    pub(crate) fn body(&self, method: &str, mut params: Value) -> String {
        if self.session.is_none() {
            params["_meta"]["io.modelcontextprotocol/protocolVersion"] = MODERN.into();
            params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = self.capabilities.clone();
        }
        json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params }).to_string()
    }

    pub(crate) async fn post(&self, method: &str, name: &str, params: Value) -> Answer {
        let body = self.body(method, params);
        self.http.ask(Method::POST, "/mcp", &self.headers(method, name), body).await
    }

    /// The answer of a request, whether it came alone or at the end of a stream.
    pub(crate) async fn ask(&self, method: &str, name: &str, params: Value) -> Value {
        let answer = self.post(method, name, params).await;
        assert!(answer.status < 500, "{answer:?}");
        messages(&answer.body).pop().unwrap_or_else(|| panic!("no answer: {answer:?}"))
    }

    pub(crate) async fn call(&self, tool: &str, arguments: Value) -> Value {
        self.ask("tools/call", tool, json!({ "name": tool, "arguments": arguments })).await
    }

    /// A call whose stream is left to the test.
    pub(crate) async fn begin(&self, tool: &str, arguments: Value) -> Answering {
        let params = json!({ "name": tool, "arguments": arguments, "_meta": { "progressToken": "p" } });
        let body = self.body("tools/call", params);
        self.http.begin(Method::POST, "/mcp", &self.headers("tools/call", tool), body).await
    }

    pub(crate) async fn task(&self, id: &str) -> Value {
        self.ask("tasks/get", id, json!({ "taskId": id })).await
    }

    /// The task when it is in one of these states.
    pub(crate) async fn task_when(&self, id: &str, wanted: &[&str]) -> Value {
        let reached = async {
            loop {
                let task = self.task(id).await["result"].clone();
                if wanted.iter().any(|wanted| task["status"] == *wanted) {
                    return task;
                }
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        };
        tokio::time::timeout(PATIENCE, reached).await.expect("the task gets there")
    }
}

/// The messages of an answer: one of JSON, or those of a stream.
pub(crate) fn messages(body: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(body).expect("a text");
    let lines = text.lines().map(|line| line.strip_prefix("data: ").unwrap_or(line));
    lines.filter(|line| line.starts_with('{')).filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// The newest event's id in a stream.
pub(crate) fn event_id(stream: &[u8]) -> String {
    let text = String::from_utf8_lossy(stream).into_owned();
    text.lines().rev().find_map(|line| line.strip_prefix("id: ").map(str::to_owned)).expect("an event has an id")
}

pub(crate) fn text(result: &Value) -> &str {
    result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text: {result}"))
}

/// A yard whose worker hosts the tools of the conformance suite.
pub(crate) async fn yard() -> (Yard, harness::Worker) {
    let yard = Yard::start(FIXTURE).await;
    let worker = yard.fixture.with("TOOLYARD_FIXTURE_TOOLS", "mcp").worker(&yard.broker.url(), "main", 16).await;
    yard.client.wait_for_tool("test_tool_with_progress").await;
    (yard, worker)
}

/// Another replica, once it knows the tools.
pub(crate) async fn replica(yard: &Yard) -> Coordinator {
    let replica = yard.fixture.coordinator(&yard.broker.url()).await;
    Client::connect(replica.address()).await.wait_for_tool("slow_compute").await;
    replica
}

#[tokio::test]
async fn both_generations_list_and_call_tools_and_learn_what_went_wrong() {
    let (yard, _worker) = yard().await;
    for client in [Mcp::new(&yard.coordinator), Mcp::legacy(&yard.coordinator).await] {
        let listed = client.ask("tools/list", "", json!({})).await;
        let names: Vec<&str> = listed["result"]["tools"]
            .as_array()
            .expect("tools")
            .iter()
            .filter_map(|tool| tool["name"].as_str())
            .collect();
        assert!(names.contains(&"greet") && names.is_sorted(), "{names:?}");
        let greeted = client.call("greet", json!({ "name": "Ada" })).await;
        assert_eq!((text(&greeted["result"]), &greeted["result"]["isError"]), ("Hello, Ada!", &json!(false)));
        let invalid = client.call("greet", json!({ "name": 7 })).await;
        assert_eq!(invalid["result"]["isError"], true, "the model can correct it: {invalid}");
        let unknown = client.call("no_such_tool", json!({})).await;
        assert_eq!(unknown["error"]["code"], -32602, "{unknown}");
        let stream = client.begin("test_tool_with_progress", json!({})).await;
        let sent = messages(&whole(stream).await);
        let progress = sent.iter().filter(|sent| sent["method"] == "notifications/progress");
        let done: Vec<_> = progress.filter_map(|sent| sent["params"]["progress"].as_i64()).collect();
        assert_eq!(done, [0, 50, 100]);
    }
}

pub(crate) async fn whole(mut stream: Answering) -> Vec<u8> {
    stream.to_end().await.expect("the stream is whole");
    stream.bytes
}

#[tokio::test]
async fn a_task_is_found_at_another_replica_after_its_coordinator_was_killed() {
    let (mut yard, _worker) = yard().await;
    let other = replica(&yard).await;
    let client = Mcp::new(&yard.coordinator);
    let created = client.call("slow_compute", json!({ "seconds": 2 })).await["result"].clone();
    assert_eq!((&created["resultType"], &created["status"]), (&json!("task"), &json!("working")));
    let id = created["taskId"].as_str().expect("an id");
    yard.coordinator.kill().await;
    let there = client.at(&other);
    let done = there.task_when(id, &["completed", "failed"]).await;
    assert_eq!(text(&done["result"]), "computed for 2 s");
    let long = there.call("slow_compute", json!({ "seconds": 600 })).await["result"]["taskId"].clone();
    let long = long.as_str().expect("an id");
    let cancelled = there.ask("tasks/cancel", long, json!({ "taskId": long })).await;
    assert_eq!(cancelled["result"]["resultType"], "complete");
    there.task_when(long, &["cancelled"]).await;
}

#[tokio::test]
async fn a_task_is_reported_when_its_state_changes_and_not_because_time_passes() {
    let (yard, _worker) = yard().await;
    let client = Mcp::new(&yard.coordinator);
    let created = client.call("slow_compute", json!({ "seconds": 5 })).await["result"].clone();
    let body = client.body("subscriptions/listen", json!({ "notifications": { "taskIds": [created["taskId"]] } }));
    let headers = client.headers("subscriptions/listen", "");
    let mut stream = client.http.begin(Method::POST, "/mcp", &headers, body).await;
    let states = |bytes: &[u8]| -> Vec<Value> {
        let sent = messages(bytes).into_iter().filter(|sent| sent["method"] == "notifications/tasks");
        sent.map(|sent| sent["params"]["status"].clone()).collect()
    };
    stream.until(|bytes| states(bytes).last().is_some_and(|last| last == "completed")).await;
    let states = states(&stream.bytes);
    // It may have been queued when it was reported first.
    assert!(states.len() <= 3 && states.iter().rev().skip(1).all(|state| state == "working"), "{states:?}");
}

#[tokio::test]
async fn a_stream_that_a_kill_cut_off_is_resumed_at_another_replica() {
    let (mut yard, _worker) = yard().await;
    let other = replica(&yard).await;
    let client = Mcp::legacy(&yard.coordinator).await;
    let mut stream = client.begin("slow_compute", json!({ "seconds": 3 })).await;
    stream.until(|bytes| bytes.starts_with(b"id: ") && bytes.ends_with(b"\n\n")).await;
    yard.coordinator.kill().await;
    while stream.next().await.is_ok_and(|goes_on| goes_on) {}
    let id = event_id(&stream.bytes);
    let there = client.at(&other);
    let mut headers = there.headers("", "");
    headers.push(("last-event-id", &id));
    let resumed = there.http.ask(Method::GET, "/mcp", &headers, "").await;
    let answer = messages(&resumed.body).pop().expect("the rest has the answer");
    assert_eq!((&answer["id"], text(&answer["result"])), (&json!(7), "computed for 3 s"));
}

#[tokio::test]
async fn a_call_ends_when_its_client_disconnects() {
    let (yard, _worker) = yard().await;
    let mut client = Mcp::new(&yard.coordinator);
    client.capabilities = json!({});
    let stream = client.begin("slow_compute", json!({ "seconds": 600 })).await;
    let run = only_run(&yard, "slow_compute").await;
    drop(stream);
    let ended = async {
        while run.get().await.calls[0].state() != CallState::Cancelled {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, ended).await.expect("the call is cancelled");
}

/// The run of the only call of a tool.
pub(crate) async fn only_run(yard: &Yard, tool: &str) -> harness::Run {
    let found = async {
        loop {
            let listed = yard.http().get(&format!("/v1/calls?tool={tool}")).await.json();
            if let Some(id) = listed["calls"][0]["run_id"].as_str() {
                return harness::Run { client: yard.client.clone(), id: id.to_owned() };
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, found).await.expect("the call is listed")
}

#[tokio::test]
async fn an_approval_is_asked_for_and_given_at_another_replica() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let other = yard.fixture.coordinator(&yard.broker.url()).await;
    Client::connect(other.address()).await.wait_for_tool("confirms").await;
    let mut client = Mcp::new(&yard.coordinator);
    client.capabilities = json!({ "elicitation": {} });
    let params = |text: &str| json!({ "name": "confirms", "arguments": { "text": text } });
    let asked = client.ask("tools/call", "confirms", params("really")).await["result"].clone();
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    let question = &asked["inputRequests"]["mcp"];
    assert_eq!(question["method"], "elicitation/create");
    let state = asked["requestState"].as_str().expect("a state").to_owned();
    let answered = |text: &str, state: &str, approve: bool| {
        let mut params = params(text);
        params["inputResponses"] = json!({ "mcp": { "action": "accept", "content": { "approve": approve } } });
        params["requestState"] = state.into();
        params
    };
    let there = client.at(&other);
    let forged = there.ask("tools/call", "confirms", answered("really", &format!("{state}x"), true)).await;
    assert_eq!(forged["error"]["code"], -32602, "{forged}");
    let another = there.ask("tools/call", "confirms", answered("something else", &state, true)).await;
    assert_eq!(another["error"]["code"], -32602, "the state is of another request: {another}");
    let done = there.ask("tools/call", "confirms", answered("really", &state, true)).await["result"].clone();
    assert_eq!((text(&done), &done["resultType"]), ("really", &json!("complete")));

    let asked = client.ask("tools/call", "confirms", params("no")).await["result"].clone();
    let state = asked["requestState"].as_str().expect("a state");
    let refused = there.ask("tools/call", "confirms", answered("no", state, false)).await["result"].clone();
    assert_eq!(refused["isError"], true, "a refusal is a result: {refused}");
}

#[tokio::test]
async fn an_older_client_is_asked_on_its_stream_and_answers_at_another_replica() {
    let (yard, _worker) = yard().await;
    let other = replica(&yard).await;
    let client = Mcp::legacy(&yard.coordinator).await;
    let mut stream = client.begin("test_elicitation", json!({ "message": "Who?" })).await;
    let is_asked = |sent: &Value| sent["method"] == "elicitation/create";
    stream.until(|bytes| messages(bytes).iter().any(is_asked)).await;
    let question = messages(&stream.bytes).into_iter().find(is_asked).expect("it was asked");
    assert_eq!(question["params"]["message"], "Who?");
    let content = json!({ "username": "ada", "email": "ada@example.org" });
    let answer =
        json!({ "jsonrpc": "2.0", "id": question["id"], "result": { "action": "accept", "content": content } });
    let there = client.at(&other);
    let taken = there.http.ask(Method::POST, "/mcp", &there.headers("", ""), answer.to_string()).await;
    assert_eq!(taken.status, 202, "{taken:?}");
    let sent = messages(&whole(stream).await);
    let answer = sent.last().expect("the answer");
    assert!(text(&answer["result"]).contains("ada@example.org"), "the tool went on with the answer: {answer}");
}

async fn with_key(yard: &Guarded, name: &str) -> Mcp {
    Mcp::with_key(&yard.coordinator, &yard.callers.key(name))
}

#[tokio::test]
async fn a_client_needs_a_key_and_sees_nothing_of_another_tenant() {
    let yard = guarded().await;
    let stranger = Mcp::new(&yard.coordinator).post("tools/list", "", json!({})).await;
    assert_eq!(stranger.status, 401);
    let challenge = stranger.headers["www-authenticate"].to_str().expect("a text").to_owned();
    let metadata = challenge.split("resource_metadata=\"http://").nth(1).and_then(|rest| rest.split('/').next());
    assert_eq!(metadata, Some(yard.coordinator.address().to_string().as_str()), "{challenge}");
    for path in ["/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-protected-resource"] {
        let found = Http::new(yard.coordinator.address()).get(path).await;
        assert!(found.json()["resource"].as_str().is_some_and(|resource| resource.ends_with("/mcp")), "{found:?}");
    }
    let (shop, rival, boss) =
        (with_key(&yard, "shop").await, with_key(&yard, "rival").await, with_key(&yard, "boss").await);
    let refused = boss.call("echo", json!({ "text": "hi" })).await;
    assert_eq!(refused["error"]["code"], -32602, "the tool is not theirs: {refused}");
    let listed = rival.ask("tools/list", "", json!({})).await;
    let tools = listed["result"]["tools"].as_array().expect("tools");
    assert!(tools.iter().all(|tool| tool["annotations"]["readOnlyHint"] == true), "only their own: {tools:?}");
    assert_eq!(listed["result"]["cacheScope"], "private");
    let mut asked = shop;
    asked.capabilities = json!({ "elicitation": {} });
    let asks = asked.call("ask_user", json!({ "question": "Which one?" })).await["result"].clone();
    assert_eq!(asks["inputRequests"]["mcp"]["params"]["message"], "Which one?", "{asks}");
    let run = only_run_of(&yard, "shop").await;
    let task = run.replacen("run_", "task_", 1);
    let foreign = rival.task(&task).await;
    assert_eq!(foreign["error"]["code"], -32602, "another tenant's task is unknown: {foreign}");
    let mut params = json!({ "name": "ask_user", "arguments": { "question": "Which one?" } });
    params["requestState"] = asks["requestState"].clone();
    let mut colleague = with_key(&yard, "colleague").await;
    colleague.capabilities = json!({ "elicitation": {} });
    let stolen = colleague.ask("tools/call", "ask_user", params).await;
    let why = "requestState belongs to another request or another caller";
    assert_eq!(stolen["error"]["message"], why, "another caller's state is refused: {stolen}");
    asked.capabilities = json!({ "elicitation": {}, "extensions": { "io.modelcontextprotocol/tasks": {} } });
    assert_eq!(asked.task(&task).await["result"]["status"], "input_required");
}

/// The id of the only run of a caller.
async fn only_run_of(yard: &Guarded, name: &str) -> String {
    let client = yard.client(name);
    let found = async {
        loop {
            let request = proto::v1::ListRunsRequest::default();
            let listed = client.index.clone().list_runs(request).await.expect("the index answers").into_inner();
            if let Some(run) = listed.runs.first() {
                return run.run_id.clone();
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, found).await.expect("the run is listed")
}
