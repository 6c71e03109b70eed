//! Entries of runs that stay open for long, kept in a bucket beside the log so that they may leave it. The parts of a run
//! follow one another, and hold what the log held. Runs are read with what is carried of them first
//! ([`super::RunPages`]).
//!
//! Only the owner of a shard carries its runs: each part is stored on condition that the shard's fence is still the one
//! that the owner wrote. So an owner that stood still cannot bring back the beginning of a run that has ended since.

use std::time::Duration;

use async_nats::jetstream::kv;
use async_nats::jetstream::message::{PublishMessage, StreamMessage};
use async_nats::jetstream::stream::LastRawMessageErrorKind;
use bytes::Bytes;
use futures::TryStreamExt as _;
use nats::append::AppendFailure;
use owner::Known;
use owner::retention::SETTLED_AFTER;
use proto::convert::carried::{CarriedEntry, CarriedPart};
use proto::names;
use proto::subject;
use run::{RunId, Shard, Timestamp};

use super::pages::{Batch, Stored};
use super::{Journal, PAGE_BYTES, Page, ReadError, RunPages, WATCHED_PAGE_BYTES, counted_bytes, decode};

/// Bytes of one part, unless a single entry is larger.
const PART_BYTES: usize = 512 * 1024;
/// Most parts of a run: a longer one stays in the log.
const PARTS_MAX: u64 = 4096;
/// The header by which the expected sequence is that of another subject (nats-server 2.11).
const EXPECTED_SUBJECT: &str = "Nats-Expected-Last-Subject-Sequence-Subject";

/// What is carried of a run.
#[derive(Debug, Default)]
struct Carried {
    messages: Vec<Stored>,
    /// The content of each part.
    parts: Vec<Bytes>,
}

impl Carried {
    /// The last entry that is carried; 0 if none is.
    fn through(&self) -> u64 {
        self.messages.last().map_or(0, |message| message.sequence)
    }
}

/// The right to carry the runs of a shard, as long as no other owner has written its fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Fence {
    pub(crate) claim: u64,
    /// Its revision in the bucket; 0 for none.
    revision: u64,
}

/// What is carried, and until when it is kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Order {
    pub(crate) run: RunId,
    pub(crate) fence: Fence,
    pub(crate) expires: Timestamp,
}

impl Journal {
    /// What is carried of a run after the entry `after`, in the order of the log.
    pub(super) async fn carried_after(&self, run: RunId, after: u64) -> Result<Vec<Stored>, ReadError> {
        // Boxed, because it is rare.
        let mut messages = Box::pin(self.carried(run)).await?.messages;
        messages.retain(|message| message.sequence > after);
        Ok(messages)
    }

    /// The entries of a run after `after` that are carried: one page, which is empty if none are.
    pub(crate) async fn carried_page(&self, run: RunId, after: u64) -> Result<Page, ReadError> {
        let Carried { mut messages, .. } = Box::pin(self.carried(run)).await?;
        let carried = messages.last().map_or(0, |message| message.sequence);
        messages.retain(|message| message.sequence > after);
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
        Ok(Box::pin(self.carried(run)).await?.through())
    }

    /// The runs of a shard of which something is carried.
    pub(crate) async fn carried_runs(&self, shard: Shard) -> Result<Vec<RunId>, ReadError> {
        let first_parts = format!("{}{shard}.*.0", self.broker.carried.prefix);
        let subjects = self.broker.carried.stream.info_with_subjects(first_parts).await;
        let subjects = subjects.map_err(|error| ReadError::new(&error))?;
        let subjects: Vec<(String, usize)> = subjects.try_collect().await.map_err(|error| ReadError::new(&error))?;
        let run = |subject: &str| subject.rsplit('.').nth(1)?.parse::<RunId>().ok();
        Ok(subjects.iter().filter_map(|(subject, _)| run(subject)).collect())
    }

