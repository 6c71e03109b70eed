//! Which shards are written when.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use run::Shard;
use tokio::time::Instant;

use super::{WriteError, Written};
use crate::shards::every;

/// The shards of this coordinator.
#[derive(Debug, Default)]
pub(super) struct Shards {
    /// Those that were ours at the last look, and those that are still written although they are not ours any more.
    begun: HashSet<Shard>,
    /// Since when each is being written.
    busy: HashMap<Shard, Instant>,
    /// Since when each was not written completely.
    behind: HashMap<Shard, Instant>,
    /// Those that failed since the last round.
    pub(super) failed: Vec<(Shard, WriteError)>,
}

impl Shards {
    /// The shards that are to be written now: in a round all that are not being written, otherwise those that have just
    /// become ours. Those that are not ours any more come second.
    pub(super) fn look(&mut self, ours: impl Fn(Shard) -> bool, is_round: bool) -> (Vec<Shard>, Vec<Shard>) {
        let is_due =
            |shard: &Shard| ours(*shard) && !self.busy.contains_key(shard) && (is_round || !self.begun.contains(shard));
        let due: Vec<Shard> = every().filter(is_due).collect();
        let is_lost = |shard: &&Shard| !ours(**shard) && !self.busy.contains_key(*shard);
        let lost: Vec<Shard> = self.begun.iter().filter(is_lost).copied().collect();
        for shard in &lost {
            self.begun.remove(shard);
            self.behind.remove(shard);
        }
        self.begun.extend(&due);
        self.busy.extend(due.iter().map(|shard| (*shard, Instant::now())));
        (due, lost)
    }

    pub(super) fn handle_written(&mut self, (shard, written): Written) {
        let began = self.busy.remove(&shard).unwrap_or_else(Instant::now);
        if matches!(written, Ok(true)) {
            self.behind.remove(&shard);
        } else {
            self.behind.entry(shard).or_insert(began);
        }
        self.failed.extend(written.err().map(|error| (shard, error)));
    }

    /// For how long shards were not written completely.
    pub(super) fn late(&self) -> impl Iterator<Item = Duration> {
        let busy = self.busy.iter().filter(|(shard, _)| !self.behind.contains_key(*shard));
        self.behind.values().chain(busy.map(|(_, since)| since)).map(Instant::elapsed)
    }
}

#[cfg(test)]
mod tests {
    use run::RunId;

    use super::*;

    #[test]
    fn a_shard_is_written_as_soon_as_it_is_ours_and_then_in_each_round_unless_it_is_still_written() {
        let (mut shards, [one, two]) = (Shards::default(), [Shard(1), Shard(2)]);
        let ours = |shards: &mut Shards, ours: &[Shard], is_round| shards.look(|shard| ours.contains(&shard), is_round);
        let nothing = || (Vec::new(), Vec::new());
        assert_eq!(ours(&mut shards, &[one], false), (vec![one], vec![]));
        assert_eq!(ours(&mut shards, &[one, two], false), (vec![two], vec![]));
        assert_eq!(ours(&mut shards, &[one, two], true), nothing(), "both are still written");
        shards.handle_written((two, Ok(true)));
        assert_eq!(ours(&mut shards, &[one, two], false), nothing(), "it waits for the next round");
        assert_eq!(ours(&mut shards, &[one, two], true), (vec![two], vec![]));
        // One that is lost is ended when nothing writes it any more.
        assert_eq!(ours(&mut shards, &[two], false), nothing());
        shards.handle_written((one, Ok(false)));
        assert_eq!(ours(&mut shards, &[two], false), (vec![], vec![one]));
        assert_eq!(ours(&mut shards, &[two], false), nothing());
        assert_eq!(ours(&mut shards, &[one, two], false), (vec![one], vec![]), "it came back");
    }

    #[test]
    fn shards_are_late_as_long_as_they_are_written_or_were_not_written_completely() {
        let (mut shards, shard) = (Shards::default(), Shard(1));
        shards.look(|found| found == shard, true);
        assert_eq!(shards.late().count(), 1);
        shards.handle_written((shard, Err(WriteError::Left(RunId::new(shard, uuid::Uuid::now_v7())))));
        let since = shards.behind[&shard];
        shards.look(|found| found == shard, true);
        assert_eq!((shards.late().count(), shards.behind[&shard], shards.failed.len()), (1, since, 1));
        shards.handle_written((shard, Ok(true)));
        assert_eq!(shards.late().count(), 0);
    }
}
