//! Drives one job from its delivery to its acknowledgement: performs the actions of [`owner::job`] with the broker,
//! the tools and the clock.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream;
use async_nats::{Message, Subject as Reply};
use bytes::Bytes;
use owner::job::{self, About, Action, Ended, Entry, Go, Settle, Stage, Start, Stored, Why};
use proto::convert::log::{self, Job};
use proto::convert::worker::{Answer, Question, decode_answer, encode_question};
use proto::names;
use proto::subject::Subject;
use run::{AttemptId, AttemptOutcome, CallError, Event, Nonce, Policy, Route, ToolName, Verdict};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;
use toolyard_tool::runtime::Prepared;

use super::leases::Lease;
use super::trace::{self, Traced};
use super::{Core, Registered, questions};
use crate::attempt::{self, Attempt, End, Ending, Lingering, Signals};
use crate::metrics;

mod store;

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
    /// The owner knows a live worker that takes the call.
    has_taker: Cell<bool>,
}

/// An attempt whose tool is not called yet.
struct Prospect<'a> {
    tool: Result<Prepared, CallError>,
    measured: Measured,
    signals: Signals,
    registered: Registered<'a>,
}

/// An attempt as metrics and traces see it.
struct Measured {
    id: AttemptId,
    began: Instant,
    traced: Option<Box<Traced>>,
}

pub(super) async fn handle(core: Rc<Core>, message: Message) {
    let Some(reply) = message.reply.clone() else { return };
    let delivery = match delivery(&core, message, reply.clone()) {
        Ok(Some(delivery)) => delivery,
        Ok(None) => {
            core.counts.duplicates.add(1);
            return settle(&core, reply, job::Job::VOID.0).await;
        }
        Err(error) => {
            tracing::error!(error, "reading job failed, giving it back");
            return settle(&core, reply, job::Job::UNREADABLE.0).await;
        }
    };
    match delivery.delivered {
        1 => core.counts.of(&delivery.job.spec.tool).queue_wait.record(delivery.age),
        _ => core.counts.redeliveries.add(1),
    }
    let Route::Pool { policy, .. } = &delivery.job.spec.route else { return };
    let lease = core.leases.hold(reply.to_string());
    let mut job = job::Job::new(delivery.delivered, delivery.age, delivery.here.into_std());
    let _slotless = core.leave_slot(&delivery.job.spec.tool);
    // The slot of the tool is held until it is gone.
    let (mut _slot, mut prospect, mut traced, mut lingering) = (None, None, None, None);
    // Rare futures are boxed, so that the future of each job does not reserve room for them.
    loop {
        match job.poll_action() {
            Some(Action::WaitForSlot) => _slot = wait_for_slot(&core, &delivery, &lease, &mut job).await,
            Some(Action::Prepare(go)) => {
                prospect = prepare(&core, &delivery, &lease, &mut job, go).await;
            }
            Some(Action::Run(start)) => {
                let Some(prospect) = prospect.take() else { break };
                let (end, left) = run(&core, &delivery, prospect, start, &mut traced).await;
                lingering = left;
                ended(&end, policy, &lease, &mut job);
            }
            Some(Action::Ask(about)) => Box::pin(ask(&core, &delivery, &lease, &mut job, about)).await,
            Some(Action::Store(entry)) => Box::pin(store_entry(&core, &delivery, &mut job, entry)).await,
            Some(Action::Finish(how, why)) => {
                report(&core, &delivery, why);
                if let Some(traced) = prospect.take().and_then(|prospect| prospect.measured.traced) {
                    traced.superseded();
                }
                settle(&core, reply.clone(), how).await;
                break;
            }
            None => Box::pin(pause(&core, &lease, &mut job)).await,
        }
    }
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
    let (age, here) = (::nats::now().since(published), Instant::now());
    Ok(job.map(|job| Delivery { job, reply, delivered, sequence, age, here, has_taker: Cell::new(false) }))
}

fn now() -> std::time::Instant {
    Instant::now().into_std()
}

/// Takes a slot of the tool, if it has a limited number, and waits for one if none is free.
async fn wait_for_slot(
    core: &Core,
    delivery: &Delivery,
    lease: &Lease,
    job: &mut job::Job,
) -> Option<OwnedSemaphorePermit> {
    let Job { spec, .. } = &delivery.job;
    let in_time = || spec.queue_deadline.is_none_or(|by| ::nats::now() < by);
    let Some(room) = core.table().room(&spec.tool).map(Arc::clone) else {
        job.handle_slot(false, in_time(), now());
        return None;
    };
    if let Ok(slot) = Arc::clone(&room).try_acquire_owned() {
        job.handle_slot(false, in_time(), now());
        return Some(slot);
    }
    let mut slot = None;
    tokio::select! {
        taken = room.acquire_owned() => {
            slot = taken.ok();
            job.handle_slot(true, in_time(), now());
        }
        () = core.give_back.cancelled() => job.handle_give_back(),
        () = lease.lost.cancelled() => job.handle_lease_lost(),
    }
    slot
}

