//! Whether a call needs a place among those that may run at once.

use std::sync::Arc;

use run::{CallSpec, TenantId};

use super::Runs;
use crate::registry::Registry;

impl Runs {
    /// Whether the only call of a run needs a place: its shard's owner gives those. Several calls go out from there anyway.
    pub(super) fn is_limited(&self, calls: &[Arc<CallSpec>], tenant: Option<&TenantId>, registry: &Registry) -> bool {
        let [call] = calls else { return false };
        let entry = registry.catalog.limits_running.then(|| registry.catalog.find(&call.tool)).flatten();
        self.quotas.running_max(tenant, entry).is_some()
    }
}
