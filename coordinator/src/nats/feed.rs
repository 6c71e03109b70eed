//! The entries of shards, in order, each once: the input of the coordinator's folds. If all shards of a partition are
//! ours they are followed together, because one consumer of everything costs the broker less than many of a part.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context as TaskContext, Poll, Wake, Waker};
use std::time::Duration;

use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::consumer::push::{Ordered, OrderedConfig};
use async_nats::jetstream::context::RequestErrorKind;
use async_nats::jetstream::response::Response;
use async_nats::jetstream::{Context, ErrorCode};
use async_nats::{Client, connection};
use futures::future::BoxFuture;
use futures::task::AtomicWaker;
use futures::{FutureExt as _, Stream as _};
use proto::names;
use proto::subject;
use run::{Partition, Shard};
use serde::de::IgnoredAny;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep};

use super::journal::{Decoded, ReadError, decode, millis};
use super::repeated::{Pace, patiently};
use super::{Broker, EVERYTHING};
use crate::shards::ShardSet;
use crate::tasks::finished;

/// Entries passed on together: enough to save wake-ups, few enough to stay responsive.
const BATCH_MAX: usize = 256;
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// The errors of the broker that say that a consumer will send nothing.
const GONE: [ErrorCode; 3] =
    [ErrorCode::CONSUMER_NOT_FOUND, ErrorCode::CONSUMER_OFFLINE, ErrorCode::CONSUMER_OFFLINE_REASON];
/// A feed from which nothing has come for so long is asked for.
const SILENCE: Duration = Duration::from_secs(2);
/// How long the server of a consumer may take to answer, at first and at most: it is doubled each time another consumer
/// is made, until an entry comes.
const CONSUMER_PATIENCE: Duration = Duration::from_millis(1500);
const CONSUMER_PATIENCE_LONGEST: Duration = Duration::from_secs(10);
/// Feeds whose positions are at most this far apart are merged: at most that many entries arrive twice.
const MERGE_WITHIN: u64 = 1024;
/// A consumer of all shards of a partition is kept while so many of them are followed, and the entries of the rest are
/// dropped here. Otherwise a takeover, or a watcher that leaves, would replace it by a consumer for each other shard.
const TOGETHER_MIN: usize = 9;

/// The followed shards, with any number of consumers.
pub(crate) struct Feeds {
    client: Client,
    context: Context,
    feeds: Vec<Feed>,
    /// The feed that is polled first next time.
    turn: usize,
    /// Connections made so far.
    connects: u64,
    /// Whether the consumers of silent feeds are still there, by the names of the consumers.
    answers: JoinSet<(String, bool)>,
}

struct Feed {
    /// What is followed. The consumer of more than one shard sends all of the partition.
    shards: ShardSet,
    /// Every entry of the shards up to here was passed on.
    position: u64,
    state: State,
    /// When an entry or an answer about its consumer came last, or the consumer was made.
    heard: Instant,
    /// How long the server of its consumer may take to answer.
    patience: Duration,
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
    Opening(Opening),
    Open(Box<Open>),
    Pausing(Pin<Box<Sleep>>),
}

struct Open {
    messages: Ordered,
    /// The name of the consumer, unless the library has replaced it.
    consumer: String,
    /// It was asked for, and the answer has not come.
    is_asked_for: bool,
    /// Another one, which takes its place unless an entry comes first.
    successor: Option<Opening>,
}

