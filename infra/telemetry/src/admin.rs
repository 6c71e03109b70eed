//! The admin port: HTTP for probes, scrapers, autoscalers and operators. It changes nothing but the log level. It has
//! no authentication, so only those who may observe the process should be able to reach it.
//!
//! | | |
//! |---|---|
//! | `GET /livez` | 200 while the process turns; never depends on the broker |
//! | `GET /readyz` | 200 while it makes progress, else 503 |
//! | `GET /metrics` | what it counts, for Prometheus; as OpenMetrics, with links to traces, if the scraper accepts that |
//! | `GET /stats` | what a pool has to do, as JSON, for autoscalers; 503 where that is not known now |
//! | `PUT /log-level` | logs from now on what the body says, see [`set_level`]; 400 if that is not understood or may not be set |
//!
//! A request for a host name that is not [served](Hosts) is refused with 403.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::header::{ACCEPT, CONTENT_TYPE, HOST, ORIGIN};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, put};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::hosts::Hosts;
use crate::metrics::Format;
use crate::{SetLevelError, metrics, process, set_level};

/// Longest body: a filter for logs.
const BODY_BYTES_MAX: usize = 4096;

/// The state of the pools, or the reason why it is unknown.
pub type Stats = Pin<Box<dyn Future<Output = Result<Value, String>> + Send>>;

/// The state of the process that the port reports.
pub struct Process {
    pub is_ready: Box<dyn Fn() -> bool + Send + Sync>,
    pub stats: Box<dyn Fn() -> Stats + Send + Sync>,
}

impl std::fmt::Debug for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Process").finish_non_exhaustive()
    }
}

#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} for the admin port: {source}. Is something else there?")]
pub struct ListenError {
    address: SocketAddr,
    source: std::io::Error,
}

/// Binds the port, and logs its address; port 0 picks a free one.
///
/// # Errors
/// When it is taken.
pub async fn listen(address: SocketAddr) -> Result<TcpListener, ListenError> {
    let error = |source| ListenError { address, source };
    let listener = TcpListener::bind(address).await.map_err(error)?;
    tracing::info!(address = %listener.local_addr().map_err(error)?, "admin port");
    Ok(listener)
}

/// Serves until a stop is requested.
pub async fn serve(listener: TcpListener, process: Process, hosts: Hosts, stop: CancellationToken) {
    let routes = Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(scrape))
        .route("/stats", get(stats))
        .route("/log-level", put(log_level))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(from_fn_with_state(hosts, of_this_host))
        .with_state(Arc::new(process));
    let serving = axum::serve(listener, routes).into_future();
    tokio::select! {
        served = serving => {
            if let Err(error) = served {
                tracing::error!(%error, "the admin port is closed");
            }
        }
        // Open requests are dropped: probes and scrapers come again.
        () = stop.cancelled() => {}
    }
}

/// Rejects web pages whose name was pointed at this port (DNS rebinding).
async fn of_this_host(State(hosts): State<Hosts>, request: Request, next: Next) -> Response {
    let host = request.headers().get(HOST).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    let host = host.unwrap_or_default();
    if !request.headers().contains_key(ORIGIN) && hosts.serve(&host) {
        return next.run(request).await;
    }
    let told = format!("{host:?} is not served here: ask by address, or start with --host-names {host}\n");
    (StatusCode::FORBIDDEN, told).into_response()
}

async fn ready(State(process): State<Arc<Process>>) -> impl IntoResponse {
    match (process.is_ready)() {
        true => (StatusCode::OK, "ok\n"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "no progress: the log cannot be reached, or it shuts down\n"),
    }
}

async fn scrape(headers: HeaderMap) -> impl IntoResponse {
    let accept = headers.get_all(ACCEPT).iter().filter_map(|accept| accept.to_str().ok()).collect::<Vec<_>>().join(",");
    let format = Format::accepted(&accept);
    let text = metrics::text(format) + &process::text(format) + format.end();
    ([(CONTENT_TYPE, format.content_type())], text)
}

async fn stats(State(process): State<Arc<Process>>) -> impl IntoResponse {
    let json = [(CONTENT_TYPE, "application/json")];
    match (process.stats)().await {
        Ok(stats) => (StatusCode::OK, json, stats.to_string()),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, json, serde_json::json!({ "error": error }).to_string()),
    }
}

async fn log_level(body: String) -> impl IntoResponse {
    match set_level(body.trim()) {
        Ok(()) => {
            tracing::info!(filter = body.trim(), "what is logged was changed");
            (StatusCode::OK, "ok\n".to_owned())
        }
        Err(error @ (SetLevelError::Malformed { .. } | SetLevelError::Refused(_))) => {
            (StatusCode::BAD_REQUEST, format!("{error}\n"))
        }
        Err(error @ (SetLevelError::NoLogs | SetLevelError::Gone(_))) => {
            (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n"))
        }
    }
}
