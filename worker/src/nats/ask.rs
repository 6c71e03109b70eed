//! Requests to the owner of a run, repeated while there is none.

use std::time::Duration;

use async_nats::Client;
use bytes::Bytes;
use proto::convert::InvalidMessage;
use run::RunId;
use tokio::time::{Instant, sleep, timeout};

/// How long a request is repeated: if an owner is lost, another takes its runs over within about 8 s.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long an owner may take to answer, and the pause before the next request, which doubles.
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(10);
const PAUSE_LONGEST: Duration = Duration::from_millis(500);

/// Sends a request until it is answered. `read` returns `None` for an answer that asks to repeat the request. The
/// request must be one that may be performed twice.
///
/// # Errors
/// No owner answered in time.
pub(super) async fn owner<T>(
    client: &Client,
    (run, subject): (RunId, String),
    payload: Bytes,
    read: impl Fn(Bytes) -> Result<Option<T>, InvalidMessage>,
) -> Result<T, String> {
    let (give_up, mut pause) = (Instant::now() + PATIENCE, PAUSE);
    loop {
        match timeout(ANSWER_PATIENCE, client.request(subject.clone(), payload.clone())).await {
            Ok(Ok(answer)) => match read(answer.payload) {
                Ok(Some(given)) => return Ok(given),
                Ok(None) => {}
                Err(error) => tracing::warn!(run.id = %run, %error, "ignoring a malformed answer of an owner"),
            },
            Ok(Err(error)) => tracing::debug!(run.id = %run, %error, "no owner answers yet"),
            Err(_) => tracing::debug!(run.id = %run, "the owner is slow to answer"),
        }
        if Instant::now() >= give_up {
            return Err("the owner of its run does not answer".to_owned());
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE_LONGEST);
    }
}