type Opening = BoxFuture<'static, Result<Open, ReadError>>;

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
        let (client, context) = (broker.client.clone(), broker.patient.clone());
        Self { connects: connects(&client), client, context, feeds: Vec::new(), turn: 0, answers: JoinSet::new() }
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
            if left == feed.shards || left.len() >= TOGETHER_MIN {
                self.feeds.push(Feed { shards: left, ..feed });
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

    /// Asks for the consumers of feeds that are silent: a server that hangs or was killed may have them. The library
    /// would notice it after 10 s, by its heartbeats.
    pub(crate) fn look_at_silent(&mut self) {
        if self.client.connection_state() != connection::State::Connected {
            return;
        }
        for feed in &mut self.feeds {
            let State::Open(open) = &mut feed.state else { continue };
            if open.is_asked_for || open.successor.is_some() || feed.heard.elapsed() < SILENCE {
                continue;
            }
            open.is_asked_for = true;
            let request = format!("CONSUMER.INFO.{}.{}", stream_of(feed.shards), open.consumer);
            let (context, consumer, patience) = (self.context.clone(), open.consumer.clone(), feed.patience);
            self.answers.spawn(async move {
                // What is not empty, as `null`, is refused.
                let empty = json!({});
                let asked = context.request::<_, _, Response<IgnoredAny>>(request, &empty);
                let is_there = match tokio::time::timeout(patience, asked).await {
                    Ok(Ok(Response::Ok(_))) => true,
                    Ok(Ok(Response::Err { error })) => !GONE.contains(&error.error_code()),
                    // Nobody would make another one now.
                    Ok(Err(error)) => error.kind() != RequestErrorKind::TimedOut,
                    Err(_) => false,
                };
                (consumer, is_there)
            });
        }
    }

    /// Begins to replace the consumers that are not there any more.
    fn poll_answers(&mut self, task: &mut TaskContext<'_>) {
        while let Poll::Ready(Some(answer)) = self.answers.poll_join_next(task) {
            let (consumer, is_there) = finished(answer);
            for feed in &mut self.feeds {
                let State::Open(open) = &mut feed.state else { continue };
                if open.consumer != consumer {
                    continue;
                }
                open.is_asked_for = false;
                let is_connected = self.client.connection_state() == connection::State::Connected;
                if is_there || !is_connected {
                    feed.heard = Instant::now();
                } else if feed.heard.elapsed() >= SILENCE {
                    // No entry has come meanwhile.
                    tracing::warn!(
                        consumer,
                        "the consumer of a silent feed is gone, or its server hangs: making another"
                    );
                    feed.patience = (feed.patience * 2).min(CONSUMER_PATIENCE_LONGEST);
                    open.successor = Some(opening(&self.client, &self.context, (feed.shards, feed.position)));
                    feed.woken.is_woken.store(true, Ordering::Release);
                    task.waker().wake_by_ref();
                }
            }
        }
    }

    fn opening(&self, shards: ShardSet, position: u64) -> State {
        State::Opening(opening(&self.client, &self.context, (shards, position)))
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
                State::Opening(opening(client, context, (shards, position)))
            });
            if batch.entries.len() > before {
                (feed.heard, feed.patience) = (Instant::now(), CONSUMER_PATIENCE);
                batch.complete.push((feed.shards, feed.position));
            }
        }
        self.poll_answers(task);
        if batch.entries.is_empty() { Poll::Pending } else { Poll::Ready(()) }
    }
}

impl Feed {
    fn new(shards: ShardSet, position: u64, state: State) -> Self {
        let woken = Arc::new(Woken { is_woken: AtomicBool::new(true), task: AtomicWaker::new() });
        Self { shards, position, state, heard: Instant::now(), patience: CONSUMER_PATIENCE, woken }
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
                    Poll::Ready(Ok(open)) => (self.state, self.heard) = (State::Open(Box::new(open)), Instant::now()),
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
                State::Open(open) => match Pin::new(&mut open.messages).poll_next(task) {
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
                        open.successor = None;
                        let (message, _) = message.split();
                        let is_dropped = |shard| !self.shards.contains(shard);
                        if is_partial(self.shards) && subject::shard_of(&message.subject).is_some_and(is_dropped) {
                            (self.heard, self.patience) = (Instant::now(), CONSUMER_PATIENCE);
                            continue;
                        }
                        let bytes = u32::try_from(message.payload.len()).unwrap_or(u32::MAX);
                        let what = decode(&message.subject, message.payload, sequence, at);
                        batch.entries.push(Fed { sequence, bytes, what });
                    }
                    Poll::Ready(Some(Err(error))) => {
                        tracing::warn!(%error, "feed error, resubscribing");
                        self.state = reopen(self.shards, self.position);
                    }
                    Poll::Ready(None) => {
                        tracing::warn!("feed ended, resubscribing");
                        self.state = reopen(self.shards, self.position);
                    }
                    Poll::Pending => match open.successor.as_mut().map(|successor| successor.poll_unpin(task)) {
                        Some(Poll::Ready(Ok(open))) => {
                            (self.state, self.heard) = (State::Open(Box::new(open)), Instant::now());
                        }
                        Some(Poll::Ready(Err(error))) => {
                            tracing::warn!(%error, "making another consumer of a silent feed failed, the feed is kept");
                            (open.successor, self.heard) = (None, Instant::now());
                        }
                        Some(Poll::Pending) | None => return,
                    },
                },
            }
        }
    }
}

