//! The bucket of records: small values that tools keep, by pool, tenant and key.
//!
//! The size of a record is the last token of its subject, so the broker counts the bytes of a pool, the same for all
//! coordinators. A write names the revision that it replaces for all sizes of its key together, and then removes what
//! it replaced. If that fails, the newest message of a key is the record.

use std::collections::BTreeMap;

use async_nats::connection::State;
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::{Context, kv};
use async_nats::{Client, Message, Subject, SubscribeError};
use futures::{Stream, StreamExt as _, TryStreamExt as _, stream};
use nats::access::may_be_answered;
use nats::append::AppendFailure;
use proto::convert::record::{
    PAGE_BYTES_MAX, Record, RecordKey, RecordOperation, RecordPage, RecordReply, RecordRequest, StoredRecord,
};
use proto::names;
use run::{PoolId, Shard, TenantId};

use super::Broker;
use super::journal::ReadError;
use super::repeated::last_message;

/// Records of a pool, those of all its tenants.
const POOL_RECORDS_MAX: usize = 8192;
/// Bytes that a record takes in the bucket beside its value: its key, its author, and the broker's own.
const RECORD_BYTES: u64 = 200;
/// Values of a page that are read concurrently.
const READS_MAX: usize = 8;
/// The token of records that belong to no tenant. No tenant has this name.
const NO_TENANT: &str = "=";
/// The revision of a write is compared for all subjects of this filter, and not for its own subject alone.
const EXPECTED_FOR: &str = "Nats-Expected-Last-Subject-Sequence-Subject";

/// Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Records {
    client: Client,
    context: Context,
    store: kv::Store,
}

/// A request of a pool's worker.
#[derive(Debug)]
pub(crate) struct RecordsAsked {
    pub(crate) pool: PoolId,
    pub(crate) shard: Shard,
    pub(crate) wanted: RecordRequest,
    client: Client,
    reply: Subject,
}

/// The records of a pool that belong to one tenant, or to none.
#[derive(Debug, Clone)]
pub(crate) struct Space {
    pub(crate) pool: PoolId,
    pub(crate) tenant: Option<TenantId>,
}

/// Records and bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Room {
    records: usize,
    bytes: u64,
}

impl Room {
    fn add(&mut self, size: u64) {
        self.records += 1;
        self.bytes += size + RECORD_BYTES;
    }

    fn half(self) -> Self {
        Self { records: self.records / 2, bytes: self.bytes / 2 }
    }

    fn holds(self, used: Self) -> bool {
        used.records <= self.records && used.bytes <= self.bytes
    }
}

impl Records {
    pub(crate) fn new(client: &Client, context: &Context, store: kv::Store) -> Self {
        Self { client: client.clone(), context: context.clone(), store }
    }

    pub(crate) fn of(broker: &Broker) -> Self {
        broker.records.clone()
    }

    /// Requests for records, of runs of all shards, each sent to every coordinator. Requests with a foreign reply
    /// subject, or that cannot be decoded, are logged and skipped.
    pub(crate) async fn subscribe(&self) -> Result<impl Stream<Item = RecordsAsked> + use<>, SubscribeError> {
        let client = self.client.clone();
        let messages = client.subscribe(names::RECORD_QUESTIONS).await?;
        Ok(messages.filter_map(move |message| std::future::ready(RecordsAsked::decode(&client, message))))
    }

    /// Performs an operation of a call.
    pub(crate) async fn perform(&self, space: &Space, wanted: RecordRequest) -> RecordReply {
        let done = match &wanted.operation {
            RecordOperation::Get(key) => self.get(space, key, &wanted).await,
            RecordOperation::Put { key, value, revision } => {
                let stored = StoredRecord { value: value.clone(), run: wanted.run, call: wanted.call };
                self.put(space, key, &stored, *revision).await
            }
            RecordOperation::Delete { key, revision } => self.delete(space, key, *revision).await,
            RecordOperation::List { prefix, after, limit } => self.list(space, (prefix, after), *limit, &wanted).await,
        };
        done.unwrap_or_else(|error| {
            tracing::warn!(%error, pool = %space.pool, "a request for records failed, the worker repeats it");
            RecordReply::AskAgain
        })
    }

    async fn get(&self, space: &Space, key: &RecordKey, of: &RecordRequest) -> Result<RecordReply, ReadError> {
        let records = self.newest(space, key).await?.map(|found| shown(key.clone(), found, of));
        Ok(RecordReply::Page(RecordPage { records: records.into_iter().collect(), more: false }))
    }

