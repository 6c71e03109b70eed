//! Creates the streams, buckets and consumers of Toolyard at the broker: the log, the buckets, and a consumer for each
//! pool.

mod pools;

use std::time::Duration;

use async_nats::Client;
use async_nats::jetstream::context::{CreateStreamError, CreateStreamErrorKind};
use async_nats::jetstream::stream::{Config, DiscardPolicy, Info, RetentionPolicy, StorageType};
use async_nats::jetstream::{Context, ErrorCode, kv};
use futures::StreamExt as _;
use owner::retention::Tail;
use proto::{names, object, subject};
use run::{Partition, limit};
use tokio::time::Instant;

pub(crate) use self::pools::{ensure_pool, ensure_queues, remove_pool};

use super::durability::{self, Durability, Synced};
use super::journal::ReadError;
use super::{memory, notifications};

/// How much longer than a call is executed the log keeps events, so that no job ages out meanwhile.
const RETENTION_AFTER_END: Duration = Duration::from_secs(3600);
/// Longest message of the log.
const MESSAGE_BYTES_MAX: i32 = 1024 * 1024;
/// Consumers of the log: one per pool and one per coordinator's feed. By default the server caps them at 1000, too.
const CONSUMERS_MAX: i32 = 1000;
/// Jobs of one pool that may be delivered and unacknowledged, including those that wait for a delayed retry. At the
/// limit the queue delivers nothing new. Pull requests bound what workers hold, so only waiting retries come near it.
/// Each costs the broker some 150 bytes of memory, and a few bytes whenever it stores the position of the queue.
pub(super) const JOBS_UNDER_WAY_MAX: i64 = 1_000_000;
/// Bytes of the buckets of leases and of pauses: a few keys each, overwritten again and again.
const SMALL_BUCKET_BYTES: i64 = 2 << 20;
/// Bytes of the bucket of tool sets: hundreds of pools that host some dozen tools.
const TOOLS_BUCKET_BYTES: i64 = 16 << 20;
/// The log's bound of messages, if none is given, is this part of its bytes: 2,097,152 messages for 1 GiB. A small call
/// takes two messages of 250 bytes, so the memory for subjects bounds such calls before the bytes do; a call of 1 KiB
/// or more is bounded by its bytes.
pub(super) const LOG_BYTES_PER_MESSAGE: i64 = 512;
/// The log's bytes divided by this are the size of the bucket of request ids: one for each 2 KiB.
const LOG_BYTES_PER_REQUEST_BYTE: i64 = 8;
/// Bytes of a request id in its bucket (measured: 243, and 16 more if it expires earlier than the others).
pub(super) const REQUEST_ID_BYTES: i64 = 240;
/// The log's bytes divided by this are the size of the bucket of snapshots. A run that is to be erased takes 70 bytes
/// there with a request id and 35 without, and twice that while a new snapshot is written: room for as many as request
/// ids or the log have. All together fits a broker of 3 GiB beside a log of 1 GiB.
const LOG_BYTES_PER_SNAPSHOT_BYTE: i64 = 10;
/// The log's bytes divided by this are the size of the bucket of schedules: 2 MiB beside a log of 1 GiB, which is room
/// for some 350 small schedules with their last firings.
const LOG_BYTES_PER_SCHEDULE_BYTE: i64 = 512;
/// The log's bytes divided by this are the size of the bucket of records: 2 MiB beside a log of 1 GiB, which is what a
/// broker of 2 GiB had room for when it was new.
const LOG_BYTES_PER_RECORD_BYTE: i64 = 512;
/// The log's bytes divided by this are the size of the bucket of carried runs: 64 MiB beside a log of 1 GiB, which is
/// room for some 100,000 small runs that wait.
const LOG_BYTES_PER_CARRIED_BYTE: i64 = 16;
/// Bytes of a small carried run in its bucket (calculated from the broker's format of a message).
pub(super) const CARRIED_RUN_BYTES: i64 = 450;
/// Minimum size of a bucket, however small the log is.
const BUCKET_BYTES_MIN: i64 = 2 << 20;
/// How long creating them is retried: a cluster that starts at the same time elects its leaders first, in 4-9 s.
const SETUP_PATIENCE: Duration = Duration::from_secs(30);
const SETUP_PAUSE: Duration = Duration::from_secs(1);
/// How often the names of the streams are asked for at a start. An `accounts.conf` of an older release permits nobody
/// to ask: then there is one partition.
const NAMES_ASKED: usize = 3;
/// How long reading a bucket may take.
const ENTRIES_PATIENCE: Duration = Duration::from_secs(10);
/// Errors of a cluster that is not ready yet, or in which another coordinator was faster with other options: the next
/// attempt decides.
const NOT_YET: [ErrorCode; 8] = [
    ErrorCode::CLUSTER_INCOMPLETE,
    ErrorCode::CLUSTER_NO_PEERS,
    ErrorCode::CLUSTER_NOT_ACTIVE,
    ErrorCode::CLUSTER_NOT_ASSIGNED,
    ErrorCode::CLUSTER_NOT_AVAILABLE,
    ErrorCode::CLUSTER_NOT_LEADER,
    ErrorCode::STREAM_OFFLINE,
    ErrorCode::STREAM_NAME_EXIST,
];

