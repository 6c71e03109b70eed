//! Erasing runs: the owner of their shard erases them a while after their end, so that readers have time.
//!
//! Pending erasures are part of the shard's snapshot until they are done, so that the next owner continues if this one
//! dies. A run is erased only after a snapshot has recorded its end, so no owner looks for entries that are gone. Each
//! step may be repeated, and covers the log up to one position, because the same request may open the run again. The
//! log is erased last except for the index, because the other steps are derived from it. If the object store is not
//! available, the run is erased all the same and its objects stay pending.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use ::objects::Objects;
use formats::openai::responses::ResponseId;
use futures::future::join_all;
use owner::{Known, OpenRun};
use proto::convert::snapshot::OwedErasure;
use run::{Entry, EraseRequest, Event, RunId, Shard, Timestamp};
use tokio::task::JoinSet;

use super::OwnerTask;
use super::shard::ShardTask;
use crate::metrics::COUNTS;
use crate::nats::journal::{Journal, ReadError};
use crate::nats::notifications::Queue;
use crate::nats::requests::Requests;
use crate::nats::scan::Log;
use crate::requests::RequestKey;
use crate::shards::every;

/// The most runs that are erased together, and of those concurrently. The broker processes the requests one after the
/// other anyway.
const BATCH_MAX: usize = 1024;
const AT_ONCE_MAX: usize = 8;
/// Erasures of a shard beside which an operator's request is kept in memory, some 3 MB of them. Further requests are
/// read from the log again, as many as half of this, when half of them are done.
const REQUESTED_MAX: usize = 16_384;
/// How long requests may be read from the log in one go.
const REFILL_TIME_MAX: Duration = Duration::from_secs(30);
/// The most runs with late entries that wait for a check. Beyond that, the entries stay until the log drops them.
const STRAYS_MAX: usize = 1024;

/// Ended runs of a shard that are still to be erased.
#[derive(Debug, Default)]
pub(super) struct Owed {
    runs: HashMap<RunId, Owing>,
    /// Runs with everything left, and runs with only objects left, by due time.
    all_left: BTreeSet<(Timestamp, RunId)>,
    objects_left: BTreeSet<(Timestamp, RunId)>,
    left_in_index: HashSet<RunId>,
    /// The first log entry with an operator's request that did not fit here.
    behind: Option<u64>,
    /// Requests from this entry of the log on are being read again.
    refilling: Option<u64>,
    /// Runs erased since that reading began, because their requests may have been read before.
    erased_meanwhile: HashSet<RunId>,
}

#[derive(Debug)]
struct Owing {
    erasure: OwedErasure,
    step: Step,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Waiting(Left),
    UnderWay,
    /// Only the index still has the run.
    LeftInIndex,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    All,
    /// The log has no entries of the run any more.
    Objects,
}

/// The erasures in progress, for all shards.
#[derive(Debug, Default)]
pub(super) struct Erasures {
    pub(super) batches: JoinSet<Erased>,
    /// Runs that are not open, each with the last late entry. An erased run must not come back.
    strays: BTreeMap<RunId, u64>,
    pub(super) looks: JoinSet<()>,
    pub(super) refills: JoinSet<Refilled>,
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
}

impl Unerased {
    fn remedy(&self) -> &'static str {
        match self {
            Self::Run(_) => "if this persists, check that the coordinator may purge: see `toolyard nats-config`",
            Self::Objects(_) => {
                "only objects are left. If this persists, check that the object store responds and that the \
                 coordinator may list and delete objects: see docs/howto/objects.md"
            }
        }
    }
}

impl Owed {
    pub(super) fn of(erasures: Vec<OwedErasure>, behind: u64) -> Self {
        let mut owed = Self { behind: (behind > 0).then_some(behind), ..Self::default() };
        erasures.into_iter().for_each(|erasure| owed.insert(erasure));
        owed
    }

    /// The first log entry with a request that is not on the list; 0 if all are.
    pub(super) fn behind(&self) -> u64 {
        self.behind.into_iter().chain(self.refilling).min().unwrap_or(0)
    }

    pub(super) fn list(&self) -> Vec<OwedErasure> {
        self.runs.values().map(|owing| owing.erasure.clone()).collect()
    }

