//! Values that no log shows.

use std::fmt;
use std::path::PathBuf;

use super::ConfigError;

/// Bytes of a file with a token.
const TOKEN_BYTES_MAX: u64 = 64 * 1024;

/// A value that may be a secret: it is not shown by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Hides a value.
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// The value itself.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

/// Where a bearer token is found. It is read for each connection, so that it can be replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Token {
    /// The content of a file, without white space around it.
    File(PathBuf),
    /// An environment variable of the worker.
    Variable(String),
}

/// A token cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error("the token cannot be read from {}: {error}", path.display())]
    File { path: PathBuf, error: std::io::Error },
    #[error("the file of the token, {}, is empty or larger than {TOKEN_BYTES_MAX} bytes", .0.display())]
    Size(PathBuf),
    #[error(transparent)]
    Unset(#[from] ConfigError),
}

impl Token {
    /// # Errors
    /// The file cannot be read, or the variable is not set.
    pub(crate) fn read(&self) -> Result<Secret, TokenError> {
        match self {
            Self::Variable(name) => Ok(variable_of_worker(name)?),
            Self::File(path) => {
                let failed = |error| TokenError::File { path: path.clone(), error };
                let bytes = std::fs::metadata(path).map_err(failed)?.len();
                let token = if bytes <= TOKEN_BYTES_MAX {
                    std::fs::read_to_string(path).map_err(failed)?
                } else {
                    String::new()
                };
                match token.trim() {
                    "" => Err(TokenError::Size(path.clone())),
                    token => Ok(Secret::new(token)),
                }
            }
        }
    }
}

/// A variable of the worker's environment.
///
/// # Errors
/// It is not set.
pub fn variable_of_worker(name: &str) -> Result<Secret, ConfigError> {
    let unset = |_| ConfigError::Unset { variable: name.to_owned() };
    std::env::var(name).map(Secret::new).map_err(unset)
}
