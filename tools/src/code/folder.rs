//! The folder of one call: its code, the files that it is given, and those that it leaves. It is removed with its call.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use futures::TryStreamExt as _;
use ring::digest::{self, SHA256};
use rustix::fs::OFlags;
use sandbox::{TemporaryFolder, User};
use serde::Serialize;
use tokio::runtime::Handle;
use toolyard_tool::{Context, Left as Leftovers, ToolError};

use crate::lines::on_thread;

/// Bytes of all files that a call is given.
const GIVEN_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// Files that are returned, and bytes of one and of all.
const FILES_MAX: usize = 32;
const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;
const ALL_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Files and folders that are looked at.
const ENTRIES_MAX: usize = 10_000;
/// Folders in folders that are looked at.
const DEPTH_MAX: usize = 64;
/// Left out files that the result names.
const LEFT_OUT_MAX: usize = 32;
/// What is known by the ends of names.
const MEDIA_TYPES: [(&str, &str); 17] = [
    ("png", "image/png"),
    ("jpg", "image/jpeg"),
    ("jpeg", "image/jpeg"),
    ("gif", "image/gif"),
    ("webp", "image/webp"),
    ("svg", "image/svg+xml"),
    ("csv", "text/csv"),
    ("txt", "text/plain"),
    ("md", "text/markdown"),
    ("html", "text/html"),
    ("json", "application/json"),
    ("pdf", "application/pdf"),
    ("zip", "application/zip"),
    ("xml", "application/xml"),
    ("parquet", "application/vnd.apache.parquet"),
    ("xlsx", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"),
    ("docx", "application/vnd.openxmlformats-officedocument.wordprocessingml.document"),
];

/// The folder of a call.
#[derive(Debug)]
pub(super) struct Folder {
    top: PathBuf,
    /// Removes it; `None` if it is gone.
    removal: Option<TemporaryFolder>,
    user: Option<User>,
    /// What the call leaves behind.
    leftovers: Leftovers,
    /// The SHA-256 of each file that was given.
    given: std::sync::Mutex<HashMap<PathBuf, [u8; 32]>>,
}

/// What the code left.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) summary: Vec<Left>,
    /// Media types and contents, in the order of those in the summary that are not left out.
    pub(super) files: Vec<(String, Vec<u8>)>,
}

/// A file that the code left.
#[derive(Debug, Serialize)]
pub(super) struct Left {
    name: String,
    size: u64,
    media_type: String,
    /// Why its content is not returned.
    #[serde(skip_serializing_if = "Option::is_none")]
    left_out: Option<String>,
}

impl Folder {
    /// A fresh one, of the user as whom programs run.
    pub(super) fn make(user: Option<User>, leftovers: Leftovers) -> io::Result<Self> {
        let removal = TemporaryFolder::new("toolyard-code-", user)?;
        let top = removal.path().to_owned();
        let folder = Self { top, removal: Some(removal), user, leftovers, given: std::sync::Mutex::default() };
        fs::create_dir(folder.work())?;
        folder.own(&folder.work())?;
        Ok(folder)
    }

    /// All of it: what the code may change.
    pub(super) fn top(&self) -> &Path {
        &self.top
    }

    /// Where the code runs, and files are.
    pub(super) fn work(&self) -> PathBuf {
        self.top().join("work")
    }

    /// The file of the code.
    pub(super) fn code(&self) -> PathBuf {
        self.top().join("code.py")
    }

    fn own(&self, path: &Path) -> io::Result<()> {
        match self.user {
            Some(User { uid, gid }) => chown(path, Some(uid), Some(gid)),
            None => Ok(()),
        }
    }

    /// Writes the code, and the files of the call.
    pub(super) async fn fill(&self, context: &Context, code: &str) -> Result<(), ToolError> {
        fs::write(self.code(), code)?;
        self.own(&self.code())?;
        let files = context.files();
        let bytes: u64 = files.iter().map(|file| file.object.size).fold(0, u64::saturating_add);
        if bytes > GIVEN_BYTES_MAX {
            let message = format!("the files of the call have {bytes} bytes, at most {GIVEN_BYTES_MAX} are taken here");
            return Err(ToolError::new(message));
        }
        for file in files {
            let name = file.name.as_str();
            if name.is_empty() || name.contains(['/', '\0']) || matches!(name, "." | "..") {
                return Err(ToolError::new(format!(
                    "the call's file {name:?} cannot be the name of a file in a folder"
                )));
            }
            let path = self.work().join(name);
            let mut written = fs::File::create_new(&path)?;
            let mut pieces = Box::pin(context.read(file));
            while let Some(piece) = pieces.try_next().await? {
                written = on_thread(move || {
                    written.write_all(&piece)?;
                    Ok(written)
                })
                .await?;
            }
            self.own(&path)?;
            let mut given = self.given.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            given.insert(path, file.object.sha256);
        }
        Ok(())
    }

