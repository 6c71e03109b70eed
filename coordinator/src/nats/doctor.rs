//! Checks a broker without a coordinator: whether everything exists, has the right settings, and works.

mod clock;
mod history;
mod partitions;
mod room;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::time::Duration;

use ::history::History;
use async_nats::jetstream::context::{AccountErrorKind, ContextBuilder, GetStreamErrorKind};
use async_nats::jetstream::stream::{Config, Info, Stream};
use async_nats::jetstream::{self, Context, ErrorCode, kv};
use async_nats::{Client, Request, ServerInfo, Subscriber};
use futures::{StreamExt as _, TryStreamExt as _};
use nats::Credentials;
use nats::access::{ACCOUNT, Party, WHO_AM_I};
use owner::membership::LEASE;
use proto::convert::worker::{Heartbeat, decode_advertisement};
use proto::names;
use run::{Partition, PoolId, WorkerId};
use tokio::time::Instant;

use super::durability::{self, Synced};
use super::journal::{SILENT, current_replicas, millis};
use super::pauses::paused_pool;
use super::setup::{
    BUCKETS, JOBS_UNDER_WAY_MAX, LogOptions, SIZED_BY_LOG, bucket_bytes, log_config, partition_subjects,
};

/// How long one request may take: a broker that is slower has a problem.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);
/// How long heartbeats are collected: longer than the pause between two.
const LISTEN: Duration = Duration::from_secs(3);
/// The same, if a worker does not pull. A worker that has just started receives the broker's first answer, and reports
/// it in its next heartbeat, within the time after which it would be considered lost.
const LISTEN_LONGEST: Duration = Duration::from_secs(names::WORKER_LOST.as_secs() + 1);
/// Above this fill level the log will soon reject new work.
const ROOM_SOON_PERCENT: u64 = 70;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Ok,
    Warn,
    Fail,
}

#[derive(Debug, Clone)]
pub struct Finding {
    pub level: Level,
    /// The checked item, such as `log` or `pool main`.
    pub what: String,
    pub found: String,
    /// The remedy; empty if there is none.
    pub advice: String,
}

impl Finding {
    fn ok(what: impl Into<String>, found: impl Display) -> Self {
        Self { level: Level::Ok, what: what.into(), found: found.to_string(), advice: String::new() }
    }

    fn warn(what: impl Into<String>, found: impl Display, advice: impl Into<String>) -> Self {
        Self { level: Level::Warn, advice: advice.into(), ..Self::ok(what, found) }
    }

    fn fail(what: impl Into<String>, found: impl Display, advice: impl Into<String>) -> Self {
        Self { level: Level::Fail, advice: advice.into(), ..Self::ok(what, found) }
    }
}

/// Checks everything that a coordinator and its workers need, and the history of coordinators. A failed check is a
/// finding, too.
pub async fn examine(nats_url: &str, credentials: &Credentials, kept: Option<&History>) -> Vec<Finding> {
    let name = format!("doctor-{}", uuid::Uuid::now_v7().simple());
    let client = match nats::connect(nats_url, credentials, &name, &Party::Observer).await {
        Ok(client) => client,
        Err(error) => return vec![Finding::fail("broker", error, "start nats-server, or give its --nats-url")],
    };
    let server = client.server_info();
    let cluster = server.cluster.as_ref().map_or_else(|| "alone".to_owned(), |name| format!("in cluster {name}"));
    let mut findings =
        vec![Finding::ok("broker", format!("nats-server {} {}, {cluster}", server.version, server.server_name))];
    let context = ContextBuilder::new().timeout(REQUEST_TIMEOUT).build(client.clone());
    match context.query_account().await {
        Ok(account) => findings.push(Finding::ok("jetstream", format!("on, {} streams", account.streams))),
        Err(error) if is_leaderless(&error.kind()) => {
            findings.extend(servers(nats_url, credentials, &server).await);
            let advice = "it is on, and most of its servers must be there to choose a leader: bring back those that \
                are gone; if all are there, wait for the election";
            findings.push(Finding::fail("jetstream", "no leader answers: nothing can be stored", advice));
            return findings;
        }
        Err(error) => {
            let advice = "start nats-server with -js, or enable JetStream for this account";
            findings.push(Finding::fail("jetstream", error, advice));
            return findings;
        }
    }
    findings.extend(servers(nats_url, credentials, &server).await);
    findings.push(accounts(&client).await);
    let heartbeats = client.subscribe(names::HEARTBEATS).await;
    let since = Instant::now();
    match context.get_stream(names::STREAM).await {
        Ok(stream) => {
            let info = stream.cached_info();
            let further = partitions::further(&context).await;
            let answering = further.iter().filter_map(|(_, found)| found.as_ref().ok()).map(Stream::cached_info);
            let all: Vec<&Info> = [info].into_iter().chain(answering).collect();
            findings.extend([
                settings(&info.config),
                copies(info),
                profile(&client, info).await,
                room::room(info),
                room::memory(&context, &all).await,
                consumers(info),
            ]);
            findings.extend(partitions::examine(info, &further));
            findings.extend(buckets(&context, &info.config).await);
            findings.push(owners(&context).await);
            findings.push(clock::clock(&context, 1 + further.len()).await);
            let workers = match heartbeats {
                Ok(heartbeats) => listen(heartbeats, since).await,
                Err(_) => BTreeMap::new(),
            };
            let streams = [stream].into_iter().chain(further.into_iter().filter_map(|(_, found)| found.ok()));
            let streams: Vec<Stream> = streams.collect();
            findings.extend(pools(&context, &streams, &workers).await);
            findings.extend(history::examine(&streams, kept).await);
        }
        Err(error) if is_missing(error.kind()) => {
            let found = format!("there is no stream {}", names::STREAM);
            findings.push(Finding::fail("log", found, "start a coordinator here: it makes what it needs"));
        }
        Err(error) => {
            let advice = "check that its servers are up and have elected a leader: `nats stream info ty-log`. It is \
                the log's first partition: until it answers, no coordinator and no worker can start, and those that \
                run go on with the other partitions";
            findings.push(Finding::fail("log", error, advice));
        }
    }
    findings
}

