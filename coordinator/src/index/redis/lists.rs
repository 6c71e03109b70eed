//! Lists and counts from the sets. Each request reads a bounded number of members, then returns the matches and the
//! position to continue from.

use std::collections::BTreeMap;
use std::sync::Arc;

use ::redis::pipe;
use proto::v1::{CallState, RunStatus};
use run::{CallIndex, ToolName};

use super::link::Link;
use super::{RedisStore, TOOLS, run_key, sets, wire};
use crate::index::filter::{Ask, CallFilter, Coverage, Created, Key, Page, Place, RunFilter};
use crate::index::summary::Summary;
use crate::index::{Counts, Unavailable};

/// Members that are read together.
const SCAN: usize = 256;
/// Members that are read for one page.
const SCAN_MAX: usize = 10_000;
/// Calls of one page of runs, because a response must stay small.
const PAGE_CALLS_MAX: usize = 10_000;
/// Tools whose calls are counted by state.
const TOOLS_MAX: usize = 1000;

const STATUSES: [RunStatus; 6] = [
    RunStatus::InProgress,
    RunStatus::RequiresAction,
    RunStatus::Completed,
    RunStatus::Failed,
    RunStatus::Cancelled,
    RunStatus::Expired,
];
const STATES: [CallState; 10] = [
    CallState::Accepted,
    CallState::WaitingForClient,
    CallState::AwaitingApproval,
    CallState::Delayed,
    CallState::Queued,
    CallState::Running,
    CallState::Completed,
    CallState::Failed,
    CallState::Cancelled,
    CallState::Expired,
];

impl RedisStore {
    pub(crate) async fn list_runs(
        &self,
        filter: &RunFilter,
        ask: Ask<Key>,
    ) -> Result<Page<Arc<Summary>, Key>, Unavailable> {
        let link = &self.reads;
        let coverage = self.coverage().await?;
        let set = smallest(link, sets::of_runs(filter)).await?;
        let mut walk = Walk::new(set, filter.created, ask.behind.map(|key| key.to_string()));
        let (mut items, mut calls) = (Vec::new(), 0);
        loop {
            let members = walk.next(link).await?;
            let places: Vec<Key> = members.iter().filter_map(|member| member.parse().ok()).collect();
            let found = summaries(link, &places).await?;
            for (place, run) in places.into_iter().zip(found) {
                walk.pass(place.to_string());
                let admitted = run.filter(|run| filter.admits(run));
                calls += admitted.as_ref().map_or(0, |run| run.calls.len());
                items.extend(admitted);
                if items.len() >= ask.size || calls >= PAGE_CALLS_MAX {
                    return Ok(Page { items, behind: Some(place), coverage });
                }
            }
            if walk.is_over() {
                return Ok(Page { items, behind: walk.rest().and_then(|place| place.parse().ok()), coverage });
            }
        }
    }

    pub(crate) async fn list_calls(
        &self,
        filter: &CallFilter,
        ask: Ask<Place>,
    ) -> Result<Page<(Arc<Summary>, CallIndex), Place>, Unavailable> {
        let link = &self.reads;
        let coverage = self.coverage().await?;
        let set = smallest(link, sets::of_calls(filter)).await?;
        let mut walk = Walk::new(set, filter.created, ask.behind.map(|place| place.to_string()));
        let mut items = Vec::new();
        loop {
            let members = walk.next(link).await?;
            let places: Vec<Place> = members.iter().filter_map(|member| member.parse().ok()).collect();
            let mut keys: Vec<Key> = places.iter().map(|place| place.run).collect();
            keys.dedup();
            let found = summaries(link, &keys).await?;
            let runs: BTreeMap<Key, Arc<Summary>> =
                keys.into_iter().zip(found).filter_map(|(key, run)| Some((key, run?))).collect();
            for place in places {
                walk.pass(place.to_string());
                if let Some(run) = runs.get(&place.run)
                    && run.calls.get(place.call.as_usize()).is_some_and(|call| filter.admits(run, call))
                {
                    items.push((Arc::clone(run), place.call));
                }
                if items.len() >= ask.size {
                    return Ok(Page { items, behind: Some(place), coverage });
                }
            }
            if walk.is_over() {
                return Ok(Page { items, behind: walk.rest().and_then(|place| place.parse().ok()), coverage });
            }
        }
    }

