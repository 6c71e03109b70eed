//! Creates and removes the queues of pools.

use std::time::Duration;

use run::PoolId;
use tokio::time::Instant;

use super::RegistryTask;
use crate::nats::setup::{ensure_queues, remove_pool};

/// How long a partition is left alone that did not answer, if there are others: each attempt waits for an answer, and
/// workers are not heard meanwhile.
const LEFT_ALONE: Duration = Duration::from_secs(10);

impl RegistryTask {
    /// Creates the queues of a pool, also if they were lost.
    pub(super) async fn queue_for(&mut self, pool: &PoolId) {
        if std::mem::replace(&mut self.partitions, self.broker.partitions()) != self.broker.partitions() {
            self.queues.clear();
        }
        let checked = self.queues.get(pool);
        if checked.is_some_and(|checked| checked.elapsed() < self.limits.queues_checked) {
            return;
        }
        self.silent.retain(|_, since| since.elapsed() < LEFT_ALONE);
        let streams = self.broker.streams().filter(|stream| !self.silent.contains_key(stream)).collect::<Vec<_>>();
        let mut is_done = streams.len() == self.partitions;
        for (stream, made) in ensure_queues(&self.broker, &streams, pool, checked.is_some()).await {
            if let Err(error) = made {
                tracing::warn!(%pool, %error, "creating the queue of a pool failed, retrying");
                is_done = false;
                if self.partitions > 1 {
                    self.silent.insert(stream, Instant::now());
                }
            }
        }
        if is_done {
            self.queues.insert(pool.clone(), Instant::now());
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
