//! Programs for tests, installed once into the cache from PyPI or npm. Where that is not possible the test is left out,
//! which is written past the test harness, so that it is seen.

#![allow(dead_code, clippy::unwrap_used, reason = "it is all tests, and not every one needs all of it")]

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder that all tests of this machine share.
fn cache() -> PathBuf {
    let base = std::env::var_os("TOOLYARD_CACHE").map(PathBuf::from);
    let base = base.or_else(|| Some(PathBuf::from(std::env::var_os("XDG_CACHE_HOME")?).join("toolyard")));
    let base = base.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache/toolyard")));
    base.unwrap_or_else(std::env::temp_dir)
}

/// Says that a test is left out.
#[expect(clippy::explicit_write, reason = "the test harness shows what `eprintln` writes only when a test fails")]
pub(crate) fn not_here(what: &str) {
    writeln!(std::io::stderr(), "NOT TESTED HERE: {what}").unwrap();
}

/// A program of a package of PyPI, as `ruff==0.14.6`, with what else it needs.
pub(crate) fn from_pypi(packages: &[&str], program: &str) -> Option<PathBuf> {
    let install = |folder: &Path| {
        let mut command = Command::new("python3");
        command.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target"]).arg(folder);
        command.args(packages);
        command
    };
    bring(packages, &format!("bin/{program}"), install)
}

/// The folder of packages that [`from_pypi`] installed, for the variable `PYTHONPATH`.
pub(crate) fn python_path(program: &Path) -> String {
    program.parent().and_then(Path::parent).unwrap().display().to_string()
}

/// A program of packages of npm, as `eslint@9.39.1`.
pub(crate) fn from_npm(packages: &[&str], program: &str) -> Option<PathBuf> {
    let install = |folder: &Path| {
        let mut command = Command::new("npm");
        command.args(["install", "--silent", "--no-audit", "--no-fund", "--prefix"]).arg(folder).args(packages);
        command
    };
    bring(packages, &format!("node_modules/.bin/{program}"), install)
}

fn bring(packages: &[&str], program: &str, install: impl Fn(&Path) -> Command) -> Option<PathBuf> {
    let name = packages.join("+").replace(['/', '@', '='], "_");
    let place = cache().join("programs").join(name);
    if place.join(program).exists() {
        return Some(place.join(program));
    }
    fs::create_dir_all(place.parent().unwrap()).ok()?;
    let work = tempfile::tempdir_in(place.parent().unwrap()).ok()?;
    let installed = install(&work.path().join("x")).output();
    if !installed.as_ref().is_ok_and(|output| output.status.success()) {
        not_here(&format!("{packages:?} cannot be installed: {installed:?}"));
        return None;
    }
    // Another test may have been faster. Scripts name the folder in which they were installed, so it is installed in
    // its place if it has some.
    if fs::rename(work.path().join("x"), &place).is_err() && !place.join(program).exists() {
        not_here(&format!("{packages:?} cannot be put to {}", place.display()));
        return None;
    }
    Some(place.join(program)).filter(|program| program.exists())
}
