//! Appends to the log and reads it: the only writer of coordinators' events, with compare-and-set where a command needs it.

mod erase;
mod room;

pub(super) use self::room::ROOM_PERCENT;

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use async_nats::header::{self, HeaderMap, HeaderValue};
use async_nats::jetstream;
use async_nats::jetstream::context::PublishError;
use async_nats::jetstream::message::{PublishMessage, StreamMessage};
use bytes::Bytes;
use futures::StreamExt as _;
use proto::convert::{InvalidMessage, log};
use proto::names;
use proto::nats::unstored::Unstored;
use proto::subject::{self, Place, Subject};
use run::{CallSpec, Entry, Event, RunId, Shard, Timestamp};
use telemetry::trace::Moment;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::room::Room;
use super::Broker;
use crate::known::Known;
use crate::metrics::COUNTS;
use crate::trace;

/// How long an append is tried for: an election of the broker's leader takes 4-9 s.
const APPEND_PATIENCE: Duration = Duration::from_secs(15);
const APPEND_PAUSE: Duration = Duration::from_millis(200);
const APPEND_PAUSE_LONGEST: Duration = Duration::from_secs(1);
/// How long the feed may take to bring what was appended without asking for an answer; then an answer is asked for. Rather too
/// long than too short: where the feed lags behind, more appends would not help it.
const HEARD_PATIENCE: Duration = Duration::from_secs(1);
/// Entries sent without asking for an answer that are waited for, and bytes of one of them at most. The broker drops in
/// silence what it cannot take in; that is more than all of these together (100,000 messages, 128 MiB).
const UNHEARD_MAX: usize = 4096;
const UNHEARD_BYTES_MAX: usize = 16 * 1024;
/// For how many milliseconds the feed counts as behind when it did not bring something in time.
const BEHIND_MS: u64 = 5000;
/// The place in front of everything on a subject on which nothing stands yet.
pub(crate) const NOTHING: u64 = 0;
/// How long a page of the log may take to come.
const READ_PATIENCE: Duration = Duration::from_secs(10);
/// The pause before a replica that lags behind is read again.
const LAG_PAUSE: Duration = Duration::from_millis(20);
const REPLY_PATIENCE: Duration = Duration::from_secs(3);
/// Entries and bytes of one page.
pub(crate) const PAGE_ENTRIES: usize = 256;
const PAGE_BYTES: usize = 1024 * 1024;
/// Statuses of a batched read.
const END_OF_BATCH: u16 = 204;
const NOTHING_THERE: u16 = 404;
/// How long a look at the log may take before the next one.
const ROOM_PATIENCE: Duration = Duration::from_secs(2);
/// After how long without a look the log counts as out of reach: not yet when an answer or two are late.
const OUT_OF_REACH: Duration = Duration::from_secs(5);
/// How many entries on its subject may have come between an append and the question whether it was stored.
const LATER_MAX: usize = 64;

/// A cheap handle: every reader has one, and a client of the broker is a dozen shared parts.
#[derive(Debug, Clone)]
pub(crate) struct Journal(Arc<Parts>);

#[derive(Debug)]
pub(crate) struct Parts {
    broker: Broker,
    room: Room,
    /// Room for what was sent without asking for an answer and not heard yet.
    unheard: Semaphore,
    /// Until when the feed counts as behind, in milliseconds since 1970.
    behind_until: AtomicU64,
}

impl Deref for Journal {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum AppendError {
    /// Somebody else appended first: look again, then decide again.
    #[error("somebody else appended first")]
    Conflict,
    #[error("the log is full: it accepts nothing new until it has drained")]
    Full,
    #[error("the events do not fit one message of the broker")]
    TooLarge,
    #[error("the broker does not answer: {0}")]
    Unavailable(String),
}

#[derive(Debug, Clone, thiserror::Error)]
#[error("the log cannot be read: {0}")]
pub struct ReadError(String);

impl ReadError {
    pub(crate) fn new(reason: &dyn std::fmt::Display) -> Self {
        Self(reason.to_string())
    }
}

/// A page of a run's entries, and whether there may be more behind it.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub(crate) entries: VecDeque<Arc<Entry>>,
    /// The sequence up to which the page covers the filter, entries that could not be understood included.
    pub(crate) through: u64,
    pub(crate) last: bool,
    /// Where something stands that could not be understood, and its sequence.
    pub(crate) unread: Vec<(Place, u64)>,
}

