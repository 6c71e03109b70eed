//! The index in Redis or Valkey, shared by all coordinators. The only folder that names the store's library.
//!
//! | key | holds |
//! |---|---|
//! | `ty:run:<place>` | a hash: `s` the log sequence up to which it is valid, `d` the summary, `m` the sets it is in |
//! | `ty:runs…`, `ty:calls…` | sorted sets of places, all scores 0: by status, state, tool, tenant |
//! | `ty:old` | a sorted set of the places of runs that were written when they were older than the log keeps a run |
//! | `ty:sets`, `ty:tools` | the names of those sets, and of the tools |
//! | `ty:marks` | the watermark of each shard |
//! | `ty:from` | milliseconds: runs of the history that were created before were never read into the index |
//! | `ty:log` | the name of the log to which all this belongs |
//! | `tyq:counts` | a hash: each coordinator's counts of tenants with quotas; not part of the index |
//!
//! A place is the run's uuid and shard (and the call's index) in hexadecimal, so sets sort by time and are cut by
//! range. The store is one server, or one with replicas: the write script touches keys that a cluster would spread.

mod check;
mod link;
mod lists;
mod quotas;
mod sets;
mod wire;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ::redis::{Pipeline, pipe};
use proto::v1::RunStatus;
use run::{RunId, Shard, Timestamp};

use self::link::Link;
use crate::index::expired::Expired;
use crate::index::filter::{Coverage, Key};
use crate::index::summary::Summary;
use crate::index::{Listed, Unavailable, Watermark, Watermarks, coverage};
use crate::nats::journal::Found;
use crate::nats::setup::RETENTION;
use crate::shards::every;
use owner::SHARDS_MAX;

pub(crate) use self::check::Member;
pub use self::link::UrlError;

pub(super) const MARKS: &str = "ty:marks";
pub(super) const SETS: &str = "ty:sets";
pub(super) const TOOLS: &str = "ty:tools";
const FROM: &str = "ty:from";
const PRUNE: &str = include_str!("redis/prune.lua");
const PRUNE_SET: &str = include_str!("redis/prune_set.lua");
/// Members that one call of the script looks at.
const PRUNE_MEMBERS: usize = 1000;
const ERASE: &str = include_str!("redis/erase.lua");
const LATEST: &str = include_str!("redis/latest.lua");
/// Old runs that are open, or ended lately: they stay in the sets. Beyond this number the newest are listed no more.
const OLD: &str = "ty:old";
const OLD_MAX: isize = 10_000;
const LOG: &str = "ty:log";
const EVERYTHING: &str = "ty:*";
/// Members of sets that one pipeline writes: some milliseconds of the server's time, during which it serves no other
/// request.
const PIPELINE_MEMBERS_MAX: usize = 4000;
/// Keys that are deleted together.
const WIPE_KEYS: usize = 1000;
/// Runs that are erased together.
const ERASE_RUNS: usize = 256;

/// Cheap to clone. Lists have a connection of their own, so that they do not wait behind writes.
#[derive(Debug, Clone)]
pub(crate) struct RedisStore {
    writes: Arc<Link>,
    reads: Arc<Link>,
    found: Arc<Mutex<Found>>,
    /// With a history.
    listed: Option<Listed>,
}

/// The key of a run.
fn run_key(place: Key) -> String {
    format!("ty:run:{place}")
}

impl RedisStore {
    pub(crate) fn new(url: &str, ca: Option<&Path>) -> Result<Self, UrlError> {
        let (writes, reads) = (Arc::new(Link::new(url, ca)?), Arc::new(Link::new(url, ca)?));
        Ok(Self { writes, reads, found: Arc::default(), listed: None })
    }

    pub(crate) fn listing(self, listed: Listed) -> Self {
        Self { listed: Some(listed), ..self }
    }

    /// How long a run is kept after its end.
    fn kept(&self) -> Duration {
        self.listed.map_or(RETENTION, |listed| listed.span.max(RETENTION))
    }

