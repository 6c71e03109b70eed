//! Jobs that were given to a worker which died or hung before it stored its start. The log does not know of them, and
//! the broker waits for the job's whole lease. So the owner asks how far the queue was given out, and takes a job back
//! if no start of it was stored for some seconds.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use run::{Call, CallIndex, PoolId, Route, Run, RunId, Timestamp};

use crate::action::Queue;
use crate::world::{Workers, World};

/// How long a call waits before the position of its job is looked up.
const PATIENCE: Duration = Duration::from_secs(2);
/// A job that is out for this long without a stored start is given to another worker. If its worker is alive after all,
/// the start that is stored first counts. So this may be shorter than the time after which a death is certain, and a
/// change of owner may take longer.
pub(crate) const SILENT: Duration = Duration::from_secs(3);
/// A longer pause between two answers, beside the time that it took to check all calls, proves nothing: the broker was
/// away, and workers could not store a start.
const GAP_MAX: Duration = Duration::from_secs(3);
/// Jobs that were paused and are taken back in one round. There may be as many as a queue gives out, and they come
/// again by themselves: taking them back is only sooner.
const WAS_PAUSED_MAX: usize = 256;

/// A call that waits for a worker.
#[derive(Debug, Clone)]
pub(crate) struct Waiting {
    run: RunId,
    call: CallIndex,
    pool: PoolId,
    job: u64,
    /// Its tool or pool is paused.
    is_paused: bool,
}

impl Waiting {
    fn queue(&self) -> Queue {
        (self.pool.clone(), self.run.shard().partition())
    }
}

/// A job to take back.
#[derive(Debug, Clone)]
pub(crate) struct TakeBack {
    pub(crate) run: RunId,
    pub(crate) call: CallIndex,
    pub(crate) pool: PoolId,
    pub(crate) job: u64,
    pub(crate) was_paused: bool,
}

/// The jobs that are out, as far as the queues were asked without a gap.
#[derive(Debug, Clone, Default)]
pub(crate) struct Unclaimed {
    /// When the last answer came.
    answered: Option<Timestamp>,
    /// Since when each job is out.
    out: BTreeMap<(RunId, CallIndex, u64), Timestamp>,
    /// The calls that were found in this round.
    found: Vec<Waiting>,
    /// The calls whose queues are being asked; `None` if none are.
    asked: Option<Vec<Waiting>>,
    /// How long it took to find them.
    took: Duration,
    /// Waiting calls that were paused at some time: workers gave them back for up to half a minute, or they stand
    /// behind others that come again. No worker is to blame for that.
    was_paused: BTreeSet<(RunId, CallIndex)>,
}

impl Unclaimed {
    /// Notes a call that has waited for a while although workers that take it are alive.
    pub(crate) fn note(&mut self, run: &Run, call: &Call, now: Timestamp, world: &impl World) {
        let Some((job, _)) = call.unclaimed().filter(|(_, since)| now.since(*since) >= PATIENCE) else { return };
        let Route::Pool { pool, .. } = &call.spec().route else { return };
        let (spec, tenant, workers) = (call.spec(), run.tenant(), world.workers());
        if workers.keeps_unstarted(spec, tenant) || workers.takers(spec, tenant) == 0 {
            return;
        }
        // A job that was handed back waits in a queue that stands still, or every worker gives it back again.
        let is_paused = world.is_pool_paused(pool) || world.is_tool_paused(spec);
        self.found.push(Waiting { run: run.id(), call: call.index(), pool: pool.clone(), job, is_paused });
    }

    /// All calls were noted. Returns the queues that are to be asked.
    pub(crate) fn round_is_over(&mut self, took: Duration) -> Vec<Queue> {
        let found = std::mem::take(&mut self.found);
        if self.asked.is_some() {
            return Vec::new();
        }
        self.took = took;
        let was_paused = std::mem::take(&mut self.was_paused);
        let ids = found.iter().map(|waiting| ((waiting.run, waiting.call), waiting.is_paused));
        let still = ids.filter(|(id, is_paused)| *is_paused || was_paused.contains(id));
        self.was_paused = still.map(|(id, _)| id).collect();
        let asked: Vec<Waiting> = found.into_iter().filter(|waiting| !waiting.is_paused).collect();
        let queues: BTreeSet<Queue> = asked.iter().map(Waiting::queue).collect();
        if queues.is_empty() {
            self.out.clear();
        } else {
            self.asked = Some(asked);
        }
        queues.into_iter().collect()
    }

    /// The queues have answered: the last job of each that was given out. Returns the jobs to take back. `newest`
    /// returns the job that a call waits with now.
    pub(crate) fn take_back(
        &mut self,
        given: &BTreeMap<Queue, u64>,
        now: Timestamp,
        newest: impl Fn(RunId, CallIndex) -> Option<u64>,
        may_act: impl Fn(RunId) -> bool,
    ) -> Vec<TakeBack> {
        let before = self.answered.replace(now);
        let is_gap = before.is_none_or(|before| now.since(before) > GAP_MAX + self.took);
        let mut before = std::mem::take(&mut self.out);
        if is_gap {
            before.clear();
        }
        let (mut back, mut paused) = (Vec::new(), 0);
        for waiting in self.asked.take().unwrap_or_default() {
            let is_out = given.get(&waiting.queue()).is_some_and(|through| waiting.job <= *through);
            let Waiting { run, call, pool, job, .. } = waiting;
            // A start may have come while the queue was asked.
            if !is_out || newest(run, call) != Some(job) {
                continue;
            }
            let since = before.remove(&(run, call, job)).unwrap_or(now);
            let was_paused = self.was_paused.contains(&(run, call));
            let waits = now.since(since) < SILENT || !may_act(run) || was_paused && paused == WAS_PAUSED_MAX;
            if waits {
                self.out.insert((run, call, job), since);
            } else {
                paused += usize::from(was_paused);
                back.push(TakeBack { run, call, pool, job, was_paused });
            }
        }
        back
    }
}