/// Whether each configured or announced server accepts a connection. `None` for a single server.
async fn servers(nats_url: &str, credentials: &Credentials, one: &ServerInfo) -> Option<Finding> {
    let what = "servers";
    let scheme = if nats_url.starts_with("tls://") { "tls" } else { "nats" };
    let given = nats_url.split(',').map(|url| url.trim().to_owned());
    let reported = one.connect_urls.iter().map(|address| format!("{scheme}://{address}"));
    let given: BTreeSet<String> = given.collect();
    // Servers may announce addresses that are reachable only among themselves, so those are used only if no others were
    // given.
    let urls = if given.len() > 1 { given } else { given.into_iter().chain(reported).collect() };
    if urls.len() < 2 {
        return None;
    }
    let reached = futures::future::join_all(urls.into_iter().map(async |url| {
        let connected = nats::connect(&url, credentials, "doctor-look", &Party::Observer);
        let is_there = matches!(tokio::time::timeout(REQUEST_TIMEOUT, connected).await, Ok(Ok(_)));
        (url, is_there)
    }));
    let (there, gone): (Vec<_>, Vec<_>) = reached.await.into_iter().partition(|(_, is_there)| *is_there);
    let all = there.len() + gone.len();
    let found = format!("{} of {all} answer", there.len());
    if gone.is_empty() {
        return Some(Finding::ok(what, found));
    }
    let gone: Vec<String> = gone.into_iter().map(|(url, _)| nats::hidden(&url)).collect();
    let found = format!("{found}; gone: {}", gone.join(", "));
    Some(if there.len() * 2 > all {
        Finding::warn(what, found, "bring it back: another lost server may stop everything")
    } else {
        Finding::fail(what, found, "most of them are gone, so nothing can be stored: bring them back")
    })
}

/// Whether every pool has an account of its own at the broker. In an `accounts.conf` of an older release all share one,
/// and the holder of any key can delete everything, because the broker answers on any subject that a request names.
async fn accounts(client: &Client) -> Finding {
    let what = "accounts";
    let request = Request::new().timeout(Some(REQUEST_TIMEOUT));
    let answer = client.send_request(WHO_AM_I, request).await.ok();
    let answer = answer.and_then(|answer| serde_json::from_slice::<serde_json::Value>(&answer.payload).ok());
    let account = answer.as_ref().and_then(|answer| answer["data"]["account"].as_str());
    match account {
        Some(account) if account == Party::Observer.account() => Finding::ok(what, "each pool has its own"),
        Some("$G") => Finding::ok(what, "none: every client that reaches the broker may do everything"),
        Some(account) if account != ACCOUNT => {
            Finding::ok(what, format!("{account}, not made by `toolyard nats-config`"))
        }
        Some(_) | None => Finding::fail(
            what,
            "an accounts.conf of an older release: with the key of any pool everything can be read and deleted",
            "write a new accounts.conf with `toolyard nats-config`, give it to every server, and reload each server \
            twice",
        ),
    }
}

