//! The waiting calls of one tenant, by priority. A call rises while it waits.

use std::collections::{BTreeMap, BTreeSet};

use run::{Priority, Timestamp};

use super::rotation::Rotation;
use super::{AGING, CallKey, Claim, Look};

#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// From low to high.
    levels: [Rotation; 3],
    calls: BTreeMap<CallKey, Waits>,
    /// When calls rise to the next priority.
    rises: BTreeSet<(Timestamp, CallKey)>,
}

#[derive(Debug, Clone, Copy)]
struct Waits {
    priority: Priority,
    since: Timestamp,
    rises: Timestamp,
}

impl Waiting {
    pub(super) fn len(&self) -> usize {
        self.calls.len()
    }

    pub(super) fn by_priority(&self) -> [usize; 3] {
        [self.levels[0].len(), self.levels[1].len(), self.levels[2].len()]
    }

    pub(super) fn insert(&mut self, (key, is_first): (CallKey, bool), claim: &Claim, now: Timestamp) {
        let Claim { priority, since, .. } = *claim;
        // A call that has risen comes before one that joins now.
        self.rise(now);
        self.remove(key);
        self.place((key, is_first), Waits { priority, since, rises: since.after(AGING) });
    }

    fn place(&mut self, (key, is_first): (CallKey, bool), waits: Waits) {
        self.levels[level(waits.priority)].insert(key, waits.since, is_first);
        if waits.priority < Priority::High {
            self.rises.insert((waits.rises, key));
        }
        self.calls.insert(key, waits);
    }

    pub(super) fn remove(&mut self, key: CallKey) {
        if let Some(waits) = self.calls.remove(&key) {
            self.levels[level(waits.priority)].remove(key);
            self.rises.remove(&(waits.rises, key));
        }
    }

    pub(super) fn take(&mut self, now: Timestamp) -> Option<CallKey> {
        self.rise(now);
        let key = self.levels.iter_mut().rev().find_map(Rotation::take)?;
        if let Some(waits) = self.calls.remove(&key) {
            self.rises.remove(&(waits.rises, key));
        }
        Some(key)
    }

    /// How many calls are taken before this one, and its priority.
    pub(super) fn ahead(&mut self, key: CallKey, now: Timestamp, look: &mut Look) -> Option<(usize, Priority)> {
        self.rise(now);
        let priority = self.calls.get(&key)?.priority;
        let own = level(priority);
        let higher: usize = self.levels[own + 1..].iter().map(Rotation::len).sum();
        Some((higher + self.levels[own].ahead(key, look)?, priority))
    }

    fn rise(&mut self, now: Timestamp) {
        while let Some((at, key)) = self.rises.first().copied()
            && at <= now
        {
            self.rises.pop_first();
            let Some(waits) = self.calls.get(&key).copied() else { continue };
            self.levels[level(waits.priority)].remove(key);
            let priority = match waits.priority {
                Priority::Low => Priority::Normal,
                Priority::Normal | Priority::High => Priority::High,
            };
            self.place((key, false), Waits { priority, rises: waits.rises.after(AGING), ..waits });
        }
    }
}

fn level(priority: Priority) -> usize {
    match priority {
        Priority::Low => 0,
        Priority::Normal => 1,
        Priority::High => 2,
    }
}
