//! Counts why the calls of this coordinator's runs wait. Each count starts from zero, so errors do not add up.

use std::collections::BTreeMap;

use owner::Waiting;
use run::{Call, CallSpec, CallState, Partition, PoolId, Priority, Route, Run, TenantId, Timestamp, Version};
use tokio::time::{Duration, Instant};

use super::OwnerTask;
use crate::fleet::registry::Registry;
use crate::metrics::{self, COUNTS, label};
use crate::nats::journal::stored_bytes;
use crate::overview::{OverviewShare, Standing};

/// Calls of one tool in one pool.
#[derive(Debug, Default)]
struct Tally {
    waiting: u32,
    runnable: u32,
    running: u32,
    /// Of the waiting calls, those that no worker takes.
    without_worker: u32,
    /// Whether workers take calls of the tool's listed version for callers without a tenant.
    taken: Option<(Option<Version>, bool)>,
    oldest: Option<Timestamp>,
}

impl Tally {
    /// Counts a waiting call that a worker could start since then.
    fn runs_since(&mut self, since: Timestamp) {
        self.waiting += 1;
        self.runnable += 1;
        self.oldest = Some(self.oldest.map_or(since, |oldest| oldest.min(since)));
    }
}

/// Bytes of a job beside its arguments and metadata: names, policy, context.
const JOB_BYTES: u64 = 256;

#[derive(Debug, Default)]
pub(super) struct Tallies {
    client_calls: u32,
    approvals: u32,
    /// By pool, and by the name under which the tool is counted.
    tools: BTreeMap<PoolId, BTreeMap<String, Tally>>,
    /// Jobs that are still to be appended to each partition, and their bytes.
    jobs: [(u64, u64); Partition::MAX],
    /// Waiting and running calls.
    tenants: BTreeMap<TenantId, (u32, u32)>,
}

impl Tallies {
    /// `in_turn`: the call waits for its turn in the pool, and for nothing else.
    pub(super) fn note(&mut self, run: &Run, (call, in_turn): (&Call, bool), registry: &Registry) {
        match call.state() {
            CallState::WaitingForClient => self.client_calls += 1,
            CallState::AwaitingApproval => self.approvals += 1,
            CallState::Accepted => {
                let (jobs, bytes) = &mut self.jobs[run.id().shard().partition().as_usize()];
                (*jobs, *bytes) = (*jobs + 1, *bytes + job_bytes(call.spec()));
            }
            CallState::Delayed | CallState::Queued { .. } | CallState::Running(_) | CallState::Ended(_) => {}
        }
        let Route::Pool { pool, version, .. } = &call.spec().route else { return };
        if matches!(call.state(), CallState::Ended(_) | CallState::AwaitingApproval | CallState::Delayed) {
            return;
        }
        let waits = matches!(call.state(), CallState::Accepted | CallState::Queued { .. });
        let runs = matches!(call.state(), CallState::Running(_));
        if let Some(tenant) = run.tenant() {
            self.note_tenant(tenant, waits, runs);
        }
        let tally = self.of(pool, label(&call.spec().tool, registry));
        if waits && registry.settled {
            let taken = match &tally.taken {
                Some((of, taken)) if of == version => *taken,
                _ => registry.takers(call.spec(), None) > 0,
            };
            tally.taken = Some((version.clone(), taken));
            // A pool may serve some tenants only.
            let is_taken = taken || registry.takers(call.spec(), run.tenant()) > 0;
            tally.without_worker += u32::from(!is_taken);
        }
        match call.state() {
            CallState::Accepted if in_turn => tally.runs_since(call.in_turn_since()),
            CallState::Accepted => tally.waiting += 1,
            CallState::Queued { since } => tally.runs_since(*since),
            CallState::Running(_) => tally.running += 1,
            CallState::WaitingForClient | CallState::AwaitingApproval | CallState::Delayed | CallState::Ended(_) => {}
        }
    }

    /// Counts the calls of runs at rest.
    pub(super) fn note_resting(&mut self, waiting: Waiting) {
        self.client_calls = self.client_calls.saturating_add(waiting.client_calls);
        self.approvals = self.approvals.saturating_add(waiting.approvals);
    }