/// Asks the run's owner what to do.
async fn ask(core: &Core, delivery: &Delivery, lease: &Lease, job: &mut job::Job, about: About) {
    let is_untouched = job.is_untouched();
    tokio::select! {
        answer = answer(core, delivery, about) => job.handle_answer(answer, now()),
        () = core.give_back.cancelled() => job.handle_give_back(),
        () = lease.lost.cancelled(), if is_untouched => job.handle_lease_lost(),
    }
}

/// The owner's verdict, and the call's last output that it knew; `None` if no owner could answer.
async fn answer(core: &Core, delivery: &Delivery, about: About) -> Option<(Verdict, u64)> {
    let Delivery { job, delivered, sequence, .. } = delivery;
    let (attempt, executed) = match about {
        About::Delivery => (None, false),
        About::Start(attempt) => (Some(attempt), false),
        About::End => (None, true),
    };
    let (run, call) = (job.run, job.call);
    let question = Question { run, call, delivered: *delivered, sequence: *sequence, attempt, executed };
    let answer = core.client.request(names::question(&job.pool, run.shard()), encode_question(&question));
    match tokio::time::timeout(job::ANSWER_PATIENCE, answer).await {
        Ok(Ok(answer)) => match decode_answer(answer.payload, call) {
            Ok(answer) => {
                let Answer { verdict, last_output, has_taker } = answer?;
                delivery.has_taker.set(has_taker);
                return Some((verdict, last_output));
            }
            Err(error) => tracing::warn!(run.id = %run, %error, "reading the owner's answer failed, asking again"),
        },
        Ok(Err(error)) => tracing::debug!(run.id = %run, %error, "no owner answers yet"),
        Err(_) => tracing::debug!(run.id = %run, "the owner is slow to answer"),
    }
    None
}

/// Waits until the owner is asked again.
async fn pause(core: &Core, lease: &Lease, job: &mut job::Job) {
    let (wake, is_untouched) = (job.poll_timeout(), job.is_untouched());
    let wake = wake.map_or_else(Instant::now, Instant::from_std);
    tokio::select! {
        () = tokio::time::sleep_until(wake) => job.handle_timeout(now()),
        () = core.give_back.cancelled() => job.handle_give_back(),
        () = lease.lost.cancelled(), if is_untouched => job.handle_lease_lost(),
    }
}

/// Stores a start or an end that the job must not go on without.
async fn store_entry(core: &Core, delivery: &Delivery, job: &mut job::Job, entry: Entry) {
    let Entry { attempt, event, expected } = entry;
    let is_return = matches!(event, Stage::Ended(AttemptOutcome::Returned));
    let stored = store::store(core, &delivery.job, event_of(core, delivery, attempt, event), expected).await;
    if is_return && stored != Stored::Confirmed {
        tracing::warn!(run.id = %delivery.job.run, "giving back an attempt that never began failed");
    }
    job.handle_stored(stored, now());
}

fn event_of(core: &Core, delivery: &Delivery, attempt: AttemptId, event: Stage) -> Event {
    let pool = delivery.job.pool.clone();
    match event {
        Stage::Started(from) => {
            let lease = Bytes::copy_from_slice(delivery.reply.as_bytes());
            Event::AttemptStarted { attempt, pool, worker: core.worker.clone(), lease, from }
        }
        Stage::Ended(outcome) => Event::AttemptEnded { attempt, pool, chunks: 0, outcome },
    }
}

/// Finds a call's tool and checks its arguments: on another thread if that may take long, because this one keeps
/// leases alive.
async fn check_arguments(core: &Rc<Core>, tool: &ToolName, arguments: &Bytes) -> Result<Prepared, CallError> {
    let table = core.table();
    if table.is_quick(tool, arguments) {
        return table.prepare(tool, arguments);
    }
    let (table, name, given) = (Arc::clone(&table), tool.clone(), arguments.clone());
    let checked = core.tools.spawn_blocking(move || table.prepare(&name, &given)).await;
    // Its runtime shuts down.
    checked.unwrap_or_else(|_| core.table().prepare(tool, arguments))
}

