//! Folders that are kept apart: one for each call, run or tenant, with a quota.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, flock, openat};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};
use toolyard_tool::runtime::Requester;
use toolyard_tool::{Context, Left, ToolError};

use crate::User;
use crate::removal::remove_all;

/// The pause between two measurements of a folder.
const MEASURE_PAUSE: Duration = Duration::from_millis(500);
/// Folders below folders that are measured: deeper ones are as good as too many files.
const DEPTH_MAX: usize = 256;
/// How long the folder of a run is kept after its last call on this worker: a run has more turns, and the worker does
/// not learn of its end.
pub const RUN_IDLE: Duration = Duration::from_secs(60 * 60);
/// How often idle folders are looked for in the time after which they are removed, and the shortest pause.
const SWEEPS: u32 = 12;
const SWEEP_PAUSE_MIN: Duration = Duration::from_secs(1);
/// How often, and after which pauses, a folder is removed in which processes that were killed may still write.
const REMOVALS_MAX: u32 = 20;
const REMOVAL_PAUSE: Duration = Duration::from_millis(100);
/// Names of folders in the root.
const OF_WORKER: &str = "worker-";
const OF_TENANT: &str = "tenant-";
const OF_NO_TENANT: &str = "no-tenant";
const OF_SERVERS: &str = "servers";

/// Which calls share a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// Each call has a folder, which is removed when it has ended.
    Call,
    /// The calls of a run have a folder on each worker, which is removed when none has used it for a while.
    Run,
    /// The calls of a tenant have a folder, which stays. Calls without a tenant share one, too.
    Tenant,
}

impl Sharing {
    /// The names that `from_str` takes.
    pub const NAMES: [&'static str; 3] = ["call", "run", "tenant"];

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Call => "call",
            Self::Run => "run",
            Self::Tenant => "tenant",
        }
    }
}

impl FromStr for Sharing {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = [Self::Call, Self::Run, Self::Tenant].into_iter().find(|sharing| sharing.name() == text);
        found.ok_or_else(|| format!("{text:?} is not one of {}", Self::NAMES.join(", ")))
    }
}

/// How much a folder may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// Bytes on the disk.
    pub bytes: u64,
    /// Files, folders and links.
    pub files: u64,
}

impl Default for Quota {
    fn default() -> Self {
        Self { bytes: 4 * 1024 * 1024 * 1024, files: 100_000 }
    }
}

/// A folder holds more than it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the folder of this {whose} holds {held} or more, at most {allowed} are allowed: remove files that are not needed"
)]
pub struct QuotaExceeded {
    whose: &'static str,
    held: Amount,
    allowed: Amount,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Amount {
    Bytes(u64),
    Files(u64),
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "{bytes} bytes"),
            Self::Files(files) => write!(f, "{files} files"),
        }
    }
}

/// A call gets no folder.
#[derive(Debug, thiserror::Error)]
pub enum WorkspaceError {
    #[error(
        "this worker keeps the folders of tenants apart, and the coordinator does not say whose call this is: upgrade \
         the coordinators"
    )]
    NoRequester,
    #[error("the folder {} cannot be made: {source}", folder.display())]
    Make { folder: PathBuf, source: io::Error },
}

/// Makes and removes the folders below a root. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Workspaces {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    root: PathBuf,
    sharing: Sharing,
    quota: Quota,
    idle: Duration,
    user: Option<User>,
    own: Own,
    /// Numbers the folders of calls.
    made: AtomicU64,
    runs: Mutex<Runs>,
}

/// The folders of runs.
#[derive(Debug, Default)]
struct Runs {
    used: HashMap<PathBuf, Users>,
    /// A task removes those that are idle.
    are_swept: bool,
}

/// The folder with those of this worker's calls and runs. Its lock tells other workers that this one lives, also those
/// in containers that share a volume. Goes with the worker.
#[derive(Debug)]
struct Own {
    folder: PathBuf,
    _lock: OwnedFd,
}

/// The calls that use the folder of a run.
#[derive(Debug)]
struct Users {
    count: usize,
    last: Instant,
}

impl Workspaces {
    /// Folders below `root`, which belong to `user`, the user of programs. What workers that were killed left there is
    /// removed.
    ///
    /// # Errors
    /// When `root` cannot be read or written.
    pub fn new(root: &Path, sharing: Sharing, quota: Quota, user: Option<User>) -> io::Result<Self> {
        Self::removing_after(RUN_IDLE, root, sharing, quota, user)
    }

    /// As [`Self::new`]. The folders of runs are removed when nobody has used them for `idle`.
    fn removing_after(
        idle: Duration,
        root: &Path,
        sharing: Sharing,
        quota: Quota,
        user: Option<User>,
    ) -> io::Result<Self> {
        let root = root.canonicalize()?;
        remove_remains(&root)?;
        let own = Own::make(&root)?;
        let (made, runs) = (AtomicU64::default(), Mutex::default());
        Ok(Self { inner: Arc::new(Inner { root, sharing, quota, idle, user, own, made, runs }) })
    }

