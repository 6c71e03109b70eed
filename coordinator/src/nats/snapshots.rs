//! Snapshots of shards: one key per shard, and beside it the parts of a snapshot that is too large for one message. A
//! snapshot is a hint that is always safe, because it describes the state at the log position that it names. An old one
//! only costs more reading.

use std::time::Duration;

use async_nats::jetstream::kv;
use async_nats::jetstream::message::StreamMessage;
use bytes::Bytes;
use proto::convert::snapshot::{Head, Needs, Parts, Snapshot};
use run::Shard;
use tokio::time::timeout;

use super::Broker;
use super::journal::ReadError;
use super::repeated::{Pace, last_message, patiently};

/// Bytes of a snapshot in one message: a little less than a message of the broker.
const PART_BYTES: usize = 1024 * 1024 - 4096;
const WRITE_PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug, Clone)]
pub(crate) struct Snapshots {
    store: kv::Store,
    part_bytes: usize,
}

/// The place of a snapshot in the bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Stored {
    pub(crate) revision: u64,
    /// It has parts beside it, which the next one removes.
    pub(crate) in_parts: bool,
    pub(crate) bytes: usize,
}

/// Why a snapshot was not written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    #[error("another coordinator wrote it")]
    Conflict,
    #[error("the broker did not store it: {0}")]
    Unavailable(String),
}

impl Snapshots {
    pub(crate) fn new(broker: &Broker) -> Self {
        Self::with_parts_of(broker, PART_BYTES)
    }

    fn with_parts_of(broker: &Broker, part_bytes: usize) -> Self {
        Self { store: broker.snapshots.clone(), part_bytes }
    }

    /// A shard's snapshot, if there is one that can be read, and its revision, which the next one replaces. Read from
    /// the leader.
    pub(crate) async fn read(&self, shard: Shard) -> Result<(Option<Snapshot>, Stored), ReadError> {
        match self.last(&shard.to_string()).await? {
            Some(head) => self.read_from(shard, head).await,
            None => Ok((None, Stored::default())),
        }
    }

    async fn read_from(&self, shard: Shard, mut head: StreamMessage) -> Result<(Option<Snapshot>, Stored), ReadError> {
        let (read, stored) = loop {
            let (revision, bytes) = (head.sequence, head.payload.len());
            let (read, stored) = match Head::decode(head.payload, shard) {
                Ok(Head::Whole(snapshot)) => (Ok(snapshot), Stored { revision, in_parts: false, bytes }),
                Ok(Head::Parts(parts)) => {
                    let read = self.read_parts(shard, parts).await?;
                    (read, Stored { revision, in_parts: true, bytes: self.part_bytes * parts.count as usize })
                }
                Err(error) => (Err(error.to_string()), Stored { revision, in_parts: false, bytes }),
            };
            if read.is_ok() || !stored.in_parts {
                break (read, stored);
            }
            // The next snapshot removes the parts of the one before it.
            match self.last(&shard.to_string()).await? {
                Some(next) if next.sequence > revision => head = next,
                Some(_) | None => break (read, stored),
            }
        };
        if let Err(error) = &read {
            tracing::warn!(%shard, error, "ignoring a snapshot that cannot be read");
        }
        Ok((read.ok(), stored))
    }

    async fn read_parts(&self, shard: Shard, parts: Parts) -> Result<Result<Snapshot, String>, ReadError> {
        let mut whole = Vec::new();
        for index in 0..parts.count {
            match self.last(&part(shard, parts.nonce, index)).await? {
                Some(message) => whole.extend_from_slice(&message.payload),
                None => return Ok(Err(format!("its part {index} of {} is missing", parts.count))),
            }
        }
        Ok(Snapshot::decode(whole.into(), shard).map_err(|error| error.to_string()))
    }

    async fn last(&self, key: &str) -> Result<Option<StreamMessage>, ReadError> {
        let subject = format!("{}{key}", self.store.prefix);
        patiently("retrying to read a snapshot", &self.store.stream_name, Pace::Soon, || {
            last_message(&self.store.stream, &subject)
        })
        .await
    }

