//! The life of a guard from its start to its end.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use super::{Exit, Order, REQUEST_BYTES_MAX, Report, Request, confine, descendants};

/// How long a command has to end after SIGTERM once its worker is gone.
const TERM_GRACE: Duration = Duration::from_secs(2);
/// The pause between two rounds of SIGKILL: a process that was killed takes a moment to end.
const KILL_PAUSE: Duration = Duration::from_millis(5);

/// Runs one command. Gives the exit code of the process: 0 when nothing of the command is left.
pub(super) fn run() -> i32 {
    match guard() {
        Ok(()) => 0,
        Err(error) => {
            // Written to the command's stderr; its output has not begun.
            drop(writeln!(io::stderr(), "toolyard-guard: {error}"));
            1
        }
    }
}

fn guard() -> io::Result<()> {
    close_inherited();
    prepare()?;
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut orders = BufReader::new(socket.try_clone()?);
    let mut line = Vec::new();
    orders.by_ref().take(REQUEST_BYTES_MAX).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        // The worker ended and needs no guard.
        return Ok(());
    }
    let request: Request = serde_json::from_slice(&line)?;
    let shell = match confine::shell(request) {
        Ok(shell) => shell,
        Err(error) => return report(&socket, &[Report::Failed(error.to_string())]),
    };
    // The pipes are the command's alone: they close when it lets go of them.
    let null = File::options().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    let obeying = thread::Builder::new().name("orders".to_owned()).spawn(move || obey(orders, shell))?;
    wait_for_all(&socket, shell)?;
    if descendants::SEES_ALL {
        return report(&socket, &[Report::Gone]);
    }
    drop(obeying.join());
    report(&socket, &[Report::PerhapsGone])
}

/// File descriptors that the worker inherited must not reach the command.
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
    // Without a terminal: a command can neither read from the worker's nor be stopped by it.
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
    // A worker that is gone reads no reports; the command is ended all the same.
    match socket.write_all(&lines) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Reaps children until there are none. If the guard is a subreaper, no process of the command lives then.
fn wait_for_all(socket: &UnixStream, shell: Pid) -> io::Result<()> {
    loop {
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == shell => report(socket, &[Report::Exited(exit(status))])?,
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::CHILD) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

fn exit(status: WaitStatus) -> Exit {
    status.terminating_signal().map_or_else(|| Exit::ExitCode(status.exit_status().unwrap_or_default()), Exit::Signal)
}

/// Serves requests of the worker. Kills everything when the worker has ended or closed the socket.
fn obey(mut orders: BufReader<UnixStream>, shell: Pid) {
    let mut order = [0];
    loop {
        match orders.read_exact(&mut order) {
            Ok(()) if order[0] == Order::Terminate.byte() => descendants::signal(shell, Signal::TERM),
            Ok(()) => break,
            Err(_) => {
                descendants::signal(shell, Signal::TERM);
                thread::sleep(TERM_GRACE);
                break;
            }
        }
    }
    // The process ends when the last one is reaped, whatever this thread does.
    loop {
        descendants::signal(shell, Signal::KILL);
        if !descendants::SEES_ALL {
            return;
        }
        thread::sleep(KILL_PAUSE);
    }
}
