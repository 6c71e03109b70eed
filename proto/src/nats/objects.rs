//! Writes and removes objects, for whoever may.

use std::time::{Duration, Instant};

use async_nats::jetstream::Context;
use async_nats::jetstream::message::PublishMessage;
use bytes::Bytes;
use run::RunId;

use super::unstored::Unstored;
use crate::{names, object};

/// How long a chunk is sent again for: an election of the broker's leader takes 4-9 s.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(200);
const PAUSE_LONGEST: Duration = Duration::from_secs(1);
/// Nothing was written there before.
const NOTHING: u64 = 0;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotKept {
    #[error("the object store is full: nothing more is kept until something has aged out")]
    Full,
    #[error("the object store does not answer: {0}")]
    Unavailable(String),
}

/// Stores a chunk, sending it again until it is confirmed. What lies under a subject stays as it is, so a second copy does no
/// harm. `sleep` waits for so long.
///
/// # Errors
/// When there is no room, or no confirmation in time.
pub async fn put<S: Future<Output = ()>>(
    context: &Context,
    subject: String,
    data: Bytes,
    sleep: impl Fn(Duration) -> S,
) -> Result<(), NotKept> {
    let (give_up, mut pause) = (Instant::now() + PATIENCE, PAUSE);
    loop {
        let message = PublishMessage::build().payload(data.clone()).expected_last_subject_sequence(NOTHING);
        let confirmed = match context.send_publish(subject.clone(), message).await {
            Ok(confirmation) => confirmation.await,
            Err(error) => Err(error),
        };
        let Err(error) = confirmed else { return Ok(()) };
        match Unstored::of(&error) {
            // Its first copy lies there: nobody else knows the subject.
            Unstored::Conflict => return Ok(()),
            Unstored::Full => return Err(NotKept::Full),
            Unstored::TooLarge => return Err(NotKept::Unavailable(error.to_string())),
            Unstored::Unconfirmed if Instant::now() >= give_up => return Err(NotKept::Unavailable(error.to_string())),
            Unstored::Unconfirmed => tracing::warn!(%error, "a chunk of an object was not confirmed, sending it again"),
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE_LONGEST);
    }
}

/// Removes every object of a run: results of its calls, and what attempts stored to which nothing refers. An attempt that has
/// not ended may still store one; that goes with its age.
///
/// # Errors
/// When the broker does not say that it did; then some of them may be gone.
pub async fn remove_run(context: &Context, run: RunId) -> Result<(), NotKept> {
    let unavailable = |error: &dyn std::fmt::Display| NotKept::Unavailable(error.to_string());
    let stream = context.get_stream_no_info(names::OBJECTS).await.map_err(|error| unavailable(&error))?;
    stream.purge().filter(object::of_run(run)).await.map(|_| ()).map_err(|error| unavailable(&error))
}
