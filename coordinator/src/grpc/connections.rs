//! Serves connections. Each has a time limit without use and bounded buffers, before and after authentication.
//!
//! Every limit here holds before a client has shown who it is.

use std::convert::Infallible;
use std::io::IoSlice;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming as IncomingBody;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::body::Body;
use tower::{Service, ServiceExt as _};

use super::bodies::Received;
use super::incoming::{Connection, Incoming, Wire};
use super::status::with_reason;

/// HTTP/2 pings that find out whether a client is still there: after so long without one, and for so long.
const KEEPALIVE: Duration = Duration::from_secs(20);
/// Requests under way on one connection. A client that needs more opens another one; `ExecuteRuns` carries thousands of runs.
const STREAMS_PER_CONNECTION_MAX: u32 = 256;
/// Bytes of a response that wait in a connection (HTTP/1) or a stream (HTTP/2) for a client that does not read.
const UNREAD_BYTES_MAX: usize = 64 * 1024;
/// How long a new connection may take to send as much as the shortest request has. A client that has something to say does
/// so at once; what is sent slowly after that has the header's time (30 s) and the body's.
const FIRST_BYTES_WITHIN: Duration = Duration::from_secs(10);
/// What every client sends: the preface of HTTP/2 has as many, and so has any request with a host.
const FIRST_BYTES: u64 = 24;
/// How long a connection may be open without a request under way. Longer than clients keep one in their pools.
const IDLE_MAX: Duration = Duration::from_secs(5 * 60);
/// How long a connection that was told to go may stay.
const LEAVING_MAX: Duration = Duration::from_secs(10);

/// Serves all connections until told to stop, then lets what is under way end.
pub(super) async fn serve<S>(mut incoming: Incoming, service: S, stopped: impl Future<Output = ()>)
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
{
    let builder = Arc::new(builder());
    let leave = CancellationToken::new();
    let mut served = JoinSet::new();
    let mut stopped = pin!(stopped);
    loop {
        tokio::select! {
            () = &mut stopped => break,
            connection = incoming.next() => {
                served.spawn(serve_one(connection, Arc::clone(&builder), service.clone(), leave.clone()));
            }
            Some(_) = served.join_next() => {}
        }
    }
    // Whoever comes now is refused by the system, and goes elsewhere.
    drop(incoming);
    leave.cancel();
    while served.join_next().await.is_some() {}
}

fn builder() -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX)
        .max_send_buf_size(UNREAD_BYTES_MAX)
        .keep_alive_interval(KEEPALIVE);
    builder.http1().timer(TokioTimer::new()).max_buf_size(UNREAD_BYTES_MAX);
    builder
}

async fn serve_one<S>(
    connection: Connection,
    builder: Arc<Builder<TokioExecutor>>,
    service: S,
    leave: CancellationToken,
) where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
{
    let Connection { wire, peer, place } = connection;
    let activity = Arc::new(Activity::new());
    let io = TokioIo::new(Counted { wire, activity: Arc::clone(&activity) });
    let of_requests = Arc::clone(&activity);
    let service = hyper::service::service_fn(move |request: Request<IncomingBody>| {
        let begun = Begun::new(Arc::clone(&of_requests));
        let (mut parts, body) = request.into_parts();
        let body = Body::new(Received::new(&parts, body, place.room()));
        parts.extensions.insert(peer.clone());
        let answer = service.clone().oneshot(Request::from_parts(parts, body));
        async move { Ok::<_, Infallible>(with_reason(answer.await?).map(|body| Answering { body, _begun: begun })) }
    });
    let mut serving = pin!(builder.serve_connection(io, service));
    let mut leaves = None;
    loop {
        let look = match leaves {
            Some(at) => at,
            None => activity.look(),
        };
        tokio::select! {
            served = &mut serving => {
                if let Err(error) = served {
                    tracing::debug!(error, "a connection failed");
                }
                break;
            }
            () = leave.cancelled(), if leaves.is_none() => {
                serving.as_mut().graceful_shutdown();
                // What is under way has the time that the coordinator has.
                leaves = Some(Instant::now() + Duration::from_secs(3600));
            }
            () = tokio::time::sleep_until(look) => {
                if leaves.is_some() || activity.is_silent() {
                    break;
                }
                if activity.is_idle() {
                    serving.as_mut().graceful_shutdown();
                    leaves = Some(Instant::now() + LEAVING_MAX);
                }
            }
        }
    }
}

/// What happens on a connection.
struct Activity {
    opened: Instant,
    /// Bytes that came.
    bytes: AtomicU64,
    under_way: AtomicUsize,
    /// When the last request ended, in milliseconds since the connection was opened.
    last_ms: AtomicU64,
}

impl Activity {
    fn new() -> Self {
        let (bytes, under_way, last_ms) = Default::default();
        Self { opened: Instant::now(), bytes, under_way, last_ms }
    }

    fn idle_since(&self) -> Instant {
        match self.under_way.load(Relaxed) {
            0 => self.opened + Duration::from_millis(self.last_ms.load(Relaxed)),
            _ => Instant::now(),
        }
    }

    /// When to look at the connection again.
    fn look(&self) -> Instant {
        if self.bytes.load(Relaxed) < FIRST_BYTES {
            return self.opened + FIRST_BYTES_WITHIN;
        }
        self.idle_since() + IDLE_MAX
    }

    fn is_silent(&self) -> bool {
        self.bytes.load(Relaxed) < FIRST_BYTES && self.opened.elapsed() >= FIRST_BYTES_WITHIN
    }

    fn is_idle(&self) -> bool {
        self.idle_since().elapsed() >= IDLE_MAX
    }
}

/// A request that is under way, until its response was sent or its client has gone.
struct Begun(Arc<Activity>);

impl Begun {
    fn new(activity: Arc<Activity>) -> Self {
        activity.under_way.fetch_add(1, Relaxed);
        Self(activity)
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        let now = u64::try_from(self.0.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.0.last_ms.store(now, Relaxed);
        self.0.under_way.fetch_sub(1, Relaxed);
    }
}

/// The body of a response.
struct Answering {
    body: Body,
    _begun: Begun,
}

impl http_body::Body for Answering {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A connection whose incoming bytes are counted.
struct Counted {
    wire: Wire,
    activity: Arc<Activity>,
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.wire).poll_read(cx, buffer);
        self.activity.bytes.fetch_add((buffer.filled().len() - before) as u64, Relaxed);
        read
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.wire).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.wire).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.wire.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.wire).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.wire).poll_shutdown(cx)
    }
}
