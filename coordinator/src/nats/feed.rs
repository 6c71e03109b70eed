//! The entries of shards, in order, each once: the input of the coordinator's folds. If all shards of a partition are
//! ours they are followed together, because one consumer of everything costs the broker less than many of a part.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context as TaskContext, Poll, Wake, Waker};
use std::time::Duration;

use async_nats::Client;
use async_nats::jetstream::Context;
use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::consumer::push::{Ordered, OrderedConfig};
use futures::future::BoxFuture;
use futures::task::AtomicWaker;
use futures::{FutureExt as _, Stream as _};
use proto::names;
use proto::subject;
use run::{Partition, Shard};
use tokio::time::Sleep;

use super::journal::{Decoded, decode, millis};
use super::{Broker, EVERYTHING};
use crate::shards::ShardSet;

/// Entries passed on together: enough to save wake-ups, few enough to stay responsive.
const BATCH_MAX: usize = 256;
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// Feeds whose positions are at most this far apart are merged: at most that many entries arrive twice.
const MERGE_WITHIN: u64 = 1024;

/// The followed shards, with any number of consumers.
pub(crate) struct Feeds {
    client: Client,
    context: Context,
    feeds: Vec<Feed>,
    /// The feed that is polled first next time.
    turn: usize,
    /// Connections made so far.
    connects: u64,
}

struct Feed {
    shards: ShardSet,
    /// Every entry of the shards up to here was passed on.
    position: u64,
    state: State,
    woken: Arc<Woken>,
}

/// Whether a feed may have something. Polling one is not free, and the owner task is woken several times for each call,
/// mostly by something else than a feed.
struct Woken {
    is_woken: AtomicBool,
    /// The task that polls all feeds.
    task: AtomicWaker,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        self.task.wake();
    }
}

enum State {
    Opening(BoxFuture<'static, Result<Ordered, OpenError>>),
    Open(Box<Ordered>),
    Pausing(Pin<Box<Sleep>>),
}

/// A message of the log.
#[derive(Debug)]
pub(crate) struct Fed {
    pub(crate) sequence: u64,
    pub(crate) bytes: u32,
    pub(crate) what: Decoded,
}

/// Entries of some shards, those of each shard in order.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) entries: Vec<Fed>,
    /// Shards with entries among these, and the positions up to which they are complete now.
    pub(crate) complete: Vec<(ShardSet, u64)>,
}

impl Feeds {
    pub(crate) fn new(broker: &Broker) -> Self {
        let (client, context) = (broker.client.clone(), broker.context.clone());
        Self { connects: connects(&client), client, context, feeds: Vec::new(), turn: 0 }
    }

    pub(crate) fn follows(&self, shard: Shard) -> bool {
        self.feeds.iter().any(|feed| feed.shards.contains(shard))
    }

    /// Follows shards of a partition from after `position`, in place of how they were followed before.
    pub(crate) fn follow(&mut self, shards: ShardSet, position: u64) {
        if shards.is_empty() {
            return;
        }
        self.drop_shards(shards);
        self.push(shards, position);
    }

    /// All shards of a partition are one feed; otherwise each shard has its own, because a consumer has one filter.
    /// With several filters in one consumer the broker came to a standstill under the torture command.
    fn push(&mut self, shards: ShardSet, position: u64) {
        let is_whole = shards.iter().next().is_some_and(|first| shards == whole(first.partition()));
        let parts = if is_whole { vec![shards] } else { shards.iter().map(one).collect() };
        for shards in parts {
            let state = self.opening(shards, position);
            self.feeds.push(Feed::new(shards, position, state));
        }
    }

    pub(crate) fn leave(&mut self, shard: Shard) {
        self.drop_shards(one(shard));
    }

    fn drop_shards(&mut self, shards: ShardSet) {
        for feed in std::mem::take(&mut self.feeds) {
            let left = feed.shards.without(shards);
            if left == feed.shards {
                self.feeds.push(feed);
            } else {
                // So that the broker does not send unneeded entries.
                self.push(left, feed.position);
            }
        }
    }

    /// Merges all feeds of a partition into one if their positions are close to each other.
    pub(crate) fn merge(&mut self) {
        let partitions: BTreeSet<Partition> = self.feeds.iter().filter_map(Feed::partition).collect();
        for partition in partitions {
            let parts = || self.feeds.iter().filter(|feed| feed.partition() == Some(partition));
            let (Some(first), Some(last)) =
                (parts().map(|feed| feed.position).min(), parts().map(|feed| feed.position).max())
            else {
                continue;
            };
            let followed = parts().fold(ShardSet::default(), |all, feed| all.union(feed.shards));
            if parts().count() > 1 && followed == whole(partition) && last - first <= MERGE_WITHIN {
                self.feeds.retain(|feed| feed.partition() != Some(partition));
                self.push(followed, first);
            }
        }
    }

    /// Reopens every feed after a reconnect. The server that held the consumers may be gone, and the library would
    /// notice only by missed heartbeats after some 10 s.
    pub(crate) fn look_at_connection(&mut self) {
        let now = connects(&self.client);
        if std::mem::replace(&mut self.connects, now) == now {
            return;
        }
        let mut feeds = std::mem::take(&mut self.feeds);
        feeds.iter_mut().for_each(|feed| feed.begin(self.opening(feed.shards, feed.position)));
        self.feeds = feeds;
    }

    fn opening(&self, shards: ShardSet, position: u64) -> State {
        State::Opening(open(self.client.clone(), self.context.clone(), shards, position).boxed())
    }

