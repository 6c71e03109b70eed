//! Starts the program in a thread that is confined first.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Pid;

use super::{GROUP, RULES, User, limits};
#[cfg(target_os = "linux")]
use super::{domain, filter, namespaces};
use crate::level::Level;
use crate::request::{Program, Request};
use crate::sandbox::Rules;

/// The program of a guard and its surroundings.
#[derive(Debug)]
pub(super) struct Start {
    pub(super) rules: Rules,
    pub(super) request: Request,
    pub(super) stdin: Option<OwnedFd>,
    /// A folder for temporary files of this program alone.
    pub(super) temporary: Option<PathBuf>,
}

impl Start {
    /// Starts the program. A domain and a filter bind the thread that enters them and processes that this starts. The
    /// guard's other threads stay outside, so the program cannot signal the guard. The program is the child of the
    /// process, not of the thread.
    pub(super) fn run(self) -> io::Result<Pid> {
        let starting = move || {
            self.confine()?;
            self.spawn_program()
        };
        let started = std::thread::Builder::new().name("start".to_owned()).spawn(starting)?.join();
        started.unwrap_or_else(|_| Err(io::Error::other("the thread that starts the program panicked")))
    }

    /// The folders that the program writes.
    pub(super) fn writable<'a>(request: &'a Request, rules: &'a Rules) -> Vec<&'a Path> {
        let workspace = request.workspace.as_deref().or(rules.workspace.as_deref()).unwrap_or(&request.folder);
        vec![workspace]
    }

    #[cfg(target_os = "linux")]
    fn confine(&self) -> io::Result<()> {
        let Self { rules, request, .. } = self;
        limits::enter_program(&rules.limits, rules.level == Level::Isolated)?;
        let writable = Self::writable(request, rules).into_iter().chain(self.temporary.as_deref());
        domain::enter(rules, &domain::Paths { writable: writable.collect() })?;
        if rules.level == Level::Isolated {
            namespaces::keep_rights_back()?;
        }
        if rules.user.is_none() || rules.level == Level::Isolated {
            domain::drop_rights_of_root()?;
        }
        match rules.level {
            Level::None => Ok(()),
            Level::Confined | Level::Isolated => filter::enter(rules.level, rules.network),
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn confine(&self) -> io::Result<()> {
        limits::enter_program(&self.rules.limits, false)
    }

    fn spawn_program(&self) -> io::Result<Pid> {
        match &self.request.program {
            // Without the dashes a command that begins with one would be taken for an option.
            Program::Shell(text) => {
                let shell = |shell| self.spawn(Command::new(shell).args(["-c", "--", text]));
                shell("bash").or_else(|error| match error.kind() {
                    io::ErrorKind::NotFound => shell("sh"),
                    _ => Err(error),
                })
            }
            Program::Run { program, arguments } => self
                .spawn(Command::new(program).args(arguments))
                .map_err(|error| io::Error::new(error.kind(), format!("{program:?}: {error}"))),
        }
    }

    fn spawn(&self, command: &mut Command) -> io::Result<Pid> {
        let Self { rules, request, .. } = self;
        command.stdin(match &self.stdin {
            Some(stdin) => Stdio::from(stdin.try_clone()?),
            None => Stdio::null(),
        });
        command.current_dir(&request.folder).stdout(Stdio::inherit()).stderr(Stdio::inherit()).process_group(0);
        command.env_remove(RULES).env_remove(GROUP);
        if let Some(User { uid, gid }) = rules.user {
            command.env_remove("USER").env("HOME", &request.folder);
            // An isolated guard has become the user already.
            if rules.level != Level::Isolated {
                command.uid(uid).gid(gid);
            }
        }
        if let Some(temporary) = &self.temporary {
            command.env("TMPDIR", temporary).env("HOME", temporary);
        }
        let child = command.envs(&request.environment).spawn()?;
        // The guard reaps it among all its children.
        let id = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        id.ok_or_else(|| io::Error::other("the program has no process id"))
    }
}
