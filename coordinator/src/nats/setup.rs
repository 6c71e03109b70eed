//! Makes sure that the broker holds what we need: the log, the buckets, and a consumer for each pool.

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, StorageType};
use async_nats::jetstream::{self, Context, kv};
use proto::names;
use run::{PoolId, limit};

/// How much longer than the longest run the log keeps events: none may age out under an open run.
const RETENTION_AFTER_END: Duration = Duration::from_secs(3600);
/// Longest message of the log.
const MESSAGE_BYTES_MAX: i32 = 1024 * 1024;
/// Consumers of the log: one a pool and one a coordinator's feed. The server would cap them at 1000 unasked.
const CONSUMERS_MAX: i32 = 1000;
/// Jobs of one pool that may be under way at once.
const JOBS_UNDER_WAY_MAX: i64 = 20_000;
/// Pull requests of one pool that may wait at once. Cannot be changed once the consumer exists.
const PULLS_WAITING_MAX: i64 = 8192;

#[derive(Debug, Clone)]
pub struct LogOptions {
    /// Copies of the log: 1, or 3 on a cluster.
    pub replicas: usize,
    /// Bytes that the log may take. A full log refuses new work and keeps what it accepted.
    pub bytes_max: i64,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self { replicas: 1, bytes_max: 1 << 30 }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    #[error("cannot set up {what} at the broker: {reason}. Is JetStream on, and is there room for it?")]
    Refused { what: String, reason: String },
    #[error(
        "the log has {found} replicas, {asked} were asked for: start with --replicas {found}, or change the stream"
    )]
    Differs { found: usize, asked: usize },
}

impl SetupError {
    pub(super) fn refused(what: impl Into<String>, reason: impl ToString) -> Self {
        Self::Refused { what: what.into(), reason: reason.to_string() }
    }
}

/// How long the log keeps an event.
pub(crate) const RETENTION: Duration =
    Duration::from_secs(limit::RUN_LIFE_MAX.as_secs() + RETENTION_AFTER_END.as_secs());

pub(crate) async fn ensure_log(context: &Context, options: &LogOptions) -> Result<(), SetupError> {
    let config = Config {
        name: names::STREAM.to_owned(),
        description: Some("Toolyard: the log, which is also the queue".to_owned()),
        subjects: vec![names::STREAM_SUBJECTS.to_owned()],
        retention: RetentionPolicy::Limits,
        discard: DiscardPolicy::New,
        max_age: RETENTION,
        max_bytes: options.bytes_max,
        max_message_size: MESSAGE_BYTES_MAX,
        max_consumers: CONSUMERS_MAX,
        storage: StorageType::File,
        num_replicas: options.replicas,
        allow_direct: true,
        ..Config::default()
    };
    let stream = context.get_or_create_stream(config).await.map_err(|error| SetupError::refused("the log", error))?;
    // What is there stays as it is: a coordinator with other flags must not change how safe everybody's log is.
    let found = &stream.cached_info().config;
    if found.num_replicas != options.replicas {
        return Err(SetupError::Differs { found: found.num_replicas, asked: options.replicas });
    }
    if found.max_bytes != options.bytes_max {
        tracing::warn!(
            found = found.max_bytes,
            asked = options.bytes_max,
            "the log keeps the size that it was made with"
        );
    }
    Ok(())
}

/// `max_age` zero: what is in it stays.
pub(crate) async fn ensure_bucket(
    context: &Context,
    bucket: &str,
    max_age: Duration,
    options: &LogOptions,
) -> Result<kv::Store, SetupError> {
    let config = kv::Config {
        bucket: bucket.to_owned(),
        history: 1,
        max_age,
        storage: StorageType::File,
        num_replicas: options.replicas,
        ..kv::Config::default()
    };
    if let Ok(store) = context.get_key_value(bucket).await {
        return Ok(store);
    }
    let store = context.create_key_value(config).await;
    store.map_err(|error| SetupError::refused(format!("bucket {bucket}"), error))
}

/// The queue of a pool: a durable consumer of the log that sees the pool's jobs and nothing else.
pub(crate) async fn ensure_pool(context: &Context, pool: &PoolId) -> Result<(), SetupError> {
    let name = names::pool_consumer(pool);
    let config = pull::Config {
        durable_name: Some(name.clone()),
        filter_subject: names::pool_jobs(pool),
        deliver_policy: DeliverPolicy::All,
        ack_policy: AckPolicy::Explicit,
        ack_wait: names::JOB_LEASE,
        // The fold counts attempts; a delivery count that ran out would only lose the job.
        max_deliver: -1,
        max_ack_pending: JOBS_UNDER_WAY_MAX,
        max_waiting: PULLS_WAITING_MAX,
        ..pull::Config::default()
    };
    let created: Result<jetstream::consumer::PullConsumer, _> =
        context.create_consumer_on_stream(config, names::STREAM).await;
    created.map_err(|error| SetupError::refused(format!("the queue {name}"), error))?;
    Ok(())
}
