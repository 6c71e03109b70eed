//! Rebuilds the index from the log: reads the entries that it lacks, folds them, and writes summaries. Changes
//! meanwhile come through the projector; the newer summary of a run wins.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use run::{Entry, Run, RunId, Shard, Timestamp};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::summary::{Summary, changes, changes_ended};
use super::{Index, Unavailable, Watermark};
use crate::nats::journal::{PAGE_BYTES, ReadError, RunPages};
use crate::nats::scan::{Batch, Log};

/// Batches of entries, and of summaries, that are queued for the next step.
const STEPS_AHEAD: usize = 4;
/// Runs that are written together.
const WRITE_RUNS: usize = 512;
/// Open runs of a part of the log beyond which those at rest are written and forgotten: so many take some 60 MB. One
/// that changes later in this part is then read by itself.
const OPEN_MAX: usize = 250_000;
/// Runs that are read one by one concurrently.
const REPLAYS: usize = 16;

#[derive(Debug, thiserror::Error)]
pub(crate) enum RebuildError {
    #[error(transparent)]
    Index(#[from] Unavailable),
    #[error(transparent)]
    Log(#[from] ReadError),
}

pub(super) struct Rebuild {
    pub(super) index: Index,
    pub(super) log: Log,
}

/// A shard that the store includes up to its watermark.
#[derive(Debug, Clone, Copy)]
pub(super) struct CaughtUp {
    pub(super) shard: Shard,
    pub(super) mark: Watermark,
}

impl Rebuild {
    /// Reads the entries of these shards of a partition that the store lacks. A shard that is missing in the result was
    /// changed by another process meanwhile and must be read again.
    pub(super) async fn catch_up(self, shards: Vec<Shard>) -> Result<Vec<CaughtUp>, RebuildError> {
        let started = Instant::now();
        self.index.belong_to(&self.log.name().await?).await?;
        let marks = self.index.marks().await?;
        let through_of = |shard: &Shard| marks[usize::from(shard.0)].map_or(0, |mark| mark.through);
        // Shards that lack everything would make the others be read from the beginning too, so they are left for a
        // later rebuild.
        let least = shards.iter().map(through_of).min().unwrap_or_default();
        let shards: Vec<Shard> = shards.into_iter().filter(|shard| least > 0 || through_of(shard) == 0).collect();

        // From here on the watermarks record this rebuild, so a store that is emptied meanwhile is detected at the end.
        let mut begun = Vec::new();
        for shard in &shards {
            let mark = Watermark { through: through_of(shard), reading: Some(rand::random()) };
            if self.index.advance(*shard, marks[usize::from(shard.0)], mark).await? {
                begun.push((*shard, mark));
            }
        }
        let through = self.log.tip(&shards).await?;
        let (entries, runs) = self.read(&shards, least, through).await?;
        self.note_gap(&shards, least).await?;
        let mut caught_up = Vec::new();
        for (shard, begun) in begun {
            let mark = Watermark::settled(through.max(begun.through));
            if self.index.advance(shard, Some(begun), mark).await? {
                caught_up.push(CaughtUp { shard, mark });
            }
        }
        if entries > 0 {
            let elapsed_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
            tracing::info!(entries, runs, elapsed_ms, shards = shards.len(), "rebuilt the index from the log");
        }
        Ok(caught_up)
    }

    /// With a history: what left the log before it was read is in the history, and not in the index.
    async fn note_gap(&self, shards: &[Shard], after: u64) -> Result<(), Unavailable> {
        let Some(journal) = shards.first().map(|shard| self.log.journals.of_shard(*shard)) else { return Ok(()) };
        let oldest = journal.oldest();
        if journal.history().is_some() && after + 1 < journal.first() && oldest > Timestamp(0) {
            self.index.cut(oldest).await?;
        }
        Ok(())
    }

    /// Reads, folds and writes at the same time.
    async fn read(&self, shards: &[Shard], after: u64, through: u64) -> Result<(u64, u64), RebuildError> {
        let (summaries_sender, mut summaries) = mpsc::channel::<Vec<Arc<Summary>>>(STEPS_AHEAD);
        let mut folding = JoinSet::new();
        folding.spawn(fold(self.log.clone(), shards.to_vec(), after, through, summaries_sender));
        let mut runs = 0;
        while let Some(some) = summaries.recv().await {
            runs += some.len() as u64;
            self.index.write(some).await?;
        }
        match folding.join_next().await {
            Some(Ok(Ok(entries))) => Ok((entries, runs)),
            Some(Ok(Err(error))) => Err(error.into()),
            Some(Err(_)) | None => Err(ReadError::new(&"the reader of the log ended").into()),
        }
    }
}

/// Folds a part of the log and sends the summaries of the runs that it changed; returns the number of entries.
async fn fold(
    log: Log,
    shards: Vec<Shard>,
    after: u64,
    through: u64,
    summaries: mpsc::Sender<Vec<Arc<Summary>>>,
) -> Result<u64, ReadError> {
    let (sender, mut batches) = mpsc::channel(STEPS_AHEAD);
    let mut reading = JoinSet::new();
    // Runs that are carried may have nothing in the log.
    let mut carried = Vec::new();
    for shard in shards.iter().filter(|_| after == 0) {
        carried.extend(log.journals.of_shard(*shard).carried_runs(*shard).await?);
    }
    let reader = log.clone();
    reading.spawn(async move { reader.read(&shards, after, through, &sender).await });
    let mut fold = Fold { open_max: Some(OPEN_MAX), ..Fold::default() };
    let mut entries = 0;
    while let Some(Batch { entries: batch, .. }) = batches.recv().await {
        entries += batch.len() as u64;
        batch.into_iter().for_each(|(id, entry)| fold.take(id, &entry));
        if fold.settled.len() >= WRITE_RUNS && summaries.send(fold.take_settled()).await.is_err() {
            return Ok(entries);
        }
    }
    if let Some(read) = reading.join_next().await {
        read.map_err(|_| ReadError::new(&"the reader of the log ended"))??;
    }
    carried.retain(|id| !fold.knows(*id));
    let forgotten = std::mem::take(&mut fold.forgotten);
    let (mut left, mut again) = fold.finish();
    again.extend(carried);
    while let Some(some) = next_of(&mut left) {
        if summaries.send(some).await.is_err() {
            return Ok(entries);
        }
    }
    let again: Vec<RunId> = again.into_iter().collect();
    for ids in again.chunks(WRITE_RUNS) {
        let replay = |id| replay_or_past(&log, id, forgotten.contains(&id));
        let replays = stream::iter(ids.to_vec()).map(replay).buffer_unordered(REPLAYS);
        let replayed: Vec<Option<Summary>> = replays.try_collect().await?;
        if summaries.send(replayed.into_iter().flatten().map(Arc::new).collect()).await.is_err() {
            break;
        }
    }
    Ok(entries)
}

/// The next summaries that are written together; `None` after the last ones.
pub(super) fn next_of(left: &mut impl Iterator<Item = Arc<Summary>>) -> Option<Vec<Arc<Summary>>> {
    let some: Vec<Arc<Summary>> = left.take(WRITE_RUNS).collect();
    (!some.is_empty()).then_some(some)
}

/// The runs of a part of the log. Those that are settled are removed from it.
#[derive(Debug, Default)]
pub(super) struct Fold {
    open: HashMap<RunId, Folded>,
    /// Runs that have ended, or were forgotten.
    settled: Vec<Arc<Summary>>,
    /// Runs that began before this part, or changed after their end: they must be read by themselves.
    again: HashSet<RunId>,
    /// All runs that ended here, to tell them from those that began before.
    gone: HashSet<RunId>,
    /// The number of open runs beyond which those at rest are forgotten; `None`: all are known.
    open_max: Option<usize>,
    /// Runs at rest that were written and are not kept.
    forgotten: HashSet<RunId>,
}

#[derive(Debug)]
struct Folded {
    state: State,
    sequence: u64,
}

#[derive(Debug)]
enum State {
    Awake(Box<Run>),
    /// As [`Run::pack`] writes it.
    Resting(Box<[u8]>),
}

impl Folded {
    fn new(id: RunId) -> Self {
        Self { state: State::Awake(Box::new(Run::new(id))), sequence: 0 }
    }

    /// Applies an entry. Returns whether the run has ended.
    fn apply(&mut self, entry: &Entry) -> bool {
        if let State::Resting(packed) = &self.state
            && let Some(run) = Run::unpack(packed)
        {
            self.state = State::Awake(Box::new(run));
        }
        let State::Awake(run) = &mut self.state else { return false };
        let (mut heard, had_ended) = (Vec::new(), run.status().is_final());
        run.apply(entry, &mut heard);
        if if had_ended { changes_ended(entry) } else { changes(entry, &heard) } {
            self.sequence = entry.sequence;
        }
        run.status().is_final()
    }

    /// Packs the run if it is at rest: a million runs may wait for their clients.
    fn rest(&mut self, now: Timestamp) {
        if let State::Awake(run) = &self.state
            && run.is_at_rest(now)
            && let Some(packed) = run.pack()
        {
            self.state = State::Resting(packed.into_boxed_slice());
        }
    }

    fn summary(self) -> Option<Summary> {
        let run = match self.state {
            State::Awake(run) => *run,
            State::Resting(packed) => Run::unpack(&packed)?,
        };
        run.opened_at().map(|_| Summary::of(&run, self.sequence))
    }
}

impl Fold {
    pub(super) fn take(&mut self, id: RunId, entry: &Entry) {
        let opens = entry.events.iter().any(|event| matches!(event, run::Event::RunOpened(_)));
        if opens && !self.gone.contains(&id) && !self.forgotten.contains(&id) {
            self.open.entry(id).or_insert_with(|| Folded::new(id));
        }
        let Some(folded) = self.open.get_mut(&id) else {
            if changes_ended(entry) || !self.gone.contains(&id) {
                self.again.insert(id);
            }
            return;
        };
        if folded.apply(entry) {
            let folded = self.open.remove(&id);
            self.settled.extend(folded.and_then(Folded::summary).map(Arc::new));
            self.gone.insert(id);
        } else {
            folded.rest(entry.at);
            if opens && self.open_max.is_some_and(|open_max| self.open.len() > open_max) {
                self.forget_resting();
            }
        }
    }

    /// Forgets some runs at rest, which are written as they are.
    fn forget_resting(&mut self) {
        let is_resting = |_: &RunId, folded: &mut Folded| matches!(folded.state, State::Resting(_));
        let before = self.settled.len();
        for (id, folded) in self.open.extract_if(is_resting).take(WRITE_RUNS) {
            self.forgotten.insert(id);
            self.settled.extend(folded.summary().map(Arc::new));
        }
        if self.settled.len() < before + WRITE_RUNS {
            // Few are at rest. Looking for them at each opening would cost more than it frees.
            self.open_max = self.open_max.max(Some(self.open.len() + self.open.len() / 4));
        }
    }

    /// The runs that ended or were forgotten since the last call.
    pub(super) fn take_settled(&mut self) -> Vec<Arc<Summary>> {
        std::mem::take(&mut self.settled)
    }

    /// The remaining runs, and those that must be read by themselves.
    pub(super) fn finish(self) -> (impl Iterator<Item = Arc<Summary>>, HashSet<RunId>) {
        let Self { open, settled, again, .. } = self;
        (settled.into_iter().chain(open.into_values().filter_map(Folded::summary).map(Arc::new)), again)
    }

    /// Whether this part of the log has the run.
    pub(super) fn knows(&self, id: RunId) -> bool {
        self.open.contains_key(&id) || self.gone.contains(&id) || self.forgotten.contains(&id)
    }
}

/// The run, folded from the log. One that was written before it changed may have left the log since: then it has ended,
/// and the history may have it.
async fn replay_or_past(log: &Log, id: RunId, was_written: bool) -> Result<Option<Summary>, ReadError> {
    match replay(log, id).await? {
        None if was_written => {
            let past = log.journals.of(id).past(id).await.unwrap_or_else(|error| {
                tracing::warn!(
                    run.id = %id, %error,
                    "the history cannot be read: if the index lists the run as open, `toolyard index rebuild`"
                );
                None
            });
            Ok(past.map(|known| Summary::of(&known.run, known.last)))
        }
        summary => Ok(summary),
    }
}

/// The run, folded from the log; `None` if the log does not hold its beginning.
pub(super) async fn replay(log: &Log, id: RunId) -> Result<Option<Summary>, ReadError> {
    let mut folded = Folded::new(id);
    let mut pages = RunPages::new(log.journals.of(id), id, PAGE_BYTES);
    loop {
        let page = pages.next_known().await?;
        if page.is_cut {
            return Ok(None);
        }
        for entry in &page.entries {
            folded.apply(entry);
        }
        if page.last {
            return Ok(folded.summary());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nats::journal::tests::{carried::left, journal};

    #[test]
    fn of_many_runs_at_rest_some_are_written_early_and_those_of_them_that_change_are_read_again() {
        let mut fold = Fold { open_max: Some(2), ..Fold::default() };
        let ids: Vec<RunId> = (0..5).map(|_| RunId::new(Shard(0), uuid::Uuid::now_v7())).collect();
        let entry = |sequence, event| Entry {
            sequence,
            at: Timestamp(sequence),
            not_after: None,
            hooked: false,
            events: vec![event],
        };
        let opened = || run::RunOpened { deadline: Timestamp(u64::MAX), open: true, ..run::RunOpened::default() };
        for (sequence, id) in (1..).zip(&ids) {
            fold.take(*id, &entry(sequence, run::Event::RunOpened(opened())));
        }
        let written: HashSet<RunId> = fold.take_settled().iter().map(|summary| summary.id).collect();
        assert!(written.len() >= 3 && written.len() + fold.open.len() == ids.len(), "{written:?}");
        assert!(ids.iter().all(|id| fold.knows(*id)));
        for (sequence, id) in (6..).zip(&ids) {
            fold.take(*id, &entry(sequence, run::Event::RunClosed));
        }
        assert_eq!(fold.again, written);
        let ended: HashSet<RunId> = fold.take_settled().iter().map(|summary| summary.id).collect();
        assert!(ended.is_disjoint(&written) && ended.len() + written.len() == ids.len(), "{ended:?}");
    }

    #[tokio::test]
    async fn a_carried_run_is_replayed_whatever_of_it_has_left_the_log() {
        let (_server, journal) = journal().await;
        for leaves in [2, 3, 4] {
            let (log, run) = left(&journal, leaves).await;
            let summary = replay(&log, run).await.expect("it can be read");
            assert_eq!(summary.map(|summary| summary.id), Some(run), "{leaves} have left");
        }
    }
}
