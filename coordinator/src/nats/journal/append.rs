//! Appends entries of coordinators, each after the entry that its writer knew, and finds out whether one was stored.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use async_nats::connection::State;
use async_nats::header::{self, HeaderMap, HeaderValue};
use async_nats::jetstream;
use async_nats::jetstream::context::PublishError;
use bytes::Bytes;
use nats::append::{AppendFailure, PAUSE, Pauses};
use owner::Expected;
use proto::convert::log::{self, Dispatch};
use proto::subject::{Subject, SubjectKind};
use run::{Event, RunId, Timestamp};
use telemetry::trace::Moment;
use tokio::time::Instant;

use super::{AppendError, Journal, NOTHING, ReadError, millis};
use crate::trace;

/// How long an append is tried, starting with the first copy: an election of the broker's leader takes 4-9 s. A copy
/// that is stored later than [`run::STORED_WITHIN`] does not count.
pub(super) const APPEND_PATIENCE: Duration = Duration::from_secs(15);
/// How long the feed may take to deliver an append that was sent without a requested confirmation; then a confirmation
/// is requested. Rather too long than too short, because more appends would not help a late feed.
pub(super) const HEARD_PATIENCE: Duration = Duration::from_secs(1);
/// Entries sent without a requested answer that are awaited, and bytes of one of them at most. The broker silently
/// drops messages beyond its buffers (100,000 messages, 128 MiB), which are larger than all of these together.
pub(super) const UNHEARD_MAX: usize = 4096;
pub(super) const UNHEARD_BYTES_MAX: usize = 16 * 1024;
/// For how many milliseconds the feed counts as late after it did not deliver an entry in time.
const BEHIND_MS: u64 = 5000;
/// How many entries on its subject may have come between an append and the search for it.
const LATER_MAX: usize = 64;
/// How often the log is searched for a copy if there is no room for another one: the first may be on its way to the
/// replicas.
const LOOKS_WHEN_FULL: u32 = 3;
/// How long the last search for a copy may take, before the append is reported as unconfirmed.
const LAST_LOOK: Duration = Duration::from_secs(2);

/// Why an append is not confirmed though the log may have it.
const STORED_LATE: &str = "it was stored too late, or confirmed too late";

/// An entry to append, encoded. Its nonce makes the payload unique.
struct Draft<'events> {
    run: RunId,
    events: &'events [Event],
    job: Option<&'events Dispatch>,
    subject: String,
    payload: Bytes,
    expected: Expected,
    /// The last moment at which it counts.
    not_after: Timestamp,
    /// Until when it is retried.
    give_up: Instant,
    /// Start of the trace span, if it is traced.
    began: Option<Moment>,
}

/// The entries on a subject after a given one.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Our own entry, at this sequence.
    Own(u64),
    /// Our own entry, which was stored too late to count.
    Void,
    /// Only entries of others.
    Others,
    Nothing,
}

impl<'events> Draft<'events> {
    /// It expects the entry `expected` on its subject, and counts for as long as if it were written at `from`.
    fn new(
        run: RunId,
        events: &'events [Event],
        job: Option<&'events Dispatch>,
        expected: Expected,
        from: Timestamp,
    ) -> Result<Self, AppendError> {
        let Some(place) = SubjectKind::of(events) else { return Err(AppendError::Conflict) };
        let subject = Subject { run, place }.to_string();
        let now = ::nats::now();
        let not_after = run::counts_until(run, events, from);
        let give_up = Instant::now() + APPEND_PATIENCE.min(not_after.since(now));
        let payload = log::encode_as(rand::random(), Some(not_after), events, job);
        let began = telemetry::trace::is_on().then(|| Moment::now(now.0));
        Ok(Self { run, events, job, subject, payload, expected, not_after, give_up, began })
    }
}

impl Journal {
    /// Appends events that belong together after the entry `expected` on their subject, [`NOTHING`] for none, and
    /// returns their position in the log. Retries for a while if the broker does not confirm; the expected sequence
    /// shows whether an earlier copy was stored.
    pub(crate) async fn append(
        &self,
        run: RunId,
        events: &[Event],
        job: Option<&Dispatch>,
        expected: impl Into<Expected>,
    ) -> Result<u64, AppendError> {
        let expected = expected.into();
        let from = expected.known_at.unwrap_or_else(::nats::now);
        self.append_draft(&Draft::new(run, events, job, expected, from)?).await
    }

    /// Appends the opening of a run that other requests may open as well, and that none opened before `unopened_at`. If
    /// another one does, its entries stay in the log longer than this entry counts, so the log takes one of them.
    pub(crate) async fn append_opening(
        &self,
        run: RunId,
        events: &[Event],
        unopened_at: Timestamp,
    ) -> Result<u64, AppendError> {
        self.append_draft(&Draft::new(run, events, None, NOTHING.into(), unopened_at)?).await
    }

