//! Follows a program from its start to the end of all its processes.

use std::time::Duration;

use futures::FutureExt as _;
use sandbox::{Exit, Guarded, Order, Report};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use toolyard_tool::{CallError, Context, ErrorKind, ToolError};

use super::event::Heard;
use super::manifest::{Form, Stderr};
use super::program::Program;
use crate::http::Lines;
use crate::transcript::beginning;

/// Bytes taken from a pipe at once.
const READ_BYTES: usize = 16 * 1024;
/// Bytes of one call's output: it is all stored, and more than any model reads.
const OUTPUT_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Bytes at the end of standard error that an error quotes.
const QUOTED_BYTES: usize = 2048;
/// How long a program may take to end after SIGTERM: less than a worker gives a cancelled tool.
const TERM_GRACE: Duration = Duration::from_secs(2);
/// How long the pipes may stay open after the program has ended. Processes that it left behind hold them.
const PIPES_GRACE: Duration = Duration::from_secs(1);
/// How long killed processes may take to end.
const GONE_LIMIT: Duration = Duration::from_secs(1);

/// A program that has ended.
pub(super) struct Ended {
    pub(super) exit: Exit,
    /// The end of standard error.
    pub(super) stderr: String,
    pub(super) heard: Heard,
}

/// Writes the arguments, takes the output to the call, and waits until all processes have ended.
pub(super) async fn follow(
    program: &Program,
    context: &Context,
    mut guarded: Guarded,
    arguments: String,
) -> Result<Ended, ToolError> {
    let (stdin, (stdout, stderr)) = (guarded.stdin(), guarded.pipes());
    let (let_go, mut heard, mut quoted) = (CancellationToken::new(), Heard::default(), String::new());
    let writing = async {
        if let Some(mut stdin) = stdin {
            // A program that does not read its arguments may close the pipe.
            drop(stdin.write_all(arguments.as_bytes()).await);
        }
        Ok(())
    };
    let outcome = {
        let reading = async {
            tokio::try_join!(
                writing,
                listen(program.form, context, stdout, &let_go, &mut heard),
                overhear(program, context, stderr, &let_go, &mut quoted)
            )
        };
        let mut pumps = std::pin::pin!(reading.map(|done| done.map(|_| ())).fuse());
        let ended = wait(context, &mut guarded, &mut pumps).await;
        // All output is in the pipes. A process that inherited them may still hold them open.
        let_go.cancel();
        match ended {
            Ok((exit, true)) => Ok(exit),
            Ok((exit, false)) => pumps.await.map(|()| exit),
            Err(error) => Err(error),
        }
    };
    Ok(Ended { exit: outcome?, stderr: quoted, heard })
}

/// Waits for the end of all processes: how the program ended, and whether its output was taken completely.
async fn wait(
    context: &Context,
    guarded: &mut Guarded,
    mut pumps: impl Future<Output = Result<(), ToolError>> + Unpin,
) -> Result<(Exit, bool), ToolError> {
    let (mut exited, mut wrong, mut closed, mut killed) = (None, None, false, false);
    // When it is killed, and then when it is given up.
    let mut due: Option<Instant> = None;
    loop {
        if !killed && (wrong.is_some() && due.is_none() || exited.is_some() && closed) {
            due = Some(Instant::now());
        }
        let overdue = async {
            match due {
                Some(due) => sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            report = guarded.report() => match report {
                Some(Report::Exited(exit)) => {
                    exited = Some(exit);
                    due = due.or_else(|| Some(Instant::now() + PIPES_GRACE));
                }
                Some(Report::Failed(error)) => {
                    return Err(ToolError::new(format!("the program cannot be started: {error}")));
                }
                Some(Report::Gone | Report::PerhapsGone) => break,
                None => {
                    let lost = "the guard of the program was killed: what the program started may still run";
                    wrong = wrong.or_else(|| Some(ToolError::of_call(CallError::new(ErrorKind::Interrupted, lost))));
                    break;
                }
            },
            pumped = &mut pumps, if !closed => {
                closed = true;
                wrong = wrong.or(pumped.err());
            }
            () = context.cancelled(), if exited.is_none() && wrong.is_none() => {
                wrong = Some(ToolError::new("the call was cancelled"));
                guarded.order(Order::Terminate);
                due = Some(Instant::now() + TERM_GRACE);
            }
            () = overdue => {
                if killed {
                    tracing::warn!("a program cannot be killed; its slot is kept until it is gone");
                    break;
                }
                guarded.order(Order::Kill);
                (killed, due) = (true, Some(Instant::now() + GONE_LIMIT));
            }
        }
    }
    match (wrong, exited) {
        (Some(wrong), _) => Err(wrong),
        (None, Some(exit)) => Ok((exit, closed)),
        (None, None) => Err(ToolError::new("the program ended in an unknown way")),
    }
}

/// The next bytes of a pipe; none at its end, or when it is empty after the call let go of it.
async fn next<'a>(
    pipe: &mut (impl AsyncRead + Unpin),
    buffer: &'a mut [u8],
    let_go: &CancellationToken,
) -> Result<&'a [u8], ToolError> {
    let count = tokio::select! {
        biased;
        read = pipe.read(buffer) => read?,
        () = let_go.cancelled() => 0,
    };
    Ok(&buffer[..count])
}

