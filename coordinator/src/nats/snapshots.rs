//! How far the owner of each shard has come: one key a shard. A snapshot is a hint that is always safe. Whatever it says was
//! true at the place in the log that it names, so an old one only costs more reading.

use std::time::Duration;

use async_nats::jetstream::kv;
use async_nats::jetstream::stream::LastRawMessageErrorKind;
use proto::convert::snapshot::Snapshot;
use run::Shard;

use super::Broker;
use super::journal::{Extent, ReadError};

/// What a snapshot may take: a little less than a message of the broker, enough for some 50,000 open runs.
const BYTES_MAX: usize = 1024 * 1024 - 4096;
const WRITE_PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug, Clone)]
pub(crate) struct Snapshots(kv::Store);

/// Why a snapshot was not written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    #[error("somebody else wrote it")]
    Conflict,
    #[error("{0} runs are open in one shard, they do not fit a snapshot")]
    TooLarge(usize),
    #[error("the broker does not answer: {0}")]
    Unavailable(String),
}

impl Snapshots {
    pub(crate) fn new(broker: &Broker) -> Self {
        Self(broker.snapshots.clone())
    }

    /// A shard's snapshot, if there is one of this log, and the revision that the next one replaces. From the leader.
    pub(crate) async fn read(&self, shard: Shard, extent: Extent) -> Result<(Option<Snapshot>, u64), ReadError> {
        let subject = format!("{}{shard}", self.0.prefix);
        let message = match self.0.stream.get_last_raw_message_by_subject(&subject).await {
            Ok(message) => message,
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => return Ok((None, 0)),
            Err(error) => return Err(ReadError::new(&error)),
        };
        let snapshot = match Snapshot::decode(message.payload, shard) {
            Ok(snapshot) if snapshot.log == extent.log && snapshot.through <= extent.last => Some(snapshot),
            Ok(_) => {
                tracing::warn!(%shard, "passing over a snapshot of another log");
                None
            }
            Err(error) => {
                tracing::warn!(%shard, %error, "passing over a snapshot");
                None
            }
        };
        Ok((snapshot, message.sequence))
    }

    /// Replaces the snapshot at this revision, which fails for whoever owned the shard before.
    pub(crate) async fn write(&self, shard: Shard, snapshot: &Snapshot, revision: u64) -> Result<u64, WriteError> {
        let payload = snapshot.encode();
        if payload.len() > BYTES_MAX {
            return Err(WriteError::TooLarge(snapshot.open.len()));
        }
        let written = self.0.update(shard.to_string(), payload, revision);
        match tokio::time::timeout(WRITE_PATIENCE, written).await {
            Ok(Ok(revision)) => Ok(revision),
            Ok(Err(error)) if error.kind() == kv::UpdateErrorKind::WrongLastRevision => Err(WriteError::Conflict),
            Ok(Err(error)) => Err(WriteError::Unavailable(error.to_string())),
            Err(_) => Err(WriteError::Unavailable("it is slow".to_owned())),
        }
    }

    /// The revision that a snapshot has now: after a conflict, while the shard is ours, the next one goes on from there.
    pub(crate) async fn revision(&self, shard: Shard) -> Option<u64> {
        let subject = format!("{}{shard}", self.0.prefix);
        let found = self.0.stream.get_last_raw_message_by_subject(&subject);
        match tokio::time::timeout(WRITE_PATIENCE, found).await {
            Ok(Ok(message)) => Some(message.sequence),
            Ok(Err(error)) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Some(0),
            Ok(Err(_)) | Err(_) => None,
        }
    }
}
