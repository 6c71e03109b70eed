//! The operator's file about programs that tools start: linters and language servers beside the known ones.

use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::lint::Linter;
use super::lsp::LanguageServer;

/// Bytes of the file.
const FILE_BYTES_MAX: u64 = 256 * 1024;

/// What the operator sets.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolSettings {
    /// Whether linters and language servers may run that execute code of the project which they check: its build
    /// scripts, plugins and configuration. Calls of `lint` and `lsp` need no approval, so by default they may not.
    #[serde(default)]
    pub allow_project_code: bool,
    /// Linters beside the known ones, or instead of those with the same name.
    #[serde(default, rename = "linter")]
    pub linters: Vec<Linter>,
    /// Language servers beside the known ones, or instead of those with the same name. Of servers for the same files
    /// the first counts, the operator's before the known ones.
    #[serde(default, rename = "language_server")]
    pub language_servers: Vec<LanguageServer>,
}

/// The file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InvalidSettings {
    /// It cannot be read.
    #[error("the file of tools {} cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is too large.
    #[error("the file of tools {} has more than {FILE_BYTES_MAX} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// It is no TOML, or has unknown or misplaced names.
    #[error("the file of tools {} cannot be used: {why}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        why: String,
    },
}

impl ToolSettings {
    /// Reads the file.
    ///
    /// # Errors
    /// When it cannot be read, or is malformed.
    pub fn read(path: &Path) -> Result<Self, InvalidSettings> {
        let path = || path.to_owned();
        let size = path().metadata().map_err(|source| InvalidSettings::Read { path: path(), source })?.len();
        if size > FILE_BYTES_MAX {
            return Err(InvalidSettings::TooLarge { path: path() });
        }
        let text = std::fs::read_to_string(path()).map_err(|source| InvalidSettings::Read { path: path(), source })?;
        Self::of(&text).map_err(|why| InvalidSettings::Content { path: path(), why })
    }

    fn of(text: &str) -> Result<Self, String> {
        let settings: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        for linter in &settings.linters {
            linter.check()?;
        }
        for server in &settings.language_servers {
            server.check()?;
        }
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linter_is_read_and_a_wrong_one_is_refused_with_the_reason() {
        let text = "allow_project_code = true\n[[linter]]\nname = \"mine\"\nprogram = \"mine\"\nfiles = [\"*.x\"]\n\
                    format = \"text\"\n";
        let settings = ToolSettings::of(text).unwrap();
        assert!(settings.allow_project_code && settings.linters[0].name == "mine");
        for (text, why) in [
            ("x = 1", "unknown field `x`"),
            ("[[linter]]\nname = \"a\"", "missing field `program`"),
            ("[[linter]]\nname = \"a\"\nprogram = \"a\"\nfiles = [\"[\"]\nformat = \"text\"", "files"),
            ("[[linter]]\nname = \"\"\nprogram = \"a\"\nfiles = [\"*.a\"]\nformat = \"text\"", "name"),
            ("[[linter]]\nname = \"a\"\nprogram = \"a\"\nfiles = []\nformat = \"text\"", "files"),
        ] {
            let error = ToolSettings::of(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
