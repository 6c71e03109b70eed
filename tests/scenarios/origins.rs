//! Tools that are HTTP endpoints and programs keep the promises that tools in Rust keep.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures::{StreamExt as _, stream};
use harness::{Client, Fixture, Pools, Yard, call, client_answer};
use proto::v1::{self, CallErrorKind, CallState, run_event::Event};
use serde_json::json;
use tempfile::TempDir;
use tokio::task::JoinSet;

use crate::registry::{listed, names};
use crate::{FIXTURE, check, question};

/// Pieces of the output of `count` tools.
const PIECES: usize = 40;

/// A web service that is called by a tool.
struct Service {
    address: SocketAddr,
    orders: Arc<AtomicUsize>,
    _serving: JoinSet<()>,
}

impl Service {
    async fn start() -> Self {
        let orders = Arc::new(AtomicUsize::new(0));
        let router = Router::new().route("/count", get(count)).route("/orders", post(order));
        let router = router.with_state(Arc::clone(&orders));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("it has an address");
        let mut serving = JoinSet::new();
        serving.spawn(async move { axum::serve(listener, router).await.expect("it serves") });
        Self { address, orders, _serving: serving }
    }
}

/// Says `0 1 2 …`, one piece at a time, as server-sent events.
async fn count() -> Response {
    let pieces = stream::iter(0..PIECES).then(|piece| async move {
        tokio::time::sleep(Duration::from_millis(50)).await;
        Ok::<_, Infallible>(format!("data: {piece} \n\n"))
    });
    ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(pieces)).into_response()
}

/// Takes an order, and answers never.
async fn order(State(orders): State<Arc<AtomicUsize>>) -> Response {
    orders.fetch_add(1, Ordering::SeqCst);
    std::future::pending().await
}

const COUNT: &str = "#!/bin/sh
read -r arguments
echo $$ >> pids
for piece in $(seq 0 39); do printf '%s ' $piece; sleep 0.05; done
";
const GREET: &str = "#!/usr/bin/env python3
import json, sys
print('Hello, ' + json.loads(sys.stdin.readline())['name'] + '!')
";

/// A yard whose workers host tools of both origins.
async fn start(service: &Service) -> (Yard, TempDir) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("a file is written");
    let address = service.address;
    write(
        "http.toml",
        &format!(
            "[egress]\naddresses = [\"127.0.0.1\"]\n\
             [[tool]]\nname = \"http_count\"\ndescription = \"Counts.\"\nurl = \"http://{address}/count\"\n\
             [[tool]]\nname = \"order\"\ndescription = \"Orders.\"\nmethod = \"POST\"\n\
             effects = {{ open_world = false }}\nurl = \"http://{address}/orders\"\n"
        ),
    );
    write("count.sh", COUNT);
    write("greet.py", GREET);
    write(
        "programs.toml",
        "[[program]]\nname = \"program_count\"\ndescription = \"Counts.\"\ncommand = [\"sh\", \"count.sh\"]\n\
         effects = { read_only = true, open_world = false }\n\
         [[program]]\nname = \"program_greet\"\ndescription = \"Greets.\"\ncommand = [\"python3\", \"greet.py\"]\n\
         effects = { read_only = true, open_world = false }\n\
         input_schema = { type = \"object\", required = [\"name\"], properties = { name = { type = \"string\" } } }\n",
    );
    let fixture = Fixture::new(FIXTURE).with("TOOLYARD_HTTP", folder.path().join("http.toml").display());
    let fixture = fixture.with("TOOLYARD_PROGRAMS", folder.path().join("programs.toml").display());
    (Yard::start_with(fixture).await, folder)
}

fn counted() -> String {
    (0..PIECES).map(|piece| format!("{piece} ")).collect()
}

fn is_output_of(event: &Event, id: &str) -> bool {
    matches!(event, Event::CallOutput(output) if output.call_id == id)
}

