//! The coordinators and the shards' owners as last seen in the lease bucket, and what follows for one coordinator.
//!
//! Clocks of different machines are never compared: a member counts as dead when its key has not changed for a whole
//! lease by the observer's own clock.

use std::collections::BTreeMap;
use std::time::Instant;

use run::Shard;

use super::{CARRIES, LEASE};
use crate::shards::{SHARDS_MAX, ShardSet};

#[derive(Debug)]
pub(super) struct Members {
    seen: BTreeMap<String, Seen>,
    shards: Vec<ShardKey>,
    /// Everything that was in the bucket when the watch began has been seen.
    complete: bool,
    /// The newest revision that the watch has brought. Answers to requests may show a newer one.
    watched: u64,
}

#[derive(Debug)]
struct Seen {
    revision: u64,
    /// When its key was last seen to change, by the observer's clock.
    changed: Instant,
    /// Whether its release knows of carried runs.
    carries: bool,
}

/// The last known content of a shard's key.
#[derive(Debug, Clone, Default)]
struct ShardKey {
    revision: u64,
    owner: Option<String>,
}

/// The steps of a member towards its share of the shards.
#[derive(Debug, PartialEq, Eq, Default)]
pub(super) struct Plan {
    /// Shards without a living owner, each with the revision of its key.
    pub(super) free: Vec<(Shard, u64)>,
    /// How many of the free shards this member should claim.
    pub(super) wanted: usize,
    /// Shards beyond this member's share.
    pub(super) release: Vec<Shard>,
}

impl Members {
    pub(super) fn new(shards: usize) -> Self {
        Self {
            seen: BTreeMap::new(),
            shards: vec![ShardKey::default(); shards.min(SHARDS_MAX)],
            complete: false,
            watched: 0,
        }
    }

    pub(super) fn shards(&self) -> usize {
        self.shards.len()
    }

    /// There are at least so many shards now. Returns whether that is news. The keys of new shards come with the next
    /// changes or with the whole content: a shard that was claimed before is a conflict that shows its owner.
    pub(super) fn grow(&mut self, shards: usize) -> bool {
        let (before, shards) = (self.shards.len(), shards.min(SHARDS_MAX));
        if shards > before {
            self.shards.resize_with(shards, ShardKey::default);
        }
        shards > before
    }

    /// A member's key was seen at this revision. A revision that was seen before is no sign of life.
    pub(super) fn renewed(&mut self, member: &str, revision: u64, now: Instant) {
        match self.seen.get_mut(member) {
            Some(seen) if seen.revision >= revision => {}
            Some(seen) => *seen = Seen { revision, changed: now, ..*seen },
            None => {
                self.seen.insert(member.to_owned(), Seen { revision, changed: now, carries: true });
            }
        }
    }

    /// A member's key has this value.
    pub(super) fn labelled(&mut self, member: &str, label: &str) {
        if let Some(seen) = self.seen.get_mut(member) {
            seen.carries = label.split(' ').any(|word| word == CARRIES);
        }
    }

    /// Whether the releases of all members know of carried runs: an owner that does not would forget them.
    pub(super) fn all_carry(&self) -> bool {
        self.complete && self.seen.values().all(|seen| seen.carries)
    }

    pub(super) fn left(&mut self, member: &str) {
        self.seen.remove(member);
    }

    /// Records the content of a shard's key, unless a newer revision has been seen.
    pub(super) fn set_owner(&mut self, shard: Shard, owner: Option<&str>, revision: u64) {
        if let Some(key) = self.shards.get_mut(usize::from(shard.0))
            && revision > key.revision
        {
            *key = ShardKey { revision, owner: owner.map(str::to_owned) };
        }
    }

    /// Records that a shard has no key at all, whatever revision has been seen.
    pub(super) fn forget_owner(&mut self, shard: Shard) {
        if let Some(key) = self.shards.get_mut(usize::from(shard.0)) {
            *key = ShardKey::default();
        }
    }

    /// The owner of a shard, and the revision of its key.
    pub(super) fn owner(&self, shard: Shard) -> (Option<&str>, u64) {
        self.shards.get(usize::from(shard.0)).map_or((None, 0), |key| (key.owner.as_deref(), key.revision))
    }

    /// Counts the silence of all members from now on, because their renewals could not arrive before.
    pub(super) fn forgive(&mut self, now: Instant) {
        self.seen.values_mut().for_each(|seen| seen.changed = now);
    }

    /// The watch of the bucket broke, so changes may have been missed. The bucket's content comes again in the order
    /// of last changes: shards come before the members that claimed them, and must not be taken for shards without an
    /// owner.
    pub(super) fn missed(&mut self, now: Instant) {
        self.forgive(now);
        self.complete = false;
    }

    /// The watch has brought the change with this revision.
    pub(super) fn watched(&mut self, revision: u64) {
        self.watched = self.watched.max(revision);
    }

    /// The whole content of the bucket has been seen.
    pub(super) fn all_seen(&mut self) {
        self.complete = true;
    }

    /// Members other than `me` whose lease has run out, each with the revision last seen.
    pub(super) fn dead(&self, me: &str, now: Instant) -> Vec<(String, u64)> {
        if !self.complete {
            return Vec::new();
        }
        let silent = |seen: &Seen| now.saturating_duration_since(seen.changed) >= LEASE;
        let dead = self.seen.iter().filter(|(id, seen)| *id != me && silent(seen));
        dead.map(|(id, seen)| (id.clone(), seen.revision)).collect()
    }

