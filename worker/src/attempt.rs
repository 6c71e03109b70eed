//! One attempt, from the moment it may begin to its end in the log.

mod deadline;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use proto::convert::log::Job;
use run::{
    AttemptId, AttemptOutcome, CallError, Chunk, ChunkIndex, Completion, Content, ErrorKind, Event, Policy, Route,
    StopStage, limit,
};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use toolyard_tool::runtime::{
    Asker, Execution, ObjectSink, Prepared, RecordStore, Source, Stop, completion, too_much_output,
};
use toolyard_tool::{Left, Output, ToolError};

use self::deadline::Deadline;
use crate::hooked::{Watched, too_much_held};
use crate::metrics::OutputCount;
use crate::objects::{Objects, is_large};
use crate::publisher::{Lost, Publisher};

/// Chunks that may wait between a tool and its publisher; then the tool waits.
const CHUNKS_WAITING_MAX: usize = 256;
/// The error of a call that its worker could not finish and that must not be executed again.
const INTERRUPTED: &str =
    "the worker shut down while it ran the call, whose tool is not safe to repeat: its effect may have happened";
/// How long a stopped tool may take to end before the end of its attempt is stored.
const STOP_PATIENCE: Duration = Duration::from_secs(1);
/// An attempt that ends within this time has its start folded into its end.
const FOLD_WINDOW: Duration = Duration::from_millis(5);

pub(crate) struct Attempt<'a> {
    pub(crate) job: &'a Job,
    pub(crate) id: AttemptId,
    /// The chunk that it goes on with; 0 for one that begins at the beginning.
    pub(crate) from: ChunkIndex,
    /// The event of its start, unless that is in the log already.
    pub(crate) start: Option<Event>,
    pub(crate) signals: Signals,
    pub(crate) output: OutputCount,
    /// The hooks that decide about its end, if there are any.
    pub(crate) watched: Option<Watched>,
    /// Whether its end carries the result, for traces.
    pub(crate) tells_result: bool,
    /// The store for results that are too large for the log.
    pub(crate) objects: &'a Arc<Objects>,
    /// The source of the call's files.
    pub(crate) source: &'a Source,
    /// The way to the call's client.
    pub(crate) asker: Asker,
    /// The records of its pool.
    pub(crate) records: &'a RecordStore,
}

/// Why an attempt should stop before its tool is done.
#[derive(Debug, Clone)]
pub(crate) struct Signals {
    /// The call is cancelled.
    pub(crate) cancel: CancellationToken,
    /// The worker shuts down and cannot wait any longer.
    pub(crate) give_back: CancellationToken,
    /// The lease could not be kept: another worker may have the job.
    pub(crate) lease_lost: CancellationToken,
}

/// How an attempt ended.
pub(crate) enum End {
    /// In the log.
    Stored(Ending),
    /// Without a word: the job comes again by itself.
    Abandoned,
}

/// The consequence of a stored end for the job.
pub(crate) enum Ending {
    /// Nothing is left to do.
    Completed {
        /// As text, if traces include results.
        result: Option<String>,
    },
    Cancelled,
    Expired,
    /// Another attempt may be due.
    Failed(CallError),
    Returned,
}

/// A tool that did not stop when requested. It keeps its slot until it does.
pub(crate) struct Lingering {
    /// `None` if only processes that it started are left.
    handle: Option<JoinHandle<Result<Output, ToolError>>>,
    left: Left,
}

impl Lingering {
    /// Resolves when nothing of it is known to run any more. May be dropped while it waits.
    pub(crate) async fn gone(&mut self) {
        if let Some(handle) = &mut self.handle {
            // Its result is discarded from here on.
            drop(handle.await);
            self.handle = None;
        }
        self.left.gone().await;
    }

    fn is_known_to_run(&self) -> bool {
        self.handle.is_some() || self.left.is_living()
    }

    /// A process of it may run that cannot be observed.
    fn is_unknown(&self) -> bool {
        self.left.may_live()
    }
}

/// How the wait for a tool ended that does not stop.
enum Outlasted {
    Gone,
    /// The worker shuts down: the tool ends with its process, and until then it runs.
    GivenBack,
    Abandoned,
}

