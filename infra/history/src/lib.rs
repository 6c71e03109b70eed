//! The history: runs that have ended, with their messages as the log had them, in one database a shard. The databases
//! are files in a folder or a bucket. A shard's owner writes its database, and fences the owner before it; every
//! coordinator reads all of them.

mod examine;
mod keys;
mod location;
mod objects;
mod shard;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use object_store::path::Path;
use proto::convert::InvalidMessage;
use proto::convert::history::{HistoryMessage, HistoryPosition, HistoryRun};
use run::{Partition, RunId, Shard, TenantId, Timestamp};
use slatedb::config::{PutOptions, Ttl};
use slatedb::db_cache::DbCache;
use slatedb::db_cache::moka::{MokaCache, MokaCacheOptions};
use slatedb::{Db, WriteBatch};
use tokio::time::timeout;

pub use self::examine::ShardSeen;
pub use self::location::{HistoryLocation, InvalidLocation};
use self::shard::ShardStore;

/// Bytes of blocks, indexes and filters that are kept in memory, for all shards together.
const CACHE_BYTES: u64 = 128 * 1024 * 1024;
/// How long a read may take. The library itself retries without end.
const READ_PATIENCE: Duration = Duration::from_secs(5);
/// How long opening a database may take: it reads what was written last.
const OPEN_PATIENCE: Duration = Duration::from_secs(30);
/// How long a write may take until it is durable.
const WRITE_PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of the messages in one value, unless a single one is larger.
pub const PART_BYTES: usize = 512 * 1024;

/// A cheap handle to the history.
#[derive(Debug, Clone)]
pub struct History(Arc<Parts>);

struct Parts {
    store: Arc<dyn object_store::ObjectStore>,
    root: Path,
    place: String,
    retention: Duration,
    shards: Vec<ShardStore>,
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parts").field("place", &self.place).field("retention", &self.retention).finish_non_exhaustive()
    }
}

/// Why the history did not do what it was asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum HistoryError {
    #[error("the history store is not available: {0}")]
    Unavailable(String),
    /// What is stored cannot be read. Other runs can be.
    #[error("the history is damaged here: {0}")]
    Damaged(String),
    /// Another coordinator took the shard over.
    #[error("another coordinator writes the history of this shard")]
    Fenced,
    /// This coordinator has not opened the shard's history for writing.
    #[error("the history of this shard is not open for writing")]
    NotOpen,
}

impl HistoryError {
    fn silent(patience: Duration) -> Self {
        Self::Unavailable(format!("no answer within {} s", patience.as_secs()))
    }
}

impl From<slatedb::Error> for HistoryError {
    fn from(error: slatedb::Error) -> Self {
        use slatedb::{CloseReason, ErrorKind};
        match error.kind() {
            ErrorKind::Closed(CloseReason::Fenced) => Self::Fenced,
            ErrorKind::Data => Self::Damaged(error.to_string()),
            _ => Self::Unavailable(error.to_string()),
        }
    }
}

impl From<object_store::Error> for HistoryError {
    fn from(error: object_store::Error) -> Self {
        Self::Unavailable(error.to_string())
    }
}

fn damaged(run: RunId, error: &InvalidMessage) -> HistoryError {
    HistoryError::Damaged(format!("run {run}: {error}"))
}

/// A run that has ended, for the history.
#[derive(Debug)]
pub struct EndedRun {
    pub id: RunId,
    pub tenant: Option<TenantId>,
    pub ended_at: Timestamp,
    /// Its last entry.
    pub last: u64,
    /// Its messages in the order of the log; empty if all of them were stored as parts.
    pub messages: Vec<HistoryMessage>,
    /// The parts that were stored before ([`History::put_part`]).
    pub parts: u32,
}

impl History {
    /// Nothing is read or written yet. Runs are shown for `retention` after their end.
    ///
    /// # Errors
    /// If the folder cannot be made.
    pub fn new(location: &HistoryLocation, retention: Duration) -> Result<Self, InvalidLocation> {
        let (store, root) = location.open()?;
        let is_folder = matches!(location, HistoryLocation::Folder(_));
        let cache: Arc<dyn DbCache> = Arc::new(MokaCache::new_with_opts(MokaCacheOptions {
            max_capacity: CACHE_BYTES,
            time_to_live: None,
            time_to_idle: None,
        }));
        let shards = Partition::first(Partition::MAX).flat_map(Partition::shards).map(|shard| {
            let path = root.clone().join("shards").join(shard.to_string());
            ShardStore::new((Arc::clone(&store), is_folder), path, (Arc::clone(&cache), u64::from(shard.0)))
        });
        let (shards, place) = (shards.collect(), location.to_string());
        Ok(Self(Arc::new(Parts { store, root, place, retention, shards })))
    }

