//! The queues of pools, as the broker has them: what stands in them, how far they were given out, and taking jobs back from
//! workers that do not take them up. The same from whichever coordinator it is asked, whoever owns the runs.

use std::time::Duration;

use async_nats::Client;
use async_nats::jetstream::Context;
use async_nats::jetstream::consumer::{Info, PullConsumer};
use futures::future::join_all;
use proto::names;
use run::PoolId;
use serde_json::{Map, Value, json};

use super::Broker;
use crate::registry::Registry;

/// How long all queues may take to be looked at: an autoscaler asks again.
const STATS_PATIENCE: Duration = Duration::from_secs(3);

#[derive(Debug, Clone)]
pub(crate) struct Queues {
    client: Client,
    context: Context,
}

/// How far a queue was given out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Given {
    /// Every job that stands in the log up to here was given to some worker.
    pub(crate) through: u64,
    /// How many were given, with those that were given again.
    deliveries: u64,
}

impl Queues {
    pub(crate) fn new(broker: &Broker) -> Self {
        Self { client: broker.client.clone(), context: broker.context.clone() }
    }

    /// `None` when the broker does not say.
    pub(crate) async fn given(&self, pool: &PoolId) -> Option<Given> {
        let queue = self.queue(pool).await.inspect_err(|error| tracing::debug!(error, "cannot ask how far it came"));
        let delivered = queue.ok()?.delivered;
        Some(Given { through: delivered.stream_sequence, deliveries: delivered.consumer_sequence })
    }

    /// For each pool that is known: jobs that wait, jobs that a worker holds, both together, and what its workers have room
    /// for.
    pub(crate) async fn stats(&self, registry: &Registry) -> Result<Value, String> {
        let pools = registry.pools();
        let looks = join_all(pools.iter().map(|pool| self.queue(pool)));
        let queues = tokio::time::timeout(STATS_PATIENCE, looks).await;
        let mut stats = Map::new();
        for (pool, queue) in pools.iter().zip(queues.map_err(|_| "the broker does not answer".to_owned())?) {
            let (queue, living) = (queue?, registry.living(pool));
            let (waiting, running) = (queue.num_pending, u64::try_from(queue.num_ack_pending).unwrap_or(u64::MAX));
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

    async fn queue(&self, pool: &PoolId) -> Result<Info, String> {
        let found: Result<PullConsumer, _> =
            self.context.get_consumer_from_stream(names::pool_consumer(pool), names::STREAM).await;
        let queue = found.map_err(|error| format!("the queue of pool {pool}: {error}"))?;
        Ok(queue.cached_info().clone())
    }

    /// Puts a job that is out back into its queue; nothing happens to one that is not. Not confirmed: the job's lease runs
    /// out in any case.
    ///
    /// To whom it went is not known, and so not where its acknowledgement would go. The broker looks at the job's place in
    /// the log and checks of the rest only that there were so many deliveries (`processNak` of nats-server's consumer.go).
    pub(crate) async fn take_back(&self, pool: &PoolId, job: u64, given: Given) {
        let (stream, queue, deliveries) = (names::STREAM, names::pool_consumer(pool), given.deliveries);
        let subject = format!("$JS.ACK.{stream}.{queue}.1.{job}.{deliveries}.0.0");
        if let Err(error) = self.client.publish(subject, "-NAK".into()).await {
            tracing::warn!(%pool, %error, "a job was not taken back; it comes again when its lease runs out");
        }
    }
}
