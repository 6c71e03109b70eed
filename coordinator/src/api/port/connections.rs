//! Serves connections. Each has a time limit without use and bounded buffers, before and after authentication.
//!
//! Every limit here applies before a client is authenticated.

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

/// HTTP/2 pings that check whether a client is still there: sent after this long without traffic, with the same time
/// for the answer.
const KEEPALIVE: Duration = Duration::from_secs(20);
/// Requests in progress on one connection. A client that needs more opens another one; `ExecuteRuns` carries thousands
/// of runs.
const STREAMS_PER_CONNECTION_MAX: u32 = 256;
/// Bytes of a response that are buffered in a connection (HTTP/1) or a stream (HTTP/2) for a client that does not read.
const UNREAD_BYTES_MAX: usize = 64 * 1024;
/// How long a new connection may take to send as many bytes as the shortest request has. Real clients send them
/// immediately. Slow clients have the header's time (30 s) and the body's after that.
const FIRST_BYTES_WITHIN: Duration = Duration::from_secs(10);
/// The minimum that every client sends: the preface of HTTP/2 has as many bytes, and so has any request with a host.
const FIRST_BYTES: u64 = 24;
/// How long a connection may be open without a request in progress. Longer than clients keep connections in their
/// pools.
const IDLE_MAX: Duration = Duration::from_secs(5 * 60);
/// How long a connection may stay open after it was signalled to close.
const LEAVING_MAX: Duration = Duration::from_secs(10);

/// Serves all connections until `stopped`, then lets requests in progress end.
pub(in crate::api) async fn serve<S>(mut incoming: Incoming, service: S, stopped: impl Future<Output = ()>)
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
    // The system rejects new connections from here on, and clients try another coordinator.
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
                    tracing::debug!(error, "serving a connection failed");
                }
                break;
            }
            () = leave.cancelled(), if leaves.is_none() => {
                serving.as_mut().graceful_shutdown();
                // Requests in progress have the drain time of the coordinator.
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

/// The activity on a connection.
struct Activity {
    opened: Instant,
    /// Bytes received.
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

    /// When to check the connection again.
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

/// A request in progress, until its response was sent or its client has disconnected.
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

/// The body of a response, which keeps its request in progress.
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

#[cfg(test)]
mod tests {
    //! Over real sockets, with a clock that advances when nothing else does.

    use http_body::Body as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};
    use tokio_rustls::rustls::server::ResolvesServerCertUsingSni;
    use tokio_rustls::rustls::{ServerConfig, crypto::ring::default_provider};

    use super::super::places::Places;
    use super::*;
    use crate::auth::tls;

    /// Reads the body, and answers with its error.
    async fn answer(mut request: Request<Body>) -> Result<Response<Body>, Infallible> {
        let mut wrong = String::new();
        while let Some(frame) = std::future::poll_fn(|cx| Pin::new(request.body_mut()).poll_frame(cx)).await {
            if let Err(status) = frame {
                wrong = status.message().to_owned();
                break;
            }
        }
        Ok(Response::builder().header("wrong", wrong).body(Body::empty()).expect("a response"))
    }

    /// A connection, and its server, which runs until this is dropped.
    async fn connect(tls: Option<tls::Current>) -> (TcpStream, JoinSet<()>) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let address = listener.local_addr().expect("it has an address");
        let incoming = Incoming::new(listener, tls, Places::new(8));
        let mut serving = JoinSet::new();
        serving.spawn(serve(incoming, tower::service_fn(answer), std::future::pending()));
        (TcpStream::connect(address).await.expect("it listens"), serving)
    }

    /// Reads until the other side closes; returns the text and how long that took.
    async fn to_end(connection: &mut TcpStream) -> (String, Duration) {
        let (began, mut text) = (Instant::now(), Vec::new());
        connection.read_to_end(&mut text).await.expect("it is closed well");
        (String::from_utf8_lossy(&text).into_owned(), began.elapsed())
    }

    fn within(took: Duration, limit: Duration) {
        assert!(took >= limit && took < limit + LEAVING_MAX * 2, "{took:?} of {limit:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_says_nothing_is_closed_after_10_s_and_one_of_http_1_after_30_s_without_a_request() {
        let (mut silent, _serving) = connect(None).await;
        let (text, took) = to_end(&mut silent).await;
        within(took, FIRST_BYTES_WITHIN);
        assert_eq!(text, "");
        let (mut idle, _serving) = connect(None).await;
        idle.write_all(b"GET / HTTP/1.1\r\nhost: here\r\n\r\n").await.expect("it is read");
        let (text, took) = to_end(&mut idle).await;
        within(took, Duration::from_secs(30));
        assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_of_http_2_that_only_answers_pings_is_closed_after_5_minutes() {
        const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
        let (ping, goaway) = (6, 7);
        let (mut idle, _serving) = connect(None).await;
        let began = Instant::now();
        idle.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.expect("it is read");
        idle.write_all(&SETTINGS).await.expect("it is read");
        let (mut pings, mut told) = (0, None);
        let mut head = [0; 9];
        while idle.read_exact(&mut head).await.is_ok() {
            let [_, high, low, kind, flags, ..] = head;
            let mut rest = vec![0; usize::from(u16::from_be_bytes([high, low]))];
            idle.read_exact(&mut rest).await.expect("a whole frame");
            if kind == ping && flags == 0 {
                pings += 1;
                head[4] = 1;
                idle.write_all(&[&head[..], &rest].concat()).await.expect("it is read");
            }
            if kind == goaway {
                told.get_or_insert(began.elapsed());
            }
        }
        within(told.expect("it is signalled to close"), IDLE_MAX);
        within(began.elapsed(), IDLE_MAX);
        assert!(pings >= 10, "{pings}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_that_does_not_come_whole_is_refused_after_a_minute() {
        let (mut slow, _serving) = connect(None).await;
        let head = "POST /toolyard.v1.RunService/GetRun HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\
            content-type: application/grpc\r\ncontent-length: 105\r\n\r\n";
        slow.write_all(head.as_bytes()).await.expect("it is read");
        slow.write_all(&[0, 0, 0, 0, 100, 1, 2, 3]).await.expect("it is read");
        let (text, took) = to_end(&mut slow).await;
        within(took, Duration::from_secs(60));
        assert!(text.contains("did not arrive within 60 s"), "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn who_does_not_agree_on_keys_is_left_after_10_s_and_who_speaks_without_tls_at_once() {
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .expect("they are known")
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(ResolvesServerCertUsingSni::new()));
        let (_keeper, tls) = tokio::sync::watch::channel(Arc::new(config));
        let (mut silent, _serving) = connect(Some(tls.clone())).await;
        let (text, took) = to_end(&mut silent).await;
        within(took, Duration::from_secs(10));
        assert_eq!(text, "");
        let (mut plain, _serving) = connect(Some(tls)).await;
        plain.write_all(b"GET / HTTP/1.1\r\nhost: here\r\n\r\n").await.expect("it is read");
        assert!(to_end(&mut plain).await.1 < Duration::from_secs(1));
    }
}
