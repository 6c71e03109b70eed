//! Entries of runs that stay open for long, kept in a bucket beside the log so that they may leave it. The parts of a
//! run follow one another, and hold what the log held. Runs are read with what is carried of them first
//! ([`super::RunPages`]).
//!
//! Only the owner of a shard carries its runs: each part is stored on condition that the shard's fence is still the one
//! that the owner wrote. So an owner that stood still cannot bring back the beginning of a run that has ended since.

use std::time::Duration;

use async_nats::jetstream::message::PublishMessage;
use bytes::Bytes;
use futures::TryStreamExt as _;
use nats::append::AppendFailure;
use owner::retention::{SETTLED_BEFORE, UNCARRIED_AGE, UNWRITTEN_PERCENT};
use owner::{CarriedTo, Known};
use proto::convert::carried::CarriedPart;
use proto::names;
use run::{RunId, Shard, Timestamp};

use super::pages::{Batch, Stored};
use super::{Journal, PAGE_BYTES, Pace, Page, ReadError, RunPages, WATCHED_PAGE_BYTES, last_message, millis};
use crate::metrics::COUNTS;

/// Bytes of one part, unless a single entry is larger.
const PART_BYTES: usize = 512 * 1024;
/// The header by which the expected sequence is that of another subject (nats-server 2.11).
const EXPECTED_SUBJECT: &str = "Nats-Expected-Last-Subject-Sequence-Subject";

/// Why nothing more of a run is carried.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CarryError {
    #[error("the bucket {} is full: `toolyard log resize` with a larger log, as the operator", names::CARRIED_BUCKET)]
    Full,
    /// Nothing was sent, or it was refused.
    #[error("{0}")]
    NotStored(ReadError),
    /// It may be stored at any moment.
    #[error("the broker did not confirm it: {0}")]
    Unconfirmed(ReadError),
}

impl From<ReadError> for CarryError {
    fn from(error: ReadError) -> Self {
        Self::NotStored(error)
    }
}

/// A part of a run, as the bucket has it.
#[derive(Debug, Default)]
pub(super) struct StoredPart {
    pub(super) number: u64,
    pub(super) part: CarriedPart,
    pub(super) stored_at: Timestamp,
}

impl StoredPart {
    /// The entries of the run up to this one were carried long before `now`.
    pub(super) fn settled(&self, now: Timestamp) -> u64 {
        match self.part.settling {
            _ if is_long_before(self.stored_at, now) => self.part.through(),
            Some((through, since)) if is_long_before(since, now) => through,
            _ => self.part.settled,
        }
    }

    /// As [`CarriedPart::settling`], in a part that is stored after this one or in its place.
    fn settling(&self, now: Timestamp) -> Option<(u64, Timestamp)> {
        let pending = self.part.settling.filter(|(_, since)| !is_long_before(*since, now));
        let stored = (self.part.through(), self.stored_at);
        if is_long_before(self.stored_at, now) { None } else { pending.or(Some(stored)) }
    }

    /// The part as it is stored again, or goes on, at `now`.
    fn at(self, now: Timestamp) -> CarriedPart {
        let (settled, settling) = (self.settled(now), self.settling(now));
        CarriedPart { settled, settling, ..self.part }
    }
}

fn is_long_before(then: Timestamp, now: Timestamp) -> bool {
    now.since(then) >= SETTLED_BEFORE
}

/// The right to carry the runs of a shard, as long as no other owner has written its fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Fence {
    pub(crate) claim: u64,
    /// Its revision in the bucket; 0 for none.
    revision: u64,
}

impl Fence {
    /// One that could not be written.
    pub(crate) fn unwritten(claim: u64) -> Self {
        Self { claim, revision: 0 }
    }
}

/// Entries of a run that are carried, of one part.
#[derive(Debug)]
pub(super) struct CarriedEntries {
    /// The entries of the run up to this one were carried long ago.
    pub(super) settled: u64,
    pub(super) messages: Vec<Stored>,
}

