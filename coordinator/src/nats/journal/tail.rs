//! The beginning of the log: how old its entries are, and what leaves it.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use async_nats::Message;
use async_nats::datetime::parse_rfc3339;
use async_nats::jetstream::context::ContextBuilder;
use async_nats::jetstream::stream::Info;
use owner::retention::Fill;
use proto::convert::snapshot::Cut;
use proto::names;
use run::{Partition, RunId, Timestamp};
use serde_json::{Value, json};

use super::{Journal, NOTHING_THERE, Pace, ReadError, last_message, limits, millis};

/// The key of the bucket of snapshots that tells what has left the first partition of the log, and what the keys of
/// the others begin with.
const CUT: &str = "cut";
/// By how much the clocks of the broker's servers may differ: a run's id has the time of another one than its entries.
const CLOCKS_DIFFER: Duration = Duration::from_secs(30);
/// How long the broker may take to remove the beginning of the log: it rewrites its index of the stream.
const DROP_PATIENCE: Duration = Duration::from_secs(30);

/// The log as its leader has it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogNow {
    /// When the log was created, in nanoseconds since 1970.
    pub(crate) created: u64,
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// Older entries have left the log: when the first entry was stored, or 0 if none has left.
    pub(crate) oldest: Timestamp,
    /// When the first and the last entry were stored.
    pub(crate) first_at: Timestamp,
    pub(crate) last_at: Timestamp,
    pub(crate) bytes: Fill,
    pub(crate) messages: Fill,
}

impl LogNow {
    pub(super) fn of(info: &Info) -> Self {
        let limits = limits(&info.config);
        Self {
            created: u64::try_from(info.created.unix_timestamp_nanos()).unwrap_or(0),
            first: info.state.first_sequence,
            last: info.state.last_sequence,
            oldest: oldest(info.state.first_sequence, info.state.first_timestamp.unix_timestamp_nanos()),
            first_at: millis(info.state.first_timestamp.unix_timestamp_nanos()),
            last_at: millis(info.state.last_timestamp.unix_timestamp_nanos()),
            bytes: Fill { used: info.state.bytes, limit: limits.bytes },
            messages: Fill { used: info.state.messages, limit: limits.messages },
        }
    }
}

/// When the first entry was stored, before which others have left the log; 0 if none has.
pub(super) fn oldest(first: u64, nanos: i128) -> Timestamp {
    if first > 1 { millis(nanos) } else { Timestamp(0) }
}

impl Journal {
    /// The log as its leader has it, which may have been replaced without knowing it.
    pub(crate) async fn now(&self) -> Result<LogNow, ReadError> {
        let ask = async || self.broker.patient.get_stream(self.stream).await.map_err(|error| ReadError::new(&error));
        let stream = self.patiently("retrying to ask the log's leader for its size", Pace::Soon, ask).await?;
        let log = LogNow::of(stream.cached_info());
        self.note_first(log.first);
        Ok(log)
    }

    /// The first entry that was stored at a time or later; the one after the last if there is none.
    pub(crate) async fn first_since(&self, since: Timestamp, log: &LogNow) -> Result<u64, ReadError> {
        let at = proto::convert::api::timestamp(since).to_string();
        let reply = self.get(&json!({ "start_time": at, "next_by_subj": names::STREAM_SUBJECTS })).await?;
        if reply.status.is_some_and(|status| status.as_u16() == NOTHING_THERE) {
            // Any replica answers, also one that lags.
            return if log.last_at < since { Ok(log.last + 1) } else { Err(ReadError::disagreeing()) };
        }
        header(&reply, "Nats-Sequence").and_then(|sequence| sequence.parse().ok()).ok_or_else(|| {
            let (status, why) = (reply.status, reply.description.unwrap_or_default());
            ReadError(format!("the broker does not say which entry was stored at {at}: {status:?} {why}"))
        })
    }

    /// Removes all entries before one. Before that it is stored how old they are, for [`Self::may_have_left`].
    pub(crate) async fn drop_before(&self, sequence: u64, log: &LogNow) -> Result<(), ReadError> {
        self.store_cut(Cut { log: log.created, through: self.stored_at(sequence).await? }).await?;
        let context = ContextBuilder::new().timeout(DROP_PATIENCE).build(self.broker.client.clone());
        let stream = context.get_stream_no_info(self.stream).await.map_err(|error| ReadError::new(&error))?;
        stream.purge().sequence(sequence).await.map_err(|error| ReadError::new(&error))?;
        Ok(())
    }

