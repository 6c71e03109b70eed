//! Ended runs of a shard that are still to be erased: which are due, which steps are left, and which requests did not
//! fit and are to be read from the log again. The driver erases and reports; the list is a part of the shard's
//! snapshot, so the next owner continues.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use run::{Entry, EraseRequest, Event, RunId, TenantId, Timestamp};

use crate::known::Known;

/// Erasures of a shard beside which an operator's request is kept in memory, some 3 MB of them. Further requests are
/// read from the log again, as many as half of this, when half of them are done.
pub const REQUESTED_MAX: usize = 16_384;

/// The remaining work of erasing a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwedErasure {
    pub run: RunId,
    pub due: Timestamp,
    /// The entries up to this position are erased.
    pub through: u64,
    /// The digest under which the request id of the run is stored.
    pub request: Option<[u8; 32]>,
    /// The number of further responses of the run in the Responses API, after its first.
    pub continuations: u32,
    /// The tenant whose quota gets bytes of the log back when the run has left it, and the number of bytes.
    pub bytes: Option<(TenantId, u64)>,
    /// The history never has the run: it was opened as one that is erased after its end.
    pub is_never_past: bool,
}

/// Ended runs of a shard that are still to be erased.
#[derive(Debug, Clone, Default)]
pub struct Erasures {
    runs: BTreeMap<RunId, Owing>,
    /// Runs with everything left, and runs with only objects left, by due time.
    all_left: BTreeSet<(Timestamp, RunId)>,
    objects_left: BTreeSet<(Timestamp, RunId)>,
    left_in_index: BTreeSet<RunId>,
    /// The first log entry with an operator's request that did not fit here.
    behind: Option<u64>,
    /// Requests from this entry of the log on are being read again.
    refilling: Option<u64>,
    /// Runs erased since that reading began, because their requests may have been read before.
    erased_meanwhile: BTreeSet<RunId>,
}

#[derive(Debug, Clone)]
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

/// The parts of a run that are left to be erased, beside its entry in the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    All,
    /// The log has no entries of the run any more.
    Objects,
}

/// What follows from an attempt to erase a run.
#[derive(Debug, PartialEq, Eq)]
pub struct Attempted {
    /// The tenant that gets bytes of its quota back, and the number of bytes.
    pub released: Option<(TenantId, u64)>,
    /// The log has no entries of the run any more: the index is to forget it.
    pub has_left_log: bool,
}

impl Erasures {
    /// The list of a snapshot. `behind` is the first log entry with a request that is not on it; 0 if all are.
    #[must_use]
    pub fn of(erasures: Vec<OwedErasure>, behind: u64) -> Self {
        let mut owed = Self { behind: (behind > 0).then_some(behind), ..Self::default() };
        erasures.into_iter().for_each(|erasure| owed.insert(erasure));
        owed
    }

    /// The first log entry with a request that is not on the list; 0 if all are.
    #[must_use]
    pub fn behind(&self) -> u64 {
        self.behind.into_iter().chain(self.refilling).min().unwrap_or(0)
    }

    /// All runs that are still to be erased, for a snapshot.
    #[must_use]
    pub fn list(&self) -> Vec<OwedErasure> {
        self.runs.values().map(|owing| owing.erasure.clone()).collect()
    }

    /// Whether a run is still to be erased.
    #[must_use]
    pub fn holds(&self, run: RunId) -> bool {
        self.runs.contains_key(&run)
    }

    /// How many runs are still to be erased.
    #[must_use]
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// Whether no run is still to be erased.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Begins at most `room` runs that are due and whose end is in a stored snapshot, which is through `written`: no
    /// owner may look for entries that are gone.
    pub fn begin(&mut self, left: Left, now: Timestamp, written: u64, room: usize) -> Vec<OwedErasure> {
        let waiting = match left {
            Left::All => &self.all_left,
            Left::Objects => &self.objects_left,
        };
        let due = waiting.iter().take_while(|(due, _)| *due <= now);
        let erasures = due.filter_map(|(_, run)| self.runs.get(run)).map(|owing| &owing.erasure);
        let due: Vec<OwedErasure> = erasures.filter(|erasure| erasure.through <= written).take(room).cloned().collect();
        due.iter().for_each(|erasure| self.move_to(erasure.run, Step::UnderWay));
        due
    }

