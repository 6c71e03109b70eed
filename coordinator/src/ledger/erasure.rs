//! Runs of which nothing is kept: the owner of their shard erases them when whoever still reads had time to.
//!
//! What is owed stands in the shard's snapshot until it is done, so that the next owner does it where this one dies, and a
//! run is erased only when a snapshot says that it ended: no owner then looks for entries that are gone. Each step may be
//! repeated, and ends at a place in the log: the same request may make the run anew. The log comes last but for the index,
//! for it is what the other steps are known from.

use std::collections::{BTreeMap, HashMap};

use faces::responses::ResponseId;
use futures::future::join_all;
use proto::convert::snapshot::OwedErasure;
use run::{Call, Route, RunId, Shard, Timestamp};
use tokio::task::JoinSet;

use super::Keeper;
use crate::known::Known;
use crate::nats::journal::{Journal, ReadError};
use crate::nats::letters::Queue;
use crate::nats::objects::Objects;
use crate::nats::requests::Requests;
use crate::requests::RequestKey;
use crate::shards::every;

/// Runs that are erased together, and of those at once: the broker takes one after the other anyway.
const BATCH_MAX: usize = 1024;
const AT_ONCE_MAX: usize = 8;
/// Runs with late entries that may wait to be looked at; of more, the entries stay until the log drops them.
const STRAYS_MAX: usize = 1024;

/// Ended runs of a shard that are still to be erased.
#[derive(Debug, Default)]
pub(super) struct Owed(HashMap<RunId, Owing>);

#[derive(Debug)]
struct Owing {
    erasure: OwedErasure,
    step: Step,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Waiting,
    UnderWay,
    /// Nothing is left but what the index knows.
    LeftInIndex,
}

/// What is being erased, for all shards.
#[derive(Debug, Default)]
pub(super) struct Erasures {
    pub(super) batches: JoinSet<Erased>,
    /// Runs that are not open, each with the last entry that came for it: of a run that was erased nothing may come back.
    strays: BTreeMap<RunId, u64>,
    pub(super) looks: JoinSet<()>,
}

/// The end of an attempt to erase runs: of each whether it is done.
#[derive(Debug)]
pub(super) struct Erased(Vec<(OwedErasure, Result<(), ReadError>)>);

impl Owed {
    pub(super) fn of(erasures: Vec<OwedErasure>) -> Self {
        let owing = |erasure: OwedErasure| (erasure.run, Owing { erasure, step: Step::Waiting });
        Self(erasures.into_iter().map(owing).collect())
    }

    pub(super) fn list(&self) -> Vec<OwedErasure> {
        self.0.values().map(|owing| owing.erasure).collect()
    }

    fn due(&mut self, now: Timestamp, written: u64) -> impl Iterator<Item = &mut Owing> {
        self.0.values_mut().filter(move |owing| {
            let OwedErasure { due, through, .. } = owing.erasure;
            owing.step == Step::Waiting && due <= now && through <= written
        })
    }

    /// A run has ended. Most are kept.
    pub(super) fn take(&mut self, known: &Known) {
        let run = &known.run;
        let (Some(due), Some(asked)) = (run.erase_at(), run.erasure()) else { return };
        // The response of a run is continued where its client was waited for.
        let waited = |call: &&Call| call.spec().route == Route::Client || call.spec().approval.is_some();
        let continuations = u32::try_from(run.calls().iter().filter(waited).count()).unwrap_or(u32::MAX);
        let erasure = OwedErasure { run: run.id(), due, through: known.last, request: asked.request, continuations };
        self.0.insert(run.id(), Owing { erasure, step: Step::Waiting });
    }

    /// An entry came for a run after its end. Says whether the run is to be erased, and then that entry with it.
    fn take_late(&mut self, run: RunId, sequence: u64) -> bool {
        let Some(owing) = self.0.get_mut(&run) else { return false };
        (owing.erasure.through, owing.step) = (sequence, Step::Waiting);
        true
    }
}

impl Keeper {
    /// The shard is not ours any more.
    pub(super) fn drop_strays(&mut self, shard: Shard) {
        self.erasures.strays.retain(|run, _| run.shard() != shard);
    }

    /// An entry came for a run that is not open.
    pub(super) fn note_stray(&mut self, run: RunId, sequence: u64) {
        let Some(slice) = self.slice_mut(run.shard()) else { return };
        if !slice.owed.take_late(run, sequence) && self.erasures.strays.len() < STRAYS_MAX {
            self.erasures.strays.insert(run, sequence);
        }
    }

