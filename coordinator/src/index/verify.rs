//! Compares the index with the log: folds the whole log, and checks that the index has the same for every run and has
//! no other run. Runs go on meanwhile, so differences are checked again before they are reported.

use std::sync::Arc;
use std::time::Duration;

use run::{RunId, Shard, Timestamp};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::expired::Expired;
use super::filter::Key;
use super::rebuild::{Fold, RebuildError, next_of, replay};
use super::summary::Summary;
use super::{Index, Watermark};
use crate::index::redis::Member;
use crate::nats::journal::ReadError;
use crate::nats::scan::Log;

/// Differences that are reported; more are only counted.
const TOLD_MAX: usize = 1000;
/// Limit of differences that are checked again: an index that is entirely wrong should be rebuilt.
const SUSPECTS_MAX: usize = 10_000;
/// How often, and with which pause, a difference is checked again. The index follows within 100 ms.
const LOOKS: usize = 3;
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Runs that are compared together.
const COMPARED: usize = 512;
/// Runs that the log forgets within this time are not compared, because either side may forget them first.
const LAST_MINUTES: Duration = Duration::from_secs(300);
/// How much older than its first entry the id of a run may be that is compared.
const OPENED_LATER: Duration = Duration::from_secs(30);
const BATCHES_AHEAD: usize = 4;

/// A message of a comparison.
#[derive(Debug, Default)]
pub(crate) struct Word {
    pub(crate) entries: u64,
    pub(crate) runs: u64,
    pub(crate) differences: Vec<Difference>,
    pub(crate) end: Option<End>,
}

#[derive(Debug)]
pub(crate) struct Difference {
    pub(crate) run: RunId,
    pub(crate) what: String,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct End {
    pub(crate) differences: u64,
    pub(crate) complete: bool,
}

/// Compares, and sends messages while the receiver exists.
pub(crate) async fn verify(index: Index, log: Log, messages: mpsc::Sender<Result<Word, RebuildError>>) {
    if let Err(error) = Box::pin(compare_all(index, log, &messages)).await {
        // An error means that the receiver is gone and does not need it.
        drop(messages.send(Err(error)).await);
    }
}

async fn compare_all(
    index: Index,
    log: Log,
    messages: &mpsc::Sender<Result<Word, RebuildError>>,
) -> Result<(), RebuildError> {
    let marks = index.marks().await?;
    let settled = |shard: &Shard| marks[usize::from(shard.0)].is_some_and(Watermark::is_settled);
    let (complete, cut_before) = index.coverage().await.map(|known| (known.is_complete(), known.cut_before))?;
    let ignored = Expired::now(&log.journals).after(LAST_MINUTES);
    let partitions = log.journals.partitions();
    let mut comparison = Comparison { index, log, ignored, cut_before, message: Word::default(), suspects: Vec::new() };
    for partition in partitions {
        let shards: Vec<Shard> = partition.shards().filter(settled).collect();
        if !shards.is_empty() && !comparison.compare_partition(shards, messages).await? {
            return Ok(());
        }
    }
    let differences = comparison.check_again(messages).await?;
    comparison.message.end = Some(End { differences, complete });
    comparison.send_findings(messages).await;
    Ok(())
}
/// A possible difference.
#[derive(Debug, Clone, PartialEq)]
enum Suspect {
    Run(RunId),
    Stray(Member),
}

struct Comparison {
    index: Index,
    log: Log,
    ignored: Expired,
    cut_before: Option<Timestamp>,
    message: Word,
    suspects: Vec<Suspect>,
}

impl Comparison {
    /// Compares these shards of a partition. `false` if the receiver is gone.
    async fn compare_partition(
        &mut self,
        shards: Vec<Shard>,
        messages: &mpsc::Sender<Result<Word, RebuildError>>,
    ) -> Result<bool, RebuildError> {
        let through = self.log.tip(&shards).await?;
        let (sender, mut batches) = mpsc::channel(BATCHES_AHEAD);
        let mut reading = JoinSet::new();
        let (reader, wanted) = (self.log.clone(), shards.clone());
        reading.spawn(async move { reader.read(&wanted, 0, through, &sender).await });
        let (mut fold, mut reported) = (Fold::default(), self.message.entries);
        while let Some(batch) = batches.recv().await {
            self.message.entries += batch.entries.len() as u64;
            batch.entries.into_iter().for_each(|(id, entry)| fold.take(id, &entry));
            let settled = fold.take_settled();
            self.compare(&settled).await?;
            if self.message.entries >= reported + 10_000 {
                reported = self.message.entries;
                if !self.send_findings(messages).await {
                    return Ok(false);
                }
            }
        }
        if let Some(read) = reading.join_next().await {
            read.map_err(|_| ReadError::new(&"the reader of the log ended"))??;
        }
        self.find_others(&fold, &shards).await?;
        let (mut left, again) = fold.finish();
        while let Some(some) = next_of(&mut left) {
            self.compare(&some).await?;
        }
        self.suspects.extend(again.into_iter().map(Suspect::Run));
        Ok(true)
    }