    /// An attempt to erase a run through this position has ended; the error is what is left. `None` if it does not
    /// count: the shard was lost meanwhile, or an entry of the run came late.
    pub fn handle_erased(&mut self, run: RunId, through: u64, result: Result<(), Left>) -> Option<Attempted> {
        let owing = self.runs.get_mut(&run).filter(|owing| owing.erasure.through == through)?;
        let released = if result == Err(Left::All) { None } else { owing.erasure.bytes.take() };
        self.move_to(run, result.map_or_else(Step::Waiting, |()| Step::LeftInIndex));
        Some(Attempted { released, has_left_log: result != Err(Left::All) })
    }

    /// The erased runs that only the index may still have.
    pub fn left_in_index(&self) -> impl Iterator<Item = RunId> {
        self.left_in_index.iter().copied()
    }

    /// The index has forgotten a run: nothing of it is left.
    pub fn handle_forgotten(&mut self, run: RunId) {
        self.remove(run);
        if self.refilling.is_some() {
            self.erased_meanwhile.insert(run);
        }
    }

    /// Takes a run that has ended, if it is to be erased. Most are kept.
    pub fn take(&mut self, known: &Known, bytes: u64) {
        let run = &known.run;
        let Some(due) = run.erase_at() else { return };
        let may_be_past = self.runs.get(&run.id()).is_some_and(|owing| !owing.erasure.is_never_past);
        self.insert(OwedErasure {
            run: run.id(),
            due,
            through: known.last,
            request: run.request(),
            continuations: run.continuations(),
            bytes: run.tenant().map(|tenant| (tenant.clone(), bytes)),
            is_never_past: run.erasure().is_some() && !may_be_past,
        });
    }

    /// Takes an operator's request to erase a run that is not open. If it does not fit, it is read from the log again
    /// later. Returns whether the entry is such a request.
    pub fn take_request(&mut self, run: RunId, entry: &Entry) -> bool {
        let Some(request) = erase_request(entry) else { return false };
        let owed = self.runs.get(&run);
        if owed.is_none() && self.runs.len() >= REQUESTED_MAX {
            self.behind.get_or_insert(entry.sequence);
            return true;
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
            is_never_past: owed.is_some_and(|owing| owing.erasure.is_never_past),
        });
        true
    }

    /// Takes an entry that arrived after its run's end. Returns whether the run, and so the entry, is to be erased.
    pub fn take_late(&mut self, run: RunId, sequence: u64) -> bool {
        let Some(owing) = self.runs.get(&run) else { return false };
        let erasure = OwedErasure { through: sequence, ..owing.erasure.clone() };
        self.insert(erasure);
        true
    }

    /// Begins to read requests that did not fit, once there is room for many. Returns the log entry to read from.
    pub fn begin_refill(&mut self) -> Option<u64> {
        if self.refilling.is_some() || self.runs.len() > REQUESTED_MAX / 2 {
            return None;
        }
        self.refilling = self.behind.take();
        self.refilling
    }

    /// Requests were read from entry `from` on; `next` is the first entry that is still to be read, if there is one.
    /// Returns the runs whose requests were taken; `None` if the shard was lost meanwhile. The requests of open runs
    /// are known already.
    pub fn handle_refilled(
        &mut self,
        from: u64,
        requests: &[(RunId, Arc<Entry>)],
        next: Option<u64>,
        is_open: impl Fn(RunId) -> bool,
    ) -> Option<Vec<RunId>> {
        if self.refilling != Some(from) {
            return None;
        }
        self.refilling = None;
        let (erased, mut taken) = (std::mem::take(&mut self.erased_meanwhile), Vec::new());
        for (run, entry) in requests {
            // An erasure in progress is not started again.
            if !is_open(*run) && !self.holds(*run) && !erased.contains(run) {
                self.take_request(*run, entry);
                taken.push(*run);
            }
        }
        self.behind = self.behind.into_iter().chain(next).min();
        Some(taken)
    }

    fn insert(&mut self, erasure: OwedErasure) {
        let run = erasure.run;
        self.remove(run);
        self.runs.insert(run, Owing { erasure, step: Step::UnderWay });
        self.move_to(run, Step::Waiting(Left::All));
    }

    fn remove(&mut self, run: RunId) {
        self.move_to(run, Step::UnderWay);
        self.runs.remove(&run);
    }

    /// Moves a run to another step.
    fn move_to(&mut self, run: RunId, step: Step) {
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
}

