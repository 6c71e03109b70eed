//! Folders that are kept apart: one for each call or run, with a quota, gone afterwards.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, chown};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};
use toolyard_tool::Left;

use crate::User;
use crate::removal::remove_all;

/// The pause between two measurements of a folder.
const MEASURE_PAUSE: Duration = Duration::from_millis(500);
/// Folders below folders that are measured: deeper ones are as good as too many files.
const DEPTH_MAX: usize = 256;

/// Folders that this process made: their names are different.
static MADE: AtomicU64 = AtomicU64::new(0);

/// Which calls share a folder.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Sharing {
    /// All calls of the worker work in the root.
    #[default]
    Shared,
    /// Each call has a folder, which is removed when it has ended.
    Call,
    /// The calls of a run have a folder on each worker, which is removed when none has used it for a while.
    Run,
}

/// `shared`, `call` or `run`.
impl FromStr for Sharing {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "shared" => Ok(Self::Shared),
            "call" => Ok(Self::Call),
            "run" => Ok(Self::Run),
            _ => Err(format!("{text:?} is not one of shared, call, run")),
        }
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
    runs: Mutex<HashMap<PathBuf, Users>>,
}

/// The calls that use the folder of a run.
#[derive(Debug)]
struct Users {
    count: usize,
    last: Instant,
}

impl Workspaces {
    /// Folders below `root`, which belong to `user`, the user of programs. Folders of workers that were killed are
    /// removed. Those of runs are removed when nobody has used them for `idle`, at the next opening or closing of any.
    ///
    /// # Errors
    /// When `root` cannot be read.
    pub fn new(root: &Path, sharing: Sharing, quota: Quota, idle: Duration, user: Option<User>) -> io::Result<Self> {
        let root = root.canonicalize()?;
        for folder in remains(&root)? {
            remove(&folder);
        }
        Ok(Self { inner: Arc::new(Inner { root, sharing, quota, idle, user, runs: Mutex::default() }) })
    }

    /// The folder of a call. Programs that are started in it should name it as their
    /// [`workspace`](crate::Request::workspace), which keeps confined ones from all others.
    ///
    /// # Errors
    /// When the folder cannot be made.
    pub fn open(&self, run: &str, left: Left) -> io::Result<Workspace> {
        let Inner { root, sharing, .. } = self.inner.as_ref();
        self.sweep();
        let process = std::process::id();
        let folder = match sharing {
            Sharing::Shared => root.clone(),
            Sharing::Call => {
                let folder = root.join(format!("call-{process}-{}", MADE.fetch_add(1, Ordering::Relaxed)));
                self.make(&folder)?;
                folder
            }
            Sharing::Run => {
                let run: String = run.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
                let folder = root.join(format!("run-{process}-{run}"));
                let mut runs = self.inner.runs.lock().unwrap_or_else(PoisonError::into_inner);
                if !runs.contains_key(&folder) {
                    self.make(&folder)?;
                }
                let users = runs.entry(folder.clone()).or_insert(Users { count: 0, last: Instant::now() });
                users.count += 1;
                folder
            }
        };
        Ok(Workspace { folder, workspaces: self.clone(), left })
    }

    fn make(&self, folder: &Path) -> io::Result<()> {
        fs::DirBuilder::new().mode(0o700).create(folder)?;
        match self.inner.user {
            Some(User { uid, gid }) => chown(folder, Some(uid), Some(gid)),
            None => Ok(()),
        }
    }

    /// Removes the folders of runs that were idle for too long.
    fn sweep(&self) {
        let mut runs = self.inner.runs.lock().unwrap_or_else(PoisonError::into_inner);
        runs.retain(|folder, users| {
            let is_idle = users.count == 0 && users.last.elapsed() >= self.inner.idle;
            if is_idle {
                remove(folder);
            }
            !is_idle
        });
    }
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
    /// until then. May be dropped while it waits. Never resolves for a shared folder.
    pub async fn exceeded(&self) -> QuotaExceeded {
        loop {
            sleep(MEASURE_PAUSE).await;
            let (folder, quota, whose) = (self.folder.clone(), self.workspaces.inner.quota, self.whose());
            if self.workspaces.inner.sharing == Sharing::Shared {
                std::future::pending::<()>().await;
            }
            let measured = tokio::task::spawn_blocking(move || check(&folder, quota, whose)).await;
            if let Ok(Err(exceeded)) = measured {
                return exceeded;
            }
        }
    }

