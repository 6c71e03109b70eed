//! One attempt, from the moment it may begin to its end in the log.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use proto::convert::log::Job;
use run::{AttemptId, AttemptOutcome, CallError, Chunk, Content, ErrorKind, Event, Policy, Route, limit};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::publisher::{Lost, Publisher};
use crate::table::Table;
use crate::tool::{Context, Output, ToolError};

/// Chunks that may wait between a tool and its publisher; then the tool waits.
const CHUNKS_WAITING_MAX: usize = 256;
/// An attempt that ends within this time has its start folded into its end.
const FOLD_WINDOW: Duration = Duration::from_millis(5);

pub(crate) struct Attempt<'a> {
    pub(crate) job: &'a Job,
    pub(crate) id: AttemptId,
    /// The event of its start, unless that is in the log already.
    pub(crate) start: Option<Event>,
    pub(crate) signals: Signals,
}

/// Why an attempt should stop before its tool is done.
#[derive(Debug, Clone, Default)]
pub(crate) struct Signals {
    /// The call is cancelled.
    pub(crate) cancel: CancellationToken,
    /// The worker shuts down and cannot wait any longer.
    pub(crate) give_back: CancellationToken,
    /// The lease could not be kept: somebody else may have the job.
    pub(crate) lease_lost: CancellationToken,
}

/// How an attempt ended.
pub(crate) enum End {
    /// In the log, with this outcome.
    Stored(AttemptOutcome),
    /// Without a word: the job comes again by itself.
    Abandoned,
}

/// Runs the call's tool and publishes what it says. The tool runs on `tools`; everything else here.
pub(crate) async fn run<F>(attempt: Attempt<'_>, table: &Table, tools: &Handle, append: F) -> End
where
    F: Fn(Vec<Event>) -> Pin<Box<dyn Future<Output = Result<(), Lost>> + Send>>,
{
    let Attempt { job, id, start, signals } = attempt;
    let Route::Pool { policy, .. } = &job.spec.route else { return End::Abandoned };
    let mut publisher = Publisher::new(id, job.pool.clone(), start, append);

    let prepared = match table.prepare(&job.spec.tool, &job.spec.arguments) {
        Ok(prepared) => prepared,
        Err(error) => return store(publisher, AttemptOutcome::Failed(error)).await,
    };
    // A call that is overdue never starts late.
    let Some(deadline) = deadline(job, policy) else { return store(publisher, AttemptOutcome::Expired).await };
    let (output, chunks) = mpsc::channel(CHUNKS_WAITING_MAX);
    let stop_tool = CancellationToken::new();
    let context = Context {
        run: job.run,
        call: Arc::clone(&job.spec),
        attempt: id.number,
        deadline: deadline.at,
        cancel: stop_tool.clone(),
        output,
    };
    let mut tool = ToolTask { handle: tools.spawn(prepared.call(context)), stop: stop_tool };
    let outcome = drive(&mut publisher, &mut tool, chunks, &signals, deadline).await;
    match outcome {
        Some(outcome) => store(publisher, outcome).await,
        None => End::Abandoned,
    }
}

async fn store<F>(publisher: Publisher<F>, outcome: AttemptOutcome) -> End
where
    F: Fn(Vec<Event>) -> Pin<Box<dyn Future<Output = Result<(), Lost>> + Send>>,
{
    match publisher.end(outcome.clone()).await {
        Ok(()) => End::Stored(outcome),
        Err(Lost) => End::Abandoned,
    }
}

/// By when the attempt has ended, and as what if it has not.
struct Deadline {
    at: Instant,
    overdue: AttemptOutcome,
}

/// The attempt's own time, or the call's if that is sooner. `None` when the call's has come already.
fn deadline(job: &Job, policy: &Policy) -> Option<Deadline> {
    let (own, rest) = (policy.attempt_timeout, job.spec.deadline.since(proto::now()));
    if rest.is_zero() {
        return None;
    }
    let overdue = if own <= rest {
        let message = format!("the attempt took longer than {own:?}");
        AttemptOutcome::Failed(CallError::new(ErrorKind::AttemptTimeout, message).retryable())
    } else {
        AttemptOutcome::Expired
    };
    Some(Deadline { at: Instant::now() + own.min(rest), overdue })
}

/// A running tool. Told to stop first and stopped for good when dropped.
struct ToolTask {
    handle: JoinHandle<Result<Output, ToolError>>,
    stop: CancellationToken,
}

impl Drop for ToolTask {
    fn drop(&mut self) {
        self.stop.cancel();
        self.handle.abort();
    }
}

/// Why the tool was told to stop.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stopping {
    Cancelled,
    Overdue,
    GivenBack,
}