#[derive(Debug, Clone)]
pub struct LogOptions {
    pub durability: Durability,
    /// The most bytes of the log. A full log rejects new work and keeps what it accepted.
    pub bytes_max: i64,
    /// Messages that the log may hold: each subject costs the broker memory, and a call has two. `None`: derived from
    /// `bytes_max`.
    pub messages_max: Option<i64>,
    /// How much of runs that have ended the log keeps.
    pub tail: Tail,
    /// The most bytes of objects, beside the log. When they are used up, calls whose results are too large for the log
    /// fail.
    pub objects_bytes_max: i64,
    /// Bytes of memory that a server of the broker may use. It changes nothing at the broker: metrics and alerts
    /// compare the need with it.
    pub broker_memory: Option<u64>,
    /// How long the request id of a client is kept after its request; `None`: as long as the bucket keeps its keys,
    /// which is 25 h if the operator has not changed it. All ids of calls that make runs, of schedules and of redriven
    /// calls are kept for that long.
    pub request_ids_for: Option<Duration>,
}

impl LogOptions {
    /// The bound of messages, which is derived from the bytes if it is not given.
    #[must_use]
    pub fn messages_max(&self) -> i64 {
        self.messages_max.unwrap_or_else(|| messages_max(self.bytes_max))
    }
}

/// The bound of messages for a log of so many bytes.
pub(super) fn messages_max(log_bytes: i64) -> i64 {
    (log_bytes / LOG_BYTES_PER_MESSAGE).max(1)
}

impl Default for LogOptions {
    fn default() -> Self {
        Self {
            durability: Durability::default(),
            bytes_max: 1 << 30,
            messages_max: None,
            tail: Tail::default(),
            objects_bytes_max: 1 << 29,
            broker_memory: None,
            request_ids_for: None,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    #[error(
        "cannot set up {what} at the broker: {reason}. Is JetStream on, and is there room for it? The log, objects, \
        webhooks and buckets need {} MiB with the default sizes (`--store-bytes` of `toolyard nats-config`)",
        store_bytes(&LogOptions::default()) >> 20
    )]
    Refused { what: String, reason: String },
    #[error(
        "{what} at the broker has not answered for {} s: {reason}. Has it a leader? No coordinator can start without \
        it, and those that run go on. `toolyard doctor` says which servers are away", SETUP_PATIENCE.as_secs()
    )]
    NotReady { what: String, reason: String },
    #[error("JetStream is off at the single broker {server}: start nats-server with -js")]
    NoJetStream { server: String },
    #[error(
        "stream {stream} has {found} at the broker, --durability {asked} needs {}: {}change it with `toolyard log \
        durability {asked}`, as the operator",
        replicas(asked.replicas()), instead(*found), found = replicas(*found)
    )]
    Differs { stream: String, found: usize, asked: Durability },
    #[error(
        "--durability strict needs sync_interval: always in the jetstream block of every server, and {} without it: \
         set it there, or start with --durability standard",
        has(servers)
    )]
    NotSynced { servers: Vec<String> },
    #[error(
        "an earlier release created the bucket {}, which keeps all request ids equally long: run `toolyard log \
        retention {}h` once, as the operator, or start without --request-ids-for",
        names::REQUESTS_BUCKET,
        .kept.as_secs().div_ceil(3600)
    )]
    KeepsRequestIds { kept: Duration },
}

