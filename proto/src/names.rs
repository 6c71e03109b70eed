//! Names that every process uses: at the broker the stream, its consumers, buckets and core subjects; over HTTP the
//! path of an object.

use std::time::Duration;

use run::{Partition, PoolId, RunId, Shard, ToolSetId};

/// Prefix of every subject of Toolyard.
pub const NAMESPACE: &str = "ty";
/// The log; with several partitions, the first one.
pub const STREAM: &str = STREAMS[0];
/// The streams of all partitions that the log may have.
pub const STREAMS: [&str; Partition::MAX] = [
    "ty-log",
    "ty-log-1",
    "ty-log-2",
    "ty-log-3",
    "ty-log-4",
    "ty-log-5",
    "ty-log-6",
    "ty-log-7",
    "ty-log-8",
    "ty-log-9",
    "ty-log-10",
    "ty-log-11",
    "ty-log-12",
    "ty-log-13",
    "ty-log-14",
    "ty-log-15",
];
/// Every entry of the log, in each of its partitions.
pub const STREAM_SUBJECTS: &str = "ty.run.>";
/// Content that is too large for the log.
pub const OBJECTS: &str = "ty-objects";
/// Tool manifests, by pool and set.
pub const TOOLS_BUCKET: &str = "ty-tools";
/// The owner of each shard.
pub const LEASES_BUCKET: &str = "ty-leases";
/// The snapshot of each shard.
pub const SNAPSHOTS_BUCKET: &str = "ty-snapshots";
/// The run of each request id.
pub const REQUESTS_BUCKET: &str = "ty-requests";
/// Pauses, with their authors.
pub const PAUSES_BUCKET: &str = "ty-pauses";
/// Schedules, with their firings.
pub const SCHEDULES_BUCKET: &str = "ty-schedules";
/// Records of tools, by pool, tenant and key.
pub const RECORDS_BUCKET: &str = "ty-records";
/// Entries of runs that stay open for long, which may leave the log then.
pub const CARRIED_BUCKET: &str = "ty-carried";
/// The queue of webhooks.
pub const WEBHOOKS_STREAM: &str = "ty-webhooks";
/// Every notification in the queue.
pub const WEBHOOKS_SUBJECTS: &str = "ty.notice.>";
/// Metadata of the calls of a scheduled run: the schedule.
pub const SCHEDULE_ID: &str = "toolyard.schedule_id";
/// Metadata of the calls of a scheduled run: the time that fired, as RFC 3339.
pub const FIRE_TIME: &str = "toolyard.fire_time";
/// Key in a call's metadata for the name that the client used, if that is an alias of another tool.
pub const CALLED_AS: &str = "toolyard.called_as";
/// Key in the metadata of calls that another call made: the run of that call.
pub const PARENT_RUN: &str = "toolyard.parent_run";
/// The channel of a call's output with unfinished images: announcements as JSON, and pieces of their bytes. The result
/// replaces them, so output that is gathered for a model leaves them out.
pub const PARTIAL_IMAGE: &str = "partial_image";
/// The channel of a call's output with what an agent says while it works. Its last message is the result, so output
/// that is gathered for a model leaves it out.
pub const AGENT_TEXT: &str = "agent";

/// The path of an object at any coordinator's HTTP port.
#[must_use]
pub fn object_path(object_id: impl std::fmt::Display) -> String {
    format!("/v1/objects/{object_id}")
}

/// The stream of a partition.
#[must_use]
pub fn stream(partition: Partition) -> &'static str {
    STREAMS[partition.as_usize()]
}

pub use owner::{JOB_LEASE, WORKER_LOST};
/// How often a worker extends its leases. A broker's election (4-9 s) must not look like a dead worker.
pub const JOB_LEASE_EXTENSION: Duration = Duration::from_secs(10);
/// How often a worker sends a heartbeat.
pub const WORKER_HEARTBEAT: Duration = Duration::from_secs(2);

/// How often the workers of all pools receive the list of paused tools, and for how long the list holds without another
/// message. A coordinator may die between resuming a tool and reporting it.
pub const HELD_TOLD: Duration = Duration::from_secs(1);
pub const HELD_FOR: Duration = Duration::from_secs(30);

/// How often workers are informed while the broker stores nothing, and for how long that holds without another message.
pub const UNSTORED_TOLD: Duration = Duration::from_secs(1);
pub const UNSTORED_FOR: Duration = Duration::from_secs(3);

/// The durable consumer from which a pool's workers pull.
#[must_use]
pub fn pool_consumer(pool: &PoolId) -> String {
    format!("{POOL_CONSUMERS}{pool}")
}

/// The pool whose workers pull from a consumer of this name.
#[must_use]
pub fn pool_of_consumer(name: &str) -> Option<PoolId> {
    name.strip_prefix(POOL_CONSUMERS)?.parse().ok()
}

const POOL_CONSUMERS: &str = "pool-";

/// The template of a job's subject, because names in traces contain no ids.
pub const JOB_TEMPLATE: &str = "ty.run.{shard}.{run}.{call}.job.{pool}";

