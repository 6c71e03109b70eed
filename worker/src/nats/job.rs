//! One job, from its delivery to its acknowledgement.

use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use async_nats::jetstream;
use async_nats::jetstream::context::PublishErrorKind;
use async_nats::jetstream::message::PublishMessage;
use async_nats::{Message, Subject as Reply};
use bytes::Bytes;
use proto::convert::log::{self, Job};
use proto::convert::worker::{Answer, Question, decode_answer};
use proto::names;
use proto::subject::{Place, Subject};
use run::{AttemptId, AttemptNumber, AttemptOutcome, Event, Nonce, Retry, Route, RunId, Verdict, after_failure};
use tokio::time::Instant;

use super::Core;
use crate::attempt::{self, Attempt, End};
use crate::publisher::Lost;

/// How long an entry is sent again for: an election of the broker's leader takes 4-9 s.
const APPEND_PATIENCE: Duration = Duration::from_secs(20);
const APPEND_PAUSE: Duration = Duration::from_millis(200);
/// How long an owner may take to answer, and the pause before it is asked again.
const ANSWER_PATIENCE: Duration = Duration::from_secs(2);
const ASK_PAUSE: Duration = Duration::from_millis(100);
/// A job that this worker cannot read may be one for a newer worker of the pool: it goes back, and not at once.
const UNREADABLE: &str = r#"-NAK {"delay": 5000000000}"#;

/// A job as the broker delivered it.
struct Delivery {
    job: Job,
    reply: Reply,
    /// Counts this delivery too; the broker may forget, so the log has the last word.
    delivered: u32,
    sequence: u64,
    age: Duration,
}

pub(super) async fn handle(core: Rc<Core>, message: Message) {
    let Some(reply) = message.reply.clone() else { return };
    let delivery = match delivery(&core, message, reply.clone()) {
        Ok(delivery) => delivery,
        Err(error) => {
            tracing::error!(error, "giving back a job that cannot be understood");
            return settle(&core, reply, UNREADABLE.into()).await;
        }
    };
    let lease = core.leases.hold(reply.to_string());
    let is_fresh = delivery.delivered == 1 && delivery.age < names::JOB_FRESH;
    let answer = if is_fresh {
        Answer { verdict: Verdict::Go { number: AttemptNumber(1), used: 0 }, last_output: 0 }
    } else {
        tokio::select! {
            answer = ask(&core, &delivery) => answer,
            () = lease.lost.cancelled() => return,
        }
    };
    match answer.verdict {
        Verdict::Drop => settle(&core, reply, "+ACK".into()).await,
        Verdict::End { attempt, outcome } => {
            let (pool, chunks) = (delivery.job.pool.clone(), 0);
            let ended = Event::AttemptEnded { attempt, pool, chunks, outcome };
            if store(&core, &delivery.job, vec![ended], None).await.is_ok() {
                settle(&core, reply, "+ACK".into()).await;
            }
        }
        Verdict::Go { number, used } => execute(&core, &delivery, (number, used, answer.last_output), lease).await,
    }
}

fn delivery(core: &Core, message: Message, reply: Reply) -> Result<Delivery, String> {
    let message = jetstream::Message { message, context: core.context.clone() };
    let info = message.info().map_err(|error| error.to_string())?;
    let delivered = u32::try_from(info.delivered).unwrap_or(u32::MAX);
    let (sequence, published) = (info.stream_sequence, info.published.unix_timestamp_nanos() / 1_000_000);
    let published = run::Timestamp(u64::try_from(published).unwrap_or(0));
    let (message, _) = message.split();
    let subject: Subject = message.subject.as_str().parse().map_err(|error| format!("{error}"))?;
    let job = log::decode_job(&subject, message.payload).map_err(|error| error.to_string())?;
    Ok(Delivery { job, reply, delivered, sequence, age: proto::now().since(published) })
}

