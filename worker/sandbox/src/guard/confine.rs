//! Restrictions of a program: no access to other processes and hidden files, and limits of the machine's resources.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::str::FromStr;

use rustix::process::{Pid, Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};

use crate::request::{Job, Program};

/// Processes and threads of the user, beyond those that the machine has when the command starts. A large build has some
/// hundred; a fork bomb ends here. The kernel counts by user, and does not hold root to it.
const PROCESSES_MAX: u64 = 4096;
/// Bytes of one file that the command writes: more than a container image, less than a disk.
const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024 * 1024;
/// When memory runs out, the kernel ends a command before its worker: 1000 is the first to go, 0 the usual.
const OOM_SCORE: i32 = 500;

/// The user as which commands run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
}

impl User {
    /// The user of our container images, which owns no files.
    pub const NOBODY: Self = Self { uid: 65532, gid: 65532 };
}

/// `1000`, or `1000:1000` with the group.
impl FromStr for User {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (uid, gid) = text.split_once(':').unwrap_or((text, text));
        let number = |text: &str| text.parse().map_err(|_| format!("{text:?} is not the number of a user or group"));
        Ok(Self { uid: number(uid)?, gid: number(gid)? })
    }
}

/// The restrictions that the kernel enforces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Isolation {
    /// Files can be hidden from them.
    pub(crate) files: bool,
    /// They cannot signal processes that are not their own, as their guard.
    pub(crate) signals: bool,
}

impl Isolation {
    pub(crate) fn probe() -> Self {
        // A domain binds the thread that enters it, and lasts as long.
        let probed = std::thread::spawn(domain::probe).join();
        probed.unwrap_or(Self { files: false, signals: false })
    }
}

/// Starts the program of a job.
pub(super) fn start(job: Job, stdin: Option<OwnedFd>) -> io::Result<Pid> {
    // A domain binds the thread that enters it and processes that this starts. The guard's other threads stay outside,
    // so the program cannot signal the guard. The program is the child of the process, not of the thread.
    let starting = move || {
        domain::enter(&job.hidden)?;
        if job.user.is_none() {
            domain::drop_rights_of_root()?;
        }
        let command = |program: &str| {
            let mut command = Command::new(program);
            command.stdin(match &stdin {
                Some(stdin) => Stdio::from(stdin.try_clone()?),
                None => Stdio::null(),
            });
            io::Result::Ok(command)
        };
        match &job.request.program {
            // Without the dashes a command that begins with one would be taken for an option.
            Program::Shell(text) => {
                let shell = |shell| spawn(&job, command(shell)?.args(["-c", "--", text]));
                shell("bash").or_else(|error| match error.kind() {
                    io::ErrorKind::NotFound => shell("sh"),
                    _ => Err(error),
                })
            }
            Program::Run { program, arguments } => spawn(&job, command(program)?.args(arguments))
                .map_err(|error| io::Error::new(error.kind(), format!("{program:?}: {error}"))),
        }
    };
    let started = std::thread::Builder::new().name("start".to_owned()).spawn(starting)?.join();
    started.unwrap_or_else(|_| Err(io::Error::other("the thread that starts the program panicked")))
}

fn spawn(job: &Job, command: &mut Command) -> io::Result<Pid> {
    let folder = &job.request.folder;
    command.current_dir(folder).stdout(Stdio::inherit()).stderr(Stdio::inherit()).process_group(0);
    if let Some(User { uid, gid }) = job.user {
        command.uid(uid).gid(gid).env_remove("USER").env("HOME", folder);
    }
    let child = command.envs(&job.request.environment).spawn()?;
    // The guard reaps it among all its children.
    let id = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    id.ok_or_else(|| io::Error::other("the program has no process id"))
}

/// Limits this process and all that it starts. Stricter limits stay.
pub(super) fn limit() -> io::Result<()> {
    lower(Resource::Core, 0)?;
    lower(Resource::Fsize, FILE_BYTES_MAX)?;
    if let Some(now) = processes() {
        lower(Resource::Nproc, now + PROCESSES_MAX)?;
    }
    let score = "/proc/self/oom_score_adj";
    let is_lower = |now: String| now.trim().parse::<i32>().is_ok_and(|now| now < OOM_SCORE);
    if std::fs::read_to_string(score).is_ok_and(is_lower) {
        // Not a promise: a system may not let us.
        drop(std::fs::write(score, OOM_SCORE.to_string()));
    }
    Ok(())
}

