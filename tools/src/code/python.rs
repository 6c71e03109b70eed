//! Finds the Python that runs code, and the sandbox for it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sandbox::{Exit, Level, Limits, Network, Report, Request, Sandbox, Settings, Wanted};
use serde::Deserialize;
use tokio::io::AsyncReadExt as _;
use tokio::time::timeout;
use toolyard_tool::Left;

/// How long a Python may take to say where it is, and to start in the sandbox.
const TRY_TIMEOUT: Duration = Duration::from_secs(20);
/// Bytes of what a Python writes of itself.
const ANSWER_BYTES_MAX: u64 = 64 * 1024;
/// Bytes of memory that one process of the code may take, unless set.
const MEMORY: u64 = 1024 * 1024 * 1024;
/// Bytes of one file that the code writes.
const FILE_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// Writes where the installation is: its program and its folders.
const WHERE: &str = "import sys; print(sys.executable, sys.prefix, sys.base_prefix, sep='\\n')";

/// What the operator sets of the code interpreter.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PythonSettings {
    /// The program; the first `python3` in `PATH` that runs in the sandbox unless set.
    pub python: Option<PathBuf>,
    /// Bytes of memory that one process of the code may take.
    pub memory: Option<u64>,
    /// Run code even where this machine can give no sandbox. Then it reads what its user may, and reaches the network.
    pub unconfined: bool,
}

/// A Python that runs in a sandbox.
#[derive(Debug)]
pub(super) struct Python {
    pub(super) program: PathBuf,
    pub(super) sandbox: Sandbox,
}

impl Python {
    /// The first that runs in such a sandbox.
    pub(super) async fn find(sandbox: &Sandbox, settings: &PythonSettings) -> Result<Self, String> {
        let candidates = match &settings.python {
            Some(program) => vec![program.clone()],
            None => {
                let path = std::env::var_os("PATH").unwrap_or_default();
                let all = std::env::split_paths(&path).map(|folder| folder.join("python3"));
                all.filter(|program| program.is_file()).collect()
            }
        };
        let mut wrong = "no python3 is found in PATH".to_owned();
        for candidate in candidates {
            match Self::make(sandbox, settings, &candidate).await {
                Ok(python) => return Ok(python),
                Err(error) => wrong = format!("{}: {error}", candidate.display()),
            }
        }
        Err(wrong)
    }

    /// A program of `PATH` may be anything, so it is asked in the sandbox too, where it reads its own folder at most.
    async fn make(sandbox: &Sandbox, settings: &PythonSettings, program: &Path) -> Result<Self, String> {
        let asked = Self { program: program.to_owned(), sandbox: confined(sandbox, settings, folders_of(program))? };
        let text = asked.try_once(WHERE).await?;
        let mut lines = text.lines().map(PathBuf::from);
        let Some(program) = lines.next().filter(|program| program.is_absolute()) else {
            return Err("it is no Python 3: it does not write where it is".to_owned());
        };
        let python = Self { program, sandbox: confined(sandbox, settings, lines.collect())? };
        python.try_once("import json").await?;
        Ok(python)
    }

    /// What a line of code writes in the sandbox.
    async fn try_once(&self, code: &str) -> Result<String, String> {
        timeout(TRY_TIMEOUT, self.run(code)).await.map_err(|_| "it does not start in time".to_owned())?
    }

    async fn run(&self, code: &str) -> Result<String, String> {
        let folder = super::folder::Folder::make(self.sandbox.settings().user, Left::default());
        let folder = folder.map_err(|error| error.to_string())?;
        let mut request = Request::run(self.program.display().to_string(), ["-I", "-c", code], folder.work());
        request.workspace = Some(folder.top().to_owned());
        let mut program = self.sandbox.start(request, Left::default()).await.map_err(|error| error.to_string())?;
        let mut text = String::new();
        if let (Some(stdout), _) = program.pipes() {
            let read = stdout.take(ANSWER_BYTES_MAX).read_to_string(&mut text).await;
            read.map_err(|error| format!("its answer cannot be read: {error}"))?;
        }
        match program.report().await {
            Some(Report::Exited(Exit::ExitCode(0))) => Ok(text),
            Some(Report::Exited(exit)) => Err(format!("it does not run in the sandbox: {exit:?}")),
            Some(Report::Failed(error)) => Err(format!("it does not start in the sandbox: {error}")),
            Some(Report::Gone | Report::PerhapsGone) | None => Err("it ended in an unknown way".to_owned()),
        }
    }
}

/// The folders of the installation that a program belongs to, by its path and by the path that links lead to:
/// `/opt/python` for `/opt/python/bin/python3`.
fn folders_of(program: &Path) -> Vec<PathBuf> {
    let paths = [Some(program.to_owned()), program.canonicalize().ok()].into_iter().flatten();
    let folders = paths.filter_map(|path| Some(path.parent()?.parent()?.to_owned()));
    folders.filter(|folder| folder.is_absolute() && folder.parent().is_some()).collect()
}

/// The worker's sandbox without a network, with less, and at least confined.
fn confined(worker: &Sandbox, python: &PythonSettings, readable: Vec<PathBuf>) -> Result<Sandbox, String> {
    let settings = worker.settings().clone();
    let level = match settings.level {
        Wanted::Exactly(Level::None) => Wanted::Auto,
        other => other,
    };
    let memory = python.memory.unwrap_or(MEMORY);
    let memory = Some(settings.limits.memory.map_or(memory, |most| most.min(memory)));
    let file_bytes = settings.limits.file_bytes.min(FILE_BYTES_MAX);
    let limits = Limits { memory, file_bytes, ..settings.limits };
    let readable = settings.readable.iter().cloned().chain(readable).collect();
    let settings = Settings { level, network: Network::Denied, limits, readable, ..settings };
    let sandbox = Sandbox::new(settings).map_err(|error| error.to_string())?;
    if sandbox.level() == Level::None && !python.unconfined {
        let gaps: Vec<String> = sandbox.gaps().iter().map(ToString::to_string).collect();
        return Err(format!(
            "this machine can confine no code, and unconfined is not set for code_interpreter: {}",
            gaps.join("; ")
        ));
    }
    Ok(sandbox)
}
