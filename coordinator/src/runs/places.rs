//! Whether a call is dispatched only by the owner of its run.

use std::sync::Arc;

use run::{CallSpec, TenantId};

use super::Runs;
use crate::fleet::registry::Registry;

impl Runs {
    /// Whether the only call of a run must be dispatched by the shard's owner: if it needs a concurrency slot, or if
    /// its tool is paused. Runs of several calls are dispatched by the owner anyway.
    pub(super) fn waits_for_owner(
        &self,
        calls: &[Arc<CallSpec>],
        tenant: Option<&TenantId>,
        registry: &Registry,
    ) -> bool {
        let [call] = calls else { return false };
        let entry = registry.catalog.limits_running.then(|| registry.catalog.find(&call.tool)).flatten();
        let paused = self.pauses.current.borrow();
        self.quotas.running_max(tenant, entry).is_some()
            || (paused.tools().next().is_some() && paused.holds(registry.real_name(&call.tool)))
    }
}
