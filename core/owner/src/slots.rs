//! Limits of the calls that are queued or running at once, of a tenant or of a tool: who has a slot, and who is next.
//!
//! - A call begins when each of its limits has a slot. It has all of its slots or none, so no call keeps one from
//!   others while it waits for another.
//! - Calls that find none wait in the order of [`crate::turns`]: tenants share by weight, a tenant's calls come by
//!   priority, a call that waits long rises, and runs take turns. A call that comes later waits behind them.
//! - A call whose turn in its pool has not come gives its slots back. It has been through the line, so it takes a free
//!   slot as soon as its turn comes, and waits in the line again if there is none then.
//! - A call whose tool makes calls and waits for them would keep its slots from them. So a limit counts by depth: calls
//!   that no running call made, calls that those made, and so on. Nothing waits in a circle then, because a call waits
//!   for calls below it only, and those of the greatest depth for none.

#[cfg(test)]
mod progress;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use run::{Call, CallId, CallState, ParentCall, Run, RunId, Shard, TenantId, Timestamp, ToolName};

use crate::turns::fair::FairQueue;
use crate::turns::{CallKey, Claim, Position, Tenant};

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

/// The greatest depth. Those of agents and their calls are less. Calls below count as if they had it.
const DEPTH_MAX: u8 = 4;

/// Counts of calls that have begun and not ended, and that no running call made.
pub type Counts = BTreeMap<Whose, u32>;

/// How long calls with a limit wait after a takeover until it is known what runs in all shards. A takeover takes a
/// second or two. If it takes longer, a partition of the log does not answer, and may not for long.
pub const COUNTED_WITHIN: Duration = Duration::from_secs(30);

/// Whether it is known which calls run in the shards of this coordinator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// In all shards.
    All,
    /// Some shards are being read.
    Soon,
    /// So many shards cannot be read for now.
    Without(u64),
}

impl Known {
    /// What is known while these shards are being taken over, each for so long.
    pub fn of(takeovers: impl Iterator<Item = Duration>) -> Self {
        takeovers.fold(Self::All, |known, age| match known {
            Self::All if age >= COUNTED_WITHIN => Self::Without(1),
            Self::Without(shards) if age >= COUNTED_WITHIN => Self::Without(shards + 1),
            Self::All | Self::Soon | Self::Without(_) => Self::Soon,
        })
    }

    /// The part of a limit that calls of the known shards may use, of all shards that there are: the rest is kept for
    /// what may run in the others. At least one, so that calls go on.
    #[must_use]
    pub fn part(self, limit: u32, of_all: u64) -> u32 {
        match self {
            Self::All => limit,
            Self::Soon => 0,
            Self::Without(shards) => {
                let kept = u64::from(limit) * shards.min(of_all) / of_all.max(1);
                limit.saturating_sub(u32::try_from(kept).unwrap_or(u32::MAX)).max(1).min(limit)
            }
        }
    }
}

/// How many calls may have a slot here; `None` without a limit. The second argument tells whether a running call made
/// them.
pub type Limit<'a> = dyn Fn(&Whose, bool) -> Option<u32> + 'a;

/// Describes a call of a run.
pub type Describe<'a> = dyn Fn(&Run, &Call) -> Beginner + 'a;

/// A call that is to begin.
#[derive(Debug, Clone)]
pub struct Beginner {
    /// The call.
    pub key: CallKey,
    /// Its client's name for it.
    pub id: CallId,
    /// The call that made its run.
    pub parent: Option<ParentCall>,
    /// Whose limits count it.
    pub by: Vec<Whose>,
    /// By what its place in a line is decided.
    pub claim: Claim,
}

/// The slots of the calls of one coordinator's shards.
#[derive(Debug, Default)]
pub struct Slots {
    taken: BTreeMap<CallKey, Taken>,
    counts: BTreeMap<Line, u32>,
    by_name: BTreeMap<Name, CallKey>,
    lines: BTreeMap<Line, FairQueue>,
    waiting: BTreeMap<CallKey, Waiting>,
    /// Calls that have been through a line and have no slot yet; with the line, if they waited.
    called: BTreeMap<CallKey, Option<Line>>,
}

/// A call as its children name it. Calls of another tenant are no children.
type Name = (Tenant, RunId, CallId);

/// Calls that share the slots of a limit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Line {
    whose: Whose,
    depth: u8,
}

#[derive(Debug)]
struct Taken {
    name: Name,
    parent: Option<Name>,
    depth: u8,
    by: Vec<Whose>,
    /// When it was allowed to begin; `None` once the log has shown it.
    reserved: Option<Timestamp>,
}

