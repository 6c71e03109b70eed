//! The bucket of schedules. Every write names the revision that it replaces, 0 for none, so of several writers one
//! succeeds and the others decide again.

use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::{Context, kv};
use bytes::Bytes;
use futures::StreamExt as _;
use nats::append::AppendFailure;
use prost::Message as _;
use proto::wire::v1::StoredSchedule;

use super::Broker;
use super::journal::ReadError;
use super::repeated::last_message;
use super::requests::PutError;
use super::setup::{SetupError, entries};

const VERSION: u32 = 1;
/// The header of a deleted key, as other clients of the bucket write it.
const OPERATION: &str = "KV-Operation";
const DELETED: &str = "DEL";
/// How long the marker of a deleted schedule is kept: longer than a coordinator takes to watch the bucket again.
const MARKER_KEPT: Duration = Duration::from_secs(3600);

/// The bucket. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct ScheduleStore {
    store: kv::Store,
    context: Context,
    client: async_nats::Client,
    bytes_max: usize,
}

/// The content of a key, and its revision; 0 if it was never written.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) stored: Option<StoredSchedule>,
    pub(crate) revision: u64,
}

/// A change of the bucket.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) id: String,
    pub(crate) found: Found,
}

/// The changes of the bucket, the present content first.
pub(crate) struct Changes {
    watch: kv::Watch,
}

impl ScheduleStore {
    /// The bucket, and its present content.
    pub(crate) async fn load(broker: &Broker) -> Result<(Self, Vec<Change>), SetupError> {
        let bytes_max = broker.schedules.stream.cached_info().config.max_bytes;
        let present = entries("the schedules", &broker.schedules).await?;
        let store = Self {
            store: broker.schedules.clone(),
            context: broker.context.clone(),
            client: broker.client.clone(),
            bytes_max: usize::try_from(bytes_max).unwrap_or(usize::MAX),
        };
        Ok((store, present.into_iter().filter_map(change).collect()))
    }

    /// The bytes that the bucket may have.
    pub(crate) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// The content of a key as the broker's leader has it, so confirmed writes are seen.
    pub(crate) async fn newest(&self, id: &str) -> Result<Found, ReadError> {
        let message = last_message(&self.store.stream, &self.subject(id)).await?;
        message.map_or(Ok(Found { stored: None, revision: 0 }), |message| found(&message.payload, message.sequence))
    }

    /// Replaces the revision `before` of a key, and returns the new revision; `None` if the key has another one.
    pub(crate) async fn put(&self, id: &str, stored: &StoredSchedule, before: u64) -> Result<Option<u64>, PutError> {
        let message = PublishMessage::build().payload(encoded(stored)).expected_last_subject_sequence(before);
        self.publish(id, message).await
    }

    /// Deletes the revision `before` of a key; `None` if the key has another one.
    pub(crate) async fn delete(&self, id: &str, before: u64) -> Result<Option<u64>, PutError> {
        let message = PublishMessage::build().header(OPERATION, DELETED).ttl(MARKER_KEPT);
        self.publish(id, message.expected_last_subject_sequence(before)).await
    }

    async fn publish(&self, id: &str, message: PublishMessage) -> Result<Option<u64>, PutError> {
        // The library would buffer the message, and send it after the error was returned to the caller.
        if self.client.connection_state() != State::Connected {
            return Err(ReadError::new(&"there is no connection to the broker").into());
        }
        let sent = match self.context.send_publish(self.subject(id), message).await {
            Ok(sent) => sent.await,
            Err(error) => Err(error),
        };
        let error = match sent {
            Ok(stored) => return Ok(Some(stored.sequence)),
            Err(error) => error,
        };
        match AppendFailure::of(&error) {
            AppendFailure::Conflict => Ok(None),
            AppendFailure::Full => Err(PutError::Full),
            AppendFailure::TooLarge | AppendFailure::Unconfirmed => Err(ReadError::new(&error).into()),
        }
    }

    /// Watches the bucket.
    pub(crate) async fn watch(&self) -> Result<Changes, ReadError> {
        let watch = self.store.watch_with_history(">").await.map_err(|error| ReadError::new(&error))?;
        Ok(Changes { watch })
    }

    /// The ids of all schedules, so that a watch that begins again notices those that were deleted meanwhile.
    pub(crate) async fn ids(&self) -> Result<Vec<String>, ReadError> {
        let mut keys = self.store.keys().await.map_err(|error| ReadError::new(&error))?;
        let mut ids = Vec::new();
        while let Some(key) = keys.next().await {
            ids.push(key.map_err(|error| ReadError::new(&error))?);
        }
        Ok(ids)
    }

    fn subject(&self, id: &str) -> String {
        format!("{}{id}", self.store.prefix)
    }
}

impl Changes {
    /// The next change; `None` if the watch broke. Values that cannot be read are logged and left out. A future that is
    /// dropped loses nothing.
    pub(crate) async fn next(&mut self) -> Option<Change> {
        loop {
            let entry = self.watch.next().await?.ok()?;
            if let Some(change) = change(entry) {
                return Some(change);
            }
        }
    }
}

/// `None` if the value cannot be read, which is logged.
fn change(entry: kv::Entry) -> Option<Change> {
    let value = match entry.operation {
        kv::Operation::Put => &entry.value,
        kv::Operation::Delete | kv::Operation::Purge => &Bytes::new(),
    };
    let found = found(value, entry.revision).inspect_err(|error| {
        tracing::error!(schedule.id = entry.key, %error, "reading a schedule failed");
    });
    Some(Change { id: entry.key, found: found.ok()? })
}

/// The bytes of a schedule in the bucket.
pub(crate) fn encoded(stored: &StoredSchedule) -> Bytes {
    StoredSchedule { version: VERSION, ..stored.clone() }.encode_to_vec().into()
}

/// An empty value is a key that was deleted.
fn found(value: &Bytes, revision: u64) -> Result<Found, ReadError> {
    if value.is_empty() {
        return Ok(Found { stored: None, revision });
    }
    let stored = StoredSchedule::decode(value.clone()).map_err(|error| ReadError::new(&error))?;
    if stored.version != VERSION {
        return Err(ReadError::new(&format!("a release that writes version {} stored it", stored.version)));
    }
    Ok(Found { stored: Some(stored), revision })
}
