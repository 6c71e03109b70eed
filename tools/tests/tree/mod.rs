//! A folder with files, for tests of tools that look at some.

use std::fs;
use std::path::Path;

use tempfile::TempDir;
use tools::Root;

pub(crate) struct Tree {
    pub(crate) folder: TempDir,
}

impl Tree {
    /// Files by path and content.
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let tree = Self { folder: tempfile::tempdir().unwrap() };
        for (path, content) in files {
            tree.write(path, content.as_bytes());
        }
        tree
    }

    pub(crate) fn write(&self, path: &str, content: &[u8]) {
        let file = self.path().join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, content).unwrap();
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn root(&self) -> Root {
        Root::new(self.path()).unwrap()
    }
}