/// All buckets.
pub(super) const BUCKETS: [&str; 8] = [
    names::LEASES_BUCKET,
    names::TOOLS_BUCKET,
    names::REQUESTS_BUCKET,
    names::SNAPSHOTS_BUCKET,
    names::PAUSES_BUCKET,
    names::SCHEDULES_BUCKET,
    names::RECORDS_BUCKET,
    names::CARRIED_BUCKET,
];
/// Those whose size is a part of the log's.
pub(super) const SIZED_BY_LOG: [&str; 5] = [
    names::CARRIED_BUCKET,
    names::RECORDS_BUCKET,
    names::REQUESTS_BUCKET,
    names::SCHEDULES_BUCKET,
    names::SNAPSHOTS_BUCKET,
];
/// Those some of whose messages expire before the bucket's age.
const WITH_EXPIRY: [&str; 3] = [names::SCHEDULES_BUCKET, names::CARRIED_BUCKET, names::REQUESTS_BUCKET];

/// Bytes that the broker must reserve: the log, objects, the queue of notifications and all buckets.
fn store_bytes(options: &LogOptions) -> i64 {
    let buckets: i64 = BUCKETS.iter().map(|bucket| bucket_bytes(bucket, options.bytes_max)).sum();
    options.bytes_max + options.objects_bytes_max + notifications::BYTES_MAX + buckets
}

fn replicas(count: usize) -> String {
    format!("{count} replica{}", if count == 1 { "" } else { "s" })
}

fn has(servers: &[String]) -> String {
    format!("{} {}", servers.join(", "), if servers.len() == 1 { "is" } else { "are" })
}

fn instead(found: usize) -> &'static str {
    match found {
        1 => "start with --durability dev, or ",
        3 => "start with --durability standard or strict, or ",
        _ => "",
    }
}

impl SetupError {
    pub(super) fn refused(what: impl Into<String>, reason: impl ToString) -> Self {
        Self::Refused { what: what.into(), reason: reason.to_string() }
    }
}

/// How long the log keeps an event.
pub(crate) const RETENTION: Duration =
    Duration::from_secs(limit::EXECUTION_MAX.as_secs() + RETENTION_AFTER_END.as_secs());

/// An error of the broker, and whether a retry may succeed soon.
pub(super) struct BrokerError {
    reason: String,
    not_yet: bool,
}

impl BrokerError {
    fn of(error: &CreateStreamError) -> Self {
        let not_yet = match error.kind() {
            CreateStreamErrorKind::JetStream(error) => NOT_YET.contains(&error.error_code()),
            CreateStreamErrorKind::TimedOut
            | CreateStreamErrorKind::JetStreamUnavailable
            | CreateStreamErrorKind::NotFound
            | CreateStreamErrorKind::Response
            | CreateStreamErrorKind::ResponseParse => true,
            _ => false,
        };
        Self { reason: error.to_string(), not_yet }
    }

    /// Of a request that is answered as soon as there is a leader.
    pub(super) fn not_yet(reason: impl std::fmt::Display) -> Self {
        Self { reason: reason.to_string(), not_yet: true }
    }
}

/// For how long a broker that is not ready is retried.
pub(super) struct Patience {
    what: &'static str,
    give_up: Instant,
}

impl Patience {
    pub(super) fn new(what: &'static str) -> Self {
        Self { what, give_up: Instant::now() + SETUP_PATIENCE }
    }

    /// Waits a moment after an error.
    ///
    /// # Errors
    /// The error, if it is permanent or has lasted too long.
    pub(super) async fn after(&self, BrokerError { reason, not_yet }: BrokerError) -> Result<(), SetupError> {
        if !not_yet {
            return Err(SetupError::refused(self.what, reason));
        }
        if Instant::now() >= self.give_up {
            return Err(SetupError::NotReady { what: self.what.to_owned(), reason });
        }
        tracing::warn!(what = self.what, reason, "the broker is not ready yet, retrying");
        tokio::time::sleep(SETUP_PAUSE).await;
        Ok(())
    }
}

