//! The worker at the broker, on a thread without tools: advertises, pulls, keeps leases, publishes, acknowledges.

mod advertise;
mod ask;
mod clock;
mod connection;
mod files;
mod held;
mod job;
mod leases;
mod progress;
mod pull;
mod questions;
mod records;
mod trace;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use async_nats::Client;
use async_nats::jetstream::{self, context::ContextBuilder};
use futures::StreamExt as _;
use hooks::Hooks;
use nats::clock::Clock;
use proto::convert::worker::{Stop, encode_advertisement};
use proto::names;
use run::{AttemptId, CallSpec, RunId, ToolName, ToolSetId, WorkerId};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use toolyard_tool::Table;
use toolyard_tool::runtime::{RecordStore, Source};

use crate::attempt::Signals;
use crate::hooked::{Tables, Unwatchable, Watched};
use crate::metrics::Counts;
use crate::objects::Objects;
use crate::observe::Observer;
use crate::{Options, SandboxReport, limit_slots};

/// How long the broker may take to confirm an entry before it is sent again. It answers in a millisecond or not at all:
/// a confirmation that was on its way when a connection broke never comes.
const APPEND_TIMEOUT: Duration = Duration::from_secs(2);

/// How long the broker may take to hear the last words of a worker.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// How long the ends of stopped calls and their last output may take to be stored after the drain. An election of the
/// broker's leader takes 4-9 s. Together with the farewell message it is less than the 30 s after the drain in which an
/// orderly shutdown must end.
const GIVE_BACK: Duration = Duration::from_secs(10);

/// Calls that take no slot at once, so that their memory is bounded: as many as a worker may have slots.
const SLOTLESS_MAX: usize = 10_000;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Unwatchable(#[from] Unwatchable),
    #[error(transparent)]
    Connect(#[from] nats::ConnectError),
    #[error(transparent)]
    Admin(#[from] telemetry::admin::ListenError),
    #[error("the worker's thread could not be started: {0}")]
    Thread(std::io::Error),
    #[error("the worker ended before it was told to")]
    Died,
}

/// State that the parts of a worker share. It never leaves the worker's thread.
pub(crate) struct Core {
    pub(crate) client: Client,
    pub(crate) context: jetstream::Context,
    pub(crate) worker: WorkerId,
    table: RefCell<Arc<Table>>,
    /// The tables that follow it.
    tables: watch::Receiver<Arc<Table>>,
    hooks: Hooks,
    /// The digest of all tools of `table`.
    set: RefCell<ToolSetId>,
    pub(crate) tools: Handle,
    pub(crate) leases: leases::Leases,
    pub(crate) counts: Counts,
    /// The worker takes no more jobs, because it shuts down or drains.
    pub(crate) stop: CancellationToken,
    pub(crate) objects: Arc<Objects>,
    pub(crate) source: Source,
    pub(crate) records: RecordStore,
    /// The worker shuts down and cannot wait any longer.
    pub(crate) give_back: CancellationToken,
    /// When the broker last answered a request for jobs, if only that there are none.
    pub(crate) answered: Rc<Cell<Option<Instant>>>,
    /// When a coordinator last reported that the broker stores nothing.
    unstored: Cell<Option<Instant>>,
    /// Jobs have begun to reach this worker: its next heartbeat does not wait for its time.
    reached: Rc<Notify>,
    progress: Arc<progress::Progress>,
    running: RefCell<HashMap<(RunId, AttemptId), Signals>>,
    held: held::Held,
    /// How many partitions of the log have a queue of the pool.
    pub(crate) partitions: Rc<Cell<usize>>,
    /// Calls that take a slot, as the puller was told.
    busy: Cell<usize>,
    /// Calls that take no slot, because they wait for other calls.
    slotless: Cell<usize>,
    /// One more call takes no slot.
    slot_freed: Notify,
    /// Traces include arguments and results of tools.
    include_content: bool,
    /// Adds to the spans of calls.
    observer: Option<Observer>,
    /// How programs of tools are confined.
    sandbox: Option<SandboxReport>,
}

/// A call that takes no slot.
pub(crate) struct Slotless<'a>(&'a Cell<usize>);

impl Drop for Slotless<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get().saturating_sub(1));
    }
}

