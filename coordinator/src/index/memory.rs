//! The index in this process' memory, for a coordinator without Redis. It is bounded, ends with the process, and is
//! rebuilt.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use owner::SHARDS_MAX;
use run::{CallIndex, RunId, Shard, Timestamp};

use super::expired::Expired;
use super::filter::{Ask, CallFilter, Coverage, Created, Key, Page, Place, RunFilter};
use super::{Counts, Summary, Watermark, Watermarks, coverage};
use crate::nats::journal::Found;

/// Ended runs that are kept; then the oldest are forgotten. Some 40 MB with a call each.
const ENDED_RUNS_MAX: usize = 100_000;
/// Calls of ended runs that are kept: runs may have 128.
const ENDED_CALLS_MAX: usize = 400_000;
/// Runs that are read for one page.
const SCAN_MAX: usize = 20_000;
/// Calls of one page of runs, because a response must stay small.
const PAGE_CALLS_MAX: usize = 10_000;

/// Cheap to clone: all clones are one index.
#[derive(Debug, Clone, Default)]
pub(crate) struct Memory(Arc<Mutex<Runs>>);

#[derive(Debug)]
struct Runs {
    all: BTreeMap<Key, Arc<Summary>>,
    /// Runs that have not ended: few, and most requests are about them.
    open: BTreeSet<Key>,
    ended: BTreeSet<Key>,
    ended_calls: usize,
    counts: Counts,
    marks: Watermarks,
    found: Found,
    cut_before: Option<Timestamp>,
    /// Whether the history has runs that are pruned here.
    beside_history: bool,
}

impl Default for Runs {
    fn default() -> Self {
        let (all, counts, cut_before) = Default::default();
        let (open, ended, ended_calls) = Default::default();
        let found = Found::default();
        Self {
            all,
            open,
            ended,
            ended_calls,
            counts,
            marks: [None; SHARDS_MAX],
            found,
            cut_before,
            beside_history: false,
        }
    }
}

