//! Keeps the registry: watches the bucket of advertisements, listens to heartbeats, and sees to it that every pool that
//! advertises has its queue.

use std::collections::{HashMap, HashSet};
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
use crate::registry::{Hosted, Registry, Worker};

const TICK: Duration = Duration::from_secs(1);
/// When we have not heard ourselves for this long, we would not have heard a worker either.
const DEAF: Duration = Duration::from_secs(3);

pub(crate) struct Keeper {
    client: Client,
    context: Context,
    store: kv::Store,
    registry: Registry,
    published: watch::Sender<Arc<Registry>>,
    heard: HashMap<WorkerId, Instant>,
    /// Where we say something to ourselves, and when we last heard it.
    echo: String,
    echoed: Instant,
    /// Pools that have their queue.
    queues: HashSet<PoolId>,
    started: Instant,
}

impl Keeper {
    pub(crate) fn new(broker: &Broker, published: watch::Sender<Arc<Registry>>) -> Self {
        Self {
            client: broker.client.clone(),
            context: broker.context.clone(),
            store: broker.tools.clone(),
            registry: Registry::default(),
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
                        changes = self.store.watch_with_history("*").await.inspect_err(|error| {
                            tracing::warn!(%error, "cannot watch the advertisements, trying again");
                        }).ok();
                    }
                    self.look_around().await;
                }
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
        self.publish();
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

    fn publish(&self) {
        self.published.send_replace(Arc::new(self.registry.clone()));
    }

    async fn look_around(&mut self) {
        let lost = self.heard.extract_if(|_, heard| heard.elapsed() >= names::WORKER_LOST).collect::<Vec<_>>();
        for (worker, _) in &lost {
            tracing::warn!(worker.id = %worker, "a worker was lost");
            self.registry.worker_left(worker);
        }
        let settled = self.started.elapsed() >= names::WORKER_LOST;
        if !lost.is_empty() || settled != self.registry.settled {
            self.registry.settled = settled;
            self.publish();
        }
        let pools: Vec<PoolId> = self.registry.tools_after(None).flat_map(|(_, pools)| pools.keys().cloned()).collect();
        for pool in pools {
            self.queue_for(&pool).await;
        }
    }

    fn heartbeat(&mut self, message: Message) {
        let Some(pool) = names::heartbeat_pool(&message.subject) else { return };
        let heartbeat = match Heartbeat::decode(message.payload) {
            Ok(heartbeat) => heartbeat,
            Err(error) => return tracing::warn!(%pool, %error, "passing over a heartbeat"),
        };
        let changed = if heartbeat.leaving {
            self.heard.remove(&heartbeat.worker);
            self.registry.worker_left(&heartbeat.worker)
        } else {
            self.heard.insert(heartbeat.worker.clone(), Instant::now());
            self.registry.worker_lives(heartbeat.worker, Worker { pool, pulling: heartbeat.pulling })
        };
        if changed {
            self.publish();
        }
    }

    async fn advertisement(&mut self, entry: kv::Entry) {
        if let Some(pool) = self.learn(&entry) {
            // First known, then pulled from: a worker that has its queue may take it that its tools can be called.
            self.publish();
            self.queue_for(&pool).await;
        }
    }

    fn learn(&mut self, entry: &kv::Entry) -> Option<PoolId> {
        let Ok(pool) = entry.key.parse::<PoolId>() else {
            tracing::warn!(key = entry.key, "passing over an advertisement with a malformed key");
            return None;
        };
        let manifests = match entry.operation {
            kv::Operation::Delete | kv::Operation::Purge => Ok(Vec::new()),
            kv::Operation::Put => decode_advertisement(entry.value.clone()),
        };
        match manifests {
            Ok(tools) => {
                let tools = tools.into_iter().filter_map(|tool| hosted(&pool, tool));
                self.registry.advertise(&pool, tools.collect());
            }
            Err(error) => {
                tracing::warn!(%pool, %error, "passing over an advertisement");
                return None;
            }
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

fn hosted(pool: &PoolId, tool: Result<Usable, InvalidManifest>) -> Option<Hosted> {
    let Usable { manifest, schema } =
        tool.inspect_err(|error| tracing::error!(%pool, %error, "passing over a tool; calls of it find none")).ok()?;
    Some(Hosted { manifest: Arc::new(manifest), schema })
}