/// What is carried, and until when it is kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Order {
    pub(crate) run: RunId,
    /// The last entry that is carried, as far as the owner knows.
    pub(crate) carried: u64,
    pub(crate) fence: Fence,
    pub(crate) expires: Timestamp,
}

impl Journal {
    /// The entries of a run after `after` that are carried: those of one part, in the order of the log. `None` if none
    /// are.
    pub(super) async fn carried_after(&self, run: RunId, after: u64) -> Result<Option<CarriedEntries>, ReadError> {
        // Boxed, because it is rare.
        Box::pin(self.find_carried(run, after)).await
    }

    async fn find_carried(&self, run: RunId, after: u64) -> Result<Option<CarriedEntries>, ReadError> {
        if ::nats::now().since(run.created_at()) < UNCARRIED_AGE {
            return Ok(None);
        }
        // Most runs have one part. Otherwise the one that is wanted is between these two.
        let mut found = self.stored_part(run, 0).await?;
        if found.as_ref().is_some_and(|found| found.part.through() <= after) {
            let last = self.last_part(run).await?.filter(|last| last.part.through() > after);
            let Some(last) = last else { return Ok(None) };
            let (mut low, mut high) = (0, last.number);
            found = Some(last);
            while high - low > 1 {
                let middle = low + (high - low) / 2;
                match self.stored_part(run, middle).await? {
                    Some(part) if part.part.through() > after => (high, found) = (middle, Some(part)),
                    Some(_) | None => low = middle,
                }
            }
        }
        let entries = |found: StoredPart| {
            let settled = found.settled(::nats::now());
            CarriedEntries { settled, messages: messages(run, found.part, after) }
        };
        Ok(found.map(entries).filter(|entries| !entries.messages.is_empty()))
    }

    /// The entries of a run after `after` that are carried: one page, which is empty if none are.
    pub(crate) async fn carried_page(&self, run: RunId, after: u64) -> Result<Page, ReadError> {
        let Some(CarriedEntries { messages, .. }) = self.carried_after(run, after).await? else {
            return Ok(Page { carried: self.carried_to(run).await?, through: after, ..Page::default() });
        };
        let carried = messages.last().map_or(0, |message| message.sequence);
        let mut bytes = 0;
        let fits = |message: &Stored| {
            let is_room = bytes < WATCHED_PAGE_BYTES;
            bytes += message.payload.len();
            is_room
        };
        let messages: Vec<Stored> = messages.into_iter().take_while(fits).collect();
        Ok(Page { carried, ..Batch { messages, last: false }.page(after) })
    }

    /// The last entry of a run that is carried; 0 if none is.
    pub(crate) async fn carried_to(&self, run: RunId) -> Result<u64, ReadError> {
        if ::nats::now().since(run.created_at()) < UNCARRIED_AGE {
            return Ok(0);
        }
        Ok(Box::pin(self.last_part(run)).await?.map_or(0, |last| last.part.through()))
    }

    /// The carried runs of a shard.
    pub(crate) async fn carried_runs(&self, shard: Shard) -> Result<Vec<RunId>, ReadError> {
        let first_parts = format!("{}{shard}.*.0", self.broker.carried.prefix);
        let subjects = self.carried_subjects(&first_parts).await?;
        let run = |subject: &str| subject.rsplit('.').nth(1)?.parse::<RunId>().ok();
        Ok(subjects.iter().filter_map(|(subject, _)| run(subject)).collect())
    }

    /// A part of a run, from the bucket's leader.
    async fn stored_part(&self, run: RunId, number: u64) -> Result<Option<StoredPart>, ReadError> {
        let place = self.place(run, number);
        let read = || last_message(&self.broker.carried.stream, &place);
        let message = self.patiently("retrying to read what is carried", Pace::Soon, read).await?;
        let Some(message) = message else { return Ok(None) };
        let stored_at = millis(message.time.unix_timestamp_nanos());
        let wrong = |error| ReadError(format!("part {number} of what is carried of run {run}: {error}"));
        let part = CarriedPart::decode(message.payload).map_err(wrong)?;
        Ok(Some(StoredPart { number, part, stored_at }))
    }