#[derive(Debug)]
struct Waiting {
    line: Line,
    beginner: Beginner,
}

impl Beginner {
    fn name(&self) -> Name {
        (self.claim.tenant.clone(), self.key.run, self.id.clone())
    }

    fn parent(&self) -> Option<Name> {
        self.parent.as_ref().map(|parent| (self.claim.tenant.clone(), parent.run, parent.call.clone()))
    }
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
        let (is_called, depth) = (called.is_some(), self.depth(beginner.parent().as_ref()));
        let lines = beginner.by.iter().map(|whose| Line { whose: whose.clone(), depth });
        let full = lines.into_iter().find(|line| {
            let is_behind = !is_called && self.lines.contains_key(line);
            is_behind || self.room(line, limit) == 0
        });
        if let Some(full) = full {
            if let Some(queue) = called.flatten().and_then(|line| self.lines.get_mut(&line)) {
                queue.refund(&beginner.claim.tenant);
            }
            self.wait(full, (beginner, is_called), now);
            return false;
        }
        self.take(beginner, Some(now));
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
    pub fn see(&mut self, run: &Run, describe: &Describe<'_>) -> bool {
        let mut freed = false;
        for call in run.calls() {
            let key = CallKey { run: run.id(), call: call.index() };
            match call.state() {
                CallState::Queued { .. } | CallState::Running(_) => self.handle_begun(key, || describe(run, call)),
                CallState::Ended(_) => freed |= self.handle_ended(key),
                CallState::Accepted
                | CallState::AwaitingApproval
                | CallState::Delayed
                | CallState::WaitingForClient => {}
            }
        }
        freed
    }

    fn handle_begun(&mut self, key: CallKey, describe: impl FnOnce() -> Beginner) {
        self.leave(key);
        match self.taken.get_mut(&key) {
            Some(taken) => taken.reserved = None,
            None => self.take(describe(), None),
        }
    }

    /// Returns whether a slot became free.
    fn handle_ended(&mut self, key: CallKey) -> bool {
        self.leave(key);
        self.free(key)
    }

