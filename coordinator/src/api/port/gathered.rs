//! Gathers what an HTTP/2 connection writes: frames that are ready in the same turn of the executor leave together.
//!
//! `h2` writes each data frame of 256 bytes and more by a system call of its own, and a response has at least one. So a
//! batch of entries from the log, which ends hundreds of runs, would cost hundreds of system calls and as many packets.
//! Here frames are copied into a buffer, and the executor wakes the connection to write them once the other tasks that
//! are ready have run, at the latest after 61 of them (tokio's `event_interval`).

use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker, ready};

use futures::task::AtomicWaker;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes that wait at most. With more, writing waits for the client, as it does without a buffer.
const WAITING_MAX: usize = 64 * 1024;
/// Writes of this size are not worth a copy.
const LARGE: usize = 16 * 1024;
/// The buffer that an idle connection keeps.
const KEPT: usize = 8 * 1024;
/// How an HTTP/2 connection begins.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection of any protocol. Only HTTP/2 is gathered: its server reads each time it is polled, and what waits is
/// written then.
pub(super) struct Gathered<W> {
    wire: W,
    protocol: Protocol,
    /// What is to be written, from `written` on.
    waiting: Vec<u8>,
    written: usize,
    /// The wire was written to and not flushed.
    unflushed: bool,
    /// The wire took no more bytes, and wakes the connection when it does.
    blocked: bool,
    /// The executor was asked for a turn to write.
    asked: bool,
    turn: Arc<Turn>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    /// So many bytes came, and all are of the preface of HTTP/2.
    Unknown(usize),
    Http2,
    Http1,
}

/// Wakes the connection when the other tasks have run.
#[derive(Debug, Default)]
struct Turn {
    came: AtomicBool,
    connection: AtomicWaker,
}

impl Wake for Turn {
    fn wake(self: Arc<Self>) {
        self.came.store(true, Ordering::Release);
        self.connection.wake();
    }
}

impl<W: AsyncWrite + Unpin> Gathered<W> {
    pub(super) fn new(wire: W) -> Self {
        Self {
            wire,
            protocol: Protocol::Unknown(0),
            waiting: Vec::new(),
            written: 0,
            unflushed: false,
            blocked: false,
            asked: false,
            turn: Arc::default(),
        }
    }

    /// Asks for a turn after the tasks that are ready.
    fn ask(&mut self, cx: &Context<'_>) {
        if self.asked {
            return;
        }
        self.asked = true;
        self.turn.connection.register(cx.waker());
        let waker = Waker::from(Arc::clone(&self.turn));
        // Its first poll defers the waker, and that is all that is needed of it.
        let deferred = pin!(tokio::task::yield_now()).poll(&mut Context::from_waker(&waker));
        debug_assert!(deferred.is_pending(), "a new yield always waits");
    }

    /// Writes all that waits.
    fn poll_write_out(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.blocked = true;
        while let Some(rest) = self.waiting.get(self.written..).filter(|rest| !rest.is_empty()) {
            let count = ready!(Pin::new(&mut self.wire).poll_write(cx, rest))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.unflushed = true;
            self.written += count;
        }
        self.written = 0;
        if self.waiting.capacity() > KEPT {
            self.waiting = Vec::new()
        } else {
            self.waiting.clear()
        }
        if self.unflushed {
            ready!(Pin::new(&mut self.wire).poll_flush(cx))?;
            self.unflushed = false;
        }
        self.blocked = false;
        Poll::Ready(Ok(()))
    }

    /// Whether this many bytes more are to be gathered. Waits for room.
    fn poll_gather(&mut self, cx: &mut Context<'_>, bytes: usize) -> Poll<io::Result<bool>> {
        if self.protocol != Protocol::Http2 {
            return Poll::Ready(Ok(false));
        }
        let is_large = bytes >= LARGE;
        if is_large || self.waiting.len() + bytes > WAITING_MAX {
            ready!(self.poll_write_out(cx))?;
        }
        self.unflushed |= is_large;
        Poll::Ready(Ok(!is_large))
    }

    fn note_read(&mut self, read: &[u8]) {
        let Protocol::Unknown(seen) = self.protocol else { return };
        let expected = PREFACE.get(seen..).unwrap_or_default();
        let compared = read.len().min(expected.len());
        self.protocol = if read.get(..compared) != expected.get(..compared) {
            Protocol::Http1
        } else if seen + compared == PREFACE.len() {
            Protocol::Http2
        } else {
            Protocol::Unknown(seen + compared)
        };
    }
}

impl<W: AsyncRead + AsyncWrite + Unpin> AsyncRead for Gathered<W> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.blocked || (this.asked && this.turn.came.swap(false, Ordering::AcqRel)) {
            this.asked = false;
            if let Poll::Ready(wrote) = this.poll_write_out(cx) {
                wrote?;
            }
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.wire).poll_read(cx, buffer))?;
        this.note_read(buffer.filled().get(before..).unwrap_or_default());
        Poll::Ready(Ok(()))
    }
}

