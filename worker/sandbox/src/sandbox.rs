//! Where a worker's programs are started, and under which rules.

use std::fmt;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use toolyard_tool::Left;

use crate::groups::{ControlGroupError, ControlGroups, Groups};
use crate::guard::{PROBE, RULES};
use crate::guarded::{Guarded, Guards};
use crate::level::{Level, Limits, Network, Wanted};
use crate::request::{Request, StartError};
use crate::{NAME, NoGuard, User, kept_environment, program};

/// The rules for all programs that a worker starts.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// How strongly programs are confined.
    pub level: Wanted,
    /// Whether programs reach a network.
    pub network: Network,
    /// How much a program may use.
    pub limits: Limits,
    /// The control group for limits of all processes of a program together; `None`: without.
    pub groups: Option<ControlGroups>,
    /// The folder that confined programs may change, unless a request names another; `None`: the folder that the
    /// program runs in.
    pub workspace: Option<PathBuf>,
    /// Folders and files that confined programs may read, beside the system's.
    pub readable: Vec<PathBuf>,
    /// Files that programs must not open, as the worker's keys. A kernel with Landlock (Linux 5.13, if it is enabled)
    /// keeps programs from them; see [`warn_of_gaps`](crate::warn_of_gaps).
    pub hidden: Vec<PathBuf>,
    /// The user as which programs run; `None`: the worker's. Only root can choose another: see
    /// [`choose_user`](crate::choose_user).
    pub user: Option<User>,
}

/// Something that this machine cannot give.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// The lowest level that needs it.
    pub level: Level,
    /// What is missing, and how to get it.
    pub what: String,
    /// `Isolated` does without it, because its namespaces close the same way.
    pub closed_by_isolation: bool,
}

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} needs {}", self.level, self.what)
    }
}

/// A sandbox cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    #[error(transparent)]
    NoGuard(#[from] NoGuard),
    #[error(
        "this machine cannot give the sandbox level {level}: {}. Choose a lower level (--sandbox), or mend that",
        gaps.iter().map(Gap::to_string).collect::<Vec<_>>().join("; ")
    )]
    Missing { level: Level, gaps: Vec<Gap> },
    #[error(transparent)]
    ControlGroup(#[from] ControlGroupError),
    #[error("what the kernel can give the sandbox cannot be tried: {0}")]
    Probe(io::Error),
}

/// What a guard is told of its sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Rules {
    pub(crate) level: Level,
    pub(crate) network: Network,
    pub(crate) limits: Limits,
    pub(crate) workspace: Option<PathBuf>,
    pub(crate) readable: Vec<PathBuf>,
    pub(crate) hidden: Vec<PathBuf>,
    pub(crate) user: Option<User>,
}

impl Rules {
    pub(crate) fn from_environment() -> io::Result<Self> {
        let rules = std::env::var(RULES).map_err(io::Error::other)?;
        Ok(serde_json::from_str(&rules)?)
    }
}

/// Starts programs, each under a guard. Cheap to clone: tools and origins get a clone when they are made.
#[derive(Debug, Clone)]
pub struct Sandbox {
    inner: Arc<Inner>,
    /// Instead of that of the settings, for requests that name none.
    workspace: Option<PathBuf>,
}

#[derive(Debug)]
struct Inner {
    settings: Settings,
    level: Level,
    gaps: Vec<Gap>,
    guards: Guards,
}

