//! Explains in one line why a call is waiting, or why it ended as it did.

use std::sync::Arc;

use owner::turns::Position;
use run::{Call, CallState, Route, Run, span};

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
        if let (CallState::Accepted, Some(position)) = (call.state(), self.turns.position(run, call)) {
            return in_turn(call, position);
        }
        if *call.state() == CallState::Accepted
            && run.waits_for(call).is_none()
            && let Some((max, whose, position)) = self.quotas.waits_at(run, call, &registry)
        {
            return format!(
                "accepted, and waiting for one of the {max} places that calls {whose} have on all workers together{}",
                position.map(at_limit).unwrap_or_default()
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
fn ahead(position: Position) -> String {
    if position.is_exact { position.ahead.to_string() } else { format!("more than {}", position.ahead) }
}

/// The position of a call that waits at a limit of its tenant or tool.
fn at_limit(position: Position) -> String {
    let (ahead, waiting, priority) = (ahead(position), position.waiting, position.priority.name());
    format!(": {ahead} of the {waiting} calls that wait for that come before it, and its priority is {priority} now")
}

/// Explains the position of a call that waits for its turn in its pool.
fn in_turn(call: &Call, position: Position) -> String {
    let (ahead, waiting) = (ahead(position), position.waiting);
    let pool = match &call.spec().route {
        Route::Pool { pool, .. } => pool.as_str(),
        Route::Client | Route::Refused(_) | Route::Answered(_) => "",
    };
    let (now, priority) = (::nats::now(), position.priority.name());
    format!(
        "has been waiting for its turn in pool {pool} for {}: {ahead} of the {waiting} calls that wait there come \
         before it, and its priority is {priority} now; it expires in {}",
        span(now.since(call.in_turn_since())),
        span(call.start_by().since(now))
    )
}
