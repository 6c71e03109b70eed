//! Jobs that a worker was given that died, or stands still, before it stored its start. The log does not know of them, and
//! the broker waits for the job's whole lease. So the owner looks how far the queue was given out, and takes a job back of
//! which nothing is heard for some seconds.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream;
use run::{Call, CallIndex, PoolId, Route, Run, RunId, Timestamp};
use tokio::time::Instant;

use super::Keeper;
use crate::nats::queues::Given;
use crate::paused::Paused;
use crate::registry::Registry;

/// How long a call waits before it is looked where its job is.
const PATIENCE: Duration = Duration::from_secs(2);
/// A job that is out for this long with no start stored is given to another. Should its worker live after all, the start
/// that is stored first counts; so it may be shorter than what it takes to be sure of a death, and outlast a change of owner.
const SILENT: Duration = Duration::from_secs(3);
/// A longer pause between two looks, beside what it took to look at all calls, proves nothing: the broker was away,
/// and workers could not store a start.
const GAP_MAX: Duration = Duration::from_secs(3);
/// Jobs that were paused and are taken back in one look. There may be as many as a queue gives out, and they come again by
/// themselves: it is only sooner.
const WAS_HELD_MAX: usize = 256;
/// Queues that are asked for at once.
const ASKED_MAX: usize = 8;

/// Since when jobs are out, as far as was looked without a gap.
#[derive(Debug, Default)]
pub(super) struct Unclaimed {
    looked: Option<Instant>,
    out: HashMap<(RunId, CallIndex, u64), Instant>,
    /// Those of which the queues are being asked.
    asked: Vec<Waiting>,
    /// How long it took to find them.
    took: Duration,
    /// Those that wait and were paused at some time: workers gave them back for up to half a minute, or they stand behind others
    /// that come again. No worker is to blame for that.
    was_held: HashSet<(RunId, CallIndex)>,
}

/// How far queues were given out.
pub(super) type Look = HashMap<PoolId, Given>;

/// A call that waits for a worker.
#[derive(Debug)]
pub(super) struct Waiting {
    run: RunId,
    call: CallIndex,
    pool: PoolId,
    job: u64,
    /// Its tool or pool is paused.
    is_held: bool,
}

impl Waiting {
    /// A call that has waited for a while although workers live that may run it.
    pub(super) fn of(run: &Run, call: &Call, registry: &Registry, paused: &Paused, now: Timestamp) -> Option<Self> {
        let (job, _) = call.unclaimed().filter(|(_, since)| now.since(*since) >= PATIENCE)?;
        let Route::Pool { pool, .. } = &call.spec().route else { return None };
        // A worker keeps the calls of a tool that may not have more at once, and stores no start of them.
        let tool = registry.catalog_of(run.tenant()).find(&call.spec().tool);
        let is_kept = tool.is_some_and(|tool| tool.of(pool).hosted.manifest.max_concurrent.is_some());
        let may_run = !is_kept && registry.takers(call.spec(), run.tenant()) > 0;
        // What was handed back waits in a queue that stands still, or goes back there from every worker.
        let is_held = paused.stops(pool) || paused.holds(registry.real_name(&call.spec().tool));
        may_run.then(|| Self { run: run.id(), call: call.index(), pool: pool.clone(), job, is_held })
    }
}

impl Keeper {
    /// Asks about the queues of calls that wait although workers live.
    pub(super) fn look_at_queues(&mut self, waiting: Vec<Waiting>, took: Duration) {
        if !self.looks.is_empty() {
            return;
        }
        self.unclaimed.took = took;
        let was_held = std::mem::take(&mut self.unclaimed.was_held);
        let ids = waiting.iter().map(|waiting| ((waiting.run, waiting.call), waiting.is_held));
        self.unclaimed.was_held =
            ids.filter(|(id, is_held)| *is_held || was_held.contains(id)).map(|(id, _)| id).collect();
        self.unclaimed.asked = waiting.into_iter().filter(|waiting| !waiting.is_held).collect();
        let pools: BTreeSet<PoolId> = self.unclaimed.asked.iter().map(|waiting| waiting.pool.clone()).collect();
        if pools.is_empty() {
            self.unclaimed.out.clear();
            return;
        }
        let queues = self.rim.queues.clone();
        self.looks.spawn(async move {
            let asked = stream::iter(pools).map(|pool| {
                let queues = &queues;
                async move { queues.given(&pool).await.map(|given| (pool, given)) }
            });
            asked.buffer_unordered(ASKED_MAX).filter_map(std::future::ready).collect().await
        });
    }

    /// Takes back what is out for too long.
    pub(super) fn looked_at_queues(&mut self, look: &Look) {
        let now = Instant::now();
        let gap = self.unclaimed.looked.replace(now).is_none_or(|looked| now - looked > GAP_MAX + self.unclaimed.took);
        let mut before = std::mem::take(&mut self.unclaimed.out);
        if gap {
            before.clear();
        }
        let mut held_before = 0;
        for Waiting { run, call, pool, job, .. } in std::mem::take(&mut self.unclaimed.asked) {
            let Some(given) = look.get(&pool).filter(|given| job <= given.through) else { continue };
            // A start may have come while the queue was asked.
            let waits = self.open(run).and_then(|open| open.known.run.call(call)).and_then(Call::unclaimed);
            if waits.is_none_or(|(newest, _)| newest != job) {
                continue;
            }
            let since = before.remove(&(run, call, job)).unwrap_or(now);
            if now - since < SILENT || !self.may_act(run.shard()) {
                self.unclaimed.out.insert((run, call, job), since);
                continue;
            }
            if self.unclaimed.was_held.contains(&(run, call)) {
                if held_before == WAS_HELD_MAX {
                    self.unclaimed.out.insert((run, call, job), since);
                    continue;
                }
                held_before += 1;
            } else {
                tracing::warn!(run.id = %run, call = call.0, %pool, "taking back a job that no worker takes up");
            }
            let (queues, given) = (self.rim.queues.clone(), *given);
            self.say(async move { queues.take_back(&pool, job, given).await });
        }
    }
}
