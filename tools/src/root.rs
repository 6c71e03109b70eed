//! The one folder that a tool may work in.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use toolyard_tool::ToolError;

/// A folder that paths given by a model are resolved in and must not lead out of.
///
/// A path is checked when it is resolved. Files are opened by [`Inside`](super::inside::Inside), for which a link that
/// is made meanwhile leads nowhere. Names of files outside could still be listed through such a link.
#[derive(Debug, Clone)]
pub struct Root(Arc<Path>);

/// A path that a tool cannot work with, in words for a model.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unreachable {
    #[error("{0:?} leads out of the folder that this tool works in: give a path below it, such as \"src\"")]
    Outside(String),
    #[error("there is no {0:?}: paths are relative to the tool's root folder, use glob to see what is there")]
    Missing(String),
    #[error("{0:?} is a key: tools do not read keys")]
    Key(String),
    #[error("{0:?} is not a folder: give the folder that it is in")]
    NotAFolder(String),
    #[error("{0:?} is a link that leads nowhere: name the file itself")]
    Dangling(String),
    #[error("{0:?} is a folder: give the path of a file")]
    NotAFile(String),
    #[error("{path:?} cannot be read")]
    Unreadable { path: String, source: io::Error },
}

impl Unreachable {
    /// The error of a call whose argument at `pointer` named the path.
    pub(super) fn at(self, pointer: &str) -> ToolError {
        match self {
            Self::Unreadable { .. } => self.into(),
            Self::Outside(_)
            | Self::Missing(_)
            | Self::Key(_)
            | Self::NotAFolder(_)
            | Self::Dangling(_)
            | Self::NotAFile(_) => ToolError::bad_input(pointer, self.to_string()),
        }
    }
}

impl Root {
    /// # Errors
    /// When `path` is no folder that can be read.
    pub fn new(path: &Path) -> io::Result<Self> {
        let path = path.canonicalize()?;
        if !path.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        Ok(Self(path.into()))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// The file or folder that `path` names, without links; the root itself when nothing is named.
    pub(super) fn resolve(&self, path: Option<&str>) -> Result<PathBuf, Unreachable> {
        let Some(path) = path else { return Ok(self.0.to_path_buf()) };
        let resolved = self.0.join(path).canonicalize().map_err(|source| match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Unreachable::Missing(path.to_owned()),
            _ => Unreachable::Unreadable { path: path.to_owned(), source },
        })?;
        if !resolved.starts_with(&self.0) {
            return Err(Unreachable::Outside(path.to_owned()));
        }
        if is_key(&resolved) {
            return Err(Unreachable::Key(path.to_owned()));
        }
        Ok(resolved)
    }

    /// As [`Self::resolve`], for a folder.
    pub(super) fn folder(&self, path: Option<&str>) -> Result<PathBuf, Unreachable> {
        let resolved = self.resolve(path)?;
        if !resolved.is_dir() {
            return Err(Unreachable::NotAFolder(path.unwrap_or(".").to_owned()));
        }
        Ok(resolved)
    }

    /// The file that `path` names, without links. It need not be there, nor the folders that it is to be in.
    pub(super) fn file(&self, path: &str) -> Result<PathBuf, Unreachable> {
        match self.resolve(Some(path)) {
            Ok(found) if found.is_dir() => Err(Unreachable::NotAFile(path.to_owned())),
            Err(Unreachable::Missing(_)) => self.new_file(path),
            found => found,
        }
    }

    fn new_file(&self, path: &str) -> Result<PathBuf, Unreachable> {
        let full = self.0.join(path);
        let outside = || Unreachable::Outside(path.to_owned());
        if full.symlink_metadata().is_ok() {
            return Err(Unreachable::Dangling(path.to_owned()));
        }
        if path.ends_with('/') {
            return Err(Unreachable::NotAFile(path.to_owned()));
        }
        // Up to the first folder that is there. What is below it has no links, and must not go up.
        let mut there = full.as_path();
        let mut below = Vec::new();
        let folder = loop {
            below.push(there.file_name().ok_or_else(outside)?);
            there = there.parent().ok_or_else(outside)?;
            match there.canonicalize() {
                Ok(folder) => break folder,
                Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
                Err(source) => return Err(Unreachable::Unreadable { path: path.to_owned(), source }),
            }
        };
        if !folder.starts_with(&self.0) {
            return Err(outside());
        }
        if !folder.is_dir() {
            return Err(Unreachable::NotAFolder(self.relative(&folder)));
        }
        let file: PathBuf = folder.iter().chain(below.into_iter().rev()).collect();
        if is_key(&file) { Err(Unreachable::Key(path.to_owned())) } else { Ok(file) }
    }