    /// Replaces the revision `before`, 0 for none. A call that has written the same value already has done so: another
    /// attempt of it, or a confirmation that was lost, changes nothing.
    async fn put(
        &self,
        space: &Space,
        key: &RecordKey,
        stored: &StoredRecord,
        before: u64,
    ) -> Result<RecordReply, ReadError> {
        if let Some(reason) = self.lacks_room(space, key, stored.value.len()).await? {
            // A repeated request is answered as the first one was.
            let current = self.newest(space, key).await?;
            return Ok(match current {
                Some((revision, current)) if current == *stored => RecordReply::Stored(revision),
                Some(_) | None => RecordReply::Full(reason),
            });
        }
        // The library would buffer the message, and send it after the error was returned.
        if self.client.connection_state() != State::Connected {
            return Err(ReadError::new(&"there is no connection to the broker"));
        }
        let subject = format!("{}.{key}.{}", self.subject(space), stored.value.len());
        let sizes = format!("{}.{key}.*", self.subject(space));
        let message = PublishMessage::build()
            .payload(stored.encode())
            .expected_last_subject_sequence(before)
            .header(EXPECTED_FOR, sizes.as_str());
        let sent = match self.context.send_publish(subject, message).await {
            Ok(sent) => sent.await,
            Err(error) => Err(error),
        };
        let error = match sent {
            Ok(confirmed) => {
                if before > 0 {
                    self.remove_until(&sizes, confirmed.sequence).await;
                }
                return Ok(RecordReply::Stored(confirmed.sequence));
            }
            Err(error) => error,
        };
        match AppendFailure::of(&error) {
            AppendFailure::Conflict => Ok(match self.newest(space, key).await? {
                Some((revision, current)) if current == *stored => RecordReply::Stored(revision),
                Some((revision, _)) => RecordReply::Conflict(revision),
                None => RecordReply::Conflict(0),
            }),
            AppendFailure::Full => Ok(RecordReply::Full(format!("the bucket {} is full", names::RECORDS_BUCKET))),
            AppendFailure::TooLarge | AppendFailure::Unconfirmed => Err(ReadError::new(&error)),
        }
    }

    async fn delete(&self, space: &Space, key: &RecordKey, revision: u64) -> Result<RecordReply, ReadError> {
        match self.newest(space, key).await? {
            None => Ok(RecordReply::Stored(0)),
            Some((current, _)) if current == revision => {
                let sizes = format!("{}.{key}.*", self.subject(space));
                // A record that was written meanwhile stays.
                let purge = self.store.stream.purge().filter(sizes).sequence(revision + 1).await;
                purge.map(|_| RecordReply::Stored(0)).map_err(|error| ReadError::new(&error))
            }
            Some((current, _)) => Ok(RecordReply::Conflict(current)),
        }
    }

    async fn list(
        &self,
        space: &Space,
        (prefix, after): (&str, &str),
        limit: usize,
        of: &RecordRequest,
    ) -> Result<RecordReply, ReadError> {
        let subject = self.subject(space);
        let sizes = self.sizes(&format!("{subject}.*.*"), subject.len() + 1).await?;
        let wanted = |key: &str| key.starts_with(prefix) && key > after;
        let mut keys = sizes.iter().filter_map(|(name, size)| Some((name.parse::<RecordKey>().ok()?, *size)));
        let (mut page, mut bytes, mut more) = (Vec::new(), 0, false);
        for (key, size) in keys.by_ref().filter(|(key, _)| wanted(key.as_str())) {
            if page.len() >= limit || bytes >= PAGE_BYTES_MAX as u64 {
                more = true;
                break;
            }
            bytes += size;
            page.push(key);
        }
        let reads = page.into_iter().map(|key| async move {
            let found = self.newest(space, &key).await?;
            Ok::<_, ReadError>(found.map(|found| shown(key, found, of)))
        });
        // One that was deleted meanwhile is left out.
        let records: Vec<Option<Record>> = stream::iter(reads).buffered(READS_MAX).try_collect().await?;
        Ok(RecordReply::Page(RecordPage { records: records.into_iter().flatten().collect(), more }))
    }

