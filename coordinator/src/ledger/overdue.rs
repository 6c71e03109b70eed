//! Deadlines of runs whose shard is nobody's for the moment: its owner died, and its lease has not run out. Whoever watches
//! such a run sees what is overdue, and this coordinator then ends it in the owner's place. That is safe as any command
//! is: the end of a call is appended behind what was last known of it or not at all, and an owner that lives was faster.

use std::sync::Arc;
use std::time::Duration;

use run::{DeadlineKind, Effect, RunId, Timestamp};

use super::act::{Act, act};
use super::{Keeper, Ledger, Request};
use crate::callers::Callers;
use crate::nats::journal::{AppendError, Journal, ReadError};
use crate::registry::Registry;

/// How long an owner may take to end what is overdue: its timer, and the append.
pub(crate) const OVERDUE: Duration = Duration::from_millis(500);
/// Runs that are seen to at once.
const RUNS_MAX: usize = 64;

impl Ledger {
    /// Something of a run is overdue for longer than an owner takes. To be said again for as long as it is so.
    pub(crate) fn overdue(&self, run: RunId) {
        if self.0.try_send(Request::Overdue { run }).is_err() {
            tracing::debug!(run.id = %run, "nobody has time for what is overdue");
        }
    }
}

impl Keeper {
    pub(super) fn overdue(&mut self, id: RunId) {
        // What is ours has its own timer.
        if self.may_act(id.shard()) || self.seen_to.len() >= RUNS_MAX || !self.seen_to.insert(id) {
            return;
        }
        let (journal, registry) = (self.rim.journal.clone(), Arc::clone(&self.rim.registry.borrow()));
        self.stand_ins.spawn(async move {
            if let Err(error) = end_overdue(&journal, &registry, id).await {
                tracing::warn!(run.id = %id, %error, "cannot end what is overdue in its owner's place");
            }
            id
        });
    }
}

async fn end_overdue(journal: &Journal, registry: &Registry, id: RunId) -> Result<(), ReadError> {
    let known = journal.known(id).await?;
    let late = Timestamp(proto::now().0.saturating_sub(u64::try_from(OVERDUE.as_millis()).unwrap_or(u64::MAX)));
    for effect in known.run.outstanding(late).into_iter().filter(is_end) {
        let Some(Act::Append { event, expected, .. }) = act(&known, effect, registry, &Callers::default()) else {
            continue;
        };
        tracing::warn!(run.id = %id, ?effect, "ending what is overdue in its owner's place");
        match journal.append(id, &[event], None, expected).await {
            Ok(_) | Err(AppendError::Conflict) => {}
            Err(error) => tracing::warn!(run.id = %id, ?effect, %error, "what is overdue stays so"),
        }
    }
    Ok(())
}

/// Ends a call or the run; not what only ends an attempt, after which a job must be handed back.
fn is_end(effect: &Effect) -> bool {
    match effect {
        Effect::ExpireRun => true,
        Effect::Expire { deadline, .. } => match deadline {
            DeadlineKind::Call
            | DeadlineKind::Queue
            | DeadlineKind::Client
            | DeadlineKind::Run
            | DeadlineKind::Opening => true,
            DeadlineKind::Attempt(_) | DeadlineKind::Idle(_) => false,
        },
        Effect::Dispatch { .. }
        | Effect::Stop { .. }
        | Effect::Cancel { .. }
        | Effect::Decide { .. }
        | Effect::Refuse { .. }
        | Effect::Close => false,
    }
}
