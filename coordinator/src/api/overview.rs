//! The overview of `toolyard.v1.FleetService`: figures from memory.

use std::sync::Arc;
use std::time::Duration;

use proto::convert::api::timestamp;
use proto::v1;
use run::Timestamp;

use super::{Api, ApiError};
use crate::admission::error::RequestError;
use crate::auth::callers::Role;
use crate::metrics::COUNTS;
use crate::overview::{Figures, WINDOW};

impl Api {
    pub(crate) fn get_overview(&self, _: v1::GetOverviewRequest) -> Result<v1::GetOverviewResponse, ApiError> {
        self.runs.caller.must(Role::Admin).map_err(RequestError::from)?;
        let now = ::nats::now();
        Ok(v1::GetOverviewResponse {
            time: Some(timestamp(now)),
            window: Some(span(WINDOW)),
            tools: self.runs.overview.read(now).into_iter().map(|figures| tool_out(figures, now)).collect(),
            pools: self.pools_out(),
            log: Some(log_out()),
            shards: count(COUNTS.shards.value()),
            runs_open: whole(COUNTS.runs_open.value()),
            waiting_for_client: whole(COUNTS.client_calls.value()),
            awaiting_approval: whole(COUNTS.approvals.value()),
        })
    }

    fn pools_out(&self) -> Vec<v1::PoolOverview> {
        let registry = Arc::clone(&self.runs.registry.borrow());
        let paused = Arc::clone(&self.runs.pauses.current.borrow());
        let pools = registry.pools().into_iter().map(|pool| {
            let living = registry.living(&pool);
            v1::PoolOverview {
                workers: small(living.live),
                pulling: small(living.pulling),
                draining: small(living.live - living.taking),
                slots: living.slots,
                paused: paused.stops(&pool),
                pool: pool.to_string(),
            }
        });
        pools.collect()
    }
}

fn tool_out(figures: Figures, now: Timestamp) -> v1::ToolOverview {
    let Figures { pool, tool, standing, ended: [completed, failed, cancelled, expired], ended_each, .. } = figures;
    let [start, end] = [figures.to_start, figures.to_end].map(|both| both.map(|both| both.map(span)));
    let [to_start_p50, to_start_p95] = start.map_or([None, None], |both| both.map(Some));
    let [to_end_p50, to_end_p95] = end.map_or([None, None], |both| both.map(Some));
    v1::ToolOverview {
        pool,
        tool,
        waiting: standing.waiting,
        runnable: standing.runnable,
        without_worker: standing.without_worker,
        running: standing.running,
        oldest_waiting: standing.oldest.map(|oldest| span(now.since(oldest))),
        completed,
        failed,
        cancelled,
        expired,
        ended_each,
        to_start_p50,
        to_start_p95,
        to_end_p50,
        to_end_p95,
    }
}

fn log_out() -> v1::LogOverview {
    v1::LogOverview {
        reachable: COUNTS.log_reached.value() > 0.0,
        bytes: whole(COUNTS.log_bytes.value()),
        bytes_max: whole(COUNTS.log_bytes_max.value()),
        messages: whole(COUNTS.log_messages.value()),
        messages_max: whole(COUNTS.log_messages_max.value()),
        lag: Some(span(Duration::try_from_secs_f64(COUNTS.log_lag.value()).unwrap_or_default())),
        replicas: count(COUNTS.log_replicas.value()),
        replicas_current: count(COUNTS.log_replicas_current.value()),
    }
}

fn span(span: Duration) -> prost_types::Duration {
    let seconds = i64::try_from(span.as_secs()).unwrap_or(i64::MAX);
    prost_types::Duration { seconds, nanos: i32::try_from(span.subsec_nanos()).unwrap_or_default() }
}

/// The value of a gauge that counts; 0 for one that is infinite because there is no limit.
fn whole(value: f64) -> u64 {
    if value.is_finite() { value as u64 } else { 0 }
}

fn count(value: f64) -> u32 {
    u32::try_from(whole(value)).unwrap_or(u32::MAX)
}

fn small(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