/// Waits until a tool that does not stop has ended. The call counts as running until then, so that exclusive calls do
/// not run beside the tool. The run's owner still enforces the call's deadline, without this attempt.
async fn outlast<F>(publisher: &mut Publisher<F>, tool: &mut Lingering, (signals, job): (&Signals, &Job)) -> Outlasted
where
    F: Fn(Vec<Event>) -> Pin<Box<dyn Future<Output = Result<(), Lost>> + Send>>,
{
    if !tool.is_known_to_run() {
        return Outlasted::Gone;
    }
    let (run, name) = (job.run, &job.spec.tool);
    tracing::warn!(run.id = %run, tool = %name, "a tool does not stop; it keeps its call and its slot until it does");
    // Output from before is sent at once.
    publisher.send();
    loop {
        tokio::select! {
            biased;
            () = signals.lease_lost.cancelled() => return Outlasted::Abandoned,
            turned = publisher.turn() => if turned.is_err() {
                return Outlasted::Abandoned;
            },
            () = tool.gone() => return Outlasted::Gone,
            () = signals.give_back.cancelled() => return Outlasted::GivenBack,
        }
    }
}

/// Runs the call's tool and publishes its output. The tool runs on `tools`, everything else on this thread.
pub(crate) async fn run<F>(
    attempt: Attempt<'_>,
    prepared: Result<Prepared, CallError>,
    tools: &Handle,
    append: F,
) -> (End, Option<Lingering>)
where
    F: Fn(Vec<Event>) -> Pin<Box<dyn Future<Output = Result<(), Lost>> + Send>>,
{
    let (objects, source, asker, records) = (attempt.objects, attempt.source, attempt.asker, attempt.records);
    let Attempt { job, id, from, start, signals, output: count, watched, tells_result: tells, .. } = attempt;
    let Route::Pool { policy, .. } = &job.spec.route else { return (End::Abandoned, None) };
    let mut publisher = Publisher::new(id, job.pool.clone(), from, start, count, append);
    if watched.as_ref().is_some_and(|watched| watched.holds_output) {
        publisher.hold();
    }
    let watched = watched.map(|watched| (watched, tools));
    let prepared = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            let outcome = AttemptOutcome::Failed(error);
            return (conclude(&mut publisher, (job, id), outcome, (watched, false), (objects, &signals)).await, None);
        }
    };
    // A call that is overdue never starts late.
    let Some(deadline) = Deadline::new(job, policy, asker.waits()) else {
        return (store(&mut publisher, AttemptOutcome::Expired, false).await, None);
    };
    let ((output, chunks), stop_tool) = (mpsc::channel(CHUNKS_WAITING_MAX), Stop::default());
    let execution = Execution {
        run: job.run,
        index: job.call,
        call: Arc::clone(&job.spec),
        requester: job.requester.clone(),
        attempt: id.number,
        from,
        deadline: deadline.at,
        call_deadline: deadline.of_call,
        stop: stop_tool.clone(),
        output,
        source: source.clone(),
        asker,
        records: records.clone(),
        is_stored: job.is_stored,
        objects: watched.is_none().then(|| sink(objects, job)),
    };
    let mut tool = ToolTask { handle: Some(prepared.spawn(tools, execution.into())), stop: stop_tool };
    let outcome = drive(&mut publisher, &mut tool, chunks, &signals, deadline).await;
    // The tool is stopped before the end of its attempt is stored, so that the log is true.
    let mut lingering = tool.put_an_end_to().await;
    let outcome = match (outcome, &mut lingering) {
        // Its result counts.
        (Some(outcome @ AttemptOutcome::Completed(_)), _) | (Some(outcome), None) => Some(outcome),
        (Some(outcome), Some(running)) => match outlast(&mut publisher, running, (&signals, job)).await {
            Outlasted::Gone if running.is_unknown() => Some(not_stopped(outcome, policy)),
            Outlasted::Gone => Some(outcome),
            Outlasted::GivenBack => Some(not_stopped(outcome, policy)),
            Outlasted::Abandoned => None,
        },
        (None, _) => None,
    };
    let end = match outcome {
        // Its effect may have happened, completely or partly, so no other worker may start it again.
        Some(AttemptOutcome::Returned) if !policy.repeatable => store(&mut publisher, interrupted(), false).await,
        Some(outcome) => conclude(&mut publisher, (job, id), outcome, (watched, tells), (objects, &signals)).await,
        None => End::Abandoned,
    };
    (end, lingering)
}