    /// Why a value of so many bytes does not fit; `None` if it does.
    async fn lacks_room(&self, space: &Space, key: &RecordKey, bytes: usize) -> Result<Option<String>, ReadError> {
        let pool = format!("{}{}", self.store.prefix, space.pool);
        let sizes = self.sizes(&format!("{pool}.>"), pool.len() + 1).await?;
        let (tenant, key) = (format!("{}.", space.token()), key.as_str());
        let (mut of_pool, mut of_tenant) = (Room::default(), Room::default());
        let size = u64::try_from(bytes).unwrap_or(u64::MAX);
        of_pool.add(size);
        of_tenant.add(size);
        for (name, size) in sizes {
            let own = name.strip_prefix(&tenant);
            if own != Some(key) {
                of_pool.add(size);
                own.into_iter().for_each(|_| of_tenant.add(size));
            }
        }
        let bucket = u64::try_from(self.store.stream.cached_info().config.max_bytes).unwrap_or(0);
        let pool_max = Room { records: POOL_RECORDS_MAX, bytes: bucket / 2 };
        let full = |what: String, max: Room| {
            let Room { records, bytes } = max;
            Some(format!("{what} may keep {records} records of {bytes} bytes together: delete some that are done"))
        };
        Ok(match &space.tenant {
            _ if !pool_max.holds(of_pool) => full(format!("pool {}", space.pool), pool_max),
            Some(tenant) if !pool_max.half().holds(of_tenant) => {
                full(format!("tenant {tenant} in pool {}", space.pool), pool_max.half())
            }
            Some(_) | None => None,
        })
    }

    /// What stands between the first `cut` bytes and the size of the subjects of a filter, in order, with the sizes.
    async fn sizes(&self, filter: &str, cut: usize) -> Result<BTreeMap<String, u64>, ReadError> {
        let mut subjects =
            self.store.stream.info_with_subjects(filter).await.map_err(|error| ReadError::new(&error))?;
        let mut sizes: BTreeMap<String, u64> = BTreeMap::new();
        while let Some((subject, _)) = subjects.try_next().await.map_err(|error| ReadError::new(&error))? {
            let parts = subject.get(cut..).and_then(|rest| rest.rsplit_once('.'));
            if let Some((name, Ok(size))) = parts.map(|(name, size)| (name, size.parse())) {
                // Two sizes of a key are there until the older one is removed.
                let kept = sizes.entry(name.to_owned()).or_insert(size);
                *kept = size.max(*kept);
            }
        }
        Ok(sizes)
    }

    /// The record of a key, and its revision. The leader answers, so confirmed writes are seen.
    async fn newest(&self, space: &Space, key: &RecordKey) -> Result<Option<(u64, StoredRecord)>, ReadError> {
        let sizes = format!("{}.{key}.*", self.subject(space));
        let Some(message) = last_message(&self.store.stream, &sizes).await? else { return Ok(None) };
        let stored = StoredRecord::decode(message.payload).map_err(|error| ReadError::new(&error))?;
        Ok(Some((message.sequence, stored)))
    }

    /// Removes replaced messages of a key. If it fails, the next write of the key removes them.
    async fn remove_until(&self, sizes: &str, sequence: u64) {
        if let Err(error) = self.store.stream.purge().filter(sizes).sequence(sequence).await {
            tracing::debug!(%error, "removing a replaced record failed");
        }
    }

    fn subject(&self, space: &Space) -> String {
        format!("{}{}.{}", self.store.prefix, space.pool, space.token())
    }
}

impl Space {
    fn token(&self) -> &str {
        self.tenant.as_ref().map_or(NO_TENANT, TenantId::as_str)
    }
}

fn shown(key: RecordKey, (revision, stored): (u64, StoredRecord), of: &RecordRequest) -> Record {
    let is_own = (stored.run, stored.call) == (of.run, of.call);
    Record { key, value: stored.value, revision, is_own }
}

impl RecordsAsked {
    fn decode(client: &Client, message: Message) -> Option<Self> {
        let (pool, shard) = names::record_question_of(&message.subject)?;
        let Some(reply) = message.reply.filter(|reply| may_be_answered(&pool, reply)) else {
            tracing::warn!(%pool, "ignoring a request for records: its reply subject is not one of the pool's");
            return None;
        };
        match RecordRequest::decode(message.payload) {
            Ok(wanted) if wanted.run.shard() == shard => {
                Some(Self { pool, shard, wanted, client: client.clone(), reply })
            }
            Ok(_) => {
                tracing::warn!(%pool, "ignoring a request for records: its run is of another shard");
                None
            }
            Err(error) => {
                tracing::warn!(%pool, %error, "ignoring a request for records: it cannot be decoded");
                None
            }
        }
    }

    pub(crate) async fn answer(self, given: RecordReply) {
        if let Err(error) = self.client.publish(self.reply, given.encode()).await {
            tracing::warn!(%error, "sending records failed");
        }
    }
}

#[cfg(test)]
mod tests;
