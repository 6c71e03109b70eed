//! Which shards this coordinator owns: a state machine over the lease bucket. It does no IO and reads no clock.
//!
//! Each coordinator is a *member* with one key in the bucket, its lease, which it renews by compare-and-set. Each
//! shard has a key that names its owner and is written only when the owner changes. A member whose lease ran out is
//! evicted before its shards are claimed: its key is deleted at the revision last seen, so that its next renewal
//! conflicts and it learns that it was evicted, however long it stood still. A member stops acting a while before
//! others may evict it, by its own clock, counted from the moment at which it sent its last confirmed renewal.
//!
//! The driver passes inputs with the current time to the `handle_*` methods. After each input it performs all actions
//! of [`Membership::poll_action`], and calls [`Membership::handle_timeout`] at the time that
//! [`Membership::poll_timeout`] gives.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use run::Shard;

use crate::shards::{Claims, ShardSet};

mod members;
mod request;
#[cfg(test)]
mod tests;

use members::Members;
use request::Purpose;
pub use request::{Answer, Change, Found, Key, Operation, Request};

/// How long a member lives without a renewal.
pub const LEASE: Duration = Duration::from_secs(6);
/// Interval between renewals.
const RENEWAL: Duration = Duration::from_secs(2);
/// How much sooner a member stops acting than others may evict it.
const MARGIN: Duration = Duration::from_secs(1);
/// How often conditions are checked that no input reports: leases that ran out, requests to repeat.
pub const CHECK: Duration = Duration::from_millis(500);
/// How long the driver waits for the answer to one request. Not longer than a renewal's interval: a slow renewal must
/// not delay the next.
pub const REQUEST_PATIENCE: Duration = RENEWAL;
/// The word in the value of a member's key that says that its release knows of runs that are carried beside the log.
pub const CARRIES: &str = "carries";
/// How long a shard's snapshot may take before the shard is released without it. The next owner then reads more of the
/// log.
const RELEASE_PATIENCE: Duration = Duration::from_secs(3);
/// How long the snapshots of all shards may take when this member leaves.
const LEAVE_PATIENCE: Duration = Duration::from_secs(4);
/// Age at which the tombstone of a departed member's key is purged.
const TOMBSTONE: Duration = Duration::from_secs(3600);
/// With this many requests in flight, tombstones are left to the next coordinator that starts.
const REQUESTS_MAX: usize = 64;

/// This coordinator's part among the members.
#[derive(Debug)]
pub struct Membership {
    /// The value of its own key: its address and release, for operators who read the bucket.
    label: String,
    name: String,
    /// How often it was evicted. Each time it joins again under a different id.
    evictions: u32,
    id: String,
    /// The revision of its own key; `None` while it is not a member.
    revision: Option<u64>,
    /// When the last confirmed renewal was sent.
    renewed: Instant,
    members: Members,
    claims: Claims,
    /// Until when it may act for its shards.
    until: Instant,
    renewing: bool,
    evicting: BTreeSet<String>,
    claiming: ShardSet,
    freeing: ShardSet,
    /// Since when the shards that are being released wait for their snapshots.
    leaving: BTreeMap<Shard, Instant>,
    /// Until when no new request is sent, because the bucket did not answer the last one.
    pause: Instant,
    in_flight: usize,
    next_renewal: Instant,
    next_check: Instant,
    stage: Stage,
    is_changed: bool,
    /// The claims that were published last.
    published: ShardSet,
    actions: VecDeque<Action>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Member,
    /// It releases its shards, at the latest until `by`.
    Leaving {
        by: Instant,
    },
    /// It deletes its own key, for the second time if a renewal of its own came in between.
    Deleting {
        again: bool,
    },
    Over,
}

/// The next action of the driver.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// The claims, or the time until which they hold, have changed: publish them.
    Publish,
    /// Perform this request to the bucket, and return its answer to [`Membership::handle_answer`]. No answer within
    /// [`REQUEST_PATIENCE`] is returned as [`Answer::Unknown`].
    Send(Request),
    /// Report this to operators.
    Report(Notice),
}

