//! Keeps the registry: watches the bucket of advertisements, listens to heartbeats, and sees to it that every pool that
//! advertises has its queue, and none that is gone.

mod deserted;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::{Context, kv};
use async_nats::{Client, Message};
use bytes::Bytes;
use futures::StreamExt as _;
use proto::convert::manifest::{InvalidManifest, Usable};
use proto::convert::worker::{Heartbeat, decode_advertisement};
use proto::names;
use run::{PoolId, WorkerId};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::deserted::Deserted;
use super::Broker;
use super::setup::{Patience, Refusal, SetupError, ensure_pool, ensure_still, entries};
use super::signals::Signals;
use crate::callers::Callers;
use crate::metrics::begin_losses;
use crate::pools::PoolRules;
use crate::registry::{Hosted, Hosts, Registry, Set, Sets, Unusable, Views, Worker, proves_a_claim};
use crate::tasks::finished;

const TICK: Duration = Duration::from_secs(1);
/// When we have not heard ourselves for this long, we would not have heard a worker either.
const DEAF: Duration = Duration::from_secs(3);
/// Sets of tools that are compiled at once, how long one may take, and how long a coordinator that starts waits for them: what
/// comes later is learned while it serves.
const COMPILED_MAX: usize = 2;
const COMPILE_PATIENCE: Duration = Duration::from_secs(5);
const LOAD_PATIENCE: Duration = Duration::from_secs(20);
/// Sets that are forgotten in one look; the next look goes on.
const FORGOTTEN_MAX: usize = 16;
/// How often a pool is reported that has too many workers.
const REPORTED: Duration = Duration::from_secs(60);
/// For how long heartbeats are gathered before what they say is given out: many workers may start at once.
const GATHER: Duration = Duration::from_millis(20);
/// How often workers are told which of their tools are refused: what was not heard is said again, and one that starts hears it soon.
const REFUSED_TOLD: Duration = Duration::from_secs(5);
/// Refused names that a tool set is told of: enough to find the cause, and small for a message.
const REFUSED_TOLD_MAX: usize = 64;
/// Workers that are named where tools are refused.
const WORKERS_TOLD_MAX: usize = 8;

/// What a pool may have, and for how long.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    /// How long a set of tools is remembered that nobody hosts: calls of it wait for a worker, and none waits longer than the
    /// log is kept. So is the queue of a pool whose last set it is.
    forgotten: Duration,
    /// How long nobody hosts a set before that is noted: a release replaces its workers in less.
    noted_after: Duration,
    /// How often it is looked whether a pool still has its queue.
    queues_checked: Duration,
    /// Sets of one pool, and bytes of them: a few releases, each with a few kinds of workers.
    sets_max: usize,
    set_bytes_max: usize,
    /// Workers of one pool: far more than one queue of the broker serves.
    workers_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            forgotten: super::setup::RETENTION,
            noted_after: Duration::from_secs(60),
            queues_checked: Duration::from_secs(60),
            sets_max: 64,
            set_bytes_max: 4 << 20,
            workers_max: 4096,
        }
    }
}

/// A set of tools that was made of an advertisement.
type Compiled = (Hosts, Set);

pub(crate) struct Keeper {
    limits: Limits,
    client: Client,
    context: Context,
    signals: Signals,
    store: kv::Store,
    registry: Registry,
    sets: Sets,
    /// Who hosts what, as the catalog was made of it.
    hosts: HashSet<Hosts>,
    /// Bytes of each set.
    bytes: HashMap<Hosts, usize>,
    /// Sets that are being compiled, and how many may be at once.
    compiling: JoinSet<Compiled>,
    compilers: Arc<Semaphore>,
    deserted: Deserted,
    /// Pools of which a worker was passed over, and when that was reported.
    crowded: HashMap<PoolId, Instant>,
    /// When what changed is given out.
    due: Option<Instant>,
    published: watch::Sender<Arc<Registry>>,
    /// Which names and tenants each pool may serve.
    rules: watch::Receiver<Arc<PoolRules>>,
    callers: Callers,
    /// When workers were last told what is refused.
    refused_told: Instant,
    heard: HashMap<(PoolId, WorkerId), Instant>,
    /// Where we say something to ourselves, and when we last heard it.
    echo: String,
    echoed: Instant,
    /// Pools that have their queue, and when it was last seen.
    queues: HashMap<PoolId, Instant>,
    started: Instant,
}

