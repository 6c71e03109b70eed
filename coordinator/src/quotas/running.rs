//! Limits of queued or running calls, of a tenant or a tool, on all coordinators together. Further calls wait: the
//! owner of their shard appends their jobs as slots become free.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use run::{Call, CallIndex, CallState, Run, RunId, TenantId, Timestamp, ToolName};
use tokio::time::Instant;

use super::{Limits, Quotas, Report};
use crate::fleet::registry::{Entry, Registry};

/// How long a call that may begin may take to appear in the log.
const APPEND: Duration = Duration::from_secs(30);

impl Quotas {
    /// Whether any tenant's or tool's running calls are limited.
    pub(crate) fn limits_running(&self, registry: &Registry) -> bool {
        registry.catalog.limits_running || self.callers.limits_running()
    }

    /// The limit of running calls that applies to this call, and its source; `None` if there is no limit.
    pub(crate) fn running_max(&self, tenant: Option<&TenantId>, entry: Option<&Entry>) -> Option<(u32, &'static str)> {
        let of_tool = entry.and_then(|entry| Some((entry.hosted.manifest.running_max?, "of its tool")));
        let of_tenant = || Some((self.callers.quota(tenant?)?.running_calls?, "of its tenant"));
        of_tool.or_else(of_tenant)
    }

    fn running_limit(&self, whose: &Whose, registry: &Registry) -> Option<u32> {
        match whose {
            Whose::Tenant(tenant) => self.callers.quota(tenant)?.running_calls,
            Whose::Tool(tool) => registry.catalog.find(tool)?.hosted.manifest.running_max,
        }
    }

    /// Lets a call begin. Returns `false` if there is no free slot, or that is not known yet, and remembers its run.
    pub(crate) fn begin(&self, run: &Run, call: &Call, registry: &Registry, knows_all: bool) -> bool {
        let limits = self.limits();
        let of = |whose: &Whose| self.running_limit(whose, registry).map(|limit| if knows_all { limit } else { 0 });
        self.counted().running.begin(run, call, registry, &limits, &of)
    }

    /// A call that was let begin does not begin now.
    pub(crate) fn give_back(&self, run: RunId, call: CallIndex) {
        self.counted().running.free((run, call));
    }

    /// Counts a run's calls, as the log has them. Returns whether a slot became free.
    pub(crate) fn see_running(&self, run: &Run, registry: &Registry) -> bool {
        self.counted().running.see(run, registry)
    }

    /// Recounts the running calls of the shards that we own.
    pub(crate) fn count_running<'a>(&self, runs: impl Iterator<Item = &'a Run>, registry: &Registry) {
        let mut counted = self.counted();
        counted.running.recount(runs, registry, Instant::now());
    }

    /// Called when no limit is left. Returns the runs that waited.
    pub(crate) fn forget_running(&self) -> Vec<RunId> {
        let mut counted = self.counted();
        let waited = counted.running.next(&self.limits(), &|_| None);
        counted.running.clear();
        waited
    }

    /// Runs that waited for slots, for which there may be some now.
    pub(crate) fn next_to_run(&self, registry: &Registry) -> Vec<RunId> {
        let limits = self.limits();
        self.counted().running.next(&limits, &|whose| self.running_limit(whose, registry))
    }
}

/// The subject of a limit.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Whose {
    Tenant(TenantId),
    /// By the tool's own name.
    Tool(ToolName),
}

/// Counts of calls that have begun and not ended.
pub(super) type Counts = HashMap<Whose, u32>;

#[derive(Debug, Default)]
pub(super) struct Running {
    calls: HashMap<(RunId, CallIndex), Taken>,
    counts: Counts,
    /// Counts of the other coordinators.
    pub(super) others: Counts,
    /// Runs with calls that found no free slot, the oldest first.
    held: BTreeMap<Whose, BTreeSet<(Timestamp, RunId)>>,
}

#[derive(Debug)]
struct Taken {
    by: Vec<Whose>,
    /// When it was allowed to begin; `None` once the log has shown it.
    reserved: Option<Instant>,
}

/// The limit, if there is one.
pub(super) type LimitOf<'a> = dyn Fn(&Whose) -> Option<u32> + 'a;

impl Running {
    /// Lets a call begin, or remembers that its run waits for a slot.
    pub(super) fn begin(
        &mut self,
        run: &Run,
        call: &Call,
        registry: &Registry,
        limits: &Limits,
        of: &LimitOf<'_>,
    ) -> bool {
        let key = (run.id(), call.index());
        if self.calls.contains_key(&key) {
            return true;
        }
        let by = whose(run, call, registry);
        if let Some(full) = by.iter().find(|whose| self.room(whose, limits, of) == 0) {
            self.held.entry(full.clone()).or_default().insert((run.id().created_at(), run.id()));
            return false;
        }
        self.take(key, by, Some(Instant::now()));
        true
    }