/// A message of the log, as far as it could be understood.
#[derive(Debug)]
pub(crate) enum Decoded {
    Entry(RunId, Arc<Entry>),
    Unread(Subject),
    /// It is about no run: a mark, or not even its subject is one of the log.
    Stray,
}

/// Which log it is, and how far it reaches.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Extent {
    /// When the log was made, in nanoseconds since 1970.
    pub(crate) log: u64,
    pub(crate) last: u64,
}

/// What is to be appended, in the form in which the broker stores it. Its nonce makes the payload unlike any other.
struct Draft<'events> {
    run: RunId,
    events: &'events [Event],
    job: Option<&'events CallSpec>,
    subject: String,
    payload: Bytes,
    expected: u64,
    /// When, where that is traced.
    began: Option<Moment>,
}

impl<'events> Draft<'events> {
    fn new(
        run: RunId,
        events: &'events [Event],
        job: Option<&'events CallSpec>,
        expected: u64,
    ) -> Result<Self, AppendError> {
        let Some(place) = Place::of(events) else { return Err(AppendError::Conflict) };
        let subject = Subject { run, place }.to_string();
        let payload = log::encode_as(rand::random(), events, job);
        let began = telemetry::trace::is_on().then(|| Moment::now(proto::now().0));
        Ok(Self { run, events, job, subject, payload, expected, began })
    }
}

impl Journal {
    pub(crate) fn new(broker: &Broker) -> Self {
        let unheard = Semaphore::new(UNHEARD_MAX);
        let behind_until = AtomicU64::new(0);
        Self(Arc::new(Parts { broker: broker.clone(), room: Room::default(), unheard, behind_until }))
    }

    /// Appends events that belong together behind the entry `expected` on their subject, [`NOTHING`] for none, and gives their
    /// place in the log. Tries again, for a while, what the broker does not confirm; then the expectation tells whether it
    /// was stored the first time.
    pub(crate) async fn append(
        &self,
        run: RunId,
        events: &[Event],
        job: Option<&CallSpec>,
        expected: u64,
    ) -> Result<u64, AppendError> {
        let draft = Draft::new(run, events, job, expected)?;
        let sequence = self.store(&draft, false).await?;
        self.note_stored(&draft, sequence);
        Ok(sequence)
    }

    /// Appends what nobody else can have put on its subject, where nothing stands. Not the broker's word confirms it but the
    /// entry itself, which `heard` waits for and whose place it gives: a message less. What is not heard for a while is
    /// appended as [`Self::append`] does it, and whichever confirms it first counts. So is from the beginning what is large,
    /// and everything while the feed is behind.
    pub(crate) async fn append_heard(
        &self,
        run: RunId,
        events: &[Event],
        heard: impl Future<Output = u64>,
    ) -> Result<u64, AppendError> {
        let draft = Draft::new(run, events, None, NOTHING)?;
        let may_wait = draft.payload.len() <= UNHEARD_BYTES_MAX && proto::now().0 >= self.behind_until.load(Relaxed);
        let permit = if may_wait { self.unheard.try_acquire().ok() } else { None };
        let sequence = match permit {
            Some(_permit) => self.store_heard(&draft, heard).await?,
            // Apart, as it takes much room and is rare.
            None => Box::pin(self.store(&draft, false)).await?,
        };
        self.note_stored(&draft, sequence);
        Ok(sequence)
    }

    async fn store_heard(&self, draft: &Draft<'_>, heard: impl Future<Output = u64>) -> Result<u64, AppendError> {
        let mut heard = std::pin::pin!(heard);
        let said = async { if self.say(draft).await { Some(heard.as_mut().await) } else { None } };
        match tokio::time::timeout(HEARD_PATIENCE, said).await {
            Ok(Some(sequence)) => return Ok(sequence),
            Ok(None) => {}
            Err(_) => self.note_behind(),
        }
        tokio::select! {
            biased;
            sequence = heard => Ok(sequence),
            stored = Box::pin(self.store(draft, true)) => stored,
        }
    }

    /// The feed did not bring in time what was sent: for a while everybody asks for answers.
    fn note_behind(&self) {
        let now = proto::now().0;
        if self.behind_until.swap(now + BEHIND_MS, Relaxed) <= now {
            tracing::warn!(
                "the feed has not brought a run's opening within {HEARD_PATIENCE:?}: the broker or this coordinator has \
                 too much to do, or stood still. New runs cost a message more for some seconds"
            );
        }
    }

