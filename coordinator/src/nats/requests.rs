//! The bucket of request ids: which run a request opened. A key is kept for 25 h. Those of clients are kept for
//! `--request-ids-for`.
//!
//! Every write names the revision that it replaces, 0 for none. So of several coordinators that take the same key one
//! succeeds.

use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::{Context, kv};
use bytes::Bytes;
use nats::append::AppendFailure;
use prost::Message as _;
use proto::wire::v1 as wire;
use run::RunId;

use super::Broker;
use super::journal::ReadError;
use super::repeated::last_message;
use crate::requests::{RequestKey, Taken};

const VERSION: u32 = 1;

#[derive(Debug, Clone)]
pub(crate) struct Requests {
    pub(super) store: kv::Store,
    context: Context,
    client: async_nats::Client,
    /// For how long ids of clients are kept; `None`: for as long as the bucket keeps its keys.
    clients_for: Option<Duration>,
}

/// The content of a key, and its revision; 0 if it was never written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) taken: Option<Taken>,
    pub(crate) revision: u64,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum PutError {
    /// Nothing was stored.
    #[error("the bucket of request ids is full")]
    Full,
    #[error(transparent)]
    Unavailable(#[from] ReadError),
}

impl Requests {
    pub(crate) fn new(broker: &Broker, clients_for: Option<Duration>) -> Self {
        let Broker { requests, context, client, .. } = broker;
        Self { store: requests.clone(), context: context.clone(), client: client.clone(), clients_for }
    }

    /// The content of a key. Any replica of the broker answers, which may lag behind.
    pub(crate) async fn find(&self, key: &RequestKey) -> Result<Held, ReadError> {
        let entry = self.store.entry(key.name()).await.map_err(|error| ReadError::new(&error))?;
        entry.map_or(Ok(Held { taken: None, revision: 0 }), |entry| held(entry.value, entry.revision))
    }

    /// As [`Self::find`], but the leader answers, so confirmed writes are seen.
    pub(crate) async fn newest(&self, key: &RequestKey) -> Result<Held, ReadError> {
        let message = last_message(&self.store.stream, &self.subject(&key.name())).await?;
        message.map_or(Ok(Held { taken: None, revision: 0 }), |message| held(message.payload, message.sequence))
    }

    /// Replaces the revision `before` of a key, and returns the new revision; `None` if the key has another one.
    pub(crate) async fn put(&self, key: &RequestKey, taken: &Taken, before: u64) -> Result<Option<u64>, PutError> {
        self.publish(&key.name(), replacing(taken, before)).await
    }

    /// As [`Self::put`], for the id of a client's request.
    pub(crate) async fn put_of_client(
        &self,
        key: &RequestKey,
        taken: &Taken,
        before: u64,
    ) -> Result<Option<u64>, PutError> {
        let message = replacing(taken, before);
        let message = match self.clients_for {
            Some(span) => message.ttl(span),
            None => message,
        };
        self.publish(&key.name(), message).await
    }

    pub(super) async fn publish(&self, name: &str, message: PublishMessage) -> Result<Option<u64>, PutError> {
        // The library would buffer the message, and send it after the error was returned to the caller.
        if self.client.connection_state() != State::Connected {
            return Err(ReadError::new(&"there is no connection to the broker").into());
        }
        let sent = match self.context.send_publish(self.subject(name), message).await {
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

    /// Frees a key if it still has this revision.
    pub(crate) async fn give_back(&self, key: &RequestKey, revision: u64) -> Result<(), ReadError> {
        let purge = self.store.stream.purge().filter(self.subject(&key.name())).sequence(revision + 1).await;
        purge.map(|_| ()).map_err(|error| ReadError::new(&error))
    }

    /// Frees the key of a run that is erased. It stays if another run has it by now. The leader answers, because a
    /// lagging replica might not have the key yet.
    pub(crate) async fn erase(&self, key: &RequestKey, run: RunId) -> Result<(), ReadError> {
        let Held { taken, revision } = self.newest(key).await?;
        if taken.is_some_and(|taken| taken.run == run) { self.give_back(key, revision).await } else { Ok(()) }
    }

    fn subject(&self, name: &str) -> String {
        format!("{}{name}", self.store.prefix)
    }
}

/// An empty value is a key that was deleted by hand.
fn held(value: Bytes, revision: u64) -> Result<Held, ReadError> {
    let taken = if value.is_empty() { None } else { Some(taken_in(value)?) };
    Ok(Held { taken, revision })
}

/// The message that replaces the revision `before` of a key.
fn replacing(taken: &Taken, before: u64) -> PublishMessage {
    PublishMessage::build().payload(taken_out(taken)).expected_last_subject_sequence(before)
}

fn taken_out(taken: &Taken) -> Bytes {
    let digest = Bytes::copy_from_slice(&taken.digest);
    wire::TakenRequest { version: VERSION, run_id: taken.run.to_string(), digest }.encode_to_vec().into()
}

fn taken_in(value: Bytes) -> Result<Taken, ReadError> {
    let wire = wire::TakenRequest::decode(value).map_err(|error| ReadError::new(&error))?;
    let run = wire.run_id.parse().map_err(|error| ReadError::new(&error))?;
    let digest = wire.digest.as_ref().try_into().map_err(|_| ReadError::new(&"a digest of a wrong length"))?;
    Ok(Taken { run, digest })
}