fn interrupted() -> AttemptOutcome {
    AttemptOutcome::Failed(CallError::new(ErrorKind::Interrupted, INTERRUPTED))
}

/// Stores objects for the result of a job's call while its tool runs.
fn sink(objects: &Arc<Objects>, job: &Job) -> ObjectSink {
    let (objects, run, call, pool) = (Arc::clone(objects), job.run, job.call, job.pool.clone());
    ObjectSink::new(move |media_type, data| {
        let (objects, pool) = (Arc::clone(&objects), pool.clone());
        Box::pin(async move { objects.store_one(run, call, pool, Content::Data { media_type, data }).await })
    })
}

/// Stores the end of an attempt, as its hooks decided.
async fn conclude<F>(
    publisher: &mut Publisher<F>,
    (job, id): (&Job, AttemptId),
    outcome: AttemptOutcome,
    (watched, tells_result): (Option<(Watched, &Handle)>, bool),
    (objects, signals): (&Objects, &Signals),
) -> End
where
    F: Fn(Vec<Event>) -> Pin<Box<dyn Future<Output = Result<(), Lost>> + Send>>,
{
    let Some((watched, tools)) = watched else {
        return match outcome {
            AttemptOutcome::Completed(given) if is_large(&given.result) => {
                match keep(publisher, job, given, (objects, signals)).await {
                    Some(outcome) => store(publisher, outcome, tells_result).await,
                    None => End::Abandoned,
                }
            }
            outcome => store(publisher, outcome, tells_result).await,
        };
    };
    let held = publisher.let_go();
    // Output that is not held back is sent at once.
    publisher.send();
    let mut judging = Box::pin(watched.judge((job, id.number), outcome, held, tools));
    let judged = loop {
        tokio::select! {
            biased;
            () = signals.lease_lost.cancelled() => return End::Abandoned,
            turned = publisher.turn() => if turned.is_err() {
                return End::Abandoned;
            },
            judged = &mut judging => break judged,
        }
    };
    let mut fits = true;
    for chunk in judged.output {
        fits = fits && publisher.take(chunk);
        if publisher.is_large() {
            publisher.send();
        }
        while !publisher.has_room() {
            if publisher.turn().await.is_err() {
                return End::Abandoned;
            }
        }
    }
    match fits {
        true => store(publisher, judged.outcome, tells_result).await,
        false => store(publisher, AttemptOutcome::Failed(too_much_output()), false).await,
    }
}

/// Stores the parts of a result that are too large for the log, before an entry refers to them. `None` if the attempt
/// must be abandoned.
async fn keep<F>(
    publisher: &mut Publisher<F>,
    job: &Job,
    Completion { result, extra_state }: Completion,
    (objects, signals): (&Objects, &Signals),
) -> Option<AttemptOutcome>
where
    F: Fn(Vec<Event>) -> Pin<Box<dyn Future<Output = Result<(), Lost>> + Send>>,
{
    // Output from before is sent first.
    publisher.send();
    let mut keeping = Box::pin(objects.keep(job, result));
    loop {
        tokio::select! {
            biased;
            () = signals.lease_lost.cancelled() => return None,
            turned = publisher.turn() => if turned.is_err() {
                return None;
            },
            kept = &mut keeping => {
                let kept = kept.map(|result| Completion { result, extra_state });
                return Some(kept.map_or_else(AttemptOutcome::Failed, AttemptOutcome::Completed));
            }
        }
    }
}

