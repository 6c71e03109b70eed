//! The files below a folder, as `ripgrep` sees them: no hidden ones, none that an ignore file excludes, no links
//! followed.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use globset::{GlobBuilder, GlobMatcher};
use ignore::{Walk, WalkBuilder};

use super::inside::{ENTER, READ, may};
use super::lines::Lines;
use super::root::{is_key, slashed};
use sandbox::User;
use toolyard_tool::ToolError;

/// Files in the order of their paths, so that a second attempt of a call has the same output. They end early when the
/// call ends.
pub(super) struct Files<'a> {
    root: PathBuf,
    walk: Walk,
    lines: &'a Lines,
    /// Folders that the user may not list, and that are not noted yet.
    closed: Arc<Mutex<Vec<PathBuf>>>,
    /// How many files and folders were passed over because they cannot be read, and the first of them with the reasons.
    unreadable: usize,
    named: Vec<String>,
}

/// Files and folders that a result names as passed over.
const NAMED_MAX: usize = 5;

/// Bytes of a pattern: the matcher that is made of it grows with it.
const PATTERN_BYTES_MAX: usize = 1024;

/// The note in a result that was cut.
pub(super) const CUT: &str = ", cut at the limit: more match. Narrow the search or raise the limit";

impl<'a> Files<'a> {
    /// The files below `folder`, or the one file that it is; when `user` is given, only in folders that the user may
    /// list. The root itself was chosen by the operator.
    pub(super) fn below(root: &Path, folder: &Path, user: Option<User>, lines: &'a Lines) -> Self {
        let wanted = folder.to_owned();
        let closed = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&closed);
        let is_open = move |entry: &ignore::DirEntry| {
            let is_folder = entry.file_type().is_some_and(|kind| kind.is_dir());
            if !is_folder || entry.depth() == 0 || lists(user, entry.path()) {
                return true;
            }
            noted.lock().unwrap_or_else(PoisonError::into_inner).push(entry.path().to_owned());
            false
        };
        // From the root down, so that its ignore files count and none above it do. A file that is named is looked at
        // anyway.
        let walk = WalkBuilder::new(if folder.is_dir() { root } else { folder })
            .parents(false)
            .filter_entry(move |entry| {
                let is_on_the_way = entry.path().starts_with(&wanted) || wanted.starts_with(entry.path());
                is_on_the_way && is_open(entry)
            })
            .require_git(false)
            // The found files depend on the folder, not on the settings of the worker's user.
            .git_global(false)
            .sort_by_file_path(Path::cmp)
            .build();
        Self { root: root.to_owned(), walk, lines, closed, unreadable: 0, named: Vec::new() }
    }

    /// Notes that a file cannot be read, by its path from the root, and why.
    pub(super) fn pass_over(&mut self, path: &str, why: &str) {
        tracing::debug!(path, why, "passed over");
        self.unreadable += 1;
        if self.named.len() < NAMED_MAX {
            self.named.push(if path.is_empty() { why.to_owned() } else { format!("{path} ({why})") });
        }
    }

    /// The note in a result that does not cover everything.
    pub(super) fn passed_over(&self) -> String {
        match self.unreadable {
            0 => String::new(),
            unreadable => {
                let more = if unreadable > self.named.len() { ", …" } else { "" };
                format!("; {unreadable} could not be read: {}{more}", self.named.join(", "))
            }
        }
    }
}

/// Whether a user may list a folder and enter it.
fn lists(user: Option<User>, folder: &Path) -> bool {
    user.is_none() || rustix::fs::lstat(folder).is_ok_and(|found| may(user, &found, READ | ENTER))
}

impl Iterator for Files<'_> {
    type Item = PathBuf;

    fn next(&mut self) -> Option<PathBuf> {
        while !self.lines.is_over() {
            let entry = self.walk.next();
            let closed = std::mem::take(&mut *self.closed.lock().unwrap_or_else(PoisonError::into_inner));
            for folder in closed {
                let path = folder.strip_prefix(&self.root).map(slashed).unwrap_or_default();
                self.pass_over(&path, &std::io::ErrorKind::PermissionDenied.to_string());
            }
            match entry? {
                Ok(entry) if is_key(entry.path()) => {}
                Ok(entry) if entry.file_type().is_some_and(|kind| kind.is_file()) => return Some(entry.into_path()),
                Ok(_) => {}
                Err(error) => {
                    // The error's own text has the path from the root of the machine, which is not for a model to see.
                    let place = place(&error).and_then(|path| path.strip_prefix(&self.root).ok());
                    let path = place.map(slashed).unwrap_or_default();
                    let why = error
                        .io_error()
                        .map_or_else(|| "it cannot be walked".to_owned(), |error| error.kind().to_string());
                    self.pass_over(&path, &why);
                }
            }
        }
        None
    }
}