/// The entries of a bucket, for a coordinator that starts.
pub(super) async fn entries(what: &'static str, store: &kv::Store) -> Result<Vec<kv::Entry>, SetupError> {
    let patience = Patience::new(what);
    loop {
        match entries_once(store).await {
            Ok(entries) => return Ok(entries),
            Err(refusal) => patience.after(refusal).await?,
        }
    }
}

async fn entries_once(store: &kv::Store) -> Result<Vec<kv::Entry>, BrokerError> {
    // A consumer whose leader is lost delivers nothing more, and no error.
    let read = tokio::time::timeout(ENTRIES_PATIENCE, all_entries(store)).await;
    read.unwrap_or_else(|_| Err(BrokerError::not_yet("the broker stopped in the middle of a list")))
}

async fn all_entries(store: &kv::Store) -> Result<Vec<kv::Entry>, BrokerError> {
    let mut entries = Vec::new();
    let mut keys = store.keys().await.map_err(BrokerError::not_yet)?;
    while let Some(key) = keys.next().await {
        entries.extend(store.entry(key.map_err(BrokerError::not_yet)?).await.map_err(BrokerError::not_yet)?);
    }
    Ok(entries)
}

/// Creates it, with retries for a while if the broker is not ready.
async fn patiently<T>(what: &'static str, make: impl AsyncFn() -> Result<T, BrokerError>) -> Result<T, SetupError> {
    let patience = Patience::new(what);
    loop {
        match make().await {
            Ok(made) => return Ok(made),
            Err(refusal) => patience.after(refusal).await?,
        }
    }
}

/// An existing stream is not changed, because a coordinator with other flags must not change everyone's durability.
fn check_replicas(found: &Config, asked: Durability) -> Result<(), SetupError> {
    if found.num_replicas == asked.replicas() {
        return Ok(());
    }
    Err(SetupError::Differs { stream: found.name.clone(), found: found.num_replicas, asked })
}

/// The stream of a partition, which has only the subjects of its shards.
fn partition_config(partition: Partition, options: &LogOptions) -> Config {
    Config {
        name: names::stream(partition).to_owned(),
        description: Some(format!("Toolyard: partition {partition} of the log")),
        subjects: partition_subjects(partition),
        ..log_config(options)
    }
}

/// What the stream of a partition stores if there are others.
pub(super) fn partition_subjects(partition: Partition) -> Vec<String> {
    partition.shards().map(subject::of_shard).collect()
}

/// The log as it is without further partitions.
pub(crate) fn log_config(options: &LogOptions) -> Config {
    Config {
        name: names::STREAM.to_owned(),
        description: Some("Toolyard: the log, which is also the queue".to_owned()),
        subjects: vec![names::STREAM_SUBJECTS.to_owned()],
        retention: RetentionPolicy::Limits,
        discard: DiscardPolicy::New,
        max_age: RETENTION,
        max_bytes: options.bytes_max,
        max_messages: options.messages_max(),
        max_message_size: MESSAGE_BYTES_MAX,
        max_consumers: CONSUMERS_MAX,
        storage: StorageType::File,
        num_replicas: options.durability.replicas(),
        allow_direct: true,
        ..Config::default()
    }
}