async fn store<F>(publisher: &mut Publisher<F>, outcome: AttemptOutcome, tells_result: bool) -> End
where
    F: Fn(Vec<Event>) -> Pin<Box<dyn Future<Output = Result<(), Lost>> + Send>>,
{
    let ending = match &outcome {
        AttemptOutcome::Completed(given) => Ending::Completed { result: tells_result.then(|| text(&given.result)) },
        AttemptOutcome::Cancelled => Ending::Cancelled,
        AttemptOutcome::Expired => Ending::Expired,
        AttemptOutcome::Failed(error) => Ending::Failed(error.clone()),
        AttemptOutcome::Returned => Ending::Returned,
    };
    match publisher.end(outcome).await {
        Ok(()) => End::Stored(ending),
        Err(Lost) => End::Abandoned,
    }
}

/// A result as text. Parts that are not text are described by their kind and size.
fn text(result: &[Content]) -> String {
    let part = |content: &Content| match content {
        Content::Text(text) | Content::Json(text) => text.clone(),
        Content::Data { media_type, data } => format!("[{media_type}, {} bytes]", data.len()),
        Content::Object(object) => object.preview.clone(),
        Content::Cited(cited) => cited.text.clone(),
    };
    result.iter().map(part).collect::<Vec<_>>().join("\n")
}

/// The outcome that is stored for an attempt whose tool may still run. It never claims that the tool has stopped.
fn not_stopped(outcome: AttemptOutcome, policy: &Policy) -> AttemptOutcome {
    let why = match outcome {
        AttemptOutcome::Cancelled => "it was cancelled".to_owned(),
        AttemptOutcome::Expired if !policy.repeatable => "the time of the call is over".to_owned(),
        AttemptOutcome::Failed(error) if !policy.repeatable => error.message,
        // It may be executed again while it still runs. Its result counts.
        AttemptOutcome::Failed(_)
        | AttemptOutcome::Expired
        | AttemptOutcome::Returned
        | AttemptOutcome::Completed(_) => return outcome,
    };
    let message = format!("{why}, but the tool has not stopped: its effect may still happen");
    AttemptOutcome::Failed(CallError::new(ErrorKind::Interrupted, message))
}

/// A running tool. Dropping it aborts it.
struct ToolTask {
    /// `None` once it has ended.
    handle: Option<JoinHandle<Result<Output, ToolError>>>,
    stop: Stop,
}

impl ToolTask {
    /// May be dropped while it waits.
    async fn ended(&mut self) -> Result<Result<Output, ToolError>, JoinError> {
        let Some(handle) = &mut self.handle else { return std::future::pending().await };
        let result = handle.await;
        self.handle = None;
        result
    }

    /// Aborts it. Returns the tool if it does not stop (for example because it blocks its thread) or may not have
    /// stopped.
    async fn put_an_end_to(mut self) -> Option<Lingering> {
        self.stop.wanted.cancel();
        let (mut handle, left) = (self.handle.take(), self.stop.left.clone());
        let patience = Instant::now() + STOP_PATIENCE;
        if let Some(running) = &mut handle {
            running.abort();
            if tokio::time::timeout_at(patience, running).await.is_ok() {
                handle = None;
            }
        }
        if left.is_living() {
            // Its result is awaited below.
            drop(tokio::time::timeout_at(patience, left.gone()).await);
        }
        (handle.is_some() || left.may_live()).then_some(Lingering { handle, left })
    }
}

impl Drop for ToolTask {
    fn drop(&mut self) {
        self.stop.wanted.cancel();
        self.handle.iter().for_each(JoinHandle::abort);
    }
}

