//! Places in files, as the protocol has them and as models do.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use crate::root::Root;

/// Bytes of all files that are read for one answer; places in further files have no text.
const READ_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Characters of a line that are shown.
const PREVIEW_MAX: usize = 200;

/// What a position in a line counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    Utf8,
    Utf16,
}

impl Encoding {
    /// The position of a character, which is counted from 0.
    pub(super) fn position(self, line: &str, character: usize) -> usize {
        line.chars().take(character).map(|char| self.size(char)).sum()
    }

    /// The character at a position, counted from 0.
    fn character(self, line: &str, position: u64) -> usize {
        let mut at = 0;
        let before = |char: &char| {
            let is_before = at < position;
            at += self.size(*char) as u64;
            is_before
        };
        line.chars().take_while(before).count()
    }

    fn size(self, char: char) -> usize {
        match self {
            Self::Utf8 => char.len_utf8(),
            Self::Utf16 => char.len_utf16(),
        }
    }
}

/// The URI of a file.
pub(super) fn uri(path: &Path) -> String {
    let mut uri = "file://".to_owned();
    for byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'/' | b'-' | b'_' | b'.' | b'~' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => uri.push(char::from(*byte)),
            byte => write!(uri, "%{byte:02X}").unwrap_or_default(),
        }
    }
    uri
}

/// The file of a URI.
fn path(uri: &str) -> Option<PathBuf> {
    let rest = uri.strip_prefix("file://")?;
    let (mut bytes, mut rest) = (Vec::new(), rest.as_bytes());
    while let Some((first, tail)) = rest.split_first() {
        let digits = || std::str::from_utf8(tail.get(..2)?).ok().and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match (first, digits()) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    Some(PathBuf::from(String::from_utf8(bytes).ok()?))
}

/// A range in a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Place {
    /// Relative to the root; the name alone of a file outside of it, as of a library.
    file: String,
    line: u64,
    column: u64,
    end_line: u64,
    end_column: u64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    outside: bool,
    /// The line.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

/// Reads places, and the lines of their files.
pub(super) struct Places<'a, R> {
    pub(super) root: &'a Root,
    pub(super) encoding: Encoding,
    read: R,
    files: HashMap<PathBuf, Option<Arc<str>>>,
    bytes: usize,
}

impl<'a, R: Fn(&Path) -> Option<Arc<str>>> Places<'a, R> {
    pub(super) fn new(root: &'a Root, encoding: Encoding, read: R) -> Self {
        Self { root, encoding, read, files: HashMap::new(), bytes: 0 }
    }

    fn text(&mut self, path: &Path) -> Option<Arc<str>> {
        if let Some(known) = self.files.get(path) {
            return known.clone();
        }
        let text = if self.bytes < READ_BYTES_MAX { (self.read)(path) } else { None };
        self.bytes += text.as_deref().map_or(0, str::len);
        self.files.insert(path.to_owned(), text.clone());
        text
    }

    /// The place of a `Location`, a `LocationLink`, or a range of a file.
    pub(super) fn place(&mut self, location: &Value) -> Option<Place> {
        let uri = location["uri"].as_str().or_else(|| location["targetUri"].as_str())?;
        let range = [&location["range"], &location["targetSelectionRange"]].into_iter().find(|range| range.is_object());
        self.range(uri, range?)
    }

    pub(super) fn range(&mut self, uri: &str, range: &Value) -> Option<Place> {
        let path = path(uri)?;
        let path = path.canonicalize().unwrap_or(path);
        let outside = !path.starts_with(self.root.path());
        let file = match outside {
            true => path.file_name()?.to_string_lossy().into_owned(),
            false => self.root.relative(&path),
        };
        let text = match outside {
            true => None,
            false => self.text(&path),
        };
        let encoding = self.encoding;
        let point = |point: &Value| {
            let (line, position) = (point["line"].as_u64()?, point["character"].as_u64()?);
            let found = text.as_deref().and_then(|text| text.lines().nth(usize::try_from(line).ok()?));
            let column = found.map_or(position, |found| encoding.character(found, position) as u64);
            let preview = found.map(|found| found.trim().chars().take(PREVIEW_MAX).collect::<String>());
            Some((line + 1, column + 1, preview))
        };
        let (line, column, text) = point(&range["start"])?;
        let (end_line, end_column, _) = point(&range["end"])?;
        Some(Place { file, line, column, end_line, end_column, outside, text })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_leads_back_to_its_file() {
        for file in ["/a/b.py", "/a b/ä#?%20.py", "/x/@types/[id].ts"] {
            assert_eq!(path(&uri(Path::new(file))).as_deref(), Some(Path::new(file)), "{file}");
        }
        assert_eq!(path("file:///a%3ab"), Some(PathBuf::from("/a:b")));
        assert_eq!(path("untitled:1"), None);
    }

    #[test]
    fn only_so_many_bytes_of_files_are_read_for_one_answer() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::new(folder.path()).unwrap();
        let (reads, text) = (std::cell::Cell::new(0), Arc::<str>::from("x".repeat(READ_BYTES_MAX / 4)));
        let read = |_: &Path| {
            reads.set(reads.get() + 1);
            Some(Arc::clone(&text))
        };
        let mut places = Places::new(&root, Encoding::Utf8, read);
        let start = serde_json::json!({ "line": 0, "character": 0 });
        let range = serde_json::json!({ "start": start, "end": start });
        let texts = (0..10).map(|number| {
            let place = places.range(&uri(&root.path().join(number.to_string())), &range).unwrap();
            place.text.is_some()
        });
        assert_eq!(texts.filter(|has_text| *has_text).count(), 4);
        assert_eq!(reads.get(), 4);
    }

    #[test]
    fn columns_count_characters_and_positions_what_the_server_counts() {
        let line = "é🦀 x";
        assert_eq!((Encoding::Utf16.position(line, 3), Encoding::Utf8.position(line, 3)), (4, 7));
        assert_eq!((Encoding::Utf16.character(line, 4), Encoding::Utf8.character(line, 7)), (3, 3));
        assert_eq!(Encoding::Utf16.character(line, 100), 4);
    }
}
