//! The life of a guard from its start to its end.

mod confine;
mod descendants;
#[cfg(target_os = "linux")]
mod domain;
#[cfg(target_os = "linux")]
mod filter;
mod limits;
#[cfg(target_os = "linux")]
mod namespaces;
#[cfg(target_os = "linux")]
mod probe;
#[cfg(target_os = "linux")]
mod view;

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use self::confine::Start;
use crate::User;
use crate::level::Level;
use crate::removal::TemporaryFolder;
use crate::request::{Exit, Order, REQUEST_BYTES_MAX, Report, Request};
use crate::sandbox::Rules;

/// The variable in which a guard finds its rules. No program receives it.
pub(crate) const RULES: &str = "TOOLYARD_GUARD_RULES";
/// The variable in which a guard finds its control group, if it has one. No program receives it.
pub(crate) const GROUP: &str = "TOOLYARD_GUARD_GROUP";
/// The first argument of a guard that is the first process of its namespace.
#[cfg(target_os = "linux")]
const INSIDE: &str = "inside";
/// The first argument of a process that tries what the kernel can give, and of its first process in a namespace.
pub(crate) const PROBE: &str = "probe";
#[cfg(target_os = "linux")]
const PROBE_VIEW: &str = "probe-view";

/// How long a program has to end after SIGTERM once its worker is gone.
const TERM_GRACE: Duration = Duration::from_secs(2);
/// The pause between two rounds of SIGKILL: a process that was killed takes a moment to end.
const KILL_PAUSE: Duration = Duration::from_millis(5);

/// The restrictions that the kernel enforces through Landlock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Isolation {
    /// Files can be hidden from programs.
    pub(crate) files: bool,
    /// All rights over files that matter can be taken, that to shorten them included.
    pub(crate) whole_files: bool,
    /// Programs cannot signal processes that are not their own, as their guard.
    pub(crate) signals: bool,
}

impl Isolation {
    #[cfg(target_os = "linux")]
    pub(crate) fn probe() -> Self {
        // A domain binds the thread that enters it, and lasts as long.
        thread::spawn(domain::probe).join().unwrap_or_default()
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn probe() -> Self {
        Self::default()
    }
}

/// Runs one program. Gives the exit code of the process: 0 when nothing of the program is left.
pub(super) fn run() -> i32 {
    let role = std::env::args().nth(1);
    let done = match role.as_deref() {
        None => guard(),
        #[cfg(target_os = "linux")]
        Some(INSIDE) => inside(),
        #[cfg(target_os = "linux")]
        Some(PROBE) => probe::run(),
        #[cfg(target_os = "linux")]
        Some(PROBE_VIEW) => probe::run_inside(),
        Some(other) => Err(io::Error::other(format!("a guard has no role {other:?}"))),
    };
    match done {
        Ok(()) => 0,
        Err(error) => {
            // For a worker that waits for a report, and for who reads the log.
            if let Ok(socket) = io::stdin().as_fd().try_clone_to_owned().map(UnixStream::from) {
                drop(report(&socket, &Report::Failed(error.to_string())));
            }
            drop(writeln!(io::stderr(), "toolyard-guard: {error}"));
            1
        }
    }
}

/// A worker that was started in the background, as by `nohup … &`, ignores some signals, and so would all that it
/// starts. A signal that this process handles has its default effect in programs that it starts.
fn restore_signals() -> io::Result<()> {
    for signal in [signal_hook::consts::SIGHUP, signal_hook::consts::SIGINT, signal_hook::consts::SIGQUIT] {
        signal_hook::flag::register(signal, Arc::default())?;
    }
    Ok(())
}

fn guard() -> io::Result<()> {
    close_inherited();
    restore_signals()?;
    if let Some(folder) = std::env::var_os(GROUP) {
        crate::groups::enter(Path::new(&folder))?;
    }
    // Without a terminal: a program can neither read from the worker's nor be stopped by it.
    rustix::process::setsid()?;
    let rules = Rules::from_environment()?;
    // Before the files of this process in /proc become root's.
    limits::enter(&rules.limits, rules.level == Level::Isolated)?;
    #[cfg(target_os = "linux")]
    {
        rustix::thread::set_name(c"toolyard-guard")?;
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
        if rules.level == Level::Isolated {
            return isolate(&rules);
        }
    }
    serve(rules)
}

/// Enters namespaces, and runs the guard proper as their first process. When that ends, the kernel ends all others
/// there.
#[cfg(target_os = "linux")]
fn isolate(rules: &Rules) -> io::Result<()> {
    use std::os::unix::process::CommandExt as _;
    namespaces::become_user(rules.user)?;
    namespaces::enter_user()?;
    namespaces::enter_others(rules.network)?;
    // Opened now: the process inside replaces the root of this one too, and then there is no `/dev` for a moment.
    let null = null()?;
    let mut inside = std::process::Command::new("/proc/self/exe");
    inside.arg0(crate::NAME).arg(INSIDE).stdin(io::stdin().as_fd().try_clone_to_owned()?);
    let mut inside = inside.spawn()?;
    close_output(&null)?;
    match inside.wait()?.code() {
        Some(_) => Ok(()),
        // It was killed, before its last report.
        None => report(&UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?), &Report::Gone),
    }
}