    pub(super) fn holds(&self, run: RunId) -> bool {
        self.runs.contains_key(&run)
    }

    pub(super) fn len(&self) -> usize {
        self.runs.len()
    }

    fn insert(&mut self, erasure: OwedErasure) {
        let run = erasure.run;
        self.remove(run);
        self.runs.insert(run, Owing { erasure, step: Step::UnderWay });
        self.is_at(run, Step::Waiting(Left::All));
    }

    fn remove(&mut self, run: RunId) {
        self.is_at(run, Step::UnderWay);
        self.runs.remove(&run);
    }

    /// Moves a run to another step.
    fn is_at(&mut self, run: RunId, step: Step) {
        let Some(owing) = self.runs.get_mut(&run) else { return };
        let key = (owing.erasure.due, run);
        match std::mem::replace(&mut owing.step, step) {
            Step::Waiting(Left::All) => drop(self.all_left.remove(&key)),
            Step::Waiting(Left::Objects) => drop(self.objects_left.remove(&key)),
            Step::LeftInIndex => drop(self.left_in_index.remove(&run)),
            Step::UnderWay => {}
        }
        match step {
            Step::Waiting(Left::All) => drop(self.all_left.insert(key)),
            Step::Waiting(Left::Objects) => drop(self.objects_left.insert(key)),
            Step::LeftInIndex => drop(self.left_in_index.insert(run)),
            Step::UnderWay => {}
        }
    }

    /// Begins at most `room` runs that are due and whose end is in a stored snapshot.
    fn begin(&mut self, left: Left, now: Timestamp, written: u64, room: usize) -> Vec<OwedErasure> {
        let waiting = match left {
            Left::All => &self.all_left,
            Left::Objects => &self.objects_left,
        };
        let due = waiting.iter().take_while(|(due, _)| *due <= now);
        let erasures = due.filter_map(|(_, run)| self.runs.get(run)).map(|owing| &owing.erasure);
        let due: Vec<OwedErasure> = erasures.filter(|erasure| erasure.through <= written).take(room).cloned().collect();
        due.iter().for_each(|erasure| self.is_at(erasure.run, Step::UnderWay));
        due
    }

    /// Takes a run that has ended, if it is to be erased. Most are kept.
    pub(super) fn take(&mut self, known: &Known, bytes: u64) {
        let run = &known.run;
        let Some(due) = run.erase_at() else { return };
        self.insert(OwedErasure {
            run: run.id(),
            due,
            through: known.last,
            request: run.request(),
            continuations: run.continuations(),
            bytes: run.tenant().map(|tenant| (tenant.clone(), bytes)),
        });
    }

    /// Takes an operator's request to erase a run that has ended. If it does not fit, it is read from the log again
    /// later.
    fn take_request(&mut self, run: RunId, request: &EraseRequest, entry: &Entry) {
        let owed = self.runs.get(&run);
        if owed.is_none() && self.runs.len() >= REQUESTED_MAX {
            self.behind.get_or_insert(entry.sequence);
            return;
        }
        // If the run's bytes were given back before, they are not given back again.
        let of_request = || request.tenant.clone().map(|tenant| (tenant, request.bytes));
        let bytes = owed.map_or_else(of_request, |owing| owing.erasure.bytes.clone());
        self.insert(OwedErasure {
            run,
            due: entry.at.max(request.not_before),
            through: entry.sequence,
            request: request.request,
            continuations: request.continuations,
            bytes,
        });
    }

    /// Takes an entry that arrived after its run's end. Returns whether the run, and so the entry, is to be erased.
    fn take_late(&mut self, run: RunId, sequence: u64) -> bool {
        let Some(owing) = self.runs.get(&run) else { return false };
        let erasure = OwedErasure { through: sequence, ..owing.erasure.clone() };
        self.insert(erasure);
        true
    }
}

