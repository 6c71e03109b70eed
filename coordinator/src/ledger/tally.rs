//! Counts every second what the calls of our runs wait for. Nothing is kept between two tallies, so nothing can drift.

use std::collections::BTreeMap;
use std::sync::Arc;

use run::{CallState, Route, Timestamp};

use super::Keeper;
use super::slice::Open;
use crate::metrics::{self, COUNTS, label};

/// Calls of one tool in one pool.
#[derive(Debug, Default)]
struct Tally {
    waiting: u32,
    runnable: u32,
    running: u32,
    /// Of those that wait, the ones that no worker takes.
    without_worker: u32,
    /// Whether workers take calls of the tool as it is known to those without a tenant.
    taken: Option<bool>,
    oldest: Option<Timestamp>,
}

impl Keeper {
    pub(super) fn tally(&mut self) {
        let registry = Arc::clone(&self.rim.registry.borrow());
        let mut tools: BTreeMap<(&str, &str), Tally> = BTreeMap::new();
        let (mut shards, mut runs, mut client_calls, mut approvals, mut erasures) = (0_u32, 0_u32, 0_u32, 0_u32, 0_u32);
        for slice in self.slices.iter().filter(|slice| slice.phase.leads()) {
            shards += 1;
            runs += u32::try_from(slice.runs.len()).unwrap_or(u32::MAX);
            erasures += u32::try_from(slice.owed.len()).unwrap_or(u32::MAX);
            let calls = slice
                .runs
                .values()
                .flat_map(|Open { known, .. }| known.run.calls().iter().map(|call| (&known.run, call)));
            for (run, call) in calls {
                match call.state() {
                    CallState::WaitingForClient => client_calls += 1,
                    CallState::AwaitingApproval => approvals += 1,
                    CallState::Accepted | CallState::Queued { .. } | CallState::Running(_) | CallState::Ended(_) => {}
                }
                let Route::Pool { pool, .. } = &call.spec().route else { continue };
                if matches!(call.state(), CallState::Ended(_) | CallState::AwaitingApproval) {
                    continue;
                }
                let tally = tools.entry((pool.as_str(), label(&call.spec().tool, &registry))).or_default();
                let waits = matches!(call.state(), CallState::Accepted | CallState::Queued { .. });
                if waits && registry.settled {
                    let tool = &call.spec().tool;
                    let taken = *tally.taken.get_or_insert_with(|| registry.takers(pool, tool, None) > 0);
                    // A pool may serve some tenants only.
                    let is_taken = taken || registry.takers(pool, tool, run.tenant()) > 0;
                    tally.without_worker += u32::from(!is_taken);
                }
                match call.state() {
                    CallState::Accepted => tally.waiting += 1,
                    CallState::Queued { since } => {
                        tally.waiting += 1;
                        tally.runnable += 1;
                        tally.oldest = Some(tally.oldest.map_or(*since, |oldest| oldest.min(*since)));
                    }
                    CallState::Running(_) => tally.running += 1,
                    CallState::WaitingForClient | CallState::AwaitingApproval | CallState::Ended(_) => {}
                }
            }
        }
        COUNTS.shards.set(f64::from(shards));
        COUNTS.runs_open.set(f64::from(runs));
        COUNTS.erasures.set(f64::from(erasures));
        COUNTS.client_calls.set(f64::from(client_calls));
        COUNTS.approvals.set(f64::from(approvals));
        COUNTS.log_lag.set(std::mem::take(&mut self.lag).as_secs_f64());
        let now = proto::now();
        let each = |value: fn(&Tally, Timestamp) -> f64| {
            tools.iter().map(move |((pool, tool), tally)| (vec![*pool, *tool], value(tally, now)))
        };
        metrics::WAITING.replace(each(|tally, _| f64::from(tally.waiting)));
        metrics::WITHOUT_WORKER.replace(each(|tally, _| f64::from(tally.without_worker)));
        metrics::RUNNABLE.replace(each(|tally, _| f64::from(tally.runnable)));
        metrics::RUNNING.replace(each(|tally, _| f64::from(tally.running)));
        metrics::QUEUE_AGE
            .replace(each(|tally, now| tally.oldest.map_or(0.0, |oldest| now.since(oldest).as_secs_f64())));
        let pools: Vec<_> = registry.pools().into_iter().map(|pool| (registry.living(&pool), pool)).collect();
        let each = |value: fn(&crate::registry::Living) -> f64| {
            pools.iter().map(move |(living, pool)| (vec![pool.as_str()], value(living)))
        };
        metrics::POOL_WORKERS.replace(each(|living| living.live as f64));
        metrics::POOL_PULLING.replace(each(|living| living.pulling as f64));
        metrics::POOL_SLOTS.replace(each(|living| living.slots as f64));
        let mut refused: BTreeMap<&str, u32> = BTreeMap::new();
        for it in registry.catalog.refused.iter().filter(|it| !it.gives_way) {
            *refused.entry(it.hosts.0.as_str()).or_default() += 1;
        }
        metrics::TOOLS_REFUSED.replace(refused.into_iter().map(|(pool, count)| (vec![pool], f64::from(count))));
        let paused = self.rim.paused.borrow();
        metrics::POOL_PAUSED.replace(paused.pools().map(|(pool, _)| (vec![pool.as_str()], 1.0)));
        metrics::TOOL_PAUSED.replace(paused.tools().map(|(tool, _)| (vec![tool.as_str()], 1.0)));
    }
}
