//! Erasing runs: the owner of their shard erases them a while after their end, so that readers have time.
//!
//! Pending erasures are part of the shard's snapshot until they are done, so that the next owner continues if this one
//! dies. A run is erased only after a snapshot has recorded its end, so no owner looks for entries that are gone. Each
//! step may be repeated, and covers the log up to one position, because the same request may open the run again. The
//! log is erased last except for the index, because the other steps are derived from it. If the object store is not
//! available, the run is erased all the same and its objects stay pending.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use ::history::{History, HistoryError};
use ::objects::Objects;
use formats::openai::responses::ResponseId;
use futures::future::join_all;
use owner::OpenRun;
use owner::erasure::{Left, OwedErasure, REQUESTED_MAX, erase_request};
use run::{Entry, Partition, RunId, Shard};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::OwnerTask;
use crate::metrics::COUNTS;
use crate::nats::journal::{Journal, Journals, ReadError};
use crate::nats::notifications::Queue;
use crate::nats::requests::Requests;
use crate::nats::scan::Log;
use crate::requests::RequestKey;
use crate::shards::{Owned, every};

/// The most runs that are erased together, and of those concurrently. The broker processes the requests one after the
/// other anyway.
const BATCH_MAX: usize = 1024;
const AT_ONCE_MAX: usize = 8;
/// How long requests may be read from the log in one go.
const REFILL_TIME_MAX: Duration = Duration::from_secs(30);
/// How long runs of a partition that did not erase one are left alone, if there are others.
const LEFT_ALONE: Duration = Duration::from_secs(5);
/// The most runs with late entries that wait for a check. Beyond that, the entries stay until the log drops them.
const STRAYS_MAX: usize = 1024;

/// The erasures in progress, for all shards.
#[derive(Debug, Default)]
pub(super) struct InProgress {
    pub(super) batches: JoinSet<Erased>,
    /// Runs that are not open, each with the last late entry. An erased run must not come back.
    strays: BTreeMap<RunId, u64>,
    pub(super) looks: JoinSet<()>,
    pub(super) refills: JoinSet<Refilled>,
    /// Partitions that did not erase a run, which must not keep the others waiting.
    failed: HashMap<Partition, Instant>,
}

/// Operators' requests that did not fit before and were read from the log again.
#[derive(Debug)]
pub(super) struct Refilled {
    shard: Shard,
    from: u64,
    requests: Vec<(RunId, Arc<Entry>)>,
    /// The first entry whose requests are still to be read; `None` if all were.
    next: Option<u64>,
}

/// The result of an attempt to erase runs: for each run whether it is done.
#[derive(Debug)]
pub(super) struct Erased(Vec<(OwedErasure, Result<(), Unerased>)>);

/// The part of a run that could not be erased.
#[derive(Debug, Clone, thiserror::Error)]
enum Unerased {
    #[error("{0}")]
    Run(ReadError),
    /// Everything except the objects is erased.
    #[error("{0}")]
    Objects(::objects::ReadError),
    /// Everything except what the history has is erased.
    #[error("{0}")]
    History(HistoryError),
}

impl Unerased {
    fn left(&self) -> Left {
        match self {
            Self::Run(_) => Left::All,
            Self::Objects(_) | Self::History(_) => Left::Objects,
        }
    }

    fn remedy(&self) -> &'static str {
        match self {
            Self::Run(_) => "if this persists, check that the coordinator may purge: see `toolyard nats-config`",
            Self::History(_) => {
                "only the history still has the runs. If this persists, check that its store responds: see \
                 docs/howto/history.md"
            }
            Self::Objects(_) => {
                "only objects are left. If this persists, check that the object store responds and that the \
                 coordinator may list and delete objects: see docs/howto/objects.md"
            }
        }
    }
}

/// Counts an entry of an open run. The owner that took the run over while it was open did not count the entries before
/// that, and a request to erase the run has their bytes.
pub(super) fn count_entry(open: &mut OpenRun, entry: &Entry, stored: u64) {
    open.stored_bytes += stored;
    if let Some(request) = erase_request(entry) {
        open.stored_bytes = open.stored_bytes.max(request.bytes + stored);
    }
}

impl OwnerTask {
    /// Forgets the late entries of a shard that is not ours any more.
    pub(super) fn drop_strays(&mut self, shard: Shard) {
        self.erasures.strays.retain(|run, _| run.shard() != shard);
    }

    /// Notes an entry of a run that is not open.
    pub(super) fn note_stray(&mut self, run: RunId, sequence: u64) {
        let Some(slice) = self.slice_mut(run.shard()) else { return };
        if !slice.owed.take_late(run, sequence) && self.erasures.strays.len() < STRAYS_MAX {
            self.erasures.strays.insert(run, sequence);
        }
    }

