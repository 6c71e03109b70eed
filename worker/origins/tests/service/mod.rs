//! A service that HTTP tools call.

#![allow(dead_code, reason = "each test uses a part")]

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use futures::{StreamExt as _, stream};
use serde_json::{Value, json};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Service {
    pub(crate) address: SocketAddr,
    state: Arc<Shared>,
    _serving: JoinSet<()>,
}

struct Shared {
    requests: AtomicUsize,
    go_on: Semaphore,
    reached: Notify,
    closed: Notify,
    document: Value,
}

impl Service {
    pub(crate) async fn start() -> Self {
        Self::with(Value::Null).await
    }

    /// One that has an OpenAPI document.
    pub(crate) async fn with(document: Value) -> Self {
        let state = Arc::new(Shared {
            requests: AtomicUsize::new(0),
            go_on: Semaphore::new(0),
            reached: Notify::new(),
            closed: Notify::new(),
            document,
        });
        let router = Router::new()
            .route("/echo/{*rest}", any(echo))
            .route("/json", any(async || json_of("{\"a\":[1]}")))
            .route("/broken_json", get(async || json_of("{\"a\":")))
            .route("/text", get(async || "plain"))
            .route("/image", get(async || ([(header::CONTENT_TYPE, "image/png")], Bytes::from_static(&[0x89, 0x50]))))
            .route("/nothing", get(async || StatusCode::NO_CONTENT))
            .route("/events", get(events))
            .route("/lines", get(async || media("application/x-ndjson", "{\"n\":1}\nno JSON\n\n{\"n\":2}")))
            .route("/breaks", get(breaks))
            .route("/silent", any(silent))
            .route("/status/{code}", any(status))
            .route("/large", get(async || "x".repeat(2000)))
            .route("/large_unannounced", get(large))
            .route("/redirect", any(redirect))
            .route("/round", any(async || (StatusCode::FOUND, [(header::LOCATION, "/round")])))
            .route("/openapi.json", get(async |State(state): State<Arc<Shared>>| axum::Json(state.document.clone())))
            .layer(axum::middleware::from_fn_with_state(Arc::clone(&state), count))
            .with_state(Arc::clone(&state));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut serving = JoinSet::new();
        serving.spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { address, state, _serving: serving }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn requests(&self) -> usize {
        self.state.requests.load(Ordering::Relaxed)
    }

    /// The rest of a stream is sent.
    pub(crate) fn go_on(&self) {
        self.state.go_on.add_permits(1);
    }

    /// A request to `/silent` has arrived.
    pub(crate) async fn reached(&self) {
        tokio::time::timeout(PATIENCE, self.state.reached.notified()).await.unwrap();
    }

    /// The connection of a request to `/silent` was closed.
    pub(crate) async fn closed(&self) {
        tokio::time::timeout(PATIENCE, self.state.closed.notified()).await.unwrap();
    }
}

async fn count(State(state): State<Arc<Shared>>, request: Request, next: axum::middleware::Next) -> Response {
    state.requests.fetch_add(1, Ordering::Relaxed);
    next.run(request).await
}

fn media(media_type: &'static str, body: &'static str) -> Response {
    ([(header::CONTENT_TYPE, media_type)], body).into_response()
}

fn json_of(text: &'static str) -> Response {
    media("application/json", text)
}

async fn echo(request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
    let text = String::from_utf8_lossy(&body).into_owned();
    let headers: serde_json::Map<String, Value> = parts
        .headers
        .iter()
        .map(|(name, value)| (name.to_string(), json!(String::from_utf8_lossy(value.as_bytes()))))
        .collect();
    axum::Json(json!({
        "method": parts.method.as_str(),
        "path": parts.uri.path(),
        "query": parts.uri.query(),
        "headers": headers,
        "body": serde_json::from_str(&text).unwrap_or(json!(text)),
    }))
    .into_response()
}

fn streamed(media_type: &'static str, body: Body) -> Response {
    ([(header::CONTENT_TYPE, media_type)], body).into_response()
}

async fn events(State(state): State<Arc<Shared>>) -> Response {
    let rest = stream::once(async move {
        state.go_on.acquire().await.unwrap().forget();
        Ok::<_, Infallible>("event: note\ndata: hi\n\ndata: {\"n\":3}\n\ndata: [DONE]\n\ndata: {\"n\":4}\n\n")
    });
    let all = stream::once(async { Ok::<_, Infallible>(": hello\n\ndata: {\"n\":1}\n\n") }).chain(rest);
    streamed("text/event-stream", Body::from_stream(all))
}

async fn breaks(State(state): State<Arc<Shared>>) -> Response {
    let broken = stream::once(async move {
        state.go_on.acquire().await.unwrap().forget();
        Err(std::io::Error::other("broken"))
    });
    let first = stream::once(async { Ok("data: {\"n\":1}\n\n") });
    streamed("text/event-stream", Body::from_stream(first.chain(broken)))
}

async fn silent(State(state): State<Arc<Shared>>) -> Response {
    struct Closed(Arc<Shared>);
    impl Drop for Closed {
        fn drop(&mut self) {
            self.0.closed.notify_one();
        }
    }
    state.reached.notify_one();
    let closed = Closed(state);
    let never = stream::pending::<Result<Bytes, Infallible>>().map(move |piece| {
        let _alive = &closed;
        piece
    });
    streamed("text/event-stream", Body::from_stream(never))
}

async fn status(Path(code): Path<u16>, headers: HeaderMap) -> Response {
    let key = headers.get("x-key").map_or("", |key| key.to_str().unwrap());
    let body = format!("you sent {key} {}", "x".repeat(10_000));
    (StatusCode::from_u16(code).unwrap(), [(header::RETRY_AFTER, "7")], body).into_response()
}

async fn large() -> Response {
    let pieces = stream::iter((0..20).map(|_| Ok::<_, Infallible>("x".repeat(100))));
    streamed("text/plain", Body::from_stream(pieces))
}

async fn redirect(Query(query): Query<Vec<(String, String)>>) -> Response {
    let to = query.into_iter().find(|(name, _)| name == "to").unwrap().1;
    (StatusCode::FOUND, [(header::LOCATION, to)]).into_response()
}