    async fn append_draft(&self, draft: &Draft<'_>) -> Result<u64, AppendError> {
        let sequence = self.store(draft, false).await?;
        self.note_stored(draft, sequence);
        Ok(sequence)
    }

    /// Appends an entry to an empty subject on which no other process writes. It is confirmed by the entry itself,
    /// which `delivered` awaits from the feed, and not by an answer of the broker, which saves a message. If the feed
    /// does not deliver it for a while it is appended as by [`Self::append`], and the first confirmation counts. Large
    /// entries, and all entries while the feed is late, are appended that way from the beginning.
    pub(crate) async fn append_heard(
        &self,
        run: RunId,
        events: &[Event],
        delivered: impl Future<Output = u64>,
    ) -> Result<u64, AppendError> {
        let draft = Draft::new(run, events, None, NOTHING.into(), ::nats::now())?;
        let may_wait = draft.payload.len() <= UNHEARD_BYTES_MAX && ::nats::now().0 >= self.behind_until.load(Relaxed);
        let permit = if may_wait { self.unheard.try_acquire().ok() } else { None };
        let sequence = match permit {
            Some(_permit) => self.store_awaiting(&draft, delivered).await?,
            // Boxed, because it is large and rare.
            None => Box::pin(self.store(&draft, false)).await?,
        };
        self.note_stored(&draft, sequence);
        Ok(sequence)
    }

    async fn store_awaiting(
        &self,
        draft: &Draft<'_>,
        delivered: impl Future<Output = u64>,
    ) -> Result<u64, AppendError> {
        let mut delivered = std::pin::pin!(delivered);
        let published =
            async { if self.publish_unconfirmed(draft).await { Some(delivered.as_mut().await) } else { None } };
        let sent = match tokio::time::timeout(HEARD_PATIENCE, published).await {
            Ok(Some(sequence)) => return self.confirm(draft, sequence).await,
            Ok(None) => false,
            Err(_) => {
                self.note_behind();
                true
            }
        };
        tokio::select! {
            biased;
            sequence = delivered => self.confirm(draft, sequence).await,
            stored = Box::pin(self.store(draft, sent)) => stored,
        }
    }

    /// The log has the entry. Once everything that was stored by now may be too late to count, it is looked up: this
    /// process may have been stopped meanwhile, or the message held on its way.
    async fn confirm(&self, draft: &Draft<'_>, sequence: u64) -> Result<u64, AppendError> {
        if ::nats::now() <= draft.not_after {
            return Ok(sequence);
        }
        // Boxed, because it is large and rare.
        Box::pin(self.give_up(draft, STORED_LATE.to_owned())).await
    }

    /// The feed was late: for a while all appends request answers.
    fn note_behind(&self) {
        let now = ::nats::now().0;
        if self.behind_until.swap(now + BEHIND_MS, Relaxed) <= now {
            tracing::warn!(
                "the feed did not deliver a run's opening within {HEARD_PATIENCE:?}: the broker or this coordinator \
                is overloaded, or hung. New runs cost one more message each for some seconds"
            );
        }
    }

    /// Retries until the broker has confirmed it. `sent`: a copy was sent before, and may be stored.
    async fn store(&self, draft: &Draft<'_>, mut sent: bool) -> Result<u64, AppendError> {
        let (mut warned, mut pauses) = (false, Pauses::default());
        let mut reason = "there is no connection to it".to_owned();
        let mut expected = draft.expected.in_log(self.first());
        while Instant::now() < draft.give_up {
            // The library would buffer messages now, and send them when it is connected again, however late.
            if self.is_connected() {
                let published = self.publish(&draft.subject, draft.payload.clone(), expected);
                let error = match tokio::time::timeout_at(draft.give_up, published).await {
                    Ok(Ok(sequence)) => return self.confirm(draft, sequence).await,
                    Ok(Err(error)) => error,
                    Err(_) => {
                        (sent, reason) = (true, "no confirmation came".to_owned());
                        break;
                    }
                };
                let refused = match AppendFailure::of(&error) {
                    AppendFailure::Conflict => Some(AppendError::Conflict),
                    AppendFailure::TooLarge => Some(AppendError::TooLarge),
                    AppendFailure::Full => Some(AppendError::Full { is_certain: !sent }),
                    AppendFailure::Unconfirmed => None,
                };
                reason = error.to_string();
                match refused {
                    // The entry that is expected may have left the log since its beginning was read.
                    Some(AppendError::Conflict) if self.expects_other(draft, &mut expected).await => {}
                    Some(refused) if !sent => return Err(refused),
                    Some(refused) => match self.found_or_refused(draft, refused).await {
                        // The leader does not show the entry yet that caused the conflict.
                        Err(AppendError::Unavailable(_)) => {}
                        settled => return settled,
                    },
                    None => sent = true,
                }
            }
            if !warned {
                tracing::warn!(run.id = %draft.run, error = reason, "append not confirmed, retrying");
            }
            warned = true;
            let left = draft.give_up.saturating_duration_since(Instant::now());
            tokio::time::sleep(pauses.next().map_or(left, |pause| pause.min(left))).await;
        }
        if sent { self.give_up(draft, reason).await } else { Err(AppendError::Unavailable(reason)) }
    }

