//! The queue of notifications for webhooks: a stream with a message for each notification and endpoint, on a subject of
//! its own. Delivered ones are deleted. A notification that stays too long for its endpoint is parked, and is queued
//! again when an operator redrives it.

use std::collections::HashSet;
use std::time::Duration;

use async_nats::datetime::parse_rfc3339;
use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::consumer::pull::OrderedConfig;
use async_nats::jetstream::context::{PublishAckFuture, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::{
    Config, DeleteMessageErrorKind, DirectGetErrorKind, DiscardPolicy, RawMessageErrorKind, StorageType, Stream,
};
use async_nats::jetstream::{Context, ErrorCode};
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use proto::convert::api;
use proto::names::{self, WEBHOOKS_STREAM, WEBHOOKS_SUBJECTS};
use run::{RunId, Shard, Timestamp};

use super::Broker;
use super::journal::{ReadError, millis};
use super::setup::{LogOptions, SetupError};

/// Capacity of the queue: some 500,000 notifications. Beyond it the oldest are lost, which are parked ones first.
pub(super) const BYTES_MAX: i64 = 256 * 1024 * 1024;
/// How long a notification is kept, parked or not.
const AGE_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
/// As those of the log.
const MESSAGE_BYTES_MAX: i32 = 1024 * 1024;

pub(super) fn config(options: &LogOptions) -> Config {
    Config {
        name: WEBHOOKS_STREAM.to_owned(),
        description: Some("Toolyard: notifications for webhooks".to_owned()),
        subjects: vec![WEBHOOKS_SUBJECTS.to_owned()],
        max_messages_per_subject: 1,
        max_bytes: BYTES_MAX,
        max_age: AGE_MAX,
        max_message_size: MESSAGE_BYTES_MAX,
        discard: DiscardPolicy::Old,
        storage: StorageType::File,
        num_replicas: options.durability.replicas(),
        allow_direct: true,
        ..Config::default()
    }
}

/// A notification to be queued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct QueuedNotification {
    /// The subject has the endpoint, the run and the log entry of the notification.
    pub(crate) subject: String,
    pub(crate) body: Bytes,
}

impl QueuedNotification {
    pub(crate) fn new(endpoint: &str, run: RunId, noted: u64, body: Bytes) -> Self {
        Self { subject: names::letter(endpoint, run, noted), body }
    }
}

/// Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Queue(Context);

/// A queued notification that is delivered next.
#[derive(Debug, Clone)]
pub(crate) struct Arrived {
    /// Its position in the queue.
    pub(crate) sequence: u64,
    /// When it was queued.
    pub(crate) at: Timestamp,
    pub(crate) run: RunId,
    /// The log entry that it reports.
    pub(crate) noted: u64,
    pub(crate) body: Bytes,
}

/// A queued notification, and its endpoint.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) endpoint: String,
    pub(crate) notification: Arrived,
}

impl Queue {
    /// Creates the queue if there is none.
    pub(crate) async fn make(broker: &Broker, options: &LogOptions) -> Result<Self, SetupError> {
        super::setup::ensure_stream(&broker.context, "the queue of webhooks", config(options), options).await?;
        Ok(Self(broker.context.clone()))
    }

    /// Queues notifications in their order. On an error, returns how many of them, from the first on, are certainly
    /// stored.
    pub(crate) async fn put(&self, notifications: &[QueuedNotification]) -> Result<(), (usize, ReadError)> {
        let (mut confirmed, mut waiting, mut keys) = (0, Vec::new(), HashSet::new());
        for notification in notifications {
            // The second notification of one run for one endpoint is not sent before the first is stored.
            let key = notification.subject.rsplit_once('.').map(|(key, _)| key);
            if !keys.insert(key) {
                confirm(&mut waiting, &mut confirmed).await?;
                keys = HashSet::from([key]);
            }
            let sent = self.0.publish(notification.subject.clone(), notification.body.clone()).await;
            waiting.push(sent.map_err(|error| (confirmed, ReadError::new(&error)))?);
        }
        confirm(&mut waiting, &mut confirmed).await
    }

