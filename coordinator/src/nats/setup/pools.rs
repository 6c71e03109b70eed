//! The queues of pools: a durable consumer in each partition of the log.

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use async_nats::jetstream::stream::{ConsumerError, ConsumerErrorKind};
use async_nats::jetstream::{self, Context, ErrorCode};
use proto::names;
use run::PoolId;

use super::super::Broker;
use super::{JOBS_UNDER_WAY_MAX, SetupError};

/// Pull requests of one pool that may wait concurrently. Cannot be changed once the consumer exists.
const PULLS_WAITING_MAX: i64 = 8192;

pub(super) fn pool_config(pool: &PoolId) -> pull::Config {
    pull::Config {
        durable_name: Some(names::pool_consumer(pool)),
        filter_subject: names::pool_jobs(pool),
        deliver_policy: DeliverPolicy::All,
        ack_policy: AckPolicy::Explicit,
        ack_wait: names::JOB_LEASE,
        // The fold counts attempts; a limit of deliveries would only lose the job.
        max_deliver: -1,
        max_ack_pending: JOBS_UNDER_WAY_MAX,
        max_waiting: PULLS_WAITING_MAX,
        ..pull::Config::default()
    }
}

/// The queue of a pool: a durable consumer of the log that sees only the pool's jobs. A queue that an older release
/// created gets the limits of this one.
pub(crate) async fn ensure_pool(broker: &Broker, pool: &PoolId) -> Result<(), SetupError> {
    let streams: Vec<_> = broker.streams().collect();
    ensure_queues(broker, &streams, pool, false).await.into_iter().try_for_each(|(_, made)| made)
}

/// Creates the queues of a pool in these streams, each whatever becomes of the others. `existed`: changes nothing
/// unless one was lost. A queue that is created again delivers everything that the log still holds, and workers learn
/// of each job that it was done.
pub(crate) async fn ensure_queues(
    broker: &Broker,
    streams: &[&'static str],
    pool: &PoolId,
    existed: bool,
) -> Vec<(&'static str, Result<(), SetupError>)> {
    let ensure = |stream: &'static str| async move {
        let made = if existed {
            keep_queue(&broker.context, stream, pool).await
        } else {
            make_queue(&broker.context, stream, pool).await
        };
        (stream, made)
    };
    futures::future::join_all(streams.iter().map(|stream| ensure(stream))).await
}

async fn make_queue(context: &Context, stream: &str, pool: &PoolId) -> Result<(), SetupError> {
    let (name, config) = (names::pool_consumer(pool), pool_config(pool));
    let created: Result<jetstream::consumer::PullConsumer, _> = context.create_consumer_on_stream(config, stream).await;
    created.map_err(|error| SetupError::refused(format!("the queue {name}"), error))?;
    Ok(())
}

async fn keep_queue(context: &Context, stream: &str, pool: &PoolId) -> Result<(), SetupError> {
    let name = names::pool_consumer(pool);
    let found: Result<jetstream::consumer::PullConsumer, _> = context.get_consumer_from_stream(&name, stream).await;
    match found {
        Ok(_) => Ok(()),
        Err(error) if is_no_consumer(&error) => {
            tracing::error!(%pool, stream, "the queue of a pool was lost, creating it again");
            make_queue(context, stream, pool).await
        }
        Err(error) => Err(SetupError::refused(format!("the queue {name}"), error)),
    }
}

fn is_no_consumer(error: &ConsumerError) -> bool {
    matches!(error.kind(), ConsumerErrorKind::JetStream(error) if error.error_code() == ErrorCode::CONSUMER_NOT_FOUND)
}

/// Removes the queues of a pool that are empty and not paused. Returns whether the pool has none. `all_are_gone`:
/// delivered jobs have left the log since, which the broker notices only when it delivers them again.
pub(crate) async fn remove_pool(broker: &Broker, pool: &PoolId, all_are_gone: bool) -> Result<bool, String> {
    let mut has_none = true;
    for stream in broker.streams() {
        has_none &= remove_queue(&broker.context, stream, pool, all_are_gone).await?;
    }
    Ok(has_none)
}

async fn remove_queue(context: &Context, stream: &str, pool: &PoolId, all_are_gone: bool) -> Result<bool, String> {
    let name = names::pool_consumer(pool);
    let found: Result<jetstream::consumer::PullConsumer, _> = context.get_consumer_from_stream(&name, stream).await;
    let info = match &found {
        Ok(queue) => queue.cached_info(),
        Err(error) if is_no_consumer(error) => return Ok(true),
        Err(error) => return Err(error.to_string()),
    };
    let given_out = info.num_ack_pending > 0 && !all_are_gone;
    if info.num_pending > 0 || given_out || info.paused {
        return Ok(false);
    }
    context.delete_consumer_from_stream(name, stream).await.map_err(|error| error.to_string())?;
    Ok(true)
}
