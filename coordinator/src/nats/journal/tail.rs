//! The beginning of the log: how old its entries are, and what leaves it.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use async_nats::jetstream::stream::Info;
use owner::retention::Fill;
use proto::names;
use run::{RunId, Timestamp};
use serde_json::json;
use tokio::time::Instant;

use super::{Journal, LAG_PAUSE, NOTHING_THERE, READ_PATIENCE, ReadError, limits, millis};

/// How long the broker may take to remove the beginning of the log: it rewrites a block of its files, and looks at each
/// consumer.
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
    /// When the first entry was stored.
    pub(crate) first_at: Timestamp,
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
        let stream = self.broker.context.get_stream(names::STREAM).await.map_err(|error| ReadError::new(&error))?;
        Ok(LogNow::of(stream.cached_info()))
    }

    /// The first entry that was stored at a time or later; the one after the last if there is none.
    pub(crate) async fn first_since(&self, at: Timestamp, log: &LogNow) -> Result<u64, ReadError> {
        let at = proto::convert::api::timestamp(at).to_string();
        let request = json!({ "start_time": at, "next_by_subj": names::STREAM_SUBJECTS });
        let subject = format!("$JS.API.DIRECT.GET.{}", names::STREAM);
        let reply = self.broker.client.request(subject, request.to_string().into()).await;
        let reply = reply.map_err(|error| ReadError::new(&error))?;
        if reply.status.is_some_and(|status| status.as_u16() == NOTHING_THERE) {
            return Ok(log.last + 1);
        }
        let sequence = reply.headers.as_ref().and_then(|headers| headers.get("Nats-Sequence"));
        let sequence = sequence.and_then(|sequence| sequence.as_str().parse().ok());
        sequence.ok_or_else(|| {
            let (status, why) = (reply.status, reply.description.unwrap_or_default());
            ReadError(format!("the broker does not say which entry was stored at {at}: {status:?} {why}"))
        })
    }

    /// Removes all entries before one.
    pub(crate) async fn drop_before(&self, sequence: u64) -> Result<(), ReadError> {
        let context = async_nats::jetstream::context::ContextBuilder::new().timeout(DROP_PATIENCE);
        let context = context.build(self.broker.client.clone());
        let stream = context.get_stream_no_info(names::STREAM).await.map_err(|error| ReadError::new(&error))?;
        stream.purge().sequence(sequence).await.map(drop).map_err(|error| ReadError::new(&error))
    }

    /// Older entries have left the log. As last read: a moment ago, or earlier if the broker is away.
    pub(crate) fn oldest(&self) -> Timestamp {
        Timestamp(self.oldest.load(Relaxed))
    }

    pub(super) fn note_oldest(&self, oldest: Timestamp) {
        self.oldest.fetch_max(oldest.0, Relaxed);
    }

    /// Whether a run that is not in the log may have been there and left it. A server answers that has everything which
    /// was stored, and removed, before this request.
    pub(crate) async fn may_have_left(&self, id: RunId) -> Result<bool, ReadError> {
        let mark = self.mark_behind(id).await?;
        let give_up = Instant::now() + READ_PATIENCE;
        loop {
            let log = self.now().await?;
            if log.last >= mark {
                return Ok(log.oldest > id.created_at());
            }
            if Instant::now() >= give_up {
                return Err(ReadError(format!("no server that has entry {mark} answers")));
            }
            tokio::time::sleep(LAG_PAUSE).await;
        }
    }
}
