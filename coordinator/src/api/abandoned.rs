//! Cancels runs whose clients have disconnected, as the protocol demands of a request over HTTP.

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use run::{CallId, RunId};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::runs::Runs;

/// Runs that wait to be cancelled. Beyond that a run goes on until its deadline, and that is logged.
const QUEUE_MAX: usize = 4096;
/// Runs that are cancelled at the same time.
const AT_ONCE_MAX: usize = 64;
const REASON: &str = "the client disconnected";

/// The calls of a client that has disconnected, with its caller's rights: some of a run, or the whole run.
type Left = (Runs, RunId, Vec<CallId>);

/// The queue.
#[derive(Debug, Clone)]
pub(crate) struct Queue {
    sender: mpsc::Sender<Left>,
    /// The coordinator stops, which ends all answers: no client has disconnected.
    stop: CancellationToken,
}

/// A run that is cancelled when this is dropped. A request with an id may be repeated and then follows the same run, so
/// it has none.
#[derive(Debug)]
pub(crate) struct Abandoned {
    queue: Queue,
    left: Option<Left>,
}

/// The queue, and its other end.
pub(crate) fn queue(stop: CancellationToken) -> (Queue, mpsc::Receiver<Left>) {
    let (sender, receiver) = mpsc::channel(QUEUE_MAX);
    (Queue { sender, stop }, receiver)
}

/// Cancels the runs in the queue.
pub(crate) async fn cancel(mut queue: mpsc::Receiver<Left>, end: CancellationToken) {
    let mut under_way = FuturesUnordered::new();
    loop {
        tokio::select! {
            () = end.cancelled() => return,
            Some(()) = under_way.next() => {}
            left = queue.recv(), if under_way.len() < AT_ONCE_MAX => {
                let Some(left) = left else { return };
                under_way.push(cancel_left(left));
            }
        }
    }
}

async fn cancel_left((runs, run, calls): Left) {
    let mut failed = None;
    if calls.is_empty() {
        failed = runs.cancel_run(run, REASON).await.err();
    }
    for call in calls {
        failed = runs.cancel_open_call(run, &call, REASON).await.err().or(failed);
    }
    if let Some(error) = failed {
        tracing::debug!(%run, %error, "cancelling the calls of a disconnected client failed");
    }
}

impl Abandoned {
    /// Without `calls`, the whole run is cancelled.
    pub(crate) fn new(queue: &Queue, runs: &Runs, (run, calls): (RunId, Vec<CallId>)) -> Self {
        Self { queue: queue.clone(), left: Some((runs.clone(), run, calls)) }
    }

    /// The run goes on.
    pub(crate) fn keep(mut self) {
        self.left = None;
    }
}

impl Drop for Abandoned {
    fn drop(&mut self) {
        if let Some(left) = self.left.take().filter(|_| !self.queue.stop.is_cancelled()) {
            let run = left.1;
            if self.queue.sender.try_send(left).is_err() {
                tracing::warn!(%run, "too many disconnected clients: the run is not cancelled");
            }
        }
    }
}