impl Keeper {
    pub(crate) fn new(
        broker: &Broker,
        published: watch::Sender<Arc<Registry>>,
        (rules, callers): (watch::Receiver<Arc<PoolRules>>, Callers),
        limits: Limits,
    ) -> Self {
        Self {
            rules,
            callers,
            deserted: Deserted::new(broker.snapshots.clone(), limits.noted_after),
            limits,
            client: broker.client.clone(),
            context: broker.context.clone(),
            signals: Signals::new(broker),
            refused_told: Instant::now(),
            store: broker.tools.clone(),
            registry: Registry::default(),
            sets: Sets::new(),
            hosts: HashSet::new(),
            bytes: HashMap::new(),
            compiling: JoinSet::new(),
            compilers: Arc::new(Semaphore::new(COMPILED_MAX)),
            crowded: HashMap::new(),
            due: None,
            published,
            heard: HashMap::new(),
            echo: broker.client.new_inbox(),
            echoed: Instant::now(),
            queues: HashMap::new(),
            started: Instant::now(),
        }
    }

    pub(crate) async fn keep(mut self, stop: CancellationToken) {
        let mut heartbeats = None;
        let mut changes: Option<kv::Watch> = None;
        let mut tick = tokio::time::interval(TICK);
        let mut echoes = None;
        let (mut rules, mut callers) = (Some(self.rules.clone()), self.callers.changes());
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = tick.tick() => {
                    self.listen_to_ourselves().await;
                    if echoes.is_none() {
                        echoes = self.client.subscribe(self.echo.clone()).await.ok();
                    }
                    if heartbeats.is_none() {
                        heartbeats = self.client.subscribe(names::HEARTBEATS).await.ok();
                    }
                    if changes.is_none() {
                        changes = self.store.watch_with_history(names::ADVERTISEMENTS).await.inspect_err(|error| {
                            tracing::warn!(%error, "cannot watch the advertisements, trying again");
                        }).ok();
                    }
                    self.look_around().await;
                }
                () = until(self.due) => self.publish(),
                () = changed(&mut rules) => self.publish_new_catalog(),
                () = changed(&mut callers) => self.publish_new_catalog(),
                message = next(&mut heartbeats) => match message {
                    Some(message) => self.heartbeat(message),
                    None => heartbeats = None,
                },
                echo = next(&mut echoes) => match echo {
                    Some(_) => self.echoed = Instant::now(),
                    None => echoes = None,
                },
                change = next(&mut changes) => match change {
                    Some(Ok(entry)) => self.advertisement(entry).await,
                    Some(Err(_)) | None => changes = None,
                },
                Some(compiled) = self.compiling.join_next() => {
                    let pool = self.learn(finished(compiled));
                    // First known, then pulled from: a worker that has its queue may take it that its tools can be called.
                    self.publish_new_catalog();
                    self.queue_for(&pool).await;
                }
            }
        }
    }

    /// Reads what is advertised already, so that nobody is told that there is no such tool by a coordinator that came late.
    /// Sets that take too long are learned later.
    pub(crate) async fn load(&mut self) -> Result<(), SetupError> {
        const WHAT: &str = "the advertisements";
        let patience = Patience::new(WHAT);
        while let Err(reason) = self.deserted.load().await {
            patience.after(Refusal::not_yet(reason)).await?;
        }
        for entry in entries(WHAT, &self.store).await? {
            self.advertisement(entry).await;
        }
        let compiled = async {
            while let Some(compiled) = self.compiling.join_next().await {
                self.learn(finished(compiled));
            }
        };
        if tokio::time::timeout(LOAD_PATIENCE, compiled).await.is_err() {
            tracing::error!("some sets of tools take very long to compile: starting without them");
        }
        self.publish_new_catalog();
        Ok(())
    }

    /// Silence counts against a worker only while we could have heard it: not while a link was dead that still looks
    /// alive, nor while this process stood still.
    async fn listen_to_ourselves(&mut self) {
        if self.echoed.elapsed() > DEAF {
            let now = Instant::now();
            self.heard.values_mut().for_each(|heard| *heard = now);
            self.started = now;
        }
        let said = tokio::time::timeout(TICK, self.client.publish(self.echo.clone(), Bytes::new())).await;
        if !matches!(said, Ok(Ok(()))) {
            tracing::debug!("cannot say anything to ourselves");
        }
    }

    /// Gives out who lives, and what can be called where that hangs on it.
    fn publish(&mut self) {
        self.due = None;
        if self.registry.hosts() == self.hosts {
            self.published.send_replace(Arc::new(self.registry.clone()));
        } else {
            self.publish_new_catalog();
        }
    }

    fn publish_new_catalog(&mut self) {
        self.hosts = self.registry.hosts();
        let rules = Arc::clone(&self.rules.borrow_and_update());
        let (catalog, views) = Views::new(&self.sets, &self.hosts, (rules, self.callers.tenancy()));
        let before = std::mem::replace(&mut self.registry.catalog, Arc::new(catalog));
        let views_before = std::mem::replace(&mut self.registry.views, Arc::new(views));
        begin_losses(&self.registry.catalog);
        for pool in self.registry.views.unshared().difference(&views_before.unshared()) {
            tracing::warn!(
                %pool,
                "tools of a pool use their worker's machine, and nobody declared which tenants share it: closed to tenants until \
                 the pools file (--pools) names its tenants"
            );
        }
        let named = |hosts: &Hosts| format!("{:?}", self.registry.workers_of(hosts, WORKERS_TOLD_MAX));
        for refused in &self.registry.catalog.refused {
            let is_known = |before: &crate::registry::Refused| {
                (&before.tool, &before.hosts, &before.holder) == (&refused.tool, &refused.hosts, &refused.holder)
            };
            if before.refused.iter().any(is_known) {
                continue;
            }
            let (pool, workers) = (&refused.hosts.0, named(&refused.hosts));
            let holder = refused.holder.as_ref();
            if refused.gives_way {
                tracing::info!(tool = refused.tool, reason = refused.reason, %pool, workers, "a tool is replaced");
                continue;
            }
            tracing::error!(
                tool = refused.tool, reason = refused.reason, %pool, workers,
                holder.pool = holder.map(|hosts| hosts.0.as_str()), holder.workers = holder.map(named),
                "a tool is refused"
            );
        }
        for differing in self.registry.catalog.differing.iter().filter(|it| !before.differing.contains(it)) {
            let crate::registry::Differing { tool, hosts, holder, what } = differing;
            tracing::warn!(
                %tool, pool = %hosts.0, workers = named(hosts), holder.pool = %holder.0, holder.workers = named(holder), what,
                "workers differ in what they say of a tool: the first counts"
            );
        }
        self.published.send_replace(Arc::new(self.registry.clone()));
    }

    async fn tell_refused(&self) {
        let mut refused: BTreeMap<&Hosts, Vec<(String, String)>> = BTreeMap::new();
        for it in self.registry.catalog.refused.iter().filter(|it| !it.gives_way) {
            let names = refused.entry(&it.hosts).or_default();
            if names.len() < REFUSED_TOLD_MAX {
                names.push((it.tool.clone(), it.reason.clone()));
            }
        }
        for (hosts, names) in refused {
            self.signals.refused(hosts, names).await;
        }
    }

    fn publish_soon(&mut self) {
        self.due.get_or_insert_with(|| Instant::now() + GATHER);
    }

    async fn look_around(&mut self) {
        let lost = self.heard.extract_if(|_, heard| heard.elapsed() >= names::WORKER_LOST).collect::<Vec<_>>();
        for ((pool, worker), _) in &lost {
            tracing::warn!(%pool, worker.id = %worker, "a worker was lost");
            self.registry.worker_left(pool, worker);
        }
        let settled = self.started.elapsed() >= names::WORKER_LOST;
        if !lost.is_empty() || settled != self.registry.settled {
            self.registry.settled = settled;
            self.publish();
        }
        // Before, nobody is heard who hosts anything.
        if settled {
            self.bound_sets().await;
            self.forget().await;
        }
        if self.refused_told.elapsed() >= REFUSED_TOLD {
            self.refused_told = Instant::now();
            self.tell_refused().await;
        }
        let pools: BTreeSet<PoolId> = self.sets.keys().map(|(pool, _)| pool.clone()).collect();
        for pool in pools {
            self.queue_for(&pool).await;
        }
    }

    /// Removes what is too much of a pool's sets: first what nobody hosts and nobody's claim of a name rests on, the oldest
    /// first, then the newest.
    async fn bound_sets(&mut self) {
        let Limits { sets_max, set_bytes_max, .. } = self.limits;
        let mut pools: BTreeMap<&PoolId, Vec<&Hosts>> = BTreeMap::new();
        for hosts in self.sets.keys() {
            pools.entry(&hosts.0).or_default().push(hosts);
        }
        let bytes = |hosts: &Hosts| self.bytes.get(hosts).copied().unwrap_or_default();
        let mut over: Vec<Hosts> = Vec::new();
        for (pool, mut sets) in pools {
            let (count, all) = (sets.len(), sets.iter().map(|hosts| bytes(hosts)).sum::<usize>());
            if count <= sets_max && all <= set_bytes_max {
                continue;
            }
            tracing::error!(
                %pool, count, bytes = all, sets_max, set_bytes_max,
                "a pool advertises too many tool sets: some are removed, those without workers first. Give each kind of worker \
                 a pool of its own"
            );
            let revision = |hosts: &Hosts| self.sets.get(hosts).map_or(0, |set| set.revision);
            let is_needed = |hosts: &Hosts| self.hosts.contains(hosts) || proves_a_claim(&self.sets, hosts);
            // Those that go first are last.
            sets.sort_by_cached_key(|hosts| match is_needed(hosts) {
                true => (false, revision(hosts)),
                false => (true, u64::MAX - revision(hosts)),
            });
            let mut kept = 0;
            for (place, hosts) in sets.into_iter().enumerate() {
                kept += bytes(hosts);
                if place >= sets_max || kept > set_bytes_max {
                    over.push(hosts.clone());
                }
            }
        }
        for hosts in over {
            self.remove_set(&hosts).await;
        }
    }

    /// Puts away what nobody has hosted for long. A worker that comes at this very moment says it again within a minute.
    async fn forget(&mut self) {
        let hosted = self.sets.keys().map(|hosts| (hosts, self.hosts.contains(hosts)));
        self.deserted.look(hosted).await;
        let (now, forgotten) = (proto::now(), self.limits.forgotten);
        let ages = self.sets.keys().filter_map(|hosts| Some((hosts.clone(), self.deserted.age(hosts, now)?)));
        let over = ages.filter(|(hosts, age)| *age >= forgotten && !proves_a_claim(&self.sets, hosts));
        for (hosts, age) in over.take(FORGOTTEN_MAX).collect::<Vec<_>>() {
            let (pool, tools) = &hosts;
            let is_last = self.sets.keys().filter(|(other, _)| other == pool).count() == 1;
            // The log has nothing any more of what was given out so long ago.
            let all_are_gone = age >= forgotten * 2;
            if is_last && self.registry.living(pool).live == 0 && !self.remove_queue(pool, all_are_gone).await {
                continue;
            }
            tracing::info!(%pool, %tools, "forgetting tools that nobody hosts any more");
            self.remove_set(&hosts).await;
        }
    }

    /// Nothing may be left of it, for workers write only where nothing is. So other coordinators do not hear of it, and remove
    /// it themselves.
    async fn remove_set(&mut self, hosts: &Hosts) {
        let (pool, tools) = hosts;
        if self.remove_key(&names::advertisement(pool, tools)).await {
            self.sets.remove(hosts);
            self.bytes.remove(hosts);
            self.publish_new_catalog();
        }
    }

    async fn remove_key(&self, key: &str) -> bool {
        let subject = format!("$KV.{}.{key}", names::TOOLS_BUCKET);
        let purged = self.store.stream.purge().filter(subject).await;
        purged.inspect_err(|error| tracing::warn!(key, %error, "an advertisement is not deleted, trying again")).is_ok()
    }

    /// Removes the queue of a pool that is gone, if nothing is left in it. Says whether the pool has none.
    async fn remove_queue(&mut self, pool: &PoolId, all_are_gone: bool) -> bool {
        let removed = super::setup::remove_pool(&self.context, pool, all_are_gone).await;
        match removed {
            Ok(true) => {
                tracing::info!(%pool, "removed the queue of a pool that nobody serves any more");
                self.queues.remove(pool);
                true
            }
            Ok(false) => false,
            Err(error) => {
                tracing::warn!(%pool, error, "the queue of a pool that is gone is not removed, trying again");
                false
            }
        }
    }

    fn heartbeat(&mut self, message: Message) {
        let Some(pool) = names::heartbeat_pool(&message.subject) else { return };
        let heartbeat = match Heartbeat::decode(message.payload) {
            Ok(heartbeat) => heartbeat,
            Err(error) => return tracing::warn!(%pool, %error, "passing over a heartbeat"),
        };
        let changed = if heartbeat.leaving {
            let known = (pool, heartbeat.worker);
            self.heard.remove(&known);
            if self.registry.worker_left(&known.0, &known.1) {
                // At once: nothing more shall wait for it.
                self.publish();
            }
            false
        } else if self.is_too_many(&pool, &heartbeat.worker) {
            false
        } else {
            self.heard.insert((pool.clone(), heartbeat.worker.clone()), Instant::now());
            let Heartbeat { worker: id, tools, pulling, slots, draining, release, .. } = heartbeat;
            self.registry.worker_lives(pool, id, Worker { tools, pulling, slots, draining, release })
        };
        if changed {
            self.publish_soon();
        }
    }

    /// A worker that is not known, of a pool that has as many as it may.
    fn is_too_many(&mut self, pool: &PoolId, worker: &WorkerId) -> bool {
        let limit = self.limits.workers_max;
        let too_many = self.registry.living(pool).live >= limit && !self.registry.is_alive(pool, worker);
        if too_many && self.crowded.get(pool).is_none_or(|reported| reported.elapsed() >= REPORTED) {
            self.crowded.insert(pool.clone(), Instant::now());
            tracing::error!(%pool, worker.id = %worker, limit, "passing over heartbeats: a pool has too many workers");
        }
        too_many
    }

    async fn advertisement(&mut self, entry: kv::Entry) {
        let Some(hosts) = names::advertisement_of(&entry.key) else {
            tracing::warn!(key = entry.key, "removing an advertisement with a malformed key");
            self.remove_key(&entry.key).await;
            return;
        };
        match entry.operation {
            kv::Operation::Delete | kv::Operation::Purge => {
                self.sets.remove(&hosts);
                self.bytes.remove(&hosts);
                self.publish_new_catalog();
            }
            // Each new watch brings what is known.
            kv::Operation::Put if self.sets.get(&hosts).is_some_and(|set| set.revision >= entry.revision) => {}
            kv::Operation::Put => {
                self.bytes.insert(hosts.clone(), entry.value.len());
                let places = Arc::clone(&self.compilers);
                self.compiling.spawn(compile(places, hosts, entry));
            }
        }
    }

    /// A set was compiled; gives its pool.
    fn learn(&mut self, (hosts, set): Compiled) -> PoolId {
        let pool = hosts.0.clone();
        self.sets.insert(hosts, set);
        pool
    }

    /// Sees to it that a pool has its queue; also where it was lost since.
    async fn queue_for(&mut self, pool: &PoolId) {
        let checked = self.queues.get(pool);
        if checked.is_some_and(|checked| checked.elapsed() < self.limits.queues_checked) {
            return;
        }
        let made = match checked {
            Some(_) => ensure_still(&self.context, pool).await,
            None => ensure_pool(&self.context, pool).await,
        };
        match made {
            Ok(()) => {
                self.queues.insert(pool.clone(), Instant::now());
            }
            Err(error) => tracing::warn!(%pool, %error, "a pool is without its queue, trying again"),
        }
    }
}

