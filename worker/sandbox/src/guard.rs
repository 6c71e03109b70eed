//! The life of a guard from its start to its end.

pub(crate) mod confine;
mod descendants;

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use crate::request::{Exit, Job, Order, REQUEST_BYTES_MAX, Report};

/// How long a program has to end after SIGTERM once its worker is gone.
const TERM_GRACE: Duration = Duration::from_secs(2);
/// The pause between two rounds of SIGKILL: a process that was killed takes a moment to end.
const KILL_PAUSE: Duration = Duration::from_millis(5);

/// Runs one program. Gives the exit code of the process: 0 when nothing of the program is left.
pub(super) fn run() -> i32 {
    match guard() {
        Ok(()) => 0,
        Err(error) => {
            // Written to the program's stderr; its output has not begun.
            drop(writeln!(io::stderr(), "toolyard-guard: {error}"));
            1
        }
    }
}

fn guard() -> io::Result<()> {
    close_inherited();
    prepare()?;
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let Some(stdin) = receive_stdin(&socket)? else {
        // The worker ended and needs no guard.
        return Ok(());
    };
    let mut orders = BufReader::new(socket.try_clone()?);
    let mut line = Vec::new();
    orders.by_ref().take(REQUEST_BYTES_MAX).read_until(b'\n', &mut line)?;
    let job: Job = serde_json::from_slice(&line)?;
    let program = match confine::start(job, stdin) {
        Ok(program) => program,
        Err(error) => return report(&socket, &[Report::Failed(error.to_string())]),
    };
    // The pipes are the program's alone: they close when it lets go of them.
    let null = File::options().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    let obeying = thread::Builder::new().name("orders".to_owned()).spawn(move || obey(orders, program))?;
    wait_for_all(&socket, program)?;
    if descendants::SEES_ALL {
        return report(&socket, &[Report::Gone]);
    }
    drop(obeying.join());
    report(&socket, &[Report::PerhapsGone])
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

fn prepare() -> io::Result<()> {
    // Without a terminal: a program can neither read from the worker's nor be stopped by it.
    rustix::process::setsid()?;
    // Before the files of this process in /proc become root's.
    confine::limit()?;
    #[cfg(target_os = "linux")]
    {
        rustix::thread::set_name(c"toolyard-guard")?;
        rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    }
    Ok(())
}

fn report(mut socket: &UnixStream, reports: &[Report]) -> io::Result<()> {
    let mut lines = Vec::new();
    for report in reports {
        serde_json::to_writer(&mut lines, report)?;
        lines.push(b'\n');
    }
    // A worker that is gone reads no reports; the program is ended all the same.
    match socket.write_all(&lines) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Reaps children until there are none. If the guard is a subreaper, no process of the program lives then.
fn wait_for_all(socket: &UnixStream, program: Pid) -> io::Result<()> {
    loop {
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == program => report(socket, &[Report::Exited(exit(status))])?,
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