/// Creates the log if there is none. Returns how many partitions it has.
pub(crate) async fn ensure_log(client: &Client, context: &Context, options: &LogOptions) -> Result<usize, SetupError> {
    let server = client.server_info();
    if !server.jetstream && server.cluster.is_none() {
        return Err(SetupError::NoJetStream { server: server.server_name });
    }
    let mut count = 1;
    for _ in 0..NAMES_ASKED {
        match partitions(context).await {
            Ok(found) => {
                count = found.max(1);
                break;
            }
            Err(error) => tracing::debug!(%error, "the broker does not name its streams"),
        }
    }
    // Its subjects would overlap those of other partitions.
    let config = if count > 1 { partition_config(Partition::FIRST, options) } else { log_config(options) };
    let make = async || context.get_or_create_stream(config.clone()).await.map_err(|error| BrokerError::of(&error));
    let stream = patiently("stream ty-log, the first partition of the log,", make).await?;
    let first = stream.cached_info();
    check_log(client, first, options).await?;
    let mut configs = vec![first.config.clone()];
    for partition in Partition::first(count).skip(1) {
        match context.get_stream(names::stream(partition)).await {
            Ok(stream) => {
                let info = stream.cached_info();
                check_log(client, info, options).await?;
                configs.push(info.config.clone());
            }
            // Its runs stand still, and those of the others do not.
            Err(error) => tracing::warn!(%partition, %error, "a partition of the log does not answer"),
        }
    }
    memory::warn_of(&configs.iter().collect::<Vec<_>>(), options.broker_memory);
    Ok(count)
}

async fn check_log(client: &Client, log: &Info, options: &LogOptions) -> Result<(), SetupError> {
    check_replicas(&log.config, options.durability)?;
    warn_of_size(&log.config, options);
    match options.durability {
        Durability::Dev | Durability::Standard => Ok(()),
        Durability::Strict => check_synced(client, log).await,
    }
}

/// How many partitions the log has at the broker: up to the last one that exists; 0 if there is no log.
///
/// # Errors
/// The broker does not answer, or an `accounts.conf` of an older release does not let coordinators ask.
pub(crate) async fn partitions(context: &Context) -> Result<usize, ReadError> {
    let (mut names, mut count) = (context.stream_names(), 0);
    while let Some(name) = names.next().await {
        let name = name.map_err(|error| ReadError::new(&error))?;
        let place = names::STREAMS.iter().position(|stream| *stream == name);
        count = count.max(place.map_or(0, |place| place + 1));
    }
    Ok(count)
}

/// The log keeps its size: only the operator changes it.
fn warn_of_size(found: &Config, options: &LogOptions) {
    let (bytes, messages) = (options.bytes_max, options.messages_max());
    if found.max_bytes != bytes {
        tracing::warn!(found = found.max_bytes, asked = bytes, "the log keeps the size with which it was created");
    }
    if found.max_messages <= 0 {
        tracing::warn!(
            "the log has no bound of messages, because an older release created it, so the broker may run out of \
            memory before the log is full: `toolyard log resize --messages {messages}`, as the operator"
        );
    } else if found.max_messages != messages {
        let found = found.max_messages;
        tracing::warn!(found, asked = messages, "the log keeps the bound of messages with which it was created");
    }
}

/// Objects expire with the log entries that refer to them. A stored object is never overwritten, so a reference always
/// reads the same bytes.
fn objects_config(options: &LogOptions) -> Config {
    Config {
        name: names::OBJECTS.to_owned(),
        description: Some("Toolyard: what is too large for the log".to_owned()),
        subjects: vec![object::SUBJECTS.to_owned()],
        retention: RetentionPolicy::Limits,
        discard: DiscardPolicy::New,
        discard_new_per_subject: true,
        max_messages_per_subject: 1,
        max_age: RETENTION,
        max_bytes: options.objects_bytes_max,
        max_message_size: MESSAGE_BYTES_MAX,
        storage: StorageType::File,
        num_replicas: options.durability.replicas(),
        allow_direct: true,
        deny_delete: true,
        ..Config::default()
    }
}

pub(crate) async fn ensure_objects(context: &Context, options: &LogOptions) -> Result<(), SetupError> {
    let make =
        async || context.get_or_create_stream(objects_config(options)).await.map_err(|error| BrokerError::of(&error));
    let stream = patiently("the object store", make).await?;
    check_replicas(&stream.cached_info().config, options.durability)
}

async fn check_synced(client: &Client, log: &Info) -> Result<(), SetupError> {
    match durability::synced(client, log).await {
        Synced::Always => {
            tracing::info!("every server that holds the log has sync_interval: always");
            Ok(())
        }
        Synced::Later(servers) => Err(SetupError::NotSynced { servers }),
        Synced::NotSaid(servers) => {
            let servers = servers.join(", ");
            tracing::warn!(servers, "strict cannot be verified from here: set sync_interval: always in every node");
            Ok(())
        }
    }
}