/// Takes the tool's output to the publisher until the tool ends. `None` when the attempt is to be abandoned.
async fn drive<F>(
    publisher: &mut Publisher<F>,
    tool: &mut ToolTask,
    mut chunks: mpsc::Receiver<Chunk>,
    signals: &Signals,
    deadline: Deadline,
) -> Option<AttemptOutcome>
where
    F: Fn(Vec<Event>) -> Pin<Box<dyn Future<Output = Result<(), Lost>> + Send>>,
{
    let fold = tokio::time::sleep(FOLD_WINDOW);
    tokio::pin!(fold);
    let mut folding = true;
    let mut stopping: Option<(Stopping, Instant)> = None;
    let (mut speaking, mut too_much) = (true, false);
    let result = loop {
        let stop_at = stopping.map_or(deadline.at, |(_, hard)| hard);
        tokio::select! {
            biased;
            () = signals.lease_lost.cancelled() => return None,
            chunk = chunks.recv(), if speaking && publisher.has_room() => {
                match chunk {
                    Some(chunk) => {
                        let mut next = Some(chunk);
                        while let Some(chunk) = next.take() {
                            too_much |= !publisher.take(chunk);
                            if publisher.is_large() {
                                break;
                            }
                            next = chunks.try_recv().ok();
                        }
                        publisher.send_if_ready();
                        folding = false;
                    }
                    None => speaking = false,
                }
                if too_much {
                    break None;
                }
            }
            turned = publisher.turn() => {
                if turned.is_err() {
                    return None;
                }
            }
            ended = &mut tool.handle => break Some(ended),
            () = &mut fold, if folding => {
                folding = false;
                publisher.send();
            }
            () = signals.cancel.cancelled(), if stopping.is_none() => {
                tool.stop.cancel();
                stopping = Some((Stopping::Cancelled, Instant::now() + limit::CANCEL_GRACE));
            }
            () = signals.give_back.cancelled(), if stopping.is_none() => {
                tool.stop.cancel();
                stopping = Some((Stopping::GivenBack, Instant::now() + limit::CANCEL_GRACE));
            }
            () = tokio::time::sleep_until(stop_at) => match stopping {
                None => {
                    tool.stop.cancel();
                    stopping = Some((Stopping::Overdue, Instant::now() + limit::CANCEL_GRACE));
                }
                Some(_) => break None,
            }
        }
    };
    // What the tool said before it ended is still in the channel.
    while let Ok(chunk) = chunks.try_recv() {
        too_much |= !publisher.take(chunk);
        if publisher.is_large() {
            publisher.send();
        }
        while !publisher.has_room() {
            if publisher.turn().await.is_err() {
                return None;
            }
        }
    }
    if too_much {
        let message = format!("the call said more than {} pieces of output", limit::CHUNKS_PER_ATTEMPT_MAX);
        return Some(AttemptOutcome::Failed(CallError::new(ErrorKind::OutputTooLarge, message)));
    }
    match (result, stopping.map(|(why, _)| why)) {
        // A result that came in time counts, whatever was asked meanwhile.
        (Some(Ok(Ok(output))), _) => Some(completed(output)),
        (_, Some(Stopping::Cancelled)) => Some(AttemptOutcome::Cancelled),
        (_, Some(Stopping::GivenBack)) => Some(AttemptOutcome::Returned),
        (_, Some(Stopping::Overdue)) => Some(deadline.overdue),
        (Some(Ok(Err(ToolError(error)))), None) => Some(AttemptOutcome::Failed(error)),
        (Some(Err(join)), None) if join.is_panic() => Some(AttemptOutcome::Failed(panicked(join.into_panic()))),
        (Some(Err(_)) | None, None) => Some(AttemptOutcome::Returned),
    }
}

fn completed(output: Output) -> AttemptOutcome {
    let size: usize = output.0.iter().map(Content::size).sum();
    if size > limit::RESULT_BYTES_MAX {
        let message = format!(
            "the result is {size} bytes, at most {} are kept: stream it or write it to a file",
            limit::RESULT_BYTES_MAX
        );
        return AttemptOutcome::Failed(CallError::new(ErrorKind::ResultTooLarge, message));
    }
    AttemptOutcome::Completed(output.0)
}

fn panicked(panic: Box<dyn std::any::Any + Send>) -> CallError {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned());
    CallError::new(ErrorKind::ToolPanicked, format!("the tool panicked: {text}"))
}
