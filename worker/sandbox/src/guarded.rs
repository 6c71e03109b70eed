//! The worker's side of a program and its guard.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as Pair;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Interest, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::pipe::Sender;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{Child, ChildStderr, ChildStdout};
use tokio::runtime::Handle;
use tokio::time::timeout;
use toolyard_tool::Left;

use crate::groups::{Group, Groups};
use crate::request::{Exit, Input, Order, REQUEST_BYTES_MAX, Report, Request, StartError};
use crate::sandbox::Rules;

/// How long killed processes may take to end. A process that waits for a device or a network folder cannot be killed.
const GONE_LIMIT: Duration = Duration::from_secs(2);

/// Starts guards. One is always started ahead, so that no program waits for its guard.
#[derive(Debug)]
pub(crate) struct Guards {
    /// The rules of all, as JSON.
    rules: String,
    groups: Option<Groups>,
    spare: Mutex<Option<Guard>>,
}

#[derive(Debug)]
struct Guard {
    process: Child,
    reports: Lines<BufReader<OwnedReadHalf>>,
    orders: OwnedWriteHalf,
    /// Goes with the guard, and everything in it.
    _group: Option<Group>,
}

impl Guards {
    pub(crate) fn new(rules: &Rules, groups: Option<Groups>) -> io::Result<Self> {
        let rules = serde_json::to_string(rules).map_err(io::Error::other)?;
        Ok(Self { rules, groups, spare: Mutex::default() })
    }

    pub(crate) async fn start(&self, request: &Request, left: Left) -> Result<Guarded, StartError> {
        let mut line = serde_json::to_vec(request).map_err(io::Error::other)?;
        line.push(b'\n');
        if u64::try_from(line.len()).map_or(true, |bytes| bytes > REQUEST_BYTES_MAX) {
            return Err(StartError::TooLarge { bytes: line.len() });
        }
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).take();
        // One that ended while it waited, as when memory ran out, is of no use.
        let mut guard = match spare.take_if(Guard::lives) {
            Some(guard) => guard,
            None => self.guard()?,
        };
        let stdin = match request.input {
            Input::Empty => {
                unless_gone(guard.pass(None).await)?;
                None
            }
            Input::Pipe => {
                let (theirs, ours) = io::pipe()?;
                unless_gone(guard.pass(Some(theirs.as_fd())).await)?;
                Some(Sender::from_owned_fd(OwnedFd::from(ours))?)
            }
        };
        unless_gone(guard.orders.write_all(&line).await)?;
        // While the program starts, so a failure is not one of this program.
        match self.guard() {
            Ok(next) => *self.spare.lock().unwrap_or_else(PoisonError::into_inner) = Some(next),
            Err(error) => tracing::warn!(%error, "starting a guard ahead failed; the next program starts its own"),
        }
        Ok(Guarded { guard: Some(guard), stdin, left })
    }

    fn guard(&self) -> io::Result<Guard> {
        Guard::start(&self.rules, self.groups.as_ref().map(Groups::make).transpose()?)
    }
}

/// A guard that failed has closed its socket, and its last report says why.
fn unless_gone(written: io::Result<()>) -> io::Result<()> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

impl Guard {
    fn start(rules: &str, group: Option<Group>) -> io::Result<Self> {
        let (ours, theirs) = Pair::pair()?;
        ours.set_nonblocking(true)?;
        let (reports, orders) = UnixStream::from_std(ours)?.into_split();
        let process = crate::start(theirs, rules, group.as_ref().map(Group::folder))?;
        Ok(Self { process, _group: group, reports: BufReader::new(reports).lines(), orders })
    }

    fn lives(&mut self) -> bool {
        matches!(self.process.try_wait(), Ok(None))
    }

    /// Passes the standard input of the program: one byte, and with it the end of the pipe, if there is one.
    async fn pass(&self, stdin: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let stream: &UnixStream = self.orders.as_ref();
        let send = || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut passed = SendAncillaryBuffer::new(&mut space);
            if let Some(stdin) = &stdin {
                passed.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(stdin)));
            }
            Ok(sendmsg(stream, &[IoSlice::new(b"i")], &mut passed, SendFlags::empty())?)
        };
        stream.async_io(Interest::WRITABLE, send).await.map(|_| ())
    }

    /// A guard that cannot be reached has ended, or ends because its socket is closed.
    fn order(&self, order: Order) {
        if let Err(error) = self.orders.try_write(&[order.byte()]) {
            tracing::debug!(%error, ?order, "the guard of a program takes no order");
        }
    }

    /// The next report; `None` when the guard ended without its last one. May be dropped while it waits.
    async fn report(&mut self) -> Option<Report> {
        let line = self.reports.next_line().await.ok().flatten()?;
        serde_json::from_str(&line).ok()
    }
}

/// A running program. Dropping it kills its processes, so its owner keeps it as long as the program should live.
#[derive(Debug)]
pub struct Guarded {
    /// `None` once it has ended.
    guard: Option<Guard>,
    stdin: Option<Sender>,
    left: Left,
}

impl Guarded {
    /// The pipes of standard output and standard error, once.
    pub fn pipes(&mut self) -> (Option<ChildStdout>, Option<ChildStderr>) {
        let Some(guard) = &mut self.guard else { return (None, None) };
        (guard.process.stdout.take(), guard.process.stderr.take())
    }

    /// The pipe of standard input, once, if the request had [`Input::Pipe`]. The program finds the end of its input
    /// when this is dropped.
    pub fn stdin(&mut self) -> Option<Sender> {
        self.stdin.take()
    }

    /// Gives the guard an order; nothing happens when the program has ended.
    pub fn order(&self, order: Order) {
        self.guard.iter().for_each(|guard| guard.order(order));
    }

    /// The next report; `None` when there will be none. May be dropped while it waits.
    pub async fn report(&mut self) -> Option<Report> {
        let report = self.guard.as_mut()?.report().await;
        match &report {
            Some(Report::Exited(_)) => {}
            Some(Report::Gone | Report::Failed(_)) => self.guard = None,
            // Processes that it started may live on, which cannot be observed.
            Some(Report::PerhapsGone) | None => {
                self.guard = None;
                self.left.note_unknown();
            }
        }
        report
    }

    /// Ends the program: closes its standard input if it is still here, sends SIGTERM to all of it, and SIGKILL after
    /// `grace`. Returns how the program ended if it ended just now. If something cannot be killed, it is left to the
    /// `left` that the program was started with.
    pub async fn stop(mut self, grace: Duration) -> Option<Exit> {
        drop(self.stdin.take());
        self.order(Order::Terminate);
        let mut exit = None;
        for pause in [grace, GONE_LIMIT] {
            let last = async {
                while let Some(report) = self.report().await {
                    if let Report::Exited(how) = report {
                        exit = Some(how);
                    }
                }
            };
            match timeout(pause, last).await {
                Ok(()) => break,
                Err(_) => self.order(Order::Kill),
            }
        }
        exit
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let Some(mut guard) = self.guard.take() else { return };
        guard.order(Order::Kill);
        // Without a runtime the process ends; then the socket closes, which the guard takes for the same order.
        let Ok(runtime) = Handle::try_current() else { return };
        let left = self.left.clone();
        let gone = async move {
            loop {
                match guard.report().await {
                    Some(Report::Exited(_)) => {}
                    Some(Report::Gone | Report::Failed(_)) => return,
                    Some(Report::PerhapsGone) | None => return left.note_unknown(),
                }
            }
        };
        self.left.keep(gone, &runtime);
    }
}