/// Creates a stream if there is none.
pub(super) async fn ensure_stream(
    context: &Context,
    what: &'static str,
    config: Config,
    options: &LogOptions,
) -> Result<(), SetupError> {
    let make = async || context.get_or_create_stream(config.clone()).await.map_err(|error| BrokerError::of(&error));
    let stream = patiently(what, make).await?;
    check_replicas(&stream.cached_info().config, options.durability)
}

/// A bucket as the library would create it, but without roll-ups, which we do not use: with one, a client with write
/// access to a single key could empty the whole bucket.
fn bucket_config(bucket: &str, max_age: Duration, options: &LogOptions) -> Config {
    Config {
        name: format!("KV_{bucket}"),
        subjects: vec![format!("$KV.{bucket}.>")],
        max_messages_per_subject: 1,
        max_age,
        max_bytes: bucket_bytes(bucket, options.bytes_max),
        storage: StorageType::File,
        num_replicas: options.durability.replicas(),
        discard: DiscardPolicy::New,
        allow_direct: true,
        deny_delete: true,
        // Markers of deleted schedules expire, because there may be any number of them, carried runs some time after
        // their end, and request ids of clients after --request-ids-for.
        allow_message_ttl: WITH_EXPIRY.contains(&bucket),
        ..Config::default()
    }
}

/// The size of a bucket beside a log of this size.
pub(super) fn bucket_bytes(bucket: &str, log_bytes: i64) -> i64 {
    match bucket {
        names::LEASES_BUCKET | names::PAUSES_BUCKET => SMALL_BUCKET_BYTES,
        names::TOOLS_BUCKET => TOOLS_BUCKET_BYTES,
        names::REQUESTS_BUCKET => (log_bytes / LOG_BYTES_PER_REQUEST_BYTE).max(BUCKET_BYTES_MIN),
        names::SCHEDULES_BUCKET => (log_bytes / LOG_BYTES_PER_SCHEDULE_BYTE).max(BUCKET_BYTES_MIN),
        names::RECORDS_BUCKET => (log_bytes / LOG_BYTES_PER_RECORD_BYTE).max(BUCKET_BYTES_MIN),
        names::CARRIED_BUCKET => (log_bytes / LOG_BYTES_PER_CARRIED_BYTE).max(BUCKET_BYTES_MIN),
        _ => (log_bytes / LOG_BYTES_PER_SNAPSHOT_BYTE).max(BUCKET_BYTES_MIN),
    }
}

/// The bucket of request ids.
pub(crate) async fn ensure_requests(context: &Context, options: &LogOptions) -> Result<kv::Store, SetupError> {
    let store = ensure_bucket(context, names::REQUESTS_BUCKET, RETENTION, options).await?;
    let found = &store.stream.cached_info().config;
    if options.request_ids_for.is_some() && !found.allow_message_ttl {
        return Err(SetupError::KeepsRequestIds { kept: found.max_age });
    }
    Ok(store)
}

/// `max_age` zero: its content does not expire.
pub(crate) async fn ensure_bucket(
    context: &Context,
    bucket: &'static str,
    max_age: Duration,
    options: &LogOptions,
) -> Result<kv::Store, SetupError> {
    let config = bucket_config(bucket, max_age, options);
    let make = async || {
        if let Ok(store) = context.get_key_value(bucket).await {
            return Ok(store);
        }
        context.create_stream(config.clone()).await.map_err(|error| BrokerError::of(&error))?;
        context.get_key_value(bucket).await.map_err(BrokerError::not_yet)
    };
    let store = patiently(bucket, make).await?;
    let found = &store.stream.cached_info().config;
    check_replicas(found, options.durability)?;
    if found.max_bytes <= 0 {
        tracing::warn!(
            bucket,
            "an older coordinator created this bucket without a limit of bytes: `nats stream edit KV_{bucket} \
            --max-bytes {}`",
            config.max_bytes
        );
    }
    Ok(store)
}

#[cfg(test)]
mod tests;