/// The first process of its namespaces. It cannot be killed from inside.
#[cfg(target_os = "linux")]
fn inside() -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    rustix::process::setsid()?;
    rustix::thread::set_name(c"toolyard-guard")?;
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    let rules = Rules::from_environment()?;
    view::make(&rules)?;
    serve(rules)
}

/// Waits for the request, and runs its program to the end.
fn serve(rules: Rules) -> io::Result<()> {
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let Some(stdin) = receive_stdin(&socket)? else {
        // The worker ended and needs no guard.
        return Ok(());
    };
    let mut orders = BufReader::new(socket.try_clone()?);
    let mut line = Vec::new();
    orders.by_ref().take(REQUEST_BYTES_MAX).read_until(b'\n', &mut line)?;
    let request: Request = serde_json::from_slice(&line)?;
    #[cfg(target_os = "linux")]
    if rules.level == Level::Isolated {
        view::finish(&Start::writable(&request, &rules))?;
    }
    let temporary = make_temporary(&rules)?;
    let folder = match rules.level {
        Level::None => None,
        Level::Confined => temporary.as_ref().map(|folder| folder.path().to_owned()),
        Level::Isolated => Some("/tmp".into()),
    };
    let program = match (Start { request, stdin, temporary: folder, rules }).run() {
        Ok(program) => program,
        Err(error) => return report(&socket, &Report::Failed(error.to_string())),
    };
    close_output(&null()?)?;
    let obeying = thread::Builder::new().name("orders".to_owned()).spawn(move || obey(orders, program))?;
    wait_for_all(&socket, program)?;
    // Before the worker takes the program for gone.
    drop(temporary);
    if descendants::SEES_ALL {
        return report(&socket, &Report::Gone);
    }
    drop(obeying.join());
    report(&socket, &Report::PerhapsGone)
}

/// The pipes are the program's alone: they close when it lets go of them.
fn close_output(null: &File) -> io::Result<()> {
    rustix::stdio::dup2_stdout(null)?;
    Ok(rustix::stdio::dup2_stderr(null)?)
}

fn null() -> io::Result<File> {
    File::options().write(true).open("/dev/null")
}

/// A folder for temporary files of a confined program alone, which goes when this is dropped.
fn make_temporary(rules: &Rules) -> io::Result<Option<TemporaryFolder>> {
    // An isolated one has a `/tmp` of its own.
    let is_needed = rules.level == Level::Confined;
    is_needed.then(|| TemporaryFolder::new("toolyard-", rules.user)).transpose()
}

/// The standard input of the program: `None` when the worker ended, `Some(None)` when the input is empty.
fn receive_stdin(socket: &UnixStream) -> io::Result<Option<Option<OwnedFd>>> {
    let (mut byte, mut space) = ([0], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))]);
    let mut passed = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut passed, RecvFlags::empty())?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let mut files = passed.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    let Some(stdin) = files.next().and_then(|mut files| files.next()) else { return Ok(Some(None)) };
    rustix::io::fcntl_setfd(&stdin, rustix::io::FdFlags::CLOEXEC)?;
    Ok(Some(Some(stdin)))
}

/// File descriptors that the worker inherited must not reach the program.
fn close_inherited() {
    let Ok(open) = std::fs::read_dir("/dev/fd") else { return };
    let numbers: Vec<i32> = open.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for number in numbers.into_iter().filter(|number| *number > 2) {
        match nix::unistd::close(number) {
            // The one with which the folder was read is closed already.
            Ok(()) | Err(_) => {}
        }
    }
}

fn report(mut socket: &UnixStream, report: &Report) -> io::Result<()> {
    let mut line = serde_json::to_vec(report)?;
    line.push(b'\n');
    // A worker that is gone reads no reports; the program is ended all the same.
    match socket.write_all(&line) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Reaps children until there are none. If the guard is a subreaper, no process of the program lives then.
fn wait_for_all(socket: &UnixStream, program: Pid) -> io::Result<()> {
    loop {
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == program => report(socket, &Report::Exited(exit(status)))?,
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::CHILD) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

fn exit(status: WaitStatus) -> Exit {
    status.terminating_signal().map_or_else(|| Exit::ExitCode(status.exit_status().unwrap_or_default()), Exit::Signal)
}

/// Obeys the worker. Kills everything when the worker has ended or closed the socket.
fn obey(mut orders: BufReader<UnixStream>, program: Pid) {
    let mut order = [0];
    loop {
        match orders.read_exact(&mut order).map(|()| Order::of(order[0])) {
            Ok(Some(Order::Terminate)) => descendants::signal(program, Signal::TERM),
            Ok(Some(Order::Signal(signal))) => descendants::signal_group(program, signal.raw()),
            Ok(Some(Order::Kill) | None) => break,
            Err(_) => {
                descendants::signal(program, Signal::TERM);
                thread::sleep(TERM_GRACE);
                break;
            }
        }
    }
    // The process ends when the last one is reaped, whatever this thread does.
    loop {
        descendants::signal(program, Signal::KILL);
        if !descendants::SEES_ALL {
            return;
        }
        thread::sleep(KILL_PAUSE);
    }
}
