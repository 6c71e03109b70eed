//! The tools that a tenant has, independent of the rights of its callers.

use std::collections::BTreeMap;
use std::sync::Arc;

use run::TenantId;
use serde::Deserialize;

use super::book::{RawRule, Rule};
use crate::fleet::registry::Entry;

/// The tools of a tenant, as the file has them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTools {
    /// Only these; all if left out.
    tools: Option<Vec<RawRule>>,
    /// Except these.
    #[serde(default)]
    without: Vec<RawRule>,
    /// Its calls may name only tools that their run attached.
    #[serde(default)]
    attached_only: bool,
}

/// The tools of a tenant.
#[derive(Debug)]
pub(crate) struct TenantTools {
    only: Option<Vec<Rule>>,
    without: Vec<Rule>,
    /// Its calls may name only tools that their run attached.
    pub(crate) attached_only: bool,
}

impl TenantTools {
    pub(crate) fn have(&self, entry: &Entry) -> bool {
        self.only.as_ref().is_none_or(|only| only.iter().any(|rule| rule.admits(entry)))
            && !self.without.iter().any(|rule| rule.is_about(entry))
    }
}

/// The tools of every tenant that the file names.
#[derive(Debug, Default)]
pub(super) struct Tenants {
    /// Of a tenant that is not named.
    others: Option<Arc<TenantTools>>,
    named: BTreeMap<TenantId, Arc<TenantTools>>,
}

impl Tenants {
    pub(super) fn of(&self, tenant: &TenantId) -> Option<&Arc<TenantTools>> {
        self.named.get(tenant).or(self.others.as_ref())
    }

    pub(super) fn named(&self) -> impl Iterator<Item = &TenantId> {
        self.named.keys()
    }

    pub(super) fn check(
        others: Option<RawTools>,
        named: BTreeMap<String, RawTools>,
        mistakes: &mut Vec<String>,
    ) -> Self {
        let mut known = BTreeMap::new();
        for (name, raw) in named {
            let tools = Arc::new(raw.check(&format!("tenants.{name}"), mistakes));
            match name.parse() {
                Ok(tenant) => drop(known.insert(tenant, tools)),
                Err(error) => {
                    let error: run::InvalidId = error;
                    mistakes.push(format!("tenants: {error}"));
                }
            }
        }
        Self { others: others.map(|raw| Arc::new(raw.check("tenant", mistakes))), named: known }
    }
}

impl RawTools {
    fn check(self, place: &str, mistakes: &mut Vec<String>) -> TenantTools {
        if self.tools.as_ref().is_some_and(Vec::is_empty) {
            mistakes.push(format!("{place}.tools: leaves no tool: remove the tenant's callers instead"));
        }
        let mut rules = |rules: Vec<RawRule>, field: &str| {
            let checked = rules.into_iter().enumerate().filter_map(|(number, rule)| {
                rule.check(|part, what| mistakes.push(format!("{place}.{field}[{number}]{part}: {what}")))
            });
            checked.collect()
        };
        let (only, without) = (self.tools.map(|only| rules(only, "tools")), rules(self.without, "without"));
        TenantTools { only, without, attached_only: self.attached_only }
    }
}