    /// Runs that have ended and were created before this moment may be missing, although the history has them.
    pub(crate) async fn cut(&self, before: Timestamp) -> Result<(), Unavailable> {
        self.one(pipe().cmd("EVAL").arg(LATEST).arg(1).arg(FROM).arg(before.0).ignore()).await
    }

    pub(crate) fn note_found(&self, found: Found) {
        *self.found.lock().unwrap_or_else(PoisonError::into_inner) = found;
    }

    pub(crate) async fn write(&self, summaries: &[Arc<Summary>]) -> Result<(), Unavailable> {
        let (now, kept, mut rest) = (::nats::now(), self.kept(), summaries.iter());
        while rest.len() > 0 {
            let live = self.writes.live().await?;
            let mut pipeline = pipe();
            let (mut members, mut sets, mut tools) = (0, BTreeSet::new(), BTreeSet::new());
            while members < PIPELINE_MEMBERS_MAX
                && let Some(summary) = rest.next()
            {
                let key = Key::from(summary.id);
                let until = if summary.has_ended() { summary.last_end() } else { Some(summary.deadline) };
                let expires = until.unwrap_or_default().max(summary.id.created_at()).after(kept);
                let write = pipeline.cmd("EVALSHA").arg(&live.write).arg(1).arg(run_key(key));
                write.arg(summary.sequence).arg(wire::encode(summary)).arg(expires.0);
                sets::members(summary, |set, member| {
                    write.arg(&set).arg(member);
                    members += 1;
                    sets.insert(set);
                });
                write.ignore();
                if now.since(summary.id.created_at()) > kept {
                    pipeline.cmd("ZADD").arg(OLD).arg(0).arg(key.to_string()).ignore();
                }
                tools.extend(summary.calls.iter().map(|call| call.tool.as_str()));
            }
            pipeline.cmd("SADD").arg(SETS).arg(sets).ignore();
            if !tools.is_empty() {
                pipeline.cmd("SADD").arg(TOOLS).arg(tools).ignore();
            }
            self.writes.ask::<()>(live, &pipeline).await?;
        }
        Ok(())
    }

    pub(crate) async fn erase(&self, runs: &[(RunId, u64)]) -> Result<(), Unavailable> {
        for some in runs.chunks(ERASE_RUNS) {
            let mut pipeline = pipe();
            for (run, through) in some {
                pipeline.cmd("EVAL").arg(ERASE).arg(1).arg(run_key(Key::from(*run))).arg(*through).ignore();
            }
            self.one::<()>(&pipeline).await?;
        }
        Ok(())
    }

    pub(crate) async fn marks(&self) -> Result<Watermarks, Unavailable> {
        marks(&self.writes).await
    }

    pub(crate) async fn advance(
        &self,
        shard: Shard,
        from: Option<Watermark>,
        to: Watermark,
    ) -> Result<bool, Unavailable> {
        let live = self.writes.live().await?;
        let (from, to) = (from.map(mark_text).unwrap_or_default(), mark_text(to));
        let mut pipeline = pipe();
        pipeline.cmd("EVALSHA").arg(&live.advance).arg(1).arg(MARKS).arg(shard.to_string()).arg(from).arg(&to);
        let (stands,): (String,) = self.writes.ask(live, &pipeline).await?;
        Ok(stands == to)
    }

    pub(crate) async fn belong_to(&self, log: &str) -> Result<(), Unavailable> {
        let (known,): (Option<String>,) = self.one(pipe().cmd("GET").arg(LOG)).await?;
        if known.as_deref() == Some(log) {
            return Ok(());
        }
        if known.is_some() {
            tracing::warn!("the index belongs to another log; emptying it");
            self.wipe().await?;
        }
        self.one(pipe().cmd("SET").arg(LOG).arg(log).ignore()).await
    }

