//! Takes a command's output to its call as it comes.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::too_much;
use crate::tool::{Context, ToolError};

/// Bytes taken from a pipe at once, and the largest piece of output.
const READ_BYTES: usize = 16 * 1024;
/// Bytes of one call's output, on both channels. It is all stored, and more than any model reads.
const OUTPUT_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Pieces of output that go out as they come. A command that says more is heard in gulps, [`PACE`] apart: what it says in
/// ten minutes then stays far below the pieces that a call may send.
const UNPACED_MAX: usize = 4096;
const PACE: Duration = Duration::from_millis(5);

pub(super) struct Relay<'a> {
    context: &'a Context,
    /// Bytes said, on both channels.
    said: AtomicUsize,
    let_go: CancellationToken,
}

impl<'a> Relay<'a> {
    pub(super) fn new(context: &'a Context) -> Self {
        Self { context, said: AtomicUsize::new(0), let_go: CancellationToken::new() }
    }

    /// Ends with the pipes, or with what is in them once they are to be let go.
    pub(super) async fn pump(
        &self,
        stdout: Option<impl AsyncRead + Unpin>,
        stderr: Option<impl AsyncRead + Unpin>,
    ) -> Result<(), ToolError> {
        tokio::try_join!(self.pump_one("stdout", stdout), self.pump_one("stderr", stderr))?;
        Ok(())
    }

    /// From now on nothing new is waited for.
    pub(super) fn let_go(&self) {
        self.let_go.cancel();
    }

    async fn pump_one(&self, channel: &str, pipe: Option<impl AsyncRead + Unpin>) -> Result<(), ToolError> {
        let mut pipe = pipe.ok_or_else(|| io::Error::other("the shell has no pipes"))?;
        let mut buffer = vec![0; READ_BYTES];
        let mut text = Text::default();
        let mut pieces = 0_usize;
        loop {
            let count = tokio::select! {
                biased;
                read = pipe.read(&mut buffer) => read?,
                () = self.let_go.cancelled() => 0,
            };
            if count == 0 {
                return self.say(channel, text.rest()).await;
            }
            if self.said.fetch_add(count, Ordering::Relaxed) + count > OUTPUT_BYTES_MAX {
                return Err(too_much(OUTPUT_BYTES_MAX));
            }
            self.say(channel, text.take(&buffer[..count])).await?;
            pieces += 1;
            if pieces > UNPACED_MAX {
                sleep(PACE).await;
            }
        }
    }

    async fn say(&self, channel: &str, text: String) -> Result<(), ToolError> {
        if text.is_empty() {
            return Ok(());
        }
        self.context.text_on(channel, text).await
    }
}

/// Makes text of bytes that were cut anywhere. What is not UTF-8 becomes replacement characters.
#[derive(Debug, Default)]
struct Text {
    /// The beginning of a character whose end was not read yet: at most three bytes.
    begun: Vec<u8>,
}

impl Text {
    fn take(&mut self, bytes: &[u8]) -> String {
        self.begun.extend_from_slice(bytes);
        let whole = self.begun.len() - begun(&self.begun);
        let text = String::from_utf8_lossy(&self.begun[..whole]).into_owned();
        self.begun.drain(..whole);
        text
    }

    /// What is left when there are no more bytes.
    fn rest(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.begun)).into_owned()
    }
}

/// Bytes at the end that may become a character with bytes to come.
fn begun(bytes: &[u8]) -> usize {
    let may_be = |count: &usize| {
        let tail = &bytes[bytes.len() - count..];
        std::str::from_utf8(tail).is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
    };
    (1..=bytes.len().min(3)).find(may_be).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json};

    use super::*;
    use crate::testkit;
    use crate::tool::{About, Output, Tool};

    /// Relays what a pipe holds that nobody will close.
    struct LetGo;

    impl Tool for LetGo {
        const NAME: &'static str = "let_go";
        type Input = Map<String, Value>;

        fn about(&self) -> About {
            About::new("Lets go of its pipes at once.")
        }

        async fn call(&self, context: &Context, _: Self::Input) -> Result<Output, ToolError> {
            let held = vec![b'x'; 20 * READ_BYTES];
            let (_open, silent) = tokio::io::duplex(1);
            let (_open_too, quiet) = tokio::io::duplex(1);
            let relay = Relay::new(context);
            relay.let_go();
            relay.pump(Some(held.as_slice().chain(silent)), Some(quiet)).await?;
            Ok(().into())
        }
    }

    #[tokio::test]
    async fn what_is_in_a_pipe_that_is_let_go_is_still_said() {
        let called = testkit::call(LetGo, json!({})).await;
        assert_eq!((called.answer().as_str(), called.text_on("stdout").len()), ("Done", 20 * READ_BYTES));
    }

    fn read_in_pieces_of(size: usize, bytes: &[u8]) -> String {
        let mut text = Text::default();
        let said: String = bytes.chunks(size).map(|piece| text.take(piece)).collect();
        said + &text.rest()
    }

    #[test]
    fn characters_that_were_cut_are_put_together_again() {
        let text = "aé漢🦀z";
        for size in 1..=text.len() {
            assert_eq!(read_in_pieces_of(size, text.as_bytes()), text);
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_replaced_wherever_they_are_cut() {
        for size in 1..=8 {
            assert_eq!(read_in_pieces_of(size, b"a\xffb\xe6\xbcc\x80"), "a\u{fffd}b\u{fffd}c\u{fffd}");
        }
    }

    #[test]
    fn a_character_without_its_end_is_said_in_the_end() {
        assert_eq!(read_in_pieces_of(1, b"a\xf0\x9f\xa6"), "a\u{fffd}");
    }
}
