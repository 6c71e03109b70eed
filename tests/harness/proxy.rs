//! A TCP proxy between two processes, for faults of the network: it withholds bytes in one or both directions, and then
//! delivers them late (heal) or never (cut); or it is slow.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

/// Bytes that one direction of one connection holds itself; the rest waits in the kernel's buffers, as on a real link.
const BUFFER_BYTES: usize = 64 * 1024;

/// The direction of a connection, named after its receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    ToServer,
    ToClient,
    Both,
}

/// The present state of the link. Every connection follows it.
#[derive(Debug, Clone, Copy, Default)]
struct Link {
    holds_to_server: bool,
    holds_to_client: bool,
    /// The most bytes that each connection delivers in this direction in a second.
    slow: Option<(Direction, usize)>,
    /// New connections are closed at once.
    closed: bool,
    /// Connections of an earlier generation end.
    generation: u64,
}

impl Link {
    fn holds(self, direction: Direction) -> bool {
        match direction {
            Direction::ToServer => self.holds_to_server,
            Direction::ToClient => self.holds_to_client,
            Direction::Both => self.holds_to_server || self.holds_to_client,
        }
    }

    /// The most bytes that a connection delivers in this direction in a second.
    fn bytes_per_s(self, direction: Direction) -> Option<usize> {
        let is_meant = |slow: Direction| slow == direction || slow == Direction::Both;
        self.slow.filter(|(slow, _)| is_meant(*slow)).map(|(_, bytes)| bytes)
    }
}

/// A listener on a loopback port that forwards each connection to one server. It ends, with its connections, when it is
/// dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    link: watch::Sender<Link>,
    accepting: AbortHandle,
}