/// Events that operators should know about.
#[derive(Debug, PartialEq, Eq)]
pub enum Notice {
    /// This member was evicted, and joins again under another id.
    Evicted { member: String, shards: ShardSet },
    /// This member evicted a member whose lease had run out.
    MemberLost { member: String },
    /// A shard is released without a snapshot.
    ReleasedWithoutSnapshot { shard: Shard },
}

impl Membership {
    /// A coordinator that is not a member yet; it joins at once. `name` must be unique among all coordinators that
    /// ever were; `label` becomes the value of its key, with the word [`CARRIES`] in it; `shards` is the number of
    /// shards of the whole system.
    #[must_use]
    pub fn new(name: String, label: String, shards: usize, now: Instant) -> Self {
        let mut membership = Self {
            label,
            id: name.clone(),
            name,
            evictions: 0,
            revision: None,
            renewed: now,
            members: Members::new(shards),
            claims: Claims::default(),
            until: now,
            renewing: false,
            evicting: BTreeSet::new(),
            claiming: ShardSet::default(),
            freeing: ShardSet::default(),
            leaving: BTreeMap::new(),
            pause: now,
            in_flight: 0,
            next_renewal: now + RENEWAL,
            next_check: now + CHECK,
            stage: Stage::Member,
            is_changed: false,
            published: ShardSet::default(),
            actions: VecDeque::new(),
        };
        membership.renew(now);
        membership
    }

    /// Whether open runs may be carried beside the log: the releases of all members know of it.
    #[must_use]
    pub fn all_carry(&self) -> bool {
        self.members.all_carry()
    }

    // Outputs.

    /// The next action, if there is one.
    pub fn poll_action(&mut self) -> Option<Action> {
        // Publishing comes first, so that this member stops acting for a shard before it frees the shard's key.
        if std::mem::take(&mut self.is_changed) {
            self.published = self.claims.claimed();
            return Some(Action::Publish);
        }
        self.actions.pop_front()
    }