fn whole(partition: Partition) -> ShardSet {
    partition.shards().collect()
}

/// Whether the consumer sends entries of other shards of the partition too.
fn is_partial(shards: ShardSet) -> bool {
    (2..usize::from(Partition::SHARDS)).contains(&shards.len())
}

fn one(shard: Shard) -> ShardSet {
    [shard].into_iter().collect()
}

fn connects(client: &Client) -> u64 {
    client.statistics().connects.load(Ordering::Relaxed)
}

fn stream_of(shards: ShardSet) -> &'static str {
    names::stream(shards.iter().next().map_or(Partition::FIRST, Shard::partition))
}

/// Begins to follow shards of a partition after a position.
fn opening(client: &Client, context: &Context, (shards, position): (ShardSet, u64)) -> Opening {
    let (client, context) = (client.clone(), context.clone());
    let mut all = shards.iter();
    let filter = match (all.next(), all.next()) {
        (Some(shard), None) => subject::of_shard(shard),
        _ => EVERYTHING.to_owned(),
    };
    // The server that is to have the consumer may hang, and another copy may go to another one. A consumer that nobody
    // follows is removed after a while.
    let open = move || {
        let (client, context, filter_subject) = (client.clone(), context.clone(), filter.clone());
        async move {
            let consumer = format!("feed-{}", uuid::Uuid::now_v7().simple());
            let config = OrderedConfig {
                deliver_subject: client.new_inbox(),
                name: Some(consumer.clone()),
                filter_subject,
                deliver_policy: DeliverPolicy::ByStartSequence { start_sequence: position + 1 },
                ..OrderedConfig::default()
            };
            let made = context.create_consumer_on_stream(config, stream_of(shards)).await;
            let messages = made.map_err(|error| ReadError::new(&error))?.messages().await;
            let messages = messages.map_err(|error| ReadError::new(&error))?;
            Ok(Open { messages, consumer, is_asked_for: false, successor: None })
        }
    };
    async move { patiently("retrying to follow the log", stream_of(shards), Pace::Later, open).await }.boxed()
}

#[cfg(test)]
mod tests {
    use futures::TryStreamExt as _;
    use nats::Credentials;
    use run::{Event, RunId};

    use super::super::journal::{Journal, NOTHING};
    use super::*;
    use crate::nats::setup::LogOptions;

    /// The library notices after 10 s that a consumer is gone.
    const SOON: Duration = Duration::from_secs(8);

    /// The names of the log's consumers.
    async fn consumers(broker: &Broker) -> Vec<String> {
        let stream = broker.context.get_stream(names::STREAM).await.expect("the log is there");
        stream.consumer_names().try_collect().await.expect("the broker is there")
    }

    /// Follows the log for a while, in which nothing is stored.
    async fn wait(feeds: &mut Feeds, span: Duration) {
        assert!(tokio::time::timeout(span, next(feeds)).await.is_err(), "nothing was stored");
    }

    /// A log with one entry of a run, which has come.
    struct Followed {
        broker: Broker,
        journal: Journal,
        feeds: Feeds,
        run: RunId,
        last: u64,
        _server: local::Broker,
    }

