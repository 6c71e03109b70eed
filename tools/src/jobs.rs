//! Programs that outlive the call that starts them: background jobs of `bash`, `powershell` and `process`.
//!
//! A job lives in the worker that started it, and ends with it. It is reached by its id, which cannot be guessed, and
//! is listed to calls of the run that started it. Its latest output is kept, also for a while after its end.

mod ring;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::ring::rand::{SecureRandom as _, SystemRandom};
use futures::stream;
use ring::Ring;
use run::RunId;
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::running::follow;
use sandbox::{Exit, Guarded, Order, Request, Sandbox, Sharing, Signal, Workspace, Workspaces};
use toolyard_tool::{Context, Left, TenantId, ToolError};

/// How long a job may run unless its call sets another time, and at most.
pub(super) const TIME: Duration = Duration::from_secs(60 * 60);
pub(super) const TIME_MAX_S: u32 = 24 * 60 * 60;
/// Jobs of a worker that run at once.
const RUNNING_MAX: usize = 16;
/// Jobs of a worker whose output is kept, the running ones included. The oldest that has ended is forgotten first.
const KEPT_MAX: usize = 64;
/// How long an ended job is kept.
const KEPT_FOR: Duration = Duration::from_secs(60 * 60);
/// Bytes taken from a pipe at once.
const READ_BYTES: usize = 16 * 1024;
/// Signals that wait for a job.
const ORDERS_MAX: usize = 16;
/// Bytes of a command in a list.
const LABEL_BYTES_MAX: usize = 200;

/// The jobs of a worker. Cheap to clone: tools that share them get a clone. The last one ends all jobs.
#[derive(Debug, Clone)]
pub struct Jobs {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Distinguishes this worker from others of its pool.
    worker: String,
    /// Where jobs run; `None`: in the root.
    workspaces: Option<Workspaces>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    jobs: BTreeMap<String, Arc<Job>>,
    /// Each runs one job. Dropping them kills the programs.
    tasks: JoinSet<()>,
}

/// A program that was started.
#[derive(Debug)]
struct Job {
    id: String,
    /// Calls of other tenants do not reach it, also if they know its id.
    tenant: Option<TenantId>,
    run: RunId,
    label: String,
    started: Instant,
    output: Mutex<Ring>,
    end: Mutex<Option<(Instant, Ended)>>,
    /// Its number grows with each piece of output, and at the end.
    news: watch::Sender<u64>,
    orders: mpsc::Sender<Order>,
    stop: CancellationToken,
}

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Ended {
    ExitCode(i32),
    Signal(i32),
    Failed(String),
}

/// A job as a tool shows it.
#[derive(Debug, Serialize)]
pub(super) struct Shown {
    job: String,
    command: String,
    running: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    end: Option<Ended>,
    seconds: u64,
    /// Bytes of output so far.
    bytes: u64,
}