/// Takes standard output to the call.
async fn listen(
    form: Form,
    context: &Context,
    pipe: Option<impl AsyncRead + Unpin>,
    let_go: &CancellationToken,
    heard: &mut Heard,
) -> Result<(), ToolError> {
    let mut pipe = pipe.ok_or_else(|| ToolError::new("the program has no standard output"))?;
    let (mut buffer, mut lines, mut text) = (vec![0; READ_BYTES], Lines::default(), Text::default());
    let mut count = 0;
    loop {
        let bytes = next(&mut pipe, &mut buffer, let_go).await?;
        count += bytes.len();
        if count > OUTPUT_BYTES_MAX {
            let message = format!("the program wrote more than {OUTPUT_BYTES_MAX} bytes and was ended");
            return Err(ToolError::of_call(CallError::new(ErrorKind::OutputTooLarge, message)));
        }
        match (form, bytes.is_empty()) {
            (Form::Text, is_end) => {
                let piece = text.take(bytes, is_end);
                if !piece.is_empty() {
                    heard.transcript.text(context, &piece).await?;
                }
            }
            (Form::Ndjson, false) => {
                for line in lines.take(bytes).map_err(|error| ToolError::new(error.to_string()))? {
                    heard.line(context, &line).await?;
                }
            }
            (Form::Ndjson, true) => {
                if let Some(line) = lines.rest() {
                    heard.line(context, &line).await?;
                }
            }
        }
        if bytes.is_empty() {
            return Ok(());
        }
    }
}

/// Takes standard error to the call or to the log, and keeps its end.
async fn overhear(
    program: &Program,
    context: &Context,
    pipe: Option<impl AsyncRead + Unpin>,
    let_go: &CancellationToken,
    quoted: &mut String,
) -> Result<(), ToolError> {
    let mut pipe = pipe.ok_or_else(|| ToolError::new("the program has no standard error"))?;
    let (mut buffer, mut text, mut count) = (vec![0; READ_BYTES], Text::default(), 0);
    loop {
        let bytes = next(&mut pipe, &mut buffer, let_go).await?;
        let is_end = bytes.is_empty();
        count += bytes.len();
        let piece = text.take(bytes, is_end);
        quoted.push_str(&piece);
        let surplus = quoted.len().saturating_sub(QUOTED_BYTES);
        drop(quoted.drain(..quoted.len() - tail(quoted, quoted.len() - surplus).len()));
        match (program.stderr, piece.is_empty()) {
            (_, true) => {}
            (Stderr::Stream, false) if count > OUTPUT_BYTES_MAX => {
                let message = format!("the program wrote more than {OUTPUT_BYTES_MAX} bytes to standard error");
                return Err(ToolError::of_call(CallError::new(ErrorKind::OutputTooLarge, message)));
            }
            (Stderr::Stream, false) => context.text_on("stderr", piece).await?,
            (Stderr::Log, false) => {
                let text = beginning(piece.trim_end(), QUOTED_BYTES);
                let call = context.call_id();
                tracing::info!(tool = program.name, %call, text, "a program wrote to standard error");
            }
        }
        if is_end {
            return Ok(());
        }
    }
}

/// The end of a text, of at most `max` bytes.
fn tail(text: &str, max: usize) -> &str {
    let begin = text.len() - max.min(text.len());
    let begin = (begin..=text.len()).find(|begin| text.is_char_boundary(*begin));
    &text[begin.unwrap_or(text.len())..]
}

/// Makes text of bytes that were cut anywhere. Bytes that are no text are replaced.
#[derive(Debug, Default)]
struct Text {
    /// The beginning of a character that is not complete yet: at most three bytes.
    begun: Vec<u8>,
}

impl Text {
    fn take(&mut self, bytes: &[u8], is_end: bool) -> String {
        self.begun.extend_from_slice(bytes);
        let last = self.begun.utf8_chunks().last().map_or(0, |chunk| chunk.invalid().len());
        let end = self.begun.len() - last;
        let may_go_on =
            !is_end && std::str::from_utf8(&self.begun[end..]).is_err_and(|error| error.error_len().is_none());
        let rest = if may_go_on { self.begun.split_off(end) } else { Vec::new() };
        let text = String::from_utf8_lossy(&self.begun).into_owned();
        self.begun = rest;
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_are_whole_wherever_their_bytes_are_cut() {
        let all = "aé€😀z".as_bytes();
        for cut in 0..=all.len() {
            let mut text = Text::default();
            let said = text.take(&all[..cut], false) + &text.take(&all[cut..], false) + &text.take(&[], true);
            assert_eq!(said, "aé€😀z", "cut at {cut}");
        }
        assert_eq!(Text::default().take(b"a\xffb\xe2\x82", true), "a\u{fffd}b\u{fffd}");
    }

    #[test]
    fn a_tail_begins_with_a_whole_character() {
        assert_eq!((tail("aé", 2), tail("aé", 1), tail("aé", 9)), ("é", "", "aé"));
    }
}
