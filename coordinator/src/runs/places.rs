//! Whether a call needs a place among those that may run at once, and what it waits for.

use std::sync::Arc;

use run::{Call, CallSpec, CallState, Route, Run, TenantId};

use super::Runs;
use crate::registry::Registry;

impl Runs {
    /// Whether the only call of a run needs a place: its shard's owner gives those. Several calls go out from there anyway.
    pub(super) fn is_limited(&self, calls: &[Arc<CallSpec>], tenant: Option<&TenantId>, registry: &Registry) -> bool {
        let [call] = calls else { return false };
        let entry = registry.catalog.limits_running.then(|| registry.catalog.find(&call.tool)).flatten();
        self.quotas.running_max(tenant, entry).is_some()
    }

    /// What a call waits for, or why it ended as it did, in one line.
    pub(crate) fn explain(&self, run: &Run, call: &Call) -> String {
        let registry = self.registry.borrow();
        if *call.state() == CallState::Accepted
            && run.waits_for(call).is_none()
            && let Some((max, whose)) = self.quotas.running_max(run.tenant(), registry.catalog.find(&call.spec().tool))
        {
            return format!(
                "accepted, and waits for one of the {max} places that calls {whose} have on all workers together"
            );
        }
        let workers = match &call.spec().route {
            Route::Pool { pool, .. } if registry.settled => Some(registry.live_workers(pool)),
            Route::Pool { .. } | Route::Client | Route::Refused(_) => None,
        };
        run.why(call, proto::now(), workers)
    }
}