    /// How long runs are kept after their end.
    #[must_use]
    pub fn retention(&self) -> Duration {
        self.0.retention
    }

    /// Where it is, for messages to operators.
    #[must_use]
    pub fn place(&self) -> &str {
        &self.0.place
    }

    fn shard(&self, shard: Shard) -> Result<&ShardStore, HistoryError> {
        self.0.shards.get(usize::from(shard.0)).ok_or(HistoryError::NotOpen)
    }

    /// Opens a shard's database for writing, unless it is open since this claim of the shard, and returns through which
    /// entry of this log it goes, whose last entry in the shard is `newest`. The coordinator that wrote it before
    /// cannot write any more.
    ///
    /// # Errors
    /// If the store does not respond, or refuses.
    pub async fn begin(&self, (shard, claim): (Shard, u64), log: u64, newest: u64) -> Result<u64, HistoryError> {
        let store = self.shard(shard)?;
        let begun = self.begin_open((shard, claim, store), log, newest).await;
        if begun.is_err() {
            // It may have been fenced, and is opened again.
            store.close().await;
        }
        begun
    }

    async fn begin_open(
        &self,
        (shard, claim, store): (Shard, u64, &ShardStore),
        log: u64,
        newest: u64,
    ) -> Result<u64, HistoryError> {
        let db = store.open(claim).await?;
        let position = timeout(READ_PATIENCE, db.get(keys::POSITION)).await;
        let position = position.map_err(|_| HistoryError::silent(READ_PATIENCE))?.map_err(HistoryError::from);
        let position = match position.map(|value| value.map(HistoryPosition::decode).transpose()) {
            Ok(Ok(position)) => position,
            // What the log still has is written again, which does no harm, and so is the position.
            Err(error @ HistoryError::Damaged(_)) => {
                tracing::error!(%shard, %error, "the position of a history is damaged, writing what the log has again");
                None
            }
            Ok(Err(error)) => return Err(HistoryError::Damaged(format!("its position: {error}"))),
            Err(error) => return Err(error),
        };
        // A position behind the end is of a log that was lost and restored from an older copy.
        let is_of_log = |position: &HistoryPosition| position.log == log && position.through <= newest;
        let through = position.filter(is_of_log).map_or(0, |position| position.through);
        store.note_through(through);
        Ok(through)
    }

    /// Stops writing a shard: it is not ours any more, or the process ends.
    pub async fn end(&self, shard: Shard) {
        if let Ok(store) = self.shard(shard) {
            store.close().await;
        }
    }

    /// Through which entry a shard's history goes, as far as this coordinator has written it durably. `None` if it does
    /// not write it.
    #[must_use]
    pub fn through(&self, shard: Shard) -> Option<u64> {
        self.shard(shard).ok()?.through()
    }

    /// Stores a part of a large run. The run itself is stored later, with [`Self::put`].
    ///
    /// # Errors
    /// As [`Self::put`].
    pub async fn put_part(
        &self,
        run: RunId,
        part: u32,
        messages: Vec<HistoryMessage>,
        ended_at: Timestamp,
    ) -> Result<(), HistoryError> {
        let expires_at = ended_at.after(self.0.retention);
        let value = HistoryRun { tenant: None, parts: 0, expires_at, messages }.encode();
        let mut batch = WriteBatch::new();
        batch.put_with_options(keys::part(run, part), value, &until(expires_at));
        self.write_open(run.shard(), batch).await
    }