    /// What `me` should do, holding the shards `held`. Every member gets an equal share; the remainder goes to the
    /// first members by id. The plan is empty until the whole bucket has been seen.
    pub(super) fn plan(&self, me: &str, held: ShardSet) -> Plan {
        if !self.complete {
            return Plan::default();
        }
        let Some(place) = self.seen.keys().position(|id| id == me) else { return Plan::default() };
        let (shards, members) = (self.shards.len(), self.seen.len());
        let share = shards / members + usize::from(place < shards % members);
        if held.len() > share {
            return Plan { release: held.iter().skip(share).collect(), ..Plan::default() };
        }
        // A conflict may show a shard's key before the watch brings the key of the member that claimed it.
        let is_gone = |owner: &str, revision| revision <= self.watched && !self.seen.contains_key(owner);
        let free = self.all_shards().filter(|shard| !held.contains(*shard)).filter_map(|shard| {
            let (owner, revision) = self.owner(shard);
            owner.is_none_or(|owner| is_gone(owner, revision)).then_some((shard, revision))
        });
        Plan { free: free.collect(), wanted: share - held.len(), release: Vec::new() }
    }

    fn all_shards(&self) -> impl Iterator<Item = Shard> {
        (0..=u8::MAX).take(self.shards.len()).map(Shard)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SHARDS: usize = 16;

    fn complete() -> Members {
        let mut members = Members::new(SHARDS);
        members.all_seen();
        members
    }

    fn every() -> impl Iterator<Item = Shard> {
        ShardSet::first(SHARDS).iter()
    }

    /// Lets every member follow its plan until none has anything to do. Returns how many shards each holds.
    fn settle(members: &mut Members, held: &mut BTreeMap<String, ShardSet>) -> Vec<usize> {
        let mut revision = every().map(|shard| members.owner(shard).1).max().unwrap_or(0);
        for _ in 0..100 {
            let mut idle = true;
            for (id, held) in held.iter_mut() {
                let plan = members.plan(id, *held);
                for shard in plan.release {
                    revision += 1;
                    held.remove(shard);
                    members.set_owner(shard, None, revision);
                    idle = false;
                }
                for (shard, _) in plan.free.into_iter().take(plan.wanted) {
                    revision += 1;
                    held.insert(shard);
                    members.set_owner(shard, Some(id), revision);
                    idle = false;
                }
            }
            members.watched(revision);
            if idle {
                return held.values().map(|held| held.len()).collect();
            }
        }
        panic!("it never settles: {held:?}");
    }

    #[test]
    fn shares_stay_equal_as_members_come_and_go_and_no_shard_has_two_owners() {
        let (now, mut members, mut held) = (Instant::now(), complete(), BTreeMap::new());
        for (id, shares) in [("b", vec![16]), ("a", vec![8, 8]), ("c", vec![6, 5, 5])] {
            members.renewed(id, 1, now);
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
            members.renewed(&format!("{id:02}"), 1, now);
            held.insert(format!("{id:02}"), ShardSet::default());
        }
        let shares = settle(&mut members, &mut held);
        assert_eq!((shares.iter().filter(|share| **share == 1).count(), shares.iter().sum::<usize>()), (16, 16));
    }

    #[test]
    fn a_member_is_dead_when_its_key_did_not_change_for_a_lease_while_the_bucket_could_be_watched() {
        let (now, mut members) = (Instant::now(), complete());
        members.renewed("me", 1, now);
        members.renewed("other", 2, now);
        // The same revision again is no sign of life.
        members.renewed("other", 2, now + LEASE / 2);
        assert_eq!(members.dead("me", now + LEASE), [("other".to_owned(), 2)]);
        members.forgive(now + LEASE);
        assert!(members.dead("me", now + LEASE).is_empty());
        members.renewed("other", 3, now + LEASE * 2 - Duration::from_millis(1));
        assert!(members.dead("me", now + LEASE * 2).is_empty());
    }

    #[test]
    fn a_shard_of_a_member_that_is_gone_is_free_and_an_older_revision_of_its_key_is_ignored() {
        let (now, mut members) = (Instant::now(), complete());
        members.renewed("me", 1, now);
        every().for_each(|shard| members.set_owner(shard, Some("gone"), 50));
        members.watched(50);
        let plan = members.plan("me", ShardSet::default());
        assert_eq!((plan.free.len(), plan.wanted), (16, 16));
        assert_eq!(plan.free.first(), Some(&(Shard(0), 50)));
        members.set_owner(Shard(0), Some("me"), 51);
        members.set_owner(Shard(0), None, 50);
        assert_eq!(members.owner(Shard(0)), (Some("me"), 51));
    }

    #[test]
    fn a_shard_of_a_member_that_the_watch_has_not_brought_yet_is_not_free() {
        let (now, mut members) = (Instant::now(), complete());
        members.renewed("me", 1, now);
        members.watched(1);
        // A conflict showed it, and the owner's own key is still on its way.
        members.set_owner(Shard(0), Some("new"), 3);
        assert!(!members.plan("me", ShardSet::default()).free.contains(&(Shard(0), 3)));
        // The watch has come there, and the owner has left before.
        members.watched(3);
        assert!(members.plan("me", ShardSet::default()).free.contains(&(Shard(0), 3)));
    }

    #[test]
    fn shards_of_a_member_that_joined_while_the_watch_was_broken_are_not_taken_from_it() {
        let (now, mut members) = (Instant::now(), complete());
        members.renewed("me", 1, now);
        members.renewed("other", 2, now);
        members.missed(now);
        // Its claims come before its own key, which is renewed all the time.
        every().for_each(|shard| members.set_owner(shard, Some("new"), 50));
        assert_eq!(members.plan("me", ShardSet::default()), Plan::default());
        assert!(members.dead("me", now + LEASE * 2).is_empty());
        members.renewed("new", 60, now);
        members.all_seen();
        let plan = members.plan("me", ShardSet::default());
        assert_eq!((plan.free.len(), plan.wanted), (0, 6));
    }
}
