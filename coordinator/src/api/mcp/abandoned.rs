//! Cancels runs whose clients have disconnected, as the protocol demands of a request over HTTP.

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use run::RunId;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::runs::Runs;

/// Runs that wait to be cancelled. Beyond that a run goes on until its deadline, and that is logged.
const QUEUE_MAX: usize = 4096;
/// Runs that are cancelled at the same time.
const AT_ONCE_MAX: usize = 64;
const REASON: &str = "the client disconnected";

/// A run of a client that has disconnected, with its caller's rights.
type Left = (Runs, RunId);

/// The queue.
#[derive(Debug, Clone)]
pub(crate) struct Queue(mpsc::Sender<Left>);

/// A run that is cancelled when this is dropped.
#[derive(Debug)]
pub(super) struct Abandoned {
    queue: Queue,
    left: Option<Left>,
}

/// The queue, and its other end.
pub(crate) fn queue() -> (Queue, mpsc::Receiver<Left>) {
    let (sender, receiver) = mpsc::channel(QUEUE_MAX);
    (Queue(sender), receiver)
}

/// Cancels the runs in the queue.
pub(crate) async fn cancel(mut queue: mpsc::Receiver<Left>, end: CancellationToken) {
    let mut under_way = FuturesUnordered::new();
    loop {
        tokio::select! {
            () = end.cancelled() => return,
            Some(()) = under_way.next() => {}
            left = queue.recv(), if under_way.len() < AT_ONCE_MAX => {
                let Some((runs, run)) = left else { return };
                under_way.push(async move {
                    if let Err(error) = runs.cancel_run(run, REASON).await {
                        tracing::debug!(%run, %error, "cancelling the run of a disconnected client failed");
                    }
                });
            }
        }
    }
}

impl Abandoned {
    pub(super) fn new(queue: &Queue, runs: &Runs, run: RunId) -> Self {
        Self { queue: queue.clone(), left: Some((runs.clone(), run)) }
    }

    /// The run goes on.
    pub(super) fn keep(mut self) {
        self.left = None;
    }
}

impl Drop for Abandoned {
    fn drop(&mut self) {
        if let Some(left) = self.left.take() {
            let run = left.1;
            if self.queue.0.try_send(left).is_err() {
                tracing::warn!(%run, "too many disconnected clients: the run is not cancelled");
            }
        }
    }
}
