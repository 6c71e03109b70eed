//! Many runs over one stream: requests are read as they arrive, and available pieces of all runs are sent together.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures::stream::{self, BoxStream, SelectAll};
use futures::{FutureExt as _, Stream, StreamExt as _};
use proto::convert::api;
use proto::v1;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::{Status, Streaming};

use crate::api::output::{HEARTBEAT, Piece, pieces};
use crate::api::port::status::refusal;
use crate::api::{Api, ApiError};

/// Runs of one stream in progress; the next request waits until one has ended.
const RUNS_MAX: usize = 4096;
/// Pieces of one message; each has a bounded size of its own.
const PIECES_MAX: usize = 64;
/// Once a message has this many bytes, no further piece is added.
const BYTES_MAX: usize = 256 * 1024;

/// `R` is the stream of requests, `E` executes one.
struct Many<R, E> {
    /// `None` once the client sends no more requests.
    requests: Option<R>,
    running: SelectAll<BoxStream<'static, v1::RunPiece>>,
    execute: E,
    stopped: Pin<Box<WaitForCancellationFutureOwned>>,
    silent_until: Pin<Box<Sleep>>,
}

/// The stream of the pieces of all runs, as they are requested.
pub(in crate::api) fn execute(
    requests: Streaming<v1::ExecuteRunsRequest>,
    api: Api,
) -> impl Stream<Item = Result<v1::ExecuteRunsResponse, Status>> + Send {
    let stopped = api.stop.clone().cancelled_owned();
    Many::new(requests, move |request| run(api.clone(), request).boxed(), stopped)
}

impl<R, E> Many<R, E>
where
    R: Stream<Item = Result<v1::ExecuteRunsRequest, Status>> + Unpin,
    E: Fn(v1::ExecuteRunsRequest) -> BoxStream<'static, v1::RunPiece> + Unpin,
{
    fn new(requests: R, execute: E, stopped: WaitForCancellationFutureOwned) -> Self {
        Self {
            requests: Some(requests),
            running: SelectAll::new(),
            execute,
            stopped: Box::pin(stopped),
            silent_until: Box::pin(tokio::time::sleep(HEARTBEAT)),
        }
    }

    /// Reads requests while there is room. Fails if the client's stream failed.
    fn take_in(&mut self, task: &mut Context<'_>) -> Result<(), Status> {
        if self.stopped.poll_unpin(task).is_ready() {
            self.requests = None;
        }
        while self.running.len() < RUNS_MAX
            && let Some(requests) = &mut self.requests
        {
            match requests.poll_next_unpin(task) {
                Poll::Ready(Some(Ok(request))) => {
                    self.running.push((self.execute)(request));
                }
                Poll::Ready(Some(Err(status))) => return Err(status),
                Poll::Ready(None) => self.requests = None,
                Poll::Pending => break,
            }
        }
        Ok(())
    }
}

impl<R, E> Stream for Many<R, E>
where
    R: Stream<Item = Result<v1::ExecuteRunsRequest, Status>> + Unpin,
    E: Fn(v1::ExecuteRunsRequest) -> BoxStream<'static, v1::RunPiece> + Unpin,
{
    type Item = Result<v1::ExecuteRunsResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let (mut pieces, mut bytes) = (Vec::new(), 0);
        loop {
            if let Err(status) = self.take_in(task) {
                return Poll::Ready(Some(Err(status)));
            }
            let was_full = self.running.len() == RUNS_MAX;
            while pieces.len() < PIECES_MAX && bytes < BYTES_MAX {
                let Poll::Ready(Some(piece)) = self.running.poll_next_unpin(task) else { break };
                bytes += prost::Message::encoded_len(&piece);
                pieces.push(piece);
            }
            // Runs that ended without a further piece left room, and nothing else would wake us for the next requests.
            let has_room = was_full && self.running.len() < RUNS_MAX;
            if !has_room || self.requests.is_none() || !pieces.is_empty() {
                break;
            }
        }
        if !pieces.is_empty() {
            self.silent_until.as_mut().reset(Instant::now() + HEARTBEAT);
            return Poll::Ready(Some(Ok(v1::ExecuteRunsResponse { pieces, heartbeat: None })));
        }
        if self.requests.is_none() && self.running.is_empty() {
            return Poll::Ready(None);
        }
        if self.silent_until.poll_unpin(task).is_ready() {
            self.silent_until.as_mut().reset(Instant::now() + HEARTBEAT);
            let heartbeat = Some(v1::Heartbeat { time: Some(api::timestamp(::nats::now())) });
            return Poll::Ready(Some(Ok(v1::ExecuteRunsResponse { pieces: Vec::new(), heartbeat })));
        }
        Poll::Pending
    }
}

/// One of the runs, from its request to its last piece.
fn run(mut api: Api, request: v1::ExecuteRunsRequest) -> impl Stream<Item = v1::RunPiece> + Send {
    // The stream may outlive the rights with which it was opened. A unary request has just been identified.
    api.runs.caller = api.runs.callers.renewed(&api.runs.caller);
    let v1::ExecuteRunsRequest { tag, run } = request;
    let refused = move |error| v1::RunPiece { tag, refusal: Some(refusal(error)), ..v1::RunPiece::default() };
    let stop = api.stop.clone();
    // Boxed separately, because accepting needs more memory than the rest, and that memory is freed when it is done.
    let accepted = Box::pin(async move {
        let run = run.ok_or_else(|| ApiError::malformed("run", "it is missing: name the run to execute".to_owned()))?;
        api.execute_run(run).await
    });
    stream::once(accepted).flat_map(move |accepted| match accepted {
        Ok(reader) => {
            let pieces = pieces(reader, stop.clone(), None).filter_map(move |piece| async move {
                match piece {
                    // The whole stream has a heartbeat of its own.
                    Ok(Piece { heartbeat: Some(_), .. }) => None,
                    Ok(Piece { events, end, .. }) => Some(v1::RunPiece { tag, events, end, refusal: None }),
                    Err(error) => Some(refused(error)),
                }
            });
            pieces.left_stream()
        }
        Err(error) => stream::once(async move { refused(error) }).right_stream(),
    })
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn runs_that_end_without_a_further_word_make_room_for_the_next_at_once() {
        let asked = 3 * RUNS_MAX as u64;
        let requests = stream::iter((0..asked).map(|tag| Ok(v1::ExecuteRunsRequest { tag, run: None })));
        let one_word = |request: v1::ExecuteRunsRequest| {
            let word = v1::RunPiece { tag: request.tag, ..v1::RunPiece::default() };
            stream::iter([word]).boxed()
        };
        let many = Many::new(requests, one_word, CancellationToken::new().cancelled_owned());
        let began = Instant::now();
        let said: Vec<_> = many.collect().await;
        let heard = said.iter().flatten().map(|said| said.pieces.len() as u64).sum::<u64>();
        assert_eq!(heard, asked);
        assert_eq!(began.elapsed(), std::time::Duration::ZERO, "no request waited for the heartbeat");
    }
}