/// JetStream is on, but too few of its servers are up to answer: a remaining server reports so, or times out.
fn is_leaderless(kind: &AccountErrorKind) -> bool {
    match kind {
        AccountErrorKind::TimedOut => true,
        AccountErrorKind::JetStream(error) => error.error_code() == ErrorCode::CLUSTER_NOT_AVAILABLE,
        AccountErrorKind::JetStreamUnavailable | AccountErrorKind::Other => false,
    }
}

fn is_missing(kind: GetStreamErrorKind) -> bool {
    matches!(kind, GetStreamErrorKind::JetStream(error) if error.error_code() == ErrorCode::STREAM_NOT_FOUND)
}

/// Whether the log has the settings that a coordinator makes.
fn settings(found: &Config) -> Finding {
    let ours = log_config(&LogOptions::default());
    let partition = names::STREAMS.iter().position(|stream| *stream == found.name).unwrap_or(0);
    let of_partition = Partition::first(Partition::MAX).nth(partition).map(partition_subjects);
    let is_alone = partition == 0 && found.subjects == ours.subjects;
    let differ = [
        ("subjects", !is_alone && Some(&found.subjects) != of_partition.as_ref()),
        ("retention", found.retention != ours.retention),
        ("discard", found.discard != ours.discard),
        ("max_age", !found.max_age.is_zero() && found.max_age < ours.max_age),
        ("storage", found.storage != ours.storage),
        ("allow_direct", found.allow_direct != ours.allow_direct),
    ];
    let differ: Vec<&str> = differ.into_iter().filter_map(|(name, differs)| differs.then_some(name)).collect();
    if differ.is_empty() && found.max_age == ours.max_age {
        return Finding::ok("log", "its settings are as a coordinator makes them");
    }
    if differ.is_empty() {
        let kept = if found.max_age.is_zero() { "for ever".to_owned() } else { format!("for {:?}", found.max_age) };
        return Finding::ok(
            "log",
            format!("entries are kept {kept}, which was set by hand; the rest is as a coordinator makes it"),
        );
    }
    let advice = format!(
        "it needs subjects {}, limits retention, discard new, max_age {:?} or longer, file storage and \
        allow_direct: `nats stream edit {}`",
        names::STREAM_SUBJECTS,
        ours.max_age,
        names::STREAM
    );
    Finding::fail("log", format!("changed by hand: {}", differ.join(", ")), advice)
}

fn copies(info: &Info) -> Finding {
    let what = "replicas";
    let wanted = info.config.num_replicas;
    let Some(cluster) = &info.cluster else { return Finding::ok(what, format!("{wanted}, on a single server")) };
    let Some(leader) = &cluster.leader else {
        return Finding::fail(what, "the log has no leader", "bring back most of its servers");
    };
    let peers = cluster.replicas.iter().map(|peer| match (peer.offline || peer.active >= SILENT, peer.current) {
        (true, _) => format!("{} is gone, silent for {} s", peer.name, peer.active.as_secs()),
        (false, true) => format!("{} is current", peer.name),
        (false, false) => format!("{} lags by {}", peer.name, peer.lag.unwrap_or(0)),
    });
    let found = [format!("{wanted}, led by {leader}")].into_iter().chain(peers).collect::<Vec<_>>().join(", ");
    let current = current_replicas(info);
    if current >= wanted {
        return Finding::ok(what, found);
    }
    if current * 2 <= wanted {
        return Finding::fail(
            what,
            found,
            "nothing can be stored without most of them: bring back those that are gone",
        );
    }
    Finding::warn(what, found, "another lost server may stop the log: bring back the one that lags, or wait for it")
}

/// The durability profile, as far as it can be verified from here.
async fn profile(client: &Client, info: &Info) -> Finding {
    let what = "durability";
    match info.config.num_replicas {
        1 => Finding::ok(what, "dev: one copy"),
        3 => match durability::synced(client, info).await {
            Synced::Always => Finding::ok(what, "strict: three copies, sync_interval: always in every node"),
            Synced::Later(servers) => Finding::ok(
                what,
                format!("standard: three copies; {} without sync_interval: always", servers.join(", ")),
            ),
            Synced::NotSaid(_) => Finding {
                advice: "if it should be strict, set sync_interval: always in every node".to_owned(),
                ..Finding::ok(what, "standard: three copies; whether it is strict cannot be verified from here")
            },
        },
        copies => {
            Finding::warn(what, format!("no profile has {copies} copies"), "make it 1 or 3: coordinators refuse it")
        }
    }
}

