//! Takes a command's output to its call as it comes.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::too_much;
use toolyard_tool::{Context, ToolError};

/// Bytes taken from a pipe at once, and the largest piece of output.
const READ_BYTES: usize = 16 * 1024;
/// Bytes of one call's output, on both channels. It is all stored, and more than any model reads.
const OUTPUT_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Pieces of output that are sent as they come. Later output is collected and sent every [`PACE`], so that ten minutes
/// of output stay far below the number of pieces that a call may send.
const UNPACED_MAX: usize = 4096;
const PACE: Duration = Duration::from_millis(5);
/// The media type of output that is not text.
const BYTES: &str = "application/octet-stream";
/// Invalid UTF-8 sequences in a piece of output that are sent apart from the text around them. A piece with more of
/// them is not text: all of it is sent as data.
const STRAY_MAX: usize = 8;

pub(in super::super) struct Relay<'a> {
    context: &'a Context,
    /// Those of stdout and stderr.
    channels: [&'static str; 2],
    /// Bytes of output, on both channels.
    said: AtomicUsize,
    let_go: &'a CancellationToken,
}

impl<'a> Relay<'a> {
    /// Lets go of its pipes when the token is cancelled: from then on nothing new is waited for.
    pub(super) fn new(context: &'a Context, let_go: &'a CancellationToken) -> Self {
        Self::on(["stdout", "stderr"], context, let_go)
    }

    /// As [`Self::new`], on these channels.
    pub(in super::super) fn on(
        channels: [&'static str; 2],
        context: &'a Context,
        let_go: &'a CancellationToken,
    ) -> Self {
        Self { context, channels, said: AtomicUsize::new(0), let_go }
    }

    /// Ends with the pipes, or when they are empty after the call let go of them.
    pub(in super::super) async fn pump(
        &self,
        stdout: Option<impl AsyncRead + Unpin>,
        stderr: Option<impl AsyncRead + Unpin>,
    ) -> Result<(), ToolError> {
        let [out, err] = self.channels;
        tokio::try_join!(self.pump_one(out, stdout), self.pump_one(err, stderr))?;
        Ok(())
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

    async fn say(&self, channel: &str, pieces: Vec<Piece>) -> Result<(), ToolError> {
        for piece in pieces {
            match piece {
                Piece::Text(text) => self.context.text_on(channel, text).await?,
                Piece::Data(bytes) => self.context.data_on(channel, BYTES, bytes).await?,
            }
        }
        Ok(())
    }
}

/// A piece of output: bytes arrive as they were written, whether they are text or not.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    Data(Vec<u8>),
}

/// Makes pieces of bytes that were cut anywhere.
#[derive(Debug, Default)]
struct Text {
    /// The beginning of a character that is not complete yet: at most three bytes.
    begun: Vec<u8>,
}

impl Text {
    fn take(&mut self, bytes: &[u8]) -> Vec<Piece> {
        self.begun.extend_from_slice(bytes);
        let whole = self.begun.len() - begun(&self.begun);
        let rest = self.begun.split_off(whole);
        pieces(std::mem::replace(&mut self.begun, rest))
    }

    /// The remaining output when there are no more bytes.
    fn rest(&mut self) -> Vec<Piece> {
        pieces(std::mem::take(&mut self.begun))
    }
}

/// Text and its invalid bytes as separate pieces, or data if there are more than a few of those.
fn pieces(bytes: Vec<u8>) -> Vec<Piece> {
    let bytes = match String::from_utf8(bytes) {
        Ok(text) if text.is_empty() => return Vec::new(),
        Ok(text) => return vec![Piece::Text(text)],
        Err(error) => error.into_bytes(),
    };
    if bytes.utf8_chunks().filter(|chunk| !chunk.invalid().is_empty()).nth(STRAY_MAX).is_some() {
        return vec![Piece::Data(bytes)];
    }
    let both =
        |chunk: std::str::Utf8Chunk<'_>| [Piece::Text(chunk.valid().to_owned()), Piece::Data(chunk.invalid().to_vec())];
    let parts = bytes.utf8_chunks().flat_map(both);
    let says = |piece: &Piece| match piece {
        Piece::Text(text) => !text.is_empty(),
        Piece::Data(data) => !data.is_empty(),
    };
    parts.filter(says).collect()
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
    use toolyard_tool::testkit;
    use toolyard_tool::{About, Output, Tool};

    /// Relays the content of a pipe that no process will close.
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
            let let_go = CancellationToken::new();
            let relay = Relay::new(context, &let_go);
            let_go.cancel();
            relay.pump(Some(held.as_slice().chain(silent)), Some(quiet)).await?;
            Ok(().into())
        }
    }

    #[tokio::test]
    async fn what_is_in_a_pipe_that_is_let_go_is_still_said() {
        let called = testkit::call(LetGo, json!({})).await;
        assert_eq!((called.answer().as_str(), called.text_on("stdout").len()), ("Done", 20 * READ_BYTES));
    }

    fn read_in_pieces_of(size: usize, bytes: &[u8]) -> Vec<Piece> {
        let mut text = Text::default();
        let mut said: Vec<Piece> = bytes.chunks(size).flat_map(|piece| text.take(piece)).collect();
        said.extend(text.rest());
        said
    }

    /// The result of joining the pieces.
    fn together(pieces: &[Piece]) -> Vec<u8> {
        let bytes = |piece: &Piece| match piece {
            Piece::Text(text) => text.clone().into_bytes(),
            Piece::Data(data) => data.clone(),
        };
        pieces.iter().flat_map(bytes).collect()
    }

    #[test]
    fn characters_that_were_cut_are_put_together_again() {
        let text = "aé漢🦀z";
        for size in 1..=text.len() {
            let said = read_in_pieces_of(size, text.as_bytes());
            assert_eq!(together(&said), text.as_bytes());
            assert!(said.iter().all(|piece| matches!(piece, Piece::Text(_))), "{said:?}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_arrive_as_they_are_wherever_they_are_cut() {
        let random: Vec<u8> = (0..4096_u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for bytes in [b"a\xffb\xe6\xbcc\x80".as_slice(), b"a\xf0\x9f\xa6", &random] {
            for size in [1, 2, 3, 8, 4096] {
                assert_eq!(together(&read_in_pieces_of(size, bytes)), bytes);
            }
        }
    }

    #[test]
    fn text_around_a_stray_byte_stays_text_and_bytes_without_text_are_one_piece() {
        let latin = [Piece::Text("caf".to_owned()), Piece::Data(vec![0xe9]), Piece::Text(" noir".to_owned())];
        assert_eq!(read_in_pieces_of(100, b"caf\xe9 noir"), latin);
        assert_eq!(read_in_pieces_of(100, &[0xff; 64]), [Piece::Data(vec![0xff; 64])]);
    }
}