impl Proxy {
    /// # Errors
    /// No loopback port is free.
    pub async fn to(server: SocketAddr) -> std::io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let (link, followed) = watch::channel(Link::default());
        let accepting = tokio::spawn(accept(listener, server, followed)).abort_handle();
        Ok(Self { address, link, accepting })
    }

    /// A proxy in front of the broker that `url` names, as `nats://127.0.0.1:4222`.
    ///
    /// # Errors
    /// The URL has no address with a port; no loopback port is free.
    pub async fn to_broker(url: &str) -> std::io::Result<Self> {
        let address = url.trim_start_matches("nats://").parse();
        Self::to(address.map_err(|error| std::io::Error::other(format!("{url} has no IP address: {error}")))?).await
    }

    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL under which a process reaches the broker through this proxy.
    #[must_use]
    pub fn nats_url(&self) -> String {
        format!("nats://{}", self.address)
    }

    /// Forwards nothing in this direction until [`Self::heal`] or [`Self::cut`]. Neither side can tell this from a slow
    /// link; senders go on until the kernel's buffers are full. New connections are accepted and held too.
    pub fn hold(&self, direction: Direction) {
        self.link.send_modify(|link| {
            link.holds_to_server |= direction != Direction::ToClient;
            link.holds_to_client |= direction != Direction::ToServer;
        });
    }

    /// Each connection delivers no more than this many bytes a second in this direction, until [`Self::heal`] or
    /// [`Self::cut`].
    pub fn throttle(&self, direction: Direction, bytes_per_s: usize) {
        self.link.send_modify(|link| link.slow = Some((direction, bytes_per_s)));
    }

    /// Forwards again, at full speed. What was held is delivered late and in order; new connections are served again.
    pub fn heal(&self) {
        self.link.send_modify(|link| *link = Link { generation: link.generation, ..Link::default() });
    }

    /// Breaks all connections. What was held is lost. New connections are served.
    pub fn cut(&self) {
        self.link.send_modify(|link| *link = Link { generation: link.generation + 1, ..Link::default() });
    }

    /// Breaks all connections and lets none come about until [`Self::heal`].
    pub fn close(&self) {
        self.link.send_modify(|link| *link = Link { closed: true, generation: link.generation + 1, ..Link::default() });
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Dropping the future ends the connections: their tasks are in its set.
async fn accept(listener: TcpListener, server: SocketAddr, link: watch::Receiver<Link>) {
    let mut connections = JoinSet::new();
    loop {
        // Accepting again after an error is right: the client of the failed connection has gone.
        let Ok((client, _)) = listener.accept().await else { continue };
        while connections.try_join_next().is_some() {}
        if !link.borrow().closed {
            connections.spawn(connect(client, server, link.clone()));
        }
    }
}

async fn connect(client: TcpStream, server: SocketAddr, link: watch::Receiver<Link>) {
    let generation = link.borrow().generation;
    // A server that is away closes the client's connection, as it would without us.
    let Ok(server) = TcpStream::connect(server).await else { return };
    // Small messages of a protocol must not wait for each other here.
    drop((client.set_nodelay(true), server.set_nodelay(true)));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let mut ends = link.clone();
    tokio::select! {
        // Before the pumps, because a cut also ends the holding: they would deliver what is to be lost.
        biased;
        // The sender is gone when the proxy is dropped.
        _ = ends.wait_for(|link| link.generation != generation) => {}
        () = pump(from_client, to_server, link.clone(), Direction::ToServer) => {}
        () = pump(from_server, to_client, link, Direction::ToClient) => {}
    }
}

/// Forwards one direction until either side ends the connection. The other direction ends with it: neither of the
/// protocols that we carry closes one direction only.
async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut link: watch::Receiver<Link>, direction: Direction) {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        // An end that comes while the link holds is held as well.
        let read = from.read(&mut buffer).await;
        let mut rest = &buffer[..read.as_ref().map_or(0, |count| *count)];
        loop {
            if link.wait_for(|link| !link.holds(direction)).await.is_err() {
                return;
            }
            if rest.is_empty() {
                break;
            }
            let per_s = link.borrow().bytes_per_s(direction);
            let (now, later) = rest.split_at(per_s.map_or(rest.len(), |bytes| bytes.min(rest.len())));
            if to.write_all(now).await.is_err() {
                return;
            }
            rest = later;
            if per_s.is_some() {
                let healed = link.wait_for(|link| link.slow.is_none());
                // The proxy may have been dropped: then reading or writing fails next.
                drop(tokio::time::timeout(Duration::from_secs(1), healed).await);
            }
        }
        if !matches!(read, Ok(1..)) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A connection through a proxy: its client's end and its server's end.
    async fn connected() -> (Proxy, TcpListener, TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port is free");
        let proxy = Proxy::to(listener.local_addr().expect("it is bound")).await.expect("a port is free");
        let client = TcpStream::connect(proxy.address()).await.expect("the proxy listens");
        let (server, _) = listener.accept().await.expect("the proxy connects");
        (proxy, listener, client, server)
    }

    async fn received(stream: &mut TcpStream, count: usize) -> Option<String> {
        let mut bytes = vec![0; count];
        let read = tokio::time::timeout(Duration::from_millis(100), stream.read_exact(&mut bytes)).await;
        read.ok()?.ok()?;
        String::from_utf8(bytes).ok()
    }

    #[tokio::test]
    async fn held_bytes_are_delivered_late_and_in_order_and_the_other_direction_goes_on() {
        let (proxy, _listener, mut client, mut server) = connected().await;
        proxy.hold(Direction::ToServer);
        client.write_all(b"one").await.expect("the link looks well");
        server.write_all(b"back").await.expect("the link looks well");
        assert_eq!(received(&mut client, 4).await.as_deref(), Some("back"));
        assert_eq!(received(&mut server, 1).await, None);
        client.write_all(b"two").await.expect("the link looks well");
        proxy.heal();
        assert_eq!(received(&mut server, 6).await.as_deref(), Some("onetwo"));
    }

    #[tokio::test]
    async fn a_slow_link_delivers_some_bytes_a_second_until_it_is_healed() {
        let (proxy, _listener, mut client, mut server) = connected().await;
        proxy.throttle(Direction::ToClient, 3);
        server.write_all(b"onetwothree").await.expect("the link looks well");
        assert_eq!(received(&mut client, 3).await.as_deref(), Some("one"));
        assert_eq!(received(&mut client, 1).await, None);
        proxy.heal();
        assert_eq!(received(&mut client, 8).await.as_deref(), Some("twothree"));
        proxy.throttle(Direction::Both, 3);
        client.write_all(b"fourfive").await.expect("the link looks well");
        assert_eq!(received(&mut server, 3).await.as_deref(), Some("fou"));
        assert_eq!(received(&mut server, 1).await, None);
    }

    #[tokio::test]
    async fn cut_loses_what_was_held_and_serves_the_next_connection() {
        let (proxy, listener, mut client, mut server) = connected().await;
        proxy.hold(Direction::Both);
        client.write_all(b"lost").await.expect("the link looks well");
        proxy.cut();
        assert_eq!(server.read(&mut [0; 4]).await.unwrap_or(0), 0, "nothing arrives before the end");
        assert_eq!(client.read(&mut [0; 4]).await.unwrap_or(0), 0);
        let mut client = TcpStream::connect(proxy.address()).await.expect("the proxy listens");
        let (mut server, _) = listener.accept().await.expect("the proxy connects");
        client.write_all(b"next").await.expect("the link is well");
        assert_eq!(received(&mut server, 4).await.as_deref(), Some("next"));
    }

    #[tokio::test]
    async fn a_closed_link_ends_every_connection_until_it_is_healed() {
        let (proxy, listener, mut client, _server) = connected().await;
        proxy.close();
        assert_eq!(client.read(&mut [0; 4]).await.unwrap_or(0), 0);
        let mut client = TcpStream::connect(proxy.address()).await.expect("the proxy listens");
        assert_eq!(client.read(&mut [0; 4]).await.unwrap_or(0), 0);
        proxy.heal();
        let _client = TcpStream::connect(proxy.address()).await.expect("the proxy listens");
        listener.accept().await.expect("the proxy connects");
    }
}
