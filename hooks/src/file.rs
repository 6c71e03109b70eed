//! The file that names hooks, in TOML. It is checked as a whole when a process starts, which does not start with a bad one.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::command::Program;
use crate::confirm::{Confirm, Dangerous};
use crate::http::Service;
use crate::{Hooks, Misplaced, Moment, Placement, TIMEOUT};

/// A file that names no usable hooks, and why.
#[derive(Debug, thiserror::Error)]
pub enum InvalidHooks {
    #[error("the hooks in {} cannot be read: {source}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("the hooks in {} cannot be understood: {error}", path.display())]
    Malformed { path: PathBuf, error: toml::de::Error },
    #[error("in {}, {fault}", path.display())]
    Hook { path: PathBuf, fault: Misplaced },
    #[error("in {}, confirm.except: {error}", path.display())]
    Confirm { path: PathBuf, error: globset::Error },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    confirm: Confirms,
    #[serde(default)]
    hook: Vec<Entry>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Confirms {
    dangerous: Dangerous,
    except: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    on: Vec<Moment>,
    #[serde(default)]
    tools: Vec<String>,
    timeout_ms: Option<u64>,
    #[serde(default)]
    output: bool,
    command: Option<Vec<String>>,
    url: Option<String>,
}

impl Hooks {
    /// Reads a file.
    ///
    /// # Errors
    /// When it cannot be used, with the line or the hook and field.
    pub fn read(path: &Path) -> Result<Self, InvalidHooks> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| InvalidHooks::Unreadable { path: path.to_owned(), source })?;
        let File { confirm: Confirms { dangerous, except }, hook } =
            toml::from_str(&text).map_err(|error| InvalidHooks::Malformed { path: path.to_owned(), error })?;
        let confirm =
            Confirm::new(dangerous, &except).map_err(|error| InvalidHooks::Confirm { path: path.to_owned(), error })?;
        let mut hooks = Self { confirm, ..Self::default() };
        for entry in hook {
            hooks = hooks.enter(entry).map_err(|fault| InvalidHooks::Hook { path: path.to_owned(), fault })?;
        }
        Ok(hooks)
    }

    fn enter(self, entry: Entry) -> Result<Self, Misplaced> {
        let Entry { name, on, tools, timeout_ms, output: holds_output, command, url } = entry;
        let misplaced = {
            let name = name.clone();
            move |field, reason: String| Misplaced { name, field, reason }
        };
        let timeout = timeout_ms.map_or(TIMEOUT, Duration::from_millis);
        let placement = Placement { name, on, tools, timeout, holds_output };
        match (command, url) {
            (Some(command), None) => {
                let mut words = command.into_iter();
                let program = words.next().filter(|program| !program.is_empty());
                let Some(program) = program else {
                    return Err(misplaced("command", "is empty: name a program and its arguments".to_owned()));
                };
                if !is_there(&program) {
                    return Err(misplaced("command", format!("there is no program {program:?}, here or on the PATH")));
                }
                self.with(placement, Program::new(program, words.collect()))
            }
            (None, Some(url)) => {
                let service = Service::new(&url).map_err(|reason| misplaced("url", reason))?;
                self.with(placement, service)
            }
            (None, None) => Err(misplaced("command", "is missing, and so is url: give one of them".to_owned())),
            (Some(_), Some(_)) => Err(misplaced("url", "stands beside command: give one of them".to_owned())),
        }
    }
}

/// Whether a program would be found.
fn is_there(program: &str) -> bool {
    if program.contains('/') {
        return Path::new(program).is_file();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}
