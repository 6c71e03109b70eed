//! Objects at the broker: chunks under their subjects, read one by one and never an object as a whole.

use std::time::{Duration, Instant};

use async_nats::jetstream::Context;
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::{DirectGetErrorKind, LastRawMessageErrorKind, Stream};
use bytes::Bytes;
use proto::names;
use proto::nats::unstored::Unstored;

use crate::{Bucket, NotKept, Objects, Unread};

/// How long a chunk is sent again for: an election of the broker's leader takes 4-9 s.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(200);
const PAUSE_LONGEST: Duration = Duration::from_secs(1);
/// Nothing was written there before.
const NOTHING: u64 = 0;

/// Objects in the stream `ty-objects`.
#[derive(Debug, Clone)]
pub struct Stored(Context);

impl Objects {
    /// In the bucket where one is given, else at the broker.
    #[must_use]
    pub fn new(context: &Context, bucket: Option<Bucket>) -> Self {
        bucket.map_or_else(|| Self::Broker(Stored(context.clone())), Self::Bucket)
    }
}

impl Stored {
    /// Stores a chunk, sending it again until it is confirmed. What lies under a subject stays as it is, so a second copy does no
    /// harm.
    pub(crate) async fn put(&self, subject: String, data: Bytes) -> Result<(), NotKept> {
        let (give_up, mut pause) = (Instant::now() + PATIENCE, PAUSE);
        loop {
            let message = PublishMessage::build().payload(data.clone()).expected_last_subject_sequence(NOTHING);
            let confirmed = match self.0.send_publish(subject.clone(), message).await {
                Ok(confirmation) => confirmation.await,
                Err(error) => Err(error),
            };
            let Err(error) = confirmed else { return Ok(()) };
            let unavailable = || Err(NotKept::Unavailable(error.to_string()));
            match Unstored::of(&error) {
                // Its first copy lies there: nobody else knows the subject.
                Unstored::Conflict => return Ok(()),
                Unstored::Full => return Err(NotKept::Full),
                Unstored::TooLarge => return unavailable(),
                Unstored::Unconfirmed if Instant::now() >= give_up => return unavailable(),
                Unstored::Unconfirmed => {
                    tracing::warn!(%error, "a chunk of an object was not confirmed, sending it again");
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_LONGEST);
        }
    }

    /// What lies under a subject; `None` when nothing does.
    pub(crate) async fn last_on(&self, subject: &str) -> Result<Option<Bytes>, Unread> {
        let stream = self.stream().await?;
        match stream.direct_get_last_for_subject(subject).await {
            Ok(message) => return Ok(Some(message.payload)),
            // A replica may be behind; the leader is not.
            Err(error) if error.kind() == DirectGetErrorKind::NotFound => {}
            Err(error) => return Err(Unread(error.to_string())),
        }
        match stream.get_last_raw_message_by_subject(subject).await {
            Ok(message) => Ok(Some(message.payload)),
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(None),
            Err(error) => Err(Unread(error.to_string())),
        }
    }

    pub(crate) async fn remove_all(&self, subjects: &str) -> Result<(), Unread> {
        let purged = self.stream().await?.purge().filter(subjects).await;
        purged.map(|_| ()).map_err(|error| Unread(error.to_string()))
    }

    async fn stream(&self) -> Result<Stream<()>, Unread> {
        self.0.get_stream_no_info(names::OBJECTS).await.map_err(|error| Unread(error.to_string()))
    }
}