async fn next<S: futures::Stream + Unpin>(stream: &mut Option<S>) -> Option<S::Item> {
    match stream {
        Some(stream) => stream.next().await,
        None => std::future::pending().await,
    }
}

/// Resolves when a file was read again; never where there is none, or nobody reads it any more.
async fn changed<T>(file: &mut Option<watch::Receiver<T>>) {
    let is_read = match file {
        Some(file) => file.changed().await.is_ok(),
        None => std::future::pending().await,
    };
    if !is_read {
        *file = None;
        std::future::pending::<()>().await;
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// Makes a set of an advertisement, apart from everything else: it is a worker's word, and may be anything. One that cannot be
/// used has no tools, and is forgotten like any other.
async fn compile(places: Arc<Semaphore>, hosts: Hosts, entry: kv::Entry) -> Compiled {
    let revision = entry.revision;
    let place = places.acquire_owned().await;
    let compiling = tokio::task::spawn_blocking(move || {
        // Kept as long as it takes, whether or not somebody waits.
        let _place = place;
        decode_advertisement(entry.value)
    });
    let reason = match tokio::time::timeout(COMPILE_PATIENCE, compiling).await {
        Ok(Ok(Ok(tools))) => return (hosts, set(revision, tools)),
        Ok(Ok(Err(error))) => error.to_string(),
        Ok(Err(panicked)) => panicked.to_string(),
        Err(_) => format!("it takes longer than {COMPILE_PATIENCE:?} to compile"),
    };
    tracing::error!(pool = %hosts.0, tools = %hosts.1, reason, "passing over an advertisement");
    (hosts, Set { revision, tools: Vec::new(), unusable: Vec::new() })
}

fn set(revision: u64, advertised: Vec<Result<Usable, InvalidManifest>>) -> Set {
    let mut set = Set { revision, tools: Vec::new(), unusable: Vec::new() };
    for tool in advertised {
        match tool {
            Ok(usable) => set.tools.push(Hosted::new(usable)),
            Err(error) => set.unusable.push(Unusable { reason: error.to_string(), tool: error.name }),
        }
    }
    set
}
