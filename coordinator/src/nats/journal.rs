//! Appends to a partition of the log and reads it: the only writer of coordinators' events, with compare-and-set where
//! a command needs it. [`Journals`] has those of all partitions.

mod absent;
mod append;
mod carried;
mod erase;
mod gone;
mod many;
mod pages;
mod partitions;
mod past;
mod room;
mod shard;
mod tail;

pub(crate) use self::carried::{CarryError, Fence, Order};
pub(crate) use self::pages::RunPages;
use self::pages::all_of;
use self::pages::{Batch, Stored};
use self::partitions::Sizes;
pub(crate) use self::partitions::{Found, Journals};
pub(crate) use self::past::Past;
pub(crate) use self::room::{Bound, ROOM_PERCENT};
pub(crate) use self::shard::{OfRun, OfShard, Unfinished, Wanted, Whole};
pub(crate) use self::tail::LogNow;

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::stream::{Config, Info, PeerInfo};
use bytes::Bytes;
use futures::StreamExt as _;
use history::History;
use proto::convert::history::HistoryMessage;
use proto::convert::{InvalidMessage, log};
use proto::names;
use proto::subject::{self, Subject, SubjectKind};
use run::{Entry, Event, Partition, RunId, Shard, Timestamp};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use ::nats::append::PAUSE;

use self::append::UNHEARD_MAX;
use self::many::MANY_MAX;
use self::room::{Amount, Room};
use super::repeated::{Pace, READ_PATIENCE, Turns, last_message, patiently};
use super::setup::LOG_BYTES_PER_MESSAGE;
use super::shared::Shared;
use super::{Broker, EVERYTHING};
use owner::Known;

/// The expected sequence on a subject without entries.
pub(crate) const NOTHING: u64 = 0;
/// The pause before a replica that lags behind is read again.
const LAG_PAUSE: Duration = Duration::from_millis(20);
/// How long the log's leader may lack a run that another server has. An erased run disappears from all of them within
/// milliseconds.
const AGREE_PATIENCE: Duration = Duration::from_secs(2);
/// Entries and bytes of one page.
pub(crate) const PAGE_ENTRIES: usize = 256;
pub(crate) const PAGE_BYTES: usize = 1024 * 1024;
/// A read of so many entries or fewer is sent again soon if it is not answered.
const FEW_ENTRIES: usize = 32;
/// Bytes of a page for a watcher: there may be thousands of watchers, and each keeps a page until its client has read
/// it.
pub(crate) const WATCHED_PAGE_BYTES: usize = 64 * 1024;
/// Statuses of a batched read.
const END_OF_BATCH: u16 = 204;
const NOTHING_THERE: u16 = 404;
/// Roughly the bytes that the broker stores with each entry beside its payload: subject, headers and bookkeeping.
const ENTRY_BYTES: u64 = 128;
/// A server from which the log's leader received nothing for this long is considered lost.
pub(super) const SILENT: Duration = Duration::from_secs(10);

/// A cheap handle, because every reader has one and a client of the broker consists of a dozen shared parts.
#[derive(Debug, Clone)]
pub(crate) struct Journal {
    parts: Arc<Parts>,
    /// Whether reads wait for their turn.
    takes_turns: bool,
    /// Runs that have left the log.
    history: Option<History>,
}

#[derive(Debug)]
pub(crate) struct Parts {
    broker: Broker,
    partition: Partition,
    /// The name of the partition's stream.
    stream: &'static str,
    room: Room,
    /// Limits the entries that were sent without a requested answer and are not confirmed by the feed yet.
    unheard: Semaphore,
    turns: Turns,
    /// Limits how many shards with many runs are read at a time.
    many: Semaphore,
    /// Older entries have left the log. In milliseconds since 1970.
    oldest: AtomicU64,
    /// The first entry of the log, or an earlier one.
    first: AtomicU64,
    /// The last entry of the log when its size was read.
    tip: AtomicU64,
    /// The entries before this one would leave the log if nothing needed them: owners carry runs that do.
    leaves_before: AtomicU64,
    /// When the log last had a leader, and when it was created; in milliseconds since 1970, 0 before it is known.
    led_at: AtomicU64,
    created_at: AtomicU64,
    sizes: Mutex<Option<Sizes>>,
    /// Until when the feed counts as late, in milliseconds since 1970.
    behind_until: AtomicU64,
    last_mark: Shared<u64>,
}

