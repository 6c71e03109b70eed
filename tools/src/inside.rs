//! A file below the root, reached folder by folder without following links, so that a link that is made meanwhile
//! leads nowhere; and its replacement in one step.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::hash::BuildHasher as _;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Component, Path};

use rustix::fs::{self, AtFlags, CWD, FileType, Gid, Mode, OFlags, RenameFlags, Stat, Uid};
use rustix::io::Errno;

use super::root::Root;
use sandbox::User;

/// A file by the folder that it is in.
#[derive(Debug)]
pub(super) struct Inside {
    folder: OwnedFd,
    name: OsString,
    user: Option<User>,
}

/// The permission to read, to write, and to enter a folder, as in the mode of a file.
pub(super) const READ: u32 = 4;
pub(super) const WRITE: u32 = 2;
pub(super) const ENTER: u32 = 1;

impl Inside {
    /// Opens the folder of `file`, a path below the root as [`Root::file`] returns it. Each folder on the way must be
    /// one that `user` may enter; the root itself was chosen by the operator.
    pub(super) fn open(root: &Root, file: &Path, user: Option<User>) -> io::Result<Self> {
        Self::reach(root, file, user, false)
    }

    /// As [`Self::open`]. Folders that are missing are made, and given to `user`.
    pub(super) fn make(root: &Root, file: &Path, user: Option<User>) -> io::Result<Self> {
        Self::reach(root, file, user, true)
    }

    fn reach(root: &Root, file: &Path, user: Option<User>, makes: bool) -> io::Result<Self> {
        let way = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
        let below = file.strip_prefix(root.path()).map_err(io::Error::other)?;
        let mut folder = fs::openat(CWD, root.path(), way, Mode::empty())?;
        let name = below.file_name().ok_or(io::ErrorKind::IsADirectory)?;
        for part in below.parent().into_iter().flat_map(Path::components) {
            let Component::Normal(part) = part else { return Err(io::ErrorKind::InvalidInput.into()) };
            folder = match fs::openat(&folder, part, way, Mode::empty()) {
                Err(Errno::NOENT) if makes => {
                    match fs::mkdirat(&folder, part, Mode::from_raw_mode(0o777)) {
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(error) => return Err(error.into()),
                    }
                    let made = fs::openat(&folder, part, way, Mode::empty())?;
                    give(&made, user.map(|user| (user.uid, user.gid)))?;
                    made
                }
                opened => opened?,
            };
            if !may(user, &fs::fstat(&folder)?, ENTER) {
                return Err(io::ErrorKind::PermissionDenied.into());
            }
        }
        Ok(Self { folder, name: name.to_owned(), user })
    }

    /// The file, if it is one that the user may read; not a device or a pipe, which could be waited for without end.
    pub(super) fn file(&self) -> io::Result<(File, Stat)> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = fs::openat(&self.folder, &self.name, flags, Mode::empty())?;
        let stat = fs::fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(io::Error::other("it is no regular file"));
        }
        if !may(self.user, &stat, READ) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok((file.into(), stat))
    }

    /// The folder of the file, as the system describes it.
    pub(super) fn folder(&self) -> io::Result<Stat> {
        Ok(fs::fstat(&self.folder)?)
    }

    /// The content, and the file's metadata.
    pub(super) fn read(&self, bytes_max: u64) -> io::Result<(Vec<u8>, Stat)> {
        let (file, stat) = self.file()?;
        let mut content = Vec::new();
        file.take(bytes_max + 1).read_to_end(&mut content)?;
        Ok((content, stat))
    }

    /// Puts new content in the place of the file in one step: a reader sees the old content or the new. `of` is the
    /// file whose mode and owner are kept.
    pub(super) fn replace(&self, content: &[u8], of: &Stat) -> io::Result<()> {
        let written = self.write(content, Mode::from_raw_mode(0o600))?;
        written.finish(|file| {
            give(file, Some((of.st_uid, of.st_gid)))?;
            fs::fchmod(file, Mode::from_raw_mode(of.st_mode & 0o7777))?;
            Ok(())
        })?;
        written.rename(&self.name, RenameFlags::empty())
    }

    /// Puts a new file there in one step. It is an error if one is there.
    pub(super) fn create(&self, content: &[u8], user: Option<User>) -> io::Result<()> {
        let written = self.write(content, Mode::from_raw_mode(0o666))?;
        written.finish(|file| give(file, user.map(|user| (user.uid, user.gid))))?;
        match written.rename(&self.name, RenameFlags::NOREPLACE) {
            // Some file systems cannot do that in one step.
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
                if fs::statat(&self.folder, &self.name, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
                    return Err(io::ErrorKind::AlreadyExists.into());
                }
                written.rename(&self.name, RenameFlags::empty())
            }
            renamed => renamed,
        }
    }

    fn write(&self, content: &[u8], mode: Mode) -> io::Result<Written<'_>> {
        let number = std::hash::RandomState::new().hash_one(&self.name);
        let name = format!(".toolyard-{number:016x}.tmp");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(fs::openat(&self.folder, &name, flags, mode)?);
        let written = Written { folder: &self.folder, name, file: file.try_clone()? };
        file.write_all(content)?;
        file.sync_all()?;
        Ok(written)
    }
}

/// A temporary file. It is removed when it was not renamed.
struct Written<'a> {
    folder: &'a OwnedFd,
    name: String,
    file: File,
}

impl Written<'_> {
    fn finish(&self, how: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
        how(&self.file)
    }

    fn rename(&self, name: &OsStr, flags: RenameFlags) -> io::Result<()> {
        if flags.is_empty() {
            return Ok(fs::renameat(self.folder, &self.name, self.folder, name)?);
        }
        Ok(fs::renameat_with(self.folder, &self.name, self.folder, name, flags)?)
    }
}

impl Drop for Written<'_> {
    fn drop(&mut self) {
        match fs::unlinkat(self.folder, &self.name, AtFlags::empty()) {
            // It is gone if it was renamed.
            Ok(()) | Err(_) => {}
        }
    }
}

/// Gives a file or folder to its owner. Only root can, and only for root can it be another than the worker's user.
fn give(file: impl std::os::fd::AsFd, owner: Option<(u32, u32)>) -> io::Result<()> {
    let Some((uid, gid)) = owner.filter(|_| rustix::process::geteuid().is_root()) else { return Ok(()) };
    Ok(fs::fchown(file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?)
}

/// Whether the user as which tools work may do that with a file, by its mode. A worker that runs as root could do it
/// anyway, so this keeps its tools to what its commands may do. `None` is the worker's own user, which the system
/// checks.
pub(super) fn may(user: Option<User>, file: &Stat, what: u32) -> bool {
    let Some(User { uid, gid }) = user else { return true };
    let bits = match (file.st_uid == uid, file.st_gid == gid) {
        (true, _) => file.st_mode >> 6,
        (false, true) => file.st_mode >> 3,
        (false, false) => file.st_mode,
    };
    uid == 0 || bits & what == what
}
