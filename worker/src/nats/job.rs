//! One job, from its delivery to its acknowledgement.

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream;
use async_nats::jetstream::message::PublishMessage;
use async_nats::{Message, Subject as Reply};
use bytes::Bytes;
use proto::convert::log::{self, Job};
use proto::convert::worker::{Answer, Question, decode_answer};
use proto::names;
use proto::nats::unstored::Unstored;
use proto::subject::{Place, Subject};
use run::{
    AttemptId, AttemptNumber, AttemptOutcome, CallError, ChunkIndex, Event, Nonce, Retry, Route, RunId, ToolName,
    Verdict, after_failure,
};
use tokio::time::Instant;

use super::trace::{self, Traced};
use super::{Core, held};
use crate::attempt::{self, Attempt, End, Ending};
use crate::metrics;
use crate::publisher::Lost;
use crate::table::Prepared;

/// How long an entry is sent again for: an election of the broker's leader takes 4-9 s.
const APPEND_PATIENCE: Duration = Duration::from_secs(20);
const APPEND_PAUSE: Duration = Duration::from_millis(200);
const APPEND_PAUSE_LONGEST: Duration = Duration::from_secs(1);
/// A job that cannot be taken up now goes back, and not at once.
const NOT_NOW: &str = r#"-NAK {"delay": 1000000000}"#;
/// How long an owner is asked before the job goes back: it must not keep the slot from others.
const ASK_PATIENCE: Duration = Duration::from_secs(10);
/// How long an owner may take to answer, and the pause before it is asked again, which doubles.
const ANSWER_PATIENCE: Duration = Duration::from_secs(2);
const ASK_PAUSE: Duration = Duration::from_millis(5);
const ASK_PAUSE_LONGEST: Duration = Duration::from_millis(200);
/// A job that is here for longer may have been given to another worker too: the owner takes back what is out for some seconds
/// without a start, and hands on what was given to workers of which nothing is heard.
const SOLELY_OURS: Duration = Duration::from_secs(2);
/// A job that this worker cannot read may be one for a newer worker of the pool: it goes back, and not at once.
const UNREADABLE: &str = r#"-NAK {"delay": 5000000000}"#;
/// A call of a tool that this worker does not host goes back after this, then after twice as long each time: a worker that
/// hosts it may have a free slot at once, or be about to start.
const NOT_HOSTED_PAUSE: Duration = Duration::from_millis(50);
const NOT_HOSTED_PAUSE_LONGEST: Duration = Duration::from_secs(5);

/// A job as the broker delivered it.
struct Delivery {
    job: Job,
    reply: Reply,
    /// Counts this delivery too; the broker may forget, so the log has the last word.
    delivered: u32,
    sequence: u64,
    /// How long ago it was stored when it came here.
    age: Duration,
    here: Instant,
}

