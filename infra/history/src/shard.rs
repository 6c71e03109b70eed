//! The database of one shard: open for writing by the shard's owner, for reading by the others.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use object_store::ObjectStore;
use object_store::path::Path;
use run::RunId;
use slatedb::config::{
    CompactionWorkerOptions, CompactorOptions, DbReaderOptions, GarbageCollectorDirectoryOptions,
    GarbageCollectorOptions, Settings, SstBlockSize,
};
use slatedb::db_cache::DbCache;
use slatedb::{Db, DbReader, DbReaderMode};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use super::{HistoryError, OPEN_PATIENCE, READ_PATIENCE};

/// Bytes that a shard's writer keeps in memory before it writes them as a file.
const MEMORY_BYTES: usize = 8 * 1024 * 1024;
/// Bytes in memory above which writes wait.
const WAITING_BYTES: usize = 4 * MEMORY_BYTES;
/// How often a writer looks whether it was fenced or files were merged. Each look is a request to the store.
const LOOK: Duration = Duration::from_secs(20);
/// How often a reader looks for new entries. A new one is opened if a run is not found.
const FOLLOW: Duration = Duration::from_secs(60);
/// The shortest time between the openings of two readers of a shard. Clients may request any number of unknown runs.
const APART: Duration = Duration::from_millis(500);
/// Merges at once in a shard.
const MERGES_MAX: usize = 1;
/// What a merge reads of each of its files at once, and how many such pieces ahead. All shards of a coordinator may
/// merge at the same time, each up to eight files, so this is some 128 MiB together.
const MERGE_PIECE_BYTES: usize = 512 * 1024;
const MERGE_PIECES: usize = 2;
/// How long closing a database may take. What it does not write then is written again by the next owner.
const CLOSE_PATIENCE: Duration = Duration::from_secs(3);
/// The longest time for which a writer that goes on afterwards may hang, for example with its machine.
const HANGS_MAX: Duration = Duration::from_secs(24 * 3600);
/// No position is known.
const UNKNOWN: u64 = u64::MAX;

pub(crate) struct ShardStore {
    store: Arc<dyn ObjectStore>,
    /// The store is a folder.
    is_folder: bool,
    path: Path,
    cache: (Arc<dyn DbCache>, u64),
    writer: RwLock<Option<Db>>,
    opening: Mutex<()>,
    reader: Mutex<Option<(Instant, Arc<DbReader>)>>,
    /// Through which entry the runs are stored durably.
    through: AtomicU64,
    /// Runs that were erased while entries up to this one are still to be read from the log.
    pub(crate) erasing: Mutex<BTreeMap<RunId, u64>>,
}

impl ShardStore {
    pub(crate) fn new(
        (store, is_folder): (Arc<dyn ObjectStore>, bool),
        path: Path,
        cache: (Arc<dyn DbCache>, u64),
    ) -> Self {
        Self {
            store,
            is_folder,
            path,
            cache,
            writer: RwLock::default(),
            opening: Mutex::default(),
            reader: Mutex::default(),
            through: AtomicU64::new(UNKNOWN),
            erasing: Mutex::default(),
        }
    }

    pub(crate) fn through(&self) -> Option<u64> {
        Some(self.through.load(Ordering::Relaxed)).filter(|through| *through != UNKNOWN)
    }

    pub(crate) fn note_through(&self, through: u64) {
        self.through.store(through, Ordering::Relaxed);
    }