    /// Removes parts of a run that will not be stored.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub async fn remove_parts(&self, run: RunId, parts: u32) -> Result<(), HistoryError> {
        let mut batch = WriteBatch::new();
        (1..=parts).for_each(|part| batch.delete(keys::part(run, part)));
        self.write_open(run.shard(), batch).await
    }

    async fn write_open(&self, shard: Shard, batch: WriteBatch) -> Result<(), HistoryError> {
        let store = self.shard(shard)?;
        let db = store.written()?;
        let written = timeout(WRITE_PATIENCE, db.write(batch)).await;
        let written = written.map_err(|_| HistoryError::silent(WRITE_PATIENCE));
        match written.and_then(|written| Ok(written?)) {
            Ok(_) => Ok(()),
            Err(error) => {
                store.close().await;
                Err(error)
            }
        }
    }

    /// Stores runs of a shard, and that all runs that ended with an entry up to `position` are stored. Returns when it
    /// is durable. Runs that are being erased are left out.
    ///
    /// # Errors
    /// If the store does not confirm it in time, or another coordinator took the shard over: then the shard is closed.
    pub async fn put(&self, shard: Shard, runs: Vec<EndedRun>, position: HistoryPosition) -> Result<(), HistoryError> {
        let store = self.shard(shard)?;
        let written = self.put_open(store, runs, position).await;
        if written.is_err() {
            store.close().await;
        }
        written
    }

    async fn put_open(
        &self,
        store: &ShardStore,
        runs: Vec<EndedRun>,
        position: HistoryPosition,
    ) -> Result<(), HistoryError> {
        // Those that are pending no more once this is durable, and those that may have objects.
        let (mut done, mut erased) = (Vec::new(), HashSet::new());
        let written = async {
            let db = store.written()?;
            // Nothing is erased between the look and the write.
            let erasing = store.erasing.lock().await;
            let (mut batch, mut again) = (WriteBatch::new(), HashSet::new());
            for run in runs {
                let EndedRun { id, tenant, ended_at, last, messages, parts } = run;
                if erasing.get(&id).is_some_and(|through| last <= *through) {
                    (1..=parts).for_each(|part| batch.delete(keys::part(id, part)));
                    erased.insert(id);
                    continue;
                }
                again.insert(id);
                let expires_at = ended_at.after(self.0.retention);
                if let Some(tenant) = &tenant {
                    batch.put_with_options(keys::of_tenant(tenant, Some(id)), Bytes::new(), &until(expires_at));
                }
                let value = HistoryRun { tenant, parts, expires_at, messages }.encode();
                batch.put_with_options(keys::run(id), value, &until(expires_at));
            }
            batch.put(keys::POSITION, position.encode());
            // Nothing of these comes any more. Parts of a run may have been written before it was erased, or since.
            let over = erasing.iter().filter(|(_, through)| **through <= position.through);
            for run in over.map(|(run, _)| *run).filter(|run| !again.contains(run)) {
                match delete_keys_of(&db, run, &mut batch).await {
                    // Nothing else of the shard has to wait for it: it expires.
                    Err(HistoryError::Damaged(error)) => tracing::warn!(run.id = %run, error, "erasing parts failed"),
                    deleted => drop(deleted?),
                }
                erased.insert(run);
            }
            let written = db.write(batch).await?;
            // One that was opened again after its erasure is another one.
            let is_done = |(run, through): &(&RunId, &u64)| **through <= position.through || again.contains(*run);
            done.extend(erasing.iter().filter(is_done).map(|(run, through)| (*run, *through)));
            drop(erasing);
            written.await_durable().await?;
            store.note_write(&db).await
        };
        timeout(WRITE_PATIENCE, written).await.map_err(|_| HistoryError::silent(WRITE_PATIENCE))??;
        store.note_through(position.through);
        let mut with_objects = HashSet::new();
        for run in erased {
            // They may have been copied after the run was erased.
            if let Err(error) = self.remove_objects(run).await {
                tracing::warn!(run.id = %run, %error, "removing objects of an erased run failed, trying again");
                with_objects.insert(run);
            }
        }
        // Not earlier: what is lost is written again, and may not come back with it.
        let mut erasing = store.erasing.lock().await;
        for (run, through) in done {
            if erasing.get(&run) == Some(&through) && !with_objects.contains(&run) {
                erasing.remove(&run);
            }
        }
        Ok(())
    }

    /// Erases a run, whose entries in the log end at `through`. Those that are about to be written will not be.
    ///
    /// # Errors
    /// If this coordinator does not write the shard since this claim of it, or the store does not confirm it.
    pub async fn erase(&self, run: RunId, through: u64, claim: u64) -> Result<(), HistoryError> {
        let store = self.shard(run.shard())?;
        let look = async {
            let db = store.written_since(claim)?;
            let mut erasing = store.erasing.lock().await;
            let is_pending = store.through().is_none_or(|written| written < through);
            if is_pending {
                erasing.insert(run, through);
            }
            // Its parts may have been written before it.
            Ok::<_, HistoryError>(is_pending || db.get(keys::run(run)).await?.is_some())
        };
        let may_be_there = timeout(WRITE_PATIENCE, look).await.map_err(|_| HistoryError::silent(WRITE_PATIENCE))??;
        if !may_be_there {
            return Ok(());
        }
        // Before its keys, by which the next attempt knows that something is left.
        self.remove_objects(run).await?;
        let deleted = timeout(WRITE_PATIENCE, delete(store, run, claim)).await;
        let deleted = deleted.unwrap_or_else(|_| Err(HistoryError::silent(WRITE_PATIENCE)));
        if matches!(deleted, Err(HistoryError::Unavailable(_))) {
            // The database may have forgotten the run before that is durable.
            store.close().await;
        }
        store.note_erased();
        deleted
    }

    /// A run, or its first part; `None` if the history does not have it, or not any more.
    ///
    /// # Errors
    /// If the store does not respond, or what it has is damaged.
    pub async fn run(&self, run: RunId, now: Timestamp) -> Result<Option<HistoryRun>, HistoryError> {
        let value = self.shard(run.shard())?.get(&keys::run(run)).await?;
        unexpired(run, value, now)
    }

    /// As [`Self::run`], as the databases that are open here have it: it may be `None` for a run that was written
    /// within the last minute.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub async fn run_cached(&self, run: RunId, now: Timestamp) -> Result<Option<HistoryRun>, HistoryError> {
        let value = self.shard(run.shard())?.get_cached(&keys::run(run)).await?;
        unexpired(run, value, now)
    }

    /// A further part of a run that the history has.
    ///
    /// # Errors
    /// As [`Self::run`], and if there is no such part.
    pub async fn part(&self, run: RunId, part: u32) -> Result<Vec<HistoryMessage>, HistoryError> {
        let value = self.shard(run.shard())?.get(&keys::part(run, part)).await?;
        let value = value.ok_or_else(|| HistoryError::Damaged(format!("run {run} lacks its part {part}")))?;
        HistoryRun::decode(value).map(|part| part.messages).map_err(|error| damaged(run, &error))
    }

    /// At most `max` runs of a tenant in a shard, after one of them, in the order in which they were created.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub async fn runs_of(
        &self,
        shard: Shard,
        tenant: &TenantId,
        after: Option<RunId>,
        max: usize,
    ) -> Result<Vec<RunId>, HistoryError> {
        let found = self.shard(shard)?.keys_after(keys::of_tenant(tenant, None), after.map(keys::bytes), max).await?;
        Ok(found.iter().filter_map(|rest| keys::id(shard, rest)).collect())
    }
}