impl Memory {
    fn runs(&self) -> MutexGuard<'_, Runs> {
        // After a panic the content may be half updated, which is acceptable because the index can be rebuilt.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn beside_history(self) -> Self {
        self.runs().beside_history = true;
        self
    }

    /// Runs that have ended and were created before this moment are missing.
    pub(super) fn cut(&self, before: Timestamp) {
        let mut runs = self.runs();
        runs.cut_before = runs.cut_before.max(Some(before));
    }

    pub(super) fn write(&self, summaries: Vec<Arc<Summary>>) {
        let mut runs = self.runs();
        summaries.into_iter().for_each(|summary| runs.put(summary));
        runs.forget_oldest();
    }

    pub(super) fn get(&self, ids: &[RunId]) -> Vec<Option<Arc<Summary>>> {
        let runs = self.runs();
        ids.iter().map(|id| runs.all.get(&Key::from(*id)).cloned()).collect()
    }

    /// Positions after `behind`, at most `count` of them, the newest first.
    pub(super) fn places(&self, behind: Option<Key>, count: usize) -> Vec<Key> {
        let end = behind.map_or(Bound::Unbounded, Bound::Excluded);
        self.runs().all.range((Bound::Unbounded, end)).rev().map(|(key, _)| *key).take(count).collect()
    }

    pub(super) fn marks(&self) -> Watermarks {
        self.runs().marks
    }

    pub(super) fn advance(&self, shard: Shard, from: Option<Watermark>, to: Watermark) -> bool {
        let mut runs = self.runs();
        match runs.marks.get_mut(usize::from(shard.0)) {
            Some(mark) if *mark == from => {
                *mark = Some(to);
                true
            }
            Some(_) | None => false,
        }
    }

    pub(super) fn note_found(&self, found: Found) {
        self.runs().found = found;
    }

    /// Another coordinator owns the shard now, so changes of its runs no longer arrive here.
    pub(super) fn forget(&self, shard: Shard) {
        let mut runs = self.runs();
        let keys: Vec<Key> = runs.all.values().filter(|run| run.id.shard() == shard).map(|run| run.id.into()).collect();
        keys.into_iter().for_each(|key| runs.remove(key));
        if let Some(mark) = runs.marks.get_mut(usize::from(shard.0)) {
            *mark = None;
        }
    }

    pub(super) fn wipe(&self) {
        let mut runs = self.runs();
        *runs = Runs { beside_history: runs.beside_history, found: runs.found, ..Runs::default() };
    }

    pub(super) fn erase(&self, erased: &[(RunId, u64)]) {
        let mut runs = self.runs();
        for (id, through) in erased {
            let key = Key::from(*id);
            if runs.all.get(&key).is_some_and(|known| known.sequence <= *through) {
                runs.remove(key);
            }
        }
    }

    /// Forgets runs that the log no longer holds: those that ended before the moment of their partition.
    pub(super) fn prune(&self, expired: &Expired) {
        let mut runs = self.runs();
        let (least, most) = expired.bounds();
        let end = Key::at(most);
        let is_over = |run: &Summary| {
            let has_left = |ended| ended < expired.of(run.id);
            expired.has(run.id) && run.has_ended() && run.last_end().is_none_or(has_left)
        };
        let old = runs.all.range(..end).filter(|(_, run)| is_over(run));
        let old: Vec<Key> = old.map(|(key, _)| *key).collect();
        let cut = Some(most).filter(|_| runs.beside_history && !old.is_empty());
        old.into_iter().for_each(|key| runs.remove(key));
        let is_known = |cut: &Timestamp| *cut > least || runs.beside_history;
        runs.cut_before = runs.cut_before.filter(is_known).max(cut);
    }

    pub(super) fn coverage(&self) -> Coverage {
        self.runs().coverage()
    }

    pub(super) fn count(&self) -> (Counts, Coverage) {
        let runs = self.runs();
        (runs.counts.clone(), runs.coverage())
    }

    pub(super) fn list_runs(&self, filter: &RunFilter, ask: Ask<Key>) -> Page<Arc<Summary>, Key> {
        let runs = self.runs();
        let (mut items, mut calls, mut looked_at) = (Vec::new(), 0, 0);
        let mut behind = None;
        let mut rest = runs.descending(filter.is_of_open_runs(), filter.created, ask.behind);
        for run in rest.by_ref() {
            behind = Some(Key::from(run.id));
            looked_at += 1;
            if filter.admits(run) {
                calls += run.calls.len();
                items.push(Arc::clone(run));
            }
            if items.len() >= ask.size || calls >= PAGE_CALLS_MAX || looked_at >= SCAN_MAX {
                break;
            }
        }
        let behind = rest.next().and(behind);
        Page { items, behind, coverage: runs.coverage() }
    }

    pub(super) fn list_calls(&self, filter: &CallFilter, ask: Ask<Place>) -> Page<(Arc<Summary>, CallIndex), Place> {
        let runs = self.runs();
        let (mut items, mut looked_at) = (Vec::new(), 0);
        // The run of the last position may have more calls.
        let from = ask.behind.map(|place| Bound::Included(place.run));
        let coverage = runs.coverage();
        let mut last = None;
        for run in runs.descending_from(filter.is_of_open_runs(), filter.created, from) {
            for (index, call) in run.calls.iter().enumerate().rev() {
                let Ok(index) = u16::try_from(index) else { continue };
                let place = Place { run: run.id.into(), call: CallIndex(index) };
                if ask.behind.is_some_and(|behind| place >= behind) {
                    continue;
                }
                if items.len() >= ask.size || looked_at >= SCAN_MAX {
                    return Page { items, behind: last, coverage };
                }
                last = Some(place);
                looked_at += 1;
                if filter.admits(run, call) {
                    items.push((Arc::clone(run), place.call));
                }
            }
        }
        Page { items, behind: None, coverage }
    }
}

