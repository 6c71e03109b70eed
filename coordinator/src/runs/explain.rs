//! Explains in one line why a call is waiting, or why it ended as it did.

use std::sync::Arc;

use owner::slots::Whose;
use owner::turns::{CallKey, Position};
use proto::convert::position::{PositionRequest, Waits, WaitsFor};
use run::{Call, CallState, Route, Run, span};

use super::Runs;
use crate::auth::callers::Role;

impl Runs {
    /// Explains what this coordinator knows. Only the owner of the run's shard knows its position.
    pub(crate) fn explain(&self, run: &Run, call: &Call) -> String {
        self.explain_with(run, call, self.waits(PositionRequest { run: run.id(), call: call.index() }))
    }

    /// The same, and asks the owner for the position if the run is in a shard of another coordinator.
    pub(crate) async fn explain_fully(&self, run: &Run, call: &Call) -> String {
        let is_accepted = *call.state() == CallState::Accepted && matches!(call.spec().route, Route::Pool { .. });
        let is_ours = self.owned.borrow().holds(run.id().shard());
        if is_ours || !is_accepted || run.waits_for(call).is_some() {
            return self.explain(run, call);
        }
        let waits = self.positions.ask(PositionRequest { run: run.id(), call: call.index() }).await;
        self.explain_with(run, call, waits)
    }

    /// What a call of our shards waits for behind others, and its position there.
    pub(crate) fn waits(&self, PositionRequest { run, call }: PositionRequest) -> Option<Waits> {
        let key = CallKey { run, call };
        let (what, position) = match self.turns.position(key) {
            Some(position) => (WaitsFor::Turn, position),
            None => match self.quotas.position(key)? {
                (Whose::Tenant(_), position) => (WaitsFor::Tenant, position),
                (Whose::Tool(_), position) => (WaitsFor::Tool, position),
            },
        };
        let Position { ahead, is_exact, waiting, priority } = position;
        Some(Waits { what, ahead: ahead as u64, is_exact, waiting: waiting as u64, priority })
    }

    fn explain_with(&self, run: &Run, call: &Call, waits: Option<Waits>) -> String {
        let registry = self.registry.borrow();
        let paused = Arc::clone(&self.pauses.current.borrow());
        let names = self.caller.must(Role::Admin).is_ok();
        if let Some(held) = paused.why(call, registry.real_name(&call.spec().tool), ::nats::now(), names) {
            return held;
        }
        let is_accepted = *call.state() == CallState::Accepted;
        if let Some(waits) = waits.filter(|waits| is_accepted && waits.what == WaitsFor::Turn) {
            return in_turn(call, waits);
        }
        let at_tenants = waits.is_some_and(|waits| waits.what == WaitsFor::Tenant);
        if is_accepted
            && run.waits_for(call).is_none()
            && let Some((max, whose)) = self.quotas.waits_at(run, call, (at_tenants, &registry))
        {
            return format!(
                "accepted, and waiting for one of the {max} places that calls {whose} have on all workers together{}",
                waits.map(at_limit).unwrap_or_default()
            );
        }
        let workers = match &call.spec().route {
            Route::Pool { .. } if registry.settled => Some(registry.takers(call.spec(), run.tenant())),
            Route::Pool { .. } | Route::Client | Route::Refused(_) | Route::Answered(_) => None,
        };
        run.why(call, ::nats::now(), workers)
    }
}

/// How many calls come before one that waits.
fn ahead(waits: Waits) -> String {
    if waits.is_exact { waits.ahead.to_string() } else { format!("more than {}", waits.ahead) }
}

/// The position of a call that waits at a limit of its tenant or tool.
fn at_limit(waits: Waits) -> String {
    let (ahead, waiting, priority) = (ahead(waits), waits.waiting, waits.priority.name());
    format!(": {ahead} of the {waiting} calls that wait for that come before it, and its priority is {priority} now")
}

/// Explains the position of a call that waits for its turn in its pool.
fn in_turn(call: &Call, waits: Waits) -> String {
    let (ahead, waiting) = (ahead(waits), waits.waiting);
    let pool = match &call.spec().route {
        Route::Pool { pool, .. } => pool.as_str(),
        Route::Client | Route::Refused(_) | Route::Answered(_) => "",
    };
    let (now, priority) = (::nats::now(), waits.priority.name());
    format!(
        "has been waiting for its turn in pool {pool} for {}: {ahead} of the {waiting} calls that wait there come \
         before it, and its priority is {priority} now; it expires in {}",
        span(now.since(call.in_turn_since())),
        span(call.start_by().since(now))
    )
}
