//! Performs overdue steps of runs whose shard temporarily has no owner, for readers that this coordinator serves.

use std::sync::Arc;

use owner::{Append, Expected, overdue_ends};
use run::RunId;

use super::{OwnerHandle, OwnerTask, Request};
use crate::fleet::registry::Registry;
use crate::nats::journal::{AppendError, Journal, ReadError};

/// The most runs in which this is done concurrently.
const RUNS_MAX: usize = 64;

impl OwnerHandle {
    /// Reports that a step of a run has been overdue for longer than an owner takes. The caller repeats it while that
    /// is so.
    pub(crate) fn overdue(&self, run: RunId) {
        if self.0.try_send(Request::Overdue { run }).is_err() {
            tracing::debug!(run.id = %run, "owner's request queue is full; overdue check skipped");
        }
    }
}

impl OwnerTask {
    pub(super) fn overdue(&mut self, id: RunId) {
        // Runs of our own shards have their own timers.
        if self.may_act(id.shard()) || self.overdue_runs.len() >= RUNS_MAX || !self.overdue_runs.insert(id) {
            return;
        }
        let (journal, registry) = (self.io.journals.of(id), Arc::clone(&self.io.registry.borrow()));
        self.overdue_ends.spawn(async move {
            if let Err(error) = end_overdue(&journal, &registry, id).await {
                tracing::warn!(run.id = %id, %error, "ending what is overdue in the owner's place failed");
            }
            id
        });
    }
}

async fn end_overdue(journal: &Journal, registry: &Registry, id: RunId) -> Result<(), ReadError> {
    let (known_at, known) = (::nats::now(), journal.known(id).await?);
    for Append { effect, event, expected, .. } in overdue_ends(&known, registry, ::nats::now()) {
        tracing::warn!(run.id = %id, ?effect, "ending what is overdue in the owner's place");
        let expected = Expected { entry: expected, carried: known.carried, known_at: Some(known_at) };
        match journal.append(id, &[event], None, expected).await {
            Ok(_) | Err(AppendError::Conflict) => {}
            Err(error) => tracing::warn!(run.id = %id, ?effect, %error, "ending what is overdue failed"),
        }
    }
    Ok(())
}
