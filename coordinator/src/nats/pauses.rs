//! The bucket of pauses: a pause stays until an operator resumes it, across restarts.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::consumer::PullConsumer;
use async_nats::jetstream::stream::{ConsumerError, ConsumerErrorKind};
use async_nats::jetstream::{ErrorCode, kv};
use futures::StreamExt as _;
use futures::future::join_all;
use proto::names;
use run::{Partition, PoolId, ToolName};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::Broker;
use super::journal::{ReadError, millis};
use super::setup::{self, SetupError, entries};
use super::signals::Signals;
use crate::fleet::paused::{Pausable, Paused, Word};
use crate::fleet::registry::Registry;

/// The reason shown for a pause whose record cannot be decoded.
const UNREADABLE: &str = "its record in the bucket ty-pauses cannot be read";
/// A queue is paused until a time; this one stands for "until resumed".
const FOR_GOOD: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Pauses {
    store: kv::Store,
    broker: Arc<Broker>,
    pub(crate) current: watch::Receiver<Arc<Paused>>,
}

pub(crate) struct PausesWatch {
    store: kv::Store,
    current: watch::Sender<Arc<Paused>>,
    signals: Signals,
    /// The pools that were last notified of paused tools.
    told: BTreeSet<PoolId>,
}

impl Pauses {
    /// Reads the present pauses, so that a starting coordinator dispatches nothing that is paused.
    pub(crate) async fn load(broker: &Broker) -> Result<(Self, PausesWatch), SetupError> {
        let store = broker.pauses.clone();
        let mut paused = Paused::default();
        entries("the pauses", &store).await?.iter().for_each(|entry| learn(&mut paused, entry));
        let (sender, current) = watch::channel(Arc::new(paused));
        let signals = Signals::new(broker);
        let keeper = PausesWatch { store: store.clone(), current: sender, signals, told: BTreeSet::new() };
        Ok((Self { store, broker: Arc::new(broker.clone()), current }, keeper))
    }

    /// First the record, then the queues: other coordinators let the queues follow the record, so they would undo what
    /// is not recorded yet. If it fails in between, repeating the request completes it, and so does
    /// [`Self::reconcile`]. It also catches up with partitions that do not answer now.
    pub(crate) async fn pause(&self, what: &Pausable, record: &Word) -> Result<(), ReadError> {
        let text = serde_json::to_vec(record).expect("texts and a number are JSON");
        self.store.put(key(what), text.into()).await.map_err(|error| ReadError::new(&error))?;
        match what {
            Pausable::Pool(pool) => self.set_all(pool, true).await,
            Pausable::Tool(_) => Ok(()),
        }
    }

    pub(crate) async fn resume(&self, what: &Pausable) -> Result<(), ReadError> {
        self.store.delete(key(what)).await.map_err(|error| ReadError::new(&error))?;
        match what {
            Pausable::Pool(pool) => self.set_all(pool, false).await,
            Pausable::Tool(_) => Ok(()),
        }
    }

    /// Pauses or resumes the queues of a pool, also in partitions that this coordinator has not found yet.
    async fn set_all(&self, pool: &PoolId, paused: bool) -> Result<(), ReadError> {
        let count = setup::partitions(&self.broker.context).await.unwrap_or(0).max(self.broker.partitions());
        let streams = Partition::first(count).map(names::stream);
        let set = join_all(streams.map(|stream| self.set(stream, pool, paused))).await;
        let (set, failed): (Vec<_>, Vec<_>) = set.into_iter().partition(Result::is_ok);
        match failed.into_iter().next() {
            Some(Err(error)) if set.is_empty() => Err(error),
            Some(Err(error)) => {
                tracing::warn!(%pool, paused, %error, "a partition does not answer, its queue follows later");
                Ok(())
            }
            Some(Ok(())) | None => Ok(()),
        }
    }

    async fn set(&self, stream: &str, pool: &PoolId, paused: bool) -> Result<(), ReadError> {
        let log = self.broker.context.get_stream_no_info(stream).await.map_err(|error| ReadError::new(&error))?;
        let queue = names::pool_consumer(pool);
        let set = if paused {
            let until = i128::from(::nats::now().after(FOR_GOOD).0) * 1_000_000;
            let until = async_nats::datetime::from_nanos(until).map_err(|error| ReadError::new(&error))?;
            log.pause_consumer(&queue, until).await.map(drop)
        } else {
            log.resume_consumer(&queue).await.map(drop)
        };
        match set {
            Ok(()) => Ok(()),
            // A queue that is created later is paused by its creator if the record says so.
            Err(error) if is_missing(&error) => Ok(()),
            Err(error) => Err(ReadError::new(&error)),
        }
    }

    /// Pauses and resumes queues that are not as the records say: a coordinator died behind the record, or a partition
    /// did not answer, was added, or was not known yet.
    pub(crate) async fn reconcile(&self, pools: BTreeSet<PoolId>) {
        let mut silent: BTreeSet<&str> = BTreeSet::new();
        for pool in &pools {
            for stream in self.broker.streams() {
                if silent.contains(stream) {
                    continue;
                }
                let queue = names::pool_consumer(pool);
                let found: Result<PullConsumer, _> = self.broker.context.get_consumer_from_stream(&queue, stream).await;
                let found = match found {
                    Ok(found) => found,
                    Err(error) if is_missing(&error) => continue,
                    Err(_) => {
                        silent.insert(stream);
                        continue;
                    }
                };
                // The record is read afterwards, so a pause or resumption in between counts.
                let wanted = self.current.borrow().stops(pool);
                if found.cached_info().paused == wanted || !self.is_recorded(pool, wanted).await {
                    continue;
                }
                match self.set(stream, pool, wanted).await {
                    Ok(()) => tracing::info!(%pool, stream, paused = wanted, "a queue follows the record of pauses"),
                    Err(error) => tracing::warn!(%pool, stream, %error, "a queue does not follow the record of pauses"),
                }
            }
        }
    }

