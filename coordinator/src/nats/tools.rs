//! Keeps the registry: watches the bucket of advertisements, listens to heartbeats, and sees to it that every pool that
//! advertises has its queue.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::{Context, kv};
use async_nats::{Client, Message};
use bytes::Bytes;
use futures::StreamExt as _;
use proto::convert::worker::{Heartbeat, decode_advertisement};
use proto::names;
use proto::schema::Schema;
use run::{PoolId, WorkerId};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Broker;
use super::setup::ensure_pool;
use crate::registry::{Hosted, Registry};

const TICK: Duration = Duration::from_secs(1);

pub(crate) struct Keeper {
    client: Client,
    context: Context,
    store: kv::Store,
    registry: Registry,
    published: watch::Sender<Arc<Registry>>,
    heard: HashMap<WorkerId, Instant>,
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
            queues: HashSet::new(),
            started: Instant::now(),
        }
    }

    pub(crate) async fn keep(mut self, stop: CancellationToken) {
        let mut heartbeats = None;
        let mut changes: Option<kv::Watch> = None;
        let mut tick = tokio::time::interval(TICK);
        let mut ticked = Instant::now();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = tick.tick() => {
                    // Silence counts against a worker only while we could have heard it: not while the broker was away
                    // from us, nor while this process stood still.
                    let deaf = self.client.connection_state() != State::Connected || ticked.elapsed() > TICK * 3;
                    ticked = Instant::now();
                    if deaf {
                        self.heard.values_mut().for_each(|heard| *heard = ticked);
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
                change = next(&mut changes) => match change {
                    Some(Ok(entry)) => self.advertisement(entry).await,
                    Some(Err(_)) | None => changes = None,
                },
            }
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
            self.registry.worker_lives(heartbeat.worker, pool)
        };
        if changed {
            self.publish();
        }
    }

    async fn advertisement(&mut self, entry: kv::Entry) {
        let Ok(pool) = entry.key.parse::<PoolId>() else {
            return tracing::warn!(key = entry.key, "passing over an advertisement with a malformed key");
        };
        let tools = match entry.operation {
            kv::Operation::Delete | kv::Operation::Purge => Ok(Vec::new()),
            kv::Operation::Put => hosted(entry.value),
        };
        match tools {
            Ok(tools) => self.registry.advertise(&pool, tools),
            Err(error) => return tracing::warn!(%pool, error, "passing over an advertisement"),
        }
        // First known, then pulled from: a worker that has its queue may take it that its tools can be called.
        self.publish();
        self.queue_for(&pool).await;
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

fn hosted(value: Bytes) -> Result<Vec<Hosted>, String> {
    let manifests = decode_advertisement(value).map_err(|error| error.to_string())?;
    let hosted = manifests.into_iter().map(|manifest| {
        let schema = Schema::compile(&manifest.input_schema).map_err(|error| format!("{}: {error}", manifest.name))?;
        Ok(Hosted { manifest: Arc::new(manifest), schema })
    });
    hosted.collect()
}