    /// When an entry was stored, or the first one after it; the present if there is none.
    async fn stored_at(&self, sequence: u64) -> Result<Timestamp, ReadError> {
        let reply = self.get(&json!({ "seq": sequence, "next_by_subj": names::STREAM_SUBJECTS })).await?;
        let stored = header(&reply, "Nats-Time-Stamp").and_then(|stored| parse_rfc3339(stored).ok());
        Ok(stored.map_or_else(::nats::now, |stored| millis(stored.unix_timestamp_nanos())))
    }

    /// Asks any replica for one message.
    async fn get(&self, request: &Value) -> Result<Message, ReadError> {
        let subject = format!("$JS.API.DIRECT.GET.{}", self.stream);
        let reply = self.broker.client.request(subject, request.to_string().into()).await;
        reply.map_err(|error| ReadError::new(&error))
    }

    /// Older entries have left the log. As last read: a moment ago, or earlier if the broker is away.
    pub(crate) fn oldest(&self) -> Timestamp {
        Timestamp(self.oldest.load(Relaxed))
    }

    pub(super) fn note_oldest(&self, oldest: Timestamp) {
        self.oldest.fetch_max(oldest.0, Relaxed);
    }

    /// The first entry of the log, or an earlier one.
    pub(crate) fn first(&self) -> u64 {
        self.first.load(Relaxed)
    }

    pub(super) fn note_first(&self, first: u64) {
        self.first.fetch_max(first, Relaxed);
    }

    /// The last entry of the log, as last read.
    pub(crate) fn tip_seen(&self) -> u64 {
        self.tip.load(Relaxed)
    }

    pub(super) fn note_tip(&self, tip: u64) {
        self.tip.fetch_max(tip, Relaxed);
    }

    /// Whether a run that is not in the log may have been there and left it.
    pub(crate) async fn may_have_left(&self, id: RunId) -> Result<bool, ReadError> {
        // Its opening would still be there, as all entries of the last [`owner::retention::SETTLED_AFTER`].
        if ::nats::now().since(id.created_at()) < run::STORED_WITHIN {
            return Ok(false);
        }
        let log = self.now().await?;
        let through = self.cut(&log).await?.unwrap_or(log.oldest);
        Ok(through > Timestamp(0) && id.created_at() <= through.after(CLOCKS_DIFFER))
    }

    /// Entries that were stored later have not left this log; `None` if no cut is stored.
    async fn cut(&self, log: &LogNow) -> Result<Option<Timestamp>, ReadError> {
        let store = &self.broker.snapshots;
        let subject = format!("{}{}", store.prefix, self.cut_key());
        let Some(message) = last_message(&store.stream, &subject).await? else { return Ok(None) };
        let cut = Cut::decode(message.payload).map_err(|error| ReadError::new(&error))?;
        Ok((cut.log == log.created).then_some(cut.through))
    }

    /// Stores a first cut if there is none: the log is new, was restored, or an older release removed entries.
    pub(crate) async fn begin_cuts(&self, log: &LogNow) -> Result<(), ReadError> {
        if self.cut(log).await?.is_none() {
            self.store_cut(Cut { log: log.created, through: log.oldest }).await?;
        }
        Ok(())
    }

    async fn store_cut(&self, cut: Cut) -> Result<(), ReadError> {
        self.broker.snapshots.put(self.cut_key(), cut.encode()).await.map(drop).map_err(|error| ReadError::new(&error))
    }

    fn cut_key(&self) -> String {
        if self.partition == Partition::FIRST { CUT.to_owned() } else { format!("{CUT}-{}", self.partition) }
    }

    /// The entries before this one would leave the log if nothing needed them; 0 if none would.
    pub(crate) fn leaves_before(&self) -> u64 {
        self.leaves_before.load(Relaxed)
    }

    pub(crate) fn set_leaves_before(&self, sequence: u64) {
        self.leaves_before.store(sequence, Relaxed);
    }
}

fn header<'a>(reply: &'a Message, name: &str) -> Option<&'a str> {
    Some(reply.headers.as_ref()?.get(name)?.as_str())
}
