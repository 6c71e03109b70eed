//! Connections as they come in: plain, or behind TLS. Whatever is served on the port is served on these.

use std::io::IoSlice;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use crate::tls;

/// How long a client may take to agree on keys.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Clients that agree on keys at once; further ones wait in the listener's queue.
const HANDSHAKES_MAX: usize = 1024;
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

struct Incoming {
    listener: TcpListener,
    tls: Option<tls::Current>,
    handshakes: JoinSet<Option<Wire>>,
}

/// All connections, until the stream is dropped. None of them can end it.
pub(super) fn incoming(
    listener: TcpListener,
    tls: Option<tls::Current>,
) -> impl Stream<Item = Result<Wire, std::convert::Infallible>> {
    let incoming = Incoming { listener, tls, handshakes: JoinSet::new() };
    futures::stream::unfold(incoming, async |mut incoming| {
        let wire = incoming.next().await;
        Some((Ok(wire), incoming))
    })
}

impl Incoming {
    async fn next(&mut self) -> Wire {
        loop {
            tokio::select! {
                Some(done) = self.handshakes.join_next() => {
                    if let Ok(Some(wire)) = done {
                        return wire;
                    }
                }
                accepted = self.listener.accept(), if self.handshakes.len() < HANDSHAKES_MAX => {
                    match accepted.and_then(|(socket, from)| socket.set_nodelay(true).map(|()| (socket, from))) {
                        Ok((socket, from)) => match &self.tls {
                            None => return Wire::Plain(socket),
                            Some(tls) => {
                                let acceptor = TlsAcceptor::from(Arc::clone(&tls.borrow()));
                                self.handshakes.spawn(agree(acceptor, socket, from));
                            }
                        },
                        Err(error) => {
                            tracing::debug!(%error, "a connection failed as it came in");
                            tokio::time::sleep(BREATH).await;
                        }
                    }
                }
            }
        }
    }
}

async fn agree(acceptor: TlsAcceptor, socket: TcpStream, from: SocketAddr) -> Option<Wire> {
    match tokio::time::timeout(HANDSHAKE, acceptor.accept(socket)).await {
        Ok(Ok(stream)) => Some(Wire::Tls(Box::new(stream))),
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

impl Connected for Wire {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        match self {
            Self::Plain(socket) => Peer { address: socket.peer_addr().ok(), certificate: None },
            Self::Tls(stream) => {
                let (socket, session) = stream.get_ref();
                let first = session.peer_certificates().and_then(<[_]>::first);
                let certificate = first.map(|certificate| Arc::new(certificate.clone().into_owned()));
                Peer { address: socket.peer_addr().ok(), certificate }
            }
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