    /// Tries until the broker has confirmed it. `unsure`: it was sent before, and may be stored.
    async fn store(&self, draft: &Draft<'_>, mut unsure: bool) -> Result<u64, AppendError> {
        let Draft { run, ref subject, ref payload, expected, .. } = *draft;
        let give_up = Instant::now() + APPEND_PATIENCE;
        let (mut warned, mut pause) = (false, APPEND_PAUSE);
        loop {
            let error = match self.publish(subject, payload.clone(), expected).await {
                Ok(sequence) => return Ok(sequence),
                Err(error) => error,
            };
            let reason = match Unstored::of(&error) {
                Unstored::Conflict if unsure => match self.own_or_conflict(subject, expected, payload).await {
                    Err(AppendError::Unavailable(reason)) if Instant::now() < give_up => reason,
                    found => return found,
                },
                Unstored::Conflict => return Err(AppendError::Conflict),
                Unstored::TooLarge => return Err(AppendError::TooLarge),
                Unstored::Full => return Err(AppendError::Full),
                Unstored::Unconfirmed if Instant::now() >= give_up => {
                    return Err(AppendError::Unavailable(error.to_string()));
                }
                Unstored::Unconfirmed => error.to_string(),
            };
            if !warned {
                tracing::warn!(run.id = %run, error = reason, "append not confirmed, trying again until it is");
            }
            (unsure, warned) = (true, true);
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(APPEND_PAUSE_LONGEST);
        }
    }

    fn note_stored(&self, draft: &Draft<'_>, sequence: u64) {
        self.room.take(draft.payload.len());
        if let Some(began) = draft.began {
            trace::sent(draft.run, draft.events, draft.job, sequence, began);
        }
    }

    async fn publish(&self, subject: &str, payload: Bytes, expected: u64) -> Result<u64, PublishError> {
        let message = PublishMessage::build().payload(payload).expected_last_subject_sequence(expected);
        Ok(self.broker.context.send_publish(subject.to_owned(), message).await?.await?.sequence)
    }

    /// Sends it without asking for an answer; `false` where it cannot be sent.
    async fn say(&self, draft: &Draft<'_>) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, HeaderValue::from(draft.expected));
        let said = self.broker.client.publish_with_headers(draft.subject.clone(), headers, draft.payload.clone());
        said.await.is_ok()
    }

    /// After an append whose first try was not confirmed: is one of the entries behind the expected one ours? Asks the log's
    /// leader: another node may not have it yet.
    async fn own_or_conflict(&self, subject: &str, after: u64, payload: &Bytes) -> Result<u64, AppendError> {
        let unavailable = |error: &dyn std::fmt::Display| AppendError::Unavailable(error.to_string());
        let stream =
            self.broker.context.get_stream_no_info(names::STREAM).await.map_err(|error| unavailable(&error))?;
        let mut after = after;
        for _ in 0..LATER_MAX {
            let later = match stream.get_first_raw_message_by_subject(subject, after + 1).await {
                Ok(later) => later,
                Err(error) if error.kind() == jetstream::stream::RawMessageErrorKind::NoMessageFound => break,
                Err(error) => return Err(unavailable(&error)),
            };
            if later.payload == *payload {
                return Ok(later.sequence);
            }
            after = later.sequence;
        }
        Err(AppendError::Conflict)
    }

    /// Whether a run whose opening is an entry of its own is in the log. Asks about one subject only: where there is nothing
    /// to be found, the broker would look for any of a run's through the whole log.
    pub(crate) async fn is_opened(&self, run: RunId) -> Result<bool, ReadError> {
        let subject = Subject { run, place: Place::Run };
        Ok(self.last_on(&subject.to_string()).await?.is_some())
    }

    /// The sequence of a run's last entry; 0 when the log has none. Asks the log's leader, so it is never stale.
    pub(crate) async fn last_of_run(&self, run: RunId) -> Result<u64, ReadError> {
        Ok(self.last_on(&subject::of_run(run)).await?.map_or(0, |last| last.sequence))
    }

    /// The sequence of a call's last output; 0 when it has none. Asks the log's leader, so it is never stale.
    pub(crate) async fn last_output(&self, subject: &Subject) -> Result<u64, ReadError> {
        Ok(self.last_on(&subject.to_string()).await?.map_or(0, |last| last.sequence))
    }