impl<W: AsyncWrite + Unpin> AsyncWrite for Gathered<W> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if !ready!(self.poll_gather(cx, bytes.len()))? {
            return Pin::new(&mut self.wire).poll_write(cx, bytes);
        }
        self.waiting.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let bytes = parts.iter().map(|part| part.len()).sum();
        if !ready!(self.poll_gather(cx, bytes))? {
            return Pin::new(&mut self.wire).poll_write_vectored(cx, parts);
        }
        parts.iter().for_each(|part| self.waiting.extend_from_slice(part));
        Poll::Ready(Ok(bytes))
    }

    fn is_write_vectored(&self) -> bool {
        self.wire.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.protocol != Protocol::Http2 {
            return Pin::new(&mut self.wire).poll_flush(cx);
        }
        if self.unflushed && self.waiting.is_empty() {
            return self.poll_write_out(cx);
        }
        if !self.waiting.is_empty() {
            self.ask(cx);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_write_out(cx))?;
        Pin::new(&mut self.wire).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

    use super::*;

    /// Counts the writes that reach it.
    struct Wire {
        inner: DuplexStream,
        writes: usize,
    }

    impl AsyncRead for Wire {
        fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.inner).poll_read(cx, buffer)
        }
    }

    impl AsyncWrite for Wire {
        fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            self.writes += 1;
            Pin::new(&mut self.inner).poll_write(cx, bytes)
        }

        fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.inner).poll_flush(cx)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.inner).poll_shutdown(cx)
        }
    }

    /// A connection over which this was read, and its client.
    async fn connection(began: &[u8]) -> (Gathered<Wire>, DuplexStream) {
        let (mut client, inner) = duplex(4 * WAITING_MAX);
        let mut server = Gathered::new(Wire { inner, writes: 0 });
        for part in began.chunks(7) {
            client.write_all(part).await.expect("there is room");
            server.read_exact(&mut vec![0; part.len()]).await.expect("it came");
        }
        (server, client)
    }

    /// Reads until the connection has nothing more to write, as a server of HTTP/2 does.
    async fn turns(server: &mut Gathered<Wire>) {
        while !server.waiting.is_empty() {
            poll_fn(|cx| {
                let mut byte = [0];
                assert!(Pin::new(&mut *server).poll_read(cx, &mut ReadBuf::new(&mut byte)).is_pending());
                if server.waiting.is_empty() { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
        }
    }

    #[tokio::test]
    async fn frames_of_http_2_that_are_ready_together_are_one_write_when_the_other_tasks_have_run() {
        let (mut server, mut client) = connection(PREFACE).await;
        for frame in 0..100_u8 {
            server.write_all(&[frame; 300]).await.expect("there is room");
            server.flush().await.expect("it is gathered");
        }
        assert_eq!(server.wire.writes, 0);
        turns(&mut server).await;
        assert_eq!(server.wire.writes, 1);
        let mut all = vec![0; 100 * 300];
        client.read_exact(&mut all).await.expect("everything came");
        let expected: Vec<u8> = (0..100).flat_map(|frame| [frame; 300]).collect();
        assert_eq!(all, expected);
        server.write_all(b"more").await.expect("there is room");
        server.flush().await.expect("it is gathered");
        turns(&mut server).await;
        assert_eq!(server.wire.writes, 2);
    }

    #[tokio::test]
    async fn what_another_protocol_writes_leaves_at_once() {
        let (mut server, mut client) = connection(b"PRI / HTTP/1.1\r\n\r\n").await;
        server.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.expect("there is room");
        assert_eq!(server.wire.writes, 1);
        client.read_exact(&mut [0; 19]).await.expect("it came");
    }

    #[tokio::test]
    async fn a_client_that_does_not_read_holds_up_the_connection_and_then_gets_all_in_order() {
        let (mut server, mut client) = connection(PREFACE).await;
        let mut sent = Vec::new();
        // Small and large ones, until neither the wire nor the buffer has room.
        for frame in 0..u8::MAX {
            let bytes = vec![frame; if frame % 3 == 0 { LARGE } else { 900 }];
            let wrote = poll_fn(|cx| Poll::Ready(Pin::new(&mut server).poll_write(cx, &bytes))).await;
            let Poll::Ready(count) = wrote else { break };
            sent.extend_from_slice(bytes.get(..count.expect("it works")).expect("so many were offered"));
        }
        let room = 4 * WAITING_MAX + WAITING_MAX;
        assert!(sent.len() > 4 * WAITING_MAX && sent.len() <= room, "{} of {room}", sent.len());
        let writing = tokio::spawn(async move { server.shutdown().await });
        let mut all = Vec::new();
        client.read_to_end(&mut all).await.expect("it ends well");
        assert!(all == sent, "{} bytes of {}", all.len(), sent.len());
        writing.await.expect("it ran").expect("it works");
    }

    #[tokio::test]
    async fn what_waits_is_written_before_a_connection_ends() {
        let (mut server, mut client) = connection(PREFACE).await;
        server.write_all(b"the last frame").await.expect("there is room");
        server.shutdown().await.expect("it works");
        let mut all = Vec::new();
        client.read_to_end(&mut all).await.expect("it ends well");
        assert_eq!(all, b"the last frame");
    }
}