    /// Whether the bucket has what the watch of it has brought, which may be late.
    async fn is_recorded(&self, pool: &PoolId, paused: bool) -> bool {
        let record = self.store.entry(key(&Pausable::Pool(pool.clone()))).await;
        record.is_ok_and(|record| record.is_some_and(|entry| entry.operation == kv::Operation::Put) == paused)
    }
}

impl PausesWatch {
    pub(crate) async fn keep(mut self, registry: watch::Receiver<Arc<Registry>>, stop: CancellationToken) {
        let mut tick = tokio::time::interval(names::HELD_TOLD);
        // After a hang it publishes once, and not for every missed second, because each message replaces the one
        // before.
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut changes: Option<kv::Watch> = None;
        loop {
            let news = tokio::select! {
                () = stop.cancelled() => return,
                _ = tick.tick() => {
                    // Without the watch, resumed tools must not stay paused here.
                    let is_watching = changes.is_some();
                    if !is_watching {
                        changes = self.store.watch_with_history(">").await.inspect_err(|error| {
                            tracing::warn!(%error, "watching pauses failed, retrying");
                        }).ok();
                    }
                    is_watching
                }
                change = next(&mut changes) => match change {
                    Some(Ok(entry)) => self.learn(&entry),
                    Some(Err(_)) | None => {
                        changes = None;
                        false
                    }
                },
            };
            if news {
                self.tell(&registry).await;
            }
        }
    }

    /// Returns whether the entry is new: a new watch begins with all present entries.
    fn learn(&self, entry: &kv::Entry) -> bool {
        self.current.send_if_modified(|paused| {
            let before = Arc::clone(paused);
            learn(Arc::make_mut(paused), entry);
            *paused != before
        })
    }

    /// Publishes to all pools which tools are paused, so that workers give back their queued calls. Pools that the
    /// catalog does not name for a tool are included, because a pool with an older version may have queued jobs. The
    /// messages are unconfirmed, so they are repeated. The end of all pauses is published once; workers resume by
    /// themselves if that message is lost.
    async fn tell(&mut self, registry: &watch::Receiver<Arc<Registry>>) {
        let tools: Vec<ToolName> = self.current.borrow().tools().map(|(tool, _)| tool.clone()).collect();
        let before = std::mem::take(&mut self.told);
        let pools = if tools.is_empty() { before } else { registry.borrow().pools() };
        for pool in &pools {
            self.signals.held(pool, tools.clone()).await;
        }
        if !tools.is_empty() {
            self.told = pools;
        }
    }
}

async fn next(changes: &mut Option<kv::Watch>) -> Option<Result<kv::Entry, kv::WatcherError>> {
    match changes {
        Some(changes) => changes.next().await,
        None => std::future::pending().await,
    }
}

fn is_missing(error: &ConsumerError) -> bool {
    let ConsumerErrorKind::JetStream(error) = error.kind() else { return false };
    error.error_code() == ErrorCode::CONSUMER_NOT_FOUND
}

fn learn(paused: &mut Paused, entry: &kv::Entry) {
    let Some(what) = what(&entry.key) else {
        return tracing::warn!(key = entry.key, "skipping a pause of something unknown");
    };
    match entry.operation {
        kv::Operation::Delete | kv::Operation::Purge => paused.resume(&what),
        kv::Operation::Put => match serde_json::from_slice::<Word>(&entry.value) {
            Ok(record) => paused.pause(what, record),
            // A record that cannot be decoded counts as a pause, because a faulty write must not resume what an
            // operator stopped.
            Err(error) => {
                tracing::error!(%what, %error, "a pause cannot be read and stays in effect: pause it again, or \
                    resume it");
                let at_ms = millis(entry.created.unix_timestamp_nanos()).0;
                paused.pause(what, Word { by: String::new(), reason: UNREADABLE.to_owned(), at_ms });
            }
        },
    }
}

/// Names of tools have dots, which keys may not have.
fn key(what: &Pausable) -> String {
    match what {
        Pausable::Tool(tool) => {
            let digits: String = tool.as_str().bytes().map(|byte| format!("{byte:02x}")).collect();
            format!("tool.{digits}")
        }
        Pausable::Pool(pool) => format!("pool.{pool}"),
    }
}

/// The pool that the key pauses.
pub(super) fn paused_pool(key: &str) -> Option<PoolId> {
    match what(key)? {
        Pausable::Pool(pool) => Some(pool),
        Pausable::Tool(_) => None,
    }
}

fn what(key: &str) -> Option<Pausable> {
    match key.split_once('.')? {
        ("tool", digits) => {
            let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
            let name = digits.as_bytes().chunks(2).map(byte).collect::<Option<Vec<u8>>>()?;
            Some(Pausable::Tool(String::from_utf8(name).ok()?.parse().ok()?))
        }
        ("pool", pool) => Some(Pausable::Pool(pool.parse().ok()?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_name_what_is_paused() {
        for tool in ["bash", "git.log", ".x..", "a-b_c"] {
            let what_is = Pausable::Tool(tool.parse().unwrap());
            assert_eq!(what(&key(&what_is)), Some(what_is));
        }
        let pool = Pausable::Pool("shell".parse().unwrap());
        assert_eq!(what(&key(&pool)), Some(pool));
        for foreign in ["", "tool", "tool.zz", "tool.ä", "pool.a b", "queue.x"] {
            assert_eq!(what(foreign), None);
        }
    }
}