    /// A path below the root as models write it.
    pub(super) fn relative(&self, path: &Path) -> String {
        slashed(path.strip_prefix(&self.0).unwrap_or(path))
    }
}

/// A key for the broker, as `toolyard nats-config` makes them.
pub(super) fn is_key(path: &Path) -> bool {
    path.extension().is_some_and(|kind| kind == "nk")
}

/// With forward slashes, and with replacement characters in names that are not UTF-8.
pub(super) fn slashed(path: &Path) -> String {
    let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// A root `below` with a folder in it, and a file beside it.
    fn root() -> (tempfile::TempDir, Root) {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("below/src")).unwrap();
        fs::write(folder.path().join("secret"), "").unwrap();
        let root = Root::new(&folder.path().join("below")).unwrap();
        (folder, root)
    }

    #[test]
    fn a_path_that_goes_up_and_stays_inside_is_taken() {
        let (_folder, root) = root();
        assert_eq!(root.relative(&root.resolve(Some("src/../src")).unwrap()), "src");
        assert_eq!(root.relative(&root.resolve(Some(".")).unwrap()), "");
    }

    #[test]
    fn an_absolute_path_is_taken_when_it_is_inside() {
        let (_folder, root) = root();
        let inside = root.0.join("src");
        assert_eq!(root.resolve(inside.to_str()).unwrap(), inside);
        assert!(matches!(root.resolve(Some("/")), Err(Unreachable::Outside(_))));
    }

    #[test]
    fn a_path_that_leads_out_is_refused() {
        let (folder, root) = root();
        symlink(folder.path().join("secret"), root.0.join("link")).unwrap();
        symlink("../..", root.0.join("src/up")).unwrap();
        for path in ["..", "../secret", "src/../../secret", "link", "src/up", "src/up/secret"] {
            assert!(matches!(root.resolve(Some(path)), Err(Unreachable::Outside(_))), "{path}");
        }
    }

    #[test]
    fn a_key_is_refused_under_whatever_name() {
        let (_folder, root) = root();
        fs::write(root.0.join("src/pool.nk"), "").unwrap();
        symlink("src/pool.nk", root.0.join("notes")).unwrap();
        for path in ["src/pool.nk", "notes"] {
            assert!(matches!(root.resolve(Some(path)), Err(Unreachable::Key(_))), "{path}");
        }
    }

    #[test]
    fn a_folder_whose_name_begins_as_the_root_does_is_outside() {
        let (folder, root) = root();
        fs::create_dir(folder.path().join("below-not")).unwrap();
        assert!(matches!(root.resolve(Some("../below-not")), Err(Unreachable::Outside(_))));
    }

    #[test]
    fn a_new_file_is_inside_and_needs_no_folder() {
        let (folder, root) = root();
        assert_eq!(root.relative(&root.file("a/b/c.txt").unwrap()), "a/b/c.txt");
        assert_eq!(root.relative(&root.file("src/../new").unwrap()), "new");
        symlink(folder.path(), root.0.join("out")).unwrap();
        symlink("nowhere", root.0.join("dangling")).unwrap();
        for path in ["../new", "a/../../new", "out/new", "/new", "a/../..", ".."] {
            assert!(matches!(root.file(path), Err(Unreachable::Outside(_))), "{path}: {:?}", root.file(path));
        }
        assert!(matches!(root.file("dangling"), Err(Unreachable::Dangling(_))));
        assert!(matches!(root.file("src"), Err(Unreachable::NotAFile(_))));
        assert!(matches!(root.file("new/"), Err(Unreachable::NotAFile(_))));
        assert!(matches!(root.file("new.nk"), Err(Unreachable::Key(_))));
    }

    #[test]
    fn a_link_that_stays_inside_is_followed() {
        let (_folder, root) = root();
        symlink("src", root.0.join("link")).unwrap();
        assert_eq!(root.relative(&root.folder(Some("link")).unwrap()), "src");
    }
}