impl ShardTask {
    /// Takes an operator's request to erase a run that is not open. Returns whether the entry is one.
    pub(super) fn take_erase_request(&mut self, run: RunId, entry: &Entry) -> bool {
        let Some(request) = erase_request(entry) else { return false };
        self.owed.take_request(run, request, entry);
        true
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

fn erase_request(entry: &Entry) -> Option<&EraseRequest> {
    let request = entry.events.iter().find_map(|event| match event {
        Event::RunEraseRequested(request) => Some(request),
        _ => None,
    });
    request.filter(|_| !entry.is_late())
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
        let mut due = Vec::new();
        // Objects that could not be removed before do not delay other runs.
        for left in [Left::All, Left::Objects] {
            for (slice, _) in self.slices.iter_mut().zip(every()).filter(|(_, shard)| ours.contains(shard)) {
                let room = BATCH_MAX.saturating_sub(due.len());
                let begun = slice.owed.begin(left, now, slice.snapshot.through, room);
                due.extend(begun.into_iter().map(|erasure| (erasure, left)));
            }
        }
        if !due.is_empty() {
            let (journal, requests) = (self.io.journal.clone(), self.io.requests.clone());
            let (objects, letters) = (self.io.objects.clone(), self.io.letters.clone());
            let places = Places { journal, requests, objects, letters };
            self.erasures.batches.spawn(async move { places.erase_all(due).await });
        }
    }

    /// Removes erasures that the index has completed too.
    fn settle(&mut self, shard: Shard) {
        let Some(slice) = self.slices.get_mut(usize::from(shard.0)) else { return };
        let forgotten = slice.owed.left_in_index.iter().filter(|run| !self.io.index.is_erasing(**run));
        for run in forgotten.copied().collect::<Vec<_>>() {
            slice.owed.remove(run);
            if slice.owed.refilling.is_some() {
                slice.owed.erased_meanwhile.insert(run);
            }
            slice.snapshot.outdated = true;
        }
    }

    /// Reads operators' requests that did not fit from the log again, once there is room for many.
    fn refill(&mut self, shard: Shard) {
        let Some(owed) = self.slice_mut(shard).map(|slice| &mut slice.owed) else { return };
        if owed.refilling.is_some() || owed.runs.len() > REQUESTED_MAX / 2 {
            return;
        }
        let Some(from) = owed.behind.take() else { return };
        owed.refilling = Some(from);
        let log = self.io.log.clone();
        self.erasures.refills.spawn(async move { refill(&log, shard, from).await });
    }

    pub(super) fn refilled(&mut self, refilled: Refilled) {
        let Refilled { shard, from, requests, next } = refilled;
        let Some(slice) = self.slices.get_mut(usize::from(shard.0)) else { return };
        // The shard may have been lost meanwhile.
        if slice.owed.refilling != Some(from) {
            return;
        }
        slice.owed.refilling = None;
        let erased = std::mem::take(&mut slice.owed.erased_meanwhile);
        for (run, entry) in requests {
            // An open run already has its request, and an erasure in progress is not started again.
            if self.owner.run(run).is_none() && !slice.owed.holds(run) && !erased.contains(&run) {
                slice.take_erase_request(run, &entry);
                self.owner.forget_ended(run);
            }
        }
        slice.owed.behind = slice.owed.behind.into_iter().chain(next).min();
        slice.snapshot.outdated = true;
    }

    pub(super) fn erased(&mut self, Erased(batch): Erased) {
        let mut failed = None;
        for (OwedErasure { run, through, .. }, result) in batch {
            let Some(slice) = self.slices.get_mut(usize::from(run.shard().0)) else { continue };
            // The shard may have been lost, and an entry may have come late.
            let Some(owing) = slice.owed.runs.get_mut(&run).filter(|owing| owing.erasure.through == through) else {
                continue;
            };
            if result.is_ok()
                && let Some((tenant, bytes)) = owing.erasure.bytes.take()
            {
                slice.log_bytes.release(&tenant, run.created_at(), bytes);
            }
            let step = match &result {
                Ok(()) => Step::LeftInIndex,
                Err(Unerased::Run(_)) => Step::Waiting(Left::All),
                Err(Unerased::Objects(_)) => Step::Waiting(Left::Objects),
            };
            slice.owed.is_at(run, step);
            if step != Step::Waiting(Left::All) {
                self.owner.forget_ended(run);
                self.io.index.erase(run, through);
            }
            COUNTS.erasures_failed.add(u64::from(result.is_err()));
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
            let (journal, objects) = (self.io.journal.clone(), self.io.objects.clone());
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
    journal: Journal,
    requests: Requests,
    objects: Objects,
    letters: Option<Queue>,
}

/// Erasures that failed for one run and are therefore not tried for the runs after it.
#[derive(Default)]
struct Refused {
    run: Option<ReadError>,
    objects: Option<::objects::ReadError>,
}

impl Places {
    /// If a step fails for one run, it is skipped for the rest and retried later for all.
    async fn erase_all(&self, due: Vec<(OwedErasure, Left)>) -> Erased {
        let mut done = Vec::with_capacity(due.len());
        let mut refused = Refused::default();
        for some in due.chunks(AT_ONCE_MAX) {
            let results = join_all(some.iter().map(|(owed, left)| self.erase(owed, *left, &refused))).await;
            for error in results.iter().filter_map(|result| result.as_ref().err()) {
                match error.clone() {
                    Unerased::Run(error) => refused.run = Some(error),
                    Unerased::Objects(error) => refused.objects = Some(error),
                }
            }
            done.extend(some.iter().map(|(owed, _)| owed.clone()).zip(results));
        }
        Erased(done)
    }

    /// Erases everything of a run except its entry in the index, or only its objects.
    async fn erase(&self, owed: &OwedErasure, left: Left, refused: &Refused) -> Result<(), Unerased> {
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

    async fn erase_requests(&self, owed: &OwedErasure) -> Result<(), ReadError> {
        let run = owed.run;
        if let Some(digest) = owed.request {
            self.requests.erase(&RequestKey(digest), run).await?;
        }
        // The deletion of a response is recorded under its id.
        for part in 0..=owed.continuations {
            self.requests.erase(&RequestKey::deleted(&ResponseId { run, part }.to_string()), run).await?;
        }
        match &self.letters {
            Some(letters) => letters.erase(run).await,
            None => Ok(()),
        }
    }

    async fn erase_objects(&self, run: RunId, refused: &Refused) -> Result<(), ::objects::ReadError> {
        match &refused.objects {
            Some(error) => Err(error.clone()),
            None => self.objects.remove_run(run).await,
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
    let removed = objects.remove_run(run).await;
    journal.erase(run, sequence).await.map_err(Unerased::Run)?;
    removed.map_err(Unerased::Objects)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owed(number: u64) -> OwedErasure {
        let run = RunId::new(Shard(0), uuid::Uuid::now_v7());
        OwedErasure { run, due: Timestamp(number), through: number, request: None, continuations: 0, bytes: None }
    }

    #[test]
    fn a_run_is_erased_once_it_is_due_and_a_snapshot_says_that_it_ended_and_is_owed_until_the_index_forgot_it() {
        let runs: Vec<OwedErasure> = (1..=5).map(owed).collect();
        let mut all = Owed::of(runs.clone(), 0);
        assert_eq!(all.begin(Left::All, Timestamp(4), 3, 2), runs[..2], "the first that are due");
        assert_eq!(all.begin(Left::All, Timestamp(4), 3, 9), runs[2..3], "not the one that no snapshot knows of");
        assert!(all.begin(Left::All, Timestamp(9), 3, 9).is_empty(), "what is under way is not begun again");
        all.is_at(runs[0].run, Step::LeftInIndex);
        all.is_at(runs[1].run, Step::Waiting(Left::Objects));
        all.is_at(runs[2].run, Step::Waiting(Left::All));
        assert_eq!(all.begin(Left::Objects, Timestamp(9), 9, 9), runs[1..2]);
        assert_eq!(all.begin(Left::All, Timestamp(9), 9, 9), runs[2..]);
        assert_eq!((all.len(), all.left_in_index.len()), (5, 1));
        // A late entry is erased with the run.
        assert!(all.take_late(runs[0].run, 7) && !all.take_late(owed(1).run, 7));
        assert_eq!(all.begin(Left::All, Timestamp(9), 6, 9), []);
        let late = OwedErasure { through: 7, ..runs[0].clone() };
        assert_eq!(all.begin(Left::All, Timestamp(9), 7, 9), [late]);
        all.remove(runs[0].run);
        assert_eq!((all.len(), all.list().len(), all.left_in_index.len()), (4, 4, 0));
    }
}
