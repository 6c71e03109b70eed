//! Calls that wait for their turn, as coordinators report them to each other.

use std::collections::BTreeMap;

use owner::turns::Tenant;
use run::PoolId;

use super::Report;

/// Tenants of a pool whose waiting calls are reported.
const TENANTS_MAX: usize = 1000;

/// Waiting calls by pool and by tenant. Runs without a tenant have an empty name.
pub(super) fn report(waiting: BTreeMap<PoolId, BTreeMap<Tenant, u32>>) -> BTreeMap<String, BTreeMap<String, u32>> {
    let name = |tenant: Tenant| tenant.map(|tenant| tenant.to_string()).unwrap_or_default();
    let of_pool = |tenants: BTreeMap<Tenant, u32>| {
        tenants.into_iter().take(TENANTS_MAX).map(|(tenant, calls)| (name(tenant), calls)).collect()
    };
    waiting.into_iter().map(|(pool, tenants)| (pool.to_string(), of_pool(tenants))).collect()
}

/// The sum of all others' waiting calls.
pub(super) fn sum(reports: &[Report]) -> BTreeMap<PoolId, BTreeMap<Tenant, u32>> {
    let mut all: BTreeMap<PoolId, BTreeMap<Tenant, u32>> = BTreeMap::new();
    for (pool, tenants) in reports.iter().flat_map(|report| &report.waiting) {
        let Ok(pool) = pool.parse() else { continue };
        let of_pool = all.entry(pool).or_default();
        for (tenant, calls) in tenants {
            // An empty name is no tenant's.
            let sum = of_pool.entry(tenant.parse().ok()).or_default();
            *sum = sum.saturating_add(*calls);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_elsewhere_is_the_sum_of_all_reports() {
        let tenant = |name: &str| Some(name.parse().expect("a tenant"));
        let pool = || "main".parse::<PoolId>().expect("a pool");
        let reported = |calls: [(Tenant, u32); 2]| Report {
            at_ms: 0,
            tenants: BTreeMap::new(),
            running_of_tenants: BTreeMap::new(),
            running_of_tools: BTreeMap::new(),
            made_of_tenants: BTreeMap::new(),
            made_of_tools: BTreeMap::new(),
            waiting: report(BTreeMap::from([(pool(), calls.into())])),
        };
        let reports = [reported([(None, 1), (tenant("acme"), 2)]), reported([(None, 3), (tenant("other"), 4)])];
        let expected = [(None, 4), (tenant("acme"), 2), (tenant("other"), 4)];
        assert_eq!(sum(&reports), BTreeMap::from([(pool(), expected.into())]));
    }
}