    async fn last_part(&self, run: RunId) -> Result<Option<StoredPart>, ReadError> {
        let parts = format!("{}{}.{run}.*", self.prefix(), run.shard());
        let subjects = self.carried_subjects(&parts).await?;
        let number = |subject: &str| subject.rsplit('.').next()?.parse().ok();
        let Some(number) = subjects.iter().filter_map(|(subject, _)| number(subject)).max() else { return Ok(None) };
        self.stored_part(run, number).await
    }

    /// The subjects of the bucket that match a filter, from its leader.
    async fn carried_subjects(&self, filter: &str) -> Result<Vec<(String, usize)>, ReadError> {
        let list = async || {
            let subjects = self.broker.carried.stream.info_with_subjects(filter).await;
            let subjects = subjects.map_err(|error| ReadError::new(&error))?;
            subjects.try_collect().await.map_err(|error| ReadError::new(&error))
        };
        self.patiently("retrying to list what is carried", Pace::Later, list).await
    }

    /// Writes the fence of a shard, unless this claim has written it already. The fence has no revision if a later
    /// owner has written one, or the bucket is full.
    pub(crate) async fn fence(&self, shard: Shard, claim: u64) -> Result<Fence, ReadError> {
        // A copy that comes after one that was stored finds it. One that was sent before conflicts,
        // and is sent again.
        let write = || self.write_fence(shard, claim, false);
        self.patiently("retrying to write the fence of a shard", Pace::Soon, write).await
    }

    /// As [`Self::fence`], and also writes one that this claim has written already. After that the broker stores
    /// nothing that was sent before.
    pub(crate) async fn fence_again(&self, shard: Shard, claim: u64) -> Result<Fence, ReadError> {
        self.write_fence(shard, claim, true).await
    }

    async fn write_fence(&self, shard: Shard, claim: u64, is_again: bool) -> Result<Fence, ReadError> {
        let found = last_message(&self.broker.carried.stream, &self.fence_of(shard)).await?;
        // Claims are compared within one bucket of leases: a restored broker has a new one.
        let leases = self.broker.leases.stream.cached_info().created.unix_timestamp();
        let (revision, by) = found.map_or((0, 0), |message| (message.sequence, claim_of(&message.payload, leases)));
        if by > claim {
            return Ok(Fence::unwritten(claim));
        }
        if by == claim && !is_again {
            return Ok(Fence { claim, revision });
        }
        let claimed = [claim.to_be_bytes(), leases.to_be_bytes()].concat().into();
        let message = PublishMessage::build().payload(claimed).expected_last_subject_sequence(revision);
        match self.send(self.fence_of(shard), message).await {
            Ok(revision) => Ok(Fence { claim, revision }),
            Err(CarryError::Full) => {
                tracing::warn!(%shard, "open runs are not carried: {}", CarryError::Full);
                Ok(Fence::unwritten(claim))
            }
            Err(CarryError::NotStored(error) | CarryError::Unconfirmed(error)) => Err(error),
        }
    }

    fn fence_of(&self, shard: Shard) -> String {
        format!("{}fence.{shard}", self.broker.carried.prefix)
    }

    /// Carries the entries of a run that were stored before `before`. Returns what is carried then. A small last part
    /// grows.
    pub(crate) async fn carry(&self, order: Order, before: Timestamp) -> Result<CarriedTo, CarryError> {
        let last = self.last_part(order.run).await?.unwrap_or_default();
        self.carry_more(order, before, last).await.map(|(to, _)| to)
    }

