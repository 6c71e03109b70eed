//! Runs of a shard that the history cannot take as they are. For a while they keep the shard waiting, because what
//! cannot be read may come back; then they are stored with less, or left out.

use std::collections::BTreeMap;
use std::time::Duration;

use run::{Shard, Timestamp};

/// For how long a shard waits for what cannot be read. The log keeps its runs for 25 h, and so does the store their
/// objects.
pub const GIVE_UP_AFTER: Duration = Duration::from_secs(4 * 3600);

#[derive(Debug, Default)]
pub struct Stuck(BTreeMap<Shard, Waiting>);

#[derive(Debug)]
struct Waiting {
    since: Timestamp,
    /// In the part of the shard that is stored now.
    failed: bool,
}

impl Stuck {
    /// A part of the shard is about to be stored.
    pub fn handle_begun(&mut self, shard: Shard) {
        if let Some(waiting) = self.0.get_mut(&shard) {
            waiting.failed = false;
        }
    }

    /// Something of a run could not be read. Returns whether to go on without it.
    pub fn handle_failed(&mut self, shard: Shard, now: Timestamp) -> bool {
        let waiting = self.0.entry(shard).or_insert(Waiting { since: now, failed: true });
        waiting.failed = true;
        now.since(waiting.since) >= GIVE_UP_AFTER
    }

    /// The part was stored. The next one waits again if nothing of this one was missing.
    pub fn handle_stored(&mut self, shard: Shard) {
        if self.0.get(&shard).is_some_and(|waiting| !waiting.failed) {
            self.0.remove(&shard);
        }
    }

    /// Another coordinator stores the shard.
    pub fn handle_lost(&mut self, shard: Shard) {
        self.0.remove(&shard);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_waits_for_hours_and_then_goes_on_without_what_is_missing_until_a_part_of_it_is_whole() {
        let (mut stuck, began) = (Stuck::default(), Timestamp(1_000_000));
        let (shard, other) = (Shard(1), Shard(2));
        let at = |seconds: u64| began.after(Duration::from_secs(seconds));
        let limit = GIVE_UP_AFTER.as_secs();
        for seconds in [0, 5, limit - 1] {
            stuck.handle_begun(shard);
            assert!(!stuck.handle_failed(shard, at(seconds)), "after {seconds} s");
        }
        assert!(!stuck.handle_failed(other, at(limit)), "each waits on its own");
        assert!(stuck.handle_failed(shard, at(limit)));
        stuck.handle_stored(shard);
        stuck.handle_begun(shard);
        assert!(stuck.handle_failed(shard, at(limit + 1)), "the store is still away for the next part");
        stuck.handle_stored(shard);
        stuck.handle_begun(shard);
        stuck.handle_stored(shard);
        assert!(!stuck.handle_failed(shard, at(limit + 2)), "it was back in between");
        stuck.handle_lost(shard);
        assert!(!stuck.handle_failed(shard, at(3 * limit)));
    }
}
