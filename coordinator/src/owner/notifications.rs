//! Queues notifications for webhooks. Notifications follow from the fold. Until they are in the queue they are in the
//! shard's snapshot, and those for later entries follow from the log again.

use std::collections::VecDeque;

use run::{Entry, Fact, Run, Shard};

use super::shard::Posting;
use super::{OwnerTask, claim, leads};
use crate::nats::journal::ReadError;
use crate::nats::notifications::QueuedNotification;
use crate::notifications::Webhooks;
use crate::shards::every;

/// The most notifications put into the queue together.
const BATCH_MAX: usize = 256;
/// The most notifications of a shard that wait while the queue does not accept any. Beyond that, the newest are lost,
/// because a queue that is unavailable while the log is available needs an operator.
const WAITING_MAX: usize = 16_384;

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
pub(super) fn owe_letters(
    waiting: &mut VecDeque<QueuedNotification>,
    webhooks: &Webhooks,
    run: &Run,
    entry: &Entry,
    heard: &[Fact],
) {
    for heard in heard {
        let Fact::StatusChanged(status) = heard else { continue };
        let letters = webhooks.letters(run, *status, entry);
        if waiting.len() + letters.len() > WAITING_MAX {
            tracing::error!(run.id = %run.id(), "the queue of webhooks is unavailable, dropping a notification");
            continue;
        }
        waiting.extend(letters);
    }
}

impl OwnerTask {
    /// Retries after the queue accepted nothing.
    pub(super) fn post_letters_again(&mut self) {
        for slice in self.slices.iter_mut().filter(|slice| slice.posting == Posting::PutOff) {
            slice.posting = Posting::Idle;
        }
        self.post_letters();
    }

    /// Puts pending notifications into the queue.
    pub(super) fn post_letters(&mut self) {
        let Some(queue) = &self.io.letters else { return };
        for (slice, shard) in self.slices.iter_mut().zip(every()) {
            if slice.posting != Posting::Idle || slice.letters.is_empty() || !leads(&self.owner, shard) {
                continue;
            }
            slice.posting = Posting::UnderWay;
            let (queue, claim) = (queue.clone(), claim(&self.owner, shard));
            let letters: Vec<QueuedNotification> = slice.letters.iter().take(BATCH_MAX).cloned().collect();
            self.posts.spawn(async move {
                let (count, error) = match queue.put(&letters).await {
                    Ok(()) => (letters.len(), None),
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
        slice.posting = if error.is_some() { Posting::PutOff } else { Posting::Idle };
        slice.letters.drain(..count.min(slice.letters.len()));
        slice.snapshot.outdated |= count > 0;
        match error {
            Some(error) => tracing::warn!(%shard, %error, "queueing notifications failed, trying again"),
            None => self.post_letters(),
        }
    }
}