/// The jobs of a pool in all runs.
#[must_use]
pub fn pool_jobs(pool: &PoolId) -> String {
    format!("{NAMESPACE}.run.*.*.*.job.{pool}")
}

/// The key of a pool's advertisement of a set of tools.
#[must_use]
pub fn advertisement(pool: &PoolId, set: &ToolSetId) -> String {
    format!("{pool}.{set}")
}

/// Keys of all advertisements.
pub const ADVERTISEMENTS: &str = "*.*";

/// The pool and the set of an advertisement's key.
#[must_use]
pub fn advertisement_of(key: &str) -> Option<(PoolId, ToolSetId)> {
    let (pool, set) = key.split_once('.')?;
    Some((pool.parse().ok()?, set.parse().ok()?))
}

/// The subject of the heartbeats of a pool's workers.
#[must_use]
pub fn heartbeat(pool: &PoolId) -> String {
    format!("{NAMESPACE}.alive.{pool}")
}

/// Heartbeats of all pools.
pub const HEARTBEATS: &str = "ty.alive.*";

/// The subject on which coordinators tell each other their shares of the overview.
pub const OVERVIEW: &str = "ty.overview";
/// The interval of these messages.
pub const OVERVIEW_SHARED: Duration = Duration::from_secs(2);
/// How long a coordinator's share counts after its last message.
pub const OVERVIEW_LOST: Duration = Duration::from_secs(10);

/// The pool of a heartbeat's subject.
#[must_use]
pub fn heartbeat_pool(subject: &str) -> Option<PoolId> {
    subject.strip_prefix("ty.alive.").and_then(|pool| pool.parse().ok())
}

/// The subject on which a pool's workers receive messages about attempts to stop.
#[must_use]
pub fn stop(pool: &PoolId) -> String {
    format!("{NAMESPACE}.stop.{pool}")
}

/// The subject on which a pool's workers ask the owner of a run's shard whether to execute a job that may not be fresh.
#[must_use]
pub fn question(pool: &PoolId, shard: Shard) -> String {
    format!("{NAMESPACE}.ask.{pool}.{shard}")
}

/// The subject on which a pool's workers request files of calls from the owner of a run's shard.
#[must_use]
pub fn file_question(pool: &PoolId, shard: Shard) -> String {
    format!("{NAMESPACE}.file.{pool}.{shard}")
}

/// Requests of all pools for files of all shards.
pub const FILE_QUESTIONS: &str = "ty.file.*.*";

/// The pool and the shard of a file request's subject.
#[must_use]
pub fn file_question_of(subject: &str) -> Option<(PoolId, Shard)> {
    let (pool, shard) = subject.strip_prefix("ty.file.")?.split_once('.')?;
    Some((pool.parse().ok()?, shard.parse().ok()?))
}

/// The subject on which a pool's workers read and write records, at the owner of a run's shard.
#[must_use]
pub fn record_question(pool: &PoolId, shard: Shard) -> String {
    format!("{NAMESPACE}.record.{pool}.{shard}")
}

/// Requests of all pools for records, of runs of all shards.
pub const RECORD_QUESTIONS: &str = "ty.record.*.*";

/// The pool and the shard of a record request's subject.
#[must_use]
pub fn record_question_of(subject: &str) -> Option<(PoolId, Shard)> {
    let (pool, shard) = subject.strip_prefix("ty.record.")?.split_once('.')?;
    Some((pool.parse().ok()?, shard.parse().ok()?))
}

/// Questions of all pools about all shards.
pub const QUESTIONS: &str = "ty.ask.*.*";

/// The pool and the shard of a question's subject.
#[must_use]
pub fn question_of(subject: &str) -> Option<(PoolId, Shard)> {
    let (pool, shard) = subject.strip_prefix("ty.ask.")?.split_once('.')?;
    Some((pool.parse().ok()?, shard.parse().ok()?))
}

/// The subject of a notification to an endpoint, about a run and an entry of the log.
#[must_use]
pub fn letter(endpoint: &str, run: RunId, noted: u64) -> String {
    format!("{NAMESPACE}.notice.{}.{endpoint}.{run}.{noted}", run.shard())
}

/// The notifications to an endpoint about runs of a shard; without one of the two, those of all endpoints or shards.
#[must_use]
pub fn letters(shard: Option<Shard>, endpoint: Option<&str>) -> String {
    let shard = shard.map_or_else(|| "*".to_owned(), |shard| shard.to_string());
    format!("{NAMESPACE}.notice.{shard}.{}.>", endpoint.unwrap_or("*"))
}

/// The notifications about a run.
#[must_use]
pub fn letters_about(run: RunId) -> String {
    format!("{NAMESPACE}.notice.{}.*.{run}.>", run.shard())
}

/// The endpoint, the run and the log entry of a notification's subject.
#[must_use]
pub fn letter_of(subject: &str) -> Option<(String, RunId, u64)> {
    let mut tokens = subject.strip_prefix("ty.notice.")?.split('.').skip(1);
    let (endpoint, run, noted) = (tokens.next()?, tokens.next()?, tokens.next()?);
    Some((endpoint.to_owned(), run.parse().ok()?, noted.parse().ok()?))
}
