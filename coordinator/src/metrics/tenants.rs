//! Metrics by tenant. A tenant has series of its own if the file of callers names it, or if it is among the first that
//! come, up to [`TENANTS_MAX`] in total; the others are counted as one. So tokens with any number of tenants make no
//! more series.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use run::TenantId;
use telemetry::metrics::{Counter, Family, Gauge, Metric, OTHER};

/// Tenants with series of their own, until the process ends.
const TENANTS_MAX: usize = 100;

static ACCEPTED: Family<Counter> =
    Family::new("toolyard_tenant_calls_accepted_total", "Calls of a tenant that were accepted.", &["tenant"])
        .exported_as("toolyard.tenant.calls.accepted", "{call}");
static ENDED: Family<Counter> = Family::new(
    "toolyard_tenant_calls_ended_total",
    "Calls of a tenant that ended, by outcome.",
    &["tenant", "outcome"],
)
.exported_as("toolyard.tenant.calls.ended", "{call}");
static REFUSALS: Family<Counter> =
    Family::new("toolyard_tenant_refusals_total", "Refusals of requests of a tenant's callers.", &["tenant"])
        .exported_as("toolyard.tenant.refusals", "{refusal}");
static WAITING: Family<Gauge> =
    Family::new("toolyard_tenant_calls_waiting", "Calls of a tenant that have not started.", &["tenant"])
        .exported_as("toolyard.tenant.calls.waiting", "{call}");
static RUNNING: Family<Gauge> =
    Family::new("toolyard_tenant_calls_running", "Calls of a tenant that a worker is executing.", &["tenant"])
        .exported_as("toolyard.tenant.calls.running", "{call}");

pub(super) const METRICS: [Metric; 5] = [
    Metric::Counter(&ACCEPTED),
    Metric::Counter(&ENDED),
    Metric::Counter(&REFUSALS),
    Metric::Gauge(&WAITING),
    Metric::Gauge(&RUNNING),
];

static NAMED: Mutex<BTreeSet<TenantId>> = Mutex::new(BTreeSet::new());

fn named() -> MutexGuard<'static, BTreeSet<TenantId>> {
    // After a panic the set is still consistent.
    NAMED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reserves series for these tenants.
pub(crate) fn reserve<'a>(tenants: impl Iterator<Item = &'a TenantId>) {
    let mut named = named();
    for tenant in tenants {
        if named.len() < TENANTS_MAX {
            named.insert(tenant.clone());
        }
    }
}

/// The label of a tenant.
fn label(tenant: &TenantId) -> &str {
    let mut named = named();
    let has_own = named.contains(tenant) || (named.len() < TENANTS_MAX && named.insert(tenant.clone()));
    if has_own { tenant.as_str() } else { OTHER }
}

/// Counts a rejected request of a tenant's caller.
pub(crate) fn refused(tenant: &TenantId) {
    REFUSALS.with(&[label(tenant)]).add(1);
}

/// Counts calls by tenant. Caches the handles of each tenant that has series of its own.
#[derive(Debug, Default)]
pub(crate) struct TenantCounts(HashMap<TenantId, OfTenant>);

#[derive(Debug, Clone)]
struct OfTenant {
    accepted: Counter,
    completed: Counter,
    failed: Counter,
    cancelled: Counter,
    expired: Counter,
}

impl OfTenant {
    fn new(tenant: &str) -> Self {
        let ended = |outcome| ENDED.with(&[tenant, outcome]);
        Self {
            accepted: ACCEPTED.with(&[tenant]),
            completed: ended("completed"),
            failed: ended("failed"),
            cancelled: ended("cancelled"),
            expired: ended("expired"),
        }
    }
}

impl TenantCounts {
    fn of(&mut self, tenant: &TenantId) -> OfTenant {
        if let Some(known) = self.0.get(tenant) {
            return known.clone();
        }
        let label = label(tenant);
        let fresh = OfTenant::new(label);
        if label != OTHER {
            self.0.insert(tenant.clone(), fresh.clone());
        }
        fresh
    }

    pub(crate) fn accepted(&mut self, tenant: &TenantId, calls: usize) {
        self.of(tenant).accepted.add(u64::try_from(calls).unwrap_or(u64::MAX));
    }

    pub(super) fn ended(&mut self, tenant: &TenantId, outcome: &run::Outcome) {
        let of = self.of(tenant);
        match outcome {
            run::Outcome::Completed(_) => of.completed.add(1),
            run::Outcome::Failed(_) => of.failed.add(1),
            run::Outcome::Cancelled { .. } => of.cancelled.add(1),
            run::Outcome::Expired(_) => of.expired.add(1),
        }
    }
}

/// Sets the numbers of waiting and running calls of each tenant.
pub(crate) fn show<'a>(tenants: impl Iterator<Item = (&'a TenantId, (u32, u32))>) {
    let mut shown: HashMap<&str, (u32, u32)> = HashMap::new();
    for (tenant, (waiting, running)) in tenants {
        let sum = shown.entry(label(tenant)).or_default();
        *sum = (sum.0 + waiting, sum.1 + running);
    }
    WAITING.replace(shown.iter().map(|(tenant, (waiting, _))| (vec![*tenant], f64::from(*waiting))));
    RUNNING.replace(shown.iter().map(|(tenant, (_, running))| (vec![*tenant], f64::from(*running))));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_beyond_the_bound_are_counted_as_one_and_those_of_the_file_are_not() {
        let tenant = |name: &str| -> TenantId { name.parse().expect("a tenant") };
        reserve([tenant("of-the-file")].iter());
        let mut counts = TenantCounts::default();
        for number in 1..TENANTS_MAX {
            counts.accepted(&tenant(&format!("tenant-{number}")), 1);
        }
        for late in ["late", "later", "of-the-file"] {
            counts.accepted(&tenant(late), 2);
        }
        assert_eq!((ACCEPTED.with(&[OTHER]).value(), ACCEPTED.with(&["of-the-file"]).value()), (4, 2));
        assert_eq!(counts.0.len(), TENANTS_MAX);
    }
}