    /// Replaces the snapshot at this revision, which fails for an earlier owner of the shard. A large one is stored in
    /// parts, which are not read before its head is stored; then the parts of older ones are removed.
    pub(crate) async fn write(&self, shard: Shard, snapshot: &Snapshot, before: Stored) -> Result<Stored, WriteError> {
        let payload = snapshot.encode();
        let bytes = payload.len();
        if bytes <= self.part_bytes {
            let revision = self.replace(shard, payload, before.revision).await?;
            if before.in_parts {
                self.remove_parts(&format!("{shard}.>"), revision).await;
            }
            return Ok(Stored { revision, in_parts: false, bytes });
        }
        let (nonce, mut first, mut count) = (rand::random(), u64::MAX, 0);
        for start in (0..bytes).step_by(self.part_bytes) {
            let piece = payload.slice(start..bytes.min(start + self.part_bytes));
            let written = timeout(WRITE_PATIENCE, self.store.put(part(shard, nonce, count), piece)).await;
            let written = written.map_err(|_| WriteError::Unavailable("it timed out".to_owned()))?;
            first = first.min(written.map_err(|error| WriteError::Unavailable(error.to_string()))?);
            count += 1;
        }
        let head = Parts { log: snapshot.log, through: snapshot.through, count, nonce };
        match self.replace(shard, head.encode(), before.revision).await {
            Ok(revision) => {
                self.remove_parts(&format!("{shard}.>"), first).await;
                Ok(Stored { revision, in_parts: true, bytes })
            }
            Err(WriteError::Conflict) => {
                self.remove_parts(&format!("{shard}.{nonce:016x}.>"), u64::MAX).await;
                Err(WriteError::Conflict)
            }
            // It may be stored.
            Err(WriteError::Unavailable(reason)) => Err(WriteError::Unavailable(reason)),
        }
    }

    /// Tells what a shard needs of the log, which stays true: so an earlier owner may tell it as well.
    pub(crate) async fn write_needs(&self, shard: Shard, needs: Needs) -> Result<(), WriteError> {
        match timeout(WRITE_PATIENCE, self.store.put(needs_of(shard), needs.encode())).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(WriteError::Unavailable(error.to_string())),
            Err(_) => Err(WriteError::Unavailable("it timed out".to_owned())),
        }
    }

    /// What a shard needs of the log; `None` if nobody has told.
    pub(crate) async fn needs(&self, shard: Shard) -> Result<Option<Needs>, ReadError> {
        let Some(message) = self.last(&needs_of(shard)).await? else { return Ok(None) };
        match Needs::decode(message.payload) {
            Ok(needs) => Ok(Some(needs)),
            Err(error) => {
                tracing::warn!(%shard, %error, "what the shard needs of the log cannot be read");
                Ok(None)
            }
        }
    }

    async fn replace(&self, shard: Shard, payload: Bytes, revision: u64) -> Result<u64, WriteError> {
        let written = self.store.update(shard.to_string(), payload, revision);
        match timeout(WRITE_PATIENCE, written).await {
            Ok(Ok(revision)) => Ok(revision),
            Ok(Err(error)) if error.kind() == kv::UpdateErrorKind::WrongLastRevision => Err(WriteError::Conflict),
            Ok(Err(error)) => Err(WriteError::Unavailable(error.to_string())),
            Err(_) => Err(WriteError::Unavailable("it timed out".to_owned())),
        }
    }

    /// Removes parts that were stored before `before`. Remaining parts are removed with the next snapshot.
    async fn remove_parts(&self, keys: &str, before: u64) {
        let purge = self.store.stream.purge().filter(format!("{}{keys}", self.store.prefix)).sequence(before);
        match timeout(WRITE_PATIENCE, purge).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::warn!(
                keys, %error,
                "removing parts of older snapshots failed: check that the coordinator may purge (see `toolyard \
                nats-config`)"
            ),
            Err(_) => tracing::warn!(keys, "removing parts of older snapshots timed out"),
        }
    }

    /// The present revision of a snapshot: after a conflict, while we own the shard, the next snapshot replaces this
    /// one.
    pub(crate) async fn found(&self, shard: Shard) -> Option<Stored> {
        match timeout(WRITE_PATIENCE, self.last(&shard.to_string())).await {
            Ok(Ok(None)) => Some(Stored::default()),
            Ok(Ok(Some(message))) => {
                let in_parts = matches!(Head::decode(message.payload, shard), Ok(Head::Parts(_)));
                Some(Stored { revision: message.sequence, in_parts, bytes: 0 })
            }
            Ok(Err(_)) | Err(_) => None,
        }
    }
}

