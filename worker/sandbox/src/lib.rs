//! Starts programs for the tools and origins of a worker: [`Sandbox::start`]. Each program runs under a guard, a
//! process between the worker and the program. It is our own program, started again under another name, so it needs no
//! tool of the machine.
//!
//! What the guard gives on Linux:
//! - *Nothing escapes.* It is the subreaper of all that the program starts. A process that leaves its group, its
//!   session or its parent becomes a child of the guard. While the guard has a child something lives; when it has none,
//!   nothing does.
//! - *It ends with the worker*, whatever kills that: the guard holds a socket of the worker and kills everything when
//!   the socket closes.
//! - *Limits*: see `guard/confine.rs`. The program runs without new privileges and in a Landlock domain of its own. It
//!   cannot signal, trace or look into a process that is not its own, nor open the files that are hidden from it.
//!
//! Other systems have no subreaper: there the guard kills the program's process group and reports that it cannot know
//! more.

mod groups;
mod guard;
mod guarded;
mod level;
mod removal;
mod request;
mod sandbox;
mod signals;
mod user;
mod workspaces;

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::OnceLock;

pub use groups::{ControlGroupError, ControlGroups};
use guard::{GROUP, Isolation, RULES};
pub use guarded::Guarded;
pub use level::{Level, Limits, Network, Wanted};
pub use removal::TemporaryFolder;
pub use request::{Exit, Input, Order, Program, Report, Request, StartError};
pub use sandbox::{Gap, Sandbox, SandboxError, Settings};
pub use signals::{Signal, UnknownSignal};
pub use user::User;
pub use workspaces::{Quota, QuotaExceeded, RUN_IDLE, Sharing, Workspace, WorkspaceError, Workspaces};

/// The name under which our program is a guard.
const NAME: &str = "toolyard-guard";

/// The variables of the worker's environment that a program receives. All others may be secrets.
const ENVIRONMENT: [&str; 8] = ["PATH", "HOME", "LANG", "LC_ALL", "TERM", "TZ", "USER", "TMPDIR"];

/// The program that is started as a guard.
static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// The program did not begin with [`enter`].
#[derive(Debug, thiserror::Error)]
#[error("this program cannot guard commands: its main function must begin with sandbox::enter()")]
pub struct NoGuard;

/// The first thing in the main function of a program that hosts `bash`, which starts the program
/// once more as the guard of each command. In a guard this function does not return.
pub fn enter() {
    if std::env::args_os().next().is_some_and(|name| name == NAME) {
        std::process::exit(guard::run());
    }
    // On Linux this is the program that runs, also when its file was replaced meanwhile.
    let program = if cfg!(target_os = "linux") { Ok("/proc/self/exe".into()) } else { std::env::current_exe() };
    if let Ok(program) = program {
        use_program(program);
    }
}

/// Names another program that begins with [`enter`], for tests, whose own main function cannot.
#[doc(hidden)]
pub fn use_program(program: PathBuf) {
    // The first counts.
    drop(PROGRAM.set(program));
}

/// The program that is started as a guard.
pub fn program() -> Result<&'static Path, NoGuard> {
    PROGRAM.get().map(PathBuf::as_path).ok_or(NoGuard)
}

/// The worker is not root, so commands can only run as its own user.
#[derive(Debug, thiserror::Error)]
#[error(
    "commands cannot run as user {uid}: only a worker that runs as root can choose another user than its own, {own}"
)]
pub struct NotRoot {
    uid: u32,
    own: u32,
}

/// The user as which commands run if `asked` was configured: `None` for the worker's own user. If the worker is root
/// and no user is configured, commands run as [`User::NOBODY`].
///
/// # Errors
/// Another user was configured and the worker is not root.
pub fn choose_user(asked: Option<User>) -> Result<Option<User>, NotRoot> {
    let own = rustix::process::geteuid().as_raw();
    match asked {
        None => Ok((own == 0).then_some(User::NOBODY)),
        Some(User { uid, .. }) if uid == own => Ok(None),
        Some(user) if own == 0 => Ok(Some(user)),
        Some(User { uid, .. }) => Err(NotRoot { uid, own }),
    }
}

/// Logs which restrictions of `bash` commands the system does not support.
pub fn warn_of_gaps(hidden: &[PathBuf], user: Option<User>) {
    if !cfg!(target_os = "linux") {
        tracing::warn!("processes that leave their group outlive a call of bash here: its cancel is UNCONFIRMED");
    }
    let Isolation { files, signals, .. } = Isolation::probe();
    match user {
        // The rights of files and processes keep it from the worker's.
        Some(User { uid, gid }) => return tracing::info!(uid, gid, "commands of bash run as another user"),
        None if rustix::process::geteuid().is_root() => {
            tracing::warn!(
                "commands of bash run as root, who can get around every barrier: name another user (--tools-user)"
            );
        }
        None => {}
    }
    if !files && !hidden.is_empty() {
        tracing::warn!(files = ?hidden, "commands of bash can read the worker's keys: the kernel has no Landlock");
    }
    if !signals && cfg!(target_os = "linux") {
        tracing::warn!(
            "a command of bash can kill its guard, and its cancel is then UNCONFIRMED: the kernel is older than 6.12"
        );
    }
}

/// A process that waits for its program.
fn start(
    socket: std::os::unix::net::UnixStream,
    rules: &str,
    group: Option<&Path>,
) -> io::Result<tokio::process::Child> {
    let program = program().map_err(io::Error::other)?;
    let mut command = tokio::process::Command::new(program);
    command.arg0(NAME).env_clear().envs(kept_environment()).env(RULES, rules);
    if let Some(group) = group {
        command.env(GROUP, group);
    }
    command.stdin(std::os::fd::OwnedFd::from(socket)).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn()
}

fn kept_environment() -> impl Iterator<Item = (&'static str, std::ffi::OsString)> {
    ENVIRONMENT.into_iter().filter_map(|name| Some((name, std::env::var_os(name)?)))
}