impl Sandbox {
    /// Unless the level is `None`, this tries what the kernel can give, which takes some milliseconds.
    ///
    /// # Errors
    /// When the machine cannot give the level that is wanted, and when the program's main function does not begin with
    /// [`enter`](crate::enter).
    pub fn new(settings: Settings) -> Result<Self, SandboxError> {
        program()?;
        let mut rules = Rules {
            level: Level::Isolated,
            network: settings.network,
            limits: settings.limits.clone(),
            workspace: settings.workspace.clone().map(|path| canonical(&path).unwrap_or(path)),
            readable: settings.readable.clone(),
            hidden: settings.hidden.clone(),
            user: settings.user,
        };
        let gaps = match settings.level {
            Wanted::Exactly(Level::None) => Vec::new(),
            Wanted::Auto | Wanted::Exactly(_) => probe(&rules).map_err(SandboxError::Probe)?,
        };
        let needed = |level| {
            let matters =
                move |gap: &&Gap| gap.level <= level && !(level == Level::Isolated && gap.closed_by_isolation);
            gaps.iter().filter(matters).cloned().collect::<Vec<_>>()
        };
        rules.level = match settings.level {
            Wanted::Auto => [Level::Confined, Level::Isolated]
                .into_iter()
                .find(|level| needed(*level).is_empty())
                .unwrap_or(Level::None),
            Wanted::Exactly(level) => {
                let gaps = needed(level);
                if level > Level::None && !gaps.is_empty() {
                    return Err(SandboxError::Missing { level, gaps });
                }
                level
            }
        };
        let groups = settings.groups.as_ref().map(Groups::open).transpose()?;
        let guards = Guards::new(&rules, groups).map_err(SandboxError::Probe)?;
        let inner = Inner { settings, level: rules.level, gaps, guards };
        Ok(Self { inner: Arc::new(inner), workspace: None })
    }

    /// The same sandbox for programs that may change this folder, and not that of the settings.
    #[must_use]
    pub fn within(&self, workspace: impl Into<PathBuf>) -> Self {
        Self { inner: Arc::clone(&self.inner), workspace: Some(workspace.into()) }
    }

    /// The rules of this sandbox.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.inner.settings
    }

    /// The level that its programs have.
    #[must_use]
    pub fn level(&self) -> Level {
        self.inner.level
    }

    /// What the machine cannot give, for any level; not known if `Level::None` was asked for.
    #[must_use]
    pub fn gaps(&self) -> &[Gap] {
        &self.inner.gaps
    }

    /// Starts a program. It runs until it ends, or until the [`Guarded`] is dropped. It ends with the worker in any
    /// case.
    ///
    /// `left` receives its end if the `Guarded` is dropped before all of the program's processes have ended: the
    /// context's [`left`](toolyard_tool::Context::left) for a program of a call, `Left::default()` for one that belongs
    /// to no call, as a server that is kept for many calls.
    ///
    /// # Errors
    /// When the request is not valid or no guard can be started. A program that cannot be started, as one that is not
    /// installed, is reported later: [`Report::Failed`](crate::Report::Failed).
    pub async fn start(&self, mut request: Request, left: Left) -> Result<Guarded, StartError> {
        request.check()?;
        request.workspace = request.workspace.or_else(|| self.workspace.clone());
        if self.inner.level > Level::None {
            // Links lead to paths that a confined program may not see.
            let folders = [Some(&mut request.folder), request.workspace.as_mut()];
            for folder in folders.into_iter().flatten() {
                let path = folder.clone();
                *folder = canonical(&path).map_err(|source| StartError::Folder { path, source })?;
            }
        }
        self.inner.guards.start(&request, left).await
    }
}

fn canonical(path: &Path) -> io::Result<PathBuf> {
    path.canonicalize()
}

/// Everything that a process with these rules cannot get.
fn probe(rules: &Rules) -> io::Result<Vec<Gap>> {
    if !cfg!(target_os = "linux") {
        return Ok(vec![Gap { level: Level::Confined, what: "Linux".to_owned(), closed_by_isolation: false }]);
    }
    let mut command = Command::new(program().map_err(io::Error::other)?);
    command.arg0(NAME).arg(PROBE).env_clear().envs(kept_environment()).env(RULES, serde_json::to_string(rules)?);
    let output = command.stdin(Stdio::null()).output()?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(io::Error::other(format!("{}: {error}", output.status)));
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}