    /// As [`Self::carry`]. Also returns the number of the first part that was stored.
    async fn carry_more(
        &self,
        order: Order,
        before: Timestamp,
        last: StoredPart,
    ) -> Result<(CarriedTo, u64), CarryError> {
        let run = order.run;
        let (mut number, mut part) = (last.number, last.at(::nats::now()));
        let CarriedPart { settled, settling, .. } = part;
        // A server that was replaced without knowing it yet answers with an older part, which would be written again.
        if part.through() < order.carried {
            return Err(ReadError(format!("entries of run {run} are carried that a server of the broker lacks")).into());
        }
        let (mut through, mut bytes) = (part.through(), part.entries.iter().map(|entry| entry.payload.len()).sum());
        let (mut is_new, mut pages) = (false, RunPages::new(self.clone(), run, PAGE_BYTES).with_messages());
        let mut stored_from = None;
        loop {
            let page = pages.next_known().await?;
            if page.is_cut {
                return Err(ReadError(format!("entries of run {run} left the log while they were carried")).into());
            }
            let messages = page.messages.into_iter().filter(move |message| message.sequence > through);
            for message in messages.take_while(|message| message.at < before) {
                if bytes > 0 && bytes + message.payload.len() > PART_BYTES {
                    let next = CarriedPart { after: through, entries: Vec::new(), settled, settling };
                    let full = std::mem::replace(&mut part, next);
                    if is_new {
                        self.put_part(order, number, full.encode()).await?;
                        stored_from.get_or_insert(number);
                    }
                    (bytes, number) = (0, number + 1);
                }
                bytes += message.payload.len();
                (through, is_new) = (message.sequence, true);
                part.entries.push(message);
            }
            if page.last || pages.through() > through {
                break;
            }
        }
        if is_new {
            self.put_part(order, number, part.encode()).await?;
            stored_from.get_or_insert(number);
        }
        Ok((CarriedTo { through, settled }, stored_from.unwrap_or(number + 1)))
    }