/// Asks the run's owner what to do, until it knows.
async fn ask(core: &Core, delivery: &Delivery) -> Answer {
    let Delivery { job, delivered, sequence, .. } = delivery;
    let question = Question { run: job.run, call: job.call, delivered: *delivered, sequence: *sequence };
    let subject = names::question(&job.pool, job.run.shard());
    loop {
        let answer = core.client.request(subject.clone(), question.encode());
        match tokio::time::timeout(ANSWER_PATIENCE, answer).await {
            Ok(Ok(answer)) => match decode_answer(answer.payload, job.call) {
                Ok(Some(answer)) => return answer,
                Ok(None) => {}
                Err(error) => tracing::warn!(run.id = %job.run, %error, "passing over an answer"),
            },
            Ok(Err(error)) => tracing::debug!(run.id = %job.run, %error, "no owner answers yet"),
            Err(_) => tracing::debug!(run.id = %job.run, "the owner is slow to answer"),
        }
        tokio::time::sleep(ASK_PAUSE).await;
    }
}

async fn execute(
    core: &Rc<Core>,
    delivery: &Delivery,
    (number, used, last_output): (AttemptNumber, u32, u64),
    lease: super::leases::Lease,
) {
    let Delivery { job, reply, .. } = delivery;
    let Route::Pool { policy, .. } = &job.spec.route else { return };
    let id = AttemptId { call: job.call, number, nonce: Nonce(rand::random()) };
    let (pool, worker) = (job.pool.clone(), core.worker.clone());
    let start = Event::AttemptStarted { attempt: id, pool, worker, lease: Bytes::copy_from_slice(reply.as_bytes()) };
    let start = if policy.repeatable {
        Some(start)
    } else {
        // Once the tool is called its effect may happen: the log must know before, and know of this start alone.
        match store(core, job, vec![start], Some(last_output)).await {
            Ok(()) => None,
            Err(Lost) => {
                tracing::warn!(run.id = %job.run, "an attempt could not be recorded as the only one; asking again");
                return settle(core, reply.clone(), "-NAK".into()).await;
            }
        }
    };
    let (mut signals, registered) = core.register(job.run, id);
    signals.lease_lost = lease.lost.clone();
    let attempt = Attempt { job, id, start, signals };
    let end = attempt::run(attempt, &core.table, &core.tools, appender(core, job)).await;
    drop(registered);
    match end {
        End::Stored(AttemptOutcome::Completed(_) | AttemptOutcome::Cancelled | AttemptOutcome::Expired) => {
            settle(core, reply.clone(), "+ACK".into()).await;
        }
        End::Stored(AttemptOutcome::Returned) => settle(core, reply.clone(), "-NAK".into()).await,
        End::Stored(AttemptOutcome::Failed(error)) => {
            let answer = match after_failure(policy, used + 1, &error) {
                Retry::Again { used } => {
                    let wait = policy.backoff.wait(used, rand::random());
                    format!("-NAK {{\"delay\": {}}}", wait.as_nanos()).into()
                }
                Retry::GiveUp => "+ACK".into(),
            };
            settle(core, reply.clone(), answer).await;
        }
        End::Abandoned => tracing::warn!(run.id = %job.run, "abandoned an attempt; its job comes again"),
    }
    drop(lease);
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
    move |events| Box::pin(store_on(context.clone(), subject.clone(), run, events, None))
}

async fn store(core: &Core, job: &Job, events: Vec<Event>, expected: Option<u64>) -> Result<(), Lost> {
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
) -> Result<(), Lost> {
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
        match confirmed {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == PublishErrorKind::WrongLastSequence => return Err(Lost),
            Err(error) if Instant::now() >= give_up => {
                tracing::error!(run.id = %run, %error, "the log could not be reached, giving up the attempt");
                return Err(Lost);
            }
            Err(error) => tracing::warn!(run.id = %run, %error, "an entry was not confirmed, sending it again"),
        }
        tokio::time::sleep(APPEND_PAUSE).await;
    }
}
