//! The pools file: which tool names each pool may host, and which tenants may use it. Without the file a name belongs
//! to the pool that advertised it first.

mod file;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

use globset::GlobSet;
use run::{PoolId, TenantId, ToolName};

use super::facades::Facade;

#[cfg(test)]
pub(crate) use file::rules;
pub(crate) use file::{PoolsReload, open};

/// The file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PoolsError {
    #[error("cannot read {}: {source}", file.display())]
    Read { file: PathBuf, source: std::io::Error },
    #[error("{} cannot be used:\n  {}", file.display(), mistakes.join("\n  "))]
    Mistakes { file: PathBuf, mistakes: Vec<String> },
}

/// The operator's rules for pools.
#[derive(Debug, Default)]
pub(crate) struct PoolRules {
    /// `None`: there is no file.
    pools: Option<BTreeMap<PoolId, PoolRule>>,
    /// Pools that take a share of the calls of others, and have their rules.
    replacing: BTreeMap<PoolId, Replacing>,
    /// Names of tools with manifests of their own.
    facades: BTreeMap<ToolName, Arc<Facade>>,
}

#[derive(Debug)]
struct Replacing {
    of: PoolId,
    /// In percent.
    share: u8,
}

#[derive(Debug)]
struct PoolRule {
    tools: GlobSet,
    /// `None`: every tenant.
    tenants: Option<BTreeSet<TenantId>>,
    /// Its tenants may see each other's files and processes.
    shared: bool,
}

/// Which tenants there may be, according to the file of callers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Tenancy {
    /// Callers are not authenticated: a tenant is only a label, and nothing keeps tenants apart.
    #[default]
    Open,
    /// All callers belong to one tenant.
    Sole(TenantId),
    Many,
}

/// Why a tenant may not use a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Closed {
    OfOtherTenants,
    /// Its tools use the machine, and the file does not declare that several tenants share it.
    NotShared,
}

impl Closed {
    /// The message for the caller, with what its operator can do.
    pub(crate) fn why(self, pool: &PoolId) -> String {
        match self {
            Self::OfOtherTenants => format!("pool {pool} does not serve its tenant"),
            Self::NotShared => format!(
                "tools of pool {pool} use their worker's machine, where one tenant could see another's files and \
                processes. The operator must name the tenant in the coordinators' pools file (--pools): \
                [pools.{pool}] tenants = [\"…\"], or share the pool among tenants that trust each other: shared = \
                true"
            ),
        }
    }
}

/// How a pool serves a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// The file names the tenant for this pool: it is preferred to pools that serve every tenant.
    Dedicated,
    Common,
}

impl PoolRules {
    pub(crate) fn facades(&self) -> &BTreeMap<ToolName, Arc<Facade>> {
        &self.facades
    }

    /// Whether there is a file.
    pub(crate) fn is_listed(&self) -> bool {
        self.pools.is_some()
    }

    /// Whether a pool may host a tool of this name. Without a file every pool may, and the first one gets it.
    pub(crate) fn may_host(&self, pool: &PoolId, tool: &ToolName) -> bool {
        self.pools.is_none() || self.rule(pool).is_some_and(|rule| rule.tools.is_match(tool.as_str()))
    }

    fn rule(&self, pool: &PoolId) -> Option<&PoolRule> {
        self.pools.as_ref()?.get(self.replacing.get(pool).map_or(pool, |replacing| &replacing.of))
    }

    /// The pool that a pool replaces, and the share of its calls that it takes, in percent.
    pub(crate) fn replaces(&self, pool: &PoolId) -> Option<(&PoolId, u8)> {
        self.replacing.get(pool).map(|replacing| (&replacing.of, replacing.share))
    }

    /// The tenants that the file names.
    pub(crate) fn tenants(&self) -> BTreeSet<&TenantId> {
        self.pools.iter().flat_map(BTreeMap::values).filter_map(|rule| rule.tenants.as_ref()).flatten().collect()
    }

    /// How a pool serves a tenant; `None` for a tenant that no file names. `machines`: the pools whose tools use the
    /// machine.
    pub(crate) fn access(
        &self,
        pool: &PoolId,
        tenant: Option<&TenantId>,
        (machines, tenancy): (&HashSet<PoolId>, &Tenancy),
    ) -> Result<Access, Closed> {
        let rule = self.rule(pool);
        let is_shared = !machines.contains(pool) || rule.is_some_and(|rule| rule.shared);
        let Some(tenants) = rule.and_then(|rule| rule.tenants.as_ref()) else {
            let is_alone = match tenancy {
                Tenancy::Open => true,
                Tenancy::Sole(sole) => tenant == Some(sole),
                Tenancy::Many => false,
            };
            return if is_shared || is_alone { Ok(Access::Common) } else { Err(Closed::NotShared) };
        };
        if !tenant.is_some_and(|tenant| tenants.contains(tenant)) {
            Err(Closed::OfOtherTenants)
        } else if is_shared || tenants.len() == 1 {
            Ok(Access::Dedicated)
        } else {
            Err(Closed::NotShared)
        }
    }
}
