//! Which coordinators there are, which shard is whose, and what follows for one of them. Pure: the bucket of leases as it
//! was last seen.
//!
//! Nobody compares clocks: a member is dead for us when we have not seen its key change for a whole lease of our own time.

use std::collections::BTreeMap;

use proto::names;
use run::Shard;
use tokio::time::{Duration, Instant};

use crate::shards::{ShardSet, every};

/// How long a member lives without renewal.
pub(crate) const LEASE: Duration = Duration::from_secs(6);

#[derive(Debug)]
pub(crate) struct Members {
    seen: BTreeMap<String, Seen>,
    shards: Vec<Key>,
    /// Everything that was in the bucket when we began to watch it has been seen.
    complete: bool,
}

#[derive(Debug)]
struct Seen {
    revision: u64,
    /// When its key was last seen to change, by our own clock.
    changed: Instant,
}

/// What stands under a shard's key.
#[derive(Debug, Clone, Default)]
struct Key {
    revision: u64,
    owner: Option<String>,
}

/// What a member should do about the shards that are its own.
#[derive(Debug, PartialEq, Eq, Default)]
pub(crate) struct Plan {
    /// Shards that nobody has, each with the revision of its key.
    pub(crate) claim: Vec<(Shard, u64)>,
    /// How many of those it should take.
    pub(crate) wanted: usize,
    pub(crate) release: Vec<Shard>,
}

impl Members {
    pub(crate) fn new() -> Self {
        Self { seen: BTreeMap::new(), shards: vec![Key::default(); usize::from(names::SHARDS)], complete: false }
    }

    pub(crate) fn lives(&mut self, member: &str, revision: u64, now: Instant) {
        match self.seen.get_mut(member) {
            Some(seen) if seen.revision >= revision => {}
            Some(seen) => *seen = Seen { revision, changed: now },
            None => {
                self.seen.insert(member.to_owned(), Seen { revision, changed: now });
            }
        }
    }

    pub(crate) fn left(&mut self, member: &str) {
        self.seen.remove(member);
    }

    /// A shard's key says so, unless we have seen something newer.
    pub(crate) fn shard_is(&mut self, shard: Shard, owner: Option<&str>, revision: u64) {
        if let Some(key) = self.shards.get_mut(usize::from(shard.0))
            && revision > key.revision
        {
            *key = Key { revision, owner: owner.map(str::to_owned) };
        }
    }

    /// Nothing stands under a shard's key, whatever we have seen there.
    pub(crate) fn shard_is_unknown(&mut self, shard: Shard) {
        if let Some(key) = self.shards.get_mut(usize::from(shard.0)) {
            *key = Key::default();
        }
    }

    /// Who owns a shard, and the revision that says so.
    pub(crate) fn owner(&self, shard: Shard) -> (Option<&str>, u64) {
        self.shards.get(usize::from(shard.0)).map_or((None, 0), |key| (key.owner.as_deref(), key.revision))
    }

    /// We could not have heard anybody until now: whoever was silent is not dead for that.
    pub(crate) fn forgive(&mut self, now: Instant) {
        self.seen.values_mut().for_each(|seen| seen.changed = now);
    }

    /// The watch of the bucket broke, so changes may have been missed. What stands there comes again in the order of its
    /// last changes: shards before the members that took them, which must not look like shards without an owner.
    pub(crate) fn missed(&mut self, now: Instant) {
        self.forgive(now);
        self.complete = false;
    }

    /// Everything that stood in the bucket has come.
    pub(crate) fn seen_all(&mut self) {
        self.complete = true;
    }

    /// Members whose lease has run out, each with the revision last seen.
    pub(crate) fn dead(&self, me: &str, now: Instant) -> Vec<(String, u64)> {
        if !self.complete {
            return Vec::new();
        }
        let silent = |seen: &Seen| now.saturating_duration_since(seen.changed) >= LEASE;
        let dead = self.seen.iter().filter(|(id, seen)| *id != me && silent(seen));
        dead.map(|(id, seen)| (id.clone(), seen.revision)).collect()
    }

