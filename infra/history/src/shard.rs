//! The database of one shard: open for writing by the shard's owner, for reading by the others.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use object_store::ObjectStore;
use object_store::path::Path;
use run::RunId;
use slatedb::admin::Admin;
use slatedb::config::{
    CompactionWorkerOptions, CompactorOptions, DbReaderOptions, FlushOptions, FlushType,
    GarbageCollectorDirectoryOptions, GarbageCollectorOptions, Settings, SstBlockSize,
};
use slatedb::db_cache::DbCache;
use slatedb::{Db, DbReader, DbReaderMode, VersionedManifest};
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
/// How often a reader is opened again because files were removed meanwhile, which happens every few minutes.
const OPENINGS_MAX: usize = 3;
/// Writes after which they leave the write-ahead log, whatever their size: a reader that is opened reads that file by
/// file.
const UNMERGED_MAX: u64 = 64;
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
    readers: std::sync::Mutex<Readers>,
    opening_reader: Mutex<()>,
    /// Since which claim of the shard the writer is open.
    claim: AtomicU64,
    /// Writes of this writer.
    writes: AtomicU64,
    /// Through which entry the runs are stored durably.
    through: AtomicU64,
    /// Runs that were erased while entries up to this one are still to be read from the log.
    pub(crate) erasing: Mutex<BTreeMap<RunId, u64>>,
}

#[derive(Default)]
struct Readers {
    open: Option<Arc<DbReader>>,
    /// Since when that one is open.
    since: Option<Instant>,
    /// When this process last erased something. A reader that was opened before may still find it.
    erased: Option<Instant>,
    /// When a reader was last opened, or could not be.
    last: Option<(Instant, Result<(), HistoryError>)>,
}

impl Readers {
    /// The open reader, unless something was erased after it was opened.
    fn usable(&self) -> Option<Arc<DbReader>> {
        self.open.clone().filter(|_| self.erased.is_none() || self.since > self.erased)
    }
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
            readers: std::sync::Mutex::default(),
            opening_reader: Mutex::default(),
            claim: AtomicU64::new(UNKNOWN),
            writes: AtomicU64::new(0),
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

    /// The database, which is open for writing since this claim of the shard: another coordinator may have written it
    /// between two claims.
    pub(crate) fn written_since(&self, claim: u64) -> Result<Db, HistoryError> {
        let db = self.written()?;
        if self.claim.load(Ordering::Relaxed) == claim { Ok(db) } else { Err(HistoryError::NotOpen) }
    }

    /// Opens the database for writing, unless it is open since this claim of the shard.
    pub(crate) async fn open(&self, claim: u64) -> Result<Db, HistoryError> {
        let _only = self.opening.lock().await;
        match self.written_since(claim) {
            Ok(db) => return Ok(db),
            Err(_) => self.close().await,
        }
        let builder = Db::builder(self.path.clone(), Arc::clone(&self.store))
            .with_settings(settings(self.is_folder))
            .with_sst_block_size(SstBlockSize::Block16Kib)
            .with_db_cache(Arc::clone(&self.cache.0), self.cache.1);
        let opened = timeout(OPEN_PATIENCE, builder.build()).await;
        let db = opened.map_err(|_| HistoryError::silent(OPEN_PATIENCE))??;
        self.claim.store(claim, Ordering::Relaxed);
        drop(self.set_writer(Some(db.clone())));
        Ok(db)
    }

    /// Notes a write. Some of them move what was written out of the write-ahead log.
    pub(crate) async fn note_write(&self, db: &Db) -> Result<(), HistoryError> {
        if self.writes.fetch_add(1, Ordering::Relaxed) % UNMERGED_MAX == UNMERGED_MAX - 1 {
            db.flush_with_options(FlushOptions { flush_type: FlushType::MemTable }).await?;
        }
        Ok(())
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

    /// The value of a key as the databases that are open here have it: it may be `None`, or an older value, if it was
    /// written within the last minute.
    pub(crate) async fn get_cached(&self, key: &[u8]) -> Result<Option<Bytes>, HistoryError> {
        let read = async {
            if let Some(db) = self.writer()
                && let Ok(Some(found)) = db.get(key).await
            {
                return Ok(Some(found));
            }
            let Some(reader) = self.any_reader().await? else { return Ok(None) };
            Ok(reader.get(key).await?)
        };
        timeout(READ_PATIENCE, read).await.map_err(|_| HistoryError::silent(READ_PATIENCE))?
    }

    /// The value of a key; `None` if nothing was durable under it when this was asked. It may be an older value, as
    /// with [`Self::get_cached`].
    pub(crate) async fn get(&self, key: &[u8]) -> Result<Option<Bytes>, HistoryError> {
        let asked = Instant::now();
        let read = async {
            if let Some(db) = self.writer() {
                match db.get(key).await {
                    Ok(Some(found)) => return Ok(Some(found)),
                    Ok(None) if self.is_newest(&db).await? => return Ok(None),
                    // It was fenced or closed.
                    Ok(None) | Err(_) => {}
                }
            }
            let usable = self.readers().usable();
            if let Some(reader) = usable
                && let Ok(Some(found)) = reader.get(key).await
            {
                return Ok(Some(found));
            }
            let Some(reader) = self.reader_after(asked).await? else { return Ok(None) };
            Ok(reader.get(key).await?)
        };
        timeout(READ_PATIENCE, read).await.map_err(|_| HistoryError::silent(READ_PATIENCE))?
    }

    /// Whether no other writer has opened the database. One that is fenced may not know it yet.
    async fn is_newest(&self, db: &Db) -> Result<bool, HistoryError> {
        let newest = self.newest_manifest().await?;
        Ok(newest.is_some_and(|newest| newest.writer_epoch() == db.manifest().writer_epoch()))
    }

    async fn newest_manifest(&self) -> Result<Option<VersionedManifest>, HistoryError> {
        let admin = Admin::builder(self.path.clone(), Arc::clone(&self.store)).build();
        Ok(admin.read_manifest(None).await?)
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
            let Some(reader) = self.reader_after(Instant::now()).await? else { return Ok(found) };
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
            let Some(reader) = self.any_reader().await? else { return Ok(()) };
            let mut keys = reader.scan_prefix(prefix, ..).await?;
            while keys.next().await?.is_some() {}
            Ok(())
        };
        timeout(patience, read).await.unwrap_or(Ok(()))
    }

