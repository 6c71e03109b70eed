//! Whether a call goes out only when the owner of its run lets it.

use std::sync::Arc;

use run::{CallSpec, TenantId};

use super::Runs;
use crate::registry::Registry;

impl Runs {
    /// Whether the only call of a run is its shard's owner's to dispatch: where it needs a place among those that may run at
    /// once, and where its tool is paused. Several calls go out from there anyway.
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
