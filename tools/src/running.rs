//! The life of a program that belongs to a call: until all of it has ended, or is ended because its call is.

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::{FutureExt as _, Stream, StreamExt as _, stream};
use run::{CallError, ErrorKind};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use sandbox::{Exit, Guarded, Order, Report, Request, Sandbox};
use toolyard_tool::{Context, ToolError};

/// How long a command may take to end after SIGTERM before it gets SIGKILL: less than a worker gives a cancelled tool.
pub(super) const TERM_GRACE: Duration = Duration::from_secs(2);
/// How long the pipes may stay open after the program has ended. Processes that it left behind hold them, maybe for
/// ever.
const PIPES_GRACE: Duration = Duration::from_secs(1);
/// How long killed processes may take to end. A process that waits for a device or a network folder cannot be killed:
/// then the call ends without it, reports that, and its slot stays taken.
const GONE_LIMIT: Duration = Duration::from_secs(1);
/// Bytes of a program's stderr that are kept: the beginning, which has the reason.
const STDERR_BYTES_MAX: usize = 16 * 1024;
/// Bytes taken from a pipe at once.
const READ_BYTES: usize = 16 * 1024;

/// Waits until all of a program has ended. `pumps` empties its pipes, and ends with them, or when they are empty after
/// `let_go` was cancelled. An error of it, or `stopped`, ends the program.
/// `orders` are given to it meanwhile.
pub(super) async fn follow(
    mut command: Guarded,
    pumps: impl Future<Output = Result<(), ToolError>>,
    let_go: &CancellationToken,
    stopped: impl Future<Output = ToolError>,
    orders: impl Stream<Item = Order>,
) -> Result<Exit, ToolError> {
    let mut orders = std::pin::pin!(orders.fuse());
    let mut pumps = std::pin::pin!(pumps.fuse());
    let mut stopped = std::pin::pin!(stopped.fuse());
    let (mut exited, mut wrong, mut closed) = (None, None, false);
    // When it is killed, and then when it is given up.
    let (mut due, mut killed): (Option<Instant>, bool) = (None, false);
    loop {
        if !killed && (wrong.is_some() && due.is_none() || exited.is_some() && closed) {
            due = Some(Instant::now());
        }
        tokio::select! {
            biased;
            report = command.report() => match report {
                Some(Report::Exited(exit)) => {
                    exited = Some(exit);
                    due = due.or_else(|| Some(Instant::now() + PIPES_GRACE));
                }
                Some(Report::Failed(error)) => {
                    return Err(ToolError::new(format!("the command cannot be run: {error}")));
                }
                Some(Report::Gone | Report::PerhapsGone) => break,
                None => {
                    let lost = "the guard of the command was killed: what the command started may still run";
                    wrong = wrong.or_else(|| Some(ToolError::of_call(CallError::new(ErrorKind::Interrupted, lost))));
                    break;
                }
            },
            pumped = &mut pumps, if !closed => {
                closed = true;
                wrong = wrong.or(pumped.err());
            }
            why = &mut stopped, if exited.is_none() && wrong.is_none() => {
                wrong = Some(why);
                command.order(Order::Terminate);
                due = Some(Instant::now() + TERM_GRACE);
            }
            Some(order) = orders.next() => command.order(order),
            () = until(due) => {
                if killed {
                    tracing::warn!("a command cannot be killed; its slot is kept until it is gone");
                    break;
                }
                command.order(Order::Kill);
                (killed, due) = (true, Some(Instant::now() + GONE_LIMIT));
            }
        }
    }
    // All output is in the pipes. A process that inherited them may still hold them open.
    let_go.cancel();
    if !closed {
        wrong = wrong.or(pumps.await.err());
    }
    match (wrong, exited) {
        (Some(wrong), _) => Err(wrong),
        (None, Some(exit)) => Ok(exit),
        (None, None) => Err(ToolError::new("the program ended in an unknown way")),
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// How much of a program's output is kept, and how long it may run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) bytes: usize,
    pub(super) time: Duration,
}

/// A program that has ended, and its output.
#[derive(Debug)]
pub(super) struct Captured {
    /// `None` if it was ended because of too much output.
    pub(super) exit: Option<Exit>,
    pub(super) stdout: Vec<u8>,
    /// The beginning of it.
    pub(super) stderr: String,
}

impl Captured {
    /// There was more output than was wanted.
    pub(super) fn is_cut(&self) -> bool {
        self.exit.is_none()
    }

    pub(super) fn succeeded(&self) -> bool {
        matches!(self.exit, Some(Exit::ExitCode(0)) | None)
    }
}

/// Runs a program to its end and keeps its output up to a limit. Then it is ended.
pub(super) async fn capture(
    context: &Context,
    sandbox: &Sandbox,
    request: Request,
    limits: Limits,
) -> Result<Captured, ToolError> {
    let mut program = sandbox.start(request, context.left()).await?;
    let (out, err) = program.pipes();
    let (mut stdout, mut stderr, mut is_cut) = (Vec::new(), Vec::new(), false);
    let let_go = CancellationToken::new();
    let pumps = async {
        let fills = async {
            is_cut = fill(out, &mut stdout, limits.bytes, &let_go).await?;
            if is_cut { Err(ToolError::new("there is too much output")) } else { Ok(()) }
        };
        let drains = async {
            let mut err = err;
            fill(err.as_mut(), &mut stderr, STDERR_BYTES_MAX, &let_go).await?;
            // The rest is read, so that the program can go on, and not kept.
            while fill(err.as_mut(), &mut Vec::new(), READ_BYTES, &let_go).await? {}
            Ok::<(), ToolError>(())
        };
        tokio::try_join!(fills, drains).map(|_| ())
    };
    let stopped = async {
        tokio::select! {
            () = context.cancelled() => ToolError::new("the call was cancelled"),
            () = sleep(limits.time) => {
                ToolError::new(format!("the program took longer than {} s and was ended", limits.time.as_secs()))
            }
        }
    };
    let ended = follow(program, pumps, &let_go, stopped, stream::pending()).await;
    let exit = match ended {
        Ok(exit) if !is_cut => Some(exit),
        Err(error) if !is_cut => return Err(error),
        Ok(_) | Err(_) => None,
    };
    Ok(Captured { exit, stdout, stderr: String::from_utf8_lossy(&stderr).trim().to_owned() })
}

/// Reads a pipe until it ends, is let go of, or has more bytes than `most`; returns whether it has.
async fn fill(
    pipe: Option<impl AsyncRead + Unpin>,
    kept: &mut Vec<u8>,
    most: usize,
    let_go: &CancellationToken,
) -> Result<bool, ToolError> {
    let Some(mut pipe) = pipe else { return Ok(false) };
    let mut buffer = vec![0; READ_BYTES];
    loop {
        let count = tokio::select! {
            biased;
            read = pipe.read(&mut buffer) => read?,
            () = let_go.cancelled() => 0,
        };
        let room = most - kept.len();
        kept.extend_from_slice(&buffer[..count.min(room)]);
        if count == 0 || count > room {
            return Ok(count > room);
        }
    }
}

/// The path of a program, as a shell finds it; `None` if it is not installed.
pub(super) fn find(program: &str) -> Option<PathBuf> {
    let is_program = |path: &Path| {
        use std::os::unix::fs::PermissionsExt as _;
        path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    if program.contains('/') {
        return Some(PathBuf::from(program)).filter(|path| is_program(path));
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|path| is_program(path))
}
