//! How far a shard's history goes when only some of the runs of a part are written.

use std::collections::BTreeSet;

/// The runs of a part that are not prepared yet.
#[derive(Debug)]
pub(super) struct Unprepared {
    /// The first entry of each in the part.
    firsts: BTreeSet<u64>,
    /// The last entry of the part.
    through: u64,
}

impl Unprepared {
    pub(super) fn new(through: u64, firsts: impl Iterator<Item = u64>) -> Self {
        Self { firsts: firsts.collect(), through }
    }

    /// The run with this first entry was prepared.
    pub(super) fn handle_prepared(&mut self, first: u64) {
        self.firsts.remove(&first);
    }

    /// What ended up to this entry was prepared: each other run has its first entry in the part behind it. The last
    /// entry of a run would not do: it may have come after the end of the run.
    pub(super) fn position(&self) -> u64 {
        self.firsts.first().map_or(self.through, |first| first.saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_before_the_first_entry_of_every_run_that_is_not_prepared() {
        let mut unprepared = Unprepared::new(90, [12, 40, 57].into_iter());
        let mut after = |first| {
            unprepared.handle_prepared(first);
            unprepared.position()
        };
        assert_eq!([after(0), after(40), after(12), after(57)], [11, 11, 56, 90]);
    }
}