    /// Removes runs that the log does not hold any more from the sets, but for those that are open, or ended lately.
    /// With a history they stay for longer, except in the set of parked calls: only the log has what redriving needs.
    pub(crate) async fn prune(&self, expired: &Expired) -> Result<(), Unavailable> {
        let (least, most) = expired.bounds();
        let (sets,): (Vec<String>,) = self.one(pipe().cmd("SMEMBERS").arg(SETS)).await?;
        let (of_all, of_some) = (format!("({}", Key::at(least)), format!("({}", Key::at(most)));
        let kept_from = self.listed.map(|_| format!("({}", Key::at(::nats::now().before(self.kept()))));
        let mut old = pipe();
        let end = kept_from.as_ref().unwrap_or(&of_some);
        old.cmd("ZRANGEBYLEX").arg(OLD).arg("-").arg(end).arg("LIMIT").arg(0).arg(OLD_MAX);
        for set in [RunStatus::InProgress, RunStatus::RequiresAction].map(sets::of_status) {
            old.cmd("ZRANGEBYLEX").arg(set).arg("-").arg(&of_some).arg("LIMIT").arg(0).arg(OLD_MAX);
        }
        let old: Vec<Vec<String>> = self.one(&old).await?;
        let old = old.iter().flatten().filter_map(|place| place.parse().ok());
        let old: BTreeSet<Key> = old.filter(|key: &Key| key.run_id().is_some_and(|run| expired.has(run))).collect();

        if least < most {
            for set in sets.iter().filter(|set| kept_from.is_none() || *set == sets::PARKED) {
                self.prune_set(set, expired, (least, most)).await?;
            }
        }
        let mut pipeline = pipe();
        for set in sets {
            let end = kept_from.as_ref().filter(|_| set != sets::PARKED).unwrap_or(&of_all);
            pipeline.cmd("ZREMRANGEBYLEX").arg(set).arg("-").arg(end).ignore();
        }
        pipeline.cmd("EVAL").arg(PRUNE).arg(2).arg(SETS).arg(TOOLS).ignore();
        self.one::<()>(&pipeline).await?;
        if self.listed.is_some() {
            // So that it is known if runs are to be listed for longer later.
            self.cut(::nats::now().before(self.kept())).await?;
        }

        // What is written is in the sets again. The summaries expire some time after the end.
        for places in old.into_iter().collect::<Vec<_>>().chunks(ERASE_RUNS) {
            let found = lists::summaries(&self.writes, places).await?;
            let forgotten = places.iter().zip(&found).filter(|(_, found)| found.is_none());
            let forgotten: Vec<String> = forgotten.map(|(place, _)| place.to_string()).collect();
            if !forgotten.is_empty() {
                self.one::<()>(pipe().cmd("ZREM").arg(OLD).arg(forgotten).ignore()).await?;
            }
            self.write(&found.into_iter().flatten().collect::<Vec<_>>()).await?;
        }
        Ok(())
    }

    /// Removes members of a set between two moments that have left their partition.
    async fn prune_set(
        &self,
        set: &str,
        expired: &Expired,
        (least, most): (Timestamp, Timestamp),
    ) -> Result<(), Unavailable> {
        let end = format!("({}", Key::at(most));
        let mut from = format!("[{}", Key::at(least));
        loop {
            let mut pipeline = pipe();
            let script = pipeline.cmd("EVAL").arg(PRUNE_SET).arg(1).arg(set).arg(&from).arg(&end).arg(PRUNE_MEMBERS);
            for moment in expired.moments() {
                script.arg(Key::at(moment).to_string());
            }
            let (last,): (Option<String>,) = self.one(&pipeline).await?;
            let Some(last) = last else { return Ok(()) };
            from = format!("({last}");
        }
    }

    /// Deletes our keys, a part at a time, because the server may hold other data.
    pub(crate) async fn wipe(&self) -> Result<(), Unavailable> {
        let mut cursor = "0".to_owned();
        loop {
            let scan = pipe().cmd("SCAN").arg(&cursor).arg("MATCH").arg(EVERYTHING).arg("COUNT").arg(WIPE_KEYS).clone();
            let ((next, keys),): ((String, Vec<String>),) = self.one(&scan).await?;
            if !keys.is_empty() {
                self.one::<()>(pipe().cmd("UNLINK").arg(keys).ignore()).await?;
            }
            if next == "0" {
                // A rebuild may have begun before all was gone: without its watermark it begins again.
                return self.one(pipe().cmd("UNLINK").arg(MARKS).ignore()).await;
            }
            cursor = next;
        }
    }