/// Prepares the attempt, unless its tool is paused or not hosted here.
async fn prepare<'a>(
    core: &'a Rc<Core>,
    delivery: &Delivery,
    lease: &Lease,
    job: &mut job::Job,
    go: Go,
) -> Option<Prospect<'a>> {
    let Job { run, call, spec, .. } = &delivery.job;
    let Route::Pool { policy, version, .. } = &spec.route else {
        job.handle_not_hosted(delivery.has_taker.get());
        return None;
    };
    let table = core.table();
    if core.held.holds(|| table.own_name(&spec.tool)) {
        job.handle_paused();
        return None;
    }
    if !table.executes(&spec.tool, version.as_ref()) {
        // Another worker of the pool, newer or older, hosts it.
        if delivery.delivered == 1 {
            tracing::info!(
                run.id = %run, tool = %spec.tool, version = version.as_ref().map(tracing::field::display),
                "giving back a call of a tool, or of a version of it, that is not hosted here"
            );
        }
        job.handle_not_hosted(delivery.has_taker.get());
        return None;
    }
    if let Some(hook) = core.lacking_hook(spec) {
        // A worker that was started with the file of hooks executes it.
        if delivery.delivered == 1 {
            tracing::error!(
                run.id = %run, tool = %spec.tool, hook,
                "giving back a call that requires a hook which does not run here: start this worker with --hooks"
            );
        }
        // The owner does not know for which tools the others' files of hooks have it.
        job.handle_not_hosted(false);
        return None;
    }
    let tool = check_arguments(core, &spec.tool, &spec.arguments).await;
    let began = Instant::now();
    let id = AttemptId { call: *call, number: go.number, nonce: Nonce(rand::random()) };
    let traced = trace::begin(&delivery.job, id, delivery.sequence, &core.worker, core.include_content);
    let (signals, registered) = core.register(*run, id, lease.lost.clone());
    job.handle_ready(id, policy);
    Some(Prospect { tool, measured: Measured { id, began, traced }, signals, registered })
}

/// Runs the attempt to its end in the log.
async fn run(
    core: &Rc<Core>,
    delivery: &Delivery,
    prospect: Prospect<'_>,
    start: Start,
    ended: &mut Option<Box<Traced>>,
) -> (End, Option<Lingering>) {
    let (Delivery { job, .. }, Start { attempt: id, from, is_stored }) = (delivery, start);
    let Prospect { tool, mut measured, signals, registered } = prospect;
    let start = (!is_stored).then(|| event_of(core, delivery, id, Stage::Started(from)));
    let output = core.counts.of(&job.spec.tool).output(delivery.here, delivery.age);
    let watched = core.watched(&job.spec.tool);
    let tells_result = measured.traced.as_ref().is_some_and(|traced| traced.includes_content());
    let carried_on = measured.traced.as_mut().map(|traced| {
        traced.tool_begins((job, id), &core.table(), core.observer.as_ref());
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
        asker: questions::asker(core.client.clone(), job.pool.clone(), (job.run, id), delivery.sequence),
        records: &core.records,
    };
    let (end, lingering) = attempt::run(attempt, tool, &core.tools, store::appender(core, job)).await;
    drop(registered);
    record(core, job, &end, &mut measured);
    *ended = measured.traced;
    (end, lingering)
}

/// Counts, logs and traces how an attempt ended.
fn record(core: &Core, job: &Job, end: &End, measured: &mut Measured) {
    let Measured { id, began, traced } = measured;
    let ending = match end {
        End::Stored(ending) => Some(ending),
        End::Abandoned => None,
    };
    let trace = traced.as_ref().map(|traced| traced.context());
    core.counts.of(&job.spec.tool).ended(ending, began.elapsed(), trace);
    let log = || {
        tracing::debug!(
            run.id = %job.run, call.id = %job.spec.id, attempt = id.number.0, tool = %job.spec.tool,
            outcome = metrics::word(ending), "attempt ended"
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

/// Passes on how the attempt ended.
fn ended(end: &End, policy: &Policy, lease: &Lease, job: &mut job::Job) {
    if lease.lost.is_cancelled() {
        job.handle_lease_lost();
    }
    let (ended, chance) = match end {
        End::Abandoned => (Ended::Abandoned, 0.0),
        End::Stored(Ending::Completed { .. } | Ending::Cancelled | Ending::Expired) => (Ended::Finally, 0.0),
        End::Stored(Ending::Failed(error)) => (Ended::Failed(error), rand::random()),
        End::Stored(Ending::Returned) => (Ended::Returned, 0.0),
    };
    job.handle_ended(ended, policy, chance, now());
}

/// Counts and logs why a job is settled.
fn report(core: &Core, delivery: &Delivery, why: Why) {
    let run = delivery.job.run;
    match why {
        Why::Duplicate | Why::Void => core.counts.duplicates.add(1),
        Why::Superseded => {
            tracing::info!(run.id = %run, "attempt does not count; asking again what to do with its job");
        }
        Why::Abandoned => tracing::warn!(run.id = %run, "abandoned an attempt; its job comes again"),
        Why::TakenOver => tracing::warn!(run.id = %run, "leaving a job to the worker that has it now"),
        Why::Unreadable
        | Why::NotNow
        | Why::LostAttempt
        | Why::Paused
        | Why::NotHosted
        | Why::Executed
        | Why::LeaseLost => {}
    }
}

/// Settles a job at the broker. This is not confirmed: if the message is lost, the job comes again, and its call has
/// ended by then.
async fn settle(core: &Core, reply: Reply, how: Settle) {
    let message: Bytes = match how {
        Settle::Leave => return,
        Settle::Ack => "+ACK".into(),
        Settle::Nak(Duration::ZERO) => "-NAK".into(),
        Settle::Nak(delay) => format!(r#"-NAK {{"delay": {}}}"#, delay.as_nanos()).into(),
    };
    if let Err(error) = core.client.publish(reply, message).await {
        tracing::warn!(%error, "sending acknowledgement failed; the job comes again and is found ended");
    }
}