    async fn last_on(&self, subject: &str) -> Result<Option<StreamMessage>, ReadError> {
        let give_up = Instant::now() + READ_PATIENCE;
        loop {
            // Apart, as it takes much room in whatever may have to ask.
            match Box::pin(self.last_on_once(subject)).await {
                Err(error) if Instant::now() < give_up => tracing::warn!(%error, "asking the log's leader again"),
                result => return result,
            }
            tokio::time::sleep(APPEND_PAUSE).await;
        }
    }

    async fn last_on_once(&self, subject: &str) -> Result<Option<StreamMessage>, ReadError> {
        let stream = self
            .broker
            .context
            .get_stream_no_info(names::STREAM)
            .await
            .map_err(|error| ReadError(error.to_string()))?;
        match stream.get_last_raw_message_by_subject(subject).await {
            Ok(message) => Ok(Some(message)),
            Err(error) if error.kind() == jetstream::stream::LastRawMessageErrorKind::NoMessageFound => Ok(None),
            Err(error) => Err(ReadError(error.to_string())),
        }
    }

    /// Leaves a mark at the end of a shard, and gives its place: every entry of the shard that was stored before this was
    /// asked stands before it. A mark is stored by a majority of the broker's nodes, so unlike a leader that was replaced and
    /// does not know it yet, it is never wrong.
    pub(crate) async fn mark(&self, shard: Shard) -> Result<u64, ReadError> {
        let unavailable = |error: &dyn std::fmt::Display| ReadError(error.to_string());
        let sent = self
            .broker
            .context
            .publish(subject::mark(shard), Bytes::new())
            .await
            .map_err(|error| unavailable(&error))?;
        Ok(sent.await.map_err(|error| unavailable(&error))?.sequence)
    }

    /// The sequence of a shard's first message behind `after`, of which there is one at `mark`.
    pub(crate) async fn first_of_shard(&self, shard: Shard, after: u64, mark: u64) -> Result<u64, ReadError> {
        let page = self.page_towards(&subject::of_shard(shard), after, mark, 1).await?;
        Ok(page.through)
    }

    /// Which log it is and how far it reaches, as its leader says.
    pub(crate) async fn extent(&self) -> Result<Extent, ReadError> {
        let stream = self.broker.context.get_stream(names::STREAM).await.map_err(|error| ReadError::new(&error))?;
        let info = stream.cached_info();
        let log = u64::try_from(info.created.unix_timestamp_nanos()).unwrap_or(0);
        Ok(Extent { log, last: info.state.last_sequence })
    }

    /// A run as the log's leader has it: not known to be the newest, but whatever is decided by it is appended only if it is.
    pub(crate) async fn known(&self, id: RunId) -> Result<Known, ReadError> {
        self.known_through(id, self.last_of_run(id).await?).await
    }

    /// A run as it stood at its entry `last`.
    pub(crate) async fn known_through(&self, id: RunId, last: u64) -> Result<Known, ReadError> {
        let (mut known, mut after) = (Known::new(id), 0);
        while after < last {
            let page = self.page_towards(&subject::of_run(id), after, last, PAGE_ENTRIES).await?;
            for entry in page.entries.iter().filter(|entry| entry.sequence <= last) {
                known.apply(entry, &mut Vec::new());
            }
            for (place, sequence) in page.unread.into_iter().filter(|(_, sequence)| *sequence <= last) {
                known.pass_over(place, sequence);
            }
            after = page.through;
        }
        Ok(known)
    }

    /// A page of at most so many entries that is not empty: pages may be served by a replica that lags behind, and `needed`,
    /// an entry which is known to be there, says that there is more.
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