    pub(crate) async fn get(&self, ids: &[RunId]) -> Result<Vec<Option<Arc<Summary>>>, Unavailable> {
        let keys: Vec<Key> = ids.iter().map(|id| Key::from(*id)).collect();
        lists::summaries(&self.reads, &keys).await
    }

    pub(crate) async fn coverage(&self) -> Result<Coverage, Unavailable> {
        let marks = marks(&self.reads).await?;
        let found = *self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(listed) = self.listed else { return Ok(coverage(&marks, found, None)) };
        let live = self.reads.live().await?;
        let (from,): (Option<u64>,) = self.reads.ask(live, pipe().cmd("GET").arg(FROM)).await?;
        Ok(coverage(&marks, found, listed.cut_before(from.map(Timestamp), ::nats::now())))
    }

    async fn one<T: ::redis::FromRedisValue>(&self, pipeline: &Pipeline) -> Result<T, Unavailable> {
        self.writes.ask(self.writes.live().await?, pipeline).await
    }
}

fn mark_text(mark: Watermark) -> String {
    match mark.reading {
        None => mark.through.to_string(),
        Some(nonce) => format!("{}+{nonce}", mark.through),
    }
}

fn mark_of(text: &str) -> Option<Watermark> {
    let (through, reading) = match text.split_once('+') {
        Some((through, nonce)) => (through, Some(nonce.parse().ok()?)),
        None => (text, None),
    };
    Some(Watermark { through: through.parse().ok()?, reading })
}

async fn marks(link: &Link) -> Result<Watermarks, Unavailable> {
    let mut pipeline = pipe();
    pipeline.cmd("HMGET").arg(MARKS);
    every().for_each(|shard| {
        pipeline.arg(shard.to_string());
    });
    let (texts,): (Vec<Option<String>>,) = link.ask(link.live().await?, &pipeline).await?;
    let mut marks: Watermarks = [None; SHARDS_MAX];
    for (mark, text) in marks.iter_mut().zip(texts) {
        *mark = text.as_deref().and_then(mark_of);
    }
    Ok(marks)
}

#[cfg(test)]
mod tests {
    use proto::v1::{CallErrorKind, CallState};

    use super::*;
    use crate::index::filter::{Ask, CallFilter, RunFilter};
    use crate::index::summary::CallSummary;

    fn run(age: Duration, status: RunStatus) -> Arc<Summary> {
        run_in(Shard(0), age, status)
    }

    fn run_in(shard: Shard, age: Duration, status: RunStatus) -> Arc<Summary> {
        let created = ::nats::now().before(age);
        let uuid = uuid::Builder::from_unix_timestamp_millis(created.0, &rand::random()).into_uuid();
        let id = RunId::new(shard, uuid);
        let deadline = created.after(run::limit::RUN_LIFE_MAX);
        let (open, tenant, schedule, calls) = (false, None, None, Vec::new());
        Arc::new(Summary { id, sequence: 7, status, open, created, deadline, tenant, schedule, calls })
    }

    async fn listed_now(store: &RedisStore) -> Vec<RunId> {
        let ask = Ask { behind: None, size: 100 };
        let page = store.list_runs(&RunFilter::default(), ask).await.expect("it is there");
        page.items.iter().map(|run| run.id).collect()
    }

    #[tokio::test]
    async fn an_open_run_stays_in_the_lists_however_old_it_is_and_leaves_them_when_it_is_forgotten() {
        let server = local::Store::start(|_| {}).await.expect("a store starts");
        let store = RedisStore::new(&server.url(), None).expect("an address");
        let hours = |hours: u64| Duration::from_secs(3600 * hours);
        let [waiting, crosses] = [240, 20].map(|age| run(hours(age), RunStatus::RequiresAction));
        let [old, young] = [20, 1].map(|age| run(hours(age), RunStatus::Completed));
        store.write(&[&waiting, &crosses, &old, &young].map(Arc::clone)).await.expect("written");
        for _ in 0..2 {
            store.prune(&Expired::at(&[::nats::now().before(hours(10))])).await.expect("it can be pruned");
            assert_eq!(listed_now(&store).await, [young.id, crosses.id, waiting.id]);
        }
        // It ended, and was forgotten a while later.
        let ended = Summary { status: RunStatus::Completed, sequence: 8, ..(*waiting).clone() };
        store.write(&[Arc::new(ended)]).await.expect("written");
        store.prune(&Expired::at(&[::nats::now().before(hours(10))])).await.expect("it can be pruned");
        assert_eq!(listed_now(&store).await, [young.id, crosses.id]);
        let (left,): (u64,) = store.one(pipe().cmd("ZCARD").arg(OLD)).await.expect("it is there");
        assert_eq!(left, 0);
    }