/// The operator's request in an entry to erase its run, unless it was stored too late to count.
#[must_use]
pub fn erase_request(entry: &Entry) -> Option<&EraseRequest> {
    let request = entry.events.iter().find_map(|event| match event {
        Event::RunEraseRequested(request) => Some(request),
        _ => None,
    });
    request.filter(|_| !entry.is_late())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owed(number: u64) -> OwedErasure {
        let run = format!("run_00_018bcfe5{number:04x}70008000000000000000").parse().expect("a run id");
        OwedErasure {
            run,
            due: Timestamp(number),
            through: number,
            request: None,
            continuations: 0,
            bytes: None,
            is_never_past: false,
        }
    }

    #[test]
    fn a_run_is_erased_once_it_is_due_and_a_snapshot_says_that_it_ended_and_is_owed_until_the_index_forgot_it() {
        let runs: Vec<OwedErasure> = (1..=5).map(owed).collect();
        let mut all = Erasures::of(runs.clone(), 0);
        assert_eq!(all.begin(Left::All, Timestamp(4), 3, 2), runs[..2], "the first that are due");
        assert_eq!(all.begin(Left::All, Timestamp(4), 3, 9), runs[2..3], "not the one that no snapshot knows of");
        assert!(all.begin(Left::All, Timestamp(9), 3, 9).is_empty(), "what is under way is not begun again");
        let erased = Attempted { released: None, has_left_log: true };
        assert_eq!(all.handle_erased(runs[0].run, 1, Ok(())), Some(erased));
        assert!(all.handle_erased(runs[1].run, 2, Err(Left::Objects)).expect("it counts").has_left_log);
        assert!(!all.handle_erased(runs[2].run, 3, Err(Left::All)).expect("it counts").has_left_log);
        assert_eq!(all.handle_erased(runs[3].run, 3, Ok(())), None, "it was erased through an earlier entry");
        assert_eq!(all.begin(Left::Objects, Timestamp(9), 9, 9), runs[1..2]);
        assert_eq!(all.begin(Left::All, Timestamp(9), 9, 9), runs[2..]);
        assert_eq!((all.len(), all.left_in_index().count()), (5, 1));
        // A late entry is erased with the run.
        assert!(all.take_late(runs[0].run, 7) && !all.take_late(owed(9).run, 7));
        assert_eq!(all.begin(Left::All, Timestamp(9), 6, 9), []);
        let late = OwedErasure { through: 7, ..runs[0].clone() };
        assert_eq!(all.begin(Left::All, Timestamp(9), 7, 9), [late]);
        all.handle_forgotten(runs[0].run);
        assert_eq!((all.len(), all.list().len(), all.left_in_index().count()), (4, 4, 0));
    }

    #[test]
    fn bytes_are_given_back_once() {
        let tenant: TenantId = "tenant".parse().expect("a tenant");
        let mut all = Erasures::of(vec![OwedErasure { bytes: Some((tenant.clone(), 70)), ..owed(1) }], 0);
        let [begun] = &all.begin(Left::All, Timestamp(1), 1, 1)[..] else { panic!("it is due") };
        let attempted = all.handle_erased(begun.run, 1, Err(Left::All)).expect("it counts");
        assert_eq!(attempted.released, None, "the log still has it");
        all.begin(Left::All, Timestamp(1), 1, 1);
        let attempted = all.handle_erased(begun.run, 1, Err(Left::Objects)).expect("it counts");
        assert_eq!(
            attempted.released,
            Some((tenant, 70)),
            "it takes no room in the log, whatever is left of it elsewhere"
        );
        all.begin(Left::Objects, Timestamp(1), 1, 1);
        let again = all.handle_erased(begun.run, 1, Ok(())).expect("it counts");
        assert_eq!(again.released, None);
    }

    #[test]
    fn requests_that_did_not_fit_are_read_again_from_the_first_of_them() {
        let mut all = Erasures::of(Vec::new(), 40);
        assert_eq!((all.behind(), all.begin_refill()), (40, Some(40)));
        assert_eq!((all.behind(), all.begin_refill()), (40, None), "it is being read");
        assert_eq!(all.handle_refilled(30, &[], None, |_| false), None, "another reading, of an earlier ownership");
        assert_eq!(all.handle_refilled(40, &[], Some(90), |_| false), Some(Vec::new()));
        assert_eq!((all.behind(), all.begin_refill()), (90, Some(90)));
        assert_eq!(all.handle_refilled(90, &[], None, |_| false), Some(Vec::new()));
        assert_eq!((all.behind(), all.begin_refill()), (0, None));
    }
}