/// The path of an error of a walk.
fn place(error: &ignore::Error) -> Option<&Path> {
    match error {
        ignore::Error::WithPath { path, .. } => Some(path),
        ignore::Error::WithDepth { err, .. } | ignore::Error::WithLineNumber { err, .. } => place(err),
        _ => None,
    }
}

/// Which files are wanted, by a glob that reads as a line of a gitignore file does.
#[derive(Debug)]
pub(super) struct Filter {
    matcher: GlobMatcher,
    /// The folder to which the glob is relative.
    base: PathBuf,
}

impl Filter {
    /// # Errors
    /// When the glob, which the call has at `pointer`, is malformed or cannot match anything.
    pub(super) fn new(glob: &str, base: &Path, pointer: &str) -> Result<Self, ToolError> {
        let refused = |why: &str| ToolError::bad_input(pointer, format!("the glob {glob:?} cannot be used: {why}"));
        let trimmed = glob.strip_prefix("./").unwrap_or(glob);
        if trimmed.split('/').any(|part| part == "..") {
            return Err(refused("it must not lead out of the folder; give the folder as path"));
        }
        if trimmed.trim_matches('/').is_empty() {
            return Err(refused("it is empty; **/* matches every file"));
        }
        if trimmed.len() > PATTERN_BYTES_MAX {
            return Err(refused(&format!("it is longer than {PATTERN_BYTES_MAX} bytes")));
        }
        let mut full = match trimmed.strip_prefix('/') {
            Some(anchored) => anchored.to_owned(),
            None if trimmed.trim_end_matches('/').contains('/') => trimmed.to_owned(),
            None => format!("**/{trimmed}"),
        };
        if full.ends_with('/') {
            full.push_str("**");
        }
        let built = GlobBuilder::new(&full).literal_separator(true).build();
        let matcher = built.map_err(|error| refused(&error.kind().to_string()))?.compile_matcher();
        Ok(Self { matcher, base: base.to_owned() })
    }

    pub(super) fn wants(&self, file: &Path) -> bool {
        match file.strip_prefix(&self.base) {
            Ok(below) if !below.as_os_str().is_empty() => self.matcher.is_match(slashed(below)),
            // The search is for one file only, and that is it.
            _ => file.file_name().is_some_and(|name| self.matcher.is_match(name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wants(glob: &str, file: &str) -> bool {
        Filter::new(glob, Path::new("/base"), "/glob").unwrap().wants(&Path::new("/base").join(file))
    }

    #[test]
    fn a_glob_without_a_slash_matches_at_any_depth() {
        assert!(wants("*.rs", "a.rs") && wants("*.rs", "b/c/a.rs"));
        assert!(!wants("*.rs", "a.rs.bak"));
    }

    #[test]
    fn a_glob_with_a_slash_is_anchored() {
        assert!(wants("src/*.rs", "src/a.rs") && wants("/a.rs", "a.rs") && wants("./src/a.rs", "src/a.rs"));
        assert!(!wants("src/*.rs", "b/src/a.rs") && !wants("/a.rs", "b/a.rs"));
    }

    #[test]
    fn one_star_stays_in_its_folder_and_two_do_not() {
        assert!(!wants("src/*", "src/b/a.rs"));
        assert!(wants("src/**", "src/b/a.rs") && wants("src/**/a.rs", "src/a.rs"));
    }

    #[test]
    fn braces_are_alternatives_and_a_folder_means_all_below_it() {
        assert!(wants("*.{ts,tsx}", "b/a.tsx"));
        assert!(wants("src/", "b/src/c/a.rs") && !wants("src/", "src"));
    }

    #[test]
    fn a_glob_that_cannot_match_is_refused() {
        for glob in ["", "/", "../*.rs", "a/../../b", "{a", "[z-a]"] {
            assert!(Filter::new(glob, Path::new("/base"), "/glob").is_err(), "{glob:?}");
        }
    }
}