    /// Erases runs that are due, and late entries of erased runs.
    pub(super) fn erase_due(&mut self) {
        let now = ::nats::now();
        let ours: Vec<Shard> = every().filter(|shard| self.may_act(*shard)).collect();
        ours.iter().for_each(|shard| self.settle(*shard));
        ours.iter().for_each(|shard| self.refill(*shard));
        self.look_at_strays();
        if !self.erasures.batches.is_empty() {
            return;
        }
        let failed = &mut self.erasures.failed;
        failed.retain(|_, since| since.elapsed() < LEFT_ALONE);
        let mut due = Vec::new();
        // Objects that could not be removed before do not delay other runs.
        for left in [Left::All, Left::Objects] {
            let is_tried = |shard: &Shard| ours.contains(shard) && !failed.contains_key(&shard.partition());
            for (slice, _) in self.slices.iter_mut().zip(every()).filter(|(_, shard)| is_tried(shard)) {
                let room = BATCH_MAX.saturating_sub(due.len());
                for erasure in slice.owed.begin(left, now, slice.snapshot.schedule.through(), room) {
                    if self.carrying.holds(erasure.run) {
                        // Nothing of it must be carried afterwards.
                        slice.owed.handle_erased(erasure.run, erasure.through, Err(left));
                    } else {
                        due.push((erasure, left));
                    }
                }
            }
        }
        if !due.is_empty() {
            let (journals, requests) = (self.io.journals.clone(), self.io.requests.clone());
            let (objects, letters) = (self.io.objects.clone(), self.io.letters.clone());
            let (history, owned) = (self.io.history.clone(), self.io.owned.clone());
            let places = Places { journals, requests, objects, history, owned, letters };
            self.erasures.batches.spawn(async move { places.erase_all(due).await });
        }
    }

    /// Removes erasures that the index has completed too.
    fn settle(&mut self, shard: Shard) {
        let Some(slice) = self.slices.get_mut(usize::from(shard.0)) else { return };
        let forgotten = slice.owed.left_in_index().filter(|run| !self.io.index.is_erasing(*run));
        for run in forgotten.collect::<Vec<_>>() {
            slice.owed.handle_forgotten(run);
            slice.snapshot.schedule.outdate();
        }
    }

    /// Reads operators' requests that did not fit from the log again, once there is room for many.
    fn refill(&mut self, shard: Shard) {
        let Some(from) = self.slice_mut(shard).and_then(|slice| slice.owed.begin_refill()) else { return };
        let log = self.io.log.clone();
        self.erasures.refills.spawn(async move { refill(&log, shard, from).await });
    }

    pub(super) fn refilled(&mut self, refilled: Refilled) {
        let Refilled { shard, from, requests, next } = refilled;
        let Some(slice) = self.slices.get_mut(usize::from(shard.0)) else { return };
        let is_open = |run: RunId| self.owner.shard(run.shard()).is_some_and(|state| state.is_open(run));
        let Some(taken) = slice.owed.handle_refilled(from, &requests, next, is_open) else { return };
        slice.snapshot.schedule.outdate();
        taken.into_iter().for_each(|run| self.owner.forget_ended(run));
    }

    pub(super) fn erased(&mut self, Erased(batch): Erased) {
        let mut failed = None;
        for (OwedErasure { run, through, .. }, result) in batch {
            let Some(slice) = self.slices.get_mut(usize::from(run.shard().0)) else { continue };
            let left = result.as_ref().map_or_else(|error| Err(error.left()), |()| Ok(()));
            let Some(attempted) = slice.owed.handle_erased(run, through, left) else { continue };
            if let Some((tenant, bytes)) = attempted.released {
                slice.log_bytes.release(&tenant, run.created_at(), bytes);
            }
            if attempted.has_left_log {
                self.owner.forget_ended(run);
                self.owner.handle_carried_whole(run);
                self.io.index.erase(run, through);
            }
            COUNTS.erasures_failed.add(u64::from(result.is_err()));
            if matches!(result, Err(Unerased::Run(_))) && self.io.journals.count() > 1 {
                self.erasures.failed.insert(run.shard().partition(), Instant::now());
            }
            failed = result.err().or(failed);
        }
        match failed {
            Some(error) => tracing::warn!(%error, remedy = error.remedy(), "erasing runs failed, trying again"),
            // Continues with the next batch until none is left.
            None => self.erase_due(),
        }
    }

    fn look_at_strays(&mut self) {
        let room = AT_ONCE_MAX.saturating_sub(self.erasures.looks.len());
        let ready = self.erasures.strays.iter().filter(|(run, _)| self.may_act(run.shard()));
        for (run, sequence) in ready.map(|(run, sequence)| (*run, *sequence)).take(room).collect::<Vec<_>>() {
            self.erasures.strays.remove(&run);
            let (journal, objects) = (self.io.journals.of(run), self.io.objects.clone());
            self.erasures.looks.spawn(async move {
                if let Err(error) = erase_if_orphan(&journal, &objects, run, sequence).await {
                    tracing::warn!(run.id = %run, %error, "erasing late entries of an erased run failed");
                }
            });
        }
    }
}

/// The stores that hold parts of a run.
struct Places {
    journals: Journals,
    requests: Requests,
    objects: Objects,
    history: Option<History>,
    owned: watch::Receiver<Owned>,
    letters: Option<Queue>,
}

/// Erasures that failed for one run and are therefore not tried for the runs after it.
#[derive(Default)]
struct Refused {
    /// By the partition that failed.
    runs: HashMap<Partition, ReadError>,
    objects: Option<::objects::ReadError>,
    history: Option<HistoryError>,
}