/// The reason why the tool must stop.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stopping {
    Cancelled,
    /// Its own timeout.
    Overdue,
    /// The call's deadline.
    CallOverdue,
    /// It sent no output for too long.
    Idle,
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
    let (mut speaking, mut too_much, mut noticed) = (true, false, false);
    let mut said = Instant::now();
    let notice = tool.stop.noticed.clone();
    let mut waits = deadline.waits.subscribe();
    let result = loop {
        // A tool that waits for the broker to take its output is not idle.
        let has_room = publisher.has_room();
        let silent_at = deadline.silent(said).filter(|_| has_room);
        let (stop_at, why) = match (stopping, silent_at, deadline.due()) {
            (Some((_, hard)), ..) => (hard, Stopping::Overdue),
            (None, Some(silent), due) if silent < due.0 => (silent, Stopping::Idle),
            (None, _, due) => due,
        };
        let is_cancelled = matches!(stopping, Some((Stopping::Cancelled, _)));
        tokio::select! {
            biased;
            () = signals.lease_lost.cancelled() => {
                tool.stop.wanted.cancel();
                return None;
            }
            chunk = chunks.recv(), if speaking && has_room => {
                said = Instant::now();
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
                    tool.stop.wanted.cancel();
                    return None;
                }
                if !has_room {
                    said = Instant::now();
                }
            }
            // The time in which the client was asked does not count as silence.
            Ok(()) = waits.changed() => said = Instant::now(),
            ended = tool.ended() => break Some(ended),
            () = &mut fold, if folding => {
                folding = false;
                publisher.send();
            }
            () = notice.cancelled(), if is_cancelled && !noticed => {
                noticed = true;
                publisher.stopping(StopStage::Acknowledged);
            }
            () = signals.cancel.cancelled(), if stopping.is_none() => {
                tool.stop.wanted.cancel();
                publisher.stopping(StopStage::Delivered);
                folding = false;
                stopping = Some((Stopping::Cancelled, Instant::now() + limit::CANCEL_GRACE));
            }
            () = signals.give_back.cancelled(), if stopping.is_none() => {
                tool.stop.wanted.cancel();
                stopping = Some((Stopping::GivenBack, Instant::now() + limit::CANCEL_GRACE));
            }
            () = tokio::time::sleep_until(stop_at) => match stopping {
                None => {
                    tool.stop.wanted.cancel();
                    stopping = Some((why, Instant::now() + limit::CANCEL_GRACE));
                }
                Some(_) => break None,
            }
        }
    };
    if matches!(stopping, Some((Stopping::Cancelled, _))) && !noticed && notice.is_cancelled() {
        publisher.stopping(StopStage::Acknowledged);
    }
    // Output from before the tool's end is still in the channel; later output is not accepted.
    chunks.close();
    while let (false, Ok(chunk)) = (too_much, chunks.try_recv()) {
        too_much = !publisher.take(chunk);
        if publisher.is_large() {
            publisher.send();
        }
        while !publisher.has_room() {
            if publisher.turn().await.is_err() {
                tool.stop.wanted.cancel();
                return None;
            }
        }
    }
    if too_much {
        let error = if publisher.is_holding() { too_much_held() } else { too_much_output() };
        return Some(AttemptOutcome::Failed(error));
    }
    match (result, stopping.map(|(why, _)| why)) {
        // A result that came in time counts, even if a stop was requested meanwhile.
        (Some(Ok(Ok(output))), _) => Some(completed(output)),
        (_, Some(Stopping::Cancelled)) => Some(AttemptOutcome::Cancelled),
        (_, Some(Stopping::GivenBack)) => Some(AttemptOutcome::Returned),
        (_, Some(Stopping::Overdue)) => Some(deadline.overdue()),
        (_, Some(Stopping::CallOverdue)) => Some(AttemptOutcome::Expired),
        (_, Some(Stopping::Idle)) => {
            let message =
                format!("the tool said nothing for {:?}, not even progress", deadline.idle.unwrap_or_default());
            Some(AttemptOutcome::Failed(CallError::new(ErrorKind::IdleTimeout, message).retryable()))
        }
        (Some(Ok(Err(error))), None) => Some(AttemptOutcome::Failed(error.into())),
        (Some(Err(join)), None) if join.is_panic() => Some(AttemptOutcome::Failed(panicked(join.into_panic()))),
        (Some(Err(_)) | None, None) => Some(AttemptOutcome::Returned),
    }
}

fn completed(output: Output) -> AttemptOutcome {
    completion(output.into()).map_or_else(AttemptOutcome::Failed, AttemptOutcome::Completed)
}

fn panicked(panic: Box<dyn std::any::Any + Send>) -> CallError {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned());
    CallError::new(ErrorKind::ToolPanicked, format!("the tool panicked: {text}"))
}

#[cfg(test)]
mod tests;
