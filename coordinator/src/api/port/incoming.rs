//! Connections as they come in: plain, or behind TLS. Whatever is served on the port is served on these.

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
use crate::tls;

/// How long a client may take to agree on keys.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Clients that agree on keys at once. With more, the one that has taken longest is dropped: a client needs milliseconds,
/// and one that is silent must not keep others out.
const HANDSHAKES_MAX: usize = 1024;
/// How often connections that are refused are reported.
const REPORT_EVERY: Duration = Duration::from_secs(10);
/// A process without free file descriptors gets some when connections end.
const BREATH: Duration = Duration::from_millis(100);

/// A connection.
pub(super) enum Wire {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Who is at the other end, as far as the connection tells. In the extensions of every request.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    pub(crate) address: Option<SocketAddr>,
    /// The certificate that the client has shown, signed by an authority of ours.
    pub(crate) certificate: Option<Arc<CertificateDer<'static>>>,
}

/// A connection to be served.
pub(super) struct Connection {
    pub(super) wire: Wire,
    pub(super) peer: Peer,
    pub(super) place: Arc<Place>,
}

/// All connections as they come in. None of them can end it.
pub(super) struct Incoming {
    listener: TcpListener,
    tls: Option<tls::Current>,
    places: Places,
    handshakes: JoinSet<Option<Connection>>,
    /// Oldest first.
    agreeing: VecDeque<AbortHandle>,
    reported: Option<Instant>,
}

impl Incoming {
    pub(super) fn new(listener: TcpListener, tls: Option<tls::Current>, places: Places) -> Self {
        let (handshakes, agreeing) = (JoinSet::new(), VecDeque::new());
        Self { listener, tls, places, handshakes, agreeing, reported: None }
    }

    /// May be dropped while it waits: nothing is lost.
    pub(super) async fn next(&mut self) -> Connection {
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
                            tracing::debug!(%error, "a connection failed as it came in");
                            tokio::time::sleep(BREATH).await;
                        }
                    }
                }
            }
        }
    }

    /// A connection without TLS; one with TLS comes when its client has agreed on keys.
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

    /// Says why, where the client can read it, and closes the connection.
    fn refuse(&mut self, socket: TcpStream, from: SocketAddr) {
        if self.reported.is_none_or(|reported| reported.elapsed() >= REPORT_EVERY) {
            self.reported = Some(Instant::now());
            tracing::warn!(%from, limits = %self.places, "refusing connections: there are as many as there may be");
        }
        if self.tls.is_none()
            && let Ok(mut socket) = socket.into_std()
        {
            // What does not fit the socket's empty buffer is not worth waiting for.
            drop(socket.write(REFUSED).and_then(|_| socket.shutdown(Shutdown::Write)));
        }
    }
}

/// What a client over HTTP/1 can read.
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
            tracing::debug!(%from, %error, "a client was not let in");
            None
        }
        Err(_) => {
            tracing::debug!(%from, "a client did not agree on keys in time");
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
        assert_eq!(body["reason"], "TOO_MANY_CONNECTIONS");
    }
}
