//! Runs as they stand, for commands and for who asks: the open ones, and for a while those that have just ended, so that
//! the command that ended a run need not read it from the log again.

use std::collections::VecDeque;

use run::{RunId, Shard};
use tokio::sync::oneshot;

use super::Keeper;
use super::slice::Slice;
use crate::known::Known;

/// Calls of ended runs that are kept for each shard, and the newest run whatever it has. Few, for whoever ends a run asks at
/// once; and what was kept for long is no more in the processor's cache when its memory is used again.
const CALLS_MAX: usize = 32;

/// Runs that have just ended, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Ended {
    runs: VecDeque<Known>,
    calls: usize,
}

/// Who waits until the feed has brought what is in the log already.
#[derive(Debug)]
pub(super) struct Expecting {
    through: u64,
    run: RunId,
    reply: oneshot::Sender<Option<Known>>,
}

impl Ended {
    pub(super) fn keep(&mut self, known: Known) {
        self.calls += weight(&known);
        self.runs.push_back(known);
        while self.calls > CALLS_MAX
            && self.runs.len() > 1
            && let Some(oldest) = self.runs.pop_front()
        {
            self.calls -= weight(&oldest);
        }
    }

    /// Something happened to a run after its end: whoever asks must read it.
    pub(super) fn forget(&mut self, run: RunId) {
        if let Some(at) = self.runs.iter().position(|known| known.run.id() == run)
            && let Some(known) = self.runs.remove(at)
        {
            self.calls -= weight(&known);
        }
    }

    pub(super) fn holds(&self, run: RunId) -> bool {
        self.find(run).is_some()
    }

    fn find(&self, run: RunId) -> Option<&Known> {
        self.runs.iter().rev().find(|known| known.run.id() == run)
    }
}

/// A run without calls weighs something too.
fn weight(known: &Known) -> usize {
    known.run.calls().len().max(1)
}

impl Keeper {
    /// Tells how a run stands once everything up to `through` is applied; `None` where it is not known here.
    pub(super) fn tell_standing(&mut self, run: RunId, through: u64, reply: oneshot::Sender<Option<Known>>) {
        let may_act = self.may_act(run.shard());
        let Some(slice) = self.slice_mut(run.shard()).filter(|_| may_act) else {
            // Whoever asked may have gone, here and below.
            drop(reply.send(None));
            return;
        };
        if slice.applied < through {
            slice.expecting.push(Expecting { through, run, reply });
        } else {
            drop(reply.send(slice.standing(run)));
        }
    }

    /// The feed has brought more of a shard.
    pub(super) fn tell_expecting(&mut self, shard: Shard) {
        if self.slice(shard).is_none_or(|slice| slice.expecting.is_empty()) {
            return;
        }
        let may_act = self.may_act(shard);
        let Some(slice) = self.slice_mut(shard) else { return };
        let applied = slice.applied;
        let due: Vec<Expecting> = slice.expecting.extract_if(.., |expecting| expecting.through <= applied).collect();
        for Expecting { run, reply, .. } in due {
            drop(reply.send(slice.standing(run).filter(|_| may_act)));
        }
    }
}

impl Slice {
    fn standing(&self, run: RunId) -> Option<Known> {
        self.runs.get(&run).map(|open| &open.known).or_else(|| self.ended.find(run)).cloned()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use run::{Entry, Event, RunOpened, Timestamp};

    use super::super::by_hand;
    use super::*;

    fn run_of(calls: usize) -> Known {
        let calls = (0..calls).map(|index| Arc::new(by_hand::call(&format!("call-{index}")))).collect();
        let opened = RunOpened { deadline: Timestamp(u64::MAX), calls, ..RunOpened::default() };
        let mut known = Known::new(RunId::new(Shard(0), uuid::Uuid::now_v7()));
        let entry = Entry { sequence: 1, at: Timestamp(1), not_after: None, events: vec![Event::RunOpened(opened)] };
        known.apply(&entry, &mut Vec::new());
        known
    }

    #[test]
    fn the_run_that_ended_last_is_there_for_who_ended_it_whatever_it_has() {
        let mut ended = Ended::default();
        let many = run_of(CALLS_MAX + 1);
        let id = many.run.id();
        ended.keep(many);
        assert!(ended.find(id).is_some_and(|known| known.run.calls().len() == CALLS_MAX + 1));
        let last = run_of(1);
        ended.keep(last.clone());
        assert!(ended.find(id).is_none() && ended.find(last.run.id()).is_some(), "it makes way for the next");
        ended.forget(last.run.id());
        assert_eq!((ended.runs.len(), ended.calls), (0, 0));
    }
}
