//! The tools that each tenant can use, by the operator's rules for pools.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use run::{CallError, PoolId, TenantId, ToolName};

use super::catalog::{Candidates, Catalog};
use super::{Hosts, Sets, not_permitted};
use crate::fleet::pools::{Access, Closed, PoolRules, Tenancy};

/// The catalogs of tenants. Made together with the catalog of all pools.
#[derive(Debug, Default)]
pub(crate) struct Views {
    /// Of tenants that a file names.
    named: HashMap<TenantId, Arc<Catalog>>,
    /// Of every other tenant; `None`: the catalog of all pools.
    others: Option<Arc<Catalog>>,
    rules: Arc<PoolRules>,
    tenancy: Tenancy,
    machines: HashSet<PoolId>,
}

impl Views {
    /// The catalog of all pools, and the tenants' views of it.
    pub(crate) fn new(
        sets: &Sets,
        alive: &HashSet<Hosts>,
        (rules, tenancy): (Arc<PoolRules>, Tenancy),
    ) -> (Catalog, Self) {
        let candidates = Candidates::new(sets, alive, &rules);
        let mut all = candidates.catalog(|_| Some(Access::Common));
        let mut views = Self {
            named: HashMap::new(),
            others: None,
            rules: Arc::clone(&rules),
            tenancy,
            machines: candidates.machines(),
        };
        let pools: BTreeSet<&PoolId> = sets.keys().map(|(pool, _)| pool).collect();
        if pools.iter().any(|pool| views.access(pool, None).is_err()) {
            views.others = Some(Arc::new(candidates.catalog(|pool| views.access(pool, None).ok())));
        }
        let mut named: BTreeSet<TenantId> = rules.tenants().into_iter().cloned().collect();
        if let Tenancy::Sole(sole) = &views.tenancy {
            named.insert(sole.clone());
        }
        let seen = |tenant: TenantId| {
            let catalog = candidates.catalog(|pool| views.access(pool, Some(&tenant)).ok());
            (tenant, Arc::new(catalog))
        };
        let named: HashMap<TenantId, Arc<Catalog>> = named.into_iter().map(seen).collect();
        views.named = named;
        // Pools of different tenants need not agree.
        let catalogs: Vec<&Arc<Catalog>> = views.named.values().chain(&views.others).collect();
        all.refused.retain(|refused| {
            let serves = |catalog: &&Arc<Catalog>| catalog.serves(&refused.tool, &refused.hosts.0);
            refused.holder.as_ref().is_none_or(|holder| holder.0 == refused.hosts.0) || !catalogs.iter().any(serves)
        });
        (all, views)
    }

    fn access(&self, pool: &PoolId, tenant: Option<&TenantId>) -> Result<Access, Closed> {
        self.rules.access(pool, tenant, (&self.machines, &self.tenancy))
    }

    /// The tools of the tenant; `None` for all.
    pub(super) fn of(&self, tenant: &TenantId) -> Option<&Catalog> {
        self.named.get(tenant).or(self.others.as_ref()).map(AsRef::as_ref)
    }

    /// The pool that a pool replaces, and the share of its calls that it takes, in percent.
    pub(crate) fn replaces(&self, pool: &PoolId) -> Option<(&PoolId, u8)> {
        self.rules.replaces(pool)
    }

    /// Why a pool does not serve a tenant.
    pub(crate) fn closed(&self, pool: &PoolId, tenant: &TenantId) -> Option<Closed> {
        self.access(pool, Some(tenant)).err()
    }

    /// Why a call that was accepted for a pool may not be executed there, by the present rules.
    pub(crate) fn keeps_from(&self, pool: &PoolId, tool: &ToolName, tenant: Option<&TenantId>) -> Option<CallError> {
        if !self.rules.may_host(pool, tool) {
            return Some(not_permitted(tool, &format!("the pools file does not let pool {pool} host it any more")));
        }
        self.closed(pool, tenant?).map(|closed| not_permitted(tool, &closed.why(pool)))
    }

    /// Pools whose tools use the machine, that several tenants could call, and that the file does not declare shared.
    pub(crate) fn unshared(&self) -> BTreeSet<&PoolId> {
        let any = (self.tenancy == Tenancy::Many).then_some(None);
        let tenants: Vec<Option<&TenantId>> = self.rules.tenants().into_iter().map(Some).chain(any).collect();
        let is_unshared =
            |pool: &&PoolId| tenants.iter().any(|tenant| self.access(pool, *tenant) == Err(Closed::NotShared));
        self.machines.iter().filter(is_unshared).collect()
    }
}
