//! Names at the broker that every process must know: the stream, its consumers, buckets, and core subjects.

use std::time::Duration;

use run::{PoolId, RunId, Shard, ToolSetId};

/// Prefix of every subject of ours.
pub const NAMESPACE: &str = "ty";
/// The log.
pub const STREAM: &str = "ty-log";
/// Every entry of the log.
pub const STREAM_SUBJECTS: &str = "ty.run.>";
/// What is too large for the log.
pub const OBJECTS: &str = "ty-objects";
/// Tool manifests, by pool and set.
pub const TOOLS_BUCKET: &str = "ty-tools";
/// Who owns which shard.
pub const LEASES_BUCKET: &str = "ty-leases";
/// How far the owner of each shard has come, and which runs were open then.
pub const SNAPSHOTS_BUCKET: &str = "ty-snapshots";
/// Which run a request id stands for.
pub const REQUESTS_BUCKET: &str = "ty-requests";
/// What is paused, and by whom.
pub const PAUSES_BUCKET: &str = "ty-pauses";
/// The queue of webhooks.
pub const WEBHOOKS_STREAM: &str = "ty-webhooks";
/// Every notice in it.
pub const WEBHOOKS_SUBJECTS: &str = "ty.notice.>";
/// How many slices all runs are cut into. Fixed for the life of a log: run ids carry their shard.
pub const SHARDS: u8 = 16;

pub use owner::{JOB_LEASE, WORKER_LOST};
/// How often a worker extends its leases: a broker's election (4-9 s) must not look like a dead worker.
pub const JOB_LEASE_EXTENSION: Duration = Duration::from_secs(10);
/// How often a worker says that it is alive.
pub const WORKER_HEARTBEAT: Duration = Duration::from_secs(2);

/// How often the workers of all pools are told which tools are paused, and for how long they hold to it when nobody
/// says it any more: a coordinator may die between a tool's being resumed and saying so.
pub const HELD_TOLD: Duration = Duration::from_secs(1);
pub const HELD_FOR: Duration = Duration::from_secs(30);

/// How often workers are told that the broker stores nothing, while it does not, and for how long they hold to it.
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

/// What the subject of a job looks like: names in traces have no ids.
pub const JOB_TEMPLATE: &str = "ty.run.{shard}.{run}.{call}.job.{pool}";

/// The jobs of a pool, of all runs.
#[must_use]
pub fn pool_jobs(pool: &PoolId) -> String {
    format!("{NAMESPACE}.run.*.*.*.job.{pool}")
}

/// Under which key a set of tools is advertised for a pool.
#[must_use]
pub fn advertisement(pool: &PoolId, set: &ToolSetId) -> String {
    format!("{pool}.{set}")
}

/// Keys of all advertisements.
pub const ADVERTISEMENTS: &str = "*.*";

/// The pool and the set that an advertisement's key names.
#[must_use]
pub fn advertisement_of(key: &str) -> Option<(PoolId, ToolSetId)> {
    let (pool, set) = key.split_once('.')?;
    Some((pool.parse().ok()?, set.parse().ok()?))
}

/// Where a pool's workers say that they are alive.
#[must_use]
pub fn heartbeat(pool: &PoolId) -> String {
    format!("{NAMESPACE}.alive.{pool}")
}

/// Heartbeats of all pools.
pub const HEARTBEATS: &str = "ty.alive.*";

/// The pool that a heartbeat's subject names.
#[must_use]
pub fn heartbeat_pool(subject: &str) -> Option<PoolId> {
    subject.strip_prefix("ty.alive.").and_then(|pool| pool.parse().ok())
}

/// Where a pool's workers hear which attempts to stop.
#[must_use]
pub fn stop(pool: &PoolId) -> String {
    format!("{NAMESPACE}.stop.{pool}")
}

/// Where a pool's workers ask the owner of a run's shard what to do with a job that may not be fresh.
#[must_use]
pub fn question(pool: &PoolId, shard: Shard) -> String {
    format!("{NAMESPACE}.ask.{pool}.{shard}")
}

/// Where a pool's workers ask the owner of a run's shard for the files of its calls.
#[must_use]
pub fn file_question(pool: &PoolId, shard: Shard) -> String {
    format!("{NAMESPACE}.file.{pool}.{shard}")
}

/// Wishes of all pools for files of all shards.
pub const FILE_QUESTIONS: &str = "ty.file.*.*";

/// The pool that wants a file and the shard whose it is, by the subject of its wish.
#[must_use]
pub fn file_question_of(subject: &str) -> Option<(PoolId, Shard)> {
    let (pool, shard) = subject.strip_prefix("ty.file.")?.split_once('.')?;
    Some((pool.parse().ok()?, shard.parse().ok()?))
}

/// Questions of all pools about all shards.
pub const QUESTIONS: &str = "ty.ask.*.*";

/// The pool that asks and the shard that it asks about, by the subject of its question.
#[must_use]
pub fn question_of(subject: &str) -> Option<(PoolId, Shard)> {
    let (pool, shard) = subject.strip_prefix("ty.ask.")?.split_once('.')?;
    Some((pool.parse().ok()?, shard.parse().ok()?))
}

/// Where a notice lies for an endpoint: about a run, and an entry of the log.
#[must_use]
pub fn letter(endpoint: &str, run: RunId, noted: u64) -> String {
    format!("{NAMESPACE}.notice.{}.{endpoint}.{run}.{noted}", run.shard())
}

/// The notices about runs of a shard for an endpoint; of all where one is not given.
#[must_use]
pub fn letters(shard: Option<Shard>, endpoint: Option<&str>) -> String {
    let shard = shard.map_or_else(|| "*".to_owned(), |shard| shard.to_string());
    format!("{NAMESPACE}.notice.{shard}.{}.>", endpoint.unwrap_or("*"))
}

/// The notices about a run.
#[must_use]
pub fn letters_about(run: RunId) -> String {
    format!("{NAMESPACE}.notice.{}.*.{run}.>", run.shard())
}

/// The endpoint, the run and the entry of the log that a notice's subject names.
#[must_use]
pub fn letter_of(subject: &str) -> Option<(String, RunId, u64)> {
    let mut tokens = subject.strip_prefix("ty.notice.")?.split('.').skip(1);
    let (endpoint, run, noted) = (tokens.next()?, tokens.next()?, tokens.next()?);
    Some((endpoint.to_owned(), run.parse().ok()?, noted.parse().ok()?))
}