    #[must_use]
    pub fn sharing(&self) -> Sharing {
        self.inner.sharing
    }

    /// The folder of a call. Programs that are started in it should name it as their
    /// [`workspace`](crate::Request::workspace), which keeps confined ones from all others.
    ///
    /// # Errors
    /// When the folder cannot be made, or it is not known whose it is.
    pub fn open(&self, context: &Context) -> Result<Workspace, WorkspaceError> {
        self.open_of(&context.run_id().to_string(), context.requester(), context.left())
    }

    fn open_of(&self, run: &str, requester: Option<&Requester>, left: Left) -> Result<Workspace, WorkspaceError> {
        let Inner { root, sharing, own, made, .. } = self.inner.as_ref();
        let folder = match sharing {
            Sharing::Call => {
                let folder = own.folder.join(format!("call-{}", made.fetch_add(1, Ordering::Relaxed)));
                self.inner.make(&folder)?;
                folder
            }
            Sharing::Run => {
                let run: String = run.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
                let folder = own.folder.join(run);
                let mut runs = self.inner.runs();
                if !runs.used.contains_key(&folder) {
                    self.inner.make(&folder)?;
                }
                let users = runs.used.entry(folder.clone()).or_insert(Users { count: 0, last: Instant::now() });
                users.count += 1;
                folder
            }
            Sharing::Tenant => {
                let name = match &requester.ok_or(WorkspaceError::NoRequester)?.tenant {
                    Some(tenant) => format!("{OF_TENANT}{tenant}"),
                    None => OF_NO_TENANT.to_owned(),
                };
                let folder = root.join(name);
                self.inner.keep(&folder)?;
                folder
            }
        };
        Ok(Workspace { folder, workspaces: self.clone(), left })
    }

    /// A folder for programs that serve the calls of all, beside the others.
    ///
    /// # Errors
    /// When the folder cannot be made.
    pub fn of_servers(&self) -> Result<PathBuf, WorkspaceError> {
        let folder = self.inner.root.join(OF_SERVERS);
        self.inner.keep(&folder).map(|()| folder)
    }
}

impl Inner {
    fn make(&self, folder: &Path) -> Result<(), WorkspaceError> {
        let made = fs::DirBuilder::new().mode(0o700).create(folder);
        let owned = made.and_then(|()| match self.user {
            Some(User { uid, gid }) => chown(folder, Some(uid), Some(gid)),
            None => Ok(()),
        });
        owned.map_err(|source| WorkspaceError::Make { folder: folder.to_owned(), source })
    }

    /// Makes a folder that stays, unless it is there.
    fn keep(&self, folder: &Path) -> Result<(), WorkspaceError> {
        match self.make(folder) {
            // A link would lead elsewhere.
            Err(WorkspaceError::Make { source, .. })
                if source.kind() == io::ErrorKind::AlreadyExists
                    && folder.symlink_metadata().is_ok_and(|found| found.is_dir()) =>
            {
                Ok(())
            }
            made => made,
        }
    }

    fn runs(&self) -> MutexGuard<'_, Runs> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the folders of runs that were idle for too long, and returns whether others are left. Takes as long as
    /// the removal, in which calls of other runs go on.
    fn sweep(&self) -> bool {
        let mut idle = Vec::new();
        let mut runs = self.runs();
        runs.used.retain(|folder, users| {
            let is_idle = users.count == 0 && users.last.elapsed() >= self.idle;
            if is_idle {
                // The next call of the run may make a folder of this name while this one is removed.
                let renamed = self.own.folder.join(format!("idle-{}", self.made.fetch_add(1, Ordering::Relaxed)));
                match fs::rename(folder, &renamed) {
                    Ok(()) => idle.push(renamed),
                    Err(error) => report(folder, Err(error)),
                }
            }
            !is_idle
        });
        let are_left = !runs.used.is_empty();
        runs.are_swept &= are_left;
        drop(runs);
        idle.iter().for_each(|folder| report(folder, remove(folder)));
        are_left
    }

    fn whose(&self) -> &'static str {
        self.sharing.name()
    }
}

impl Own {
    fn make(root: &Path) -> io::Result<Self> {
        loop {
            let made = tempfile::Builder::new().prefix(OF_WORKER).tempdir_in(root)?.keep();
            // A worker that starts at this moment may have taken it for one that was left.
            let Some(lock) = lock(&made)? else { continue };
            // The user of programs passes through it, and does not see which folders are there.
            fs::set_permissions(&made, fs::Permissions::from_mode(0o711))?;
            return Ok(Self { folder: made, _lock: lock });
        }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        report(&self.folder, remove(&self.folder));
    }
}

/// Locks a folder; `None` if another process has locked it, or it is gone.
fn lock(folder: &Path) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
    let opened = match openat(CWD, folder, flags, Mode::empty()) {
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        opened => opened?,
    };
    match flock(&opened, FlockOperation::NonBlockingLockExclusive) {
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        locked => Ok(locked.map(|()| Some(opened))?),
    }
}