impl Deref for Journal {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.parts
    }
}

#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum AppendError {
    /// Another writer appended first: read again, then decide again.
    #[error("another writer appended first")]
    Conflict,
    /// `is_certain`: the only copy was rejected. Otherwise an earlier copy was not confirmed, and was not found in the
    /// log.
    #[error("the log is full: new work is refused until entries have aged out")]
    Full { is_certain: bool },
    #[error("the events do not fit one message of the broker")]
    TooLarge,
    /// Nothing was sent, so nothing can be stored.
    #[error("the broker does not answer: {0}")]
    Unavailable(String),
    /// Sent and not confirmed. It is in the log by now or will never count, because every copy is void from now on.
    #[error("the broker did not confirm it: {reason}")]
    Unconfirmed { run: RunId, reason: String },
}

#[derive(Debug, Clone, thiserror::Error)]
#[error("the log cannot be read: {0}")]
pub struct ReadError(String);

impl ReadError {
    /// A server has an entry that the log's leader lacks.
    pub(crate) fn disagreeing() -> Self {
        Self("its leader lacks a run that another server of the broker has".to_owned())
    }

    pub(crate) fn new(reason: &dyn std::fmt::Display) -> Self {
        Self(reason.to_string())
    }
}

/// A page of a run's entries, and whether there may be more after it.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub(crate) entries: VecDeque<Arc<Entry>>,
    /// The sequence up to which the page covers the filter, including entries that could not be decoded.
    pub(crate) through: u64,
    pub(crate) last: bool,
    /// Subject place and sequence of each entry that could not be decoded.
    pub(crate) unread: Vec<(SubjectKind, u64)>,
    /// Bytes that its entries count for their tenant.
    pub(crate) bytes: u64,
    /// Entries after the last page have left the log before they were read.
    pub(crate) is_cut: bool,
    /// The last entry of the run that is carried beside the log, if its beginning was read from there; 0 otherwise.
    pub(crate) carried: u64,
    /// The entries up to this one were carried long before that.
    pub(crate) settled: u64,
    /// Its messages, if they were asked for.
    pub(crate) messages: Vec<HistoryMessage>,
}

impl Page {
    fn sequences(&self) -> impl Iterator<Item = u64> {
        let unread = self.unread.iter().map(|(_, sequence)| *sequence);
        self.entries.iter().map(|entry| entry.sequence).chain(unread)
    }

    pub(crate) fn apply_to(self, known: &mut Known) {
        self.apply_through(u64::MAX, known);
    }

    /// Applies its entries up to `last`.
    fn apply_through(self, last: u64, known: &mut Known) {
        known.carried = known.carried.max(self.carried);
        known.settled = known.settled.max(self.settled);
        for entry in self.entries.iter().filter(|entry| entry.sequence <= last) {
            known.apply(entry, &mut Vec::new());
        }
        for (place, sequence) in self.unread.into_iter().filter(|(_, sequence)| *sequence <= last) {
            known.pass_over(place, sequence);
        }
    }
}

/// A message of the log, as far as it could be decoded.
#[derive(Debug, Clone)]
pub(crate) enum Decoded {
    Entry(RunId, Arc<Entry>),
    Unread(Subject),
    /// It belongs to no run: a barrier, or a message whose subject is not one of the log.
    Stray,
}

/// Whether the log holds a run's opening.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opened {
    No,
    Yes,
    /// It was stored too late: the run expired as it began.
    TooLate,
}

impl Journal {
    pub(crate) fn new(broker: &Broker, partition: Partition) -> Self {
        let (unheard, turns, many) = (Semaphore::new(UNHEARD_MAX), Turns::default(), Semaphore::new(MANY_MAX));
        let behind_until = AtomicU64::new(0);
        let parts = Parts {
            broker: broker.clone(),
            partition,
            stream: names::stream(partition),
            room: Room::default(),
            unheard,
            turns,
            many,
            oldest: AtomicU64::new(0),
            first: AtomicU64::new(0),
            tip: AtomicU64::new(0),
            leaves_before: AtomicU64::new(0),
            led_at: AtomicU64::new(::nats::now().0),
            created_at: AtomicU64::new(0),
            sizes: Mutex::default(),
            behind_until,
            last_mark: Shared::default(),
        };
        Self { parts: Arc::new(parts), takes_turns: false, history: None }
    }