fn lower(resource: Resource, most: u64) -> io::Result<()> {
    let now = getrlimit(resource);
    let lowest = |limit: Option<u64>| Some(limit.map_or(most, |limit| limit.min(most)));
    Ok(setrlimit(resource, Rlimit { current: lowest(now.current), maximum: lowest(now.maximum) })?)
}

/// How many processes and threads the machine has: the second number of `0.20 0.18 0.12 1/345 11206`, behind the slash.
fn processes() -> Option<u64> {
    let load = std::fs::read_to_string("/proc/loadavg").ok()?;
    load.split_ascii_whitespace().nth(3)?.split_once('/')?.1.parse().ok()
}

#[cfg(not(target_os = "linux"))]
mod domain {
    use super::{Isolation, PathBuf, io};

    pub(super) fn probe() -> Isolation {
        Isolation { files: false, signals: false }
    }

    #[expect(clippy::unnecessary_wraps, reason = "elsewhere it may fail")]
    pub(super) fn enter(_hidden: &[PathBuf]) -> io::Result<()> {
        Ok(())
    }

    #[expect(clippy::unnecessary_wraps, reason = "elsewhere it may fail")]
    pub(super) fn drop_rights_of_root() -> io::Result<()> {
        Ok(())
    }
}

#[cfg(target_os = "linux")]
mod domain {
    //! A Landlock domain: what enters it, and everything that it starts, has fewer rights from then on, root too.

    use std::collections::BTreeSet;
    use std::path::Path;

    use landlock::{
        ABI, Access as _, AccessFs, CompatLevel, Compatible as _, LandlockStatus, Ruleset, RulesetAttr as _,
        RulesetCreatedAttr as _, RulesetError, RulesetStatus, Scope, path_beneath_rules,
    };

    use rustix::thread::{
        CapabilitySet, CapabilitySets, capability_is_in_bounding_set, remove_capability_from_bounding_set,
        set_capabilities,
    };

    use super::{Isolation, PathBuf, io};

    /// The capabilities that root keeps in a command: enough to install packages, but none to look into other
    /// processes, to mount, or to change the kernel.
    const RIGHTS_OF_ROOT: CapabilitySet = CapabilitySet::CHOWN
        .union(CapabilitySet::DAC_OVERRIDE)
        .union(CapabilitySet::FOWNER)
        .union(CapabilitySet::FSETID)
        .union(CapabilitySet::SETUID)
        .union(CapabilitySet::SETGID)
        .union(CapabilitySet::NET_BIND_SERVICE)
        .union(CapabilitySet::SYS_CHROOT);

    /// The rights that are removed for hidden files and kept for all others. Later versions add rights over devices,
    /// which commands need unchanged.
    const RIGHTS: ABI = ABI::V3;

    pub(super) fn probe() -> Isolation {
        let scoped = Ruleset::default().set_compatibility(CompatLevel::BestEffort).scope(Scope::Signal);
        let entered = scoped.and_then(|ruleset| ruleset.handle_access(AccessFs::ReadFile)?.create()?.restrict_self());
        match entered {
            Ok(status) => Isolation {
                files: matches!(status.landlock, LandlockStatus::Available { .. })
                    && status.ruleset != RulesetStatus::NotEnforced,
                signals: status.ruleset == RulesetStatus::FullyEnforced,
            },
            Err(_) => Isolation { files: false, signals: false },
        }
    }

    pub(super) fn enter(hidden: &[PathBuf]) -> io::Result<()> {
        restrict(hidden).map_err(io::Error::other)
    }

