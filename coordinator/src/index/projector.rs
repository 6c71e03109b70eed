//! Carries the owner's changes into the index. The owner leaves a copy of each changed run and goes on. Everything else
//! happens in a task of its own, so a slow or dead store never delays it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use owner::SHARDS_MAX;
use run::{Entry, Fact, Partition, Run, RunId};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::expired::Expired;
use super::rebuild::{CaughtUp, Rebuild, RebuildError};
use super::summary::{Summary, changes, changes_ended};
use super::{Index, Unavailable, Watermark};
use crate::nats::scan::Log;
use crate::shards::{Owned, every};

/// Several changes of a run within this time are one write.
const FLUSH: Duration = Duration::from_millis(100);
/// How often the content of the store is checked, and the pause after a failed rebuild.
const CHECK: Duration = Duration::from_secs(1);
/// How often runs that the log no longer holds are dropped.
const PRUNE: Duration = Duration::from_secs(60);
/// Calls of changed runs that are queued while the store is slow or away, some 25 MB; those that are being written may
/// be as many. Beyond that all are dropped, and read from the log once the store is back.
const WAITING_CALLS_MAX: usize = 100_000;
/// How long the last writes may take at shutdown.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// The queue of changed runs. Cheap to clone; adding to it never waits for the store.
#[derive(Debug, Clone, Default)]
pub(crate) struct Projector(Arc<Mutex<Waiting>>);

#[derive(Debug)]
struct Waiting {
    /// The shards whose changes are queued.
    wanted: [bool; SHARDS_MAX],
    changed: HashMap<RunId, Summary>,
    /// Ended runs that changed once more; they are read from the log.
    again: HashSet<RunId>,
    calls: usize,
    /// Runs to be forgotten, each up to a log entry. Not bounded, because the requester repeats the request if it is
    /// lost.
    erasing: HashMap<RunId, u64>,
    /// The last queued entry of each shard.
    noted: [u64; SHARDS_MAX],
    /// The queue was full: changes were dropped.
    overflowed: bool,
}

impl Default for Waiting {
    fn default() -> Self {
        let (changed, again, erasing) = Default::default();
        let (wanted, noted) = ([false; SHARDS_MAX], [0; SHARDS_MAX]);
        Self { wanted, changed, again, calls: 0, erasing, noted, overflowed: false }
    }
}

impl Projector {
    /// An open run accepted an entry.
    pub(crate) fn note(&self, run: &Run, entry: &Entry, heard: &[Fact]) {
        if changes(entry, heard) {
            let mut waiting = self.waiting();
            if waiting.wants(run.id()) {
                waiting.note(run, entry.sequence);
            }
        }
    }

    /// An entry arrived for a run that is not open any more.
    pub(crate) fn note_late(&self, run: RunId, entry: &Entry) {
        if changes_ended(entry) {
            let mut waiting = self.waiting();
            if waiting.wants(run) {
                waiting.calls += 1;
                waiting.again.insert(run);
            }
        }
    }

    /// The entries of a run up to this one were erased, so the index must remove what it has from them.
    pub(crate) fn erase(&self, run: RunId, through: u64) {
        self.waiting().erasing.insert(run, through);
    }

    /// Whether a run is still queued to be forgotten.
    pub(crate) fn is_erasing(&self, run: RunId) -> bool {
        self.waiting().erasing.contains_key(&run)
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn wants(&self, run: RunId) -> bool {
        !self.overflowed && self.wanted.get(usize::from(run.shard().0)).copied().unwrap_or_default()
    }

    fn note(&mut self, run: &Run, sequence: u64) {
        if let Some(noted) = self.noted.get_mut(usize::from(run.id().shard().0)) {
            *noted = sequence.max(*noted);
        }
        match self.changed.get_mut(&run.id()) {
            Some(summary) => {
                let known = summary.calls.len();
                summary.update(run, sequence);
                self.calls += summary.calls.len() - known;
            }
            None => {
                self.calls += run.calls().len() + 1;
                self.changed.insert(run.id(), Summary::of(run, sequence));
            }
        }
        self.drop_if_crowded();
    }

    fn drop_if_crowded(&mut self) {
        if self.calls > WAITING_CALLS_MAX {
            (self.changed, self.again, self.calls) = (HashMap::new(), HashSet::new(), 0);
            self.overflowed = true;
        }
    }

    /// Queues again the summaries that could not be written, unless newer ones arrived.
    fn put_back(&mut self, summaries: Vec<Arc<Summary>>, again: HashSet<RunId>) {
        for summary in summaries {
            if self.changed.get(&summary.id).is_none_or(|newer| newer.sequence < summary.sequence) {
                self.calls += summary.calls.len() + 1;
                self.changed.insert(summary.id, Arc::unwrap_or_clone(summary));
            }
        }
        self.calls += again.len();
        self.again.extend(again);
        self.drop_if_crowded();
    }
}

/// How far the index includes a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// Another coordinator owns it.
    Elsewhere,
    /// The log must be read.
    Behind,
    CatchingUp,
    /// The store has everything up to this watermark.
    Current(Watermark),
}

