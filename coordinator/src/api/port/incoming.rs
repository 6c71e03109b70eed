//! Accepts connections: plain, or with TLS. All protocols of the port are served on these.

use std::collections::VecDeque;
use std::io::{IoSlice, Write as _};
use std::net::{Shutdown, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::server::TlsStream;

use super::places::{Place, Places};
use crate::auth::tls;

/// How long a TLS handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// TLS handshakes in progress. Beyond the limit the oldest one is dropped: a client needs milliseconds, and a silent
/// one must not block others.
const HANDSHAKES_MAX: usize = 1024;
/// How often rejected connections are logged.
const REPORT_EVERY: Duration = Duration::from_secs(10);
/// Pause if the process has no free file descriptors; it gets some when connections end.
const BREATH: Duration = Duration::from_millis(100);

/// A connection.
pub(in crate::api) enum Wire {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// The other end of the connection, as far as it is known. In the extensions of every request.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    pub(crate) address: Option<SocketAddr>,
    /// The certificate that the client presented, signed by a configured authority.
    pub(crate) certificate: Option<Arc<CertificateDer<'static>>>,
}

/// A connection to be served.
pub(in crate::api) struct Connection {
    pub(in crate::api) wire: Wire,
    pub(in crate::api) peer: Peer,
    pub(in crate::api) place: Arc<Place>,
}

/// Accepts all connections. No error of a connection ends it.
pub(in crate::api) struct Incoming {
    listener: TcpListener,
    tls: Option<tls::Current>,
    places: Places,
    handshakes: JoinSet<Option<Connection>>,
    /// Handshakes in progress, oldest first.
    agreeing: VecDeque<AbortHandle>,
    reported: Option<Instant>,
}

impl Incoming {
    pub(in crate::api) fn new(listener: TcpListener, tls: Option<tls::Current>, places: Places) -> Self {
        let (handshakes, agreeing) = (JoinSet::new(), VecDeque::new());
        Self { listener, tls, places, handshakes, agreeing, reported: None }
    }

    /// Cancel safe: no connection is lost if the future is dropped.
    pub(in crate::api) async fn next(&mut self) -> Connection {
        loop {
            tokio::select! {
                Some(done) = self.handshakes.join_next() => {
                    if let Ok(Some(connection)) = done {
                        return connection;
                    }
                }
                accepted = self.listener.accept() => {
                    match accepted.and_then(|(socket, from)| socket.set_nodelay(true).map(|()| (socket, from))) {
                        Ok((socket, from)) => {
                            if let Some(connection) = self.admit(socket, from) {
                                return connection;
                            }
                        }
                        Err(error) => {
                            tracing::debug!(%error, "accepting a connection failed");
                            tokio::time::sleep(BREATH).await;
                        }
                    }
                }
            }
        }
    }

    /// A connection without TLS; one with TLS is returned later, when its handshake is done.
    fn admit(&mut self, socket: TcpStream, from: SocketAddr) -> Option<Connection> {
        let Some(place) = self.places.take(from.ip()) else {
            self.refuse(socket, from);
            return None;
        };
        let place = Arc::new(place);
        let Some(tls) = &self.tls else {
            let peer = Peer { address: Some(from), certificate: None };
            return Some(Connection { wire: Wire::Plain(socket), peer, place });
        };
        while self.agreeing.front().is_some_and(AbortHandle::is_finished) {
            self.agreeing.pop_front();
        }
        if self.handshakes.len() >= HANDSHAKES_MAX
            && let Some(oldest) = self.agreeing.pop_front()
        {
            oldest.abort();
        }
        let acceptor = TlsAcceptor::from(Arc::clone(&tls.borrow()));
        self.agreeing.push_back(self.handshakes.spawn(agree(acceptor, socket, from, place)));
        None
    }

    /// Sends the reason, if the client can read it, and closes the connection.
    fn refuse(&mut self, socket: TcpStream, from: SocketAddr) {
        if self.reported.is_none_or(|reported| reported.elapsed() >= REPORT_EVERY) {
            self.reported = Some(Instant::now());
            tracing::warn!(%from, limits = %self.places, "refusing connections: the limit is reached");
        }
        if self.tls.is_none()
            && let Ok(mut socket) = socket.into_std()
        {
            // A response that does not fit the socket's empty buffer is not waited for.
            drop(socket.write(REFUSED).and_then(|_| socket.shutdown(Shutdown::Write)));
        }
    }
}

/// A response that a client over HTTP/1 can read.
const REFUSED: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\nretry-after: 5\r\n\
    connection: close\r\ncontent-length: 155\r\n\r\n\
    {\"type\":\"about:blank\",\"status\":503,\"reason\":\"TOO_MANY_CONNECTIONS\",\"domain\":\"toolyard.dev\",\
    \"detail\":\"this coordinator has as many connections as it takes\"}";

async fn agree(acceptor: TlsAcceptor, socket: TcpStream, from: SocketAddr, place: Arc<Place>) -> Option<Connection> {
    match tokio::time::timeout(HANDSHAKE, acceptor.accept(socket)).await {
        Ok(Ok(stream)) => {
            let (_, session) = stream.get_ref();
            let first = session.peer_certificates().and_then(<[_]>::first);
            let certificate = first.map(|certificate| Arc::new(certificate.clone().into_owned()));
            let peer = Peer { address: Some(from), certificate };
            Some(Connection { wire: Wire::Tls(Box::new(stream)), peer, place })
        }
        Ok(Err(error)) => {
            tracing::debug!(%from, %error, "TLS handshake failed");
            None
        }
        Err(_) => {
            tracing::debug!(%from, "TLS handshake timed out");
            None
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_read(cx, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write_vectored(cx, parts),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(socket) => socket.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use proto::Reason;

    use super::*;

    #[test]
    fn the_refusal_is_whole() {
        let text = std::str::from_utf8(REFUSED).expect("text");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
        assert!(
            head.contains(&format!("content-length: {}\r\n", body.len()))
                || head.ends_with(&format!("content-length: {}", body.len())),
            "{}",
            body.len()
        );
        let body: serde_json::Value = serde_json::from_str(body).expect("JSON");
        assert_eq!(body["reason"], Reason::TooManyConnections.code());
        assert_eq!(body["status"], Reason::TooManyConnections.http().as_u16());
        assert_eq!(body["domain"], proto::reason::DOMAIN);
    }
}