    /// Binds the thread and processes that it starts. A program that root starts has the capabilities of the bounding
    /// set.
    pub(super) fn drop_rights_of_root() -> io::Result<()> {
        if !rustix::process::geteuid().is_root() {
            return Ok(());
        }
        let mut kept = CapabilitySet::empty();
        for number in 0..u64::BITS {
            let right = CapabilitySet::from_bits_retain(1 << number);
            match capability_is_in_bounding_set(right) {
                Ok(true) if RIGHTS_OF_ROOT.contains(right) => kept |= right,
                Ok(true) => remove_capability_from_bounding_set(right)?,
                Ok(false) => {}
                // The kernel knows no further ones.
                Err(_) => break,
            }
        }
        // It may have had fewer.
        let kept = kept & rustix::thread::capabilities(None)?.permitted;
        let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
        Ok(set_capabilities(None, sets)?)
    }

    /// As far as the kernel can. It also takes the right to gain new ones, as by `sudo`.
    fn restrict(hidden: &[PathBuf]) -> Result<(), RulesetError> {
        let ruleset = Ruleset::default().set_compatibility(CompatLevel::BestEffort).scope(Scope::Signal)?;
        if hidden.is_empty() {
            ruleset.create()?.restrict_self()?;
            return Ok(());
        }
        let all = AccessFs::from_all(RIGHTS);
        let (open, ways) = around(hidden);
        let ruleset = ruleset.handle_access(all)?.create()?;
        let ruleset = ruleset.add_rules(path_beneath_rules(open, all))?;
        ruleset.add_rules(path_beneath_rules(ways, AccessFs::ReadDir))?.restrict_self()?;
        Ok(())
    }

    /// Rules can only give. So everything beside the way to a hidden file is opened, and the folders on the way can be
    /// listed. Keys (`.nk`) that lie beside the way are hidden too.
    fn around(hidden: &[PathBuf]) -> (Vec<PathBuf>, BTreeSet<PathBuf>) {
        let mut closed = BTreeSet::new();
        for file in hidden {
            // Both the path and its target, because a mounted secret is a link.
            closed.extend(std::path::absolute(file));
            closed.extend(file.canonicalize());
        }
        let ways: BTreeSet<PathBuf> =
            closed.iter().flat_map(|file| file.ancestors().skip(1)).map(Path::to_owned).collect();
        let entries = ways.iter().filter_map(|folder| folder.read_dir().ok()).flatten().flatten();
        let open = entries.filter(|entry| {
            // The target of a link is opened or hidden at its own path.
            let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
            let is_key = entry.path().extension().is_some_and(|kind| kind == "nk");
            !is_link && !is_key && !closed.contains(&entry.path()) && !ways.contains(&entry.path())
        });
        (open.map(|entry| entry.path()).collect(), ways)
    }

    #[cfg(test)]
    mod tests {
        use std::fs;

        use super::*;

        #[test]
        fn everything_is_open_but_hidden_files_other_keys_and_links() {
            let folder = tempfile::tempdir().unwrap();
            let folder = folder.path().canonicalize().unwrap();
            fs::create_dir_all(folder.join("etc/keys")).unwrap();
            for file in ["etc/keys/pool.nk", "etc/keys/other.nk", "etc/keys/ca.pem", "etc/hosts", "work"] {
                fs::write(folder.join(file), "").unwrap();
            }
            std::os::unix::fs::symlink("etc/keys/pool.nk", folder.join("link")).unwrap();
            let (open, ways) = around(&[folder.join("etc/keys/pool.nk")]);
            let inside: BTreeSet<_> =
                open.iter().filter_map(|path| path.strip_prefix(&folder).ok()?.to_str()).collect();
            assert_eq!(inside, BTreeSet::from(["etc/hosts", "etc/keys/ca.pem", "work"]));
            assert!(ways.contains(&folder.join("etc/keys")) && ways.contains(Path::new("/")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_a_number_and_may_name_its_group() {
        assert_eq!("1000".parse(), Ok(User { uid: 1000, gid: 1000 }));
        assert_eq!("1000:7".parse(), Ok(User { uid: 1000, gid: 7 }));
        assert_eq!("alice".parse::<User>(), Err("\"alice\" is not the number of a user or group".to_owned()));
    }
}