    /// The same log, read for a watcher: each read waits for its turn.
    pub(crate) fn in_turns(self) -> Self {
        Self { takes_turns: true, ..self }
    }

    /// Reads, again and again for a while if that fails or the broker does not answer soon. Watchers' reads take turns.
    async fn patiently<T, F>(&self, again: &str, pace: Pace<'_>, read: impl Fn() -> F) -> Result<T, ReadError>
    where
        F: Future<Output = Result<T, ReadError>>,
    {
        let pace = if self.takes_turns { Pace::InTurns(&self.turns) } else { pace };
        patiently(again, self.stream, pace, read).await
    }

    /// Whether the log holds a run whose opening is an entry of its own. Reads only one subject, from the log's leader:
    /// without an entry, a search for all subjects of the run would go through the whole log.
    pub(crate) async fn opened(&self, run: RunId) -> Result<Opened, ReadError> {
        let subject = Subject { run, place: SubjectKind::Run }.to_string();
        let Some(last) = self.last_on(&subject).await? else {
            return Ok(if self.carried_to(run).await? > 0 { Opened::Yes } else { Opened::No });
        };
        let at = millis(last.time.unix_timestamp_nanos());
        // A run that was opened too late accepts no command, so its opening stays the last entry.
        let is_void = match decode(&subject, last.payload, last.sequence, at) {
            Decoded::Entry(_, entry) => entry.is_late() && matches!(entry.events.first(), Some(Event::RunOpened(_))),
            Decoded::Unread(_) | Decoded::Stray => false,
        };
        Ok(if is_void { Opened::TooLate } else { Opened::Yes })
    }

    /// The sequence of a run's last entry; 0 if there is none. Read from the log's leader, so no replica's lag matters.
    pub(crate) async fn last_of_run(&self, run: RunId) -> Result<u64, ReadError> {
        match self.last_on(&subject::of_run(run)).await? {
            Some(last) => Ok(last.sequence),
            None => self.carried_to(run).await,
        }
    }

    /// The sequence of the last entry on a subject, as a call's last output; 0 if it has none. Read from the log's
    /// leader, so no replica's lag matters.
    pub(crate) async fn last_of_subject(&self, subject: &Subject) -> Result<u64, ReadError> {
        Ok(self.last_on(&subject.to_string()).await?.map_or(0, |last| last.sequence))
    }

    async fn last_on(&self, subject: &str) -> Result<Option<StreamMessage>, ReadError> {
        // Boxed, because it is large and would be part of every caller's future.
        Box::pin(self.patiently("retrying to ask the log's leader", Pace::Soon, || self.last_on_once(subject))).await
    }

    async fn last_on_once(&self, subject: &str) -> Result<Option<StreamMessage>, ReadError> {
        let stream = self.broker.patient.get_stream_no_info(self.stream).await;
        last_message(&stream.map_err(|error| ReadError::new(&error))?, subject).await
    }

    /// Appends a barrier to the end of a shard, and returns its position. Every entry of the shard that was stored
    /// before this request precedes it. A barrier is stored by a majority of the broker's nodes. So it is never wrong,
    /// unlike a leader that was replaced without knowing it.
    pub(crate) async fn mark(&self, shard: Shard, pace: Pace<'_>) -> Result<u64, ReadError> {
        self.patiently("retrying to store a barrier in the log", pace, || self.mark_once(shard)).await
    }

    /// As [`Self::mark`], and is not sent again.
    pub(crate) async fn mark_once(&self, shard: Shard) -> Result<u64, ReadError> {
        // The library would buffer each copy, and send it later.
        if !self.is_connected() {
            return Err(ReadError::new(&"there is no connection to the broker"));
        }
        let sent = self.broker.patient.publish(subject::mark(shard), Bytes::new()).await;
        let stored = sent.map_err(|error| ReadError::new(&error))?.await;
        Ok(stored.map_err(|error| ReadError::new(&error))?.sequence)
    }

    /// The sequence of a shard's first message after `after`; there is one at `mark`.
    pub(crate) async fn first_of_shard(&self, shard: Shard, after: u64, mark: u64) -> Result<u64, ReadError> {
        let page = self.page_towards(&subject::of_shard(shard), after, mark, 1).await?;
        Ok(page.through)
    }

    /// A run as the log's leader has it. It may not be the newest state, but a decision based on it is appended only if
    /// it is.
    pub(crate) async fn known(&self, id: RunId) -> Result<Known, ReadError> {
        self.known_with_bytes(id).await.map(|(known, _)| known)
    }

    /// A run as the log's leader has it, and the bytes that its entries count for their tenant.
    pub(crate) async fn known_with_bytes(&self, id: RunId) -> Result<(Known, u64), ReadError> {
        let give_up = Instant::now() + AGREE_PATIENCE;
        loop {
            let known = all_of(RunPages::new(self.clone(), id, PAGE_BYTES)).await?;
            if known.0.last > 0 || self.is_absent(id).await? {
                return Ok(known);
            }
            if Instant::now() >= give_up {
                return Err(ReadError::disagreeing());
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// A run with everything that was stored before this request: for results that would be wrong if an entry were
    /// missing.
    ///
    /// # Errors
    /// If no barrier can be stored, or no server that has it answers.
    pub(crate) async fn known_for_certain(&self, id: RunId) -> Result<Known, ReadError> {
        let mark = self.mark_behind(id).await?;
        Ok(all_of(RunPages::new(self.clone(), id, PAGE_BYTES).behind(mark)).await?.0)
    }

    /// The state of a run at its entry `last`.
    pub(crate) async fn known_through(&self, id: RunId, last: u64) -> Result<Known, ReadError> {
        let (mut known, mut pages) = (Known::new(id), RunPages::new(self.clone(), id, PAGE_BYTES));
        while pages.through() < last {
            let page = pages.next(last).await?;
            if page.is_cut {
                return Err(ReadError(format!("entries of run {id} left the log while they were read")));
            }
            page.apply_through(last, &mut known);
        }
        Ok(known)
    }

    /// A non-empty page of at most `entries_max` entries. A lagging replica may serve an empty page, and `needed`, an
    /// entry that is known to exist, shows that there is more.
    pub(crate) async fn page_towards(
        &self,
        filter: &str,
        after: u64,
        needed: u64,
        entries_max: usize,
    ) -> Result<Page, ReadError> {
        let give_up = Instant::now() + READ_PATIENCE;
        loop {
            let page = self.page(filter, after, entries_max).await?;
            if page.through > after || after >= needed {
                return Ok(page);
            }
            if Instant::now() >= give_up {
                return Err(ReadError(format!("no replica has got as far as entry {needed}")));
            }
            tokio::time::sleep(LAG_PAUSE).await;
        }
    }

    /// Entries on `filter` with a sequence above `after`: one page, read in one request, which is retried for a while
    /// if it fails.
    pub(crate) async fn page(&self, filter: &str, after: u64, entries_max: usize) -> Result<Page, ReadError> {
        self.read(filter, after, (entries_max, WATCHED_PAGE_BYTES)).await.map(|batch| batch.page(after))
    }

    /// Messages of the log, from any replica.
    async fn read(&self, filter: &str, after: u64, bounds: (usize, usize)) -> Result<Batch, ReadError> {
        self.read_of((self.stream, filter), after, bounds).await
    }

    /// Messages of any stream.
    async fn read_of(&self, place: (&str, &str), after: u64, bounds: (usize, usize)) -> Result<Batch, ReadError> {
        let (entries_max, _) = bounds;
        let pace = if entries_max <= FEW_ENTRIES { Pace::Soon } else { Pace::Later };
        let read = || self.read_once(place, after, bounds);
        self.patiently("retrying to read a page of a stream", pace, read).await
    }

    async fn read_once(
        &self,
        (stream, filter): (&str, &str),
        after: u64,
        (entries_max, bytes_max): (usize, usize),
    ) -> Result<Batch, ReadError> {
        let request = serde_json::json!({
            "seq": after + 1, "next_by_subj": filter, "batch": entries_max, "max_bytes": bytes_max,
        });
        let inbox = self.broker.client.new_inbox();
        let unavailable = |error: &dyn std::fmt::Display| ReadError(error.to_string());
        let mut replies = self.broker.client.subscribe(inbox.clone()).await.map_err(|error| unavailable(&error))?;
        let subject = format!("$JS.API.DIRECT.GET.{stream}");
        let published = self.broker.client.publish_with_reply(subject, inbox, request.to_string().into()).await;
        published.map_err(|error| unavailable(&error))?;
        let mut batch = Batch { messages: Vec::new(), last: false };
        loop {
            let before = batch.messages.last().map_or(0, |message| message.sequence);
            let reply = tokio::time::timeout(READ_PATIENCE, replies.next()).await;
            let reply = reply.map_err(|_| ReadError("the broker does not answer".to_owned()))?;
            let Some(reply) = reply else { return Err(ReadError("the connection was closed".to_owned())) };
            match reply.status.map(|status| status.as_u16()) {
                Some(NOTHING_THERE) => {
                    batch.last = true;
                    return Ok(batch);
                }
                // A header has the number of messages that would still match the filter.
                Some(END_OF_BATCH) => {
                    follows(reply.headers.as_ref(), before)?;
                    let pending = reply.headers.as_ref().and_then(|headers| headers.get("Nats-Num-Pending"));
                    batch.last = pending.is_none_or(|pending| pending.as_str() == "0");
                    return Ok(batch);
                }
                Some(status) if status >= 300 => {
                    return Err(ReadError(format!("{status} {}", reply.description.unwrap_or_default())));
                }
                _ => {}
            }
            follows(reply.headers.as_ref(), before)?;
            let message = StreamMessage::try_from(reply).map_err(|error| unavailable(&error))?;
            let at = millis(message.time.unix_timestamp_nanos());
            let bytes = counted_bytes(u32::try_from(message.payload.len()).unwrap_or(u32::MAX));
            let (sequence, subject, payload) = (message.sequence, message.subject.to_string(), message.payload);
            batch.messages.push(Stored { sequence, subject, bytes, at, payload });
        }
    }
}

/// Bytes of an entry in the log.
pub(crate) fn stored_bytes(payload: u32) -> u64 {
    u64::from(payload) + ENTRY_BYTES
}

/// Bytes that an entry counts for its tenant: its bytes in the log, or its part of the messages that the log may hold
/// if that is more. So a tenant that may use half of the log uses at most half of either.
pub(crate) fn counted_bytes(payload: u32) -> u64 {
    stored_bytes(payload).max(LOG_BYTES_PER_MESSAGE.unsigned_abs())
}

/// Each message of a page names the one before it, so a lost message is detected.
fn follows(headers: Option<&HeaderMap>, before: u64) -> Result<(), ReadError> {
    let named = headers.and_then(|headers| headers.get("Nats-Last-Sequence"));
    match named.and_then(|named| named.as_str().parse::<u64>().ok()) {
        Some(named) if named != before => Err(ReadError(format!("entry {named} was lost on its way"))),
        Some(_) | None => Ok(()),
    }
}

/// Broker time in milliseconds; the same for every way of reading an entry.
pub(super) fn millis(nanos: i128) -> Timestamp {
    Timestamp(u64::try_from(nanos / 1_000_000).unwrap_or(0))
}

/// Decodes a message of the log. Messages that cannot be decoded are logged and skipped, the same way by every reader.
pub(super) fn decode(subject: &str, payload: Bytes, sequence: u64, at: Timestamp) -> Decoded {
    if subject::is_mark(subject) {
        return Decoded::Stray;
    }
    let warn = |error: InvalidMessage| {
        tracing::warn!(subject, sequence, %error, "skipping an entry of the log that \
        cannot be decoded")
    };
    let parsed = match subject.parse::<Subject>() {
        Ok(parsed) => parsed,
        Err(error) => {
            warn(error.into());
            return Decoded::Stray;
        }
    };
    match log::decode(&parsed, payload, sequence, at) {
        Ok(entry) => Decoded::Entry(parsed.run, Arc::new(entry)),
        Err(error) => {
            warn(error);
            Decoded::Unread(parsed)
        }
    }
}

/// The bounds of the log. A log that an older release made has no bound of messages.
fn limits(config: &Config) -> Amount {
    let limit = |found: i64| u64::try_from(found).ok().filter(|limit| *limit > 0).unwrap_or(u64::MAX);
    Amount { bytes: limit(config.max_bytes), messages: limit(config.max_messages) }
}

/// Copies of the log that have everything that is stored: the leader's own and those that follow it.
pub(super) fn current_replicas(info: &Info) -> usize {
    let Some(cluster) = &info.cluster else { return 1 };
    usize::from(cluster.leader.is_some()) + cluster.replicas.iter().filter(|peer| has_everything(peer)).count()
}

/// Whether a copy has everything that its leader has stored.
pub(super) fn has_everything(peer: &PeerInfo) -> bool {
    peer.current && !peer.offline && peer.active < SILENT
}

#[cfg(test)]
pub(crate) mod tests;
