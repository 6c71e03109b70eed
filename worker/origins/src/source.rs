//! Reads files of tools, TOML or JSON.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

/// Bytes of a file of tools.
const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// A file of tools that is of no use.
#[derive(Debug, thiserror::Error)]
pub enum InvalidFile {
    #[error("the tools in {} cannot be read: {error}", path.display())]
    Unreadable { path: PathBuf, error: std::io::Error },
    #[error("the tools in {} cannot be understood: {error}", path.display())]
    Malformed { path: PathBuf, error: String },
    #[error("in {}, {place}: {error}", path.display())]
    Entry { path: PathBuf, place: String, error: String },
    #[error("{} has no tool that can be hosted; the log says why", path.display())]
    Nothing { path: PathBuf },
}

/// A tool of a file that is not hosted, while the others are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// The place in the file or document.
    pub place: String,
    pub reason: String,
}

/// The top of a file: TOML, or JSON if it begins with a brace.
pub(crate) fn read(path: &Path) -> Result<Map<String, Value>, InvalidFile> {
    let unreadable = |error| InvalidFile::Unreadable { path: path.to_owned(), error };
    let malformed = |error: String| InvalidFile::Malformed { path: path.to_owned(), error };
    let bytes = bytes(path, FILE_BYTES_MAX).map_err(unreadable)?;
    let text = String::from_utf8(bytes).map_err(|error| malformed(error.to_string()))?;
    parse(&text).map_err(malformed)
}

/// At most `max` bytes of a file; more are an error.
pub(crate) fn bytes(path: &Path, max: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(max + 1).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).is_ok_and(|count| count > max) {
        return Err(std::io::Error::other(format!("it has more than {max} bytes")));
    }
    Ok(bytes)
}

fn parse(text: &str) -> Result<Map<String, Value>, String> {
    match text.trim_start().starts_with('{') {
        true => serde_json::from_str(text).map_err(|error| error.to_string()),
        false => toml::from_str(text).map_err(|error| error.to_string()),
    }
}

/// The entries of a list of tables.
pub(crate) fn entries(top: &mut Map<String, Value>, name: &str) -> Result<Vec<Map<String, Value>>, String> {
    match top.remove(name) {
        None => Ok(Vec::new()),
        Some(list) => serde_json::from_value(list).map_err(|error| format!("{name} is no list of tables: {error}")),
    }
}

/// A text of an entry, taken out of it; `None` if it is not there.
pub(crate) fn text(entry: &mut Map<String, Value>, name: &str) -> Result<Option<String>, String> {
    match entry.remove(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(other) => Err(format!("{name} is {other}: write a text")),
    }
}

/// A JSON Schema of an entry, taken out of it: a table, or JSON as text. An object without fields if it is not there.
pub(crate) fn schema(entry: &mut Map<String, Value>, name: &str) -> Result<Value, String> {
    match entry.remove(name) {
        None => Ok(serde_json::json!({ "type": "object", "properties": {}, "additionalProperties": false })),
        Some(Value::String(text)) => {
            serde_json::from_str(&text).map_err(|error| format!("{name} is a text that is no JSON: {error}"))
        }
        Some(table) => Ok(table),
    }
}
