//! The file of the triggers, in TOML. Addresses and secrets come from this file alone, so a model cannot have anything
//! posted elsewhere.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hooks::client::{Address, Reach};
use hooks::sign::Secret;
use serde::Deserialize;

/// Triggers of one worker.
const TRIGGERS_MAX: usize = 64;
/// Secrets of one trigger: the new one, the old one, and room for a mistake.
const SECRETS_MAX: usize = 4;
const NAME_BYTES_MAX: usize = 32;
const DESCRIPTION_BYTES_MAX: usize = 200;

/// Why a file of triggers is invalid.
#[derive(Debug, thiserror::Error)]
pub enum InvalidTriggers {
    /// The file cannot be read.
    #[error("the triggers file {} cannot be read: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file is no TOML, or has unknown or missing fields.
    #[error("the triggers file {} cannot be parsed: {error}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The cause, with its line.
        error: toml::de::Error,
    },
    /// A field of a trigger is invalid.
    #[error("in {}, trigger {name:?}: {field}: {reason}", path.display())]
    Trigger {
        /// The file.
        path: PathBuf,
        /// The trigger.
        name: String,
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// There are too many triggers, or none.
    #[error("in {}: {count} triggers; 1 to {TRIGGERS_MAX} are allowed", path.display())]
    Count {
        /// The file.
        path: PathBuf,
        /// How many there are.
        count: usize,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    trigger: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    url: String,
    #[serde(default)]
    description: String,
    #[serde(default)]
    secret_files: Vec<PathBuf>,
    #[serde(default)]
    secret_env: Vec<String>,
    #[serde(default)]
    allow_private: bool,
    #[serde(default)]
    idempotent: bool,
}

/// What a trigger posts to.
#[derive(Debug)]
pub(crate) struct Trigger {
    pub(crate) description: String,
    pub(crate) address: Address,
    pub(crate) secrets: Vec<Secret>,
    /// The receiver ignores a second request with the same id, so one that may have been received is repeated.
    pub(crate) is_idempotent: bool,
}

/// The triggers of a worker, by their names. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Triggers(pub(crate) Arc<BTreeMap<String, Trigger>>, Arc<[PathBuf]>);

type Fault = (&'static str, String);

impl Triggers {
    /// Reads a file. `env` looks up a variable.
    ///
    /// # Errors
    /// If the file cannot be used, with the line or the trigger and field.
    pub fn read(path: &Path, env: impl Fn(&str) -> Option<String>) -> Result<Self, InvalidTriggers> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| InvalidTriggers::Unreadable { path: path.to_owned(), source })?;
        let File { trigger: entries } =
            toml::from_str(&text).map_err(|error| InvalidTriggers::Malformed { path: path.to_owned(), error })?;
        if !(1..=TRIGGERS_MAX).contains(&entries.len()) {
            return Err(InvalidTriggers::Count { path: path.to_owned(), count: entries.len() });
        }
        let folder = path.parent().unwrap_or(Path::new("."));
        let (mut triggers, mut secret_files) = (BTreeMap::new(), vec![path.to_owned()]);
        for entry in entries {
            let name = entry.name.clone();
            secret_files.extend(entry.secret_files.iter().map(|file| folder.join(file)));
            let read = match triggers.contains_key(&name) {
                true => Err(("name", "another trigger has this name".to_owned())),
                false => entry.read(folder, &env),
            };
            let fault =
                |(field, reason)| InvalidTriggers::Trigger { path: path.to_owned(), name: name.clone(), field, reason };
            let trigger = read.map_err(fault)?;
            triggers.insert(name, trigger);
        }
        Ok(Self(Arc::new(triggers), secret_files.into()))
    }

    /// The file itself and the files of secrets, which other tools must not read.
    #[must_use]
    pub fn secret_files(&self) -> &[PathBuf] {
        &self.1
    }
}

impl Entry {
    fn read(self, folder: &Path, env: impl Fn(&str) -> Option<String>) -> Result<Trigger, Fault> {
        let Self { name, url, description, secret_files, secret_env, allow_private, idempotent } = self;
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if !(1..=NAME_BYTES_MAX).contains(&name.len()) || !name.chars().all(is_name) {
            return Err(("name", format!("1 to {NAME_BYTES_MAX} of a-z 0-9 - were expected")));
        }
        if description.len() > DESCRIPTION_BYTES_MAX {
            return Err(("description", format!("at most {DESCRIPTION_BYTES_MAX} bytes were expected")));
        }
        let reach = if allow_private { Reach::Everything } else { Reach::Public };
        let address = Address::within(&url, reach);
        let address = address.map_err(|reason| {
            let hint = if allow_private { "" } else { " (allow_private = true allows other networks)" };
            ("url", format!("{reason}{hint}"))
        })?;
        let mut secrets = Vec::new();
        for file in secret_files {
            let invalid = |reason: String| ("secret_files", format!("{}: {reason}", file.display()));
            let text = std::fs::read_to_string(folder.join(&file)).map_err(|error| invalid(error.to_string()))?;
            secrets.push(Secret::parse(&text).map_err(invalid)?);
        }
        for variable in secret_env {
            let invalid = |reason: String| ("secret_env", format!("{variable}: {reason}"));
            let text = env(&variable).ok_or_else(|| invalid("it is not set".to_owned()))?;
            secrets.push(Secret::parse(&text).map_err(invalid)?);
        }
        if !(1..=SECRETS_MAX).contains(&secrets.len()) {
            let reason = format!("{} secrets; 1 to {SECRETS_MAX} are allowed, in files or in variables", secrets.len());
            return Err(("secret_files", reason));
        }
        Ok(Trigger { description, address, secrets, is_idempotent: idempotent })
    }
}
