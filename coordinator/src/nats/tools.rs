//! Keeps the registry current: watches the bucket of advertisements, receives heartbeats, creates a queue for every
//! pool that advertises, and removes the queues of pools that are gone.

mod deserted;
mod queues;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::kv;
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
use super::setup::{BrokerError, Patience, SetupError, entries};
use super::signals::Signals;
use crate::auth::callers::Callers;
use crate::fleet::pools::PoolRules;
use crate::fleet::registry::{Hosted, Hosts, Registry, Set, Sets, Unusable, Views, Worker, proves_a_claim};
use crate::metrics::begin_losses;
use crate::tasks::finished;

const TICK: Duration = Duration::from_secs(1);
/// If our own echo did not arrive for this long, a worker's heartbeat would not have arrived either.
const DEAF: Duration = Duration::from_secs(3);
/// Sets of tools that are compiled concurrently, how long one may take, and how long a starting coordinator waits for
/// them. Later ones are added while it serves.
const COMPILED_MAX: usize = 2;
const COMPILE_PATIENCE: Duration = Duration::from_secs(5);
const LOAD_PATIENCE: Duration = Duration::from_secs(20);
/// Sets that are forgotten in one check; the next check continues.
const FORGOTTEN_MAX: usize = 16;
/// How often a pool with too many workers is reported.
const REPORTED: Duration = Duration::from_secs(60);
/// For how long heartbeats are collected before the registry is published, because many workers may start together.
const GATHER: Duration = Duration::from_millis(20);
/// How often workers are informed which of their tools are rejected, in case a message was lost or a worker has just
/// started.
const REFUSED_TOLD: Duration = Duration::from_secs(5);
/// The most rejected names that are listed for a tool set: enough to find the cause, and small enough for a message.
const REFUSED_TOLD_MAX: usize = 64;
/// The most workers that are named for rejected tools.
const WORKERS_TOLD_MAX: usize = 8;

/// Limits of what a pool may have, and for how long.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    /// How long a set of tools without hosts is kept: its calls wait for a worker, and none waits longer than the log
    /// is kept. The queue of a pool is kept as long as its last set.
    forgotten: Duration,
    /// How long a set has no hosts before that is recorded: a release replaces its workers in less.
    noted_after: Duration,
    /// How often it is checked whether a pool still has its queue.
    queues_checked: Duration,
    /// Sets of one pool, and their bytes: a few releases, each with a few kinds of workers.
    sets_max: usize,
    set_bytes_max: usize,
    /// The most workers of one pool: far more than one queue of the broker serves.
    workers_max: usize,
    /// Pools that are started when they have calls: the tools of their last workers are not forgotten.
    on_demand: HashSet<PoolId>,
}

impl Limits {
    pub(crate) fn with_on_demand(self, on_demand: HashSet<PoolId>) -> Self {
        Self { on_demand, ..self }
    }
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
            on_demand: HashSet::new(),
        }
    }
}

/// A set of tools, compiled from an advertisement.
type Compiled = (Hosts, Set);

pub(crate) struct RegistryTask {
    limits: Limits,
    client: Client,
    broker: Arc<Broker>,
    /// Partitions of the log in which the queues are.
    partitions: usize,
    /// Partitions that did not answer, each since when.
    silent: HashMap<&'static str, Instant>,
    signals: Signals,
    store: kv::Store,
    registry: Registry,
    sets: Sets,
    /// The hosts of each set, as the catalog was made from them.
    hosts: HashSet<Hosts>,
    /// Bytes of each set.
    bytes: HashMap<Hosts, usize>,
    /// Sets that are being compiled, and the limit of concurrent ones.
    compiling: JoinSet<Compiled>,
    compilers: Arc<Semaphore>,
    deserted: Deserted,
    /// Pools with an ignored worker, and when that was reported.
    crowded: HashMap<PoolId, Instant>,
    /// When the changes are published.
    due: Option<Instant>,
    published: watch::Sender<Arc<Registry>>,
    /// Which names and tenants each pool may serve.
    rules: watch::Receiver<Arc<PoolRules>>,
    callers: Callers,
    /// When workers were last informed which tools are rejected.
    refused_told: Instant,
    last_seen: HashMap<(PoolId, WorkerId), Instant>,
    /// The subject of our echo, and when we last received it.
    echo: String,
    echoed: Instant,
    /// Pools that have their queue, and when it was last checked.
    queues: HashMap<PoolId, Instant>,
    started: Instant,
}

