//! Whether a call is dispatched only by the owner of its run.

use std::sync::Arc;

use run::{CallSpec, Event, RunId, TenantId};

use super::Runs;
use crate::fleet::registry::Registry;
use crate::owner::job_bytes;
use crate::turns::Turn;

impl Runs {
    /// Asks for the turn of the only call of a run, if its job is to be stored with it. If its turn has not come, the
    /// job is taken out of the events, and the owner of the shard stores it later.
    pub(super) async fn take_turn(&self, id: RunId, events: &mut Vec<Event>) -> Option<Turn> {
        let [Event::RunOpened(opened), Event::CallDispatched { .. }] = events.as_slice() else { return None };
        let call = opened.calls.first()?;
        let priority = call.priority.unwrap_or(opened.rules.priority);
        let turn = self.turns.enter(id, (opened.tenant.as_ref(), call, priority), &self.registry).await;
        if turn.is_none() {
            self.journals.of(id).defer(job_bytes(call));
            events.truncate(1);
        }
        turn
    }

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