fn needs_of(shard: Shard) -> String {
    format!("needs.{shard}")
}

fn part(shard: Shard, nonce: u64, index: u32) -> String {
    format!("{shard}.{nonce:016x}.{index}")
}

#[cfg(test)]
mod tests {
    use nats::Credentials;
    use owner::Listed;
    use run::RunId;

    use super::*;
    use crate::nats::setup::LogOptions;

    fn of(runs: u64) -> Snapshot {
        let open = (0..runs)
            .map(|last| Listed { run: RunId::new(Shard(3), uuid::Uuid::now_v7()), first: last, last })
            .collect();
        Snapshot { log: 7, through: runs, open, ..Snapshot::default() }
    }

    #[tokio::test]
    async fn a_snapshot_of_any_size_comes_back_and_nothing_of_older_ones_stays() {
        let log = LogOptions { bytes_max: 4 << 20, ..LogOptions::default() };
        let server = local::Broker::start(local::BrokerOptions::default(), |_| {}).await.expect("a broker starts");
        let broker = Broker::connect(&server.url(), &Credentials::default(), &log).await.expect("set up");
        let snapshots = Snapshots::with_parts_of(&broker, 1024);
        let shard = Shard(3);
        let messages = || async {
            let mut stream = broker.snapshots.stream.clone();
            stream.info().await.expect("the broker is there").state.messages
        };
        let mut stored = Stored::default();
        // Each run takes about twenty bytes.
        for (runs, in_parts) in [(120, true), (10, false), (380, true), (60, true), (0, false)] {
            let written = of(runs);
            let before = stored;
            stored = snapshots.write(shard, &written, before).await.expect("it is stored");
            let parts = if in_parts { stored.bytes.div_ceil(1024) } else { 0 };
            let expected = parts as u64 + 1;
            assert_eq!(stored.in_parts, in_parts, "{runs} runs");
            let (read, found) = snapshots.read(shard).await.expect("the broker is there");
            assert_eq!(read.expect("it is there"), written);
            assert_eq!((found.revision, found.in_parts), (stored.revision, stored.in_parts));
            assert_eq!(messages().await, expected, "{runs} runs");
            // An earlier owner's write is rejected, and leaves nothing.
            let late = snapshots.write(shard, &of(200), before).await;
            assert!(matches!(late, Err(WriteError::Conflict)), "{late:?}");
            assert_eq!(messages().await, expected, "{runs} runs");
        }
    }

    #[tokio::test]
    async fn a_snapshot_that_is_replaced_while_it_is_read_is_read_again() {
        let log = LogOptions { bytes_max: 4 << 20, ..LogOptions::default() };
        let server = local::Broker::start(local::BrokerOptions::default(), |_| {}).await.expect("a broker starts");
        let broker = Broker::connect(&server.url(), &Credentials::default(), &log).await.expect("set up");
        let (snapshots, shard) = (Snapshots::with_parts_of(&broker, 1024), Shard(3));
        let first = snapshots.write(shard, &of(120), Stored::default()).await.expect("it is stored");
        let head = snapshots.last("03").await.expect("the broker is there").expect("it is there");
        let next = of(130);
        let second = snapshots.write(shard, &next, first).await.expect("it is stored");
        let (read, found) = snapshots.read_from(shard, head).await.expect("the broker is there");
        assert_eq!((read, found.revision), (Some(next), second.revision));
    }

    #[tokio::test]
    async fn a_snapshot_that_lost_a_part_is_passed_over() {
        let log = LogOptions { bytes_max: 4 << 20, ..LogOptions::default() };
        let server = local::Broker::start(local::BrokerOptions::default(), |_| {}).await.expect("a broker starts");
        let broker = Broker::connect(&server.url(), &Credentials::default(), &log).await.expect("set up");
        let (snapshots, shard) = (Snapshots::with_parts_of(&broker, 1024), Shard(3));
        let stored = snapshots.write(shard, &of(120), Stored::default()).await.expect("it is stored");
        let lost = format!("{}{shard}.*.1", broker.snapshots.prefix);
        broker.snapshots.stream.purge().filter(lost).await.expect("the broker is there");
        let (read, found) = snapshots.read(shard).await.expect("the broker is there");
        assert_eq!((read, found.revision), (None, stored.revision));
        snapshots.write(shard, &of(1), found).await.expect("the next one takes its place");
    }
}