impl RegistryTask {
    pub(crate) fn new(
        broker: &Broker,
        published: watch::Sender<Arc<Registry>>,
        (rules, callers): (watch::Receiver<Arc<PoolRules>>, Callers),
        mut limits: Limits,
    ) -> Self {
        Self {
            rules,
            callers,
            deserted: Deserted::new(broker.snapshots.clone(), limits.noted_after),
            client: broker.client.clone(),
            broker: Arc::new(broker.clone()),
            partitions: broker.partitions(),
            silent: HashMap::new(),
            signals: Signals::new(broker),
            refused_told: Instant::now(),
            store: broker.tools.clone(),
            registry: Registry::new(std::mem::take(&mut limits.on_demand)),
            sets: Sets::new(),
            hosts: HashSet::new(),
            bytes: HashMap::new(),
            compiling: JoinSet::new(),
            compilers: Arc::new(Semaphore::new(COMPILED_MAX)),
            crowded: HashMap::new(),
            due: None,
            published,
            last_seen: HashMap::new(),
            limits,
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
                            tracing::warn!(%error, "watching the advertisements failed, retrying");
                        }).ok();
                    }
                    self.check_all().await;
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
                    // The catalog is published before the queue exists, so a worker that has its queue knows that its
                    // tools can be called.
                    self.publish_new_catalog();
                    self.queue_for(&pool).await;
                }
            }
        }
    }

    /// Reads the present advertisements, so that a starting coordinator does not reject known tools. Sets that take too
    /// long are added later.
    pub(crate) async fn load(&mut self) -> Result<(), SetupError> {
        const WHAT: &str = "the advertisements";
        let patience = Patience::new(WHAT);
        while let Err(reason) = self.deserted.load().await {
            patience.after(BrokerError::not_yet(reason)).await?;
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
            tracing::error!("compiling some sets of tools takes very long: starting without them");
        }
        self.publish_new_catalog();
        Ok(())
    }

    /// Missing heartbeats count against a worker only while we could have received them: not while a link is dead
    /// without being detected, nor while this process hung.
    async fn listen_to_ourselves(&mut self) {
        if self.echoed.elapsed() > DEAF {
            let now = Instant::now();
            self.last_seen.values_mut().for_each(|last_seen| *last_seen = now);
            self.started = now;
        }
        let echoed = tokio::time::timeout(TICK, self.client.publish(self.echo.clone(), Bytes::new())).await;
        if !matches!(echoed, Ok(Ok(()))) {
            tracing::debug!("sending an echo to ourselves failed");
        }
    }

    /// Publishes the live workers, and the catalog if it depends on them.
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
                "tools of a pool use their worker's machine, but no sharing between tenants is declared: closed to \
                tenants until the pools file (--pools) names its tenants"
            );
        }
        let named = |hosts: &Hosts| format!("{:?}", self.registry.workers_of(hosts, WORKERS_TOLD_MAX));
        for refused in &self.registry.catalog.refused {
            let is_known = |before: &crate::fleet::registry::Refused| {
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
            let crate::fleet::registry::Differing { tool, hosts, holder, what } = differing;
            tracing::warn!(
                %tool, pool = %hosts.0, workers = named(hosts), holder.pool = %holder.0,
                    holder.workers = named(holder), what,
                "workers advertise different manifests of a tool: the first counts"
            );
        }
        self.published.send_replace(Arc::new(self.registry.clone()));
    }

    async fn publish_refused(&self) {
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

    async fn check_all(&mut self) {
        let lost =
            self.last_seen.extract_if(|_, last_seen| last_seen.elapsed() >= names::WORKER_LOST).collect::<Vec<_>>();
        for ((pool, worker), _) in &lost {
            tracing::warn!(%pool, worker.id = %worker, "a worker was lost");
            self.registry.worker_left(pool, worker);
        }
        let settled = self.started.elapsed() >= names::WORKER_LOST;
        if !lost.is_empty() || settled != self.registry.settled {
            self.registry.settled = settled;
            self.publish();
        }
        // Before that, the hosts are not known.
        if settled {
            self.bound_sets().await;
            self.forget().await;
        }
        if self.refused_told.elapsed() >= REFUSED_TOLD {
            self.refused_told = Instant::now();
            self.publish_refused().await;
        }
        let pools: BTreeSet<PoolId> = self.sets.keys().map(|(pool, _)| pool.clone()).collect();
        for pool in pools {
            self.queue_for(&pool).await;
        }
    }

    /// Removes sets of a pool beyond its limit: first the oldest without hosts and without a claim on a name, then the
    /// newest.
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
                "a pool advertises too many tool sets: removing some, those without workers first. Give each kind \
                of worker a pool of its own"
            );
            let revision = |hosts: &Hosts| self.sets.get(hosts).map_or(0, |set| set.revision);
            let is_needed = |hosts: &Hosts| self.hosts.contains(hosts) || proves_a_claim(&self.sets, hosts);
            // Those that are removed first are last.
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

    /// Forgets sets that have had no hosts for long. A worker that starts at this very moment advertises again within a
    /// minute.
    async fn forget(&mut self) {
        let hosted = self.sets.keys().map(|hosts| (hosts, self.hosts.contains(hosts)));
        self.deserted.look(hosted).await;
        let (now, forgotten) = (::nats::now(), self.limits.forgotten);
        let kept = self.kept(now);
        let ages = self.sets.keys().filter_map(|hosts| Some((hosts.clone(), self.deserted.age(hosts, now)?)));
        let over = ages
            .filter(|(hosts, age)| *age >= forgotten && !kept.contains(hosts) && !proves_a_claim(&self.sets, hosts));
        for (hosts, age) in over.take(FORGOTTEN_MAX).collect::<Vec<_>>() {
            let (pool, tools) = &hosts;
            let is_last = self.sets.keys().filter(|(other, _)| other == pool).count() == 1;
            // Everything delivered that long ago has left the log.
            let all_are_gone = age >= forgotten * 2;
            if is_last && self.registry.living(pool).live == 0 && !self.remove_queue(pool, all_are_gone).await {
                continue;
            }
            tracing::info!(%pool, %tools, "forgetting tools without hosts");
            self.remove_set(&hosts).await;
        }
    }

    /// The sets of the last workers of pools that are started when they have calls.
    fn kept(&self, now: run::Timestamp) -> HashSet<Hosts> {
        let of = |pool: &PoolId| {
            let sets = self.sets.keys().filter(|(of, _)| of == pool);
            sets.min_by_key(|hosts| self.deserted.age(hosts, now).unwrap_or_default()).cloned()
        };
        self.registry.on_demand.iter().filter_map(of).collect()
    }

    /// The key must be purged, because workers only write to missing keys. So other coordinators do not see the
    /// removal, and remove it themselves.
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
        purged.inspect_err(|error| tracing::warn!(key, %error, "deleting an advertisement failed, retrying")).is_ok()
    }

    fn heartbeat(&mut self, message: Message) {
        let Some(pool) = names::heartbeat_pool(&message.subject) else { return };
        let heartbeat = match Heartbeat::decode(message.payload) {
            Ok(heartbeat) => heartbeat,
            Err(error) => return tracing::warn!(%pool, %error, "ignoring a heartbeat that cannot be decoded"),
        };
        let changed = if heartbeat.leaving {
            let known = (pool, heartbeat.worker);
            self.last_seen.remove(&known);
            if self.registry.worker_left(&known.0, &known.1) {
                // Immediately, so that no more calls wait for it.
                self.publish();
            }
            false
        } else if self.is_too_many(&pool, &heartbeat.worker) {
            false
        } else {
            self.last_seen.insert((pool.clone(), heartbeat.worker.clone()), Instant::now());
            let Heartbeat { worker: id, tools, pulling, slots, draining, release, sandbox, hooks, .. } = heartbeat;
            self.registry.worker_lives(pool, id, Worker { tools, pulling, slots, draining, release, sandbox, hooks })
        };
        if changed {
            self.publish_soon();
        }
    }

    /// Whether the worker is unknown and its pool has reached its limit.
    fn is_too_many(&mut self, pool: &PoolId, worker: &WorkerId) -> bool {
        let limit = self.limits.workers_max;
        let too_many = self.registry.living(pool).live >= limit && !self.registry.is_alive(pool, worker);
        if too_many && self.crowded.get(pool).is_none_or(|reported| reported.elapsed() >= REPORTED) {
            self.crowded.insert(pool.clone(), Instant::now());
            tracing::error!(%pool, worker.id = %worker, limit, "ignoring heartbeats: a pool has too many workers");
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
            // Each new watch begins with the present entries.
            kv::Operation::Put if self.sets.get(&hosts).is_some_and(|set| set.revision >= entry.revision) => {}
            kv::Operation::Put => {
                self.bytes.insert(hosts.clone(), entry.value.len());
                let places = Arc::clone(&self.compilers);
                self.compiling.spawn(compile(places, hosts, entry));
            }
        }
    }

    /// Adds a compiled set; returns its pool.
    fn learn(&mut self, (hosts, set): Compiled) -> PoolId {
        let pool = hosts.0.clone();
        self.sets.insert(hosts, set);
        pool
    }
}