/// Removes the folders of workers that do not live any more.
fn remove_remains(root: &Path) -> io::Result<()> {
    for entry in fs::read_dir(root)?.flatten() {
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if !is_folder || !entry.file_name().to_string_lossy().starts_with(OF_WORKER) {
            continue;
        }
        if let Some(_lock) = lock(&entry.path())? {
            report(&entry.path(), remove(&entry.path()));
        }
    }
    Ok(())
}

/// The folder of a call while the call runs.
#[derive(Debug)]
pub struct Workspace {
    folder: PathBuf,
    workspaces: Workspaces,
    left: Left,
}

impl Workspace {
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Resolves when the folder holds more than it may, which is measured twice a second: a fast program exceeds it
    /// until then. May be dropped while it waits.
    pub async fn exceeded(&self) -> QuotaExceeded {
        loop {
            sleep(MEASURE_PAUSE).await;
            if let Err(exceeded) = self.check().await {
                return exceeded;
            }
        }
    }

    /// Does the work of a call, which fails when the folder holds more than it may.
    ///
    /// # Errors
    /// That, and those of the work.
    pub async fn bounded<T>(&self, work: impl Future<Output = Result<T, ToolError>>) -> Result<T, ToolError> {
        let done = tokio::select! {
            biased;
            done = work => done?,
            exceeded = self.exceeded() => return Err(exceeded.into()),
        };
        // Work that is shorter than the pause between two measurements fills a folder as well.
        if self.workspaces.inner.sharing != Sharing::Call {
            self.check().await?;
        }
        Ok(done)
    }

    /// Measures the folder.
    ///
    /// # Errors
    /// When it holds more than it may.
    pub async fn check(&self) -> Result<(), QuotaExceeded> {
        let inner = &self.workspaces.inner;
        let (folder, quota, whose) = (self.folder.clone(), inner.quota, inner.whose());
        tokio::task::spawn_blocking(move || check(&folder, quota, whose)).await.unwrap_or(Ok(()))
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        let inner = &self.workspaces.inner;
        match inner.sharing {
            Sharing::Tenant => {}
            Sharing::Call => {
                let folder = self.folder.clone();
                match Handle::try_current() {
                    // The call is not over before its folder is gone.
                    Ok(runtime) => self.left.keep(remove_surely(folder), &runtime),
                    Err(_) => report(&folder, remove(&folder)),
                }
            }
            Sharing::Run => {
                let mut runs = inner.runs();
                if let Some(users) = runs.used.get_mut(&self.folder) {
                    (users.count, users.last) = (users.count.saturating_sub(1), Instant::now());
                }
                if !runs.are_swept
                    && let Ok(runtime) = Handle::try_current()
                {
                    runs.are_swept = true;
                    drop(runtime.spawn(sweep_on(Arc::downgrade(inner), inner.idle)));
                }
            }
        }
    }
}

/// Removes the folders of runs that are idle, until none is left or the worker ends.
async fn sweep_on(inner: Weak<Inner>, idle: Duration) {
    loop {
        sleep((idle / SWEEPS).max(SWEEP_PAUSE_MIN)).await;
        let Some(inner) = inner.upgrade() else { return };
        if !tokio::task::spawn_blocking(move || inner.sweep()).await.unwrap_or(true) {
            return;
        }
    }
}

/// Removes a folder in which processes that were killed may still write.
async fn remove_surely(folder: PathBuf) {
    for _ in 1..REMOVALS_MAX {
        let removing = folder.clone();
        if let Ok(Ok(())) = tokio::task::spawn_blocking(move || remove(&removing)).await {
            return;
        }
        sleep(REMOVAL_PAUSE).await;
    }
    report(&folder, remove(&folder));
}

fn report(folder: &Path, removed: io::Result<()>) {
    if let Err(error) = removed {
        tracing::warn!(folder = %folder.display(), %error, "removing the folder of a call, run or worker failed");
    }
}

/// Measures a folder until it holds too much. What cannot be read holds nothing.
fn check(folder: &Path, quota: Quota, whose: &'static str) -> Result<(), QuotaExceeded> {
    const BLOCK_BYTES: u64 = 512;
    let (mut bytes, mut files) = (0_u64, 0_u64);
    let mut folders = vec![(folder.to_owned(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            // Of a link itself, not of its target.
            let Ok(found) = entry.metadata() else { continue };
            (bytes, files) = (bytes + found.blocks() * BLOCK_BYTES, files + 1);
            let exceeded = |held, allowed| Err(QuotaExceeded { whose, held, allowed });
            if bytes > quota.bytes {
                return exceeded(Amount::Bytes(bytes), Amount::Bytes(quota.bytes));
            }
            if files > quota.files || depth > DEPTH_MAX {
                return exceeded(Amount::Files(files), Amount::Files(quota.files));
            }
            if found.is_dir() {
                folders.push((entry.path(), depth + 1));
            }
        }
    }
    Ok(())
}

/// Removes a folder with all in it. One that is gone is no error.
fn remove(folder: &Path) -> io::Result<()> {
    match remove_all(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !folder.exists() => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests;
