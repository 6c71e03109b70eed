//! The worker's side of a command and its guard.

use std::io;
use std::os::unix::net::UnixStream as Pair;
use std::sync::{Mutex, PoisonError};

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{Child, ChildStderr, ChildStdout};
use tokio::runtime::Handle;

use crate::{Order, Report, Request};
use toolyard_tool::Left;

/// Starts guards. One is always started ahead, so that no command waits for its guard.
#[derive(Debug, Default)]
pub struct Guards {
    spare: Mutex<Option<Guard>>,
}

#[derive(Debug)]
struct Guard {
    process: Child,
    reports: Lines<BufReader<OwnedReadHalf>>,
    orders: OwnedWriteHalf,
}

impl Guards {
    /// Starts a command. `left` receives its end if this is dropped before all of its processes have ended.
    pub async fn run(&self, request: &Request, left: Left) -> io::Result<Guarded> {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).take();
        // One that ended while it waited, as when memory ran out, is of no use.
        let mut guard = match spare.take_if(Guard::lives) {
            Some(guard) => guard,
            None => Guard::start()?,
        };
        let mut line = serde_json::to_vec(request).map_err(io::Error::other)?;
        line.push(b'\n');
        guard.orders.write_all(&line).await?;
        // While the shell starts.
        let next = Guard::start()?;
        *self.spare.lock().unwrap_or_else(PoisonError::into_inner) = Some(next);
        Ok(Guarded { guard: Some(guard), left })
    }
}

impl Guard {
    fn start() -> io::Result<Self> {
        let (ours, theirs) = Pair::pair()?;
        ours.set_nonblocking(true)?;
        let (reports, orders) = UnixStream::from_std(ours)?.into_split();
        Ok(Self { process: crate::start(theirs)?, reports: BufReader::new(reports).lines(), orders })
    }

    fn lives(&mut self) -> bool {
        matches!(self.process.try_wait(), Ok(None))
    }

    /// A guard that cannot be reached has ended, or ends because its socket is closed.
    fn order(&self, order: Order) {
        if let Err(error) = self.orders.try_write(&[order.byte()]) {
            tracing::debug!(%error, ?order, "the guard of a command takes no order");
        }
    }

    /// The next report; `None` when the guard ended without its last one. May be dropped while it waits.
    async fn report(&mut self) -> Option<Report> {
        let line = self.reports.next_line().await.ok().flatten()?;
        serde_json::from_str(&line).ok()
    }
}

/// A running command. Dropping it kills its processes.
#[derive(Debug)]
pub struct Guarded {
    /// `None` once it has ended.
    guard: Option<Guard>,
    left: Left,
}

impl Guarded {
    pub fn pipes(&mut self) -> (Option<ChildStdout>, Option<ChildStderr>) {
        let Some(guard) = &mut self.guard else { return (None, None) };
        (guard.process.stdout.take(), guard.process.stderr.take())
    }

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
