//! The output of a server on its way to the protocol: a message that is too large becomes an error of its call.
//!
//! The transport drops a line over its limit without a word, and the call would wait until its timeout. Here the line
//! is only watched: its length, its beginning and its end, where the id of the request is. Behind it the error is
//! added.

use std::io;
use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Context, Poll, ready};

use regex::bytes::Regex;
use tokio::io::{AsyncRead, ReadBuf};

/// The code of the error that is added, of those that the protocol leaves to implementations.
pub(super) const TOO_LARGE: i32 = -32_099;
/// Bytes of a line that are kept of its beginning, and of its end.
const ENDS_BYTES: usize = 256;
/// A line that is this many times longer than the limit ends the connection: it may never end.
const ENDLESS_FACTOR: usize = 16;

static AT_BEGINNING: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(
        r#"^\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*([0-9]{1,10})\s*,\s*"(?:result|error|jsonrpc)""#,
    )
    .expect("a pattern")
});
static AT_END: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r#",\s*"id"\s*:\s*([0-9]{1,10})\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$"#).expect("a pattern")
});

#[derive(Debug)]
pub(super) struct Lines<R> {
    inner: R,
    limit: usize,
    /// The line that is being read.
    length: usize,
    beginning: Vec<u8>,
    end: Vec<u8>,
    /// What comes before the rest of `inner`: errors, and what had been read behind an overlong line.
    added: Vec<u8>,
    behind: Vec<u8>,
}

impl<R> Lines<R> {
    pub(super) fn new(inner: R, limit: usize) -> Self {
        Self { inner, limit, length: 0, beginning: Vec::new(), end: Vec::new(), added: Vec::new(), behind: Vec::new() }
    }

    /// Watches what was read. Returns how much of it may be given on before the error, if one has to be added.
    fn watch(&mut self, read: &[u8]) -> io::Result<usize> {
        let mut seen = 0;
        while seen < read.len() {
            let newline = read[seen..].iter().position(|byte| *byte == b'\n');
            let piece = &read[seen..newline.map_or(read.len(), |at| seen + at)];
            self.note(piece);
            seen += piece.len();
            if newline.is_none() {
                break;
            }
            seen += 1;
            let overlong = self.length > self.limit;
            if overlong {
                self.add_error();
            }
            (self.length, self.beginning, self.end) = (0, Vec::new(), Vec::new());
            if overlong {
                return Ok(seen);
            }
        }
        match self.length > self.limit.saturating_mul(ENDLESS_FACTOR) {
            true => Err(io::Error::other(format!("a message of more than {} bytes has no end", self.length))),
            false => Ok(seen),
        }
    }

    fn note(&mut self, piece: &[u8]) {
        self.length = self.length.saturating_add(piece.len());
        let room = ENDS_BYTES.saturating_sub(self.beginning.len()).min(piece.len());
        self.beginning.extend_from_slice(&piece[..room]);
        // Only the end of a line that is too long is of use.
        if self.length > self.limit {
            self.end.extend_from_slice(&piece[piece.len().saturating_sub(ENDS_BYTES)..]);
            self.end.drain(..self.end.len().saturating_sub(ENDS_BYTES));
        }
    }

    fn add_error(&mut self) {
        let id = AT_BEGINNING.captures(&self.beginning).or_else(|| AT_END.captures(&self.end));
        let Some(id) = id.and_then(|found| std::str::from_utf8(found.get(1)?.as_bytes()).ok()?.parse::<u64>().ok())
        else {
            tracing::warn!(bytes = self.length, "an MCP server sent a message that is too large; it is dropped");
            return;
        };
        let message = format!("the message has {} bytes, at most {} are taken", self.length, self.limit);
        let error = serde_json::json!({"code": TOO_LARGE, "message": message});
        let line = serde_json::json!({"jsonrpc": "2.0", "id": id, "error": error});
        self.added = format!("{line}\n").into_bytes();
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Lines<R> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.added.is_empty() {
            let count = this.added.len().min(buffer.remaining());
            buffer.put_slice(&this.added[..count]);
            this.added.drain(..count);
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        if this.behind.is_empty() {
            ready!(Pin::new(&mut this.inner).poll_read(context, buffer))?;
        } else {
            let count = this.behind.len().min(buffer.remaining());
            buffer.put_slice(&this.behind[..count]);
            this.behind.drain(..count);
        }
        let watched = this.watch(&buffer.filled()[before..]);
        let given = watched.inspect_err(|_| buffer.set_filled(before))?;
        let mut rest = buffer.filled()[before + given..].to_vec();
        rest.append(&mut this.behind);
        this.behind = rest;
        buffer.set_filled(before + given);
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;

    async fn through(input: &str, limit: usize) -> String {
        let mut output = String::new();
        Lines::new(input.as_bytes(), limit).read_to_string(&mut output).await.unwrap();
        output
    }

    #[tokio::test]
    async fn short_lines_pass_as_they_are() {
        let input = "{\"id\":1}\n\n{\"id\":2}\nno end";
        assert_eq!(through(input, 100).await, input);
    }

    #[tokio::test]
    async fn behind_a_line_that_is_too_long_comes_the_error_of_its_request() {
        let long = "x".repeat(5000);
        for line in [
            format!(r#"{{"jsonrpc":"2.0","id":7,"result":"{long}"}}"#),
            format!(r#"{{"result":"{long}","jsonrpc":"2.0","id":7}}"#),
            format!(r#"{{"result":"{long}","id":7,"jsonrpc":"2.0"}}"#),
        ] {
            let output = through(&format!("first\n{line}\nlast\n"), 1000).await;
            let lines: Vec<&str> = output.lines().collect();
            assert_eq!((lines[0], lines[1], lines[3]), ("first", line.as_str(), "last"));
            let error: serde_json::Value = serde_json::from_str(lines[2]).unwrap();
            assert_eq!((&error["id"], &error["error"]["code"]), (&7.into(), &TOO_LARGE.into()));
        }
        let notification = format!("{{\"method\":\"x\",\"params\":\"{long}\"}}\nlast\n");
        assert_eq!(through(&notification, 1000).await, notification);
    }

    #[tokio::test]
    async fn a_line_without_an_end_ends_the_connection() {
        let mut output = Vec::new();
        let endless = tokio::io::repeat(b'x');
        let error = Lines::new(endless, 1000).read_to_end(&mut output).await.unwrap_err();
        assert!(error.to_string().contains("has no end"), "{error}");
    }
}
