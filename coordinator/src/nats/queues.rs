//! How far the queues of pools were given out, and taking jobs back from workers that do not take them up.

use async_nats::Client;
use async_nats::jetstream::Context;
use async_nats::jetstream::consumer::PullConsumer;
use proto::names;
use run::PoolId;

use super::Broker;

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
        let found: Result<PullConsumer, _> =
            self.context.get_consumer_from_stream(names::pool_consumer(pool), names::STREAM).await;
        let queue =
            found.inspect_err(|error| tracing::debug!(%pool, %error, "cannot ask how far a queue came")).ok()?;
        let delivered = &queue.cached_info().delivered;
        Some(Given { through: delivered.stream_sequence, deliveries: delivered.consumer_sequence })
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