/// Waits until the processes of a file of ids have ended.
async fn until_gone(file: &Path) {
    let pids = std::fs::read_to_string(file).expect("the program wrote its id");
    let gone = async {
        while pids.lines().any(|pid| Path::new("/proc").join(pid).exists()) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(harness::PATIENCE, gone).await.expect("the program ends");
}

#[tokio::test]
async fn a_built_in_an_external_and_a_plugin_tool_run_in_one_batch() {
    let service = Service::start().await;
    let (yard, _folder) = start(&service).await;
    let _worker = yard.worker().await;
    let calls = vec![
        call("built_in", "echo", json!({ "text": "hi" })),
        call("external", "http_count", json!({})),
        call("plugin", "program_greet", json!({ "name": "Ada" })),
    ];
    let events = yard.client.execute(calls).await.to_end().await;
    check::whole(&events, true);
    let outcomes = check::outcomes(&events);
    assert!(outcomes.values().all(|outcome| outcome.state() == CallState::Completed), "{outcomes:?}");
    assert_eq!(check::text(&outcomes["plugin"]), "Hello, Ada!\n");
    assert_eq!((check::text(&outcomes["external"]), check::said(&events)["external"].clone()), (counted(), counted()));
    for (origin, expected) in [
        (v1::ToolOrigin::External, ["http_count", "order"]),
        (v1::ToolOrigin::Plugin, ["program_count", "program_greet"]),
    ] {
        let request = v1::ListToolsRequest { origin: origin.into(), ..v1::ListToolsRequest::default() };
        assert_eq!(names(&listed(&yard.client, request).await), expected);
    }
    let refused = yard.client.execute(vec![call("c", "program_greet", json!({}))]).await.to_end().await;
    let error = check::outcomes(&refused)["c"].error.clone().expect("it failed");
    assert_eq!(error.kind(), CallErrorKind::ArgumentsInvalid);
}

/// Each call ends once, its output is whole, and the calls speak in the order of submission, although the last ones are
/// the first to be ready.
#[tokio::test]
async fn tools_of_all_origins_and_a_client_call_run_in_one_batch_in_order_though_their_worker_is_killed() {
    let service = Service::start().await;
    let (yard, folder) = start(&service).await;
    let pools = Pools::new(
        "[facades.say_hello]\ntool = \"program_greet\"\ndescription = \"Says hello.\"\n\
         arguments = { name = \"facade\" }\ninput_schema = { type = \"object\", additionalProperties = false }\n",
    );
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../worker/origins/tests/servers/server.py");
    let server = json!({ "command": "python3", "args": [script, "well"], "toolyard": { "allow": ["environment"] } });
    let config = folder.path().join("servers.json");
    std::fs::write(&config, json!({ "mcpServers": { "test": server } }).to_string()).expect("a file is written");
    let fixture = pools.of(&yard.fixture).with("TOOLYARD_MCP_CONFIG", config.display());
    let coordinator = fixture.coordinator(&yard.broker.url()).await;
    let client = Client::connect(coordinator.address()).await;
    let mut first = fixture.worker(&yard.broker.url(), "main", 16).await;
    for tool in ["echo", "test__environment", "say_hello"] {
        client.wait_for_tool(tool).await;
    }
    let parallel = |call: v1::NewCall| v1::NewCall { concurrency: v1::ToolConcurrency::Parallel.into(), ..call };
    let calls = vec![
        parallel(call("http", "http_count", json!({}))),
        parallel(call("program", "program_count", json!({}))),
        parallel(call("facade", "say_hello", json!({}))),
        parallel(call("mcp", "test__environment", json!({}))),
        question("client"),
        parallel(call("built_in", "echo", json!({ "text": "hi" }))),
    ];
    let ids: Vec<String> = calls.iter().map(|call| call.call_id.clone()).collect();
    let run = v1::CreateRunRequest { calls, ..v1::CreateRunRequest::default() };
    let request = v1::ExecuteRunRequest {
        run: Some(run),
        floor_policy: v1::FloorPolicy::Submission.into(),
        ..Default::default()
    };
    let mut stream = client.execute_request(request).await.expect("the run is accepted");
    stream.until(|event| is_output_of(event, "http")).await;
    let run = stream.run(&client);
    run.submit(vec![client_answer("client", "blue")]).await.expect("it waits");
    for short in ["facade", "mcp", "built_in"] {
        let ended = |event: &Event| matches!(event, Event::CallEnded(ended) if ended.call_id == short);
        run.watch(v1::FloorPolicy::Interleaved).await.until(ended).await;
    }
    first.kill().await;
    let _second = fixture.worker(&yard.broker.url(), "main", 16).await;
    let events = stream.to_end().await;
    check::whole(&events, true);
    let outcomes = check::outcomes(&events);
    assert_eq!(outcomes.len(), ids.len());
    assert!(outcomes.values().all(|outcome| outcome.state() == CallState::Completed), "{outcomes:?}");
    let texts = ["http", "program", "facade", "client", "built_in"].map(|id| check::text(&outcomes[id]));
    assert_eq!(texts, [counted(), counted(), "Hello, facade!\n".into(), "blue".into(), "hi".into()]);
    assert!(check::text(&outcomes["mcp"]).contains("PATH"));
    let said = check::said(&events);
    assert_eq!((said["http"].as_str(), said["program"].as_str()), (counted().as_str(), counted().as_str()));
    let ended: Vec<String> = check::kinds(&events)
        .into_iter()
        .filter_map(|kind| match kind {
            Event::CallEnded(ended) => Some(ended.call_id.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(ended, ids, "in the order of submission");
    assert_eq!(events, run.watch(v1::FloorPolicy::Submission).await.to_end().await, "every reader has the same");
}

#[tokio::test]
async fn a_worker_killed_while_a_program_and_a_service_stream_doubles_nothing_and_leaves_no_program() {
    let service = Service::start().await;
    let (yard, folder) = start(&service).await;
    let mut first = yard.worker().await;
    let parallel = |id: &str, tool: &str| v1::NewCall {
        concurrency: v1::ToolConcurrency::Parallel.into(),
        ..call(id, tool, json!({}))
    };
    let mut stream = yard.client.execute(vec![parallel("p", "program_count"), parallel("h", "http_count")]).await;
    stream.until(|event| is_output_of(event, "p")).await;
    first.kill().await;
    until_gone(&folder.path().join("pids")).await;
    let _second = yard.worker().await;
    let events = stream.to_end().await;
    check::whole(&events, true);
    let said = check::said(&events);
    assert_eq!((said["p"].as_str(), said["h"].as_str()), (counted().as_str(), counted().as_str()));
    let pids = std::fs::read_to_string(folder.path().join("pids")).expect("both attempts wrote their ids");
    assert_eq!(pids.lines().count(), 2);
}

#[tokio::test]
async fn an_order_whose_worker_is_killed_is_not_sent_twice() {
    let service = Service::start().await;
    let (yard, _folder) = start(&service).await;
    let mut first = yard.worker().await;
    let mut stream = yard.client.execute(vec![call("o", "order", json!({}))]).await;
    stream.until(|event| matches!(event, Event::AttemptStarted(_))).await;
    let ordered = async {
        while service.orders.load(Ordering::SeqCst) == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(harness::PATIENCE, ordered).await.expect("the order arrives");
    first.kill().await;
    let _second = yard.worker().await;
    let events = stream.to_end().await;
    check::whole(&events, true);
    let error = check::outcomes(&events)["o"].error.clone().expect("it failed");
    assert_eq!((error.kind(), service.orders.load(Ordering::SeqCst)), (CallErrorKind::Interrupted, 1));
}

#[tokio::test]
async fn a_cancelled_call_stops_its_program() {
    let service = Service::start().await;
    let (yard, folder) = start(&service).await;
    let _worker = yard.worker().await;
    let mut stream = yard.client.execute(vec![call("p", "program_count", json!({}))]).await;
    stream.until(|event| is_output_of(event, "p")).await;
    stream.run(&yard.client).cancel("heard enough").await;
    let events = stream.to_end().await;
    let outcome = &check::outcomes(&events)["p"];
    assert_eq!((outcome.state(), outcome.stopped()), (CallState::Cancelled, v1::Stopped::Confirmed));
    until_gone(&folder.path().join("pids")).await;
}