pub(crate) async fn serve(
    options: Options,
    tables: Tables,
    tools: Handle,
    stop: CancellationToken,
    ready: impl FnOnce(&WorkerId),
) -> Result<(), Error> {
    hide_this_process();
    let worker = new_id();
    // Drained by an operator, the worker stops, and whatever else its caller's token stops does not.
    let stop = stop.child_token();
    let admin = match options.admin {
        Some(address) => Some(telemetry::admin::listen(address).await?),
        None => None,
    };
    let connection = connection::Connection::for_worker(&options, &worker).await?;
    let client = connection.client();
    let context = ContextBuilder::new().timeout(APPEND_TIMEOUT).build(client.clone());
    let Tables { first: table, later: tables } = tables;
    let counts = Counts::new(&options.pool);
    counts.host(table.names());
    let leases = leases::Leases::new(client.clone(), counts.leases_lost.clone());
    let store = ::objects::Objects::new(&context, options.bucket.clone());
    let objects = Arc::new(Objects::new(store.piece_bytes(), move |id, index, piece| {
        let store = store.clone();
        Box::pin(async move { store.put(&id, index, piece).await })
    }));
    let core = Rc::new(Core {
        client: client.clone(),
        context,
        worker,
        set: RefCell::new(encode_advertisement(table.manifests()).0),
        table: RefCell::new(table),
        tables,
        hooks: options.hooks.clone(),
        tools,
        leases,
        counts,
        stop: stop.clone(),
        objects,
        source: files::source(client.clone(), options.pool.clone()),
        records: records::store(client.clone(), options.pool.clone()),
        give_back: CancellationToken::new(),
        answered: Rc::default(),
        unstored: Cell::default(),
        reached: Rc::default(),
        progress: Arc::default(),
        running: RefCell::default(),
        held: held::Held::default(),
        partitions: Rc::new(Cell::new(1)),
        busy: Cell::default(),
        slotless: Cell::default(),
        slot_freed: Notify::default(),
        include_content: options.include_content,
        observer: options.observer.clone(),
        sandbox: options.sandbox.clone(),
    });
    if options.include_content {
        tracing::warn!("arguments and results of calls go into traces: whoever sees the traces reads them");
    }
    work(core, options, admin, stop, ready).await;
    if !matches!(tokio::time::timeout(LAST_WORDS, client.flush()).await, Ok(Ok(()))) {
        tracing::warn!("the last words to the broker were lost");
    }
    Ok(())
}

async fn work(
    core: Rc<Core>,
    options: Options,
    admin: Option<TcpListener>,
    stop: CancellationToken,
    ready: impl FnOnce(&WorkerId),
) {
    let slots = limit_slots(options.slots);
    let (inner, mut parts) = (CancellationToken::new(), JoinSet::new());
    // On this thread, so that it answers while this thread does its work, whatever the tools do with theirs.
    telemetry::process::begin("worker");
    if let Some(listener) = admin {
        let process = core.progress.process(&core.worker, &options.pool, slots, core.sandbox.as_ref(), stop.clone());
        let hosts = telemetry::hosts::Hosts::new(options.host_names.iter().map(String::as_str));
        parts.spawn_local(telemetry::admin::serve(listener, process, hosts, inner.clone()));
    }
    parts.spawn_local(core.leases.clone().keep(inner.clone()));
    let advertised = tokio::select! {
        () = advertise::tools(&core, &options.pool) => true,
        () = stop.cancelled() => false,
    };
    if advertised {
        parts.spawn_local(advertise::heartbeats(Rc::clone(&core), options.pool.clone(), slots, inner.clone()));
        parts.spawn_local(advertise::keep(Rc::clone(&core), options.pool.clone(), inner.clone()));
        parts.spawn_local(stops(Rc::clone(&core), options.pool.clone(), inner.clone()));
        let puller = pull::Puller::open(&core, &options.pool, slots, &stop).await;
        let mut clock = Clock::of_pool(core.client.clone(), &options.pool);
        if let Some(puller) = puller
            && clock::begin(&mut clock, &stop).await
        {
            parts.spawn_local(clock::keep(clock, inner.clone()));
            tracing::info!(worker.id = %core.worker, pool = %options.pool, slots, "pulling");
            ready(&core.worker);
            jobs(&core, puller, &stop, options.drain).await;
        }
    }
    inner.cancel();
    let leave = async {
        while parts.join_next().await.is_some() {}
        if advertised {
            advertise::leave(&core, &options.pool).await;
        }
    };
    if tokio::time::timeout(LAST_WORDS, leave).await.is_err() {
        tracing::warn!("the broker does not hear that this worker leaves");
    }
}

