//! The queues of pools, as the broker has them: their length, their position, and taking jobs back from workers that do
//! not start them. Every coordinator gets the same result, whichever owns the runs.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::consumer::{Info, PullConsumer};
use futures::future::join_all;
use owner::Queue;
use proto::names;
use run::PoolId;
use serde_json::{Map, Value, json};

use super::Broker;
use crate::fleet::registry::Registry;

/// How long reading all queues may take; an autoscaler tries again.
const STATS_PATIENCE: Duration = Duration::from_secs(3);

#[derive(Debug, Clone)]
pub(crate) struct Queues {
    broker: Arc<Broker>,
}

/// The position of a queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Given {
    /// Every job up to this log position was delivered to a worker.
    pub(crate) through: u64,
    /// Deliveries, including repeated ones.
    deliveries: u64,
}

impl Queues {
    pub(crate) fn new(broker: &Broker) -> Self {
        Self { broker: Arc::new(broker.clone()) }
    }

    /// `None` if the broker does not answer.
    pub(crate) async fn given(&self, (pool, partition): &Queue) -> Option<Given> {
        let queue = self.queue(pool, names::stream(*partition)).await;
        let queue = queue.inspect_err(|error| tracing::debug!(error, "reading the queue's position failed"));
        let delivered = queue.ok()?.delivered;
        Some(Given { through: delivered.stream_sequence, deliveries: delivered.consumer_sequence })
    }

    /// For each known pool: queued jobs, jobs that a worker holds, their sum, and the slots of its workers.
    pub(crate) async fn stats(&self, registry: &Registry) -> Result<Value, String> {
        let pools = registry.pools();
        let looks = join_all(pools.iter().map(|pool| self.counts(pool)));
        let queues = tokio::time::timeout(STATS_PATIENCE, looks).await;
        let mut stats = Map::new();
        for (pool, counts) in pools.iter().zip(queues.map_err(|_| "the broker does not answer".to_owned())?) {
            let ((waiting, running), living) = (counts?, registry.living(pool));
            let pool_stats = json!({
                "jobs": waiting + running,
                "waiting": waiting,
                "running": running,
                "workers": living.live,
                "slots": living.slots,
                "free_slots": living.slots.saturating_sub(running),
            });
            stats.insert(pool.to_string(), pool_stats);
        }
        Ok(json!({ "pools": stats }))
    }

    /// Jobs of a pool that wait and that a worker holds, in all partitions that answer.
    async fn counts(&self, pool: &PoolId) -> Result<(u64, u64), String> {
        let queues = join_all(self.broker.streams().map(|stream| self.queue(pool, stream))).await;
        let (queues, mut errors): (Vec<_>, Vec<_>) = queues.into_iter().partition(Result::is_ok);
        let queues: Vec<Info> = queues.into_iter().flatten().collect();
        if let (true, Some(Err(error))) = (queues.is_empty(), errors.pop()) {
            return Err(error);
        }
        let running = |queue: &Info| u64::try_from(queue.num_ack_pending).unwrap_or(u64::MAX);
        Ok((queues.iter().map(|queue| queue.num_pending).sum(), queues.iter().map(running).sum()))
    }

    async fn queue(&self, pool: &PoolId, stream: &str) -> Result<Info, String> {
        let found: Result<PullConsumer, _> =
            self.broker.context.get_consumer_from_stream(names::pool_consumer(pool), stream).await;
        let queue = found.map_err(|error| format!("the queue of pool {pool}: {error}"))?;
        Ok(queue.cached_info().clone())
    }

    /// Puts a delivered job back into its queue; any other job is unchanged. Not confirmed, because the job's lease
    /// runs out in any case.
    ///
    /// The worker that has it is unknown, and so is the subject of its acknowledgement. The broker looks only at the
    /// job's position in the log, and checks of the rest only that there were so many deliveries (`processNak` of
    /// nats-server's consumer.go).
    pub(crate) async fn take_back(&self, (pool, partition): &Queue, job: u64, given: Given) {
        let (stream, queue, deliveries) = (names::stream(*partition), names::pool_consumer(pool), given.deliveries);
        let subject = format!("$JS.ACK.{stream}.{queue}.1.{job}.{deliveries}.0.0");
        if let Err(error) = self.broker.client.publish(subject, "-NAK".into()).await {
            tracing::warn!(%pool, %error, "taking back a job failed; it is delivered again when its lease runs out");
        }
    }
}
