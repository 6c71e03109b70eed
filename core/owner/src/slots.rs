//! Limits of the calls that are queued or running at once, of a tenant or of a tool: who has a slot, and who is next.
//!
//! - A call begins when each of its limits has a slot. It has all of its slots or none, so no call keeps one from others
//!   while it waits for another.
//! - Calls that find none wait in the order of [`crate::turns`]: tenants share by weight, a tenant's calls come by
//!   priority, a call that waits long rises, and runs take turns. A call that comes later waits behind them.
//! - A call whose turn in its pool has not come gives its slots back. It has been through the line, so it takes a free
//!   slot as soon as its turn comes, and waits in the line again if there is none then.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use run::{Call, CallState, Run, RunId, Shard, TenantId, Timestamp, ToolName};

use crate::turns::fair::FairQueue;
use crate::turns::{CallKey, Claim, Position};

/// How long a call that may begin may take to appear in the log.
const APPEND: Duration = Duration::from_secs(30);

/// The subject of a limit.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Whose {
    /// A tenant.
    Tenant(TenantId),
    /// A tool, by its own name.
    Tool(ToolName),
}

/// Counts of calls that have begun and not ended.
pub type Counts = BTreeMap<Whose, u32>;

/// How many calls may have a slot here; `None` without a limit.
pub type Limit<'a> = dyn Fn(&Whose) -> Option<u32> + 'a;

/// The subjects of a call's limits.
pub type Subjects<'a> = dyn Fn(&Run, &Call) -> Vec<Whose> + 'a;

/// A call that is to begin.
#[derive(Debug, Clone)]
pub struct Beginner {
    /// The call.
    pub key: CallKey,
    /// Whose limits count it.
    pub by: Vec<Whose>,
    /// By what its place in a line is decided.
    pub claim: Claim,
}

/// The slots of the calls of one coordinator's shards.
#[derive(Debug, Default)]
pub struct Slots {
    taken: BTreeMap<CallKey, Taken>,
    counts: Counts,
    lines: BTreeMap<Whose, FairQueue>,
    waiting: BTreeMap<CallKey, Waiting>,
    /// Calls that have been through a line and have no slot yet; with the line, if they waited.
    called: BTreeMap<CallKey, Option<Whose>>,
}

#[derive(Debug)]
struct Taken {
    by: Vec<Whose>,
    /// When it was allowed to begin; `None` once the log has shown it.
    reserved: Option<Timestamp>,
}

#[derive(Debug)]
struct Waiting {
    line: Whose,
    beginner: Beginner,
}

impl Slots {
    /// Lets a call begin, or puts it into the line of a limit that has no slot for it.
    pub fn begin(&mut self, beginner: Beginner, limit: &Limit<'_>, now: Timestamp) -> bool {
        let key = beginner.key;
        if self.taken.contains_key(&key) {
            return true;
        }
        if self.waiting.contains_key(&key) {
            return false;
        }
        let called = self.called.remove(&key);
        let is_called = called.is_some();
        let full = beginner.by.iter().find(|whose| {
            let is_behind = !is_called && self.lines.contains_key(whose);
            is_behind || self.room(whose, limit) == 0
        });
        if let Some(full) = full.cloned() {
            if let Some(queue) = called.flatten().and_then(|line| self.lines.get_mut(&line)) {
                queue.refund(&beginner.claim.tenant);
            }
            self.wait(full, (beginner, is_called), now);
            return false;
        }
        self.take(key, beginner.by, Some(now));
        true
    }

    /// A call that was let begin does not begin now.
    pub fn give_back(&mut self, key: CallKey) {
        if self.free(key) {
            self.called.insert(key, None);
        }
    }

    /// A call does not ask for a slot any more.
    pub fn leave(&mut self, key: CallKey) {
        self.called.remove(&key);
        let Some(Waiting { line, beginner }) = self.waiting.remove(&key) else { return };
        if let Some(queue) = self.lines.get_mut(&line) {
            queue.remove(&beginner.claim.tenant, key);
            if !queue.has_waiting() {
                self.lines.remove(&line);
            }
        }
    }

    /// Counts a run's calls, as the log has them. Returns whether a slot became free.
    pub fn see(&mut self, run: &Run, subjects: &Subjects<'_>) -> bool {
        let mut freed = false;
        for call in run.calls() {
            let key = CallKey { run: run.id(), call: call.index() };
            match call.state() {
                CallState::Queued { .. } | CallState::Running(_) => self.handle_begun(key, || subjects(run, call)),
                CallState::Ended(_) => freed |= self.handle_ended(key),
                CallState::Accepted
                | CallState::AwaitingApproval
                | CallState::Delayed
                | CallState::WaitingForClient => {}
            }
        }
        freed
    }