    /// The files that are new or changed. Links, and what is no file, are passed over. No process of the call lives.
    /// The folder is removed then, which takes its time.
    pub(super) fn take(mut self) -> io::Result<Found> {
        let found = self.find();
        self.removal = None;
        found
    }

    fn find(&self) -> io::Result<Found> {
        let mut found = Found::default();
        let given = std::mem::take(&mut *self.given.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
        let mut files = files(&self.work())?;
        files.sort();
        let (mut all_bytes, mut left_out_count) = (0, 0);
        for path in files {
            let name = path.strip_prefix(self.work()).unwrap_or(&path).to_string_lossy().into_owned();
            let Some(mut file) = open(&path)? else { continue };
            if let Some(was) = given.get(&path) {
                if sha256(&mut file)? == *was {
                    continue;
                }
                file.rewind()?;
            }
            let size = file.metadata()?.len();
            let media_type = media_type(&path).to_owned();
            let left_out = if size > FILE_BYTES_MAX {
                Some(format!("it has more than {FILE_BYTES_MAX} bytes"))
            } else if found.files.len() == FILES_MAX {
                Some(format!("there are more than {FILES_MAX} files"))
            } else if all_bytes + size > ALL_BYTES_MAX {
                Some(format!("the files have more than {ALL_BYTES_MAX} bytes together"))
            } else {
                None
            };
            if left_out.is_none() {
                let mut bytes = Vec::new();
                file.read_to_end(&mut bytes)?;
                all_bytes += size;
                found.files.push((media_type.clone(), bytes));
            } else {
                left_out_count += 1;
                if left_out_count > LEFT_OUT_MAX {
                    continue;
                }
            }
            found.summary.push(Left { name, size, media_type, left_out });
        }
        Ok(found)
    }
}

impl Drop for Folder {
    /// The call is not over before its folder is gone.
    fn drop(&mut self) {
        let (Some(removal), Ok(runtime)) = (self.removal.take(), Handle::try_current()) else { return };
        let removing = runtime.spawn_blocking(move || drop(removal));
        self.leftovers.keep(async { drop(removing.await) }, &runtime);
    }
}

/// All files below a folder. Folders are opened for their owner, so that they can be read.
fn files(top: &Path) -> io::Result<Vec<PathBuf>> {
    let (mut files, mut folders, mut count) = (Vec::new(), vec![(top.to_owned(), 0)], 0);
    while let Some((folder, depth)) = folders.pop() {
        if depth > DEPTH_MAX {
            return Err(io::Error::other(format!("the code left folders that are nested deeper than {DEPTH_MAX}")));
        }
        let metadata = fs::symlink_metadata(&folder)?;
        if metadata.mode() & 0o700 != 0o700 {
            fs::set_permissions(&folder, fs::Permissions::from_mode(0o700))?;
        }
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            count += 1;
            if count > ENTRIES_MAX {
                return Err(io::Error::other(format!("the code left more than {ENTRIES_MAX} files and folders")));
            }
            let kind = entry.file_type()?;
            if kind.is_dir() {
                folders.push((entry.path(), depth + 1));
            } else if kind.is_file() {
                files.push(entry.path());
            }
        }
    }
    Ok(files)
}

/// A file that is only here; `None` for anything else, as a link to what the code may not read.
fn open(path: &Path) -> io::Result<Option<fs::File>> {
    let metadata = fs::symlink_metadata(path)?;
    if !metadata.is_file() || metadata.nlink() != 1 {
        return Ok(None);
    }
    if metadata.mode() & 0o400 == 0 {
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    }
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
    let file = fs::OpenOptions::new().read(true).custom_flags(flags.cast_signed()).open(path)?;
    Ok(Some(file))
}

fn sha256(file: &mut fs::File) -> io::Result<[u8; 32]> {
    let (mut digest, mut buffer) = (digest::Context::new(&SHA256), vec![0; 64 * 1024]);
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            count => digest.update(&buffer[..count]),
        }
    }
    let mut sha256 = [0; 32];
    sha256.copy_from_slice(digest.finish().as_ref());
    Ok(sha256)
}

fn media_type(path: &Path) -> &'static str {
    let end = path.extension().map(|end| end.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
    let known = MEDIA_TYPES.iter().find(|(known, _)| *known == end);
    known.map_or("application/octet-stream", |(_, media_type)| media_type)
}
