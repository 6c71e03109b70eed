//! Creates and removes the queues of pools.

use std::time::Duration;

use run::PoolId;
use tokio::time::Instant;

use super::RegistryTask;
use crate::nats::setup::{ensure_pool, ensure_still, remove_pool};

/// How long no queue is created after one could not be in some partition: each attempt waits for an answer, and workers
/// are not heard meanwhile.
const PAUSE: Duration = Duration::from_secs(10);

impl RegistryTask {
    /// Creates the queue of a pool, also if it was lost.
    pub(super) async fn queue_for(&mut self, pool: &PoolId) {
        if std::mem::replace(&mut self.partitions, self.broker.partitions()) != self.broker.partitions() {
            self.queues.clear();
        }
        if self.queues_paused.is_some_and(|since| since.elapsed() < PAUSE) {
            return;
        }
        let checked = self.queues.get(pool);
        if checked.is_some_and(|checked| checked.elapsed() < self.limits.queues_checked) {
            return;
        }
        let made = match checked {
            Some(_) => ensure_still(&self.broker, pool).await,
            None => ensure_pool(&self.broker, pool).await,
        };
        match made {
            Ok(()) => {
                self.queues.insert(pool.clone(), Instant::now());
            }
            Err(error) => {
                tracing::warn!(%pool, %error, "creating the queue of a pool failed, retrying");
                self.queues_paused = (self.partitions > 1).then(Instant::now);
            }
        }
    }

    /// Removes the queue of a pool that is gone, if it is empty. Returns whether the pool has none.
    pub(super) async fn remove_queue(&mut self, pool: &PoolId, all_are_gone: bool) -> bool {
        let removed = remove_pool(&self.broker, pool, all_are_gone).await;
        match removed {
            Ok(true) => {
                tracing::info!(%pool, "removed the queue of a pool without workers");
                self.queues.remove(pool);
                true
            }
            Ok(false) => false,
            Err(error) => {
                tracing::warn!(%pool, error, "removing the queue of a pool without workers failed, retrying");
                false
            }
        }
    }
}
