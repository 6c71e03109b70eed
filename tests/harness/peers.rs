//! Programs of others that the scenarios talk to, from npm and PyPI. Each set is installed once into the cache folder.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The versions that are known to work, so that a new release breaks no test.
const NPM: [&str; 2] =
    ["@modelcontextprotocol/server-everything@2026.8.31", "@modelcontextprotocol/server-filesystem@2026.8.31"];
const PYPI: [&str; 2] = ["mcp-server-git==2026.10.19", "mcp-server-time==2026.10.19"];

/// The folder of the MCP servers from npm; their programs are in `node_modules/.bin`.
///
/// # Panics
/// When npm cannot install them.
#[must_use]
pub fn npm_servers() -> PathBuf {
    installed("mcp-npm", &NPM, |folder| {
        let mut command = Command::new("npm");
        command.args(["install", "--no-audit", "--no-fund", "--no-save", "--prefix"]).arg(folder).args(NPM);
        vec![command]
    })
    .join("node_modules/.bin")
}

/// The folder of the programs of the MCP servers from PyPI.
///
/// # Panics
/// When pip cannot install them.
#[must_use]
pub fn python_servers() -> PathBuf {
    installed("mcp-python", &PYPI, |folder| {
        let mut environment = Command::new("python3");
        environment.args(["-m", "venv"]).arg(folder);
        let mut install = Command::new(folder.join("bin/python3"));
        install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(PYPI);
        vec![environment, install]
    })
    .join("bin")
}

/// Runs the commands that install a set, unless it is there. Other processes that want it wait meanwhile.
fn installed(name: &str, what: &[&str], commands: impl Fn(&Path) -> Vec<Command>) -> PathBuf {
    let cache = local::Lookup::from_env().cache.expect("there is a cache folder");
    std::fs::create_dir_all(&cache).expect("the cache folder can be made");
    let folder = cache.join(name);
    let lock = File::create(cache.join(format!("{name}.lock"))).expect("a file can be made");
    lock.lock().expect("it can be locked");
    let (done, wanted) = (folder.join("installed"), what.join("\n"));
    if std::fs::read_to_string(&done).is_ok_and(|installed| installed == wanted) {
        return folder;
    }
    drop(std::fs::remove_dir_all(&folder));
    std::fs::create_dir_all(&folder).expect("a folder can be made");
    for mut command in commands(&folder) {
        let output = command.stdin(Stdio::null()).output().expect("the installer is there");
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    std::fs::write(done, wanted).expect("a file can be written");
    folder
}