    /// `false` if the receiver is gone.
    async fn send_findings(&mut self, messages: &mpsc::Sender<Result<Word, RebuildError>>) -> bool {
        let Word { entries, runs, .. } = self.message;
        let message = std::mem::replace(&mut self.message, Word { entries, runs, ..Word::default() });
        messages.send(Ok(message)).await.is_ok()
    }

    fn suspect(&mut self, suspect: Suspect) {
        if self.suspects.len() < SUSPECTS_MAX && !self.suspects.contains(&suspect) {
            self.suspects.push(suspect);
        }
    }

    /// Whether the log may have lost entries of the run, also since the comparison began.
    fn is_leaving(&self, run: RunId) -> bool {
        run.created_at() < self.ignored.of(run).max(self.log.journals.of(run).oldest().after(OPENED_LATER))
    }

    /// Whether the index should have the run.
    fn is_expected(&self, run: &Summary) -> bool {
        let is_cut = |run: &Summary| run.has_ended() && self.cut_before.is_some_and(|cut| run.id.created_at() < cut);
        !self.is_leaving(run.id) && !is_cut(run)
    }

    async fn compare(&mut self, runs: &[Arc<Summary>]) -> Result<(), RebuildError> {
        for some in runs.chunks(COMPARED) {
            let some: Vec<Arc<Summary>> = some.iter().filter(|run| self.is_expected(run)).cloned().collect();
            for (run, wrong) in some.iter().zip(self.wrongs(&some).await?) {
                if wrong.is_some() {
                    self.suspect(Suspect::Run(run.id));
                }
            }
            self.message.runs += some.len() as u64;
        }
        Ok(())
    }

    /// The difference in the index of each of these runs.
    async fn wrongs(&self, runs: &[Arc<Summary>]) -> Result<Vec<Option<String>>, RebuildError> {
        let ids: Vec<RunId> = runs.iter().map(|run| run.id).collect();
        let known = self.index.get(&ids).await?;
        let misplaced = match &self.index {
            Index::Memory(_) => vec![None; runs.len()],
            Index::Redis(redis) => redis.missing(runs).await?,
        };
        let wrongs = runs.iter().zip(known).zip(misplaced).map(|((run, known), misplaced)| match known {
            None => Some("is missing".to_owned()),
            Some(known) if known != *run => Some(difference(&known, run)),
            Some(_) => misplaced.map(|set| format!("is missing in the set {set}")),
        });
        Ok(wrongs.collect())
    }

