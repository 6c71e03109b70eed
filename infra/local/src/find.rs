//! Finds a program: on PATH, else in the cache of earlier fetches, else by fetching it.

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

use crate::error::Error;
use crate::fetch::fetch;
use crate::program::{Program, Version};

/// The programs print their version in some milliseconds; the first start of a program on macOS takes seconds.
const VERSION_LIMIT: Duration = Duration::from_secs(20);

/// Search paths. An argument, so that tests need not change the environment of their process.
#[derive(Debug, Clone)]
pub struct Lookup {
    /// Folders as in PATH, also for the Python that fetches.
    pub path: OsString,
    /// The folder of fetched programs, created when needed. None: nothing can be fetched.
    pub cache: Option<PathBuf>,
}

impl Lookup {
    /// PATH, and the cache that [`Lookup::from_vars`] says.
    pub fn from_env() -> Self {
        Self::from_vars(|name| env::var_os(name))
    }

    /// The cache is `$TOOLYARD_CACHE`, else `$XDG_CACHE_HOME/toolyard`, else `~/Library/Caches/toolyard` on macOS and
    /// `~/.cache/toolyard` elsewhere. An empty variable counts as none.
    pub fn from_vars(var: impl Fn(&str) -> Option<OsString>) -> Self {
        let folder = |name| var(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let caches = if cfg!(target_os = "macos") { "Library/Caches" } else { ".cache" };
        let cache = folder("TOOLYARD_CACHE")
            .or_else(|| Some(folder("XDG_CACHE_HOME")?.join("toolyard")))
            .or_else(|| Some(folder("HOME")?.join(caches).join("toolyard")));
        Self { path: var("PATH").unwrap_or_default(), cache }
    }

    /// The executable files of this name on the path, in its order.
    pub(crate) fn on_path(&self, name: &str) -> impl Iterator<Item = PathBuf> {
        env::split_paths(&self.path)
            .filter(|folder| !folder.as_os_str().is_empty())
            .map(move |folder| folder.join(name))
            .filter(|file| is_executable(file))
    }
}

/// The path of a program that runs here and is new enough. `say` gets a line for each step a person would wonder
/// about: a program passed over, a download, where it was installed. Silent when the program is simply there.
///
/// # Errors
/// There is none and none could be fetched; the text says what to install.
pub async fn find(program: Program, lookup: &Lookup, say: fn(&str)) -> Result<PathBuf, Error> {
    for file in program.names().iter().flat_map(|name| lookup.on_path(name)) {
        match check(program, &file).await {
            Ok(()) => return Ok(file),
            Err(unfit) => tell(say, &format!("passing over {}: {unfit}", file.display())),
        }
    }
    let Some(cache) = &lookup.cache else {
        return Err(Error::NoCache { program });
    };
    let file = program.place(cache);
    if check(program, &file).await.is_ok() {
        return Ok(file);
    }
    fetch(program, lookup, cache, say).await
}

/// Why a file will not do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unfit {
    #[error("its version is {found}, at least {needed} is needed")]
    TooOld { found: Version, needed: Version },
    #[error("it does not run: {0}")]
    Broken(#[from] io::Error),
    #[error("it does not tell its version within {} s", VERSION_LIMIT.as_secs())]
    Hangs,
    #[error("it does not tell its version")]
    Mute,
}

/// Runs the program to see that it runs on this machine at all, and how old it is.
pub(crate) async fn check(program: Program, file: &Path) -> Result<(), Unfit> {
    let output = Command::new(file).arg(program.version_argument()).kill_on_drop(true).output();
    let output = timeout(VERSION_LIMIT, output).await.map_err(|_| Unfit::Hangs)??;
    let found = Version::parse(&String::from_utf8_lossy(&output.stdout)).ok_or(Unfit::Mute)?;
    let needed = program.version_min();
    if found < needed { Err(Unfit::TooOld { found, needed }) } else { Ok(()) }
}

pub(crate) fn tell(say: fn(&str), line: &str) {
    tracing::info!("{line}");
    say(line);
}

fn is_executable(file: &Path) -> bool {
    file.metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache_of(vars: &[(&str, &str)]) -> Option<PathBuf> {
        let var = |name: &str| {
            let found = vars.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| OsString::from(value))
        };
        Lookup::from_vars(var).cache
    }

    #[test]
    fn the_cache_is_the_first_folder_that_is_set() {
        let home = ("HOME", "/home/ada");
        let xdg = ("XDG_CACHE_HOME", "/xdg");
        let own = ("TOOLYARD_CACHE", "/own");
        let at_home = if cfg!(target_os = "macos") { "Library/Caches" } else { ".cache" };
        assert_eq!(cache_of(&[home, xdg, own]), Some("/own".into()));
        assert_eq!(cache_of(&[home, xdg, ("TOOLYARD_CACHE", "")]), Some("/xdg/toolyard".into()));
        assert_eq!(cache_of(&[home]), Some(Path::new("/home/ada").join(at_home).join("toolyard")));
        assert_eq!(cache_of(&[]), None);
    }
}