    /// Reads what is carried of a run from the bucket's leader.
    async fn carried(&self, run: RunId) -> Result<Carried, ReadError> {
        let mut carried = Carried::default();
        if ::nats::now().since(run.created_at()) < SETTLED_AFTER {
            return Ok(carried);
        }
        for number in 0..PARTS_MAX {
            let Some(message) = self.last_carried(&self.place(run, number)).await? else { break };
            let part = CarriedPart::decode(message.payload.clone()).map_err(|error| ReadError::new(&error))?;
            if part.after != carried.through() {
                return Err(ReadError(format!(
                    "part {number} of what is carried of run {run} does not fit the others"
                )));
            }
            carried.messages.extend(part.entries.into_iter().map(|entry| stored(run, entry)));
            carried.parts.push(message.payload);
        }
        Ok(carried)
    }

    async fn last_carried(&self, subject: &str) -> Result<Option<StreamMessage>, ReadError> {
        match self.broker.carried.stream.get_last_raw_message_by_subject(subject).await {
            Ok(message) => Ok(Some(message)),
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(None),
            Err(error) => Err(ReadError::new(&error)),
        }
    }

    /// Writes the fence of a shard, if it is not that of this claim already, or `anew`: then nothing is stored any more
    /// that was sent before. Without a revision if a later owner has written it.
    pub(crate) async fn fence(&self, shard: Shard, claim: u64, anew: bool) -> Result<Fence, ReadError> {
        let found = self.last_carried(&self.fence_of(shard)).await?;
        let of = |message: &StreamMessage| <[u8; 8]>::try_from(&*message.payload).map_or(0, u64::from_be_bytes);
        let (revision, by) = found.map_or((0, 0), |message| (message.sequence, of(&message)));
        if by > claim {
            return Ok(Fence { claim, revision: 0 });
        }
        if by == claim && !anew {
            return Ok(Fence { claim, revision });
        }
        let claimed = Bytes::copy_from_slice(&claim.to_be_bytes());
        let written = self.broker.carried.update(format!("fence.{shard}"), claimed, revision).await;
        let revision = written.map_err(|error| match error.kind() {
            kv::UpdateErrorKind::WrongLastRevision => ReadError::new(&"another owner writes the fence of the shard"),
            _ => ReadError::new(&error),
        })?;
        Ok(Fence { claim, revision })
    }

    fn fence_of(&self, shard: Shard) -> String {
        format!("{}fence.{shard}", self.broker.carried.prefix)
    }

    /// Carries the entries of a run that were stored before `before`. Returns the last entry that is carried; 0 if none
    /// is.
    pub(crate) async fn carry(&self, order: Order, before: Timestamp) -> Result<u64, ReadError> {
        let carried = self.carried(order.run).await?;
        let (mut through, mut number) = (carried.through(), carried.parts.len() as u64);
        let mut part = CarriedPart { after: through, entries: Vec::new() };
        let (mut bytes, mut pages) = (0, RunPages::new(self.clone(), order.run, PAGE_BYTES).with_messages());
        loop {
            let page = pages.next_known().await?;
            if page.is_cut {
                return Err(ReadError(format!("entries of run {} left the log while they were carried", order.run)));
            }
            let messages = page.messages.into_iter().filter(move |message| message.sequence > through);
            for message in messages.take_while(|message| message.at < before) {
                if bytes > 0 && bytes + message.payload.len() > PART_BYTES {
                    let next = CarriedPart { after: through, entries: Vec::new() };
                    self.put_part(order, number, std::mem::replace(&mut part, next).encode()).await?;
                    (bytes, number) = (0, number + 1);
                }
                bytes += message.payload.len();
                through = message.sequence;
                part.entries.push(entry(order.run, message));
            }
            if page.last || pages.through() > through {
                break;
            }
        }
        if !part.entries.is_empty() {
            self.put_part(order, number, part.encode()).await?;
        }
        Ok(through)
    }

    /// If something is carried of a run that has ended, carries all of it, and keeps that until the order expires.
    pub(crate) async fn carry_ended(&self, order: Order) -> Result<(), ReadError> {
        if self.carried_to(order.run).await? == 0 {
            return Ok(());
        }
        self.carry(order, Timestamp(u64::MAX)).await?;
        for (number, payload) in (0..).zip(self.carried(order.run).await?.parts) {
            self.put_part(order, number, payload).await?;
        }
        Ok(())
    }