async fn next<S: futures::Stream + Unpin>(stream: &mut Option<S>) -> Option<S::Item> {
    match stream {
        Some(stream) => stream.next().await,
        None => std::future::pending().await,
    }
}

/// Resolves when a file was reloaded; never if there is none, or it is not watched any more.
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

/// Compiles the set of an advertisement in a task of its own, because it comes from a worker and may be anything. One
/// that cannot be used has no tools, and is forgotten like any other.
async fn compile(places: Arc<Semaphore>, hosts: Hosts, entry: kv::Entry) -> Compiled {
    let revision = entry.revision;
    let place = places.acquire_owned().await;
    let compiling = tokio::task::spawn_blocking(move || {
        // Held until the work is done, whether or not its result is still awaited.
        let _place = place;
        decode_advertisement(entry.value)
    });
    let reason = match tokio::time::timeout(COMPILE_PATIENCE, compiling).await {
        Ok(Ok(Ok(tools))) => return (hosts, set(revision, tools)),
        Ok(Ok(Err(error))) => error.to_string(),
        Ok(Err(panicked)) => panicked.to_string(),
        Err(_) => format!("it takes longer than {COMPILE_PATIENCE:?} to compile"),
    };
    tracing::error!(pool = %hosts.0, tools = %hosts.1, reason, "ignoring an advertisement");
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
