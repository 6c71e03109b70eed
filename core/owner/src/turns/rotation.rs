//! Runs of one tenant and priority, which take turns: in each round every run hands out one call.

use std::collections::{BTreeMap, BTreeSet};

use run::{CallIndex, RunId, Timestamp};

use super::{CallKey, Look};

/// The place of a run in the rotation: runs of a round by the time at which they joined.
type Turn = (u64, Timestamp, RunId);

#[derive(Debug, Default)]
pub(super) struct Rotation {
    order: BTreeSet<Turn>,
    runs: BTreeMap<RunId, (Turn, BTreeSet<CallIndex>)>,
    calls: usize,
}

impl Rotation {
    pub(super) fn len(&self) -> usize {
        self.calls
    }

    /// A run that joins comes after the present round, so that it does not hold up a run that waits for the next one.
    /// `is_first`: the call has had its turn and could not use it, so its run joins the present round.
    pub(super) fn insert(&mut self, key: CallKey, since: Timestamp, is_first: bool) {
        let present = self.order.first().map(|(round, ..)| *round);
        let round = present.map_or(0, |round| round + u64::from(!is_first));
        let joins = (round, since, key.run);
        let (turn, calls) = self.runs.entry(key.run).or_insert((joins, BTreeSet::new()));
        if is_first && joins < *turn {
            self.order.remove(turn);
            *turn = joins;
        }
        self.order.insert(*turn);
        self.calls += usize::from(calls.insert(key.call));
    }

    pub(super) fn remove(&mut self, key: CallKey) {
        let Some((turn, calls)) = self.runs.get_mut(&key.run) else { return };
        self.calls -= usize::from(calls.remove(&key.call));
        if calls.is_empty() {
            self.order.remove(turn);
            self.runs.remove(&key.run);
        }
    }

    pub(super) fn take(&mut self) -> Option<CallKey> {
        let first @ (round, since, run) = self.order.pop_first()?;
        let (turn, calls) = self.runs.get_mut(&run)?;
        debug_assert_eq!(*turn, first, "a run has one turn");
        let call = calls.pop_first()?;
        self.calls -= 1;
        if calls.is_empty() {
            self.runs.remove(&run);
        } else {
            *turn = (round + 1, since, run);
            self.order.insert(*turn);
        }
        Some(CallKey { run, call })
    }

    /// How many calls are handed out before this one; at least so many, if the look was cut short.
    pub(super) fn ahead(&self, key: CallKey, look: &mut Look) -> Option<usize> {
        let ((round, since, run), calls) = self.runs.get(&key.run)?;
        calls.get(&key.call)?;
        let own = look.at(calls.range(..key.call)).count();
        let turn = (round + own as u64, *since, *run);
        let before = look.at(self.order.range(..turn)).filter(|(.., other)| other != run);
        let of_others = before.map(|(first, joined, other)| {
            let rounds = turn.0 + u64::from((joined, other) < (since, run)) - first;
            let calls = self.runs.get(other).map_or(0, |(_, calls)| calls.len());
            calls.min(usize::try_from(rounds).unwrap_or(usize::MAX))
        });
        Some(own + of_others.sum::<usize>())
    }
}