    /// The counts for the overview.
    fn standing(&self) -> impl Iterator<Item = ((&str, &str), Standing)> {
        let tools = self.tools.iter().flat_map(|(pool, tools)| tools.iter().map(move |tool| (pool, tool)));
        tools.map(|(pool, (tool, tally))| {
            let Tally { waiting, runnable, running, without_worker, oldest, .. } = *tally;
            ((pool.as_str(), tool.as_str()), Standing { waiting, runnable, without_worker, running, oldest })
        })
    }

    fn note_tenant(&mut self, tenant: &TenantId, waits: bool, runs: bool) {
        if !self.tenants.contains_key(tenant) {
            self.tenants.insert(tenant.clone(), (0, 0));
        }
        let (waiting, running) = self.tenants.get_mut(tenant).expect("it was made above");
        *waiting += u32::from(waits);
        *running += u32::from(runs);
    }

    /// Most calls are of a tool that was counted before, so no name is copied for them.
    fn of(&mut self, pool: &PoolId, tool: &str) -> &mut Tally {
        if !self.tools.get(pool).is_some_and(|tools| tools.contains_key(tool)) {
            self.tools.entry(pool.clone()).or_default().insert(tool.to_owned(), Tally::default());
        }
        self.tools.get_mut(pool).and_then(|tools| tools.get_mut(tool)).expect("it was made above")
    }
}

/// The shortest time for which a lag is shown, because scrapes are rarer than lags.
const LAG_SHOWN: Duration = Duration::from_secs(20);

/// The age of the newest entry on arrival: the worst of the last 20 to 40 seconds.
#[derive(Debug, Default)]
pub(super) struct Lag {
    newer: Duration,
    older: Duration,
    /// The start of the interval of `newer`.
    since: Option<Instant>,
}

impl Lag {
    pub(super) fn note(&mut self, lag: Duration, now: Instant) {
        self.turn(now);
        self.newer = self.newer.max(lag);
    }

    fn worst(&mut self, now: Instant) -> Duration {
        self.turn(now);
        self.newer.max(self.older)
    }

    fn turn(&mut self, now: Instant) {
        let since = *self.since.get_or_insert(now);
        if now - since >= LAG_SHOWN {
            // After a longer sleep, the older lags have expired as well.
            self.older = if now - since < 2 * LAG_SHOWN { self.newer } else { Duration::ZERO };
            (self.newer, self.since) = (Duration::ZERO, Some(now));
        }
    }
}

/// Roughly the bytes of a call's job in the log.
pub(crate) fn job_bytes(spec: &CallSpec) -> u64 {
    let bytes = spec.arguments.len() + spec.metadata.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>();
    stored_bytes(u32::try_from(bytes).unwrap_or(u32::MAX)) + JOB_BYTES
}