    /// If something is carried of a run that has ended with the entry `last`, carries all of it, and keeps that until
    /// the order expires. If its end has left the log, nothing of it is carried any more: with its beginning alone it
    /// would look open. The same if the bucket is full, unless a history lacks the run and the log has room for the
    /// rest.
    pub(crate) async fn carry_ended(&self, order: Order, last: u64) -> Result<(), CarryError> {
        let Some(part) = self.last_part(order.run).await? else { return Ok(()) };
        match self.carry_whole(order, last, part).await {
            Ok(true) => Ok(()),
            // The history may take it from the log.
            Err(CarryError::Full) if self.is_unwritten(order.run, last) && !self.is_above(UNWRITTEN_PERCENT) => {
                Err(CarryError::Full)
            }
            Ok(false) | Err(CarryError::Full) => {
                if self.is_unwritten(order.run, last) {
                    COUNTS.history_lost_carried.add(1);
                    tracing::error!(run.id = %order.run, "the history will not have a run: it cannot be carried whole");
                }
                Ok(self.erase_carried(order.run).await?)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether there is a history, and it may not have the run yet.
    fn is_unwritten(&self, run: RunId, last: u64) -> bool {
        self.history().is_some_and(|history| history.through(run.shard()).is_none_or(|through| through < last))
    }

    /// Returns `false` if its end has left the log.
    async fn carry_whole(&self, order: Order, last: u64, part: StoredPart) -> Result<bool, CarryError> {
        let (CarriedTo { through, .. }, stored_from) = self.carry_more(order, Timestamp(u64::MAX), part).await?;
        if through < last {
            let is_gone = self.is_gone(order.run.shard(), last).await?;
            return if is_gone { Ok(false) } else { Err(ReadError::disagreeing().into()) };
        }
        // Those that were there before would expire with the deadline of the run.
        for number in 0..stored_from {
            let Some(stored) = self.stored_part(order.run, number).await? else { break };
            self.put_part(order, number, stored.at(::nats::now()).encode()).await?;
        }
        Ok(true)
    }

    async fn put_part(&self, order: Order, number: u64, payload: Bytes) -> Result<(), CarryError> {
        // The broker takes whole seconds, and at least one.
        let kept = order.expires.since(::nats::now()).max(Duration::from_secs(1));
        let message = PublishMessage::build().payload(payload).ttl(kept);
        let message = message.expected_last_subject_sequence(order.fence.revision);
        let message = message.header(EXPECTED_SUBJECT, self.fence_of(order.run.shard()));
        self.send(self.place(order.run, number), message).await.map(drop)
    }

    async fn send(&self, subject: String, message: PublishMessage) -> Result<u64, CarryError> {
        // The library would buffer the message, and send it much later.
        if !self.is_connected() {
            return Err(ReadError::new(&"there is no connection to the broker").into());
        }
        let sent = match self.broker.patient.send_publish(subject, message).await {
            Ok(sent) => sent.await,
            Err(error) => Err(error),
        };
        sent.map(|stored| stored.sequence).map_err(|error| match AppendFailure::of(&error) {
            AppendFailure::Full => CarryError::Full,
            AppendFailure::Conflict | AppendFailure::TooLarge => CarryError::NotStored(ReadError::new(&error)),
            AppendFailure::Unconfirmed => CarryError::Unconfirmed(ReadError::new(&error)),
        })
    }

    /// Forgets what is carried of a run, which nobody carries any more.
    pub(crate) async fn erase_carried(&self, run: RunId) -> Result<(), ReadError> {
        if self.carried_to(run).await? == 0 {
            return Ok(());
        }
        let purge = self.broker.carried.stream.purge().filter(format!("{}{}.{run}.>", self.prefix(), run.shard()));
        purge.await.map(drop).map_err(|error| ReadError::new(&error))
    }

    fn place(&self, run: RunId, number: u64) -> String {
        format!("{}{}.{run}.{number}", self.prefix(), run.shard())
    }

    fn prefix(&self) -> &str {
        &self.broker.carried.prefix
    }

    /// A carried run up to the entry `tip` of the log, at which all of its shard was stored.
    /// What is carried behind it is of a log that was lost, and whose copy was restored: it is forgotten.
    pub(crate) async fn carried_through(&self, run: RunId, fence: Fence, tip: u64) -> Result<Known, ReadError> {
        while let Some(last) = self.last_part(run).await?.filter(|last| last.part.through() > tip) {
            self.forget_after(run, fence, tip, last).await?;
        }
        let (mut known, mut pages) = (Known::new(run), RunPages::new(self.clone(), run, PAGE_BYTES));
        loop {
            let page = pages.next_known().await?;
            if page.is_cut {
                return Err(ReadError(format!("entries of run {run} left the log while they were read")));
            }
            let is_last = page.last;
            page.apply_through(tip, &mut known);
            if is_last {
                return Ok(known);
            }
        }
    }

    async fn forget_after(&self, run: RunId, fence: Fence, tip: u64, last: StoredPart) -> Result<(), ReadError> {
        let StoredPart { number, mut part, .. } = last;
        part.entries.retain(|entry| entry.sequence <= tip);
        (part.settled, part.settling) = (0, None);
        if part.entries.is_empty() {
            let purge = self.broker.carried.stream.purge().filter(self.place(run, number));
            return purge.await.map(drop).map_err(|error| ReadError::new(&error));
        }
        let expires = ::nats::now().after(run::limit::RUN_LIFE_MAX);
        let stored = self.put_part(Order { run, carried: 0, fence, expires }, number, part.encode()).await;
        stored.map_err(|error| ReadError::new(&error))
    }
}

/// The messages of a part after an entry.
pub(super) fn messages(run: RunId, part: CarriedPart, after: u64) -> Vec<Stored> {
    let later = part.entries.into_iter().filter(|entry| entry.sequence > after).collect();
    Batch::of_past(run, later).messages
}

/// The claim of a fence; 0 if it is of another bucket of leases.
fn claim_of(fence: &[u8], leases: i64) -> u64 {
    let (claim, of) = fence.split_at_checked(8).unwrap_or_default();
    let is_of = i64::from_be_bytes(of.try_into().unwrap_or_default()) == leases;
    claim.try_into().ok().filter(|_| is_of).map_or(0, u64::from_be_bytes)
}

#[cfg(test)]
pub(crate) mod tests;
