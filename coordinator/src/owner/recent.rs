//! The entries that the feed delivered of each run since its opening, as long as there is room. A reader that comes
//! later starts with them and reads nothing from the broker. After a failure all readers reconnect at once, and
//! otherwise each would read its run from the log.

use std::collections::BTreeMap;
use std::sync::Arc;

use run::{CallSpec, Entry, Event, RunId, RunOpened};

use crate::nats::journal::WATCHED_PAGE_BYTES;

/// Limit of the memory of one shard. Beyond it the oldest runs are dropped, and are read from the log.
const BYTES_MAX: usize = 1024 * 1024;
/// Limit of one run: at most a page, because it stays with a reader that does not read.
const RUN_BYTES_MAX: usize = WATCHED_PAGE_BYTES;
const RUN_ENTRIES_MAX: usize = 256;

/// Runs of one shard, each from its opening on.
#[derive(Debug, Default)]
pub(super) struct Recent {
    /// Ids begin with their creation time, so the first is the oldest.
    runs: BTreeMap<RunId, Told>,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Told {
    entries: Vec<Arc<Entry>>,
    bytes: usize,
}

impl Recent {
    /// Adds an entry from the feed, possibly for the second time. No entry since the last one was missed.
    pub(super) fn note(&mut self, run: RunId, entry: &Arc<Entry>, payload: u32) {
        let first = entry.events.first();
        match first {
            Some(Event::RunOpened(opened)) if opened.erasure.is_none() => {
                self.forget(run);
                self.runs.insert(run, Told::default());
            }
            Some(Event::RunEraseRequested(_)) => return self.forget(run),
            _ => {}
        }
        let Some(told) = self.runs.get_mut(&run) else { return };
        if told.entries.last().is_some_and(|last| last.sequence >= entry.sequence) {
            return;
        }
        let bytes = bytes_of(entry, payload);
        if told.bytes.saturating_add(bytes) > RUN_BYTES_MAX || told.entries.len() >= RUN_ENTRIES_MAX {
            return self.forget(run);
        }
        told.entries.push(Arc::clone(entry));
        told.bytes += bytes;
        self.bytes += bytes;
        while self.bytes > BYTES_MAX
            && let Some((_, oldest)) = self.runs.pop_first()
        {
            self.bytes -= oldest.bytes;
        }
    }

    /// All entries of a run up to the newest from the feed; `None` if they are not known.
    pub(super) fn of(&self, run: RunId) -> Option<Vec<Arc<Entry>>> {
        self.runs.get(&run).map(|told| told.entries.clone())
    }

    pub(super) fn forget(&mut self, run: RunId) {
        if let Some(told) = self.runs.remove(&run) {
            self.bytes -= told.bytes;
        }
    }
}

/// Bytes of memory that an entry takes, about: those of its payload are in its events.
fn bytes_of(entry: &Entry, payload: u32) -> usize {
    let events = entry.events.len() * size_of::<Event>();
    let calls = |event: &Event| match event {
        Event::RunOpened(RunOpened { calls, .. }) | Event::CallsAppended { calls } => calls.len(),
        _ => 0,
    };
    let calls = entry.events.iter().map(calls).sum::<usize>() * size_of::<CallSpec>();
    let payload = usize::try_from(payload).unwrap_or(usize::MAX);
    payload.saturating_add(size_of::<Entry>() + events + calls)
}

#[cfg(test)]
mod tests {
    use run::{EraseRequest, Erasure, Route, Shard, Timestamp};

    use super::*;

    fn fresh() -> RunId {
        RunId::new(Shard(0), uuid::Uuid::now_v7())
    }

    fn entry(sequence: u64, event: Event) -> Arc<Entry> {
        Arc::new(Entry { sequence, at: Timestamp(1), not_after: None, hooked: false, events: vec![event] })
    }

    fn opening(sequence: u64) -> Arc<Entry> {
        entry(sequence, Event::RunOpened(RunOpened::default()))
    }

    fn sequences(recent: &Recent, run: RunId) -> Option<Vec<u64>> {
        recent.of(run).map(|entries| entries.iter().map(|entry| entry.sequence).collect())
    }

    #[test]
    fn a_run_is_known_whole_or_not_at_all() {
        let (mut recent, run, older) = (Recent::default(), fresh(), fresh());
        recent.note(older, &entry(3, Event::RunClosed), 1);
        assert_eq!(sequences(&recent, older), None, "its opening was not seen");
        recent.note(run, &opening(4), 1);
        recent.note(run, &entry(6, Event::RunClosed), 1);
        // After a takeover the feed may begin further back, so an entry comes twice.
        recent.note(run, &entry(6, Event::RunClosed), 1);
        assert_eq!(sequences(&recent, run), Some(vec![4, 6]));
        recent.note(run, &opening(4), 1);
        recent.note(run, &entry(6, Event::RunClosed), 1);
        assert_eq!(sequences(&recent, run), Some(vec![4, 6]));
    }

    #[test]
    fn what_is_erased_is_forgotten() {
        let (mut recent, run) = (Recent::default(), fresh());
        let request = EraseRequest {
            reason: "asked for".to_owned(),
            tenant: None,
            bytes: 0,
            not_before: Timestamp(1),
            request: None,
            continuations: 0,
        };
        recent.note(run, &opening(1), 1);
        recent.note(run, &entry(2, Event::RunEraseRequested(request)), 1);
        assert_eq!((sequences(&recent, run), recent.bytes), (None, 0));
        let erasure = Erasure { after: std::time::Duration::from_secs(60), request: None };
        let opened = RunOpened { erasure: Some(erasure), ..RunOpened::default() };
        recent.note(run, &entry(3, Event::RunOpened(opened)), 1);
        assert_eq!(sequences(&recent, run), None, "it is not stored longer than it runs");
    }

    #[test]
    fn short_runs_count_the_memory_of_their_calls() {
        let mut recent = Recent::default();
        let (id, tool) = ("a".parse().expect("an id"), "ask".parse().expect("a name"));
        let call = Arc::new(CallSpec::new(id, tool, Vec::new(), Route::Client, Timestamp(1)));
        for sequence in 1..10_000 {
            let opened = RunOpened { calls: vec![Arc::clone(&call)], ..RunOpened::default() };
            recent.note(fresh(), &entry(sequence, Event::RunOpened(opened)), 1);
        }
        let each = size_of::<Entry>() + size_of::<Event>() + size_of::<CallSpec>();
        assert!(recent.runs.len() * each <= BYTES_MAX, "{} runs", recent.runs.len());
    }

    #[test]
    fn long_runs_and_then_the_oldest_make_room() {
        let (mut recent, long) = (Recent::default(), fresh());
        recent.note(long, &opening(1), 1);
        recent.note(long, &entry(2, Event::RunClosed), RUN_BYTES_MAX as u32);
        assert_eq!((sequences(&recent, long), recent.bytes), (None, 0));
        let runs: Vec<RunId> = (0..20).map(|_| fresh()).collect();
        for (sequence, run) in (3..).zip(&runs) {
            recent.note(*run, &opening(sequence), RUN_BYTES_MAX as u32 - 1024);
        }
        let known: Vec<RunId> = runs.iter().copied().filter(|run| recent.of(*run).is_some()).collect();
        assert_eq!(known, runs[4..], "sixteen of a page each fit");
        assert!(recent.bytes <= BYTES_MAX);
        known.into_iter().for_each(|run| recent.forget(run));
        assert_eq!(recent.bytes, 0);
    }
}
