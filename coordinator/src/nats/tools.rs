//! Keeps the registry: watches the bucket of advertisements, listens to heartbeats, and sees to it that every pool that
//! advertises has its queue.

use std::collections::{BTreeMap, HashMap, HashSet};
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
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Broker;
use super::setup::{SetupError, ensure_pool};
use super::signals::Signals;
use crate::callers::Callers;
use crate::pools::PoolRules;
use crate::registry::{Hosted, Hosts, Registry, Set, Sets, Unusable, Views, Worker, proves_a_claim};

const TICK: Duration = Duration::from_secs(1);
/// When we have not heard ourselves for this long, we would not have heard a worker either.
const DEAF: Duration = Duration::from_secs(3);
/// How long a set of tools is remembered that nobody hosts: calls of it wait for a worker, and none waits longer than the log
/// is kept. A coordinator that starts counts anew.
const FORGOTTEN: Duration = super::setup::RETENTION;
/// For how long heartbeats are gathered before what they say is given out: many workers may start at once.
const GATHER: Duration = Duration::from_millis(20);
/// How often workers are told which of their tools are refused: what was not heard is said again, and one that starts hears it soon.
const REFUSED_TOLD: Duration = Duration::from_secs(5);
/// Refused names that a tool set is told of: enough to find the cause, and small for a message.
const REFUSED_TOLD_MAX: usize = 64;
/// Workers that are named where tools are refused.
const WORKERS_TOLD_MAX: usize = 8;

pub(crate) struct Keeper {
    client: Client,
    context: Context,
    signals: Signals,
    store: kv::Store,
    registry: Registry,
    sets: Sets,
    /// Who hosts what, as the catalog was made of it.
    hosts: HashSet<Hosts>,
    /// Since when nobody hosts a set that is advertised.
    deserted: HashMap<Hosts, Instant>,
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
    /// Pools that have their queue.
    queues: HashSet<PoolId>,
    started: Instant,
}

impl Keeper {
    pub(crate) fn new(
        broker: &Broker,
        published: watch::Sender<Arc<Registry>>,
        (rules, callers): (watch::Receiver<Arc<PoolRules>>, Callers),
    ) -> Self {
        Self {
            rules,
            callers,
            client: broker.client.clone(),
            context: broker.context.clone(),
            signals: Signals::new(broker),
            refused_told: Instant::now(),
            store: broker.tools.clone(),
            registry: Registry::default(),
            sets: Sets::new(),
            hosts: HashSet::new(),
            deserted: HashMap::new(),
            due: None,
            published,
            heard: HashMap::new(),
            echo: broker.client.new_inbox(),
            echoed: Instant::now(),
            queues: HashSet::new(),
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
            }
        }
    }

    /// Reads what is advertised already, so that nobody is told that there is no such tool by a coordinator that came late.
    pub(crate) async fn load(&mut self) -> Result<(), SetupError> {
        let refused = |error: &dyn std::fmt::Display| SetupError::refused("the advertisements", error);
        let mut keys = self.store.keys().await.map_err(|error| refused(&error))?;
        while let Some(key) = keys.next().await {
            let key = key.map_err(|error| refused(&error))?;
            if let Some(entry) = self.store.entry(key).await.map_err(|error| refused(&error))? {
                self.learn(&entry);
            }
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
        self.forget().await;
        if self.refused_told.elapsed() >= REFUSED_TOLD {
            self.refused_told = Instant::now();
            self.tell_refused().await;
        }
        let pools: HashSet<PoolId> = self.sets.keys().map(|(pool, _)| pool.clone()).collect();
        for pool in pools {
            self.queue_for(&pool).await;
        }
    }

    /// Puts away what nobody has hosted for long. A worker that comes at this very moment says it again within a minute.
    async fn forget(&mut self) {
        self.deserted.retain(|hosts, _| self.sets.contains_key(hosts) && !self.hosts.contains(hosts));
        for hosts in self.sets.keys().filter(|hosts| !self.hosts.contains(*hosts)) {
            self.deserted.entry(hosts.clone()).or_insert_with(Instant::now);
        }
        let mut over = self.deserted.iter().filter(|(_, since)| since.elapsed() >= FORGOTTEN).map(|(hosts, _)| hosts);
        let over = over.find(|hosts| !proves_a_claim(&self.sets, hosts)).cloned();
        if let Some((pool, tools)) = over {
            tracing::info!(%pool, %tools, "forgetting tools that nobody hosts any more");
            // Nothing may be left of it, for workers write only where nothing is. So other coordinators do not hear of it,
            // and forget it themselves.
            let subject = format!("$KV.{}.{}", names::TOOLS_BUCKET, names::advertisement(&pool, &tools));
            match self.store.stream.purge().filter(subject).await {
                Ok(_) => {
                    self.sets.remove(&(pool, tools));
                    self.publish_new_catalog();
                }
                Err(error) => tracing::warn!(%pool, %error, "an advertisement is not deleted, trying again"),
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
        } else {
            self.heard.insert((pool.clone(), heartbeat.worker.clone()), Instant::now());
            let Heartbeat { worker: id, tools, pulling, slots, draining, .. } = heartbeat;
            self.registry.worker_lives(pool, id, Worker { tools, pulling, slots, draining })
        };
        if changed {
            self.publish_soon();
        }
    }

    async fn advertisement(&mut self, entry: kv::Entry) {
        if let Some(pool) = self.learn(&entry) {
            // First known, then pulled from: a worker that has its queue may take it that its tools can be called.
            self.publish_new_catalog();
            self.queue_for(&pool).await;
        }
    }

    fn learn(&mut self, entry: &kv::Entry) -> Option<PoolId> {
        let Some(hosts) = names::advertisement_of(&entry.key) else {
            tracing::warn!(key = entry.key, "passing over an advertisement with a malformed key");
            return None;
        };
        let pool = hosts.0.clone();
        match entry.operation {
            kv::Operation::Delete | kv::Operation::Purge => {
                self.sets.remove(&hosts);
            }
            kv::Operation::Put => match decode_advertisement(entry.value.clone()) {
                Ok(tools) => {
                    self.sets.insert(hosts, set(entry.revision, tools));
                }
                Err(error) => {
                    tracing::error!(%pool, %error, "passing over an advertisement");
                    return None;
                }
            },
        }
        Some(pool)
    }

    async fn queue_for(&mut self, pool: &PoolId) {
        if self.queues.contains(pool) {
            return;
        }
        match ensure_pool(&self.context, pool).await {
            Ok(()) => {
                self.queues.insert(pool.clone());
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