fn unexpired(run: RunId, value: Option<Bytes>, now: Timestamp) -> Result<Option<HistoryRun>, HistoryError> {
    let Some(value) = value else { return Ok(None) };
    let found = HistoryRun::decode(value).map_err(|error| damaged(run, &error))?;
    Ok((found.expires_at > now).then_some(found))
}

/// Deletes the keys of a run. Returns when that is durable.
async fn delete(store: &ShardStore, run: RunId, claim: u64) -> Result<(), HistoryError> {
    let db = store.written_since(claim)?;
    let erasing = store.erasing.lock().await;
    let (value, mut batch) = (db.get(keys::run(run)).await?, WriteBatch::new());
    if !delete_keys_of(&db, run, &mut batch).await? {
        return Ok(());
    }
    // A damaged one is erased as well, as far as it is known.
    if let Some(found) = value.and_then(|value| HistoryRun::decode(value).ok()) {
        found.tenant.iter().for_each(|tenant| batch.delete(keys::of_tenant(tenant, Some(run))));
    }
    let written = db.write(batch).await?;
    drop(erasing);
    written.await_durable().await?;
    Ok(())
}

/// Deletes a run and all its parts. Returns whether there are any.
async fn delete_keys_of(db: &Db, run: RunId, batch: &mut WriteBatch) -> Result<bool, HistoryError> {
    let (mut keys_of_run, mut are_any) = (db.scan_prefix(keys::run(run), ..).await?, false);
    while let Some(next) = keys_of_run.next().await? {
        batch.delete(next.key);
        are_any = true;
    }
    Ok(are_any)
}

fn until(expires_at: Timestamp) -> PutOptions {
    PutOptions { ttl: Ttl::ExpireAtMillis(i64::try_from(expires_at.0).unwrap_or(i64::MAX)) }
}
