//! Removes folders that programs filled, whatever is in them.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dev, Dir, FileType, Mode, OFlags, chmodat, fchmod, fstat, openat, unlinkat};
use rustix::io::Errno;

use crate::User;

/// A folder for temporary files of programs, with a name that was free. It is removed when this is dropped, however
/// deep it is and whatever rights programs took away.
#[derive(Debug)]
pub struct TemporaryFolder {
    path: PathBuf,
}

impl TemporaryFolder {
    /// A new one, whose name begins with `prefix`. It belongs to `user`; `None`: to the user of this process.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub fn new(prefix: &str, user: Option<User>) -> io::Result<Self> {
        let folder = Self { path: tempfile::Builder::new().prefix(prefix).tempdir()?.keep() };
        if let Some(User { uid, gid }) = user {
            std::os::unix::fs::chown(&folder.path, Some(uid), Some(gid))?;
        }
        Ok(folder)
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for TemporaryFolder {
    /// Takes as long as the removal.
    fn drop(&mut self) {
        if let Err(error) = remove_all(&self.path) {
            tracing::warn!(folder = %self.path.display(), %error, "removing a temporary folder failed");
        }
    }
}

/// A folder on the way down.
struct Above {
    /// The name of the next folder in it.
    next: OsString,
    /// Device and inode, by which it is recognized on the way up.
    id: (Dev, u64),
}

/// Removes a folder with all in it. Links are removed, and not followed.
///
/// The standard library calls itself and keeps a descriptor for each level: a program that nests thousands of folders
/// would end the process, or take all its descriptors. This keeps one folder open, and names on the heap.
pub(crate) fn remove_all(top: &Path) -> io::Result<()> {
    let mut above: Vec<Above> = Vec::new();
    let mut folder = open(CWD, top)?;
    loop {
        if let Some(next) = empty(&folder)? {
            let inner = open(folder.as_fd(), Path::new(&next))?;
            above.push(Above { next, id: identify(&folder)? });
            folder = inner;
            continue;
        }
        let Some(Above { next, id }) = above.pop() else { break };
        let outer = openat(&folder, "..", FOLDER, Mode::empty())?;
        if identify(&outer)? != id {
            return Err(io::Error::other(format!("the folder {next:?} in it was moved meanwhile")));
        }
        unlinkat(&outer, &next, AtFlags::REMOVEDIR)?;
        folder = outer;
    }
    fs::remove_dir(top)
}

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens a folder, in which this process may remove anything then.
fn open(parent: BorrowedFd<'_>, name: &Path) -> io::Result<OwnedFd> {
    let folder = match openat(parent, name, FOLDER, Mode::empty()) {
        Err(Errno::ACCESS) => {
            chmodat(parent, name, Mode::RWXU, AtFlags::empty())?;
            openat(parent, name, FOLDER, Mode::empty())?
        }
        opened => opened?,
    };
    if !Mode::from_raw_mode(fstat(&folder)?.st_mode).contains(Mode::RWXU) {
        fchmod(&folder, Mode::RWXU)?;
    }
    Ok(folder)
}

/// Removes everything in a folder until one is met that has something in it.
fn empty(folder: &OwnedFd) -> io::Result<Option<OsString>> {
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let is_folder = match entry.file_type() {
            FileType::Unknown => {
                let found = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
                FileType::from_raw_mode(found.st_mode) == FileType::Directory
            }
            kind => kind == FileType::Directory,
        };
        let flags = if is_folder { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        match unlinkat(folder, name, flags) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::NOTEMPTY | Errno::EXIST) => return Ok(Some(OsString::from_vec(name.to_bytes().to_vec()))),
            Err(error) => return Err(io::Error::new(error.kind(), format!("{}: {error}", name.to_string_lossy()))),
        }
    }
    Ok(None)
}

fn identify(folder: &OwnedFd) -> io::Result<(Dev, u64)> {
    let found = fstat(folder)?;
    Ok((found.st_dev, found.st_ino))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_folder_that_is_deeper_than_a_path_is_long_is_removed() {
        let top = TemporaryFolder::new("toolyard-test-", None).unwrap();
        let path = top.path().to_owned();
        let mut folder = open(CWD, &path).unwrap();
        for _ in 0..5_000 {
            rustix::fs::mkdirat(&folder, "d", Mode::RWXU).unwrap();
            folder = open(folder.as_fd(), Path::new("d")).unwrap();
        }
        let thread = std::thread::Builder::new().stack_size(64 * 1024);
        thread.spawn(move || drop(top)).unwrap().join().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn links_are_removed_and_their_targets_stay() {
        let kept = tempfile::tempdir().unwrap();
        fs::write(kept.path().join("file"), "").unwrap();
        let top = TemporaryFolder::new("toolyard-test-", None).unwrap();
        let path = top.path().to_owned();
        std::os::unix::fs::symlink(kept.path(), path.join("link")).unwrap();
        fs::create_dir_all(path.join("closed/inside")).unwrap();
        std::os::unix::fs::symlink("/", path.join("closed/inside/all")).unwrap();
        fs::set_permissions(path.join("closed"), fs::Permissions::from_mode(0o500)).unwrap();
        drop(top);
        assert!(!path.exists() && kept.path().join("file").exists());
    }
}