    /// Whether something else is to be expected at the broker than `expected`, which becomes that.
    async fn expects_other(&self, draft: &Draft<'_>, expected: &mut u64) -> bool {
        if *expected == NOTHING || draft.expected.entry > draft.expected.carried {
            return false;
        }
        // It notes the log's beginning.
        if let Err(error) = Box::pin(self.now()).await {
            tracing::debug!(%error, "reading where the log begins failed");
        }
        let before = std::mem::replace(expected, draft.expected.in_log(self.first()));
        *expected != before
    }

    /// Whether messages are sent immediately. A hung connection is not detected for some seconds.
    pub(super) fn is_connected(&self) -> bool {
        self.broker.client.connection_state() == State::Connected
    }

    /// A later copy was rejected, possibly because an earlier one was stored.
    async fn found_or_refused(&self, draft: &Draft<'_>, refused: AppendError) -> Result<u64, AppendError> {
        for _ in 0..LOOKS_WHEN_FULL {
            match (self.find(draft).await, &refused) {
                (Ok(Found::Own(sequence)), _) => return Ok(sequence),
                (Ok(Found::Void), _) => return Err(AppendError::Unavailable(STORED_LATE.to_owned())),
                (Ok(Found::Others), AppendError::Conflict) => return Err(refused),
                // The answering server does not have the conflicting entry yet: a leader that has just been elected.
                (Ok(Found::Nothing), AppendError::Conflict) => {
                    return Err(AppendError::Unavailable("the log's leader lags behind".to_owned()));
                }
                (Ok(Found::Others | Found::Nothing), _) => tokio::time::sleep(PAUSE).await,
                (Err(error), _) => return Err(AppendError::Unavailable(error.to_string())),
            }
        }
        Err(refused)
    }

    /// No copy was confirmed. Returns when every copy that is not in the log by then is void.
    async fn give_up(&self, draft: &Draft<'_>, reason: String) -> Result<u64, AppendError> {
        while ::nats::now() <= draft.not_after {
            tokio::time::sleep(draft.not_after.since(::nats::now()) + Duration::from_millis(1)).await;
        }
        if self.is_connected() {
            let found = self.find(draft);
            if let Ok(Ok(Found::Own(sequence))) = tokio::time::timeout(LAST_LOOK, found).await {
                return Ok(sequence);
            }
        }
        Err(AppendError::Unconfirmed { run: draft.run, reason })
    }

    fn note_stored(&self, draft: &Draft<'_>, sequence: u64) {
        self.room.take(draft.payload.len());
        if let Some(began) = draft.began {
            trace::sent(draft.run, draft.events, draft.job.map(|job| &*job.spec), sequence, began);
        }
    }

    pub(super) async fn publish(&self, subject: &str, payload: Bytes, expected: u64) -> Result<u64, PublishError> {
        nats::append::publish(&self.broker.context, subject, payload, Some(expected)).await
    }

    /// Sends it without requesting an answer; `false` if it cannot be sent.
    async fn publish_unconfirmed(&self, draft: &Draft<'_>) -> bool {
        if !self.is_connected() {
            return false;
        }
        let mut headers = HeaderMap::new();
        headers.insert(header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, HeaderValue::from(draft.expected.entry));
        let published = self.broker.client.publish_with_headers(draft.subject.clone(), headers, draft.payload.clone());
        published.await.is_ok()
    }