pub(super) async fn handle(core: Rc<Core>, message: Message) {
    let Some(reply) = message.reply.clone() else { return };
    let delivery = match delivery(&core, message, reply.clone()) {
        Ok(Some(delivery)) => delivery,
        // Its run or its dispatch is void, so its owner and all readers pass it over too.
        Ok(None) => {
            core.counts.duplicates.add(1);
            return settle(&core, reply, "+ACK".into()).await;
        }
        Err(error) => {
            tracing::error!(error, "giving back a job that cannot be understood");
            return settle(&core, reply, UNREADABLE.into()).await;
        }
    };
    match delivery.delivered {
        1 => core.counts.of(&delivery.job.spec.tool).queue_wait.record(delivery.age),
        _ => core.counts.redeliveries.add(1),
    }
    let lease = core.leases.hold(reply.to_string());
    let room = core.table.room(&delivery.job.spec.tool).map(Arc::clone);
    let (mut waited, mut place) = (false, None);
    if let Some(room) = room {
        place = Arc::clone(&room).try_acquire_owned().ok();
        waited = place.is_none();
        if waited {
            core.waiting.set(core.waiting.get() + 1);
            let (mut given_back, mut lost) = (false, false);
            tokio::select! {
                taken = room.acquire_owned() => place = taken.ok(),
                () = core.give_back.cancelled() => given_back = true,
                () = lease.lost.cancelled() => lost = true,
            }
            core.waiting.set(core.waiting.get() - 1);
            match (lost, given_back) {
                (true, _) => return,
                (false, true) => return settle(&core, reply, NOT_NOW.into()).await,
                (false, false) => {}
            }
        }
    }
    // Held until the tool is gone.
    let _place = place;
    // A call may be cancelled while it is queued. A job that is not fresh is asked about first; a tool that is not safe to
    // repeat is called only after its start is known to be heard.
    let in_time = delivery.job.spec.queue_deadline.is_none_or(|by| proto::now() < by);
    let answer = if in_time && !waited && delivery.delivered == 1 && delivery.age < names::JOB_FRESH {
        let verdict = Verdict::Go { number: AttemptNumber(1), used: 0, from: ChunkIndex(0) };
        Some(Answer { verdict, last_output: 0 })
    } else {
        // Most jobs are not asked about: the room that it takes is not a part of each.
        let asked = Box::pin(ask(&core, &delivery, About::Delivery));
        tokio::select! {
            answer = asked => answer,
            () = core.give_back.cancelled() => None,
            () = lease.lost.cancelled() => return,
        }
    };
    let Some(answer) = answer else { return settle(&core, reply, NOT_NOW.into()).await };
    match answer.verdict {
        Verdict::Drop => {
            core.counts.duplicates.add(1);
            settle(&core, reply, "+ACK".into()).await;
        }
        // Its acknowledgement would be the other's.
        Verdict::Leave => core.counts.duplicates.add(1),
        Verdict::End { attempt, outcome } => {
            let (pool, chunks) = (delivery.job.pool.clone(), 0);
            let ended = Event::AttemptEnded { attempt, pool, chunks, outcome };
            // The attempt may speak again before its end is stored: then it is not lost, and the owner is asked anew.
            match Box::pin(store(&core, &delivery.job, vec![ended], Some(answer.last_output))).await {
                Ok(()) => settle(&core, reply, "+ACK".into()).await,
                Err(NotStored::Conflict { .. }) => settle(&core, reply, NOT_NOW.into()).await,
                Err(NotStored::GivenUp | NotStored::TooLarge) => {}
            }
        }
        // A call that has ended meanwhile was told so above, held or not.
        Verdict::Go { .. } if core.held.holds(|| core.table.own_name(&delivery.job.spec.tool)) => {
            settle(&core, reply, held::not_while_paused(delivery.delivered)).await;
        }
        Verdict::Go { number, used, from } => {
            let go = Go { number, used, from, last_output: answer.last_output };
            execute(&core, &delivery, go, lease).await;
        }
    }
}

/// `None` for a job that was stored too late to count.
fn delivery(core: &Core, message: Message, reply: Reply) -> Result<Option<Delivery>, String> {
    let message = jetstream::Message { message, context: core.context.clone() };
    let info = message.info().map_err(|error| error.to_string())?;
    let delivered = u32::try_from(info.delivered).unwrap_or(u32::MAX);
    let (sequence, published) = (info.stream_sequence, info.published.unix_timestamp_nanos() / 1_000_000);
    let published = run::Timestamp(u64::try_from(published).unwrap_or(0));
    let (message, _) = message.split();
    let subject: Subject = message.subject.as_str().parse().map_err(|error| format!("{error}"))?;
    let job = log::decode_job(&subject, message.payload, published).map_err(|error| error.to_string())?;
    let (age, here) = (proto::now().since(published), Instant::now());
    Ok(job.map(|job| Delivery { job, reply, delivered, sequence, age, here }))
}

/// What the owner is asked about.
#[derive(Clone, Copy)]
enum About {
    /// A job that was delivered: what shall be done with it?
    Delivery,
    /// A start that was stored: is it the one that counts?
    Start(AttemptId),
    /// An attempt whose end was stored: what is left to be done?
    End,
}

