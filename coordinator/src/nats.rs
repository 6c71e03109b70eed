//! The coordinator's use of the broker: the log, shard leases, advertisements, and messages between it and workers. The
//! only folder that names the broker's library.

pub(crate) mod clock;
pub(crate) mod doctor;
pub(crate) mod durability;
pub(crate) mod feed;
pub(crate) mod files;
pub(crate) mod journal;
mod leaders;
pub(crate) mod leases;
pub(crate) mod memory;
pub(crate) mod notifications;
pub(crate) mod operate;
pub(crate) mod overview;
pub(crate) mod partitions;
pub(crate) mod pauses;
pub(crate) mod positions;
pub(crate) mod queues;
pub(crate) mod records;
pub(crate) mod repeated;
pub(crate) mod requests;
pub(crate) mod retention;
pub(crate) mod scan;
pub(crate) mod schedules;
pub(crate) mod setup;
pub(crate) mod shared;
pub(crate) mod signals;
pub(crate) mod snapshots;
pub(crate) mod tools;
mod uploads;

use std::time::Duration;

use ::objects::{Bucket, Objects};
use async_nats::jetstream::context::ContextBuilder;
use async_nats::jetstream::{Context, kv};
use nats::Credentials;
use nats::access::Party;
use proto::names;
use run::{Partition, PoolId};
use tokio::sync::watch;

use self::setup::{LogOptions, SetupError};

/// The filter of a consumer of a whole partition: none. With a filter that is not the stream's only subject the broker
/// searches a tree of subjects for each message that the consumer has still to get (docs/design/ownership.md, Feeds).
const EVERYTHING: &str = "";

/// How long the broker may take to confirm an append before it is tried again. It answers within a millisecond or not
/// at all, because a confirmation is lost if the connection breaks.
const APPEND_TIMEOUT: Duration = Duration::from_secs(2);
/// The same for what a takeover asks. An overloaded broker answers late, and with the shorter time takeovers were seen
/// to fail for minutes.
const TAKEOVER_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection, with everything at the broker that a coordinator needs.
#[derive(Debug, Clone)]
pub(crate) struct Broker {
    client: async_nats::Client,
    context: Context,
    /// For requests whose answers are worth to wait for.
    patient: Context,
    tools: kv::Store,
    leases: kv::Store,
    requests: kv::Store,
    snapshots: kv::Store,
    pauses: kv::Store,
    schedules: kv::Store,
    records: records::Records,
    carried: kv::Store,
    /// How many partitions the log has, as far as it is known.
    partitions: watch::Sender<usize>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum BrokerError {
    #[error(transparent)]
    Connect(#[from] nats::ConnectError),
    #[error(transparent)]
    Setup(#[from] SetupError),
}

impl Broker {
    pub(crate) async fn connect(url: &str, credentials: &Credentials, log: &LogOptions) -> Result<Self, BrokerError> {
        // Boxed, because it is large.
        Box::pin(Self::connected(url, credentials, log)).await
    }

    async fn connected(url: &str, credentials: &Credentials, log: &LogOptions) -> Result<Self, BrokerError> {
        let name = format!("coordinator-{}", uuid::Uuid::now_v7().simple());
        let client = nats::connect(url, credentials, &name, &Party::Coordinator).await?;
        let context = ContextBuilder::new().timeout(APPEND_TIMEOUT).build(client.clone());
        let patient = ContextBuilder::new().timeout(TAKEOVER_TIMEOUT).build(client.clone());
        let partitions = watch::Sender::new(setup::ensure_log(&client, &context, log).await?);
        let leases = setup::ensure_bucket(&context, names::LEASES_BUCKET, Duration::ZERO, log).await?;
        let tools = setup::ensure_bucket(&context, names::TOOLS_BUCKET, Duration::ZERO, log).await?;
        let requests = setup::ensure_requests(&context, log).await?;
        let snapshots = setup::ensure_bucket(&patient, names::SNAPSHOTS_BUCKET, Duration::ZERO, log).await?;
        let pauses = setup::ensure_bucket(&context, names::PAUSES_BUCKET, Duration::ZERO, log).await?;
        let schedules = setup::ensure_bucket(&context, names::SCHEDULES_BUCKET, Duration::ZERO, log).await?;
        let records = setup::ensure_bucket(&context, names::RECORDS_BUCKET, Duration::ZERO, log).await?;
        let records = records::Records::new(&client, &context, records);
        let carried = setup::ensure_bucket(&context, names::CARRIED_BUCKET, Duration::ZERO, log).await?;
        Ok(Self {
            client,
            context,
            patient,
            tools,
            leases,
            requests,
            snapshots,
            pauses,
            schedules,
            records,
            carried,
            partitions,
        })
    }

    /// The object store: the bucket if one is given, otherwise the broker.
    pub(crate) async fn objects(&self, bucket: Option<Bucket>, log: &LogOptions) -> Result<Objects, SetupError> {
        if bucket.is_none() {
            setup::ensure_objects(&self.context, log).await?;
        }
        Ok(Objects::new(&self.context, bucket))
    }

    pub(crate) fn partitions(&self) -> usize {
        *self.partitions.borrow()
    }

    /// The streams of all partitions of the log.
    fn streams(&self) -> impl Iterator<Item = &'static str> + use<> {
        Partition::first(self.partitions()).map(names::stream)
    }

    /// Creates the queues of pools.
    pub(crate) async fn make_queues(&self, pools: &[PoolId]) -> Result<(), SetupError> {
        for pool in pools {
            setup::ensure_pool(self, pool).await?;
        }
        Ok(())
    }

    /// Waits until everything that was published is sent.
    pub(crate) async fn flush(&self) {
        if let Err(error) = self.client.flush().await {
            tracing::warn!(%error, "flushing the last messages to the broker failed");
        }
    }
}
