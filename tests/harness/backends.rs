//! A scripted HTTP server behind the tools of a file of backends: it answers by the request alone, and finishes an
//! image only when the test lets it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::Fixture;

/// Backends for `web_search`, `file_search` and `image_generation`, and for an HTTP tool `tavily_search`.
#[derive(Debug)]
pub struct Backends {
    address: SocketAddr,
    folder: TempDir,
    /// Images that may be finished.
    finished: Arc<Semaphore>,
    _serving: JoinSet<()>,
}

/// What no image is made of.
pub const FORBIDDEN: &str = "a secret";

/// The bytes of every image, which begin as a PNG.
#[must_use]
pub fn image() -> Vec<u8> {
    [b"\x89PNG\r\n\x1a\n".to_vec(), vec![9; 90_000]].concat()
}

/// The bytes of every partial image: more than one piece of output has.
#[must_use]
pub fn partial_image() -> Vec<u8> {
    [b"\x89PNG\r\n\x1a\n".to_vec(), vec![5; 70_000]].concat()
}

impl Backends {
    /// # Panics
    /// If there is no free port or no folder.
    pub async fn start() -> Self {
        let finished = Arc::new(Semaphore::new(0));
        let router = Router::new()
            .route("/search", post(search))
            .route("/documents", post(documents))
            .route("/v1/images/generations", post(generations))
            .with_state(Arc::clone(&finished));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("it has an address");
        let mut serving = JoinSet::new();
        serving.spawn(async move { axum::serve(listener, router).await.expect("it serves") });
        let folder = tempfile::tempdir().expect("a temporary folder");
        Self { address, folder, finished, _serving: serving }
    }

    /// Lets one image be finished.
    pub fn finish_image(&self) {
        self.finished.add_permits(1);
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let file = self.folder.path().join(name);
        std::fs::write(&file, text).expect("a file is written");
        file
    }

    /// The fixture whose workers host the tools with these backends.
    #[must_use]
    pub fn of(&self, fixture: &Fixture) -> Fixture {
        let address = self.address;
        let backends = self.write(
            "backends.toml",
            &format!(
                "[web_search]\nurl = \"http://{address}/search\"\n[file_search]\nurl = \"http://{address}/documents\"\n\
                 [image_generation]\nurl = \"http://{address}/v1/images/generations\"\n[code_interpreter]\n\
                 [egress]\naddresses = [\"127.0.0.1\"]\n"
            ),
        );
        let http = self.write(
            "http.toml",
            &format!(
                "[egress]\naddresses = [\"127.0.0.1\"]\n[[tool]]\nname = \"tavily_search\"\n\
                 description = \"Searches.\"\nmethod = \"POST\"\nurl = \"http://{address}/search\"\n\
                 effects = {{ read_only = true, open_world = false }}\n\
                 input_schema = {{ type = \"object\", properties = {{ query = {{ type = \"string\" }} }} }}\n"
            ),
        );
        fixture.with("TOOLYARD_BACKENDS", backends.display()).with("TOOLYARD_HTTP", http.display())
    }
}

fn as_json(value: &Value) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

fn events(events: impl stream::Stream<Item = Value> + Send + 'static) -> Response {
    let pieces = events.map(|event| Ok::<_, std::convert::Infallible>(format!("data: {event}\n\n")));
    ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(pieces)).into_response()
}

/// Two pages about anything.
async fn search(asked: Bytes) -> Response {
    let asked: Value = serde_json::from_slice(&asked).expect("a request is JSON");
    let page = |number: u32| {
        let url = format!("https://pages.example/{number}");
        json!({ "title": format!("Page {number}"), "url": url, "content": asked["query"] })
    };
    as_json(&json!({ "answer": "It is round [1].", "results": [page(1), page(2)] }))
}

/// A passage, and an answer about it piece by piece.
async fn documents(asked: Bytes) -> Response {
    let asked: Value = serde_json::from_slice(&asked).expect("a request is JSON");
    let passage = json!({ "file_id": "f1", "filename": "moon.md", "score": 0.5, "text": asked["query"] });
    events(stream::iter([json!({ "results": [passage] }), json!({ "text": "It is " }), json!({ "text": "round." })]))
}

/// A partial image at once, and the image when the test lets it be finished; an error for what may not be drawn.
async fn generations(State(finished): State<Arc<Semaphore>>, asked: Bytes) -> Response {
    let asked: Value = serde_json::from_slice(&asked).expect("a request is JSON");
    assert_eq!(asked["stream"], true, "{asked}");
    if asked["prompt"] == FORBIDDEN {
        let error = json!({ "error": { "code": "moderation_blocked", "message": "this is not drawn" } });
        return (StatusCode::BAD_REQUEST, error.to_string()).into_response();
    }
    let text = |bytes: Vec<u8>| BASE64_STANDARD.encode(bytes);
    let partial = json!({ "type": "image_generation.partial_image", "partial_image_index": 0,
        "b64_json": text(partial_image()) });
    let completed = json!({ "type": "image_generation.completed", "b64_json": text(image()),
        "size": "1024x1024", "quality": "low" });
    let completed = stream::once(async move {
        finished.acquire().await.expect("it is never closed").forget();
        completed
    });
    events(stream::iter([partial]).chain(completed))
}
