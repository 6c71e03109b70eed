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
use harness::{Fixture, Yard, call};
use proto::v1::{self, CallErrorKind, CallState, run_event::Event};
use serde_json::json;
use tempfile::TempDir;
use tokio::task::JoinSet;

use crate::{FIXTURE, check};

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
             [[tool]]\nname = \"order\"\ndescription = \"Orders.\"\nmethod = \"POST\"\nurl = \"http://{address}/orders\"\n"
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
    let refused = yard.client.execute(vec![call("c", "program_greet", json!({}))]).await.to_end().await;
    let error = check::outcomes(&refused)["c"].error.clone().expect("it failed");
    assert_eq!(error.kind(), CallErrorKind::ArgumentsInvalid);
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
