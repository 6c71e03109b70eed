//! The file of hooks, in TOML. It is checked as a whole when a process starts; with an invalid file the process does
//! not start.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::confirm::{Confirm, Dangerous};
use crate::outside::Outside;
use crate::resolve::{KEEP, KEEP_UNKNOWN, ResolverPlacement, Resolvers};
use crate::{HookPoint, Hooks, Misplaced, Placement, TIMEOUT};

/// Why a file of hooks is invalid.
#[derive(Debug, thiserror::Error)]
pub enum InvalidHooks {
    #[error("the hooks in {} cannot be read: {source}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("the hooks in {} cannot be understood: {error}", path.display())]
    Malformed { path: PathBuf, error: toml::de::Error },
    #[error("in {}, {fault}", path.display())]
    Hook { path: PathBuf, fault: Misplaced },
    #[error("in {}, resolver {:?}: {}: {}", path.display(), fault.name, fault.field, fault.reason)]
    Resolver { path: PathBuf, fault: Misplaced },
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
    #[serde(default)]
    resolver: Vec<Asked>,
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
    on: Vec<HookPoint>,
    #[serde(default)]
    tools: Vec<String>,
    timeout_ms: Option<u64>,
    #[serde(default)]
    output: bool,
    #[serde(default)]
    required: bool,
    command: Option<Vec<String>>,
    url: Option<String>,
}

/// A resolver of names that no worker hosts.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    name: String,
    #[serde(default)]
    tools: Vec<String>,
    timeout_ms: Option<u64>,
    keep_s: Option<u64>,
    keep_unknown_s: Option<u64>,
    command: Option<Vec<String>>,
    url: Option<String>,
}

impl Hooks {
    /// Reads a file.
    ///
    /// # Errors
    /// If it is invalid, with the line or the hook and its field.
    pub fn read(path: &Path) -> Result<Self, InvalidHooks> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| InvalidHooks::Unreadable { path: path.to_owned(), source })?;
        let File { confirm: Confirms { dangerous, except }, hook, resolver: asked } =
            toml::from_str(&text).map_err(|error| InvalidHooks::Malformed { path: path.to_owned(), error })?;
        let confirm =
            Confirm::new(dangerous, &except).map_err(|error| InvalidHooks::Confirm { path: path.to_owned(), error })?;
        let mut hooks = Self { confirm, ..Self::default() };
        for entry in hook {
            hooks = hooks.enter(entry).map_err(|fault| InvalidHooks::Hook { path: path.to_owned(), fault })?;
        }
        for entry in asked {
            let resolvers = with_resolver(hooks.resolvers, entry);
            hooks.resolvers = resolvers.map_err(|fault| InvalidHooks::Resolver { path: path.to_owned(), fault })?;
        }
        Ok(hooks)
    }

    fn enter(self, entry: Entry) -> Result<Self, Misplaced> {
        let Entry { name, on, tools, timeout_ms, output: holds_output, required, command, url } = entry;
        let timeout = timeout_ms.map_or(TIMEOUT, Duration::from_millis);
        let placement = Placement { name, on, tools, timeout, holds_output, required };
        let outside = Outside::named(command, url).map_err(|(field, reason)| Misplaced {
            name: placement.name.clone(),
            field,
            reason,
        })?;
        self.with(placement, outside)
    }
}

fn with_resolver(resolvers: Resolvers, entry: Asked) -> Result<Resolvers, Misplaced> {
    let Asked { name, tools, timeout_ms, keep_s, keep_unknown_s, command, url } = entry;
    let outside = Outside::named(command, url);
    let outside = outside.map_err(|(field, reason)| Misplaced { name: name.clone(), field, reason })?;
    let placement = ResolverPlacement {
        name,
        tools,
        timeout: timeout_ms.map_or(TIMEOUT, Duration::from_millis),
        keep: keep_s.map_or(KEEP, Duration::from_secs),
        keep_unknown: keep_unknown_s.map_or(KEEP_UNKNOWN, Duration::from_secs),
    };
    resolvers.with(placement, outside)
}