    #[tokio::test]
    async fn with_a_history_runs_stay_in_the_lists_but_not_parked_calls_that_have_left_the_log() {
        let server = local::Store::start(|_| {}).await.expect("a store starts");
        let hours = |hours: u64| Duration::from_secs(3600 * hours);
        let listed = Listed { span: hours(100), retention: hours(100) };
        let store = RedisStore::new(&server.url(), None).expect("an address").listing(listed);
        let parked = |age| {
            let call = CallSummary {
                id: "call_0".parse().expect("an id"),
                tool: "bash".parse().expect("a name"),
                pool: None,
                state: CallState::Failed,
                attempts: 1,
                parked: true,
                ended: None,
                not_before: None,
                error: CallErrorKind::Unspecified,
                asked_by: None,
            };
            Arc::new(Summary { calls: vec![call], ..(*run(hours(age), RunStatus::Completed)).clone() })
        };
        let [gone, old, young] = [120, 50, 1].map(parked);
        let waiting = Summary { status: RunStatus::RequiresAction, ..(*parked(60)).clone() };
        store.write(&[&gone, &old, &young, &Arc::new(waiting.clone())].map(Arc::clone)).await.expect("written");
        for _ in 0..2 {
            store.prune(&Expired::at(&[::nats::now().before(hours(20))])).await.expect("it can be pruned");
            assert_eq!(listed_now(&store).await, [young.id, old.id, waiting.id]);
            let of_parked = CallFilter { parked: true, ..CallFilter::default() };
            let page = store.list_calls(&of_parked, Ask { behind: None, size: 10 }).await.expect("it is there");
            let ids: Vec<RunId> = page.items.iter().map(|(run, _)| run.id).collect();
            assert_eq!(ids, [young.id, waiting.id], "the log still has an open run");
        }
        assert_eq!(store.coverage().await.expect("it is there").cut_before, None);
        let [late, early] = [hours(10), hours(30)].map(|age| ::nats::now().before(age));
        for moment in [early, late, early] {
            store.cut(moment).await.expect("noted");
        }
        assert_eq!(store.coverage().await.expect("it is there").cut_before, Some(late));
        store.wipe().await.expect("emptied");
        assert_eq!(store.coverage().await.expect("it is there").cut_before, None);
    }

    #[tokio::test]
    async fn runs_leave_the_lists_when_they_have_left_their_partition_and_not_when_others_did() {
        let server = local::Store::start(|_| {}).await.expect("a store starts");
        let store = RedisStore::new(&server.url(), None).expect("an address");
        let hours = |hours: u64| Duration::from_secs(3600 * hours);
        let of = |shard, age| run_in(Shard(shard), hours(age), RunStatus::Completed);
        let [first, second, third] = [of(0, 20), of(16, 20), of(35, 20)];
        let [oldest, youngest] = [of(16, 31), of(0, 1)];
        // More than one look at the set.
        let others: Vec<Arc<Summary>> = (0..PRUNE_MEMBERS).map(|_| of(1, 15)).collect();
        store.write(&others).await.expect("written");
        let all = [&first, &second, &third, &oldest, &youngest].map(Arc::clone);
        store.write(&all).await.expect("written");
        let moments = [10, 30, 10].map(|age| ::nats::now().before(hours(age)));
        store.prune(&Expired::at(&moments)).await.expect("it can be pruned");
        assert_eq!(listed_now(&store).await, [youngest.id, second.id]);
    }
}
