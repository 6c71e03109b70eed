//! Tries what the kernel can give, in a process of its own: most of it cannot be undone.

use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::thread;

use nix::sched::unshare;

use super::{Isolation, PROBE_VIEW, filter, namespaces, view};
use crate::NAME;
use crate::level::{Level, Network};
use crate::sandbox::{Gap, Rules};

/// Writes what is missing to standard output, as JSON.
pub(super) fn run() -> io::Result<()> {
    let rules = Rules::from_environment()?;
    let mut gaps = confined(&rules);
    // Threads would keep this process from entering a user namespace: the others have ended.
    gaps.extend(isolated(&rules)?);
    serde_json::to_writer(io::stdout(), &gaps)?;
    io::stdout().flush()
}

fn confined(rules: &Rules) -> Vec<Gap> {
    let Isolation { whole_files, signals, .. } = Isolation::probe();
    let mut missing = Vec::new();
    if !whole_files {
        let what = "Landlock of Linux 6.2 or newer, enabled in the kernel (boot parameter lsm=landlock,...)";
        missing.push((what.to_owned(), false));
    }
    if !signals && rules.user.is_none() {
        let what = "Landlock of Linux 6.12 or newer, or programs of another user than the worker's: else they can \
                    signal the worker";
        missing.push((what.to_owned(), true));
    }
    let entered = thread::spawn(|| filter::enter(Level::Confined, Network::Denied)).join();
    match entered {
        Ok(Ok(())) => {}
        Ok(Err(error)) => missing.push((format!("seccomp filters ({error})"), false)),
        Err(_) => missing.push(("seccomp filters (the thread that tried one panicked)".to_owned(), false)),
    }
    let gap = |(what, closed_by_isolation)| Gap { level: Level::Confined, what, closed_by_isolation };
    missing.into_iter().map(gap).collect()
}

fn isolated(rules: &Rules) -> io::Result<Vec<Gap>> {
    let gap = |what: String| Gap { level: Level::Isolated, what, closed_by_isolation: false };
    namespaces::become_user(rules.user)?;
    if let Err(error) = namespaces::enter_user() {
        let what = format!(
            "user namespaces ({error}): see the sysctls user.max_user_namespaces, kernel.unprivileged_userns_clone and \
             kernel.apparmor_restrict_unprivileged_userns; in a container, its seccomp profile"
        );
        return Ok(vec![gap(what)]);
    }
    let mut gaps = Vec::new();
    for (flag, name) in namespaces::OTHERS {
        if let Err(error) = unshare(flag) {
            gaps.push(gap(format!("a {name} namespace ({error})")));
        }
    }
    if !gaps.is_empty() {
        return Ok(gaps);
    }
    let mut inside = Command::new("/proc/self/exe");
    inside.arg0(NAME).arg(PROBE_VIEW).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let output = inside.spawn()?.wait_with_output()?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr).trim().replace("toolyard-guard: ", "");
        gaps.push(gap(format!("mounts of its own ({error}); containers with a masked /proc deny them")));
    }
    Ok(gaps)
}

/// The first process of new namespaces.
pub(super) fn run_inside() -> io::Result<()> {
    let rules = Rules::from_environment()?;
    view::make(&rules)?;
    view::finish(&[])
}
