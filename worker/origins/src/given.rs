//! Values that the operator gives to a tool: written down, or by reference to a variable or a file, so that no secret
//! stands in the file of tools.

use std::path::{Path, PathBuf};

use serde_json::Value;

/// Bytes of a value in a file: a token or a certificate.
const VALUE_BYTES_MAX: u64 = 64 * 1024;

/// A value for a header, a query parameter or a variable.
#[derive(Clone)]
pub(crate) enum Given {
    Plain(String),
    /// It was read when the worker started.
    Variable {
        name: String,
        value: String,
        prefix: String,
    },
    /// It is read for each call, because mounted secrets change.
    File {
        path: PathBuf,
        prefix: String,
    },
}

impl std::fmt::Debug for Given {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Plain(value) => write!(f, "{value:?}"),
            Self::Variable { name, .. } => write!(f, "the variable {name}"),
            Self::File { path, .. } => write!(f, "the file {}", path.display()),
        }
    }
}

impl Given {
    /// A value of the file: a text, `{ env = "NAME" }` or `{ file = "path" }`, the latter two with a `prefix` if
    /// wanted.
    /// Paths are relative to `folder`.
    pub(crate) fn parse(value: &Value, folder: &Path) -> Result<Self, String> {
        if let Value::String(text) = value {
            return Ok(Self::Plain(text.clone()));
        }
        let wrong = || "write a text, { env = \"NAME\" } or { file = \"path\" }, with a prefix if needed".to_owned();
        let table = value.as_object().ok_or_else(wrong)?;
        if table.keys().any(|key| !["env", "file", "prefix"].contains(&key.as_str())) {
            return Err(wrong());
        }
        let text = |key: &str| table.get(key).map(|value| value.as_str().ok_or_else(wrong)).transpose();
        let prefix = text("prefix")?.unwrap_or_default().to_owned();
        match (text("env")?, text("file")?) {
            (Some(name), None) => match std::env::var(name) {
                Ok(value) => Ok(Self::Variable { name: name.to_owned(), value, prefix }),
                Err(error) => Err(format!("the environment variable {name} cannot be read: {error}")),
            },
            (None, Some(path)) => {
                let given = Self::File { path: folder.join(path), prefix };
                given.read().map(|_| given)
            }
            _ => Err(wrong()),
        }
    }

    /// The value now, with its prefix.
    pub(crate) fn read(&self) -> Result<String, String> {
        let prefix = match self {
            Self::Plain(_) => "",
            Self::Variable { prefix, .. } | Self::File { prefix, .. } => prefix,
        };
        Ok(prefix.to_owned() + &self.bare()?)
    }

    /// The texts that are secrets now: with the prefix, and without it. None of a plain value, nor of one that cannot
    /// be read.
    pub(crate) fn secrets(&self) -> Vec<String> {
        match self {
            Self::Plain(_) => Vec::new(),
            Self::Variable { .. } | Self::File { .. } => self.read().into_iter().chain(self.bare()).collect(),
        }
    }

    fn bare(&self) -> Result<String, String> {
        match self {
            Self::Plain(value) | Self::Variable { value, .. } => Ok(value.clone()),
            Self::File { path, .. } => {
                let failed = |error: &dyn std::fmt::Display| format!("{} cannot be read: {error}", path.display());
                let bytes = std::fs::metadata(path).map_err(|error| failed(&error))?.len();
                if bytes > VALUE_BYTES_MAX {
                    return Err(failed(&format!("it has {bytes} bytes, at most {VALUE_BYTES_MAX} are read")));
                }
                let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
                Ok(text.trim_end_matches(['\r', '\n']).to_owned())
            }
        }
    }

    /// It may be a secret: it was given by reference.
    pub(crate) fn is_secret(&self) -> bool {
        !matches!(self, Self::Plain(_))
    }

    /// The file that it is read from.
    pub(crate) fn file(&self) -> Option<&Path> {
        match self {
            Self::File { path, .. } => Some(path),
            Self::Plain(_) | Self::Variable { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_value_is_text_a_variable_or_a_file_that_is_read_each_time() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, "one\n").unwrap();
        let parse = |value: Value| Given::parse(&value, folder.path());
        assert_eq!(parse(json!("a")).unwrap().read().unwrap(), "a");
        let given = parse(json!({ "file": "token", "prefix": "Bearer " })).unwrap();
        assert_eq!(given.read().unwrap(), "Bearer one");
        std::fs::write(&file, "two").unwrap();
        assert_eq!(given.read().unwrap(), "Bearer two");
        assert_eq!(given.secrets(), ["Bearer two", "two"]);
        assert!(parse(json!("a")).unwrap().secrets().is_empty());
        let variable = parse(json!({ "env": "PATH" })).unwrap();
        assert_eq!(variable.read().unwrap(), std::env::var("PATH").unwrap());
        assert_eq!(format!("{variable:?}"), "the variable PATH");
        for wrong in [json!(1), json!({}), json!({ "env": "A", "file": "b" }), json!({ "enw": "A" })] {
            assert!(parse(wrong.clone()).unwrap_err().starts_with("write a text"), "{wrong}");
        }
        assert!(parse(json!({ "env": "NOT_SET_ANYWHERE" })).unwrap_err().contains("NOT_SET_ANYWHERE"));
        assert!(parse(json!({ "file": "none" })).unwrap_err().contains("none cannot be read"));
    }
}