/// Takes jobs until shutdown, then waits for running ones and gives back those that take too long.
async fn jobs(core: &Rc<Core>, mut puller: pull::Puller, stop: &CancellationToken, drain: Duration) {
    let mut running = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            Some(ended) = running.join_next() => {
                note(ended);
                while let Some(ended) = running.try_join_next() {
                    note(ended);
                }
                puller.running(core.note_busy(running.len()));
            }
            () = core.slot_freed.notified() => puller.running(core.note_busy(running.len())),
            message = puller.next() => {
                // Boxed, because the future of a job is large and a task is moved several times.
                running.spawn_local(Box::pin(job::handle(Rc::clone(core), message)));
                puller.running(core.note_busy(running.len()));
            }
        }
    }
    match tokio::time::timeout(LAST_WORDS, puller.close()).await {
        // There are slots for them, and no other worker would execute them sooner.
        Ok(here) => here.for_each(|message| {
            running.spawn_local(Box::pin(job::handle(Rc::clone(core), message)));
        }),
        Err(_) => tracing::warn!("jobs that were here come again when their leases run out"),
    }
    let ended = tokio::time::timeout(drain, async {
        while running.join_next().await.is_some() {
            core.note_busy(running.len());
        }
    });
    let ended = ended.await;
    if ended.is_err() {
        tracing::warn!(calls = running.len(), "giving back calls that still run");
        core.give_back.cancel();
        let given_back = async { while running.join_next().await.is_some() {} };
        if tokio::time::timeout(GIVE_BACK, given_back).await.is_err() {
            tracing::warn!(
                calls = running.len(),
                "the broker does not take in the ends of calls: they come again as after a crash"
            );
        }
    }
}

/// A job's task does not panic. If one does, its job comes again, and the log names the reason.
fn note(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "the handling of a job ended badly; it comes again when its lease runs out");
    }
}

/// Receives requests to stop attempts and to drain, and the list of paused tools.
async fn stops(core: Rc<Core>, pool: run::PoolId, stop: CancellationToken) {
    let subject = names::stop(&pool);
    let mut messages = match core.client.subscribe(subject).await {
        Ok(messages) => messages,
        Err(error) => return tracing::error!(%error, "cannot hear what to stop"),
    };
    // Repeated by coordinators for as long as they refuse something.
    let mut refused = Vec::new();
    loop {
        let message = tokio::select! {
            message = messages.next() => message,
            () = stop.cancelled() => return,
        };
        let Some(message) = message else { return };
        match Stop::decode(message.payload) {
            Ok(Stop::Attempt(run, attempt)) => {
                if let Some(signals) = core.running.borrow().get(&(run, attempt)) {
                    signals.cancel.cancel();
                }
            }
            Ok(Stop::Worker(worker)) => {
                if worker == core.worker && !core.stop.is_cancelled() {
                    tracing::info!("told to drain");
                    core.stop.cancel();
                }
            }
            Ok(Stop::Held(tools)) => core.held.replace(tools),
            Ok(Stop::Storing(storing)) => {
                let was = core.is_unstored();
                core.unstored.set((!storing).then(Instant::now));
                if was == storing {
                    core.reached.notify_one();
                }
            }
            Ok(Stop::Refused(set, names)) if set == core.set() && refused != names => {
                for (tool, reason) in &names {
                    tracing::error!(tool, reason, "coordinators route no calls to a tool of this worker");
                }
                refused = names;
            }
            Ok(Stop::Refused(..)) => {}
            Ok(Stop::Partitions(count)) => {
                if count > core.partitions.replace(count) {
                    tracing::info!(partitions = count, "the log has more partitions, pulling from all of them");
                }
            }
            Err(error) => tracing::warn!(%error, "passing over a request to stop"),
        }
    }
}