    fn room(&self, whose: &Whose, limits: &Limits, of: &LimitOf<'_>) -> u32 {
        let others = self.others.get(whose).copied().unwrap_or_default();
        let own = self.counts.get(whose).copied().unwrap_or_default();
        of(whose).map_or(u32::MAX, |limit| limits.left(limit, others).saturating_sub(own))
    }

    fn take(&mut self, key: (RunId, CallIndex), by: Vec<Whose>, reserved: Option<Instant>) {
        by.iter().for_each(|whose| *self.counts.entry(whose.clone()).or_default() += 1);
        self.calls.insert(key, Taken { by, reserved });
    }

    /// Counts a run's calls, as the log has them. Returns whether a slot became free.
    pub(super) fn see(&mut self, run: &Run, registry: &Registry) -> bool {
        let mut freed = false;
        if run.status().is_final() {
            let waits = (run.id().created_at(), run.id());
            for held in self.held.values_mut() {
                held.remove(&waits);
            }
        }
        for call in run.calls() {
            let key = (run.id(), call.index());
            match call.state() {
                CallState::Queued { .. } | CallState::Running(_) => match self.calls.get_mut(&key) {
                    Some(taken) => taken.reserved = None,
                    None => self.take(key, whose(run, call, registry), None),
                },
                CallState::Ended(_) => freed |= self.free(key),
                CallState::Accepted
                | CallState::AwaitingApproval
                | CallState::Delayed
                | CallState::WaitingForClient => {}
            }
        }
        freed
    }

    fn free(&mut self, key: (RunId, CallIndex)) -> bool {
        let Some(taken) = self.calls.remove(&key) else { return false };
        for whose in &taken.by {
            if let Some(count) = self.counts.get_mut(whose) {
                *count = count.saturating_sub(1);
            }
        }
        true
    }

    /// The log replaces our counts, except for calls that were allowed to begin just now.
    pub(super) fn recount<'a>(&mut self, runs: impl Iterator<Item = &'a Run>, registry: &Registry, now: Instant) {
        let before = std::mem::take(&mut self.calls);
        self.counts.clear();
        for run in runs {
            self.see(run, registry);
        }
        for (key, taken) in before {
            if taken.reserved.is_some_and(|at| now < at + APPEND) && !self.calls.contains_key(&key) {
                self.take(key, taken.by, taken.reserved);
            }
        }
    }

    /// Runs whose calls may have free slots now. A run that finds none is added again.
    pub(super) fn next(&mut self, limits: &Limits, of: &LimitOf<'_>) -> Vec<RunId> {
        let mut next = Vec::new();
        let all: Vec<Whose> = self.held.keys().cloned().collect();
        for whose in all {
            let mut room = self.room(&whose, limits, of);
            let Some(held) = self.held.get_mut(&whose) else { continue };
            while room > 0
                && let Some((_, run)) = held.pop_first()
            {
                next.push(run);
                room -= 1;
            }
            if held.is_empty() {
                self.held.remove(&whose);
            }
        }
        next
    }

    pub(super) fn counts(&self) -> impl Iterator<Item = (&Whose, u32)> {
        self.counts.iter().filter(|(_, count)| **count > 0).map(|(whose, count)| (whose, *count))
    }

    /// Forgets everything, because no limit is left.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

fn whose(run: &Run, call: &Call, registry: &Registry) -> Vec<Whose> {
    let tool = &call.spec().tool;
    let alias_of = registry.catalog.find(tool).and_then(|entry| entry.alias_of.as_ref());
    let tool = Whose::Tool(alias_of.unwrap_or(tool).clone());
    run.tenant().cloned().map(Whose::Tenant).into_iter().chain([tool]).collect()
}

/// The sum of all others' counts.
pub(super) fn sum(reports: &[Report]) -> Counts {
    let mut all = Counts::new();
    for report in reports {
        let tenants = report
            .running_of_tenants
            .iter()
            .filter_map(|(name, count)| Some((Whose::Tenant(name.parse().ok()?), count)));
        let tools =
            report.running_of_tools.iter().filter_map(|(name, count)| Some((Whose::Tool(name.parse().ok()?), count)));
        for (whose, count) in tenants.chain(tools) {
            let sum = all.entry(whose).or_default();
            *sum = sum.saturating_add(*count);
        }
    }
    all
}