    async fn put_part(&self, order: Order, number: u64, payload: Bytes) -> Result<(), ReadError> {
        if number >= PARTS_MAX {
            return Err(ReadError(format!("run {} is too long to be carried", order.run)));
        }
        // The library would buffer the message, and send it much later.
        if !self.is_connected() {
            return Err(ReadError::new(&"there is no connection to the broker"));
        }
        // The broker takes whole seconds, and at least one.
        let kept = order.expires.since(::nats::now()).max(Duration::from_secs(1));
        let message = PublishMessage::build().payload(payload).ttl(kept);
        let message = message.expected_last_subject_sequence(order.fence.revision);
        let message = message.header(EXPECTED_SUBJECT, self.fence_of(order.run.shard()));
        let sent = match self.broker.patient.send_publish(self.place(order.run, number), message).await {
            Ok(sent) => sent.await,
            Err(error) => Err(error),
        };
        sent.map(drop).map_err(|error| match AppendFailure::of(&error) {
            AppendFailure::Full => ReadError(format!(
                "the bucket {} is full: `toolyard log resize` with a larger log, as the operator",
                names::CARRIED_BUCKET
            )),
            AppendFailure::Conflict | AppendFailure::TooLarge | AppendFailure::Unconfirmed => ReadError::new(&error),
        })
    }

    /// Forgets what is carried of a run, which nobody carries any more.
    pub(super) async fn erase_carried(&self, run: RunId) -> Result<(), ReadError> {
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

    /// A run of which something is carried, up to the entry `tip` of the log, at which all of its shard was stored. What
    /// is carried behind it is of a log that was lost, and whose copy was restored: it is forgotten.
    pub(crate) async fn carried_through(&self, run: RunId, fence: Fence, tip: u64) -> Result<Known, ReadError> {
        let (mut known, mut pages) = (Known::new(run), RunPages::new(self.clone(), run, PAGE_BYTES));
        loop {
            let page = pages.next_known().await?;
            if page.is_cut {
                return Err(ReadError(format!("entries of run {run} left the log while they were read")));
            }
            if page.carried > tip {
                self.forget_carried_after(run, fence, tip).await?;
                (known, pages) = (Known::new(run), RunPages::new(self.clone(), run, PAGE_BYTES));
                continue;
            }
            let is_last = page.last;
            page.apply_through(tip, &mut known);
            if is_last {
                return Ok(known);
            }
        }
    }

    /// The last parts first: the others are a beginning of the run at any time.
    async fn forget_carried_after(&self, run: RunId, fence: Fence, tip: u64) -> Result<(), ReadError> {
        let parts = self.carried(run).await?.parts;
        for (number, payload) in (0..).zip(parts).collect::<Vec<_>>().into_iter().rev() {
            let mut part = CarriedPart::decode(payload).map_err(|error| ReadError::new(&error))?;
            let before = part.entries.len();
            part.entries.retain(|entry| entry.sequence <= tip);
            if part.entries.is_empty() {
                let purge = self.broker.carried.stream.purge().filter(self.place(run, number));
                purge.await.map_err(|error| ReadError::new(&error))?;
            } else if part.entries.len() < before {
                let expires = ::nats::now().after(run::limit::RUN_LIFE_MAX);
                self.put_part(Order { run, fence, expires }, number, part.encode()).await?;
            }
        }
        Ok(())
    }
}

fn stored(run: RunId, entry: CarriedEntry) -> Stored {
    let CarriedEntry { place, sequence, at, payload } = entry;
    let subject = format!("{}{place}", in_front(run));
    let bytes = counted_bytes(u32::try_from(payload.len()).unwrap_or(u32::MAX));
    let what = decode(&subject, payload.clone(), sequence, at);
    Stored { sequence, subject, bytes, what, at, payload }
}

fn entry(run: RunId, message: Stored) -> CarriedEntry {
    let Stored { sequence, subject, at, payload, .. } = message;
    let place = subject.strip_prefix(&in_front(run)).unwrap_or(&subject).to_owned();
    CarriedEntry { place, sequence, at, payload }
}

/// The beginning of all subjects of a run.
fn in_front(run: RunId) -> String {
    let all = subject::of_run(run);
    all.strip_suffix('>').unwrap_or(&all).to_owned()
}

#[cfg(test)]
mod tests;