    fn whose(&self) -> &'static str {
        match self.workspaces.inner.sharing {
            Sharing::Shared => "worker",
            Sharing::Call => "call",
            Sharing::Run => "run",
        }
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        let workspaces = self.workspaces.clone();
        match workspaces.inner.sharing {
            Sharing::Shared => {}
            Sharing::Call => {
                let folder = self.folder.clone();
                match Handle::try_current() {
                    // The call is not over before its folder is gone.
                    Ok(runtime) => {
                        let removing = runtime.spawn_blocking(move || remove(&folder));
                        self.left.keep(async { drop(removing.await) }, &runtime);
                    }
                    Err(_) => remove(&folder),
                }
            }
            Sharing::Run => {
                let mut runs = workspaces.inner.runs.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(users) = runs.get_mut(&self.folder) {
                    (users.count, users.last) = (users.count.saturating_sub(1), Instant::now());
                }
                drop(runs);
                workspaces.sweep();
            }
        }
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

/// Folders of workers that do not live any more.
fn remains(root: &Path) -> io::Result<Vec<PathBuf>> {
    let is_dead = |name: &str| {
        let rest = name.strip_prefix("call-").or_else(|| name.strip_prefix("run-"));
        let process = rest.and_then(|rest| rest.split_once('-')?.0.parse::<i32>().ok());
        let process = process.and_then(rustix::process::Pid::from_raw);
        process
            .is_some_and(|process| matches!(rustix::process::test_kill_process(process), Err(rustix::io::Errno::SRCH)))
    };
    let entries = fs::read_dir(root)?.flatten();
    let dead = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let dead = dead.filter(|entry| is_dead(&entry.file_name().to_string_lossy()));
    Ok(dead.map(|entry| entry.path()).collect())
}

/// Removes a folder with all in it, in which nothing runs any more.
fn remove(folder: &Path) {
    if let Err(error) = remove_all(folder) {
        tracing::warn!(folder = %folder.display(), %error, "removing the folder of a call or run failed");
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn workspaces(root: &Path, sharing: Sharing) -> Workspaces {
        let quota = Quota { bytes: 64 * 1024, files: 20 };
        Workspaces::new(root, sharing, quota, Duration::ZERO, None).unwrap()
    }

    #[tokio::test]
    async fn each_call_has_a_folder_that_goes_with_it() {
        let root = tempfile::tempdir().unwrap();
        let (workspaces, left) = (workspaces(root.path(), Sharing::Call), Left::default());
        let first = workspaces.open("a", left.clone()).unwrap();
        let second = workspaces.open("a", left.clone()).unwrap();
        assert_ne!(first.folder(), second.folder());
        let folder = first.folder().to_owned();
        fs::create_dir_all(folder.join("closed/inside")).unwrap();
        fs::set_permissions(folder.join("closed"), fs::Permissions::from_mode(0o000)).unwrap();
        drop(first);
        left.gone().await;
        assert!(!folder.exists() && second.folder().exists());
    }

    #[tokio::test]
    async fn the_calls_of_a_run_share_a_folder_until_it_is_idle() {
        let root = tempfile::tempdir().unwrap();
        let workspaces = workspaces(root.path(), Sharing::Run);
        let first = workspaces.open("a/../b", Left::default()).unwrap();
        let second = workspaces.open("a/../b", Left::default()).unwrap();
        let other = workspaces.open("c", Left::default()).unwrap();
        assert_eq!(first.folder(), second.folder());
        assert_ne!(first.folder(), other.folder());
        assert_eq!(first.folder().parent(), Some(root.path().canonicalize().unwrap().as_path()));
        let folder = first.folder().to_owned();
        drop(first);
        assert!(folder.exists());
        drop(second);
        assert!(!folder.exists() && other.folder().exists());
    }

    #[tokio::test]
    async fn a_folder_that_holds_too_much_is_noticed() {
        let root = tempfile::tempdir().unwrap();
        let workspaces = workspaces(root.path(), Sharing::Call);
        let large = workspaces.open("a", Left::default()).unwrap();
        fs::write(large.folder().join("large"), vec![1; 128 * 1024]).unwrap();
        assert!(large.exceeded().await.to_string().contains("of this call holds"));
        let many = workspaces.open("a", Left::default()).unwrap();
        for number in 0..21 {
            fs::write(many.folder().join(number.to_string()), "").unwrap();
        }
        let error = many.exceeded().await.to_string();
        assert!(error.contains("21 files or more, at most 20 files"), "{error}");
    }

    #[tokio::test]
    async fn a_shared_folder_is_the_root_and_stays() {
        let root = tempfile::tempdir().unwrap();
        let workspaces = workspaces(root.path(), Sharing::Shared);
        drop(workspaces.open("a", Left::default()).unwrap());
        assert!(root.path().exists());
    }

    #[test]
    fn folders_of_workers_that_were_killed_are_removed() {
        let root = tempfile::tempdir().unwrap();
        let own = format!("call-{}-7", std::process::id());
        for name in ["call-4194305-0", "run-4194305-a", own.as_str(), "call-me", "other"] {
            fs::create_dir(root.path().join(name)).unwrap();
        }
        workspaces(root.path(), Sharing::Call);
        let mut left: Vec<_> = fs::read_dir(root.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, [own.as_str(), "call-me", "other"]);
    }
}