    /// When [`Self::handle_timeout`] should be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.stage {
            Stage::Member => Some(self.next_renewal.min(self.next_check)),
            Stage::Leaving { by } => Some(by),
            Stage::Deleting { .. } | Stage::Over => None,
        }
    }

    /// Whether its lease has been confirmed, and it has not been evicted since.
    #[must_use]
    pub fn is_member(&self) -> bool {
        self.revision.is_some()
    }

    /// Whether [`Self::handle_stop`] was called.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stage != Stage::Member
    }

    /// Whether it has left, and nothing is to be done any more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }

    /// How many shards the whole system has.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.members.shards()
    }

    /// Its shards.
    #[must_use]
    pub fn claims(&self) -> &Claims {
        &self.claims
    }

    /// Until when it may act for its shards.
    #[must_use]
    pub fn until(&self) -> Instant {
        self.until
    }

    // Inputs.

    /// The time of [`Self::poll_timeout`] has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        match self.stage {
            Stage::Member => {}
            Stage::Leaving { by } if now >= by => return self.delete_own_key(now),
            Stage::Leaving { .. } | Stage::Deleting { .. } | Stage::Over => return,
        }
        if now >= self.next_renewal {
            // The schedule stays, unless a whole interval was missed.
            let next = self.next_renewal + RENEWAL;
            self.next_renewal = if next > now { next } else { now + RENEWAL };
            self.renew(now);
        }
        if now >= self.next_check {
            self.next_check = now + CHECK;
            self.check(now);
        }
        self.act(now);
    }

    /// The bucket answered a request, or did not answer it in time.
    pub fn handle_answer(&mut self, request: Request, answer: Answer, now: Instant) {
        let Request { id, asked, purpose, .. } = request;
        self.in_flight = self.in_flight.saturating_sub(1);
        if answer == Answer::Unknown {
            self.pause = now + CHECK;
        }
        if self.has_left() && purpose != Purpose::Delete {
            return;
        }
        match purpose {
            Purpose::Evict(member) => self.eviction_answered(&member, answer, now),
            Purpose::Purge => {}
            // It was sent under an id that has been evicted since.
            Purpose::Renew | Purpose::Claim(_) | Purpose::Free(_) | Purpose::Delete if id != self.id => {}
            Purpose::Renew => self.renewal_answered(answer, asked, now),
            Purpose::Claim(shard) => self.claim_answered(shard, answer),
            Purpose::Free(shard) => self.free_answered(shard, answer),
            Purpose::Delete => self.deletion_answered(answer, now),
        }
        self.act(now);
    }

    /// A key of the bucket changed, or was there when the watch began.
    pub fn handle_change(&mut self, change: Change, now: Instant) {
        let Change { key, value, revision, age } = change;
        if self.has_left() {
            return;
        }
        self.members.watched(revision);
        let all_carried = self.members.all_carry();
        match (&key, value) {
            (Key::Member(member), Some(label)) => {
                self.members.renewed(member, revision, now);
                self.members.labelled(member, &label);
            }
            (Key::Member(member), None) if *member == self.id => {
                if self.revision.is_some_and(|own| revision > own) {
                    self.evicted(now);
                }
            }
            (Key::Member(member), None) => {
                self.members.left(member);
                if age >= TOMBSTONE && self.in_flight < REQUESTS_MAX {
                    self.send(Purpose::Purge, key, Operation::Purge, 0, now);
                }
            }
            (Key::Shard(shard), owner) => {
                self.set_owner(*shard, owner.as_deref(), revision);
                // Shards that were claimed together are published together.
                self.is_changed |= self.claiming.is_empty() && self.claims.claimed() != self.published;
            }
        }
        self.is_changed |= self.members.all_carry() != all_carried;
        self.act(now);
    }

    /// The whole system has more shards now, at least `shards`.
    pub fn handle_shards(&mut self, shards: usize, now: Instant) {
        if self.members.grow(shards) {
            self.is_changed = true;
            self.act(now);
        }
    }

    /// All that was in the bucket when the watch began has been passed to [`Self::handle_change`].
    pub fn handle_all_seen(&mut self, now: Instant) {
        self.members.all_seen();
        self.is_changed |= self.members.all_carry();
        self.act(now);
    }

    /// The watch of the bucket broke: changes may have been missed, and the whole content comes again.
    pub fn handle_missed(&mut self, now: Instant) {
        self.members.missed(now);
    }

    /// The snapshot of a shard that is being released has been stored.
    pub fn handle_snapshot_stored(&mut self, shard: Shard, now: Instant) {
        self.free(shard, now);
        self.act(now);
    }

    /// The process stops: releases all shards, so that others take over at once. If that fails, they take over when
    /// the lease has run out.
    pub fn handle_stop(&mut self, now: Instant) {
        if self.stage != Stage::Member {
            return;
        }
        self.stage = Stage::Leaving { by: now + LEAVE_PATIENCE };
        for shard in self.claims.claimed().iter() {
            self.claims.leave(shard);
            self.leaving.entry(shard).or_insert(now);
        }
        self.is_changed = true;
        self.act(now);
    }

    /// It owns nothing any more and does not come back.
    fn has_left(&self) -> bool {
        matches!(self.stage, Stage::Deleting { .. } | Stage::Over)
    }

    // Its own lease.

    fn renew(&mut self, now: Instant) {
        if std::mem::replace(&mut self.renewing, true) {
            return;
        }
        let (key, value) = (Key::Member(self.id.clone()), Operation::Put(self.label.clone()));
        self.send(Purpose::Renew, key, value, self.revision.unwrap_or(0), now);
    }

    fn renewal_answered(&mut self, answer: Answer, asked: Instant, now: Instant) {
        self.renewing = false;
        match answer {
            Answer::Stored(revision) => self.confirmed(revision, asked, now),
            // An earlier renewal of its own, whose confirmation was lost. When it was sent is not known, so it renews
            // again.
            Answer::Conflict(Some(Found { value: Some(found), revision })) if found == self.label => {
                self.revision = Some(revision);
                if self.stage == Stage::Member {
                    self.renew(now);
                }
            }
            Answer::Conflict(_) => self.evicted(now),
            // It stays a member until its lease runs out by its own clock.
            Answer::Unknown => {}
        }
    }

    fn confirmed(&mut self, revision: u64, asked: Instant, now: Instant) {
        if asked.saturating_duration_since(self.renewed) > LEASE - MARGIN {
            // It was cut off, or stood still, and could receive no renewals of others either.
            self.members.forgive(now);
        }
        (self.revision, self.renewed) = (Some(revision), asked);
        self.members.renewed(&self.id, revision, asked);
        self.until = asked + LEASE - MARGIN;
        self.is_changed = true;
    }

    /// Its key was deleted by another member. It owns nothing any more, and joins again under another id unless it
    /// leaves.
    fn evicted(&mut self, now: Instant) {
        let (member, shards) = (self.id.clone(), self.claims.claimed());
        self.members.left(&member);
        self.actions.push_back(Action::Report(Notice::Evicted { member, shards }));
        (self.claims, self.until) = (Claims::default(), now);
        self.evictions += 1;
        self.id = format!("{}-{}", self.name, self.evictions);
        (self.revision, self.renewing) = (None, false);
        (self.claiming, self.freeing) = (ShardSet::default(), ShardSet::default());
        self.leaving.clear();
        self.is_changed = true;
        match self.stage {
            Stage::Member => self.renew(now),
            Stage::Leaving { .. } | Stage::Deleting { .. } | Stage::Over => self.stage = Stage::Over,
        }
    }

    fn delete_own_key(&mut self, now: Instant) {
        (self.claims, self.until) = (Claims::default(), now);
        self.leaving.clear();
        self.is_changed = true;
        let Some(revision) = self.revision else {
            self.stage = Stage::Over;
            return;
        };
        self.stage = Stage::Deleting { again: false };
        self.send(Purpose::Delete, Key::Member(self.id.clone()), Operation::Delete, revision, now);
    }

    fn deletion_answered(&mut self, answer: Answer, now: Instant) {
        match (answer, self.stage) {
            // A renewal of its own was still in flight. None follows it.
            (Answer::Conflict(Some(Found { value: Some(_), revision })), Stage::Deleting { again: false }) => {
                self.stage = Stage::Deleting { again: true };
                self.send(Purpose::Delete, Key::Member(self.id.clone()), Operation::Delete, revision, now);
            }
            (Answer::Stored(_) | Answer::Conflict(_) | Answer::Unknown, _) => self.stage = Stage::Over,
        }
    }

    // Other members, and the shards.

    fn eviction_answered(&mut self, member: &str, answer: Answer, now: Instant) {
        self.evicting.remove(member);
        match answer {
            Answer::Stored(_) => {
                self.members.left(member);
                self.actions.push_back(Action::Report(Notice::MemberLost { member: member.to_owned() }));
            }
            Answer::Conflict(Some(Found { value: Some(_), revision })) => self.members.renewed(member, revision, now),
            Answer::Conflict(_) => self.members.left(member),
            Answer::Unknown => {}
        }
    }

    fn claim_answered(&mut self, shard: Shard, answer: Answer) {
        self.claiming.remove(shard);
        match answer {
            Answer::Stored(revision) => {
                let id = self.id.clone();
                self.set_owner(shard, Some(&id), revision);
            }
            Answer::Conflict(found) => self.found(shard, found),
            // If it was stored all the same, the watch reports it.
            Answer::Unknown => {}
        }
        // Shards that were claimed together are published together.
        self.is_changed |= self.claiming.is_empty();
    }

    fn free_answered(&mut self, shard: Shard, answer: Answer) {
        self.freeing.remove(shard);
        match answer {
            Answer::Stored(revision) => self.set_owner(shard, None, revision),
            Answer::Conflict(found) => self.found(shard, found),
            Answer::Unknown => {}
        }
        self.is_changed = true;
    }

    fn found(&mut self, shard: Shard, found: Option<Found>) {
        match found {
            Some(Found { value, revision }) => self.set_owner(shard, value.as_deref(), revision),
            None => {
                self.members.forget_owner(shard);
                self.claims.lose(shard);
            }
        }
    }

    /// Records the owner of a shard. An older revision than the one last seen changes nothing.
    fn set_owner(&mut self, shard: Shard, owner: Option<&str>, revision: u64) {
        self.members.set_owner(shard, owner.filter(|owner| !owner.is_empty()), revision);
        let (owner, revision) = self.members.owner(shard);
        let is_own = owner == Some(self.id.as_str());
        match self.claims.revision(shard) {
            None if is_own => self.claims.take(shard, revision),
            Some(claim) if !is_own && revision > claim => {
                self.claims.lose(shard);
                self.leaving.remove(&shard);
            }
            Some(_) | None => {}
        }
    }

    /// Evicts lost members, releases shards beyond its share, and claims missing ones.
    fn act(&mut self, now: Instant) {
        if matches!(self.stage, Stage::Leaving { .. }) {
            // Claims that were under way when the process was stopped.
            for shard in self.claims.kept().iter() {
                self.claims.leave(shard);
                self.free(shard, now);
                self.is_changed = true;
            }
        }
        match self.stage {
            Stage::Member => {}
            Stage::Leaving { .. } if self.claims.claimed().is_empty() => return self.delete_own_key(now),
            Stage::Leaving { .. } | Stage::Deleting { .. } | Stage::Over => return,
        }
        let Some(_) = self.revision.filter(|_| now < self.until && now >= self.pause) else { return };
        for (member, revision) in self.members.dead(&self.id, now) {
            if self.evicting.insert(member.clone()) {
                let key = Key::Member(member.clone());
                self.send(Purpose::Evict(member), key, Operation::Delete, revision, now);
            }
        }
        let held = self.claims.kept().union(self.claiming);
        let mut plan = self.members.plan(&self.id, held);
        plan.free.retain(|(shard, _)| self.claims.revision(*shard).is_none());
        // Members that claim at the same time begin at different shards.
        plan.free.sort_by_key(|(shard, _)| spread(&self.id, *shard));
        for (shard, revision) in plan.free.into_iter().take(plan.wanted) {
            self.claiming.insert(shard);
            let value = Operation::Put(self.id.clone());
            self.send(Purpose::Claim(shard), Key::Shard(shard), value, revision, now);
        }
        for shard in plan.release.into_iter().filter(|shard| !self.claiming.contains(*shard)).collect::<Vec<_>>() {
            self.claims.leave(shard);
            self.leaving.insert(shard, now);
            self.is_changed = true;
        }
    }

    /// Changes that only time causes.
    fn check(&mut self, now: Instant) {
        // The broker may be back at any moment, and no shard is served until it confirms the lease.
        if now >= self.until {
            self.renew(now);
        }
        let waited = |since: Instant| now.saturating_duration_since(since) >= RELEASE_PATIENCE;
        let overdue = self.leaving.iter().filter(|(_, since)| waited(**since)).map(|(shard, _)| *shard);
        for shard in overdue.collect::<Vec<_>>() {
            self.actions.push_back(Action::Report(Notice::ReleasedWithoutSnapshot { shard }));
            self.free(shard, now);
        }
    }

    fn free(&mut self, shard: Shard, now: Instant) {
        let Some(claim) = self.claims.revision(shard).filter(|_| self.claims.leaving().contains(shard)) else { return };
        if self.freeing.contains(shard) {
            return;
        }
        self.leaving.insert(shard, now);
        self.freeing.insert(shard);
        self.send(Purpose::Free(shard), Key::Shard(shard), Operation::Put(String::new()), claim, now);
    }

    fn send(&mut self, purpose: Purpose, key: Key, operation: Operation, revision: u64, now: Instant) {
        self.in_flight += 1;
        let request = Request { key, operation, revision, id: self.id.clone(), asked: now, purpose };
        self.actions.push_back(Action::Send(request));
    }
}

/// Orders the shards differently for each member (FNV-1a).
fn spread(id: &str, shard: Shard) -> u64 {
    let bytes = id.bytes().chain([shard.0]);
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