    /// The log replaces our counts, except for calls that were allowed to begin just now.
    pub fn recount<'a>(&mut self, runs: impl Iterator<Item = &'a Run>, describe: &Describe<'_>, now: Timestamp) {
        let before = std::mem::take(&mut self.taken);
        (self.counts, self.by_name) = (BTreeMap::new(), BTreeMap::new());
        for run in runs {
            self.see(run, describe);
        }
        for (key, taken) in before {
            if taken.reserved.is_some_and(|at| now < at.after(APPEND)) && !self.taken.contains_key(&key) {
                self.insert(key, taken);
            }
        }
        self.correct_depths();
    }

    /// Calls may have been seen before the calls that made them.
    fn correct_depths(&mut self) {
        for _ in 0..DEPTH_MAX {
            let depth = |taken: &Taken| self.depth(taken.parent.as_ref());
            let wrong = self.taken.iter().filter(|(_, taken)| taken.depth != depth(taken));
            let wrong: Vec<CallKey> = wrong.map(|(key, _)| *key).collect();
            if wrong.is_empty() {
                return;
            }
            for key in wrong {
                if let Some(taken) = self.remove(key) {
                    let depth = self.depth(taken.parent.as_ref());
                    self.insert(key, Taken { depth, ..taken });
                }
            }
        }
    }

    /// Takes calls out of the lines for which there are slots now, and returns their runs: each is to be checked, and
    /// its call to be begun.
    pub fn call_next(&mut self, limit: &Limit<'_>, now: Timestamp) -> BTreeSet<RunId> {
        let mut next = BTreeSet::new();
        // Slots of the calls that are called here.
        let mut promised: BTreeMap<Line, u32> = BTreeMap::new();
        // Lines of tools come before those of tenants: otherwise calls of a tenant would take a tool's slots each time
        // before the calls that wait for that tool.
        for line in self.lines.keys().rev().cloned().collect::<Vec<_>>() {
            while self.left(&line, limit, &promised) > 0
                && let Some(beginner) = self.take_first(&line, now)
            {
                // Its other limit may be reached: then it waits there, and keeps no slot from those behind it.
                let by = beginner.by.iter().map(|whose| Line { whose: whose.clone(), depth: line.depth });
                let by: Vec<Line> = by.collect();
                if let Some(full) = by.iter().find(|line| self.left(line, limit, &promised) == 0) {
                    self.wait(full.clone(), (beginner, true), now);
                    continue;
                }
                by.into_iter().for_each(|line| *promised.entry(line).or_default() += 1);
                next.insert(beginner.key.run);
                self.called.insert(beginner.key, Some(line.clone()));
            }
        }
        next
    }

    /// The limit at which a call waits, and its position there.
    pub fn position(&mut self, key: CallKey, now: Timestamp) -> Option<(Whose, Position)> {
        let Waiting { line, beginner } = self.waiting.get(&key)?;
        let position = self.lines.get_mut(line)?.position(&beginner.claim.tenant, key, now)?;
        Some((line.whose.clone(), position))
    }

    /// The calls that have begun and not ended: those that no running call made, or those that running calls made, of
    /// each depth.
    pub fn counts(&self, are_made: bool) -> impl Iterator<Item = (&Whose, u32)> {
        let counted = self.counts.iter().filter(move |(line, count)| (line.depth > 0) == are_made && **count > 0);
        counted.map(|(line, count)| (&line.whose, *count))
    }

    /// Forgets the waiting calls of a run that is not open here any more.
    pub fn forget_run(&mut self, run: &Run) {
        run.calls().iter().for_each(|call| self.leave(CallKey { run: run.id(), call: call.index() }));
    }

    /// Forgets the waiting calls of a shard, because another coordinator owns it.
    pub fn forget_shard(&mut self, shard: Shard) {
        let all = self.waiting.keys().chain(self.called.keys());
        let gone: Vec<CallKey> = all.filter(|key| key.run.shard() == shard).copied().collect();
        gone.into_iter().for_each(|key| self.leave(key));
    }

    /// Forgets everything, because no limit is left. Returns the runs that waited.
    pub fn forget_all(&mut self) -> BTreeSet<RunId> {
        std::mem::take(self).waiting.into_keys().map(|key| key.run).collect()
    }

    /// The depth of a call: one more than that of the call that made its run, if that has slots.
    fn depth(&self, parent: Option<&Name>) -> u8 {
        let above = parent.and_then(|name| self.taken.get(self.by_name.get(name)?));
        above.map_or(0, |above| (above.depth + 1).min(DEPTH_MAX))
    }

    fn room(&self, line: &Line, limit: &Limit<'_>) -> u32 {
        let count = self.counts.get(line).copied().unwrap_or_default();
        limit(&line.whose, line.depth > 0).map_or(u32::MAX, |limit| limit.saturating_sub(count))
    }

    /// The room without what is promised.
    fn left(&self, line: &Line, limit: &Limit<'_>, promised: &BTreeMap<Line, u32>) -> u32 {
        self.room(line, limit).saturating_sub(promised.get(line).copied().unwrap_or_default())
    }

    /// `is_first`: it has been at the head of a line before.
    fn wait(&mut self, line: Line, (beginner, is_first): (Beginner, bool), now: Timestamp) {
        self.lines.entry(line.clone()).or_default().insert((beginner.key, is_first), &beginner.claim, now);
        self.waiting.insert(beginner.key, Waiting { line, beginner });
    }

    fn take_first(&mut self, line: &Line, now: Timestamp) -> Option<Beginner> {
        let queue = self.lines.get_mut(line)?;
        let taken = queue.take(now);
        if !queue.has_waiting() {
            self.lines.remove(line);
        }
        let (_, key) = taken?;
        self.waiting.remove(&key).map(|waiting| waiting.beginner)
    }

    fn take(&mut self, beginner: Beginner, reserved: Option<Timestamp>) {
        let (name, parent) = (beginner.name(), beginner.parent());
        let depth = self.depth(parent.as_ref());
        self.insert(beginner.key, Taken { name, parent, depth, by: beginner.by, reserved });
    }

    fn insert(&mut self, key: CallKey, taken: Taken) {
        for whose in &taken.by {
            *self.counts.entry(Line { whose: whose.clone(), depth: taken.depth }).or_default() += 1;
        }
        self.by_name.insert(taken.name.clone(), key);
        self.taken.insert(key, taken);
    }

    fn remove(&mut self, key: CallKey) -> Option<Taken> {
        let taken = self.taken.remove(&key)?;
        for whose in &taken.by {
            let line = Line { whose: whose.clone(), depth: taken.depth };
            if let Some(count) = self.counts.get_mut(&line) {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    self.counts.remove(&line);
                }
            }
        }
        self.by_name.remove(&taken.name);
        Some(taken)
    }

    fn free(&mut self, key: CallKey) -> bool {
        self.remove(key).is_some()
    }
}
