//! Many runs over one stream: requests are taken as they come, and what became known of any of them goes out together.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures::stream::{self, BoxStream, SelectAll};
use futures::{FutureExt as _, Stream, StreamExt as _};
use proto::convert::api;
use proto::v1;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::{Status, Streaming};

use super::runs::{self, HEARTBEAT, Piece};
use super::status::{malformed, refusal};
use crate::runs::Runs;

/// Runs of one stream under way at once; the next request waits until one has ended.
const RUNS_MAX: usize = 4096;
/// Pieces of one message; each has a bounded size of its own.
const PIECES_MAX: usize = 64;
/// Bytes behind which a message takes no further piece.
const BYTES_MAX: usize = 256 * 1024;

pub(super) struct Many {
    /// `None` when nothing more is asked for.
    requests: Option<Streaming<v1::ExecuteRunsRequest>>,
    running: SelectAll<BoxStream<'static, v1::RunPiece>>,
    runs: Runs,
    stop: CancellationToken,
    stopped: Pin<Box<WaitForCancellationFutureOwned>>,
    silent_until: Pin<Box<Sleep>>,
}

impl Many {
    pub(super) fn new(requests: Streaming<v1::ExecuteRunsRequest>, runs: Runs, stop: CancellationToken) -> Self {
        Self {
            requests: Some(requests),
            running: SelectAll::new(),
            runs,
            stopped: Box::pin(stop.clone().cancelled_owned()),
            stop,
            silent_until: Box::pin(tokio::time::sleep(HEARTBEAT)),
        }
    }

    /// Takes in what was asked for, as far as there is room. Fails where the client's side broke.
    fn take_in(&mut self, task: &mut Context<'_>) -> Result<(), Status> {
        if self.stopped.poll_unpin(task).is_ready() {
            self.requests = None;
        }
        while self.running.len() < RUNS_MAX
            && let Some(requests) = &mut self.requests
        {
            match requests.poll_next_unpin(task) {
                Poll::Ready(Some(Ok(request))) => {
                    self.running.push(run(self.runs.clone(), self.stop.clone(), request).boxed());
                }
                Poll::Ready(Some(Err(status))) => return Err(status),
                Poll::Ready(None) => self.requests = None,
                Poll::Pending => break,
            }
        }
        Ok(())
    }
}

impl Stream for Many {
    type Item = Result<v1::ExecuteRunsResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Err(status) = self.take_in(task) {
            return Poll::Ready(Some(Err(status)));
        }
        let (mut pieces, mut bytes) = (Vec::new(), 0);
        while pieces.len() < PIECES_MAX && bytes < BYTES_MAX {
            let Poll::Ready(Some(piece)) = self.running.poll_next_unpin(task) else { break };
            bytes += prost::Message::encoded_len(&piece);
            pieces.push(piece);
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
            let heartbeat = Some(v1::Heartbeat { time: Some(api::timestamp(proto::now())) });
            return Poll::Ready(Some(Ok(v1::ExecuteRunsResponse { pieces: Vec::new(), heartbeat })));
        }
        Poll::Pending
    }
}

/// One of the runs, from its request to its last piece.
fn run(
    runs: Runs,
    stop: CancellationToken,
    request: v1::ExecuteRunsRequest,
) -> impl Stream<Item = v1::RunPiece> + Send {
    let v1::ExecuteRunsRequest { tag, run } = request;
    let refused =
        move |status: &Status| v1::RunPiece { tag, refusal: Some(refusal(status)), ..v1::RunPiece::default() };
    let accepted = async move {
        let run = run.ok_or_else(|| malformed("run", "it is missing: say what to execute".to_owned()))?;
        runs::execute(&runs, run).await
    };
    stream::once(accepted).flat_map(move |accepted| match accepted {
        Ok(reader) => {
            let pieces = runs::stream(reader, stop.clone(), None, |piece| piece).filter_map(move |piece| async move {
                match piece {
                    // The whole stream has a heartbeat of its own.
                    Ok(Piece { heartbeat: Some(_), .. }) => None,
                    Ok(Piece { events, end, .. }) => Some(v1::RunPiece { tag, events, end, refusal: None }),
                    Err(status) => Some(refused(&status)),
                }
            });
            pieces.left_stream()
        }
        Err(status) => stream::once(async move { refused(&status) }).right_stream(),
    })
}
