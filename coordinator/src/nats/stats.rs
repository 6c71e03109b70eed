//! What stands in the queues of pools, as the broker has it: the same from whichever coordinator it is asked, whoever owns
//! the runs.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::{Context, consumer::PullConsumer};
use futures::future::join_all;
use proto::names;
use run::PoolId;
use serde_json::{Map, Value, json};
use tokio::sync::watch;

use super::Broker;
use crate::registry::Registry;

/// How long all queues may take to be looked at: an autoscaler asks again.
const PATIENCE: Duration = Duration::from_secs(3);

#[derive(Debug, Clone)]
pub(crate) struct Stats {
    context: Context,
    registry: watch::Receiver<Arc<Registry>>,
}

impl Stats {
    pub(crate) fn new(broker: &Broker, registry: watch::Receiver<Arc<Registry>>) -> Self {
        Self { context: broker.context.clone(), registry }
    }

    /// For each pool that is known: jobs that wait, jobs that a worker holds, both together, and what its workers have room
    /// for.
    pub(crate) async fn tell(self) -> Result<Value, String> {
        let registry = Arc::clone(&self.registry.borrow());
        let pools = registry.pools();
        let looks = join_all(pools.iter().map(|pool| self.jobs(pool)));
        let jobs = tokio::time::timeout(PATIENCE, looks).await.map_err(|_| "the broker does not answer".to_owned())?;
        let mut stats = Map::new();
        for (pool, jobs) in pools.iter().zip(jobs) {
            let ((waiting, running), living) = (jobs?, registry.living(pool));
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

    /// Those that wait, and those that a worker holds.
    async fn jobs(&self, pool: &PoolId) -> Result<(u64, u64), String> {
        let consumer: Result<PullConsumer, _> =
            self.context.get_consumer_from_stream(names::pool_consumer(pool), names::STREAM).await;
        let consumer = consumer.map_err(|error| format!("the queue of pool {pool}: {error}"))?;
        let info = consumer.cached_info();
        Ok((info.num_pending, u64::try_from(info.num_ack_pending).unwrap_or(u64::MAX)))
    }
}