/// Consumers: queues of pools and feeds of coordinators. At the limit no feed can be made, so no shard can be taken
/// over.
fn consumers(info: &Info) -> Finding {
    let what = "consumers";
    let count = info.state.consumer_count;
    let Some(limit) = usize::try_from(info.config.max_consumers).ok().filter(|limit| *limit > 0) else {
        return Finding::ok(what, format!("{count}, and the log has no limit of consumers"));
    };
    let found = format!("{count} of the {limit} that the log may have");
    let advice = "coordinators remove the queue of a pool 25 h after its last worker: use fewer pools, and not one \
        for each release or job";
    match count * 100 / limit {
        95.. => Finding::fail(what, found, advice),
        percent if percent >= usize::try_from(ROOM_SOON_PERCENT).unwrap_or(0) => Finding::warn(what, found, advice),
        _ => Finding::ok(what, found),
    }
}

async fn buckets(context: &Context, log: &Config) -> Vec<Finding> {
    let mut findings = Vec::new();
    let buckets = BUCKETS.map(|bucket| (format!("bucket {bucket}"), format!("KV_{bucket}"), bucket));
    for (what, stream, bucket) in buckets.into_iter().chain([("objects".to_owned(), names::OBJECTS.to_owned(), "")]) {
        findings.push(match context.get_stream(&stream).await {
            Ok(found) => self::bucket(what, found.cached_info(), bucket_bytes(bucket, log.max_bytes), log.num_replicas),
            Err(error) if stream == names::OBJECTS => {
                Finding::warn(what, error, "start a coordinator here, unless objects are in a bucket (--objects)")
            }
            Err(error) => Finding::fail(what, error, "start a coordinator here: it makes what it needs"),
        });
    }
    findings
}

fn bucket(what: String, info: &Info, bytes_max: i64, replicas: usize) -> Finding {
    let stream = &info.config.name;
    let found = format!("replicas: {}, messages: {}", info.config.num_replicas, info.state.messages);
    if info.config.num_replicas != replicas {
        let advice = format!("the log has {replicas}: `toolyard log durability`, as the operator, changes all");
        return Finding::fail(what, found, advice);
    }
    if info.config.allow_rollup {
        let advice = format!("an older coordinator made it: turn off allow_rollup_hdrs of {stream}");
        return Finding::warn(what, "a client with write access to one key can empty it", advice);
    }
    let Some(limit) = u64::try_from(info.config.max_bytes).ok().filter(|limit| *limit > 0) else {
        let advice = format!("an older coordinator made it: `nats stream edit {stream} --max-bytes {bytes_max}`");
        return Finding::warn(what, format!("{found}, no limit of bytes"), advice);
    };
    let percent = u128::from(info.state.bytes) * 100 / u128::from(limit);
    if percent >= u128::from(ROOM_SOON_PERCENT) {
        let advice = match stream.strip_prefix("KV_").unwrap_or(stream) {
            names::OBJECTS => "`toolyard log resize --objects`, as the operator".to_owned(),
            bucket if SIZED_BY_LOG.contains(&bucket) => {
                "it gets its part of a larger log: `toolyard log resize`, as the operator".to_owned()
            }
            _ => format!("raise its limit: `nats stream edit {stream} --max-bytes`"),
        };
        return Finding::warn(what, format!("{found}, {percent} % of {} MiB used", limit >> 20), advice);
    }
    Finding::ok(what, found)
}

/// The entries of a bucket, key by key, because the observer may not create a consumer, with which the library lists
/// keys.
async fn entries(context: &Context, bucket: &str) -> Result<Vec<kv::Entry>, String> {
    let store = context.get_key_value(bucket).await.map_err(|error| error.to_string())?;
    let prefix = format!("$KV.{bucket}.");
    let subjects = store.stream.info_with_subjects(format!("{prefix}>")).await.map_err(|error| error.to_string())?;
    let subjects: Vec<(String, usize)> = subjects.try_collect().await.map_err(|error| error.to_string())?;
    let mut entries = Vec::new();
    for key in subjects.iter().filter_map(|(subject, _)| subject.strip_prefix(&prefix)) {
        let entry = store.entry(key).await.map_err(|error| error.to_string())?;
        entries.extend(entry.filter(|entry| entry.operation == kv::Operation::Put));
    }
    Ok(entries)
}

