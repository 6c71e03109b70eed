//! Runs that have just ended, so that the command that ended a run need not read it from the log again.

use std::collections::VecDeque;

use run::RunId;

use crate::known::Known;

/// Calls of ended runs that are kept for each shard, and the newest run whatever it has. Few, because a command asks
/// right after it has ended a run, and memory that was kept for longer is no longer in the processor's cache when it is
/// reused.
const CALLS_MAX: usize = 32;

/// Runs that have just ended, the oldest first.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ended {
    runs: VecDeque<Known>,
    calls: usize,
}

impl Ended {
    pub(crate) fn keep(&mut self, known: Known) {
        self.calls += weight(&known);
        self.runs.push_back(known);
        while self.calls > CALLS_MAX
            && self.runs.len() > 1
            && let Some(oldest) = self.runs.pop_front()
        {
            self.calls -= weight(&oldest);
        }
    }

    /// Something happened to a run after its end, so it must be read again.
    pub(crate) fn forget(&mut self, run: RunId) {
        if let Some(at) = self.runs.iter().position(|known| known.run.id() == run)
            && let Some(known) = self.runs.remove(at)
        {
            self.calls -= weight(&known);
        }
    }

    pub(crate) fn find(&self, run: RunId) -> Option<&Known> {
        self.runs.iter().rev().find(|known| known.run.id() == run)
    }
}

/// A run without calls weighs something too.
fn weight(known: &Known) -> usize {
    known.run.calls().len().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{opened, run_id};

    #[test]
    fn the_run_that_ended_last_is_kept_whatever_its_size_until_the_next_one_ends() {
        let mut ended = Ended::default();
        let (large, small) = (run_id(1), run_id(2));
        ended.keep(opened(large, CALLS_MAX + 1));
        assert!(ended.find(large).is_some_and(|known| known.run.calls().len() == CALLS_MAX + 1));
        ended.keep(opened(small, 1));
        assert!(ended.find(large).is_none() && ended.find(small).is_some());
        ended.forget(small);
        assert_eq!((ended.runs.len(), ended.calls), (0, 0));
    }
}