    /// Finds runs that are not in the log, and members of sets that do not belong there.
    async fn find_others(&mut self, fold: &Fold, shards: &[Shard]) -> Result<(), RebuildError> {
        let journals = self.log.journals.clone();
        let ignored = self.ignored.clone();
        // With a history, the index has many runs that have left the log.
        let has_left = |run: RunId| run.created_at() < ignored.of(run).max(journals.of(run).oldest());
        let is_foreign = |run: RunId| shards.contains(&run.shard()) && !fold.knows(run) && !has_left(run);
        match self.index.clone() {
            Index::Memory(memory) => {
                let mut behind = None;
                loop {
                    let places: Vec<Key> = memory.places(behind, COMPARED);
                    behind = places.last().copied();
                    if places.is_empty() {
                        return Ok(());
                    }
                    let foreign = places.iter().filter_map(|place| place.run_id()).filter(|run| is_foreign(*run));
                    foreign.for_each(|run| self.suspect(Suspect::Run(run)));
                }
            }
            Index::Redis(redis) => {
                let mut sets = redis.sets().await?;
                while let Some((runs, strays)) = redis.next_members(&mut sets).await? {
                    let foreign = runs.into_iter().filter(|run| is_foreign(*run));
                    foreign.for_each(|run| self.suspect(Suspect::Run(run)));
                    strays.into_iter().for_each(|stray| self.suspect(Suspect::Stray(stray)));
                }
                Ok(())
            }
        }
    }

    /// Checks possible differences again, and returns the number of those that remain.
    async fn check_again(&mut self, messages: &mpsc::Sender<Result<Word, RebuildError>>) -> Result<u64, RebuildError> {
        let mut suspects = std::mem::take(&mut self.suspects);
        let mut found = Vec::new();
        for _ in 0..LOOKS {
            if suspects.is_empty() {
                return Ok(0);
            }
            tokio::time::sleep(LOOK_AGAIN).await;
            found.clear();
            let mut remaining = Vec::new();
            for suspect in suspects {
                if let Some(difference) = self.look_at(&suspect).await? {
                    found.push(difference);
                    remaining.push(suspect);
                }
            }
            suspects = remaining;
            if !self.send_findings(messages).await {
                break;
            }
        }
        let differences = found.len() as u64;
        found.truncate(TOLD_MAX);
        self.message.differences = found;
        Ok(differences)
    }

    async fn look_at(&self, suspect: &Suspect) -> Result<Option<Difference>, RebuildError> {
        match (suspect, &self.index) {
            (Suspect::Run(id), _) => {
                let what = match replay(&self.log, *id).await? {
                    Some(run) if self.is_expected(&run) => self.wrongs(&[Arc::new(run)]).await?.pop().flatten(),
                    Some(_) => None,
                    None if self.is_leaving(*id) => None,
                    None => {
                        let known = self.index.get(&[*id]).await?.pop().flatten();
                        known.map(|_| "is not in the log".to_owned())
                    }
                };
                Ok(what.map(|what| Difference { run: *id, what }))
            }
            (Suspect::Stray(member), Index::Redis(redis)) => {
                let run = member.run;
                let is_stray = !redis.strays(vec![member.clone()], &[run]).await?.is_empty()
                    && !self.is_leaving(run)
                    && redis.stands(member).await?;
                let what = format!("is in the set {} and does not belong there", member.set);
                Ok(is_stray.then_some(Difference { run, what }))
            }
            (Suspect::Stray(_), Index::Memory(_)) => Ok(None),
        }
    }
}

/// The first difference between two summaries of a run.
fn difference(known: &Summary, log: &Summary) -> String {
    let says = |what: &str, known: &dyn std::fmt::Debug, log: &dyn std::fmt::Debug| {
        format!("{what}: the index has {known:?}, the log {log:?}")
    };
    if known.status != log.status {
        return says("status", &known.status, &log.status);
    }
    let calls = known.calls.iter().zip(&log.calls).find(|(known, log)| known != log);
    if let Some((known, log)) = calls {
        return says("call", known, log);
    }
    if known.calls.len() != log.calls.len() {
        return says("number of calls", &known.calls.len(), &log.calls.len());
    }
    if known.sequence != log.sequence {
        return says("last entry", &known.sequence, &log.sequence);
    }
    says("run", known, log)
}