    /// Searches our entry on its subject, after the entry that it expects. Reads from the log's leader, because another
    /// node may not have it yet.
    async fn find(&self, draft: &Draft<'_>) -> Result<Found, ReadError> {
        let stream = self.broker.context.get_stream_no_info(self.stream).await;
        let stream = stream.map_err(|error| ReadError::new(&error))?;
        let (mut after, mut found) = (draft.expected.entry, Found::Nothing);
        for _ in 0..LATER_MAX {
            let later = match stream.get_first_raw_message_by_subject(&draft.subject, after + 1).await {
                Ok(later) => later,
                Err(error) if error.kind() == jetstream::stream::RawMessageErrorKind::NoMessageFound => break,
                Err(error) => return Err(ReadError::new(&error)),
            };
            if later.payload == draft.payload {
                let is_void = run::is_late(millis(later.time.unix_timestamp_nanos()), Some(draft.not_after));
                return Ok(if is_void { Found::Void } else { Found::Own(later.sequence) });
            }
            (after, found) = (later.sequence, Found::Others);
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{fresh, journal};
    use super::*;

    #[tokio::test]
    async fn an_entry_is_known_again_behind_which_others_came() {
        let (_server, journal) = journal().await;
        let (id, events) = (fresh(), [Event::RunClosed]);
        let draft = |after: u64| Draft::new(id, &events, None, after.into(), ::nats::now()).expect("it has a place");
        let found = async |draft: &Draft<'_>| journal.find(draft).await.expect("the log answers");
        let first = journal.append(id, &events, None, NOTHING).await.expect("stored");
        let ours = draft(first);
        let sequence = journal.publish(&ours.subject, ours.payload.clone(), first).await.expect("stored");
        journal.append(id, &events, None, sequence).await.expect("stored");
        assert_eq!(found(&ours).await, Found::Own(sequence));
        assert_eq!(found(&draft(first)).await, Found::Others, "the same events of another writer are not ours");
        let later = |after: u64| Draft { payload: ours.payload.clone(), ..draft(after) };
        assert_eq!(found(&later(sequence)).await, Found::Others, "entries before the expected one are not searched");
        assert_eq!(found(&later(sequence + 100)).await, Found::Nothing);
    }

    #[tokio::test]
    async fn a_copy_that_is_stored_too_late_is_not_confirmed_by_an_answer_nor_by_the_feed_nor_when_it_is_found() {
        let (_server, journal) = journal().await;
        let events = [Event::RunClosed];
        let long_ago = ::nats::now().before(2 * run::STORED_WITHIN);
        // As after a stop of this process, in which the moments to give up passed and the confirmation came.
        let late = || {
            let draft = Draft::new(fresh(), &events, None, NOTHING.into(), long_ago).expect("it has a place");
            Draft { give_up: Instant::now() + APPEND_PATIENCE, ..draft }
        };
        let is_unconfirmed = |stored: Result<u64, AppendError>| matches!(stored, Err(AppendError::Unconfirmed { .. }));
        assert!(is_unconfirmed(journal.store(&late(), false).await));
        assert!(is_unconfirmed(journal.store_awaiting(&late(), async { 1 }).await));
        let found = late();
        journal.publish(&found.subject, found.payload.clone(), NOTHING).await.expect("stored");
        assert_eq!(journal.find(&found).await.expect("the log answers"), Found::Void);
        assert!(is_unconfirmed(journal.give_up(&found, String::new()).await));
    }

    #[tokio::test]
    async fn what_is_refused_for_want_of_room_is_confirmed_if_an_earlier_copy_is_in_the_log() {
        let (_server, journal) = journal().await;
        let events = [Event::RunClosed];
        let draft = Draft::new(fresh(), &events, None, NOTHING.into(), ::nats::now()).expect("it has a place");
        let full = || AppendError::Full { is_certain: false };
        let refused = journal.found_or_refused(&draft, full()).await;
        assert!(matches!(refused, Err(AppendError::Full { .. })), "{refused:?}");
        // An unconfirmed copy reached the limit. The broker checks limits first, and rejects the next copy.
        let stored = journal.publish(&draft.subject, draft.payload.clone(), NOTHING).await.expect("stored");
        assert_eq!(journal.found_or_refused(&draft, full()).await.expect("it is there"), stored);
    }

    #[tokio::test]
    async fn a_conflict_with_something_that_the_new_leader_does_not_show_is_not_taken_for_anothers_entry() {
        let (_server, journal) = journal().await;
        let (run, events) = (fresh(), [Event::RunClosed]);
        let draft = Draft::new(run, &events, None, NOTHING.into(), ::nats::now()).expect("it has a place");
        let unknown = journal.found_or_refused(&draft, AppendError::Conflict).await;
        assert!(matches!(unknown, Err(AppendError::Unavailable(_))), "{unknown:?}");
        journal.append(run, &events, None, NOTHING).await.expect("stored");
        let conflict = journal.found_or_refused(&draft, AppendError::Conflict).await;
        assert!(matches!(conflict, Err(AppendError::Conflict)), "{conflict:?}");
    }
}