/// The owners in the bucket of leases. Owners renew, so if the bucket does not change, none is alive.
async fn owners(context: &Context) -> Finding {
    let what = "coordinators";
    let entries = match entries(context, names::LEASES_BUCKET).await {
        Ok(entries) => entries,
        Err(error) => return Finding::fail(what, error, "see bucket ty-leases"),
    };
    let (members, shards): (Vec<_>, Vec<_>) = entries.iter().partition(|entry| entry.key.starts_with("member."));
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for entry in shards.iter().filter(|entry| !entry.value.is_empty()) {
        *counts.entry(String::from_utf8_lossy(&entry.value).into_owned()).or_default() += 1;
    }
    let mut found: Vec<String> = counts.iter().map(|(owner, count)| format!("{owner} has {count} shards")).collect();
    if !members.is_empty() {
        let reported = members.iter().filter_map(|member| std::str::from_utf8(&member.value).ok());
        let reported = reported.filter(|reported| !reported.is_empty());
        let releases = releases(reported.map(|reported| reported.split(' ').nth(1).unwrap_or_default()));
        found.insert(0, format!("{} members{releases}", members.len()));
    }
    let newest = entries.iter().filter(|entry| !entry.value.is_empty()).map(|entry| entry.created).max();
    let now = clock::clocks(context, names::STREAM).await.map(|clocks| clocks.broker);
    let age = newest.zip(now).map(|(newest, now)| now.saturating_sub(millis(newest.unix_timestamp_nanos()).0));
    match age.map(Duration::from_millis) {
        None => Finding::fail(what, "none", "start one: `toolyard coordinator`"),
        Some(age) if age > LEASE => {
            let found = format!("none alive: the last renewal was {} s ago", age.as_secs());
            Finding::fail(what, found, "start one: `toolyard coordinator`")
        }
        Some(_) => Finding::ok(what, found.join(", ")),
    }
}

/// Workers with a heartbeat, and the last one of each.
type Workers = BTreeMap<PoolId, BTreeMap<WorkerId, Heartbeat>>;

fn takes_jobs(worker: &Heartbeat) -> bool {
    worker.pulling && !worker.draining
}

async fn listen(mut heartbeats: Subscriber, since: Instant) -> Workers {
    let mut workers = Workers::new();
    loop {
        let all_pull = workers.values().flat_map(BTreeMap::values).all(takes_jobs);
        let until = since + if all_pull { LISTEN } else { LISTEN_LONGEST };
        let Ok(Some(message)) = tokio::time::timeout_at(until, heartbeats.next()).await else { return workers };
        let Some(pool) = names::heartbeat_pool(&message.subject) else { continue };
        let Ok(heartbeat) = Heartbeat::decode(message.payload) else { continue };
        let pool = workers.entry(pool).or_default();
        if heartbeat.leaving {
            pool.remove(&heartbeat.worker);
        } else {
            pool.insert(heartbeat.worker.clone(), heartbeat);
        }
    }
}