impl Runs {
    /// The newest summary of a run is kept.
    fn put(&mut self, summary: Arc<Summary>) {
        let key = Key::from(summary.id);
        if self.all.get(&key).is_some_and(|known| known.sequence > summary.sequence) {
            return;
        }
        self.remove(key);
        if summary.has_ended() {
            self.ended.insert(key);
            self.ended_calls += summary.calls.len();
        } else {
            self.open.insert(key);
        }
        self.counts.add(&summary);
        self.all.insert(key, summary);
    }

    fn remove(&mut self, key: Key) {
        if let Some(old) = self.all.remove(&key) {
            self.counts.subtract(&old);
            self.open.remove(&key);
            if self.ended.remove(&key) {
                self.ended_calls -= old.calls.len();
            }
        }
    }

    fn forget_oldest(&mut self) {
        while self.ended.len() > ENDED_RUNS_MAX || self.ended_calls > ENDED_CALLS_MAX {
            let Some(oldest) = self.ended.first().copied() else { return };
            self.remove(oldest);
            let kept_from = Timestamp(oldest.created_at().0 + 1);
            self.cut_before = self.cut_before.max(Some(kept_from));
        }
    }

    fn coverage(&self) -> Coverage {
        coverage(&self.marks, self.found, self.cut_before)
    }

    fn descending(
        &self,
        only_open: bool,
        created: Created,
        behind: Option<Key>,
    ) -> Box<dyn Iterator<Item = &Arc<Summary>> + '_> {
        self.descending_from(only_open, created, behind.map(Bound::Excluded))
    }

    fn descending_from(
        &self,
        only_open: bool,
        created: Created,
        behind: Option<Bound<Key>>,
    ) -> Box<dyn Iterator<Item = &Arc<Summary>> + '_> {
        let first = created.first().map_or(Bound::Unbounded, Bound::Included);
        let end = match (created.end(), behind) {
            (Some(end), Some(Bound::Excluded(behind))) => Bound::Excluded(end.min(behind)),
            (Some(end), Some(Bound::Included(behind))) if behind < end => Bound::Included(behind),
            (Some(end), _) => Bound::Excluded(end),
            (None, Some(behind)) => behind,
            (None, None) => Bound::Unbounded,
        };
        if is_empty(first, end) {
            return Box::new(std::iter::empty());
        }
        if only_open {
            Box::new(self.open.range((first, end)).rev().filter_map(|key| self.all.get(key)))
        } else {
            Box::new(self.all.range((first, end)).rev().map(|(_, run)| run))
        }
    }
}

/// `BTreeMap::range` panics if the range ends before it begins.
fn is_empty(first: Bound<Key>, end: Bound<Key>) -> bool {
    match (first, end) {
        (Bound::Included(first), Bound::Included(end)) => first > end,
        (Bound::Included(first), Bound::Excluded(end)) => first >= end,
        (Bound::Excluded(_) | Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
    }
}

impl Counts {
    pub(super) fn add(&mut self, run: &Summary) {
        *self.runs.entry(run.status).or_default() += 1;
        for call in &run.calls {
            *self.calls.entry(call.state).or_default() += 1;
            *self.tools.entry(call.tool.clone()).or_default().entry(call.state).or_default() += 1;
            self.parked += u64::from(call.parked);
        }
    }

    fn subtract(&mut self, run: &Summary) {
        lower(&mut self.runs, &run.status);
        for call in &run.calls {
            lower(&mut self.calls, &call.state);
            if let Some(states) = self.tools.get_mut(&call.tool) {
                lower(states, &call.state);
                if states.is_empty() {
                    self.tools.remove(&call.tool);
                }
            }
            self.parked -= u64::from(call.parked);
        }
    }
}

fn lower<K: Ord>(counts: &mut BTreeMap<K, u64>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

#[cfg(test)]
mod tests;