/// Asks the run's owner what to do, until it knows. `None` when it takes too long: others may need the slot.
async fn ask(core: &Core, delivery: &Delivery, about: About) -> Option<Answer> {
    let Delivery { job, delivered, sequence, .. } = delivery;
    let (attempt, executed) = match about {
        About::Delivery => (None, false),
        About::Start(attempt) => (Some(attempt), false),
        About::End => (None, true),
    };
    let (run, call) = (job.run, job.call);
    let question = Question { run, call, delivered: *delivered, sequence: *sequence, attempt, executed };
    let subject = names::question(&job.pool, job.run.shard());
    let (give_up, mut pause) = (Instant::now() + ASK_PATIENCE, ASK_PAUSE);
    while Instant::now() < give_up {
        let answer = core.client.request(subject.clone(), question.encode());
        match tokio::time::timeout(ANSWER_PATIENCE, answer).await {
            Ok(Ok(answer)) => match decode_answer(answer.payload, job.call) {
                Ok(Some(answer)) => return Some(answer),
                Ok(None) => {}
                Err(error) => tracing::warn!(run.id = %job.run, %error, "passing over an answer"),
            },
            Ok(Err(error)) => tracing::debug!(run.id = %job.run, %error, "no owner answers yet"),
            Err(_) => tracing::debug!(run.id = %job.run, "the owner is slow to answer"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(ASK_PAUSE_LONGEST);
    }
    None
}

/// The attempt as which a job is executed.
struct Go {
    number: AttemptNumber,
    used: u32,
    from: ChunkIndex,
    last_output: u64,
}

/// Finds a call's tool and checks its arguments: on another thread if that may take long, because this one keeps leases alive.
async fn prepare(core: &Rc<Core>, tool: &ToolName, arguments: &Bytes) -> Result<Prepared, CallError> {
    if core.table.is_quick(tool, arguments) {
        return core.table.prepare(tool, arguments);
    }
    let (table, name, given) = (Arc::clone(&core.table), tool.clone(), arguments.clone());
    let checked = core.tools.spawn_blocking(move || table.prepare(&name, &given)).await;
    // Its runtime shuts down.
    checked.unwrap_or_else(|_| core.table.prepare(tool, arguments))
}

/// Gives a call back that others of the pool host, delivered for the `delivered`-th time.
fn not_hosted(delivered: u32) -> Bytes {
    let times = 1_u32.checked_shl(delivered.saturating_sub(1)).unwrap_or(u32::MAX);
    let delay = NOT_HOSTED_PAUSE.saturating_mul(times).min(NOT_HOSTED_PAUSE_LONGEST);
    format!(r#"-NAK {{"delay": {}}}"#, delay.as_nanos()).into()
}

async fn execute(core: &Rc<Core>, delivery: &Delivery, go: Go, lease: super::leases::Lease) {
    let Delivery { job, reply, .. } = delivery;
    let Go { number, used, from, last_output } = go;
    let Route::Pool { policy, version, .. } = &job.spec.route else { return };
    if !core.table.executes(&job.spec.tool, version.as_ref()) {
        // Another worker of the pool, newer or older, hosts it.
        tracing::info!(
            run.id = %job.run, tool = %job.spec.tool, version = version.as_ref().map(tracing::field::display),
            "giving back a call of a tool, or of a version of it, that is not hosted here"
        );
        return settle(core, reply.clone(), not_hosted(delivery.delivered)).await;
    }
    let prepared = prepare(core, &job.spec.tool, &job.spec.arguments).await;
    let began = Instant::now();
    let id = AttemptId { call: job.call, number, nonce: Nonce(rand::random()) };
    let mut traced = trace::begin(job, id, delivery.sequence, &core.worker, core.include_content);
    let (signals, registered) = core.register(job.run, id, lease.lost.clone());
    let (pool, worker) = (job.pool.clone(), core.worker.clone());
    let held = Bytes::copy_from_slice(reply.as_bytes());
    let start = Event::AttemptStarted { attempt: id, pool, worker, lease: held, from };
    let start = if policy.repeatable && from.0 == 0 {
        Some(start)
    } else {
        // Once the tool is called its effect may happen, or it goes on where the last attempt broke off: the log must know
        // before, and know of this start alone, right behind what the owner had seen.
        if !Box::pin(start_alone(core, delivery, start, id, last_output)).await {
            if let Some(traced) = traced {
                traced.superseded();
            }
            tracing::info!(run.id = %job.run, "an attempt does not count; asking again what to do with its job");
            return settle(core, reply.clone(), NOT_NOW.into()).await;
        }
        None
    };
    let output = core.counts.of(&job.spec.tool).output(delivery.here, delivery.age);
    let watched = core.table.watched(&job.spec.tool);
    let tells_result = traced.as_ref().is_some_and(|traced| traced.includes_content());
    let carried_on = traced.as_mut().map(|traced| {
        traced.tool_begins(job, &core.table);
        traced.carried_on(job)
    });
    let seen = carried_on.as_ref().unwrap_or(job);
    let attempt = Attempt {
        job: seen,
        id,
        from,
        start,
        signals,
        output,
        watched,
        tells_result,
        objects: &core.objects,
        source: &core.source,
    };
    let (end, lingering) = attempt::run(attempt, prepared, &core.tools, appender(core, job)).await;
    drop(registered);
    tell(core, job, id, &end, (began, &mut traced));
    finish(core, delivery, end, used, &lease).await;
    if let Some(traced) = traced {
        traced.end();
    }
    drop(lease);
    if let Some(mut tool) = lingering {
        tokio::select! {
            () = tool.gone() => {}
            () = core.give_back.cancelled() => {}
        }
    }
}

/// Counts, logs and traces how an attempt ended.
fn tell(core: &Core, job: &Job, id: AttemptId, end: &End, (began, traced): (Instant, &mut Option<Box<Traced>>)) {
    let ending = match end {
        End::Stored(ending) => Some(ending),
        End::Abandoned => None,
    };
    let trace = traced.as_ref().map(|traced| traced.context());
    core.counts.of(&job.spec.tool).ended(ending, began.elapsed(), trace);
    let log = || {
        tracing::debug!(
            run.id = %job.run, call.id = %job.spec.id, attempt = id.number.0, tool = %job.spec.tool,
            outcome = metrics::word(ending), "an attempt ended"
        );
    };
    match trace {
        Some(trace) => telemetry::trace::poll_within(trace, log),
        None => log(),
    }
    if let Some(traced) = traced {
        traced.tool_ends(ending);
    }
}

/// Stores a start behind the call's last output or not at all, and learns from the owner whether it counts: the call may
/// have been cancelled, or may have expired, between the owner's word and the start. Where it does not count, as far as is
/// known, the tool must not be called.
async fn start_alone(core: &Core, delivery: &Delivery, start: Event, id: AttemptId, last_output: u64) -> bool {
    match store(core, &delivery.job, vec![start], Some(last_output)).await {
        // Stored; or perhaps its first copy was, and only the confirmation was lost.
        Ok(()) | Err(NotStored::Conflict { resent: true }) => {}
        // Perhaps it was stored, and then the job that comes again would find it begun.
        Err(NotStored::GivenUp) => {
            return_unbegun(core, &delivery.job, id).await;
            return false;
        }
        Err(NotStored::TooLarge | NotStored::Conflict { resent: false }) => return false,
    }
    let answer = tokio::select! {
        answer = ask(core, delivery, About::Start(id)) => answer,
        () = core.give_back.cancelled() => None,
    };
    match answer.map(|answer| answer.verdict) {
        Some(Verdict::Go { number, .. }) => number == id.number,
        Some(Verdict::Drop | Verdict::Leave | Verdict::End { .. }) => false,
        None => {
            // No owner says so in time.
            return_unbegun(core, &delivery.job, id).await;
            false
        }
    }
}

/// Stores that an attempt ended before its tool was called. Without it the attempt would count as interrupted.
async fn return_unbegun(core: &Core, job: &Job, attempt: AttemptId) {
    let (pool, outcome) = (job.pool.clone(), AttemptOutcome::Returned);
    let returned = Event::AttemptEnded { attempt, pool, chunks: 0, outcome };
    if store(core, job, vec![returned], None).await.is_err() {
        tracing::warn!(run.id = %job.run, "an attempt that never began could not be given back");
    }
}

/// Tells the broker what the attempt's end means for its job. Acknowledgements do not tell attempts apart: where another may
/// have the job by now, the owner is asked first.
async fn finish(core: &Core, delivery: &Delivery, end: End, used: u32, lease: &super::leases::Lease) {
    let Delivery { job, reply, .. } = delivery;
    let End::Stored(ending) = end else {
        return tracing::warn!(run.id = %job.run, "abandoned an attempt; its job comes again");
    };
    if lease.lost.is_cancelled() {
        return;
    }
    let again = match &ending {
        Ending::Returned => return settle(core, reply.clone(), "-NAK".into()).await,
        Ending::Completed { .. } | Ending::Cancelled | Ending::Expired => None,
        Ending::Failed(error) => {
            let Route::Pool { policy, .. } = &job.spec.route else { return };
            match after_failure(policy, used + 1, error) {
                Retry::Again { used } => Some(policy.backoff.wait_after(error, used, rand::random())),
                Retry::GiveUp => None,
            }
        }
    };
    let back = |wait: Duration| Bytes::from(format!("-NAK {{\"delay\": {}}}", wait.as_nanos()));
    if delivery.delivered == 1 && delivery.here.elapsed() < SOLELY_OURS {
        return settle(core, reply.clone(), again.map_or("+ACK".into(), back)).await;
    }
    let asked = Box::pin(ask(core, delivery, About::End));
    let answer = tokio::select! {
        answer = asked => answer,
        () = core.give_back.cancelled() => None,
    };
    match answer.map(|answer| answer.verdict) {
        Some(Verdict::Drop) => settle(core, reply.clone(), "+ACK".into()).await,
        // It is queued: for what we failed with, or another attempt.
        Some(Verdict::Go { .. }) => settle(core, reply.clone(), back(again.unwrap_or_default())).await,
        Some(Verdict::Leave | Verdict::End { .. }) | None => {
            tracing::warn!(run.id = %job.run, "leaving a job to whoever has it now");
        }
    }
}

/// Tells the broker what became of a job. Not confirmed: should it be lost, the job comes again and is found ended.
async fn settle(core: &Core, reply: Reply, answer: Bytes) {
    if let Err(error) = core.client.publish(reply, answer).await {
        tracing::warn!(%error, "an acknowledgement was not sent; the job comes again and is found ended");
    }
}

type Append = Pin<Box<dyn Future<Output = Result<(), Lost>> + Send>>;

fn appender(core: &Core, job: &Job) -> impl Fn(Vec<Event>) -> Append + use<> {
    let (context, subject, run) = (core.context.clone(), subject(job), job.run);
    move |events| {
        let (context, subject) = (context.clone(), subject.clone());
        Box::pin(async move { store_on(context, subject, run, events, None).await.map_err(|_| Lost) })
    }
}

/// Why an entry is not in the log, as far as is known.
enum NotStored {
    /// Not confirmed, or no room in the log, for all the time that it was tried.
    GivenUp,
    TooLarge,
    /// Something else is last on the subject; after a resend perhaps our own first copy.
    Conflict {
        resent: bool,
    },
}

async fn store(core: &Core, job: &Job, events: Vec<Event>, expected: Option<u64>) -> Result<(), NotStored> {
    store_on(core.context.clone(), subject(job), job.run, events, expected).await
}

fn subject(job: &Job) -> String {
    let place = Place::Output { call: job.call, pool: job.pool.clone() };
    Subject { run: job.run, place }.to_string()
}

/// Stores an entry, sending it again until it is confirmed. A second copy does no harm: chunks are numbered, and an
/// attempt starts and ends once. `expected` is what must be last on the subject; where it is not, the entry is not stored.
async fn store_on(
    context: jetstream::Context,
    subject: String,
    run: RunId,
    events: Vec<Event>,
    expected: Option<u64>,
) -> Result<(), NotStored> {
    let (mut resent, mut pause) = (false, APPEND_PAUSE);
    let payload = log::encode(&events, None);
    let give_up = Instant::now() + APPEND_PATIENCE;
    loop {
        let mut message = PublishMessage::build().payload(payload.clone());
        if let Some(sequence) = expected {
            message = message.expected_last_subject_sequence(sequence);
        }
        let confirmed = match context.send_publish(subject.clone(), message).await {
            Ok(confirmation) => confirmation.await,
            Err(error) => Err(error),
        };
        let Err(error) = confirmed else { return Ok(()) };
        let why = Unstored::of(&error);
        match why {
            Unstored::Conflict => return Err(NotStored::Conflict { resent }),
            Unstored::TooLarge => {
                tracing::error!(run.id = %run, %error, "an entry does not fit the log");
                return Err(NotStored::TooLarge);
            }
            Unstored::Full | Unstored::Unconfirmed if Instant::now() >= give_up => {
                tracing::error!(run.id = %run, ?why, %error, "an entry could not be stored, giving up the attempt");
                return Err(NotStored::GivenUp);
            }
            // What was accepted has room to end in; where it is taken all the same, it may return before we give up.
            Unstored::Full => {
                tracing::warn!(run.id = %run, %error, "the log has no room for an entry, sending it again")
            }
            // Once: while a cluster of brokers elects its leader, this goes for every entry of every call.
            Unstored::Unconfirmed if resent => {}
            Unstored::Unconfirmed => {
                tracing::warn!(run.id = %run, %error, "an entry was not confirmed, sending it again until it is");
            }
        }
        resent = true;
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(APPEND_PAUSE_LONGEST);
    }
}