pub(crate) struct ProjectorTask {
    projector: Projector,
    index: Index,
    log: Log,
    owned: watch::Receiver<Owned>,
    progress: [Progress; SHARDS_MAX],
    /// The last entry of each shard that was queued and is in the store.
    written: [u64; SHARDS_MAX],
    catching_up: JoinSet<Result<Vec<CaughtUp>, RebuildError>>,
    /// The partition that was read last.
    last: Option<Partition>,
    /// The store did not answer the last request.
    away: bool,
}

pub(crate) fn new(index: Index, log: Log, owned: watch::Receiver<Owned>) -> (Projector, ProjectorTask) {
    let projector = Projector::default();
    let keeper = ProjectorTask {
        projector: projector.clone(),
        index,
        log,
        owned,
        progress: [Progress::Elsewhere; SHARDS_MAX],
        written: [0; SHARDS_MAX],
        catching_up: JoinSet::new(),
        last: None,
        away: false,
    };
    (projector, keeper)
}

impl ProjectorTask {
    pub(crate) async fn keep(mut self, stop: CancellationToken) {
        let mut flush = interval(FLUSH);
        let mut check = interval(CHECK);
        let mut prune = interval(PRUNE);
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                Ok(()) = self.owned.changed() => {}
                Some(done) = self.catching_up.join_next() => self.caught_up(done),
                _ = flush.tick() => {
                    self.look_at_ownership();
                    let flushed = self.flush().await;
                    self.tell(flushed);
                }
                _ = check.tick() => {
                    let checked = self.check().await;
                    self.tell(checked);
                }
                _ = prune.tick() => {
                    let pruned = self.index.prune(&Expired::now(&self.log.journals)).await;
                    self.tell(pruned);
                }
            }
        }
        if tokio::time::timeout(LAST_WORDS, self.flush()).await.is_err() {
            tracing::warn!("writing the last changes to the index failed; they will be read from the log");
        }
    }

    /// Logs once that the store is away, and once that it is back.
    fn tell(&mut self, result: Result<(), Unavailable>) {
        match result {
            Ok(()) if self.away => tracing::info!("the store of the index is back"),
            Err(error) if !self.away => tracing::warn!(%error, "the store of the index does not answer, retrying"),
            Ok(()) => return,
            Err(_) => return,
        }
        self.away = !self.away;
    }

    fn look_at_ownership(&mut self) {
        let owned = *self.owned.borrow();
        self.index.note_found(self.log.journals.found());
        for (shard, progress) in every().zip(&mut self.progress) {
            let index = usize::from(shard.0);
            match (owned.holds(shard), *progress) {
                (true, Progress::Elsewhere) => {
                    // Changes are queued from here on; earlier ones are in the log that is about to be read.
                    self.projector.waiting().wanted[index] = true;
                    *progress = Progress::Behind;
                }
                (false, Progress::Behind | Progress::CatchingUp | Progress::Current(_)) => {
                    // A rebuild in progress may read this shard; its other shards are read again.
                    self.catching_up.abort_all();
                    self.projector.waiting().wanted[index] = false;
                    *progress = Progress::Elsewhere;
                    self.index.lose(shard);
                }
                (true, Progress::Behind | Progress::CatchingUp | Progress::Current(_))
                | (false, Progress::Elsewhere) => {}
            }
        }
    }

    /// Writes what changed.
    async fn flush(&mut self) -> Result<(), Unavailable> {
        let (changed, again, noted, overflowed) = {
            let mut waiting = self.projector.waiting();
            waiting.calls = 0;
            let changed = std::mem::take(&mut waiting.changed);
            let again = std::mem::take(&mut waiting.again);
            (changed, again, waiting.noted, std::mem::take(&mut waiting.overflowed))
        };
        if overflowed {
            tracing::warn!("the index fell too far behind; rebuilding it from the log");
            // A rebuild in progress began before the drop, and does not cover it.
            for progress in self.progress.iter_mut().filter(|progress| **progress != Progress::Elsewhere) {
                *progress = Progress::Behind;
            }
        }
        let changed = changed.into_values().filter(|run| self.is_ours(run.id));
        let mut summaries: Vec<Arc<Summary>> = changed.map(Arc::new).collect();
        let (mut unread, mut failed) = (HashSet::new(), BTreeSet::new());
        for id in again {
            if failed.contains(&id.shard().partition()) {
                // It does not answer, and the others do.
                unread.insert(id);
                continue;
            }
            match super::rebuild::replay(&self.log, id).await {
                Ok(summary) => summaries.extend(summary.map(Arc::new)),
                Err(error) => {
                    tracing::warn!(run.id = %id, %error, "reading a run for the index failed, retrying");
                    failed.insert(id.shard().partition());
                    unread.insert(id);
                }
            }
        }
        if !summaries.is_empty()
            && let Err(error) = self.index.write(summaries.clone()).await
        {
            self.projector.waiting().put_back(summaries, unread);
            return Err(error);
        }
        if !unread.is_empty() {
            self.projector.waiting().put_back(Vec::new(), unread);
        }
        self.erase().await?;
        for ((shard, written), noted) in every().zip(&mut self.written).zip(noted) {
            if !failed.contains(&shard.partition()) {
                *written = noted;
            }
        }
        self.advance().await
    }

    /// Forgets the queued runs. During a rebuild they stay queued, because the rebuild may have read them before.
    async fn erase(&mut self) -> Result<(), Unavailable> {
        let owned = *self.owned.borrow();
        let erasing: Vec<(RunId, u64)> = {
            let mut waiting = self.projector.waiting();
            waiting.erasing.retain(|run, _| owned.claim(run.shard()).is_some());
            waiting.erasing.iter().map(|(run, through)| (*run, *through)).collect()
        };
        if erasing.is_empty() {
            return Ok(());
        }
        self.index.erase(&erasing).await?;
        if self.catching_up.is_empty() {
            let mut waiting = self.projector.waiting();
            for (run, through) in erasing {
                if waiting.erasing.get(&run) == Some(&through) {
                    waiting.erasing.remove(&run);
                }
            }
        }
        Ok(())
    }

    fn is_ours(&self, run: RunId) -> bool {
        self.progress.get(usize::from(run.shard().0)).is_some_and(|progress| *progress != Progress::Elsewhere)
    }

    async fn advance(&mut self) -> Result<(), Unavailable> {
        let mut lost = 0;
        for (shard, written) in every().zip(self.written) {
            let progress = &mut self.progress[usize::from(shard.0)];
            let Progress::Current(mark) = *progress else { continue };
            if written <= mark.through {
                continue;
            }
            let to = Watermark::settled(written);
            if self.index.advance(shard, Some(mark), to).await? {
                *progress = Progress::Current(to);
            } else {
                *progress = Progress::Behind;
                lost += 1;
            }
        }
        warn_lost(lost);
        Ok(())
    }

    /// Checks that the store still holds what was written, and starts a rebuild of shards that it lacks.
    async fn check(&mut self) -> Result<(), Unavailable> {
        if self.progress.iter().any(|progress| matches!(progress, Progress::Current(_))) {
            let marks = self.index.marks().await?;
            let progress = self.progress;
            let is_lost =
                |shard: usize| matches!(progress[shard], Progress::Current(mark) if marks[shard] != Some(mark));
            let lost: Vec<usize> = (0..progress.len()).filter(|shard| is_lost(*shard)).collect();
            warn_lost(lost.len());
            lost.into_iter().for_each(|shard| self.progress[shard] = Progress::Behind);
        }
        if self.catching_up.is_empty() && self.progress.contains(&Progress::Behind) {
            // Those of one partition, because positions in the log are those of a partition; of another one next time,
            // because one may not answer.
            let behind = every().zip(&self.progress).filter(|(_, progress)| **progress == Progress::Behind);
            let behind: BTreeSet<Partition> = behind.map(|(shard, _)| shard.partition()).collect();
            let next = behind.iter().find(|partition| Some(**partition) > self.last).or(behind.first()).copied();
            self.last = next;
            let mut shards = Vec::new();
            for (shard, progress) in every().zip(&mut self.progress) {
                if *progress == Progress::Behind && Some(shard.partition()) == next {
                    shards.push(shard);
                    *progress = Progress::CatchingUp;
                }
            }
            let rebuild = Rebuild { index: self.index.clone(), log: self.log.clone() };
            self.catching_up.spawn(rebuild.catch_up(shards));
        }
        Ok(())
    }

    fn caught_up(&mut self, done: Result<Result<Vec<CaughtUp>, RebuildError>, tokio::task::JoinError>) {
        match done {
            Ok(Ok(shards)) => {
                for CaughtUp { shard, mark } in shards {
                    let progress = &mut self.progress[usize::from(shard.0)];
                    if *progress == Progress::CatchingUp {
                        *progress = Progress::Current(mark);
                    }
                }
            }
            Ok(Err(RebuildError::Index(error))) => self.tell(Err(error)),
            Ok(Err(RebuildError::Log(error))) => tracing::warn!(%error, "rebuilding the index failed"),
            Err(error) if error.is_cancelled() => {}
            Err(error) => tracing::error!(%error, "the rebuild of the index panicked"),
        }
        for progress in &mut self.progress {
            if *progress == Progress::CatchingUp {
                *progress = Progress::Behind;
            }
        }
    }
}

fn warn_lost(shards: usize) {
    if shards > 0 {
        tracing::warn!(shards, "the store of the index lost data; rebuilding it from the log");
    }
}

fn interval(every: Duration) -> tokio::time::Interval {
    let mut interval = tokio::time::interval(every);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    interval
}
