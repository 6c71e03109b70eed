//! The channel between the owner task and a watcher of a run: entries from the feed, bounded in number and size.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use run::Entry;
use tokio::sync::{mpsc, oneshot};

use super::Stopped;

/// Entries that may wait for one watcher. A slower one is dropped from the live feed and reads from the log instead.
const ENTRIES_MAX: usize = 256;
/// The most bytes of entries, as stored in the log, that wait for one watcher; a single entry always fits. There may be
/// thousands of watchers that do not read.
const BYTES_MAX: usize = 512 * 1024;

/// The position from which the feed delivers a run's entries.
#[derive(Debug)]
pub(crate) enum Standing {
    /// From the time of the watcher's request.
    Following(Before),
    /// From a later time, because the shard was not followed. Entries stored after the request may be missing.
    Joined,
}

/// The run's entries before those of the feed, as far as the owner task knows them.
#[derive(Debug)]
pub(crate) enum Before {
    Nothing,
    /// The sequence of the last one.
    Through(u64),
    /// All of them.
    Entries(Vec<Arc<Entry>>),
}

/// The owner task's end.
#[derive(Debug)]
pub(super) struct Watcher {
    entries: mpsc::Sender<(Arc<Entry>, u32)>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Bytes that wait for the watcher.
    waiting: AtomicUsize,
    /// The run's entries have left the log: none will come.
    gone: AtomicBool,
}

/// The watcher's end.
#[derive(Debug)]
pub(crate) struct Live {
    entries: mpsc::Receiver<(Arc<Entry>, u32)>,
    shared: Arc<Shared>,
    standing: oneshot::Receiver<Standing>,
}

pub(super) fn pair() -> (Watcher, oneshot::Sender<Standing>, Live) {
    let (sender, entries) = mpsc::channel(ENTRIES_MAX);
    let (stands, standing) = oneshot::channel();
    let shared = Arc::new(Shared::default());
    (Watcher { entries: sender, shared: Arc::clone(&shared) }, stands, Live { entries, shared, standing })
}

impl Watcher {
    /// Returns `false` for a watcher that has gone or is too slow.
    pub(super) fn hand(&self, entry: &Arc<Entry>, bytes: u32) -> bool {
        let size = bytes as usize;
        let before = self.shared.waiting.fetch_add(size, Ordering::Relaxed);
        // A single entry always fits.
        let fits = before == 0 || before + size <= BYTES_MAX;
        fits && self.entries.try_send((Arc::clone(entry), bytes)).is_ok()
    }

    pub(super) fn is_gone(&self) -> bool {
        self.entries.is_closed()
    }

    /// Ends the feed of a run whose entries have left the log.
    pub(super) fn end(self) {
        self.shared.gone.store(true, Ordering::Release);
    }
}

impl Live {
    /// The position from which the feed delivers entries. Called once; may be dropped while waiting.
    pub(crate) async fn standing(&mut self) -> Result<Standing, Stopped> {
        (&mut self.standing).await.map_err(|_| Stopped)
    }

    /// After the feed has ended: the run's entries have left the log, so reading the log cannot continue either.
    pub(crate) fn run_is_gone(&self) -> bool {
        self.shared.gone.load(Ordering::Acquire)
    }

    /// The next entry; `None` for a watcher that was too slow, or of a run that is gone.
    pub(crate) async fn recv(&mut self) -> Option<Arc<Entry>> {
        let (entry, bytes) = self.entries.recv().await?;
        Some(self.taken(entry, bytes))
    }

    /// The next entry, if one is available now.
    pub(crate) fn try_recv(&mut self) -> Option<Arc<Entry>> {
        let (entry, bytes) = self.entries.try_recv().ok()?;
        Some(self.taken(entry, bytes))
    }

    fn taken(&self, entry: Arc<Entry>, bytes: u32) -> Arc<Entry> {
        self.shared.waiting.fetch_sub(bytes as usize, Ordering::Relaxed);
        entry
    }
}
