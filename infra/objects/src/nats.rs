//! Objects at the broker: one message for each chunk, read one by one.

use std::time::{Duration, Instant};

use async_nats::jetstream::Context;
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::{DirectGetErrorKind, LastRawMessageErrorKind, Stream};
use bytes::Bytes;
use nats::append::AppendFailure;
use proto::names;

use crate::{Bucket, Objects, ReadError, StoreError};

/// How long storing a chunk is retried: an election of the broker's leader takes 4-9 s.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(200);
const PAUSE_LONGEST: Duration = Duration::from_secs(1);
/// The subject was never written.
const NOTHING: u64 = 0;

/// Objects in the stream `ty-objects`.
#[derive(Debug, Clone)]
pub struct Stored(Context);

impl Objects {
    /// In the bucket if one is given, otherwise at the broker.
    #[must_use]
    pub fn new(context: &Context, bucket: Option<Bucket>) -> Self {
        bucket.map_or_else(|| Self::Broker(Stored(context.clone())), Self::Bucket)
    }
}

impl Stored {
    /// Stores a chunk, and retries until it is confirmed. An existing chunk is not overwritten, so a second copy does
    /// no harm.
    pub(crate) async fn put(&self, subject: String, data: Bytes) -> Result<(), StoreError> {
        let (give_up, mut pause) = (Instant::now() + PATIENCE, PAUSE);
        loop {
            let message = PublishMessage::build().payload(data.clone()).expected_last_subject_sequence(NOTHING);
            let confirmed = match self.0.send_publish(subject.clone(), message).await {
                Ok(confirmation) => confirmation.await,
                Err(error) => Err(error),
            };
            let Err(error) = confirmed else { return Ok(()) };
            let unavailable = || Err(StoreError::Unavailable(error.to_string()));
            match AppendFailure::of(&error) {
                // It is our first copy, because nobody else knows the subject.
                AppendFailure::Conflict => return Ok(()),
                AppendFailure::Full => return Err(StoreError::Full),
                AppendFailure::TooLarge => return unavailable(),
                AppendFailure::Unconfirmed if Instant::now() >= give_up => return unavailable(),
                AppendFailure::Unconfirmed => {
                    tracing::warn!(%error, "a chunk of an object was not confirmed, sending it again");
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_LONGEST);
        }
    }

    /// The message of a subject; `None` if there is none.
    pub(crate) async fn last_on(&self, subject: &str) -> Result<Option<Bytes>, ReadError> {
        let stream = self.stream().await?;
        match stream.direct_get_last_for_subject(subject).await {
            Ok(message) => return Ok(Some(message.payload)),
            // A replica may lag; the leader does not.
            Err(error) if error.kind() == DirectGetErrorKind::NotFound => {}
            Err(error) => return Err(ReadError(error.to_string())),
        }
        match stream.get_last_raw_message_by_subject(subject).await {
            Ok(message) => Ok(Some(message.payload)),
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(None),
            Err(error) => Err(ReadError(error.to_string())),
        }
    }

    pub(crate) async fn remove_all(&self, subjects: &str) -> Result<bool, ReadError> {
        let purged = self.stream().await?.purge().filter(subjects).await;
        purged.map(|purged| purged.purged > 0).map_err(|error| ReadError(error.to_string()))
    }

    async fn stream(&self) -> Result<Stream<()>, ReadError> {
        self.0.get_stream_no_info(names::OBJECTS).await.map_err(|error| ReadError(error.to_string()))
    }
}
