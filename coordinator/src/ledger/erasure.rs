//! Runs of which nothing is kept: the owner of their shard erases them when whoever still reads had time to.
//!
//! What is owed stands in the shard's snapshot until it is done, so that the next owner does it where this one dies, and a
//! run is erased only when a snapshot says that it ended: no owner then looks for entries that are gone. Each step may be
//! repeated, and ends at a place in the log: the same request may make the run anew. The log comes last but for the index,
//! for it is what the other steps are known from. It does not wait for a store of objects that is away: those stay owed.

use std::collections::{BTreeMap, HashMap};

use faces::responses::ResponseId;
use futures::future::join_all;
use proto::convert::snapshot::OwedErasure;
use run::{Call, Route, RunId, Shard, TenantId, Timestamp};
use store::{Objects, Unread};
use tokio::task::JoinSet;

use super::Keeper;
use crate::known::Known;
use crate::nats::journal::{Journal, ReadError};
use crate::nats::letters::Queue;
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
    /// What its tenant has less in the log once it is erased, as far as that was counted here.
    bytes: Option<(TenantId, u64)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Waiting(Left),
    UnderWay,
    /// Nothing is left but what the index knows.
    LeftInIndex,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    All,
    /// The log has nothing of the run any more.
    Objects,
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
pub(super) struct Erased(Vec<(OwedErasure, Result<(), Unerased>)>);

/// What could not be erased of a run.
#[derive(Debug, Clone, thiserror::Error)]
enum Unerased {
    #[error("{0}")]
    Run(ReadError),
    /// All else is gone.
    #[error("{0}")]
    Objects(Unread),
}

impl Unerased {
    fn remedy(&self) -> &'static str {
        match self {
            Self::Run(_) => "where this stays so: is the coordinator allowed to purge? `toolyard nats-config` says so",
            Self::Objects(_) => {
                "only objects are left, in the object store; where this stays so: does it answer, and is the coordinator \
                 allowed to list and to delete there? docs/objects.md has the rights"
            }
        }
    }
}

impl Owed {
    pub(super) fn of(erasures: Vec<OwedErasure>) -> Self {
        let owing =
            |erasure: OwedErasure| (erasure.run, Owing { erasure, step: Step::Waiting(Left::All), bytes: None });
        Self(erasures.into_iter().map(owing).collect())
    }

    pub(super) fn list(&self) -> Vec<OwedErasure> {
        self.0.values().map(|owing| owing.erasure).collect()
    }

    fn due(&mut self, left: Left, now: Timestamp, written: u64) -> impl Iterator<Item = &mut Owing> {
        self.0.values_mut().filter(move |owing| {
            let OwedErasure { due, through, .. } = owing.erasure;
            owing.step == Step::Waiting(left) && due <= now && through <= written
        })
    }

    /// A run has ended. Most are kept.
    pub(super) fn take(&mut self, known: &Known, bytes: u64) {
        let run = &known.run;
        let (Some(due), Some(asked)) = (run.erase_at(), run.erasure()) else { return };
        // The response of a run is continued where its client was waited for.
        let waited = |call: &&Call| call.spec().route == Route::Client || call.spec().approval.is_some();
        let continuations = u32::try_from(run.calls().iter().filter(waited).count()).unwrap_or(u32::MAX);
        let erasure = OwedErasure { run: run.id(), due, through: known.last, request: asked.request, continuations };
        let bytes = run.tenant().map(|tenant| (tenant.clone(), bytes));
        self.0.insert(run.id(), Owing { erasure, step: Step::Waiting(Left::All), bytes });
    }