    fn writer(&self) -> Option<Db> {
        self.writer.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_writer(&self, writer: Option<Db>) -> Option<Db> {
        std::mem::replace(&mut *self.writer.write().unwrap_or_else(PoisonError::into_inner), writer)
    }

    /// The database, which is open for writing.
    pub(crate) fn written(&self) -> Result<Db, HistoryError> {
        self.writer().ok_or(HistoryError::NotOpen)
    }

    /// Opens the database for writing, unless it is open.
    pub(crate) async fn open(&self) -> Result<Db, HistoryError> {
        let _only = self.opening.lock().await;
        if let Some(db) = self.writer() {
            return Ok(db);
        }
        let builder = Db::builder(self.path.clone(), Arc::clone(&self.store))
            .with_settings(settings(self.is_folder))
            .with_sst_block_size(SstBlockSize::Block16Kib)
            .with_db_cache(Arc::clone(&self.cache.0), self.cache.1);
        let opened = timeout(OPEN_PATIENCE, builder.build()).await;
        let db = opened.map_err(|_| HistoryError::silent(OPEN_PATIENCE))??;
        drop(self.set_writer(Some(db.clone())));
        Ok(db)
    }

    pub(crate) async fn close(&self) {
        self.note_through(UNKNOWN);
        let Some(db) = self.set_writer(None) else { return };
        match timeout(CLOSE_PATIENCE, db.close()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(path = %self.path, %error, "closing a history failed"),
            Err(_) => tracing::debug!(path = %self.path, "closing a history timed out"),
        }
    }

    /// The value of a key as the database that is open here has it: it may be `None` if it was written within the last
    /// minute.
    pub(crate) async fn get_cached(&self, key: &[u8]) -> Result<Option<Bytes>, HistoryError> {
        let read = async {
            if let Some(found) = self.get_as_writer(key).await? {
                return Ok(Some(found));
            }
            let Some((_, reader)) = self.reader(None).await? else { return Ok(None) };
            Ok(reader.get(key).await?)
        };
        timeout(READ_PATIENCE, read).await.map_err(|_| HistoryError::silent(READ_PATIENCE))?
    }

    /// The value of a key, with everything that was durable before this request.
    pub(crate) async fn get(&self, key: &[u8]) -> Result<Option<Bytes>, HistoryError> {
        let asked = Instant::now();
        if let Some(found) = self.get_cached(key).await? {
            return Ok(Some(found));
        }
        // Not even a writer knows that there is none: another coordinator may have taken the shard over meanwhile.
        let read = async {
            let Some((_, reader)) = self.reader(Some(asked)).await? else { return Ok(None) };
            Ok(reader.get(key).await?)
        };
        timeout(READ_PATIENCE, read).await.map_err(|_| HistoryError::silent(READ_PATIENCE))?
    }

    async fn get_as_writer(&self, key: &[u8]) -> Result<Option<Bytes>, HistoryError> {
        let Some(db) = self.writer() else { return Ok(None) };
        match db.get(key).await.map_err(HistoryError::from) {
            // It was fenced or closed meanwhile.
            Err(HistoryError::Fenced | HistoryError::Unavailable(_)) => Ok(None),
            found => found,
        }
    }

    /// What follows the prefix in at most `max` keys, after one of them.
    pub(crate) async fn keys_after(
        &self,
        prefix: Vec<u8>,
        after: Option<[u8; 16]>,
        max: usize,
    ) -> Result<Vec<Bytes>, HistoryError> {
        let read = async {
            let from = after.map_or_else(Vec::new, |after| [&after[..], &[0]].concat());
            let mut found = Vec::new();
            // Not the writer, which may have been fenced without knowing it.
            let Some((_, reader)) = self.reader(Some(Instant::now())).await? else { return Ok(found) };
            let mut keys = reader.scan_prefix(&prefix, from..).await?;
            while found.len() < max
                && let Some(next) = keys.next().await?
            {
                found.push(next.key.slice(prefix.len()..));
            }
            Ok(found)
        };
        timeout(READ_PATIENCE, read).await.map_err(|_| HistoryError::silent(READ_PATIENCE))?
    }

    /// Reads what follows a prefix, for at most `patience`, to find what is damaged.
    pub(crate) async fn read_through(&self, prefix: &[u8], patience: Duration) -> Result<(), HistoryError> {
        let read = async {
            let Some((_, reader)) = self.reader(None).await? else { return Ok(()) };
            let mut keys = reader.scan_prefix(prefix, ..).await?;
            while keys.next().await?.is_some() {}
            Ok(())
        };
        timeout(patience, read).await.unwrap_or(Ok(()))
    }

    /// A reader, which was opened after `than`; `None` if nothing was written yet. Concurrent requests share one. It
    /// has everything that was durable when it was opened.
    async fn reader(&self, than: Option<Instant>) -> Result<Option<(Instant, Arc<DbReader>)>, HistoryError> {
        let mut reader = self.reader.lock().await;
        if let Some((opened, reader)) = &*reader
            && than.is_none_or(|than| *opened > than)
        {
            return Ok(Some((*opened, Arc::clone(reader))));
        }
        if let Some((opened, _)) = &*reader {
            tokio::time::sleep_until(*opened + APART).await;
        }
        let opened = Instant::now();
        let builder = DbReader::builder(self.path.clone(), Arc::clone(&self.store))
            .with_reader_mode(DbReaderMode::FollowLatest)
            .with_options(DbReaderOptions { manifest_poll_interval: FOLLOW, ..DbReaderOptions::default() })
            .with_db_cache(Arc::clone(&self.cache.0), self.cache.1);
        match builder.build().await {
            Ok(built) => {
                let built = Arc::new(built);
                let before = reader.replace((opened, Arc::clone(&built)));
                drop(reader);
                if let Some((_, before)) = before {
                    // It follows the database until it is closed. Requests that still read with it go on until then.
                    tokio::spawn(async move {
                        tokio::time::sleep(READ_PATIENCE).await;
                        if let Err(error) = before.close().await {
                            tracing::debug!(%error, "closing a reader of the history failed");
                        }
                    });
                }
                Ok(Some((opened, built)))
            }
            Err(_) if self.is_new().await? => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether nothing was ever written.
    async fn is_new(&self) -> Result<bool, HistoryError> {
        let found = self.store.list_with_delimiter(Some(&self.path)).await?;
        Ok(found.common_prefixes.is_empty() && found.objects.is_empty())
    }
}

/// What the library removes. A writer that hung while it wrote must find what fenced it: in a bucket, a file that says
/// what was removed stops it too, but a folder has none, and the fence of a writer is stopped by nothing else.
fn garbage(is_folder: bool) -> GarbageCollectorOptions {
    let usual = GarbageCollectorDirectoryOptions::default();
    let of_metadata = if is_folder { GarbageCollectorDirectoryOptions { min_age: HANGS_MAX, ..usual } } else { usual };
    let of_fences = GarbageCollectorDirectoryOptions { min_age: HANGS_MAX, interval: Some(HANGS_MAX / 24), ..usual };
    GarbageCollectorOptions {
        manifest_options: Some(of_metadata),
        compactions_options: Some(of_metadata),
        wal_fence_options: Some(of_fences),
        boundary_files_enabled: !is_folder,
        ..GarbageCollectorOptions::default()
    }
}

/// A shard is written every few seconds, and most reads are of one run.
fn settings(is_folder: bool) -> Settings {
    let worker = CompactionWorkerOptions {
        max_concurrent_compactions: MERGES_MAX,
        compactions_poll_interval: LOOK,
        bytes_to_fetch: MERGE_PIECE_BYTES,
        max_fetch_tasks: MERGE_PIECES,
        max_subcompactions: 1,
        ..CompactionWorkerOptions::default()
    };
    let compactor = CompactorOptions {
        poll_interval: LOOK,
        max_concurrent_compactions: MERGES_MAX,
        worker: Some(worker),
        scheduler_options: HashMap::new(),
        ..CompactorOptions::default()
    };
    Settings {
        manifest_poll_interval: LOOK,
        l0_sst_size_bytes: MEMORY_BYTES,
        max_unflushed_bytes: WAITING_BYTES,
        compactor_options: Some(compactor),
        garbage_collector_options: Some(garbage(is_folder)),
        // Other values are of a sensible size for few writes.
        ..Settings::default()
    }
}