impl Places {
    /// If a step fails for one run, it is skipped for the rest and retried later for all.
    async fn erase_all(&self, due: Vec<(OwedErasure, Left)>) -> Erased {
        let mut done = Vec::with_capacity(due.len());
        let mut refused = Refused::default();
        for some in due.chunks(AT_ONCE_MAX) {
            let results = join_all(some.iter().map(|(owed, left)| self.erase(owed, *left, &refused))).await;
            let failed = some.iter().zip(&results).filter_map(|(owed, result)| Some((owed, result.as_ref().err()?)));
            for ((owed, _), error) in failed {
                match error.clone() {
                    Unerased::Run(error) => drop(refused.runs.insert(owed.run.shard().partition(), error)),
                    Unerased::Objects(error) => refused.objects = Some(error),
                    Unerased::History(error @ HistoryError::Unavailable(_)) => refused.history = Some(error),
                    // Of this run or its shard alone, and known at once.
                    Unerased::History(_) => {}
                }
            }
            done.extend(some.iter().map(|(owed, _)| owed.clone()).zip(results));
        }
        Erased(done)
    }

    /// Erases everything of a run except its entry in the index, or only its objects.
    async fn erase(&self, owed: &OwedErasure, left: Left, refused: &Refused) -> Result<(), Unerased> {
        if left == Left::Objects {
            return self.erase_beside(owed, refused).await;
        }
        if let Some(error) = refused.runs.get(&owed.run.shard().partition()) {
            return Err(Unerased::Run(error.clone()));
        }
        self.erase_requests(owed).await.map_err(Unerased::Run)?;
        let beside = self.erase_beside(owed, refused).await;
        self.journals.of(owed.run).erase(owed.run, owed.through).await.map_err(Unerased::Run)?;
        beside
    }

    /// Erases what is stored of a run beside the log: objects, and what the history has.
    async fn erase_beside(&self, owed: &OwedErasure, refused: &Refused) -> Result<(), Unerased> {
        let objects = self.erase_objects(owed.run, refused).await;
        let history = match (&self.history, &refused.history) {
            (None, _) => Ok(()),
            _ if owed.is_never_past => Ok(()),
            (Some(_), Some(error)) => Err(error.clone()),
            (Some(history), None) => {
                let claim = self.owned.borrow().claim(owed.run.shard());
                let claim = claim.ok_or(Unerased::History(HistoryError::NotOpen))?;
                history.erase(owed.run, owed.through, claim).await
            }
        };
        objects.map_err(Unerased::Objects)?;
        history.map_err(Unerased::History)
    }

    async fn erase_requests(&self, owed: &OwedErasure) -> Result<(), ReadError> {
        let run = owed.run;
        if let Some(digest) = owed.request {
            self.requests.erase(&RequestKey(digest), run).await?;
        }
        // The deletion of a response is recorded under its id. With a history, readers may find it for a while after
        // this, so the record stays until it expires.
        let continuations = if self.history.is_some() { 0..0 } else { 0..owed.continuations + 1 };
        for part in continuations {
            self.requests.erase(&RequestKey::deleted(&ResponseId { run, share: None, part }.to_string()), run).await?;
        }
        match &self.letters {
            Some(letters) => letters.erase(run).await,
            None => Ok(()),
        }
    }

    async fn erase_objects(&self, run: RunId, refused: &Refused) -> Result<(), ::objects::ReadError> {
        match &refused.objects {
            Some(error) => Err(error.clone()),
            None => self.objects.remove_run(run).await.map(drop),
        }
    }
}

/// Reads the operators' requests of a shard from a log entry on, as many as fit.
async fn refill(log: &Log, shard: Shard, from: u64) -> Refilled {
    let mut requests = Vec::new();
    let read = async {
        let through = log.tip(&[shard]).await?;
        let shards = [shard];
        let part = (&shards[..], from.saturating_sub(1), through);
        let taken = log.take_until(part, REFILL_TIME_MAX, |run, entry| {
            if erase_request(entry).is_some() {
                requests.push((run, Arc::clone(entry)));
            }
            if requests.len() >= REQUESTED_MAX / 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        Ok::<_, ReadError>((taken.await?, through))
    };
    let next = match read.await {
        Ok((taken, through)) => (taken < through).then_some(taken + 1),
        Err(error) => {
            tracing::warn!(%shard, %error, "reading requests to erase runs failed, trying again");
            Some(from)
        }
    };
    Refilled { shard, from, requests, next }
}

/// A worker that was paused may store output and objects of a run that was erased long ago.
async fn erase_if_orphan(journal: &Journal, objects: &Objects, run: RunId, sequence: u64) -> Result<(), Unerased> {
    if !journal.is_orphan(run, sequence).await.map_err(Unerased::Run)? {
        return Ok(());
    }
    // The entry that refers to objects is stored after them.
    let removed = objects.remove_run(run).await.map(drop);
    journal.erase(run, sequence).await.map_err(Unerased::Run)?;
    removed.map_err(Unerased::Objects)
}