    /// An entry came for a run after its end. Says whether the run is to be erased, and then that entry with it.
    fn take_late(&mut self, run: RunId, sequence: u64) -> bool {
        let Some(owing) = self.0.get_mut(&run) else { return false };
        (owing.erasure.through, owing.step) = (sequence, Step::Waiting(Left::All));
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
        let mut due = Vec::new();
        // Objects that could not be removed before hold nothing else up.
        for left in [Left::All, Left::Objects] {
            let slices = self.slices.iter_mut().zip(every()).filter(|(_, shard)| ours.contains(shard));
            let found = slices.flat_map(|(slice, _)| slice.owed.due(left, now, slice.snapshot.through));
            let room = BATCH_MAX.saturating_sub(due.len());
            due.extend(found.take(room).map(|owing| (owing.begin(), left)));
        }
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
                    if let Some((tenant, bytes)) = owing.bytes.take() {
                        slice.log_bytes.release(&tenant, run.created_at(), bytes);
                    }
                    slice.ended.forget(run);
                    self.rim.index.erase(run, through);
                }
                (Some(owing), Err(error)) => {
                    match &error {
                        Unerased::Run(_) => owing.step = Step::Waiting(Left::All),
                        Unerased::Objects(_) => {
                            owing.step = Step::Waiting(Left::Objects);
                            slice.ended.forget(run);
                            self.rim.index.erase(run, through);
                        }
                    }
                    failed = Some(error);
                }
                (None, _) => {}
            }
        }
        if let Some(error) = failed {
            tracing::warn!(%error, remedy = error.remedy(), "runs cannot be erased, trying again");
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

/// What could not be done for a run, so that it is not tried for those behind it.
#[derive(Default)]
struct Refused {
    run: Option<ReadError>,
    objects: Option<Unread>,
}

impl Places {
    /// What cannot be done for one is left for the rest, too, and tried again with it.
    async fn erase_all(&self, due: Vec<(OwedErasure, Left)>) -> Erased {
        let mut done = Vec::with_capacity(due.len());
        let mut refused = Refused::default();
        for some in due.chunks(AT_ONCE_MAX) {
            let results = join_all(some.iter().map(|(owed, left)| self.erase(*owed, *left, &refused))).await;
            for error in results.iter().filter_map(|result| result.as_ref().err()) {
                match error.clone() {
                    Unerased::Run(error) => refused.run = Some(error),
                    Unerased::Objects(error) => refused.objects = Some(error),
                }
            }
            done.extend(some.iter().map(|(owed, _)| *owed).zip(results));
        }
        Erased(done)
    }

    /// All that there is of a run, but for what the index knows; or only its objects.
    async fn erase(&self, owed: OwedErasure, left: Left, refused: &Refused) -> Result<(), Unerased> {
        if left == Left::Objects {
            return self.erase_objects(owed.run, refused).await.map_err(Unerased::Objects);
        }
        if let Some(error) = &refused.run {
            return Err(Unerased::Run(error.clone()));
        }
        self.erase_requests(owed).await.map_err(Unerased::Run)?;
        let objects = self.erase_objects(owed.run, refused).await;
        self.journal.erase(owed.run, owed.through).await.map_err(Unerased::Run)?;
        objects.map_err(Unerased::Objects)
    }

    async fn erase_requests(&self, owed: OwedErasure) -> Result<(), ReadError> {
        let run = owed.run;
        if let Some(digest) = owed.request {
            self.requests.erase(&RequestKey(digest), run).await?;
        }
        // That a response was deleted is noted under its id.
        for part in 0..=owed.continuations {
            self.requests.erase(&RequestKey::deleted(&ResponseId { run, part }.to_string()), run).await?;
        }
        match &self.letters {
            Some(letters) => letters.erase(run).await,
            None => Ok(()),
        }
    }

    async fn erase_objects(&self, run: RunId, refused: &Refused) -> Result<(), Unread> {
        match &refused.objects {
            Some(error) => Err(error.clone()),
            None => self.objects.remove_run(run).await,
        }
    }
}

/// A worker that stood still may speak when its run is long erased.
async fn erase_if_orphan(journal: &Journal, run: RunId, sequence: u64) -> Result<(), ReadError> {
    if journal.is_orphan(run, sequence).await? { journal.erase(run, sequence).await } else { Ok(()) }
}