    /// Every member gets an equal share; what does not divide goes to the first by id. Nothing is to be done while not
    /// everything has been seen.
    pub(crate) fn plan(&self, me: &str, held: ShardSet) -> Plan {
        if !self.complete {
            return Plan::default();
        }
        let Some(place) = self.seen.keys().position(|id| id == me) else { return Plan::default() };
        let (shards, members) = (usize::from(names::SHARDS), self.seen.len());
        let share = shards / members + usize::from(place < shards % members);
        if held.len() > share {
            return Plan { release: held.iter().skip(share).collect(), ..Plan::default() };
        }
        let is_free = |owner: Option<&str>| owner.is_none_or(|owner| !self.seen.contains_key(owner));
        let free = every().filter(|shard| !held.contains(*shard)).filter_map(|shard| {
            let (owner, revision) = self.owner(shard);
            is_free(owner).then_some((shard, revision))
        });
        Plan { claim: free.collect(), wanted: share - held.len(), release: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complete() -> Members {
        let mut members = Members::new();
        members.seen_all();
        members
    }

    /// Lets every member follow its plan until nobody has anything to do; gives who holds how many.
    fn settle(members: &mut Members, held: &mut BTreeMap<String, ShardSet>) -> Vec<usize> {
        let mut revision = every().map(|shard| members.owner(shard).1).max().unwrap_or(0);
        for _ in 0..100 {
            let mut idle = true;
            for (id, held) in held.iter_mut() {
                let plan = members.plan(id, *held);
                for shard in plan.release {
                    revision += 1;
                    held.remove(shard);
                    members.shard_is(shard, None, revision);
                    idle = false;
                }
                for (shard, _) in plan.claim.into_iter().take(plan.wanted) {
                    revision += 1;
                    held.insert(shard);
                    members.shard_is(shard, Some(id), revision);
                    idle = false;
                }
            }
            if idle {
                return held.values().map(|held| held.len()).collect();
            }
        }
        panic!("it never settles: {held:?}");
    }

    #[test]
    fn shares_are_equal_whoever_comes_and_goes_and_nobody_holds_what_another_does() {
        let (now, mut members, mut held) = (Instant::now(), complete(), BTreeMap::new());
        for (id, shares) in [("b", vec![16]), ("a", vec![8, 8]), ("c", vec![6, 5, 5])] {
            members.lives(id, 1, now);
            held.insert(id.to_owned(), ShardSet::default());
            assert_eq!(settle(&mut members, &mut held), shares);
        }
        members.left("a");
        held.remove("a");
        assert_eq!(settle(&mut members, &mut held), [8, 8]);
        let all = held.values().fold(ShardSet::default(), |all, held| all.union(*held));
        assert_eq!(all.len(), 16);
    }

    #[test]
    fn more_members_than_shards_leave_some_without() {
        let (now, mut members, mut held) = (Instant::now(), complete(), BTreeMap::new());
        for id in 0..20 {
            members.lives(&format!("{id:02}"), 1, now);
            held.insert(format!("{id:02}"), ShardSet::default());
        }
        let shares = settle(&mut members, &mut held);
        assert_eq!((shares.iter().filter(|share| **share == 1).count(), shares.iter().sum::<usize>()), (16, 16));
    }

    #[test]
    fn a_member_is_dead_when_its_key_stood_still_for_a_lease_while_we_could_hear() {
        let (now, mut members) = (Instant::now(), complete());
        members.lives("me", 1, now);
        members.lives("other", 2, now);
        // The same revision again is no sign of life.
        members.lives("other", 2, now + LEASE / 2);
        assert_eq!(members.dead("me", now + LEASE), [("other".to_owned(), 2)]);
        members.forgive(now + LEASE);
        assert!(members.dead("me", now + LEASE).is_empty());
        members.lives("other", 3, now + LEASE * 2 - Duration::from_millis(1));
        assert!(members.dead("me", now + LEASE * 2).is_empty());
    }

    #[test]
    fn a_shard_of_a_member_that_is_gone_is_free_and_an_old_word_about_it_is_not_heard() {
        let (now, mut members) = (Instant::now(), complete());
        members.lives("me", 1, now);
        every().for_each(|shard| members.shard_is(shard, Some("gone"), 50));
        let plan = members.plan("me", ShardSet::default());
        assert_eq!((plan.claim.len(), plan.wanted), (16, 16));
        assert_eq!(plan.claim.first(), Some(&(Shard(0), 50)));
        members.shard_is(Shard(0), Some("me"), 51);
        members.shard_is(Shard(0), None, 50);
        assert_eq!(members.owner(Shard(0)), (Some("me"), 51));
    }

    #[test]
    fn shards_of_a_member_that_joined_while_the_watch_was_broken_are_not_taken_from_it() {
        let (now, mut members) = (Instant::now(), complete());
        members.lives("me", 1, now);
        members.lives("other", 2, now);
        members.missed(now);
        // Its claims come before its own key, which is renewed all the time.
        every().for_each(|shard| members.shard_is(shard, Some("new"), 50));
        assert_eq!(members.plan("me", ShardSet::default()), Plan::default());
        assert!(members.dead("me", now + LEASE * 2).is_empty());
        members.lives("new", 60, now);
        members.seen_all();
        let plan = members.plan("me", ShardSet::default());
        assert_eq!((plan.claim.len(), plan.wanted), (0, 6));
    }
}
