//! `last` in place of a run's id: the run that this user created last with this program.

use std::path::PathBuf;

use crate::exit::Failure;

const LAST: &str = "last";

/// A run as the user names it.
#[derive(Debug, Clone)]
pub(crate) struct RunArg(String);

impl From<String> for RunArg {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl RunArg {
    pub(crate) fn id(self) -> Result<String, Failure> {
        if self.0 != LAST {
            return Ok(self.0);
        }
        let usage = |why: &str| Failure::Usage(why.to_owned());
        let file = file().ok_or_else(|| {
            usage("there is no home directory, where the id of the last run is kept: give the run's id")
        })?;
        let kept = std::fs::read_to_string(file)
            .map_err(|_| usage("no run was created with this program yet: create one, or give the run's id"))?;
        Ok(kept.trim().to_owned())
    }
}

/// Keeps the id of a run that was created. Where nothing can be written, `last` stands for nothing.
pub(crate) fn keep(run_id: &str) {
    let Some(file) = file() else { return };
    let written = file.parent().map_or(Ok(()), std::fs::create_dir_all);
    if let Err(error) = written.and_then(|()| std::fs::write(&file, format!("{run_id}\n"))) {
        tracing::debug!(%error, "the id of the last run was not kept");
    }
}

/// In the directory for state by the XDG base directory specification.
fn file() -> Option<PathBuf> {
    let of = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = of("XDG_STATE_HOME").or_else(|| Some(of("HOME")?.join(".local/state")))?;
    Some(state.join("toolyard/last-run"))
}