    fn handle_begun(&mut self, key: CallKey, by: impl FnOnce() -> Vec<Whose>) {
        self.leave(key);
        match self.taken.get_mut(&key) {
            Some(taken) => taken.reserved = None,
            None => self.take(key, by(), None),
        }
    }

    /// Returns whether a slot became free.
    fn handle_ended(&mut self, key: CallKey) -> bool {
        self.leave(key);
        self.free(key)
    }

    /// The log replaces our counts, except for calls that were allowed to begin just now.
    pub fn recount<'a>(&mut self, runs: impl Iterator<Item = &'a Run>, subjects: &Subjects<'_>, now: Timestamp) {
        let before = std::mem::take(&mut self.taken);
        self.counts.clear();
        for run in runs {
            self.see(run, subjects);
        }
        for (key, taken) in before {
            if taken.reserved.is_some_and(|at| now < at.after(APPEND)) && !self.taken.contains_key(&key) {
                self.take(key, taken.by, taken.reserved);
            }
        }
    }

    /// Takes calls out of the lines for which there are slots now, and returns their runs: each is to be checked, and
    /// its call to be begun.
    pub fn call_next(&mut self, limit: &Limit<'_>, now: Timestamp) -> BTreeSet<RunId> {
        let mut next = BTreeSet::new();
        for line in self.lines.keys().cloned().collect::<Vec<_>>() {
            let mut room = self.room(&line, limit);
            while room > 0
                && let Some(beginner) = self.take_first(&line, now)
            {
                // Its other limit may be reached: then it waits there, and keeps no slot from those behind it.
                match beginner.by.iter().find(|whose| self.room(whose, limit) == 0).cloned() {
                    Some(full) => self.wait(full, (beginner, true), now),
                    None => {
                        room -= 1;
                        next.insert(beginner.key.run);
                        self.called.insert(beginner.key, Some(line.clone()));
                    }
                }
            }
        }
        next
    }

    /// The line in which a call waits, and its position there.
    pub fn position(&mut self, key: CallKey, now: Timestamp) -> Option<(Whose, Position)> {
        let Waiting { line, beginner } = self.waiting.get(&key)?;
        let position = self.lines.get_mut(line)?.position(&beginner.claim.tenant, key, now)?;
        Some((line.clone(), position))
    }

    /// The calls that have begun and not ended.
    pub fn counts(&self) -> impl Iterator<Item = (&Whose, u32)> {
        self.counts.iter().filter(|(_, count)| **count > 0).map(|(whose, count)| (whose, *count))
    }

    /// Forgets the waiting calls of a run that is not open here any more.
    pub fn forget_run(&mut self, run: RunId) {
        self.forget_waiting(|key| key.run == run);
    }

    /// Forgets the waiting calls of a shard, because another coordinator owns it.
    pub fn forget_shard(&mut self, shard: Shard) {
        self.forget_waiting(|key| key.run.shard() == shard);
    }

    fn forget_waiting(&mut self, goes: impl Fn(&CallKey) -> bool) {
        let gone: Vec<CallKey> =
            self.waiting.keys().chain(self.called.keys()).filter(|key| goes(key)).copied().collect();
        gone.into_iter().for_each(|key| self.leave(key));
    }

    /// Forgets everything, because no limit is left. Returns the runs that waited.
    pub fn forget_all(&mut self) -> BTreeSet<RunId> {
        std::mem::take(self).waiting.into_keys().map(|key| key.run).collect()
    }

    fn room(&self, whose: &Whose, limit: &Limit<'_>) -> u32 {
        let count = self.counts.get(whose).copied().unwrap_or_default();
        limit(whose).map_or(u32::MAX, |limit| limit.saturating_sub(count))
    }

    /// `is_first`: it has been at the head of a line before.
    fn wait(&mut self, line: Whose, (beginner, is_first): (Beginner, bool), now: Timestamp) {
        self.lines.entry(line.clone()).or_default().insert((beginner.key, is_first), &beginner.claim, now);
        self.waiting.insert(beginner.key, Waiting { line, beginner });
    }

    fn take_first(&mut self, line: &Whose, now: Timestamp) -> Option<Beginner> {
        let queue = self.lines.get_mut(line)?;
        let taken = queue.take(now);
        if !queue.has_waiting() {
            self.lines.remove(line);
        }
        let (_, key) = taken?;
        self.waiting.remove(&key).map(|waiting| waiting.beginner)
    }

    fn take(&mut self, key: CallKey, by: Vec<Whose>, reserved: Option<Timestamp>) {
        by.iter().for_each(|whose| *self.counts.entry(whose.clone()).or_default() += 1);
        self.taken.insert(key, Taken { by, reserved });
    }

    fn free(&mut self, key: CallKey) -> bool {
        let Some(taken) = self.taken.remove(&key) else { return false };
        for whose in &taken.by {
            if let Some(count) = self.counts.get_mut(whose) {
                *count = count.saturating_sub(1);
            }
        }
        true
    }
}