impl Core {
    /// The tools that it hosts now.
    pub(crate) fn table(&self) -> Arc<Table> {
        Arc::clone(&self.table.borrow())
    }

    /// The digest of the tools that it hosts now.
    pub(crate) fn set(&self) -> ToolSetId {
        self.set.borrow().clone()
    }

    /// Hosts other tools from now on, which are advertised already.
    fn host(&self, table: Arc<Table>, set: ToolSetId) {
        self.counts.host(table.names());
        self.set.replace(set);
        self.table.replace(table);
        self.reached.notify_one();
    }

    /// The hooks for executions of a tool, if there are any.
    pub(crate) fn watched(&self, tool: &ToolName) -> Option<Watched> {
        Watched::of(&self.hooks, &self.table(), tool)
    }

    /// The first hook that a call requires and that does not run here.
    pub(crate) fn lacking_hook<'a>(&self, spec: &'a CallSpec) -> Option<&'a String> {
        if spec.required_hooks.is_empty() {
            return None;
        }
        let table = self.table();
        let own_name = table.own_name(&spec.tool);
        let alias_of = (own_name != &spec.tool).then_some(own_name);
        self.hooks.lacking(&spec.required_hooks, &spec.tool, alias_of)
    }

    /// Whether a call requires hooks, and all of them run here.
    pub(crate) fn is_hooked(&self, spec: &CallSpec) -> bool {
        !spec.required_hooks.is_empty() && self.lacking_hook(spec).is_none()
    }

    /// Whether jobs reach this worker, as far as it knows: a connection that looks alive is not enough.
    pub(crate) fn is_pulling(&self, slots: u32) -> bool {
        let is_full = self.busy() >= slots;
        let is_answered = self.answered.get().is_some_and(|answered| answered.elapsed() < pull::LOST);
        (is_full || is_answered) && !self.is_unstored()
    }

    /// Notes and returns how many of the calls that are here take a slot.
    fn note_busy(&self, calls: usize) -> usize {
        self.busy.set(calls.saturating_sub(self.slotless.get()));
        self.busy.get()
    }

    /// Calls that take a slot.
    pub(crate) fn busy(&self) -> u32 {
        u32::try_from(self.busy.get()).unwrap_or(u32::MAX)
    }

    /// Takes a call off the slots if its tool waits for other calls. Otherwise they could all be taken by calls that
    /// wait for a slot.
    pub(crate) fn leave_slot(&self, tool: &ToolName) -> Option<Slotless<'_>> {
        let count = self.slotless.get();
        if count >= SLOTLESS_MAX || !self.table().is_waiting(tool) {
            return None;
        }
        self.slotless.set(count + 1);
        self.slot_freed.notify_one();
        Some(Slotless(&self.slotless))
    }

    /// Whether a coordinator reported recently that the broker stores nothing.
    fn is_unstored(&self) -> bool {
        self.unstored.get().is_some_and(|said| said.elapsed() < names::UNSTORED_FOR)
    }

    pub(crate) fn register(
        &self,
        run: RunId,
        attempt: AttemptId,
        lease_lost: CancellationToken,
    ) -> (Signals, Registered<'_>) {
        let signals = Signals { cancel: CancellationToken::new(), give_back: self.give_back.clone(), lease_lost };
        self.running.borrow_mut().insert((run, attempt), signals.clone());
        (signals, Registered { core: self, key: (run, attempt) })
    }

    pub(crate) fn running_count(&self) -> usize {
        self.running.borrow().len()
    }
}

/// Registers an attempt so that it can be stopped, until this is dropped.
pub(crate) struct Registered<'a> {
    core: &'a Core,
    key: (RunId, AttemptId),
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        self.core.running.borrow_mut().remove(&self.key);
    }
}

fn new_id() -> WorkerId {
    format!("worker-{:016x}", rand::random::<u64>()).parse().expect("letters, digits and a dash make a token")
}

/// Makes this process unreadable for others of its user: its memory, environment and open files. It writes no core
/// dumps. A program that starts others before it serves calls this before them.
pub fn hide_this_process() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable) {
        tracing::warn!(%error, "hiding this process from its tools failed: they can read its environment");
    }
}