async fn pools(context: &Context, log: &[Stream], workers: &Workers) -> Vec<Finding> {
    let advertisements = match entries(context, names::TOOLS_BUCKET).await {
        Ok(entries) => entries,
        Err(error) => return vec![Finding::fail("pools", error, "see bucket ty-tools")],
    };
    let mut queues: Vec<jetstream::consumer::Info> = Vec::new();
    for (place, stream) in log.iter().enumerate() {
        let found = match partitions::queues_of(stream).await {
            Ok(found) => found,
            Err(finding) => return vec![*finding],
        };
        if place == 0 {
            queues = found;
            continue;
        }
        // Those that are in each partition, with the sum of their jobs.
        queues.retain_mut(|queue| {
            let Some(other) = found.iter().find(|other| other.name == queue.name) else { return false };
            queue.num_pending += other.num_pending;
            queue.num_ack_pending += other.num_ack_pending;
            // A paused pool is paused in all of them.
            queue.paused &= other.paused;
            true
        });
    }
    let paused: BTreeSet<PoolId> = match entries(context, names::PAUSES_BUCKET).await {
        Ok(entries) => entries.iter().filter_map(|entry| paused_pool(&entry.key)).collect(),
        Err(error) => return vec![Finding::fail("pools", error, "see bucket ty-pauses")],
    };
    // Among the advertised sets of a pool, the last one stored counts.
    let tools: BTreeMap<PoolId, usize> = advertisements
        .into_iter()
        .filter_map(|entry| {
            let (pool, _) = names::advertisement_of(&entry.key)?;
            Some((pool, decode_advertisement(entry.value).map_or(0, |tools| tools.iter().flatten().count())))
        })
        .collect();
    let queued = queues.iter().filter_map(|queue| queue.name.strip_prefix("pool-")?.parse().ok());
    let pools: BTreeSet<PoolId> = tools.keys().chain(workers.keys()).cloned().chain(queued).collect();
    if pools.is_empty() {
        return vec![Finding::warn(
            "pools",
            "none: no tool can be called",
            "start one: `toolyard worker --pool NAME --root DIR`",
        )];
    }
    let none = BTreeMap::new();
    let queue_of = |pool: &PoolId| queues.iter().find(|queue| queue.name == names::pool_consumer(pool));
    pools
        .iter()
        .map(|id| {
            let tools = tools.get(id).copied().unwrap_or(0);
            pool(id, (tools, paused.contains(id)), queue_of(id), workers.get(id).unwrap_or(&none))
        })
        .collect()
}

/// Releases and their numbers, as ` (0.1.0: 2, 0.2.0: 1)`. Empty if there are none.
fn releases<'a>(reported: impl Iterator<Item = &'a str>) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for release in reported {
        *counts.entry(if release.is_empty() { "release unknown" } else { release }).or_default() += 1;
    }
    let counts: Vec<String> = counts.iter().map(|(release, count)| format!("{release}: {count}")).collect();
    if counts.is_empty() { String::new() } else { format!(" ({})", counts.join(", ")) }
}

fn pool(
    id: &PoolId,
    (tools, paused): (usize, bool),
    queue: Option<&jetstream::consumer::Info>,
    workers: &BTreeMap<WorkerId, Heartbeat>,
) -> Finding {
    let what = format!("pool {id}");
    let (live, pulling) = (workers.len(), workers.values().filter(|worker| takes_jobs(worker)).count());
    let releases = releases(workers.values().map(|worker| worker.release.as_str()));
    let hosted = format!("tools: {tools}, workers alive: {live}{releases}, pulling: {pulling}");
    let Some(queue) = queue else {
        return Finding::fail(what, format!("{hosted}, no queue"), "a coordinator makes it: see whether one is alive");
    };
    let found = format!(
        "{hosted}; jobs pending: {}, unacknowledged: {}, redelivered: {}, pulls waiting: {}",
        queue.num_pending, queue.num_ack_pending, queue.num_redelivered, queue.num_waiting
    );
    let start = format!("start a worker: `toolyard worker --pool {id} --root DIR`");
    match (paused, queue.paused) {
        (true, true) => return Finding::ok(what, format!("paused; {found}")),
        (true, false) => {
            return Finding::warn(
                what,
                found,
                format!("paused, but its queue is not: `toolyard pause pool {id}` again"),
            );
        }
        (false, true) => {
            let advice = format!("its queue is paused without a record: `toolyard resume pool {id}`");
            return Finding::warn(what, found, advice);
        }
        (false, false) => {}
    }
    let (out, limit) = (queue.num_ack_pending as u128, queue.config.max_ack_pending);
    if let Ok(limit) = u128::try_from(limit)
        && limit > 0
        && out * 100 >= limit * u128::from(ROOM_SOON_PERCENT)
    {
        let advice = "at this limit the queue delivers nothing: find out why so many calls wait for a retry";
        return Finding::warn(what, format!("{found}, of {limit} at most"), advice);
    }
    if (1..JOBS_UNDER_WAY_MAX).contains(&limit) {
        let advice = "an older coordinator made its queue: restart a coordinator of this release last";
        return Finding::warn(what, format!("{found}, of {limit} at most"), advice);
    }
    let jobs = queue.num_pending > 0 || queue.num_ack_pending > 0;
    match (live, pulling) {
        (0, _) if jobs => Finding::fail(what, found, start),
        (0, _) if tools > 0 => Finding::warn(what, found, start),
        (0, _) => Finding::ok(what, found),
        (_, 0) => {
            let advice = "the broker does not answer its workers: check their logs and their permissions";
            Finding::fail(what, found, advice)
        }
        (_, _) => Finding::ok(what, found),
    }
}
