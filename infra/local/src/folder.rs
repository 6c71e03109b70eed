//! A server's folder: its data, its log, and the lock that keeps a second server out. Two brokers that write the same
//! JetStream folder destroy it, and nats-server itself does not look.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::error::Error;
use crate::process::STOP_GRACE;

/// A server whose parent just died may still be ending in this folder: its grace, and a little for the shell.
const LOCK_LIMIT: Duration = Duration::from_secs(STOP_GRACE.as_secs() + 1);
const LOCK_POLL: Duration = Duration::from_millis(20);
/// Lines of the log that an error shows: enough for the reason, too few to bury it.
const LOG_LINES_MAX: usize = 12;
/// Bytes at the end of the log that are looked at for these lines.
const LOG_BYTES_MAX: u64 = 16 * 1024;

#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    /// Locked. The lock belongs to the open file, which the server inherits as its output: it holds as long as either.
    log: File,
    temporary: Option<TempDir>,
}

impl Folder {
    /// A new folder, removed when this is dropped.
    pub(crate) async fn temporary() -> Result<Self, Error> {
        let wrong = |source| Error::Folder { path: std::env::temp_dir(), source };
        let temporary = tempfile::Builder::new().prefix("toolyard-").tempdir().map_err(wrong)?;
        Self::open(temporary.path().to_owned(), Some(temporary)).await
    }

    /// This folder, created when missing. A log of an earlier server is emptied.
    pub(crate) async fn at(path: &Path) -> Result<Self, Error> {
        let wrong = |source| Error::Folder { path: path.to_owned(), source };
        std::fs::create_dir_all(path).map_err(wrong)?;
        let path = path.canonicalize().map_err(wrong)?;
        Self::open(path, None).await
    }

    async fn open(path: PathBuf, temporary: Option<TempDir>) -> Result<Self, Error> {
        let wrong = |source| Error::Folder { path: path.clone(), source };
        let log =
            OpenOptions::new().create(true).read(true).append(true).open(path.join("server.log")).map_err(wrong)?;
        if !lock(&log, LOCK_LIMIT).await.map_err(wrong)? {
            return Err(Error::FolderInUse { path });
        }
        log.set_len(0).map_err(wrong)?;
        Ok(Self { path, log, temporary })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn is_temporary(&self) -> bool {
        self.temporary.is_some()
    }

    pub(crate) fn log(&self) -> &File {
        &self.log
    }

    /// Bytes in the log.
    pub(crate) fn log_len(&self) -> u64 {
        self.log.metadata().map_or(0, |metadata| metadata.len())
    }

    /// The last lines that were written after byte `start`, for an error's text.
    pub(crate) fn log_end(&self, start: u64) -> String {
        let start = start.max(self.log_len().saturating_sub(LOG_BYTES_MAX));
        match read_from(&self.log, start) {
            Ok(bytes) => last_lines(&bytes, LOG_LINES_MAX),
            Err(error) => format!("(the log cannot be read: {error})"),
        }
    }
}

/// Locks the file for this process alone; false when another one held it all the time. Polls, because waiting for a
/// lock has no deadline.
pub(crate) async fn lock(file: &File, limit: Duration) -> io::Result<bool> {
    let deadline = Instant::now() + limit;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => sleep(LOCK_POLL).await,
            Err(TryLockError::WouldBlock) => return Ok(false),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}

/// The last `lines_max` lines, indented for an error's text.
pub(crate) fn last_lines(bytes: &[u8], lines_max: usize) -> String {
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let first = lines.len().saturating_sub(lines_max);
    lines[first..].iter().map(|line| format!("\n    {line}")).collect()
}

fn read_from(mut log: &File, start: u64) -> io::Result<Vec<u8>> {
    // Moves the position that the server's output shares; harmless, as appending ignores it.
    log.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    log.take(LOG_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}