    /// Waits for entries and puts them into `batch`. Cancel safe.
    pub(crate) async fn next_batch(&mut self, batch: &mut Batch) {
        std::future::poll_fn(|task| self.poll(task, batch)).await;
    }

    fn poll(&mut self, task: &mut TaskContext<'_>, batch: &mut Batch) -> Poll<()> {
        let count = self.feeds.len();
        for offset in 0..count {
            let index = (self.turn + offset) % count;
            let Self { client, context, feeds, .. } = self;
            let Some(feed) = feeds.get_mut(index) else { continue };
            let before = batch.entries.len();
            if before >= BATCH_MAX {
                self.turn = index;
                break;
            }
            feed.poll_if_woken(task, batch, |shards, position| {
                State::Opening(open(client.clone(), context.clone(), shards, position).boxed())
            });
            if batch.entries.len() > before {
                batch.complete.push((feed.shards, feed.position));
            }
        }
        if batch.entries.is_empty() { Poll::Pending } else { Poll::Ready(()) }
    }
}

impl Feed {
    fn new(shards: ShardSet, position: u64, state: State) -> Self {
        let woken = Arc::new(Woken { is_woken: AtomicBool::new(true), task: AtomicWaker::new() });
        Self { shards, position, state, woken }
    }

    /// The partition of its shards.
    fn partition(&self) -> Option<Partition> {
        self.shards.iter().next().map(Shard::partition)
    }

    /// Goes on in another state.
    fn begin(&mut self, state: State) {
        self.state = state;
        self.woken.is_woken.store(true, Ordering::Release);
    }

    /// Adds entries to the batch if there may be some; the task is woken when there may be more.
    fn poll_if_woken(&mut self, task: &TaskContext<'_>, batch: &mut Batch, reopen: impl Fn(ShardSet, u64) -> State) {
        self.woken.task.register(task.waker());
        if !self.woken.is_woken.swap(false, Ordering::AcqRel) {
            return;
        }
        let waker = Waker::from(Arc::clone(&self.woken));
        self.poll(&mut TaskContext::from_waker(&waker), batch, reopen);
        if batch.entries.len() >= BATCH_MAX {
            self.woken.is_woken.store(true, Ordering::Release);
        }
    }

    fn poll(&mut self, task: &mut TaskContext<'_>, batch: &mut Batch, reopen: impl Fn(ShardSet, u64) -> State) {
        while batch.entries.len() < BATCH_MAX {
            match &mut self.state {
                State::Opening(opening) => match opening.poll_unpin(task) {
                    Poll::Ready(Ok(messages)) => self.state = State::Open(Box::new(messages)),
                    Poll::Ready(Err(error)) => {
                        tracing::warn!(%error, "following the log failed, retrying");
                        self.state = State::Pausing(Box::pin(tokio::time::sleep(RETRY_PAUSE)));
                    }
                    Poll::Pending => return,
                },
                State::Pausing(pause) => match pause.poll_unpin(task) {
                    Poll::Ready(()) => self.state = reopen(self.shards, self.position),
                    Poll::Pending => return,
                },
                State::Open(messages) => match Pin::new(&mut **messages).poll_next(task) {
                    Poll::Ready(Some(Ok(message))) => {
                        let Ok(info) = message.info() else { continue };
                        let (sequence, at) = (info.stream_sequence, millis(info.published.unix_timestamp_nanos()));
                        if sequence <= self.position {
                            // The library recreates a consumer that breaks before its first entry from the log's
                            // beginning, so it is replaced here at the right position.
                            self.state = reopen(self.shards, self.position);
                            continue;
                        }
                        self.position = sequence;
                        let (message, _) = message.split();
                        let bytes = u32::try_from(message.payload.len()).unwrap_or(u32::MAX);
                        let what = decode(&message.subject, message.payload, sequence, at);
                        batch.entries.push(Fed { sequence, bytes, what });
                    }
                    Poll::Ready(Some(Err(error))) => tracing::warn!(%error, "feed error, resubscribing"),
                    Poll::Ready(None) => {
                        tracing::warn!("feed ended, resubscribing");
                        self.state = reopen(self.shards, self.position);
                    }
                    Poll::Pending => return,
                },
            }
        }
    }
}

fn whole(partition: Partition) -> ShardSet {
    partition.shards().collect()
}

fn one(shard: Shard) -> ShardSet {
    [shard].into_iter().collect()
}

fn connects(client: &Client) -> u64 {
    client.statistics().connects.load(Ordering::Relaxed)
}

type OpenError = Box<dyn std::error::Error + Send + Sync>;

async fn open(client: Client, context: Context, shards: ShardSet, position: u64) -> Result<Ordered, OpenError> {
    let mut shards = shards.iter();
    let (first, second) = (shards.next(), shards.next());
    let stream = names::stream(first.map_or(Partition::FIRST, Shard::partition));
    let filter = match (first, second) {
        (Some(shard), None) => subject::of_shard(shard),
        _ => EVERYTHING.to_owned(),
    };
    let config = OrderedConfig {
        deliver_subject: client.new_inbox(),
        name: Some(format!("feed-{}", uuid::Uuid::now_v7().simple())),
        filter_subject: filter,
        deliver_policy: DeliverPolicy::ByStartSequence { start_sequence: position + 1 },
        ..OrderedConfig::default()
    };
    let consumer = context.create_consumer_on_stream(config, stream).await?;
    Ok(consumer.messages().await?)
}