    fn readers(&self) -> MutexGuard<'_, Readers> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A reader that may lack what was written within the last minute; `None` if nothing was written before that.
    async fn any_reader(&self) -> Result<Option<Arc<DbReader>>, HistoryError> {
        let known = {
            let readers = self.readers();
            let is_new = matches!(&readers.last, Some((began, Ok(()))) if began.elapsed() < FOLLOW);
            match readers.usable() {
                // Nothing was written when it was opened, so nothing was erased.
                None => (is_new && readers.open.is_none()).then_some(None),
                usable => Some(usable),
            }
        };
        match known {
            Some(reader) => Ok(reader),
            None => self.reader_after(Instant::now()).await,
        }
    }

    /// A reader that has everything that was durable at `than`; `None` if nothing was written. Questions that wait for
    /// one share it, or its failure.
    async fn reader_after(&self, than: Instant) -> Result<Option<Arc<DbReader>>, HistoryError> {
        let _only = self.opening_reader.lock().await;
        let last = self.readers().last.clone();
        if let Some((began, opened)) = last {
            if began > than {
                return opened.map(|()| self.readers().open.clone());
            }
            tokio::time::sleep_until(began + APART).await;
        }
        let began = Instant::now();
        let opened = self.open_reader().await;
        let mut readers = self.readers();
        readers.last = Some((began, opened.as_ref().map(|_| ()).map_err(Clone::clone)));
        let opened = opened?;
        readers.since = Some(began);
        if let Some(before) = std::mem::replace(&mut readers.open, opened.clone()) {
            // It follows the database until it is closed. Requests that still read with it go on until then.
            tokio::spawn(async move {
                tokio::time::sleep(READ_PATIENCE).await;
                if let Err(error) = before.close().await {
                    tracing::debug!(%error, "closing a reader of the history failed");
                }
            });
        }
        Ok(opened)
    }

    /// From now on, no reader is used that was opened before.
    pub(crate) fn note_erased(&self) {
        self.readers().erased = Some(Instant::now());
    }

    /// Opens the database for reading; `None` if nothing was written.
    async fn open_reader(&self) -> Result<Option<Arc<DbReader>>, HistoryError> {
        for _ in 0..OPENINGS_MAX {
            let builder = DbReader::builder(self.path.clone(), Arc::clone(&self.store))
                .with_reader_mode(DbReaderMode::FollowLatest)
                .with_options(DbReaderOptions { manifest_poll_interval: FOLLOW, ..DbReaderOptions::default() })
                .with_db_cache(Arc::clone(&self.cache.0), self.cache.1);
            let reader = match builder.build().await {
                Ok(reader) => reader,
                Err(_) if self.is_new().await? => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            // It reads the manifest, and then what was written since. If that was merged and removed in between, it has
            // neither, and does not report it.
            let newest = self.newest_manifest().await?;
            if newest.is_some_and(|newest| newest.replay_after_wal_id() == reader.manifest().replay_after_wal_id()) {
                return Ok(Some(Arc::new(reader)));
            }
            reader.close().await?;
        }
        Err(HistoryError::Unavailable("its files were merged each time that they were opened".to_owned()))
    }

    /// Whether nothing was ever written.
    async fn is_new(&self) -> Result<bool, HistoryError> {
        let found = self.store.list_with_delimiter(Some(&self.path)).await?;
        Ok(found.common_prefixes.is_empty() && found.objects.is_empty())
    }
}

/// What the library removes. A writer that hung while it wrote must find what fenced it when it goes on. A bucket also
/// has a file that says which manifests were removed, and a folder has none.
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