/// A part of a job's output.
#[derive(Debug, Serialize)]
pub(super) struct Part {
    /// Where it begins.
    offset: u64,
    /// Where to read on.
    next_offset: u64,
    /// Bytes before it that were asked for and are not kept any more.
    #[serde(skip_serializing_if = "is_zero")]
    forgotten: u64,
    #[serde(skip)]
    pub(super) text: String,
    #[serde(flatten)]
    job: Shown,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Default for Jobs {
    fn default() -> Self {
        Self::in_folders(None)
    }
}

/// So many random bytes, as hexadecimal digits.
fn random(bytes: usize) -> String {
    let mut random = vec![0; bytes];
    SystemRandom::new().fill(&mut random).expect("the system has random numbers");
    random.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Jobs {
    /// Jobs that run in the folders of runs or tenants, which stay for as long.
    #[must_use]
    pub fn in_folders(workspaces: Option<Workspaces>) -> Self {
        let inner = Inner { worker: random(4), workspaces, state: Mutex::default() };
        Self { inner: Arc::new(inner) }
    }

    /// The folder of a job, for as long as it runs.
    fn folder(&self, context: &Context) -> Result<Option<Workspace>, ToolError> {
        let Some(workspaces) = &self.inner.workspaces else { return Ok(None) };
        if workspaces.sharing() == Sharing::Call {
            return Err(ToolError::needs(
                "background jobs need a folder that outlives the call, and this worker removes that of each call at \
                 its end: run the command in the call",
            ));
        }
        Ok(Some(workspaces.open(context)?))
    }

    /// Starts a program as a job. `label` is shown in lists.
    pub(super) async fn start(
        &self,
        context: &Context,
        sandbox: &Sandbox,
        request: Request,
        label: &str,
        time: Duration,
    ) -> Result<Shown, ToolError> {
        let folder = self.folder(context)?;
        drop(self.make_room()?);
        let program = sandbox.start(request, Left::default()).await?;
        let (orders, received) = mpsc::channel(ORDERS_MAX);
        let job = Arc::new(Job {
            id: format!("job_{}_{}", self.inner.worker, random(8)),
            tenant: context.tenant().cloned(),
            run: context.run_id(),
            label: label.chars().take(LABEL_BYTES_MAX).collect(),
            started: Instant::now(),
            output: Mutex::default(),
            end: Mutex::default(),
            news: watch::Sender::new(0),
            orders,
            stop: CancellationToken::new(),
        });
        // Another call may have taken the room meanwhile.
        let mut state = self.make_room()?;
        state.jobs.insert(job.id.clone(), Arc::clone(&job));
        state.tasks.spawn(live(Arc::clone(&job), program, received, (time, folder)));
        Ok(job.show())
    }

    /// Forgets what is too old. An error if too many jobs run.
    fn make_room(&self) -> Result<MutexGuard<'_, State>, ToolError> {
        let mut state = lock(&self.inner.state);
        while state.tasks.try_join_next().is_some() {}
        let running = state.jobs.values().filter(|job| job.ended().is_none()).count();
        if running >= RUNNING_MAX {
            let message = format!("{running} background jobs run on this worker, as many as it allows: stop one first");
            return Err(ToolError::needs(message));
        }
        state.jobs.retain(|_, job| job.ended().is_none_or(|(when, _)| when.elapsed() < KEPT_FOR));
        while state.jobs.len() >= KEPT_MAX {
            let ended = state.jobs.values().filter_map(|job| Some((job.ended()?.0, job.id.clone())));
            let Some((_, oldest)) = ended.min() else { break };
            state.jobs.remove(&oldest);
        }
        Ok(state)
    }

    /// The jobs that calls of the same run started.
    pub(super) fn list(&self, context: &Context) -> Vec<Shown> {
        let state = lock(&self.inner.state);
        let mut own: Vec<&Arc<Job>> = state.jobs.values().filter(|job| job.run == context.run_id()).collect();
        own.sort_by_key(|job| job.started);
        own.into_iter().map(|job| job.show()).collect()
    }

    fn find(&self, context: &Context, id: &str) -> Result<Arc<Job>, ToolError> {
        if let Some(job) = lock(&self.inner.state).jobs.get(id).filter(|job| job.tenant.as_ref() == context.tenant()) {
            return Ok(Arc::clone(job));
        }
        let own = &self.inner.worker;
        match id.strip_prefix("job_").and_then(|rest| rest.split_once('_')) {
            Some((worker, _)) if worker != own => Err(ToolError::needs(format!(
                "job {id} belongs to the worker {worker}, and this call was executed by {own}: background jobs need a \
                 pool with one worker, and end with it"
            ))),
            _ => Err(ToolError::bad_input("/job", format!("there is no job {id:?}: it ended long ago, or never was"))),
        }
    }

    /// The output from an offset on. If there is none yet, waits for it or for the job's end, at most that long.
    pub(super) async fn read(
        &self,
        context: &Context,
        id: &str,
        offset: u64,
        bytes: usize,
        wait: Duration,
    ) -> Result<Part, ToolError> {
        let job = self.find(context, id)?;
        let mut news = job.news.subscribe();
        let more = async {
            while job.ended().is_none() && lock(&job.output).end() <= offset {
                if news.changed().await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            () = context.cancelled() => return Err(ToolError::new("the call was cancelled")),
            // If it takes longer there is nothing new, which is an answer too.
            _ = timeout(wait, more) => {}
        }
        let end = lock(&job.output).end();
        if offset > end {
            let message = format!("the output has only {end} bytes so far: read on from next_offset");
            return Err(ToolError::bad_input("/offset", message));
        }
        // First the state: what it has written by its end is then in the output.
        let shown = job.show();
        let (from, text) = lock(&job.output).read(offset, bytes, !shown.running);
        let next_offset = from + text.len() as u64;
        let text = String::from_utf8_lossy(&text).into_owned();
        Ok(Part { offset: from, next_offset, forgotten: from - offset, text, job: shown })
    }

    /// Sends a signal to a running job.
    pub(super) fn signal(&self, context: &Context, id: &str, signal: Signal) -> Result<Shown, ToolError> {
        let job = self.find(context, id)?;
        if job.ended().is_some() {
            return Err(ToolError::bad_input("/job", format!("job {id} has ended already")));
        }
        let order = if signal == Signal::Kill { Order::Kill } else { Order::Signal(signal) };
        job.orders.try_send(order).map_err(|_| ToolError::new(format!("job {id} takes no signals any more")))?;
        Ok(job.show())
    }

    /// Ends a job, by force if it does not end soon, and waits for it.
    pub(super) async fn stop(&self, context: &Context, id: &str) -> Result<Shown, ToolError> {
        let job = self.find(context, id)?;
        job.stop.cancel();
        let mut news = job.news.subscribe();
        let ended = async { while job.ended().is_none() && news.changed().await.is_ok() {} };
        tokio::select! {
            () = context.cancelled() => Err(ToolError::new("the call was cancelled; the job is being ended")),
            () = ended => Ok(job.show()),
        }
    }
}

impl Job {
    fn ended(&self) -> Option<(Instant, Ended)> {
        lock(&self.end).clone()
    }

    fn show(&self) -> Shown {
        let end = self.ended();
        let until = end.as_ref().map_or_else(Instant::now, |(when, _)| *when);
        Shown {
            job: self.id.clone(),
            command: self.label.clone(),
            running: end.is_none(),
            end: end.map(|(_, how)| how),
            seconds: (until - self.started).as_secs(),
            bytes: lock(&self.output).end(),
        }
    }

    fn tell(&self) {
        self.news.send_modify(|number| *number += 1);
    }

    async fn pump(&self, pipe: Option<impl AsyncRead + Unpin>, let_go: &CancellationToken) -> Result<(), ToolError> {
        let Some(mut pipe) = pipe else { return Ok(()) };
        let mut buffer = vec![0; READ_BYTES];
        loop {
            let count = tokio::select! {
                biased;
                read = pipe.read(&mut buffer) => read?,
                () = let_go.cancelled() => 0,
            };
            if count == 0 {
                return Ok(());
            }
            lock(&self.output).push(&buffer[..count]);
            self.tell();
        }
    }
}

/// The life of a job.
async fn live(
    job: Arc<Job>,
    mut program: Guarded,
    mut received: mpsc::Receiver<Order>,
    (time, folder): (Duration, Option<Workspace>),
) {
    let (stdout, stderr) = program.pipes();
    let let_go = CancellationToken::new();
    let pumps = async { tokio::try_join!(job.pump(stdout, &let_go), job.pump(stderr, &let_go)).map(|_| ()) };
    let exceeded = async {
        match &folder {
            Some(folder) => folder.exceeded().await,
            None => std::future::pending().await,
        }
    };
    let stopped = async {
        tokio::select! {
            exceeded = exceeded => exceeded.into(),
            () = job.stop.cancelled() => ToolError::new("it was stopped"),
            () = sleep(time) => ToolError::new(format!("it ran longer than {} s and was ended", time.as_secs())),
        }
    };
    let orders = stream::poll_fn(move |task| received.poll_recv(task));
    let end = match follow(program, pumps, &let_go, stopped, orders).await {
        Ok(Exit::ExitCode(code)) => Ended::ExitCode(code),
        Ok(Exit::Signal(signal)) => Ended::Signal(signal),
        Err(error) => Ended::Failed(error.message().to_owned()),
    };
    *lock(&job.end) = Some((Instant::now(), end));
    job.tell();
}
