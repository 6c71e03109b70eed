//! Limits of queued or running calls, of a tenant or a tool, on all coordinators together. Further calls wait: the
//! owner of their shard appends their jobs as slots become free. [`owner::slots`] decides which one is next.

use std::collections::BTreeSet;

use owner::slots::{Beginner, Counts, Known, Limit, Slots, Whose};
use owner::turns::{CallKey, Position};
use run::{Call, CallIndex, Run, RunId, Shard, TenantId};

use super::{Counted, Quotas, Report};
use crate::fleet::registry::{Entry, Registry};
use crate::turns::claim;

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

    /// The limit of running calls for which a call waits, and its source. `at_tenants`: it waits at its tenant's.
    pub(crate) fn waits_at(
        &self,
        run: &Run,
        call: &Call,
        (at_tenants, registry): (bool, &Registry),
    ) -> Option<(u32, &'static str)> {
        if at_tenants {
            return Some((self.callers.quota(run.tenant()?)?.running_calls?, "of its tenant"));
        }
        self.running_max(run.tenant(), registry.catalog.find(&call.spec().tool))
    }

    fn running_limit(&self, whose: &Whose, registry: &Registry) -> Option<u32> {
        match whose {
            Whose::Tenant(tenant) => self.callers.quota(tenant)?.running_calls,
            Whose::Tool(tool) => registry.catalog.find(tool)?.hosted.manifest.running_max,
        }
    }

    /// Calls a function with the slots, and with the limits as far as the other coordinators leave them to us.
    fn with_slots<T>(&self, (registry, known): (&Registry, Known), act: impl FnOnce(&mut Slots, &Limit<'_>) -> T) -> T {
        let limits = self.limits();
        let Counted { slots, others_running, .. } = &mut *self.counted();
        let limit = |whose: &Whose, is_made: bool| {
            let others = others_running[usize::from(is_made)].get(whose).copied().unwrap_or_default();
            let left = limits.left(known.part(self.running_limit(whose, registry)?, limits.of_all), others);
            // Calls that wait for one that they made would wait for each other, if others had taken the limit.
            let least = u32::from(is_made && known != Known::Soon);
            Some(left.max(least))
        };
        act(slots, &limit)
    }

    fn beginner(&self, run: &Run, call: &Call, registry: &Registry) -> Beginner {
        Beginner {
            key: key(run.id(), call.index()),
            id: call.spec().id.clone(),
            parent: run.parent().cloned(),
            by: whose(run, call, registry),
            claim: claim(&self.callers, run, call),
        }
    }

    /// Lets a call begin. Returns `false` if there is no free slot, or that is not known yet, and remembers the call.
    pub(crate) fn begin(&self, run: &Run, call: &Call, registry: &Registry, known: Known) -> bool {
        let beginner = self.beginner(run, call, registry);
        self.with_slots((registry, known), |slots, limit| slots.begin(beginner, limit, ::nats::now()))
    }

    /// A call that was let begin does not begin now.
    pub(crate) fn give_back(&self, run: RunId, call: CallIndex) {
        self.counted().slots.give_back(key(run, call));
    }

    /// Counts a run's calls, as the log has them. Returns whether a slot became free.
    pub(crate) fn see_running(&self, run: &Run, registry: &Registry) -> bool {
        self.counted().slots.see(run, &|run, call| self.beginner(run, call, registry))
    }

    /// Recounts the running calls of the shards that we own.
    pub(crate) fn count_running<'a>(&self, runs: impl Iterator<Item = &'a Run>, registry: &Registry) {
        self.counted().slots.recount(runs, &|run, call| self.beginner(run, call, registry), ::nats::now());
    }

    /// Called when no limit is left. Returns the runs that waited.
    pub(crate) fn forget_running(&self) -> BTreeSet<RunId> {
        self.counted().slots.forget_all()
    }

    /// Runs with calls that waited for slots, for which there are some now.
    pub(crate) fn next_to_run(&self, registry: &Registry, known: Known) -> BTreeSet<RunId> {
        self.with_slots((registry, known), |slots, limit| slots.call_next(limit, ::nats::now()))
    }

    /// The limit at which a call of our shards waits, and its position there.
    pub(crate) fn position(&self, key: CallKey) -> Option<(Whose, Position)> {
        self.counted().slots.position(key, ::nats::now())
    }

    /// Forgets the waiting calls of a run that is not open any more.
    pub(crate) fn forget_waiting(&self, run: &Run) {
        self.counted().slots.forget_run(run);
    }

    /// Forgets the waiting calls of a shard that is not ours any more.
    pub(crate) fn forget_shard(&self, shard: Shard) {
        self.counted().slots.forget_shard(shard);
    }
}

fn key(run: RunId, call: CallIndex) -> CallKey {
    CallKey { run, call }
}

fn whose(run: &Run, call: &Call, registry: &Registry) -> Vec<Whose> {
    let tool = &call.spec().tool;
    let alias_of = registry.catalog.find(tool).and_then(|entry| entry.alias_of.as_ref());
    let tool = Whose::Tool(alias_of.unwrap_or(tool).clone());
    run.tenant().cloned().map(Whose::Tenant).into_iter().chain([tool]).collect()
}

/// The sums of all others' counts: of calls that no running call made, and of calls that running calls made.
pub(super) fn sum(reports: &[Report]) -> [Counts; 2] {
    let mut all = [Counts::new(), Counts::new()];
    for report in reports {
        let running = (&report.running_of_tenants, &report.running_of_tools);
        let made = (&report.made_of_tenants, &report.made_of_tools);
        for (all, (tenants, tools)) in all.iter_mut().zip([running, made]) {
            let tenants = tenants.iter().filter_map(|(name, count)| Some((Whose::Tenant(name.parse().ok()?), count)));
            let tools = tools.iter().filter_map(|(name, count)| Some((Whose::Tool(name.parse().ok()?), count)));
            for (whose, count) in tenants.chain(tools) {
                let sum = all.entry(whose).or_default();
                *sum = sum.saturating_add(*count);
            }
        }
    }
    all
}
