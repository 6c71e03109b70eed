//! The files of the broker's keys: the seed of each user's NKey, and the seeds beside it while a key is replaced.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nats::access::Party;
use nkeys::KeyPair;

use crate::exit::Failure;

/// The files of a user.
#[derive(Debug)]
pub(crate) struct KeyFiles {
    /// The key in use.
    pub(crate) current: PathBuf,
    /// The key that is about to take its place.
    pub(crate) next: PathBuf,
    /// The key that was in use before.
    pub(crate) old: PathBuf,
}

impl KeyFiles {
    /// Below the folder of `nats-config`. The folder `keys` is given to pods and machines as it is. So the operator's
    /// key is not in it, nor any key that is not in use.
    pub(crate) fn of(party: &Party, out: &Path) -> Self {
        let name = party.name();
        let keys = if *party == Party::Operator { out.to_owned() } else { out.join("keys") };
        let rotation = out.join("rotation");
        Self {
            current: keys.join(format!("{name}.nk")),
            next: rotation.join(format!("{name}.next.nk")),
            old: rotation.join(format!("{name}.old.nk")),
        }
    }
}

/// The key in a file; `None` if there is no such file.
pub(crate) fn read(file: &Path) -> Result<Option<KeyPair>, Failure> {
    match fs::read_to_string(file) {
        Ok(seed) => {
            let pair = KeyPair::from_seed(seed.trim()).ok().filter(|pair| pair.public_key().starts_with('U'));
            pair.ok_or_else(|| wrong(file, &"it is not the seed of a user's NKey")).map(Some)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(wrong(file, &error)),
    }
}

/// Makes a key.
pub(crate) fn make(file: &Path) -> Result<KeyPair, Failure> {
    let pair = KeyPair::new_user();
    store(file, &pair)?;
    Ok(pair)
}

/// Writes the seed of a key to a file that only its owner can read.
pub(crate) fn store(file: &Path, pair: &KeyPair) -> Result<(), Failure> {
    let seed = pair.seed().map_err(|error| wrong(file, &error))?;
    let folder = file.parent().unwrap_or(Path::new("."));
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.and_then(|()| write(file, &format!("{seed}\n"), 0o600)).map_err(|error| wrong(file, &error))
}

/// Writes a text that all users may read.
pub(crate) fn publish(file: &Path, text: &str) -> Result<(), Failure> {
    write(file, text, 0o644).map_err(|error| wrong(file, &error))
}

/// The file has either its old or its new content, even if this process is killed.
fn write(file: &Path, text: &str, mode: u32) -> io::Result<()> {
    let mut name = file.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    // An interrupted run may have left it, with another mode.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut opened = OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
    opened.write_all(text.as_bytes())?;
    opened.sync_all()?;
    fs::rename(&new, file)
}

pub(crate) fn wrong(file: &Path, reason: &dyn std::fmt::Display) -> Failure {
    Failure::Usage(format!("cannot use {}: {reason}", file.display()))
}