    /// Watches how full the log is, until told to stop: what was accepted needs room to end. Says whether the log can be
    /// reached at all.
    pub(crate) async fn watch_room(self, reached: watch::Sender<bool>, stop: CancellationToken) {
        let mut seen = Instant::now();
        loop {
            let counted = self.room.counted();
            match tokio::time::timeout(ROOM_PATIENCE, self.broker.context.get_stream(names::STREAM)).await {
                Ok(Ok(stream)) => {
                    seen = Instant::now();
                    let info = stream.cached_info();
                    let limit = u64::try_from(info.config.max_bytes).unwrap_or(u64::MAX);
                    self.room.seen(info.state.bytes, limit, counted);
                    COUNTS.log_bytes.set(info.state.bytes as f64);
                    COUNTS.log_bytes_max.set(limit as f64);
                }
                Ok(Err(error)) => tracing::warn!(%error, "cannot see how full the log is"),
                Err(_) => tracing::warn!("the broker does not say how full the log is"),
            }
            let now = seen.elapsed() < OUT_OF_REACH;
            COUNTS.log_reached.set(f64::from(u8::from(now)));
            reached.send_if_modified(|reached| std::mem::replace(reached, now) != now);
            tokio::select! {
                () = self.room.wait_for_look() => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// The log is so full that nothing new should be accepted.
    pub(crate) fn is_crowded(&self) -> bool {
        self.room.is_crowded()
    }

    /// Entries on `filter` with a sequence above `after`: one page, read in one request, which is made again for a while
    /// when it fails.
    pub(crate) async fn page(&self, filter: &str, after: u64, entries_max: usize) -> Result<Page, ReadError> {
        let give_up = Instant::now() + READ_PATIENCE;
        loop {
            match self.page_once(filter, after, entries_max).await {
                Err(error) if Instant::now() < give_up => tracing::warn!(%error, "reading a page of the log again"),
                result => return result,
            }
            tokio::time::sleep(APPEND_PAUSE).await;
        }
    }

    async fn page_once(&self, filter: &str, after: u64, entries_max: usize) -> Result<Page, ReadError> {
        let request = serde_json::json!({
            "seq": after + 1, "next_by_subj": filter, "batch": entries_max, "max_bytes": PAGE_BYTES,
        });
        let inbox = self.broker.client.new_inbox();
        let unavailable = |error: &dyn std::fmt::Display| ReadError(error.to_string());
        let mut replies = self.broker.client.subscribe(inbox.clone()).await.map_err(|error| unavailable(&error))?;
        let subject = format!("$JS.API.DIRECT.GET.{}", names::STREAM);
        let published = self.broker.client.publish_with_reply(subject, inbox, request.to_string().into()).await;
        published.map_err(|error| unavailable(&error))?;
        let mut page = Page { through: after, ..Page::default() };
        let mut before = 0;
        loop {
            let reply = tokio::time::timeout(REPLY_PATIENCE, replies.next()).await;
            let reply = reply.map_err(|_| ReadError("the broker does not answer".to_owned()))?;
            let Some(reply) = reply else { return Err(ReadError("the connection was closed".to_owned())) };
            match reply.status.map(|status| status.as_u16()) {
                Some(NOTHING_THERE) => {
                    page.last = true;
                    return Ok(page);
                }
                // A header counts what the filter would still match.
                Some(END_OF_BATCH) => {
                    follows(reply.headers.as_ref(), before)?;
                    let pending = reply.headers.as_ref().and_then(|headers| headers.get("Nats-Num-Pending"));
                    page.last = pending.is_none_or(|pending| pending.as_str() == "0");
                    return Ok(page);
                }
                Some(status) if status >= 300 => {
                    return Err(ReadError(format!("{status} {}", reply.description.unwrap_or_default())));
                }
                _ => {}
            }
            follows(reply.headers.as_ref(), before)?;
            let message = StreamMessage::try_from(reply).map_err(|error| unavailable(&error))?;
            (before, page.through) = (message.sequence, message.sequence);
            let at = millis(message.time.unix_timestamp_nanos());
            match decode(&message.subject, message.payload, message.sequence, at) {
                Decoded::Entry(_, entry) => page.entries.push_back(entry),
                Decoded::Unread(subject) => page.unread.push((subject.place, message.sequence)),
                Decoded::Stray => {}
            }
        }
    }
}

/// Each message of a page names the one before it: one that was lost on its way is noticed.
fn follows(headers: Option<&HeaderMap>, before: u64) -> Result<(), ReadError> {
    let named = headers.and_then(|headers| headers.get("Nats-Last-Sequence"));
    match named.and_then(|named| named.as_str().parse::<u64>().ok()) {
        Some(named) if named != before => Err(ReadError(format!("entry {named} was lost on its way"))),
        Some(_) | None => Ok(()),
    }
}

/// Broker time in milliseconds; the same for every way in which an entry is read.
pub(super) fn millis(nanos: i128) -> Timestamp {
    Timestamp(u64::try_from(nanos / 1_000_000).unwrap_or(0))
}

/// Decodes a message of the log. What cannot be understood is reported and passed over, the same way by every reader.
pub(super) fn decode(subject: &str, payload: Bytes, sequence: u64, at: Timestamp) -> Decoded {
    if subject::is_mark(subject) {
        return Decoded::Stray;
    }
    let warn = |error: InvalidMessage| tracing::warn!(subject, sequence, %error, "passing over an entry of the log");
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

#[cfg(test)]
pub(crate) mod tests;
