//! The overview of `toolyard.v1.FleetService`: figures from memory, of all coordinators.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use proto::convert::api::timestamp;
use proto::v1;
use proto::v1::pause::What as Paused;
use run::{PoolId, TenantId, Timestamp, ToolName};
use tokio::time::Instant;

use super::fleet::paused_out;
use super::{Api, ApiError};
use crate::admission::error::RequestError;
use crate::auth::callers::Role;
use crate::fleet::registry::Registry;
use crate::metrics::COUNTS;
use crate::overview::{ToolSum, WINDOW};

/// The tools and pools that a caller may see.
struct Visible {
    tools: BTreeSet<ToolName>,
    pools: BTreeSet<PoolId>,
}

impl Visible {
    fn tool(&self, pool: &str, tool: &str) -> bool {
        // Calls of tools that are not known any more may be those of another tenant.
        let has_tool = tool.parse().is_ok_and(|tool: ToolName| self.tools.contains(&tool));
        has_tool && (pool.is_empty() || pool.parse().is_ok_and(|pool: PoolId| self.pools.contains(&pool)))
    }
}

impl Api {
    /// A caller of a tenant sees the tools and pools that the tenant can use, with the calls of all tenants there.
    pub(crate) fn get_overview(&self, _: v1::GetOverviewRequest) -> Result<v1::GetOverviewResponse, ApiError> {
        self.runs.caller.must(Role::Read).map_err(RequestError::from)?;
        let tenant = self.runs.caller.lists(None).map_err(RequestError::from)?;
        let registry = Arc::clone(&self.runs.registry.borrow());
        let visible = tenant.as_ref().map(|tenant| self.visible(tenant, &registry));
        let sum = self.runs.overview.read(Instant::now(), ::nats::now());
        let is_visible = |tool: &&ToolSum| visible.as_ref().is_none_or(|it| it.tool(&tool.pool, &tool.tool));
        let of_all = |count: u64| tenant.is_none().then_some(count);
        Ok(v1::GetOverviewResponse {
            time: Some(timestamp(sum.time)),
            window: Some(span(WINDOW)),
            tools: sum.tools.iter().filter(is_visible).map(|tool| tool_out(tool, sum.time)).collect(),
            pools: self.pools_out(&registry, visible.as_ref()),
            log: Some(log_out(sum.lag)),
            shards: sum.shards,
            runs_open: of_all(sum.runs_open),
            waiting_for_client: of_all(sum.waiting_for_client),
            awaiting_approval: of_all(sum.awaiting_approval),
            coordinators: small(sum.coordinators),
            pauses: self.pauses_out(visible.as_ref()),
        })
    }

    fn visible(&self, tenant: &TenantId, registry: &Registry) -> Visible {
        let shows = self.runs.callers.shows(&self.runs.caller);
        let shown: Vec<_> = registry.catalog_of(Some(tenant)).after(None).iter().filter(|entry| shows(entry)).collect();
        let pools = shown.iter().flat_map(|entry| entry.all_pools());
        Visible {
            pools: pools.filter(|pool| registry.views.closed(pool, tenant).is_none()).cloned().collect(),
            tools: shown.iter().map(|entry| entry.hosted.manifest.name.clone()).collect(),
        }
    }

    fn pools_out(&self, registry: &Registry, visible: Option<&Visible>) -> Vec<v1::PoolOverview> {
        let paused = Arc::clone(&self.runs.pauses.current.borrow());
        let pools = registry.pools().into_iter().filter(|pool| visible.is_none_or(|it| it.pools.contains(pool)));
        let pools = pools.map(|pool| {
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

    /// Who paused something is shown to admins only.
    fn pauses_out(&self, visible: Option<&Visible>) -> Vec<v1::Pause> {
        let paused = Arc::clone(&self.runs.pauses.current.borrow());
        let tools = paused.tools().filter(|(tool, _)| visible.is_none_or(|it| it.tools.contains(*tool)));
        let pools = paused.pools().filter(|(pool, _)| visible.is_none_or(|it| it.pools.contains(*pool)));
        let tools = tools.map(|(tool, record)| paused_out(Paused::Tool(tool.to_string()), record));
        let pools = pools.map(|(pool, record)| paused_out(Paused::Pool(pool.to_string()), record));
        let hide = |pause: v1::Pause| if visible.is_some() { v1::Pause { by: String::new(), ..pause } } else { pause };
        tools.chain(pools).map(hide).collect()
    }
}

fn tool_out(figures: &ToolSum, now: Timestamp) -> v1::ToolOverview {
    let ToolSum { pool, tool, standing, ended: [completed, failed, cancelled, expired], ended_each, .. } = figures;
    let [start, end] = [figures.to_start, figures.to_end].map(|both| both.map(|both| both.map(span)));
    let [to_start_p50, to_start_p95] = start.map_or([None, None], |both| both.map(Some));
    let [to_end_p50, to_end_p95] = end.map_or([None, None], |both| both.map(Some));
    v1::ToolOverview {
        pool: pool.clone(),
        tool: tool.clone(),
        waiting: standing.waiting,
        runnable: standing.runnable,
        without_worker: standing.without_worker,
        running: standing.running,
        oldest_waiting: standing.oldest.map(|oldest| span(now.since(oldest))),
        completed: *completed,
        failed: *failed,
        cancelled: *cancelled,
        expired: *expired,
        ended_each: ended_each.clone(),
        to_start_p50,
        to_start_p95,
        to_end_p50,
        to_end_p95,
    }
}

/// `lag`: the longest of all coordinators. The rest is as this coordinator sees it.
fn log_out(lag: Duration) -> v1::LogOverview {
    v1::LogOverview {
        reachable: COUNTS.log_reached.value() > 0.0,
        bytes: whole(COUNTS.log_bytes.value()),
        bytes_max: whole(COUNTS.log_bytes_max.value()),
        messages: whole(COUNTS.log_messages.value()),
        messages_max: whole(COUNTS.log_messages_max.value()),
        lag: Some(span(lag)),
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
