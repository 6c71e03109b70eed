//! The bucket of pauses: what an operator paused stays so until somebody resumes it, whoever restarts meanwhile.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::stream::{ConsumerError, ConsumerErrorKind};
use async_nats::jetstream::{Context, ErrorCode, kv};
use futures::StreamExt as _;
use proto::names;
use run::{PoolId, ToolName};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::Broker;
use super::journal::{ReadError, millis};
use super::setup::{SetupError, entries};
use super::signals::Signals;
use crate::paused::{Pausable, Paused, Word};
use crate::registry::Registry;

/// Why something is paused if who wrote it down did not say so in a way that we understand.
const UNREADABLE: &str = "its record in the bucket ty-pauses cannot be read";
/// A queue is paused until a time; nobody lives to see this one.
const FOR_GOOD: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Pauses {
    store: kv::Store,
    context: Context,
    pub(crate) current: watch::Receiver<Arc<Paused>>,
}

pub(crate) struct Keeper {
    store: kv::Store,
    current: watch::Sender<Arc<Paused>>,
    signals: Signals,
    /// Who was told last that something is paused.
    told: BTreeSet<PoolId>,
}

impl Pauses {
    /// Reads what is paused already: nothing of it may be handed out by a coordinator that starts.
    pub(crate) async fn load(broker: &Broker) -> Result<(Self, Keeper), SetupError> {
        let store = broker.pauses.clone();
        let mut paused = Paused::default();
        entries("the pauses", &store).await?.iter().for_each(|entry| learn(&mut paused, entry));
        let (sender, current) = watch::channel(Arc::new(paused));
        let signals = Signals::new(broker);
        let keeper = Keeper { store: store.clone(), current: sender, signals, told: BTreeSet::new() };
        Ok((Self { store, context: broker.context.clone(), current }, keeper))
    }

    /// First the queue, then the word: what failed half-way is done whole by whoever asks again.
    pub(crate) async fn pause(&self, what: &Pausable, word: &Word) -> Result<(), ReadError> {
        if let Pausable::Pool(pool) = what {
            let until = i128::from(proto::now().after(FOR_GOOD).0) * 1_000_000;
            let until = async_nats::datetime::from_nanos(until).map_err(|error| ReadError::new(&error))?;
            let log = self.context.get_stream(names::STREAM).await.map_err(|error| ReadError::new(&error))?;
            let paused = log.pause_consumer(&names::pool_consumer(pool), until).await;
            paused.map_err(|error| ReadError::new(&error))?;
        }
        let text = serde_json::to_vec(word).expect("texts and a number are JSON");
        self.store.put(key(what), text.into()).await.map(drop).map_err(|error| ReadError::new(&error))
    }

    pub(crate) async fn resume(&self, what: &Pausable) -> Result<(), ReadError> {
        if let Pausable::Pool(pool) = what {
            let log = self.context.get_stream(names::STREAM).await.map_err(|error| ReadError::new(&error))?;
            match log.resume_consumer(&names::pool_consumer(pool)).await {
                Ok(_) => {}
                // Whoever makes the queue anew does not pause it.
                Err(error) if is_missing(&error) => {}
                Err(error) => return Err(ReadError::new(&error)),
            }
        }
        self.store.delete(key(what)).await.map_err(|error| ReadError::new(&error))
    }
}

impl Keeper {
    pub(crate) async fn keep(mut self, registry: watch::Receiver<Arc<Registry>>, stop: CancellationToken) {
        let mut tick = tokio::time::interval(names::HELD_TOLD);
        // One that stood still says once what it knew, and not for every second: what is told replaces what others told.
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut changes: Option<kv::Watch> = None;
        loop {
            let news = tokio::select! {
                () = stop.cancelled() => return,
                _ = tick.tick() => {
                    // Who does not hear what is resumed must not keep it held.
                    let hears = changes.is_some();
                    if !hears {
                        changes = self.store.watch_with_history(">").await.inspect_err(|error| {
                            tracing::warn!(%error, "cannot watch what is paused, trying again");
                        }).ok();
                    }
                    hears
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

    /// Says whether that is news: a new watch brings all that is known first.
    fn learn(&self, entry: &kv::Entry) -> bool {
        self.current.send_if_modified(|paused| {
            let before = Arc::clone(paused);
            learn(Arc::make_mut(paused), entry);
            *paused != before
        })
    }

    /// Tells all pools which tools are paused: what is in their queues goes back there. Also those that the catalog does not
    /// name for a tool, as one that hosts an older version: its queue may have jobs all the same. Not confirmed, so it is
    /// repeated; that nothing is paused any more is said once, and workers find out by themselves should that be lost.
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
        return tracing::warn!(key = entry.key, "passing over a pause of something unknown");
    };
    match entry.operation {
        kv::Operation::Delete | kv::Operation::Purge => paused.resume(&what),
        kv::Operation::Put => match serde_json::from_slice::<Word>(&entry.value) {
            Ok(word) => paused.pause(what, word),
            // Somebody wrote there, so it is taken for a pause: what an operator stopped must not begin again by a write that
            // nobody understands.
            Err(error) => {
                tracing::error!(%what, %error, "a pause cannot be read and holds: pause it again, or resume it");
                let at_ms = millis(entry.created.unix_timestamp_nanos()).0;
                paused.pause(what, Word { by: String::new(), reason: UNREADABLE.to_owned(), at_ms });
            }
        },
    }
}

/// Names of tools have dots where keys may have none.
fn key(what: &Pausable) -> String {
    match what {
        Pausable::Tool(tool) => {
            let digits: String = tool.as_str().bytes().map(|byte| format!("{byte:02x}")).collect();
            format!("tool.{digits}")
        }
        Pausable::Pool(pool) => format!("pool.{pool}"),
    }
}

/// The pool of which a key says that it is paused.
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