impl OwnerTask {
    /// Publishes the counts, and values that need no counting.
    pub(super) fn tell_tallies(&mut self, tallies: &Tallies, registry: &Registry) {
        let (mut shards, mut runs, mut resting, mut erasures) = (0_u32, 0_u32, 0_u32, 0_u32);
        for (slice, shard) in self.slices.iter().zip(self.owner.shards()).filter(|(_, shard)| shard.phase().leads()) {
            shards += 1;
            runs += u32::try_from(shard.open_len()).unwrap_or(u32::MAX);
            resting += u32::try_from(shard.resting().len()).unwrap_or(u32::MAX);
            erasures += u32::try_from(slice.owed.len()).unwrap_or(u32::MAX);
        }
        for (partition, (jobs, bytes)) in self.io.journals.partitions().zip(tallies.jobs) {
            self.io.journals.of_partition(partition).count_deferred(jobs, bytes);
        }
        COUNTS.shards.set(f64::from(shards));
        COUNTS.shards_all.set(self.io.journals.shards().len() as f64);
        COUNTS.runs_open.set(f64::from(runs));
        COUNTS.runs_resting.set(f64::from(resting));
        COUNTS.erasures.set(f64::from(erasures));
        COUNTS.client_calls.set(f64::from(tallies.client_calls));
        COUNTS.approvals.set(f64::from(tallies.approvals));
        let lag = self.lag.worst(Instant::now());
        COUNTS.log_lag.set(lag.as_secs_f64());
        let now = ::nats::now();
        let each = |value: fn(&Tally, Timestamp) -> f64| {
            let tools = tallies.tools.iter().flat_map(|(pool, tools)| tools.iter().map(move |tool| (pool, tool)));
            tools.map(move |(pool, (tool, tally))| (vec![pool.as_str(), tool.as_str()], value(tally, now)))
        };
        metrics::WAITING.replace(each(|tally, _| f64::from(tally.waiting)));
        metrics::WITHOUT_WORKER.replace(each(|tally, _| f64::from(tally.without_worker)));
        metrics::RUNNABLE.replace(each(|tally, _| f64::from(tally.runnable)));
        metrics::RUNNING.replace(each(|tally, _| f64::from(tally.running)));
        metrics::QUEUE_AGE
            .replace(each(|tally, now| tally.oldest.map_or(0.0, |oldest| now.since(oldest).as_secs_f64())));
        self.share_figures(tallies, (shards, runs), lag, now);
        let turns = self.io.turns.by_priority();
        let turns = turns.iter().flat_map(|(pool, calls)| {
            let levels = [Priority::Low, Priority::Normal, Priority::High].into_iter().zip(*calls);
            levels.map(move |(priority, calls)| (vec![pool.as_str(), priority.name()], calls as f64))
        });
        metrics::TURNS_WAITING.replace(turns);
        metrics::tenants::show(tallies.tenants.iter().map(|(tenant, counts)| (tenant, *counts)));
        let pools: Vec<_> = registry.pools().into_iter().map(|pool| (registry.living(&pool), pool)).collect();
        let each = |value: fn(&crate::fleet::registry::Living) -> f64| {
            pools.iter().map(move |(living, pool)| (vec![pool.as_str()], value(living)))
        };
        metrics::POOL_WORKERS.replace(each(|living| living.live as f64));
        metrics::POOL_PULLING.replace(each(|living| living.pulling as f64));
        metrics::POOL_SLOTS.replace(each(|living| living.slots as f64));
        metrics::POOL_DRAINING.replace(each(|living| (living.live - living.taking) as f64));
        let mut refused: BTreeMap<&str, u32> = BTreeMap::new();
        for it in registry.catalog.refused.iter().filter(|it| !it.gives_way) {
            *refused.entry(it.hosts.0.as_str()).or_default() += 1;
        }
        metrics::TOOLS_REFUSED.replace(refused.into_iter().map(|(pool, count)| (vec![pool], f64::from(count))));
        let paused = self.io.paused.borrow();
        metrics::POOL_PAUSED.replace(paused.pools().map(|(pool, _)| (vec![pool.as_str()], 1.0)));
        metrics::TOOL_PAUSED.replace(paused.tools().map(|(tool, _)| (vec![tool.as_str()], 1.0)));
    }

    /// Publishes this coordinator's share of the overview.
    fn share_figures(&mut self, tallies: &Tallies, (shards, runs): (u32, u32), lag: Duration, now: Timestamp) {
        let (newest_part, tools) = self.ends.figures.share(tallies.standing(), now);
        self.io.overview.send_modify(|share| {
            *share = OverviewShare {
                coordinator: std::mem::take(&mut share.coordinator),
                leaving: false,
                shards,
                runs_open: u64::from(runs),
                waiting_for_client: u64::from(tallies.client_calls),
                awaiting_approval: u64::from(tallies.approvals),
                lag_ms: u64::try_from(lag.as_millis()).unwrap_or(u64::MAX),
                newest_part,
                tools,
            };
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lag_is_shown_for_a_while_and_not_for_ever() {
        let (begin, second) = (Instant::now(), Duration::from_secs(1));
        let mut lag = Lag::default();
        lag.note(7 * second, begin);
        lag.note(second, begin + 19 * second);
        assert_eq!(lag.worst(begin + 21 * second), 7 * second);
        lag.note(2 * second, begin + 22 * second);
        assert_eq!(lag.worst(begin + 42 * second), 2 * second, "the first one is 42 s old");
        assert_eq!(lag.worst(begin + 90 * second), Duration::ZERO);
    }
}
