//! Explains in one line why a call is waiting, or why it ended as it did.

use std::sync::Arc;

use run::{Call, CallState, Route, Run};

use super::Runs;
use crate::auth::callers::Role;

impl Runs {
    pub(crate) fn explain(&self, run: &Run, call: &Call) -> String {
        let registry = self.registry.borrow();
        let paused = Arc::clone(&self.pauses.current.borrow());
        let names = self.caller.must(Role::Admin).is_ok();
        if let Some(held) = paused.why(call, registry.real_name(&call.spec().tool), ::nats::now(), names) {
            return held;
        }
        if *call.state() == CallState::Accepted
            && run.waits_for(call).is_none()
            && let Some((max, whose)) = self.quotas.running_max(run.tenant(), registry.catalog.find(&call.spec().tool))
        {
            return format!(
                "accepted, and waiting for one of the {max} places that calls {whose} have on all workers together"
            );
        }
        let workers = match &call.spec().route {
            Route::Pool { .. } if registry.settled => Some(registry.takers(call.spec(), run.tenant())),
            Route::Pool { .. } | Route::Client | Route::Refused(_) => None,
        };
        run.why(call, ::nats::now(), workers)
    }
}