    /// The notifications of a shard for an endpoint: from after a position in the queue, or else from a time on, and
    /// those that follow.
    pub(crate) async fn incoming(
        &self,
        shard: Shard,
        endpoint: &str,
        after: u64,
        since: Timestamp,
    ) -> Result<BoxStream<'static, Result<Arrived, ReadError>>, ReadError> {
        let deliver_policy = match (after, parse_rfc3339(&api::timestamp(since).to_string())) {
            (0, Ok(start_time)) => DeliverPolicy::ByStartTime { start_time },
            (after, _) => DeliverPolicy::ByStartSequence { start_sequence: after + 1 },
        };
        let filter_subject = names::letters(Some(shard), Some(endpoint));
        let config = OrderedConfig { filter_subject, deliver_policy, ..OrderedConfig::default() };
        let consumer = self.0.create_consumer_on_stream(config, WEBHOOKS_STREAM).await;
        let consumer = consumer.map_err(|error| ReadError::new(&error))?;
        let messages = consumer.messages().await.map_err(|error| ReadError::new(&error))?;
        let notifications = messages.filter_map(async |message| match message {
            Err(error) => Some(Err(ReadError::new(&error))),
            Ok(message) => {
                let (_, run, noted) = names::letter_of(&message.subject)?;
                let info = message.info().ok()?;
                let (sequence, at) = (info.stream_sequence, millis(info.published.unix_timestamp_nanos()));
                let (message, _) = message.split();
                Some(Ok(Arrived { sequence, at, run, noted, body: message.payload }))
            }
        });
        Ok(notifications.boxed())
    }

    async fn stream(&self) -> Result<Stream<()>, ReadError> {
        self.0.get_stream_no_info(WEBHOOKS_STREAM).await.map_err(|error| ReadError::new(&error))
    }

    /// Removes a notification from the queue.
    pub(crate) async fn remove(&self, sequence: u64) -> Result<(), ReadError> {
        match self.stream().await?.delete_message(sequence).await {
            Ok(_) => Ok(()),
            Err(error) => match error.kind() {
                // Another coordinator was faster, or it aged out.
                DeleteMessageErrorKind::JetStream(error)
                    if [ErrorCode::SEQUENCE_NOT_FOUND, ErrorCode::STREAM_MESSAGE_DELETE_FAILED]
                        .contains(&error.error_code()) =>
                {
                    Ok(())
                }
                _ => Err(ReadError::new(&error)),
            },
        }
    }

    /// Whether a notification is still in the queue, as far as this is known.
    pub(crate) async fn holds(&self, sequence: u64) -> bool {
        let Ok(stream) = self.stream().await else { return true };
        let found = stream.get_raw_message(sequence).await;
        !found.is_err_and(|error| error.kind() == RawMessageErrorKind::NoMessageFound)
    }

    /// The next notification after a position in the queue, for one endpoint or for all.
    pub(crate) async fn next(&self, endpoint: Option<&str>, after: u64) -> Result<Option<Found>, ReadError> {
        let (stream, filter) = (self.stream().await?, names::letters(None, endpoint));
        let mut after = after;
        loop {
            let message = match stream.direct_get_next_for_subject(filter.as_str(), Some(after + 1)).await {
                Ok(message) => message,
                Err(error) if error.kind() == DirectGetErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(ReadError::new(&error)),
            };
            let (sequence, at) = (message.sequence, millis(message.time.unix_timestamp_nanos()));
            after = sequence;
            if let Some((endpoint, run, noted)) = names::letter_of(&message.subject) {
                let notification = Arrived { sequence, at, run, noted, body: message.payload };
                return Ok(Some(Found { endpoint, notification }));
            }
        }
    }

    /// Queues a notification again, unless it was delivered or queued meanwhile. Returns whether it did.
    pub(crate) async fn redrive(&self, found: &Found) -> Result<bool, ReadError> {
        let Found { endpoint, notification } = found;
        let subject = names::letter(endpoint, notification.run, notification.noted);
        let message = PublishMessage::build().payload(notification.body.clone());
        let message = message.expected_last_subject_sequence(notification.sequence);
        let sent = self.0.send_publish(subject, message).await.map_err(|error| ReadError::new(&error))?;
        match sent.await {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == PublishErrorKind::WrongLastSequence => Ok(false),
            Err(error) => Err(ReadError::new(&error)),
        }
    }

    /// Deletes the notifications of a run.
    pub(crate) async fn erase(&self, run: RunId) -> Result<(), ReadError> {
        let purge = self.stream().await?.purge().filter(names::letters_about(run)).await;
        purge.map(|_| ()).map_err(|error| ReadError::new(&error))
    }
}

/// Waits until the sent messages are stored, and counts them.
async fn confirm(waiting: &mut Vec<PublishAckFuture>, confirmed: &mut usize) -> Result<(), (usize, ReadError)> {
    for sent in waiting.drain(..) {
        sent.await.map_err(|error| (*confirmed, ReadError::new(&error)))?;
        *confirmed += 1;
    }
    Ok(())
}
