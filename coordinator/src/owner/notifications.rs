//! Queues notifications for webhooks. Notifications follow from the fold. Until they are in the queue they are in the
//! shard's snapshot, and those for later entries follow from the log again.

use owner::Outbox;
use run::{Entry, Fact, Run, Shard};

use super::{OwnerTask, claim, leads};
use crate::nats::journal::ReadError;
use crate::nats::notifications::QueuedNotification;
use crate::notifications::Webhooks;
use crate::shards::every;

/// The result of an attempt to queue notifications.
#[derive(Debug)]
pub(super) struct Posted {
    shard: Shard,
    claim: Option<u64>,
    /// How many of them are in the queue.
    count: usize,
    error: Option<ReadError>,
}

/// Adds the notifications that an applied entry causes.
pub(super) fn add_notifications(
    outbox: &mut Outbox<QueuedNotification>,
    webhooks: &Webhooks,
    run: &Run,
    entry: &Entry,
    facts: &[Fact],
) {
    if !outbox.lacks(entry) {
        return;
    }
    for status in owner::notified(run, facts) {
        if !outbox.add(webhooks.letters(run, status, entry)) {
            tracing::error!(run.id = %run.id(), "the queue of webhooks is unavailable, dropping a notification");
        }
    }
}

impl OwnerTask {
    /// Retries after the queue accepted nothing.
    pub(super) fn post_letters_again(&mut self) {
        self.slices.iter_mut().for_each(|slice| slice.outbox.retry());
        self.post_letters();
    }

    /// Puts pending notifications into the queue.
    pub(super) fn post_letters(&mut self) {
        let Some(queue) = &self.io.letters else { return };
        for (slice, shard) in self.slices.iter_mut().zip(every()) {
            if !leads(&self.owner, shard) {
                continue;
            }
            let Some(notifications) = slice.outbox.begin() else { continue };
            let (queue, claim) = (queue.clone(), claim(&self.owner, shard));
            self.posts.spawn(async move {
                let (count, error) = match queue.put(&notifications).await {
                    Ok(()) => (notifications.len(), None),
                    Err((count, error)) => (count, Some(error)),
                };
                Posted { shard, claim, count, error }
            });
        }
    }

    pub(super) fn posted(&mut self, posted: Posted) {
        let Posted { shard, claim, count, error } = posted;
        // Notifications posted under an earlier claim of the shard are pending again.
        if super::claim(&self.owner, shard) != claim {
            return;
        }
        let Some(slice) = self.slice_mut(shard) else { return };
        slice.outbox.handle_posted(count, error.is_none());
        if count > 0 {
            slice.snapshot.schedule.outdate();
        }
        match error {
            Some(error) => tracing::warn!(%shard, %error, "queueing notifications failed, trying again"),
            None => self.post_letters(),
        }
    }
}
