//! Appends the events of attempts to the log, again and again until they are confirmed.

use std::pin::Pin;
use std::time::Duration;

use async_nats::jetstream;
use bytes::Bytes;
use nats::append::{AppendFailure, Pauses};
use owner::job::Stored;
use proto::convert::log::{self, Job};
use proto::subject::{Subject, SubjectKind};
use run::{Event, RunId};
use tokio::time::Instant;

use super::Core;
use crate::publisher::Lost;

/// For how long an entry is sent again: an election of the broker's leader takes 4-9 s.
const APPEND_PATIENCE: Duration = Duration::from_secs(20);

type Append = Pin<Box<dyn Future<Output = Result<(), Lost>> + Send>>;

/// Appends the output of an attempt.
pub(super) fn appender(core: &Core, job: &Job) -> impl Fn(Vec<Event>) -> Append + use<> {
    let (context, subject, run) = (core.context.clone(), subject(job), job.run);
    let hooked = core.is_hooked(&job.spec);
    move |events| {
        let (context, subject) = (context.clone(), subject.clone());
        Box::pin(async move {
            match store_on(context, subject, run, log::encode_attempt(&events, hooked), None).await {
                Stored::Confirmed => Ok(()),
                Stored::Conflict { .. } | Stored::GivenUp | Stored::TooLarge => Err(Lost),
            }
        })
    }
}

/// Appends one event, if `expected` is last on the call's output subject or `None`.
pub(super) async fn store(core: &Core, job: &Job, event: Event, expected: Option<u64>) -> Stored {
    let payload = log::encode_attempt(&[event], core.is_hooked(&job.spec));
    store_on(core.context.clone(), subject(job), job.run, payload, expected).await
}

fn subject(job: &Job) -> String {
    let place = SubjectKind::Output { call: job.call, pool: job.pool.clone() };
    Subject { run: job.run, place }.to_string()
}

/// Stores an entry, sending it again until it is confirmed. A second copy does no harm: chunks are numbered, and an
/// attempt starts and ends once. The entry is stored only if `expected` is last on the subject.
async fn store_on(
    context: jetstream::Context,
    subject: String,
    run: RunId,
    payload: Bytes,
    expected: Option<u64>,
) -> Stored {
    let (mut is_resent, mut pauses) = (false, Pauses::default());
    let give_up = Instant::now() + APPEND_PATIENCE;
    loop {
        let published = nats::append::publish(&context, &subject, payload.clone(), expected).await;
        let Err(error) = published else { return Stored::Confirmed };
        let why = AppendFailure::of(&error);
        match why {
            AppendFailure::Conflict => return Stored::Conflict { is_resent },
            AppendFailure::TooLarge => {
                tracing::error!(run.id = %run, %error, "entry does not fit the log");
                return Stored::TooLarge;
            }
            AppendFailure::Full | AppendFailure::Unconfirmed if Instant::now() >= give_up => {
                tracing::error!(run.id = %run, ?why, %error, "storing entry failed, giving up the attempt");
                return Stored::GivenUp;
            }
            // New runs are refused before the log is full, so there is usually room for ends. If not, it may become
            // free in time.
            AppendFailure::Full => {
                tracing::warn!(run.id = %run, %error, "the log has no room for an entry, sending it again")
            }
            // Logged once: while a cluster of brokers elects its leader, this happens to every entry of every call.
            AppendFailure::Unconfirmed if is_resent => {}
            AppendFailure::Unconfirmed => {
                tracing::warn!(run.id = %run, %error, "entry not confirmed, sending it again until it is");
            }
        }
        is_resent = true;
        tokio::time::sleep(pauses.next().unwrap_or_default()).await;
    }
}