    pub(crate) async fn count(&self) -> Result<(Counts, Coverage), Unavailable> {
        let link = &self.reads;
        let coverage = self.coverage().await?;
        let (mut tools,): (Vec<String>,) = link.ask(link.live().await?, pipe().cmd("SMEMBERS").arg(TOOLS)).await?;
        tools.sort_unstable();
        tools.truncate(TOOLS_MAX);
        let by_tool = tools.iter().flat_map(|tool| STATES.map(|state| sets::of_tool(tool, state)));
        let named: Vec<String> = STATUSES
            .map(sets::of_status)
            .into_iter()
            .chain(STATES.map(sets::of_state))
            .chain([sets::PARKED.to_owned()])
            .chain(by_tool)
            .collect();
        let mut sizes = sizes(link, &named).await?.into_iter();
        let mut counts = Counts::default();
        counts.runs.extend(STATUSES.into_iter().zip(sizes.by_ref()).filter(|(_, count)| *count > 0));
        counts.calls.extend(STATES.into_iter().zip(sizes.by_ref()).filter(|(_, count)| *count > 0));
        counts.parked = sizes.next().unwrap_or_default();
        for tool in tools {
            let states: BTreeMap<_, _> =
                STATES.into_iter().zip(sizes.by_ref()).filter(|(_, count)| *count > 0).collect();
            if let Ok(tool) = tool.parse::<ToolName>()
                && !states.is_empty()
            {
                counts.tools.insert(tool, states);
            }
        }
        Ok((counts, coverage))
    }
}

/// The summaries at these positions; `None` if there is none any more, or it cannot be decoded.
pub(super) async fn summaries(link: &Link, places: &[Key]) -> Result<Vec<Option<Arc<Summary>>>, Unavailable> {
    if places.is_empty() {
        return Ok(Vec::new());
    }
    let mut pipeline = pipe();
    for place in places {
        pipeline.cmd("HGET").arg(run_key(*place)).arg("d");
    }
    let found: Vec<Option<Vec<u8>>> = link.ask(link.live().await?, &pipeline).await?;
    Ok(found.into_iter().map(|bytes| wire::decode(&bytes?).map(Arc::new)).collect())
}

async fn sizes(link: &Link, sets: &[String]) -> Result<Vec<u64>, Unavailable> {
    let mut pipeline = pipe();
    for set in sets {
        pipeline.cmd("ZCARD").arg(set);
    }
    link.ask(link.live().await?, &pipeline).await
}

async fn smallest(link: &Link, sets: Vec<String>) -> Result<String, Unavailable> {
    let sizes = if sets.len() > 1 { sizes(link, &sets).await? } else { vec![0] };
    let smallest = sets.into_iter().zip(sizes).min_by_key(|(_, size)| *size);
    Ok(smallest.map_or_else(|| sets::RUNS.to_owned(), |(set, _)| set))
}

/// Iterates over a set, the newest first.
struct Walk {
    set: String,
    /// Bounds in the notation of ZRANGE: the iteration goes down from `from` to `to`.
    from: String,
    to: String,
    looked_at: usize,
    last: Option<String>,
    at_end: bool,
}

impl Walk {
    fn new(set: String, created: Created, behind: Option<String>) -> Self {
        let end = created.end().map(|end| end.to_string());
        let from = match (end, behind) {
            (Some(end), Some(behind)) => Some(end.min(behind)),
            (end, behind) => end.or(behind),
        };
        let from = from.map_or_else(|| "+".to_owned(), |from| format!("({from}"));
        let to = created.first().map_or_else(|| "-".to_owned(), |first| format!("[{first}"));
        Self { set, from, to, looked_at: 0, last: None, at_end: false }
    }

    async fn next(&mut self, link: &Link) -> Result<Vec<String>, Unavailable> {
        let mut pipeline = pipe();
        let range = pipeline.cmd("ZRANGE").arg(&self.set).arg(&self.from).arg(&self.to);
        range.arg("BYLEX").arg("REV").arg("LIMIT").arg(0).arg(SCAN);
        let (members,): (Vec<String>,) = link.ask(link.live().await?, &pipeline).await?;
        self.at_end = members.len() < SCAN;
        self.looked_at += members.len();
        if let Some(last) = members.last() {
            self.from = format!("({last}");
        }
        Ok(members)
    }

    fn pass(&mut self, place: String) {
        self.last = Some(place);
    }

    fn is_over(&self) -> bool {
        self.at_end || self.looked_at >= SCAN_MAX
    }

    /// The position to continue from if not everything was read.
    fn rest(self) -> Option<String> {
        if self.at_end { None } else { self.last }
    }
}