    /// Erases what is due, and late entries of what was erased.
    pub(super) fn erase_due(&mut self) {
        let now = proto::now();
        let ours: Vec<Shard> = every().filter(|shard| self.may_act(*shard)).collect();
        ours.iter().for_each(|shard| self.settle(*shard));
        self.look_at_strays();
        if !self.erasures.batches.is_empty() {
            return;
        }
        let slices = self.slices.iter_mut().zip(every()).filter(|(_, shard)| ours.contains(shard));
        let due = slices.flat_map(|(slice, _)| slice.owed.due(now, slice.snapshot.through));
        let due: Vec<OwedErasure> = due.take(BATCH_MAX).map(Owing::begin).collect();
        if !due.is_empty() {
            let (journal, requests) = (self.rim.journal.clone(), self.rim.requests.clone());
            let (objects, letters) = (self.rim.objects.clone(), self.rim.letters.clone());
            let places = Places { journal, requests, objects, letters };
            self.erasures.batches.spawn(async move { places.erase_all(due).await });
        }
    }

    /// What the index has forgotten too is no longer owed.
    fn settle(&mut self, shard: Shard) {
        let Some(slice) = self.slices.get_mut(usize::from(shard.0)) else { return };
        let before = slice.owed.0.len();
        slice.owed.0.retain(|run, owing| owing.step != Step::LeftInIndex || self.rim.index.is_erasing(*run));
        slice.snapshot.outdated |= slice.owed.0.len() < before;
    }

    pub(super) fn erased(&mut self, Erased(batch): Erased) {
        let mut failed = None;
        for (OwedErasure { run, through, .. }, result) in batch {
            let Some(slice) = self.slices.get_mut(usize::from(run.shard().0)) else { continue };
            // The shard may have been lost, and an entry may have come late.
            let owing = slice.owed.0.get_mut(&run).filter(|owing| owing.erasure.through == through);
            match (owing, result) {
                (Some(owing), Ok(())) => {
                    owing.step = Step::LeftInIndex;
                    slice.ended.forget(run);
                    self.rim.index.erase(run, through);
                }
                (Some(owing), Err(error)) => {
                    owing.step = Step::Waiting;
                    failed = Some(error);
                }
                (None, _) => {}
            }
        }
        if let Some(error) = failed {
            let remedy = "where this stays so: is the coordinator allowed to purge? `toolyard nats-config` says so";
            tracing::warn!(%error, remedy, "runs cannot be erased, trying again");
        }
    }

    fn look_at_strays(&mut self) {
        let room = AT_ONCE_MAX.saturating_sub(self.erasures.looks.len());
        let ready = self.erasures.strays.iter().filter(|(run, _)| self.may_act(run.shard()));
        for (run, sequence) in ready.map(|(run, sequence)| (*run, *sequence)).take(room).collect::<Vec<_>>() {
            self.erasures.strays.remove(&run);
            let journal = self.rim.journal.clone();
            self.erasures.looks.spawn(async move {
                if let Err(error) = erase_if_orphan(&journal, run, sequence).await {
                    tracing::warn!(run.id = %run, %error, "late entries of a run that was erased may be left");
                }
            });
        }
    }
}

impl Owing {
    fn begin(&mut self) -> OwedErasure {
        self.step = Step::UnderWay;
        self.erasure
    }
}

/// Where something of a run stands.
struct Places {
    journal: Journal,
    requests: Requests,
    objects: Objects,
    letters: Option<Queue>,
}

impl Places {
    /// Until something cannot be done: what is left is tried again with the rest.
    async fn erase_all(&self, due: Vec<OwedErasure>) -> Erased {
        let mut done = Vec::with_capacity(due.len());
        let mut refused = None;
        for some in due.chunks(AT_ONCE_MAX) {
            if let Some(error) = &refused {
                done.extend(some.iter().map(|owed| (*owed, Err(ReadError::clone(error)))));
                continue;
            }
            let results = join_all(some.iter().map(|owed| self.erase(*owed))).await;
            refused = results.iter().find_map(|result| result.as_ref().err().cloned());
            done.extend(some.iter().copied().zip(results));
        }
        Erased(done)
    }

    /// All that there is of a run, but for what the index knows.
    async fn erase(&self, owed: OwedErasure) -> Result<(), ReadError> {
        let run = owed.run;
        if let Some(digest) = owed.request {
            self.requests.erase(&RequestKey(digest), run).await?;
        }
        // That a response was deleted is noted under its id.
        for part in 0..=owed.continuations {
            self.requests.erase(&RequestKey::deleted(&ResponseId { run, part }.to_string()), run).await?;
        }
        if let Some(letters) = &self.letters {
            letters.erase(run).await?;
        }
        self.objects.remove_run(run).await?;
        self.journal.erase(run, owed.through).await
    }
}

/// A worker that stood still may speak when its run is long erased.
async fn erase_if_orphan(journal: &Journal, run: RunId, sequence: u64) -> Result<(), ReadError> {
    if journal.is_orphan(run, sequence).await? { journal.erase(run, sequence).await } else { Ok(()) }
}