    impl Followed {
        async fn begin() -> Self {
            let server = local::Broker::start(local::BrokerOptions::default(), |_| {}).await.expect("a broker starts");
            let log = LogOptions { bytes_max: 4 << 20, ..LogOptions::default() };
            let broker = Broker::connect(&server.url(), &Credentials::default(), &log).await.expect("it can be set up");
            let (journal, mut feeds) = (Journal::new(&broker, Partition::FIRST), Feeds::new(&broker));
            feeds.follow(whole(Partition::FIRST), NOTHING);
            let run = RunId::new(Shard(0), uuid::Uuid::now_v7());
            let mut begun = Self { broker, journal, feeds, run, last: NOTHING, _server: server };
            begun.append().await;
            assert_eq!(next(&mut begun.feeds).await, begun.last);
            begun
        }

        async fn append(&mut self) {
            let appended = self.journal.append(self.run, &[Event::RunClosed], None, self.last).await;
            self.last = appended.expect("it is stored");
        }

        /// Stores the first entry of a run in another shard.
        async fn append_in(&self, shard: u8) -> u64 {
            let run = RunId::new(Shard(shard), uuid::Uuid::now_v7());
            self.journal.append(run, &[Event::RunClosed], None, NOTHING).await.expect("it is stored")
        }
    }

    #[tokio::test]
    async fn a_feed_whose_consumer_was_lost_goes_on_soon_and_a_silent_one_is_kept() {
        let mut log = Box::pin(Followed::begin()).await;
        let before = consumers(&log.broker).await;
        assert_eq!(before.len(), 1, "{before:?}");
        // It is asked for twice or more.
        wait(&mut log.feeds, 3 * SILENCE).await;
        assert_eq!(consumers(&log.broker).await, before);

        let stream = log.broker.context.get_stream(names::STREAM).await.expect("the log is there");
        stream.delete_consumer(&before[0]).await.expect("it is there");
        log.append().await;
        let began = Instant::now();
        assert_eq!(next(&mut log.feeds).await, log.last);
        assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    }

    #[tokio::test]
    async fn a_consumer_of_a_partition_is_kept_while_most_shards_are_followed_and_the_rest_does_not_come() {
        let mut log = Box::pin(Followed::begin()).await;
        let before = consumers(&log.broker).await;
        log.feeds.leave(Shard(3));
        let left = log.append_in(3).await;
        log.append().await;
        assert_eq!(next(&mut log.feeds).await, log.last);
        assert_eq!(consumers(&log.broker).await, before);
        // It is followed again from before that, and then all together.
        log.feeds.follow(one(Shard(3)), left - 1);
        assert_eq!(next(&mut log.feeds).await, left);
        log.feeds.merge();
        assert_eq!(log.feeds.feeds.len(), 1);
        let last = log.append_in(3).await;
        let mut batch = Batch::default();
        while batch.entries.last().is_none_or(|fed| fed.sequence < last) {
            log.feeds.next_batch(&mut batch).await;
        }
        // So few of them get a consumer each.
        for shard in 0..8 {
            log.feeds.leave(Shard(shard));
        }
        assert_eq!(log.feeds.feeds.len(), 8);
        let last = log.append_in(9).await;
        assert_eq!(next(&mut log.feeds).await, last);
    }

    #[tokio::test]
    async fn a_feed_whose_server_does_not_answer_in_time_gets_another_consumer_and_each_entry_once() {
        let mut log = Box::pin(Followed::begin()).await;
        // No server is so fast.
        log.feeds.feeds[0].patience = Duration::ZERO;
        while consumers(&log.broker).await.len() < 2 {
            wait(&mut log.feeds, Duration::from_millis(100)).await;
        }
        assert_eq!(log.feeds.feeds[0].position, log.last);
        for _ in 0..3 {
            log.append().await;
            assert_eq!(next(&mut log.feeds).await, log.last);
        }
    }

    /// The position of the next entry, while silent feeds are looked at often.
    async fn next(feeds: &mut Feeds) -> u64 {
        let mut batch = Batch::default();
        while batch.entries.is_empty() {
            feeds.look_at_silent();
            // Else silent feeds are looked at again.
            drop(tokio::time::timeout(Duration::from_millis(100), feeds.next_batch(&mut batch)).await);
        }
        assert_eq!(batch.entries.len(), 1, "{batch:?}");
        batch.entries[0].sequence
    }
}
