//! What webhooks are owed: letters that the fold gave rise to, on their way into the queue. Until they are there they
//! stand in the shard's snapshot, and what came after it follows from the log once more.

use std::collections::VecDeque;

use run::{Entry, Fact, Run, Shard};

use super::shard::Posting;
use super::{OwnerTask, claim, leads};
use crate::nats::journal::ReadError;
use crate::nats::notifications::QueuedNotification;
use crate::notifications::Webhooks;
use crate::shards::every;

/// Letters that are put into the queue together.
const BATCH_MAX: usize = 256;
/// Letters of a shard that may wait while the queue takes none. Of more, the newest are lost: a queue that is away
/// while the log is there needs somebody to look at it.
const WAITING_MAX: usize = 16_384;

/// The end of an attempt to put letters into the queue.
#[derive(Debug)]
pub(super) struct Posted {
    shard: Shard,
    claim: Option<u64>,
    /// How many of them are there.
    count: usize,
    error: Option<ReadError>,
}

/// An entry was taken in: whoever wants to know of it shall be told.
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
            tracing::error!(run.id = %run.id(), "the queue of webhooks takes nothing: a notice is lost");
            continue;
        }
        waiting.extend(letters);
    }
}

impl OwnerTask {
    /// Tries once more what the queue did not take.
    pub(super) fn post_letters_again(&mut self) {
        for slice in self.slices.iter_mut().filter(|slice| slice.posting == Posting::PutOff) {
            slice.posting = Posting::Idle;
        }
        self.post_letters();
    }

    /// Puts what is owed into the queue.
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
        // What was posted for an earlier time at which the shard was ours is owed once more.
        if super::claim(&self.owner, shard) != claim {
            return;
        }
        let Some(slice) = self.slice_mut(shard) else { return };
        slice.posting = if error.is_some() { Posting::PutOff } else { Posting::Idle };
        slice.letters.drain(..count.min(slice.letters.len()));
        slice.snapshot.outdated |= count > 0;
        match error {
            Some(error) => tracing::warn!(%shard, %error, "the queue of webhooks takes nothing, trying again"),
            None => self.post_letters(),
        }
    }
}
